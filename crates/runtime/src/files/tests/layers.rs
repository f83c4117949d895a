use super::*;
use crate::files::changes::{Change, ChangeKind, ChangeList};
use crate::files::discard::remove_tree;
use crate::files::layer::{Layer, LayerError, discard, list};
use fumehood_model::id::TaskId;
use fumehood_sys::dirfd::is_root;

impl Drop for Bench {
    fn drop(&mut self) {
        // The overlay leaves a folder that its owner can not read; the temporary folder's own removal
        // would stop there.
        remove_tree(&self.layers.dir, OsStr::new(self.task.as_str())).unwrap();
    }
}

/// A workspace, a layer over it, and a way to write to it as a guest would.
pub(in crate::files) struct Bench {
    pub(in crate::files) workspace: Place,
    pub(in crate::files) layers: Place,
    pub(in crate::files) task: TaskId,
}

impl Bench {
    /// `fill` makes the workspace before the layer is made.
    pub(in crate::files) fn new(fill: impl FnOnce(&Place)) -> Self {
        let (workspace, layers) = (Place::new(), Place::new());
        fill(&workspace);
        let task = TaskId::new(1, 2);
        Layer::create(&layers.dir, &task, workspace.temp.path(), &workspace.dir).unwrap();
        Self { workspace, layers, task }
    }

    pub(in crate::files) fn layer(&self) -> Layer {
        Layer::open(&self.layers.dir, &self.task).unwrap()
    }

    /// Runs a shell script with the merged view of a real overlay as its working directory.
    pub(in crate::files) fn guest(&self, script: &str) {
        let layer = self.layers.at(self.task.as_str());
        let merged = Place::new();
        let mount = "lower=$1 layer=$2 merged=$3 script=$4; \
             mount -t overlay overlay -o userxattr,lowerdir=\"$lower\",upperdir=\"$layer/upper\",workdir=\"$layer/work\" \"$merged\"; \
             cd \"$merged\"; eval \"$script\"";
        // An ordinary user mounts in a user namespace, as it does for a sandbox.
        let spaces = if is_root() { "-m" } else { "-rm" };
        let status = Command::new("unshare")
            .args([spaces, "sh", "-ec", mount, "sh"])
            .args([self.workspace.temp.path(), layer.as_path(), merged.temp.path()])
            .arg(script)
            .status()
            .unwrap();
        assert!(status.success(), "{script}");
    }

    pub(in crate::files) fn list(&self) -> ChangeList {
        self.layer().changes().unwrap()
    }

    /// `A path`, `M path` and so on.
    pub(in crate::files) fn brief(&self) -> Vec<String> {
        self.list().changes.iter().map(brief).collect()
    }
}

pub(in crate::files) fn brief(change: &Change) -> String {
    let letter = match change.kind {
        ChangeKind::Added => 'A',
        ChangeKind::Modified => 'M',
        ChangeKind::ModeChanged => 'X',
        ChangeKind::TypeChanged => 'T',
        ChangeKind::Deleted => 'D',
    };
    format!("{letter} {}", text::escape_path(&change.path))
}

fn filled(place: &Place) {
    place.write("same.txt", "same");
    place.write("edit.txt", "before");
    place.write("gone.txt", "x");
    place.write("tool.sh", "#!/bin/sh\n");
    place.write("lib/a", "a");
    place.write("lib/b", "b");
    place.write("old/deep/x", "x");
    place.write("swap", "file");
    std::os::unix::fs::symlink("same.txt", place.at("link")).unwrap();
}

#[test]
fn a_real_overlay_is_read_as_what_the_guest_did() {
    let bench = Bench::new(filled);
    bench.guest(
        "echo after > edit.txt; touch same.txt; rm gone.txt; chmod +x tool.sh; \
         rm -r lib; mkdir lib; echo new > lib/a; echo c > lib/c; rm -r old; rm swap; mkdir swap; echo y > swap/in; \
         ln -sfn edit.txt link; ln -s nowhere dangling; mkfifo pipe; mkdir -p new/dir; printf 'x' > \"$(printf 'n\\nl')\"",
    );
    assert_eq!(
        bench.brief(),
        [
            "A dangling",
            "M edit.txt",
            "D gone.txt",
            "M lib/a",
            "D lib/b",
            "A lib/c",
            "M link",
            "A n\\u{a}l",
            "A new",
            "A new/dir",
            "D old",
            "A pipe",
            "T swap",
            "A swap/in",
            "X tool.sh",
        ]
    );
    let count = bench.list().count();
    assert_eq!((count.added, count.modified, count.deleted), (7, 5, 3));
}

#[test]
fn touching_everything_changes_nothing() {
    let bench = Bench::new(filled);
    bench.guest(
        "find . -exec touch {} +; chmod 600 edit.txt; chmod 644 edit.txt; cat same.txt >> new; rm new",
    );
    assert!(bench.list().is_empty(), "{:?}", bench.brief());
}

#[test]
fn a_change_can_not_hide_behind_an_old_time_and_size() {
    let bench = Bench::new(filled);
    bench.guest("touch -r edit.txt /tmp/stamp-$$; printf 'BEFORE' > edit.txt; touch -r /tmp/stamp-$$ edit.txt; rm /tmp/stamp-$$");
    assert_eq!(bench.brief(), ["M edit.txt"]);
}

#[test]
fn a_large_workspace_costs_nothing() {
    let bench = Bench::new(|place| {
        for n in 0..20_000 {
            place.write(format!("d{}/f{n}", n % 100), "");
        }
    });
    bench.guest("echo x > d1/new");
    let start = std::time::Instant::now();
    assert_eq!(bench.brief(), ["A d1/new"]);
    assert!(start.elapsed() < std::time::Duration::from_millis(100), "{:?}", start.elapsed());
}

#[test]
fn a_layer_belongs_to_its_workspace() {
    use std::os::unix::fs::MetadataExt;
    let bench = Bench::new(|place| {
        set_mode(place.temp.path(), 0o750);
        std::os::unix::fs::chown(place.temp.path(), Some(4321), Some(4322)).unwrap();
    });
    let upper = bench.layers.at(bench.task.as_str()).join("upper");
    let facts = std::fs::metadata(&upper).unwrap();
    assert_eq!((facts.uid(), facts.gid(), mode_of(&upper)), (4321, 4322, 0o750));
    assert_eq!(bench.layer().meta.workspace(), bench.workspace.temp.path());

    assert!(bench.layer().renew(&bench.workspace.dir).unwrap().workspace().is_ok());
    let moved = bench.workspace.temp.path().with_extension("moved");
    std::fs::rename(bench.workspace.temp.path(), &moved).unwrap();
    std::fs::create_dir(bench.workspace.temp.path()).unwrap();
    assert!(matches!(bench.layer().workspace(), Err(LayerError::OtherWorkspace { .. })));
    std::fs::remove_dir_all(moved).unwrap();

    bench.layers.write("not-a-layer", "");
    assert_eq!(list(&bench.layers.dir).unwrap(), std::slice::from_ref(&bench.task));
    std::fs::remove_file(bench.layers.at("not-a-layer")).unwrap();
    let used = bench.layer();
    let lock = used.lock().unwrap();
    assert!(matches!(bench.layer().lock(), Err(LayerError::Busy { .. })));
    assert!(discard(&bench.layers.dir, &bench.task, &mut no_record).is_err());
    drop(lock);
    discard(&bench.layers.dir, &bench.task, &mut no_record).unwrap();
    assert!(matches!(Layer::open(&bench.layers.dir, &bench.task), Err(LayerError::Missing { .. })));
    assert!(bench.layers.tree().is_empty());
}
