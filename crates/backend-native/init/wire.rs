//! What the keeper and `init` say to each other.
//!
//! One source, compiled into both programs, so that the two sides can not drift apart. Every message
//! is one packet of a `SOCK_SEQPACKET` socket; descriptors ride on it. Numbers are little-endian.
//!
//! It must not know how a packet is sent, nor what is done about it.
//!
//! **Invariant:** parsing is total. Any bytes give a message or a [`Flaw`]; a message that was accepted
//! is the only spelling of its meaning (unused fields are zero), so print after parse is the identity.

/// Starts every packet: `fhi` and a zero.
const MAGIC: u32 = 0x0069_6866;
/// Both programs come from one build, so this only ever differs when something is very wrong.
pub const VERSION: u16 = 1;

/// The fixed part of a request, in bytes.
pub const HEADER_BYTES: usize = 32;
/// The whole of a report, in bytes.
pub const REPORT_BYTES: usize = 24;
/// The largest block that travels within the packet: small enough for every default socket buffer.
pub const INLINE_BYTES: usize = 64 * 1024;
/// The largest block at all: above it the kernel refuses any `execve` under the usual stack limit.
pub const BLOCK_BYTES: usize = 4 * 1024 * 1024;
/// The largest request packet.
pub const REQUEST_BYTES: usize = HEADER_BYTES + INLINE_BYTES;
/// The most descriptors on one packet: a block and three streams.
pub const DESCRIPTORS: usize = 4;

const KIND_EXEC: u8 = 1;
const KIND_SIGNAL: u8 = 2;
const KIND_KILL_ALL: u8 = 3;
const KIND_DIAL: u8 = 4;

const FLAG_TERMINAL: u8 = 1;
const FLAG_ONCE: u8 = 2;
const FLAG_LARGE: u8 = 4;

const KIND_STARTED: u8 = 1;
const KIND_NOT_STARTED: u8 = 2;
const KIND_ENDED: u8 = 3;
const KIND_TERMINAL: u8 = 4;
const KIND_DIALLED: u8 = 5;
const KIND_NOT_DIALLED: u8 = 6;

/// From the keeper to `init`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    Exec(Exec<'a>),
    /// To the exec's process group.
    Signal {
        exec: u32,
        signal: u8,
    },
    KillAll,
    /// Connect to a port on the guest's loopback. `call` is the keeper's number for it.
    Dial {
        call: u32,
        port: u16,
    },
}

/// Start one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exec<'a> {
    /// The keeper's number for it.
    pub exec: u32,
    /// A terminal of this size; otherwise three streams are attached.
    pub terminal: Option<Size>,
    /// Its end is the end of the guest.
    pub once: bool,
    pub argc: u32,
    pub envc: u32,
    pub block: Block<'a>,
}

/// The size of a terminal in character cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub rows: u16,
    pub columns: u16,
}

/// The strings of an exec, each ended by a zero: the working directory, the arguments, the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block<'a> {
    Inline(&'a [u8]),
    /// In a sealed memory file, the first descriptor of the packet.
    Attached {
        length: u32,
    },
}

/// Why a request was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Not of this protocol: nothing after it can be trusted.
    Garbage,
    /// Recognised as being about this exec, and refused.
    Refused { exec: u32 },
}

/// From `init` to the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// `execve` is done. `pid` is as seen inside.
    Started {
        exec: u32,
        pid: u32,
    },
    NotStarted {
        exec: u32,
        stage: Stage,
        errno: u32,
    },
    Ended {
        exec: u32,
        how: End,
        leftovers: u32,
        /// Processor time of everything that was waited for, in milliseconds.
        cpu_ms: u32,
    },
    /// The keeper's side of the terminal is attached.
    Terminal {
        exec: u32,
    },
    /// A connection is attached. It may still be on its way, where whoever listens is busy.
    Dialled {
        call: u32,
    },
    NotDialled {
        call: u32,
        errno: u32,
    },
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
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

// === impl Request ===

impl<'a> Request<'a> {
    /// Reads one packet.
    pub fn parse(packet: &'a [u8]) -> Result<Self, Flaw> {
        let head = Head::parse(packet).ok_or(Flaw::Garbage)?;
        let refused = Flaw::Refused { exec: head.exec };
        if head.version != VERSION {
            return Err(refused);
        }
        let tail = packet.get(HEADER_BYTES..).ok_or(Flaw::Garbage)?;
        match head.kind {
            KIND_EXEC => head.exec(tail).map(Self::Exec).ok_or(refused),
            KIND_SIGNAL => head.signal(tail).ok_or(Flaw::Garbage),
            KIND_KILL_ALL if head == Head::bare(KIND_KILL_ALL, 0) && tail.is_empty() => Ok(Self::KillAll),
            KIND_DIAL => head.dial(tail).ok_or(Flaw::Garbage),
            _ => Err(Flaw::Garbage),
        }
    }

