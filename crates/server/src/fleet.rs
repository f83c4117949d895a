//! How much of a host so many sandboxes take, and how many have to wait ready. Pure.
//!
//! The daemon sizes its pools by [`pool_size`], too: what is told here is what is done there.

mod simulate;

pub use simulate::{Simulated, simulate};

use serde::Serialize;

const HOUR_S: f64 = 3600.0;
/// Deviations of arrivals that a pool is to ride out, beyond their mean.
const DEVIATIONS: f64 = 2.0;
/// More is not a pool.
const MOST_POOL: f64 = 4096.0;

/// What is to be run, and on what.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Load {
    pub tasks_per_hour: f64,
    /// How long one sandbox lives, in seconds.
    pub life_s: f64,
    /// Of its life, the part in which it works; the rest it is paused.
    pub active_share: f64,
    /// Memory of one that works, of one that is paused, and of one that waits in a pool, in MiB.
    pub memory_mib: f64,
    pub paused_mib: f64,
    pub waiting_mib: f64,
    /// Files of one, in MiB.
    pub disk_mib: f64,
    /// Cores that one takes while it works.
    pub cores: f64,
    /// How long one takes to be made, in seconds, and to be claimed from a pool.
    pub create_s: f64,
    pub claim_s: f64,
}

/// One host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Host {
    pub memory_mib: f64,
    pub disk_mib: f64,
    pub cores: f64,
    pub price_per_hour: f64,
}

/// What it comes to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Plan {
    pub arrivals_per_second: f64,
    /// Sandboxes that live at once, on average; of these, those at work and those paused.
    pub living: f64,
    pub active: f64,
    pub paused: f64,
    /// Sandboxes that wait.
    pub pool: usize,
    pub memory_mib: f64,
    pub disk_mib: f64,
    pub cores: f64,
    /// As many hosts as the scarcest of the three asks for.
    pub hosts: u64,
    pub scarcest: &'static str,
    pub per_hour: f64,
    pub per_month: f64,
    pub per_thousand_tasks: f64,
}

/// How many sandboxes should wait where so many are asked for a second, and one takes so long to make: as many as
/// arrive meanwhile, and two deviations more, for arrivals come in bursts.
#[must_use]
pub fn pool_size(per_second: f64, create_s: f64) -> usize {
    let mean = (per_second * create_s).max(0.0);
    let wanted = (mean + DEVIATIONS * mean.sqrt()).ceil().clamp(0.0, MOST_POOL);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped just above")]
    let wanted = if wanted.is_nan() { 0 } else { wanted as usize };
    wanted
}

/// Computes what a load takes. Values that are negative or not finite count as zero.
#[must_use]
pub fn plan(load: &Load, host: &Host) -> Plan {
    let good = |value: f64| if value.is_finite() { value.max(0.0) } else { 0.0 };
    let arrivals_per_second = good(load.tasks_per_hour) / HOUR_S;
    let living = arrivals_per_second * good(load.life_s);
    let share = good(load.active_share).min(1.0);
    let (active, paused) = (living * share, living * (1.0 - share));
    let pool = pool_size(arrivals_per_second, good(load.create_s));
    let waiting = f64::from(u32::try_from(pool).unwrap_or(u32::MAX));
    let memory_mib =
        active * good(load.memory_mib) + paused * good(load.paused_mib) + waiting * good(load.waiting_mib);
    let disk_mib = living * good(load.disk_mib);
    let cores = active * good(load.cores);
    let shares = [
        ("memory", memory_mib, host.memory_mib),
        ("disk", disk_mib, host.disk_mib),
        ("cores", cores, host.cores),
    ];
    let (scarcest, hosts) = shares.into_iter().fold(("memory", 1.0_f64), |most, (name, needs, has)| {
        let hosts = if good(has) > 0.0 { (needs / has).ceil() } else { 1.0 };
        if hosts > most.1 { (name, hosts) } else { most }
    });
    let per_hour = hosts * good(host.price_per_hour);
    let tasks = good(load.tasks_per_hour);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at least one, and saturating"
    )]
    let hosts = hosts as u64;
    Plan {
        arrivals_per_second,
        living,
        active,
        paused,
        pool,
        memory_mib,
        disk_mib,
        cores,
        hosts,
        scarcest,
        per_hour,
        per_month: per_hour * 730.0,
        per_thousand_tasks: if tasks > 0.0 { per_hour / tasks * 1000.0 } else { 0.0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(super) const LOAD: Load = Load {
        tasks_per_hour: 3600.0,
        life_s: 600.0,
        active_share: 0.1,
        memory_mib: 512.0,
        paused_mib: 2.0,
        waiting_mib: 3.0,
        disk_mib: 100.0,
        cores: 1.0,
        create_s: 0.05,
        claim_s: 0.003,
    };
    const HOST: Host = Host { memory_mib: 65536.0, disk_mib: 1e6, cores: 16.0, price_per_hour: 0.5 };

    #[test]
    fn a_load_is_added_up() {
        let plan = plan(&LOAD, &HOST);
        assert_eq!((plan.living, plan.active, plan.paused), (600.0, 60.0, 540.0));
        assert_eq!((plan.pool, plan.scarcest, plan.hosts), (1, "cores", 4));
        assert_eq!((plan.memory_mib, plan.disk_mib), (60.0 * 512.0 + 540.0 * 2.0 + 3.0, 60_000.0));
        assert!((plan.per_thousand_tasks - 2.0 / 3.6).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn more_of_anything_never_takes_less(
            tasks in 0.0..1e6, life in 0.0..1e5, share in 0.0..1.0_f64, create in 0.0..30.0, factor in 1.0..10.0_f64,
        ) {
            let load = Load { tasks_per_hour: tasks, life_s: life, active_share: share, create_s: create, ..LOAD };
            let one = plan(&load, &HOST);
            for more in [
                Load { tasks_per_hour: tasks * factor, ..load },
                Load { life_s: life * factor, ..load },
                Load { create_s: create * factor, ..load },
                Load { active_share: (share * factor).min(1.0), ..load },
            ] {
                let other = plan(&more, &HOST);
                prop_assert!(other.memory_mib >= one.memory_mib - 1e-6);
                prop_assert!(other.hosts >= one.hosts);
                prop_assert!(other.pool >= one.pool);
            }
            prop_assert!((one.active + one.paused - one.living).abs() <= one.living * 1e-9);
        }

        #[test]
        fn nothing_that_is_said_breaks_it(values in proptest::array::uniform10(proptest::num::f64::ANY)) {
            let [tasks_per_hour, life_s, active_share, memory_mib, paused_mib, waiting_mib, disk_mib, cores, create_s, claim_s] = values;
            let load = Load {
                tasks_per_hour, life_s, active_share, memory_mib, paused_mib, waiting_mib, disk_mib, cores, create_s, claim_s,
            };
            let plan = plan(&load, &HOST);
            prop_assert!(plan.hosts >= 1 && plan.pool <= 4096);
        }
    }
}
