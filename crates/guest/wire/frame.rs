//! What the host and `guestd` say to each other.
//!
//! One source, compiled into both programs, so that the two sides can not drift apart. The stream is a
//! sequence of frames: a header of [`HEADER_BYTES`], then a payload of at most [`PAYLOAD_BYTES`]. Numbers
//! are little-endian. It must not know how bytes travel, nor what is done about a frame.
//!
//! Everything is about a *channel*: a command, a dialled connection, a tree of files on its way, or one
//! question. The host picks a channel's number and never uses it again. A channel carries up to three
//! streams: [`INPUT`] goes inward, [`OUTPUT`] and [`ERROR`] outward. Who sends on a stream may have
//! [`WINDOW_BYTES`] on the way, and more once the other side has said that it took some ([`Credit`]).
//!
//! ```text
//!   host                                   guest
//!   Hello ───────────────────────────────► (first, and again after a restore)
//!                                     ◄─── Hello
//!   Exec, Block … ───────────────────────►
//!                                     ◄─── Started │ NotStarted
//!   Data, End, Signal, Resize, Close ────►
//!                                     ◄─── Data, End, Credit, Close, Ended
//! ```
//!
//! **Invariant:** parsing is total. Any bytes give a frame or nothing; a frame that was accepted is the only
//! spelling of its meaning, so print after parse is the identity.

pub use super::bytes::Sink;
pub use super::report::{Ended, How, Metered, Report, Stage};

use super::bytes::{Reader, Writer, credit, frame, hello, kind};

/// Of this protocol. Both programs come from one build, so this differs only where something is very wrong:
/// a snapshot of another build, or a guest that is no `guestd`.
pub const VERSION: u16 = 1;

/// The fixed part of a frame.
pub const HEADER_BYTES: usize = 12;
/// The most that may follow it.
pub const PAYLOAD_BYTES: usize = 32 * 1024;
/// What may be on the way on one stream before its reader has said that it took some.
pub const WINDOW_BYTES: u32 = 128 * 1024;
/// The largest block of strings: above it the kernel refuses any `execve` under the usual stack limit.
pub const BLOCK_BYTES: u32 = 4 * 1024 * 1024;
/// Channels that may be open at once.
pub const MOST_CHANNELS: usize = 128;
/// The longest path.
pub const PATH_BYTES: usize = 4096;
/// The most resource limits on one command.
pub const MOST_LIMITS: usize = 16;
/// Randomness that a thawed guest is given.
pub const SEED_BYTES: usize = 64;

/// The stream inward.
pub const INPUT: u8 = 0;
/// A command's standard output, its terminal, a connection, or files.
pub const OUTPUT: u8 = 1;
/// A command's standard error.
pub const ERROR: u8 = 2;

pub(crate) const MAGIC: [u8; 8] = *b"fumehood";

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the payload.
    pub length: u32,
    pub kind: u8,
    /// Which stream, where it is about one.
    pub stream: u8,
    pub channel: u32,
}

/// From the host to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Begin. The guest forgets every channel, and answers with the same number.
    Hello {
        nonce: u64,
    },
    /// Start a command. Its strings follow in [`Request::Block`]s.
    Exec {
        channel: u32,
        exec: Exec<'a>,
    },
    /// The next part of the strings: the working directory, the arguments, the environment, each ended by a
    /// zero.
    Block {
        channel: u32,
        bytes: &'a [u8],
    },
    Data {
        channel: u32,
        bytes: &'a [u8],
    },
    /// No more input.
    End {
        channel: u32,
    },
    Credit(Credit),
    /// Nobody reads that stream any more.
    Close {
        channel: u32,
        stream: u8,
    },
    /// To a command's process group.
    Signal {
        channel: u32,
        signal: u8,
    },
    Resize {
        channel: u32,
        size: Size,
    },
    /// Connect to a port on the guest's loopback.
    Dial {
        channel: u32,
        port: u16,
    },
    /// Make the entries that come as input, beneath a folder that is there.
    Put {
        channel: u32,
        /// Whose they shall be; otherwise `guestd`'s own.
        owner: Option<Person>,
        path: &'a [u8],
    },
    /// Send what is beneath a folder, as entries.
    Get {
        channel: u32,
        tree: Tree,
        path: &'a [u8],
    },
    /// Write out what is buffered and stand still: the guest is about to be frozen.
    Prepare {
        channel: u32,
    },
    /// The guest goes on, perhaps as a copy, perhaps much later.
    Thaw {
        channel: u32,
        /// Nanoseconds since 1970.
        unix_ns: u64,
        seed: &'a [u8; SEED_BYTES],
    },
    Meters {
        channel: u32,
    },
    /// Forget a connection or a tree on its way. Answered by [`Report::Done`].
    Release {
        channel: u32,
    },
    /// End every process of the guest but `guestd`.
    KillAll,
}

