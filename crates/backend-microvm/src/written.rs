//! A machine that was written down while it ran: all of its memory, its devices, its second disk.
//!
//! ```text
//! whole     memory and devices, in the order that QEMU writes them      key   of the template that it was made from
//! memory    the same memory, mapped privately by all that begin from it: made of `whole` by the first of them, which
//! state     starts a machine for that, and the rest of it               workspace.erofs   its second disk, if it has one
//! ```
//!
//! It fits a machine of the same template alone: the same QEMU, kernel, image, shape and processor.
//!
//! **Invariant:** `memory` and `state` are whole, or not there.

use crate::machine::{Hardware, Machine, Parts, Place, STATE, Start, failed};
use crate::slot;
use crate::template::Template;
use fumehood_backend::LaunchError;
use fumehood_sys::process;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

const WHOLE: &str = "whole";
const KEY: &str = "key";
const MEMORY: &str = "memory";
const REST: &str = "state";
/// Some hundred megabytes, on a host with much else to do.
const CONVERT_LIMIT: Duration = Duration::from_secs(120);
const END_LIMIT: Duration = Duration::from_secs(10);

/// Opens one for another machine to begin from.
pub(crate) fn open(
    folder: &Path,
    (key, hardware, root): (&str, Hardware, OwnedFd),
    place: &Place<'_>,
) -> Result<Template, LaunchError> {
    let step = |error: io::Error| failed("open the machine that was written down", &error);
    if fs::read_to_string(folder.join(KEY)).map_err(step)? != key {
        return Err(LaunchError {
            step: "begin with the machine that was written down".to_owned(),
            why: "it was of another image, memory, kernel, QEMU, program or processor than this one"
                .to_owned(),
            remedy:
                "create the sandbox with the same words as the one that it was taken of, on the same host"
                    .to_owned(),
        });
    }
    let lock = File::options().create(true).truncate(false).write(true).mode(0o600).open(folder.join("lock"));
    let lock = lock.map_err(step)?;
    lock.lock().map_err(step)?;
    if !folder.join(REST).exists() {
        convert(folder, (hardware, root), place)?;
    }
    let open = |name: &str| File::open(folder.join(name)).map_err(step);
    Ok(Template { memory: open(MEMORY)?, state: open(REST)? })
}

/// Makes of `whole` what can be shared, by a machine that loads it and runs nothing.
fn convert(
    folder: &Path,
    (hardware, root): (Hardware, OwnedFd),
    place: &Place<'_>,
) -> Result<(), LaunchError> {
    const STEP: &str = "make the machine's memory one that can be shared";
    let step = |error: io::Error| failed(STEP, &error);
    let (new_memory, new_state) = (folder.join(".memory"), folder.join(".state"));
    let new = |path: &Path| {
        File::options().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)
    };
    let (memory, state) = (new(&new_memory).map_err(step)?, new(&new_state).map_err(step)?);
    memory.set_len(hardware.memory_mib << 20).map_err(step)?;
    let parts = Parts {
        memory: memory.try_clone().map_err(step)?.into(),
        root,
        slot: slot::of_folder(folder).map_err(step)?,
        state: File::open(folder.join(WHOLE)).map_err(step)?.into(),
        tap: None,
    };
    let deadline = Instant::now() + CONVERT_LIMIT;
    let mut machine = Machine::start(hardware, &Start::Convert, parts, place, deadline)?;
    let monitor = &mut machine.monitor;
    let converted = monitor.load_whole(STATE).and_then(|()| monitor.save_rest(state.as_fd()));
    let converted = converted.map_err(|error| machine.broken(STEP, &error));
    let _ = machine.monitor.quit();
    let pidfd = &machine.spawned.pidfd;
    if converted.is_err() || !process::wait_gone(pidfd.as_fd(), END_LIMIT).unwrap_or(false) {
        let _ = process::send_signal(pidfd.as_fd(), 9);
    }
    process::reap(pidfd);
    converted?;
    fs::rename(new_memory, folder.join(MEMORY)).map_err(step)?;
    fs::rename(new_state, folder.join(REST)).map_err(step)?;
    // It is there twice now.
    fs::remove_file(folder.join(WHOLE)).map_err(step)
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
