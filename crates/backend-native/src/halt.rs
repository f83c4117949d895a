//! Stopping every process of a sandbox by signals, where no cgroup of ours can be frozen.
//!
//! ```text
//! look at all beneath init ─► who is not stopped gets SIGSTOP ─► look again … until two looks find the same, all stopped
//! ```
//!
//! A process that has a signal waiting can not fork, so this comes to an end. What is stopped so is stopped as long as it
//! agrees: a timer of its own can send it the signal that lets it go on. So nobody has to believe it. Each look keeps what the
//! kernel counts of every thread, time and switches, and a thread that ran in between has other numbers.
//!
//! Looked at from outside, by the host's own `/proc`; the guest takes no part in it. Init is not stopped.

use fumehood_sys::process;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;
/// As for a freezer.
const LIMIT: Duration = Duration::from_secs(5);
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);
const LONGEST_PAUSE: Duration = Duration::from_millis(10);
/// A parent that waits for its child to execute something can not be stopped while that is; so the child goes on for a moment.
const STUCK: Duration = Duration::from_millis(40);

/// Processes that were stopped.
#[derive(Debug, Default)]
pub(crate) struct Stopped {
    /// By us, so that we let them go on; others were stopped before.
    ours: BTreeSet<i32>,
    seen: Look,
}

/// The threads of all processes beneath one, and their parents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Look {
    threads: BTreeMap<(i32, i32), Thread>,
    parents: BTreeMap<i32, i32>,
}

/// What is known of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Thread {
    state: u8,
    /// When its process began, so that another one of the same number is another one; and what it used.
    counts: [u64; 3],
    switches: Vec<String>,
}

// === impl Stopped ===

impl Stopped {
    /// Stops everything beneath `first`, or nothing.
    pub(crate) fn all(first: i32) -> io::Result<Self> {
        let began = Instant::now();
        let mut stopped = Self::default();
        let mut pause = SHORTEST_PAUSE;
        let mut before = None;
        loop {
            let look = Look::beneath(first);
            if look.is_still() && before.as_ref() == Some(&look) {
                stopped.seen = look;
                return Ok(stopped);
            }
            if began.elapsed() > LIMIT {
                stopped.go_on(first);
                return Err(io::ErrorKind::TimedOut.into());
            }
            if began.elapsed() > STUCK {
                look.stuck().for_each(|parent| {
                    look.children(parent).for_each(|pid| stopped.signal(first, pid, SIGCONT))
                });
            }
            let running: Vec<i32> = look.running().collect();
            running.into_iter().for_each(|pid| stopped.signal(first, pid, SIGSTOP));
            before = Some(look);
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Whether nothing ran since. Who did is stopped again.
    pub(crate) fn stood(&mut self, first: i32) -> bool {
        let look = Look::beneath(first);
        let stood = look == self.seen;
        if !stood && let Ok(again) = Self::all(first) {
            self.ours.extend(again.ours);
            self.seen = again.seen;
        }
        stood
    }

    /// Lets those go on that went before. Children first: a parent that asks finds nobody stopped.
    pub(crate) fn go_on(&mut self, first: i32) {
        let look = Look::beneath(first);
        let mut ours: Vec<i32> = std::mem::take(&mut self.ours).into_iter().collect();
        ours.sort_by_key(|pid| std::cmp::Reverse(look.depth(*pid)));
        ours.into_iter().for_each(|pid| self.signal(first, pid, SIGCONT));
    }

    fn signal(&mut self, first: i32, pid: i32, signal: i32) {
        // Held first, and then seen to be the sandbox's: its number can not become another one's any more.
        let Ok(held) = process::open_pidfd(pid) else { return };
        if !is_beneath(first, pid) {
            return;
        }
        if process::send_signal(held.as_fd(), signal).is_ok() {
            if signal == SIGSTOP {
                self.ours.insert(pid);
            } else {
                self.ours.remove(&pid);
            }
        }
    }
}

// === impl Look ===

impl Look {
    fn beneath(first: i32) -> Self {
        let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if let Some(parent) = parent(pid) {
                children.entry(parent).or_default().push(pid);
            }
        }
        let mut look = Self::default();
        let mut waiting = vec![first];
        while let Some(parent) = waiting.pop() {
            for pid in children.remove(&parent).unwrap_or_default() {
                look.parents.insert(pid, parent);
                waiting.push(pid);
                let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
                let numbers = threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
                let seen = numbers.filter_map(|tid: i32| Some(((pid, tid), Thread::read(pid, tid)?)));
                look.threads.extend(seen);
            }
        }
        look
    }

    /// Whether no thread runs or will.
    fn is_still(&self) -> bool {
        self.threads.values().all(|thread| matches!(thread.state, b'T' | b't' | b'Z' | b'X'))
    }

    /// Processes with a thread that is not stopped.
    fn running(&self) -> impl Iterator<Item = i32> + '_ {
        let running = self.threads.iter().filter(|(_, one)| !matches!(one.state, b'T' | b't' | b'Z' | b'X'));
        running.map(|((pid, _), _)| *pid).collect::<BTreeSet<_>>().into_iter()
    }

