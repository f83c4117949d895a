//! Making records durable, many at a time.
//!
//! To sync a file makes the file system write out a transaction, which takes milliseconds and holds up
//! whoever makes files meanwhile: the next run. So the reapers of runs that end close together leave it to
//! one of them, which waits a moment first.

use crate::run::unix_millis;
use fumehood_model::id::TaskId;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// From the end of a run to its record being synced, and not much more.
const DELAY: Duration = Duration::from_millis(500);
const WAITING: &str = "unsynced";
const LOCK: &str = "sync.lock";

/// A list that somebody has taken to sync what is on it. Whoever does so holds its lock; one without is of a
/// reaper that was killed.
#[derive(Debug)]
struct Taken {
    path: PathBuf,
    _held: File,
}

/// Where a record is in the order of things.
#[derive(Debug)]
enum Turn {
    /// Somebody who has yet to take the list will sync it.
    Left,
    /// It is for us to sync what is on these.
    Ours(Vec<Taken>),
}

/// Syncs the record of `id`, or leaves that to a reaper that has yet to begin. Nobody is there to be told of
/// a failure: the lines stand in the file all the same.
pub(crate) fn sync(records: &Path, shared: &Path, id: &TaskId) {
    match wait_in_line(shared, id) {
        Ok(Turn::Left) => {}
        Ok(Turn::Ours(lists)) => lead(records, &lists, id),
        // There is no line to stand in, for want of room or by somebody's doing.
        Err(_) => lead(records, &[], id),
    }
}

/// Puts `id` on the list, and takes it in the end unless somebody else is about to.
fn wait_in_line(shared: &Path, id: &TaskId) -> io::Result<Turn> {
    let waiting = shared.join(WAITING);
    let mut list = File::options().append(true).create(true).mode(0o600).open(&waiting)?;
    // One write, on a line of its own even after one that a full disk cut short.
    list.write_all(format!("\n{id}\n").as_bytes())?;
    let lock =
        File::options().write(true).create(true).truncate(false).mode(0o600).open(shared.join(LOCK))?;
    if lock.try_lock().is_err() {
        // Whoever holds it reads what they take only after they have let go of it. It may have been taken
        // by another before we wrote, and then nobody says whether it was read before or after.
        let here = fs::metadata(&waiting).is_ok_and(|here| is_same(&here, &list));
        return if here { Ok(Turn::Left) } else { Ok(Turn::Ours(Vec::new())) };
    }
    std::thread::sleep(DELAY);
    let mut lists = vec![take(shared, id)?];
    lists.extend(orphans(shared));
    Ok(Turn::Ours(lists))
}

fn is_same(here: &fs::Metadata, list: &File) -> bool {
    list.metadata().is_ok_and(|list| (list.dev(), list.ino()) == (here.dev(), here.ino()))
}

/// Gives the list a name of its own, held from before it has it.
fn take(shared: &Path, id: &TaskId) -> io::Result<Taken> {
    let held = File::open(shared.join(WAITING))?;
    held.lock()?;
    let path = shared.join(format!("{WAITING}.{id}"));
    fs::rename(shared.join(WAITING), &path)?;
    Ok(Taken { path, _held: held })
}

/// Lists that were taken by reapers that were killed before they were done.
fn orphans(shared: &Path) -> impl Iterator<Item = Taken> {
    let entries = fs::read_dir(shared).into_iter().flatten().flatten();
    let taken = |name: &str| name.strip_prefix(WAITING).is_some_and(|rest| rest.starts_with('.'));
    entries.filter(move |entry| entry.file_name().to_str().is_some_and(taken)).filter_map(|entry| {
        let held = File::open(entry.path()).ok()?;
        held.try_lock().ok().map(|()| Taken { path: entry.path(), _held: held })
    })
}

