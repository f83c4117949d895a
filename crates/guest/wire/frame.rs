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

const MAGIC: [u8; 8] = *b"fumehood";

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

/// From the guest to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report<'a> {
    Hello {
        nonce: u64,
    },
    /// The command's `execve` is done. `pid` is as seen inside.
    Started {
        channel: u32,
        pid: u32,
    },
    NotStarted {
        channel: u32,
        stage: Stage,
        errno: u32,
    },
    /// The command ended. What it wrote may still be on the way: each stream has an end of its own.
    Ended {
        channel: u32,
        ended: Ended,
    },
    Data {
        channel: u32,
        stream: u8,
        bytes: &'a [u8],
    },
    End {
        channel: u32,
        stream: u8,
    },
    Credit(Credit),
    /// Nobody reads the input any more.
    Close {
        channel: u32,
    },
    Dialled {
        channel: u32,
    },
    /// What was asked for is done, and the channel is closed.
    Done {
        channel: u32,
    },
    /// It could not be done, and the channel is closed.
    Failed {
        channel: u32,
        errno: u32,
    },
    Metered {
        channel: u32,
        meters: Metered,
    },
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub how: How,
    /// Processes that had outlived it, and were ended.
    pub leftovers: u32,
    /// Processor time of everything that was waited for.
    pub cpu_ms: u32,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Exited(u8),
    Signalled(u8),
}

/// The step at which a command failed to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    FindCommand,
    Execute,
    WorkingDirectory,
    Spawn,
    Terminal,
}

/// What the guest has used, as its own kernel counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metered {
    pub memory_bytes: u64,
    pub cpu_ms: u64,
    /// Times the guest's kernel ended a process for memory.
    pub oom_kills: u64,
    pub processes: u64,
}

/// Where a frame is written.
pub trait Sink {
    /// Takes all of `bytes`.
    fn put(&mut self, bytes: &[u8]);
}

mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const EXEC: u8 = 2;
    pub(super) const BLOCK: u8 = 3;
    pub(super) const DATA: u8 = 4;
    pub(super) const END: u8 = 5;
    pub(super) const CREDIT: u8 = 6;
    pub(super) const CLOSE: u8 = 7;
    pub(super) const SIGNAL: u8 = 8;
    pub(super) const RESIZE: u8 = 9;
    pub(super) const DIAL: u8 = 10;
    pub(super) const PUT: u8 = 11;
    pub(super) const GET: u8 = 12;
    pub(super) const PREPARE: u8 = 13;
    pub(super) const THAW: u8 = 14;
    pub(super) const METERS: u8 = 15;
    pub(super) const RELEASE: u8 = 16;
    pub(super) const KILL_ALL: u8 = 17;
    pub(super) const STARTED: u8 = 32;
    pub(super) const NOT_STARTED: u8 = 33;
    pub(super) const ENDED: u8 = 34;
    pub(super) const DIALLED: u8 = 35;
    pub(super) const DONE: u8 = 36;
    pub(super) const FAILED: u8 = 37;
    pub(super) const METERED: u8 = 38;
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

    fn print(&self, out: &mut impl Sink) {
        out.put(&self.length.to_le_bytes());
        out.put(&[self.kind, self.stream, 0, 0]);
        out.put(&self.channel.to_le_bytes());
    }
}

