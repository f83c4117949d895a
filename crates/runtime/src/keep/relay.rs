//! Bytes between a caller and a port inside, both ways, unframed.
//!
//! The guest may hold the other descriptor of the socket inside, and change its settings: every call says for itself
//! that it does not wait.

use fumehood_sys::poll::Interest;
use fumehood_sys::socket;
use std::io::ErrorKind;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

const CHUNK_BYTES: usize = 64 << 10;

/// A caller and a port.
#[derive(Debug)]
pub(crate) struct Relay {
    caller: OwnedFd,
    /// `None` once it is let go of.
    inside: Option<OwnedFd>,
    inward: Lane,
    outward: Lane,
}

/// One direction.
#[derive(Debug, Default)]
struct Lane {
    bytes: Vec<u8>,
    sent: usize,
    /// The source has said its last.
    over: bool,
    /// And the sink was told.
    shut: bool,
}

/// What became of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    Waits,
    Broken,
}

// === impl Relay ===

impl Relay {
    /// `early` is what the caller sent already.
    pub(crate) fn new(caller: OwnedFd, inside: OwnedFd, early: Vec<u8>) -> Self {
        let inward = Lane { bytes: early, ..Lane::default() };
        Self { caller, inside: Some(inside), inward, outward: Lane::default() }
    }

    pub(crate) fn waits(&self) -> Vec<(BorrowedFd<'_>, Interest)> {
        let Some(inside) = self.inside.as_ref() else { return Vec::new() };
        let lanes = [
            (&self.inward, self.caller.as_fd(), inside.as_fd()),
            (&self.outward, inside.as_fd(), self.caller.as_fd()),
        ];
        let mut waits = Vec::with_capacity(2);
        for (lane, source, sink) in lanes {
            if !lane.is_idle() {
                waits.push((sink, Interest::Write));
            } else if !lane.over {
                waits.push((source, Interest::Read));
            }
        }
        waits
    }

    /// Moves what can be moved. `false` once there is nothing more to do.
    pub(crate) fn advance(&mut self) -> bool {
        let Some(inside) = self.inside.as_ref() else { return false };
        let (inside, caller) = (inside.as_fd(), self.caller.as_fd());
        let moved = [self.inward.advance(caller, inside), self.outward.advance(inside, caller)];
        !moved.contains(&Moved::Broken) && (!self.inward.shut || !self.outward.shut)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(inside) = self.inside.take() {
            socket::discard(inside);
        }
    }
}

// === impl Lane ===

impl Lane {
    fn is_idle(&self) -> bool {
        self.sent >= self.bytes.len()
    }

    fn advance(&mut self, source: BorrowedFd<'_>, sink: BorrowedFd<'_>) -> Moved {
        // A few times, so that one busy port does not keep the others waiting.
        for _ in 0..4 {
            if self.is_idle() && !self.over {
                self.sent = 0;
                self.bytes.resize(CHUNK_BYTES, 0);
                let taken = socket::take(source, &mut self.bytes);
                self.bytes.truncate(*taken.as_ref().unwrap_or(&0));
                match taken {
                    Ok(0) => self.over = true,
                    Ok(_) => {}
                    Err(error) if waits(&error) => {
                        // Nothing is held while nothing moves.
                        self.bytes = Vec::new();
                        return Moved::Waits;
                    }
                    Err(_) => return Moved::Broken,
                }
            }
            if self.is_idle() && self.over {
                if !self.shut {
                    let _ = socket::hang_up(sink);
                    self.shut = true;
                }
                return Moved::Waits;
            }
            match socket::give(sink, self.bytes.get(self.sent..).unwrap_or_default()) {
                Ok(count) => self.sent += count,
                Err(error) if waits(&error) => return Moved::Waits,
                Err(_) => return Moved::Broken,
            }
        }
        Moved::Waits
    }
}

fn waits(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::NotConnected)
}