fn lead(records: &Path, lists: &[Taken], id: &TaskId) {
    let mut tasks = BTreeSet::from([id.clone()]);
    for list in lists {
        let text = fs::read(&list.path).unwrap_or_default();
        tasks.extend(String::from_utf8_lossy(&text).lines().filter_map(|line| TaskId::parse(line).ok()));
    }
    if fumehood_audit::index_path(records).exists() {
        // Whatever ended in this moment is vouched for by one signature. Without one, `audit verify` tells.
        let _ = fumehood_audit::sign(records, &fumehood_audit::key_path(records), unix_millis());
    }
    let names = tasks.iter().map(|task| format!("{task}.jsonl")).chain(["index.jsonl".to_owned()]);
    for name in names {
        // A record that its owner moved away meanwhile needs nothing.
        let _ = File::open(records.join(name)).and_then(|file| file.sync_data());
    }
    for list in lists {
        // One that stays is found by the next.
        let _ = fs::remove_file(&list.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_many_syncs_for_all_and_leaves_no_list() {
        let (records, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let ids: Vec<TaskId> = (0..8).map(|number| TaskId::new(number, 1)).collect();
        for id in &ids {
            fs::write(records.path().join(format!("{id}.jsonl")), "{}").unwrap();
        }
        std::thread::scope(|scope| {
            for id in &ids {
                scope.spawn(|| sync(records.path(), shared.path(), id));
            }
        });
        let left: Vec<_> =
            fs::read_dir(shared.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [LOCK], "a list was left");
    }

    fn lock(shared: &Path) -> File {
        File::options().write(true).create(true).truncate(false).open(shared.join(LOCK)).unwrap()
    }

    fn ids(lists: &[Taken]) -> BTreeSet<String> {
        let text: String = lists.iter().map(|list| fs::read_to_string(&list.path).unwrap()).collect();
        text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    fn ours(turn: Turn) -> Vec<Taken> {
        match turn {
            Turn::Ours(lists) => lists,
            Turn::Left => panic!("left to somebody who is not there"),
        }
    }

    #[test]
    fn a_line_that_came_late_is_for_the_next() {
        let shared = tempfile::tempdir().unwrap();
        let held = lock(shared.path());
        held.lock().unwrap();
        let (first, second) = (TaskId::new(1, 1), TaskId::new(2, 1));
        assert!(matches!(wait_in_line(shared.path(), &first).unwrap(), Turn::Left));
        drop(held);
        let lists = ours(wait_in_line(shared.path(), &second).unwrap());
        assert_eq!(ids(&lists), [first.to_string(), second.to_string()].into());
    }

    #[test]
    fn what_a_killed_reaper_took_is_for_the_next() {
        let (records, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (killed, busy, next) = (TaskId::new(1, 1), TaskId::new(2, 1), TaskId::new(3, 1));
        for id in [&killed, &busy] {
            fs::write(shared.path().join(format!("{WAITING}.{id}")), format!("\n{id}\n")).unwrap();
        }
        let held = File::open(shared.path().join(format!("{WAITING}.{busy}"))).unwrap();
        held.lock().unwrap();
        let lists = ours(wait_in_line(shared.path(), &next).unwrap());
        assert_eq!(ids(&lists), [killed.to_string(), next.to_string()].into());
        lead(records.path(), &lists, &next);
        let left: BTreeSet<_> =
            fs::read_dir(shared.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [LOCK.to_owned(), format!("{WAITING}.{busy}")].map(Into::into).into());
    }

    #[test]
    fn a_line_after_one_that_was_cut_short_is_whole() {
        let shared = tempfile::tempdir().unwrap();
        fs::write(shared.path().join(WAITING), "1m8mjc").unwrap();
        let id = TaskId::new(1, 1);
        let lists = ours(wait_in_line(shared.path(), &id).unwrap());
        assert!(ids(&lists).contains(id.as_str()));
    }

    #[test]
    fn without_room_for_the_list_nobody_is_waited_for() {
        let shared = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", shared.path().join(WAITING)).unwrap();
        let held = lock(shared.path());
        held.lock().unwrap();
        assert!(wait_in_line(shared.path(), &TaskId::new(1, 1)).is_err());
    }
}
