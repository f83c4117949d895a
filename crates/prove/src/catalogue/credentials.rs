//! The credential wall, as far as no network is needed.

use super::{ALL, EVERY, together, words};
use crate::canary::masked;
use crate::finding::Finding;
use crate::probe::{How, Probe, Wall};
use crate::scene::Scene;
use crate::told::Step;

const S: Wall = Wall::Credentials;

pub(super) fn probes() -> Vec<Probe> {
    vec![
        together(
            ("S01", S, "find the caller's secret in variables, files, arguments, in five forms"),
            ALL,
            How::Bare,
            |scene| [vec!["search".to_owned(), masked(&scene.variable)], scene.searched()].concat(),
            found,
        ),
        together(
            ("S02", S, "read the variables of the first process and its own"),
            EVERY,
            How::Bare,
            |_| words("read /proc/1/environ /proc/self/environ"),
            |step, scene| step.leaks(&scene.variable),
        ),
    ]
}

fn found(step: &Step, _: &Scene) -> Finding {
    match step.facts("found").next() {
        Some(found) => Finding::Through(format!("found {found}")),
        None if step.number("looked ").unwrap_or(0) < 3 => {
            Finding::Unclear("the search looked nowhere".to_owned())
        }
        None => step.whole(),
    }
}
