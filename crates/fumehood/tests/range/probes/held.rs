//! The tests behind the wall; `mod.rs` takes these in place of its own `held!`, once there is a wall.

/// Behind the wall, called by root and by a user.
macro_rules! held {
    ($probe:expr) => {
        #[test]
        fn called_by_root() {
            crate::probes::held::expect_held(crate::lab::Caller::Root, $probe);
        }

        #[test]
        fn called_by_a_user() {
            crate::probes::held::expect_held(crate::lab::Caller::User, $probe);
        }
    };
}
pub(super) use held;

use super::Probe;
use crate::lab::Caller;
use crate::stand::{Stand, Wall};
use fumehood_backend::conformance::Verdict;

pub(super) fn expect_held(caller: Caller, probe: Probe) {
    if caller.available() {
        let verdict = probe(&Stand::new(caller), Wall::Fumehood);
        println!("{verdict}");
        assert!(matches!(verdict, Verdict::Held), "{verdict}");
    }
}
