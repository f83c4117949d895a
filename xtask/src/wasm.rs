//! The level `wasm`: what the engine itself takes, and a script beside Node.

use crate::bench::Scratch;
use crate::measure::{Times, time};
use crate::run::{self, Done};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const ROUNDS: usize = 60;
const WARM_UP: usize = 5;
/// Making a tiny module and running it, in microseconds.
const MOST_US: f64 = 50.0;
/// Of the time of `node -e 1+1`.
const MOST_OF_NODE: f64 = 0.3;

/// Both, one after the other.
pub(crate) fn judge() -> Done {
    run::together([engine(), beside_node()])
}

/// The benchmark of the engine, held to its figure.
fn engine() -> Done {
    let words = ["bench", "--locked", "--package", "fumehood-backend-wasm", "--bench", "warm"];
    // The engine takes minutes to build, which is to be seen.
    run::must(run::cargo(&words).arg("--no-run"))?;
    let told = run::output(&mut run::cargo(&words))?;
    let line = told.lines().find(|line| line.starts_with("{\"bench\":\"wasm\""));
    let line = line.ok_or_else(|| format!("wasm: the benchmark printed no figures, but: {told}"))?;
    run::say(line);
    let figures: Value = serde_json::from_str(line)?;
    match figures["warm"]["p50_us"].as_f64() {
        Some(p50) if p50 <= MOST_US => {
            run::say(&format!("wasm: warm {p50:.1} µs of {MOST_US}"));
            Ok(())
        }
        Some(p50) => Err(format!("wasm: warm {p50:.1} µs of {MOST_US}: missed").into()),
        None => Err("wasm: there is no figure for `warm`".into()),
    }
}

/// `fumehood eval` and `node` from start to end, in turn. The interpreter must have been set up for who calls this.
fn beside_node() -> Done {
    let binary = run::release()?;
    let Some(node) = run::find("node") else {
        run::say("node: missing");
        return Ok(());
    };
    let scratch = Scratch::new()?;
    let state = scratch.0.join("state");
    let mut setup = Command::new(&binary);
    setup.args(["eval", "--setup", "js"]).env("FUMEHOOD_STATE", &state);
    // It is fetched from a registry, which has to be reached.
    run::must(&mut setup).map_err(|error| format!("wasm: the interpreter was not set up: {error}"))?;
    let (mut ours, mut theirs) = (Times::default(), Times::default());
    for round in 0..ROUNDS + WARM_UP {
        let pair = [time(&mut eval(&binary, &state))?, time(Command::new(&node).args(["-e", "1+1"]))?];
        if round >= WARM_UP {
            let [eval, node] = pair;
            ours.add(eval);
            theirs.add(node);
        }
    }
    let (ours, theirs) = (ours.quantile(0.5), theirs.quantile(0.5));
    let ratio = ours / theirs;
    let line = serde_json::json!({
        "bench": "wasm-eval", "rounds": ROUNDS, "eval_p50_ms": ours, "node_p50_ms": theirs, "ratio": ratio,
    });
    run::say(&line.to_string());
    run::say(&format!("eval: {ours:.2} ms, node {theirs:.2} ms: {ratio:.2} of {MOST_OF_NODE}"));
    if ratio <= MOST_OF_NODE { Ok(()) } else { Err("wasm: eval beside node: missed".into()) }
}

fn eval(binary: &Path, state: &Path) -> Command {
    let mut command = Command::new(binary);
    command.args(["eval", "-q", "--lang", "js", "-e", "1+1"]).env("FUMEHOOD_STATE", state);
    command
}
