//! From the changes of a layer to the steps of an application, and what stands in their way.

use super::journal::{Act, Print, Step};
use super::{ApplyError, Preview, Terms};
use crate::files::autorun::{self, Verdict};
use crate::files::changes::{self, Change, ChangeKind, Node, ReadLimits};
use crate::files::layer::Layer;
use crate::files::text::{escape, escape_path};
use crate::files::{Refusal, depth, digest, split};
use fumehood_sys::dirfd::{DirHandle, Kind, Stat, Time};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// How the names of files under way start, here and in the collector.
const RESERVED: &[u8] = b".fumehood-";
/// Names of a directory that is removed, all levels together.
const REMOVED_NAMES: usize = 2_000_000;
/// Bytes of all files together, holes included: a sparse file costs the guest nothing and us its length.
const APPLY_BYTES: u64 = 64 << 30;

/// The steps, in order, and what is held back.
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    pub(super) preview: Preview,
}

struct Planning<'a> {
    upper: DirHandle,
    workspace: DirHandle,
    started: Time,
    terms: Terms<'a>,
    /// Paths held back: what is below them is held back too.
    held: HashSet<PathBuf>,
    first: Vec<Step>,
    last: Vec<Step>,
    /// What is left of [`APPLY_BYTES`].
    bytes_left: u64,
    preview: Preview,
}

pub(super) fn make(layer: &Layer, terms: Terms<'_>) -> Result<Plan, ApplyError> {
    let (upper, workspace) = (layer.upper()?, layer.workspace()?);
    let list = changes::read(&upper, &workspace, ReadLimits::default())?;
    let mut planning = Planning {
        upper,
        workspace,
        started: layer.meta.started(),
        terms,
        held: HashSet::new(),
        first: Vec::new(),
        last: Vec::new(),
        bytes_left: APPLY_BYTES,
        preview: Preview { refusals: list.unread, ..Preview::default() },
    };
    for change in &list.changes {
        planning.change(change);
    }
    let Planning { mut first, last, preview, .. } = planning;
    first.extend(last);
    drop_needless_folders(&mut first);
    Ok(Plan { steps: first, preview })
}

// === impl Planning ===

