//! What came of a run, in a form in which two can be compared.

use crate::files::changes::{ChangeKind, ChangeList};
use crate::files::layer::Layer;
use crate::files::text::escape_path;
use fumehood_model::ending::Ending;
use fumehood_model::event::Event;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// A file's length and digest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub bytes: u64,
    pub sha256: String,
}

/// A path of the workspace that a run changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangedPath {
    /// `added`, `modified`, `mode_changed`, `type_changed` or `deleted`.
    pub change: String,
    /// Of a plain file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub ending: Ending,
    pub stdout: Part,
    pub stderr: Part,
    /// What it changed in its copy of a workspace, by path.
    pub changes: BTreeMap<String, ChangedPath>,
    /// What it left in `/out`, by path.
    pub collected: BTreeMap<String, Part>,
}

// === impl Outcome ===

impl Outcome {
    /// Of the streams that were kept in `folder`, the layer, and what was written down of files that came out.
    pub(crate) fn of(
        folder: &Path,
        ending: Ending,
        layer: Option<&Layer>,
        events: &[Event],
    ) -> io::Result<Self> {
        let collected = events.iter().filter_map(|event| {
            let Event::FileOut { path, bytes, sha256 } = event else { return None };
            Some((path.clone(), Part { bytes: *bytes, sha256: sha256.clone() }))
        });
        Ok(Self {
            ending,
            stdout: part(&folder.join("stdout"))?,
            stderr: part(&folder.join("stderr"))?,
            changes: layer.map(changes).unwrap_or_default(),
            collected: collected.collect(),
        })
    }
}

/// What differs between two outcomes, a line each; none where they are the same.
pub fn difference(then: &Outcome, now: &Outcome) -> Vec<String> {
    let mut lines = Vec::new();
    let json = |ending: &Ending| serde_json::to_string(ending).unwrap_or_default();
    if then.ending != now.ending {
        lines.push(format!("ending: {} then, {} now", json(&then.ending), json(&now.ending)));
    }
    for (name, then, now) in [("stdout", &then.stdout, &now.stdout), ("stderr", &then.stderr, &now.stderr)] {
        if then != now {
            lines.push(format!("{name}: {} bytes then, {} bytes now", then.bytes, now.bytes));
        }
    }
    compare("workspace", &then.changes, &now.changes, &mut lines);
    compare("/out", &then.collected, &now.collected, &mut lines);
    lines
}

fn compare<T: PartialEq>(
    what: &str,
    then: &BTreeMap<String, T>,
    now: &BTreeMap<String, T>,
    lines: &mut Vec<String>,
) {
    for (path, value) in then {
        match now.get(path) {
            None => lines.push(format!("{what}: `{path}` was changed then, and not now")),
            Some(other) if other != value => lines.push(format!("{what}: `{path}` came out different")),
            Some(_) => {}
        }
    }
    let only_now = now.keys().filter(|path| !then.contains_key(*path));
    lines.extend(only_now.map(|path| format!("{what}: `{path}` was changed now, and not then")));
}

/// The digest of a file.
pub(crate) fn part(path: &Path) -> io::Result<Part> {
    digest(File::open(path)?)
}

fn digest(mut from: impl Read) -> io::Result<Part> {
    let (mut digest, mut bytes) = (Sha256::new(), 0_u64);
    let mut chunk = vec![0; 64 << 10];
    loop {
        let count = from.read(&mut chunk)?;
        if count == 0 {
            break;
        }
        digest.update(chunk.get(..count).unwrap_or_default());
        bytes = bytes.saturating_add(count as u64);
    }
    let sha256 = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Part { bytes, sha256 })
}

fn changes(layer: &Layer) -> BTreeMap<String, ChangedPath> {
    let Ok(ChangeList { changes, .. }) = layer.changes() else { return BTreeMap::new() };
    let Ok(upper) = layer.upper() else { return BTreeMap::new() };
    let one = |change: &crate::files::changes::Change| {
        let word = match change.kind {
            ChangeKind::Added => "added",
            ChangeKind::Modified => "modified",
            ChangeKind::ModeChanged => "mode_changed",
            ChangeKind::TypeChanged => "type_changed",
            ChangeKind::Deleted => "deleted",
        };
        // What is no plain file, or can not be read, is compared by its kind alone.
        let content = upper.read(&change.path).ok().and_then(|(file, _)| digest(file).ok());
        let sha256 = content.map(|part| part.sha256);
        (escape_path(&change.path), ChangedPath { change: word.to_owned(), sha256 })
    };
    changes.iter().map(one).collect()
}
