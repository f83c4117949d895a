//! Mixed load over HTTP for minutes, with processes of ours ended in the middle, and what it leaves: nothing.
//!
//! ```text
//! everybody is ended ──▶ a new daemon ── nobody is ──▶ keepers are ended ──▶ everybody is ended ──▶ judged
//!                                                  its memory and descriptors before and after
//! ```

use super::http::Client;
use super::{Daemon, Result, pss};
use crate::run::{self, Done};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Callers at once.
const WORKERS: u64 = 4;
/// Of a hundred operations, so many are followed by a kill.
const KILLS_PERCENT: u64 = 5;
/// What was ended is gone by then.
const SETTLED: Duration = Duration::from_secs(90);
/// What the daemon's memory may differ by, in KiB: its allocator keeps what it had at its busiest.
const SLACK_KIB: u64 = 4096;
/// An operation that fails so soon after a kill may have been hit by it.
const AFTERMATH: Duration = Duration::from_secs(20);

/// Who may be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kills {
    /// Whatever fails then is a flaw.
    Nobody,
    Keepers,
    Everybody,
}

/// What has happened.
#[derive(Debug, Default)]
struct Counts {
    operations: AtomicU64,
    daemons: AtomicU64,
    keepers: AtomicU64,
    /// Operations that a kill disturbed.
    disturbed: AtomicU64,
}

struct Soak {
    daemon: Mutex<Daemon>,
    address: std::net::SocketAddr,
    key: String,
    counts: Counts,
    last_kill: Mutex<Instant>,
    /// Failures that no kill explains.
    flaws: Mutex<Vec<String>>,
}

/// What there is when nothing is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rest {
    files: BTreeSet<String>,
    cgroups: usize,
    mounts: usize,
    processes: usize,
}

/// A small generator: the same seed, the same operations.
struct Dice(u64);

/// Runs for so many minutes.
pub(crate) fn soak(minutes: &str, binary: Option<&Path>) -> Done {
    let minutes: u64 = minutes.parse().map_err(|_| format!("`{minutes}` is no number of minutes"))?;
    let binary = binary.map_or_else(run::release, |binary| Ok(binary.to_owned()))?;
    let daemon = Daemon::start(&binary, &["--pool", "2", "--most-pool", "8"])?;
    let soak = Soak {
        address: daemon.address,
        key: daemon.key.clone(),
        daemon: Mutex::new(daemon),
        counts: Counts::default(),
        last_kill: Mutex::new(Instant::now()),
        flaws: Mutex::default(),
    };
    let total = Duration::from_secs(60 * minutes);
    let began = Instant::now();
    soak.load(total / 10, Kills::Everybody)?;
    soak.restart()?;
    let before = soak.rest()?;
    soak.load(total / 10, Kills::Nobody)?;
    soak.rest()?;
    let (kib, descriptors) = soak.daemon_now()?;
    soak.load(total * 4 / 10, Kills::Keepers)?;
    soak.rest()?;
    let (later_kib, later_descriptors) = soak.daemon_now()?;
    soak.load(total * 4 / 10, Kills::Everybody)?;
    let after = soak.rest()?;
    soak.verify()?;
    let mut flaws = std::mem::take(&mut *lock(&soak.flaws));
    let new: Vec<&String> = after.files.difference(&before.files).collect();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counts = &soak.counts;
    run::say(&format!(
        "soak: {} s, {} operations, {} daemons and {} keepers ended, {} operations disturbed, {} unexplained; \
         daemon {kib} -> {later_kib} KiB, {descriptors} -> {later_descriptors} descriptors; \
         left: {} files, {} cgroups, {} mounts, {} processes",
        began.elapsed().as_secs(),
        count(&counts.operations),
        count(&counts.daemons),
        count(&counts.keepers),
        count(&counts.disturbed),
        flaws.len(),
        new.len(),
        after.cgroups,
        after.mounts,
        after.processes,
    ));
    if !new.is_empty() || (after.cgroups, after.mounts, after.processes) != (0, 0, 0) {
        let Rest { cgroups, mounts, processes, .. } = &after;
        let told = soak.tell_what_lives()?;
        flaws.push(format!(
            "something is left: {cgroups} cgroups, {mounts} mounts, {processes} processes, files {new:?}; {told}"
        ));
    }
    if later_kib > kib + SLACK_KIB {
        flaws.push(format!("the daemon grew from {kib} to {later_kib} KiB"));
    }
    if later_descriptors > descriptors + WORKERS {
        flaws.push(format!("the daemon's descriptors grew from {descriptors} to {later_descriptors}"));
    }
    if flaws.is_empty() { Ok(()) } else { Err(format!("soak: {}", flaws.join("\nsoak: ")).into()) }
}