/// Writes a header and the parts of its payload.
fn frame(out: &mut impl Sink, (kind, stream, channel): (u8, u8, u32), parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    // A payload that can not be counted is printed as one that no parser accepts.
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    Header { length, kind, stream, channel }.print(out);
    parts.iter().for_each(|part| out.put(part));
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

fn hello(reader: &mut Reader<'_>) -> Option<u64> {
    (*reader.take::<8>()? == MAGIC && reader.u16()? == VERSION).then_some(())?;
    reader.u64()
}

fn credit(reader: &mut Reader<'_>) -> Option<u32> {
    reader.u32().filter(|bytes| (1..=WINDOW_BYTES).contains(bytes))
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

// === impl Report ===

impl<'a> Report<'a> {
    /// Which kind of frame [`Report::Data`] is, for who writes a payload in place.
    pub const DATA_KIND: u8 = kind::DATA;

    /// Reads the frame of a header and its whole payload.
    #[must_use]
    pub fn parse(header: &Header, payload: &'a [u8]) -> Option<Self> {
        let Header { kind, stream, channel, .. } = *header;
        let mut reader = Reader(payload);
        let report = match kind {
            kind::HELLO if channel == 0 => Self::Hello { nonce: hello(&mut reader)? },
            _ if channel == 0 => return None,
            kind::STARTED => Self::Started { channel, pid: reader.u32()? },
            kind::NOT_STARTED => {
                Self::NotStarted { channel, stage: Stage::parse(reader.u8()?)?, errno: reader.u32()? }
            }
            kind::ENDED => Self::Ended { channel, ended: Ended::parse(&mut reader)? },
            kind::DATA => Self::Data { channel, stream, bytes: reader.some()? },
            kind::END => Self::End { channel, stream },
            kind::CREDIT => Self::Credit(Credit { channel, stream, bytes: credit(&mut reader)? }),
            kind::CLOSE => Self::Close { channel },
            kind::DIALLED => Self::Dialled { channel },
            kind::DONE => Self::Done { channel },
            kind::FAILED => Self::Failed { channel, errno: reader.u32()? },
            kind::METERED => Self::Metered { channel, meters: Metered::parse(&mut reader)? },
            _ => return None,
        };
        let outward = matches!(report, Self::Data { .. } | Self::End { .. });
        (reader.0.is_empty() && outward == (stream != INPUT)).then_some(report)
    }

    /// Writes the whole frame.
    pub fn print(&self, out: &mut impl Sink) {
        let plain = |kind, channel| (kind, INPUT, channel);
        match *self {
            Self::Hello { nonce } => {
                frame(out, plain(kind::HELLO, 0), &[&MAGIC, &VERSION.to_le_bytes(), &nonce.to_le_bytes()]);
            }
            Self::Started { channel, pid } => {
                frame(out, plain(kind::STARTED, channel), &[&pid.to_le_bytes()]);
            }
            Self::NotStarted { channel, stage, errno } => {
                frame(out, plain(kind::NOT_STARTED, channel), &[&[stage.number()], &errno.to_le_bytes()]);
            }
            Self::Ended { channel, ended } => {
                let (how, value) = ended.how.numbers();
                let (leftovers, cpu_ms) = (ended.leftovers.to_le_bytes(), ended.cpu_ms.to_le_bytes());
                frame(out, plain(kind::ENDED, channel), &[&[how, value], &leftovers, &cpu_ms]);
            }
            Self::Data { channel, stream, bytes } => frame(out, (kind::DATA, stream, channel), &[bytes]),
            Self::End { channel, stream } => frame(out, (kind::END, stream, channel), &[]),
            Self::Credit(Credit { channel, stream, bytes }) => {
                frame(out, (kind::CREDIT, stream, channel), &[&bytes.to_le_bytes()]);
            }
            Self::Close { channel } => frame(out, plain(kind::CLOSE, channel), &[]),
            Self::Dialled { channel } => frame(out, plain(kind::DIALLED, channel), &[]),
            Self::Done { channel } => frame(out, plain(kind::DONE, channel), &[]),
            Self::Failed { channel, errno } => {
                frame(out, plain(kind::FAILED, channel), &[&errno.to_le_bytes()]);
            }
            Self::Metered { channel, meters } => {
                let Metered { memory_bytes, cpu_ms, oom_kills, processes } = meters;
                let numbers = [memory_bytes, cpu_ms, oom_kills, processes].map(u64::to_le_bytes);
                let parts = numbers.each_ref().map(|number| number.as_slice());
                frame(out, plain(kind::METERED, channel), &parts);
            }
        }
    }
}

// === impl Ended ===

impl Ended {
    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        let how = match (reader.u8()?, reader.u8()?) {
            (0, code) => How::Exited(code),
            (1, signal @ 1..=127) => How::Signalled(signal),
            _ => return None,
        };
        Some(Self { how, leftovers: reader.u32()?, cpu_ms: reader.u32()? })
    }
}

// === impl How ===

impl How {
    const fn numbers(self) -> (u8, u8) {
        match self {
            Self::Exited(code) => (0, code),
            Self::Signalled(signal) => (1, signal),
        }
    }
}

// === impl Stage ===

impl Stage {
    const fn number(self) -> u8 {
        match self {
            Self::FindCommand => 1,
            Self::Execute => 2,
            Self::WorkingDirectory => 3,
            Self::Spawn => 4,
            Self::Terminal => 5,
        }
    }

    const fn parse(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::FindCommand),
            2 => Some(Self::Execute),
            3 => Some(Self::WorkingDirectory),
            4 => Some(Self::Spawn),
            5 => Some(Self::Terminal),
            _ => None,
        }
    }
}

// === impl Metered ===

impl Metered {
    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            memory_bytes: reader.u64()?,
            cpu_ms: reader.u64()?,
            oom_kills: reader.u64()?,
            processes: reader.u64()?,
        })
    }
}

/// Takes little-endian numbers off the front.
struct Reader<'a>(&'a [u8]);

// === impl Reader ===

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(|bytes| u8::from_le_bytes(*bytes))
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(|bytes| u16::from_le_bytes(*bytes))
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(|bytes| u32::from_le_bytes(*bytes))
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// All that is left.
    fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }

    /// All that is left, if it is anything.
    fn some(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest();
        (!rest.is_empty()).then_some(rest)
    }
}

/// Puts bytes at the front of what is left.
struct Writer<'a>(&'a mut [u8]);

// === impl Writer ===

impl Writer<'_> {
    /// The arrays are as large as what is put into them; a field that did not fit is left zero.
    fn put(&mut self, bytes: &[u8]) {
        let rest = core::mem::take(&mut self.0);
        if let Some((room, rest)) = rest.split_at_mut_checked(bytes.len()) {
            room.copy_from_slice(bytes);
            self.0 = rest;
        }
    }
}
