//! One run, from a checked envelope to a report.

use crate::causes::chain;
use crate::egress::{self, Gate, Prepared, Publisher, Tell, Wall};
use crate::files::layer::Layer;
use crate::finish::{self, Finished};
use crate::keeper::{self, Keeper, SIGNALS, Streams};
use crate::meter::{Meter, Written};
use crate::places::{PlaceError, Places};
use crate::reaper::{Estate, Reaper};
use crate::state::State;
use crate::streams::{Allowance, Flow, Sink};
use crate::tape::{Tape, TapeError, Taping};
use fumehood_audit::{TaskLog, os_text};
use fumehood_backend::gateway::{Gateway, GatewaySpec};
use fumehood_backend::{Backend, GuestStdio, LaunchError, LayerDisk, StartError};
use fumehood_model::ending::{Ending, Hit};
use fumehood_model::enforcement::{Clause, Enforcement, Strength};
use fumehood_model::envelope::Envelope;
use fumehood_model::event::Event;
use fumehood_model::exec::ExecRequest;
use fumehood_model::id::TaskId;
use fumehood_model::level::Choice;
use fumehood_model::report::RunReport;
use fumehood_sys::{host, process, terminal};
use std::error::Error;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// Everything that one run needs to know.
#[derive(Clone, Debug)]
pub struct RunRequest {
    pub envelope: Envelope,
    pub choice: Choice,
    /// The command, with its whole environment.
    pub exec: ExecRequest,
    pub output: OutputMode,
    /// Read-only toolchain roots, seen at their host paths.
    pub toolchains: Vec<PathBuf>,
    /// HOME, as a guest path.
    pub home_at: PathBuf,
    /// What is kept of it, or played in it.
    pub tape: Tape,
}

/// Where the command's output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputMode {
    /// To our own standard output and error, as it comes.
    Stream,
    /// Into the report.
    Capture,
    /// Nowhere but to its tape.
    Drop,
}

/// What a run has come to so far; the report is made of it, whichever step was the last.
#[derive(Debug)]
struct Attempt<'a> {
    backend: &'a dyn Backend,
    state: &'a State,
    request: &'a RunRequest,
    /// The same before anything of this one run was put in, for its tape.
    as_given: Option<RunRequest>,
    id: TaskId,
    enforcement: Enforcement,
    /// The command, in the plan's words.
    exec: ExecRequest,
    taping: Option<Taping>,
}

/// Runs one command and answers with the whole truth about it. A failure before the command started
/// is an ending too (`not_started`), so there is no error beside the report. `tell` is told of what happens at the
/// egress wall, once it stands in the record.
pub fn run(
    backend: &dyn Backend,
    state: &State,
    mut request: RunRequest,
    tell: &mut dyn FnMut(&Event),
) -> RunReport {
    let id = TaskId::new(unix_millis(), host::random().unwrap_or_else(|_| u64::from(std::process::id())));
    let as_given = matches!(request.tape, Tape::Keep { .. }).then(|| request.clone());
    let taping = Taping::begin(state, &id, &request).map_err(|error| untaped(&error));
    let (taping, network) = match taping {
        Ok(taping) => {
            let network = egress::prepare(&mut request, &id, taping.as_ref());
            (taping, network)
        }
        Err(ending) => (None, Err(ending)),
    };
    let (enforcement, exec) = (Enforcement::default(), request.exec.clone());
    let mut attempt = Attempt { backend, state, request: &request, as_given, id, enforcement, exec, taping };
    let finished =
        network.and_then(|network| attempt.go(network, tell)).unwrap_or_else(Finished::not_started);
    let Attempt { id, enforcement, taping, .. } = attempt;
    if let Some(taping) = taping.filter(|_| finished.never_ran()) {
        taping.forget();
    }
    finished.report(id, request.choice.clone(), enforcement)
}

/// The gateway that a run in this envelope will wish for, for who can begin it early.
pub fn gateway(envelope: &Envelope) -> Option<GatewaySpec> {
    envelope.network().egress.as_ref().map(egress::ports::gateway)
}

/// What a backend would enforce for a request, with nothing made but the places it needs to look at.
pub fn explain(
    backend: &dyn Backend,
    state: &State,
    request: &RunRequest,
) -> Result<Enforcement, fumehood_model::enforcement::Unenforceable> {
    let placement = Places::imagined(state, request);
    backend.plan(&request.envelope, &placement).map(|plan| plan.enforcement().clone())
}

// === impl Attempt ===

