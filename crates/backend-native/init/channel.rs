//! The socket to the keeper: whole packets, with their descriptors accounted for.

use crate::call::{self, EINTR, Errno, Fd, Message, Region};
use crate::descriptors::Descriptors;
use crate::wire::{DESCRIPTORS, Exec, Flaw, Report, Request};
use core::ptr;

/// The kernel's flags on a received message that did not fit.
const TRUNCATED: i32 = 0x20 | 0x08;

const SOL_SOCKET: i32 = 1;
const SCM_RIGHTS: i32 = 1;

/// The keeper's socket.
pub(crate) struct Channel {
    socket: Fd,
}

/// One request, with what it needs taken from the packet.
pub(crate) enum Incoming<'a> {
    Exec(Exec<'a>, Descriptors),
    Signal {
        exec: u32,
        signal: u8,
    },
    KillAll,
    Dial {
        call: u32,
        port: u16,
    },
    /// Not understood, or not whole; everything on it is closed again.
    Refused {
        exec: u32,
    },
    /// The keeper is gone.
    End,
}

/// One group of descriptors, as the kernel lays it out (64-bit layout).
#[repr(C)]
struct Rights<const N: usize> {
    length: usize,
    level: i32,
    kind: i32,
    numbers: [i32; N],
}

// === impl Channel ===

impl Channel {
    pub(crate) const fn new(socket: Fd) -> Self {
        Self { socket }
    }

    pub(crate) const fn socket(&self) -> &Fd {
        &self.socket
    }

    /// Takes one packet into `buffer`. Waits if there is none.
    pub(crate) fn receive<'a>(&self, buffer: &'a mut [u8]) -> Incoming<'a> {
        let mut rights = Rights { length: 0, level: 0, kind: 0, numbers: [-1; DESCRIPTORS] };
        let Ok((length, flags)) = self.receive_raw(buffer, &mut rights) else { return Incoming::End };
        let descriptors = rights.take();
        let packet = buffer.get(..length).unwrap_or_default();
        if packet.is_empty() {
            return Incoming::End;
        }
        let request = match Request::parse(packet) {
            Ok(request) => request,
            Err(Flaw::Refused { exec }) => return Incoming::Refused { exec },
            Err(Flaw::Garbage) => return Incoming::End,
        };
        let whole = flags & TRUNCATED == 0;
        match request {
            Request::Exec(exec) if whole && descriptors.count() == exec.descriptors() => {
                Incoming::Exec(exec, descriptors)
            }
            Request::Exec(exec) => Incoming::Refused { exec: exec.exec },
            Request::Signal { exec, signal } if whole && descriptors.count() == 0 => {
                Incoming::Signal { exec, signal }
            }
            Request::KillAll if whole && descriptors.count() == 0 => Incoming::KillAll,
            Request::Dial { call, port } if whole && descriptors.count() == 0 => Incoming::Dial { call, port },
            Request::Signal { .. } | Request::KillAll | Request::Dial { .. } => Incoming::End,
        }
    }

    /// Says one thing, with a descriptor on it or none.
    pub(crate) fn send(&self, report: &Report, attached: Option<&Fd>) -> Result<(), Errno> {
        let mut packet = report.print();
        let mut region = Region { base: packet.as_mut_ptr(), length: packet.len() };
        let mut message = Message::of(&mut region);
        let mut rights = Rights { length: 20, level: SOL_SOCKET, kind: SCM_RIGHTS, numbers: [-1; 2] };
        if let Some(fd) = attached {
            rights.numbers = [fd.number(), 0];
            message.control = (&raw mut rights).cast();
            message.control_length = size_of_val(&rights);
        }
        loop {
            // SAFETY: the region is `packet`, the control space is `rights` or none; both live past the call.
            match unsafe { call::send(&self.socket, &message) } {
                Err(EINTR) => {}
                result => return result,
            }
        }
    }

    fn receive_raw(
        &self,
        buffer: &mut [u8],
        rights: &mut Rights<DESCRIPTORS>,
    ) -> Result<(usize, i32), Errno> {
        let mut region = Region { base: buffer.as_mut_ptr(), length: buffer.len() };
        loop {
            let mut message = Message::of(&mut region);
            message.control = (&raw mut *rights).cast();
            message.control_length = size_of::<Rights<DESCRIPTORS>>();
            // SAFETY: the region is `buffer` and the control space is `rights`, both borrowed for writing.
            match unsafe { call::receive(&self.socket, &mut message) } {
                Ok(length) => return Ok((length, message.flags)),
                Err(EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

// === impl Rights ===

impl<const N: usize> Rights<N> {
    /// Takes over the descriptors that the kernel wrote. None if it wrote no group of descriptors.
    fn take(self) -> Descriptors {
        let mut places = [const { None }; DESCRIPTORS];
        if self.level == SOL_SOCKET && self.kind == SCM_RIGHTS {
            let count = self.length.saturating_sub(16) / size_of::<i32>();
            for (place, number) in places.iter_mut().zip(self.numbers).take(count) {
                *place = Some(Fd::own(number));
            }
        }
        Descriptors::new(places)
    }
}

// === impl Message ===

impl Message {
    /// A message of one region and no control space.
    fn of(region: &mut Region) -> Self {
        Self {
            name: ptr::null_mut(),
            name_length: 0,
            regions: region,
            region_count: 1,
            control: ptr::null_mut(),
            control_length: 0,
            flags: 0,
        }
    }
}
