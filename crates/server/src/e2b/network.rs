//! E2B's network fields, in the words of `fumehood.toml`.
//!
//! Rules of ours only allow. What an E2B client writes is taken where it says the same in those words, and refused
//! where it does not: nothing is left out in silence, and nothing is opened that was not named.

use super::refusal::Refusal;
use crate::clock;
use crate::engine::network::{GIVEN, Reach};
use fumehood_keep::literals::Literals;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What `allowOut` and `denyOut` write for everything.
const EVERYTHING: [&str; 2] = ["0.0.0.0/0", "::/0"];
const MOST_RULES: usize = 1000;
/// Characters of a value that is written out.
const LEAST_VALUE: usize = 8;
const MOST_VALUE: usize = 4096;
/// What a header's value is written with when an operator's secret is meant.
const SECRET: &str = "${fumehood.secret.";

/// `network` of a create.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Network {
    allow_out: Option<Vec<String>>,
    deny_out: Option<Vec<String>>,
    rules: Option<BTreeMap<String, Vec<Rule>>>,
    allow_public_traffic: Option<bool>,
    /// Of an update alone: a create has it beside.
    #[serde(alias = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Rule {
    transform: Option<Transform>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Transform {
    headers: BTreeMap<String, String>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

// === impl Network ===

impl Network {
    /// Reads `network` of a create.
    pub(super) fn read(written: &Value) -> Result<Self, Refusal> {
        if written.is_null() {
            return Ok(Self::default());
        }
        Self::deserialize(written)
            .map_err(|error| Refusal::bad("read `network`", error.to_string(), "docs/e2b.md has its fields"))
    }

    /// Whether ports need no token.
    pub(super) fn is_public(&self) -> bool {
        self.allow_public_traffic == Some(true)
    }

    /// Whether nothing at all was said about what may be reached.
    fn is_silent(&self) -> bool {
        self.allow_out.is_none() && self.deny_out.is_none() && self.rules.is_none()
    }

    /// The `network` clause, and the secrets that were written out in it; `Null` where nothing was asked for, so that
    /// the template's stands.
    pub(super) fn clause(&self, internet: Option<bool>) -> Result<(Value, Literals), Refusal> {
        refuse_others(&self.others, "network")?;
        let allowed = self.allow_out.as_deref().unwrap_or_default();
        let denied = self.deny_out.as_deref().unwrap_or_default();
        let rules = self.rules.as_ref();
        if allowed.len() + rules.map_or(0, BTreeMap::len) > MOST_RULES {
            return Err(refused(
                format!("there are more than {MOST_RULES} entries"),
                "name fewer, or use wildcards",
            ));
        }
        let closed =
            internet == Some(false) || denied.iter().any(|entry| EVERYTHING.contains(&entry.as_str()));
        let open = allowed.iter().any(|entry| EVERYTHING.contains(&entry.as_str()));
        if let Some(entry) = denied.iter().find(|entry| !closed && !EVERYTHING.contains(&entry.as_str())) {
            return Err(refused(
                format!("`denyOut` has `{}`, and rules here only allow", shown(entry)),
                "deny everything (`0.0.0.0/0`), and name in `allowOut` what may be reached",
            ));
        }
        let mut allow = Vec::new();
        let mut given = Given { stamp_ms: clock::now_ms(), literals: Literals::default(), count: 0 };
        for (host, rules) in rules.into_iter().flatten() {
            allow.push(given.injection(host, rules)?);
        }
        let mut ranges = Vec::new();
        for entry in allowed.iter().filter(|entry| !EVERYTHING.contains(&entry.as_str())) {
            match range(entry) {
                Some(range) => ranges.push(format!("{range}:1-65535")),
                None => allow.extend(names(entry)?),
            }
        }
        if allow.is_empty() && ranges.is_empty() && !open {
            // What was closed in words can be opened later; who says nothing about it has no way out at all.
            let net = if self.is_silent() { "none" } else { "allow" };
            let none = json!({ "net": net, "allow": [], "allow-cidr": [], "presets": [] });
            return Ok((if closed { none } else { Value::Null }, Literals::default()));
        }
        let net = if open { "proxy" } else { "allow" };
        Ok((json!({ "net": net, "allow": allow, "allow-cidr": ranges }), given.literals))
    }

    /// What a living sandbox may reach from now on: what is left out is cleared.
    pub(super) fn reach(&self) -> Result<Reach, Refusal> {
        let (clause, literals) = self.clause(self.allow_internet_access)?;
        let texts = |name: &str| {
            let list = clause.get(name).and_then(Value::as_array).into_iter().flatten();
            list.filter_map(|entry| entry.as_str().map(str::to_owned)).collect()
        };
        let net = clause.get("net").and_then(Value::as_str).unwrap_or("allow").to_owned();
        Ok(Reach { net: Some(net), allow: texts("allow"), allow_cidr: texts("allow-cidr"), literals })
    }

    /// As it was written, with no value of a header in it but a secret's name.
    pub(super) fn shown(written: &Value) -> String {
        let mut shown = written.clone();
        let rules = shown.get_mut("rules").and_then(Value::as_object_mut);
        for rule in
            rules.into_iter().flat_map(|rules| rules.values_mut()).filter_map(Value::as_array_mut).flatten()
        {
            let headers = rule.pointer_mut("/transform/headers").and_then(Value::as_object_mut);
            for value in headers.into_iter().flat_map(|headers| headers.values_mut()) {
                if value.as_str().is_none_or(|text| !text.contains(SECRET)) {
                    *value = Value::from("***");
                }
            }
        }
        shown.to_string()
    }
}

/// An address or a range, as a range.
fn range(entry: &str) -> Option<String> {
    if let Ok(address) = entry.parse::<IpAddr>() {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        return Some(format!("{address}/{bits}"));
    }
    let (address, bits) = entry.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    bits.parse::<u8>().ok().filter(|bits| *bits <= most).map(|bits| format!("{address}/{bits}"))
}

/// The rules of a name: TLS at its port, and HTTP in the clear at its.
fn names(entry: &str) -> Result<[String; 2], Refusal> {
    let name = entry.trim();
    let plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'*' | b'_') || byte >= 0x80;
    if name.is_empty() || name == "*" || name.len() > 253 || !name.bytes().all(plain) {
        return Err(refused(
            format!("`allowOut` has `{}`, which is neither an address, a range nor a name", shown(entry)),
            "write `api.example.com`, `*.example.com`, `192.0.2.1` or `192.0.2.0/24`; `0.0.0.0/0` for everything public",
        ));
    }
    Ok([name.to_owned(), format!("http://{name}")])
}

