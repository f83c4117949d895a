//! Any name that a guest chose is one harmless line of text that reads back as that name; any line of
//! a journal is read back or refused.

#![no_main]

use fumehood_runtime::files::text::{escape_line, escape_path, unescape_path};
use libfuzzer_sys::fuzz_target;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

fuzz_target!(|bytes: &[u8]| {
    let path = Path::new(OsStr::from_bytes(bytes));
    let text = escape_path(path);
    assert!(!text.chars().any(char::is_control), "{text:?}");
    let back = unescape_path(&text).expect("what was written can be read");
    assert_eq!(back.as_os_str(), path.as_os_str());
    let line = escape_line(bytes);
    assert!(!line.chars().any(|letter| letter != '\t' && letter.is_control()), "{line:?}");
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = unescape_path(text);
    }
});
