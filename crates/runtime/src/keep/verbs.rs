//! What is asked of a sandbox, and what is done.

use super::command::{Cause, Command, Input, Stream};
use super::connection::{Follower, Incoming, Role};
use super::failures;
use super::keeper::{Keeper, Verdict, killed};
use crate::run::unix_millis;
use crate::streams::Allowance;
use fumehood_audit::os_text;
use fumehood_backend::{ExecError, GuestStdio, Live};
use fumehood_keep::fault::{self, Point};
use fumehood_keep::frame::Kind;
use fumehood_keep::wire::{Ask, Claim, Exec, FailureCode, MOST_PATH_BYTES, Phase, Said};
use fumehood_model::event::Event;
use fumehood_model::exec::{ExecRequest, WindowSize};
use fumehood_sys::process;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Commands at once; the first process inside takes no more.
const MOST_RUNNING: usize = 64;
/// How often it is seen to that what is stopped by signals stays so.
pub(super) const LOOKS_EVERY: Duration = Duration::from_secs(1);
const MOST_TAG_CHARS: usize = 128;
/// Pipes are this large where the kernel allows it: fewer, larger reads.
const PIPE_BYTES: usize = 256 << 10;

impl Keeper<'_> {
    /// Takes one frame of a caller.
    pub(crate) fn take(&mut self, number: u64, frame: Incoming) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let to = match (&connection.role, frame.kind) {
            (Role::New, Kind::Json) => match serde_json::from_slice(&frame.bytes) {
                Ok(ask) => return self.answer(number, ask),
                Err(error) => {
                    let why = error.to_string();
                    return connection.fail(failures::bad(
                        "read the request",
                        why,
                        "ask one of the verbs of this version",
                    ));
                }
            },
            (Role::Follow(follower), Kind::Input | Kind::InputEnd) => follower.exec,
            (Role::Input(exec), Kind::Input | Kind::InputEnd) => *exec,
            _ => {
                return connection.fail(failures::bad(
                    "read the request",
                    "a frame that does not fit here",
                    "see the protocol",
                ));
            }
        };
        let is_input = matches!(connection.role, Role::Input(_));
        if let Some(command) = self.commands.get_mut(&to) {
            if frame.kind == Kind::InputEnd {
                command.input.end();
            } else {
                command.input.push(&frame.bytes);
            }
        }
        if is_input
            && frame.kind == Kind::InputEnd
            && let Some(connection) = self.connections.get_mut(&number)
        {
            connection.answer(&Said::Done);
        }
    }

    fn answer(&mut self, number: u64, ask: Ask) {
        self.wake_for(&ask);
        if !matches!(ask, Ask::Status | Ask::List) {
            self.life.active_ms = unix_millis();
        }
        let said = match ask {
            Ask::Exec(exec) => self.exec(number, exec),
            Ask::Attach { exec, stdout_from, stderr_from } => {
                self.attach(number, exec, stdout_from, stderr_from)
            }
            Ask::Input { exec } => self.input(number, exec),
            Ask::Dial { port } => self.dial(number, port),
            Ask::Stop { keep_files: true } if self.life.machine => Err(failures::new(
                FailureCode::Unsupported,
                ("keep the files", "they are in the memory of a machine, which ends".to_owned()),
                "take a snapshot first, then stop it: `fumehood snapshot ID NAME`",
            )),
            Ask::Stop { keep_files } => {
                self.set_role(number, Role::Stop);
                self.finish("asked".to_owned(), keep_files, killed(9));
                Ok(None)
            }
            Ask::Status => Ok(Some(Said::Status(self.status()))),
            Ask::List => {
                let execs = self.commands.iter().map(|(exec, command)| command.status(*exec)).collect();
                Ok(Some(Said::Execs { execs }))
            }
            Ask::Signal { exec, signal } => self.signal(exec, signal).map(Some),
            Ask::Resize { exec, rows, columns } => self.resize(exec, rows, columns).map(Some),
            Ask::Pause => self.pause().map(Some),
            Ask::Resume => self.resume().map(Some),
            Ask::Halt => self.halt().map(Some),
            Ask::Release => self.release().map(Some),
            Ask::Claim(claim) => self.claim(claim).map(Some),
            Ask::Network(network) => self.network(number, network).map(|()| None),
            Ask::Expire { at_ms } => self.expire(at_ms).map(Some),
            ask @ (Ask::Read { .. }
            | Ask::Write { .. }
            | Ask::Stat { .. }
            | Ask::ListDir { .. }
            | Ask::MakeDir { .. }
            | Ask::Move { .. }
            | Ask::Remove { .. }
            | Ask::Watch { .. }) => self.work_on_files(number, ask).map(|()| None),
            Ask::Apply { allow, force, partial } => self.apply(&allow, &force, partial).map(Some),
            Ask::Snapshot { name, memory } => self.snapshot(number, &name, memory).map(|()| None),
        };
        let Some(connection) = self.connections.get_mut(&number) else { return };
        match said {
            Ok(Some(said)) => connection.answer(&said),
            Ok(None) => {}
            Err(failure) => connection.fail(failure),
        }
    }

    pub(super) fn set_role(&mut self, number: u64, role: Role) {
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.role = role;
        }
    }

    /// Whether there may be new work.
    fn is_at_work(&self) -> Verdict<()> {
        match self.phase() {
            Phase::Running => Ok(()),
            Phase::Paused => Err(failures::paused()),
            Phase::Halted => Err(failures::halted()),
            Phase::Ending => Err(failures::ending()),
        }
    }

    fn exec(&mut self, number: u64, asked: Exec) -> Verdict<Option<Said>> {
        self.is_at_work()?;
        check(&asked)?;
        if self.running() >= MOST_RUNNING {
            return Err(failures::busy());
        }
        let streams = streams(&asked).map_err(|error| {
            failures::new(
                FailureCode::Busy,
                ("make the streams", error.to_string()),
                "try again when fewer commands run",
            )
        })?;
        let (exec, began) = self.begin(asked, streams)?;
        self.set_role(number, Role::Follow(Follower::new(exec, 0, 0)));
        if let Err(error) = began {
            self.not_started(exec, &error);
            self.commands.remove(&exec);
        }
        Ok(None)
    }

    /// Writes a command down and asks for it. Gives its number, and whether the guest could be asked.
    pub(super) fn begin(
        &mut self,
        asked: Exec,
        (stdio, input, output, error): Streams,
    ) -> Verdict<(u32, Result<(), ExecError>)> {
        let request = self.request(&asked);
        let started = Event::ExecStarted {
            argv: request.argv.iter().map(os_text).collect(),
            cwd: os_text(&request.cwd),
            env_names: asked.env.iter().map(|(name, _)| name.clone()).collect(),
            terminal: asked.terminal.is_some(),
            exec: Some(self.next_exec),
            actor: Some(asked.actor.clone()).filter(|actor| !actor.is_empty()),
        };
        if !self.record(&started) {
            return Err(self.unrecorded());
        }
        fault::point(Point::ExecRecorded);
        let oom_kills = self.instance.meters().oom_kills;
        let began = self.instance.live().map(|live| live.exec(&request, stdio));
        let began = began.unwrap_or(Err(ExecError::Silent));
        fault::point(Point::ExecBegun);
        let now = Instant::now();
        let limit = asked.timeout_ms.map(Duration::from_millis).or(self.life.timeout);
        let expected = self.next_exec;
        let exec = began.as_ref().copied().unwrap_or(expected);
        self.next_exec = exec.wrapping_add(u32::from(began.is_ok()));
        let command = Command {
            cwd: request.cwd.to_string_lossy().into_owned(),
            asked,
            pid: 0,
            started_ms: unix_millis(),
            born: now,
            input,
            output,
            error,
            allowance: Allowance::new(self.life.output_limit),
            limit,
            // One that no clock reaches is none.
            deadline: limit.and_then(|limit| now.checked_add(limit)),
            grace: None,
            cause: None,
            oom_kills,
            hits: Vec::new(),
            ended: None,
        };
        self.commands.insert(exec, command);
        Ok((exec, began.map(drop)))
    }

    /// The command with everything that the sandbox gives it.
    fn request(&self, asked: &Exec) -> ExecRequest {
        let base = &self.life.base;
        let mut env = base.env.clone();
        for (name, value) in &asked.env {
            env.retain(|(known, _)| known != name.as_str());
            env.push((name.into(), value.into()));
        }
        let terminal = asked.terminal.map(|(rows, columns)| WindowSize { rows, columns });
        if terminal.is_some() && !env.iter().any(|(name, _)| name == "TERM") {
            env.push(("TERM".into(), "xterm-256color".into()));
        }
        let cwd = asked.cwd.as_deref().map_or_else(|| base.cwd.clone(), |cwd| base.cwd.join(cwd));
        ExecRequest { argv: asked.argv.iter().map(OsString::from).collect(), env, cwd, terminal }
    }

    fn attach(&mut self, number: u64, exec: u32, output_at: u64, error_at: u64) -> Verdict<Option<Said>> {
        let command = self.commands.get(&exec).ok_or_else(|| failures::no_exec(exec))?;
        let pid = command.pid;
        // Bytes that are still to come can be left out too.
        let follower = Follower::new(exec, output_at, error_at);
        self.set_role(number, Role::Follow(follower));
        if let Some(connection) = self.connections.get_mut(&number)
            && pid != 0
        {
            connection.say(&Said::Started { exec, pid });
        }
        Ok(None)
    }

    fn input(&mut self, number: u64, exec: u32) -> Verdict<Option<Said>> {
        let command = self.commands.get(&exec).ok_or_else(|| failures::no_exec(exec))?;
        if command.ended.is_some() || !command.input.is_open() {
            return Err(failures::has_ended(exec));
        }
        self.set_role(number, Role::Input(exec));
        Ok(None)
    }

    fn dial(&mut self, number: u64, port: u16) -> Verdict<Option<Said>> {
        self.is_at_work()?;
        if !self.record_port(port) {
            return Err(self.unrecorded());
        }
        let call = self.instance.dial(port).map_err(|error| {
            if error == ExecError::Exhausted {
                return failures::busy();
            }
            failures::new(
                FailureCode::PortClosed,
                ("connect to the port", error.to_string()),
                "name a port from 1 to 65535 that a server inside listens on",
            )
        })?;
        self.set_role(number, Role::Dial(call));
        Ok(None)
    }

    fn signal(&mut self, exec: u32, signal: u8) -> Verdict<Said> {
        self.is_at_work()?;
        if !(1..=64).contains(&signal) {
            return Err(failures::bad(
                "send the signal",
                format!("there is no signal {signal}"),
                "signals are 1 to 64",
            ));
        }
        if self.commands.get(&exec).is_none_or(|command| command.ended.is_some()) {
            return Err(failures::no_exec(exec));
        }
        let event = Event::ExecSignalled { exec, signal };
        if !self.record(&event) {
            return Err(self.unrecorded());
        }
        if let Some(command) = self.commands.get_mut(&exec)
            && command.cause.is_none()
        {
            command.cause = Some(Cause::Signal(signal));
        }
        let sent = match self.instance.live().map(|live| live.signal(exec, i32::from(signal))) {
            Some(Ok(())) => Ok(Said::Done),
            Some(Err(error)) => Err(failures::of_exec(&error)),
            None => Err(failures::ending()),
        };
        self.undone(&event, sent)
    }

    fn resize(&mut self, exec: u32, rows: u16, columns: u16) -> Verdict<Said> {
        let command = self.commands.get(&exec).ok_or_else(|| failures::no_exec(exec))?;
        let terminal = command.asked.terminal.is_some() && command.ended.is_none();
        if terminal && self.instance.live().is_some_and(|live| live.resize(exec, rows, columns)) {
            return Ok(Said::Done);
        }
        command.resize(rows, columns).map(|()| Said::Done).map_err(|_| {
            failures::bad(
                "set the size",
                "the command has no terminal",
                "start it with one, as `fumehood exec -t` does",
            )
        })
    }

    /// Whether every process can be stopped, tried.
    pub(super) fn can_pause(&mut self) -> Verdict<()> {
        self.freeze("pause the sandbox")?;
        self.thaw("resume the sandbox")
    }

    pub(super) fn pause(&mut self) -> Verdict<Said> {
        self.is_at_work()?;
        if !self.record(&Event::Paused {}) {
            return Err(self.unrecorded());
        }
        fault::point(Point::PauseRecorded);
        let begun = Instant::now();
        let frozen = self.freeze("pause the sandbox");
        self.undone(&Event::Paused {}, frozen)?;
        fault::point(Point::PauseFrozen);
        self.life.paused = true;
        self.reach();
        let frozen_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        let reclaimed_bytes = self.instance.live().map_or(0, Live::push_out);
        Ok(Said::Paused { frozen_us, reclaimed_bytes })
    }

    pub(super) fn resume(&mut self) -> Verdict<Said> {
        match self.phase() {
            Phase::Paused => {}
            Phase::Halted => return Err(failures::halted()),
            Phase::Running | Phase::Ending => {
                return Err(failures::new(
                    FailureCode::NotPaused,
                    ("resume the sandbox", "it is not paused".to_owned()),
                    "nothing is to be done: it is at work",
                ));
            }
        }
        if !self.record(&Event::Resumed {}) {
            return Err(self.unrecorded());
        }
        fault::point(Point::ResumeRecorded);
        let thawed = self.thaw("resume the sandbox");
        self.undone(&Event::Resumed {}, thawed)?;
        fault::point(Point::ResumeThawed);
        self.life.paused = false;
        Ok(Said::Done)
    }

    /// Cuts the network first: that needs nothing of the host.
    fn halt(&mut self) -> Verdict<Said> {
        if self.life.halted {
            return Ok(Said::Done);
        }
        if !self.record(&Event::Halted {}) {
            return Err(self.unrecorded());
        }
        self.life.halted = true;
        self.wall.hold(true);
        self.publisher.hold(true);
        self.relays.clear();
        if self.life.frozen.is_none() {
            let frozen = self.freeze("stop the processes (the network is cut, and no new work is taken)");
            self.undone(&Event::Halted {}, frozen)?;
        }
        Ok(Said::Done)
    }

    fn release(&mut self) -> Verdict<Said> {
        if !self.life.halted {
            return Ok(Said::Done);
        }
        if !self.record(&Event::Released {}) {
            return Err(self.unrecorded());
        }
        if !self.life.paused && self.life.frozen.is_some() {
            let thawed = self.thaw("let the processes go on");
            self.undone(&Event::Released {}, thawed)?;
        }
        self.wall.hold(false);
        self.publisher.hold(false);
        self.life.halted = false;
        Ok(Said::Done)
    }

    pub(crate) fn freeze(&mut self, what: &str) -> Verdict<()> {
        let live: &mut dyn Live = self.instance.live().ok_or_else(failures::ending)?;
        live.freeze().map_err(|error| failures::not_frozen(what, error))?;
        let held = live.is_held();
        let now = Instant::now();
        self.life.frozen = Some(now);
        self.life.look_at = (!held).then(|| now + LOOKS_EVERY);
        Ok(())
    }

    /// Before files are looked at from outside.
    pub(crate) fn settle(&mut self, what: &str) -> Verdict<()> {
        let live: &mut dyn Live = self.instance.live().ok_or_else(failures::ending)?;
        live.settle().map_err(|error| failures::not_frozen(what, error))
    }

    pub(crate) fn thaw(&mut self, what: &str) -> Verdict<()> {
        let live: &mut dyn Live = self.instance.live().ok_or_else(failures::ending)?;
        live.thaw().map_err(|error| failures::not_frozen(what, error))?;
        self.life.look_at = None;
        let stood = self.life.frozen.take().map(|since| since.elapsed()).unwrap_or_default();
        // Time that stood still for a command is not counted.
        for command in self.commands.values_mut() {
            for at in [&mut command.deadline, &mut command.grace].into_iter().flatten() {
                *at += stood;
            }
        }
        Ok(())
    }

    fn claim(&mut self, claim: Claim) -> Verdict<Said> {
        self.is_at_work()?;
        if !self.life.spec.pooled || self.life.claimed {
            return Err(failures::new(
                FailureCode::Exists,
                ("claim the sandbox", "it is somebody's already".to_owned()),
                "take another one of the pool",
            ));
        }
        if let Some(flaw) = claim.env.iter().find_map(|(name, value)| super::flaw_of_variable(name, value)) {
            return Err(failures::bad(
                "claim the sandbox",
                flaw,
                "name variables with letters, digits and `_`",
            ));
        }
        let claimed = Event::Claimed {
            actor: claim.actor.clone(),
            env_names: claim.env.iter().map(|(name, _)| name.clone()).collect(),
            labels: claim.labels.clone(),
        };
        if !self.record(&claimed) {
            return Err(self.unrecorded());
        }
        fault::point(Point::ClaimRecorded);
        let Claim { actor, env, labels, expires_ms } = claim;
        for (name, value) in &env {
            self.life.base.env.retain(|(known, _)| known != name.as_str());
            self.life.base.env.push((name.into(), value.into()));
        }
        self.life.claimed = true;
        let spec = &mut self.life.spec;
        (spec.actor, spec.labels, spec.expires_ms) = (actor, labels, expires_ms);
        spec.env.extend(env);
        self.write_description();
        Ok(Said::Done)
    }

    fn expire(&mut self, at_ms: Option<u64>) -> Verdict<Said> {
        if !self.record(&Event::Expires { until_ms: at_ms }) {
            return Err(self.unrecorded());
        }
        fault::point(Point::ExpireRecorded);
        self.life.spec.expires_ms = at_ms;
        self.write_description();
        Ok(Said::Done)
    }

    /// What stands in the sandbox's folder is for who looks for it; the keeper itself never reads it.
    pub(super) fn write_description(&self) {
        let _ = super::folder::describe(&self.life.folder, &self.life.description(self.id));
    }
}