    /// The fixed part; an inline block follows it in the packet.
    #[must_use]
    pub fn header(&self) -> [u8; HEADER_BYTES] {
        match *self {
            Self::Exec(exec) => exec.head().print(),
            Self::Signal { exec, signal } => Head { signal, ..Head::bare(KIND_SIGNAL, exec) }.print(),
            Self::KillAll => Head::bare(KIND_KILL_ALL, 0).print(),
            Self::Dial { call, port } => {
                Head { length: u32::from(port), ..Head::bare(KIND_DIAL, call) }.print()
            }
        }
    }
}

// === impl Exec ===

impl Exec<'_> {
    fn head(&self) -> Head {
        let mut flags = 0;
        if self.terminal.is_some() {
            flags |= FLAG_TERMINAL;
        }
        if self.once {
            flags |= FLAG_ONCE;
        }
        let length = match self.block {
            // A block that can not be counted is printed as one that no parser accepts.
            Block::Inline(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            Block::Attached { length } => {
                flags |= FLAG_LARGE;
                length
            }
        };
        let Size { rows, columns } = self.terminal.unwrap_or(Size { rows: 0, columns: 0 });
        let (argc, envc) = (self.argc, self.envc);
        Head { flags, rows, columns, argc, envc, length, ..Head::bare(KIND_EXEC, self.exec) }
    }

    /// How many descriptors must ride on it.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        let streams = if self.terminal.is_some() { 0 } else { 3 };
        match self.block {
            Block::Inline(_) => streams,
            Block::Attached { .. } => streams + 1,
        }
    }
}

/// Whether `block` holds a working directory, `argc` arguments (at least one) and `envc` variables.
#[must_use]
pub fn block_is_whole(block: &[u8], argc: u32, envc: u32) -> bool {
    let wanted = u64::from(argc) + u64::from(envc) + 1;
    let found = block.iter().filter(|byte| **byte == 0).count();
    argc > 0 && block.last() == Some(&0) && u64::try_from(found) == Ok(wanted)
}

// === impl Report ===

impl Report {
    /// Reads one packet.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let packet: &[u8; REPORT_BYTES] = packet.try_into().ok()?;
        let mut reader = Reader { rest: packet };
        if reader.u32()? != MAGIC || reader.u16()? != VERSION {
            return None;
        }
        let (kind, detail) = (reader.u8()?, reader.u8()?);
        let (exec, value, leftovers, cpu_ms) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
        match (kind, detail, value, leftovers) {
            _ if cpu_ms != 0 && kind != KIND_ENDED => None,
            (KIND_STARTED, 0, pid, 0) => Some(Self::Started { exec, pid }),
            (KIND_NOT_STARTED, stage, errno, 0) => {
                Some(Self::NotStarted { exec, stage: Stage::parse(stage)?, errno })
            }
            (KIND_ENDED, how, value, leftovers) => {
                let how = End::parse(how, u8::try_from(value).ok()?)?;
                Some(Self::Ended { exec, how, leftovers, cpu_ms })
            }
            (KIND_TERMINAL, 0, 0, 0) => Some(Self::Terminal { exec }),
            (KIND_DIALLED, 0, 0, 0) => Some(Self::Dialled { call: exec }),
            (KIND_NOT_DIALLED, 0, errno, 0) => Some(Self::NotDialled { call: exec, errno }),
            _ => None,
        }
    }

    /// Writes one packet.
    #[must_use]
    pub fn print(&self) -> [u8; REPORT_BYTES] {
        let (kind, detail, exec, value, leftovers, cpu_ms) = match *self {
            Self::Started { exec, pid } => (KIND_STARTED, 0, exec, pid, 0, 0),
            Self::NotStarted { exec, stage, errno } => (KIND_NOT_STARTED, stage.number(), exec, errno, 0, 0),
            Self::Ended { exec, how: End::Exited(code), leftovers, cpu_ms } => {
                (KIND_ENDED, 0, exec, u32::from(code), leftovers, cpu_ms)
            }
            Self::Ended { exec, how: End::Signalled(signal), leftovers, cpu_ms } => {
                (KIND_ENDED, 1, exec, u32::from(signal), leftovers, cpu_ms)
            }
            Self::Terminal { exec } => (KIND_TERMINAL, 0, exec, 0, 0, 0),
            Self::Dialled { call } => (KIND_DIALLED, 0, call, 0, 0, 0),
            Self::NotDialled { call, errno } => (KIND_NOT_DIALLED, 0, call, errno, 0, 0),
        };
        let mut packet = [0; REPORT_BYTES];
        let mut writer = Writer { rest: &mut packet };
        writer.put(&MAGIC.to_le_bytes());
        writer.put(&VERSION.to_le_bytes());
        writer.put(&[kind, detail]);
        writer.put(&exec.to_le_bytes());
        writer.put(&value.to_le_bytes());
        writer.put(&leftovers.to_le_bytes());
        writer.put(&cpu_ms.to_le_bytes());
        packet
    }

    /// How many descriptors must ride on it.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        match self {
            Self::Started { .. } | Self::NotStarted { .. } | Self::Ended { .. } | Self::NotDialled { .. } => {
                0
            }
            Self::Terminal { .. } | Self::Dialled { .. } => 1,
        }
    }
}

