//! Random text that stands nowhere else.

use fumehood_sys::host;
use std::io;

/// 128 random bits as text.
pub(crate) fn canary() -> io::Result<String> {
    Ok(format!("{:016x}{:016x}", host::random()?, host::random()?))
}

/// As hexadecimal, each byte changed, so that whoever is told what to look for does not find the telling.
pub(crate) fn masked(canary: &str) -> String {
    canary.bytes().map(|byte| format!("{:02x}", byte ^ 0x5a)).collect()
}

/// Whether text stands anywhere in bytes.
pub(crate) fn contains(bytes: &[u8], text: &str) -> bool {
    !text.is_empty() && bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_canary_is_another_text() {
        let canary = canary().unwrap();
        assert_eq!(canary.len(), 32);
        assert!(!contains(masked(&canary).as_bytes(), &canary));
        assert!(contains(format!("x{canary}").as_bytes(), &canary));
        assert!(!contains(b"anything", ""));
    }
}