// === impl Soak ===

impl Soak {
    /// Load for so long.
    fn load(&self, span: Duration, kills: Kills) -> Done {
        let end = Instant::now() + span;
        let seed = u64::from(std::process::id());
        std::thread::scope(|scope| {
            let workers: Vec<_> = (1..=WORKERS)
                .map(|number| {
                    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number) | 1);
                    scope.spawn(move || self.work(end, kills, &mut dice).map_err(|error| error.to_string()))
                })
                .collect();
            for worker in workers {
                worker.join().map_err(|_| "a caller panicked")??;
            }
            Ok(())
        })
    }

    fn work(&self, end: Instant, kills: Kills, dice: &mut Dice) -> Done {
        let mut client = None;
        let mut id = None;
        while Instant::now() < end {
            let began = Instant::now();
            if client.is_none() {
                client = Client::new(self.address, &self.key).ok();
            }
            let done = match &mut client {
                Some(client) => operation(client, &mut id, dice),
                None => Err("there is no daemon".into()),
            };
            self.counts.operations.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = done {
                // A connection that was cut is of no use; a sandbox may be gone.
                (client, id) = (None, None);
                self.counts.disturbed.fetch_add(1, Ordering::Relaxed);
                let last = *lock(&self.last_kill);
                if kills == Kills::Nobody || last + AFTERMATH < began {
                    lock(&self.flaws).push(error.to_string());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            if kills != Kills::Nobody && dice.below(100) < KILLS_PERCENT {
                self.kill(kills, dice)?;
            }
        }
        Ok(())
    }

    fn kill(&self, kills: Kills, dice: &mut Dice) -> Done {
        *lock(&self.last_kill) = Instant::now();
        if kills == Kills::Everybody && dice.below(2) == 0 {
            self.counts.daemons.fetch_add(1, Ordering::Relaxed);
            return self.restart();
        }
        let keepers = lock(&self.daemon).keepers()?;
        let keepers: Vec<u32> = keepers.into_iter().filter(|pid| name(*pid) == "fumehood-keeper").collect();
        let Ok(number) = usize::try_from(dice.below(u64::try_from(keepers.len().max(1))?)) else {
            return Ok(());
        };
        if let Some(pid) = keepers.get(number) {
            self.counts.keepers.fetch_add(1, Ordering::Relaxed);
            // It may have ended by itself.
            drop(
                Command::new("kill")
                    .args(["-9", &pid.to_string()])
                    .stderr(std::process::Stdio::null())
                    .status(),
            );
        }
        *lock(&self.last_kill) = Instant::now();
        Ok(())
    }

    /// Ends the daemon as a crash does, and starts it again.
    fn restart(&self) -> Done {
        let restarted = lock(&self.daemon).restart();
        *lock(&self.last_kill) = Instant::now();
        restarted
    }

    /// Ends everything that was asked for, and says what is there then.
    fn rest(&self) -> Result<Rest> {
        let until = Instant::now() + SETTLED;
        loop {
            // Whatever fails now is tried again.
            let ended = Client::new(self.address, &self.key).and_then(|mut client| end_all(&mut client));
            let rest = self.now()?;
            let quiet = ended.is_ok() && rest.processes == 0 && rest.cgroups == 0;
            if quiet || Instant::now() > until {
                return ended.map(|()| rest);
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn now(&self) -> Result<Rest> {
        let daemon = lock(&self.daemon);
        let state = &daemon.state;
        let waiting = daemon.waiting()?;
        let ids: BTreeSet<String> = entries(&state.join("records"))
            .iter()
            .filter_map(|name| Some(name.split_once('.')?.0.to_owned()))
            .collect();
        let mut cgroups = 0;
        walk(Path::new("/sys/fs/cgroup"), &mut |path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let ours = name.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| ids.contains(word));
            cgroups +=
                usize::from(ours && path.is_dir() && !waiting.iter().any(|id| name.contains(id.as_str())));
        });
        let mut files = BTreeSet::new();
        for folder in ["sandboxes", "snapshots", "layers", "sessions", "shared", "caches"] {
            walk(&state.join(folder), &mut |path| {
                let shown = path.to_string_lossy().into_owned();
                if !waiting.iter().any(|id| shown.contains(id.as_str())) {
                    files.insert(shown);
                }
            });
        }
        let mark = state.to_string_lossy().into_owned();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let processes = daemon.keepers()?.into_iter().filter(|pid| {
            let keeper = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            !name(*pid).is_empty() && !waiting.iter().any(|id| keeper.contains(id.as_str()))
        });
        // A keeper that waits in a pool, and its reaper, are in no cgroup of their own.
        let own = processes.filter(|pid| !daemon.is_of(*pid, &waiting)).count();
        Ok(Rest {
            files,
            cgroups,
            mounts: mounts.lines().filter(|line| line.contains(&mark)).count(),
            processes: own,
        })
    }

    /// Every sandbox that has a folder, and what the daemon says of it.
    fn tell_what_lives(&self) -> Result<String> {
        let daemon = lock(&self.daemon);
        let mut client = daemon.client()?;
        let mut told = String::new();
        for id in entries(&daemon.state.join("sandboxes")) {
            let answer = client.ask("DELETE", &format!("/v1/sandboxes/{id}"), "")?;
            let status = answer.status;
            let mut body = Vec::new();
            answer.drain(&mut |part| body.extend_from_slice(part))?;
            let words =
                std::fs::read_to_string(daemon.state.join("sandboxes").join(&id).join("sandbox.json"));
            told.push_str(&format!("{id}: {status} {} {words:?}; ", String::from_utf8_lossy(&body)));
        }
        for pid in daemon.keepers()? {
            told.push_str(&format!(
                "{pid} {} {:?}; ",
                name(pid),
                std::fs::read_link(format!("/proc/{pid}/exe"))
            ));
        }
        Ok(told)
    }

    /// The daemon's memory (KiB) and descriptors.
    fn daemon_now(&self) -> Result<(u64, u64)> {
        let pid = lock(&self.daemon).child.id();
        let count = std::fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        Ok((pss(pid)?, u64::try_from(count)?))
    }

    /// The record is whole.
    fn verify(&self) -> Done {
        run::output(&mut lock(&self.daemon).command(&["audit", "verify"])).map(drop)
    }
}

// === impl Daemon ===

impl Daemon {
    /// Ends it as a crash does, and starts it again.
    fn restart(&mut self) -> Done {
        self.child.kill()?;
        self.child.wait()?;
        self.child = Self::spawn(&self.binary, &self.state, self.address, &self.flags)?;
        self.listens()
    }

    /// Sandboxes that wait in a pool.
    fn waiting(&self) -> Result<Vec<String>> {
        let mut waiting = Vec::new();
        for id in entries(&self.state.join("sandboxes")) {
            let text = std::fs::read(self.state.join("sandboxes").join(&id).join("sandbox.json"));
            let told: serde_json::Value =
                text.ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
            if told["spec"]["pooled"] == true && told["spec"]["labels"]["fumehood.team"].is_null() {
                waiting.push(id);
            }
        }
        Ok(waiting)
    }

    /// Whether a process keeps one of these, or is beneath one that does.
    fn is_of(&self, pid: u32, ids: &[String]) -> bool {
        let keeper = |id: &String| {
            let path = self.state.join("sandboxes").join(id).join("sandbox.json");
            let told: serde_json::Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
            u32::try_from(told["keeper_pid"].as_u64()?).ok()
        };
        ids.iter().filter_map(keeper).any(|keeper| {
            keeper == pid || crate::memory::beneath(keeper).is_ok_and(|beneath| beneath.contains(&pid))
        })
    }
}

// === impl Dice ===

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most.max(1)
    }
}