/// How to start a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exec<'a> {
    /// A terminal of this size; otherwise three pipes.
    pub terminal: Option<Size>,
    /// With its end every other process of the guest is ended too.
    pub once: bool,
    pub argc: u32,
    pub envc: u32,
    /// Bytes of its strings.
    pub length: u32,
    /// Who it runs as; otherwise as `guestd` itself.
    pub person: Option<Person>,
    pub limits: Limits<'a>,
}

/// Who a command runs as: it has no other groups, no capability, and can gain none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Person {
    pub uid: u32,
    pub gid: u32,
}

/// Resource limits, soft and hard, in their wire form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits<'a>(&'a [u8]);

/// The size of a terminal in character cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub rows: u16,
    pub columns: u16,
}

/// What of a folder is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tree {
    /// What is there.
    Whole,
    /// The upper layer of an overlay: whiteouts and opaque marks are entries of their own.
    Changes,
}

/// The reader of a stream took so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    pub channel: u32,
    pub stream: u8,
    pub bytes: u32,
}

const FLAG_TERMINAL: u8 = 1;
const FLAG_ONCE: u8 = 2;
const FLAG_PERSON: u8 = 4;
const EXEC_BYTES: usize = 28;
const LIMIT_BYTES: usize = 12;

// === impl Header ===

impl Header {
    /// Reads one. `None`: not of this protocol.
    #[must_use]
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let (length, kind, stream) = (reader.u32()?, reader.u8()?, reader.u8()?);
        if reader.u16()? != 0 || length as usize > PAYLOAD_BYTES || stream > ERROR {
            return None;
        }
        Some(Self { length, kind, stream, channel: reader.u32()? })
    }

    pub(crate) fn print(&self, out: &mut impl Sink) {
        out.put(&self.length.to_le_bytes());
        out.put(&[self.kind, self.stream, 0, 0]);
        out.put(&self.channel.to_le_bytes());
    }
}

// === impl Request ===

impl<'a> Request<'a> {
    /// Reads the frame of a header and its whole payload.
    #[must_use]
    pub fn parse(header: &Header, payload: &'a [u8]) -> Option<Self> {
        let Header { kind, stream, channel, .. } = *header;
        let mut reader = Reader(payload);
        let request = match kind {
            kind::HELLO if channel == 0 => Self::Hello { nonce: hello(&mut reader)? },
            kind::KILL_ALL if channel == 0 => Self::KillAll,
            _ if channel == 0 => return None,
            kind::EXEC => Self::Exec { channel, exec: Exec::parse(&mut reader)? },
            kind::BLOCK => Self::Block { channel, bytes: reader.some()? },
            kind::DATA => Self::Data { channel, bytes: reader.some()? },
            kind::END => Self::End { channel },
            kind::CREDIT => Self::Credit(Credit { channel, stream, bytes: credit(&mut reader)? }),
            kind::CLOSE => Self::Close { channel, stream },
            kind::SIGNAL => Self::Signal { channel, signal: signal(&mut reader)? },
            kind::RESIZE => Self::Resize { channel, size: size(&mut reader)? },
            kind::DIAL => Self::Dial { channel, port: reader.u16().filter(|port| *port != 0)? },
            kind::PUT => Self::Put { channel, owner: owner(&mut reader)?, path: path(&mut reader)? },
            kind::GET => Self::Get { channel, tree: tree(&mut reader)?, path: path(&mut reader)? },
            kind::PREPARE => Self::Prepare { channel },
            kind::THAW => Self::Thaw { channel, unix_ns: reader.u64()?, seed: reader.take::<SEED_BYTES>()? },
            kind::METERS => Self::Meters { channel },
            kind::RELEASE => Self::Release { channel },
            _ => return None,
        };
        (reader.0.is_empty() && request.has_stream(stream)).then_some(request)
    }

