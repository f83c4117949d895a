//! The attacker of the self-test: tries things, and says what came of each. It never judges.
//!
//! One static program for both sides: behind a wall it is the attack, beside it the control. Nothing here is an
//! exploit: calls are made with arguments that do no harm where they are allowed, and what is written, stopped
//! or called belongs to the self-test.
//!
//! ```text
//!   attack do NONCE STEP [++ STEP]…       STEP is ID VERB [ARGUMENT]…
//!   attack open NONCE STEP [++ STEP]…     STEP is ID HOW VERB [ARGUMENT]…, HOW the namespaces of `keep::open`
//! ```
//!
//! Each step runs in a process of its own and writes `step ID`, its lines, and `over ID`; at the end stands
//! `end NONCE`. A line of a step is `try NAME RESULT` (`done`, an error's name, `signal N`) or a fact.
//! The other modes are what the self-test needs beside its probes, and has no safe call for.

#![deny(unsafe_op_in_unsafe_fn)]
#![warn(unused_qualifications)]

mod call;
mod doors;
mod hold;
mod keep;
mod look;
mod numbers;
mod serve;
mod wire;

use std::io::Write as _;
use std::process::ExitCode;

/// A step that hangs is ended; what it said so far stands.
const STEP_SECONDS: u32 = 25;

fn main() -> ExitCode {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [side @ ("do" | "open"), nonce, steps @ ..] => {
            run(*side == "open", steps);
            say(&format!("end {nonce}"));
            ExitCode::SUCCESS
        }
        ["guard", folders @ ..] => keep::guard(folders),
        ["range", log, folder] => keep::range(log, folder),
        ["enter", pid, "--", command @ ..] => keep::enter(pid, command),
        ["pause", ..] => call::pause(),
        ["with", file, "--", command @ ..] => keep::with_stray(file, command),
        ["key", name, value, "--", command @ ..] => keep::with_key(name, value, command),
        ["closed", "--", command @ ..] => keep::closed(command),
        ["unable", "--", command @ ..] => keep::unable(command),
        _ => {
            say("there is no such mode");
            ExitCode::FAILURE
        }
    }
}

fn run(open: bool, words: &[&str]) {
    for step in words.split(|word| *word == "++") {
        let (id, how, verb, arguments) = match step {
            [id, how, verb, arguments @ ..] if open => (id, Some(how), verb, arguments),
            [id, verb, arguments @ ..] if !open => (id, None, verb, arguments),
            _ => continue,
        };
        say(&format!("step {id}"));
        match call::fork() {
            Ok(0) => {
                call::alarm(STEP_SECONDS);
                match how.map_or(Ok(()), |how| keep::open(how)) {
                    Ok(()) => one(verb, arguments),
                    Err(error) => say(&format!("no namespaces: {}", numbers::name(error))),
                }
                call::exit(0);
            }
            Ok(child) => {
                if let Some(signal) = call::wait(child).1 {
                    say(&format!("step ended by signal {signal}"));
                }
            }
            Err(error) => say(&format!("no process: {}", numbers::name(error))),
        }
        say(&format!("over {id}"));
    }
}

fn one(verb: &str, arguments: &[&str]) {
    if doors::tried(verb, arguments)
        || look::done(verb, arguments)
        || hold::done(verb, arguments)
        || wire::done(verb, arguments)
    {
        return;
    }
    say(&format!("there is no verb {verb}"));
}

/// One line, written at once: who comes after may be ended in the middle.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
}

/// Makes one attempt in a process of its own, and says what came of it.
fn attempt(name: &str, act: impl FnOnce() -> Result<i64, i32>) {
    match call::fork() {
        Ok(0) => call::exit(match act() {
            Ok(_) => 0,
            Err(0) => 255,
            Err(error) => error & 255,
        }),
        Ok(child) => match call::wait(child) {
            (_, Some(signal)) => say(&format!("try {name} signal {signal}")),
            (0, None) => say(&format!("try {name} done")),
            (error, None) => say(&format!("try {name} {}", numbers::name(error))),
        },
        Err(error) => say(&format!("try {name} fork-{}", numbers::name(error))),
    }
}
