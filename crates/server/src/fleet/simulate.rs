//! Arrivals at a pool, one after the other, from a seed: the same seed gives the same arrivals.

use serde::Serialize;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::Load;

/// What callers saw.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Simulated {
    pub arrivals: usize,
    /// Of these, those that found nothing waiting.
    pub misses: usize,
    /// From the request to a sandbox, in milliseconds.
    pub wait_p50_ms: f64,
    pub wait_p95_ms: f64,
    pub wait_most_ms: f64,
}

/// A moment, so that the soonest is taken first.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Soon(f64);

/// Random numbers of a seed (SplitMix64).
#[derive(Clone, Copy, Debug)]
struct Random(u64);

/// Lets so many arrive (as a Poisson process) at a pool of this size, whose places are made again one after the other
/// by `makers` at once. Who finds none waits for one to be made for it.
#[must_use]
pub fn simulate(load: &Load, pool: usize, makers: usize, arrivals: usize, seed: u64) -> Simulated {
    let mut random = Random(seed);
    let rate = if load.tasks_per_hour.is_finite() { load.tasks_per_hour.max(1e-9) / 3600.0 } else { 1.0 };
    let create_s = if load.create_s.is_finite() { load.create_s.max(0.0) } else { 0.0 };
    let claim_s = if load.claim_s.is_finite() { load.claim_s.max(0.0) } else { 0.0 };
    // When each maker is free again, and when each place of the pool is there again.
    let mut free: BinaryHeap<Soon> = (0..makers.max(1)).map(|_| Soon(0.0)).collect();
    let mut ready: BinaryHeap<Soon> = (0..pool).map(|_| Soon(0.0)).collect();
    let mut make = |at: f64| {
        let from = free.pop().map_or(at, |Soon(free)| free.max(at));
        free.push(Soon(from + create_s));
        from + create_s
    };
    let (mut now, mut misses) = (0.0, 0);
    let mut waits = Vec::with_capacity(arrivals);
    for _ in 0..arrivals {
        now += random.until_next(rate);
        if ready.peek().is_some_and(|Soon(there)| *there <= now) {
            ready.pop();
            waits.push(claim_s);
            ready.push(Soon(make(now)));
        } else {
            misses += 1;
            waits.push(make(now) - now);
        }
    }
    waits.sort_by(f64::total_cmp);
    let at =
        |share: usize| waits.get((waits.len().saturating_sub(1)) * share / 100).map_or(0.0, |s| s * 1000.0);
    Simulated { arrivals, misses, wait_p50_ms: at(50), wait_p95_ms: at(95), wait_most_ms: at(100) }
}

// === impl Soon ===

impl Eq for Soon {}

impl Ord for Soon {
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.total_cmp(&self.0)
    }
}

impl PartialOrd for Soon {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

// === impl Random ===

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A time to the next of so many a second.
    fn until_next(&mut self, per_second: f64) -> f64 {
        let bits = u32::try_from(self.next() >> 32).unwrap_or(u32::MAX);
        // Above zero, and at most one.
        let share = (f64::from(bits) + 1.0) / (f64::from(u32::MAX) + 1.0);
        -share.ln() / per_second
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::LOAD;
    use super::*;
    use crate::fleet::pool_size;
    use proptest::prelude::*;

    #[test]
    fn arrivals_come_as_often_as_was_said() {
        let mut random = Random(7);
        let sum: f64 = (0..20_000).map(|_| random.until_next(4.0)).sum();
        assert!((sum / 20_000.0 - 0.25).abs() < 0.01, "{sum}");
    }

    #[test]
    fn a_pool_of_the_told_size_meets_nearly_all() {
        let load = Load { tasks_per_hour: 36_000.0, create_s: 0.5, ..LOAD };
        let pool = pool_size(10.0, 0.5);
        let seen = simulate(&load, pool, 64, 20_000, 1);
        assert!(seen.misses * 20 < seen.arrivals, "{seen:?}");
        assert!((seen.wait_p95_ms - 3.0).abs() < 1e-6, "{seen:?}");
        let none = simulate(&load, 0, 64, 1000, 1);
        assert_eq!((none.misses, none.wait_p50_ms.round()), (1000, 500.0));
    }

    proptest! {
        #[test]
        fn a_seed_gives_the_same_and_more_that_wait_miss_no_more(seed: u64, pool in 0_usize..20, rate in 1.0..50.0) {
            let load = Load { tasks_per_hour: rate * 3600.0, create_s: 0.2, ..LOAD };
            let seen = simulate(&load, pool, 10_000, 500, seed);
            prop_assert_eq!(seen, simulate(&load, pool, 10_000, 500, seed));
            prop_assert!(simulate(&load, pool + 1, 10_000, 500, seed).misses <= seen.misses);
            prop_assert!(seen.wait_p50_ms <= seen.wait_p95_ms && seen.wait_p95_ms <= seen.wait_most_ms);
        }
    }
}
