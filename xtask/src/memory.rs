//! Memory of idle sandboxes: the share of our own processes, and what the machine has less.

use crate::bench::Scratch;
use crate::run::{self, Done};
use std::collections::BTreeSet;
use std::error::Error;
use std::io::Read;
use std::process::{Child, Command, Stdio};

const SANDBOXES: usize = 20;
const MOST_KIB: u64 = 3 * 1024;

/// Keeper, reaper and init of twenty idle sandboxes.
pub(crate) fn idle() -> Done {
    let binary = run::release()?;
    let folder = Scratch::new()?;
    let available = available()?;
    let mut children = Vec::new();
    for _ in 0..SANDBOXES {
        let mut command = Command::new(&binary);
        command.args(["run", "-q", "--", "sh", "-c", "echo ready; read line"]);
        command.env("HOME", &folder.0).env("FUMEHOOD_STATE", folder.0.join("state"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut ready = [0; 6];
        child.stdout.as_mut().ok_or("no output")?.read_exact(&mut ready)?;
        children.push(child);
    }
    let fallen = available.saturating_sub(self::available()?);
    let measured = shares(&children);
    for mut child in children {
        // Its input ends, and so does it.
        drop(child.stdin.take());
        child.wait()?;
    }
    let count = u64::try_from(SANDBOXES)?;
    let mean = measured? / count;
    let line = serde_json::json!({
        "bench": "memory", "sandboxes": SANDBOXES, "mean_pss_kib": mean, "mem_available_fall_kib": fallen / count,
    });
    run::say(&line.to_string());
    run::say(&format!(
        "memory: mean PSS {mean} KiB of {MOST_KIB}, MemAvailable fell by {} KiB a sandbox",
        fallen / count
    ));
    if mean <= MOST_KIB { Ok(()) } else { Err(format!("memory: {mean} KiB of {MOST_KIB}: missed").into()) }
}

/// The sum over keepers, reapers and inits; the command itself is not ours.
fn shares(children: &[Child]) -> Result<u64, Box<dyn Error>> {
    let mut sum = 0;
    for child in children {
        let mut ours = BTreeSet::from([child.id()]);
        ours.extend(beneath(child.id())?);
        for pid in ours {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            // What ended since it was listed takes nothing.
            if !name.is_empty() && name.trim() != "sh" {
                sum +=
                    field(&format!("/proc/{pid}/smaps_rollup"), "Pss:").or_else(|error| gone(pid, error))?;
            }
        }
    }
    Ok(sum)
}

/// The processes beneath a process.
pub(crate) fn beneath(pid: u32) -> Result<Vec<u32>, Box<dyn Error>> {
    let mut found = Vec::new();
    // Nobody is beneath what has ended.
    let Ok(children) = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")) else {
        return Ok(found);
    };
    for child in children.split_whitespace() {
        let child = child.parse()?;
        found.push(child);
        found.extend(beneath(child)?);
    }
    Ok(found)
}

/// Zero for a process that is gone or waits for its parent; a live one that can not be read is an error.
fn gone(pid: u32, error: Box<dyn Error>) -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    if status.is_empty() || status.contains("State:\tZ") { Ok(0) } else { Err(error) }
}

fn available() -> Result<u64, Box<dyn Error>> {
    field("/proc/meminfo", "MemAvailable:")
}

pub(crate) fn field(file: &str, name: &str) -> Result<u64, Box<dyn Error>> {
    let text = std::fs::read_to_string(file)?;
    let value =
        text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    value.ok_or_else(|| format!("{file} has no {name}").into())
}
