//! Why a command did not start, in the words of a backend.

use crate::frame::{BLOCK_BYTES, Stage};
use fumehood_backend::ExecError;
use std::io;

pub(crate) const TOO_LARGE: ExecError = ExecError::TooLarge { limit_bytes: BLOCK_BYTES as usize };

/// An error that the guest was given by its kernel.
pub(crate) fn error(errno: u32) -> io::Error {
    i32::try_from(errno).map_or_else(|_| io::ErrorKind::Other.into(), io::Error::from_raw_os_error)
}

pub(crate) fn not_started(stage: Stage, errno: u32) -> ExecError {
    let error = error(errno);
    let scarce = matches!(
        error.kind(),
        io::ErrorKind::OutOfMemory
            | io::ErrorKind::WouldBlock
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::StorageFull
    );
    match stage {
        Stage::FindCommand => ExecError::NotFound,
        Stage::WorkingDirectory => ExecError::WorkingDirectory(error.kind()),
        Stage::Execute if error.kind() == io::ErrorKind::ArgumentListTooLong => TOO_LARGE,
        Stage::Execute | Stage::Spawn | Stage::Terminal if scarce => ExecError::Exhausted,
        Stage::Execute => ExecError::NotExecutable(error.kind()),
        // Neither is the command's fault, nor can the caller mend it.
        Stage::Spawn | Stage::Terminal => ExecError::Silent,
    }
}
