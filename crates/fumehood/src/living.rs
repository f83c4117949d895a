//! From what is asked of a keeper to a sandbox that could live.

use crate::config::FILE_NAME;
use crate::host::{self, Places};
use crate::image_config::Standing;
use crate::prepare::{WORKSPACE, shell, views};
use crate::refusal::Refusal;
use crate::{backends, images, paths};
use fumehood_backend::Backend;
use fumehood_keep::wire::{Forked, Spec};
use fumehood_model::envelope::{Defaults, Envelope, EnvelopeSpec};
use fumehood_model::exec::ExecRequest;
use fumehood_model::level::{Blast, Level, Question, Stake, Trust};
use fumehood_runtime::environment;
use fumehood_runtime::keep::LiveRequest;
use fumehood_runtime::run::{OutputMode, RunRequest};
use fumehood_runtime::tape::Tape;
use fumehood_runtime::toolchains::{Host, Toolchains};
use serde::Deserialize as _;
use serde_json::{Value, json};
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
pub(crate) fn prepare(mut spec: Spec) -> Result<Prepared, Refusal> {
    let places = Places::now()?;
    let mut words = envelope_of(&spec)?;
    let defaults = defaults(&places)?;
    let mut envelope = check(&words, &defaults)?;
    let forked = spec.forked.take();
    let free_ports = forked.is_some();
    if let Some(Forked { narrow }) = forked.filter(|forked| !forked.narrow.is_null()) {
        (words, envelope) = narrowed((&words, &envelope), narrow, &defaults)?;
        // Its own children are measured by what it is.
        spec.envelope = serde_json::to_value(&words).map_err(|error| unlaid(&error))?;
    }
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
    Ok(Prepared { request: LiveRequest { run, spec, defaults, free_ports }, backend, _standing: standing })
}

/// What a fork asks for, laid over what its parent has, of which it is a part.
fn narrowed(
    (words, parent): (&EnvelopeSpec, &Envelope),
    narrow: Value,
    defaults: &Defaults,
) -> Result<(EnvelopeSpec, Envelope), Refusal> {
    for named in ["level", "trust", "blast"] {
        if narrow.get(named).is_some() {
            let why = format!("`{named}` is named, and a fork has the level of its parent");
            return Err(Refusal::new(
                "narrow the envelope",
                why,
                "leave it out, or make a sandbox of its own",
            ));
        }
    }
    let mut laid = serde_json::to_value(words).map_err(|error| unlaid(&error))?;
    if narrow.pointer("/network/net").and_then(Value::as_str) == Some("none") {
        // Whatever it had of a network goes, and what that used. Ports that lead inside are no way out.
        let publish = laid.pointer("/network/publish").cloned().unwrap_or_default();
        lay(&mut laid, json!({ "network": null, "credentials": { "secrets": null } }));
        lay(&mut laid, json!({ "network": { "publish": publish } }));
    }
    let fewer = narrow.pointer("/network/allow").is_some();
    lay(&mut laid, narrow);
    if fewer {
        forget_secrets(&mut laid);
    }
    let words = EnvelopeSpec::deserialize(&laid).map_err(|error| unlaid(&error))?;
    let child = check(&words, defaults)?;
    let child = parent.narrow(child).map_err(|error| {
        let remedy = "a fork can ask for less than its parent has, never for more; `fumehood create` makes one that has more";
        Refusal::new("narrow the envelope", error.to_string(), remedy)
    })?;
    Ok((words, child))
}

/// Takes away secrets that no rule uses any more.
fn forget_secrets(laid: &mut Value) {
    let rules: Vec<String> = laid
        .pointer("/network/allow")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|rule| Some(rule.as_str()?.split_once(" with ")?.1.to_owned()))
        .collect();
    let Some(secrets) = laid.pointer_mut("/credentials/secrets").and_then(Value::as_array_mut) else {
        return;
    };
    let word = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    secrets.retain(|secret| {
        let name = secret.as_str().and_then(|text| Some(text.split_once('=')?.0));
        // What is no secret's form is told of as that.
        name.is_none_or(|name| rules.iter().any(|rule| rule.split(word).any(|used| used == name)))
    });
}

/// Lays a patch over: objects over each other, `null` takes away, everything else replaces.
fn lay(base: &mut Value, patch: Value) {
    match (base, patch) {
        (Value::Object(base), Value::Object(patch)) => {
            for (name, value) in patch {
                if value.is_null() {
                    base.remove(&name);
                } else {
                    lay(base.entry(name).or_insert(Value::Null), value);
                }
            }
        }
        (base, patch) => *base = patch,
    }
}

fn unlaid(error: &serde_json::Error) -> Refusal {
    let remedy = format!("write it as in `{FILE_NAME}`; `fumehood schema` prints what each field takes");
    Refusal::new(STEP, error.to_string(), remedy)
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
