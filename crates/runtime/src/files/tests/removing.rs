use super::*;
use crate::files::discard::{remove_tree, sweep};
use std::os::unix::fs::symlink;

#[test]
fn a_tree_goes_and_what_its_links_name_stays() {
    let (place, elsewhere) = (Place::new(), Place::new());
    elsewhere.write("canary", "host");
    place.write("layer/upper/a/b", "x");
    place.write("layer/upper/.fumehood-removed-1", "x");
    symlink(elsewhere.temp.path(), place.at("layer/upper/out")).unwrap();
    symlink("../../..", place.at("layer/upper/a/up")).unwrap();
    std::fs::create_dir_all(place.at("layer/work/work/inner")).unwrap();
    for path in ["layer/work/work/inner", "layer/work/work", "layer/upper/a"] {
        set_mode(place.at(path), 0o000);
    }
    shell(
        "mknod \"$1\"/layer/upper/gone c 0 0; mkfifo \"$1\"/layer/upper/pipe",
        &[place.temp.path().as_os_str()],
    );
    place.write("beside", "kept");
    remove_tree(&place.dir, OsStr::new("layer")).unwrap();
    remove_tree(&place.dir, OsStr::new("layer")).unwrap();
    assert_eq!(place.tree(), [PathBuf::from("beside")]);
    assert_eq!(elsewhere.text("canary"), "host");
}

#[test]
fn depth_and_width_cost_two_descriptors() {
    let place = Place::new();
    place.dir.make_dir(OsStr::new("layer"), 0o755).unwrap();
    let mut deep = place.dir.sub(Path::new("layer")).unwrap();
    for _ in 0..6_000 {
        deep.make_dir(OsStr::new("d"), 0o755).unwrap();
        deep = deep.sub(Path::new("d")).unwrap();
    }
    for n in 0..3_000 {
        place.write(format!("layer/wide/{n}/x"), "");
    }
    remove_tree(&place.dir, OsStr::new("layer")).unwrap();
    assert!(place.tree().is_empty());
}

#[test]
fn a_removal_that_was_cut_short_is_finished_by_the_next() {
    let place = Place::new();
    place.write(".fumehood-removed-layer/upper/x", "");
    place.write("layer/upper/y", "");
    remove_tree(&place.dir, OsStr::new("layer")).unwrap();
    assert!(place.tree().is_empty());
    place.write(".fumehood-removed-other/upper/x", "");
    place.write("kept", "");
    let other = place.dir.sub(Path::new(".fumehood-removed-other")).unwrap();
    let lock = other.try_lock().unwrap();
    sweep(&place.dir).unwrap();
    assert!(place.exists(".fumehood-removed-other/upper/x"), "somebody is at it");
    drop(lock);
    sweep(&place.dir).unwrap();
    assert_eq!(place.tree(), [PathBuf::from("kept")]);
    let long = "n".repeat(255);
    place.write(format!("{long}/x"), "");
    remove_tree(&place.dir, OsStr::new(&long)).unwrap();
    assert_eq!(place.tree(), [PathBuf::from("kept")]);
}

#[test]
fn a_link_in_a_layers_place_is_removed_itself() {
    let (place, elsewhere) = (Place::new(), Place::new());
    elsewhere.write("canary", "host");
    symlink(elsewhere.temp.path(), place.at("layer")).unwrap();
    remove_tree(&place.dir, OsStr::new("layer")).unwrap();
    assert!(!place.exists("layer"));
    assert!(elsewhere.exists("canary"));
}
