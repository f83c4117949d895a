//! What is in a folder.

#![expect(clippy::too_many_arguments, reason = "the signatures are WASI's own")]

use super::Call;
use super::errno::Errno;
use super::layout::kind;
use rustix::fs::{FileType, RawDir, SeekFrom};
use std::mem::MaybeUninit;

/// Bytes of names that are read from the kernel at once.
const BUFFER_BYTES: usize = 8192;

/// Fills the module's buffer with entries from `cookie` on. The last may be cut: then there is more, and the module
/// asks again from the one before. A cookie is the kernel's own mark of a place in that folder.
pub(super) fn read(
    call: &mut Call<'_>,
    fd: u32,
    at: u32,
    length: u32,
    cookie: u64,
    to: u32,
) -> Result<(), Errno> {
    let entry = call.host.table.get(fd)?;
    if entry.kind()? != FileType::Directory {
        return Err(Errno::NOTDIR);
    }
    rustix::fs::seek(entry, SeekFrom::Start(cookie))?;
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
    let mut names = RawDir::new(entry, &mut buffer);
    let room = call.memory.slice_mut(at, length)?;
    let mut used = 0;
    while let Some(found) = names.next() {
        let found = found?;
        let name = found.file_name().to_bytes();
        let mut record = Vec::with_capacity(24 + name.len());
        record.extend_from_slice(&found.next_entry_cookie().to_le_bytes());
        record.extend_from_slice(&found.ino().to_le_bytes());
        record.extend_from_slice(&u32::try_from(name.len()).map_err(|_| Errno::OVERFLOW)?.to_le_bytes());
        record.extend_from_slice(&u32::from(kind(found.file_type())).to_le_bytes());
        record.extend_from_slice(name);
        let rest = room.get_mut(used..).unwrap_or_default();
        let fits = record.len().min(rest.len());
        if let (Some(place), Some(part)) = (rest.get_mut(..fits), record.get(..fits)) {
            place.copy_from_slice(part);
        }
        used += fits;
        if fits < record.len() {
            break;
        }
    }
    call.memory.write_size(to, used)
}
