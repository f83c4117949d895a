//! What a sandbox sees in place of a secret.
//!
//! A placeholder has the shape of the real value, so that a program that checks the look of a token
//! before it sends it is content: the same length, the same known beginning (`ghp_`, `sk-`), every other
//! letter and digit replaced by a random one of its class, punctuation kept. Nothing can be learnt from
//! it that the shape does not say, and no eight random characters in a row stand in both.

mod prefixes;
mod segment;

use crate::secret::Secret;
use segment::{Dice, Shaped};
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

/// A run this long in both would give a part of the value away.
const SHARED_RUN: usize = 8;
/// Longer values are compared place by place only: among so many windows of a small alphabet two are
/// alike by chance.
const FREE_RUN_LIMIT_BYTES: usize = 2048;
/// Fewer random bits than this could be hit by chance, so the placeholder is made longer.
const LEAST_BITS: usize = 48;
/// With a working source of randomness the first try is good but for once in millions.
const TRIES: usize = 64;

/// How a value is built, which follows from how it is injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One token.
    Opaque,
    /// `user:password`, as for HTTP Basic. The user is kept where it looks like a name.
    Pair,
    /// `ACCESS_KEY_ID:SECRET_ACCESS_KEY[:SESSION_TOKEN]`.
    AwsKeys,
}

/// The stand-in for one secret in one sandbox. Safe to show: it is no secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Placeholder {
    text: String,
    shape: Shape,
    parts: Vec<Part>,
}

/// What stands for a piece of the real value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Where, in the placeholder.
    pub(crate) stand_in: Range<usize>,
    /// Shown as it is, so it is neither masked nor looked for.
    pub(crate) kept: bool,
}

/// Why no placeholder could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceholderError {
    /// Every try came out too like the real value: the source of randomness does not work.
    #[error("the source of randomness gives the same bytes again and again")]
    NotRandom,
    /// Keys without a colon.
    #[error("the value is not `ACCESS_KEY_ID:SECRET_ACCESS_KEY`")]
    NotKeys,
}

// === impl PlaceholderError ===

impl PlaceholderError {
    /// What the operator can do.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::NotRandom => "check the host's `/dev/urandom`",
            Self::NotKeys => "give both keys with a colon between, and the session token after another colon",
        }
    }
}

// === impl Placeholder ===

impl Placeholder {
    /// Makes the placeholder of `secret` for one sandbox. `random` fills what it is given.
    pub fn new(
        secret: &Secret,
        shape: Shape,
        random: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Self, PlaceholderError> {
        let real = secret.expose();
        let segments = segments(real, shape)?;
        let mut dice = Dice::new(random);
        for _ in 0..TRIES {
            let made = attempt(real, &segments, &mut dice);
            if is_apart(real, &made) {
                let text = String::from_utf8_lossy(&made.bytes).into_owned();
                return Ok(Self { parts: parts(real.len(), text.len(), &segments), text, shape });
            }
        }
        Err(PlaceholderError::NotRandom)
    }

    /// The text that stands in the sandbox's variable.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Its colon-separated pieces: of [`Shape::AwsKeys`] the key id, the key and the session token, for
    /// `AWS_ACCESS_KEY_ID` and its kin; of the others user and password, or the whole.
    pub fn pieces(&self) -> impl Iterator<Item = &str> {
        let whole = 0..self.text.len();
        let alone = self.parts.len() == 1;
        self.parts
            .iter()
            .map(|part| part.stand_in.clone())
            .filter(move |range| alone || *range != whole)
            .filter_map(|range| self.text.get(range))
    }

    /// The pieces of a value that has this placeholder, each with what stands for it. The value need not be
    /// the one that the placeholder was made of: a renewed one has pieces of other lengths, or more.
    pub(crate) fn pieces_of<'a>(&'a self, real: &'a [u8]) -> Vec<(&'a [u8], &'a [u8])> {
        let segments = by_colons(real, self.shape).unwrap_or_default();
        let alone = segments.len() < 2;
        let secret = segments.into_iter().enumerate().filter(|(_, one)| !one.kept && !alone);
        secret
            .filter_map(|(index, one)| {
                let stand_in = self.parts.get(index + 1).map_or(&[][..], |part| self.part(part));
                Some((real.get(one.range)?, stand_in))
            })
            .collect()
    }

    /// The whole, and its pieces.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The stand-in of one part.
    pub(crate) fn part(&self, part: &Part) -> &[u8] {
        self.text.as_bytes().get(part.stand_in.clone()).unwrap_or_default()
    }
}

impl fmt::Display for Placeholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Placeholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Placeholder({})", self.text)
    }
}

