//! Do the host paths of an envelope lead where their clause needs them to, and nowhere else?
//!
//! The check of the envelope judged the names that were written. This look follows the links, and asks
//! the same table about the place where each path really leads. The backend opens each of them again by
//! its own rules; whatever happens between the two looks ends in a refusal there, in fewer words.

use crate::refusal::Refusal;
use fumehood_model::envelope::{Defaults, Envelope, HostUse, Root, refused};
use fumehood_sys::host::resolve;
use std::fs::{self, FileType};
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

const STEP: &str = "open the paths of the envelope";

/// What a path has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Folder,
    File,
    Either,
}

/// A path as it was written, with what it is wanted for.
#[derive(Clone, Copy, Debug)]
struct Named<'a> {
    flag: &'a str,
    path: &'a Path,
    wanted: Wanted,
    used: HostUse,
}

/// What has been found wrong so far.
#[derive(Debug)]
struct Look<'a> {
    /// The defaults as they were judged, and the same with links followed: the home folder itself may
    /// be reached through one.
    defaults: [&'a Defaults; 2],
    wrong: Vec<Refusal>,
}

/// Looks at every host path of the envelope, and tells of each that does not fit.
pub(crate) fn check(envelope: &Envelope, defaults: &Defaults) -> Result<(), Refusal> {
    let files = envelope.filesystem();
    let followed = Defaults {
        home: defaults.home.as_deref().map(real),
        state: defaults.state.as_deref().map(real),
        ..defaults.clone()
    };
    let mut look = Look { defaults: [defaults, &followed], wrong: Vec::new() };
    // An image of the store is where we put it.
    if let Root::Directory(path) = &files.root {
        look.at(Named { flag: "--image", path, wanted: Wanted::Folder, used: HostUse::Shown });
    }
    let workspace = files.workspace.as_ref().and_then(|workspace| {
        let (path, used) = (workspace.source.as_path(), HostUse::Workspace(workspace.mode));
        look.at(Named { flag: "--workspace", path, wanted: Wanted::Folder, used })
    });
    for mount in &files.mounts {
        let path = mount.source.as_path();
        look.at(Named { flag: "--ro", path, wanted: Wanted::Either, used: HostUse::Shown });
    }
    for input in &files.inputs {
        let path = input.source.as_path();
        look.at(Named { flag: "--in", path, wanted: Wanted::File, used: HostUse::Shown });
    }
    if let Some(out) = &files.output {
        look.output(out, workspace.as_deref());
    }
    all(look.wrong)
}

// === impl Look ===

impl Look<'_> {
    /// Looks at one path; where it leads, if that is a place that it may have.
    fn at(&mut self, named: Named<'_>) -> Option<PathBuf> {
        match self.judge(named) {
            Ok(real) => Some(real),
            Err(refusal) => {
                self.wrong.push(refusal);
                None
            }
        }
    }

    fn judge(&self, named: Named<'_>) -> Result<PathBuf, Refusal> {
        let real = find(named)?;
        self.allowed(named, &real)?;
        Ok(real)
    }

    /// Asks the table about `real`, where `named` leads.
    fn allowed(&self, named: Named<'_>, real: &Path) -> Result<(), Refusal> {
        let found = self.defaults.iter().find_map(|defaults| refused(real, named.used, defaults));
        let Some(found) = found else { return Ok(()) };
        let (flag, path, to) = (named.flag, named.path.display(), real.display());
        let why = if named.path == real {
            format!("`{flag} {path}` {found}")
        } else {
            format!("`{flag} {path}` leads to `{to}`, which {found}")
        };
        Err(Refusal::new(STEP, why, found.remedy))
    }

    /// The folder for outputs is made when there is something to put in it. Its name is judged now.
    fn output(&mut self, out: &Path, workspace: Option<&Path>) {
        let named = Named { flag: "--out", path: out, wanted: Wanted::Folder, used: HostUse::Output };
        let missing = fs::symlink_metadata(out).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        let real = match (out.parent(), out.file_name()) {
            (Some(above), Some(name)) if missing => {
                find(Named { path: above, ..named }).map(|above| above.join(name))
            }
            (_, _) => find(named),
        };
        let real = match real.and_then(|real| self.allowed(named, &real).map(|()| real)) {
            Ok(real) => real,
            Err(refusal) => return self.wrong.push(refusal),
        };
        // The check of the envelope says this of the names.
        if workspace.is_some_and(|workspace| workspace.starts_with(&real)) {
            let why =
                format!("`--out {}` leads to `{}`, which holds the workspace", out.display(), real.display());
            let remedy =
                "name a folder in it or beside it; changes to the workspace come back with `fumehood apply`";
            self.wrong.push(Refusal::new(STEP, why, remedy));
        }
    }
}

