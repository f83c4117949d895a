//! One page, for a caller outside of every sandbox: through the same decision, the same dialler, the same
//! record and the same vault as what a sandbox sends.
//!
//! ```text
//!  Url ─► hop ─► http::Forward::exchange (clear, dial, TLS, secrets, mask) ─► Gathering ─┬─► Page
//!          ▲                                                                             │
//!          └──────────────── another Url, read and judged anew ◄──────── redirect ───────┘
//! ```
//!
//! **Invariant:** a hop knows nothing of the one before it but the URL.

mod page;
mod told;
mod url;

#[cfg(test)]
mod tests;

pub use told::{Failed, HEAD_BYTES, Outcome, Page};
pub use url::{Url, UrlFlaw};

use crate::dial::{Dialler, SystemLookup, SystemWorld};
use crate::gate::Gate;
use crate::http::answer::Form;
use crate::http::exchange::Ask;
use crate::http::framing::Length;
use crate::http::{Forward, Secrets};
use crate::record::{Recorder, SocketRecorder};
use crate::run::{Config, LAST_WORDS, RunError};
use crate::stop::Stop;
use crate::wall::{Asked, Via, Wall};
use fumehood_model::egress::{Denial, Table};
use http::header::{ACCEPT, ACCEPT_ENCODING, LOCATION, USER_AGENT};
use http::{HeaderMap, HeaderValue, StatusCode};
use page::{Gathering, Nothing};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

/// What is to be fetched, and how much of it.
#[derive(Clone, Debug)]
pub struct Job {
    pub url: Url,
    pub method: Method,
    /// Of the body, decoded.
    pub most_bytes: u64,
    pub most_redirects: u32,
    /// For everything together.
    pub time: Duration,
}

/// Nothing that is fetched changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
}

/// A fetch that has all it needs of the host's files but what every program may read.
#[derive(Debug)]
pub struct Ready {
    config: Config,
    job: Job,
}

/// How one hop came out.
enum Hop {
    Done(Outcome, Vec<u8>),
    To(Url),
}

// === impl Method ===

impl Method {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
        }
    }
}

// === impl Ready ===

impl Ready {
    /// One job, and what it may reach.
    pub fn new(config: Config, job: Job) -> Self {
        Self { config, job }
    }

    pub fn job(&self) -> &Job {
        &self.job
    }
}

/// Fetches, writes the outcome into `out`, and ends. The keeper at the other end of `record` is asked before
/// anything is sent.
///
/// Preconditions: the caller has one thread and no other runtime.
///
/// # Errors
/// There is no runtime, or nobody to read the outcome.
pub fn run(ready: Ready, record: OwnedFd, out: OwnedFd) -> Result<(), RunError> {
    let Ready { config, job } = ready;
    let Config { egress, ca: _, vault, servers, resolv_conf, hosts, tape: _ } = config;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(RunError::Runtime)?;
    LocalSet::new().block_on(&runtime, async {
        let stop = Stop::new();
        let recorder = SocketRecorder::new(record, stop.clone()).map_err(RunError::Sockets)?;
        spawn_local(recorder.clone().carry());
        let dialler = Dialler::new(Box::new(SystemWorld::new(SystemLookup::new(resolv_conf, hosts))));
        let gate = Gate::new(Table::new(egress), recorder, dialler, stop.clone());
        let forward = Forward::new(gate.clone(), Rc::new(servers), Rc::new(Secrets::new(vault)));
        let (outcome, body) = tokio::select! {
            biased;
            _ = stop.stopped() => (Outcome::Failed(Failed::unrecorded(&job.url)), Vec::new()),
            found = in_time(&gate, &forward, &job) => found,
        };
        let _ = timeout(LAST_WORDS, gate.last_words()).await;
        // While the record is still open: the keeper ends who has closed it.
        let mut out = File::from(out);
        out.write_all(&outcome.frame()).and_then(|()| out.write_all(&body)).map_err(RunError::Outcome)
    })
}

