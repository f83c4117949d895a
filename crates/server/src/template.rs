//! Templates: what sandboxes begin with, by name. An operator's files, read at the start.
//!
//! ```toml
//! # serve/templates/NAME.toml
//! level = "container"             # chosen from the envelope if absent
//! accept_tcg = true               # for the level `microvm`: its processor may be emulated by software
//! env = { LANG = "C.UTF-8" }
//! warm = { prepare = "import json" }   # an interpreter that commands with `warm` go on with
//! [envelope.resources]            # in the words of fumehood.toml
//! memory = "1 GiB"
//! ```

use crate::error::{ApiError, Code};
use crate::sandbox::BASE_TEMPLATE;
use fumehood_keep::literals::Literals;
use fumehood_keep::wire::{Spec, Warm};
use fumehood_model::level::{Blast, Level, Trust, required};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

/// What of an envelope a caller without the scope `admin` may write: nothing that names a thing of the host.
const OPEN_CLAUSES: [&str; 2] = ["network", "resources"];

/// The templates of this installation.
#[derive(Debug, Default)]
pub(crate) struct Templates(BTreeMap<String, Template>);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Template {
    level: Option<String>,
    #[serde(default)]
    accept_tcg: bool,
    snapshot: Option<String>,
    warm: Option<Warm>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    envelope: serde_json::Value,
}

// === impl Templates ===

impl Templates {
    /// Reads `templates` in the daemon's folder.
    pub(crate) fn open(folder: &Path) -> Result<Self, ApiError> {
        let folder = folder.join("templates");
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(flawed(&folder, &error)),
        };
        let mut templates = BTreeMap::new();
        for entry in entries {
            let path = entry.map_err(|error| flawed(&folder, &error))?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".toml")) else {
                continue;
            };
            crate::keys::name(name, "template")?;
            let text = std::fs::read_to_string(&path).map_err(|error| flawed(&path, &error))?;
            let template = toml::from_str(&text).map_err(|error| flawed(&path, &error))?;
            templates.insert(name.to_owned(), template);
        }
        Ok(Self(templates))
    }

    /// What a sandbox of this template is made of; `None` where there is no such template.
    pub(crate) fn spec(&self, name: &str) -> Option<Spec> {
        let template = match self.0.get(name) {
            None if name == BASE_TEMPLATE => Template::default(),
            found => found?.clone(),
        };
        Some(Spec {
            envelope: template.envelope,
            level: template.level,
            accept_tcg: template.accept_tcg,
            snapshot: template.snapshot,
            warm: template.warm,
            env: template.env.into_iter().collect(),
            ..Spec::default()
        })
    }

    /// Their names.
    pub(crate) fn names(&self) -> Vec<String> {
        let base = (!self.0.contains_key(BASE_TEMPLATE)).then(|| BASE_TEMPLATE.to_owned());
        base.into_iter().chain(self.0.keys().cloned()).collect()
    }
}

/// Refuses a level that is weaker than what a sandbox of this template would have. A stronger one is a caller's to name.
pub(crate) fn judge_level(spec: &Spec, asked: &str) -> Result<(), ApiError> {
    let level = |name: &str| Level::ALL.into_iter().find(|level| level.name() == name);
    let word = |name: &str| spec.envelope.get(name).and_then(serde_json::Value::as_str);
    let own = spec.level.as_deref().or_else(|| word("level")).and_then(level);
    // What the table chooses for it at least, where the template names none.
    let chosen = || {
        let trust = spec.envelope.get("trust").and_then(|word| Trust::deserialize(word).ok());
        let blast = spec.envelope.get("blast").and_then(|word| Blast::deserialize(word).ok());
        required(trust.unwrap_or(Trust::Medium), blast.unwrap_or(Blast::Medium))
    };
    let least = own.unwrap_or_else(chosen);
    // One that is none is told of by the keeper.
    if level(asked).is_none_or(|asked| asked >= least) {
        return Ok(());
    }
    Err(ApiError::new(
        Code::Forbidden,
        "choose the level",
        format!("`{asked}` is weaker than `{least}`, which the template has"),
        "leave `level` out, name a stronger one, or use a key with the scope `admin`",
    ))
}

/// Lays `patch` over `base`: objects are laid over each other, everything else replaces.
pub(crate) fn lay(base: &mut serde_json::Value, patch: serde_json::Value) {
    use serde_json::Value;
    match (base, patch) {
        (_, Value::Null) => {}
        (Value::Object(base), Value::Object(patch)) => {
            for (name, value) in patch {
                lay(base.entry(name).or_insert(Value::Null), value);
            }
        }
        (base, patch) => *base = patch,
    }
}

