//! After the command: what it wrote is collected and counted, and its ending written down.

use crate::causes::chain;
use crate::files::text::escape_path;
use crate::files::{Refusal, collect as collector};
use crate::keeper::{Streams, Watched};
use crate::places::Places;
use crate::run::{RunRequest, late_hit, unix_millis};
use crate::streams::Flow;
use crate::tape::{Outcome, TapeError, Taping};
use base64::Engine as _;
use fumehood_audit::{RecordError, TaskLog};
use fumehood_backend::Instance;
use fumehood_model::ending::{Ending, Hit, HitKind};
use fumehood_model::enforcement::Enforcement;
use fumehood_model::event::Event;
use fumehood_model::id::TaskId;
use fumehood_model::level::Choice;
use fumehood_model::report::{Captured, Changes, Collected, RunReport, Usage};
use fumehood_sys::dirfd::DirHandle;
use std::io;
use std::path::Path;
use std::time::Instant;

/// A run that is over.
#[derive(Debug)]
pub(crate) struct Finished {
    ending: Ending,
    hits: Vec<Hit>,
    usage: Usage,
    dropped_bytes: u64,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    pub(crate) changes: Option<Changes>,
    /// Whether something in the layer could not be read: it is kept for its owner to look at.
    pub(crate) layer_unread: bool,
    collected: Option<Collected>,
}

/// Collects `/out`, counts what the layer changes and what was used.
pub(crate) fn collect(
    request: &RunRequest,
    places: &Places,
    instance: &mut dyn Instance,
    watched: Watched,
    log: &mut TaskLog,
) -> Finished {
    let Watched { ending, mut hits, cpu_ms, meters, born, streams } = watched;
    let bytes = |flow: &Option<Flow>| flow.as_ref().map_or(0, |flow| flow.bytes);
    let usage = Usage {
        wall_ms: u64::try_from(born.elapsed().as_millis()).unwrap_or(u64::MAX),
        cpu_ms: cpu_ms.max(meters.cpu_ms),
        peak_memory_bytes: meters.peak_memory_bytes,
        stdout_bytes: bytes(&streams.output),
        stderr_bytes: bytes(&streams.error),
    };
    let collected = output((request, places.output.as_ref()), instance, log, &mut hits, born);
    let (changes, layer_unread) = layer(places, &mut hits, born);
    let Streams { output, error, allowance, .. } = streams;
    for (name, flow) in [("standard output", &output), ("standard error", &error)] {
        if let Some(why) = flow.as_ref().and_then(|flow| flow.lost.as_ref()) {
            hits.push(late_hit(HitKind::OutputLost, format!("{name}: {why}"), 1, born));
        }
    }
    let memory = |flow: Option<Flow>| flow.map(Flow::take_memory).unwrap_or_default();
    let (stdout, stderr) = (memory(output), memory(error));
    Finished {
        ending,
        hits,
        usage,
        dropped_bytes: allowance.dropped,
        stdout,
        stderr,
        changes,
        layer_unread,
        collected,
    }
}

/// What the layer changes, and whether all of it could be read.
fn layer(places: &Places, hits: &mut Vec<Hit>, born: Instant) -> (Option<Changes>, bool) {
    let Some(layer) = &places.layer else { return (None, false) };
    let mut unread = |what: String, count| hits.push(late_hit(HitKind::NotCollected, what, count, born));
    match layer.changes() {
        Ok(list) => {
            let settled = if list.is_empty() { Ok(()) } else { layer.settle() };
            if let Err(error) = settled {
                unread(format!("the layer is damaged: {}", chain(&error)), 1);
                return (None, true);
            }
            if let Some(first) = list.unread.first() {
                let count = u64::try_from(list.unread.len()).unwrap_or(u64::MAX);
                unread(format!("`{}` of the layer: {}", escape_path(&first.path), first.why), count);
            }
            (Some(list.count()), !list.unread.is_empty())
        }
        Err(error) => {
            unread(format!("the layer: {}", chain(&error)), 1);
            (None, true)
        }
    }
}

