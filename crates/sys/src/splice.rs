//! Moving bytes between descriptors without seeing them.

use crate::raw::{fd, syscall};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Moves at most `most` bytes from one descriptor to another, one of which is a pipe. Never waits for
/// the pipe; sockets must be non-blocking by themselves. Zero is the end of `from`.
///
/// # Errors
/// `WouldBlock` when there is nothing to move or no room for it.
pub fn splice(from: BorrowedFd<'_>, to: BorrowedFd<'_>, most: usize) -> io::Result<usize> {
    let flags = (libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MOVE) as usize;
    let words = [fd(from.as_raw_fd()), 0, fd(to.as_raw_fd()), 0, most, flags];
    // SAFETY: both offsets are null, which means the descriptors' own; no memory is passed.
    unsafe { syscall(libc::SYS_splice, words) }.map_err(Into::into)
}

/// Gives a pipe room for so many bytes; returns the room that it has.
///
/// # Errors
/// `PermissionDenied` when the user's pipes hold too much together; the pipe stays as it was.
pub fn enlarge(pipe: BorrowedFd<'_>, bytes: usize) -> io::Result<usize> {
    let words = [fd(pipe.as_raw_fd()), libc::F_SETPIPE_SZ as usize, bytes, 0, 0, 0];
    // SAFETY: numbers only.
    unsafe { syscall(libc::SYS_fcntl, words) }.map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd as _;

    #[test]
    fn bytes_cross_a_pipe_and_the_end_is_zero() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        near.write_all(b"some bytes").unwrap();
        drop(near);
        assert_eq!(splice(far.as_fd(), writer.as_fd(), 4096).unwrap(), 10);
        assert_eq!(splice(far.as_fd(), writer.as_fd(), 4096).unwrap(), 0);
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "some bytes");
    }

    #[test]
    fn an_empty_source_does_not_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        far.set_nonblocking(true).unwrap();
        let (_reader, writer) = io::pipe().unwrap();
        let error = splice(far.as_fd(), writer.as_fd(), 4096).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_pipe_grows() {
        let (_reader, writer) = io::pipe().unwrap();
        assert!(enlarge(writer.as_fd(), 128 << 10).unwrap() >= 128 << 10);
    }
}
