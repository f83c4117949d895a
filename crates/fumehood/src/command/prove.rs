//! `fumehood prove`: the self-test, its report, and its line in the record.

use crate::refusal::Refusal;
use crate::{config, screen, spec, tasks, usage};
use clap::Parser;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use fumehood_audit::TaskLog;
use fumehood_model::code::NOT_STARTED;
use fumehood_model::event::{Event, ProveEnded};
use fumehood_model::id::TaskId;
use fumehood_model::image::is_folder;
use fumehood_model::level::Level;
use fumehood_prove::{Options, Report, Verdict, Wall};
use fumehood_runtime::state::State;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// Attack the walls of this installation, and say which hold.
///
/// Each probe is one attack, carried out by a small program twice: in a sandbox, as `fumehood run` makes it, and beside
/// it, where that wall is open. There it must succeed, or the probe proves nothing. What is judged are canaries on this
/// host; nothing else is touched, no packet leaves, and nothing is left behind. Exit code 0 only where every probe that
/// could be asked was held; 1 where one was not; 125 where the level does not start here.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = EXAMPLES)]
struct Args {
    /// The level to attack
    #[arg(long, value_name = "LEVEL", default_value = "container", value_parser = spec::level_parser(), hide_possible_values = true)]
    level: Level,
    /// Only this wall: `kernel`, `files`, `network`, `credentials`, `resources`, `cleanup`, `record`
    #[arg(long, value_name = "WALL", value_parser = wall_parser(), hide_possible_values = true)]
    wall: Option<Wall>,
    /// Leave out what takes long
    #[arg(long)]
    quick: bool,
    /// Attack in sandboxes that stand on this image, as `fumehood run --image` takes it
    #[arg(long, value_name = "NAME|DIR")]
    image: Option<String>,
    /// At the level `microvm`: accept that the processor is emulated by software
    #[arg(long)]
    accept_tcg: bool,
    /// Test the probes: open every wall, attack there, and expect each probe to turn red
    #[arg(long, conflicts_with = "html")]
    open_walls: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write the report as one page to a new FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

const EXAMPLES: &str = "Examples:
  fumehood prove --quick
  fumehood prove --wall files --html report.html
  fumehood prove --level microvm --accept-tcg";

/// The report, and where it stands in the record.
#[derive(Serialize)]
struct Told<'a> {
    task: &'a str,
    #[serde(flatten)]
    report: &'a Report,
}

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("prove", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match attempt(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(refusal) => {
            refusal.tell();
            ExitCode::from(NOT_STARTED)
        }
    }
}

/// Tests, records and says; whether all that was asked was held.
fn attempt(args: &Args) -> Result<bool, Refusal> {
    if let Some(file) = args.html.as_deref().filter(|file| file.symlink_metadata().is_ok()) {
        let why = format!("`{}` is there already", file.display());
        return Err(Refusal::new("write the report", why, "name a new file"));
    }
    crate::operator::Operator::read()?;
    let state = tasks::state()?;
    let task = TaskId::new(millis(), fumehood_sys::host::random().unwrap_or(u64::from(std::process::id())));
    let mut log = open(&state, &task, args)?;
    let binary = std::env::current_exe().map_err(|error| {
        Refusal::new(
            "find the binary",
            format!("this program does not find itself: {error}"),
            "start it by its path",
        )
    })?;
    let (level, wall, quick) = (args.level, args.wall, args.quick);
    let version = env!("CARGO_PKG_VERSION");
    let (image, accept_tcg, state) =
        (rooted(args.image.as_deref()), args.accept_tcg, state.root().to_owned());
    let open = args.open_walls;
    let options = Options { binary, level, wall, quick, version, state, image, accept_tcg, open };
    let tested = fumehood_prove::prove(&options);
    let (text, ended) = match &tested {
        Ok(report) => {
            let text = serde_json::to_string(&Told { task: task.as_str(), report }).unwrap_or_default();
            let ended = ended(report, &text);
            (text, Some(ended))
        }
        Err(_) => (String::new(), None),
    };
    let digest = ended.as_ref().map(|ended| ended.report_sha256.clone()).unwrap_or_default();
    let written = ended.map_or(Ok(()), |ended| log.append(millis(), &Event::ProveEnded(ended)));
    written.and_then(|()| log.close(millis())).map_err(|error| unwritten(&error))?;
    let report = tested.map_err(|error| Refusal::new("prove", error.to_string(), error.remedy()))?;
    if let Some(file) = &args.html {
        page(file, &fumehood_prove::page(&report, &digest, task.as_str()))?;
    }
    if args.json {
        screen::say(&text);
    } else {
        screen::say_raw(&fumehood_prove::table(&report));
        screen::say(&format!("report sha256 {digest}, in the record of {task}"));
    }
    Ok(report.is_green())
}

/// A folder by a path that holds wherever a probe starts.
fn rooted(image: Option<&str>) -> Option<String> {
    let image = image?;
    let found = is_folder(image).then(|| config::real_path(Path::new(image))).flatten();
    Some(found.map_or_else(|| image.to_owned(), |path| path.display().to_string()))
}

fn wall_parser() -> impl TypedValueParser<Value = Wall> {
    PossibleValuesParser::new(Wall::ALL.map(Wall::name))
        .try_map(|name| Wall::ALL.into_iter().find(|wall| wall.name() == name).ok_or("there is no such wall"))
}

fn open(state: &State, task: &TaskId, args: &Args) -> Result<TaskLog, Refusal> {
    let mut walls = args.wall.map_or("all", Wall::name).to_owned();
    if args.open_walls {
        walls.push_str(", opened");
    }
    let started = Event::ProveStarted { level: args.level.to_string(), walls, quick: args.quick };
    let log = TaskLog::open(&state.records(), task, millis());
    log.and_then(|mut log| log.append(millis(), &started).map(|()| log)).map_err(|error| unwritten(&error))
}

fn ended(report: &Report, text: &str) -> ProveEnded {
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let failed =
        report.rows.iter().filter(|row| matches!(row.verdict, Verdict::Breached(_) | Verdict::Broken(_)));
    ProveEnded {
        held: count(report.counts.held),
        breached: count(report.counts.breached),
        broken: count(report.counts.broken),
        not_applicable: count(report.counts.not_applicable),
        failed: failed.map(|row| row.id.to_owned()).collect(),
        policy_sha256: report.policy_sha256.clone(),
        report_sha256: Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

fn page(file: &Path, text: &str) -> Result<(), Refusal> {
    use std::io::Write as _;
    let made = std::fs::File::create_new(file).and_then(|mut made| made.write_all(text.as_bytes()));
    made.map_err(|error| {
        let why = format!("`{}` could not be written: {error}", file.display());
        Refusal::new("write the report", why, "name a new file in a folder that you may write to")
    })
}

fn unwritten(error: &fumehood_audit::RecordError) -> Refusal {
    Refusal::new("write the record", format!("the record can not be written: {error}"), error.remedy())
}

fn millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
