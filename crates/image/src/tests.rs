//! Whole pulls of good and of hostile images, from memory into a store.

use crate::fault::Code;
use crate::limits::Limits;
use crate::pull::{Pulled, pull};
use crate::store::Store;
use crate::testing::{Memory, Tar};
use fumehood_model::image::Reference;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use tempfile::TempDir;

struct Host {
    folder: TempDir,
    store: Store,
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::at(folder.path().join("state"));
        store.make().unwrap();
        fs::write(folder.path().join("outside"), "untouched").unwrap();
        Self { store, folder }
    }

    fn pull_with(&self, layers: &[Vec<u8>], limits: &Limits) -> Result<PathBuf, Code> {
        let mut source = Memory::image(layers);
        let pulled = self.bring(&mut source, limits);
        self.is_untouched();
        pulled.map(|pulled| self.store.root_folder(&pulled.image))
    }

    fn bring(&self, source: &mut Memory, limits: &Limits) -> Result<Pulled, Code> {
        pull(&self.store, source, None, limits, &mut |_| {}).map_err(|fault| fault.code)
    }

    fn pull(&self, layers: &[Vec<u8>]) -> Result<PathBuf, Code> {
        self.pull_with(layers, &Limits::default())
    }

    /// Whatever came: nothing outside was changed, and nothing unfinished is left.
    fn is_untouched(&self) {
        assert_eq!(fs::read(self.folder.path().join("outside")).unwrap(), b"untouched");
        let mut names: Vec<_> =
            fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["outside", "state"]);
        assert_eq!(fs::read_dir(self.folder.path().join("state/tmp")).unwrap().count(), 0);
    }
}

