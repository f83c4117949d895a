//! How a probe runs and how it is judged.

use crate::lab::canary;
use crate::log::Log;
use crate::stand::{Seen, Stand, Wall};
use fumehood_backend::conformance::Verdict;
use serde_json::Value;

/// The sink: a host that no rule names.
pub(super) const SINK: &str = "198.51.100.66";
pub(super) const SINK_V6: &str = "2001:db8:666::66";
/// Where the allowed host stands.
pub(super) const RIGHT: &str = "203.0.113.7";
/// Names of the rules, and one that is in none.
pub(super) const ALLOWED: &str = "allowed.test";
pub(super) const DENIED: &str = "denied.test";

/// A request that any server answers and then closes, so that no time is lost in waiting.
pub(super) const GET: &str = "GET /CANARY HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/// The zone of most probes: the allowed host and all below it at their place, every other name at the sink.
pub(super) fn zone(stand: &Stand) {
    stand.range.name("*", &[SINK, SINK_V6]);
    stand.range.name(ALLOWED, &[RIGHT]);
    stand.range.name("*.allowed.test", &[RIGHT]);
}

/// Runs the steps behind `wall`; `CANARY` in them becomes random. Unless all of them ran, the verdict that says so.
pub(super) fn attempt(stand: &Stand, wall: Wall, flags: &[&str], steps: &Value) -> Result<Seen, Verdict> {
    let text = steps.to_string().replace("CANARY", &canary());
    let seen = stand.client(wall, flags, "probe.py", &[&text]);
    let count = seen.ran.out().lines().count();
    if seen.ran.code() != 0
        || !seen.ran.out().ends_with("the end\n")
        || count != steps.as_array().unwrap().len() + 1
    {
        return Err(Verdict::Inconclusive(format!("the client did not end: {}", seen.ran.told())));
    }
    Ok(seen)
}

/// Held if the range saw nothing at all.
pub(super) fn nothing_leaves(stand: &Stand, wall: Wall, flags: &[&str], steps: &Value) -> Verdict {
    only(stand, wall, flags, steps, &[])
}

/// Held if the range saw no packet but to `allowed`, e.g. `tcp 203.0.113.7:443`, and no name query but for those hosts.
pub(super) fn only(stand: &Stand, wall: Wall, flags: &[&str], steps: &Value, allowed: &[&str]) -> Verdict {
    judge(stand, wall, flags, steps, |log| strays(log, allowed))
}

/// Held if no request that `bad` picks was read by a server.
pub(super) fn no_request(
    stand: &Stand,
    wall: Wall,
    flags: &[&str],
    steps: &Value,
    bad: fn(&Value) -> bool,
) -> Verdict {
    judge(stand, wall, flags, steps, |log| {
        log.all("request").filter(|request| bad(request)).map(|request| request["head"].to_string()).collect()
    })
}

/// Runs the steps and finds what should not have been seen. In the open, each step must show some of it, or a step that
/// is blind would hide behind the others.
fn judge(
    stand: &Stand,
    wall: Wall,
    flags: &[&str],
    steps: &Value,
    strays: impl Fn(&Log) -> Vec<String>,
) -> Verdict {
    let seen = match attempt(stand, wall, flags, steps) {
        Ok(seen) => seen,
        Err(verdict) => return verdict,
    };
    if wall == Wall::Open {
        for (step, line) in steps.as_array().unwrap().iter().zip(seen.ran.out().lines()) {
            let told: Value = serde_json::from_str(line).unwrap();
            let log = seen.log.between(told["from"].as_f64().unwrap(), told["to"].as_f64().unwrap());
            if strays(&log).is_empty() {
                return Verdict::Inconclusive(format!("{step} proves nothing: {told}\n{}", log.told()));
            }
        }
    }
    let strays = strays(&seen.log);
    if strays.is_empty() {
        return Verdict::Held;
    }
    Verdict::Breached(format!("{strays:?}\n{}\n{}", seen.ran.told(), seen.log.told()))
}

fn strays(log: &Log, allowed: &[&str]) -> Vec<String> {
    let packets = log.dialled().into_iter().filter(|line| !allowed.contains(&line.as_str()));
    // Where a packet may leave, the allowed host's own name was asked for.
    let own = |name: &String| !allowed.is_empty() && (name == ALLOWED || name.ends_with(".allowed.test"));
    let names = log.names().into_iter().filter(|name| !own(name));
    packets.chain(names.map(|name| format!("query for {name}"))).collect()
}
