//! Ceilings for what one line can hold. Every field that others fill is cut here, in one place, so a
//! line is never longer than a reader takes, whatever an argument list or a file name holds.

use crate::digest::Digest;
use crate::text::cut;
use fumehood_model::ending::{Ending, Hit};
use fumehood_model::event::{
    EgressAllowed, EgressDenied, EgressEnded, EgressName, Event, FetchStarted, ProveEnded,
};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// All arguments of one command together, and all names of variables.
pub(crate) const LIST_LIMIT_BYTES: usize = 8 << 10;
/// A list has at most so many items: an empty one takes room too.
const LIST_LIMIT_ITEMS: usize = 1024;
/// A path, or a sentence.
pub(crate) const TEXT_LIMIT_BYTES: usize = 4 << 10;
/// An envelope, or an enforcement, as JSON. An ordinary one has about 2 KiB.
const VALUE_LIMIT_BYTES: usize = 64 << 10;
/// Kinds of hits in one ending. There are fewer unless somebody makes them up.
const HIT_LIMIT: usize = 64;
/// Names of secrets that came back in one response.
const MASKED_LIMIT: usize = 64;

/// The event with every field within its ceiling.
pub(crate) fn capped(event: &Event) -> Cow<'_, Event> {
    let mut event = Cow::Borrowed(event);
    match event.as_ref() {
        Event::Launched { level, reason, envelope, enforcement } => {
            if too_long(level) || too_long(reason) || too_big(envelope) || too_big(enforcement) {
                let (level, reason) = (short(level), short(reason));
                let (envelope, enforcement) = (small(envelope), small(enforcement));
                event = Cow::Owned(Event::Launched { level, reason, envelope, enforcement });
            }
        }
        Event::ExecStarted { argv, cwd, env_names, terminal, exec, actor } => {
            let wordy = actor.as_deref().is_some_and(too_long);
            if too_many(argv) || too_many(env_names) || too_long(cwd) || wordy {
                event = Cow::Owned(Event::ExecStarted {
                    argv: few(argv),
                    cwd: short(cwd),
                    env_names: few(env_names),
                    terminal: *terminal,
                    exec: *exec,
                    actor: actor.as_deref().map(short),
                });
            }
        }
        Event::FetchStarted(_)
        | Event::FileIn { .. }
        | Event::FileOut { .. }
        | Event::FileApplied { .. }
        | Event::FileRefused { .. }
        | Event::FileAsked { .. }
        | Event::ActFailed { .. }
        | Event::Living(_)
        | Event::Claimed { .. }
        | Event::Stopped { .. } => event = Cow::Owned(clipped(event.as_ref().clone())),
        Event::ExecEnded { ending, hits, usage, changes, collected, exec } => {
            if hits.len() > HIT_LIMIT || hits.iter().any(|hit| too_long(&hit.detail)) || wordy(ending) {
                event = Cow::Owned(Event::ExecEnded {
                    ending: brief(ending),
                    hits: fewer(hits),
                    usage: *usage,
                    changes: *changes,
                    collected: *collected,
                    exec: *exec,
                });
            }
        }
        Event::ProveEnded(ended) => {
            if too_many(&ended.failed) {
                let failed = few(&ended.failed);
                event = Cow::Owned(Event::ProveEnded(ProveEnded { failed, ..ended.clone() }));
            }
        }
        Event::EgressAllowed(_) | Event::EgressDenied(_) | Event::EgressEnded(_) | Event::EgressName(_) => {
            event = Cow::Owned(shorter(event.as_ref().clone()));
        }
        Event::NetworkChanged { actor, network } => {
            if too_long(actor) || too_big(network) {
                event = Cow::Owned(Event::NetworkChanged { actor: short(actor), network: small(network) });
            }
        }
        Event::Paused {}
        | Event::Resumed {}
        | Event::Halted {}
        | Event::Released {}
        | Event::PortAsked { .. }
        | Event::ExecSignalled { .. }
        | Event::Snapshot { .. }
        | Event::Expires { .. } => {}
        // A level and a wall are words of ours.
        Event::ReplayStarted { .. } | Event::TapeKept { .. } => {}
        Event::LayerDiscarded {} | Event::ProveStarted { .. } | Event::Closed {} => {}
    }
    event
}

