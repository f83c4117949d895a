//! The `/etc` of a sandbox on the host's own system folders: made, not mounted.
//!
//! A closed list of what programs read there is copied once into a folder of ours, with a `passwd`,
//! `group` and `hosts` of the sandbox's own, and that folder is shown read-only. It is made anew when
//! what it was copied from changes. Nothing that is not readable by everybody is copied.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, DirBuilder, Permissions};
use std::hash::{Hash as _, Hasher as _};
use std::io::{self, Read as _};
use std::net::Ipv4Addr;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Grows when what is written here changes, so that an old copy is not used.
const FORMAT: u32 = 2;
/// A file that is larger is not a configuration file.
const FILE_LIMIT_BYTES: u64 = 8 << 20;
const ENTRY_LIMIT: u32 = 8192;

/// Copied where they exist: a file, or a folder with what is in it.
pub(crate) const COPIED: &[&str] = &[
    // The loader.
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    // Certificates that everybody trusts; never `ssl/private`.
    "ssl/certs",
    "ssl/openssl.cnf",
    "ssl/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "pki/ca-trust/extracted",
    "ca-certificates",
    "crypto-policies/back-ends",
    "gnutls",
    // Names of protocols, types, shells, this system.
    "services",
    "protocols",
    "rpc",
    "ethertypes",
    "networks",
    "host.conf",
    "gai.conf",
    "mime.types",
    "shells",
    "os-release",
    "debian_version",
    "lsb-release",
    "redhat-release",
    "alpine-release",
    "localtime",
    "timezone",
    "locale.alias",
    "locale.conf",
    "magic",
    "magic.mime",
    "inputrc",
    "terminfo",
    "login.defs",
    "mke2fs.conf",
    "bash.bashrc",
    "profile.d/bash_completion.sh",
    // What programs need of their own configuration.
    "alternatives",
    "fonts",
    "perl",
    "python3",
    "python3.9",
    "python3.10",
    "python3.11",
    "python3.12",
    "python3.13",
    "python3.14",
    "java",
    "java-8-openjdk",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "java-25-openjdk",
    "maven",
    "ImageMagick-6",
    "ImageMagick-7",
    "xdg",
    "vim",
    "emacs",
    "papersize",
    "OpenCL/vendors",
    "R",
    "php",
    "lynx",
    "wgetrc",
    "nanorc",
];

/// What an image can not know.
const OVER_AN_IMAGE: &[&str] = &["resolv.conf", "hosts"];

/// What decides whether a copy is still right. `/etc` itself changes when a file there is replaced.
const WATCHED: &[&str] = &["", "ld.so.cache", "ssl/certs", "alternatives", "localtime", "os-release"];

/// The folder, and a hold on it: while anybody has one, it is not removed.
#[derive(Debug)]
pub struct Etc {
    pub path: PathBuf,
    pub hold: fs::File,
}

/// Whether the system inside is the host's own, whose `/etc` is copied, or an image's, which has its own.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum System {
    Host,
    /// Only what says who answers for names is made, to be laid over the image's.
    Image,
}

/// Whose `/etc` it is.
#[derive(Clone, Copy, Debug, Hash)]
pub struct Guest<'a> {
    pub system: System,
    pub uid: u32,
    pub home: &'a Path,
    /// Who answers for names, where there is a network.
    pub resolver: Option<Ipv4Addr>,
}

/// Finds or makes the folder, beneath `shared`.
pub fn folder(shared: &Path, guest: Guest<'_>) -> io::Result<Etc> {
    // One that is found may be forgotten by another start before it is held.
    for _race in 0..8 {
        let path = find_or_make(shared, guest)?;
        if let Some(hold) = hold(&path)? {
            return Ok(Etc { path, hold });
        }
    }
    Err(io::Error::other("it is removed again and again"))
}

/// `None`: it is being removed.
fn hold(path: &Path) -> io::Result<Option<fs::File>> {
    let absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let folder = match fs::File::open(path) {
        Err(error) if absent(&error) => return Ok(None),
        other => other?,
    };
    if folder.try_lock_shared().is_err() {
        return Ok(None);
    }
    // Whoever removes one takes its name away first.
    match fs::metadata(path) {
        Err(error) if absent(&error) => Ok(None),
        other => Ok((other?.ino() == folder.metadata()?.ino()).then_some(folder)),
    }
}

