//! Copying content under a cap on the bytes that are streamed, holes kept as holes.

use super::FileHandle;
use std::io::{self, Read, Seek, SeekFrom, Write};

/// One read; also the unit in which holes are found.
const CHUNK_BYTES: usize = 128 * 1024;

/// Why a copy stopped.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// More came than the cap; the file may have grown while it was read.
    #[error("more than {limit_bytes} bytes came")]
    TooLarge { limit_bytes: u64 },
    /// The watcher asked to stop.
    #[error("the copy was stopped")]
    Stopped,
    #[error("reading failed")]
    Read(#[source] io::Error),
    #[error("writing failed")]
    Write(#[source] io::Error),
}

/// Streams `from` into `to` until its end, and answers with the bytes streamed.
///
/// The cap counts what was read, never what a size field says, so a file that grows or has no end
/// stops at it. `watch` sees every byte in order (a hash is taken there); when it answers `false` the
/// copy stops. A chunk of zeros is skipped over, not written: a sparse file stays sparse.
pub fn copy(
    from: &FileHandle,
    to: &FileHandle,
    limit_bytes: u64,
    watch: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<u64, CopyError> {
    let (mut source, mut target) = (from.file(), to.file());
    let mut buffer = vec![0_u8; CHUNK_BYTES];
    let mut total: u64 = 0;
    let mut hole: u64 = 0;
    loop {
        let read = match source.read(&mut buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(CopyError::Read(error)),
        };
        let Some(chunk) = buffer.get(..read).filter(|chunk| !chunk.is_empty()) else { break };
        let length = u64::try_from(read).unwrap_or(u64::MAX);
        total = total.saturating_add(length);
        if total > limit_bytes {
            return Err(CopyError::TooLarge { limit_bytes });
        }
        if !watch(chunk) {
            return Err(CopyError::Stopped);
        }
        if chunk.iter().all(|byte| *byte == 0) {
            hole = hole.saturating_add(length);
            continue;
        }
        if hole > 0 {
            let step = i64::try_from(hole).unwrap_or(i64::MAX);
            target.seek(SeekFrom::Current(step)).map_err(CopyError::Write)?;
            hole = 0;
        }
        target.write_all(chunk).map_err(CopyError::Write)?;
    }
    if hole > 0 {
        target.set_len(total).map_err(CopyError::Write)?;
    }
    Ok(total)
}