async fn in_time<R: Recorder>(gate: &Gate<R>, forward: &Forward<Gate<R>>, job: &Job) -> (Outcome, Vec<u8>) {
    match timeout(job.time, follow(gate, forward, job)).await {
        Ok(found) => found,
        Err(_) => (Outcome::Failed(Failed::timed_out(&job.url, job.time)), Vec::new()),
    }
}

/// From redirect to redirect, to the page.
pub(crate) async fn follow<R: Recorder>(
    gate: &Gate<R>,
    forward: &Forward<Gate<R>>,
    job: &Job,
) -> (Outcome, Vec<u8>) {
    let failed = |failed| (Outcome::Failed(failed), Vec::new());
    let mut seen = vec![job.url.clone()];
    loop {
        let redirects = u32::try_from(seen.len() - 1).unwrap_or(u32::MAX);
        let here = seen.last().unwrap_or(&job.url).clone();
        match hop(gate, forward, job, (&here, redirects)).await {
            Hop::Done(outcome, body) => return (outcome, body),
            Hop::To(there) if seen.contains(&there) => return failed(Failed::going_round(&here, &there)),
            Hop::To(_) if redirects >= job.most_redirects => {
                return failed(Failed::too_many(&here, job.most_redirects));
            }
            Hop::To(there) => seen.push(there),
        }
    }
}

/// Asks once.
async fn hop<R: Recorder>(
    gate: &Gate<R>,
    forward: &Forward<Gate<R>>,
    job: &Job,
    (here, redirects): (&Url, u32),
) -> Hop {
    let ask = ask(here, job.method);
    // One connection at a time, which is still one of those that are counted.
    let _connection = match gate.connect(&here.identity().host) {
        Ok(connection) => connection,
        Err(denial) => {
            let denial = gate.refuse(ask.asked(), denial).await;
            return Hop::Done(Outcome::Failed(Failed::denied(here, &denial, &ask)), Vec::new());
        }
    };
    let mut gathering = Gathering::new(job.most_bytes);
    let asked = (here.identity().clone(), ask.path.clone());
    forward.exchange(ask, &mut Nothing, &mut gathering).await;
    let (status, fields) = match gathering.head() {
        Ok(head) => head,
        Err(told) => return Hop::Done(Outcome::Failed(Failed::told(here, told)), Vec::new()),
    };
    if let Some(location) = fields.get(LOCATION).filter(|_| is_redirect(status)) {
        return match here.join(location.as_bytes()) {
            Ok(there) => Hop::To(there),
            Err(flaw) => {
                let (identity, path) = &asked;
                let request = fumehood_model::egress::Request { method: job.method.name(), path };
                let asked = Asked { identity, request: Some(request), via: Via::Fetch };
                gate.refuse(asked, Denial::Malformed("it redirects to what is not fetched")).await;
                Hop::Done(Outcome::Failed(Failed::bad_redirect(here, location.as_bytes(), &flaw)), Vec::new())
            }
        };
    }
    let page = Page::new(here, (status, &fields), redirects, &gathering);
    Hop::Done(Outcome::Page(page), gathering.body)
}

fn ask(url: &Url, method: Method) -> Ask {
    let mut fields = HeaderMap::new();
    fields.insert(ACCEPT, HeaderValue::from_static("*/*"));
    fields.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip, br, zstd"));
    fields.insert(USER_AGENT, HeaderValue::from_static(concat!("fumehood/", env!("CARGO_PKG_VERSION"))));
    Ask {
        identity: url.identity().clone(),
        via: Via::Fetch,
        method: match method {
            Method::Get => http::Method::GET,
            Method::Head => http::Method::HEAD,
        },
        path: url.path().clone(),
        fields,
        length: Length::None,
        http2: false,
        form: Form::Http,
        target: None,
    }
}

const fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}
