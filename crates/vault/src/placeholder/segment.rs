//! One piece of a value, replaced character by character.

use super::prefixes;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

const UPPER: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const LOWER: &[u8] = b"abcdefghijklmnopqrstuvwxyz";
const DIGITS: &[u8] = b"0123456789";
const UPPER_HEX: &[u8] = b"0123456789ABCDEF";
const LOWER_HEX: &[u8] = b"0123456789abcdef";
pub(super) const LOWER_AND_DIGITS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
/// A piece of hexadecimal digits that is shorter may as well be a word (`face`, `2024`).
const LEAST_HEX: usize = 16;
/// What the body of a made-up JWT says: good until 2100, so that no client takes it for expired.
const CLAIMS: (&[u8], &[u8]) = (br#"{"exp":4102444800,"jti":""#, br#""}"#);
/// With fewer characters of its own a made-up body says nothing that is unique.
const LEAST_CLAIM: usize = 8;

/// Randomness, one choice at a time.
pub(super) struct Dice<'a> {
    source: &'a mut dyn FnMut(&mut [u8]),
    buffer: [u8; 64],
    at: usize,
}

/// A placeholder that is being put together.
#[derive(Default)]
pub(super) struct Shaped {
    pub(super) bytes: Vec<u8>,
    /// For each byte, whether it was chosen at random.
    pub(super) random: Vec<bool>,
    /// How much chance is in it, rounded down.
    pub(super) bits: usize,
}

// === impl Dice ===

impl<'a> Dice<'a> {
    pub(super) fn new(source: &'a mut dyn FnMut(&mut [u8])) -> Self {
        Self { source, buffer: [0; 64], at: 64 }
    }

    fn byte(&mut self) -> u8 {
        if self.at >= self.buffer.len() {
            (self.source)(&mut self.buffer);
            self.at = 0;
        }
        let byte = self.buffer.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    /// One of `choices`, each as likely. A source that is stuck gives a poor choice and no endless loop.
    fn pick(&mut self, choices: &[u8]) -> u8 {
        let count = choices.len().clamp(1, 256);
        let fair = 256 - 256 % count;
        let mut index = usize::from(self.byte());
        for _ in 0..32 {
            if index < fair {
                break;
            }
            index = usize::from(self.byte());
        }
        choices.get(index % count).copied().unwrap_or(b'x')
    }
}

// === impl Shaped ===

impl Shaped {
    pub(super) fn keep(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.random.resize(self.bytes.len(), false);
    }

    pub(super) fn roll(&mut self, choices: &[u8], dice: &mut Dice<'_>) {
        self.bytes.push(dice.pick(choices));
        self.random.push(true);
        self.bits += usize::try_from(choices.len().checked_ilog2().unwrap_or(0)).unwrap_or(0);
    }
}

/// Appends what stands for `piece`.
pub(super) fn shape(piece: &[u8], dice: &mut Dice<'_>, made: &mut Shaped) {
    if shape_jwt(piece, dice, made).is_some() {
        return;
    }
    let (prefix, rest) = piece.split_at_checked(prefixes::known(piece)).unwrap_or((&[], piece));
    made.keep(prefix);
    characters(rest, dice, made);
}

fn characters(rest: &[u8], dice: &mut Dice<'_>, made: &mut Shaped) {
    let hex = hex_alphabet(rest);
    for byte in rest {
        match (byte, hex) {
            (b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z', Some(alphabet)) => made.roll(alphabet, dice),
            (b'0'..=b'9', None) => made.roll(DIGITS, dice),
            (b'A'..=b'Z', None) => made.roll(UPPER, dice),
            // A byte of a character outside ASCII: a letter each, so that the length in bytes is kept.
            (b'a'..=b'z', None) | (0x80.., _) => made.roll(LOWER, dice),
            (other, _) => made.keep(&[*other]),
        }
    }
}

/// A value that is hexadecimal throughout, a UUID too, stays so.
fn hex_alphabet(rest: &[u8]) -> Option<&'static [u8]> {
    let digits = rest.iter().filter(|byte| byte.is_ascii_alphanumeric());
    let (mut count, mut upper, mut lower) = (0_usize, false, false);
    for byte in digits {
        if !byte.is_ascii_hexdigit() {
            return None;
        }
        count += 1;
        upper |= byte.is_ascii_uppercase();
        lower |= byte.is_ascii_lowercase();
    }
    match (count >= LEAST_HEX, upper, lower) {
        (true, true, false) => Some(UPPER_HEX),
        (true, false, true) => Some(LOWER_HEX),
        _ => None,
    }
}

/// A JSON Web Token: clients read its claims, so it gets a body that can be read. The head says the
/// algorithm and the key's name and is kept.
fn shape_jwt(piece: &[u8], dice: &mut Dice<'_>, made: &mut Shaped) -> Option<()> {
    let mut fields = piece.split(|byte| *byte == b'.');
    let (head, body, signature) = (fields.next()?, fields.next()?, fields.next()?);
    if fields.next().is_some() || !head.starts_with(b"eyJ") {
        return None;
    }
    let said: serde_json::Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(head).ok()?).ok()?;
    said.get("alg")?;
    let length = URL_SAFE_NO_PAD.decode(body).ok()?.len();
    let own = length.checked_sub(CLAIMS.0.len() + CLAIMS.1.len()).filter(|own| *own >= LEAST_CLAIM)?;
    let id: Vec<u8> = (0..own).map(|_| dice.pick(LOWER_AND_DIGITS)).collect();
    let claims = [CLAIMS.0, id.as_slice(), CLAIMS.1].concat();
    made.keep(head);
    made.keep(b".");
    made.keep(URL_SAFE_NO_PAD.encode(claims).as_bytes());
    made.bits += own * 5;
    made.keep(b".");
    characters(signature, dice, made);
    Some(())
}