fn find_or_make(shared: &Path, guest: Guest<'_>) -> io::Result<PathBuf> {
    let key = fingerprint(guest);
    let finished = shared.join(format!("etc-{key:016x}"));
    if finished.is_dir() {
        return Ok(finished);
    }
    let building = shared.join(format!("etc-{key:016x}.{}", std::process::id()));
    let _ = fs::remove_dir_all(&building);
    make(&building, guest).and_then(|()| publish(&building, &finished)).inspect_err(|_| {
        let _ = fs::remove_dir_all(&building);
    })?;
    forget_others(shared, &finished);
    Ok(finished)
}

/// Another start may have been first; its copy is the same.
fn publish(building: &Path, finished: &Path) -> io::Result<()> {
    match fs::rename(building, finished) {
        Err(_) if finished.is_dir() => fs::remove_dir_all(building),
        other => other,
    }
}

/// Older copies go, but not those that a sandbox still shows.
fn forget_others(shared: &Path, finished: &Path) {
    let hour_ago = |meta: &fs::Metadata| {
        meta.modified().ok().and_then(|at| at.elapsed().ok()).is_some_and(|age| age.as_secs() > 3600)
    };
    for entry in fs::read_dir(shared).into_iter().flatten().flatten() {
        let old = entry.path() != finished && entry.file_name().as_encoded_bytes().starts_with(b"etc-");
        if old && entry.metadata().is_ok_and(|meta| hour_ago(&meta)) {
            let _ = forget(&entry.path());
        }
    }
}

fn forget(path: &Path) -> io::Result<()> {
    let folder = fs::File::open(path)?;
    if folder.try_lock().is_err() {
        return Ok(());
    }
    let aside = path.with_extension(format!("gone-{}", std::process::id()));
    fs::rename(path, &aside)?;
    fs::remove_dir_all(aside)
}

fn fingerprint(guest: Guest<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (FORMAT, guest).hash(&mut hasher);
    for name in WATCHED {
        let seen = fs::metadata(Path::new("/etc").join(name)).ok();
        seen.map(|meta| (meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec())).hash(&mut hasher);
    }
    hasher.finish()
}

fn make(at: &Path, guest: Guest<'_>) -> io::Result<()> {
    make_dir(at)?;
    if guest.system == System::Image {
        let mut own = own_files(guest).into_iter().filter(|(name, _)| OVER_AN_IMAGE.contains(name));
        return own.try_for_each(|(name, content)| put(&at.join(name), content.as_bytes()));
    }
    let mut left = ENTRY_LIMIT;
    for name in COPIED {
        let (from, to) = (Path::new("/etc").join(name), at.join(name));
        if fs::symlink_metadata(&from).is_err() {
            continue;
        }
        if let Some(parent) = Path::new(name).parent().filter(|parent| !parent.as_os_str().is_empty()) {
            for part in parent.ancestors().collect::<Vec<_>>().iter().rev() {
                make_dir(&at.join(part))?;
            }
        }
        // The top of each entry is followed, so that `/etc/localtime` is the file it stands for.
        copy(&from, &to, Follow::Once, &mut left)?;
    }
    for (name, content) in own_files(guest) {
        put(&at.join(name), content.as_bytes())?;
    }
    std::os::unix::fs::symlink("/proc/self/mounts", at.join("mtab"))
}

/// Files that say who is here.
fn own_files(guest: Guest<'_>) -> [(&'static str, String); 7] {
    let Guest { system: _, uid, home, resolver } = guest;
    let home = home.display();
    let resolver = match resolver {
        Some(address) => format!("nameserver {address}\n"),
        None => "# There is no network here.\n".to_owned(),
    };
    let user = if uid == 0 { String::new() } else { format!("user:x:{uid}:{uid}:user:{home}:/bin/bash\n") };
    let group = if uid == 0 { String::new() } else { format!("user:x:{uid}:\n") };
    let root_home = if uid == 0 { home.to_string() } else { "/root".to_owned() };
    [
        ("passwd", format!("root:x:0:0:root:{root_home}:/bin/bash\n{user}nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n")),
        ("group", format!("root:x:0:\n{group}tty:x:5:\nnogroup:x:65534:\n")),
        ("hosts", "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n".to_owned()),
        ("hostname", "sandbox\n".to_owned()),
        ("resolv.conf", resolver),
        ("nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n".to_owned()),
        ("machine-id", "00000000000000000000000000000001\n".to_owned()),
    ]
}

