//! Paths as written: `SRC`, `SRC:DEST`, guest places. Everything is compared by component, never by
//! the beginning of a string, and nothing is looked up.
//!
//! `SRC:DEST` is split at the last `:` that has a `/` after it; where there is none, at the last `:`,
//! and DEST is then beneath `/workspace`. A host name with a colon in it is written with an absolute
//! DEST: `a:b:/workspace/a:b`.
//!
//! A host path keeps its `..` as written, so that the kernel resolves it through links as it would
//! for any other program. Refusals look at the path both as written and with `..` collapsed; where it
//! really leads is for those to judge who can look, by the same table.

use super::Defaults;
use super::refused::{HostUse, refused};
use crate::text::shown;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

/// Where the working directory is inside.
pub(super) const WORKSPACE: &str = "/workspace";
/// The longest path that the kernel takes, without its end mark.
const PATH_BYTES: usize = 4095;
/// The longest name that the kernel takes.
const NAME_BYTES: usize = 255;

/// Guest places that belong to the kernel's views: neither they nor anything beneath them.
const KERNEL_PLACES: [&str; 3] = ["/proc", "/dev", "/sys"];
/// Guest places that the sandbox makes for itself. Something may stand beneath them.
const OWN_PLACES: [&str; 16] = [
    "/etc",
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/run",
    "/workspace",
    "/out",
    "/tmp",
    "/home",
    "/var",
    "/var/tmp",
    // What covers parts of `/proc` comes from here.
    "/var/empty",
];
/// What is wrong with a path, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PathFlaw {
    pub(super) what: String,
    pub(super) remedy: String,
}

/// Splits `SRC:DEST`. `None` where there is no DEST.
pub(super) fn split(entry: &str) -> (&str, Option<&str>) {
    let absolute = entry.rmatch_indices(":/").next().map(|(at, _)| at);
    match absolute.or_else(|| entry.rfind(':')).and_then(|at| entry.split_at_checked(at)) {
        Some((source, rest)) => (source, rest.strip_prefix(':')),
        None => (entry, None),
    }
}

/// The absolute form of a host path: joined to `base`, without `.` and doubled slashes.
pub(super) fn host(text: &str, base: &Path) -> Result<PathBuf, PathFlaw> {
    if text.is_empty() {
        return Err(flaw("the path is empty".to_owned(), "write a path, or leave the field out"));
    }
    if text.contains('\0') {
        return Err(flaw(format!("`{}` holds a NUL", shown(text)), "no file can have that name"));
    }
    if text == "~" || text.starts_with("~/") {
        let what = format!("`{}` is not a path: only a shell replaces `~`", shown(text));
        return Err(flaw(what, "write the whole path, or `./~` for a folder of that name"));
    }
    let joined: PathBuf = base.join(text).components().collect();
    if !joined.is_absolute() {
        let what = format!("`{}` has no folder to start from", shown(text));
        return Err(flaw(what, "write an absolute path"));
    }
    if joined.to_str().is_none() {
        let what = format!("`{}` is in a folder whose name is not UTF-8", shown(text));
        return Err(flaw(what, "start from a folder with a name in UTF-8: the record is text"));
    }
    if collapse(&joined).is_none() {
        return Err(flaw(format!("`{}` climbs above `/`", shown(text)), "take the surplus `..` away"));
    }
    within_kernel_limits(&joined)?;
    Ok(joined)
}

/// A host path that a sandbox may have for `used`: nothing of the table of [`refused`].
pub(super) fn source(text: &str, used: HostUse, defaults: &Defaults) -> Result<PathBuf, PathFlaw> {
    let path = host(text, &defaults.base)?;
    let lexical = collapse(&path).unwrap_or_else(|| PathBuf::from("/"));
    let forms = [path.as_path(), lexical.as_path()];
    match forms.iter().find_map(|form| refused(form, used, defaults)) {
        Some(refusal) => Err(flaw(format!("`{}` {refusal}", shown(text)), refusal.remedy)),
        None => Ok(path),
    }
}

