//! Spellings of an address that some readers take for one, and others for a name.

/// Whether the last label is a number as `inet_aton` reads them: then the whole is an address to
/// some readers (`127.1`, `0x7f.1`, `2130706433`), and never a name.
pub(super) fn is_numeric(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    let digits = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
    let hex = last
        .strip_prefix("0x")
        .or_else(|| last.strip_prefix("0X"))
        .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    digits || hex
}
