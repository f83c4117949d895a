//! The stream to the host: frames in, frames out, never waited for.

use crate::call::{self, Errno, Fd};
use crate::file;
use crate::frame::{HEADER_BYTES, Header, PAYLOAD_BYTES, Report, Request, Sink};
use alloc::vec::Vec;

/// Above this nothing more is read: neither of the host's requests nor of what commands write.
const ROOM_BYTES: usize = 256 * 1024;
const READ_BYTES: usize = 64 * 1024;
/// Where the kind stands in a header.
const HEADER_KIND: usize = 4;

/// The stream to the host.
pub(crate) struct Line {
    from: Fd,
    to: Fd,
    /// Read, and not yet taken.
    inbox: Vec<u8>,
    taken: usize,
    /// To be written.
    outbox: Outbox,
    sent: usize,
    /// Whether an end is no end: a machine's port has none while the host changes hands, and its host goes only
    /// with the machine.
    endless: bool,
}

/// Frames that wait.
#[derive(Default)]
pub(crate) struct Outbox(Vec<u8>);

/// What the next frame is.
pub(crate) enum Next<'a> {
    Frame(Request<'a>),
    /// There is no whole frame.
    None,
    /// Not of this protocol.
    Garbage,
}

impl Sink for Outbox {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

// === impl Line ===

impl Line {
    /// Over descriptors 0 and 1, which commands will not see.
    pub(crate) fn standard() -> Result<Self, Errno> {
        let (from, to) = (file::above(0)?, file::above(1)?);
        Self::over(from, to)
    }

    /// Over these two. Numbers 0 to 3 are put out of anybody's way.
    pub(crate) fn over(from: Fd, to: Fd) -> Result<Self, Errno> {
        file::occupy_standard()?;
        file::set_nonblocking(&from)?;
        file::set_nonblocking(&to)?;
        Ok(Self { from, to, inbox: Vec::new(), taken: 0, outbox: Outbox::default(), sent: 0, endless: false })
    }

    /// The same, for a port of a machine.
    pub(crate) fn without_end(mut self) -> Self {
        self.endless = true;
        self
    }

    pub(crate) const fn from(&self) -> &Fd {
        &self.from
    }

    pub(crate) const fn to(&self) -> &Fd {
        &self.to
    }

    pub(crate) fn has_room(&self) -> bool {
        self.outbox.0.len() - self.sent < ROOM_BYTES
    }

    pub(crate) fn has_news(&self) -> bool {
        self.outbox.0.len() > self.sent
    }

    /// Reads what is there. `false`: the host is gone.
    pub(crate) fn read(&mut self) -> bool {
        self.inbox.drain(..self.taken);
        self.taken = 0;
        let before = self.inbox.len();
        self.inbox.resize(before + READ_BYTES, 0);
        let room = self.inbox.get_mut(before..).unwrap_or_default();
        let read = file::read(&self.from, room);
        self.inbox.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            // It is said again and again until somebody is there.
            Ok(0) if self.endless => call::poll_for(&mut [], 2).is_ok(),
            Ok(0) => false,
            Ok(_) | Err(call::EAGAIN | call::EINTR) => true,
            Err(_) => false,
        }
    }

    /// The next whole frame of what was read.
    pub(crate) fn next(&mut self) -> Next<'_> {
        let rest = self.inbox.get(self.taken..).unwrap_or_default();
        let Some((head, rest)) = rest.split_first_chunk::<HEADER_BYTES>() else { return Next::None };
        let Some(header) = Header::parse(head) else { return Next::Garbage };
        let Some(payload) = rest.get(..header.length as usize) else { return Next::None };
        self.taken += HEADER_BYTES + payload.len();
        match Request::parse(&header, payload) {
            Some(request) => Next::Frame(request),
            None => Next::Garbage,
        }
    }

    pub(crate) fn say(&mut self, report: &Report<'_>) {
        report.print(&mut self.outbox);
    }

    /// Says what `fill` reads, in place: it is given room for at most `most` bytes and tells how many it
    /// used. Nothing is said when there are none.
    pub(crate) fn say_data(
        &mut self,
        (channel, stream): (u32, u8),
        most: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let before = self.outbox.0.len();
        // An empty frame of that stream, whose length is put right below.
        self.say(&Report::End { channel, stream });
        let start = self.outbox.0.len();
        self.outbox.0.resize(start + most.min(PAYLOAD_BYTES), 0);
        let filled = fill(self.outbox.0.get_mut(start..).unwrap_or_default());
        match filled {
            Ok(count @ 1..) => {
                self.outbox.0.truncate(start + count);
                if let Some(header) = self.outbox.0.get_mut(before..start) {
                    let length = (count as u32).to_le_bytes();
                    header.iter_mut().zip(length).for_each(|(place, byte)| *place = byte);
                    if let Some(kind) = header.get_mut(HEADER_KIND) {
                        *kind = Report::DATA_KIND;
                    }
                }
            }
            Ok(0) | Err(_) => self.outbox.0.truncate(before),
        }
        filled
    }

    /// Writes what the host takes now. `false`: it is gone.
    pub(crate) fn write(&mut self) -> bool {
        while self.has_news() {
            match file::write(&self.to, self.outbox.0.get(self.sent..).unwrap_or_default()) {
                Ok(count) => self.sent += count,
                Err(call::EAGAIN) => break,
                Err(call::EINTR) => {}
                Err(_) => return false,
            }
        }
        if !self.has_news() {
            self.outbox.0.clear();
            self.sent = 0;
        } else if self.sent > ROOM_BYTES / 2 {
            self.outbox.0.drain(..self.sent);
            self.sent = 0;
        }
        true
    }

    /// Forgets what was to be said: the host begins anew.
    pub(crate) fn forget(&mut self) {
        // A frame that was begun must be ended, or the host would read the next one as the rest of it. It
        // reads nothing before its greeting is answered, and a host that begins anew has a new stream.
        self.outbox.0.clear();
        self.sent = 0;
    }
}