/// One thing that a caller does with the sandbox that it has, or with a new one.
fn operation(client: &mut Client, id: &mut Option<String>, dice: &mut Dice) -> Done {
    let own = match id {
        Some(own) => own.clone(),
        None => {
            let own = super::create(client)?;
            *id = Some(own.clone());
            own
        }
    };
    let at = |rest: &str| format!("/v1/sandboxes/{own}{rest}");
    match dice.below(8) {
        0 => {
            client.call("DELETE", &at(""), "")?;
            *id = None;
        }
        1 => {
            let text = format!("text {}", dice.below(1 << 20));
            client.call("PUT", &at("/files?path=/workspace/file"), &text)?;
            let back = client.text("GET", &at("/files?path=/workspace/file"), "")?;
            if back != text {
                return Err(format!("a file came back as `{back}`").into());
            }
        }
        2 => {
            client.call("POST", &at("/pause"), "")?;
            client.call("POST", &at("/resume"), "{}")?;
        }
        3 => {
            let forked = client.call("POST", &at("/fork"), r#"{"count": 2}"#)?;
            for child in forked.as_array().ok_or("a fork without children")? {
                let child = child["sandbox"]["id"]
                    .as_str()
                    .ok_or_else(|| format!("a child that is none: {child}"))?;
                client.call("DELETE", &format!("/v1/sandboxes/{child}"), "")?;
            }
        }
        4 => {
            let kept = client.call("POST", &at("/snapshots"), "{}")?;
            let name = kept["name"].as_str().ok_or("a snapshot without a name")?;
            client.call("DELETE", &format!("/v1/snapshots/{name}"), "")?;
        }
        5 => {
            let body = r#"{"argv": ["head", "-c", "1000000", "/dev/zero"]}"#;
            let mut bytes = 0;
            client.ask("POST", &at("/execs?output=raw"), body)?.drain(&mut |part| bytes += part.len())?;
            if bytes != 1_000_000 {
                return Err(format!("a stream had {bytes} bytes").into());
            }
        }
        6 => drop(client.call("GET", "/v1/sandboxes?limit=1000", "")?),
        _ => {
            let ran = client.call("POST", &at("/execs?output=whole"), r#"{"shell": "printf ok"}"#)?;
            if ran["stdout"]["text"] != "ok" {
                return Err(format!("a command came to {ran}").into());
            }
        }
    }
    Ok(())
}

fn end_all(client: &mut Client) -> Done {
    let listed = client.call("GET", "/v1/sandboxes?limit=1000", "")?;
    for sandbox in listed["sandboxes"].as_array().into_iter().flatten() {
        // It may end by itself.
        client
            .ask("DELETE", &format!("/v1/sandboxes/{}", sandbox["id"].as_str().unwrap_or_default()), "")?
            .drain(&mut |_| {})?;
    }
    for snapshot in client.call("GET", "/v1/snapshots", "")?.as_array().into_iter().flatten() {
        client
            .ask("DELETE", &format!("/v1/snapshots/{}", snapshot["name"].as_str().unwrap_or_default()), "")?
            .drain(&mut |_| {})?;
    }
    Ok(())
}

fn name(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // One that has ended and waits for its parent is nobody.
    if stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z')) {
        return String::new();
    }
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn walk(folder: &Path, see: &mut dyn FnMut(&Path)) {
    for name in entries(folder) {
        let path = folder.join(name);
        see(&path);
        if !path.is_symlink() && path.is_dir() {
            walk(&path, see);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
