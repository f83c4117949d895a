//! A second place for every line, which must have it too before an act happens: a file that can only be added to, or
//! the host's syslog. What the writer's own folder loses later is there.
//!
//! For what is to be sent later, and may wait, there is nothing to be done here: the record itself is the buffer.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// What one message to a syslog holds of a line: more, and some daemons refuse it.
const MESSAGE_BYTES: usize = 60 << 10;
/// Facility `local0`, severity `informational`.
const PRIORITY: &str = "<134>fumehood: ";

static CHOSEN: OnceLock<MirrorTo> = OnceLock::new();

/// Where lines go besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorTo {
    File(PathBuf),
    Syslog(PathBuf),
}

/// What is wrong with a text that should name a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a mirror is `file:/PATH` or `syslog:/PATH`, as in `syslog:/dev/log`")]
pub struct BadMirror;

/// A mirror that is written to.
#[derive(Debug)]
pub(crate) enum Mirror {
    File(File),
    Syslog(UnixDatagram),
}

/// From now on every record that this process opens is mirrored. The first to say so is heard.
pub fn mirror_to(to: MirrorTo) {
    let _ = CHOSEN.set(to);
}

/// The mirror that was chosen for this process, opened.
pub(crate) fn chosen() -> io::Result<Option<Mirror>> {
    CHOSEN.get().map(Mirror::open).transpose()
}

// === impl MirrorTo ===

impl MirrorTo {
    /// Reads `file:/PATH` or `syslog:/PATH`.
    pub fn parse(text: &str) -> Result<Self, BadMirror> {
        let (kind, path) = text.split_once(':').ok_or(BadMirror)?;
        let path = Path::new(path);
        match kind {
            "file" if path.is_absolute() => Ok(Self::File(path.to_owned())),
            "syslog" if path.is_absolute() => Ok(Self::Syslog(path.to_owned())),
            _ => Err(BadMirror),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Syslog(path) => path,
        }
    }
}

// === impl Mirror ===

impl Mirror {
    pub(crate) fn open(to: &MirrorTo) -> io::Result<Self> {
        match to {
            MirrorTo::File(path) => {
                let mut options = OpenOptions::new();
                options.append(true).create(true).mode(0o600);
                let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
                if !file.metadata()?.is_file() {
                    return Err(io::Error::new(ErrorKind::InvalidInput, "it is no plain file"));
                }
                Ok(Self::File(file))
            }
            MirrorTo::Syslog(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.connect(path)?;
                Ok(Self::Syslog(socket))
            }
        }
    }

    /// Writes whole lines. An error: not all of them are there.
    pub(crate) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Self::File(file) => file.write_all(lines),
            Self::Syslog(socket) => {
                for line in lines.split_inclusive(|byte| *byte == b'\n') {
                    socket.send(&message(line.strip_suffix(b"\n").unwrap_or(line)))?;
                }
                Ok(())
            }
        }
    }
}

/// One message. A longer line is there by its beginning and its end, where its digest is.
fn message(line: &[u8]) -> Vec<u8> {
    let mut message = PRIORITY.as_bytes().to_vec();
    match (line.get(..MESSAGE_BYTES / 2), line.len().checked_sub(MESSAGE_BYTES / 2)) {
        (Some(front), Some(back)) if line.len() > MESSAGE_BYTES => {
            message.extend_from_slice(front);
            message.extend_from_slice("…".as_bytes());
            message.extend_from_slice(line.get(back..).unwrap_or_default());
        }
        _ => message.extend_from_slice(line),
    }
    message
}
