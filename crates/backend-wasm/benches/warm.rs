//! What the engine itself takes: one JSON line.
//!
//! `warm` is a store, an instance of a tiny module and its `_start`, up to everything being let go of, with the pool of
//! the engine and nothing else made ahead. `engine` is an engine with its compiled module, from nothing.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a bench prints its line, and stops where it can not measure"
)]

use fumehood_backend_wasm::Warm;
use std::time::Instant;

const ROUNDS: usize = 20_000;
const ENGINES: usize = 20;
const TINY: &str = "(module (memory (export \"memory\") 1) (func (export \"_start\")))";

fn main() {
    let module = wat::parse_str(TINY).expect("a module");
    let engines = sorted(ENGINES, || drop(Warm::new(&module).expect("an engine")));
    let warm = Warm::new(&module).expect("an engine");
    let all = sorted(ROUNDS, || warm.once().expect("a run"));
    println!(
        "{{\"bench\":\"wasm\",\"rounds\":{ROUNDS},\"warm\":{{\"p50_us\":{:.2},\"p99_us\":{:.2}}},\"engine\":{{\"p50_us\":{:.0}}}}}",
        at(&all, 50),
        at(&all, 99),
        at(&engines, 50),
    );
}

/// How long each of so many rounds took, in microseconds, shortest first.
fn sorted(rounds: usize, mut round: impl FnMut()) -> Vec<f64> {
    let mut times: Vec<f64> = (0..rounds)
        .map(|_| {
            let begun = Instant::now();
            round();
            begun.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times
}

fn at(times: &[f64], percent: usize) -> f64 {
    times.get(times.len() * percent / 100).copied().unwrap_or(f64::NAN)
}
