//! Every probe, wall by wall.

mod cleanup;
mod credentials;
mod files;
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
/// Those that share the host's kernel.
const SHARED: &[Level] = &[Level::Process, Level::Container];
/// Those with a root of their own.
const ROOTED: &[Level] = &[Level::Container, Level::Gvisor, Level::Microvm];

/// Every probe, in the order of a report.
pub(crate) fn all() -> Vec<Probe> {
    let mut all = [
        kernel::probes(),
        processes::probes(),
        files::probes(),
        network::probes(),
        credentials::probes(),
        resources::probes(),
        cleanup::probes(),
        record::probes(),
    ]
    .concat();
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

/// The words of a step.
fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

// === impl Probe ===

impl Probe {
    const fn slow(self) -> Self {
        Self { slow: true, ..self }
    }

    const fn unless(self, obstacle: fn(&Bench) -> Option<String>) -> Self {
        Self { obstacle, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
