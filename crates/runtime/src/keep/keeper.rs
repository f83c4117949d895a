//! The keeper's loop: one wait on everything that can happen, until the sandbox ends.
//!
//! ```text
//!              ┌ guest ──────── started, terminal, ended, dialled, gone
//!              ├ callers ────── connect, ask, send input, take output
//!   wait for ──┼ streams ────── of each command, kept and passed on
//!              ├ wall, doors ── what wants out, what wants in
//!              └ time ───────── of commands, of the sandbox, of meters
//! ```
//!
//! **Invariant:** nothing here waits for a caller or for the guest; what one of them does not take is bounded.

use super::command::Command;
use super::connection::{Connection, Role};
use super::failures;
use super::relay::Relay;
use crate::egress::{Publisher, Wall};
use crate::meter::Meter;
use crate::run::unix_millis;
use fumehood_audit::{RecordError, TaskLog};
use fumehood_backend::{Instance, Live};
use fumehood_keep::wire::{Failure, FailureCode, KEPT_EXECS, Phase, Published, Said, Spec, Status};
use fumehood_model::egress::Publish;
use fumehood_model::ending::{Ending, signal_name};
use fumehood_model::event;
use fumehood_model::exec::ExecRequest;
use fumehood_sys::poll::{self, Interest};
use fumehood_sys::process;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

/// How long who connects may take to say what for.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Callers at once.
const MOST_CONNECTIONS: usize = 512;
pub(super) const MOST_RELAYS: usize = 256;
/// Taken before the loop looks at everything else again.
pub(super) const AT_ONCE: u32 = 64;
/// What is kept of commands that have ended, together.
const KEPT_ENDED_BYTES: usize = 8 << 20;
/// Commands that have ended while something in the background still writes to their streams.
const MOST_OPEN: usize = 256;

/// How often the index is told how far a record has come that goes on, and is signed.
const REACH_EVERY: Duration = Duration::from_secs(60);
/// A port that is asked for again within this time is counted, not written down.
const PORTS_WITHIN: Duration = Duration::from_secs(1);
/// Endings of commands that wait for room in the record; there are never more commands.
const MOST_UNWRITTEN: usize = 256;

/// What a caller may send to a port before it is connected.
const MOST_EARLY_BYTES: usize = 64 << 10;

/// Whatever is further away is looked at again then: no clock is asked for a time that it does not have.
const LONGEST_WAIT_MS: u64 = 24 * 3600 * 1000;

pub(super) const SIGKILL: i32 = 9;

/// A living sandbox, as its keeper has it.
#[derive(Debug)]
pub(crate) struct Keeper<'a> {
    pub(crate) id: &'a str,
    pub(crate) instance: &'a mut dyn Instance,
    pub(crate) signals: &'a OwnedFd,
    pub(crate) listener: &'a UnixListener,
    pub(crate) wall: Wall<'a>,
    pub(crate) publisher: Publisher,
    pub(crate) log: &'a mut TaskLog,
    pub(crate) meter: Meter,
    /// What it changes in its copy of a workspace.
    pub(crate) layer: Option<&'a crate::files::layer::Layer>,
    pub(crate) life: Life,
    pub(crate) commands: BTreeMap<u32, Command>,
    pub(crate) connections: BTreeMap<u64, Connection>,
    pub(crate) relays: BTreeMap<u64, Relay>,
    next: u64,
    /// The number that the next command will have.
    pub(crate) next_exec: u32,
    pub(super) seen_cpu_ms: u64,
    /// When the index was last told how far the record had come, and how far that was.
    pub(super) reached: (Instant, u64),
    /// Ports that callers asked for a moment ago: when that was written down, and how often they did so since.
    pub(super) asked_ports: BTreeMap<u16, (Instant, u64)>,
    /// What has happened and could not be written down yet, the oldest first.
    unwritten: Vec<event::Event>,
    /// Why the record could not be written when it was last tried, and what helps.
    refused: Option<(String, &'static str)>,
    /// It is over, and why.
    pub(crate) over: Option<Over>,
}

