//! What the protocols ask of the wall: the seam between reading requests and letting them out.

use fumehood_model::egress::{Binding, Denial, Host, Identity, Request};
use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use tokio::net::TcpStream;

/// How something reached the wall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// Dialled as if nothing were in between.
    Transparent,
    /// Through the proxy's `CONNECT`.
    Connect,
    /// Through the proxy, with the whole URL in the request line.
    Absolute,
    Socks5,
    /// By the `fetch` verb, from outside.
    Fetch,
}

/// Something that wants to leave.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub identity: &'a Identity,
    /// `None` where bytes would pass unread.
    pub request: Option<Request<'a>>,
    pub via: Via,
}

/// Proof that one ask was decided, counted and recorded. Spent by [`Wall::end`]; not `Clone`. One that is
/// dropped instead is recorded as cut off.
#[derive(Debug)]
#[must_use]
pub struct Cleared {
    /// Ties the lines of the record together.
    pub(crate) id: u64,
    pub(crate) identity: Identity,
    pub(crate) binding: Option<Binding>,
    pub(crate) lease: Lease,
}

/// What happens when a [`Cleared`] is dropped without its end.
#[derive(Default)]
pub(crate) struct Lease(Option<Box<dyn FnOnce()>>);

/// A connection to an address that was judged, for what was cleared.
#[derive(Debug)]
pub struct Dialled {
    pub stream: TcpStream,
    /// The address; `None` where an upstream proxy resolved the name.
    pub address: Option<IpAddr>,
}

/// Why no connection came about. A [`Denial`] is our refusal, the others are the network's.
#[derive(Debug)]
pub enum DialError {
    Denied(Denial),
    NoSuchName,
    Resolver(String),
    Unreachable(std::io::Error),
    Upstream(String),
}

/// How something that was cleared came to its end, for the record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct End {
    pub address: Option<IpAddr>,
    /// The status of the response, where there was one.
    pub status: Option<u16>,
    /// Bytes that the sandbox sent and received.
    pub bytes_out: u64,
    pub bytes_in: u64,
    /// Why it ended other than well.
    pub fault: Option<String>,
    /// The secrets, by name, whose values came back and were masked.
    pub masked: Vec<String>,
}

/// The wall, as the protocols see it. Cheap to clone; everything is on one thread.
pub trait Wall: Clone + 'static {
    /// Decides, counts against the ceilings and records. On a denial that is recorded, too.
    fn clear(&self, asked: Asked<'_>) -> impl Future<Output = Result<Cleared, Denial>>;

    /// Records a refusal that was found before or beside the decision, and gives it back.
    fn refuse(&self, asked: Asked<'_>, denial: Denial) -> impl Future<Output = Denial>;

    /// Resolves, judges the addresses, dials. TLS towards the server is the caller's. A denial is recorded
    /// here; every fault goes into the [`End`] as well.
    fn dial(&self, cleared: &Cleared) -> impl Future<Output = Result<Dialled, DialError>>;

    /// Counts bytes against the ceilings before they are passed on. An error: stop now.
    fn count(&self, cleared: &Cleared, bytes_out: u64, bytes_in: u64) -> Result<(), Denial>;

    /// Whether requests to the host may carry a secret, by whatever rule, so that it knows one.
    fn gives_secrets(&self, host: &Host) -> bool;

    /// Records the end of what was cleared.
    fn end(&self, cleared: Cleared, end: End) -> impl Future<Output = ()>;
}

// === impl Cleared ===

impl Cleared {
    /// Where it goes, and nowhere else.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The secret to use, and how.
    pub fn binding(&self) -> Option<&Binding> {
        self.binding.as_ref()
    }

    pub fn host(&self) -> &Host {
        &self.identity.host
    }
}

// === impl Lease ===

impl Lease {
    pub(crate) fn new(dropped: impl FnOnce() + 'static) -> Self {
        Self(Some(Box::new(dropped)))
    }

    /// The end was told in another way.
    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(dropped) = self.0.take() {
            dropped();
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Lease(held)" } else { "Lease(over)" })
    }
}

// === impl Via ===

impl Via {
    /// The word used for it in the record.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Transparent => "transparent",
            Self::Connect => "connect",
            Self::Absolute => "absolute",
            Self::Socks5 => "socks5",
            Self::Fetch => "fetch",
        }
    }
}

// === impl DialError ===

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(denial) => denial.fmt(f),
            Self::NoSuchName => f.write_str("the name does not exist"),
            Self::Resolver(why) => write!(f, "the name could not be resolved: {why}"),
            Self::Unreachable(error) => write!(f, "the server could not be reached: {error}"),
            Self::Upstream(why) => write!(f, "the upstream proxy refused: {why}"),
        }
    }
}

impl std::error::Error for DialError {}
