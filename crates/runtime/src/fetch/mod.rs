//! One page for a caller outside of every sandbox, by the rules and with the record of a run.
//!
//! ```text
//!  rules, URL ─► kept? ─ yes ─► record ─► page
//!                  └─ no ─► record ─► a confined process (asks before each hop) ─► page ─► kept for a moment
//! ```

mod cache;

pub use cache::CacheLimits;
pub use fumehood_egress::fetch::{Failed, Job, Method, Outcome, Page, Url, UrlFlaw};

use crate::causes::chain;
use crate::egress::page;
use crate::egress::secrets::{self, NoSecret};
use crate::run::unix_millis;
use crate::state::State;
use cache::{Cache, Key};
use fumehood_audit::TaskLog;
use fumehood_egress::Config;
use fumehood_egress::fetch::Ready;
use fumehood_egress::tls::Servers;
use fumehood_model::egress::Egress;
use fumehood_model::envelope::Secret;
use fumehood_model::event::{EgressAllowed, Event, FetchStarted};
use fumehood_model::id::TaskId;
use fumehood_sys::host;

/// What is to be fetched, by which rules.
#[derive(Clone, Debug)]
pub struct FetchRequest {
    pub egress: Egress,
    pub secrets: Vec<Secret>,
    pub job: Job,
    /// Whether an answer that was kept may be given again, and this one may be kept.
    pub cache: Option<CacheLimits>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Whose record holds it.
    pub task: TaskId,
    pub outcome: Outcome,
    pub body: Vec<u8>,
    pub from_cache: bool,
}

/// Why nothing was tried, or nothing can be said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFetched {
    /// A phrase after "failed to".
    pub step: String,
    pub why: String,
    pub remedy: String,
}

/// Fetches one page. What the wall refuses, and what the network can not do, is an outcome; an error is ours.
///
/// Preconditions: this process has one thread.
///
/// # Errors
/// A secret or an authority can not be read, the record can not be written, or the process that fetches ended.
pub fn fetch(state: &State, request: FetchRequest) -> Result<Fetched, NotFetched> {
    let FetchRequest { egress, secrets, job, cache } = request;
    let task = TaskId::new(unix_millis(), host::random().unwrap_or_else(|_| u64::from(std::process::id())));
    let rules = serde_json::to_value(&egress).unwrap_or(serde_json::Value::Null);
    let cache = cache.filter(|_| job.method == Method::Get);
    let cache = cache.map(|limits| Cache::new(state.fetched(), limits));
    let key = Key::of(&job, &rules);
    let kept = cache.as_ref().and_then(|cache| cache.find(&key, job.most_bytes, unix_millis()));
    let started = started(&job, rules, kept.is_some());
    if let Some((page, body)) = kept {
        open(state, &task, &started)?.close(unix_millis()).map_err(|error| unwritten(&error))?;
        return Ok(Fetched { task, outcome: Outcome::Page(page), body, from_cache: true });
    }
    let vault = secrets::read_all(&secrets, &egress.rules, None).map_err(unread)?;
    let servers = Servers::read(&egress.authorities).map_err(|fault| NotFetched {
        step: "read the certificate authorities".to_owned(),
        why: fault.to_string(),
        remedy: "name a file with certificates that you can read: `--upstream-ca HOST=FILE`".to_owned(),
    })?;
    let ready = Ready::new(Config::new(egress, None, vault, servers), job);
    let mut log = open(state, &task, &started)?;
    let mut used_secret = false;
    let mut tell = |event: &Event| {
        used_secret |= matches!(event, Event::EgressAllowed(EgressAllowed { credential: Some(_), .. }));
    };
    let found = page::fetch(ready, &mut log, &mut tell);
    // Also after a fault: what was recorded is whole.
    let closed = log.close(unix_millis()).map_err(|error| unwritten(&error));
    let (outcome, body) = found.map_err(|why| NotFetched {
        step: "fetch".to_owned(),
        why,
        remedy: "`fumehood doctor` looks at what this host can hold".to_owned(),
    })?;
    closed?;
    if let (Some(cache), Outcome::Page(page)) = (&cache, &outcome)
        && page.may_be_kept
        && !used_secret
    {
        // A page that is not kept is fetched again; that is all.
        let _ = cache.keep(&key, (page, &body), unix_millis());
    }
    Ok(Fetched { task, outcome, body, from_cache: false })
}

fn started(job: &Job, rules: serde_json::Value, from_cache: bool) -> Event {
    Event::FetchStarted(FetchStarted {
        method: job.method.name().to_owned(),
        to: job.url.identity().to_string(),
        path: job.url.path().sent_path().to_owned(),
        rules,
        from_cache,
    })
}

fn open(state: &State, task: &TaskId, started: &Event) -> Result<TaskLog, NotFetched> {
    let at = unix_millis();
    let log = TaskLog::open(&state.records(), task, at);
    log.and_then(|mut log| log.append(at, started).map(|()| log)).map_err(|error| unwritten(&error))
}

fn unwritten(error: &fumehood_audit::RecordError) -> NotFetched {
    NotFetched { step: "write the record".to_owned(), why: chain(error), remedy: error.remedy().to_owned() }
}

fn unread(NoSecret { name, why, remedy }: NoSecret) -> NotFetched {
    NotFetched { step: format!("read the secret `{name}`"), why, remedy }
}