/// The path with its links followed as far as it exists.
fn real(path: &Path) -> PathBuf {
    let mut missing = Vec::new();
    for above in path.ancestors() {
        if let Ok((_, mut found)) = resolve(above) {
            found.extend(missing.iter().rev());
            return found;
        }
        missing.extend(above.file_name());
    }
    path.to_owned()
}

fn all(mut wrong: Vec<Refusal>) -> Result<(), Refusal> {
    match wrong.len() {
        0 => Ok(()),
        1 => Err(wrong.remove(0)),
        many => {
            let each = |one: &Refusal| format!("\n  - {}; {}", one.why, one.remedy);
            let list: String = wrong.iter().map(each).collect();
            Err(Refusal::new(STEP, format!("{many} paths do not fit:{list}"), "mend each of them as it says"))
        }
    }
}

/// Where the path leads, if what stands there is what is wanted.
fn find(named: Named<'_>) -> Result<PathBuf, Refusal> {
    let Named { flag, path, wanted, .. } = named;
    let (facts, real) = resolve(path).map_err(|error| {
        let (what, remedy) = unreachable(flag, path, wanted, &error);
        Refusal::new(STEP, format!("`{flag} {}`: {what}", path.display()), remedy)
    })?;
    let refuse = |what: &str, remedy: String| {
        let leads = if real == path { String::new() } else { format!(" leads to `{}`", real.display()) };
        Err(Refusal::new(STEP, format!("`{flag} {}`{leads}: {what}", path.display()), remedy))
    };
    match wanted {
        Wanted::Folder if !facts.is_dir() => refuse("this is not a folder", folder_remedy(flag, path)),
        Wanted::File if facts.is_dir() => refuse(
            "this is a folder",
            format!("show it with `--ro {0}`, or work in it with `--workspace {0}`", path.display()),
        ),
        Wanted::File | Wanted::Either if !facts.is_file() && !facts.is_dir() => {
            let (kind, remedy) = special(facts.file_type());
            refuse(&format!("this is {kind}, not a plain file"), remedy.to_owned())
        }
        Wanted::Folder | Wanted::File | Wanted::Either => Ok(real),
    }
}

/// A file that is more than its content: whoever is at its other end is outside of the walls.
fn special(kind: FileType) -> (&'static str, &'static str) {
    if kind.is_socket() {
        ("a socket", "name a plain file; whoever listens at a socket is outside of the sandbox's walls")
    } else if kind.is_fifo() {
        ("a named pipe", "send its content on standard input, or copy it to a file first")
    } else {
        ("a device", "copy its content to a file first")
    }
}

/// Why there is nothing to look at, and what to do.
#[expect(clippy::wildcard_enum_match_arm, reason = "the standard library may add kinds")]
fn unreachable(flag: &str, path: &Path, wanted: Wanted, error: &std::io::Error) -> (String, String) {
    let (what, remedy) = match error.kind() {
        ErrorKind::NotFound if fs::symlink_metadata(path).is_ok() => {
            ("the link leads nowhere", "name what it should lead to".to_owned())
        }
        ErrorKind::NotFound => ("there is no such path", missing_remedy(flag, path, wanted)),
        ErrorKind::NotADirectory => {
            ("a part of the path is not a folder", missing_remedy(flag, path, wanted))
        }
        ErrorKind::PermissionDenied => (
            "you may not look there",
            format!("run as a user who may; see who that is: `ls -ld {}`", closed(path).display()),
        ),
        _ if is_link_loop(error) => {
            ("the links lead in a circle", format!("see `namei {}`, name the target", path.display()))
        }
        _ => return (error.to_string(), "name another path".to_owned()),
    };
    (what.to_owned(), remedy)
}

fn is_link_loop(error: &std::io::Error) -> bool {
    // ELOOP has no stable `ErrorKind`.
    error.raw_os_error() == Some(40)
}

/// The folder that could be looked at and not into.
fn closed(path: &Path) -> &Path {
    path.ancestors().skip(1).find(|above| fs::symlink_metadata(above).is_ok()).unwrap_or(Path::new("/"))
}

/// The longest part of the path that is there: where the spelling went wrong.
fn missing_remedy(flag: &str, path: &Path, wanted: Wanted) -> String {
    let there = path.ancestors().skip(1).find(|above| above.exists()).unwrap_or(Path::new("/"));
    let below_folder = there.is_dir() && wanted == Wanted::Folder && flag != "--image";
    let make = match path.to_string_lossy().rsplit_once(':') {
        Some((_, mode)) if flag == "--workspace" && !mode.contains('/') => {
            ("; a folder's mode is `:ro` or `:rw`").to_owned()
        }
        _ if below_folder => format!(", or make it: `mkdir -p {}`", path.display()),
        _ => String::new(),
    };
    format!("check the spelling (`{}` is there){make}", there.display())
}