fn tree(root: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            if kind.is_dir() {
                found.push(format!("{name}/"));
                waiting.push(path);
            } else if kind.is_symlink() {
                found.push(format!("{name} -> {}", fs::read_link(&path).unwrap().display()));
            } else {
                found.push(name);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn layers_come_together_and_what_is_gone_is_gone() {
    let host = Host::new();
    let base = Tar::default()
        .folder("./")
        .folder("etc/")
        .file("etc/a", b"1")
        .file("etc/b", b"1")
        .file("data/x/y", b"1")
        .file("old", b"1")
        .link("bin", "usr/bin")
        .file("usr/bin/tool", b"tool");
    let next = Tar::default()
        .file("etc/.wh.a", b"")
        .file("etc/b", b"2")
        .file("data/.wh..wh..opq", b"")
        .file("data/z", b"2")
        .file(".wh.old", b"")
        .file(".wh.never", b"")
        .same("usr/bin/again", "usr/bin/tool");
    let root = host.pull(&[base.end(), next.end()]).unwrap();
    let expected = [
        "bin -> usr/bin",
        "data/",
        "data/z",
        "etc/",
        "etc/b",
        "usr/",
        "usr/bin/",
        "usr/bin/again",
        "usr/bin/tool",
    ];
    assert_eq!(tree(&root), expected);
    assert_eq!(fs::read(root.join("etc/b")).unwrap(), b"2");
    let inode = |name: &str| fs::metadata(root.join(name)).unwrap().ino();
    assert_eq!(inode("usr/bin/again"), inode("usr/bin/tool"));
    // 04755 in the archive.
    let facts = fs::metadata(root.join("etc/b")).unwrap();
    assert_eq!((facts.permissions().mode() & 0o7777, facts.mtime()), (0o755, 1000));
    assert_eq!(fs::metadata(root.join("data")).unwrap().permissions().mode() & 0o7777, 0o755);
}

#[test]
fn a_layer_is_unpacked_once_and_shared() {
    let host = Host::new();
    let base = Tar::default().file("usr/lib/big", b"big").end();
    let one = host.pull(&[base.clone(), Tar::default().file("a", b"a").end()]).unwrap();
    let two = host.pull(&[base.clone(), Tar::default().file("b", b"b").end()]).unwrap();
    assert_ne!(one, two);
    let inode = |root: &PathBuf| fs::metadata(root.join("usr/lib/big")).unwrap().ino();
    assert_eq!(inode(&one), inode(&two));
    // A later layer that changes it leaves the others as they are.
    let three = host.pull(&[base, Tar::default().file("usr/lib/big", b"other").end()]).unwrap();
    assert_eq!(fs::read(three.join("usr/lib/big")).unwrap(), b"other");
    assert_eq!(fs::read(one.join("usr/lib/big")).unwrap(), b"big");
}

#[test]
fn what_leads_out_is_refused_or_kept_as_it_is() {
    let refused = [
        ("a name with ..", Tar::default().file("../outside", b"x")),
        ("an inner ..", Tar::default().folder("a").file("a/../../outside", b"x")),
        ("a long name with ..", Tar::default().pax(&[("path", "a/../../outside")]).file("x", b"x")),
        ("through a link", Tar::default().link("l", "/tmp").file("l/x", b"x")),
        ("through a relative link", Tar::default().link("l", "../..").file("l/outside", b"x")),
        ("a folder over a link", Tar::default().link("l", "../..").folder("l")),
        ("a link over a folder", Tar::default().file("d/x", b"x").link("d", "..")),
        ("another name of a file outside", Tar::default().same("x", "../outside")),
        ("another name of nothing", Tar::default().same("x", "nothing")),
        ("another name of a folder", Tar::default().folder("d").same("x", "d")),
        ("another name through a link", Tar::default().link("l", "..").same("x", "l/outside")),
        ("another name of itself", Tar::default().same("x", "x")),
        ("a mark for ..", Tar::default().file(".wh...", b"")),
        ("a mark for nothing", Tar::default().file("a/.wh.", b"")),
        ("the root as a file", Tar::default().file("./", b"x")),
        ("the root as a link", Tar::default().link(".", "/")),
    ];
    for (what, tar) in refused {
        assert_eq!(Host::new().pull(&[tar.end()]), Err(Code::Escapes), "{what}");
    }
    let host = Host::new();
    let kept = Tar::default().link("etc", "../../../etc").link("abs", "/outside").file("/absolute", b"x");
    let root = host.pull(&[kept.end()]).unwrap();
    assert_eq!(tree(&root), ["abs -> /outside", "absolute", "etc -> ../../../etc"]);
}

#[test]
fn a_link_of_a_lower_layer_is_not_followed_by_a_higher_one() {
    let link = Tar::default().link("l", "../../..").end();
    for (what, upper) in [
        ("a file", Tar::default().file("l/outside", b"x")),
        ("a mark", Tar::default().file("l/.wh.outside", b"")),
        ("an opaque mark", Tar::default().file("l/.wh..wh..opq", b"")),
        ("another name", Tar::default().same("x", "l/outside")),
        ("a name beneath", Tar::default().file("y", b"").same("l/x", "y")),
    ] {
        assert_eq!(Host::new().pull(&[link.clone(), upper.end()]), Err(Code::Escapes), "{what}");
    }
    // A folder of its own takes the link's place.
    let host = Host::new();
    let root = host.pull(&[link, Tar::default().folder("l").file("l/outside", b"x").end()]).unwrap();
    assert_eq!(tree(&root), ["l/", "l/outside"]);
}

#[test]
fn devices_and_pipes_are_left_out_and_counted() {
    let tar = Tar::default()
        .entry(b'3', b"dev/null", b"", b"")
        .entry(b'4', b"disk", b"", b"")
        .entry(b'6', b"pipe", b"", b"")
        .file("a", b"");
    let host = Host::new();
    let pulled = host.bring(&mut Memory::image(&[tar.end()]), &Limits::default()).unwrap();
    assert_eq!(pulled.special, 3);
    assert_eq!(tree(&host.store.root_folder(&pulled.image)), ["a"]);
}

#[test]
fn of_two_of_one_name_the_later_stands() {
    let host = Host::new();
    let tar = Tar::default()
        .file("a", b"1")
        .link("a", "x")
        .file("a", b"2")
        .file("b", b"1")
        .same("c", "b")
        .file("b", b"2");
    let root = host.pull(&[tar.end()]).unwrap();
    let read = |name: &str| fs::read(root.join(name)).unwrap();
    assert_eq!((read("a"), read("b"), read("c")), (b"2".to_vec(), b"2".to_vec(), b"1".to_vec()));
}

#[test]
fn names_longer_than_a_header_are_read() {
    let long = "n".repeat(200);
    let host = Host::new();
    let tar = Tar::default()
        .pax(&[("path", &format!("pax/{long}"))])
        .file("x", b"1")
        .entry(b'L', b"././@LongLink", b"", format!("gnu/{long}\0").as_bytes())
        .file("x", b"2")
        .entry(b'K', b"././@LongLink", b"", format!("{long}\0").as_bytes())
        .link("l", "x");
    let root = host.pull(&[tar.end()]).unwrap();
    assert_eq!(fs::read(root.join("pax").join(&long)).unwrap(), b"1");
    assert_eq!(fs::read(root.join("gnu").join(&long)).unwrap(), b"2");
    assert_eq!(fs::read_link(root.join("l")).unwrap(), PathBuf::from(long));
}

#[test]
fn what_could_be_read_in_two_ways_is_not_read() {
    let mut wrong_sum = Tar::default().file("a", b"").end();
    wrong_sum[0] = b'b';
    let after_end = [Tar::default().file("a", b"").end(), Tar::default().file("b", b"").end()].concat();
    let mut cut = Tar::default().file("a", &[1; 600]).open();
    cut.truncate(900);
    let cases = [
        ("a wrong checksum", wrong_sum),
        ("more after the end", after_end),
        ("cut content", cut),
        (
            "two long names",
            Tar::default().pax(&[("path", "a")]).entry(b'L', b"l", b"", b"b\0").file("x", b"").end(),
        ),
        (
            "two extended headers",
            Tar::default().pax(&[("path", "a")]).pax(&[("path", "b")]).file("x", b"").end(),
        ),
        ("a global name", Tar::default().entry(b'g', b"g", b"", b"11 path=ab\n").file("x", b"").end()),
        ("a link with content", Tar::default().entry(b'2', b"l", b"x", b"content").end()),
        ("a long name for nothing", Tar::default().entry(b'L', b"l", b"", b"b\0").end()),
        ("a size beyond the end", Tar::default().pax(&[("size", "99999999")]).file("x", b"1").end()),
        (
            "a size near the largest number",
            Tar::default().pax(&[("size", "18446744073709551615")]).file("x", b"1").end(),
        ),
        ("a link to nothing", Tar::default().link("l", "").end()),
        ("no archive", b"this is no archive at all".to_vec()),
    ];
    for (what, tar) in cases {
        assert_eq!(Host::new().pull(&[tar]), Err(Code::BadLayer), "{what}");
    }
    let unknown = Tar::default().entry(b'Z', b"x", b"", b"").end();
    assert_eq!(Host::new().pull(&[unknown]), Err(Code::Unsupported));
}

#[test]
fn a_digest_or_a_length_that_is_wrong_ends_the_pull() {
    let layer = Tar::default().file("a", b"content").end();
    for (place, code) in [("layer", Code::BadDigest), ("config", Code::BadDigest), ("short", Code::BadSize)] {
        let host = Host::new();
        let mut source = Memory::image(std::slice::from_ref(&layer));
        let is_layer = |bytes: &Vec<u8>| bytes.len() == layer.len();
        let (_, blob) =
            source.blobs.iter_mut().find(|(_, bytes)| is_layer(bytes) == (place != "config")).unwrap();
        match place {
            "short" => blob.truncate(blob.len() - 512),
            _ => {
                let last = blob.len() - 1;
                blob[last] ^= 1;
            }
        }
        assert_eq!(host.bring(&mut source, &Limits::default()).unwrap_err(), code, "{place}");
        host.is_untouched();
        assert!(host.store.list().unwrap().is_empty(), "{place}");
    }
    // What was sent is right, and what it unpacks to is not.
    let mut source = Memory::image(std::slice::from_ref(&layer));
    let config = r#"{"os":"linux","architecture":"amd64","rootfs":{"diff_ids":["sha256:0000000000000000000000000000000000000000000000000000000000000000"]}}"#;
    let config = source.put(crate::manifest::OCI_CONFIG, config.into());
    let sent = source.put(crate::manifest::OCI_LAYER, layer);
    source.top = format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{sent}]}}"#).into_bytes();
    assert_eq!(Host::new().bring(&mut source, &Limits::default()).unwrap_err(), Code::BadDigest);
}