/// What a sandbox is at this moment.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) spec: Spec,
    pub(crate) level: String,
    pub(crate) born_ms: u64,
    pub(crate) active_ms: u64,
    /// What every command is begun with: its folder and its variables.
    pub(crate) base: ExecRequest,
    pub(crate) home: String,
    pub(crate) paused: bool,
    pub(crate) halted: bool,
    /// Since when no process runs.
    pub(crate) frozen: Option<Instant>,
    /// When it is to be seen that it stays so, where the kernel does not see to it.
    pub(crate) look_at: Option<Instant>,
    pub(crate) claimed: bool,
    pub(crate) memory_limit: u64,
    pub(crate) cpu_milli: u64,
    pub(crate) disk_limit: u64,
    pub(crate) output_limit: u64,
    /// Of a command that says nothing about it.
    pub(crate) timeout: Option<Duration>,
    pub(crate) folder: std::path::PathBuf,
    /// Its files, as they are seen inside; none where it has no root of its own.
    pub(crate) files: Option<std::sync::Arc<super::files::GuestFiles>>,
    /// One is ours; each piece of work that a guest does on files holds another.
    pub(crate) hands: std::sync::Arc<()>,
    /// It is kept whole, with its memory, and not by its files.
    pub(crate) machine: bool,
    /// What of it is on disk, and what its layer lies over.
    pub(crate) parts: Vec<super::snapshot::Part>,
    pub(crate) layer: Option<crate::files::layer::LayerMeta>,
    pub(crate) snapshots: std::path::PathBuf,
    pub(crate) records: std::path::PathBuf,
    pub(crate) idle: super::idle::Idle,
    /// What its network was made as.
    pub(crate) net: super::network::Made,
}

/// Why a sandbox is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    pub(crate) why: String,
    pub(crate) keeps_files: bool,
    /// How the commands that run have ended by it.
    pub(crate) ending: Ending,
}

/// Something that was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Guest,
    Signals,
    Wall,
    Doors,
    Callers,
    Caller(u64, Interest),
    Streams(u32),
    Input(u32),
    Relay(u64),
}

/// What the keeper is given.
#[derive(Debug)]
pub(crate) struct Means<'a> {
    pub(crate) instance: &'a mut dyn Instance,
    pub(crate) signals: &'a OwnedFd,
    pub(crate) listener: &'a UnixListener,
    pub(crate) log: &'a mut TaskLog,
    pub(crate) layer: Option<&'a crate::files::layer::Layer>,
}

// === impl Keeper ===

