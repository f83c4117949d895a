//! Builds, checks and measures Fumehood: `cargo xtask tidy | bench | conformance | size | full`.
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
mod measure;
mod memory;
mod metadata;
mod microvm;
mod run;
mod size;
mod tidy;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "\
Usage: cargo xtask COMMAND

  tidy          tiers, budgets, names, documentation and stray names in the tree
  bench         whole-process start, side by side with bwrap, crun, runc and a plain fork and exec
    egress        the egress wall: start, streams, requests, decisions, memory
    engine        engine-only figures, from the benchmark in backend-native
    microvm IMAGE [BINARY]  restore, forks and snapshots of machines with that root folder
    memory        mean memory of idle sandboxes
    workspace     start under a large copy-on-write workspace, beside an empty one
  fuzz SECONDS  every fuzz target for so long
  size          size of the binary and of init, and that both are static
  conformance   run the conformance list and write docs/parity.md
  full          everything above, with 60 s a fuzz target, and the full profile of the tests
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["tidy"] => tidy::check(),
        ["bench"] => bench::whole_process(),
        // How `bench` starts itself again as each caller.
        ["bench", "as-root", folder] => bench::as_root(folder.as_ref()),
        ["bench", "as-user", folder] => bench::as_user(folder.as_ref()),
        ["bench", "egress"] => egress::judge(),
        // How `bench egress` starts itself again in its network.
        ["bench", "egress-within", folder] => egress::within(folder.as_ref()),
        ["bench", "engine"] => engine::judge(),
        ["bench", "microvm", image] => microvm::judge(image.as_ref(), None),
        ["bench", "microvm", image, binary] => microvm::judge(image.as_ref(), Some(binary.as_ref())),
        ["bench", "memory"] => memory::idle(),
        ["bench", "workspace"] => workspace::large_beside_empty(),
        ["size"] => size::check(),
        ["conformance"] => conformance::write(),
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

/// Every figure is measured, whatever another one missed; the first that did is the end's reason.
fn full() -> run::Done {
    tidy::check()?;
    let mut tests = run::cargo(&["test", "--workspace", "--locked"]);
    tests.env("FUMEHOOD_TEST_FULL", "1");
    run::must(&mut tests)?;
    let steps: [fn() -> run::Done; 8] = [
        conformance::write,
        || fuzz::smoke("60"),
        size::check,
        bench::whole_process,
        engine::judge,
        memory::idle,
        egress::judge,
        workspace::large_beside_empty,
    ];
    let missed: Vec<String> =
        steps.into_iter().filter_map(|step| step().err()).map(|problem| problem.to_string()).collect();
    if missed.is_empty() { Ok(()) } else { Err(missed.join("\n").into()) }
}
