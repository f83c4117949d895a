//! `fumehood keeper`: the role of the process that keeps one living sandbox. Not for people: a [`Spec`] comes in on
//! standard input, one line of [`Born`] goes out, and the process lives on in a session of its own.

use crate::refusal::Refusal;
use crate::{living, sandboxes, tasks};
use fumehood_keep::wire::{Born, Failure, FailureCode, Spec};
use fumehood_runtime::keep;
use fumehood_sys::process;
use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::process::ExitCode;

/// A longer one is none.
const MOST_SPEC_BYTES: u64 = 4 << 20;

/// What is said instead of a specification by who wants nothing made, but removed what the dead left.
const SWEEP: &str = "--sweep";

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    if words.iter().any(|word| word == SWEEP) {
        return match tasks::state() {
            Ok(state) => {
                sandboxes::sweep(&state);
                ExitCode::SUCCESS
            }
            Err(refusal) => {
                refusal.tell();
                ExitCode::FAILURE
            }
        };
    }
    process::new_session();
    process::set_name(c"fumehood-keeper");
    let begun = read().and_then(|spec| Ok((living::prepare(spec)?, tasks::state()?)));
    let (prepared, state) = match begun {
        Ok(begun) => begun,
        Err(refusal) => {
            answer(&Born::Failed(failure(refusal)));
            return ExitCode::FAILURE;
        }
    };
    let living::Prepared { request, backend, _standing } = prepared;
    keep::live(backend.as_ref(), &state, request, &mut |born| {
        answer(born);
        // Who started us has its answer; from here on nothing of theirs is held.
        let _ = process::release_standard_streams();
    });
    ExitCode::SUCCESS
}

fn read() -> Result<Spec, Refusal> {
    const STEP: &str = "read what is to be made";
    let mut text = Vec::new();
    let read = std::io::stdin().take(MOST_SPEC_BYTES).read_to_end(&mut text);
    read.map_err(|error| Refusal::new(STEP, error.to_string(), "`fumehood create` starts keepers"))?;
    serde_json::from_slice(&text)
        .map_err(|error| Refusal::new(STEP, error.to_string(), "`fumehood create` starts keepers"))
}

fn answer(born: &Born) {
    let mut line = serde_json::to_vec(born).unwrap_or_default();
    line.push(b'\n');
    let mut out = std::io::stdout();
    // Who does not listen finds the sandbox in the state folder.
    let _ = out.write_all(&line).and_then(|()| out.flush());
}

fn failure(refusal: Refusal) -> Failure {
    Failure {
        code: FailureCode::BadRequest,
        message: refusal.step,
        cause: refusal.why,
        remediation: refusal.remedy,
    }
}
