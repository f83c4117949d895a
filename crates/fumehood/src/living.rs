//! From what is asked of a keeper to a sandbox that could live.

use crate::config::FILE_NAME;
use crate::host::{self, Places};
use crate::image_config::Standing;
use crate::prepare::{WORKSPACE, shell, views};
use crate::refusal::Refusal;
use crate::{backends, images, paths};
use fumehood_backend::Backend;
use fumehood_keep::wire::Spec;
use fumehood_model::envelope::{Defaults, Envelope, EnvelopeSpec};
use fumehood_model::exec::ExecRequest;
use fumehood_model::level::{Blast, Level, Question, Stake, Trust};
use fumehood_runtime::environment;
use fumehood_runtime::keep::LiveRequest;
use fumehood_runtime::run::{OutputMode, RunRequest};
use fumehood_runtime::tape::Tape;
use fumehood_runtime::toolchains::{Host, Toolchains};
use serde::Deserialize as _;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const STEP: &str = "read the envelope";
/// Output of one command that is passed on.
const OUTPUT_BYTES: u64 = 1 << 40;

/// A living sandbox that could be.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) request: LiveRequest,
    pub(crate) backend: Box<dyn Backend>,
    /// Held as long as the sandbox lives: its image stays.
    pub(crate) _standing: Option<Standing>,
}

/// Settles everything. Starts nothing, and writes nothing.
pub(crate) fn prepare(spec: Spec) -> Result<Prepared, Refusal> {
    let places = Places::now()?;
    let mut words = envelope_of(&spec)?;
    let defaults = defaults(&places)?;
    let mut envelope = check(&words, &defaults)?;
    let standing = Standing::of(&envelope)?;
    if let (Some(uid), None) = (standing.as_ref().and_then(Standing::user), words.privilege.user) {
        words.privilege.user = Some(uid);
        envelope = check(&words, &defaults)?;
    }
    let (trust, blast) = (words.trust.unwrap_or(Trust::Medium), words.blast.unwrap_or(Blast::Medium));
    let stake = Stake::of(&envelope);
    let question = Question { asked: words.level, floor: backends::floor()?, trust, blast, stake };
    let choice = backends::settle(&question)?;
    paths::check(&envelope, &defaults)?;
    let backend = backends::living(choice.level, spec.accept_tcg)?;
    let (exec, home_at, toolchains) = base(&envelope, standing.as_ref(), &places);
    let run = RunRequest {
        envelope,
        choice,
        exec,
        output: OutputMode::Stream,
        toolchains,
        home_at,
        tape: Tape::None,
    };
    Ok(Prepared { request: LiveRequest { run, spec, defaults }, backend, _standing: standing })
}

/// The envelope that was written, and the level beside it.
fn envelope_of(spec: &Spec) -> Result<EnvelopeSpec, Refusal> {
    let mut words = if spec.envelope.is_null() {
        EnvelopeSpec::default()
    } else {
        EnvelopeSpec::deserialize(&spec.envelope).map_err(|error| {
            let remedy =
                format!("write it as in `{FILE_NAME}`; `fumehood schema` prints what each field takes");
            Refusal::new(STEP, error.to_string(), remedy)
        })?
    };
    if let Some(level) = &spec.level {
        let known = Level::ALL.into_iter().find(|known| known.name() == level.as_str());
        let remedy = "use `container`, or leave it out";
        let none = || {
            Refusal::new(STEP, format!("there is no level `{}`", fumehood_model::text::shown(level)), remedy)
        };
        words.level = Some(known.ok_or_else(none)?);
    }
    Ok(words)
}

fn check(words: &EnvelopeSpec, defaults: &Defaults) -> Result<Envelope, Refusal> {
    Envelope::check(words, defaults).map_err(|flaws| Refusal::flaws(&flaws, |flaw| flaw.field.to_owned()))
}

fn defaults(places: &Places) -> Result<Defaults, Refusal> {
    Ok(Defaults {
        base: places.cwd.clone(),
        home: places.home.clone(),
        state: places.state.clone(),
        host_memory_bytes: fumehood_sys::host::memory_bytes(),
        host_cpus: fumehood_sys::host::processors(),
        timeout: None,
        output_bytes: OUTPUT_BYTES,
        presets: host::presets(places.home.as_deref()).unwrap_or_else(|_| BTreeMap::new()),
        images: images::all(places.state.as_deref())?,
    })
}

/// What every command is begun with, HOME inside, and the toolchains that are shown.
fn base(
    envelope: &Envelope,
    standing: Option<&Standing>,
    places: &Places,
) -> (ExecRequest, PathBuf, Vec<PathBuf>) {
    let views = views(envelope);
    let variables: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let lookup =
        |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let home = places.home.as_deref().unwrap_or(Path::new("/nonexistent"));
    let host = Host::new(home, &lookup);
    let mut toolchains = Toolchains::find(&host, &views, Path::new(""));
    if let Some(path) = standing.and_then(Standing::path) {
        toolchains.use_path(path, &views);
    }
    let home_at = environment::home_at(places.home.as_deref(), views.image);
    let shell = shell(&views);
    let mut env = environment::environment(&variables, envelope.environment(), &toolchains, &home_at, shell);
    // Nobody's terminal: each command says whether it has one.
    env.retain(|(name, _)| name != "TERM");
    if let Some(standing) = standing {
        standing.lay_under(&mut env, envelope);
    }
    let cwd = PathBuf::from(WORKSPACE);
    (ExecRequest { argv: Vec::new(), env, cwd, terminal: None }, home_at, toolchains.roots)
}
