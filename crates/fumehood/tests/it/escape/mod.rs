//! Escape tests: each past failure of a neighbour, tried against the built binary.
//!
//! Every probe runs as the two callers, and once more where its wall is open: there it must turn red,
//! or it proves nothing. There is no uid 0 inside to run it as: asking for one is refused.

mod bench;
mod cleanup;
mod files;
mod full;
mod kernel;
mod process;
mod processes;
mod resources;

use crate::lab::Caller;
use bench::{Bench, Wall};
use fumehood_backend::conformance::Verdict;
pub(crate) use resources::survivors;

/// A probe: plants, runs, judges.
type Probe = fn(&Bench) -> Verdict;

/// Makes three tests of each probe, so that a failure has its name.
macro_rules! probes {
    ($($name:ident => $probe:expr, control $control:expr;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn called_by_root() {
                crate::escape::expect_held(crate::lab::Caller::Root, crate::escape::bench::Wall::Fumehood, $probe);
            }

            #[test]
            fn called_by_a_user() {
                crate::escape::expect_held(crate::lab::Caller::User, crate::escape::bench::Wall::Fumehood, $probe);
            }

            #[test]
            fn control_turns_red() {
                crate::escape::expect_breached($control);
            }
        }
    )*};
}
use probes;

/// The probe itself, by root, without any wall.
macro_rules! open {
    ($probe:expr) => {
        || crate::escape::without_walls(crate::lab::Caller::Root, $probe)
    };
}
use open;

/// What a probe says where nothing stands in its way.
fn without_walls(caller: Caller, probe: Probe) -> Verdict {
    if !Caller::Root.available() {
        return Verdict::NotApplicable("the control needs root".to_owned());
    }
    probe(&Bench::new(caller, Wall::Open))
}

fn expect_held(caller: Caller, wall: Wall, probe: Probe) {
    if !caller.available() {
        return;
    }
    let verdict = probe(&Bench::new(caller, wall));
    println!("{verdict}");
    assert!(matches!(verdict, Verdict::Held | Verdict::NotApplicable(_)), "{verdict}");
}

fn expect_breached(control: fn() -> Verdict) {
    let verdict = control();
    println!("{verdict}");
    assert!(
        matches!(verdict, Verdict::Breached(_) | Verdict::NotApplicable(_)),
        "the probe can not fail: {verdict}"
    );
}
