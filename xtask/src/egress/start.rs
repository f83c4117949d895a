//! What a network costs a run that does not use it.

use super::place::Place;
use super::{Bound, Figures};
use crate::measure::{Times, time};
use crate::run::Done;
use serde_json::json;
use std::process::Command;

const ROUNDS: usize = 200;
const WARM_UP: usize = 5;
/// An ordinary user that no account of a usual machine has.
const USER: u32 = 12345;

/// What is allowed on each side. The first has no network.
const SIDES: [(&str, &[&str]); 4] = [
    ("none", &[]),
    ("host", &["--allow", "api.example.com"]),
    ("opened", &["--allow", "GET https://api.example.com/v1/**"]),
    ("proxy", &["--net", "proxy"]),
];

/// Measures both callers.
pub(super) fn measure(place: &Place, figures: &mut Figures) -> Done {
    compare(place, None, figures)?;
    compare(place, Some(USER), figures)
}

fn compare(place: &Place, user: Option<u32>, figures: &mut Figures) -> Done {
    let caller = if user.is_some() { "user" } else { "root" };
    let home = place.folder().join(format!("home-{caller}"));
    std::fs::create_dir_all(&home)?;
    std::os::unix::fs::chown(&home, user, user)?;
    let mut sides = SIDES.map(|(name, flags)| {
        let mut run = place.fumehood(&home);
        run.args(flags).args(["--", "/bin/true"]);
        (name, user.map_or(run, |user| as_user(user, &run_of(place, &home, flags))), Times::default())
    });
    for round in 0..WARM_UP + ROUNDS {
        // In turn: whoever follows a costly one pays for its remains.
        sides.rotate_left(1);
        for (_, command, times) in &mut sides {
            let elapsed = time(command)?;
            if round >= WARM_UP {
                times.add(elapsed);
            }
        }
    }
    let p50 = |wanted: &str| {
        let side = sides.iter().find(|(name, ..)| *name == wanted);
        side.map_or(f64::NAN, |(_, _, times)| times.quantile(0.5))
    };
    for (name, _, times) in &sides {
        let more = times.quantile(0.5) - p50("none");
        let (p50_ms, p90_ms) = (times.quantile(0.5), times.quantile(0.9));
        figures.line(
            "start",
            json!({"caller": caller, "network": name, "rounds": ROUNDS, "p50_ms": p50_ms, "p90_ms": p90_ms, "more_ms": more}),
        );
    }
    for name in ["host", "opened", "proxy"] {
        figures.hold(&format!("start, {caller}, {name}, ms more"), p50(name) - p50("none"), Bound::Most(1.0));
    }
    Ok(())
}

fn run_of(place: &Place, home: &std::path::Path, flags: &[&str]) -> Command {
    let mut run = place.fumehood(home);
    run.args(flags).args(["--", "/bin/true"]);
    run
}

/// The same command by an ordinary user. What becoming one takes is on every side.
fn as_user(user: u32, command: &Command) -> Command {
    let mut other = Command::new("setpriv");
    other.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups", "--"]);
    other.arg(command.get_program()).args(command.get_args()).current_dir("/");
    other.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    other
}
