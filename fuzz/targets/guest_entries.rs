//! A tree of files as a guest sends it.

#![no_main]

use fumehood_guest::entry::{Entry, Front, is_plain};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Front::Entry(entry, length) = Entry::parse(bytes) {
        let mut printed = Vec::new();
        entry.print(&mut printed);
        assert_eq!(printed, bytes[..length]);
        assert!(is_plain(entry.path));
        assert!(!entry.path.split(|byte| *byte == b'/').any(|name| name == b".." || name.is_empty()));
    }
});
