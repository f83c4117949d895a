//! A task judged by other rules: which of its acts they would have refused, and which refusals they would lift.

use super::say;
use crate::host::{self, Places, Terminals};
use crate::refusal::Refusal;
use crate::{command::RunArguments, config, images, screen};
use fumehood_audit::Transcript;
use fumehood_model::egress::{Ask, Denial, Identity, Request, Scheme, Table, UrlPath};
use fumehood_model::envelope::{Envelope, EnvelopeSpec};
use fumehood_model::event::{EgressAllowed, EgressDenied, Event};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

/// Refusals that the rules decide; the others come from what was found on the way.
const BY_RULES: [&str; 9] = [
    "names_only",
    "no_rule",
    "port",
    "scheme",
    "not_inspected",
    "method",
    "path",
    "ambiguous_path",
    "raw_address",
];

/// One act about which the two do not agree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Difference {
    act: String,
    then: String,
    now: String,
}

/// What a judgement came to.
#[derive(Debug, Default)]
struct Judged {
    acts: u64,
    /// Each with how many acts it stands for.
    different: BTreeMap<Difference, u64>,
    /// Acts that can not be judged again, and why.
    unjudged: BTreeMap<String, u64>,
}

pub(super) fn judge(transcript: &Transcript, policy: &Path, json: bool) -> Result<ExitCode, Refusal> {
    let spec = read(policy)?;
    let envelope = check(&spec)?;
    let mut judged = Judged::default();
    let table = envelope.network().egress.clone().map(Table::new);
    for event in transcript.lines.iter().filter_map(fumehood_audit::Line::known) {
        if let Event::EgressAllowed(allowed) = &event {
            judged.allowed(table.as_ref(), allowed);
        } else if let Event::EgressDenied(denied) = &event {
            judged.denied(table.as_ref(), denied);
        } else if let Event::Launched { level, .. } = event {
            if let Some(asked) = spec.level
                && asked.name() != level
            {
                judged.differ("the level".to_owned(), level, asked.name().to_owned(), 1);
            }
        } else if let Event::FileIn { source, .. } = &event {
            judged.input(&envelope, source);
        } else if let Event::ExecEnded { usage, .. } = event {
            judged.limits(&envelope, usage);
        }
    }
    judged.say(transcript, policy, json);
    Ok(if judged.different.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn read(policy: &Path) -> Result<EnvelopeSpec, Refusal> {
    let name = policy.display().to_string();
    let text = std::fs::read_to_string(policy).map_err(|error| {
        Refusal::new("read the policy", format!("`{name}`: {error}"), "name a file that you can read")
    })?;
    let places = Places::now()?;
    let path = places.cwd.join(policy);
    let folder = path.parent().unwrap_or(&places.cwd);
    Ok(config::parse_alone(&text, &name)?.rebased(folder).spec().clone())
}

fn check(spec: &EnvelopeSpec) -> Result<Envelope, Refusal> {
    let places = Places::now()?;
    let mut defaults = host::defaults(&RunArguments::default(), Terminals::now(), &places);
    defaults.presets = host::presets(places.home.as_deref())?;
    defaults.images = images::all(places.state.as_deref())?;
    Envelope::check(spec, &defaults).map_err(|flaws| Refusal::flaws(&flaws, |flaw| flaw.field.to_owned()))
}

/// The verdict of a table.
enum Verdict {
    Allowed { secret: Option<String> },
    Denied(String),
}

fn decide(
    table: Option<&Table>,
    (to, method, path): (&str, Option<&str>, Option<&str>),
) -> Result<Verdict, String> {
    let (scheme, authority) = match to.split_once("://") {
        Some(("https", authority)) => (Scheme::Https, authority),
        Some(("http", authority)) => (Scheme::Http, authority),
        Some(_) => return Err("its kind is not known to this version".to_owned()),
        None => (Scheme::Tcp, to),
    };
    let identity = Identity::from_authority(scheme, authority)
        .map_err(|_| "its place was cut short, or is none".to_owned())?;
    let path =
        path.map(UrlPath::parse).transpose().map_err(|_| "its path was cut short, or is none".to_owned())?;
    let request = method.zip(path.as_ref()).map(|(method, path)| Request { method, path });
    let Some(table) = table else { return Ok(Verdict::Denied("there is no network".to_owned())) };
    let ask = |request| table.decide(Ask { identity: &identity, request });
    // What passed unread was judged without its request, and would now be read where a rule wants that.
    Ok(match ask(request) {
        Ok(permit) => Verdict::Allowed { secret: permit.binding().map(|binding| binding.secret.clone()) },
        Err(Denial::NotInspected) if request.is_none() => {
            return Err("it passed unread, and the rules would look inside".to_owned());
        }
        Err(denial) => Verdict::Denied(denial.to_string()),
    })
}

// === impl Judged ===

impl Judged {
    fn differ(&mut self, act: String, then: String, now: String, count: u64) {
        *self.different.entry(Difference { act, then, now }).or_default() += count;
    }

    fn allowed(&mut self, table: Option<&Table>, then: &EgressAllowed) {
        self.acts += 1;
        let act = act(then.method.as_deref(), &then.to, then.path.as_deref());
        let was = |secret: &Option<String>| match secret {
            Some(secret) => format!("allowed, with the secret `{secret}`"),
            None => "allowed".to_owned(),
        };
        match decide(table, (&then.to, then.method.as_deref(), then.path.as_deref())) {
            Err(why) => *self.unjudged.entry(format!("{act}: {why}")).or_default() += 1,
            Ok(Verdict::Allowed { secret }) if secret == then.credential => {}
            Ok(Verdict::Allowed { secret }) => self.differ(act, was(&then.credential), was(&secret), 1),
            Ok(Verdict::Denied(why)) => self.differ(act, was(&then.credential), format!("denied: {why}"), 1),
        }
    }

    fn denied(&mut self, table: Option<&Table>, then: &EgressDenied) {
        self.acts += then.count;
        let act = act(then.method.as_deref(), &then.to, then.path.as_deref());
        if !BY_RULES.contains(&then.reason.as_str()) {
            let why = format!("{act}: it was refused for what rules do not decide ({})", then.reason);
            *self.unjudged.entry(why).or_default() += then.count;
            return;
        }
        match decide(table, (&then.to, then.method.as_deref(), then.path.as_deref())) {
            Err(why) => *self.unjudged.entry(format!("{act}: {why}")).or_default() += then.count,
            Ok(Verdict::Denied(_)) => {}
            Ok(Verdict::Allowed { .. }) => {
                self.differ(act, format!("denied: {}", then.why), "allowed".to_owned(), then.count);
            }
        }
    }

    /// A file that was copied in, and would not be.
    fn input(&mut self, envelope: &Envelope, source: &str) {
        self.acts += 1;
        let inputs = &envelope.filesystem().inputs;
        if !inputs.iter().any(|input| fumehood_audit::os_text(&input.source) == source) {
            self.differ(format!("copy in {source}"), "allowed".to_owned(), "not named".to_owned(), 1);
        }
    }

    /// Limits that what was used would have met.
    fn limits(&mut self, envelope: &Envelope, used: fumehood_model::report::Usage) {
        self.acts += 1;
        let limits = envelope.resources();
        let timeout = limits.timeout.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let output = used.stdout_bytes.saturating_add(used.stderr_bytes);
        for (what, used, limit) in [
            ("ms of time", Some(used.wall_ms), timeout),
            ("bytes of memory", used.peak_memory_bytes, Some(limits.memory_bytes)),
            ("bytes of output", Some(output), Some(limits.output_bytes)),
        ] {
            if let (Some(used), Some(limit)) = (used, limit)
                && used > limit
            {
                self.differ(
                    "the command".to_owned(),
                    format!("used {used} {what}"),
                    format!("at most {limit}"),
                    1,
                );
            }
        }
    }

    fn say(&self, transcript: &Transcript, policy: &Path, json: bool) {
        if json {
            let list: Vec<_> = self
                .different
                .iter()
                .map(|(one, count)| serde_json::json!({ "act": one.act, "then": one.then, "now": one.now, "count": count }))
                .collect();
            screen::say_json(&serde_json::json!({
                "task": transcript.task, "acts": self.acts, "different": list, "unjudged": self.unjudged,
            }));
            return;
        }
        for (Difference { act, then, now }, count) in &self.different {
            let times = if *count > 1 { format!("  ({count} times)") } else { String::new() };
            say(&format!("{act}{times}"));
            say(&format!("  then  {then}"));
            say(&format!("  now   {now}"));
        }
        for (what, count) in &self.unjudged {
            screen::note(&format!("not judged again, {count} times: {what}"));
        }
        let number: u64 = self.different.values().sum();
        let name = policy.display();
        say(&format!("{number} of {} acts would be decided otherwise by `{name}`", self.acts));
    }
}

fn act(method: Option<&str>, to: &str, path: Option<&str>) -> String {
    let method = method.map(|method| format!("{method} ")).unwrap_or_default();
    format!("{method}{to}{}", path.unwrap_or_default())
}
