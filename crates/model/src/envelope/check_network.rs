//! The network clause, and the secrets that its rules use.

use super::clauses::{Network, Secret, SecretSource};
use super::{CredentialsSpec, Defaults, EnvelopeSpec, Flaw, NetworkSpec, Preset};
use crate::egress::{Authority, Ceiling, Counted, Egress, Opened, Pattern, Publish, Reach, Resolution, Rule};
use crate::egress::{RuleFlaw, Upstream};
use crate::text::shown;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The network clause.
pub(super) fn network(spec: &EnvelopeSpec, defaults: &Defaults, flaws: &mut Vec<Flaw>) -> Network {
    let before = flaws.len();
    let NetworkSpec { net, allow, allow_cidr, resolve, presets, publish, limits, upstream, authorities } =
        &spec.network;
    let mut rules = each("network.allow", allow, Rule::parse, flaws);
    let ranges = each("network.allow-cidr", allow_cidr, Opened::parse, flaws);
    let mut resolutions = each("network.resolve", resolve, Resolution::parse, flaws);
    for (entry, preset) in known_presets(presets, defaults, flaws) {
        let mut own = Vec::new();
        rules.extend(each("network.presets", &preset.rules, Rule::parse, &mut own));
        resolutions.extend(each("network.presets", &preset.resolutions, Resolution::parse, &mut own));
        flaws.extend(own.into_iter().map(|flaw| flaw.at(entry)));
    }
    rules = distinct(rules);
    let ceilings = each("network.limits", limits, Ceiling::parse, flaws);
    let authorities = each("network.authorities", authorities, Authority::parse, flaws);
    let publish = published(each("network.publish", publish, Publish::parse, flaws), flaws);
    let upstream = upstream.as_deref().map(Upstream::parse).transpose();
    let upstream = upstream.unwrap_or_else(|flaw| {
        flaws.push(Flaw::of_rule("network.upstream", flaw));
        None
    });
    let sends = !rules.is_empty() || !ranges.is_empty();
    let reach = reach(net.as_deref(), sends, flaws);
    if reach.is_none() && before == flaws.len() {
        idle(&resolutions, ceilings.len() + authorities.len() + usize::from(upstream.is_some()), flaws);
    }
    let egress = reach.map(|reach| Egress {
        reach,
        rules,
        ranges,
        resolutions,
        ceilings: with_defaults(ceilings),
        upstream,
        authorities,
    });
    Network { egress, publish }
}

/// The secrets, each used by a rule, and each rule's there.
pub(super) fn secrets(spec: &EnvelopeSpec, network: &Network, flaws: &mut Vec<Flaw>) -> Vec<Secret> {
    let CredentialsSpec { env, set, secrets } = &spec.credentials;
    let before = flaws.len();
    let mut found: Vec<Secret> = Vec::new();
    for (entry, text) in secrets.iter().enumerate() {
        let field = "credentials.secrets";
        let flaw = match secret(text) {
            Err(what) => {
                Flaw::new(field, what, "write `NAME=env:VARIABLE`, `NAME=file:PATH` or `NAME=cmd:COMMAND`")
            }
            Ok(secret) if found.iter().any(|known| known.name == secret.name) => {
                Flaw::new(field, format!("`{}` is named twice", secret.name), "keep one of the two")
            }
            Ok(secret) if env.contains(&secret.name) || set.contains_key(&secret.name) => Flaw::new(
                field,
                format!("the variable `{}` is to hold both a value and a placeholder", secret.name),
                "take the name out of `env` and `set`: a secret's value never enters",
            ),
            Ok(secret) => {
                found.push(secret);
                continue;
            }
        };
        flaws.push(flaw.at(entry));
    }
    if before == flaws.len() {
        bound(&found, network, flaws);
    }
    found
}

fn bound(secrets: &[Secret], network: &Network, flaws: &mut Vec<Flaw>) {
    let rules = network.egress.iter().flat_map(|egress| &egress.rules);
    let used: BTreeSet<&str> =
        rules.filter_map(|rule| Some(rule.binding.as_ref()?.secret.as_str())).collect();
    for name in used.iter().filter(|name| !secrets.iter().any(|secret| secret.name == **name)) {
        flaws.push(Flaw::new(
            "network.allow",
            format!("a rule uses the secret `{name}`, and there is none of that name"),
            format!("say where it is read: `--secret {name}=env:{name}`"),
        ));
    }
    for (entry, secret) in
        secrets.iter().enumerate().filter(|(_, secret)| !used.contains(secret.name.as_str()))
    {
        let what = format!("no rule uses the secret `{}`", secret.name);
        let remedy = format!("write `--allow 'https://api.example.com with bearer:{}'`", secret.name);
        flaws.push(Flaw::new("credentials.secrets", what, remedy).at(entry));
    }
}

