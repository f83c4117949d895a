//! Which folders a module is given: those that the envelope names, and no other.

use fumehood_backend::Placement;
use fumehood_model::enforcement::{Clause, Unenforceable};
use fumehood_model::envelope::{Envelope, Root};
use fumehood_model::text::shown;
use std::path::{Path, PathBuf};

/// Folders of the sandbox that hold what is not the envelope's.
const OURS: [&str; 4] = ["/proc", "/dev", "/sys", "/run"];

/// As guest paths, none beneath another.
pub(crate) fn given(envelope: &Envelope, placement: &Placement) -> Result<Vec<PathBuf>, Unenforceable> {
    let files = envelope.filesystem();
    if let Root::Directory(_) = files.root {
        return Err(Unenforceable {
            clause: Clause::Filesystem,
            why: "a module does not stand on an image: it sees no system at all".to_owned(),
            remedy: "leave `--image` out, or take `--level container`".to_owned(),
        });
    }
    let mut folders: Vec<PathBuf> = ["/workspace", "/tmp"].map(PathBuf::from).to_vec();
    folders.push(placement.home_at.clone());
    folders.extend(files.output.as_ref().map(|_| PathBuf::from("/out")));
    folders.extend(placement.caches.iter().map(|(_, guest)| guest.clone()));
    for mount in &files.mounts {
        folders.push(if mount.source.is_dir() { mount.at.clone() } else { parent(&mount.at)? });
    }
    for input in &files.inputs {
        folders.push(parent(&input.at)?);
    }
    for folder in &folders {
        if folder == Path::new("/") || OURS.iter().any(|ours| folder.starts_with(ours)) {
            return Err(not_given(folder));
        }
    }
    folders.sort();
    folders.dedup();
    let all = folders.clone();
    folders.retain(|folder| !all.iter().any(|other| other != folder && folder.starts_with(other)));
    Ok(folders)
}

/// A single file is reached through its folder, which must then hold nothing else.
fn parent(file: &Path) -> Result<PathBuf, Unenforceable> {
    file.parent().map(Path::to_path_buf).ok_or_else(|| not_given(file))
}

fn not_given(folder: &Path) -> Unenforceable {
    let folder = shown(&folder.to_string_lossy());
    Unenforceable {
        clause: Clause::Filesystem,
        why: format!("a module is given whole folders, and `{folder}` holds more than the envelope names"),
        remedy: "give the file or view another place, such as `--in FILE:/data/FILE`".to_owned(),
    }
}
