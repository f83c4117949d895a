//! Tapes: what a run is run again from, with nothing of the network.
//!
//! ```text
//! tapes/ID/tape.json        what ran, in what, and what came of it     tapes/ID/stdin           its input
//! tapes/ID/stdout, stderr   its output                                 tapes/ID/inputs/N        copies of `--in`
//! tapes/ID/timing.jsonl     when how much of each came                 tapes/ID/exchanges.jsonl requests and answers
//! ```
//!
//! A tape is made where it was asked for, and vouched for by the record: its last line but the ending holds the digest of
//! `tape.json`, which holds those of the other files. Values of secrets are never on it; values of variables, input and
//! output are, so it is its owner's alone, as the record is.
//!
//! A run that is run again has a tape too, for as long as it is compared.

mod outcome;
mod tee;

pub use outcome::{ChangedPath, Outcome, Part, difference};
pub(crate) use tee::Tee;

use crate::run::RunRequest;
use fumehood_audit::Digest;
use fumehood_egress::tape::{self, Mode};
use fumehood_model::id::TaskId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// The version of what is on a tape.
const VERSION: u32 = 1;
/// Far above what a description takes.
const META_LIMIT_BYTES: u64 = 64 << 20;
/// Files that are copied in are kept up to this size together.
const INPUTS_LIMIT_BYTES: u64 = 256 << 20;
/// The description of a tape.
pub const META: &str = "tape.json";
/// When how much of each stream came.
pub const TIMING: &str = "timing.jsonl";
const EXCHANGES: &str = "exchanges.jsonl";
const INPUTS: &str = "inputs";
/// The files whose digests stand in the description.
const PARTS: [&str; 5] = ["stdin", "stdout", "stderr", TIMING, EXCHANGES];

/// What is kept of a run, or played in it.
#[derive(Clone, Debug, Default)]
pub enum Tape {
    #[default]
    None,
    /// Everything that it needs to be run again; with its envelope, as it was written.
    Keep { spec: serde_json::Value },
    /// The answers of this tape, and its input.
    Play(Played),
}

/// A tape that is played.
#[derive(Clone, Debug)]
pub struct Played {
    /// Its folder.
    pub folder: PathBuf,
    /// Of whose run it is.
    pub task: TaskId,
    /// Of its description.
    pub sha256: String,
}

/// What ran, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Described {
    version: u32,
    pub task: TaskId,
    pub spec: serde_json::Value,
    pub level: String,
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub cwd: String,
    pub home_at: String,
    pub toolchains: Vec<String>,
    /// Where the copies of `inputs/` go.
    pub inputs: Vec<String>,
    pub outcome: Outcome,
    pub parts: BTreeMap<String, Part>,
}

/// A tape that is being made.
#[derive(Debug)]
pub(crate) struct Taping {
    folder: PathBuf,
    played: Option<Played>,
    spec: serde_json::Value,
    inputs: Vec<String>,
}

/// Why a tape can not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum TapeError {
    #[error("{what} the tape `{}`", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("keep what is no text: {0}")]
    NotText(&'static str),
    #[error("keep inputs of more than {INPUTS_LIMIT_BYTES} bytes")]
    Inputs,
    #[error("read the tape: `{name}` is not as it was kept")]
    Changed { name: String },
}

/// Where the tapes of a state folder are.
pub fn folder(state: &crate::state::State) -> PathBuf {
    state.root().join("tapes")
}

/// Where the tape of a run that is run again is, until it was compared.
pub fn replayed(state: &crate::state::State, task: &TaskId) -> PathBuf {
    folder(state).join(format!(".replay-{task}"))
}

/// Reads a tape's description, whose digest is known, and sees that every part of it is as it was kept.
pub fn open(folder: &Path, sha256: &str) -> Result<Described, TapeError> {
    let path = folder.join(META);
    let changed = |name: &str| TapeError::Changed { name: name.to_owned() };
    let words = read(&path, META_LIMIT_BYTES)?;
    if Digest::of(&words).to_string() != sha256 {
        return Err(changed(META));
    }
    let described: Described = serde_json::from_slice(&words).map_err(|_| changed(META))?;
    if described.version != VERSION {
        return Err(changed("version"));
    }
    let names = PARTS.iter().map(|name| (*name).to_owned());
    let inputs = (0..described.inputs.len()).map(|number| format!("{INPUTS}/{number}"));
    for name in names.chain(inputs) {
        let found = outcome::part(&folder.join(&name)).map_err(io_failed("read", folder))?;
        if described.parts.get(&name) != Some(&found) {
            return Err(changed(&name));
        }
    }
    Ok(described)
}

/// Where a copy of an input is.
pub fn input(folder: &Path, number: usize) -> PathBuf {
    folder.join(INPUTS).join(number.to_string())
}

fn read(path: &Path, limit: u64) -> Result<Vec<u8>, TapeError> {
    let mut words = Vec::new();
    let file = OpenOptions::new().read(true).custom_flags(libc_flags()).open(path);
    let read = file.and_then(|file| file.take(limit).read_to_end(&mut words));
    read.map_err(io_failed("read", path))?;
    Ok(words)
}

/// `O_NOFOLLOW | O_NONBLOCK` on this target.
const fn libc_flags() -> i32 {
    0o400_000 | 0o4000
}

fn io_failed(what: &'static str, path: &Path) -> impl Fn(io::Error) -> TapeError {
    let path = path.to_owned();
    move |source| TapeError::Io { what, path: path.clone(), source }
}

// === impl Taping ===

