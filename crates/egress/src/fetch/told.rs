//! What a fetch comes to, on its way from the process that reads the answer to the one that asked for it.

use super::page::Gathering;
use super::url::{Url, UrlFlaw};
use crate::http::answer::{Answer, Told};
use crate::http::exchange::Ask;
use fumehood_model::egress::Denial;
use fumehood_model::quantity::show_duration;
use fumehood_model::text::{cut, shown};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, SET_COOKIE, VARY};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The most that an outcome weighs, without the body.
pub const HEAD_BYTES: usize = 64 << 10;
/// Of a kind of content, or of a message.
const TEXT_CHARS: usize = 1024;

/// A page, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Page(Page),
    Failed(Failed),
}

/// An answer of a server. Its body stands beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Where it came from, after every redirect.
    pub url: String,
    pub status: u16,
    pub content_type: Option<String>,
    /// Of the body, decoded, as far as it was taken.
    pub bytes: u64,
    /// Whether there was more than was to be taken.
    pub truncated: bool,
    pub redirects: u32,
    /// Whether the server lets it be used again.
    pub may_be_kept: bool,
}

/// Why there is no page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Where it failed, after every redirect before that.
    pub url: String,
    /// A word of a closed list: those of a denial, and those of a fault.
    pub code: String,
    pub message: String,
    pub remedy: String,
}

// === impl Outcome ===

impl Outcome {
    /// What comes before the body: the length of the outcome in four bytes, and the outcome as JSON.
    pub fn frame(&self) -> Vec<u8> {
        // Texts and numbers are always written out.
        let json = serde_json::to_vec(self).unwrap_or_default();
        let length = u32::try_from(json.len()).unwrap_or(u32::MAX);
        [&length.to_le_bytes()[..], &json].concat()
    }

    /// Reads an outcome, and gives back its body. `None`: it is not one, or not whole.
    pub fn read(bytes: &[u8], most_bytes: u64) -> Option<(Self, &[u8])> {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let length =
            usize::try_from(u32::from_le_bytes(*length)).ok().filter(|length| *length <= HEAD_BYTES)?;
        let (json, body) = rest.split_at_checked(length)?;
        let outcome: Self = serde_json::from_slice(json).ok()?;
        let told = match &outcome {
            Self::Page(page) => page.bytes,
            Self::Failed(_) => 0,
        };
        let whole = u64::try_from(body.len()).is_ok_and(|found| found == told && found <= most_bytes);
        whole.then_some((outcome, body))
    }
}

// === impl Page ===

impl Page {
    pub(super) fn new(
        url: &Url,
        (status, fields): (StatusCode, &HeaderMap),
        redirects: u32,
        gathered: &Gathering,
    ) -> Self {
        let kind = fields.get(CONTENT_TYPE).map(|kind| String::from_utf8_lossy(kind.as_bytes()).into_owned());
        Self {
            url: url.to_string(),
            status: status.as_u16(),
            content_type: kind.map(|kind| cut(&kind, TEXT_CHARS)),
            bytes: u64::try_from(gathered.body.len()).unwrap_or(u64::MAX),
            truncated: gathered.truncated,
            redirects,
            may_be_kept: status == StatusCode::OK && !gathered.truncated && may_be_kept(fields),
        }
    }
}

/// Whether a head says nothing against giving the same answer again within minutes.
fn may_be_kept(fields: &HeaderMap) -> bool {
    let mut control =
        fields.get_all(CACHE_CONTROL).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let forbids = |word: &[u8]| {
        let word = word.trim_ascii().to_ascii_lowercase();
        [&b"no-store"[..], b"no-cache", b"private", b"max-age=0"].iter().any(|known| word.starts_with(known))
    };
    let varies = fields.get_all(VARY).iter().any(|value| value.as_bytes().contains(&b'*'));
    !fields.contains_key(SET_COOKIE) && !varies && !control.any(forbids)
}

// === impl Failed ===

impl Failed {
    fn new(url: &Url, code: &str, message: &str, remedy: &str) -> Self {
        Self {
            url: url.to_string(),
            code: code.to_owned(),
            message: cut(message, TEXT_CHARS),
            remedy: cut(remedy, TEXT_CHARS),
        }
    }

    pub(super) fn told(url: &Url, told: Told) -> Self {
        Self::new(url, told.code, &told.message, &told.remedy)
    }

    pub(super) fn denied(url: &Url, denial: &Denial, ask: &Ask) -> Self {
        Self::told(url, Answer::denied(denial, &ask.identity, Some(ask.request()), ask.form).told)
    }

    pub(super) fn unrecorded(url: &Url) -> Self {
        let denial = Denial::Unrecorded;
        let message = format!("fumehood fetched nothing: {denial}");
        Self::new(url, denial.code(), &message, &denial.remedy(url.identity(), None))
    }

    /// The time is over.
    pub fn timed_out(url: &Url, time: Duration) -> Self {
        let message = format!("fumehood gave up on {url} after {}", show_duration(time));
        Self::new(url, "timed_out", &message, "give it longer, as in `--timeout 2m`, or look at the server")
    }

    pub(super) fn going_round(here: &Url, there: &Url) -> Self {
        let message =
            format!("fumehood was led in a circle: {here} redirects to {there}, which was asked before");
        Self::new(here, "redirect_loop", &message, "look at the server")
    }

    pub(super) fn too_many(here: &Url, most: u32) -> Self {
        let message = format!("fumehood was redirected more than {most} times");
        Self::new(here, "too_many_redirects", &message, "`--max-redirects` allows more of them")
    }

    pub(super) fn bad_redirect(here: &Url, location: &[u8], flaw: &UrlFlaw) -> Self {
        let location = shown(&String::from_utf8_lossy(location));
        let message = format!("fumehood does not follow {here} to `{location}`: {flaw}");
        Self::new(here, "bad_redirect", &message, "look at the server")
    }
}
