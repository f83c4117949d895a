//! The two programs of the host that this level uses, found in the system folders alone.

use crate::missing::Missing;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// A program of the host.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    pub(crate) path: PathBuf,
    /// What tells it from another version at the same place.
    pub(crate) identity: String,
}

// === impl Tool ===

impl Tool {
    pub(crate) fn qemu() -> Result<Self, Missing> {
        let places = ["/usr/bin/qemu-system-x86_64", "/usr/libexec/qemu-kvm"];
        Self::first(&places).ok_or_else(|| Missing {
            what: "QEMU",
            why: format!("there is no {}", places.join(" and no ")),
            remedy: "`apt-get install qemu-system-x86`, or `dnf install qemu-system-x86-core`".to_owned(),
        })
    }

    pub(crate) fn erofs() -> Result<Self, Missing> {
        let places = ["/usr/bin/mkfs.erofs", "/usr/sbin/mkfs.erofs"];
        Self::first(&places).ok_or_else(|| Missing {
            what: "mkfs.erofs, which makes a machine's root image",
            why: format!("there is no {}", places.join(" and no ")),
            remedy: "`apt-get install erofs-utils`, or `dnf install erofs-utils`".to_owned(),
        })
    }

    fn first(places: &[&str]) -> Option<Self> {
        places.iter().find_map(|place| Self::at(Path::new(place)))
    }

    fn at(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok().filter(|meta| meta.is_file())?;
        (meta.permissions().mode() & 0o111 != 0).then(|| {
            let (node, length, made) = (meta.ino(), meta.len(), meta.mtime());
            let identity = format!("{}:{node}:{length}:{made}:{}", path.display(), meta.mtime_nsec());
            Self { path: path.to_owned(), identity }
        })
    }
}
