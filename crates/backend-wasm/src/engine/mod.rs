//! The engine: this program once more, inside a sandbox, with one module.
//!
//! It compiles what nobody trusts, and runs it. Both happen within the walls that the container level builds, so what
//! breaks out of the engine is where any command of that level is: it has these folders, no network, no capability,
//! and ends when its keeper says so. The engine therefore keeps no clock of its own (ADR 0122).

mod artifact;
mod compile;
mod config;
mod end;
mod run;

pub use config::Warm;

use crate::words::Order;
use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

/// The code of an engine that was started by hand.
const OUTSIDE: u8 = 125;

/// Does what the words after [`crate::ROLE`] say.
pub fn main(words: &[OsString]) -> ExitCode {
    if !is_confined() {
        say("the engine runs inside a sandbox only");
        return ExitCode::from(OUTSIDE);
    }
    let outcome = match Order::parse(words) {
        Some(Order::Compile) => compile::compile(),
        Some(Order::Run(order)) => run::run(order),
        None => Err("the engine was not told what to do".to_owned()),
    };
    outcome.unwrap_or_else(|why| {
        say(&why);
        end::broken()
    })
}

/// Whether the kernel holds this process to a system call filter and to no new privileges.
fn is_confined() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let has = |line: &str| status.lines().any(|found| found == line);
    has("Seccomp:\t2") && has("NoNewPrivs:\t1")
}

/// A line on standard error.
fn say(line: &str) {
    // There is nobody else to tell.
    let _ = writeln!(std::io::stderr(), "fumehood: {line}");
}