impl Attempt<'_> {
    /// The whole order of things: plan, record, launch, run, collect, record again, clean up.
    fn go(&mut self, network: Option<Prepared>, tell: Tell<'_>) -> Result<Finished, Ending> {
        let mut places =
            Places::make(self.state, &self.id, self.request).map_err(|error| unplaced(&error))?;
        let (files, mut config) = network.map(Prepared::parts).unzip();
        places.placement.files = files.unwrap_or_default();
        let mut plan = self.backend.plan(&self.request.envelope, &places.placement).map_err(|refused| {
            places.give_back();
            not_started(&format!("hold the {} clause", refused.clause), &refused.why, &refused.remedy)
        })?;
        let lock = places.layer.as_ref().map(Layer::lock).transpose().map_err(|error| {
            not_started(
                "lock the layer",
                &chain(&error),
                "wait until the other command is done, or use another `--session`",
            )
        })?;
        plan.adapt(&mut self.exec);
        plan.begin();
        self.enforcement = plan.enforcement().clone();
        let publisher =
            Publisher::open(&self.request.envelope.network().publish).inspect_err(|_| places.give_back())?;
        let streams = self.streams().inspect_err(|_| places.give_back())?;
        let mut log = self.open_record().inspect_err(|_| places.give_back())?;
        let signals = process::signal_descriptor(&SIGNALS).map_err(|error| broken("take signals", &error))?;

        let (guest, streams) = streams;
        // The command waits for the guest, not the guest for the command.
        let outcome = plan
            .start(&self.exec, guest)
            .map(|instance| (instance, streams))
            .map_err(|error| start_failed(&error));
        let (gateway, outcome) = match outcome {
            Ok((mut instance, streams)) => (instance.take_gateway(), Ok((instance, streams))),
            Err(ending) => (None, Err(ending)),
        };
        // The guest is starting on another processor; what cleans up after it starts beside it.
        let (reaper, outcome) =
            match Reaper::fork(&self.estate(&places, gateway.as_ref()), || drop(config.take())) {
                Ok(reaper) => (Some(reaper), outcome),
                // No sandbox without one; what was started ends here, and is cleaned up below.
                Err(error) => (None, outcome.and_then(|_started| Err(broken("start the reaper", &error)))),
            };
        let mut finished = match outcome {
            Ok((mut instance, streams)) => {
                let forks = config.is_some() || !self.request.envelope.network().publish.is_empty();
                let for_gate: &[u32] = if forks { &FOR_GATE } else { &[] };
                process::keep_capabilities(&[&KEPT_CAPABILITIES, for_gate].concat())
                    .map_err(|error| broken("give up privileges", &error))?;
                process::set_dumpable(false);
                let (config, renewals) = config.unzip();
                let gate = gateway.zip(config).map(|(gateway, config)| Gate::new(gateway, config));
                let wall = Wall::new(gate, renewals.unwrap_or_default(), tell);
                let meter = self.meter(&places);
                let walls = (wall, publisher);
                let keeper = Keeper::new(instance.as_mut(), &signals, walls, &mut log, (streams, meter));
                let watched = keeper.keep(self.request.envelope.resources().timeout);
                let watched = watched.map_err(|error| broken("wait for the sandbox", &error))?;
                finish::collect(self.request, &places, instance.as_mut(), watched, &mut log)
            }
            Err(ending) => Finished::not_started(ending),
        };
        self.keep_tape(&mut finished, &places, &mut log);
        if let Err(error) = finished.close(log, unix_millis()) {
            // What happened has happened; that its record has no end is told beside it.
            finished.record_is_open(chain(&error));
        }
        drop(lock);
        places.settle(&self.request.envelope, &finished);
        // The reaper is the last to hold the layer's file system, and waits for what it writes out.
        drop(places);
        if !reaper.is_some_and(Reaper::done) {
            // Without a reaper it is for us to wait until everything is gone.
            let _ = self.backend.reap(&self.id);
            let _ = crate::places::remove_layer(&self.state.scratch().join(self.id.as_str()));
        }
        Ok(finished)
    }

    /// Writes down what is about to happen. If it can not be written, nothing happens.
    fn open_record(&self) -> Result<TaskLog, Ending> {
        let unwritten = |error: fumehood_audit::RecordError| {
            not_started(
                "write the record",
                &chain(&error),
                "free space on the disk of the state folder, or name another with `FUMEHOOD_STATE`",
            )
        };
        let at = unix_millis();
        let mut log = TaskLog::open(&self.state.records(), &self.id, at).map_err(unwritten)?;
        log.append_all(at, &self.opening()).map_err(unwritten)?;
        Ok(log)
    }

    fn opening(&self) -> Vec<Event> {
        let RunRequest { envelope, choice, .. } = self.request;
        let exec = &self.exec;
        let value =
            |value: Result<serde_json::Value, serde_json::Error>| value.unwrap_or(serde_json::Value::Null);
        let launched = Event::Launched {
            level: choice.level.name().to_owned(),
            reason: choice.reason.to_string(),
            envelope: value(serde_json::to_value(envelope)),
            enforcement: value(serde_json::to_value(&self.enforcement)),
        };
        let inputs = envelope.filesystem().inputs.iter().map(|input| Event::FileIn {
            source: os_text(&input.source),
            at: os_text(&input.at),
            bytes: std::fs::metadata(&input.source).map_or(0, |meta| meta.len()),
        });
        let started = Event::ExecStarted {
            argv: exec.argv.iter().map(os_text).collect(),
            cwd: os_text(&exec.cwd),
            env_names: exec.env.iter().map(|(name, _)| os_text(name)).collect(),
            terminal: exec.terminal.is_some(),
            exec: None,
            actor: None,
        };
        let replay = self.taping.as_ref().and_then(Taping::played).map(|played| Event::ReplayStarted {
            of: played.task.to_string(),
            tape_sha256: played.sha256.clone(),
        });
        replay.into_iter().chain([launched]).chain(inputs).chain([started]).collect()
    }

    /// Writes down what came of it on its tape, if it has one, and vouches for that.
    fn keep_tape(&self, finished: &mut Finished, places: &Places, log: &mut TaskLog) {
        let Some(taping) = self.taping.as_ref().filter(|_| !finished.never_ran()) else { return };
        let request = self.as_given.as_ref().unwrap_or(self.request);
        let outcome = finished.outcome(taping, places, &self.state.records(), &self.id);
        let kept = outcome.and_then(|outcome| taping.finish(&self.id, request, outcome));
        let kept = kept.map_err(|error| chain(&error)).and_then(|digest| {
            if taping.played().is_some() {
                return Ok(());
            }
            let kept = Event::TapeKept { sha256: digest.to_string() };
            log.append(unix_millis(), &kept).map_err(|error| chain(&error))
        });
        if let Err(why) = kept {
            finished.tape_is_lost(why);
        }
    }

    fn estate<'b>(&'b self, places: &Places, gateway: Option<&'b Gateway>) -> Estate<'b> {
        Estate {
            backend: self.backend,
            id: &self.id,
            layer: places.own_layer.clone(),
            disk: places.disk(),
            observer: gateway.map(|gateway| gateway.observer.as_fd()),
            living: None,
            records: self.state.records(),
            layers: self.state.layers(),
            scratch: self.state.scratch(),
            shared: self.state.shared(),
            sandboxes: self.state.sandboxes(),
        }
    }

    /// The guest's ends of the command's streams, and ours.
    fn streams(&self) -> Result<(GuestStdio, Streams), Ending> {
        let allowance = Allowance::new(self.request.envelope.resources().output_bytes);
        if self.request.exec.terminal.is_some() {
            let none = Streams { input: None, output: None, error: None, allowance };
            return Ok((GuestStdio::Terminal, none));
        }
        let (guest, mut input, mut output, mut error) =
            pipes(self.request.output).map_err(|error| broken("make the streams", &error))?;
        if let Some(taping) = &self.taping {
            tape_streams(taping, &mut input, [&mut output, &mut error])
                .map_err(|error| broken("open the tape", &error))?;
        }
        Ok((guest, Streams { input, output: Some(output), error: Some(error), allowance }))
    }

    fn meter(&self, places: &Places) -> Meter {
        let envelope = &self.request.envelope;
        let watched = |name| {
            self.enforcement
                .of(Clause::Resources)
                .iter()
                .any(|m| m.name == name && m.strength == Strength::Watch)
        };
        let written = match places.placement.layer.as_ref().map(|layer| (&layer.disk, &layer.folder)) {
            Some((LayerDisk::Image { mount: Some(mount), .. }, _)) => {
                Written::Image { mount: Arc::clone(mount), larger: watched("byte-watch") }
            }
            Some((LayerDisk::Folder { .. }, folder)) if watched("byte-watch") => {
                Written::Folder(folder.join("upper"))
            }
            None if watched("byte-watch") => Written::Folder(places.placement.scratch.clone()),
            Some((LayerDisk::Image { mount: None, .. } | LayerDisk::Folder { .. }, _)) | None => {
                Written::Nothing
            }
        };
        Meter::new(envelope.resources(), watched("resident-memory-watch"), written)
    }
}