/// An event about files, or about the life of a sandbox, with each text cut.
fn clipped(mut event: Event) -> Event {
    let cut_all = |texts: &mut [&mut String]| texts.iter_mut().for_each(|text| **text = short(text));
    let cut_lists = |names: &mut Vec<String>, labels: &mut BTreeMap<String, String>| {
        if too_many(names) {
            *names = few(names);
        }
        *labels = few_labels(labels);
    };
    match &mut event {
        Event::FileIn { source, at, bytes: _ } => cut_all(&mut [source, at]),
        Event::FileOut { path, sha256, bytes: _ } => cut_all(&mut [path, sha256]),
        Event::FileApplied { path, change, bytes: _ } => cut_all(&mut [path, change]),
        Event::FileRefused { path, why } => cut_all(&mut [path, why]),
        Event::FileAsked { verb, path, to } => {
            cut_all(&mut [verb, path]);
            *to = to.as_deref().map(short);
        }
        Event::Living(living) => {
            cut_all(&mut [&mut living.actor]);
            cut_lists(&mut living.env_names, &mut living.labels);
        }
        Event::Claimed { actor, env_names, labels } => {
            cut_all(&mut [actor]);
            cut_lists(env_names, labels);
        }
        Event::Stopped { why, keeps_files: _ } => cut_all(&mut [why]),
        Event::ActFailed { of, why } => cut_all(&mut [of, why]),
        Event::FetchStarted(FetchStarted { method, to, path, rules, from_cache: _ }) => {
            cut_all(&mut [method, to, path]);
            *rules = small(rules);
        }
        Event::Launched { .. }
        | Event::ExecStarted { .. }
        | Event::ExecEnded { .. }
        | Event::LayerDiscarded {}
        | Event::ReplayStarted { .. }
        | Event::TapeKept { .. }
        | Event::Paused {}
        | Event::Resumed {}
        | Event::Halted {}
        | Event::Released {}
        | Event::PortAsked { .. }
        | Event::ExecSignalled { .. }
        | Event::Snapshot { .. }
        | Event::Expires { .. }
        | Event::NetworkChanged { .. }
        | Event::EgressAllowed(_)
        | Event::EgressDenied(_)
        | Event::EgressEnded(_)
        | Event::EgressName(_)
        | Event::ProveStarted { .. }
        | Event::ProveEnded(_)
        | Event::Closed {} => {}
    }
    event
}

/// An event of the egress wall with each text cut.
fn shorter(mut event: Event) -> Event {
    let cut_all = |texts: &mut [&mut String], more: &mut [&mut Option<String>]| {
        texts.iter_mut().for_each(|text| **text = short(text));
        more.iter_mut().for_each(|text| **text = text.as_deref().map(short));
    };
    match &mut event {
        Event::EgressAllowed(EgressAllowed { id: _, to, via, method, path, rule, credential }) => {
            cut_all(&mut [to, via, rule], &mut [method, path, credential]);
        }
        Event::EgressDenied(EgressDenied { to, via, method, path, reason, why, remedy, count: _ }) => {
            cut_all(&mut [to, via, reason, why, remedy], &mut [method, path]);
        }
        Event::EgressEnded(EgressEnded { address, fault, masked, .. }) => {
            masked.truncate(MASKED_LIMIT);
            masked.iter_mut().for_each(|name| cut_all(&mut [name], &mut []));
            cut_all(&mut [], &mut [address, fault]);
        }
        Event::EgressName(EgressName { name, kind, .. }) => cut_all(&mut [name, kind], &mut []),
        Event::Launched { .. }
        | Event::ExecStarted { .. }
        | Event::FileIn { .. }
        | Event::FileOut { .. }
        | Event::FileApplied { .. }
        | Event::FileRefused { .. }
        | Event::LayerDiscarded {}
        | Event::ReplayStarted { .. }
        | Event::TapeKept { .. }
        | Event::ExecEnded { .. }
        | Event::Living(_)
        | Event::Claimed { .. }
        | Event::Paused {}
        | Event::Resumed {}
        | Event::Halted {}
        | Event::Released {}
        | Event::FileAsked { .. }
        | Event::PortAsked { .. }
        | Event::ExecSignalled { .. }
        | Event::ActFailed { .. }
        | Event::Snapshot { .. }
        | Event::Expires { .. }
        | Event::NetworkChanged { .. }
        | Event::Stopped { .. }
        | Event::FetchStarted(_)
        | Event::ProveStarted { .. }
        | Event::ProveEnded(_)
        | Event::Closed {} => {}
    }
    event
}

