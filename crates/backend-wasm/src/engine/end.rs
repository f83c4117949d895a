//! How the engine ends, so that it says how the module did.
//!
//! A trap is a crash, and ends this process as the same crash ends a native program: by a signal. A module can
//! not send one, so the ending tells a trap from a code that the module chose.

use super::say;
use crate::wasi::Exit;
use fumehood_model::text::shown;
use rustix::process::{Signal, getpid, kill_process};
use std::process::ExitCode;
use wasmtime::{Error, Trap, WasmBacktrace};

/// Ends the process, or gives the code to end it with.
pub(super) fn of(outcome: wasmtime::Result<()>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    if let Some(Exit(code)) = error.downcast_ref::<Exit>() {
        // As everywhere: of a code, the lowest eight bits are what others see.
        return ExitCode::from(u8::try_from(code & 0xff).unwrap_or(u8::MAX));
    }
    let Some(trap) = error.downcast_ref::<Trap>() else {
        return starved(&error);
    };
    say(&format!("the module trapped: {}{}", named(*trap), place(&error)));
    die(signal(*trap))
}

/// There is no room for the module: told by another.
pub(super) fn starved(error: &Error) -> ExitCode {
    say(&format!("the module could not be started: {}", shown(&format!("{error:#}"))));
    die(Signal::USR1)
}

/// The module was not started: told by a signal that nothing else sends.
pub(super) fn broken() -> ExitCode {
    die(Signal::USR2)
}

fn named(trap: Trap) -> String {
    let text = trap.to_string();
    text.strip_prefix("wasm trap: ").unwrap_or(&text).to_owned()
}

/// Where, if the module names its functions.
fn place(error: &Error) -> String {
    let frames = error.downcast_ref::<WasmBacktrace>().map(WasmBacktrace::frames).unwrap_or_default();
    match frames.first() {
        Some(frame) => match frame.func_name() {
            Some(name) => format!(", in `{}`", shown(&name.chars().take(200).collect::<String>())),
            None => format!(", in function {}", frame.func_index()),
        },
        None => String::new(),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "a trap that is new ends as one that has no signal")]
const fn signal(trap: Trap) -> Signal {
    match trap {
        Trap::StackOverflow | Trap::MemoryOutOfBounds | Trap::TableOutOfBounds | Trap::NullReference => {
            Signal::SEGV
        }
        Trap::IntegerOverflow | Trap::IntegerDivisionByZero | Trap::BadConversionToInteger => Signal::FPE,
        Trap::UnreachableCodeReached | Trap::IndirectCallToNull | Trap::BadSignature => Signal::ILL,
        _ => Signal::ABORT,
    }
}

/// Once for the handler that the engine put before the kernel's own, which it then takes away; once for good.
fn die(signal: Signal) -> ExitCode {
    for _ in 0..3 {
        // A signal to ourselves arrives before the call returns.
        let _ = kill_process(getpid(), signal);
    }
    std::process::abort()
}