fn folder_remedy(flag: &str, path: &Path) -> String {
    match flag {
        "--workspace" => format!("for one file: `--in {}`", path.display()),
        _ => "name a folder".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn named<'a>(path: &'a Path, wanted: Wanted) -> Named<'a> {
        Named { flag: "--workspace", path, wanted, used: HostUse::Shown }
    }

    fn why(path: &Path, wanted: Wanted) -> String {
        find(named(path, wanted)).err().map(|refusal| refusal.why).unwrap_or_default()
    }

    fn defaults(home: &Path) -> Defaults {
        Defaults {
            base: PathBuf::from("/"),
            home: Some(home.to_owned()),
            state: Some(home.join("state/not/there")),
            host_memory_bytes: 1 << 30,
            host_cpus: 1,
            timeout: None,
            output_bytes: 1 << 20,
            presets: std::collections::BTreeMap::new(),
            images: std::collections::BTreeMap::new(),
        }
    }

    #[test]
    fn each_way_to_be_wrong_has_its_own_words() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "").unwrap();
        symlink(at("loop"), at("loop")).unwrap();
        symlink(at("gone"), at("dangling")).unwrap();
        assert!(why(&at("none"), Wanted::Folder).ends_with("there is no such path"));
        assert!(why(&at("file"), Wanted::Folder).ends_with("this is not a folder"));
        assert!(why(&at("file/x"), Wanted::Folder).ends_with("not a folder"));
        assert!(why(&at("loop"), Wanted::Folder).ends_with("the links lead in a circle"));
        assert!(why(&at("dangling"), Wanted::Folder).ends_with("the link leads nowhere"));
        assert!(why(folder.path(), Wanted::File).ends_with("this is a folder"));
        assert!(why(Path::new("/dev/null"), Wanted::Either).ends_with("this is a device, not a plain file"));
        let _listener = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        assert!(why(&at("socket"), Wanted::File).contains("a socket"));
        assert_eq!(why(folder.path(), Wanted::Folder), "");
    }
    #[test]
    fn a_link_is_judged_by_where_it_leads() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("real/home/work")).unwrap();
        symlink("real/home", at("home")).unwrap();
        symlink("/", at("root")).unwrap();
        symlink("/etc", at("etc")).unwrap();
        symlink("real/home", at("again")).unwrap();
        let (home, plain) = (at("home"), at("real/home/work"));
        let given = defaults(&home);
        let followed = Defaults { home: Some(real(&home)), ..given.clone() };
        let look = Look { defaults: [&given, &followed], wrong: Vec::new() };
        let judge = |path: &Path, used| {
            look.judge(Named { used, ..named(path, Wanted::Folder) }).map_err(|refusal| refusal.why)
        };
        let written = HostUse::Workspace(fumehood_model::envelope::WorkspaceMode::CopyOnWrite);
        let why = judge(&at("root"), HostUse::Shown).unwrap_err();
        assert!(
            why.contains("/root` leads to `/`, which can not be shown inside: it is the whole host"),
            "{why}"
        );
        // The home folder, by another name than the one that was set.
        assert!(judge(&at("again"), HostUse::Shown).is_err());
        assert!(judge(&at("etc"), HostUse::Shown).is_ok());
        assert!(judge(&at("etc"), written).is_err());
        assert_eq!(judge(&plain, written), Ok(real(&plain)));
        assert_eq!(real(&at("home/state/not/there")), real(folder.path()).join("real/home/state/not/there"));
    }

    #[test]
    fn outputs_do_not_reach_the_system_or_the_workspace_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("project/deep")).unwrap();
        symlink("/etc", at("etc")).unwrap();
        symlink("project", at("same")).unwrap();
        let given = defaults(Path::new("/nonexistent"));
        let count = |out: &Path| {
            let mut look = Look { defaults: [&given, &given], wrong: Vec::new() };
            look.output(out, Some(&real(&at("project/deep"))));
            look.wrong.len()
        };
        assert_eq!(count(&at("etc")), 1);
        assert_eq!(count(&at("etc/fumehood-none")), 1);
        assert_eq!(count(&at("same")), 1);
        assert_eq!(count(&at("project/out")), 0);
        assert_eq!(count(&at("out")), 0);
        assert_eq!(count(Path::new("/fumehood-none")), 0);
    }
}
