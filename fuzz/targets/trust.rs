//! Any bytes in the place of the list of trusted files: it is read or refused, a file is trusted only
//! where the list says so of this very content, and a damaged list is never written over.

#![no_main]

use fumehood_runtime::trust::{Pin, is_trusted, list, trust, untrust};
use libfuzzer_sys::fuzz_target;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// A state folder of this process, in memory where there is room for it.
static STATE: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let base = if memory.is_dir() { memory } else { std::env::temp_dir() };
    base.join(format!("fumehood-fuzz-trust-{}", std::process::id()))
});

fuzz_target!(|bytes: &[u8]| {
    let (state, file) = (STATE.as_path(), Path::new("/work/fumehood.toml"));
    let _ = fs::remove_dir_all(state);
    fs::create_dir(state).expect("a folder");
    let pins = state.join("trusted.json");
    fs::write(&pins, bytes).expect("a list");
    fs::set_permissions(&pins, fs::Permissions::from_mode(0o600)).expect("a list of our own");
    match list(state) {
        Ok(known) => {
            let pinned = known.iter().any(|one| one.path == file);
            // Nobody knows a content with a digest that was made up.
            let found = is_trusted(state, file, b"x").expect("the list was read just now");
            assert_eq!(found == Pin::Unknown, !pinned);
            trust(state, file, b"x").expect("a good list is gone on with");
            assert_eq!(is_trusted(state, file, b"x").ok(), Some(Pin::Trusted));
            assert_eq!(is_trusted(state, file, b"y").ok(), Some(Pin::Changed));
            assert_eq!(untrust(state, file).ok(), Some(true));
            assert_eq!(is_trusted(state, file, b"x").ok(), Some(Pin::Unknown));
        }
        Err(_) => {
            assert!(is_trusted(state, file, b"x").is_err());
            assert!(trust(state, file, b"x").is_err());
            assert_eq!(fs::read(&pins).expect("it is still there"), bytes);
        }
    }
    let _ = fs::remove_dir_all(state);
});
