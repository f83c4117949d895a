//! Bytes from one connection to another, unread.
//!
//! **Invariant:** a connection that is idle holds no buffer; one that is not holds one pipe at most in each
//! direction, whatever goes through.

use fumehood_model::egress::Denial;
use fumehood_sys::splice::{enlarge, splice};
use std::cell::RefCell;
use std::fmt;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsFd as _;
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::WriteHalf;

/// What a pipe should hold: more than a socket gives at once.
const PIPE_BYTES: usize = 256 << 10;
/// Pipes that are kept for the next one that needs some.
const MOST_SPARE: usize = 8;

/// Why a tunnel ended other than well.
#[derive(Debug)]
pub(crate) enum Fault {
    Denied(Denial),
    Client(io::Error),
    Server(io::Error),
    Pipe(io::Error),
    Stopped,
}

/// Pipes that nobody uses now.
#[derive(Debug, Default)]
pub(crate) struct Pipes(RefCell<Vec<Pipe>>);

/// Empty whenever it lies among the spare ones.
#[derive(Debug)]
struct Pipe {
    reader: PipeReader,
    writer: PipeWriter,
    room_bytes: usize,
}

/// One direction: whose fault a failure is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    Out,
    In,
}

// === impl Pipes ===

impl Pipes {
    fn take(&self) -> io::Result<Pipe> {
        if let Some(pipe) = self.0.borrow_mut().pop() {
            return Ok(pipe);
        }
        let (reader, writer) = io::pipe()?;
        // A user's pipes may hold so much together; beyond, a smaller one does as well.
        let room_bytes = enlarge(writer.as_fd(), PIPE_BYTES).unwrap_or(4 << 10);
        Ok(Pipe { reader, writer, room_bytes })
    }

    fn give_back(&self, pipe: Pipe) {
        let mut spare = self.0.borrow_mut();
        if spare.len() < MOST_SPARE {
            spare.push(pipe);
        }
    }
}

/// Moves bytes until `from` ends, and then ends `to`. Each lot is counted before it is passed on.
pub(crate) async fn pump(
    pipes: &Pipes,
    from: &TcpStream,
    to: &mut WriteHalf<'_>,
    direction: Direction,
    count: impl Fn(u64) -> Result<(), Denial>,
) -> Result<(), Fault> {
    loop {
        from.readable().await.map_err(|error| direction.source(error))?;
        let pipe = pipes.take().map_err(Fault::Pipe)?;
        // While there is something, the pipe is kept.
        loop {
            let filled = from
                .try_io(Interest::READABLE, || splice(from.as_fd(), pipe.writer.as_fd(), pipe.room_bytes));
            match filled {
                Ok(0) => {
                    pipes.give_back(pipe);
                    return to.shutdown().await.map_err(|error| direction.sink(error));
                }
                Ok(bytes) => {
                    count(u64::try_from(bytes).unwrap_or(u64::MAX)).map_err(Fault::Denied)?;
                    empty(&pipe, bytes, to.as_ref()).await.map_err(|error| direction.sink(error))?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(direction.source(error)),
            }
            // Others have their turn, too, where one connection never runs dry.
            tokio::task::consume_budget().await;
        }
        pipes.give_back(pipe);
    }
}

async fn empty(pipe: &Pipe, mut bytes: usize, to: &TcpStream) -> io::Result<()> {
    while bytes > 0 {
        let moved =
            to.async_io(Interest::WRITABLE, || splice(pipe.reader.as_fd(), to.as_fd(), bytes)).await?;
        if moved == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = bytes.saturating_sub(moved);
    }
    Ok(())
}

// === impl Direction ===

impl Direction {
    fn source(self, error: io::Error) -> Fault {
        match self {
            Self::Out => Fault::Client(error),
            Self::In => Fault::Server(error),
        }
    }

    pub(crate) fn sink(self, error: io::Error) -> Fault {
        match self {
            Self::Out => Fault::Server(error),
            Self::In => Fault::Client(error),
        }
    }
}

// === impl Fault ===

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(denial) => denial.fmt(f),
            Self::Client(error) => write!(f, "the client's connection failed: {error}"),
            Self::Server(error) => write!(f, "the server's connection failed: {error}"),
            Self::Pipe(error) => write!(f, "there is no pipe to pass bytes on: {error}"),
            Self::Stopped => f.write_str("the run is over"),
        }
    }
}