/// Takes out secrets that no rule uses: a caller who names rules of their own leaves the template's behind, and what
/// those used with them.
pub(crate) fn drop_unused(spec: &mut Spec) {
    use serde_json::Value;
    let allow = spec.envelope.pointer("/network/allow").and_then(Value::as_array);
    let used: Vec<String> = allow
        .into_iter()
        .flatten()
        .filter_map(|rule| Some(rule.as_str()?.rsplit_once(" with ")?.1.rsplit(':').next()?.to_owned()))
        .collect();
    let secrets = spec.envelope.pointer_mut("/credentials/secrets").and_then(Value::as_array_mut);
    if let Some(secrets) = secrets {
        let name = |text: &Value| text.as_str().and_then(|text| text.split('=').next()).map(str::to_owned);
        secrets.retain(|secret| name(secret).is_none_or(|name| used.contains(&name)));
    }
}

/// Names the secrets that a caller has given, beside those of the template.
pub(crate) fn give(spec: &mut Spec, literals: &Literals) {
    name(spec, literals);
    spec.literals = literals.clone();
}

/// The same, without their values.
pub(crate) fn name(spec: &mut Spec, literals: &Literals) {
    use serde_json::Value;
    if literals.is_empty() {
        return;
    }
    let known = spec.envelope.pointer("/credentials/secrets").and_then(Value::as_array);
    let mut all = known.cloned().unwrap_or_default();
    all.extend(literals.iter().map(|(name, _)| Value::from(format!("{name}=given:"))));
    lay(&mut spec.envelope, serde_json::json!({ "credentials": { "secrets": all } }));
}

/// Refuses a patch that a caller of this kind may not make.
pub(crate) fn judge(patch: &serde_json::Value, is_admin: bool) -> Result<(), ApiError> {
    let bad = |cause: String| {
        ApiError::new(
            Code::Forbidden,
            "make the envelope",
            cause,
            "leave it to a template of the operator, `serve/templates/NAME.toml`, or use a key with the scope `admin`",
        )
    };
    if patch.is_null() {
        return Ok(());
    }
    let Some(clauses) = patch.as_object() else {
        return Err(ApiError::plain(Code::BadRequest, "read the envelope", "it is not an object"));
    };
    match clauses.keys().find(|clause| !is_admin && !OPEN_CLAUSES.contains(&clause.as_str())) {
        Some(clause) => Err(bad(format!("`{clause}` is for the operator to say"))),
        None => Ok(()),
    }
}

fn flawed(path: &Path, cause: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(
        Code::Registry,
        format!("read `{}`", path.display()),
        cause.to_string(),
        "correct the template's file, or move it away",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn patches_are_laid_over_and_what_names_the_host_is_the_operators() {
        let mut base = json!({ "resources": { "memory": "1 GiB", "disk": "2 GiB" } });
        lay(&mut base, json!({ "resources": { "memory": "3 GiB" }, "network": { "allow": ["a"] } }));
        assert_eq!(
            base,
            json!({ "resources": { "memory": "3 GiB", "disk": "2 GiB" }, "network": { "allow": ["a"] } })
        );
        assert!(judge(&json!({ "network": {} }), false).is_ok());
        for clause in ["filesystem", "credentials", "privilege", "anything"] {
            assert_eq!(judge(&json!({ clause: {} }), false).unwrap_err().code, Code::Forbidden);
            assert!(judge(&json!({ clause: {} }), true).is_ok());
        }
        assert_eq!(judge(&json!([]), true).unwrap_err().code, Code::BadRequest);
    }

    #[test]
    fn templates_are_read_and_a_flawed_one_is_told_of() {
        let base = tempfile::tempdir().unwrap();
        assert_eq!(Templates::open(base.path()).unwrap().names(), ["base"]);
        let folder = base.path().join("templates");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("py.toml"), "level = 'container'\nenv = { A = '1' }\n").unwrap();
        let templates = Templates::open(base.path()).unwrap();
        assert_eq!(templates.spec("py").unwrap().env, [("A".to_owned(), "1".to_owned())]);
        assert!(templates.spec("no").is_none());
        std::fs::write(folder.join("py.toml"), "levle = 'container'\n").unwrap();
        assert!(Templates::open(base.path()).unwrap_err().cause.contains("levle"));
    }
}
