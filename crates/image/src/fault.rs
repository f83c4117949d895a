//! Why an image could not be had: a stable word, one cause, one remedy.

use fumehood_model::text::shown;
use std::fmt;
use std::io;

/// A closed list of words for programs. A word never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The source has no such image.
    NotFound,
    /// The registry wants credentials, or others.
    Unauthorised,
    /// The registry could not be reached, or stopped talking.
    Unreachable,
    /// It answered what no registry answers.
    BadAnswer,
    /// Content is not what its digest says.
    BadDigest,
    /// Content is longer or shorter than its descriptor says.
    BadSize,
    /// A manifest, an index or a configuration is none.
    BadManifest,
    /// There is nothing for `linux/amd64` in it.
    NoPlatform,
    /// A media type, a digest algorithm or a kind of entry that is not known.
    Unsupported,
    /// A layer is no archive, or a damaged one.
    BadLayer,
    /// A name leads out of the image, or through a link.
    Escapes,
    /// A limit on size or number.
    TooLarge,
    /// It unpacks to far more than it is.
    Bomb,
    /// No room for it on this host.
    DiskFull,
    /// The store could not be read or written.
    Store,
    /// A run stands on it.
    InUse,
    /// The source on this host can not be read.
    BadSource,
    /// A program of the host that is needed is missing, or failed.
    Tool,
}

/// A failure. Texts have literal values in backticks and no full stop at their end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub code: Code,
    pub why: String,
    pub remedy: String,
}

// === impl Code ===

impl Code {
    /// The word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Unauthorised => "unauthorised",
            Self::Unreachable => "unreachable",
            Self::BadAnswer => "bad_answer",
            Self::BadDigest => "bad_digest",
            Self::BadSize => "bad_size",
            Self::BadManifest => "bad_manifest",
            Self::NoPlatform => "no_platform",
            Self::Unsupported => "unsupported",
            Self::BadLayer => "bad_layer",
            Self::Escapes => "escapes",
            Self::TooLarge => "too_large",
            Self::Bomb => "bomb",
            Self::DiskFull => "disk_full",
            Self::Store => "store",
            Self::InUse => "in_use",
            Self::BadSource => "bad_source",
            Self::Tool => "tool",
        }
    }

    /// What to do where nothing better is known.
    const fn remedy(self) -> &'static str {
        match self {
            Self::NotFound => "check the spelling of name and tag",
            Self::Unauthorised => "`docker login REGISTRY` writes credentials that are read",
            Self::Unreachable => "try again; check the network and the proxy variables",
            Self::BadAnswer => "check that the name's first part is a registry",
            Self::BadDigest | Self::BadSize => {
                "pull again; if it stays so, the source or what lies between is not to be trusted"
            }
            Self::BadManifest | Self::BadLayer | Self::Escapes | Self::Unsupported => {
                "have the image built anew by a current builder"
            }
            Self::NoPlatform => "ask for an image of `linux/amd64`",
            Self::TooLarge | Self::Bomb => "use a smaller image; the limits are in `docs/images.md`",
            Self::DiskFull => "free space where the state folder is: `fumehood image prune`",
            Self::Store => "`fumehood image prune` mends what it can; `FUMEHOOD_STATE` names another folder",
            Self::InUse => "wait for the run to end",
            Self::BadSource => "name a layout folder or a `docker save` archive that you may read",
            Self::Tool => "install it, or fix what it says",
        }
    }
}

// === impl Fault ===

impl Fault {
    /// A failure with the usual remedy of its kind.
    pub fn new(code: Code, why: impl Into<String>) -> Self {
        Self { code, why: why.into(), remedy: code.remedy().to_owned() }
    }

    /// The same with another remedy.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// The same, told of something.
    #[must_use]
    pub fn of(mut self, what: &str) -> Self {
        self.why = format!("{what}: {}", self.why);
        self
    }

    /// The store could not do `what`.
    pub(crate) fn store(what: &str, error: &io::Error) -> Self {
        let code = if is_full(error) { Code::DiskFull } else { Code::Store };
        Self::new(code, format!("failed to {what}: {error}"))
    }

    /// A failure while reading, which may carry one of ours.
    pub(crate) fn reading(code: Code, what: &str, error: io::Error) -> Self {
        match unwrap(error) {
            Ok(fault) => fault,
            Err(error) => Self::new(code, format!("failed to {what}: {error}")),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.why)
    }
}

impl std::error::Error for Fault {}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> Self {
        Self::other(fault)
    }
}

/// The fault that an I/O error carries, if it is one of ours.
fn unwrap(error: io::Error) -> Result<Fault, io::Error> {
    let ours = error.get_ref().and_then(|inner| inner.downcast_ref::<Fault>()).cloned();
    ours.ok_or(error)
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Bytes of others, as they may stand in a message.
pub(crate) fn text(bytes: &[u8]) -> String {
    shown(&String::from_utf8_lossy(bytes))
}
