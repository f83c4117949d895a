//! A file system in a file: a free loop device is bound to an image, and what is on it is mounted nowhere.
//!
//! The image is locked (`flock`) through the very open file that the device is given, so the lock lives
//! exactly as long as the device does: an image is never bound twice, whatever happens to whoever bound
//! it. The device lets go of it by itself with its last user (`LO_FLAGS_AUTOCLEAR`).

use crate::dirfd::FileHandle;
use crate::launch::detached;
use crate::raw::{self, Errno, syscall};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const CONTROL: &str = "/dev/loop-control";

// `include/uapi/linux/loop.h`
const LOOP_CTL_GET_FREE: usize = 0x4C82;
const LOOP_CONFIGURE: usize = 0x4C0A;
const LOOP_GET_STATUS64: usize = 0x4C05;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const BLOCK_BYTES: u32 = 4096;

/// Others may take the device that was found free before we do.
const RACES: u32 = 64;
/// How long an image may still be held by a device whose last user is on its way out.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);
const RELEASE_STEP: Duration = Duration::from_millis(1);

/// `struct loop_info64`
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// A bound device, held open.
#[derive(Debug)]
struct Device {
    file: File,
    path: PathBuf,
}

/// Whether this process may ask for loop devices.
pub fn available() -> io::Result<()> {
    control().map(drop)
}

/// Mounts the ext4 file system in an image, detached: it is seen through the descriptor alone.
///
/// An image that is mounted already gives another view of the same file system. `image` must be open to
/// write. Set-id bits, devices and programs do not work on the view. Needs root in the host's user namespace.
pub fn mount_ext4(image: &FileHandle) -> io::Result<OwnedFd> {
    let device = device_of(image.file())?;
    let source = CString::new(device.path.into_os_string().into_encoded_bytes())?;
    // The inode tables of a new image are holes, which are zero already: nobody has to write them. A flush
    // would wait for the host's disk, for what nobody was promised to find after a loss of power.
    let mounted = detached(c"ext4", &[(c"source", &source)], &[c"noinit_itable", c"nobarrier"]);
    // Held until here, so that it was not taken away meanwhile.
    drop(device.file);
    mounted
}

/// Copies what is not a hole from the start of `from` to an empty `to`, which gets the same length.
pub fn copy_sparse(from: &FileHandle, to: &FileHandle) -> io::Result<()> {
    copy_data(from.file(), to.file())
}

fn copy_data(from: &File, to: &File) -> io::Result<()> {
    let length = from.metadata()?.len();
    to.set_len(length)?;
    let mut buffer = vec![0_u8; 64 * 1024];
    let mut at = 0;
    while let Some(start) = seek(from, at, libc::SEEK_DATA)? {
        let end = seek(from, start, libc::SEEK_HOLE)?.unwrap_or(length);
        at = start;
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
            let count = from.read_at(buffer.get_mut(..want).unwrap_or_default(), at)?;
            if count == 0 {
                return Ok(());
            }
            to.write_all_at(buffer.get(..count).unwrap_or_default(), at)?;
            at = at.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
        }
    }
    Ok(())
}

/// The device that is bound to `image`: ours from now on, or that of whoever uses the image meanwhile.
fn device_of(image: &File) -> io::Result<Device> {
    let deadline = Instant::now() + RELEASE_LIMIT;
    loop {
        if lock(image)? {
            return bind(image);
        }
        if let Some(device) = bound_to(image) {
            return Ok(device);
        }
        // Bound, and not to be found: it is being let go at this moment.
        if Instant::now() >= deadline {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "the image is held by a device"));
        }
        std::thread::sleep(RELEASE_STEP);
    }
}

fn bind(image: &File) -> io::Result<Device> {
    let control = control()?;
    for _race in 0..RACES {
        let number = ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE, 0)?;
        let (file, path) = open_device(number)?;
        match configure(&file, image) {
            Err(Errno(libc::EBUSY)) => {}
            Err(error) => return Err(error.into()),
            Ok(()) => return Ok(Device { file, path }),
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "every free loop device was taken by others"))
}