/// Secrets that are written out.
struct Given {
    /// Makes their names differ from those that the sandbox has.
    stamp_ms: u64,
    literals: Literals,
    count: usize,
}

impl Given {
    /// The rule of a host that a header is put in for.
    fn injection(&mut self, host: &str, rules: &[Rule]) -> Result<String, Refusal> {
        let mut headers = Vec::new();
        for rule in rules {
            refuse_others(&rule.others, "network.rules")?;
            if let Some(transform) = &rule.transform {
                refuse_others(&transform.others, "network.rules.transform")?;
                headers.extend(&transform.headers);
            }
        }
        let [name, _] = names(host)?;
        let (header, value) = match headers.as_slice() {
            [] => return Ok(name),
            [one] => *one,
            [_, _, ..] => {
                return Err(refused(
                    format!(
                        "`rules` puts {} headers in for `{}`, of one at most",
                        headers.len(),
                        shown(host)
                    ),
                    "put one header in for a host",
                ));
            }
        };
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let secret = |text: &str| {
            let name = text.strip_prefix(SECRET)?.strip_suffix('}')?;
            (!name.is_empty() && name.bytes().all(is_token)).then(|| name.to_owned())
        };
        if header.is_empty() || !header.bytes().all(is_token) {
            return Err(refused(
                format!("`{}` is not a header's name", shown(header)),
                "use letters, digits and `-`",
            ));
        }
        let is_authorization = header.eq_ignore_ascii_case("authorization");
        let kind = match (value.strip_prefix("Bearer ").and_then(secret), secret(value)) {
            (Some(name), _) if is_authorization => format!("bearer:{name}"),
            (_, Some(name)) => format!("header:{header}:{name}"),
            (_, None) if value.contains("${") => {
                return Err(refused(
                    format!(
                        "the value of `{header}` for `{}` has a placeholder that is not known",
                        shown(host)
                    ),
                    "write `${fumehood.secret.NAME}` alone, `Bearer ${fumehood.secret.NAME}`, or the value itself",
                ));
            }
            (_, None) => format!("header:{header}:{}", self.take(header, host, value)?),
        };
        Ok(format!("https://{name}/** with {kind}"))
    }

    /// A value that is written out is a secret from here on: named, and told to the keeper alone.
    fn take(&mut self, header: &str, host: &str, value: &str) -> Result<String, Refusal> {
        let is_plain = |byte: u8| byte == b'\t' || (0x20..0x7f).contains(&byte);
        if value.len() < LEAST_VALUE || value.len() > MOST_VALUE || !value.bytes().all(is_plain) {
            return Err(refused(
                format!(
                    "the value of `{header}` for `{}` has not {LEAST_VALUE} to {MOST_VALUE} plain characters",
                    shown(host)
                ),
                "what is put into requests is held as a secret; shorter ones could not be masked in what comes back",
            ));
        }
        let name = format!("{GIVEN}{}_{}", self.stamp_ms, self.count);
        self.count += 1;
        self.literals.add(name.clone(), value.to_owned().into());
        Ok(name)
    }
}

