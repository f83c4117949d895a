//! What a run with a network needs before it is launched: the values of its secrets, placeholders for them, an
//! authority of its own where TLS is opened, and the files and variables that make its programs believe it.

use super::secrets::{self, NoSecret};
use crate::run::RunRequest;
use fumehood_backend::MadeFile;
use fumehood_egress::Config;
use fumehood_model::egress::Table;
use fumehood_model::ending::Ending;
use fumehood_model::id::TaskId;
use std::ffi::OsString;

/// A network that is ready to be launched.
#[derive(Debug)]
pub(crate) struct Prepared {
    files: Vec<MadeFile>,
    config: Config,
}

// === impl Prepared ===

impl Prepared {
    pub(crate) fn parts(self) -> (Vec<MadeFile>, Config) {
        (self.files, self.config)
    }
}

/// Prepares the network of a run, if it has one, and adds to the command's variables what belongs to it.
pub(crate) fn prepare(request: &mut RunRequest, id: &TaskId) -> Result<Option<Prepared>, Ending> {
    let Some(egress) = request.envelope.network().egress.clone() else { return Ok(None) };
    let vault = secrets::read_all(request.envelope.secrets(), &egress.rules).map_err(unread)?;
    let placeholders: Vec<(OsString, OsString)> = vault
        .placeholders()
        .map(|(name, placeholder)| (name.as_str().into(), placeholder.as_str().into()))
        .collect();
    for (name, value) in placeholders {
        request.exec.env.retain(|(known, _)| *known != name);
        request.exec.env.push((name, value));
    }
    let opens = egress.rules.iter().any(fumehood_model::egress::Rule::needs_inside);
    let _ = (opens, id);
    let config = Config { table: Table::new(egress), vault };
    Ok(Some(Prepared { files: Vec::new(), config }))
}

fn unread(NoSecret { name, why, remedy }: NoSecret) -> Ending {
    Ending::NotStarted { step: format!("read the secret `{name}`"), why, remedy }
}