/// Brings the plain files of `/out` to the host, each recorded before it appears.
fn output(
    (request, target): (&RunRequest, Option<&collector::Target>),
    instance: &dyn Instance,
    log: &mut TaskLog,
    hits: &mut Vec<Hit>,
    born: Instant,
) -> Option<Collected> {
    let target = target?;
    let mut refuse = |what: String, count| hits.push(late_hit(HitKind::NotCollected, what, count, born));
    let limits = collector::CollectLimits::for_disk(request.envelope.resources().disk_bytes);
    let mut record = |event: &Event| log.append(unix_millis(), event).map_err(io::Error::other);
    let outcome = instance.output().ok_or_else(|| "`/out` was never shared".to_owned()).and_then(|from| {
        let from = from.try_clone_to_owned().map(DirHandle::from).map_err(|error| error.to_string())?;
        let to = target.open().map_err(|error| chain(&error))?;
        collector::collect(&from, &to, limits, &mut record).map_err(|error| chain(&error))
    });
    match outcome {
        Ok(outcome) => {
            for Refusal { path, why } in outcome.refusals.iter().take(8) {
                refuse(format!("`{}`: {why}", escape_path(path)), 1);
            }
            Some(outcome.collected)
        }
        Err(why) => {
            refuse(format!("failed to {why}"), 1);
            Some(Collected::default())
        }
    }
}

// === impl Finished ===

impl Finished {
    /// A run in which no command ran.
    pub(crate) fn not_started(ending: Ending) -> Self {
        Self {
            ending,
            hits: Vec::new(),
            usage: Usage::default(),
            dropped_bytes: 0,
            stdout: Vec::new(),
            stderr: Vec::new(),
            changes: None,
            layer_unread: false,
            collected: None,
        }
    }

    /// Whether no command ran.
    pub(crate) const fn never_ran(&self) -> bool {
        matches!(self.ending, Ending::NotStarted { .. })
    }

    /// What came of it, for its tape.
    pub(crate) fn outcome(
        &self,
        taping: &Taping,
        places: &Places,
        records: &Path,
        id: &TaskId,
    ) -> Result<Outcome, TapeError> {
        let read = fumehood_audit::read(records, id);
        let events: Vec<Event> = read
            .map(|read| read.lines.iter().filter_map(fumehood_audit::Line::known).collect())
            .unwrap_or_default();
        taping.outcome(self.ending.clone(), places.layer.as_ref(), &events)
    }

    /// Tells that what it takes to run this again could not be kept.
    pub(crate) fn tape_is_lost(&mut self, why: String) {
        self.hits.push(late_hit(HitKind::OutputLost, format!("the tape: {why}"), 1, Instant::now()));
    }

    /// Tells that the record of this run could not be ended.
    pub(crate) fn record_is_open(&mut self, why: String) {
        self.hits.push(late_hit(HitKind::RecordOpen, why, 1, Instant::now()));
    }

    /// Writes the ending, then closes the record.
    pub(crate) fn close(&self, mut log: TaskLog, at_ms: u64) -> Result<(), RecordError> {
        let ended = Event::ExecEnded {
            ending: self.ending.clone(),
            hits: self.hits.clone(),
            usage: self.usage,
            changes: self.changes,
            collected: self.collected,
            exec: None,
        };
        log.append(at_ms, &ended)?;
        log.close(at_ms)
    }

    pub(crate) fn report(self, task: TaskId, level: Choice, enforcement: Enforcement) -> RunReport {
        RunReport {
            task,
            ending: self.ending,
            hits: self.hits,
            stdout: captured(self.stdout),
            stderr: captured(self.stderr),
            dropped_bytes: self.dropped_bytes,
            resources: self.usage,
            changes: self.changes,
            collected: self.collected,
            level,
            enforcement,
        }
    }
}

fn captured(bytes: Vec<u8>) -> Captured {
    match String::from_utf8(bytes) {
        Ok(text) => Captured { text, base64: false },
        Err(error) => {
            let text = base64::engine::general_purpose::STANDARD.encode(error.into_bytes());
            Captured { text, base64: true }
        }
    }
}
