//! A caller of keepers that does not block: one connection, one verb.
//!
//! **Invariant:** [`Conversation::next`] may be dropped between polls and loses nothing.

use bytes::{Bytes, BytesMut};
use fumehood_keep::client::CallError;
use fumehood_keep::frame::{HEADER_BYTES, Header, Kind, MOST_BYTES};
use fumehood_keep::wire::{Ask, Said};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// The longest path that fits a socket address, with its end.
const ADDRESS_BYTES: usize = 107;
/// Room that is made for small frames at once.
const ROOM_BYTES: usize = 8 << 10;

/// Where a keeper listens.
#[derive(Clone, Debug)]
pub struct Keeper {
    socket: Arc<Path>,
}

/// One verb, asked.
#[derive(Debug)]
pub struct Conversation {
    hear: Hear,
    speak: Speak,
}

/// The half of a conversation that frames come from.
#[derive(Debug)]
pub struct Hear {
    stream: OwnedReadHalf,
    kept: BytesMut,
}

/// The half of a conversation that frames go to.
#[derive(Debug)]
pub struct Speak {
    stream: OwnedWriteHalf,
}

/// One frame, read.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    Said(Said),
    Bytes(Kind, Bytes),
}

// === impl Keeper ===

impl Keeper {
    /// The keeper that listens at this path.
    #[must_use]
    pub fn at(socket: PathBuf) -> Self {
        Self { socket: socket.into() }
    }

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Connects and asks.
    ///
    /// # Errors
    /// Nobody listens there, or it hung up.
    pub async fn ask(&self, ask: &Ask) -> Result<Conversation, CallError> {
        let words = serde_json::to_vec(ask).map_err(CallError::Words)?;
        let (read, write) = self.connect().await.map_err(CallError::Unreachable)?.into_split();
        let mut speak = Speak { stream: write };
        speak.send(Kind::Json, &words).await?;
        Ok(Conversation { hear: Hear { stream: read, kept: BytesMut::new() }, speak })
    }

    /// Asks, and gives the one answer.
    ///
    /// # Errors
    /// As [`Keeper::ask`], and whatever the keeper failed with.
    pub async fn call(&self, ask: &Ask) -> Result<Said, CallError> {
        self.ask(ask).await?.answer().await
    }

    /// Connects to a port inside: from then on the stream is that port's bytes.
    ///
    /// # Errors
    /// As [`Keeper::call`]; [`fumehood_keep::wire::FailureCode::PortClosed`] where nothing listens.
    pub async fn dial(&self, port: u16) -> Result<UnixStream, CallError> {
        let mut conversation = self.ask(&Ask::Dial { port }).await?;
        conversation.answer().await?;
        conversation.into_stream()
    }

    async fn connect(&self) -> io::Result<UnixStream> {
        if self.socket.as_os_str().len() <= ADDRESS_BYTES {
            return UnixStream::connect(&self.socket).await;
        }
        // A longer path does not fit an address: go by a handle of its folder.
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let folder = File::open(self.socket.parent().ok_or_else(missing)?)?;
        let name = self.socket.file_name().ok_or_else(missing)?;
        UnixStream::connect(Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name)).await
    }
}

// === impl Conversation ===

impl Conversation {
    /// The one answer of a verb that has one; [`CallError::Failed`] where that is a failure.
    ///
    /// # Errors
    /// The keeper failed, hung up, or said something else than words.
    pub async fn answer(&mut self) -> Result<Said, CallError> {
        self.hear.answer().await
    }

    /// The next frame; `None` where the keeper is done.
    ///
    /// # Errors
    /// As [`Hear::next`].
    pub async fn next(&mut self) -> Result<Option<Frame>, CallError> {
        self.hear.next().await
    }

    /// Sends bytes, in as many frames as they need; at least one.
    ///
    /// # Errors
    /// The keeper hung up.
    pub async fn send(&mut self, kind: Kind, bytes: &[u8]) -> Result<(), CallError> {
        self.speak.send(kind, bytes).await
    }

    /// Both halves, to be used at once.
    #[must_use]
    pub fn split(self) -> (Hear, Speak) {
        (self.hear, self.speak)
    }