#[test]
fn limits_hold_over_all_layers() {
    let layer = |name: &str| Tar::default().file(name, &[7; 2000]).file(&format!("{name}2"), b"").end();
    let layers = [layer("a"), layer("b"), layer("c")];
    let pull = |limits: Limits| Host::new().pull_with(&layers, &limits).map(drop);
    assert_eq!(pull(Limits::default()), Ok(()));
    assert_eq!(pull(Limits { entries: 5, ..Limits::default() }), Err(Code::TooLarge));
    assert_eq!(pull(Limits { unpacked_bytes: 10_000, ..Limits::default() }), Err(Code::TooLarge));
    assert_eq!(pull(Limits { sent_bytes: 10_000, ..Limits::default() }), Err(Code::TooLarge));
    assert_eq!(pull(Limits { layers: 2, ..Limits::default() }), Err(Code::TooLarge));
    assert_eq!(pull(Limits { document_bytes: 100, ..Limits::default() }), Err(Code::TooLarge));
}

#[test]
fn names_lead_to_images_and_the_last_one_takes_its_image_along() {
    let host = Host::new();
    let limits = Limits::default();
    let mut source = Memory::image(&[Tar::default().file("a", b"a").end()]);
    let image = host.bring(&mut source, &limits).unwrap().image;
    let other = Reference::parse("other:2").unwrap();
    pull(&host.store, &mut source, Some(&other), &limits, &mut |_| {}).unwrap();
    let root = host.store.root_folder(&image);
    let found = host.store.all().unwrap();
    assert_eq!(found["docker.io/library/other:2"].folder, root);
    let held = host.store.hold(&found["docker.io/library/test:1"]).unwrap();
    let mut making = host.store.lock(&mut || {}).unwrap();
    assert!(!making.remove(&other).unwrap().image);
    let test = Reference::parse("test:1").unwrap();
    assert_eq!(making.remove(&test).unwrap_err().code, Code::InUse);
    drop(held);
    assert!(making.remove(&test).unwrap().image);
    assert!(!root.exists());
    assert_eq!(making.remove(&test).unwrap_err().code, Code::NotFound);
    drop(making);
    assert!(host.store.list().unwrap().is_empty());
    for folder in ["layers", "roots", "images", "names"] {
        assert_eq!(
            fs::read_dir(host.folder.path().join("state").join(folder)).unwrap().count(),
            0,
            "{folder}"
        );
    }
}

