//! The file system of a layer's own: an image in the layer's folder, which holds its disk limit.
//!
//! ```text
//! shared/disk-1-BYTES.img   made once for each size, all but empty    layers/ID/disk.img   a copy
//! ```
//!
//! The image is sparse: it takes what is written to it, and can never take more than its size. It is
//! mounted nowhere that anybody sees; whoever works on the layer holds the mount by a descriptor, and
//! with the last of these the loop device goes (ADR 0017).
//!
//! **Invariant:** an image is mounted once at a time, by whomever; others share that mount.

use fumehood_sys::dirfd::{DirHandle, RenameMode};
use fumehood_sys::{host, loopdev};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

/// The image, in the layer's folder.
pub(super) const IMAGE: &str = "disk.img";
/// Its name from then on when something that was written to it is lost.
const DAMAGED: &str = "damaged.img";
/// Beside it, where the layer changes something.
const KEPT: &str = "kept";
/// Changes with [`FEATURES`].
const FORM: u32 = 1;
/// Whatever the host's own configuration says: no journal (a layer that a crash of the host spoils is made
/// again), and nothing else that takes room before something is written.
const FEATURES: &str = "none,filetype,sparse_super,large_file,huge_file,flex_bg,extent,64bit,dir_nlink,extra_isize,ext_attr,dir_index,metadata_csum";
const BYTES_PER_FILE: &str = "8192";
const MAKERS: [&str; 3] = ["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", "/usr/bin/mkfs.ext4"];
const UNIT_BYTES: u64 = 1 << 20;
const BLOCK_BYTES: u64 = 512;

/// A layer's own file system, mounted when it is first needed.
#[derive(Debug)]
pub struct Disk {
    bytes: u64,
    /// Its root, and a handle opened before anything was written: it tells what was lost since.
    mount: OnceLock<(Arc<OwnedFd>, DirHandle)>,
    damaged: bool,
}

/// Why a layer has no file system of its own.
#[derive(Debug, thiserror::Error)]
pub enum NoDisk {
    #[error("only root can give it a file system of its own")]
    NotRoot,
    #[error("there are no loop devices here: {0}")]
    NoLoop(io::Error),
    #[error("there is no `mkfs.ext4` here")]
    NoMaker,
    #[error("`mkfs.ext4` failed")]
    Maker,
    #[error("the state folder's file system keeps no holes in files")]
    NotSparse,
    #[error("the image can not be made: {0}")]
    Image(io::Error),
    #[error("the image can not be mounted: {0}")]
    Mount(io::Error),
}

// === impl Disk ===

impl Disk {
    /// Whether layers can have file systems of their own here. Makes nothing.
    pub fn possible() -> Result<(), NoDisk> {
        if host::euid() != 0 {
            return Err(NoDisk::NotRoot);
        }
        loopdev::available().map_err(NoDisk::NoLoop)?;
        maker().map(drop).ok_or(NoDisk::NoMaker)
    }

    /// The bytes that a layer with this limit would get, if it can get any here. Makes nothing.
    pub fn foresee(shared: &Path, limit_bytes: u64) -> Result<u64, NoDisk> {
        Self::possible()?;
        let shared = DirHandle::open(shared).map_err(NoDisk::Image)?;
        Ok(size(&shared, limit_bytes))
    }

    /// Makes and mounts the file system of a new layer in `dir`.
    pub fn make(dir: &DirHandle, shared: &Path, limit_bytes: u64) -> Result<Self, NoDisk> {
        let bytes = Self::foresee(shared, limit_bytes)?;
        let shared_dir = DirHandle::open(shared).map_err(NoDisk::Image)?;
        let template = template_name(bytes);
        if shared_dir.look(OsStr::new(&template)).map_err(NoDisk::Image)?.is_none() {
            make_template(shared, &shared_dir, &template, bytes)?;
        }
        let disk = copy(&shared_dir, &template, dir, bytes);
        let disk = disk.and_then(|disk| disk.mount(dir).map(drop).map_err(NoDisk::Mount).map(|()| disk));
        if disk.is_err() {
            // The first failure is the one to tell.
            let _ = dir.remove_file(OsStr::new(IMAGE));
        }
        disk
    }

    /// The file system of a layer that is there, if it has one of its own.
    pub fn find(dir: &DirHandle) -> io::Result<Option<Self>> {
        let of = |name| dir.look(OsStr::new(name));
        let (found, damaged) = match of(DAMAGED)? {
            None => (of(IMAGE)?, false),
            damaged => (damaged, true),
        };
        Ok(found.map(|stat| Self { bytes: stat.size, mount: OnceLock::new(), damaged }))
    }

    /// Its size.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its root, mounted nowhere. `dir` is the layer's folder.
    pub fn mount(&self, dir: &DirHandle) -> io::Result<&Arc<OwnedFd>> {
        self.mounted(dir).map(|(mount, _)| mount)
    }

    /// As [`settle`], for whoever has had it mounted all the while.
    pub(super) fn settle(&self, dir: &DirHandle) -> io::Result<()> {
        settle(&self.mounted(dir)?.1, dir)
    }