/// A place inside. A relative one is beneath `/workspace`.
pub(super) fn guest(text: &str, defaults: &Defaults) -> Result<PathBuf, PathFlaw> {
    let place = guest_path(text)?;
    let refused = |why: &str| {
        let what = format!("`{}` can not be a place inside: {why}", shown(text));
        Err(flaw(what, "choose another place, such as `/data` or `/workspace/data`"))
    };
    if KERNEL_PLACES.iter().any(|reserved| place.starts_with(reserved)) {
        return refused("it belongs to the sandbox's own view of the kernel");
    }
    if OWN_PLACES.iter().any(|reserved| place == Path::new(reserved)) {
        return refused("the sandbox makes that folder for itself");
    }
    if defaults.home.as_deref().is_some_and(|home| home.starts_with(&place)) {
        return refused("it holds the sandbox's private HOME");
    }
    Ok(place)
}

/// The text of a guest path as components, with no meaning judged.
fn guest_path(text: &str) -> Result<PathBuf, PathFlaw> {
    let wrong = |why: &str| {
        let what = format!("`{}` is not a place inside: {why}", shown(text));
        flaw(what, "write an absolute path without `.` and `..`, such as `/data/in`")
    };
    if text.is_empty() {
        return Err(wrong("it is empty"));
    }
    if text.contains('\0') {
        return Err(wrong("it holds a NUL"));
    }
    let (beneath, names) = match text.strip_prefix('/') {
        Some(names) => ("/", names),
        None => (WORKSPACE, text),
    };
    // A slash at the end is how a shell completes a folder's name, and says nothing more.
    let names = names.strip_suffix('/').unwrap_or(names);
    if names.is_empty() {
        return Err(wrong("it is the root itself"));
    }
    let mut place = PathBuf::from(beneath);
    for name in names.split('/') {
        match name {
            "" => return Err(wrong("a name in it is empty")),
            "." | ".." => return Err(wrong("it holds `.` or `..`")),
            name => place.push(name),
        }
    }
    within_kernel_limits(&place)?;
    Ok(place)
}

/// The file name of a host path, as the default place beneath `/workspace`.
pub(super) fn beneath_workspace(source: &Path) -> Result<PathBuf, PathFlaw> {
    match source.components().next_back() {
        Some(Component::Normal(name)) => Ok(Path::new(WORKSPACE).join(name)),
        Some(Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir) | None => {
            let what = format!("`{}` has no name of its own", shown(&source.to_string_lossy()));
            Err(flaw(what, "say where it goes: `FILE:NAME`"))
        }
    }
}

/// `text` as it is seen from the folder `folder`. What can not be joined is left for the check.
pub(super) fn rebase(text: &str, folder: &Path) -> String {
    match host(text, folder) {
        Ok(path) => path.to_str().map_or_else(|| text.to_owned(), str::to_owned),
        Err(_) => text.to_owned(),
    }
}

/// The same for `SRC[:DEST]` of a view. DEST is made absolute, so that a colon in the name of the
/// folder is not taken for a separator.
pub(super) fn rebase_view(entry: &str, folder: &Path) -> String {
    let (source, place) = split(entry);
    let joined = rebase(source, folder);
    match place {
        Some(place) if place.starts_with('/') => format!("{joined}:{place}"),
        Some("") => format!("{joined}:"),
        Some(place) => format!("{joined}:{WORKSPACE}/{place}"),
        None => {
            let same = collapse(Path::new(&joined)).unwrap_or_default();
            format!("{joined}:{}", same.display())
        }
    }
}

/// The same for `SRC[:DEST]` of an input.
pub(super) fn rebase_input(entry: &str, folder: &Path) -> String {
    let (source, place) = split(entry);
    match (place, beneath_workspace(Path::new(source))) {
        (None, Ok(place)) => format!("{}:{}", rebase(source, folder), place.display()),
        (Some(_), _) | (None, Err(_)) => rebase_view(entry, folder),
    }
}

/// The same for a file that is named after the first `mark` of an entry.
pub(super) fn rebase_after(entry: &str, mark: &str, folder: &Path) -> String {
    match entry.split_once(mark) {
        Some((front, file)) if !file.is_empty() && !front.contains('=') => {
            format!("{front}{mark}{}", rebase(file, folder))
        }
        Some(_) | None => entry.to_owned(),
    }
}