impl Planning<'_> {
    fn refuse(&mut self, path: &Path, why: impl Into<String>) {
        self.preview.refusals.push(Refusal::new(path, why));
        self.held.insert(path.to_owned());
    }

    fn conflict(&mut self, path: &Path, why: impl Into<String>) {
        self.preview.conflicts.push(Refusal::new(path, why));
        self.held.insert(path.to_owned());
    }

    fn note(&mut self, path: &Path, why: impl Into<String>) {
        self.preview.notes.push(Refusal::new(path, why));
    }

    fn change(&mut self, change: &Change) {
        let path = change.path.as_path();
        if path.ancestors().skip(1).any(|above| self.held.contains(above)) {
            return self.refuse(path, "its folder is held back");
        }
        if let Some(why) = self.guarded(change) {
            return self.refuse(path, why);
        }
        if !covers(self.terms.force, path)
            && let Some(why) = self.moved_on(change)
        {
            return self.conflict(path, why);
        }
        match &change.now {
            Node::Gone => self.gone(change),
            Node::Dir { .. } => self.directory(change),
            Node::Link { target, .. } => self.link(change, target),
            Node::File { stat, .. } => self.file(change, stat),
            Node::Special(kind) => self.refuse(path, format!("a {} is never applied", kind.word())),
        }
    }

    /// Why the path is one that is not applied as a matter of course.
    fn guarded(&mut self, change: &Change) -> Option<String> {
        let path = change.path.as_path();
        let (_, name) = split(path)?;
        if name.as_bytes().starts_with(RESERVED) {
            return Some("a name that is kept for files under way".to_owned());
        }
        // A directory runs nothing; what is put in it is judged by itself.
        let is_dir = matches!(change.now, Node::Dir { .. });
        let unnamed = |why: &str| {
            format!("{why}; look at it and name it to apply it (`--allow {}`)", escape_path(path))
        };
        match autorun::judge(path, &change.now) {
            Verdict::Never(why) => Some(why.to_owned()),
            Verdict::Named(why) if !is_dir && !covers(self.terms.allow, path) => Some(unnamed(why)),
            Verdict::Elsewhere(why) if !is_dir => {
                self.note(path, why);
                None
            }
            Verdict::Named(_) | Verdict::Elsewhere(_) | Verdict::Plain => {
                let bare = self.makes_bare_repository(change) && !covers(self.terms.allow, path);
                bare.then(|| unnamed("git would take its folder for a repository and run what that names"))
            }
        }
    }

    /// Whether the change completes, or arms, what git would take for a bare repository.
    fn makes_bare_repository(&self, change: &Change) -> bool {
        let parts: Vec<&OsStr> = change.path.iter().collect();
        if parts.contains(&OsStr::new(".git")) || matches!(change.now, Node::Gone | Node::Dir { .. }) {
            return false;
        }
        change.path.ancestors().any(|path| {
            let Some((folder, name)) = split(path) else { return false };
            let old_head = change.before.is_some() && name.eq_ignore_ascii_case("head");
            let has = |part: &str| {
                [&self.upper, &self.workspace].iter().any(|root| {
                    root.sub(folder).is_ok_and(|dir| matches!(dir.look(OsStr::new(part)), Ok(Some(_))))
                })
            };
            autorun::is_bare_part(Path::new(name))
                && !old_head
                && has("HEAD")
                && has("objects")
                && has("refs")
        })
    }

    /// How the host has moved on since the layer was made.
    fn moved_on(&self, change: &Change) -> Option<&'static str> {
        match (&change.now, &change.before) {
            // Nothing would be carried over, as after an application that was cut short.
            (Node::File { stat, .. }, Some(there))
                if change.kind == ChangeKind::ModeChanged
                    && carried(there.mode, stat.mode) == there.mode & 0o777 =>
            {
                None
            }
            // It was moved here inside, or it was here and was removed on the host. While the host's
            // folder is as it was, nothing was removed from it.
            (Node::File { copied_up: true, .. } | Node::Dir { copied_up: true, .. }, None)
                if self.folder_changed(&change.path) =>
            {
                Some("removed on the host since the run began")
            }
            (_, Some(there)) if there.kind != Kind::Dir && there.ctime > self.started => {
                Some("changed on the host since the run began")
            }
            (_, Some(_) | None) => None,
        }
    }

    fn folder_changed(&self, path: &Path) -> bool {
        let folder = split(path).and_then(|(folder, _)| self.workspace.sub(folder).ok());
        folder.is_some_and(|folder| folder.stat().map_or(true, |stat| stat.ctime > self.started))
    }

    fn gone(&mut self, change: &Change) {
        let Some(before) = change.before else { return };
        let mut steps = Vec::new();
        if self.removal(&change.path, &before, &mut steps) {
            self.last.extend(steps);
        }
    }

    /// Adds the steps that remove what stands at `path`, children first; answers whether it can go.
    fn removal(&mut self, path: &Path, before: &Stat, steps: &mut Vec<Step>) -> bool {
        if before.kind != Kind::Dir {
            steps.push(step(path, Act::Remove {}, Some(before)));
            return true;
        }
        match self.tree(path) {
            Err(error) => {
                self.refuse(path, format!("the host's directory could not be read: {error}"));
                false
            }
            Ok(found) => {
                for (below, stat) in &found {
                    let is_new = stat.kind != Kind::Dir && stat.ctime > self.started;
                    if is_new && !covers(self.terms.force, below) {
                        self.conflict(
                            path,
                            format!("`{}` in it changed on the host since the run began", escape_path(below)),
                        );
                        return false;
                    }
                    // What is removed runs nothing; a policy and a history are not lost in passing.
                    let guard = autorun::judge_loss(below);
                    let named = covers(self.terms.allow, below) || covers(self.terms.allow, path);
                    if matches!(guard, Verdict::Never(_)) || (matches!(guard, Verdict::Named(_)) && !named) {
                        self.refuse(
                            path,
                            format!("`{}` in it would be removed; name it (`--allow`)", escape_path(below)),
                        );
                        return false;
                    }
                    let act = if stat.kind == Kind::Dir { Act::RemoveDir {} } else { Act::Remove {} };
                    steps.push(step(below, act, Some(stat)));
                }
                steps.push(step(path, Act::RemoveDir {}, Some(before)));
                true
            }
        }
    }

    /// All that the host has below a directory, children before their parents.
    fn tree(&self, path: &Path) -> io::Result<Vec<(PathBuf, Stat)>> {
        let mut found = Vec::new();
        let mut waiting = vec![path.to_owned()];
        while let Some(next) = waiting.pop() {
            let dir = self.workspace.sub(&next)?;
            for entry in dir.list()? {
                let name = entry?.name;
                let stat = dir.stat_at(&name)?;
                let below = next.join(name);
                if stat.kind == Kind::Dir {
                    waiting.push(below.clone());
                }
                found.push((below, stat));
                if found.len() > REMOVED_NAMES {
                    return Err(io::Error::other(format!("more than {REMOVED_NAMES} names")));
                }
            }
        }
        found.reverse();
        Ok(found)
    }

    /// Clears the way for another kind of object, where a rename can not do it.
    fn cleared(&mut self, change: &Change, to_dir: bool) -> Option<Option<Stat>> {
        match change.before {
            Some(there) if (there.kind == Kind::Dir) != to_dir => {
                let mut steps = Vec::new();
                self.removal(&change.path, &there, &mut steps).then(|| {
                    self.first.extend(steps);
                    None
                })
            }
            before @ (Some(_) | None) => Some(before),
        }
    }

    fn directory(&mut self, change: &Change) {
        if change.kind == ChangeKind::ModeChanged {
            return self.note(&change.path, "the mode of a directory is not carried over");
        }
        if self.cleared(change, true).is_some() {
            self.first.push(step(&change.path, Act::MakeDir {}, None));
        }
    }

    fn link(&mut self, change: &Change, target: &OsString) {
        if !stays_beneath(&change.path, Path::new(target)) {
            let why = format!("a link to `{}`, which leaves the workspace", escape(target.as_bytes()));
            return self.refuse(&change.path, why);
        }
        if let Some(before) = self.cleared(change, false) {
            self.first.push(step(
                &change.path,
                Act::Link { target: escape(target.as_bytes()) },
                before.as_ref(),
            ));
        }
    }

    fn file(&mut self, change: &Change, stat: &Stat) {
        let path = change.path.as_path();
        if stat.mode & 0o7000 != 0 {
            self.note(path, "its set-id and sticky bits are left out");
        }
        let old = change.before.filter(|there| there.kind == Kind::File);
        let mode = old.map(|there| carried(there.mode, stat.mode));
        if change.kind == ChangeKind::ModeChanged {
            return match (old, mode) {
                (Some(there), Some(mode)) if mode != there.mode & 0o777 => {
                    self.first.push(step(path, Act::SetMode { mode }, Some(&there)));
                }
                _ => self.note(path, "only the execute bits of a mode are carried over"),
            };
        }
        if stat.size > self.bytes_left {
            return self.refuse(
                path,
                format!("{} bytes long; an application brings {APPLY_BYTES} bytes at most", stat.size),
            );
        }
        self.bytes_left -= stat.size;
        let (sha256, bytes) = match digest(&self.upper, path) {
            Ok(found) => found,
            Err(error) => return self.refuse(path, format!("could not be read in the layer: {error}")),
        };
        if let Some(before) = self.cleared(change, false) {
            let mtime = (stat.mtime.secs, stat.mtime.nanos);
            let act = Act::Write { sha256, bytes, mode, executable: stat.mode & 0o100 != 0, mtime };
            self.first.push(step(path, act, before.as_ref()));
        }
    }
}

