//! Shipping the record: every whole line of it, to a place that who can write the record can not write.
//!
//! The record is the buffer. How far each of its files was shipped is kept beside it, one file a sink; what a sink did
//! not take is sent again, in order. So each line arrives at least once, and where a sink was down for a while nothing is
//! lost. What may not happen before it stands elsewhere is for a mirror (`mirror` of the operator's file).

mod sink;

use crate::refusal::Refusal;
use fumehood_model::id::TaskId;
use fumehood_model::text::shown;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use sink::Sink;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

const STEP: &str = "ship the record";
/// What is sent at once.
const BATCH_BYTES: u64 = 1 << 20;
/// How often the record is looked at, where it is followed.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest time between two attempts at a sink that is down.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The folder of what was shipped, in the state folder.
const FOLDER: &str = "shipped";

/// How far each file of the record was shipped to one sink.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Cursor {
    sink: String,
    files: BTreeMap<String, u64>,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shipped {
    pub(crate) lines: u64,
    pub(crate) bytes: u64,
}

/// Ships what has not been shipped to `to` yet.
pub(crate) fn once(state: &Path, to: &str) -> Result<Shipped, Refusal> {
    let mut sink = Sink::open(to)?;
    let (folder, place) = (state.join(FOLDER), cursor_place(state, to));
    let kept = |error: io::Error| {
        Refusal::new(
            STEP,
            format!("failed to note what was shipped: {error}"),
            "look at the state folder's rights",
        )
    };
    fs::create_dir_all(&folder).map_err(kept)?;
    let lock = File::options().create(true).append(true).mode(0o600).open(place.with_extension("lock"));
    let lock = lock.map_err(kept)?;
    if lock.try_lock().is_err() {
        return Err(Refusal::new(STEP, "another one ships to the same place", "leave it to that one"));
    }
    let mut cursor = read_cursor(&place, to)?;
    // From now on it is known that there is such a sink, and what it has not had stays.
    write_cursor(&place, &cursor).map_err(kept)?;
    let mut shipped = Shipped::default();
    for (name, path) in files(&state.join("records")).map_err(|error| unread(&error))? {
        while let Some(batch) = batch(&path, cursor.files.get(&name).copied().unwrap_or(0))? {
            sink.send(&name, &batch)?;
            let bytes = batch.len() as u64;
            *cursor.files.entry(name.clone()).or_default() += bytes;
            write_cursor(&place, &cursor).map_err(kept)?;
            shipped.bytes += bytes;
            shipped.lines += batch.iter().filter(|byte| **byte == b'\n').count() as u64;
        }
    }
    Ok(shipped)
}

/// Ships again and again. What a sink does not take is told once, and sent when it takes it.
pub(crate) fn follow(state: &Path, to: &str) -> Result<(), Refusal> {
    // What can never work is told at once.
    Sink::open(to).map(drop).or_else(|refusal| if Sink::is_named(to) { Ok(()) } else { Err(refusal) })?;
    let (mut pause, mut told) = (PAUSE, None);
    loop {
        match once(state, to) {
            Ok(_) => {
                if told.take().is_some() {
                    crate::screen::note(&format!("`{to}` takes records again"));
                }
                pause = PAUSE;
            }
            Err(refusal) => {
                if told.as_ref() != Some(&refusal.why) {
                    crate::screen::note(&format!(
                        "{}: {}; what waits is sent later",
                        refusal.step, refusal.why
                    ));
                    told = Some(refusal.why);
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        std::thread::sleep(pause);
    }
}

/// Why the record of a task has to stay, if some sink has not had all of it.
pub(crate) fn waits(state: &Path, task: &TaskId) -> Option<String> {
    let name = format!("{task}.jsonl");
    let bytes = fs::metadata(state.join("records").join(&name)).ok()?.len();
    let entries = fs::read_dir(state.join(FOLDER)).ok()?;
    let paths = entries.flatten().map(|entry| entry.path());
    let cursors = paths.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
    cursors.filter_map(|path| serde_json::from_slice::<Cursor>(&fs::read(path).ok()?).ok()).find_map(
        |cursor| {
            let behind = cursor.files.get(&name).copied().unwrap_or(0) < bytes;
            behind.then(|| format!("`{}` has not had all of it yet", shown(&cursor.sink)))
        },
    )
}

fn cursor_place(state: &Path, to: &str) -> PathBuf {
    let digest: String = Sha256::digest(to).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    state.join(FOLDER).join(format!("{digest}.json"))
}

fn read_cursor(place: &Path, to: &str) -> Result<Cursor, Refusal> {
    let words = match fs::read(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Cursor { sink: to.to_owned(), files: BTreeMap::new() });
        }
        read => read.map_err(|error| unread(&error))?,
    };
    serde_json::from_slice(&words).map_err(|error| {
        let why = format!("`{}` is damaged: {error}", place.display());
        Refusal::new(STEP, why, "remove it: everything is shipped once more then")
    })
}

fn write_cursor(place: &Path, cursor: &Cursor) -> io::Result<()> {
    let new = place.with_extension("new");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec(cursor)?)?;
    fs::rename(new, place)
}

/// The files of a record; the index last, so that whoever reads a closing line has what it closes.
fn files(records: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(records)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let task = name.strip_suffix(".jsonl").is_some_and(|id| TaskId::parse(id).is_ok());
        if (task || name == "index.jsonl") && entry.file_type()?.is_file() {
            files.push((name, entry.path()));
        }
    }
    files.sort_by_key(|(name, _)| (name == "index.jsonl", name.clone()));
    Ok(files)
}

/// Whole lines from `from` on, as many as are sent at once.
fn batch(path: &Path, from: u64) -> Result<Option<Vec<u8>>, Refusal> {
    let read = || -> io::Result<(u64, Vec<u8>)> {
        let mut file = File::options().read(true).custom_flags(0o400_000 | 0o4000).open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        // The longest line is as long as this.
        file.take(BATCH_BYTES).read_to_end(&mut bytes)?;
        Ok((length, bytes))
    };
    let (length, mut bytes) = read().map_err(|error| unread(&error))?;
    if length < from {
        let why = format!("`{}` is shorter than what was shipped of it: it was cut", path.display());
        return Err(Refusal::new(STEP, why, "look at `fumehood audit verify`; the sink has what is missing"));
    }
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    bytes.truncate(end);
    Ok(Some(bytes).filter(|bytes| !bytes.is_empty()))
}

fn unread(error: &io::Error) -> Refusal {
    Refusal::new(STEP, format!("the record can not be read: {error}"), "check who owns the state folder")
}
