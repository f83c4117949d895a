//! What happens by itself: what the guest says, and what time does.

use super::command::{Cause, Command, Ended, millis};
use super::connection::{Connection, Role};
use super::failures;
use super::keeper::{AT_ONCE, Keeper, MOST_RELAYS, PATIENCE, SIGKILL, killed, limit_of, lost};
use super::relay::Relay;
use crate::run::unix_millis;
use fumehood_backend::{Event, ExecError, Live, WaitStatus};
use fumehood_keep::fault::{self, Point};
use fumehood_keep::wire::Said;
use fumehood_model::ending::{Ending, HitKind, signal_name};
use fumehood_model::event;
use fumehood_model::report::Usage;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// From asking a command to end to ending it.
const GRACE: Duration = Duration::from_millis(500);
const SIGTERM: i32 = 15;

impl Keeper<'_> {
    pub(super) fn live(&mut self) -> Option<&mut dyn Live> {
        self.instance.live()
    }

    pub(super) fn read_events(&mut self) {
        for _ in 0..AT_ONCE {
            let Some((exec, event)) = self.live().and_then(|live| live.next_numbered()) else { return };
            match event {
                Event::Started => self.started(exec),
                Event::Terminal(master) => {
                    if let Some(command) = self.commands.get_mut(&exec)
                        && command.take_terminal(master).is_err()
                    {
                        command.hit(HitKind::OutputLost, "the terminal", 1);
                    }
                }
                Event::NotStarted(error) => self.not_started(exec, &error),
                Event::Ended { status, cpu_ms, .. } => self.ended(exec, status, cpu_ms),
                Event::Dialled { call, result } => self.dialled(call, result),
                Event::Denied { syscall } => {
                    for command in self.commands.values_mut().filter(|command| command.ended.is_none()) {
                        command.hit(HitKind::Denied, syscall, 1);
                    }
                }
                Event::Gone => self.finish("its first process is gone".to_owned(), false, lost()),
                Event::Lost { why } => self.finish(why, false, lost()),
            }
        }
    }

    pub(super) fn started(&mut self, exec: u32) {
        let pid = self.live().and_then(|live| live.pid(exec)).unwrap_or(0);
        let Some(command) = self.commands.get_mut(&exec) else { return };
        // Zero stands for one that has not started.
        command.pid = pid.max(1);
        let pid = command.pid;
        self.tell_followers(exec, &Said::Started { exec, pid });
    }

    pub(crate) fn tell_followers(&mut self, exec: u32, said: &Said) {
        for connection in self.connections.values_mut() {
            if matches!(&connection.role, Role::Follow(follower) if follower.exec == exec) {
                connection.say(said);
            }
        }
    }

    pub(crate) fn not_started(&mut self, exec: u32, error: &ExecError) {
        let ending = crate::keeper::not_started(error);
        let failure = failures::of_exec(error);
        for connection in self.connections.values_mut() {
            if matches!(&connection.role, Role::Follow(follower) if follower.exec == exec) {
                connection.fail(failure.clone());
            }
        }
        self.close_command(exec, ending, 0);
    }

    pub(super) fn ended(&mut self, exec: u32, status: WaitStatus, cpu_ms: u32) {
        let cpu_ms = u64::from(cpu_ms);
        let used = cpu_ms.saturating_sub(self.seen_cpu_ms);
        self.seen_cpu_ms = self.seen_cpu_ms.max(cpu_ms);
        let Some(command) = self.commands.get(&exec) else { return };
        let (cause, before) = (command.cause, command.oom_kills);
        let died = matches!(status, WaitStatus::Signalled(9) | WaitStatus::Exited(137));
        let meters = died.then(|| self.instance.meters());
        let ending = match (cause, status) {
            (Some(Cause::Timeout(limit)), _) => Ending::TimedOut { limit_ms: millis(limit) },
            (None, _) if meters.is_some_and(|meters| meters.oom_kills > before) => Ending::OutOfMemory {
                limit: "memory".to_owned(),
                limit_bytes: self.life.memory_limit,
                peak_bytes: meters.and_then(|meters| meters.peak_memory_bytes).unwrap_or(0),
            },
            (Some(Cause::Signal(sent)), WaitStatus::Signalled(by)) if sent == by => {
                Ending::Killed { signal: by, name: signal_name(by) }
            }
            (_, WaitStatus::Exited(code)) => Ending::Exited { code },
            (_, WaitStatus::Signalled(signal)) => Ending::Signalled { signal, name: signal_name(signal) },
        };
        fault::point(Point::ExecEnded);
        self.close_command(exec, ending, used);
    }

    /// Writes down how a command ended, and keeps what it left.
    pub(crate) fn close_command(&mut self, exec: u32, ending: Ending, cpu_ms: u64) {
        let floors = self.floors(exec);
        let Some(command) = self.commands.get_mut(&exec).filter(|command| command.ended.is_none()) else {
            return;
        };
        command.input.close();
        let now = Instant::now();
        let usage = |command: &Command| Usage {
            wall_ms: millis(command.born.elapsed()),
            cpu_ms,
            peak_memory_bytes: None,
            stdout_bytes: command.output.ring.end(),
            stderr_bytes: command.error.ring.end(),
        };
        command.ended = Some(Ended { ending: ending.clone(), usage: usage(command), at: now });
        // All that it wrote is there: it is read until there is no more, or somebody has to take some first.
        for _ in 0..AT_ONCE {
            if command.is_settled() {
                break;
            }
            command.advance(floors);
        }
        let last = usage(command);
        if let Some(ended) = &mut command.ended {
            ended.usage = last;
        }
        let hits = command.hits.clone();
        let exec = Some(exec);
        let ended =
            event::Event::ExecEnded { ending, hits, usage: last, changes: None, collected: None, exec };
        self.record(&ended);
        self.life.active_ms = unix_millis();
    }

    pub(super) fn dialled(&mut self, call: u32, result: io::Result<OwnedFd>) {
        let waiting =
            self.connections.iter().find(|(_, one)| matches!(one.role, Role::Dial(of) if of == call));
        let Some(number) = waiting.map(|(number, _)| *number) else {
            let wall = &mut self.wall;
            // One whose caller has gone is closed.
            return self.publisher.dialled(call, result, || wall.forget());
        };
        let inside = match result {
            Ok(inside) if self.relays.len() < MOST_RELAYS => inside,
            other => {
                let failure = other.err().map_or_else(failures::busy, |error| failures::port_closed(&error));
                if let Some(connection) = self.connections.get_mut(&number) {
                    connection.fail(failure);
                }
                return;
            }
        };
        let Some(mut connection) = self.connections.remove(&number) else { return };
        connection.role = Role::Answered;
        connection.say(&Said::Done);
        // A socket that took nothing yet takes these few bytes at once.
        if connection.flush().is_ok_and(|all| all) {
            let early = std::mem::take(&mut connection.inward);
            let mut relay = Relay::new(connection.stream, inside, early);
            if relay.advance() {
                self.relays.insert(number, relay);
            }
        }
    }

    pub(super) fn watch_time(&mut self) {
        let now = Instant::now();
        if self.life.spec.expires_ms.is_some_and(|at| unix_millis() >= at) {
            return self.finish("expired".to_owned(), false, killed(SIGKILL));
        }
        if !self.life.halted {
            if self.wall.alarm().is_some_and(|at| now >= at) {
                self.wall.renew();
            }
            if self.publisher.alarm().is_some_and(|at| now >= at) {
                self.publisher.advance(self.instance);
            }
        }
        self.reach_if_due(now);
        let late = |one: &Connection| matches!(one.role, Role::New) && now >= one.born + PATIENCE;
        self.connections.retain(|_, one| !late(one));
        if self.life.frozen.is_some() {
            return;
        }
        self.look_idle();
        if self.life.frozen.is_some() {
            return;
        }
        self.meter.set_busy(self.commands.values().any(|command| command.ended.is_none()));
        if let Some(excess) = self.meter.look(self.instance, now) {
            let ending = excess.ending();
            return self.finish(format!("{} limit", limit_of(&ending)), false, ending);
        }
        let due: Vec<u32> = self
            .commands
            .iter()
            .filter(|(_, one)| one.alarm().is_some_and(|at| now >= at))
            .map(|(exec, _)| *exec)
            .collect();
        for exec in due {
            self.time_is_up(exec, now);
        }
    }

    pub(super) fn time_is_up(&mut self, exec: u32, now: Instant) {
        self.move_streams(exec);
        let Some(command) = self.commands.get_mut(&exec).filter(|command| command.ended.is_none()) else {
            return;
        };
        let signal = if command.grace.is_some_and(|at| now >= at) {
            command.grace = None;
            SIGKILL
        } else if command.deadline.is_some_and(|at| now >= at) {
            command.cause = Some(Cause::Timeout(command.limit.unwrap_or_default()));
            command.deadline = None;
            command.grace = Some(now + GRACE);
            SIGTERM
        } else {
            return;
        };
        if let Some(live) = self.live() {
            // A guest that does not listen is found to be gone.
            let _ = live.signal(exec, signal);
        }
    }
}