/// What the keeper still needs once it has launched, by capability number: to read and own what a
/// sandbox of another uid wrote, and to end it.
pub(crate) const KEPT_CAPABILITIES: [u32; 5] = [
    0, // CAP_CHOWN
    1, // CAP_DAC_OVERRIDE
    2, // CAP_DAC_READ_SEARCH
    3, // CAP_FOWNER
    5, // CAP_KILL
];

/// And until its gate has become another user.
pub(crate) const FOR_GATE: [u32; 2] = [
    6, // CAP_SETGID
    7, // CAP_SETUID
];

/// The guest's ends, and our flows from and to the caller's streams.
fn pipes(mode: OutputMode) -> io::Result<(GuestStdio, Option<Flow>, Flow, Flow)> {
    let (stdin, feed) = process::pipe(false)?;
    process::set_nonblocking(&feed, true)?;
    let (from_output, stdout) = process::pipe(true)?;
    let (from_error, stderr) = process::pipe(true)?;
    let sink = |number| match mode {
        OutputMode::Stream => Sink::caller(terminal::standard(number)),
        OutputMode::Capture => Sink::Memory(Vec::new()),
        OutputMode::Drop => Sink::Closed,
    };
    let input = caller_flow(feed);
    let guest = GuestStdio::Pipes { stdin, stdout, stderr };
    Ok((guest, input, Flow::new(from_output, sink(1)), Flow::new(from_error, sink(2))))
}

