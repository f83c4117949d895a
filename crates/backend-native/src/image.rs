//! Which parts of an image's root are shown beyond its system folders.

use std::fs;
use std::path::{Path, PathBuf};

/// What the sandbox makes for itself, or the system folders, which are shown first.
const OURS: [&str; 18] = [
    "usr",
    "opt",
    "bin",
    "sbin",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "etc",
    "proc",
    "sys",
    "dev",
    "tmp",
    "run",
    "workspace",
    "out",
    "var",
    "home",
];
/// Folders in which some parts are ours and some the image's.
const SHARED: [&str; 2] = ["var", "home"];
/// Our parts of `/var`.
const OUR_VAR: [&str; 4] = ["tmp", "empty", "run", "lock"];

/// How a part is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Read-only, where it is.
    Shown,
    /// A folder without content needs no mount.
    Empty,
    Link(PathBuf),
}

/// The parts of the root at `image`, by their names beneath it, in order. Whatever is neither file, folder nor link
/// is not there.
pub(crate) fn rest(image: &Path, home: &Path) -> Vec<(String, Kind)> {
    let mut rest = parts(image, "", |name| OURS.contains(&name));
    for folder in SHARED {
        // Of links nothing is shown: they could lead to what is ours.
        if !fs::symlink_metadata(image.join(folder)).is_ok_and(|facts| facts.is_dir()) {
            continue;
        }
        let ours = |name: &str| {
            let beneath_home = home.starts_with(Path::new("/").join(folder).join(name));
            beneath_home || (folder == "var" && OUR_VAR.contains(&name))
        };
        rest.extend(parts(&image.join(folder), &format!("{folder}/"), ours));
    }
    rest
}

fn parts(folder: &Path, prefix: &str, ours: impl Fn(&str) -> bool) -> Vec<(String, Kind)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    // A name that is not text can not be asked for by a program that people write either.
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| !ours(name)).collect();
    names.sort();
    names
        .into_iter()
        .filter_map(|name| kind(&folder.join(&name)).map(|kind| (format!("{prefix}{name}"), kind)))
        .collect()
}

fn kind(path: &Path) -> Option<Kind> {
    let facts = fs::symlink_metadata(path).ok()?;
    if facts.is_symlink() {
        return fs::read_link(path).ok().map(Kind::Link);
    }
    if facts.is_file() {
        return Some(Kind::Shown);
    }
    if !facts.is_dir() {
        return None;
    }
    let empty = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    Some(if empty { Kind::Empty } else { Kind::Shown })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn an_image_shows_what_is_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in
            ["usr", "app/x", "srv", "tmp/x", "proc/x", "var/lib/x", "var/tmp/x", "home/user/x", "home/node/x"]
        {
            fs::create_dir_all(at(name)).unwrap();
        }
        fs::write(at("start.sh"), "").unwrap();
        symlink("usr/x", at("x")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let shown = rest(folder.path(), Path::new("/home/user"));
        let expected = [
            ("app", Kind::Shown),
            ("srv", Kind::Empty),
            ("start.sh", Kind::Shown),
            ("x", Kind::Link("usr/x".into())),
            ("var/lib", Kind::Shown),
            ("home/node", Kind::Shown),
        ];
        let expected: Vec<_> = expected.map(|(name, kind)| (name.to_owned(), kind)).into();
        assert_eq!(shown, expected);
    }
}