    /// The stream itself, for what is no longer framed.
    ///
    /// # Errors
    /// The keeper said something unframed before it was asked to.
    pub fn into_stream(self) -> Result<UnixStream, CallError> {
        if !self.hear.kept.is_empty() {
            return Err(CallError::Closed);
        }
        self.hear.stream.reunite(self.speak.stream).map_err(|_| CallError::Closed)
    }
}

// === impl Hear ===

impl Hear {
    /// The next frame, as words; [`CallError::Failed`] where they tell of a failure.
    ///
    /// # Errors
    /// The keeper failed, hung up, or said something else than words.
    pub async fn answer(&mut self) -> Result<Said, CallError> {
        match self.next().await? {
            Some(Frame::Said(Said::Failed(failure))) => Err(failure.into()),
            Some(Frame::Said(said)) => Ok(said),
            Some(Frame::Bytes(..)) | None => Err(CallError::Closed),
        }
    }

    /// The next frame; `None` where the keeper is done.
    ///
    /// # Errors
    /// The connection broke, or carries something else than frames.
    pub async fn next(&mut self) -> Result<Option<Frame>, CallError> {
        loop {
            if let Some(frame) = self.parse()? {
                return Ok(Some(frame));
            }
            let got = self.read().await.map_err(CallError::Unreachable)?;
            if got == 0 {
                return if self.kept.is_empty() { Ok(None) } else { Err(CallError::Closed) };
            }
        }
    }

    /// Reads no further than the frame at hand while a verb could end in raw bytes: a header first, then its rest.
    async fn read(&mut self) -> io::Result<usize> {
        let wanted = match self.header() {
            Some(Ok(header)) => HEADER_BYTES + header.length - self.kept.len(),
            Some(Err(_)) => 0,
            None => HEADER_BYTES - self.kept.len(),
        };
        self.kept.reserve(wanted.max(ROOM_BYTES));
        let mut limited = (&mut self.stream).take(u64::try_from(wanted).unwrap_or(u64::MAX));
        limited.read_buf(&mut self.kept).await
    }

    fn header(&self) -> Option<Result<Header, CallError>> {
        let bytes = self.kept.first_chunk::<HEADER_BYTES>()?;
        Some(Header::parse(*bytes).map_err(CallError::Flaw))
    }

    fn parse(&mut self) -> Result<Option<Frame>, CallError> {
        let Some(header) = self.header().transpose()? else { return Ok(None) };
        if self.kept.len() < HEADER_BYTES + header.length {
            return Ok(None);
        }
        let mut frame = self.kept.split_to(HEADER_BYTES + header.length);
        let bytes = frame.split_off(HEADER_BYTES).freeze();
        match header.kind {
            Kind::Json => {
                serde_json::from_slice(&bytes).map(|said| Some(Frame::Said(said))).map_err(CallError::Words)
            }
            Kind::Stdout
            | Kind::Stderr
            | Kind::Terminal
            | Kind::Input
            | Kind::InputEnd
            | Kind::Data
            | Kind::DataEnd => Ok(Some(Frame::Bytes(header.kind, bytes))),
        }
    }
}

// === impl Speak ===

impl Speak {
    /// Says that no more comes; the other half goes on.
    ///
    /// # Errors
    /// The keeper hung up.
    pub async fn close(&mut self) -> Result<(), CallError> {
        self.stream.shutdown().await.map_err(CallError::Unreachable)
    }

    /// Sends bytes, in as many frames as they need; at least one.
    ///
    /// # Errors
    /// The keeper hung up.
    pub async fn send(&mut self, kind: Kind, bytes: &[u8]) -> Result<(), CallError> {
        let mut rest = bytes;
        loop {
            let (now, later) = rest.split_at(rest.len().min(MOST_BYTES));
            let header = Header::print(kind, now.len());
            self.stream.write_all(&header).await.map_err(CallError::Unreachable)?;
            self.stream.write_all(now).await.map_err(CallError::Unreachable)?;
            if later.is_empty() {
                return Ok(());
            }
            rest = later;
        }
    }
}
