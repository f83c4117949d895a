//! Known toolchain roots under the home folder, the PATH that they make inside, and where a command
//! resolves.
//!
//! A root is shown when an entry of the host's PATH lies beneath it, or when the command at hand is
//! reached through it (a link, or the interpreter that a script names). What is shown is read-only.
//! All of this is for finding programs: nothing here is a wall, and a link that changes between
//! this look and the launch leads to a program that is not found, never to a path that is shown.
//!
//! **Invariant:** only folders of the closed table in `table.rs` are shown.

mod resolve;
mod table;

pub use resolve::{Resolution, resolve};

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use table::{KNOWN, Known, Root};

/// Folders that are inside wherever the host's own system is the root.
const SYSTEM: [&str; 8] = ["/usr", "/opt", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32"];
/// What follows the host's own entries, and all there is with an image.
const STANDARD: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// What the host says.
pub struct Host<'a> {
    pub home: &'a Path,
    /// The entries of PATH, in order.
    pub path: Vec<PathBuf>,
    /// Looks a host variable up.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
}

/// Host folders that the envelope shows inside: host path, guest path.
#[derive(Clone, Debug, Default)]
pub struct Views {
    pub shown: Vec<(PathBuf, PathBuf)>,
    /// Whether the root is an image, so that nothing of the host's system is inside.
    pub image: bool,
}

/// The toolchains of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toolchains {
    /// Host folders to show read-only at their own paths; none lies beneath another.
    pub roots: Vec<PathBuf>,
    /// The managers they belong to.
    pub names: Vec<&'static str>,
    /// Variables that tell a manager where its root is, where that is not the usual place.
    pub variables: Vec<(&'static str, PathBuf)>,
    /// PATH inside, in order: host path and guest path of each entry.
    pub path: Vec<(PathBuf, PathBuf)>,
}

// === impl Host ===

impl std::fmt::Debug for Host<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("home", &self.home).field("path", &self.path).finish_non_exhaustive()
    }
}

impl<'a> Host<'a> {
    /// Reads PATH; entries that are empty or relative mean "wherever I stand" and are dropped.
    pub fn new(home: &'a Path, variable: &'a dyn Fn(&str) -> Option<OsString>) -> Self {
        let path = variable("PATH").unwrap_or_default();
        let path = std::env::split_paths(&path).filter(|entry| entry.is_absolute()).collect();
        Self { home, path, variable }
    }

    fn folder(&self, root: Root) -> (PathBuf, bool) {
        let usual = self.home.join(root.usual);
        // A variable that names the home folder, or one above it, would show all of it.
        let fits = |path: &PathBuf| is_plain(path) && !self.home.starts_with(path);
        let named = root.variable.and_then(self.variable).map(PathBuf::from).filter(fits);
        match named {
            Some(named) if named != usual => (named, true),
            Some(_) | None => (usual, false),
        }
    }
}

// === impl Views ===

impl Views {
    /// Where a host path is inside, by what the envelope shows.
    pub fn guest_path(&self, host: &Path) -> Option<PathBuf> {
        let seen = self.shown.iter().rev().find_map(|(source, at)| {
            let rest = host.strip_prefix(source).ok()?;
            Some(if rest.as_os_str().is_empty() { at.clone() } else { at.join(rest) })
        });
        seen.or_else(|| (!self.image && is_system(host)).then(|| host.to_owned()))
    }

    /// Where a guest path comes from on the host.
    pub fn host_path(&self, guest: &Path) -> Option<PathBuf> {
        let seen = self.shown.iter().rev().find_map(|(source, at)| {
            let rest = guest.strip_prefix(at).ok()?;
            Some(if rest.as_os_str().is_empty() { source.clone() } else { source.join(rest) })
        });
        seen.or_else(|| (!self.image && is_system(guest)).then(|| guest.to_owned()))
    }
}

// === impl Toolchains ===

impl Toolchains {
    /// Finds what the PATH and the command need.
    pub fn find(host: &Host<'_>, views: &Views, command: &Path) -> Self {
        let mut found = Self::default();
        if !views.image {
            let mut entries = Vec::new();
            for entry in &host.path {
                entries.push(found.enter(host, views, entry));
            }
            found.follow(host, views, command);
            // A root may have come in by a later entry or by the command, so PATH is made last.
            for (entry, real) in host.path.iter().zip(entries) {
                let guest = found.guest_path(views, entry).map(|guest| (entry.clone(), guest));
                let guest = guest
                    .or_else(|| real.and_then(|real| Some((real.clone(), found.guest_path(views, &real)?))));
                found.add_to_path(guest);
            }
        }
        for entry in STANDARD {
            let source =
                if views.image { views.host_path(Path::new(entry)) } else { Some(PathBuf::from(entry)) };
            found.add_to_path(Some((source.unwrap_or_default(), PathBuf::from(entry))));
        }
        found
    }

    /// Takes these guest folders for PATH, as an image says it.
    pub fn use_path(&mut self, entries: Vec<PathBuf>, views: &Views) {
        self.path.clear();
        for guest in entries {
            let source = views.host_path(&guest).unwrap_or_default();
            if !self.path.iter().any(|(_, known)| *known == guest) {
                self.path.push((source, guest));
            }
        }
    }

