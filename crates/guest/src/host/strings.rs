//! A command's strings, in one piece.

use crate::frame::BLOCK_BYTES;
use crate::refused;
use fumehood_backend::ExecError;
use fumehood_model::exec::ExecRequest;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;

/// The strings of a request in one piece: how many arguments, how many variables, and all of them.
pub(super) fn strings(request: &ExecRequest) -> Result<(u32, u32, Vec<u8>), ExecError> {
    if request.argv.first().is_none_or(|command| command.is_empty()) {
        return Err(ExecError::NotFound);
    }
    let mut block = Vec::new();
    put(&mut block, &[request.cwd.as_os_str()])?;
    for argument in &request.argv {
        put(&mut block, &[argument])?;
    }
    for (name, value) in &request.env {
        put(&mut block, &[name, OsStr::new("="), value])?;
    }
    let count = |length| u32::try_from(length).map_err(|_| refused::TOO_LARGE);
    Ok((count(request.argv.len())?, count(request.env.len())?, block))
}

/// Appends one string and its end mark.
fn put(block: &mut Vec<u8>, parts: &[&OsStr]) -> Result<(), ExecError> {
    let limit = usize::try_from(BLOCK_BYTES).unwrap_or(usize::MAX);
    for part in parts {
        let bytes = part.as_bytes();
        if bytes.contains(&0) {
            return Err(ExecError::NotExecutable(ErrorKind::InvalidInput));
        }
        if block.len() + bytes.len() >= limit {
            return Err(refused::TOO_LARGE);
        }
        block.extend_from_slice(bytes);
    }
    block.push(0);
    Ok(())
}
