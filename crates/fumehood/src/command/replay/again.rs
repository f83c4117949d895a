//! A run that is run again: from its tape, with nothing of the network, and what came out different.

use super::{STEP, show, tape_of, unplayed};
use crate::config::FILE_NAME;
use crate::host::{self, Places};
use crate::image_config::Standing;
use crate::refusal::Refusal;
use crate::{backends, images, screen};
use fumehood_audit::{TaskLog, Transcript};
use fumehood_model::ending::Ending;
use fumehood_model::envelope::{Defaults, Envelope, EnvelopeSpec, WorkspaceMode};
use fumehood_model::exec::ExecRequest;
use fumehood_model::id::TaskId;
use fumehood_model::level::{Blast, Level, Question, Stake, Trust};
use fumehood_runtime::files::layer;
use fumehood_runtime::run::{OutputMode, RunRequest, run as run_it};
use fumehood_runtime::state::State;
use fumehood_runtime::tape::{self, Described, META, Outcome, Played, Tape};
use fumehood_sys::dirfd::DirHandle;
use serde::Deserialize as _;
use serde_json::json;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// As a run that nobody watches has it.
const TIMEOUT: Duration = Duration::from_secs(3600);
const OUTPUT_BYTES: u64 = 1 << 40;

pub(super) fn run(
    state: &State,
    task: &TaskId,
    transcript: &Transcript,
    json: bool,
) -> Result<ExitCode, Refusal> {
    let sha256 = tape_of(transcript).ok_or_else(|| show::no_tape(task))?;
    let folder = tape::folder(state).join(task.as_str());
    let described = tape::open(&folder, &sha256).map_err(|error| unplayed(&error))?;
    let out = Scratch::new(&tape::folder(state)).map_err(|error| unplayed(&error))?;
    let words = words(&described, &folder, &out.0)?;
    let changed_in_place =
        described.spec.pointer("/filesystem/workspace-mode").is_some_and(|mode| mode == "read-write");
    let (envelope, standing) = checked(&words)?;
    let request = request(&described, envelope, Played { folder, task: task.clone(), sha256 })?;
    let backend = backends::of(request.choice.level)?;
    let report = run_it(backend.as_ref(), state, request, &mut |_| {});
    drop(standing);
    if let Ending::NotStarted { step, why, remedy } = &report.ending
        && !matches!(described.outcome.ending, Ending::NotStarted { .. })
    {
        return Err(Refusal::new(step, why.clone(), remedy.clone()));
    }
    let kept = tape::replayed(state, &report.task);
    let now = outcome(&kept.join(META));
    let lines = now.map(|now| different((&described, now), changed_in_place));
    let _ = fs::remove_dir_all(&kept);
    discard(state, &report.task);
    let lines = lines.map_err(|error| unplayed(&error))?;
    if json {
        screen::say_json(&json!({
            "of": task, "task": report.task, "same": lines.is_empty(), "different": lines,
            "ending": report.ending, "denied": report.hits,
        }));
    } else {
        for hit in report.hits.iter().filter(|hit| hit.detail.contains("not_on_tape")) {
            screen::note(&format!("asked for now and not then: {} ({} times)", hit.detail, hit.count));
        }
        lines.iter().for_each(|line| super::say(&format!("different  {line}")));
        let verdict = if lines.is_empty() { "came to the same" } else { "came out different" };
        screen::say(&format!("{task} {verdict} without a network; the replay is {}", report.task));
    }
    Ok(if lines.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What differs. What a run wrote into the workspace itself was never a layer's.
fn different((then, mut now): (&Described, Outcome), changed_in_place: bool) -> Vec<String> {
    let mut before = then.outcome.clone();
    if changed_in_place {
        before.changes.clear();
        now.changes.clear();
    }
    tape::difference(&before, &now)
}

/// The envelope as it was written, with the copies in the place of what was copied in, and without what would touch
/// anything but the replay itself.
fn words(described: &Described, folder: &Path, out: &Path) -> Result<EnvelopeSpec, Refusal> {
    let flawed = |why: String| {
        Refusal::new(STEP, why, format!("run it once more; `{FILE_NAME}` has changed its words"))
    };
    let mut words = EnvelopeSpec::deserialize(&described.spec).map_err(|error| flawed(error.to_string()))?;
    let text = |path: PathBuf| {
        path.to_str().map(str::to_owned).ok_or_else(|| flawed("a path is no text".to_owned()))
    };
    let files = &mut words.filesystem;
    files.inputs.clear();
    for (number, at) in described.inputs.iter().enumerate() {
        files.inputs.push(format!("{}:{at}", text(tape::input(folder, number))?));
    }
    if files.output.is_some() {
        files.output = Some(text(out.to_owned())?);
    }
    if files.workspace_mode == Some(WorkspaceMode::ReadWrite) {
        files.workspace_mode = None;
    }
    files.caches.clear();
    files.session = None;
    words.network.publish.clear();
    words.level = Level::ALL.into_iter().find(|level| level.name() == described.level);
    Ok(words)
}

fn checked(words: &EnvelopeSpec) -> Result<(Envelope, Option<Standing>), Refusal> {
    let places = Places::now()?;
    let defaults = Defaults {
        base: places.cwd.clone(),
        home: places.home.clone(),
        // What is copied in lies there.
        state: None,
        host_memory_bytes: fumehood_sys::host::memory_bytes(),
        host_cpus: fumehood_sys::host::processors(),
        timeout: Some(TIMEOUT),
        output_bytes: OUTPUT_BYTES,
        presets: host::presets(places.home.as_deref())?,
        images: images::all(places.state.as_deref())?,
    };
    let checked = Envelope::check(words, &defaults);
    let envelope = checked.map_err(|flaws| Refusal::flaws(&flaws, |flaw| flaw.field.to_owned()))?;
    let standing = Standing::of(&envelope)?;
    Ok((envelope, standing))
}

fn request(described: &Described, envelope: Envelope, played: Played) -> Result<RunRequest, Refusal> {
    let asked = Level::ALL.into_iter().find(|level| level.name() == described.level);
    let stake = Stake::of(&envelope);
    let question =
        Question { asked, floor: backends::floor()?, trust: Trust::Medium, blast: Blast::Medium, stake };
    let exec = ExecRequest {
        argv: described.argv.iter().map(OsString::from).collect(),
        env: described.env.iter().map(|(name, value)| (name.into(), value.into())).collect(),
        cwd: PathBuf::from(&described.cwd),
        terminal: None,
    };
    Ok(RunRequest {
        envelope,
        choice: backends::settle(&question)?,
        exec,
        output: OutputMode::Drop,
        toolchains: described.toolchains.iter().map(PathBuf::from).collect(),
        home_at: PathBuf::from(&described.home_at),
        tape: Tape::Play(played),
    })
}

fn outcome(path: &Path) -> io::Result<Outcome> {
    let described: Described = serde_json::from_slice(&fs::read(path)?)?;
    Ok(described.outcome)
}

/// What it changed was looked at, and is nobody's to apply.
fn discard(state: &State, task: &TaskId) {
    let Ok(layers) = DirHandle::open(&state.layers()) else { return };
    let now = || {
        let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
    };
    let mut log = None;
    // One without changes is gone already.
    let _ = layer::discard(&layers, task, &mut |event| {
        let mut reopened = TaskLog::reopen(&state.records(), task, now()).map_err(io::Error::other)?;
        reopened.append(now(), event).map_err(io::Error::other)?;
        log = Some(reopened);
        Ok(())
    });
    if let Some(log) = log {
        let _ = log.close(now());
    }
}

/// A folder for what comes out; gone with this value.
#[derive(Debug)]
struct Scratch(PathBuf);

// === impl Scratch ===

impl Scratch {
    fn new(tapes: &Path) -> io::Result<Self> {
        let random = fumehood_sys::host::random()?;
        let path = tapes.join(format!(".out-{random:016x}"));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