    /// PATH as a variable's value.
    pub fn path_value(&self) -> OsString {
        std::env::join_paths(self.path.iter().map(|(_, guest)| guest))
            .unwrap_or_else(|_| STANDARD.join(":").into())
    }

    /// Where a host path is inside: shown by the envelope, or beneath a root.
    pub fn guest_path(&self, views: &Views, host: &Path) -> Option<PathBuf> {
        let beneath = self.roots.iter().any(|root| host.starts_with(root));
        views.guest_path(host).or_else(|| beneath.then(|| host.to_owned()))
    }

    fn add_to_path(&mut self, entry: Option<(PathBuf, PathBuf)>) {
        if let Some(entry) = entry
            && !self.path.iter().any(|(_, guest)| *guest == entry.1)
        {
            self.path.push(entry);
        }
    }

    /// Brings the root of one PATH entry in. Answers where the entry leads when it is not inside as
    /// it is: some managers put a link of their own into PATH.
    fn enter(&mut self, host: &Host<'_>, views: &Views, entry: &Path) -> Option<PathBuf> {
        if views.guest_path(entry).is_some() || self.bring(host, entry) {
            return None;
        }
        let real = real_path(entry).filter(|real| real != entry)?;
        self.bring(host, &real);
        Some(real)
    }

    /// Brings in what the command at hand is reached through.
    fn follow(&mut self, host: &Host<'_>, views: &Views, command: &Path) {
        let Some(program) = host_program(host, command) else { return };
        let local = host.home.join(".local/bin");
        if program.parent() == Some(&local) {
            // People keep scripts of their own here: it is shown only where the command is one.
            self.show(local, "~/.local/bin");
        }
        for step in steps(&program) {
            if views.guest_path(&step).is_none() {
                self.bring(host, &step);
            }
        }
    }

    /// Shows the known root that `path` lies beneath.
    fn bring(&mut self, host: &Host<'_>, path: &Path) -> bool {
        let holds = |known: &&Known| {
            let (root, _) = host.folder(known.root);
            path.strip_prefix(&root).is_ok_and(|rest| known.shown.iter().any(|shown| rest.starts_with(shown)))
        };
        let Some(known) = KNOWN.iter().find(holds) else { return false };
        self.show_all(host, known.name, known.root, known.shown);
        if let Some((root, shown)) = known.needs {
            self.show_all(host, known.name, root, shown);
        }
        true
    }

    fn show_all(&mut self, host: &Host<'_>, name: &'static str, root: Root, shown: &[&str]) {
        let (folder, moved) = host.folder(root);
        for part in shown {
            let part = if part.is_empty() { folder.clone() } else { folder.join(part) };
            self.show(part, name);
        }
        if let (true, Some(variable)) = (moved, root.variable)
            && variable != "CARGO_HOME"
            && !self.variables.iter().any(|(known, _)| *known == variable)
        {
            self.variables.push((variable, folder));
        }
    }

    fn show(&mut self, folder: PathBuf, name: &'static str) {
        if is_system(&folder) {
            return;
        }
        if self.roots.iter().any(|root| folder.starts_with(root))
            || !fs::metadata(&folder).is_ok_and(|m| m.is_dir())
        {
            return;
        }
        self.roots.retain(|root| !root.starts_with(&folder));
        self.roots.push(folder);
        if !self.names.contains(&name) {
            self.names.push(name);
        }
    }
}

/// The program that the host's shell would run.
fn host_program(host: &Host<'_>, command: &Path) -> Option<PathBuf> {
    if command.is_absolute() {
        return Some(command.to_owned());
    }
    if command.as_os_str().as_bytes().contains(&b'/') {
        return None;
    }
    host.path.iter().map(|entry| entry.join(command)).find(|candidate| is_program(candidate))
}

/// The paths that running `program` goes through: where its links lead, and for a script also its
/// interpreter and where that leads.
fn steps(program: &Path) -> Vec<PathBuf> {
    let mut steps = vec![program.to_owned()];
    let real = real_path(program);
    let interpreter = real.as_deref().filter(|real| !is_system(real)).and_then(interpreter);
    steps.extend(interpreter.as_deref().and_then(real_path));
    steps.extend(interpreter);
    steps.extend(real);
    steps
}

/// The absolute interpreter that the first line of a script names.
fn interpreter(program: &Path) -> Option<PathBuf> {
    use std::io::Read;
    // The kernel reads 256 bytes of the line, so do we.
    let mut head = Vec::with_capacity(256);
    fs::File::open(program).ok()?.take(256).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let word = line.trim_ascii().split(|byte| byte.is_ascii_whitespace()).next()?;
    let path = Path::new(std::ffi::OsStr::from_bytes(word));
    path.is_absolute().then(|| path.to_owned())
}

/// Whether a path is an executable file.
fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
}

#[expect(clippy::disallowed_methods, reason = "finds a program, guards nothing")]
fn real_path(path: &Path) -> Option<PathBuf> {
    fs::canonicalize(path).ok()
}

fn is_system(path: &Path) -> bool {
    SYSTEM.iter().any(|folder| path.starts_with(folder))
}

/// Absolute, with nothing in it that leads elsewhere than it says, and not the root itself.
fn is_plain(path: &Path) -> bool {
    let mut parts = path.components();
    parts.next() == Some(Component::RootDir)
        && path.components().count() > 2
        && parts.all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests;
