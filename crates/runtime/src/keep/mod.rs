//! Sandboxes that live on between commands: one keeper process each, asked through a socket in its folder.
//!
//! The order of things is that of a run: record first, act second, clean up always. What differs is that the guest's
//! first process outlives every command, and that nobody but the reaper knows of the keeper when its parent is gone.
//!
//! **Invariant:** who is told that a sandbox was born can reach it; who is told that it was not finds nothing of it.

mod ahead;
mod command;
mod connection;
mod failures;
mod file_verbs;
pub mod files;
mod folder;
mod happenings;
mod idle;
mod keeper;
mod layer_verbs;
mod network;
mod recording;
mod relay;
mod ring;
pub mod snapshot;
mod tree;
mod verbs;
mod warm;

pub(crate) use folder::keep;
pub use folder::{DESCRIPTION, KEPT, SOCKET};

use crate::causes::chain;
use crate::egress::{self, Gate, Ports, Publisher, Wall};
use crate::meter::{Meter, Written};
use crate::places::{self, Places};
use crate::reaper::{Estate, Reaper};
use crate::run::{
    FOR_GATE, KEPT_CAPABILITIES, RunRequest, broken, not_started, start_failed, unix_millis, unplaced,
};
use crate::state::State;
use connection::Connection;
use files::GuestFiles;
use fumehood_audit::TaskLog;
use fumehood_backend::gateway::Gateway;
use fumehood_backend::{Backend, Instance, StartError};
use fumehood_keep::fault::{self, Point};
use fumehood_keep::wire::{Born, Failure, FailureCode, Said, Sandbox, Spec, Warm};
use fumehood_model::ending::Ending;
use fumehood_model::enforcement::{Clause, Enforcement, Strength};
use fumehood_model::envelope::Defaults;
use fumehood_model::event::{Branch, Event, Living};
use fumehood_model::id::TaskId;
use fumehood_sys::{host, process};
use keeper::{Keeper, Life, Means, Over};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The signals that a keeper takes.
const SIGNALS: [i32; 4] = [1, 2, 3, 15];
const SIGIO: i32 = 29;
/// For files of the sandbox's user: `ahead`.
const FOR_LEASES: [u32; 1] = [28]; // CAP_LEASE
/// How long a sandbox that is ended may take to be gone.
const DEATH_LIMIT: Duration = Duration::from_secs(10);
/// How long whoever still listens has to take the last of it.
const FAREWELL: Duration = Duration::from_secs(1);

/// A living sandbox that is to be.
#[derive(Clone, Debug)]
pub struct LiveRequest {
    /// Its envelope, its level, and what every command is begun with: a folder and variables, no arguments.
    pub run: RunRequest,
    /// What was asked for.
    pub spec: Spec,
    /// What its envelope was read with, for the rules that it may get later.
    pub defaults: Defaults,
    /// Its envelope's ports of the host are another sandbox's: it gets free ones.
    pub free_ports: bool,
}

/// Makes a living sandbox, says so by `tell`, and keeps it until it ends. What `tell` was told is the one answer.
///
/// Preconditions: this process has one thread, and nothing else to do.
pub fn live(backend: &dyn Backend, state: &State, request: LiveRequest, tell: &mut dyn FnMut(&Born)) {
    let id = TaskId::new(unix_millis(), host::random().unwrap_or_else(|_| u64::from(std::process::id())));
    let folder = state.sandboxes().join(id.as_str());
    let mut birth =
        Birth { backend, state, request, id, folder, enforcement: Enforcement::default(), from: None };
    if let Err(ending) = birth.go(tell) {
        let _ = places::remove_layer(&birth.folder);
        tell(&Born::Failed(failure(&ending)));
    }
}

/// Removes what living sandboxes left whose keeper and reaper both died.
pub fn sweep(backend: &dyn Backend, state: &State) {
    crate::reaper::sweep_living(backend, &state.records(), (&state.sandboxes(), &state.snapshots()));
}

