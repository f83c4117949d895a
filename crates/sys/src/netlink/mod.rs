//! Speaking to the kernel's network over netlink, from a child that may not allocate.
//!
//! A [`Batch`] is written on the stack, sent as one datagram, and answered by the kernel before the send
//! returns. Its messages are applied in order; the last one asks for an acknowledgement, and a message that
//! failed before it answers by itself.

mod redirect;
mod route;

pub(crate) use redirect::redirect_all;
pub(crate) use route::{Interface, Prefix, Route, Scope, Table, VethPair};

use crate::raw::{self, Errno, Result, fd, syscall};
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;

/// Room for the largest batch that is ever written, with much to spare.
const BATCH_BYTES: usize = 3072;
/// Room for one answer. An error repeats the message that failed; only its head is read.
const ANSWER_BYTES: usize = 8192;

const HEADER_BYTES: usize = 16;
const NLMSG_ERROR: u16 = 2;
const REQUEST: u16 = 0x1;
const ACKNOWLEDGE: u16 = 0x4;
/// Make it, and fail where it is already there.
const CREATE: u16 = 0x600;
const NESTED: u16 = 0x8000;

/// A descriptor of a child's own, closed when it goes out of scope.
#[derive(Debug)]
pub(crate) struct Held(pub(crate) RawFd);

/// A netlink socket. It speaks to the namespace in which it was made, wherever its owner goes.
#[derive(Debug)]
pub(crate) struct Netlink(Held);

/// Messages in the making. What does not fit marks it, and then it is not sent.
#[derive(Debug)]
pub(crate) struct Batch {
    bytes: [u8; BATCH_BYTES],
    length: usize,
    /// Where the message that is being written begins.
    message: usize,
    sequence: u32,
    /// The message whose acknowledgement says that all is done, and its sequence number; else the last.
    awaited: Option<(usize, u32)>,
    overflown: bool,
}

/// Where an attribute that holds others begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nest(usize);

// === impl Held ===

impl Held {
    /// The number, which is its taker's from now on.
    pub(crate) fn give(self) -> RawFd {
        ManuallyDrop::new(self).0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        raw::close(self.0);
    }
}

// === impl Netlink ===

impl Netlink {
    /// To links, addresses and routes of the current namespace.
    pub(crate) fn route() -> Result<Self> {
        Self::open(libc::NETLINK_ROUTE)
    }

    fn open(protocol: i32) -> Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        let words = [libc::AF_NETLINK as usize, kind as usize, protocol as usize, 0, 0, 0];
        // SAFETY: numbers only.
        unsafe { syscall(libc::SYS_socket, words) }.map(|made| Self(Held(raw::to_fd(made))))
    }

    /// Sends a batch, and fails with the error of its first message that failed.
    pub(crate) fn apply(&self, mut batch: Batch) -> Result<()> {
        let (_, awaited) = batch.awaited();
        self.send(batch.finish(ACKNOWLEDGE)?)?;
        let mut answer = [0_u8; ANSWER_BYTES];
        loop {
            let message = Answer::parse(self.receive(&mut answer)?).ok_or(Errno(libc::EBADMSG))?;
            if message.kind != NLMSG_ERROR {
                continue;
            }
            match message.error().ok_or(Errno(libc::EBADMSG))? {
                0 if message.sequence == awaited => return Ok(()),
                0 => {}
                error => return Err(Errno(error.saturating_neg())),
            }
        }
    }

    /// Sends one question and gives the first message that answers it.
    fn ask<'b>(&self, mut batch: Batch, answer: &'b mut [u8; ANSWER_BYTES]) -> Result<Answer<'b>> {
        self.send(batch.finish(0)?)?;
        let message = Answer::parse(self.receive(answer)?).ok_or(Errno(libc::EBADMSG))?;
        match message.error() {
            Some(error) if message.kind == NLMSG_ERROR => Err(Errno(error.saturating_neg())),
            _ => Ok(message),
        }
    }

    fn send(&self, bytes: &[u8]) -> Result<()> {
        let words = [fd(self.0.0), bytes.as_ptr() as usize, bytes.len(), 0, 0, 0];
        // SAFETY: `bytes` is live and only read; without an address the kernel is spoken to.
        unsafe { syscall(libc::SYS_sendto, words) }.map(drop)
    }

    fn receive<'b>(&self, answer: &'b mut [u8; ANSWER_BYTES]) -> Result<&'b [u8]> {
        let flags = libc::MSG_DONTWAIT as usize;
        let words = [fd(self.0.0), answer.as_mut_ptr() as usize, answer.len(), flags, 0, 0];
        // SAFETY: `answer` has room for what is asked; no address is wanted.
        let length = unsafe { syscall(libc::SYS_recvfrom, words) }?;
        answer.get(..length).ok_or(Errno(libc::EBADMSG))
    }
}

/// The first message of a datagram from the kernel.
#[derive(Debug)]
struct Answer<'b> {
    kind: u16,
    sequence: u32,
    body: &'b [u8],
}

// === impl Answer ===

impl<'b> Answer<'b> {
    fn parse(bytes: &'b [u8]) -> Option<Self> {
        let length = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
        let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
        let sequence = u32::from_ne_bytes(*bytes.get(8..)?.first_chunk()?);
        Some(Self { kind, sequence, body: bytes.get(HEADER_BYTES..length.min(bytes.len()))? })
    }