    /// Whether a stream may be named with it. Where it is about none, it names the first.
    fn has_stream(&self, stream: u8) -> bool {
        let outward = matches!(self, Self::Credit(_) | Self::Close { .. });
        if outward { stream == OUTPUT || stream == ERROR } else { stream == INPUT }
    }

    /// Writes the whole frame.
    pub fn print(&self, out: &mut impl Sink) {
        let plain = |kind, channel| (kind, INPUT, channel);
        match *self {
            Self::Hello { nonce } => {
                frame(out, plain(kind::HELLO, 0), &[&MAGIC, &VERSION.to_le_bytes(), &nonce.to_le_bytes()]);
            }
            Self::Exec { channel, exec } => exec.print(out, channel),
            Self::Block { channel, bytes } => frame(out, plain(kind::BLOCK, channel), &[bytes]),
            Self::Data { channel, bytes } => frame(out, plain(kind::DATA, channel), &[bytes]),
            Self::End { channel } => frame(out, plain(kind::END, channel), &[]),
            Self::Credit(Credit { channel, stream, bytes }) => {
                frame(out, (kind::CREDIT, stream, channel), &[&bytes.to_le_bytes()]);
            }
            Self::Close { channel, stream } => frame(out, (kind::CLOSE, stream, channel), &[]),
            Self::Signal { channel, signal } => frame(out, plain(kind::SIGNAL, channel), &[&[signal]]),
            Self::Resize { channel, size } => {
                let (rows, columns) = (size.rows.to_le_bytes(), size.columns.to_le_bytes());
                frame(out, plain(kind::RESIZE, channel), &[&rows, &columns]);
            }
            Self::Dial { channel, port } => frame(out, plain(kind::DIAL, channel), &[&port.to_le_bytes()]),
            Self::Put { channel, owner, path } => {
                let Person { uid, gid } = owner.unwrap_or(Person { uid: 0, gid: 0 });
                let owned = [u8::from(owner.is_some())];
                let parts: [&[u8]; 4] = [&owned, &uid.to_le_bytes(), &gid.to_le_bytes(), path];
                frame(out, plain(kind::PUT, channel), &parts);
            }
            Self::Get { channel, tree, path } => {
                frame(out, plain(kind::GET, channel), &[&[tree.number()], path]);
            }
            Self::Prepare { channel } => frame(out, plain(kind::PREPARE, channel), &[]),
            Self::Thaw { channel, unix_ns, seed } => {
                frame(out, plain(kind::THAW, channel), &[&unix_ns.to_le_bytes(), seed]);
            }
            Self::Meters { channel } => frame(out, plain(kind::METERS, channel), &[]),
            Self::Release { channel } => frame(out, plain(kind::RELEASE, channel), &[]),
            Self::KillAll => frame(out, plain(kind::KILL_ALL, 0), &[]),
        }
    }
}

fn signal(reader: &mut Reader<'_>) -> Option<u8> {
    reader.u8().filter(|signal| (1..=64).contains(signal))
}

fn size(reader: &mut Reader<'_>) -> Option<Size> {
    Some(Size { rows: reader.u16()?, columns: reader.u16()? })
}

fn tree(reader: &mut Reader<'_>) -> Option<Tree> {
    match reader.u8()? {
        0 => Some(Tree::Whole),
        1 => Some(Tree::Changes),
        _ => None,
    }
}

fn owner(reader: &mut Reader<'_>) -> Option<Option<Person>> {
    let owned = reader.u8()?;
    let person = Person { uid: reader.u32()?, gid: reader.u32()? };
    match (owned, person) {
        (0, Person { uid: 0, gid: 0 }) => Some(None),
        (1, person) => Some(Some(person)),
        _ => None,
    }
}

