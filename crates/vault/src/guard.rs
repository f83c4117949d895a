//! Finds a placeholder where it may not be.
//!
//! A placeholder is no secret, but a request that carries one where nothing will replace it is a mistake
//! that its sender should hear of: it would fail at the far end with a riddle, or tell a stranger that
//! there is a token to be had. So it is refused, wherever it stands: host, path, query, any field, body;
//! as it is, in any case, percent-encoded (also twice), in base64 at any alignment.
//!
//! In its place is what the request's own injection replaces: all of the field that it sets, all of the
//! parameter that it sets. Another secret's placeholder is not in its place there.

use crate::encode::unpercent;
use crate::forms::forms;
use crate::inject::{Head, Injection, Place};
use crate::placeholder::Placeholder;
use crate::search::{Letters, Search};
use crate::secret::SecretName;
use http::{HeaderMap, HeaderName};
use std::fmt;
use std::sync::Arc;

/// A piece of a placeholder that is shorter is not looked for by itself.
const LEAST_PIECE_BYTES: usize = 12;
/// How often percent-encoding is undone: twice by accident is seen, more often is not accident.
const UNWRAPPED: usize = 3;
/// What a chain of proxies must not be shown either, and what a client of AWS signs beside the
/// `Authorization` field.
const AWS_TOKEN: &str = "x-amz-security-token";

/// What to look for. Cheap to clone.
#[derive(Clone)]
pub struct Guard(Arc<Needles>);

struct Needles {
    /// For heads: hosts and names of fields come in any case.
    head: Search,
    /// For bodies.
    body: Search,
    names: Vec<SecretName>,
    /// For each needle, whose it is.
    owners: Vec<usize>,
}

/// One request's body, chunk by chunk.
pub struct BodyScan {
    guard: Guard,
    /// The end of what has been seen, one byte less than the longest form.
    tail: Vec<u8>,
}

/// A placeholder that nothing will replace. The request may not be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the placeholder of `{secret}` is in the {place}, where no rule puts its value")]
pub struct Misplaced {
    /// Whose placeholder.
    pub secret: SecretName,
    /// Where it stands.
    pub place: Place,
}

// === impl Misplaced ===

impl Misplaced {
    /// What can be done.
    pub const fn remedy(&self) -> &'static str {
        "bind the secret to this host and place with a rule `… with KIND:NAME`, or send the request without it"
    }
}

// === impl Guard ===

impl Guard {
    /// Looks for the placeholders of these secrets.
    pub fn new<'a>(placeholders: impl IntoIterator<Item = (&'a SecretName, &'a Placeholder)>) -> Self {
        let (mut needles, mut owners, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for (name, placeholder) in placeholders {
            names.push(name.clone());
            for (index, part) in placeholder.parts().iter().enumerate() {
                let text = placeholder.part(part);
                if part.kept || (index > 0 && text.len() < LEAST_PIECE_BYTES) {
                    continue;
                }
                for form in forms(text, text) {
                    needles.push(form.needle);
                    owners.push(names.len() - 1);
                }
            }
        }
        let head = Search::new(needles.clone(), Letters::AnyCase);
        Self(Arc::new(Needles { head, body: Search::new(needles, Letters::Exact), names, owners }))
    }

    /// Judges a head. `own` is the injection that the request gets, and its secret: call it before the
    /// value is put in, or with `None` after.
    pub fn head(&self, head: &Head<'_>, own: Option<(&Injection, &SecretName)>) -> Result<(), Misplaced> {
        self.text(head.method.as_str().as_bytes(), None, || Place::Method)?;
        if let Some(authority) = head.uri.authority() {
            self.host(authority.as_str())?;
        }
        self.text(head.uri.path().as_bytes(), None, || Place::Path)?;
        self.query(head.uri.query().unwrap_or_default(), own)?;
        for (name, value) in head.fields.iter() {
            let place = || if name == http::header::HOST { Place::Host } else { Place::Field(name.clone()) };
            self.text(name.as_str().as_bytes(), None, place)?;
            let in_place = own.filter(|(injection, _)| sets(injection, name)).map(|(_, secret)| secret);
            self.text(value.as_bytes(), in_place, place)?;
        }
        Ok(())
    }

    /// Judges a name that is to be resolved or dialled. A long placeholder may stand in several labels.
    pub fn host(&self, host: &str) -> Result<(), Misplaced> {
        self.text(host.as_bytes(), None, || Place::Host)?;
        self.text(host.replace('.', "").as_bytes(), None, || Place::Host)
    }

