//! What a run says about its network while it goes: each different refusal once, or everything.

use crate::learn::Learned;
use crate::{after, screen};
use fumehood_model::event::{EgressAllowed, EgressDenied, EgressEnded, EgressName, Event};
use fumehood_model::text::shown;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Different refusals that are told; the rest is in the record.
const MOST_TOLD: usize = 12;

/// Lines that wait to be told, where nobody reads or nobody should be disturbed; the rest is in the record.
const MOST_KEPT: usize = 4096;

/// How much is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Nothing,
    /// Each different refusal, once.
    Refusals,
    Everything,
}

/// When it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    AtOnce,
    /// A terminal in raw mode is the command's: afterwards.
    Afterwards,
}

/// Takes in what happens at the wall.
#[derive(Debug)]
pub(crate) struct Watch {
    told: Told,
    when: When,
    /// Not told yet.
    kept: VecDeque<String>,
    /// Left out, because too much was to be told.
    lost: u64,
    refused: BTreeSet<String>,
    more: u64,
    /// What is on its way, by its number in the record.
    open: BTreeMap<u64, String>,
    /// What was allowed, for `--learn`.
    learned: Option<Learned>,
}

// === impl Watch ===

impl Watch {
    pub(crate) fn new(told: Told, when: When, learns: bool) -> Self {
        Self {
            told,
            when,
            kept: VecDeque::new(),
            lost: 0,
            refused: BTreeSet::new(),
            more: 0,
            open: BTreeMap::new(),
            learned: learns.then(Learned::default),
        }
    }

    /// One event of the record.
    pub(crate) fn see(&mut self, event: &Event) {
        match event {
            Event::EgressAllowed(allowed) => self.allowed(allowed),
            Event::EgressDenied(denied) => self.denied(denied),
            Event::EgressEnded(ended) => self.ended(ended),
            Event::EgressName(name) => self.name(name),
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
    }

    /// Says what was kept back, and what was left out.
    pub(crate) fn finish(&mut self) {
        for line in std::mem::take(&mut self.kept) {
            screen::note(&line);
        }
        if self.lost > 0 {
            let lost = self.lost;
            screen::note(&format!("{lost} more lines of the network; `fumehood audit show` has them all"));
        }
        if self.more > 0 && self.told == Told::Refusals {
            screen::note(&format!("denied {} more; `fumehood audit show` has them all", self.more));
        }
    }

    /// What was allowed, if that was to be learned.
    pub(crate) fn learned(self) -> Learned {
        self.learned.unwrap_or_default()
    }

    fn allowed(&mut self, allowed: &EgressAllowed) {
        if self.told == Told::Everything {
            let what = what(allowed.method.as_deref(), &allowed.to, allowed.path.as_deref());
            let secret = allowed.credential.as_ref().map(|name| format!(" with {name}")).unwrap_or_default();
            self.say(format!("allowed: {what} by `{}`{secret}", allowed.rule));
            self.open.insert(allowed.id, what);
        }
        if let Some(learned) = &mut self.learned {
            learned.see(allowed);
        }
    }

    fn ended(&mut self, ended: &EgressEnded) {
        let Some(what) = self.open.remove(&ended.id) else { return };
        let status = ended.status.map(|status| format!("{status}, ")).unwrap_or_default();
        let address = ended.address.as_ref().map(|address| format!(" ({address})")).unwrap_or_default();
        let bytes = format!("{} out, {} in", after::bytes(ended.bytes_out), after::bytes(ended.bytes_in));
        let fault = ended.fault.as_ref().map(|fault| format!("; {fault}")).unwrap_or_default();
        self.say(format!("ended: {what}{address}: {status}{bytes}{fault}"));
    }

    fn denied(&mut self, denied: &EgressDenied) {
        let EgressDenied { to, method, path, why, remedy, reason, .. } = denied;
        let what = what(method.as_deref(), to, path.as_deref());
        self.refuse(&format!("{to} {reason}"), format!("denied: {what}: {why}; {remedy}"));
    }

    fn name(&mut self, name: &EgressName) {
        let text = shown(&name.name);
        if name.answered {
            if self.told == Told::Everything {
                self.say(format!("name: {text} ({})", name.kind));
            }
            return;
        }
        let line =
            format!("denied: the name `{text}`: no rule names it; `--allow '{text}'` would allow TLS to it");
        self.refuse(&name.name, line);
    }

    fn refuse(&mut self, key: &str, line: String) {
        let told = match self.told {
            Told::Nothing => false,
            Told::Everything => true,
            Told::Refusals if self.refused.contains(key) => false,
            Told::Refusals if self.refused.len() >= MOST_TOLD => {
                self.more += 1;
                false
            }
            Told::Refusals => self.refused.insert(key.to_owned()),
        };
        if told {
            self.say(line);
        }
    }

    fn say(&mut self, line: String) {
        if self.kept.len() < MOST_KEPT {
            self.kept.push_back(line);
        } else {
            self.lost += 1;
        }
        // Whoever does not read must not keep the sandbox's keeper from its clock.
        while self.when == When::AtOnce
            && let Some(line) = self.kept.front()
            && screen::note_at_once(line)
        {
            self.kept.pop_front();
        }
    }
}

fn what(method: Option<&str>, to: &str, path: Option<&str>) -> String {
    let path = path.map(shown).unwrap_or_default();
    match method {
        Some(method) => format!("{} {to}{path}", shown(method)),
        None => format!("{to}{path}"),
    }
}
