//! What a root is made of: files, folders and links of the host, by the path that each has inside.

use super::elf;
use crate::fault::{Code, Fault};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Where programs of a system are, in the order in which they are looked for.
const PROGRAMS: [&str; 6] = ["/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/local/sbin"];
/// Where loaders look by themselves.
const LIBRARIES: [&str; 6] =
    ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];
/// Folders that are links on systems of today.
const MERGED: [&str; 5] = ["/bin", "/sbin", "/lib", "/lib64", "/lib32"];
/// Links after links, as the kernel has it.
const MOST_LINKS: usize = 40;
const MOST_FOLDERS_DEEP: usize = 200;

/// One thing of a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Folder,
    /// The host's file.
    File {
        from: PathBuf,
        executable: bool,
    },
    Link(PathBuf),
    /// A file that is written here.
    Text(Vec<u8>),
}

/// A root in the making, by absolute paths.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    pub(crate) nodes: BTreeMap<PathBuf, Node>,
    /// Taken with all in it; a folder may also be here because something else lies in it.
    taken: BTreeSet<PathBuf>,
    /// Programs and paths that may be left out, and are not here.
    pub left_out: Vec<String>,
}

/// What is taken of a host's system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Programs by name or path, each with what it loads.
    pub programs: Vec<String>,
    /// Files and folders, `*` for any part of a name.
    pub paths: Vec<String>,
    /// The same, where the host has them.
    pub optional_programs: Vec<String>,
    pub optional_paths: Vec<String>,
}

// === impl Tree ===

impl Tree {
    /// Of this host's own system.
    ///
    /// # Errors
    /// Something that is asked for is not there, or can not be read.
    pub fn of_host(selection: &Selection) -> Result<Self, Fault> {
        let mut tree = Self::default();
        for name in MERGED {
            if fs::symlink_metadata(name).is_ok_and(|found| found.is_symlink()) {
                tree.take(Path::new(name), 0)?;
            }
        }
        for name in &selection.programs {
            let path = program(name).ok_or_else(|| {
                Fault::new(Code::NotFound, format!("this host has no program `{name}`"))
                    .with_remedy("install it on this host, or begin with an image: `from = \"NAME\"`")
            })?;
            tree.take(&path, 0)?;
        }
        for name in &selection.optional_programs {
            match program(name) {
                Some(path) => tree.take(&path, 0)?,
                None => tree.left_out.push(name.clone()),
            }
        }
        for (pattern, wanted) in selection
            .paths
            .iter()
            .map(|path| (path, true))
            .chain(selection.optional_paths.iter().map(|path| (path, false)))
        {
            let found = matching(pattern);
            if found.is_empty() && wanted {
                return Err(Fault::new(Code::NotFound, format!("this host has nothing at `{pattern}`")));
            }
            if found.is_empty() {
                tree.left_out.push(pattern.clone());
            }
            for path in found {
                tree.take(&path, 0)?;
            }
        }
        tree.write(
            "/etc/passwd",
            b"root:x:0:0:root:/root:/usr/sbin/nologin\nuser:x:1000:1000::/home/user:/bin/sh\n",
        );
        tree.write("/etc/group", b"root:x:0:\nuser:x:1000:\n");
        tree.write("/etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files dns\n");
        for path in ["/etc/ld.so.cache", "/etc/os-release"] {
            if Path::new(path).exists() {
                tree.take(Path::new(path), 0)?;
            }
        }
        Ok(tree)
    }

    /// All of a folder, which is a root or is laid over one.
    ///
    /// # Errors
    /// It can not be read.
    pub fn of_folder(folder: &Path) -> Result<Self, Fault> {
        let mut tree = Self::default();
        tree.walk(folder, Path::new("/"), 0)?;
        Ok(tree)
    }