/// A piece between colons, and whether it is shown as it is.
struct Segment {
    range: Range<usize>,
    kept: bool,
}

fn segments(real: &[u8], shape: Shape) -> Result<Vec<Segment>, PlaceholderError> {
    let found = by_colons(real, shape)?;
    let replaced = found.iter().filter(|one| !one.kept).filter_map(|one| real.get(one.range.clone()));
    // Where punctuation alone would be left, the whole is one segment, so that something can change.
    if replaced.flatten().any(is_replaced) {
        return Ok(found);
    }
    Ok(vec![Segment { range: 0..real.len(), kept: false }])
}

/// Whether a byte is replaced at all, or kept as punctuation.
fn is_replaced(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

fn by_colons(real: &[u8], shape: Shape) -> Result<Vec<Segment>, PlaceholderError> {
    let colon = |from: usize| {
        real.get(from..)?.iter().position(|byte| *byte == b':').map(|at| from.saturating_add(at))
    };
    let whole = || vec![Segment { range: 0..real.len(), kept: false }];
    match (shape, colon(0)) {
        (Shape::Opaque, _) | (Shape::Pair, None) => Ok(whole()),
        (Shape::AwsKeys, None) => Err(PlaceholderError::NotKeys),
        (Shape::Pair, Some(at)) => {
            let (user, password) = (real.get(..at).unwrap_or_default(), at + 1..real.len());
            let kept = is_a_name(user, real.get(password.clone()).unwrap_or_default());
            Ok(vec![Segment { range: 0..at, kept }, Segment { range: password, kept: false }])
        }
        (Shape::AwsKeys, Some(first)) => {
            let ends = colon(first + 1);
            let mut out = vec![
                Segment { range: 0..first, kept: false },
                Segment { range: first + 1..ends.unwrap_or(real.len()), kept: false },
            ];
            out.extend(ends.map(|second| Segment { range: second + 1..real.len(), kept: false }));
            Ok(out)
        }
    }
}

/// Whether the part before a pair's colon is a name, and not itself the token: some services take
/// `TOKEN:` or `TOKEN:x-oauth-basic`.
fn is_a_name(user: &[u8], password: &[u8]) -> bool {
    user.is_ascii()
        && user.len() <= 64
        && password.len() >= 8
        && !password.eq_ignore_ascii_case(b"x-oauth-basic")
        && prefixes::known(user) == 0
        && (user.len() <= 20 || user.contains(&b'@') || user.contains(&b'.') || user.contains(&b'-'))
}

fn attempt(real: &[u8], segments: &[Segment], dice: &mut Dice<'_>) -> Shaped {
    let mut made = Shaped::default();
    for (index, one) in segments.iter().enumerate() {
        if index > 0 {
            made.keep(b":");
        }
        let piece = real.get(one.range.clone()).unwrap_or_default();
        if one.kept { made.keep(piece) } else { segment::shape(piece, dice, &mut made) }
    }
    if !made.random.contains(&true) {
        made = Shaped::default();
    }
    if made.bits < LEAST_BITS {
        made.keep(b"-fumehood-");
        for _ in 0..12 {
            made.roll(segment::LOWER_AND_DIGITS, dice);
        }
    }
    made
}

/// Whether nothing of the real value stands in what was made, beyond its shape.
fn is_apart(real: &[u8], made: &Shaped) -> bool {
    let windows = made.bytes.windows(SHARED_RUN).zip(made.random.windows(SHARED_RUN)).enumerate();
    let mut rolled =
        windows.filter(|(_, (_, random))| random.iter().all(|one| *one)).map(|(at, (w, _))| (at, w));
    let shares = if real.len() > FREE_RUN_LIMIT_BYTES {
        rolled.any(|(at, window)| real.get(at..at.saturating_add(SHARED_RUN)) == Some(window))
    } else {
        let known: HashSet<&[u8]> = real.windows(SHARED_RUN).collect();
        rolled.any(|(_, window)| known.contains(window))
    };
    !shares && !made.bytes.windows(real.len()).any(|window| window == real)
}

fn parts(real: usize, made: usize, segments: &[Segment]) -> Vec<Part> {
    let mut out = vec![Part { stand_in: 0..made, kept: false }];
    if segments.len() > 1 {
        // Lengths are the same up to the last segment, which may have been made longer.
        out.extend(segments.iter().map(|one| {
            let end = if one.range.end == real { made } else { one.range.end };
            Part { stand_in: one.range.start..end, kept: one.kept }
        }));
    }
    out
}

#[cfg(test)]
mod tests;
