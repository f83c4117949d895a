//! `fumehood audit`: the record, listed, shown and verified.

use crate::refusal::Refusal;
use crate::{screen, ship, tasks, usage};
use clap::{Parser, Subcommand};
use fumehood_audit::{Digest, Expected, PublicKey, SignError, SignedHead, SigningKey};
use fumehood_model::id::TaskId;
use fumehood_model::quantity;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

/// What is returned when the record is not whole, or can not be read.
const NOT_WHOLE: u8 = 1;
const READ: &str = "read the arguments";
/// Far above what a head or a key takes.
const SMALL_BYTES: u64 = 64 << 10;

/// List, show, verify, sign, ship and prune the record of what ran.
///
/// Every act of a run is written down before it is done, each line chained to the one before it.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// One line for each task
    List {
        /// Print one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// What one task did, line by line
    Show {
        /// The task, or the beginning of its id; the latest where left out
        #[arg(value_name = "ID")]
        task: Option<String>,
        /// Print the lines as they stand in the record
        #[arg(long)]
        json: bool,
    },
    /// Find lines and files that were changed, removed, moved or cut; exit code 1 where there are any
    Verify {
        /// A digest that `verify` printed earlier, kept elsewhere: finds that the end was cut
        #[arg(long, value_name = "HEX")]
        expect_head: Option<String>,
        /// What `fumehood audit head` printed earlier, kept elsewhere: finds that anything before was written anew
        #[arg(long, value_name = "FILE", conflicts_with = "expect_head")]
        head: Option<PathBuf>,
        /// A public key, kept elsewhere: nobody but its holder may have signed. May be repeated
        #[arg(long = "key", value_name = "FILE")]
        keys: Vec<PathBuf>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Sign the record as it is now, and print its head: keep that where nobody who can write the record can
    Head,
    /// Send what has not been sent yet to a place that nobody here can write over. Each line arrives at least once
    Ship {
        /// `file:/PATH`, `syslog:/dev/log`, `https://HOST/PATH`, or `otlp:https://HOST:4318`; a token for the last two is
        /// in `FUMEHOOD_SHIP_TOKEN`
        #[arg(long, value_name = "SINK")]
        to: String,
        /// Go on with what is recorded from now on
        #[arg(long)]
        follow: bool,
    },
    /// Remove the records of tasks that ended long ago; what they were stays verifiable
    Prune {
        /// Those that ended before so much time: `90d`, `12h`
        #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
        older_than: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

const EXAMPLES: &str = "Examples:
  fumehood audit show                 the latest run
  fumehood audit verify               is everything as it was written?
  fumehood audit head > /mnt/elsewhere/head.json
  fumehood audit verify --head /mnt/elsewhere/head.json
  fumehood audit prune --older-than 90d";

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("audit", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let outcome = match args.what {
        What::List { json } => list(json),
        What::Show { task, json } => show(task.as_deref(), json),
        What::Verify { expect_head, head, keys, json } => {
            expected(expect_head.as_deref(), head.as_deref(), &keys).and_then(|kept| verify(&kept, json))
        }
        What::Head => head(),
        What::Ship { to, follow } => ship(&to, follow),
        What::Prune { older_than, json } => prune(&older_than, json),
    };
    outcome.unwrap_or_else(|refusal| {
        refusal.tell();
        ExitCode::from(NOT_WHOLE)
    })
}

fn list(json: bool) -> Result<ExitCode, Refusal> {
    let tasks = fumehood_audit::list(&records()?).map_err(|error| unreadable(&error))?;
    if json {
        tasks.iter().for_each(screen::say_json);
    } else {
        screen::say_raw(&fumehood_audit::show_list(&tasks));
    }
    Ok(ExitCode::SUCCESS)
}

fn show(typed: Option<&str>, json: bool) -> Result<ExitCode, Refusal> {
    let task: TaskId =
        tasks::with_record(&tasks::state()?, typed).map_err(|refusal| removed(typed, refusal))?;
    let transcript = fumehood_audit::read(&records()?, &task).map_err(|error| unreadable(&error))?;
    if json {
        transcript.lines.iter().for_each(screen::say_json);
    } else {
        screen::say_raw(&fumehood_audit::show(&transcript));
    }
    // A crash leaves half a line too: what is no line is told, and the rest is shown.
    Ok(if transcript.unreadable_bytes > 0 { ExitCode::from(NOT_WHOLE) } else { ExitCode::SUCCESS })
}

/// Why a task that the index names has no record any more.
fn removed(typed: Option<&str>, refusal: Refusal) -> Refusal {
    let known = || fumehood_audit::find(&records().ok()?, typed?).ok();
    match known() {
        Some(task) => Refusal::new(
            "read the record",
            format!("the record of `{task}` was removed"),
            "`fumehood audit verify` says whether its owner did so (`fumehood audit prune`)",
        ),
        None => refusal,
    }
}

/// What was kept elsewhere. Without a key, it is the one of this state folder, as far as there is one.
fn expected(digest: Option<&str>, head: Option<&Path>, keys: &[PathBuf]) -> Result<Expected, Refusal> {
    let digest = digest.map(Digest::parse).transpose().map_err(|_| {
        let shown = fumehood_model::text::shown(digest.unwrap_or_default());
        let why = format!("`{shown}` is no digest");
        Refusal::new(
            READ,
            why,
            "give the 64 hexadecimal digits that `fumehood audit verify` printed after `head`",
        )
    })?;
    let signed = !keys.is_empty();
    let mut keys = keys.iter().map(|path| key_in(path)).collect::<Result<Vec<_>, _>>()?;
    let mut expected = digest;
    if let Some(path) = head {
        let kept = head_in(path)?;
        if signed && !keys.contains(&kept.key) {
            let why = format!("`{}` is signed by another key: {}", path.display(), kept.key);
            return Err(Refusal::new(READ, why, "give the key by which it was signed"));
        }
        if !signed {
            keys.push(kept.key);
        }
        expected = Some(kept.head);
    } else if !signed && let Ok(own) = SigningKey::open(&fumehood_audit::key_path(&records()?)) {
        keys.push(own.public());
    }
    Ok(Expected { head: expected, keys, signed })
}

/// A head that was kept, if its signature is right.
fn head_in(path: &Path) -> Result<SignedHead, Refusal> {
    let remedy = "give a file with what `fumehood audit head` printed";
    let text = read(path)?;
    let head: SignedHead = serde_json::from_str(text.trim()).map_err(|error| {
        Refusal::new(READ, format!("`{}` holds no head: {error}", path.display()), remedy)
    })?;
    if !head.is_right() {
        let why = format!("the signature in `{}` is not one of the head in it", path.display());
        return Err(Refusal::new(READ, why, remedy));
    }
    Ok(head)
}

/// A public key by itself, or the one that signed a head.
fn key_in(path: &Path) -> Result<PublicKey, Refusal> {
    let text = read(path)?;
    match PublicKey::parse(text.trim()) {
        Ok(key) => Ok(key),
        Err(_) if text.trim_start().starts_with('{') => head_in(path).map(|head| head.key),
        Err(_) => {
            let why = format!("`{}` holds no public key", path.display());
            let remedy =
                "give a file with the 64 hexadecimal digits that `fumehood audit head` prints as `key`";
            Err(Refusal::new(READ, why, remedy))
        }
    }
}

/// A small file of text.
fn read(path: &Path) -> Result<String, Refusal> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(SMALL_BYTES).read_to_string(&mut text));
    read.map_err(|error| {
        let why = format!("failed to read `{}`: {error}", path.display());
        Refusal::new(READ, why, "name a file that was kept")
    })?;
    Ok(text)
}

fn verify(expected: &Expected, json: bool) -> Result<ExitCode, Refusal> {
    let report = fumehood_audit::verify_with(&records()?, expected).map_err(|error| unreadable(&error))?;
    if json {
        screen::say_json(&report);
    } else {
        screen::say_raw(&fumehood_audit::show_report(&report));
    }
    Ok(if report.is_whole() { ExitCode::SUCCESS } else { ExitCode::from(NOT_WHOLE) })
}

fn head() -> Result<ExitCode, Refusal> {
    let records = records()?;
    if !fumehood_audit::index_path(&records).exists() {
        return Err(nothing());
    }
    let signed = fumehood_audit::sign(&records, &fumehood_audit::key_path(&records), now());
    screen::say_json(&signed.map_err(|error| unsigned(&error))?);
    Ok(ExitCode::SUCCESS)
}

fn ship(to: &str, follow: bool) -> Result<ExitCode, Refusal> {
    let state = tasks::state()?;
    if follow {
        ship::follow(state.root(), to)?;
    }
    let shipped = ship::once(state.root(), to)?;
    screen::say(&format!("{} lines shipped, {} bytes", shipped.lines, shipped.bytes));
    Ok(ExitCode::SUCCESS)
}

fn prune(older_than: &str, json: bool) -> Result<ExitCode, Refusal> {
    let age = quantity::duration(older_than).map_err(|error| {
        let why = format!("`--older-than {older_than}`: {error}");
        Refusal::new(READ, why, "write a time, as in `--older-than 90d`")
    })?;
    let state = tasks::state()?;
    let records = state.records();
    if !fumehood_audit::index_path(&records).exists() {
        return Err(nothing());
    }
    let before = now().saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    let wanted = |task: &TaskId| {
        let layer = state.layers().join(task.as_str()).exists();
        let files = state.sandboxes().join(task.as_str()).exists();
        let what =
            if layer { "changes of it wait to be applied or discarded" } else { "files of it are kept" };
        (layer || files).then(|| what.to_owned()).or_else(|| ship::waits(state.root(), task))
    };
    let pruned = fumehood_audit::prune(&records, (now(), before), &wanted).map_err(|error| {
        Refusal::new("remove old records", causes(&error), "free space on the disk of the state folder")
    })?;
    for task in &pruned.removed {
        // Without its record nobody vouches for it, and it is as old.
        let _ = std::fs::remove_dir_all(fumehood_runtime::tape::folder(&state).join(task.as_str()));
    }
    let signed = fumehood_audit::sign(&records, &fumehood_audit::key_path(&records), now());
    let head = signed.map_err(|error| unsigned(&error))?;
    if json {
        screen::say_json(&serde_json::json!({
            "removed": pruned.removed, "bytes": pruned.bytes, "left": pruned.left, "head": head,
        }));
    } else {
        for (task, why) in &pruned.left {
            screen::note(&format!("{task} stays: {}", fumehood_model::text::shown(why)));
        }
        screen::say(&format!("{} records removed, {} bytes", pruned.removed.len(), pruned.bytes));
    }
    Ok(ExitCode::SUCCESS)
}

fn now() -> u64 {
    let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = format!("failed to {error}");
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

fn unsigned(error: &SignError) -> Refusal {
    let remedy = match error {
        SignError::Key(_) => {
            "the key is `record.key` in the state folder: a plain file, 0600, yours; where it is lost, move it away \
             and a new one is made"
        }
        SignError::Record(_) => "free space on the disk of the state folder",
    };
    Refusal::new("sign the record", causes(error), remedy)
}

fn nothing() -> Refusal {
    Refusal::new("read the record", "nothing is recorded yet", "`fumehood run -- true` runs something")
}

fn records() -> Result<PathBuf, Refusal> {
    Ok(tasks::state()?.root().join("records"))
}

fn unreadable(error: &fumehood_audit::ReadError) -> Refusal {
    let missing = error.source.kind() == std::io::ErrorKind::NotFound;
    if missing {
        return nothing();
    }
    Refusal::new(
        "read the record",
        format!("failed to {error}: {}", error.source),
        "check who owns the file; `FUMEHOOD_STATE` names the folder",
    )
}