/// What is wrong with a variable, if something is.
pub(crate) fn flaw_of_variable(name: &str, value: &str) -> Option<String> {
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let good =
        !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) && name.bytes().all(letters);
    if !good {
        return Some(format!("`{}` is no name of a variable", fumehood_model::text::shown(name)));
    }
    value.contains('\0').then(|| format!("the value of `{name}` holds a zero byte"))
}

fn failure(ending: &Ending) -> Failure {
    if let Ending::NotStarted { step, why, remedy } = ending {
        let (message, cause, remediation) = (step.clone(), why.clone(), remedy.clone());
        // An ending has words alone; these are of one table.
        let is_full = remediation == fumehood_model::remedy::NO_SPACE;
        let code = if is_full { FailureCode::NoSpace } else { FailureCode::Internal };
        return Failure { code, message, cause, remediation };
    }
    let remedy = "`fumehood doctor` looks at what this host can hold";
    failures::new(FailureCode::Internal, ("make the sandbox", ending.cause().to_owned()), remedy)
}

/// What a birth has come to so far.
#[derive(Debug)]
struct Birth<'a> {
    backend: &'a dyn Backend,
    state: &'a State,
    request: LiveRequest,
    id: TaskId,
    folder: PathBuf,
    enforcement: Enforcement,
    from: Option<Branch>,
}

/// What must not be let go of while a sandbox is made.
#[derive(Debug)]
struct Standing {
    instance: Box<dyn Instance>,
    places: Places,
    publisher: Publisher,
    log: TaskLog,
}

/// The network's doors, with whoever stands at them.
///
/// Not at the first packet and the first connection, as in a run: who works on files has a thread of its own here, and
/// with more than one nothing is forked.
fn doors<'a>(
    gate: Option<(Gateway, (fumehood_egress::Config, egress::Renewals))>,
    mut publisher: Publisher,
    told: &'a mut dyn FnMut(&Event),
) -> (Wall<'a>, Publisher) {
    let (gate, renewals) =
        gate.map(|(gateway, (config, renewals))| (Gate::new(gateway, config), renewals)).unzip();
    let mut wall = Wall::new(gate, renewals.unwrap_or_default(), told);
    wall.open();
    publisher.staff(|| wall.forget());
    (wall, publisher)
}

/// The sandbox's life, from its birth until everything in it has been ended. Whether its files are to be kept.
fn keep_to_the_end(keeper: &mut Keeper<'_>) -> bool {
    if let Err(error) = keeper.keep() {
        keeper.finish(format!("its keeper could not wait: {error}"), false, keeper::lost());
    }
    let unknown = || Over { why: "unknown".to_owned(), keeps_files: false, ending: keeper::lost() };
    let Over { why, keeps_files, .. } = keeper.over.clone().unwrap_or_else(unknown);
    keeper.settle_ports();
    // What is about to end is told first, and what has not ended by itself ends with it.
    keeper.record(&Event::Stopped { why, keeps_files });
    fault::point(Point::EndRecorded);
    keeper.instance.kill();
    fault::point(Point::EndKilled);
    keeper.wall.finish(keeper.log);
    keeps_files
}

fn said_done(mut connection: Connection) {
    connection.answer(&Said::Done);
    let _ = connection.flush();
}

// === impl Birth ===