    /// Judges trailers.
    pub fn trailers(&self, fields: &HeaderMap) -> Result<(), Misplaced> {
        for (name, value) in fields {
            self.text(name.as_str().as_bytes(), None, || Place::Body)?;
            self.text(value.as_bytes(), None, || Place::Body)?;
        }
        Ok(())
    }

    /// Begins a body. One that gets a value itself ([`Injection::Body`]) is judged after that.
    pub fn body(&self) -> BodyScan {
        BodyScan { guard: self.clone(), tail: Vec::new() }
    }

    fn query(&self, query: &str, own: Option<(&Injection, &SecretName)>) -> Result<(), Misplaced> {
        let parameter = match own {
            Some((Injection::Query { parameter }, secret)) => Some((parameter, secret)),
            _ => None,
        };
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let replaced = parameter.filter(|(parameter, _)| {
                unpercent(name.as_bytes(), true).eq_ignore_ascii_case(parameter.as_bytes())
            });
            self.text(value.as_bytes(), replaced.map(|(_, secret)| secret), || Place::Query)?;
            self.text(name.as_bytes(), None, || Place::Query)?;
        }
        // A placeholder with `&` or `=` in it, written without encoding, stands in several pairs.
        self.text(query.as_bytes(), parameter.map(|(_, secret)| secret), || Place::Query)
    }

    /// Looks through a text as it is, and with its percent-encoding undone.
    fn text(
        &self,
        text: &[u8],
        in_place: Option<&SecretName>,
        place: impl Fn() -> Place,
    ) -> Result<(), Misplaced> {
        let mut plain = text.to_vec();
        for _ in 0..UNWRAPPED {
            self.exactly(&plain, in_place, &place)?;
            let less = unpercent(&plain, false);
            if less == plain {
                break;
            }
            plain = less;
        }
        Ok(())
    }

    fn exactly(
        &self,
        text: &[u8],
        in_place: Option<&SecretName>,
        place: impl Fn() -> Place,
    ) -> Result<(), Misplaced> {
        let mut at = 0;
        while let Some(found) = self.0.head.find(text, at) {
            at = found.range.end;
            if let Some(secret) = self.owner(found.needle).filter(|owner| Some(*owner) != in_place) {
                return Err(Misplaced { secret: secret.clone(), place: place() });
            }
        }
        Ok(())
    }

    fn owner(&self, needle: usize) -> Option<&SecretName> {
        self.0.names.get(*self.0.owners.get(needle)?)
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({} placeholders)", self.0.names.len())
    }
}

/// Whether an injection replaces all of a field.
fn sets(injection: &Injection, name: &HeaderName) -> bool {
    let is = |wanted: &str| name.as_str().replace('_', "-") == wanted.replace('_', "-");
    match injection {
        Injection::Bearer | Injection::Basic { .. } => is("authorization"),
        Injection::SigV4 { .. } => is("authorization") || is(AWS_TOKEN),
        Injection::Header { name } => is(name.as_str()),
        Injection::Query { .. } | Injection::Body => false,
    }
}

// === impl BodyScan ===

impl BodyScan {
    /// Judges the next chunk, together with the end of what came before it. Call it before the chunk is
    /// sent: what was sent earlier is then never all of a placeholder.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<(), Misplaced> {
        let reach = self.guard.0.body.longest().saturating_sub(1);
        if reach == 0 {
            return Ok(());
        }
        if !self.tail.is_empty() {
            let before = self.tail.len();
            self.tail.extend_from_slice(chunk.get(..reach.min(chunk.len())).unwrap_or_default());
            self.judge(&self.tail)?;
            self.tail.truncate(before);
        }
        self.judge(chunk)?;
        self.tail.extend_from_slice(chunk.get(chunk.len().saturating_sub(reach)..).unwrap_or_default());
        let surplus = self.tail.len().saturating_sub(reach);
        self.tail.drain(..surplus);
        Ok(())
    }

    fn judge(&self, text: &[u8]) -> Result<(), Misplaced> {
        let found = self.guard.0.body.find(text, 0);
        match found.and_then(|found| self.guard.owner(found.needle)) {
            Some(secret) => Err(Misplaced { secret: secret.clone(), place: Place::Body }),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for BodyScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BodyScan({:?})", self.guard)
    }
}

#[cfg(test)]
mod tests;
