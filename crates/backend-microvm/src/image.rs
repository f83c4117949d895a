//! The image that a guest's system folders are: an erofs file, made once of a host folder and read by many.

use crate::jail::{self, BuildError, c_string};
use crate::machine::failed;
use crate::missing::Missing;
use crate::store::{Store, key};
use crate::tools::Tool;
use fumehood_backend::LaunchError;
use fumehood_model::envelope::Root;
use fumehood_sys::launch::SpawnError;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Grows when images are made in another way.
const FORMAT: &str = "1";
/// Each is as large as the folders that it is made of.
const MOST: usize = 4;
const OLDEST: Duration = Duration::from_secs(30 * 24 * 3600);
/// How deep folders are looked at to see whether anything has changed: a package that is installed or removed
/// changes one of these.
const DEPTH: u32 = 3;
/// The host's own system folders, of which a guest's are made by default.
const SYSTEM: [&str; 2] = ["/usr", "/opt"];
/// Shown where the host has them as folders; where they are links, the guest gets the same links.
pub(crate) const LINKS: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// A root image.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) key: String,
    pub(crate) path: PathBuf,
}

// === impl Image ===

impl Image {
    /// The key of the image of a root as it is now.
    pub(crate) fn key_of(root: &Root) -> io::Result<String> {
        let mut facts = String::new();
        for (folder, _) in parts(root) {
            look(&folder, DEPTH, &mut facts)?;
        }
        Ok(key(&["image", FORMAT, &facts]))
    }

    /// Whether it is there already.
    pub(crate) fn is_made(images: &Path, root: &Root) -> bool {
        Self::key_of(root).is_ok_and(|key| store(images).find(&key).is_some())
    }

    /// Finds it, or makes it: as long as copying the folders takes.
    pub(crate) fn of(root: &Root, images: &Path, stage: &Path) -> Result<Self, LaunchError> {
        let key = Self::key_of(root).map_err(|error| failed("look at the system folders", &error))?;
        let path = store(images).find_or_make(&key, |path| make(root, path, stage)).map_err(Failure::tell)?;
        Ok(Self { key, path })
    }

    pub(crate) fn open(&self) -> io::Result<File> {
        File::open(&self.path)
    }
}

/// Makes an image of a workspace, of which everything belongs to `uid`.
pub(crate) fn workspace(source: &Path, path: &Path, stage: &Path, uid: u32) -> Result<(), LaunchError> {
    let build = || {
        let tool = Tool::erofs().map_err(Failure::Missing)?;
        File::options().write(true).create_new(true).open(path)?;
        let (user, group) = (format!("--force-uid={uid}"), format!("--force-gid={uid}"));
        let words = ["mkfs.erofs", "--quiet", "-x-1", &user, &group, "--preserve-mtime", "/image", "/tree"];
        let arguments = words.iter().map(|word| c_string(word)).collect();
        let tree = [(source.to_owned(), "tree".to_owned())];
        jail::build(stage, (&tool.path, arguments), &tree, path).map_err(Failure::Build)
    };
    build().map_err(|failure| {
        let LaunchError { why, remedy, .. } = failure.tell();
        let remedy = format!("every file of the workspace must be readable for you; {remedy}");
        LaunchError { step: "make the workspace's disk".to_owned(), why, remedy }
    })
}

/// Why there is no image.
#[derive(Debug)]
enum Failure {
    Io(io::Error),
    Missing(Missing),
    Build(BuildError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Failure {
    fn tell(self) -> LaunchError {
        const STEP: &str = "make the root image";
        match self {
            Self::Io(error) => failed(STEP, &error),
            Self::Missing(missing) => missing.fail(),
            Self::Build(BuildError::Start(SpawnError::Step { step, source })) => failed(step, &source),
            Self::Build(BuildError::Start(error)) => failed(STEP, &io::Error::other(error)),
            Self::Build(BuildError::Failed { why }) => LaunchError {
                step: STEP.to_owned(),
                why: format!("mkfs.erofs did not make it: {why}"),
                remedy: "free some space on the disk of the state folder: the image is as large as the system folders; every file of `--image` must be readable for you".to_owned(),
            },
        }
    }
}

fn store(images: &Path) -> Store {
    Store::new(images.to_owned(), MOST, OLDEST)
}

/// The host folders of a root, and where each is in the image.
fn parts(root: &Root) -> Vec<(PathBuf, String)> {
    match root {
        Root::Image(image) => vec![(image.folder.clone(), "tree".to_owned())],
        Root::Directory(folder) => vec![(folder.clone(), "tree".to_owned())],
        Root::HostSystem => {
            let links = LINKS.iter().map(|name| format!("/{name}"));
            let all = SYSTEM.iter().map(|path| (*path).to_owned()).chain(links);
            let folders = all.filter(|path| fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir()));
            folders.map(|path| (PathBuf::from(&path), format!("tree{path}"))).collect()
        }
    }
}

fn make(root: &Root, path: &Path, stage: &Path) -> Result<(), Failure> {
    let tool = Tool::erofs().map_err(Failure::Missing)?;
    File::options().write(true).create_new(true).open(path)?;
    let mut arguments =
        ["mkfs.erofs", "--quiet", "-x-1", "--all-root", "--preserve-mtime"].map(str::to_owned).to_vec();
    if fumehood_sys::host::euid() != 0 {
        // What the caller can not read is not in it: at the container level the guest could not read it either.
        for (folder, inside) in parts(root) {
            for hidden in unreadable(&folder)? {
                let below = hidden.strip_prefix(&folder).unwrap_or(&hidden);
                let within = inside.strip_prefix("tree").unwrap_or_default().trim_start_matches('/');
                arguments.push(format!("--exclude-path={}", Path::new(within).join(below).display()));
            }
        }
    }
    arguments.extend(["/image", "/tree"].map(str::to_owned));
    let arguments = arguments.iter().map(|argument| c_string(argument)).collect();
    jail::build(stage, (&tool.path, arguments), &parts(root), path).map_err(Failure::Build)
}

/// Files and folders that we may not read.
fn unreadable(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut hidden = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(folder) = waiting.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                hidden.push(folder);
                continue;
            }
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                waiting.push(entry.path());
            } else if kind.is_file() && File::open(entry.path()).is_err() {
                hidden.push(entry.path());
            }
        }
    }
    Ok(hidden)
}

/// Writes down the folders to this depth, with when each last changed.
fn look(folder: &Path, depth: u32, facts: &mut String) -> io::Result<()> {
    let meta = fs::metadata(folder)?;
    let _ = writeln!(
        facts,
        "{}\0{}:{}:{}:{}",
        folder.display(),
        meta.dev(),
        meta.ino(),
        meta.mtime(),
        meta.mtime_nsec()
    );
    if depth == 0 {
        return Ok(());
    }
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut folders: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect();
    folders.sort();
    folders.iter().try_for_each(|folder| match look(folder, depth - 1, facts) {
        // It was removed while we looked.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_changes_is_another_image() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::Directory(folder.path().to_owned());
        fs::create_dir_all(folder.path().join("usr/bin")).unwrap();
        let before = Image::key_of(&root).unwrap();
        assert_eq!(Image::key_of(&root).unwrap(), before);
        fs::write(folder.path().join("usr/bin/new"), "").unwrap();
        assert_ne!(Image::key_of(&root).unwrap(), before);
    }

    #[test]
    fn a_root_that_is_not_there_is_an_error() {
        assert!(Image::key_of(&Root::Directory("/nowhere/at/all".into())).is_err());
    }
}