/// Fields that are not known must not be passed over: what they ask for would not happen.
pub(super) fn refuse_others(others: &BTreeMap<String, Value>, of: &str) -> Result<(), Refusal> {
    let empty = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    };
    match others.iter().find(|(_, value)| !empty(value)) {
        None => Ok(()),
        Some((name, _)) => Err(refused(
            format!("`{}` of `{of}` can not be done here", shown(name)),
            "leave it out; docs/e2b.md tells what is done, and what stands in for the rest",
        )),
    }
}

fn refused(cause: String, remedy: &str) -> Refusal {
    Refusal::bad("make the sandbox as asked", cause, remedy)
}

fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clause(words: Value, internet: Option<bool>) -> Result<Value, String> {
        let network: Network = serde_json::from_value(words).unwrap();
        network.clause(internet).map(|(clause, _)| clause).map_err(|Refusal(error)| error.to_string())
    }

    #[test]
    fn what_says_the_same_is_taken() {
        assert_eq!(clause(json!({}), None), Ok(Value::Null));
        assert_eq!(clause(json!({}), Some(true)), Ok(Value::Null));
        let none = json!({ "net": "none", "allow": [], "allow-cidr": [], "presets": [] });
        assert_eq!(clause(json!({}), Some(false)), Ok(none));
        let closed = json!({ "net": "allow", "allow": [], "allow-cidr": [], "presets": [] });
        assert_eq!(clause(json!({ "denyOut": ["0.0.0.0/0"] }), None), Ok(closed));
        assert_eq!(
            clause(
                json!({ "denyOut": ["0.0.0.0/0", "10.0.0.0/8"], "allowOut": ["api.example.com", "192.0.2.1"] }),
                None
            ),
            Ok(json!({
                "net": "allow",
                "allow": ["api.example.com", "http://api.example.com"],
                "allow-cidr": ["192.0.2.1/32:1-65535"],
            }))
        );
        assert_eq!(
            clause(json!({ "allowOut": ["0.0.0.0/0"] }), None),
            Ok(json!({ "net": "proxy", "allow": [], "allow-cidr": [] }))
        );
        let rules = json!({ "api.example.com": [{ "transform": { "headers":
            { "Authorization": "Bearer ${fumehood.secret.GH}" } } }] });
        assert_eq!(
            clause(json!({ "rules": rules }), None).unwrap()["allow"],
            json!(["https://api.example.com/** with bearer:GH"])
        );
    }

    #[test]
    fn a_value_that_is_written_out_is_a_secret_from_then_on() {
        let written = json!({ "rules": { "a.example.com": [{ "transform": { "headers": { "X-Key": "l1teral-value" } } }] } });
        let network = Network::read(&written).map_err(|Refusal(error)| error).unwrap();
        let (clause, literals) = network.clause(None).map_err(|Refusal(error)| error).unwrap();
        assert!(!clause.to_string().contains("l1teral"), "{clause}");
        let rule = clause["allow"][0].as_str().unwrap();
        let name = rule.rsplit(':').next().unwrap();
        assert_eq!(literals.get(name), Some("l1teral-value"), "{rule}");
        assert!(rule.starts_with("https://a.example.com/** with header:X-Key:GIVEN_"), "{rule}");
        assert!(!Network::shown(&written).contains("l1teral"));
        let reach = network.reach().map_err(|Refusal(error)| error).unwrap();
        assert_eq!((reach.allow.len(), reach.net.as_deref()), (1, Some("allow")));
        assert!(!format!("{reach:?}").contains("l1teral"));
    }

    #[test]
    fn what_can_not_be_said_is_refused() {
        for (words, why) in [
            (json!({ "denyOut": ["8.8.8.8/32"] }), "only allow"),
            (json!({ "egressProxy": { "address": "a" } }), "egressProxy"),
            (json!({ "dnsServers": ["1.1.1.1"] }), "dnsServers"),
            (json!({ "allowOut": ["a b"] }), "neither"),
            (json!({ "allowOut": ["a with bearer:X"] }), "neither"),
            (
                json!({ "rules": { "a.example.com": [{ "transform": { "headers": { "X-Key": "short" } } }] } }),
                "plain characters",
            ),
            (
                json!({ "rules": { "a.example.com": [{ "transform": { "headers": { "X-Key": "${e2b.identity.tokens.aws}" } } }] } }),
                "placeholder",
            ),
            (json!({ "rules": { "a.example.com": [{ "block": true }] } }), "block"),
        ] {
            let error = clause(words, None).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
