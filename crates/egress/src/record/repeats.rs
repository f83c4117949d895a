//! Refusals that repeat themselves. A loop that dials the same closed place ten thousand times a second
//! must neither fill the record nor be missing from it.
//!
//! **Invariant:** every refusal is in exactly one line's `count`.

use fumehood_model::event::{EgressDenied, EgressName, Event};
use std::collections::HashMap;

/// Different refusals that are told apart in one turn; the rest is counted together.
const MOST_NEW: usize = 64;
/// Different refusals that are remembered for the sake of their repetition.
const MOST_KNOWN: usize = 1024;

/// Something that did not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Denied(EgressDenied),
    /// A name that was not answered.
    Name(EgressName),
}

/// Refusals of the turn that is going on.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    /// Those that were written, and how often they came again.
    known: HashMap<Same, (Refusal, u64)>,
    new: usize,
    /// Beyond the bounds.
    other_denials: u64,
    other_names: u64,
}

/// What makes two refusals the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Same {
    Denied { to: String, via: String, reason: String, method: Option<String>, path: Option<String> },
    Name { name: String, kind: String },
}

// === impl Repeats ===

impl Repeats {
    /// Takes a refusal in; gives it back when it has to be written now.
    pub(crate) fn add(&mut self, refusal: Refusal) -> Option<Event> {
        let same = refusal.same();
        if let Some((_, more)) = self.known.get_mut(&same) {
            *more += 1;
            return None;
        }
        if self.new >= MOST_NEW || self.known.len() >= MOST_KNOWN {
            match refusal {
                Refusal::Denied(_) => self.other_denials += 1,
                Refusal::Name(_) => self.other_names += 1,
            }
            return None;
        }
        self.new += 1;
        self.known.insert(same, (refusal.clone(), 0));
        Some(refusal.counted(1))
    }

    /// Ends the turn: the lines about what was only counted. What did not repeat itself is forgotten.
    pub(crate) fn turn(&mut self) -> Vec<Event> {
        self.new = 0;
        let mut lines = Vec::new();
        self.known.retain(|_, (refusal, more)| {
            let count = std::mem::take(more);
            if count > 0 {
                lines.push(refusal.clone().counted(count));
            }
            count > 0
        });
        let others = "others".to_owned();
        match std::mem::take(&mut self.other_denials) {
            0 => {}
            count => lines.push(Event::EgressDenied(EgressDenied {
                to: others.clone(),
                via: others.clone(),
                method: None,
                path: None,
                reason: others.clone(),
                why: "more different things were refused at once than are told apart".to_owned(),
                remedy: "look at the lines before".to_owned(),
                count,
            })),
        }
        match std::mem::take(&mut self.other_names) {
            0 => {}
            count => lines.push(Event::EgressName(EgressName {
                name: others.clone(),
                kind: others,
                count,
                answered: false,
            })),
        }
        lines
    }
}

// === impl Refusal ===

impl Refusal {
    fn same(&self) -> Same {
        match self.clone() {
            Self::Denied(EgressDenied { to, via, method, path, reason, .. }) => {
                Same::Denied { to, via, reason, method, path }
            }
            Self::Name(EgressName { name, kind, .. }) => Same::Name { name, kind },
        }
    }

    fn counted(self, count: u64) -> Event {
        match self {
            Self::Denied(denied) => Event::EgressDenied(EgressDenied { count, ..denied }),
            Self::Name(name) => Event::EgressName(EgressName { count, ..name }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> Refusal {
        Refusal::Name(EgressName { name: name.into(), kind: "A".into(), count: 1, answered: false })
    }

    fn count(event: &Event) -> u64 {
        let fields = serde_json::to_value(event).unwrap();
        fields["count"].as_u64().unwrap()
    }

    #[test]
    fn the_first_is_written_and_the_rest_is_counted() {
        let mut repeats = Repeats::default();
        assert!(repeats.add(name("a.example")).is_some());
        assert!(repeats.add(name("b.example")).is_some());
        for _ in 0..5 {
            assert_eq!(repeats.add(name("a.example")), None);
        }
        let lines = repeats.turn();
        assert_eq!(lines.iter().map(count).collect::<Vec<_>>(), [5]);
        assert_eq!(repeats.add(name("a.example")), None, "it has just been told");
        assert!(repeats.add(name("b.example")).is_some(), "it was forgotten");
        assert_eq!(repeats.turn().len(), 1);
        assert!(repeats.turn().is_empty());
    }

    #[test]
    fn a_flood_is_bounded_and_whole() {
        let mut repeats = Repeats::default();
        let mut total = 0;
        for number in 0..10_000 {
            let event = if number % 2 == 0 {
                name(&format!("n{number}.example"))
            } else {
                Refusal::Denied(EgressDenied {
                    to: format!("n{number}.example:1"),
                    via: String::new(),
                    method: None,
                    path: None,
                    reason: String::new(),
                    why: String::new(),
                    remedy: String::new(),
                    count: 1,
                })
            };
            total += repeats.add(event).map_or(0, |event| count(&event));
        }
        let lines = repeats.turn();
        assert!(lines.len() <= 2);
        assert_eq!(total + lines.iter().map(count).sum::<u64>(), 10_000);
    }
}