    /// Processes in a call that can not be interrupted.
    fn stuck(&self) -> impl Iterator<Item = i32> + '_ {
        self.threads.iter().filter(|(_, one)| one.state == b'D').map(|((pid, _), _)| *pid)
    }

    fn children(&self, of: i32) -> impl Iterator<Item = i32> + '_ {
        self.parents.iter().filter(move |(_, parent)| **parent == of).map(|(pid, _)| *pid)
    }

    fn depth(&self, pid: i32) -> usize {
        std::iter::successors(self.parents.get(&pid), |parent| self.parents.get(parent)).count()
    }
}

// === impl Thread ===

impl Thread {
    fn read(pid: i32, tid: i32) -> Option<Self> {
        let fields = fields(&format!("/proc/{pid}/task/{tid}/stat"))?;
        let number = |place: usize| fields.get(place)?.parse().ok();
        let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
        let switches =
            status.lines().filter(|line| line.contains("ctxt_switches")).map(str::to_owned).collect();
        Some(Self {
            state: *fields.first()?.as_bytes().first()?,
            // Fields 14, 15 and 22 of `proc_pid_stat(5)`; the third is the first here.
            counts: [number(11)?, number(12)?, number(19)?],
            switches,
        })
    }
}

fn parent(pid: i32) -> Option<i32> {
    fields(&format!("/proc/{pid}/stat"))?.get(1)?.parse().ok()
}

/// What follows the name, which may hold anything.
fn fields(path: &str) -> Option<Vec<String>> {
    let stat = fs::read_to_string(path).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

fn is_beneath(first: i32, pid: i32) -> bool {
    std::iter::successors(parent(pid), |above| parent(*above))
        .take_while(|above| *above > 1)
        .any(|above| above == first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    #[test]
    fn a_tree_that_forks_is_stopped_and_one_that_went_on_is_noticed() {
        let script = "sleep 300 & echo $!; (while :; do /bin/true; done) & while :; do :; done";
        let mut child = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let top = i32::try_from(child.id()).unwrap();
        let mut stopped = Stopped::all(top).unwrap();
        assert!(stopped.ours.contains(&line.trim().parse().unwrap()) && !stopped.ours.contains(&own));
        std::thread::sleep(Duration::from_millis(50));
        assert!(stopped.stood(top));
        let one = *stopped.ours.last().unwrap();
        assert!(Command::new("kill").args(["-CONT", &one.to_string()]).status().unwrap().success());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!stopped.stood(top));
        assert!(stopped.stood(top), "it was stopped again");
        stopped.go_on(top);
        std::thread::sleep(Duration::from_millis(50));
        assert!(!Look::beneath(top).is_still());
        for pid in Look::beneath(top).parents.into_keys().chain([top]) {
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        }
        child.wait().unwrap();
    }
}
