//! What is kept of requests and their answers, so that a run can be run again without a network.
//!
//! A *tape* is a file of JSON lines, one an exchange that came to its end: what was asked (method, place, path with its
//! query, digest of the body, all as the sandbox sent it: placeholders, no secrets) and what the sandbox got for it (with
//! secrets masked). Run again, the same asks get the same answers, each once and in their order; all else is refused, and
//! nothing is resolved, dialled or sent.
//!
//! **Invariant:** with a tape to play there is nothing that could be dialled with.

use aws_lc_rs::digest::{Context, SHA256};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};

/// The longest body of an answer that is kept.
pub const MOST_BODY_BYTES: usize = 16 << 20;
/// What a tape may hold in all.
pub const MOST_TAPE_BYTES: u64 = 64 << 20;

/// What a gate does with exchanges beside carrying them.
#[derive(Debug, Default)]
pub enum Mode {
    #[default]
    Off,
    /// Keeps them in this file.
    Keep(File),
    /// Answers from these, and sends nothing.
    Play(Vec<Exchange>),
}

/// One request and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exchange {
    #[serde(flatten)]
    pub asked: Asked,
    pub status: u16,
    pub fields: Vec<(String, String)>,
    /// `none`, `known`, `chunked` or `close`.
    pub length: String,
    /// As base64.
    pub body: String,
    pub trailers: Vec<(String, String)>,
}

/// What makes a request the same as one that was kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Asked {
    pub method: String,
    pub to: String,
    pub path: String,
    /// Of the request's body.
    pub sha256: String,
}

/// Why there is no tape.
#[derive(Debug, thiserror::Error)]
pub enum TapeError {
    #[error("read the tape")]
    Io(#[from] io::Error),
    #[error("read line {line} of the tape")]
    Line {
        line: usize,
        #[source]
        source: serde_json::Error,
    },
    #[error("read a tape that is longer than {MOST_TAPE_BYTES} bytes")]
    Long,
}

/// A tape that is written, or played.
#[derive(Debug)]
pub(crate) enum Tape {
    Off,
    Keep(Keeping),
    Play(Playing),
}

/// The writer of a tape.
#[derive(Debug)]
pub(crate) struct Keeping {
    file: RefCell<File>,
    bytes: Cell<u64>,
}

/// What has not been asked for again yet.
#[derive(Debug)]
pub(crate) struct Playing(RefCell<HashMap<Asked, VecDeque<Exchange>>>);

/// The digest of a body that passes.
pub(crate) struct Digesting(Context);

// === impl Tape ===

impl Tape {
    pub(crate) fn new(mode: Mode) -> Self {
        match mode {
            Mode::Off => Self::Off,
            Mode::Keep(file) => Self::Keep(Keeping { file: RefCell::new(file), bytes: Cell::new(0) }),
            Mode::Play(exchanges) => {
                let mut all: HashMap<Asked, VecDeque<Exchange>> = HashMap::new();
                for exchange in exchanges {
                    all.entry(exchange.asked.clone()).or_default().push_back(exchange);
                }
                Self::Play(Playing(RefCell::new(all)))
            }
        }
    }
}

impl Mode {
    /// Whether something is done with exchanges, so that they must be seen.
    pub const fn sees_all(&self) -> bool {
        matches!(self, Self::Keep(_) | Self::Play(_))
    }

    /// The file that is written to.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        if let Self::Keep(file) = self { Some(file.as_fd()) } else { None }
    }

    /// Whether nothing may leave.
    pub const fn plays(&self) -> bool {
        matches!(self, Self::Play(_))
    }
}

// === impl Keeping ===

impl Keeping {
    /// Writes one down. What does not fit is not on the tape, and is then refused when it is asked for again.
    pub(crate) fn keep(&self, exchange: &Exchange) {
        let Ok(mut line) = serde_json::to_vec(exchange) else { return };
        line.push(b'\n');
        let bytes = self.bytes.get().saturating_add(line.len() as u64);
        if bytes <= MOST_TAPE_BYTES && self.file.borrow_mut().write_all(&line).is_ok() {
            self.bytes.set(bytes);
        }
    }
}

// === impl Playing ===

impl Playing {
    /// The next answer to the same ask.
    pub(crate) fn take(&self, asked: &Asked) -> Option<Exchange> {
        self.0.borrow_mut().get_mut(asked)?.pop_front()
    }
}

// === impl Digesting ===

impl Digesting {
    pub(crate) fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn hex(&self) -> String {
        self.0.clone().finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl std::fmt::Debug for Digesting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Digesting")
    }
}

// === impl Exchange ===

impl Exchange {
    pub(crate) fn status(&self) -> Option<StatusCode> {
        StatusCode::from_u16(self.status).ok()
    }

    pub(crate) fn body(&self) -> Option<Bytes> {
        STANDARD.decode(&self.body).ok().map(Bytes::from)
    }
}

/// The whole of a tape.
pub fn read(file: File) -> Result<Vec<Exchange>, TapeError> {
    if file.metadata()?.len() > MOST_TAPE_BYTES {
        return Err(TapeError::Long);
    }
    let mut exchanges = Vec::new();
    for (line, text) in BufReader::new(file).lines().enumerate() {
        let exchange = serde_json::from_str(&text?);
        exchanges.push(exchange.map_err(|source| TapeError::Line { line, source })?);
    }
    Ok(exchanges)
}

pub(crate) fn encode(body: &[u8]) -> String {
    STANDARD.encode(body)
}

/// Fields as text that reads back: bytes as the letters of the same numbers.
pub(crate) fn to_pairs(fields: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| value.as_bytes().iter().map(|byte| char::from(*byte)).collect();
    fields.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect()
}

/// And back; what is no field is left out.
pub(crate) fn to_fields(pairs: &[(String, String)]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (name, value) in pairs {
        let bytes: Option<Vec<u8>> =
            value.chars().map(|letter| u8::try_from(u32::from(letter)).ok()).collect();
        let value = bytes.and_then(|bytes| HeaderValue::from_bytes(&bytes).ok());
        if let (Ok(name), Some(value)) = (HeaderName::from_bytes(name.as_bytes()), value) {
            fields.append(name, value);
        }
    }
    fields
}