// === impl End ===

impl End {
    fn parse(how: u8, value: u8) -> Option<Self> {
        match how {
            0 => Some(Self::Exited(value)),
            1 => Some(Self::Signalled(value)),
            _ => None,
        }
    }
}

// === impl Stage ===

impl Stage {
    /// Its number on the wire.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::FindCommand => 1,
            Self::Execute => 2,
            Self::WorkingDirectory => 3,
            Self::Spawn => 4,
            Self::Terminal => 5,
        }
    }

    /// The stage of a number.
    #[must_use]
    pub const fn parse(number: u8) -> Option<Self> {
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

/// The fixed part of a request, field by field.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Head {
    version: u16,
    kind: u8,
    flags: u8,
    exec: u32,
    rows: u16,
    columns: u16,
    argc: u32,
    envc: u32,
    /// Bytes of the block, or the port to dial.
    length: u32,
    signal: u8,
}

// === impl Head ===

impl Head {
    const fn bare(kind: u8, exec: u32) -> Self {
        let (version, flags, signal) = (VERSION, 0, 0);
        Self { version, kind, flags, exec, rows: 0, columns: 0, argc: 0, envc: 0, length: 0, signal }
    }

    fn parse(packet: &[u8]) -> Option<Self> {
        let mut reader = Reader { rest: packet };
        if reader.u32()? != MAGIC {
            return None;
        }
        let head = Self {
            version: reader.u16()?,
            kind: reader.u8()?,
            flags: reader.u8()?,
            exec: reader.u32()?,
            rows: reader.u16()?,
            columns: reader.u16()?,
            argc: reader.u32()?,
            envc: reader.u32()?,
            length: reader.u32()?,
            signal: reader.u8()?,
        };
        (reader.take::<3>()? == [0; 3]).then_some(head)
    }

    fn print(&self) -> [u8; HEADER_BYTES] {
        let mut packet = [0; HEADER_BYTES];
        let mut writer = Writer { rest: &mut packet };
        writer.put(&MAGIC.to_le_bytes());
        writer.put(&self.version.to_le_bytes());
        writer.put(&[self.kind, self.flags]);
        writer.put(&self.exec.to_le_bytes());
        writer.put(&self.rows.to_le_bytes());
        writer.put(&self.columns.to_le_bytes());
        writer.put(&self.argc.to_le_bytes());
        writer.put(&self.envc.to_le_bytes());
        writer.put(&self.length.to_le_bytes());
        writer.put(&[self.signal]);
        packet
    }

    fn signal<'a>(&self, tail: &[u8]) -> Option<Request<'a>> {
        let canonical = Self { signal: self.signal, ..Self::bare(KIND_SIGNAL, self.exec) };
        let known = (1..=64).contains(&self.signal);
        (*self == canonical && known && tail.is_empty())
            .then_some(Request::Signal { exec: self.exec, signal: self.signal })
    }

    fn dial<'a>(&self, tail: &[u8]) -> Option<Request<'a>> {
        let canonical = Self { length: self.length, ..Self::bare(KIND_DIAL, self.exec) };
        let port = u16::try_from(self.length).ok().filter(|port| *port != 0)?;
        (*self == canonical && tail.is_empty()).then_some(Request::Dial { call: self.exec, port })
    }

    fn exec<'a>(&self, tail: &'a [u8]) -> Option<Exec<'a>> {
        let length = usize::try_from(self.length).ok()?;
        let block = if self.flags & FLAG_LARGE == 0 {
            let whole = length <= INLINE_BYTES && tail.len() == length;
            (whole && block_is_whole(tail, self.argc, self.envc)).then_some(Block::Inline(tail))?
        } else {
            (length <= BLOCK_BYTES && tail.is_empty()).then_some(Block::Attached { length: self.length })?
        };
        // A string is at least one byte, so the counts can not pass the length.
        let strings = u64::from(self.argc) + u64::from(self.envc) + 1;
        if self.argc == 0 || strings > u64::from(self.length) {
            return None;
        }
        let size = Size { rows: self.rows, columns: self.columns };
        let exec = Exec {
            exec: self.exec,
            terminal: (self.flags & FLAG_TERMINAL != 0).then_some(size),
            once: self.flags & FLAG_ONCE != 0,
            argc: self.argc,
            envc: self.envc,
            block,
        };
        (exec.head() == *self).then_some(exec)
    }
}

/// Takes little-endian numbers off the front.
struct Reader<'a> {
    rest: &'a [u8],
}

// === impl Reader ===

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
}

/// Puts bytes at the front of what is left.
struct Writer<'a> {
    rest: &'a mut [u8],
}

// === impl Writer ===

impl Writer<'_> {
    /// The packet sizes are constants that hold every field; a field that did not fit is left zero.
    fn put(&mut self, bytes: &[u8]) {
        let rest = core::mem::take(&mut self.rest);
        if let Some((room, rest)) = rest.split_at_mut_checked(bytes.len()) {
            room.copy_from_slice(bytes);
            self.rest = rest;
        }
    }
}
