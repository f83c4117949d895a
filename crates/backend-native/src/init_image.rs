//! The program that becomes PID 1, and its copy in memory.

use fumehood_sys::memfd::{self, Purpose};
use std::io;
use std::os::fd::OwnedFd;

/// The program, as built beside this crate.
pub const BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/init"));

/// A sealed copy in memory, to be executed by its descriptor (`execveat` with an empty path). It closes
/// on exec, which is fine: the program is static and needs no interpreter to open it again.
///
/// # Errors
/// Those of [`memfd::sealed`].
pub fn memfd() -> io::Result<OwnedFd> {
    memfd::sealed(c"fumehood-init", BYTES, Purpose::Execute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_small_static_and_64_bit() {
        assert!(BYTES.len() <= 40 * 1024, "init has grown to {} bytes", BYTES.len());
        assert_eq!(&BYTES[..5], b"\x7fELF\x02");
        assert_eq!(BYTES[16], 2, "not a fixed-address executable");
        let interpreter = b"ld-linux";
        assert!(!BYTES.windows(interpreter.len()).any(|part| part == interpreter), "not static");
    }
}
