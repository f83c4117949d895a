//! The file wall where images come in: archives whose entries are written so that they land elsewhere.
//!
//! The control is an unpacker that takes every entry at its word.

use super::{ALL, alone};
use crate::bench::{Bench, Job};
use crate::canary::{canary, contains};
use crate::finding::Finding;
use crate::probe::{Probe, Side, Wall};
use sha2::{Digest as _, Sha256};
use std::io;
use std::path::{Path, PathBuf};

const F: Wall = Wall::Files;
const FILE: u8 = b'0';
const SAME: u8 = b'1';
const LINK: u8 = b'2';

/// One entry: its kind, its name, where it leads, what is in it.
type Entry = (u8, String, String, &'static str);

pub(super) fn probes() -> Vec<Probe> {
    vec![
        alone(("F16", F, "have an image unpacked by names that lead out of it"), ALL, |bench, side| {
            unpacked(bench, side, |outside, _| {
                let up = "../../../../../../../../../../..";
                vec![
                    vec![(FILE, format!("{up}{outside}/planted"), String::new(), "planted")],
                    vec![(FILE, format!("a/b/{up}{outside}/planted"), String::new(), "planted")],
                    vec![(FILE, format!("{outside}/planted"), String::new(), "planted")],
                    vec![(
                        FILE,
                        format!(".//.{outside}/../{}/planted", last(outside)),
                        String::new(),
                        "planted",
                    )],
                ]
            })
        }),
        alone(("F18", F, "have an image unpacked through links of its own"), ALL, |bench, side| {
            unpacked(bench, side, |outside, secret| {
                let link = |name: &str, to: &str| (LINK, name.to_owned(), to.to_owned(), "");
                let file = |name: &str| (FILE, name.to_owned(), String::new(), "planted");
                vec![
                    vec![link("l", outside), file("l/planted")],
                    vec![link("l", outside), (b'5', "l".to_owned(), String::new(), ""), file("l/planted")],
                    vec![link("planted", &format!("{outside}/planted")), file("planted")],
                    vec![(SAME, "second".to_owned(), secret.to_owned(), ""), file("second")],
                ]
            })
        }),
    ]
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// Has archives unpacked whose entries mean a folder of the host's: nothing lands there, what is in it is not changed, and
/// does not come into the store.
fn unpacked(bench: &Bench, side: Side, archives: fn(&str, &str) -> Vec<Vec<Entry>>) -> io::Result<Finding> {
    let (outside, place) = (bench.fresh("outside")?, bench.fresh("archive")?);
    let (secret, canary) = (outside.join("secret"), canary()?);
    std::fs::write(&secret, &canary)?;
    // What leads here is written as a path of the host's.
    for entries in archives(&outside.display().to_string(), &secret.display().to_string()) {
        let layer = tar(&entries);
        let kept = match side {
            Side::Walled => match pulled(bench, &place, &layer)? {
                Ok(state) => state,
                Err(unclear) => return Ok(unclear),
            },
            Side::Open => {
                let (file, into) = (place.join("layer.tar"), bench.fresh("root")?);
                std::fs::write(&file, &layer)?;
                let (file, to) = (file.display().to_string(), into.display().to_string());
                bench.run(side, &Job::step(&["F", "unpack", &file, &to]))?;
                into
            }
        };
        let names = std::fs::read_dir(&outside)?.count();
        if names != 1 || std::fs::read_to_string(&secret)? != canary {
            return Ok(Finding::Through("an entry landed in a folder of the host".to_owned()));
        }
        if holds(&kept, &canary) {
            return Ok(Finding::Through("a file of the host came into the image".to_owned()));
        }
    }
    Ok(Finding::Quiet)
}

/// Pulls an image of one layer; the state folder with the store, or what is unclear.
fn pulled(bench: &Bench, place: &Path, layer: &[u8]) -> io::Result<Result<PathBuf, Finding>> {
    let digest = Sha256::digest(layer).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let config = format!(
        r#"{{"os":"linux","architecture":"amd64","rootfs":{{"type":"layers","diff_ids":["sha256:{digest}"]}}}}"#
    );
    let list = br#"[{"Config":"config.json","RepoTags":["prove:1"],"Layers":["layer.tar"]}]"#;
    let mut archive = Vec::new();
    put(&mut archive, FILE, b"manifest.json", b"", list);
    put(&mut archive, FILE, b"config.json", b"", config.as_bytes());
    put(&mut archive, FILE, b"layer.tar", b"", layer);
    archive.resize(archive.len() + 1024, 0);
    let path = place.join("image.tar");
    std::fs::write(&path, archive)?;
    let state = bench.fresh("store")?;
    std::fs::set_permissions(&state, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    let words =
        ["image", "pull", "--json", "--as", "prove:1", &path.display().to_string()].map(str::to_owned);
    let env = vec![("FUMEHOOD_STATE".to_owned(), state.display().to_string())];
    let came = bench.run(Side::Walled, &Job { instead: Some(words.to_vec()), env, ..Job::default() })?;
    let told = came.report.get("digest").or_else(|| came.report.pointer("/error/code"));
    Ok(if told.is_some() { Ok(state) } else { Err(Finding::Unclear(came.outcome())) })
}

fn holds(folder: &Path, canary: &str) -> bool {
    std::fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
        let path = entry.path();
        match std::fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => holds(&path, canary),
            Ok(found) if found.is_file() => std::fs::read(&path).is_ok_and(|bytes| contains(&bytes, canary)),
            _ => false,
        }
    })
}

fn tar(entries: &[Entry]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (kind, name, to, content) in entries {
        put(&mut archive, *kind, name.as_bytes(), to.as_bytes(), content.as_bytes());
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

/// Adds one entry; a name that has no room in the header goes before it, as GNU writes it.
fn put(archive: &mut Vec<u8>, kind: u8, name: &[u8], to: &[u8], content: &[u8]) {
    for (kind, long) in [(b'L', name), (b'K', to)] {
        if long.len() > 100 {
            block(archive, kind, b"././@LongLink", b"", &[long, b"\0"].concat());
        }
    }
    block(archive, kind, name, to, content);
}

fn block(archive: &mut Vec<u8>, kind: u8, name: &[u8], to: &[u8], content: &[u8]) {
    let mut header = Vec::with_capacity(512);
    let mut field = |bytes: &[u8], size: usize| {
        let end = header.len() + size;
        header.extend(bytes.iter().take(size));
        header.resize(end, 0);
    };
    field(name, 100);
    field(b"0000644\0", 8);
    field(b"0000000\0", 8);
    field(b"0000000\0", 8);
    field(format!("{:011o}\0", content.len()).as_bytes(), 12);
    field(b"00000000001\0", 12);
    field(b"        ", 8);
    field(&[kind], 1);
    field(to, 100);
    field(b"ustar\x0000", 255);
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    let sum = format!("{sum:06o}\0 ");
    archive.extend(header.iter().take(148));
    archive.extend(sum.as_bytes());
    archive.extend(header.iter().skip(156));
    archive.extend(content);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_whole_blocks_and_a_long_name_goes_before() {
        let short = tar(&[(FILE, "a".to_owned(), String::new(), "x")]);
        assert_eq!(short.len(), 512 * 4);
        let long = tar(&[(FILE, "a".repeat(200), String::new(), "x")]);
        assert_eq!(long.len(), 512 * 6);
        assert_eq!(long[156], b'L');
    }
}