/// Copies what passes to a tape; input comes from the one that is played.
fn tape_streams(
    taping: &Taping,
    input: &mut Option<Flow>,
    [output, error]: [&mut Flow; 2],
) -> io::Result<()> {
    if let Some(played) = taping.input() {
        *input = match input.take() {
            Some(flow) => Some(flow.reading(played?)),
            None => None,
        };
    }
    if let Some(input) = input {
        input.copy_to(taping.tee("stdin")?);
    }
    output.copy_to(taping.tee("stdout")?);
    error.copy_to(taping.tee("stderr")?);
    Ok(())
}

fn untaped(error: &TapeError) -> Ending {
    not_started("make the tape", &chain(error), "free space in the state folder, or run it without `--tape`")
}

/// Without a readable standard input the guest's ends at once.
fn caller_flow(feed: OwnedFd) -> Option<Flow> {
    keeper::caller_input().ok().map(|input| Flow::from_caller(input, Sink::Free(feed.into())))
}

pub(crate) fn unix_millis() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
}

pub(crate) fn start_failed(error: &StartError) -> Ending {
    match error {
        StartError::Launch(LaunchError { step, why, remedy }) => not_started(step, why, remedy),
        StartError::Exec(error) => keeper::not_started(error),
    }
}

pub(crate) fn not_started(step: &str, why: &str, remedy: &str) -> Ending {
    Ending::NotStarted { step: step.to_owned(), why: why.to_owned(), remedy: remedy.to_owned() }
}

/// A step of our own that the kernel refused.
pub(crate) fn broken(step: &str, error: &io::Error) -> Ending {
    not_started(step, &error.to_string(), "`fumehood doctor` looks at what this host can hold")
}

/// Why a run has no place.
pub(crate) fn unplaced(error: &PlaceError) -> Ending {
    match error {
        PlaceError::OtherWorkspace { name, .. } => not_started(
            "open the session",
            &error.to_string(),
            &format!(
                "name another `--session`; `fumehood discard --session {name}` drops what this one changed and frees it"
            ),
        ),
        PlaceError::SessionBusy => not_started(
            "take the session",
            "another run is making it",
            "wait until that is done, or use another `--session`",
        ),
        PlaceError::Workspace { .. }
        | PlaceError::Output(_)
        | PlaceError::Layer(_)
        | PlaceError::Folder { .. } => failed(error),
    }
}

/// An error of our own on the way, with its causes.
fn failed(error: &dyn Error) -> Ending {
    let text = error.to_string();
    let why = error.source().map_or_else(|| text.clone(), chain);
    let remedy = "check the path and its permissions; `fumehood doctor` looks at what this host can hold";
    not_started(&text, &why, remedy)
}

/// A hit that is added after the command is over.
pub(crate) fn late_hit(
    kind: fumehood_model::ending::HitKind,
    detail: String,
    count: u64,
    born: Instant,
) -> Hit {
    Hit { kind, detail, count, first_ms: u64::try_from(born.elapsed().as_millis()).unwrap_or(u64::MAX) }
}