impl<'a> Keeper<'a> {
    pub(crate) fn new(
        id: &'a str,
        means: Means<'a>,
        (wall, publisher): (Wall<'a>, Publisher),
        meter: Meter,
        life: Life,
    ) -> Self {
        let Means { instance, signals, listener, log, layer } = means;
        Self {
            id,
            instance,
            signals,
            listener,
            wall,
            publisher,
            log,
            layer,
            meter,
            life,
            commands: BTreeMap::new(),
            connections: BTreeMap::new(),
            relays: BTreeMap::new(),
            next: 1,
            next_exec: 1,
            seen_cpu_ms: 0,
            reached: (Instant::now(), 0),
            asked_ports: BTreeMap::new(),
            unwritten: Vec::new(),
            refused: None,
            over: None,
        }
    }

    /// Keeps the sandbox until it is over.
    pub(crate) fn keep(&mut self) -> io::Result<()> {
        while self.over.is_none() {
            self.round()?;
            self.tidy();
        }
        Ok(())
    }

    /// Waits for anything, and deals with it.
    pub(super) fn round(&mut self) -> io::Result<()> {
        for token in self.wait()? {
            self.turn(token);
        }
        self.watch_time();
        self.follow_all();
        Ok(())
    }

    fn turn(&mut self, token: Token) {
        match token {
            Token::Guest => self.read_events(),
            Token::Signals => {
                while let Some(signal) = process::read_signal(self.signals.as_fd()) {
                    let why = format!("signal {}", signal_name(u8::try_from(signal).unwrap_or(0)));
                    self.finish(why, false, killed(SIGKILL));
                }
            }
            Token::Wall => {
                self.wall.advance(self.log);
                self.tell_of_rules();
            }
            Token::Doors => {
                self.wake();
                self.publisher.advance(self.instance);
            }
            Token::Callers => self.accept(),
            Token::Caller(number, Interest::Read) => self.hear(number),
            Token::Caller(number, Interest::Write) => self.serve(number),
            Token::Caller(number, Interest::Hangup) => drop(self.connections.remove(&number)),
            Token::Streams(exec) => self.move_streams(exec),
            Token::Input(exec) => {
                if let Some(command) = self.commands.get_mut(&exec) {
                    command.input.advance();
                }
                self.hear_waiting(exec);
            }
            Token::Relay(number) => {
                if self.relays.get_mut(&number).is_some_and(|relay| !relay.advance()) {
                    self.relays.remove(&number);
                }
            }
        }
    }

    /// Waits for anything.
    fn wait(&self) -> io::Result<Vec<Token>> {
        let mut set: Vec<(BorrowedFd<'_>, Interest)> = Vec::with_capacity(16);
        let mut tokens = Vec::with_capacity(16);
        let mut add = |fd, interest, token| {
            set.push((fd, interest));
            tokens.push(token);
        };
        add(self.signals.as_fd(), Interest::Read, Token::Signals);
        add(self.instance.events(), Interest::Read, Token::Guest);
        if self.connections.len() < MOST_CONNECTIONS {
            add(self.listener.as_fd(), Interest::Read, Token::Callers);
        }
        if !self.life.halted {
            self.wall.waits().into_iter().for_each(|socket| add(socket, Interest::Read, Token::Wall));
            self.publisher.waits().for_each(|door| add(door, Interest::Read, Token::Doors));
        }
        for (exec, command) in &self.commands {
            let floors = self.floors(*exec);
            for (stream, floor) in [&command.output, &command.error].into_iter().zip(floors) {
                if let Some((fd, interest)) = stream.waits(floor) {
                    add(fd, interest, Token::Streams(*exec));
                }
            }
            if let Some((fd, interest)) = command.input.waits() {
                add(fd, interest, Token::Input(*exec));
            }
        }
        for (number, connection) in &self.connections {
            let fd = connection.stream.as_fd();
            let reads = !connection.deaf && !connection.closing && self.takes_input(connection);
            let interest = if reads { Interest::Read } else { Interest::Hangup };
            add(fd, interest, Token::Caller(*number, interest));
            if connection.has_to_send(self.followed(connection)) {
                add(fd, Interest::Write, Token::Caller(*number, Interest::Write));
            }
        }
        for (number, relay) in &self.relays {
            relay.waits().into_iter().for_each(|(fd, interest)| add(fd, interest, Token::Relay(*number)));
        }
        let found = poll::wait(&set, self.alarm())?;
        let mut ready: Vec<_> =
            found.iter().zip(tokens).filter(|(waited, _)| waited.ready).map(|(_, token)| token).collect();
        ready.dedup();
        Ok(ready)
    }

    /// The first byte of each stream of a command that somebody has yet to take.
    pub(super) fn floors(&self, exec: u32) -> [u64; 2] {
        let mut floors = [u64::MAX; 2];
        for connection in self.connections.values() {
            if let Role::Follow(follower) = &connection.role
                && follower.exec == exec
            {
                floors = [floors[0].min(follower.output_at), floors[1].min(follower.error_at)];
            }
        }
        floors
    }

    /// Whether more of what a caller sends has a place.
    fn takes_input(&self, connection: &Connection) -> bool {
        let exec = match &connection.role {
            Role::Follow(follower) => follower.exec,
            Role::Input(exec) => *exec,
            Role::New => return true,
            // What it sends before it is connected waits with it.
            Role::Dial(_) => return connection.inward.len() < MOST_EARLY_BYTES,
            Role::Stop | Role::Rules(_) | Role::Answered => return false,
        };
        self.commands.get(&exec).is_none_or(|command| command.input.has_room())
    }

    fn followed(&self, connection: &Connection) -> Option<&Command> {
        self.commands.get(&connection.role.follows()?)
    }

    fn alarm(&self) -> Option<Duration> {
        let now = Instant::now();
        let expires = self
            .life
            .spec
            .expires_ms
            .map(|at| now + Duration::from_millis(at.saturating_sub(unix_millis()).min(LONGEST_WAIT_MS)));
        let commands =
            self.commands.values().filter(|_| self.life.frozen.is_none()).filter_map(Command::alarm).min();
        let new = self.connections.values().filter(|one| matches!(one.role, Role::New));
        let impatient = new.map(|one| one.born + PATIENCE).min();
        let frozen = self.life.frozen.is_some();
        let meter = if frozen { None } else { self.meter.next() };
        let (wall, doors) =
            if self.life.halted { (None, None) } else { (self.wall.alarm(), self.publisher.alarm()) };
        let reach = (self.log.head().lines > self.reached.1).then(|| self.reached.0 + REACH_EVERY);
        let alarms =
            [expires, commands, impatient, meter, wall, doors, reach, self.idle_alarm(), self.life.look_at];
        alarms.into_iter().flatten().min().map(|at| at.saturating_duration_since(now))
    }

    fn accept(&mut self) {
        for _ in 0..AT_ONCE {
            if self.connections.len() >= MOST_CONNECTIONS {
                return;
            }
            let Ok((stream, _)) = self.listener.accept() else { return };
            if let Ok(connection) = Connection::new(stream) {
                let number = self.number();
                self.connections.insert(number, connection);
                self.hear(number);
            }
        }
    }

    /// One that nobody else has.
    pub(super) fn number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// Reads what a caller says, and does it.
    fn hear(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if connection.read().is_err() {
            self.connections.remove(&number);
            return;
        }
        self.obey(number);
    }

    /// Does what was read of a caller, as far as it is whole and there is room for it.
    fn obey(&mut self, number: u64) {
        loop {
            let Some(connection) = self.connections.get(&number) else { return };
            if connection.closing || !self.takes_input(connection) {
                return;
            }
            let Some(connection) = self.connections.get_mut(&number) else { return };
            if matches!(connection.role, Role::Dial(_)) {
                return;
            }
            match connection.next() {
                Ok(Some(frame)) => self.take(number, frame),
                Ok(None) => break,
                Err(flaw) => {
                    connection.fail(failures::new(
                        FailureCode::BadRequest,
                        ("read the request", flaw.to_string()),
                        "speak the protocol of this version",
                    ));
                    break;
                }
            }
        }
        if let Some(connection) = self.connections.get_mut(&number)
            && connection.deaf
        {
            match connection.role {
                Role::New => drop(self.connections.remove(&number)),
                Role::Input(_) => connection.answer(&Said::Done),
                Role::Follow(_) | Role::Dial(_) | Role::Stop | Role::Rules(_) | Role::Answered => {}
            }
        }
    }

    /// Takes what callers had sent to a command that had no room for it.
    fn hear_waiting(&mut self, exec: u32) {
        let waits = |connection: &Connection| {
            let feeds = matches!(connection.role, Role::Input(to) if to == exec);
            (feeds || connection.role.follows() == Some(exec)) && !connection.inward.is_empty()
        };
        let waiting: Vec<u64> =
            self.connections.iter().filter(|(_, one)| waits(one)).map(|(number, _)| *number).collect();
        waiting.into_iter().for_each(|number| self.obey(number));
    }

    /// Sends what there is for a caller.
    fn serve(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let exec = connection.role.follows();
        let sent = match exec.and_then(|exec| Some((exec, self.commands.get(&exec)?))) {
            Some((exec, command)) => connection.follow(exec, command),
            None => connection.flush().map(drop),
        };
        if sent.is_err() || connection.is_done() {
            self.connections.remove(&number);
        }
    }

    /// Sends to everybody who has something to get, and lets go of who has all.
    fn follow_all(&mut self) {
        let ready = |connection: &Connection| {
            connection.closing
                || connection.unsent() > 0
                || self
                    .followed(connection)
                    .is_some_and(|command| connection.has_to_send(Some(command)) || command.is_settled())
        };
        let numbers: Vec<u64> =
            self.connections.iter().filter(|(_, one)| ready(one)).map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.serve(number));
    }

    pub(super) fn move_streams(&mut self, exec: u32) {
        let floors = self.floors(exec);
        if let Some(command) = self.commands.get_mut(&exec) {
            command.advance(floors);
        }
    }

    /// Writes an event down. `false`: what it tells of must not be done. What has happened already is written down as
    /// soon as that can be, before anything else. A sandbox whose record can not go on ends.
    pub(crate) fn record(&mut self, event: &event::Event) -> bool {
        let has_happened = matches!(event, event::Event::ExecEnded { .. });
        let mut events = std::mem::take(&mut self.unwritten);
        events.push(event.clone());
        let Err(error) = self.log.append_all(unix_millis(), &events) else {
            self.refused = None;
            return true;
        };
        if !has_happened {
            events.pop();
        }
        self.unwritten = events;
        let why = format!("its record can not be written: {}", crate::causes::chain(&error));
        if !self.log.can_go_on()
            || !matches!(error, RecordError::Write { .. })
            || self.unwritten.len() > MOST_UNWRITTEN
        {
            self.over.get_or_insert(Over { why: why.clone(), keeps_files: false, ending: lost() });
        }
        self.refused = Some((why, error.remedy()));
        false
    }

    /// Why something was not done that could not be written down first.
    pub(crate) fn unrecorded(&self) -> Failure {
        let nothing = ("nothing happens that is not recorded first".to_owned(), "try again");
        failures::unrecorded(self.refused.clone().unwrap_or(nothing))
    }

    /// Writes down that what was about to be done was not done.
    pub(crate) fn undone<T>(&mut self, of: &event::Event, done: Verdict<T>) -> Verdict<T> {
        if let Err(failure) = &done {
            self.record(&event::Event::ActFailed { of: of.name().to_owned(), why: failure.to_string() });
        }
        done
    }

    /// Tells the index how far the record has come, so that a cut of it shows even if it is never closed.
    pub(crate) fn reach(&mut self) {
        let lines = self.log.head().lines;
        self.reached = (Instant::now(), lines);
        // It promises more than there would be without: nothing depends on it.
        let _ = self.log.reach(unix_millis());
    }

    /// The same once in a while, signed.
    pub(super) fn reach_if_due(&mut self, now: Instant) {
        if self.log.head().lines > self.reached.1 && now >= self.reached.0 + REACH_EVERY {
            self.reach();
            let records = &self.life.records;
            let _ = fumehood_audit::sign(records, &fumehood_audit::key_path(records), unix_millis());
        }
    }

    /// Writes down that a port is asked for; what repeats it within a moment is counted.
    pub(crate) fn record_port(&mut self, port: u16) -> bool {
        let now = Instant::now();
        if let Some((written, more)) = self.asked_ports.get_mut(&port)
            && now.saturating_duration_since(*written) < PORTS_WITHIN
        {
            *more = more.saturating_add(1);
            return true;
        }
        let (_, more) = self.asked_ports.insert(port, (now, 0)).unwrap_or((now, 0));
        self.record(&event::Event::PortAsked { port, count: more.saturating_add(1) })
    }

    /// Writes down what was counted and not written.
    pub(crate) fn settle_ports(&mut self) {
        for (port, (_, count)) in std::mem::take(&mut self.asked_ports) {
            if count > 0 && !self.record(&event::Event::PortAsked { port, count }) {
                return;
            }
        }
    }

    /// The sandbox is to end.
    pub(crate) fn finish(&mut self, why: String, keeps_files: bool, ending: Ending) {
        self.over.get_or_insert(Over { why, keeps_files, ending });
    }

    /// Forgets commands that ended long ago, and what is too much of the others.
    fn tidy(&mut self) {
        let followed: Vec<u32> = self.connections.values().filter_map(|one| one.role.follows()).collect();
        let quiet = |exec: &u32, one: &Command| one.is_settled() && !followed.contains(exec);
        let ended: Vec<u32> =
            self.commands.iter().filter(|(exec, one)| quiet(exec, one)).map(|(exec, _)| *exec).collect();
        let open = ended.iter().filter(|exec| self.commands.get(exec).is_some_and(Command::is_open)).count();
        let (mut closed, mut open) = (ended.len() - open, open);
        let mut held: usize = 0;
        for exec in ended.iter().rev() {
            if let Some(command) = self.commands.get_mut(exec) {
                held += command.output.ring.held() + command.error.ring.held();
                if held > KEPT_ENDED_BYTES {
                    command.output.ring.forget();
                    command.error.ring.forget();
                }
            }
        }
        for exec in ended {
            let Some(command) = self.commands.get(&exec) else { continue };
            let (count, most) =
                if command.is_open() { (&mut open, MOST_OPEN) } else { (&mut closed, KEPT_EXECS) };
            if *count > most {
                *count -= 1;
                self.commands.remove(&exec);
            }
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.commands.values().filter(|command| command.ended.is_none()).count()
    }

    pub(crate) fn phase(&self) -> Phase {
        match (self.over.is_some(), self.life.halted, self.life.paused) {
            (true, ..) => Phase::Ending,
            (false, true, _) => Phase::Halted,
            (false, false, true) => Phase::Paused,
            (false, false, false) => Phase::Running,
        }
    }

    pub(crate) fn status(&mut self) -> Status {
        let cpu_ms = self.live().map_or(0, Live::cpu_ms);
        let meters = self.instance.meters();
        Status {
            id: self.id.to_owned(),
            phase: self.phase(),
            level: self.life.level.clone(),
            born_ms: self.life.born_ms,
            expires_ms: self.life.spec.expires_ms,
            last_active_ms: self.life.active_ms,
            running: u32::try_from(self.running()).unwrap_or(u32::MAX),
            pooled: self.life.spec.pooled && !self.life.claimed,
            cpu_ms: cpu_ms.max(self.seen_cpu_ms),
            memory_bytes: meters.memory_bytes,
            memory_limit_bytes: self.life.memory_limit,
            cpu_limit_milli: Some(self.life.cpu_milli),
            disk_bytes: meters.disk_bytes.or(Some(self.meter.disk_bytes())),
            disk_limit_bytes: self.life.disk_limit,
            home: self.life.home.clone(),
            cwd: self.life.base.cwd.to_string_lossy().into_owned(),
            published: self
                .publisher
                .published()
                .map(|Publish { host_port, port }| Published { host_port, port })
                .collect(),
        }
    }

    /// Everything is gone, or as good as that: whoever still listens is told, within a moment.
    pub(crate) fn farewell(&mut self, limit: Duration) -> Vec<Connection> {
        let Some(over) = self.over.clone() else { return Vec::new() };
        let running: Vec<u32> =
            self.commands.iter().filter(|(_, one)| one.ended.is_none()).map(|(exec, _)| *exec).collect();
        for exec in running {
            self.close_command(exec, over.ending.clone(), 0);
        }
        let end = Instant::now() + limit;
        let all: Vec<u32> = self.commands.keys().copied().collect();
        while Instant::now() < end && self.connections.values().any(|one| matches!(one.role, Role::Follow(_)))
        {
            all.iter().for_each(|exec| self.move_streams(*exec));
            self.follow_all();
            let waits: Vec<_> = self
                .connections
                .values()
                .filter(|one| matches!(one.role, Role::Follow(_)))
                .map(|one| (one.stream.as_fd(), Interest::Write))
                .collect();
            let _ = poll::wait(&waits, Some(Duration::from_millis(20)));
        }
        let mut last = Vec::new();
        for (_, mut connection) in std::mem::take(&mut self.connections) {
            if matches!(connection.role, Role::Stop) {
                last.push(connection);
                continue;
            }
            if !connection.closing {
                connection.fail(failures::ending());
            }
            // Who does not take it now finds the connection closed.
            let _ = connection.flush();
        }
        last
    }
}

pub(super) fn limit_of(ending: &Ending) -> &str {
    if let Ending::OutOfMemory { limit, .. } | Ending::LimitPassed { limit, .. } = ending {
        return limit;
    }
    ending.cause()
}

pub(crate) fn killed(signal: i32) -> Ending {
    let signal = u8::try_from(signal).unwrap_or(9);
    Ending::Killed { signal, name: signal_name(signal) }
}

pub(crate) const fn lost() -> Ending {
    Ending::Lost
}

/// A failure, or nothing.
pub(crate) type Verdict<T> = Result<T, Failure>;
