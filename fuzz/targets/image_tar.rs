//! An archive, whole or changed: names stay beneath the image, content is as long as it was said to be, and the reader ends.

#![no_main]

use fumehood_image::tar::{Archive, Name, What};
use libfuzzer_sys::fuzz_target;
use std::io::Read as _;

fuzz_target!(|bytes: &[u8]| {
    let mut archive = Archive::new(bytes);
    let mut entries = 0;
    while let Ok(Some(entry)) = archive.next_entry() {
        beneath(&entry.name);
        match &entry.what {
            What::Same(target) => beneath(target),
            What::Link(target) => assert!(!target.is_empty() && !target.contains(&0)),
            What::File | What::Folder | What::Special => {}
        }
        assert!(entry.what == What::File || entry.size == 0);
        assert!(entry.what == What::Folder || !entry.name.is_root());
        // Every other one is passed over unread.
        entries += 1;
        if entries % 2 == 0 {
            let mut content = Vec::new();
            match archive.read_to_end(&mut content) {
                Ok(read) => assert_eq!(u64::try_from(read), Ok(entry.size)),
                Err(_) => return,
            }
        }
    }
    assert!(entries <= bytes.len() / 512);
});

fn beneath(name: &Name) {
    let again = Name::parse(name.bytes()).expect("a name that was taken is taken again");
    assert_eq!(&again, name);
    assert!(name.parts().all(|part| part != b".." && part != b"." && !part.is_empty() && !part.contains(&0)));
    assert!(!name.bytes().starts_with(b"/") && !name.bytes().ends_with(b"/"));
}