    /// Whether there is anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    fn write(&mut self, path: &str, bytes: &[u8]) {
        self.above(Path::new(path));
        self.nodes.insert(path.into(), Node::Text(bytes.to_vec()));
    }

    fn walk(&mut self, from: &Path, at: &Path, deep: usize) -> Result<(), Fault> {
        if deep > MOST_FOLDERS_DEEP {
            return Err(Fault::new(Code::TooLarge, format!("`{}` lies too deep", from.display())));
        }
        for entry in fs::read_dir(from).map_err(|error| unread(from, &error))? {
            let entry = entry.map_err(|error| unread(from, &error))?;
            let (path, inside) = (entry.path(), at.join(entry.file_name()));
            let found = fs::symlink_metadata(&path).map_err(|error| unread(&path, &error))?;
            if found.is_dir() {
                self.nodes.insert(inside.clone(), Node::Folder);
                self.walk(&path, &inside, deep + 1)?;
            } else if found.is_symlink() {
                let target = fs::read_link(&path).map_err(|error| unread(&path, &error))?;
                self.nodes.insert(inside, Node::Link(target));
            } else if found.is_file() {
                let executable = found.permissions().mode() & 0o111 != 0;
                self.nodes.insert(inside, Node::File { from: path, executable });
            }
        }
        Ok(())
    }

    /// A path of the host, what it leads to, and what that loads, each at its own path.
    fn take(&mut self, path: &Path, links: usize) -> Result<(), Fault> {
        let path = plain(path)?;
        if !self.taken.insert(path.clone()) {
            return Ok(());
        }
        let found = fs::symlink_metadata(&path).map_err(|error| unread(&path, &error))?;
        self.above(&path);
        if found.is_symlink() {
            if links > MOST_LINKS {
                return Err(Fault::new(
                    Code::BadSource,
                    format!("`{}` leads through too many links", path.display()),
                ));
            }
            let target = fs::read_link(&path).map_err(|error| unread(&path, &error))?;
            let next = path.parent().unwrap_or(Path::new("/")).join(&target);
            self.nodes.insert(path, Node::Link(target));
            // A link that leads nowhere is kept as it is. One to a merged folder brings none of it.
            return match fs::metadata(&next) {
                Ok(found) if found.is_dir() && links == 0 && is_merged(&next) => Ok(()),
                Ok(_) => self.take(&next, links + 1),
                Err(_) => Ok(()),
            };
        }
        if found.is_dir() {
            self.nodes.insert(path.clone(), Node::Folder);
            for entry in fs::read_dir(&path).map_err(|error| unread(&path, &error))? {
                let entry = entry.map_err(|error| unread(&path, &error))?.path();
                self.within(&entry)?;
            }
            return Ok(());
        }
        if !found.is_file() {
            return Ok(());
        }
        let executable = found.permissions().mode() & 0o111 != 0;
        self.nodes.insert(path.clone(), Node::File { from: path.clone(), executable });
        self.loaded(&path)
    }

    /// Something in a folder that is taken: what can not be read there is left out.
    fn within(&mut self, path: &Path) -> Result<(), Fault> {
        match self.take(path, 0) {
            Err(fault)
                if fs::File::open(path).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) =>
            {
                drop(fault);
                self.left_out.push(path.display().to_string());
                Ok(())
            }
            other => other,
        }
    }

    /// What a file needs to be run: a loader and libraries, or the interpreter of a script.
    fn loaded(&mut self, path: &Path) -> Result<(), Fault> {
        let mut file = fs::File::open(path).map_err(|error| unread(path, &error))?;
        let mut bytes = Vec::new();
        let mut begin = [0; 4];
        let length = file.read(&mut begin).map_err(|error| unread(path, &error))?;
        match begin.get(..length) {
            Some(b"\x7fELF") => {}
            Some([b'#', b'!', ..]) => {
                file.take(256).read_to_end(&mut bytes).map_err(|error| unread(path, &error))?;
                let line = [begin.get(2..).unwrap_or_default(), &bytes].concat();
                return self.interpreter(&line);
            }
            _ => return Ok(()),
        }
        bytes.extend(begin);
        file.read_to_end(&mut bytes).map_err(|error| unread(path, &error))?;
        let Some(needs) = elf::needs(&bytes, path) else { return Ok(()) };
        if let Some(loader) = needs.loader.filter(|loader| loader.is_absolute() && loader.exists()) {
            self.take(&loader, 0)?;
        }
        for name in needs.libraries {
            let places = needs.places.iter().map(PathBuf::as_path).chain(LIBRARIES.iter().map(Path::new));
            let places = places.map(Path::to_owned).chain(configured());
            // A library that is not there is the host's own business: its program does not start there either.
            if let Some(found) = places.map(|place| place.join(&name)).find(|place| place.exists()) {
                self.take(&found, 0)?;
            }
        }
        Ok(())
    }

    fn interpreter(&mut self, line: &[u8]) -> Result<(), Fault> {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        // `env` looks for the one behind it.
        for word in words.take(2) {
            let word = Path::new(OsStr::from_bytes(word));
            let found =
                if word.is_absolute() { Some(word.to_owned()) } else { word.to_str().and_then(program) };
            if let Some(found) = found.filter(|found| found.exists()) {
                self.take(&found, 0)?;
            }
        }
        Ok(())
    }

    /// The folders above a path.
    fn above(&mut self, path: &Path) {
        for folder in path.ancestors().skip(1).filter(|folder| *folder != Path::new("/")) {
            self.nodes.entry(folder.to_owned()).or_insert(Node::Folder);
        }
    }
}