/// The device that is bound to the very file of `image`, if there is one. While it is held open it stays bound.
fn bound_to(image: &File) -> Option<Device> {
    let wanted = image.metadata().ok()?;
    let numbers = std::fs::read_dir("/sys/block")
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("loop")?.parse::<usize>().ok());
    let open = |number| {
        let (file, path) = open_device(number).ok()?;
        let info = status(&file).ok()?;
        ((info.device, info.inode) == (wanted.dev(), wanted.ino())).then_some(Device { file, path })
    };
    numbers.into_iter().find_map(open)
}

fn control() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(CONTROL)
}

fn open_device(number: usize) -> io::Result<(File, PathBuf)> {
    let path = PathBuf::from(format!("/dev/loop{number}"));
    Ok((OpenOptions::new().read(true).write(true).open(&path)?, path))
}

fn configure(device: &File, image: &File) -> raw::Result<()> {
    let info = LoopInfo { flags: LO_FLAGS_AUTOCLEAR, ..empty() };
    let config =
        LoopConfig { fd: image.as_raw_fd().cast_unsigned(), block_size: BLOCK_BYTES, info, reserved: [0; 8] };
    ioctl(device.as_raw_fd(), LOOP_CONFIGURE, std::ptr::from_ref(&config) as usize).map(drop)
}

fn status(device: &File) -> raw::Result<LoopInfo> {
    let mut info = empty();
    ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, std::ptr::from_mut(&mut info) as usize)?;
    Ok(info)
}

const fn empty() -> LoopInfo {
    LoopInfo {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    }
}

/// One of the requests above; `argument` is zero, or the address of the structure that the request takes.
fn ioctl(device: RawFd, request: usize, argument: usize) -> raw::Result<usize> {
    // SAFETY: each caller passes the structure of its request with the kernel's layout, live through the
    // call and writable where the kernel answers in it.
    unsafe { syscall(libc::SYS_ioctl, [raw::fd(device), request, argument, 0, 0, 0]) }
}

/// Whether the lock was free.
fn lock(image: &File) -> io::Result<bool> {
    match image.try_lock() {
        Ok(()) => Ok(true),
        Err(std::fs::TryLockError::WouldBlock) => Ok(false),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

/// The next place of a kind (`SEEK_DATA`, `SEEK_HOLE`); `None` past the last.
fn seek(file: &File, from: u64, kind: i32) -> io::Result<Option<u64>> {
    let from = usize::try_from(from).unwrap_or(usize::MAX);
    let kind = usize::try_from(kind).unwrap_or_default();
    // SAFETY: numbers only.
    match unsafe { syscall(libc::SYS_lseek, [raw::fd(file.as_raw_fd()), from, kind, 0, 0, 0]) } {
        Ok(at) => Ok(u64::try_from(at).ok()),
        Err(Errno(libc::ENXIO)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn the_structures_have_the_kernels_size() {
        assert_eq!(size_of::<LoopInfo>(), 232);
        assert_eq!(size_of::<LoopConfig>(), 304);
    }

    #[test]
    fn a_sparse_copy_is_equal_and_as_sparse() {
        let folder = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).open(folder.path().join(name)).unwrap()
        };
        let (mut from, to) = (open("from"), open("to"));
        from.write_all(b"head").unwrap();
        from.write_all_at(b"tail", 64 << 20).unwrap();
        from.set_len(128 << 20).unwrap();
        copy_data(&from, &to).unwrap();
        let mut word = [0; 4];
        to.read_exact_at(&mut word, 64 << 20).unwrap();
        assert_eq!(&word, b"tail");
        assert_eq!(to.metadata().unwrap().len(), 128 << 20);
        assert!(to.metadata().unwrap().blocks() <= from.metadata().unwrap().blocks() + 8);
    }
}
