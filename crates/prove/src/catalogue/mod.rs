//! Every probe, wall by wall.

mod apart;
mod archives;
mod cleanup;
mod credentials;
mod files;
mod gate;
mod kernel;
mod network;
mod processes;
mod record;
mod resources;

use crate::bench::Bench;
use crate::finding::Finding;
use crate::probe::{How, Probe, Side, Wall, Way, nothing};
use crate::scene::Scene;
use crate::told::Step;
use fumehood_model::level::Level;
use std::io;

/// Levels that run programs for Linux.
const ALL: &[Level] = &[Level::Process, Level::Container, Level::Gvisor, Level::Microvm];
/// Those, and the one that runs modules.
const EVERY: &[Level] = &[Level::Wasm, Level::Process, Level::Container, Level::Gvisor, Level::Microvm];
/// That one alone.
const MODULE: &[Level] = &[Level::Wasm];

/// Left out where time counts: what takes seconds, and what is near to another that stays.
const SLOW: &[&str] = &[
    "C03", "E02", "E03", "E08", "E15", "E16", "E18", "E21", "E23", "E24", "E26", "E30", "E34", "E41", "E42",
    "E51", "E52", "F14", "F15", "F18", "F21", "F22", "F32", "R03", "R04", "R05", "S14", "U02", "U05", "U07",
];

pub(crate) use apart::{Apart, apart};

/// Every probe, in the order of a report.
pub(crate) fn all() -> Vec<Probe> {
    let mut all = [
        kernel::probes(),
        processes::probes(),
        files::probes(),
        archives::probes(),
        network::probes(),
        gate::probes(),
        credentials::probes(),
        resources::probes(),
        cleanup::probes(),
        record::probes(),
    ]
    .concat();
    for probe in &mut all {
        probe.slow = SLOW.contains(&probe.id);
    }
    all.sort_by_key(|probe| (probe.wall, probe.id));
    all
}

/// The finder of one step among others.
type Judge = fn(&Step, &Scene) -> Finding;

/// One step among others.
const fn together(
    (id, wall, tries): (&'static str, Wall, &'static str),
    levels: &'static [Level],
    how: How,
    step: fn(&Scene) -> Vec<String>,
    judge: Judge,
) -> Probe {
    Probe { id, wall, tries, levels, obstacle: nothing, slow: false, way: Way::Together { how, step, judge } }
}

/// A probe with runs of its own.
const fn alone(
    (id, wall, tries): (&'static str, Wall, &'static str),
    levels: &'static [Level],
    act: fn(&Bench, Side) -> io::Result<Finding>,
) -> Probe {
    Probe { id, wall, tries, levels, obstacle: nothing, slow: false, way: Way::Alone(act) }
}

/// Where nothing of the host's can be shown, nothing that is shown can be spoilt.
fn no_views(bench: &Bench) -> Option<String> {
    (bench.level == Level::Microvm)
        .then(|| "the level `microvm` shows no folder of the host's: `--ro` is refused".to_owned())
}

/// Where a machine has no network, nothing of it can be attacked.
pub(crate) fn no_gateway(probe: &Probe, bench: &Bench) -> Option<String> {
    let needed = match probe.wall {
        // One asks no sandbox, and one has no rule.
        Wall::Network => !matches!(probe.id, "E37" | "E44"),
        _ => matches!(probe.id, "S05" | "S13" | "S14"),
    };
    let why = "only root can join a machine to a gateway: rules are refused";
    (needed && bench.level == Level::Microvm && !bench.root).then(|| why.to_owned())
}

/// Why a probe is not for a level.
pub(crate) fn not_for(probe: &Probe, level: Level) -> Option<String> {
    let why = match (level, probe.wall) {
        _ if probe.levels.contains(&level) => return None,
        (Level::Wasm, Wall::Network) => "a module has no sockets, and rules are refused at this level",
        (Level::Wasm, Wall::Credentials) if matches!(probe.id, "S05" | "S13" | "S14") => {
            "a secret is bound to a host, and a module reaches none"
        }
        (Level::Wasm, _) => {
            "a module makes no system call and starts no process, so it has nothing to try this with"
        }
        _ => "it is a module's; programs are asked the same by F01 and F13",
    };
    Some(why.to_owned())
}

/// The words of a step.
fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

// === impl Probe ===

impl Probe {
    const fn unless(self, obstacle: fn(&Bench) -> Option<String>) -> Self {
        Self { obstacle, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wall_has_a_quick_probe_and_every_slow_one_is_there() {
        let all = all();
        for wall in Wall::ALL {
            assert!(all.iter().any(|probe| probe.wall == wall && !probe.slow), "{}", wall.name());
        }
        for id in SLOW {
            assert!(all.iter().any(|probe| probe.id == *id), "{id}");
        }
    }

    #[test]
    fn ids_are_unique_and_every_wall_has_probes() {
        let all = all();
        let mut ids: Vec<&str> = all.iter().map(|probe| probe.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all.len());
        for wall in Wall::ALL {
            assert!(all.iter().any(|probe| probe.wall == wall), "{}", wall.name());
        }
    }
}