    /// The error number of an answer of that kind, negative, or zero for an acknowledgement.
    fn error(&self) -> Option<i32> {
        self.body.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes))
    }

    /// The first byte of an attribute that stands behind a fixed part of `fixed` bytes.
    fn attribute_byte(&self, fixed: usize, wanted: u16) -> Option<u8> {
        let mut rest = self.body.get(fixed..)?;
        loop {
            let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
            let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
            if kind == wanted {
                return rest.get(4..length)?.first().copied();
            }
            rest = rest.get(length.max(4).next_multiple_of(4)..)?;
        }
    }
}

// === impl Batch ===

impl Batch {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; BATCH_BYTES], length: 0, message: 0, sequence: 0, awaited: None, overflown: false }
    }

    /// Begins a message; what is put before the next one belongs to it.
    fn begin(&mut self, kind: u16, flags: u16) {
        self.close();
        self.message = self.length;
        self.sequence += 1;
        self.put(&0_u32.to_ne_bytes());
        self.put(&kind.to_ne_bytes());
        self.put(&(REQUEST | flags).to_ne_bytes());
        self.put(&self.sequence.to_ne_bytes());
        self.put(&0_u32.to_ne_bytes());
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        let nest = self.nest(kind);
        self.put(value);
        self.end(nest);
    }

    /// A string with the end mark that the kernel wants.
    fn text(&mut self, kind: u16, value: &std::ffi::CStr) {
        self.attribute(kind, value.to_bytes_with_nul());
    }

    /// Begins an attribute whose value is what is put before [`Batch::end`].
    fn nest(&mut self, kind: u16) -> Nest {
        let at = self.length;
        self.put(&0_u16.to_ne_bytes());
        self.put(&kind.to_ne_bytes());
        Nest(at)
    }

    fn end(&mut self, nest: Nest) {
        // No batch is longer than a length field can say.
        let length = (self.length - nest.0) as u16;
        self.patch(nest.0, &length.to_ne_bytes());
        self.length = self.length.next_multiple_of(4);
    }

    fn put(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        match self.bytes.get_mut(self.length..end) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.length = end;
            }
            None => self.overflown = true,
        }
    }

    fn patch(&mut self, at: usize, bytes: &[u8]) {
        match self.bytes.get_mut(at..at + bytes.len()) {
            Some(room) => room.copy_from_slice(bytes),
            None => self.overflown = true,
        }
    }

    /// Writes down how long the message is.
    fn close(&mut self) {
        let length = (self.length - self.message) as u32;
        if length > 0 {
            self.patch(self.message, &length.to_ne_bytes());
        }
    }

    /// Waits for the answer to the message that is being written, whatever follows it.
    fn await_this(&mut self) {
        self.awaited = Some((self.message, self.sequence));
    }

    fn awaited(&self) -> (usize, u32) {
        self.awaited.unwrap_or((self.message, self.sequence))
    }

    /// All of it, with `flags` on the message whose answer is awaited.
    fn finish(&mut self, flags: u16) -> Result<&[u8]> {
        self.close();
        let at = self.awaited().0 + 6;
        let before = self.bytes.get(at..).and_then(<[u8]>::first_chunk).copied().map(u16::from_ne_bytes);
        self.patch(at, &(before.unwrap_or(0) | flags).to_ne_bytes());
        match self.bytes.get(..self.length) {
            Some(whole) if !self.overflown => Ok(whole),
            _ => Err(Errno(libc::EMSGSIZE)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_does_not_fit_is_not_sent() {
        let mut batch = Batch::new();
        batch.begin(1, 0);
        for _ in 0..BATCH_BYTES / 64 {
            batch.attribute(1, &[0; 64]);
        }
        assert_eq!(batch.finish(0).unwrap_err(), Errno(libc::EMSGSIZE));
    }

    #[test]
    fn lengths_are_the_kernels() {
        let mut batch = Batch::new();
        batch.begin(16, CREATE);
        let nest = batch.nest(NESTED | 1);
        batch.attribute(2, b"abc");
        batch.end(nest);
        batch.begin(17, 0);
        let bytes = batch.finish(ACKNOWLEDGE).unwrap();
        let message = [28, 0, 0, 0, 16, 0, 1, 6, 1, 0, 0, 0, 0, 0, 0, 0, 12, 0, 1, 0x80, 7, 0, 2, 0];
        assert_eq!(bytes[..24], message);
        assert_eq!(bytes[24..], [b'a', b'b', b'c', 0, 16, 0, 0, 0, 17, 0, 5, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn any_answer_is_read() {
        for length in 0..40 {
            for byte in [0, 1, 4, 0xff] {
                let bytes = vec![byte; length];
                if let Some(answer) = Answer::parse(&bytes) {
                    let _ = (answer.error(), answer.attribute_byte(16, 1), answer.attribute_byte(0, 9));
                }
            }
        }
    }

    #[test]
    fn the_kernels_error_comes_back() {
        let mut batch = Batch::new();
        batch.up(Interface { index: i32::MAX });
        let error = Netlink::route().unwrap().apply(batch).unwrap_err();
        assert!([libc::ENODEV, libc::EPERM].contains(&error.0), "{error:?}");
    }
}
