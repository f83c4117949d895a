//! The program that becomes PID 1 of a guest.

/// The program, as built beside this crate.
pub const BYTES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guestd"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_small_static_and_64_bit() {
        assert!(BYTES.len() <= 96 * 1024, "guestd has grown to {} bytes", BYTES.len());
        assert_eq!(&BYTES[..5], b"\x7fELF\x02");
        assert_eq!(BYTES[16], 2, "not a fixed-address executable");
        let interpreter = b"ld-linux";
        assert!(!BYTES.windows(interpreter.len()).any(|part| part == interpreter), "not static");
    }
}
