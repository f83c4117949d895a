//! What the gate's process weighs with many idle connections, behind a slow reader, and during a long stream.

use super::place::Place;
use super::{Bound, Figures};
use crate::memory::{beneath, field};
use crate::run::Done;
use serde_json::json;
use std::error::Error;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const CONNECTIONS: &str = "1000";
const MOST_MIB: f64 = 20.0;
/// How much a stream may add to the gate, whatever its length.
const MOST_GROWTH_MIB: f64 = 4.0;
const OPENED: &str = "https://api.example.com/**";
const TUNNEL: &str = "api.example.com";
const OWN_CA: &str = "/run/fumehood/ca.crt";
const SERVERS_CA: &str = "/input/ca.pem";

/// Measures idle connections, then streams.
pub(super) fn measure(place: &Place, figures: &mut Figures) -> Done {
    for (name, rule, ca) in [("tunnel", TUNNEL, SERVERS_CA), ("opened", OPENED, OWN_CA)] {
        let one = idle(place, rule, ca, "1")?;
        let all = idle(place, rule, ca, CONNECTIONS)?;
        figures.line(
            "idle_connections",
            json!({"side": name, "connections": CONNECTIONS, "one_mib": one, "gate_pss_mib": all}),
        );
        figures.hold(
            &format!("memory of {CONNECTIONS} idle connections, {name}, MiB"),
            all,
            Bound::Most(MOST_MIB),
        );
    }
    for (name, rule, ca) in [("tunnel", TUNNEL, SERVERS_CA), ("opened", OPENED, OWN_CA)] {
        for (kind, bytes, pause_us) in [("long", "4000000000", "0"), ("slow_reader", "60000000", "20000")] {
            let (first, most) = stream(place, (rule, ca), bytes, pause_us)?;
            let what = format!("{kind}_stream");
            figures.line(&what, json!({"side": name, "bytes": bytes, "first_mib": first, "most_mib": most}));
            figures.hold(&format!("{what}, {name}, MiB more"), most - first, Bound::Most(MOST_GROWTH_MIB));
        }
    }
    Ok(())
}

fn idle(place: &Place, rule: &str, ca: &str, connections: &str) -> Result<f64, Box<dyn Error>> {
    let mut command = place.inside(rule);
    command.args(["hold", ca, connections]);
    let mut child = start(&mut command)?;
    let mut held = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut held)?;
    if !held.contains("held") {
        return Err("the client did not hold its connections".into());
    }
    // What is given back with time may be.
    std::thread::sleep(Duration::from_secs(2));
    let weight = weight(child.id());
    drop(child.stdin.take());
    child.wait()?;
    weight
}

/// The gate's weight early in a stream, and the most of it until the end.
fn stream(
    place: &Place,
    (rule, ca): (&str, &str),
    bytes: &str,
    pause_us: &str,
) -> Result<(f64, f64), Box<dyn Error>> {
    let mut command = place.inside(rule);
    command.args(["stream", ca, "-", bytes, pause_us]);
    let mut child = start(&mut command)?;
    std::thread::sleep(Duration::from_millis(400));
    let (mut first, mut most) = (None, 0.0_f64);
    while child.try_wait()?.is_none() {
        // The last look may meet nobody.
        if let Ok(now) = weight(child.id()) {
            first.get_or_insert(now);
            most = most.max(now);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut told = String::new();
    child.stdout.take().ok_or("no output")?.read_to_string(&mut told)?;
    if !told.contains("gb_per_s") {
        return Err("the stream did not come to its end".into());
    }
    Ok((first.ok_or("the stream was over before it was looked at")?, most))
}

fn start(command: &mut Command) -> Result<Child, Box<dyn Error>> {
    Ok(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?)
}

/// The share of memory of the gate beneath a keeper, in MiB.
fn weight(keeper: u32) -> Result<f64, Box<dyn Error>> {
    for pid in beneath(keeper)? {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if name.trim() == "fumehood-gate" {
            let kib = field(&format!("/proc/{pid}/smaps_rollup"), "Pss:")?;
            return Ok(f64::from(u32::try_from(kib)?) / 1024.0);
        }
    }
    Err("there is no gate".into())
}
