//! Why something was not done, in words.

use fumehood_backend::{ExecError, FreezeError};
use fumehood_keep::wire::{Failure, FailureCode};
use fumehood_model::ending::Ending;
use std::io;

pub(crate) fn new(code: FailureCode, (message, cause): (&str, String), remediation: &str) -> Failure {
    Failure { code, message: message.to_owned(), cause, remediation: remediation.to_owned() }
}

pub(crate) fn busy() -> Failure {
    new(
        FailureCode::Busy,
        ("take one more", "as many as may be are at work already".to_owned()),
        "try again when one of them is done",
    )
}

pub(crate) fn port_closed(error: &io::Error) -> Failure {
    new(
        FailureCode::PortClosed,
        ("connect to the port", error.to_string()),
        "start a server on that port inside, and wait until it listens",
    )
}

pub(crate) fn ending() -> Failure {
    new(
        FailureCode::Ending,
        ("answer", "the sandbox is ending".to_owned()),
        "create another with `fumehood create`",
    )
}

pub(crate) fn paused() -> Failure {
    new(
        FailureCode::Paused,
        ("work in the sandbox", "it is paused".to_owned()),
        "let it go on with `fumehood resume`",
    )
}

pub(crate) fn halted() -> Failure {
    new(FailureCode::Halted, ("work in the sandbox", "it is halted".to_owned()), "its operator releases it")
}

pub(crate) fn no_exec(exec: u32) -> Failure {
    new(
        FailureCode::NoExec,
        ("find the command", format!("there is no command {exec}, or it ended long ago")),
        "list the commands with `fumehood ls ID`",
    )
}

pub(crate) fn has_ended(exec: u32) -> Failure {
    new(
        FailureCode::NoExec,
        ("reach the command", format!("command {exec} has ended, or takes no input")),
        "start it with its input open, as `fumehood exec -i` does",
    )
}

pub(crate) fn of_exec(error: &ExecError) -> Failure {
    let code = match error {
        ExecError::NotFound | ExecError::WorkingDirectory(io::ErrorKind::NotFound) => FailureCode::NotFound,
        ExecError::NotExecutable(_) | ExecError::WorkingDirectory(_) => FailureCode::Denied,
        ExecError::TooLarge { .. } => FailureCode::TooLarge,
        ExecError::Exhausted => FailureCode::Busy,
        ExecError::Silent => FailureCode::Internal,
    };
    if let Ending::NotStarted { step, why, remedy } = crate::keeper::not_started(error) {
        return Failure { code, message: step, cause: why, remediation: remedy };
    }
    new(code, ("start the command", error.to_string()), "look at the sandbox with `fumehood ls ID`")
}

pub(crate) fn not_frozen(message: &str, error: FreezeError) -> Failure {
    let code = if error.unsupported { FailureCode::Unsupported } else { FailureCode::Internal };
    Failure { code, message: message.to_owned(), cause: error.why, remediation: error.remedy }
}

/// `whole`: what the sandbox's level keeps.
pub(crate) fn other_snapshot(whole: bool) -> Failure {
    let (cause, remedy) = if whole {
        ("a machine is kept whole: its files are in its memory", "leave out that it is to be without memory")
    } else {
        (
            "at this level a snapshot has files, and no memory",
            "leave `--memory` out, or use the level `microvm`",
        )
    };
    new(FailureCode::Unsupported, ("take the snapshot", cause.to_owned()), remedy)
}

pub(crate) fn bad(message: &str, cause: impl Into<String>, remedy: &str) -> Failure {
    new(FailureCode::BadRequest, (message, cause.into()), remedy)
}

pub(crate) fn unrecorded((why, remedy): (String, &'static str)) -> Failure {
    let is_full = remedy == fumehood_model::remedy::NO_SPACE;
    let code = if is_full { FailureCode::NoSpace } else { FailureCode::Internal };
    new(code, ("write the record", why), remedy)
}