/// An absolute path without a zero.
fn path<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    let path = reader.some()?;
    (path.len() < PATH_BYTES && path.first() == Some(&b'/') && !path.contains(&0)).then_some(path)
}

// === impl Exec ===

impl<'a> Exec<'a> {
    fn parse(reader: &mut Reader<'a>) -> Option<Self> {
        let (flags, spare) = (reader.u8()?, reader.u8()?);
        let size = size(reader)?;
        let (argc, envc, length) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let person = Person { uid: reader.u32()?, gid: reader.u32()? };
        let known = FLAG_TERMINAL | FLAG_ONCE | FLAG_PERSON;
        let [rows_or, none] = [flags & FLAG_TERMINAL != 0, flags & FLAG_PERSON == 0];
        let idle = (!rows_or && size != Size { rows: 0, columns: 0 })
            || (none && person != Person { uid: 0, gid: 0 });
        // A string is at least one byte, so the counts can not pass the length.
        let strings = u64::from(argc) + u64::from(envc) + 1;
        if flags & !known != 0
            || spare != 0
            || idle
            || argc == 0
            || length > BLOCK_BYTES
            || strings > u64::from(length)
        {
            return None;
        }
        Some(Self {
            terminal: rows_or.then_some(size),
            once: flags & FLAG_ONCE != 0,
            argc,
            envc,
            length,
            person: (!none).then_some(person),
            limits: Limits::parse(reader)?,
        })
    }

    fn print(&self, out: &mut impl Sink, channel: u32) {
        let mut flags = 0;
        for (set, flag) in [
            (self.terminal.is_some(), FLAG_TERMINAL),
            (self.once, FLAG_ONCE),
            (self.person.is_some(), FLAG_PERSON),
        ] {
            flags |= if set { flag } else { 0 };
        }
        let Size { rows, columns } = self.terminal.unwrap_or(Size { rows: 0, columns: 0 });
        let Person { uid, gid } = self.person.unwrap_or(Person { uid: 0, gid: 0 });
        let mut fixed = [0; EXEC_BYTES - 2];
        let mut writer = Writer(&mut fixed);
        writer.put(&rows.to_le_bytes());
        writer.put(&columns.to_le_bytes());
        for number in [self.argc, self.envc, self.length, uid, gid] {
            writer.put(&number.to_le_bytes());
        }
        // What is left of the fixed part says how many limits follow.
        let count = self.limits.0.len() / LIMIT_BYTES;
        writer.put(&u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes());
        frame(out, (kind::EXEC, INPUT, channel), &[&[flags, 0], &fixed, self.limits.0]);
    }
}

// === impl Limits ===

impl<'a> Limits<'a> {
    /// No limits.
    pub const NONE: Self = Self(&[]);

    fn parse(reader: &mut Reader<'a>) -> Option<Self> {
        let count = usize::from(reader.u16()?);
        let bytes = reader.rest();
        (count <= MOST_LIMITS && bytes.len() == count * LIMIT_BYTES).then_some(Self(bytes))
    }

    /// Writes pairs of a resource's number and its value. At most [`MOST_LIMITS`] are taken.
    pub fn write(limits: &[(u32, u64)], out: &mut impl Sink) {
        for (resource, value) in limits.iter().take(MOST_LIMITS) {
            out.put(&resource.to_le_bytes());
            out.put(&value.to_le_bytes());
        }
    }

    /// What [`Limits::write`] wrote. `None`: it did not.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Option<Self> {
        (bytes.len().is_multiple_of(LIMIT_BYTES) && bytes.len() / LIMIT_BYTES <= MOST_LIMITS)
            .then_some(Self(bytes))
    }

    /// Each resource's number and its value.
    pub fn each(&self) -> impl Iterator<Item = (u32, u64)> + use<'a> {
        self.0.chunks_exact(LIMIT_BYTES).filter_map(|chunk| {
            let mut reader = Reader(chunk);
            Some((reader.u32()?, reader.u64()?))
        })
    }
}

// === impl Tree ===

impl Tree {
    const fn number(self) -> u8 {
        match self {
            Self::Whole => 0,
            Self::Changes => 1,
        }
    }
}
