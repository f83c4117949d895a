//! Builds, checks and measures Fumehood: `cargo xtask tidy | bench | soak | conformance | prove | size | full`.
//!
//! It stands outside the product: nothing here is shipped, and nothing shipped depends on it.

#![expect(
    clippy::indexing_slicing,
    reason = "JSON values: what is missing reads as null, and what is written is an object"
)]

mod bench;
mod conformance;
mod egress;
mod engine;
mod fuzz;
mod gvisor;
mod measure;
mod memory;
mod metadata;
mod microvm;
mod prove;
mod run;
mod serve;
mod size;
mod tidy;
mod wasm;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask COMMAND

  tidy          tiers, budgets, names, documentation and stray names in the tree
  bench [PART]  every figure but those of the egress wall, or only the named parts:
                   start        whole process, side by side with bwrap, crun, runc and a plain fork and exec
                   engine       engine-only figures, from the benchmark in backend-native
                   gvisor       the gvisor level beside `runsc run`
                   memory       mean memory of idle sandboxes
                   microvm      machines with a small root: restore, forks, snapshots
                   serve        the daemon over HTTP: claims, bursts, a thousand idle sandboxes, the kill switch
                   size         size of the binary and of init, and that both are static
                   wasm         the engine of the level wasm, and a script beside node
                   workspace    start under a large copy-on-write workspace, beside an empty one
    egress [PART]  the egress wall: start, stream, requests, memory, decide
    microvm IMAGE [BINARY]  the same of machines with that root folder, which has `/bin/echo` and `/bin/sleep`
  soak MINUTES [BINARY]  mixed load on the daemon, with processes of ours ended in the middle: nothing grows, nothing is left
  fuzz SECONDS  every fuzz target for so long
  size          size of the binary and of init, and that both are static
  conformance   run the conformance list; write docs/parity.md and the matrix of docs/levels.md
  prove [IMAGE] run the self-test at every level; write docs/proof.md and the counts of docs/prove.md. Machines stand on the
                folder IMAGE, or on the one that the tests of that level made
  full          everything above, with 60 s a fuzz target, and the full profile of the tests
";

/// The parts of `bench`.
const BENCH: [run::Part; 9] = [
    ("start", bench::whole_process),
    ("engine", engine::judge),
    ("gvisor", gvisor::judge),
    ("memory", memory::idle),
    ("microvm", microvm::of_a_small_root),
    ("serve", serve::judge),
    ("size", size::check),
    ("wasm", wasm::judge),
    ("workspace", workspace::large_beside_empty),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["tidy"] => tidy::check(),
        // How `bench` starts itself again as each caller.
        ["bench", "as-root", folder] => bench::as_root(folder.as_ref()),
        ["bench", "as-user", folder] => bench::as_user(folder.as_ref()),
        ["bench", "egress", parts @ ..] => egress::judge(parts),
        // How `bench egress` starts itself again in its network.
        ["bench", "egress-within", folder, parts @ ..] => egress::within(folder.as_ref(), parts),
        // Of another root, or another build.
        ["bench", "microvm", image] => microvm::judge(image.as_ref(), None),
        ["bench", "microvm", image, binary] => microvm::judge(image.as_ref(), Some(binary.as_ref())),
        ["bench", parts @ ..] => run::parts(&BENCH, parts),
        ["size"] => size::check(),
        ["soak", minutes] => serve::soak(minutes, None),
        ["soak", minutes, binary] => serve::soak(minutes, Some(binary.as_ref())),
        ["conformance"] => conformance::write(),
        ["prove"] => prove::write(prove::tested_root().as_deref()),
        ["prove", image] => prove::write(Some(image)),
        ["fuzz", seconds] => fuzz::smoke(seconds),
        ["full"] => full(),
        _ => Err(USAGE.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            run::complain(&problem.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Every figure is measured, whatever another one missed; in the end all misses are told.
fn full() -> run::Done {
    tidy::check()?;
    let mut tests = run::cargo(&["test", "--workspace", "--locked"]);
    tests.env("FUMEHOOD_TEST_FULL", "1");
    run::must(&mut tests)?;
    run::together([
        conformance::write(),
        fuzz::smoke("60"),
        run::parts(&BENCH, &[]),
        egress::judge(&[]),
        serve::soak("30", None),
    ])
}