/// The path with no link in its folders, so that each thing stands once.
fn plain(path: &Path) -> Result<PathBuf, Fault> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        let whole = whole(path).map_err(|error| unread(path, &error))?;
        if whole == Path::new("/") {
            return Err(Fault::new(Code::BadSource, "the whole of `/` is no template"));
        }
        return Ok(whole);
    };
    Ok(whole(folder).map_err(|error| unread(path, &error))?.join(name))
}

/// A path without links in it.
#[expect(
    clippy::disallowed_methods,
    reason = "says under which path a file of the host is kept, and guards nothing"
)]
fn whole(path: &Path) -> std::io::Result<PathBuf> {
    fs::canonicalize(path)
}

fn is_merged(path: &Path) -> bool {
    let merged: BTreeSet<PathBuf> = MERGED.iter().filter_map(|name| whole(Path::new(name)).ok()).collect();
    whole(path).is_ok_and(|path| merged.contains(&path))
}

fn program(name: &str) -> Option<PathBuf> {
    if name.starts_with('/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    let found = PROGRAMS.iter().map(|place| Path::new(place).join(name));
    found.into_iter().find(|path| path.is_file())
}

/// Folders that the host's loader is told of.
fn configured() -> Vec<PathBuf> {
    let files = fs::read_dir("/etc/ld.so.conf.d").into_iter().flatten().flatten();
    let texts = files.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    let mut places: Vec<PathBuf> = texts
        .flat_map(|text| {
            text.lines()
                .map(str::trim)
                .filter(|line| line.starts_with('/'))
                .map(PathBuf::from)
                .collect::<Vec<_>>()
        })
        .collect();
    places.sort();
    places
}

/// Paths of the host that a pattern means; `*` stands for any part of one name.
fn matching(pattern: &str) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::from("/")];
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        found = found
            .into_iter()
            .flat_map(|folder| {
                if !part.contains('*') {
                    return vec![folder.join(part)];
                }
                let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
                let mut names: Vec<PathBuf> = entries
                    .filter(|entry| fits(part.as_bytes(), entry.file_name().as_bytes()))
                    .map(|entry| entry.path())
                    .collect();
                names.sort();
                names
            })
            .collect();
    }
    found.retain(|path| fs::symlink_metadata(path).is_ok() && path != Path::new("/"));
    found
}

fn fits(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => {
            fits(rest, name) || name.split_first().is_some_and(|(_, more)| fits(pattern, more))
        }
        (Some((one, rest)), Some((other, more))) if one == other => fits(rest, more),
        _ => false,
    }
}

fn unread(path: &Path, error: &std::io::Error) -> Fault {
    Fault::new(Code::BadSource, format!("`{}` can not be read: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_comes_with_its_loader_and_libraries() {
        let selection = Selection { programs: vec!["sh".to_owned()], ..Selection::default() };
        let tree = Tree::of_host(&selection).unwrap();
        let has = |part: &str| tree.nodes.keys().any(|path| path.display().to_string().contains(part));
        assert!(has("bin/sh") && has("ld-linux") && has("libc.so"), "{:?}", tree.nodes.keys());
        // Each path has its folders, and no folder is a link.
        for path in tree.nodes.keys() {
            let above = path.parent().unwrap();
            assert!(above == Path::new("/") || tree.nodes.get(above) == Some(&Node::Folder), "{path:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_refused_or_left_out() {
        let selection = Selection { programs: vec!["no-such-program".to_owned()], ..Selection::default() };
        assert_eq!(Tree::of_host(&selection).unwrap_err().code, Code::NotFound);
        let selection =
            Selection { optional_programs: vec!["no-such-program".to_owned()], ..Selection::default() };
        assert_eq!(Tree::of_host(&selection).unwrap().left_out, ["no-such-program"]);
        let selection = Selection { paths: vec!["/no/such/*".to_owned()], ..Selection::default() };
        assert!(Tree::of_host(&selection).is_err());
        let selection = Selection { paths: vec!["/".to_owned()], ..Selection::default() };
        assert!(Tree::of_host(&selection).is_err());
    }

    #[test]
    fn a_star_stands_for_any_part_of_a_name() {
        assert!(fits(b"lib*.so.*", b"libc.so.6") && fits(b"*", b"") && fits(b"a*", b"a"));
        assert!(!fits(b"lib*.a", b"libc.so") && !fits(b"a", b"ab"));
    }
}
