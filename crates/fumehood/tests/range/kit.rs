//! Where the pinned clients are, and the clients of our own.

use crate::lab::Lab;
use std::path::{Path, PathBuf};

/// The folder that `kit/install.sh` filled, for Python's packages.
pub(crate) fn python() -> PathBuf {
    folder().join("python")
}

/// The same for Node's packages.
pub(crate) fn node() -> PathBuf {
    folder().join("node/node_modules")
}

/// A client of `clients/`, laid at `place` in the lab, where the caller can read it.
pub(crate) fn client(lab: &Lab, place: &str) -> PathBuf {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/range/clients");
    let source = clients.join(Path::new(place).file_name().unwrap());
    lab.file(place, std::fs::read(source).unwrap())
}

fn folder() -> PathBuf {
    let inside = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let found =
        inside.ancestors().map(|place| place.join("range-kit")).find(|kit| kit.join("state").exists());
    found.expect("the clients of the range are not installed: run scripts/test.sh, or tests/range/kit/install.sh alone")
}
