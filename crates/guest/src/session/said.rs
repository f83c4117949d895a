//! What goes in and out of a session, beside bytes.

use crate::frame::{Ended, Metered, Person, Size, Stage};

/// What the guest said, beside what commands wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// It answered the greeting.
    Ready,
    Started {
        channel: u32,
        /// As seen inside.
        pid: u32,
    },
    NotStarted {
        channel: u32,
        stage: Stage,
        errno: u32,
    },
    Ended {
        channel: u32,
        ended: Ended,
    },
    /// Nobody inside reads that input any more.
    InputClosed {
        channel: u32,
    },
    Dialled {
        channel: u32,
    },
    /// What was asked for is done, or that connection is over.
    Done {
        channel: u32,
    },
    Failed {
        channel: u32,
        errno: u32,
    },
    Metered {
        channel: u32,
        meters: Metered,
    },
}

/// What the guest did that it may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("it sent what is not of the protocol, or of another version")]
    NotOurs,
    #[error("it spoke before it was greeted, or greeted twice")]
    Greeting,
    #[error("it spoke of something that is not open")]
    Unknown,
    #[error("it said something out of order")]
    Order,
    #[error("it sent more than it may at once")]
    TooMuch,
}

/// How a command is to be started.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    pub terminal: Option<Size>,
    /// With its end every other process of the guest is ended too.
    pub once: bool,
    pub argc: u32,
    pub envc: u32,
    /// The working directory, the arguments, the environment, each ended by a zero.
    pub block: &'a [u8],
    pub person: Option<Person>,
    /// Resource limits by their number.
    pub limits: &'a [(u32, u64)],
}