impl Birth<'_> {
    fn go(&mut self, tell: &mut dyn FnMut(&Born)) -> Result<(), Ending> {
        self.check()?;
        let network = self.network()?;
        folder::make(&self.folder).map_err(|error| broken("make the sandbox's folder", &error))?;
        fault::point(Point::BirthFolder);
        let (warm, folder) = (self.warm(), &self.folder);
        let mut places = Places::make_living(self.state, &self.id, &self.request.run, folder, warm.is_some())
            .map_err(|error| unplaced(&error))?;
        fault::point(Point::BirthPlaced);
        let parts = self.furnish(&mut places)?;
        let warm = warm.filter(|warm| !self.is_prepared(warm));
        fault::point(Point::BirthRestored);
        let (files, mut config) = network.map(egress::Prepared::parts).unzip();
        places.placement.files = files.unwrap_or_default();
        let standing = self.launch(places)?;
        let Standing { mut instance, places, publisher, mut log } = standing;
        let gateway = instance.take_gateway();
        fault::point(Point::BirthLaunched);
        let reaper = Reaper::fork(&self.estate(&places, gateway.as_ref()), || drop(config.take()));
        fault::point(Point::BirthReaper);
        // No sandbox without one.
        let (signals, listener, reaper) = match self.settle(reaper) {
            Ok(settled) => settled,
            Err(ending) => {
                self.undo(instance, log, &ending);
                return Err(ending);
            }
        };
        fault::point(Point::BirthListening);
        let mut nobody = |_: &Event| {};
        let doors = doors(gateway.zip(config), publisher, &mut nobody);
        let meter = self.meter();
        let life = self.filled(instance.as_mut(), &places, parts);
        let means = Means {
            instance: instance.as_mut(),
            signals: &signals,
            listener: &listener,
            log: &mut log,
            layer: places.layer.as_ref(),
        };
        let id = self.id.as_str().to_owned();
        let mut keeper = Keeper::new(&id, means, doors, meter, life);
        let ready = self.make_ready(&mut keeper, warm);
        let status = keeper.status();
        if let Err(ending) = ready {
            drop(keeper);
            self.undo(instance, log, &ending);
            return Err(ending);
        }
        fault::point(Point::BirthDescribed);
        let socket = self.folder.join(SOCKET).to_string_lossy().into_owned();
        tell(&Born::Ready { id: self.id.clone(), socket, status });
        fault::point(Point::BirthTold);
        let keeps_files = keep_to_the_end(&mut keeper);
        let last = keeper.farewell(FAREWELL);
        drop(keeper);
        self.bury((instance, places, log), (keeps_files, last), reaper);
        Ok(())
    }

    /// Removes what is left of a sandbox that was ended, and tells those who asked for it.
    fn bury(
        &self,
        (mut instance, places, log): (Box<dyn Instance>, Places, TaskLog),
        (keeps_files, last): (bool, Vec<Connection>),
        reaper: Reaper,
    ) {
        instance.wait_gone(DEATH_LIMIT);
        drop(instance);
        let _ = self.backend.reap(&self.id);
        fault::point(Point::EndReaped);
        let kept = keeps_files && keep(&self.folder).is_ok();
        // The layer's file system is held by the reaper to the last.
        drop(places);
        if !kept {
            let _ = places::remove_layer(&self.folder);
        }
        fault::point(Point::EndRemoved);
        let _ = log.close(unix_millis());
        fault::point(Point::EndClosed);
        last.into_iter().for_each(said_done);
        if !reaper.done() {
            let _ = places::remove_layer(&self.state.scratch().join(self.id.as_str()));
        }
    }

    /// What its network will be. Nobody but the gate has the values that were given from here on.
    fn network(&mut self) -> Result<Option<egress::Prepared>, Ending> {
        let literals = std::mem::take(&mut self.request.spec.literals);
        let beside = egress::Beside { living: Some(&literals), ..egress::Beside::default() };
        egress::prepare(&mut self.request.run, &self.id, beside)
    }

    /// The interpreter that it will have: its own, or what its snapshot brings along.
    fn warm(&mut self) -> Option<Warm> {
        let spec = &mut self.request.spec;
        if let (None, Some(name)) = (&spec.warm, &spec.snapshot) {
            spec.warm = snapshot::prepared(&self.state.snapshots(), name);
        }
        spec.warm.clone()
    }

    /// The folders whose files are the sandbox's own, with what they begin with.
    fn furnish(&mut self, places: &mut Places) -> Result<Vec<snapshot::Part>, Ending> {
        let refused = |failure: Failure| not_started(&failure.message, &failure.cause, &failure.remediation);
        if !self.backend.keeps_files() {
            if let Some(name) = &self.request.spec.snapshot {
                let level = self.request.run.choice.level.name();
                let (machine, from) =
                    snapshot::machine(&self.state.snapshots(), name, level).map_err(refused)?;
                self.from = Some(from);
                places.begin_with(machine);
            }
            return Ok(Vec::new());
        }
        let parts = places.parts().map_err(|error| broken("open the sandbox's folders", &error))?;
        if let Some(name) = &self.request.spec.snapshot {
            let layer = places.layer.as_ref().map(|layer| &layer.meta);
            let from = snapshot::restore(&self.state.snapshots(), name, &parts, layer).map_err(refused)?;
            self.from = Some(from);
        }
        Ok(parts)
    }

    /// What is left to do with a sandbox that lives, before anybody may know of it.
    fn make_ready(&self, keeper: &mut Keeper<'_>, warm: Option<Warm>) -> Result<(), Ending> {
        // Who asks for it must not learn later that this host can not stop processes.
        if self.request.spec.idle_pause_ms.is_some() {
            keeper.can_pause().map_err(|failure| {
                not_started("pause it when nobody uses it", &failure.cause, &failure.remediation)
            })?;
        }
        // Before what takes long: it can be asked from now on, and whoever asks wants to know whose it is.
        keeper.describe()?;
        warm.map_or(Ok(()), |warm| keeper.prepare(&warm))
    }

    /// Whether the snapshot that it begins with brings that interpreter along. One of another start of the host, or that
    /// can not be read, is prepared again.
    fn is_prepared(&self, warm: &Warm) -> bool {
        let to = self.folder.join(snapshot::WARM);
        self.request
            .spec
            .snapshot
            .as_ref()
            .is_some_and(|name| snapshot::lend(&self.state.snapshots(), name, warm, &to).unwrap_or(false))
    }

    /// What a living sandbox has no use for is refused, not left undone.
    fn check(&self) -> Result<(), Ending> {
        let files = self.request.run.envelope.filesystem();
        let refuse = |what: &str, remedy: &str| Err(not_started("read the envelope", what, remedy));
        if files.session.is_some() {
            return refuse(
                "a living sandbox has no session",
                "leave `session` out: its HOME lives as long as it does",
            );
        }
        if files.output.is_some() {
            return refuse("a living sandbox collects no `output`", "read its files while it lives");
        }
        let flaw = self.request.spec.env.iter().find_map(|(name, value)| flaw_of_variable(name, value));
        flaw.map_or(Ok(()), |flaw| refuse(&flaw, "name variables with letters, digits and `_`"))
    }

    /// Writes down what is about to happen, and launches.
    #[expect(clippy::mem_forget, reason = "the layer is this keeper's until its process ends")]
    fn launch(&mut self, places: Places) -> Result<Standing, Ending> {
        let envelope = &self.request.run.envelope;
        let plan = self.backend.plan(envelope, &places.placement).map_err(|refused| {
            not_started(&format!("hold the {} clause", refused.clause), &refused.why, &refused.remedy)
        })?;
        if let Some(layer) = &places.layer {
            let lock = layer.lock().map_err(|error| not_started("lock the layer", &chain(&error), ""))?;
            std::mem::forget(lock);
        }
        plan.adapt(&mut self.request.run.exec);
        let mut plan = plan;
        plan.begin();
        self.enforcement = plan.enforcement().clone();
        let ports = if self.request.free_ports { Ports::Free } else { Ports::Named };
        let publisher = Publisher::open(&envelope.network().publish, ports)?;
        let mut log = self.open_record(&publisher)?;
        fault::point(Point::BirthRecorded);
        let launched = plan.launch().map_err(|error| start_failed(&StartError::Launch(error)));
        let launched = launched.and_then(|mut instance| match instance.live() {
            Some(_) => Ok(instance),
            None => Err(not_started(
                "launch the sandbox",
                "this level runs one command and ends",
                "use the level `container` or `process`",
            )),
        });
        match launched {
            Ok(instance) => Ok(Standing { instance, places, publisher, log }),
            Err(ending) => {
                let why = failure(&ending).to_string();
                let _ = log.append(unix_millis(), &Event::Stopped { why, keeps_files: false });
                let _ = log.close(unix_millis());
                let _ = self.backend.reap(&self.id);
                Err(ending)
            }
        }
    }

    /// What is left to do before anybody may know of it.
    fn settle(
        &self,
        reaper: std::io::Result<Reaper>,
    ) -> Result<(std::os::fd::OwnedFd, UnixListener, Reaper), Ending> {
        let reaper = reaper.map_err(|error| broken("start the reaper", &error))?;
        let signals = process::signal_descriptor(&SIGNALS).map_err(|error| broken("take signals", &error))?;
        let listener = folder::listen(&self.folder).map_err(|error| broken("listen for callers", &error))?;
        // Becoming another user is for its gate, and for work on files with the sandbox's rights.
        process::keep_capabilities(&[&KEPT_CAPABILITIES[..], &FOR_GATE, &FOR_LEASES].concat())
            .map_err(|error| broken("give up privileges", &error))?;
        // That somebody wants to write where we have a lease.
        process::ignore_signal(SIGIO);
        process::set_dumpable(false);
        // Callers and commands come in numbers.
        fumehood_sys::confine::raise_open_files();
        Ok((signals, listener, reaper))
    }

    /// A sandbox that was launched, and that nobody was told of, ends.
    fn undo(&self, mut instance: Box<dyn Instance>, mut log: TaskLog, ending: &Ending) {
        let why = failure(ending).to_string();
        let _ = log.append(unix_millis(), &Event::Stopped { why, keeps_files: false });
        instance.kill();
        instance.wait_gone(DEATH_LIMIT);
        drop(instance);
        let _ = self.backend.reap(&self.id);
        let _ = log.close(unix_millis());
    }

    fn open_record(&self, publisher: &Publisher) -> Result<TaskLog, Ending> {
        let unwritten = |error: fumehood_audit::RecordError| {
            not_started("write the record", &chain(&error), error.remedy())
        };
        let at = unix_millis();
        let mut log = TaskLog::open(&self.state.records(), &self.id, at).map_err(unwritten)?;
        log.append_all(at, &self.opening(publisher)).map_err(unwritten)?;
        Ok(log)
    }

    fn opening(&self, publisher: &Publisher) -> Vec<Event> {
        let LiveRequest { run, spec, .. } = &self.request;
        let value =
            |value: Result<serde_json::Value, serde_json::Error>| value.unwrap_or(serde_json::Value::Null);
        let launched = Event::Launched {
            level: run.choice.level.name().to_owned(),
            reason: run.choice.reason.to_string(),
            envelope: value(serde_json::to_value(&run.envelope)),
            enforcement: value(serde_json::to_value(&self.enforcement)),
        };
        let living = Event::Living(Living {
            actor: spec.actor.clone(),
            from: self.from.clone(),
            labels: spec.labels.clone(),
            env_names: spec.env.iter().map(|(name, _)| name.clone()).collect(),
            snapshot: spec.snapshot.clone(),
            expires_ms: spec.expires_ms,
            pooled: spec.pooled,
            published: publisher.published().map(|one| format!("{}:{}", one.host_port, one.port)).collect(),
        });
        let inputs = run.envelope.filesystem().inputs.iter().map(|input| Event::FileIn {
            source: fumehood_audit::os_text(&input.source),
            at: fumehood_audit::os_text(&input.at),
            bytes: std::fs::metadata(&input.source).map_or(0, |meta| meta.len()),
        });
        [launched, living].into_iter().chain(inputs).collect()
    }

    fn estate<'b>(&'b self, places: &Places, gateway: Option<&'b Gateway>) -> Estate<'b> {
        Estate {
            backend: self.backend,
            id: &self.id,
            layer: None,
            disk: places.disk(),
            observer: gateway.map(|gateway| gateway.observer.as_fd()),
            living: Some(self.folder.clone()),
            records: self.state.records(),
            layers: self.state.layers(),
            scratch: self.state.scratch(),
            shared: self.state.shared(),
            sandboxes: self.state.sandboxes(),
            snapshots: self.state.snapshots(),
        }
    }

    /// The guest's files, where it has a root of its own.
    fn files(&self, instance: &mut dyn Instance) -> Option<Arc<GuestFiles>> {
        let uid = self.request.run.envelope.privilege().uid;
        let live = instance.live()?;
        let root = live.root()?.try_clone_to_owned().ok()?;
        Some(GuestFiles::new(root, live.owner(), (uid, uid)))
    }

    /// What it is, with its files.
    fn filled(&self, instance: &mut dyn Instance, places: &Places, parts: Vec<snapshot::Part>) -> Life {
        let files = self.files(instance);
        let layer = places.layer.as_ref().map(|layer| layer.meta.clone());
        Life { files, parts, layer, ..self.life() }
    }

    fn life(&self) -> Life {
        let LiveRequest { run, spec, defaults, .. } = &self.request;
        let mut base = run.exec.clone();
        for (name, value) in &spec.env {
            base.env.retain(|(known, _)| known != name.as_str());
            base.env.push((name.into(), value.into()));
        }
        let limits = run.envelope.resources();
        let now = unix_millis();
        let home = base.env.iter().find(|(name, _)| name == "HOME");
        Life {
            spec: spec.clone(),
            level: run.choice.level.name().to_owned(),
            born_ms: now,
            active_ms: now,
            home: home
                .map_or_else(|| run.home_at.clone().into(), |(_, home)| home.clone())
                .to_string_lossy()
                .into_owned(),
            base,
            paused: false,
            halted: false,
            frozen: None,
            look_at: None,
            claimed: false,
            memory_limit: limits.memory_bytes,
            cpu_milli: limits.cpu_millis.into(),
            disk_limit: limits.disk_bytes,
            output_limit: limits.output_bytes,
            timeout: limits.timeout,
            folder: self.folder.clone(),
            files: None,
            hands: Arc::new(()),
            machine: !self.backend.keeps_files(),
            parts: Vec::new(),
            layer: None,
            snapshots: self.state.snapshots(),
            records: self.state.records(),
            idle: idle::Idle::after(spec.idle_pause_ms),
            net: network::Made::of(run, spec, defaults),
        }
    }

    fn meter(&self) -> Meter {
        let memory = self.enforcement.of(Clause::Resources).iter();
        let watched =
            memory.filter(|m| m.strength == Strength::Watch).any(|m| m.name == "resident-memory-watch");
        // Everything that it keeps is in its folder: also the layer's file system, which is a file of as many blocks as
        // were written.
        let written = Written::Living(self.folder.clone());
        Meter::new(self.request.run.envelope.resources(), watched, written)
    }
}

// === impl Keeper ===

impl Keeper<'_> {
    /// Says in its folder what it is.
    fn describe(&self) -> Result<(), Ending> {
        let described = folder::describe(&self.life.folder, &self.life.description(self.id));
        described.map_err(|error| broken("describe the sandbox", &error))
    }
}

// === impl Life ===

impl Life {
    fn description(&self, id: &str) -> Sandbox {
        Sandbox {
            id: id.to_owned(),
            keeper_pid: std::process::id(),
            level: self.level.clone(),
            born_ms: self.born_ms,
            spec: self.spec.clone(),
        }
    }
}