#[test]
fn a_root_becomes_one_file_of_the_same_bytes_everywhere() {
    if !PathBuf::from("/usr/bin/mkfs.erofs").exists() {
        println!("NOT-APPLICABLE: `mkfs.erofs` is not installed");
        return;
    }
    let layers = [Tar::default().file("etc/a", b"a").link("l", "etc/a").end()];
    let make = || {
        let host = Host::new();
        let image = host.bring(&mut Memory::image(&layers), &Limits::default()).unwrap().image;
        let file = host.store.erofs(&image).unwrap();
        assert_eq!(host.store.erofs(&image).unwrap(), file);
        host.is_untouched();
        fs::read(file).unwrap()
    };
    let one = make();
    // The format's mark stands after the first 1,024 bytes.
    assert_eq!(one[1024..1028], [0xe2, 0xe1, 0xf5, 0xe0]);
    assert!(one == make(), "the same root gave other bytes");
}

#[test]
fn what_a_pull_left_is_removed_by_the_next() {
    let host = Host::new();
    host.store.make().unwrap();
    let left = host.folder.path().join("state/tmp/7/tree/a");
    fs::create_dir_all(&left).unwrap();
    host.pull(&[Tar::default().file("a", b"a").end()]).unwrap();
    assert!(!left.exists());
}

#[test]
fn a_name_moves_to_another_image_and_the_old_one_is_pruned() {
    let host = Host::new();
    let one = host.pull(&[Tar::default().file("a", b"1").end()]).unwrap();
    let two = host.pull(&[Tar::default().file("a", b"2").end()]).unwrap();
    assert!(one.exists() && two.exists());
    let pruned = host.store.lock(&mut || {}).unwrap().prune().unwrap();
    assert_eq!((pruned.images, pruned.roots, pruned.layers), (1, 1, 1));
    assert!(!one.exists() && two.exists());
}

mod whatever_comes {
    use super::*;
    use crate::tar::{Archive, What};
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = (u8, String, String)> {
        let name = "(\\.\\./|\\./|/|a/|b/|l/|\\.wh\\.){0,4}(a|b|l|\\.\\.|\\.wh\\.a|\\.wh\\.\\.wh\\.\\.opq|)";
        let kind = prop::sample::select(vec![b'0', b'1', b'2', b'5', b'3', b'L']);
        (kind, name, name)
    }

    fn archive() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(entry(), 0..8).prop_map(|entries| {
            let add = |tar: Tar, (kind, name, link): (u8, String, String)| match kind {
                b'0' | b'L' => tar.entry(kind, name.as_bytes(), b"", link.as_bytes()),
                _ => tar.entry(kind, name.as_bytes(), link.as_bytes(), b""),
            };
            entries.into_iter().fold(Tar::default(), add).end()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

        #[test]
        fn nothing_is_touched_outside_and_nothing_unfinished_is_left(layers in prop::collection::vec(archive(), 1..3)) {
            // The host looks after itself, whether the image is refused or not.
            let _ = Host::new().pull(&layers);
        }

        #[test]
        fn the_reader_ends_and_names_stay_beneath(bytes in prop::collection::vec(any::<u8>(), 0..2048), good in archive()) {
            let mut mixed = good;
            let middle = mixed.len() / 2;
            mixed.splice(middle..middle, bytes);
            let mut archive = Archive::new(mixed.as_slice());
            while let Ok(Some(entry)) = archive.next_entry() {
                prop_assert!(entry.name.parts().all(|part| part != b".." && !part.contains(&0)));
                if let What::Same(to) = entry.what {
                    prop_assert!(to.parts().all(|part| part != b".."));
                }
            }
        }
    }
}
