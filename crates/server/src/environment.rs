//! Which of the daemon's variables a keeper is given.
//!
//! Whoever starts the daemon may have put secrets there for the templates that name them. A keeper, its reaper and its
//! gate, which reads what guests send, have those of their own sandbox alone.

use fumehood_keep::wire::Spec;
use serde_json::Value;
use std::ffi::OsString;

/// What programs of ours look at, and the locale that commands get.
const KEPT: [&str; 12] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TERM",
    "TMPDIR",
    "DBUS_SESSION_BUS_ADDRESS",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];
const KEPT_PREFIXES: [&str; 4] = ["LC_", "XDG_", "FUMEHOOD_", "RUST_"];

/// Those of `all` that the keeper of this sandbox needs.
pub(crate) fn of(spec: &Spec, all: impl Iterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
    let secrets = spec.envelope.pointer("/credentials/secrets").and_then(Value::as_array);
    let sources: Vec<&str> = secrets
        .into_iter()
        .flatten()
        .filter_map(|secret| Some(secret.as_str()?.split_once('=')?.1))
        .collect();
    // What a command of the operator's looks at is not ours to know.
    let any = sources.iter().any(|source| source.starts_with("cmd:") || source.starts_with("command:"));
    let named = |name: &str| {
        KEPT.contains(&name)
            || KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || sources.iter().any(|source| source.strip_prefix("env:") == Some(name))
    };
    all.filter(|(name, _)| any || name.to_str().is_some_and(named)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_keeper_has_the_secrets_of_its_own_sandbox_alone() {
        let given = |secrets: Value| {
            let envelope = json!({ "credentials": { "secrets": secrets } });
            let all = ["PATH", "LC_ALL", "TOKEN", "OTHER"].map(|name| (name.into(), "x".into()));
            let given = of(&Spec { envelope, ..Spec::default() }, all.into_iter());
            given.into_iter().map(|(name, _)| name.into_string().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(given(json!([])), ["PATH", "LC_ALL"]);
        assert_eq!(given(json!(["T=env:TOKEN"])), ["PATH", "LC_ALL", "TOKEN"]);
        assert_eq!(given(json!(["T=cmd:print token"])), ["PATH", "LC_ALL", "TOKEN", "OTHER"]);
        assert_eq!(given(Value::Null), ["PATH", "LC_ALL"]);
    }
}