fn step(path: &Path, act: Act, before: Option<&Stat>) -> Step {
    Step { path: escape_path(path), act, before: before.map(Print::of) }
}

/// Whether a path is one of `list` or lies in one, compared by components.
fn covers(list: &[PathBuf], path: &Path) -> bool {
    list.iter().any(|named| {
        !named.as_os_str().is_empty() && path.starts_with(named.strip_prefix(".").unwrap_or(named))
    })
}

/// Whether a link's target is relative and can not climb out: `..` only at its start, and no more of
/// them than the link lies deep. (After a name, `..` would climb from wherever that name leads.)
fn stays_beneath(link: &Path, target: &Path) -> bool {
    let room = depth(link).saturating_sub(1);
    let mut climbed = 0;
    let mut named = false;
    !target.as_os_str().is_empty()
        && target.components().all(|part| match part {
            Component::ParentDir => {
                climbed += 1;
                !named && climbed <= room
            }
            Component::Normal(_) => {
                named = true;
                true
            }
            Component::CurDir => true,
            Component::RootDir | Component::Prefix(_) => false,
        })
}

/// The old mode with the guest's execute bits, for those who may read. Set-id bits never.
const fn carried(old: u32, new: u32) -> u32 {
    let readers = (old & 0o444) >> 2;
    (old & 0o777 & !readers) | (new & readers)
}

