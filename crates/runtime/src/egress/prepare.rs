//! What a run with a network needs before it is launched: the values of its secrets, placeholders for them, an
//! authority of its own where TLS is opened, and the files and variables that make its programs believe it.

use super::renew::Renewals;
use super::secrets::{self, NoSecret};
use crate::causes::chain;
use crate::run::{RunRequest, unix_millis};
use crate::tape::Taping;
use fumehood_backend::MadeFile;
use fumehood_egress::Config;
use fumehood_egress::tls::{Ca, Servers, trust};
use fumehood_keep::literals::Literals;
use fumehood_model::egress::Rule;
use fumehood_model::ending::Ending;
use fumehood_model::envelope::SecretSource;
use fumehood_model::id::TaskId;
use fumehood_sys::dirfd::DirHandle;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// Where the sandbox has its own files.
const BUNDLE: &str = "/run/fumehood/ca-bundle.crt";
const AUTHORITY: &str = "/run/fumehood/ca.crt";
const JAVA_STORE: &str = "/run/fumehood/cacerts";

/// Several times what the largest lists of authorities have.
const MOST_STORE_BYTES: u64 = 8 << 20;

/// A network that is ready to be launched.
#[derive(Debug)]
pub(crate) struct Prepared {
    files: Vec<MadeFile>,
    config: Config,
    renewals: Renewals,
}

// === impl Prepared ===

impl Prepared {
    pub(crate) fn parts(self) -> (Vec<MadeFile>, (Config, Renewals)) {
        (self.files, (self.config, self.renewals))
    }
}

/// What a run's network is beside its clause.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Beside<'a> {
    /// The tape that it is kept on, or played from.
    pub(crate) taping: Option<&'a Taping>,
    /// Values that were handed over. A sandbox that lives on has them, be there none: its rules may change, so that
    /// TLS can be opened in any case.
    pub(crate) living: Option<&'a Literals>,
}

/// Prepares the network of a run, if it has one, and adds to the command's variables what belongs to it.
pub(crate) fn prepare(
    request: &mut RunRequest,
    id: &TaskId,
    Beside { taping, living }: Beside<'_>,
) -> Result<Option<Prepared>, Ending> {
    let Some(egress) = request.envelope.network().egress.clone() else { return Ok(None) };
    let tape = taping.map(Taping::mode).transpose().map_err(|error| Ending::NotStarted {
        step: "open the tape".to_owned(),
        why: chain(&error),
        remedy: "look at the state folder; `fumehood audit verify` says what was changed".to_owned(),
    })?;
    let tape = tape.unwrap_or_default();
    let secrets = request.envelope.secrets();
    // What is played is answered as it was kept: values are neither asked for nor sent.
    let vault = if tape.plays() {
        secrets::imagine_all(secrets, &egress.rules)
    } else {
        secrets::read_all(secrets, &egress.rules, living)
    };
    let vault = vault.map_err(unread)?;
    let is_given =
        |name: &str| secrets.iter().any(|secret| secret.name == name && secret.source == SecretSource::Given);
    // What was given is put in unasked: no program inside has to know of it.
    let placeholders: Vec<_> = vault.placeholders().filter(|(name, _)| !is_given(name.as_str())).collect();
    for (name, placeholder) in placeholders {
        let name = OsString::from(name.as_str());
        request.exec.env.retain(|(known, _)| *known != name);
        request.exec.env.push((name, placeholder.as_str().into()));
    }
    let mut files = Vec::new();
    let ca = if tape.sees_all() || living.is_some() || egress.rules.iter().any(Rule::needs_inside) {
        let ca = Ca::make(id.as_str(), SystemTime::now()).map_err(|error| Ending::NotStarted {
            step: "make the sandbox's certificate authority".to_owned(),
            why: error.to_string(),
            remedy: "`fumehood doctor` looks at what this host can hold".to_owned(),
        })?;
        files = believe(&ca, request);
        Some(ca)
    } else {
        None
    };
    let authorities = if tape.plays() { &[][..] } else { &egress.authorities };
    let servers = Servers::read(authorities).map_err(|fault| Ending::NotStarted {
        step: "read the authorities of `--upstream-ca`".to_owned(),
        why: fault.to_string(),
        remedy: fault.remedy().to_owned(),
    })?;
    let renewals =
        if tape.plays() { Renewals::default() } else { Renewals::of(request.envelope.secrets(), &vault) };
    let config = Config { tape, ..Config::new(egress, ca, vault, servers) };
    Ok(Some(Prepared { files, config, renewals }))
}

