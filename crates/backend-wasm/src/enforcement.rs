//! What holds each clause at this level: the engine, and behind it what holds it at the container level.

use fumehood_model::enforcement::{Clause, Enforcement, Mechanism, Strength, Unenforceable};
use fumehood_model::envelope::Envelope;
use std::path::PathBuf;

/// The engine's own part comes first in each clause; the walls around it are the kernel's and follow.
pub(crate) fn around(walls: &Enforcement, folders: &[PathBuf], hash: Option<&str>) -> Enforcement {
    let clauses = walls.0.iter().map(|(clause, mechanisms)| {
        let mut all: Vec<Mechanism> = engine(*clause, folders, hash).into_iter().collect();
        all.extend(mechanisms.iter().cloned());
        (*clause, all)
    });
    Enforcement(clauses.collect())
}

fn engine(clause: Clause, folders: &[PathBuf], hash: Option<&str>) -> Option<Mechanism> {
    let detail = match clause {
        Clause::Filesystem => {
            let list: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
            format!("the module opens files beneath {} only", list.join(", "))
        }
        Clause::Network => "the module has no sockets".to_owned(),
        Clause::Privilege => {
            let named = hash.map(|hash| format!(" (sha256 {hash})")).unwrap_or_default();
            format!(
                "the module{named} makes no system calls: it has functions of WASI preview 1, and starts no process"
            )
        }
        Clause::Resources => "each memory of the module is capped by itself too".to_owned(),
        Clause::Credentials | Clause::Cleanup => return None,
    };
    Some(Mechanism { name: "wasm-engine", detail, strength: Strength::Kernel })
}

/// Refuses what a module can not be given.
pub(crate) fn judge(envelope: &Envelope) -> Result<(), Unenforceable> {
    let network = envelope.network();
    if network.egress.is_none() && network.publish.is_empty() {
        return Ok(());
    }
    Err(Unenforceable {
        clause: Clause::Network,
        why: "a module has no sockets, so no rule and no published port could ever be used".to_owned(),
        remedy: "leave the rules out, or take `--level container`".to_owned(),
    })
}
