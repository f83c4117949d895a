//! Probes of the egress wall: each past failure of a neighbour, tried by a hijacked program inside.
//!
//! A probe is judged by what the range saw. Each has a control: the same steps without a wall must be seen, or
//! the probe proves nothing. `held!` makes the tests behind the wall.

mod addresses;
mod bench;
mod dns;
mod held;
mod host;
mod http;
mod http2;
mod identity;
mod ports;
mod tls;
mod upgrades;

pub(crate) use addresses::INTERNAL;

use crate::lab::{Caller, am_root};
use crate::stand::{Stand, Wall};
use fumehood_backend::conformance::Verdict;
use held::held;

/// A probe: sets the range, runs, judges.
type Probe = fn(&Stand, Wall) -> Verdict;

/// Makes the tests of each probe, so that a failure has its name.
macro_rules! probes {
    ($($name:ident => $probe:expr;)*) => {$(
        mod $name {
            #[expect(unused_imports, reason = "a probe may need nothing of its module")]
            use super::*;

            #[test]
            fn control_turns_red() {
                crate::probes::expect_breached($probe);
            }

            crate::probes::held!($probe);
        }
    )*};
}
use probes;

fn expect_breached(probe: Probe) {
    let caller = if am_root() { Caller::Root } else { Caller::User };
    let verdict = probe(&Stand::new(caller), Wall::Open);
    println!("{verdict}");
    assert!(matches!(verdict, Verdict::Breached(_)), "the probe can not fail: {verdict}");
}
