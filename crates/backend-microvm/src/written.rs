//! A machine that was written down while it ran: all of its memory, its devices, its second disk.
//!
//! ```text
//! whole   memory and devices, as QEMU writes them      key   of the template that it was made from
//! workspace.erofs   its second disk, where it has one
//! ```
//!
//! It fits a machine of the same template alone: the same QEMU, kernel, image, shape and processor.

use crate::machine::{Hardware, failed};
use crate::slot;
use crate::template::Template;
use fumehood_backend::LaunchError;
use fumehood_sys::memfd::{self, Purpose};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

const WHOLE: &str = "whole";
const KEY: &str = "key";

/// Opens one: memory that is empty before QEMU fills it, and what it is filled from.
pub(crate) fn open(folder: &Path, key: &str, hardware: Hardware) -> Result<Template, LaunchError> {
    let step = |error: io::Error| failed("open the machine that was written down", &error);
    if fs::read_to_string(folder.join(KEY)).map_err(step)? != key {
        return Err(LaunchError {
            step: "begin with the machine that was written down".to_owned(),
            why: "it was of another image, memory, kernel, QEMU, program or processor than this one".to_owned(),
            remedy: "create the sandbox with the same words as the one that it was taken of, on the same host".to_owned(),
        });
    }
    let empty = File::from(memfd::open(c"fumehood-memory", Purpose::Read).map_err(step)?);
    empty.set_len(hardware.memory_mib << 20).map_err(step)?;
    // A descriptor that could write is not what is mapped privately.
    let memory = File::open(format!("/proc/self/fd/{}", empty.as_raw_fd())).map_err(step)?;
    let state = File::open(folder.join(WHOLE)).map_err(step)?;
    Ok(Template { memory, state })
}

/// Makes one in an empty folder; `save` writes the machine itself. Gives the bytes that were written.
pub(crate) fn make(
    folder: &Path,
    (key, machine): (&str, &Path),
    save: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<u64> {
    let new = |name: &str| File::options().write(true).create_new(true).mode(0o600).open(folder.join(name));
    let whole = new(WHOLE)?;
    save(&whole)?;
    slot::share(machine, folder)?;
    new(KEY)?.write_all(key.as_bytes())?;
    Ok(whole.metadata()?.len())
}
