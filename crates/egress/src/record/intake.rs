//! The keeper's end of the socket to the gate. It waits for nothing, so that any loop can hold it.

use super::{Frame, MOST_FRAME_BYTES, Renewed, Reply};
use fumehood_model::egress::Rules;
use fumehood_model::event::Event;
use fumehood_sys::socket;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use zeroize::Zeroizing;

/// So much of the text of rules goes in one packet: written as JSON it may be six times as long.
const PART_BYTES: usize = 8 << 10;

/// Takes what the gate wants written, and answers.
#[derive(Debug)]
pub struct Intake {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

/// What was there to take.
#[derive(Debug, PartialEq)]
pub enum Taken {
    /// To be appended in this order, synced where that is asked, and answered with [`Intake::reply`].
    Events { id: u64, synced: bool, events: Vec<Event> },
    /// This change of rules holds.
    Applied(u64),
    /// Nothing for now.
    Nothing,
    /// The gate is gone.
    End,
}

/// The gate says what it may not say. It is to be ended.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    #[error("receive from the gate")]
    Receive(#[source] io::Error),
    #[error("read a packet of the gate: it is longer than {MOST_FRAME_BYTES} bytes, or has descriptors")]
    Packet,
    #[error("read a packet of the gate")]
    Frame(#[source] serde_json::Error),
    /// Only its own events are believed.
    #[error("take `{0}` from the gate, which is not its to tell")]
    Foreign(&'static str),
}

// === impl Intake ===

impl Intake {
    /// Takes over one end of `fumehood_sys::socket::pair`.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, buffer: vec![0; MOST_FRAME_BYTES] }
    }

    /// Takes the next packet.
    ///
    /// # Errors
    /// What the gate sent is not to be believed, or the socket fails: end it.
    pub fn take(&mut self) -> Result<Taken, IntakeError> {
        let packet = match socket::receive(self.socket.as_fd(), &mut self.buffer) {
            Ok(packet) => packet,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Taken::Nothing),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(Taken::End),
            Err(error) => return Err(IntakeError::Receive(error)),
        };
        if packet.truncated || !packet.descriptors.is_empty() {
            return Err(IntakeError::Packet);
        }
        let bytes = self.buffer.get(..packet.length).unwrap_or(&[]);
        if bytes.is_empty() {
            return Ok(Taken::End);
        }
        let Frame { id, synced, events, applied } =
            serde_json::from_slice(bytes).map_err(IntakeError::Frame)?;
        if let Some(change) = applied {
            return Ok(Taken::Applied(change));
        }
        match events.iter().find(|event| !event.is_egress()) {
            Some(foreign) => Err(IntakeError::Foreign(foreign.name())),
            None => Ok(Taken::Events { id, synced, events }),
        }
    }

    /// Says whether the events of `id` stand in the record. After a no, the gate does nothing more.
    ///
    /// # Errors
    /// The gate is gone.
    pub fn reply(&self, id: u64, written: bool) -> io::Result<()> {
        self.send(&if written { Reply::Written { id } } else { Reply::Failed { id } })
    }

    /// Tells the gate that the run is over. What it still has to say comes before [`Taken::End`].
    ///
    /// # Errors
    /// The gate is gone.
    pub fn stop(&self) -> io::Result<()> {
        self.send(&Reply::Stop)
    }

    /// Gives the gate one more secret.
    ///
    /// # Errors
    /// The gate is gone, or the value is longer than a packet.
    pub fn give(&self, secret: Renewed) -> io::Result<()> {
        self.send(&Reply::Given(secret))
    }

    /// Gives the gate other rules. They hold once [`Taken::Applied`] says so.
    ///
    /// # Errors
    /// The gate is gone, or takes nothing more.
    pub fn change(&self, change: u64, rules: &Rules) -> io::Result<()> {
        let text = serde_json::to_string(rules)?;
        let mut rest = text.as_str();
        loop {
            let end = rest.floor_char_boundary(PART_BYTES);
            let (part, left) = rest.split_at_checked(end).unwrap_or((rest, ""));
            let more = !left.is_empty();
            self.send(&Reply::Rules { change, text: part.to_owned(), more })?;
            if !more {
                return Ok(());
            }
            rest = left;
        }
    }

    /// Gives the gate a secret's newer value.
    ///
    /// # Errors
    /// The gate is gone, or the value is longer than a packet.
    pub fn renew(&self, renewed: Renewed) -> io::Result<()> {
        self.send(&Reply::Renewed(renewed))
    }

    fn send(&self, reply: &Reply) -> io::Result<()> {
        // It may hold a value, which is wiped with it.
        let bytes = Zeroizing::new(serde_json::to_vec(reply)?);
        socket::send(self.socket.as_fd(), &bytes, &[])
    }
}

impl AsFd for Intake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