    fn mounted(&self, dir: &DirHandle) -> io::Result<&(Arc<OwnedFd>, DirHandle)> {
        if let Some(mounted) = self.mount.get() {
            return Ok(mounted);
        }
        if self.damaged {
            let why = "the host's disk had no room for all that was written to it, so it is damaged; it can be discarded";
            return Err(io::Error::other(why));
        }
        let (image, _) = dir.update(Path::new(IMAGE))?;
        let mount = Arc::new(loopdev::mount_ext4(&image)?);
        let watch = DirHandle::from(mount.try_clone()?).sub(Path::new(""))?;
        Ok(self.mount.get_or_init(|| (mount, watch)))
    }

    /// Its root, as a folder to work beneath.
    pub fn root(&self, dir: &DirHandle) -> io::Result<DirHandle> {
        self.mount(dir)?.try_clone().map(DirHandle::from)
    }
}

/// Writes out what is still in memory of the mounted file system `root`, and where any of it is lost sees to it
/// that nobody takes the layer in `dir` for what the sandbox wrote. A sandbox is promised its limit, not the
/// host's disk: that may fill up by others meanwhile.
pub(crate) fn settle(root: &DirHandle, dir: &DirHandle) -> io::Result<()> {
    let written = root.sync_file_system();
    if written.is_err() {
        // A new name takes no room.
        dir.rename(OsStr::new(IMAGE), dir, OsStr::new(DAMAGED), RenameMode::Replace)?;
    }
    written.map_err(|error| {
        io::Error::other(format!(
            "some of what was written is lost, as the host's disk is full or fails ({error})"
        ))
    })
}

/// Whether [`keep`] was said of the layer in `dir`.
pub(crate) fn is_kept(dir: &DirHandle) -> bool {
    matches!(dir.look(OsStr::new(KEPT)), Ok(Some(_)))
}

/// Says that the layer in `dir` changes something, so that nobody has to mount it to find out.
pub(crate) fn keep(dir: &DirHandle) {
    // Where it can not be said, somebody looks once more.
    let _ = dir.create_new(OsStr::new(KEPT), 0o600);
}

/// The limit in whole units, and never more than there is room for: past the end of the host's own
/// disk, writes that the sandbox was promised would be lost.
fn size(shared: &DirHandle, limit_bytes: u64) -> u64 {
    let room = host::room(shared.as_fd().as_raw_fd()).map_or(u64::MAX, |room| room.free_bytes);
    let bytes = if limit_bytes <= room {
        limit_bytes
    } else {
        // Few sizes, as each has a template.
        room.checked_ilog2().map_or(0, |power| 1 << power)
    };
    (bytes / UNIT_BYTES).max(1) * UNIT_BYTES
}

fn template_name(bytes: u64) -> String {
    format!("disk-{FORM}-{bytes}.img")
}

fn maker() -> Option<&'static str> {
    MAKERS.into_iter().find(|path| Path::new(path).exists())
}

fn make_template(shared: &Path, dir: &DirHandle, name: &str, bytes: u64) -> Result<(), NoDisk> {
    let program = maker().ok_or(NoDisk::NoMaker)?;
    let temp = format!(".{name}.{}", std::process::id());
    let made = fill_template(program, (dir, &shared.join(&temp)), &temp, bytes).and_then(|()| {
        dir.rename(OsStr::new(&temp), dir, OsStr::new(name), RenameMode::Replace).map_err(NoDisk::Image)
    });
    if made.is_err() {
        let _ = dir.remove_file(OsStr::new(&temp));
    }
    made
}

fn fill_template(
    program: &str,
    (dir, path): (&DirHandle, &PathBuf),
    temp: &str,
    bytes: u64,
) -> Result<(), NoDisk> {
    let file = dir.create_new(OsStr::new(temp), 0o600).map_err(NoDisk::Image)?;
    file.set_len(bytes).map_err(NoDisk::Image)?;
    let status = Command::new(program)
        .args(["-q", "-F", "-b", "4096", "-I", "256", "-m", "0", "-i", BYTES_PER_FILE, "-O", FEATURES])
        .args(["-e", "remount-ro", "-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", "-U", "random"])
        .arg(path)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(NoDisk::Image)?;
    if !status.success() {
        return Err(NoDisk::Maker);
    }
    let kept = std::fs::symlink_metadata(path).map_err(NoDisk::Image)?;
    let taken = std::os::unix::fs::MetadataExt::blocks(&kept).saturating_mul(BLOCK_BYTES);
    if taken >= bytes { Err(NoDisk::NotSparse) } else { Ok(()) }
}

fn copy(shared: &DirHandle, template: &str, dir: &DirHandle, bytes: u64) -> Result<Disk, NoDisk> {
    // Left by a start that was cut short.
    let _ = dir.remove_file(OsStr::new(IMAGE));
    let copied = shared.read(Path::new(template)).and_then(|(from, _)| {
        let to = dir.create_new(OsStr::new(IMAGE), 0o600)?;
        loopdev::copy_sparse(&from, &to)
    });
    copied.map_err(NoDisk::Image)?;
    Ok(Disk { bytes, mount: OnceLock::new(), damaged: false })
}
