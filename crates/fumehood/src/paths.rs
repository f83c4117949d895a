//! Do the host paths of an envelope lead where their clause needs them to?
//!
//! The backend opens each of them again by its own rules; this look is for the words. Whatever
//! happens between the two looks ends in a refusal there, in fewer words.

use crate::refusal::Refusal;
use fumehood_model::envelope::{Envelope, Root};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

const STEP: &str = "open the paths of the envelope";

/// What a path has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Folder,
    File,
    Either,
}

/// Looks at every host path of the envelope, and tells of each that does not fit.
pub(crate) fn check(envelope: &Envelope) -> Result<(), Refusal> {
    let files = envelope.filesystem();
    let mut wrong = Vec::new();
    let mut look = |flag: &str, path: &Path, wanted| wrong.extend(flaw(flag, path, wanted));
    if let Root::Directory(folder) = &files.root {
        look("--image", folder, Wanted::Folder);
    }
    if let Some(workspace) = &files.workspace {
        look("--workspace", &workspace.source, Wanted::Folder);
    }
    for mount in &files.mounts {
        look("--ro", &mount.source, Wanted::Either);
    }
    for input in &files.inputs {
        look("--in", &input.source, Wanted::File);
    }
    if let Some(out) = &files.output {
        match fs::symlink_metadata(out) {
            // It is made when there is something to put in it.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if let Some(above) = out.parent() {
                    look("--out", above, Wanted::Folder);
                }
            }
            Err(_) | Ok(_) => look("--out", out, Wanted::Folder),
        }
    }
    all(wrong)
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

#[expect(clippy::wildcard_enum_match_arm, reason = "the standard library may add kinds")]
fn flaw(flag: &str, path: &Path, wanted: Wanted) -> Option<Refusal> {
    let named = format!("`{flag} {}`", path.display());
    let refuse = |what: &str, remedy: String| Some(Refusal::new(STEP, format!("{named}: {what}"), remedy));
    let facts = match fs::metadata(path) {
        Ok(facts) => facts,
        Err(error) => {
            return match error.kind() {
                ErrorKind::NotFound if fs::symlink_metadata(path).is_ok() => {
                    refuse("the link leads nowhere", "name what it should lead to".to_owned())
                }
                ErrorKind::NotFound => refuse("there is no such path", missing_remedy(path, wanted)),
                ErrorKind::NotADirectory => {
                    refuse("a part of the path is not a folder", missing_remedy(path, wanted))
                }
                ErrorKind::PermissionDenied => refuse(
                    "you may not look there",
                    format!("run as a user who may, or open it: `ls -ld {}`", path.display()),
                ),
                _ if is_link_loop(&error) => refuse(
                    "the links lead in a circle",
                    format!("see `namei {}`, name the target", path.display()),
                ),
                _ => refuse(&error.to_string(), "name another path".to_owned()),
            };
        }
    };
    match wanted {
        Wanted::Folder if !facts.is_dir() => refuse("this is not a folder", folder_remedy(flag, path)),
        Wanted::File if facts.is_dir() => refuse(
            "this is a folder",
            format!("show it with `--ro {0}`, or work in it with `--workspace {0}`", path.display()),
        ),
        Wanted::File if !facts.is_file() => {
            refuse("this is not a plain file", "copy it to a file first".to_owned())
        }
        Wanted::Either if !facts.is_file() && !facts.is_dir() => {
            refuse("this is neither a file nor a folder", "sockets and devices can not be shown".to_owned())
        }
        Wanted::Folder | Wanted::File | Wanted::Either => None,
    }
}

fn is_link_loop(error: &std::io::Error) -> bool {
    // ELOOP has no stable `ErrorKind`.
    error.raw_os_error() == Some(40)
}

/// The longest part of the path that is there: where the spelling went wrong.
fn missing_remedy(path: &Path, wanted: Wanted) -> String {
    let there = path.ancestors().skip(1).find(|above| above.exists()).unwrap_or(Path::new("/"));
    let make = match wanted {
        Wanted::Folder => format!(", or make it: `mkdir -p {}`", path.display()),
        Wanted::File | Wanted::Either => String::new(),
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

    fn why(path: &Path, wanted: Wanted) -> String {
        flaw("--workspace", path, wanted).map(|refusal| refusal.why).unwrap_or_default()
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
        assert!(why(Path::new("/dev/null"), Wanted::Either).contains("neither"));
        assert_eq!(why(folder.path(), Wanted::Folder), "");
    }
}
