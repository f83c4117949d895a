//! What a program of the host needs beside itself: the loader and the libraries that it names.
//!
//! The bytes are a file of the host, and nothing of them is believed: what does not fit names nothing.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;
const NEEDED: u64 = 1;
const TEXTS: u64 = 5;
const OLD_PLACES: u64 = 15;
const PLACES: u64 = 29;
/// Entries of a table; no program has more.
const MOST_ENTRIES: usize = 4096;

/// What a program or library names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) loader: Option<PathBuf>,
    /// Names of libraries.
    pub(crate) libraries: Vec<OsString>,
    /// Where they are looked for first; `$ORIGIN` is put in.
    pub(crate) places: Vec<PathBuf>,
}

/// A part of the file, and where it is in memory.
#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

/// Reads a program for this machine; `None` where it is none. `at` is where it is.
pub(crate) fn needs(bytes: &[u8], at: &Path) -> Option<Needs> {
    // 64 bits, little-endian, x86-64.
    if bytes.get(..6)? != b"\x7fELF\x02\x01" || number(bytes, 18, 2)? != 62 {
        return None;
    }
    let segments = segments(bytes)?;
    let mut needs = Needs::default();
    if let Some(found) = segments.iter().find(|segment| segment.kind == INTERPRETER) {
        needs.loader = text(bytes, found.offset).map(PathBuf::from);
    }
    let Some(dynamic) = segments.iter().find(|segment| segment.kind == DYNAMIC) else { return Some(needs) };
    let entries: Vec<(u64, u64)> = (0..dynamic.size / 16)
        .take(MOST_ENTRIES)
        .map_while(|place| {
            let at = dynamic.offset.checked_add(place * 16)?;
            Some((number(bytes, at, 8)?, number(bytes, at.checked_add(8)?, 8)?))
        })
        .take_while(|(tag, _)| *tag != 0)
        .collect();
    let texts =
        entries.iter().find(|(tag, _)| *tag == TEXTS).and_then(|(_, address)| offset(&segments, *address));
    let named = |value: u64| text(bytes, texts?.checked_add(value)?);
    for (tag, value) in &entries {
        match *tag {
            NEEDED => needs.libraries.extend(named(*value)),
            OLD_PLACES | PLACES => {
                needs.places.extend(named(*value).iter().flat_map(|list| places(list, at)))
            }
            _ => {}
        }
    }
    Some(needs)
}

fn segments(bytes: &[u8]) -> Option<Vec<Segment>> {
    let (table, size, count) = (number(bytes, 32, 8)?, number(bytes, 54, 2)?, number(bytes, 56, 2)?);
    let segment = |place: u64| {
        let at = table.checked_add(place.checked_mul(size)?)?;
        let field = |offset: u64, bytes_wide| number(bytes, at.checked_add(offset)?, bytes_wide);
        let kind = u32::try_from(field(0, 4)?).ok()?;
        Some(Segment { kind, offset: field(8, 8)?, address: field(16, 8)?, size: field(32, 8)? })
    };
    (0..count).take(MOST_ENTRIES).map(segment).collect()
}

/// Where an address of memory is in the file.
fn offset(segments: &[Segment], address: u64) -> Option<u64> {
    let loaded = segments.iter().filter(|segment| segment.kind == LOAD);
    loaded.into_iter().find_map(|segment| {
        let within = address.checked_sub(segment.address)?;
        (within < segment.size).then(|| segment.offset.checked_add(within))?
    })
}

fn number(bytes: &[u8], at: u64, wide: usize) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let mut eight = [0; 8];
    eight.get_mut(..wide)?.copy_from_slice(bytes.get(at..at.checked_add(wide)?)?);
    Some(u64::from_le_bytes(eight))
}

/// Up to the NUL.
fn text(bytes: &[u8], at: u64) -> Option<OsString> {
    let rest = bytes.get(usize::try_from(at).ok()?..)?;
    let end = rest.iter().take(4096).position(|byte| *byte == 0)?;
    Some(OsString::from_vec(rest.get(..end)?.to_vec()))
}

fn places(list: &OsString, at: &Path) -> Vec<PathBuf> {
    let origin = at.parent().unwrap_or(Path::new("/")).display().to_string();
    let list = list.to_string_lossy().replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin);
    list.split(':').filter(|place| place.starts_with('/')).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_this_host_names_its_loader_and_libraries() {
        let path = Path::new("/bin/sh").to_owned();
        let needs = needs(&std::fs::read(&path).unwrap(), &path).unwrap();
        assert!(needs.loader.is_some_and(|loader| loader.display().to_string().contains("ld-linux")));
        assert!(needs.libraries.iter().any(|name| name.to_string_lossy().starts_with("libc.so")));
    }

    #[test]
    fn damaged_and_other_bytes_name_nothing_and_break_nothing() {
        let whole = std::fs::read("/bin/sh").unwrap();
        for cut in [0, 5, 6, 19, 40, 63, 64, 100, 500, 5000] {
            let _ = needs(&whole[..cut.min(whole.len())], Path::new("/bin/sh"));
        }
        let mut state = 1_u32;
        for _ in 0..2000 {
            let mut damaged = whole[..4096.min(whole.len())].to_vec();
            for _ in 0..8 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let place = (state >> 8) as usize % 900;
                damaged[place] = (state >> 24) as u8;
            }
            let _ = needs(&damaged, Path::new("/bin/sh"));
        }
        assert_eq!(needs(b"#!/bin/sh\n", Path::new("/x")), None);
    }
}
