//! Making records durable, many at a time.
//!
//! To sync a file makes the file system write out a transaction, which takes milliseconds and holds up
//! whoever makes files meanwhile: the next run. So the reapers of runs that end close together leave it to
//! one of them, which waits a moment first.

use fumehood_model::id::TaskId;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

/// From the end of a run to its record being synced, and not much more.
const DELAY: Duration = Duration::from_millis(500);
const WAITING: &str = "unsynced";
const LOCK: &str = "sync.lock";

/// Syncs the record of `id`, or leaves that to a reaper that has yet to begin. Nobody is there to be told of
/// a failure: the lines stand in the file all the same.
pub(crate) fn sync(records: &Path, shared: &Path, id: &TaskId) {
    let _ = wait_in_line(shared, id).and_then(|leader| match leader {
        true => lead(records, shared, id),
        false => Ok(()),
    });
}

/// Puts `id` on the list. `true`: we sync what is on it.
fn wait_in_line(shared: &Path, id: &TaskId) -> io::Result<bool> {
    let mut list = File::options().append(true).create(true).mode(0o600).open(shared.join(WAITING))?;
    writeln!(list, "{id}")?;
    let lock = lock(shared)?;
    if lock.try_lock().is_err() {
        // Whoever holds it has not taken the list yet.
        return Ok(false);
    }
    std::thread::sleep(DELAY);
    fs::rename(shared.join(WAITING), taken(shared))?;
    Ok(true)
}

fn lead(records: &Path, shared: &Path, id: &TaskId) -> io::Result<()> {
    let taken = taken(shared);
    let list = fs::read_to_string(&taken)?;
    let tasks: BTreeSet<TaskId> =
        list.lines().filter_map(|line| TaskId::parse(line).ok()).chain([id.clone()]).collect();
    let names = tasks.iter().map(|task| format!("{task}.jsonl")).chain(["index.jsonl".to_owned()]);
    for name in names {
        // A record that its owner moved away meanwhile needs nothing.
        let _ = File::open(records.join(name)).and_then(|file| file.sync_data());
    }
    fs::remove_file(taken)
}

fn lock(shared: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(false).mode(0o600).open(shared.join(LOCK))
}

fn taken(shared: &Path) -> std::path::PathBuf {
    shared.join(format!("{WAITING}.{}", std::process::id()))
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

    #[test]
    fn a_line_that_came_late_is_for_the_next() {
        let shared = tempfile::tempdir().unwrap();
        let held = lock(shared.path()).unwrap();
        held.lock().unwrap();
        assert!(!wait_in_line(shared.path(), &TaskId::new(1, 1)).unwrap());
        drop(held);
        assert!(wait_in_line(shared.path(), &TaskId::new(2, 1)).unwrap());
        let list = fs::read_to_string(taken(shared.path())).unwrap();
        assert_eq!(list.lines().count(), 2);
    }
}