impl Taping {
    /// Makes the tape's folder, and copies what goes in.
    pub(crate) fn begin(
        state: &crate::state::State,
        id: &TaskId,
        request: &RunRequest,
    ) -> Result<Option<Self>, TapeError> {
        let (folder, played, spec) = match &request.tape {
            Tape::None => return Ok(None),
            Tape::Keep { spec } => (folder(state).join(id.as_str()), None, spec.clone()),
            Tape::Play(played) => (replayed(state, id), Some(played.clone()), serde_json::Value::Null),
        };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(io_failed("make", &folder))?;
        let mut taping = Self { folder, played, spec, inputs: Vec::new() };
        let begun = taping.copy_inputs(request).and_then(|()| {
            PARTS
                .iter()
                .try_for_each(|name| taping.create(name).map(drop))
                .map_err(io_failed("make", &taping.folder))
        });
        if let Err(error) = begun {
            taping.forget();
            return Err(error);
        }
        Ok(Some(taping))
    }

    /// Nothing is left of it.
    pub(crate) fn forget(&self) {
        let _ = fs::remove_dir_all(&self.folder);
    }

    fn copy_inputs(&mut self, request: &RunRequest) -> Result<(), TapeError> {
        if self.played.is_some() {
            return Ok(());
        }
        let failed = io_failed("fill", &self.folder);
        let folder = self.folder.join(INPUTS);
        DirBuilder::new().mode(0o700).create(&folder).map_err(&failed)?;
        let mut left = INPUTS_LIMIT_BYTES;
        for (number, input) in request.envelope.filesystem().inputs.iter().enumerate() {
            let at = input.at.to_str().ok_or(TapeError::NotText("the place of a file that is copied in"))?;
            let mut to = new(&folder.join(number.to_string())).map_err(&failed)?;
            let from = File::open(&input.source).map_err(&failed)?;
            let bytes = io::copy(&mut from.take(left + 1), &mut to).map_err(&failed)?;
            left = left.checked_sub(bytes).ok_or(TapeError::Inputs)?;
            self.inputs.push(at.to_owned());
        }
        Ok(())
    }

    fn create(&self, name: &str) -> io::Result<File> {
        new(&self.folder.join(name))
    }

    fn append(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().append(true).open(self.folder.join(name))
    }

    /// Of whose run it is another, if it is one.
    pub(crate) const fn played(&self) -> Option<&Played> {
        self.played.as_ref()
    }

    /// What the gate does with exchanges.
    pub(crate) fn mode(&self) -> Result<Mode, TapeError> {
        let Some(played) = &self.played else {
            return self.append(EXCHANGES).map(Mode::Keep).map_err(io_failed("write", &self.folder));
        };
        let path = played.folder.join(EXCHANGES);
        let file = File::open(&path).map_err(io_failed("read", &path))?;
        let exchanges = tape::read(file).map_err(|_| TapeError::Changed { name: EXCHANGES.to_owned() })?;
        Ok(Mode::Play(exchanges))
    }

    /// The input that is given again.
    pub(crate) fn input(&self) -> Option<io::Result<File>> {
        self.played.as_ref().map(|played| File::open(played.folder.join("stdin")))
    }

    /// What a stream is copied to: `stdin`, `stdout` or `stderr`.
    pub(crate) fn tee(&self, name: &'static str) -> io::Result<Tee> {
        Ok(Tee::new(name, self.append(name)?, self.append(TIMING)?))
    }

    /// What came of it.
    pub(crate) fn outcome(
        &self,
        ending: fumehood_model::ending::Ending,
        layer: Option<&crate::files::layer::Layer>,
        events: &[fumehood_model::event::Event],
    ) -> Result<Outcome, TapeError> {
        Outcome::of(&self.folder, ending, layer, events).map_err(io_failed("write", &self.folder))
    }

    /// Writes down what ran and what came of it, and answers with the digest of that.
    pub(crate) fn finish(
        &self,
        id: &TaskId,
        request: &RunRequest,
        outcome: Outcome,
    ) -> Result<Digest, TapeError> {
        let text =
            |text: &std::ffi::OsStr, what| text.to_str().map(str::to_owned).ok_or(TapeError::NotText(what));
        let failed = io_failed("write", &self.folder);
        let exec = &request.exec;
        let argv: Result<_, _> = exec.argv.iter().map(|word| text(word, "an argument")).collect();
        let env: Result<_, _> = exec
            .env
            .iter()
            .map(|(name, value)| Ok((text(name, "a variable")?, text(value, "a variable")?)))
            .collect();
        let mut parts = BTreeMap::new();
        let inputs = (0..self.inputs.len()).map(|number| format!("{INPUTS}/{number}"));
        for name in PARTS.iter().map(|name| (*name).to_owned()).chain(inputs) {
            let part = outcome::part(&self.folder.join(&name)).map_err(&failed)?;
            parts.insert(name, part);
        }
        let described = Described {
            version: VERSION,
            task: id.clone(),
            spec: self.spec.clone(),
            level: request.choice.level.name().to_owned(),
            argv: argv?,
            env: env?,
            cwd: text(exec.cwd.as_os_str(), "the folder to start in")?,
            home_at: text(request.home_at.as_os_str(), "HOME")?,
            toolchains: request
                .toolchains
                .iter()
                .map(|root| text(root.as_os_str(), "a toolchain's folder"))
                .collect::<Result<_, _>>()?,
            inputs: self.inputs.clone(),
            outcome,
            parts,
        };
        let words = serde_json::to_vec_pretty(&described).map_err(|error| failed(error.into()))?;
        let mut file = new(&self.folder.join(META)).map_err(&failed)?;
        file.write_all(&words).and_then(|()| file.sync_data()).map_err(&failed)?;
        Ok(Digest::of(&words))
    }
}

fn new(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}
