//! What a run with a network needs before it is launched: the values of its secrets, placeholders for them, an
//! authority of its own where TLS is opened, and the files and variables that make its programs believe it.

use super::renew::Renewals;
use super::secrets::{self, NoSecret};
use crate::run::{RunRequest, unix_millis};
use fumehood_backend::MadeFile;
use fumehood_egress::Config;
use fumehood_egress::tls::{Ca, Servers, trust};
use fumehood_model::egress::Rule;
use fumehood_model::ending::Ending;
use fumehood_model::envelope::Root;
use fumehood_model::id::TaskId;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::SystemTime;

/// Where the sandbox has its own files.
const BUNDLE: &str = "/run/fumehood/ca-bundle.crt";
const AUTHORITY: &str = "/run/fumehood/ca.crt";
const JAVA_STORE: &str = "/run/fumehood/cacerts";

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

/// Prepares the network of a run, if it has one, and adds to the command's variables what belongs to it.
pub(crate) fn prepare(request: &mut RunRequest, id: &TaskId) -> Result<Option<Prepared>, Ending> {
    let Some(egress) = request.envelope.network().egress.clone() else { return Ok(None) };
    let vault = secrets::read_all(request.envelope.secrets(), &egress.rules).map_err(unread)?;
    for (name, placeholder) in vault.placeholders() {
        let name = OsString::from(name.as_str());
        request.exec.env.retain(|(known, _)| *known != name);
        request.exec.env.push((name, placeholder.as_str().into()));
    }
    let mut files = Vec::new();
    let ca = if egress.rules.iter().any(Rule::needs_inside) {
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
    let servers = Servers::read(&egress.authorities).map_err(|fault| Ending::NotStarted {
        step: "read the authorities of `--upstream-ca`".to_owned(),
        why: fault.to_string(),
        remedy: fault.remedy().to_owned(),
    })?;
    let renewals = Renewals::of(request.envelope.secrets(), &vault);
    Ok(Some(Prepared { files, config: Config::new(egress, ca, vault, servers), renewals }))
}

/// The files that make programs believe `ca` in addition to what they believe, and their variables.
fn believe(ca: &Ca, request: &mut RunRequest) -> Vec<MadeFile> {
    let root = match &request.envelope.filesystem().root {
        Root::HostSystem => PathBuf::from("/"),
        Root::Directory(image) => image.clone(),
    };
    let there = |path: &&str| root.join(path.trim_start_matches('/')).is_file();
    let read = |path: &str| std::fs::read(root.join(path.trim_start_matches('/'))).unwrap_or_default();
    let bundles: Vec<&str> = trust::BUNDLES.into_iter().filter(there).collect();
    let system = bundles.first().map(|path| read(path)).unwrap_or_default();
    let file = |at: &str, content: Vec<u8>, covers: &[&str]| MadeFile {
        at: PathBuf::from(at),
        content: content.into(),
        covers: covers.iter().map(PathBuf::from).collect(),
    };
    let mut files = vec![
        file(BUNDLE, trust::extend_bundle(&system, ca.pem()), &bundles),
        file(AUTHORITY, ca.pem().as_bytes().to_vec(), &[]),
    ];
    let stores: Vec<&str> = trust::JAVA_STORES.into_iter().filter(there).collect();
    if let Some(first) = stores.first() {
        let (trust::JavaStore::Extended(store) | trust::JavaStore::FromBundle(store, _)) =
            trust::extend_java(&read(first), &system, ca.der(), unix_millis());
        files.push(file(JAVA_STORE, store, &stores));
    }
    let env = &mut request.exec.env;
    let variables = trust::variables(BUNDLE, AUTHORITY, |name| env.iter().any(|(known, _)| known == name));
    env.extend(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
    files
}

fn unread(NoSecret { name, why, remedy }: NoSecret) -> Ending {
    Ending::NotStarted { step: format!("read the secret `{name}`"), why, remedy }
}
