//! The records of WASI preview 1, as bytes.

use rustix::fs::{FileType, OFlags, Stat};

/// Everything. What may be done with a file is decided by the folder that it is in and by the kernel, not by the
/// rights that a module sees.
const ALL_RIGHTS: u64 = (1 << 30) - 1;
const SEEK_AND_TELL: u64 = (1 << 2) | (1 << 5);

pub(crate) const APPEND: u16 = 1;
pub(crate) const DATA_SYNC: u16 = 1 << 1;
pub(crate) const NONBLOCK: u16 = 1 << 2;
pub(crate) const SYNC: u16 = 1 << 4;

/// The number of a kind of file.
pub(crate) const fn kind(kind: FileType) -> u8 {
    match kind {
        FileType::BlockDevice => 1,
        FileType::CharacterDevice => 2,
        FileType::Directory => 3,
        FileType::RegularFile => 4,
        FileType::Socket => 6,
        FileType::Symlink => 7,
        FileType::Fifo | FileType::Unknown => 0,
    }
}

/// A `filestat`.
pub(crate) fn filestat(stat: &Stat) -> [u8; 64] {
    let mut bytes = [0; 64];
    let nanos = |seconds: i64, nanos: u64| {
        u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000_000).saturating_add(nanos)
    };
    let words = [
        stat.st_dev,
        stat.st_ino,
        u64::from(kind(FileType::from_raw_mode(stat.st_mode))),
        stat.st_nlink,
        u64::try_from(stat.st_size).unwrap_or(0),
        nanos(stat.st_atime, stat.st_atime_nsec),
        nanos(stat.st_mtime, stat.st_mtime_nsec),
        nanos(stat.st_ctime, stat.st_ctime_nsec),
    ];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// An `fdstat`. A terminal can not be sought in, and that is how a module knows it.
pub(crate) fn fdstat(file: FileType, flags: u16) -> [u8; 24] {
    let rights = if file == FileType::CharacterDevice { ALL_RIGHTS & !SEEK_AND_TELL } else { ALL_RIGHTS };
    let words = [u64::from(kind(file)) | u64::from(flags) << 16, rights, ALL_RIGHTS];
    let mut bytes = [0; 24];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

const FLAGS: [(u16, OFlags); 4] = [
    (APPEND, OFlags::APPEND),
    (DATA_SYNC, OFlags::DSYNC),
    (NONBLOCK, OFlags::NONBLOCK),
    (SYNC, OFlags::SYNC),
];

/// The kernel's flags for those of a module. Unknown ones are none.
pub(crate) fn flags_in(flags: u16) -> OFlags {
    FLAGS.iter().filter(|(ours, _)| flags & ours != 0).map(|(_, theirs)| *theirs).collect()
}

pub(crate) fn flags_out(flags: OFlags) -> u16 {
    FLAGS.iter().filter(|(_, theirs)| flags.contains(*theirs)).fold(0, |all, (ours, _)| all | ours)
}