/// The files that make programs believe `ca` in addition to what they believe, and their variables.
fn believe(ca: &Ca, request: &mut RunRequest) -> Vec<MadeFile> {
    let root = request.envelope.filesystem().root.folder().unwrap_or(Path::new("/")).to_owned();
    let file = |at: &str, after: Option<Arc<OwnedFd>>, content: Vec<u8>, covers: Vec<PathBuf>| MadeFile {
        at: PathBuf::from(at),
        after,
        content: Arc::new(content),
        covers,
    };
    let Found { places: bundles, first: system } = found(&root, &trust::BUNDLES);
    let addition = trust::addition(system.as_ref().and_then(Whole::last), ca.pem());
    let Found { places: stores, first } = found(&root, &trust::JAVA_STORES);
    let mut files = vec![file(AUTHORITY, None, ca.pem().as_bytes().to_vec(), Vec::new())];
    if !stores.is_empty() {
        let store = first.map(|store| store.read(trust::java_room(ca.der()))).unwrap_or_default();
        let bundle = || system.as_ref().map(|system| system.read(0)).unwrap_or_default();
        let (trust::JavaStore::Extended(store) | trust::JavaStore::FromBundle(store, _)) =
            trust::extend_java(store, bundle, ca.der(), unix_millis());
        files.push(file(JAVA_STORE, None, store, stores));
    }
    // The bundle is long, and nobody here needs to see it: the kernel copies it.
    files.push(file(BUNDLE, system.map(|Whole { file, .. }| Arc::new(file.into())), addition, bundles));
    let env = &mut request.exec.env;
    let variables = trust::variables(BUNDLE, AUTHORITY, |name| env.iter().any(|(known, _)| known == name));
    env.extend(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
    files
}

/// Which of some files a root has.
#[derive(Debug, Default)]
struct Found {
    /// Where they stand in the end, each once: many are links to one of the others.
    places: Vec<PathBuf>,
    first: Option<Whole>,
}

/// An open file of no more than [`MOST_STORE_BYTES`].
#[derive(Debug)]
struct Whole {
    file: File,
    bytes: u64,
}

/// Looks for files of the sandbox's root. An image is somebody's: its links must not lead to files of the host,
/// whose content would then be shown inside.
fn found(root: &Path, paths: &[&str]) -> Found {
    let mut found = Found::default();
    let Ok(root) = DirHandle::open(root) else { return found };
    for path in paths {
        let Ok((file, place)) = root.read_as_root(Path::new(path.trim_start_matches('/'))) else { continue };
        let place = Path::new("/").join(place);
        if found.places.contains(&place) {
            continue;
        }
        let Some(whole) = Whole::of(OwnedFd::from(file).into()) else { continue };
        found.first.get_or_insert(whole);
        found.places.push(place);
    }
    found
}

// === impl Whole ===

impl Whole {
    fn of(file: File) -> Option<Self> {
        let bytes = file.metadata().ok()?.len();
        (bytes <= MOST_STORE_BYTES).then_some(Self { file, bytes })
    }

    /// The last byte, if there is one.
    fn last(&self) -> Option<u8> {
        let mut last = [0];
        self.file.read_exact_at(&mut last, self.bytes.checked_sub(1)?).ok()?;
        Some(last[0])
    }

    /// What can be read of it, in memory that has `room` for more.
    fn read(&self, room: usize) -> Vec<u8> {
        let bytes = usize::try_from(self.bytes).unwrap_or_default();
        let mut content = Vec::with_capacity(bytes + room);
        match (&self.file).take(self.bytes).read_to_end(&mut content) {
            Ok(_) => content,
            Err(_) => Vec::new(),
        }
    }
}

fn unread(NoSecret { name, why, remedy }: NoSecret) -> Ending {
    Ending::NotStarted { step: format!("read the secret `{name}`"), why, remedy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn an_image_shows_nothing_of_the_host() {
        let (image, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = |path: &str| std::fs::create_dir_all(image.path().join(path)).unwrap();
        std::fs::write(host.path().join("key"), "a key of the host").unwrap();
        folder("etc/ssl/certs");
        folder("etc/pki/tls/certs");
        let link = |to: &Path, at: &str| symlink(to, image.path().join(at)).unwrap();
        link(&host.path().join("key"), "etc/ssl/certs/ca-certificates.crt");
        link(host.path(), "etc/pki/ca-trust");
        let none = found(image.path(), &trust::BUNDLES);
        assert!(none.places.is_empty() && none.first.is_none(), "{none:?}");

        // As some systems have it: links to one bundle, which is covered once.
        std::fs::remove_file(image.path().join("etc/ssl/certs/ca-certificates.crt")).unwrap();
        folder("etc/ca");
        std::fs::write(image.path().join("etc/ca/bundle.pem"), "of the image").unwrap();
        link(Path::new("../../ca/bundle.pem"), "etc/ssl/certs/ca-certificates.crt");
        link(Path::new("certs/ca-certificates.crt"), "etc/ssl/cert.pem");
        link(Path::new("/etc/ca/bundle.pem"), "etc/pki/tls/certs/ca-bundle.crt");
        let one = found(image.path(), &trust::BUNDLES);
        assert_eq!(one.places, [Path::new("/etc/ca/bundle.pem")]);
        let first = one.first.unwrap();
        assert_eq!((first.last(), first.read(8)), (Some(b'e'), b"of the image".to_vec()));
    }
}