/// The path with every `..` taken together with the name before it; `None` where it climbs above `/`.
pub(super) fn collapse(path: &Path) -> Option<PathBuf> {
    let mut names: Vec<&OsStr> = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::ParentDir => drop(names.pop()?),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    let mut collapsed = PathBuf::from("/");
    collapsed.extend(names);
    Some(collapsed)
}

fn within_kernel_limits(path: &Path) -> Result<(), PathFlaw> {
    let long_name = path.components().any(|component| component.as_os_str().len() > NAME_BYTES);
    if long_name || path.as_os_str().len() > PATH_BYTES {
        let what = format!("`{}` is too long", shown(&path.to_string_lossy()));
        return Err(flaw(what, "the kernel takes 255 bytes a name and 4095 a path"));
    }
    Ok(())
}

fn flaw(what: String, remedy: &str) -> PathFlaw {
    PathFlaw { what, remedy: remedy.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults() -> Defaults {
        Defaults { base: PathBuf::from("/home/ann/work"), ..Defaults::for_tests() }
    }

    #[test]
    fn colons_in_names_survive() {
        assert_eq!(split("a"), ("a", None));
        assert_eq!(split("a:b"), ("a", Some("b")));
        assert_eq!(split("a:b:/c"), ("a:b", Some("/c")));
        assert_eq!(split("/x:/y:/z:w"), ("/x:/y", Some("/z:w")));
        assert_eq!(split("a:"), ("a", Some("")));
    }

    #[test]
    fn host_paths_are_absolute_and_keep_their_climbs() {
        let base = Path::new("/home/ann/work");
        assert_eq!(host("./a//b/.", base), Ok(PathBuf::from("/home/ann/work/a/b")));
        assert_eq!(host("../x", base), Ok(PathBuf::from("/home/ann/work/../x")));
        for bad in ["", "a\0b", "~", "~/x", "../../../../x", "/..", &"n".repeat(256)] {
            assert!(host(bad, base).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_host_itself_is_never_shown() {
        for bad in [
            "/",
            "/proc",
            "/proc/1/root",
            "/sys",
            "/dev/sda",
            "/run",
            "/var/run",
            "/run/docker.sock",
            "/var/run/docker.sock",
            "/run/user/1000/keyring",
            "/home/ann",
            "/home",
            "/home/ann/x/..",
            "..",
            "/tmp/../proc",
            "/home/ann/.local/state/fumehood/layers",
            "/run/podman/podman.sock",
            "//",
            "/./proc",
        ] {
            assert!(source(bad, HostUse::Shown, &defaults()).is_err(), "{bad}");
        }
        for good in
            ["/process", "/home/ann/work", "/home/bob", "/run/media/usb", "/devices", ".", "/home/annabel"]
        {
            assert!(source(good, HostUse::Shown, &defaults()).is_ok(), "{good}");
        }
    }

    #[test]
    fn outputs_never_land_in_the_system() {
        for bad in ["/etc", "/etc/cron.d", "/usr", "/home/ann", "/x/../etc"] {
            assert!(source(bad, HostUse::Output, &defaults()).is_err(), "{bad}");
        }
        assert!(source("out", HostUse::Output, &defaults()).is_ok());
    }

    #[test]
    fn guest_places_are_judged_by_component() {
        for bad in [
            "",
            "/",
            "//",
            "/a//b",
            "/a/./b",
            "/a/../b",
            "..",
            "a/..",
            "/proc",
            "/proc/x",
            "/dev/shm",
            "/sys/fs",
            "/etc",
            "/usr/",
            "/workspace",
            "/out",
            "/tmp",
            "/lib64",
            "/a\0",
            "/home",
            "/home/ann",
        ] {
            assert!(guest(bad, &defaults()).is_err(), "{bad:?}");
        }
        for (text, place) in [
            ("/data/", "/data"),
            ("x/y", "/workspace/x/y"),
            ("/procedures", "/procedures"),
            ("/etc/app", "/etc/app"),
            ("/home/ann/.cache", "/home/ann/.cache"),
            ("/..a", "/..a"),
        ] {
            assert_eq!(guest(text, &defaults()), Ok(PathBuf::from(place)), "{text}");
        }
    }
}
