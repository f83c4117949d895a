//! A caller that waits. The daemon has one of its own that does not.

use crate::frame::{Flaw, HEADER_BYTES, Header, Kind, MOST_BYTES};
use crate::wire::{Ask, Failure, Said};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The longest path that the kernel takes for a socket.
const SOCKET_PATH_BYTES: usize = 107;

/// Connects to a socket, also where its path is longer than the kernel takes.
///
/// # Errors
/// Nobody listens there.
pub fn connect(socket: &Path) -> io::Result<UnixStream> {
    if socket.as_os_str().len() <= SOCKET_PATH_BYTES {
        return UnixStream::connect(socket);
    }
    let (folder, name) = socket.parent().zip(socket.file_name()).ok_or(io::ErrorKind::InvalidInput)?;
    let folder = File::open(folder)?;
    UnixStream::connect(Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name))
}

/// One connection to a keeper: one verb.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
}

/// One frame, read.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, and looked into where it was read")]
pub enum Frame {
    Said(Said),
    Bytes(Kind, Vec<u8>),
}

/// Why a verb was not answered.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("reach the keeper")]
    Unreachable(#[source] io::Error),
    #[error("understand the keeper")]
    Flaw(#[from] Flaw),
    #[error("understand the keeper")]
    Words(#[source] serde_json::Error),
    #[error("hear the keeper's answer: it closed the connection")]
    Closed,
    #[error(transparent)]
    Failed(#[from] Failure),
}

// === impl Connection ===

impl Connection {
    /// Connects to the socket of a keeper and asks.
    ///
    /// # Errors
    /// Nobody listens there, or it hung up.
    pub fn ask(socket: &Path, ask: &Ask) -> Result<Self, CallError> {
        let stream = connect(socket).map_err(CallError::Unreachable)?;
        let mut connection = Self { stream };
        let words = serde_json::to_vec(ask).map_err(CallError::Words)?;
        connection.send(Kind::Json, &words)?;
        Ok(connection)
    }

    /// Asks, and gives the one answer.
    ///
    /// # Errors
    /// As [`Connection::ask`], and whatever the keeper failed with.
    pub fn call(socket: &Path, ask: &Ask) -> Result<Said, CallError> {
        match Self::ask(socket, ask)?.next()? {
            Some(Frame::Said(Said::Failed(failure))) => Err(failure.into()),
            Some(Frame::Said(said)) => Ok(said),
            Some(Frame::Bytes(..)) | None => Err(CallError::Closed),
        }
    }

    /// Sends bytes, in as many frames as they need; at least one.
    ///
    /// # Errors
    /// The keeper hung up.
    pub fn send(&mut self, kind: Kind, bytes: &[u8]) -> Result<(), CallError> {
        let mut rest = bytes;
        loop {
            let (now, later) = rest.split_at(rest.len().min(MOST_BYTES));
            let header = Header::print(kind, now.len());
            let sent = self.stream.write_all(&header).and_then(|()| self.stream.write_all(now));
            sent.map_err(CallError::Unreachable)?;
            if later.is_empty() {
                return Ok(());
            }
            rest = later;
        }
    }

    /// The next frame; `None` where the keeper is done.
    ///
    /// # Errors
    /// The connection broke, or carries something else than frames.
    #[expect(clippy::should_implement_trait, reason = "an iterator would have no way to say why it ends")]
    pub fn next(&mut self) -> Result<Option<Frame>, CallError> {
        let mut header = [0; HEADER_BYTES];
        match self.stream.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(CallError::Unreachable(error)),
        }
        let Header { kind, length } = Header::parse(header)?;
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).map_err(CallError::Unreachable)?;
        match kind {
            Kind::Json => Ok(Some(Frame::Said(serde_json::from_slice(&bytes).map_err(CallError::Words)?))),
            Kind::Stdout
            | Kind::Stderr
            | Kind::Terminal
            | Kind::Input
            | Kind::InputEnd
            | Kind::Data
            | Kind::DataEnd => Ok(Some(Frame::Bytes(kind, bytes))),
        }
    }

    /// Readable when [`Connection::next`] has something to read.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// The stream itself, for what is no longer framed.
    #[must_use]
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }
}

impl From<UnixStream> for Connection {
    /// A connection that has been made, and on which somebody has asked.
    fn from(stream: UnixStream) -> Self {
        Self { stream }
    }
}