/// Whether a link is copied as what it stands for or as a link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Follow {
    Once,
    Never,
}

fn copy(from: &Path, to: &Path, follow: Follow, left: &mut u32) -> io::Result<()> {
    let found = if follow == Follow::Once { fs::metadata(from) } else { fs::symlink_metadata(from) };
    // Something that vanished, or a link to nowhere, is not copied.
    let Ok(meta) = found else { return Ok(()) };
    *left =
        left.checked_sub(1).ok_or_else(|| io::Error::other("the system configuration has too many files"))?;
    let kind = meta.file_type();
    if kind.is_symlink() {
        return std::os::unix::fs::symlink(fs::read_link(from)?, to);
    }
    let open_to_all = meta.mode() & 0o004 != 0;
    if kind.is_dir() && open_to_all {
        make_dir(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            copy(&from.join(&name), &to.join(&name), Follow::Never, left)?;
        }
    } else if kind.is_file() && open_to_all && meta.len() <= FILE_LIMIT_BYTES {
        let mut content = Vec::new();
        fs::File::open(from)?.take(FILE_LIMIT_BYTES).read_to_end(&mut content)?;
        put(to, &content)?;
    }
    Ok(())
}

fn put(at: &Path, content: &[u8]) -> io::Result<()> {
    fs::write(at, content)?;
    fs::set_permissions(at, Permissions::from_mode(0o644))
}

fn make_dir(at: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(at) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => fs::set_permissions(at, Permissions::from_mode(0o755)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest(home: &str) -> Guest<'_> {
        Guest { system: System::Host, uid: 1000, home: Path::new(home), resolver: None }
    }

    #[test]
    fn it_is_made_once_and_holds_no_secret() {
        let shared = tempfile::tempdir().unwrap();
        let first = folder(shared.path(), guest("/home/someone")).unwrap().path;
        let again = folder(shared.path(), guest("/home/someone")).unwrap().path;
        assert_eq!(first, again);
        let passwd = fs::read_to_string(first.join("passwd")).unwrap();
        assert!(passwd.contains("user:x:1000:1000:user:/home/someone:/bin/bash"));
        for secret in ["shadow", "gshadow", "ssl/private", "sudoers", "ssh", "machine-id.host"] {
            assert!(!first.join(secret).exists(), "{secret}");
        }
        assert!(!fs::read_to_string(first.join("hosts")).unwrap().is_empty());
    }

    #[test]
    fn another_home_is_another_etc() {
        let shared = tempfile::tempdir().unwrap();
        let one = folder(shared.path(), guest("/home/one")).unwrap().path;
        let two = folder(shared.path(), guest("/home/two")).unwrap().path;
        assert_ne!(one, two);
    }

    #[test]
    fn a_network_is_another_etc_with_a_resolver() {
        let shared = tempfile::tempdir().unwrap();
        let with = Guest { resolver: Some(Ipv4Addr::new(198, 18, 0, 1)), ..guest("/home/one") };
        let read = |guest| fs::read_to_string(folder(shared.path(), guest).unwrap().path.join("resolv.conf"));
        assert_eq!(read(with).unwrap(), "nameserver 198.18.0.1\n");
        assert!(!read(guest("/home/one")).unwrap().contains("nameserver"));
    }

    #[test]
    fn one_that_is_shown_outlives_its_hour_and_then_goes() {
        let shared = tempfile::tempdir().unwrap();
        let old = folder(shared.path(), guest("/home/one")).unwrap();
        let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(7200);
        old.hold.set_modified(long_ago).unwrap();
        folder(shared.path(), guest("/home/two")).unwrap();
        assert!(old.path.join("passwd").exists());
        let path = old.path.clone();
        drop(old);
        folder(shared.path(), guest("/home/three")).unwrap();
        assert!(!path.exists());
    }
}
