//! Every ceiling of the HTTP side, in one place.

use std::time::Duration;

/// The head of a message, with its last empty line. Browsers and servers stop at a quarter of it.
pub(crate) const HEAD_BYTES: usize = 64 * 1024;

/// Fields in a head. Servers stop at about a hundred.
pub(crate) const FIELDS: usize = 128;

/// The line before a chunk, with what a sender may add to the number.
pub(crate) const CHUNK_LINE_BYTES: usize = 1024;

/// What is read at once, and what is gathered before it is written: one record of TLS.
pub(crate) const BLOCK_BYTES: usize = 16 * 1024;

/// What a client may send ahead while its last request is still answered.
pub(crate) const AHEAD_BYTES: usize = 64 * 1024;

/// Interim answers (status 1xx) before the real one.
pub(crate) const INTERIM_ANSWERS: usize = 16;

/// From the first byte of a head to its last.
pub(crate) const HEAD_TIME: Duration = Duration::from_secs(60);

/// A connection on which a client asks nothing.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(300);

/// A server that was asked and says nothing at all. Models think for minutes before the first byte.
pub(crate) const SILENCE: Duration = Duration::from_secs(15 * 60);

/// Bytes that a server's kernel does not take: it is gone, or has not read for so long that its window is shut.
pub(crate) const UNTAKEN: Duration = Duration::from_secs(2 * 60);

/// A handshake, on either side.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(30);

/// How long a refused client may go on sending before its connection is cut, so that it reads why.
pub(crate) const LINGER: Duration = Duration::from_secs(2);

/// Unused connections to servers, all together, and how long each is kept.
pub(crate) const IDLE_CONNECTIONS: usize = 32;
pub(crate) const IDLE_TIME: Duration = Duration::from_secs(30);

/// Streams of one HTTP/2 connection at the same time.
pub(crate) const STREAMS: u32 = 100;

/// Streams that were reset before we looked at them: more of them is an attack.
pub(crate) const PENDING_RESETS: usize = 20;

/// What one side of an HTTP/2 connection may send before it has to wait: a stream, and all of them.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;

/// What is kept for a stream that can not be sent yet.
pub(crate) const SEND_BUFFER_BYTES: usize = 256 * 1024;

/// A client that leaves so soon after its handshake, without a word, did not like the certificate.
pub(crate) const SECOND_THOUGHT: Duration = Duration::from_secs(1);
