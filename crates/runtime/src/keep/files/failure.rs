//! From the kernel's errors to what a caller can act on.

use fumehood_keep::wire::{Failure, FailureCode};
use std::io::{self, ErrorKind};
use std::path::Path;

/// What was asked makes no sense.
pub(super) fn bad_request(message: &str, cause: String) -> Failure {
    Failure {
        code: FailureCode::BadRequest,
        message: message.to_owned(),
        cause,
        remediation: "ask with an absolute path of at most 4096 bytes, without a NUL".to_owned(),
    }
}

/// `verb` fits after "failed to": `read`.
pub(super) fn failed(verb: &str, path: &Path, error: &io::Error) -> Failure {
    let (code, cause, remediation) = judged(error);
    Failure {
        code,
        message: format!("{verb} `{}`", path.to_string_lossy().escape_debug()),
        cause: cause.map_or_else(|| error.to_string(), str::to_owned),
        remediation: remediation.to_owned(),
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the standard library may add kinds")]
fn judged(error: &io::Error) -> (FailureCode, Option<&'static str>, &'static str) {
    use FailureCode as Code;
    match error.kind() {
        ErrorKind::NotFound => {
            (Code::NotFound, Some("there is no such file or folder"), "list the folder above it")
        }
        ErrorKind::AlreadyExists => {
            (Code::Exists, Some("there is one already"), "take another name, or remove it first")
        }
        ErrorKind::DirectoryNotEmpty => (
            Code::Exists,
            Some("the folder there is not empty, or is being written to"),
            "remove it first, or pause the sandbox",
        ),
        ErrorKind::NotADirectory => {
            (Code::NotAFolder, Some("something on the way is not a folder"), "name a folder")
        }
        ErrorKind::IsADirectory => (Code::NotAFile, Some("it is a folder"), "name a regular file"),
        ErrorKind::PermissionDenied => (
            Code::Denied,
            Some("the sandbox's user may not do this there"),
            "name a place that the sandbox can write, such as its HOME or `/workspace`; or change the mode from inside",
        ),
        ErrorKind::ReadOnlyFilesystem => (
            Code::Denied,
            Some("it is shown read-only in this sandbox"),
            "name a place that the sandbox can write, such as its HOME or `/workspace`",
        ),
        ErrorKind::ResourceBusy | ErrorKind::CrossesDevices => (
            Code::Denied,
            Some("something is mounted there"),
            "name something in that folder, instead of the folder itself",
        ),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => (
            Code::NoSpace,
            Some("the sandbox's disk is full"),
            "remove something in it, or make a sandbox with a larger `resources.disk`",
        ),
        ErrorKind::FileTooLarge => (Code::TooLarge, None, "do it with a command in the sandbox"),
        _ if error.raw_os_error() == Some(ELOOP) => (
            Code::BadRequest,
            Some("there are too many links on the way, or one that must not be followed"),
            "name the place that the links should lead to",
        ),
        ErrorKind::InvalidFilename => {
            (Code::BadRequest, Some("a name is too long"), "take a name of at most 255 bytes")
        }
        ErrorKind::InvalidInput => {
            (Code::BadRequest, None, "name a file or folder by an absolute path that ends with its name")
        }
        ErrorKind::WouldBlock => (Code::Busy, Some("the folders on the way keep being moved"), "ask again"),
        _ if matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) => {
            (Code::Busy, None, "ask again when fewer files are being moved")
        }
        _ => (Code::Internal, None, "look at the host's disks and its log"),
    }
}

/// Numbers that the standard library has no stable name for.
pub(super) const ELOOP: i32 = 40;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;