/// Folders that only held refused files are not made.
fn drop_needless_folders(steps: &mut Vec<Step>) {
    let mut needed: HashSet<PathBuf> = HashSet::new();
    for path in steps.iter().filter(|step| step.act != Act::MakeDir {}).filter_map(|step| step.path().ok()) {
        for above in path.ancestors().skip(1) {
            // The rest of the way up is there already.
            if !needed.insert(above.to_owned()) {
                break;
            }
        }
    }
    steps.retain(|step| {
        step.act != (Act::MakeDir {})
            || step.path().is_ok_and(|path| plain_folder(&path) || needed.contains(&path))
    });
}

/// Whether nothing in a folder of that name would be refused for its name alone.
fn plain_folder(path: &Path) -> bool {
    let probe = path.join("any");
    matches!(autorun::judge(&probe, &Node::Gone), Verdict::Plain | Verdict::Elsewhere(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_may_only_stay_beneath() {
        for (link, target) in [("a", "b"), ("a", "b/c"), ("d/a", "../b"), ("d/e/a", "../../b"), ("a", "./b")]
        {
            assert!(stays_beneath(Path::new(link), Path::new(target)), "{link} -> {target}");
        }
        for (link, target) in [
            ("a", "/etc"),
            ("a", ".."),
            ("a", "../b"),
            ("d/a", "../../b"),
            ("d/a", "b/../.."),
            ("a", "b/.."),
            ("a", ""),
        ] {
            assert!(!stays_beneath(Path::new(link), Path::new(target)), "{link} -> {target}");
        }
    }

    #[test]
    fn only_execute_bits_for_readers_are_carried() {
        assert_eq!(carried(0o644, 0o755), 0o755);
        assert_eq!(carried(0o600, 0o777), 0o700);
        assert_eq!(carried(0o755, 0o644), 0o644);
        assert_eq!(carried(0o4755, 0o4755), 0o755);
        assert_eq!(carried(0o640, 0o000), 0o640);
    }

    #[test]
    fn a_name_covers_itself_and_what_lies_in_it_by_components() {
        let list = [PathBuf::from(".vscode"), PathBuf::from("./a/b"), PathBuf::new()];
        assert!(covers(&list, Path::new(".vscode/tasks.json")) && covers(&list, Path::new("a/b")));
        assert!(!covers(&list, Path::new(".vscode-evil/x")) && !covers(&list, Path::new("a/bc")));
    }
}
