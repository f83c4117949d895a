//! Connecting to a server of the guest's, on its loopback, without ever waiting.

use crate::call::{self, ECONNREFUSED, EINPROGRESS, EALREADY, EISCONN, Errno, Family, Fd, Pollfd};

/// A connection to this port on the loopback of IP version 4, else of version 6.
///
/// Loopback answers before the call that dials returns. Where it does not, because the queue of whoever
/// listens is full, the connection is on its way, and is given as it is.
///
/// `patience_ms`: for a kernel whose loopback answers a moment later.
pub(crate) fn loopback(port: u16, patience_ms: i32) -> Result<Fd, Errno> {
    match dial(Family::Version4, port, patience_ms) {
        Err(ECONNREFUSED) => dial(Family::Version6, port, patience_ms),
        result => result,
    }
}

fn dial(family: Family, port: u16, patience_ms: i32) -> Result<Fd, Errno> {
    let socket = call::stream_socket(family)?;
    match call::connect_loopback(&socket, family, port) {
        Err(EINPROGRESS) => {}
        result => return result.map(|()| socket),
    }
    if patience_ms > 0 {
        /// POLLOUT.
        const ANSWERED: i16 = 4;
        let _ = call::poll_for(&mut [Pollfd { fd: socket.number(), events: ANSWERED, found: 0 }], patience_ms);
    }
    // Asked again, the kernel says what has become of it.
    match call::connect_loopback(&socket, family, port) {
        Ok(()) | Err(EISCONN | EALREADY) => Ok(socket),
        Err(errno) => Err(errno),
    }
}
