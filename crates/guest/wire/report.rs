//! What the guest says to the host.

use super::bytes::{Reader, Sink, credit, frame, hello, kind};
use super::frame::{Credit, Header, INPUT, MAGIC, VERSION};

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