fn check(asked: &Exec) -> Verdict<()> {
    let bad = |cause: String, remedy| Err(failures::bad("start the command", cause, remedy));
    if asked.argv.first().is_none_or(String::is_empty) {
        return bad("there is no command".to_owned(), "name one");
    }
    if asked.tag.as_ref().is_some_and(|tag| tag.chars().count() > MOST_TAG_CHARS) {
        return bad(format!("the tag is longer than {MOST_TAG_CHARS} characters"), "shorten it");
    }
    if asked
        .cwd
        .as_ref()
        .is_some_and(|cwd| cwd.is_empty() || cwd.len() > MOST_PATH_BYTES || cwd.contains('\0'))
    {
        return bad("the folder to start in is no path".to_owned(), "name a folder inside");
    }
    if let Some(flaw) = asked.env.iter().find_map(|(name, value)| super::flaw_of_variable(name, value)) {
        return bad(flaw, "name variables with letters, digits and `_`");
    }
    if asked.terminal.is_some_and(|(rows, columns)| rows == 0 || columns == 0) {
        return bad(
            "a terminal without rows or columns".to_owned(),
            "say its size, as in 24 rows and 80 columns",
        );
    }
    Ok(())
}

/// The guest's ends of a command's streams, and ours: input, output, errors.
pub(super) type Streams = (GuestStdio, Input, Stream, Stream);

fn streams(asked: &Exec) -> std::io::Result<Streams> {
    if asked.terminal.is_some() {
        return Ok((GuestStdio::Terminal, Input::coming(), Stream::default(), Stream::default()));
    }
    let (stdin, feed) = process::pipe(false)?;
    process::set_nonblocking(&feed, true)?;
    let (from_output, stdout) = outward()?;
    let (from_error, stderr) = outward()?;
    let mut input = Input::new(feed);
    if !asked.stdin {
        input.close();
    }
    let stdio = GuestStdio::Pipes { stdin, stdout, stderr };
    Ok((stdio, input, Stream::new(from_output), Stream::new(from_error)))
}

/// A pipe from a command to us: its end, and the command's.
pub(super) fn outward() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = process::pipe(true)?;
    // The kernel may refuse it to a user who has many.
    let _ = fumehood_sys::splice::enlarge(std::os::fd::AsFd::as_fd(&read), PIPE_BYTES);
    Ok((read, write))
}