/// Reads `NAME=env:VARIABLE`, `NAME=file:PATH`, `NAME=cmd:COMMAND`, or `NAME` for the variable of that name.
fn secret(text: &str) -> Result<Secret, String> {
    let (name, source) = match text.split_once('=') {
        Some((name, source)) => (name, Some(source)),
        None => (text, None),
    };
    if !crate::egress::is_secret_name(name) {
        return Err(format!("`{}` is no name for a secret", shown(name)));
    }
    let source = match source.map(|source| source.split_once(':').unwrap_or((source, ""))) {
        None => SecretSource::Variable(name.to_owned()),
        Some(("env", variable)) if crate::egress::is_secret_name(variable) => {
            SecretSource::Variable(variable.to_owned())
        }
        Some(("file", path)) if !path.is_empty() && !path.contains('\0') => {
            SecretSource::File(PathBuf::from(path))
        }
        Some(("cmd", command)) if !command.trim().is_empty() && !command.contains('\0') => {
            SecretSource::Command(command.to_owned())
        }
        Some(("given", "")) => SecretSource::Given,
        // What stands there may be the value itself, by mistake: it is not repeated.
        Some(_) => return Err(format!("what follows `{name}=` names no source")),
    };
    Ok(Secret { name: name.to_owned(), source })
}

/// Reads every entry of a list; each bad one is a flaw with its place.
fn each<T>(
    field: &'static str,
    texts: &[String],
    read: impl Fn(&str) -> Result<T, RuleFlaw>,
    flaws: &mut Vec<Flaw>,
) -> Vec<T> {
    let mut good = Vec::with_capacity(texts.len());
    for (entry, text) in texts.iter().enumerate() {
        match read(text) {
            Ok(value) => good.push(value),
            Err(flaw) => flaws.push(Flaw::of_rule(field, named(text, flaw)).at(entry)),
        }
    }
    good
}

/// A flaw names the whole entry, for there may be many.
fn named(text: &str, flaw: RuleFlaw) -> RuleFlaw {
    let whole = format!("`{}`", shown(text));
    if flaw.what.contains(&whole) {
        flaw
    } else {
        RuleFlaw { what: format!("{whole}: {}", flaw.what), ..flaw }
    }
}

/// The presets that there are, with their places in the list.
fn known_presets<'a>(
    presets: &[String],
    defaults: &'a Defaults,
    flaws: &mut Vec<Flaw>,
) -> Vec<(usize, &'a Preset)> {
    let mut known = Vec::new();
    for (entry, name) in presets.iter().enumerate() {
        let flaw = match defaults.presets.get(name) {
            Some(preset) if !preset.rules.is_empty() => {
                known.push((entry, preset));
                continue;
            }
            Some(_) => Flaw::new(
                "network.presets",
                format!("your configuration of `{}` names no registry", shown(name)),
                "name its hosts with `--allow`; `--learn FILE` finds which they are",
            ),
            None => {
                let names: Vec<&str> = defaults.presets.keys().map(String::as_str).collect();
                let what = format!("there is no preset `{}`", shown(name));
                Flaw::new("network.presets", what, format!("there are `{}`", names.join("`, `")))
            }
        };
        flaws.push(flaw.at(entry));
    }
    known
}

/// Each rule once, in order.
fn distinct(rules: Vec<Rule>) -> Vec<Rule> {
    let mut seen = BTreeSet::new();
    rules.into_iter().filter(|rule| seen.insert(rule.to_string())).collect()
}

/// `None`: nothing leaves.
fn reach(net: Option<&str>, sends: bool, flaws: &mut Vec<Flaw>) -> Option<Reach> {
    let field = "network.net";
    let both = |word: &str| {
        let what = format!("`{word}` lets nothing connect, and there are rules");
        Flaw::new(field, what, "write `allow`, or take the rules out")
    };
    match net {
        None => sends.then_some(Reach::Rules),
        Some("none") if !sends => None,
        Some("dns") if !sends => Some(Reach::Names),
        Some("allow") => Some(Reach::Rules),
        Some("proxy") => Some(Reach::Public),
        Some(word @ ("none" | "dns")) => {
            flaws.push(both(word));
            None
        }
        Some(word) => {
            let what = format!("`{}` is no reach", shown(word));
            flaws.push(Flaw::new(field, what, "write `none`, `dns`, `allow` or `proxy`"));
            None
        }
    }
}

/// What says something about a network that is not there.
fn idle(resolutions: &[Resolution], others: usize, flaws: &mut Vec<Flaw>) {
    let (field, what) = match (resolutions.len(), others) {
        (0, 0) => return,
        (0, _) => ("network.limits", "nothing leaves, so there is nothing to limit, pass on or certify"),
        (_, _) => ("network.resolve", "nothing leaves, so no name is resolved"),
    };
    flaws.push(Flaw::new(field, what.to_owned(), "add a rule with `--allow`"));
}

/// One port of the host leads to one place.
fn published(ports: Vec<Publish>, flaws: &mut Vec<Flaw>) -> Vec<Publish> {
    let mut seen = BTreeSet::new();
    for (entry, publish) in ports.iter().enumerate() {
        if !seen.insert(publish.host_port) {
            let what = format!("the port {} of the host is named twice", publish.host_port);
            flaws.push(Flaw::new("network.publish", what, "give each its own: `9000:8080`").at(entry));
        }
    }
    ports
}

/// The lowest of each, and something finite for what nobody wrote.
fn with_defaults(written: Vec<Ceiling>) -> Vec<Ceiling> {
    let mut held: Vec<Ceiling> = Vec::new();
    for ceiling in written {
        match held.iter_mut().find(|known| known.of == ceiling.of && known.hosts == ceiling.hosts) {
            Some(known) => known.most = known.most.min(ceiling.most),
            None => held.push(ceiling),
        }
    }
    for of in Counted::ALL {
        if !held.iter().any(|known| known.of == of && known.hosts.is_none()) {
            held.push(Ceiling { of, hosts: None::<Pattern>, most: of.default() });
        }
    }
    held
}