/// Labels of a sandbox that stand in its record.
const LABEL_LIMIT: usize = 64;

fn few_labels(labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    labels.iter().take(LABEL_LIMIT).map(|(name, value)| (short(name), short(value))).collect()
}

fn too_long(text: &str) -> bool {
    text.len() > TEXT_LIMIT_BYTES
}

fn short(text: &str) -> String {
    if too_long(text) { cut(text, TEXT_LIMIT_BYTES) } else { text.to_owned() }
}

fn too_many(list: &[String]) -> bool {
    list.len() > LIST_LIMIT_ITEMS || list.iter().map(String::len).sum::<usize>() > LIST_LIMIT_BYTES
}

/// As many items from the front as fit, then one that vouches for all: its length is that of every
/// item with a NUL after each, and so is its digest.
fn few(list: &[String]) -> Vec<String> {
    if !too_many(list) {
        return list.to_vec();
    }
    let mut kept = Vec::new();
    let mut room = LIST_LIMIT_BYTES;
    for item in list.iter().take(LIST_LIMIT_ITEMS) {
        if item.len() > room {
            kept.push(cut(item, room));
            break;
        }
        room -= item.len();
        kept.push(item.clone());
    }
    let whole: Vec<u8> = list.iter().flat_map(|item| item.bytes().chain([0])).collect();
    kept.push(format!("… ({} items, {} bytes, sha256 {})", list.len(), whole.len(), Digest::of(&whole)));
    kept
}

/// Bounds the size without writing the value out: each node counts for what it needs at least.
fn too_big(value: &Value) -> bool {
    fn weigh(value: &Value, room: &mut usize) -> Option<()> {
        let own = match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 8,
            Value::String(text) => text.len().saturating_add(2),
            Value::Array(items) => {
                items.iter().try_for_each(|item| weigh(item, room))?;
                2
            }
            Value::Object(members) => members
                .iter()
                .try_for_each(|(name, member)| {
                    *room = room.checked_sub(name.len().saturating_add(4))?;
                    weigh(member, room)
                })
                .map(|()| 2)?,
        };
        *room = room.checked_sub(own)?;
        Some(())
    }
    let mut room = VALUE_LIMIT_BYTES;
    weigh(value, &mut room).is_none()
}

fn small(value: &Value) -> Value {
    if !too_big(value) {
        return value.clone();
    }
    let whole = value.to_string();
    json!({ "cut": true, "bytes": whole.len(), "sha256": Digest::of(whole.as_bytes()) })
}

fn fewer(hits: &[Hit]) -> Vec<Hit> {
    let mut kept: Vec<Hit> =
        hits.iter().take(HIT_LIMIT).map(|hit| Hit { detail: short(&hit.detail), ..hit.clone() }).collect();
    if let Some(last) = kept.last_mut()
        && let Some(rest) = hits.get(HIT_LIMIT..).filter(|rest| !rest.is_empty())
    {
        let all: String = rest.iter().flat_map(|hit| [hit.detail.as_str(), "\0"]).collect();
        last.detail =
            format!("{}… (and {} more, sha256 {})", last.detail, rest.len(), Digest::of(all.as_bytes()));
        last.count = rest.iter().fold(last.count, |sum, hit| sum.saturating_add(hit.count));
    }
    kept
}

fn wordy(ending: &Ending) -> bool {
    match ending {
        Ending::Signalled { name, .. } | Ending::Killed { name, .. } => too_long(name),
        Ending::OutOfMemory { limit, .. } | Ending::LimitPassed { limit, .. } => too_long(limit),
        Ending::NotStarted { step, why, remedy } => too_long(step) || too_long(why) || too_long(remedy),
        Ending::Exited { .. } | Ending::TimedOut { .. } | Ending::Halted | Ending::Lost => false,
    }
}

fn brief(ending: &Ending) -> Ending {
    let mut ending = ending.clone();
    match &mut ending {
        Ending::Signalled { name, .. } | Ending::Killed { name, .. } => *name = short(name),
        Ending::OutOfMemory { limit, .. } | Ending::LimitPassed { limit, .. } => *limit = short(limit),
        Ending::NotStarted { step, why, remedy } => {
            for text in [step, why, remedy] {
                *text = short(text);
            }
        }
        Ending::Exited { .. } | Ending::TimedOut { .. } | Ending::Halted | Ending::Lost => {}
    }
    ending
}
