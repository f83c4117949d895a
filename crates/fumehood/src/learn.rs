//! `--learn FILE`: the fewest rules that would have allowed what a run did.

use crate::refusal::Refusal;
use fumehood_model::egress::Rule;
use fumehood_model::event::EgressAllowed;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

const STEP: &str = "write what was learned";

/// Different places that are kept: a run that reaches more of them has no use for a rule each.
const MOST_PLACES: usize = 10_000;

/// The places that were reached, and how often.
#[derive(Debug, Default)]
pub(crate) struct Learned {
    places: BTreeMap<String, u64>,
    /// Times that a place was left out for want of room.
    left_out: u64,
}

/// Looks, before anything runs, whether the file can be made: nobody's file is written over.
pub(crate) fn look(file: &Path) -> Result<(), Refusal> {
    match std::fs::symlink_metadata(file) {
        Ok(_) => Err(Refusal::new(
            STEP,
            format!("`{}` exists already", file.display()),
            "name a new file: what it says may be somebody's work",
        )),
        Err(_) => Ok(()),
    }
}

/// Writes the rules, and says how many there are.
pub(crate) fn write(file: &Path, learned: &Learned) -> Result<usize, Refusal> {
    let rules = rules(&learned.places);
    let text = text(&rules, learned.left_out);
    let mut options = OpenOptions::new();
    let made = options.write(true).create_new(true).mode(0o644).open(file);
    made.and_then(|mut made| made.write_all(text.as_bytes())).map_err(|error| {
        Refusal::new(
            STEP,
            format!("`{}`: {error}", file.display()),
            "name a file in a folder that you can write",
        )
    })?;
    Ok(rules.len())
}

// === impl Learned ===

impl Learned {
    /// One more that was allowed.
    pub(crate) fn see(&mut self, allowed: &EgressAllowed) {
        if let Some(times) = self.places.get_mut(&allowed.to) {
            *times += 1;
        } else if self.places.len() < MOST_PLACES {
            self.places.insert(allowed.to.clone(), 1);
        } else {
            self.left_out += 1;
        }
    }
}

/// Each rule, and how often it was needed.
fn rules(places: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut rules = BTreeMap::new();
    for (to, times) in places {
        // What the wall recorded is a place as rules name it; a rule for TLS is the host alone.
        let place = to.strip_prefix("https://").filter(|place| !has_port(place));
        if let Ok(rule) = Rule::parse(place.unwrap_or(to)) {
            *rules.entry(rule.to_string()).or_default() += times;
        }
    }
    rules
}

fn has_port(place: &str) -> bool {
    place.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()))
}

fn text(rules: &BTreeMap<String, u64>, left_out: u64) -> String {
    let mut lines: String =
        rules.iter().map(|(rule, times)| format!("    \"{rule}\", # {times}\n")).collect();
    if left_out > 0 {
        lines.push_str(&format!("    # {left_out} more connections, to places beyond these, are left out\n"));
    }
    format!(
        "# Learned by `fumehood run --learn`: every place that was reached, and how often.\n\
         # Take out what the work does not need; `fumehood run --config FILE` uses it.\n\
         [network]\nallow = [\n{lines}]\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(to: &str) -> EgressAllowed {
        EgressAllowed {
            id: 1,
            to: to.to_owned(),
            via: "transparent".to_owned(),
            method: None,
            path: None,
            rule: "--net proxy".to_owned(),
            credential: None,
        }
    }

    #[test]
    fn what_was_learned_is_read_back_as_the_same_rules() {
        let seen = [
            "https://api.example.com",
            "https://api.example.com",
            "http://example.com",
            "db.example.com:5432",
            "https://a.example.com:8443",
            "https://[2001:db8::1]",
        ];
        let mut learned = Learned::default();
        seen.map(allowed).iter().for_each(|allowed| learned.see(allowed));
        let found = rules(&learned.places);
        let expected =
            ["api.example.com", "db.example.com:5432", "http://example.com", "https://a.example.com:8443"];
        for rule in expected {
            assert!(found.contains_key(rule), "{rule}: {found:?}");
        }
        assert_eq!(found["api.example.com"], 2);
        assert_eq!(found.len(), 5);
        let file = fumehood_model::envelope::file::parse(&text(&found, 3)).unwrap();
        assert_eq!(file.spec().network.allow.len(), 5);
        for rule in &file.spec().network.allow {
            Rule::parse(rule).unwrap();
        }
    }

    #[test]
    fn what_is_kept_does_not_grow_with_the_run() {
        let mut learned = Learned::default();
        for number in 0..MOST_PLACES + 5 {
            for _ in 0..2 {
                learned.see(&allowed(&format!("198.51.100.7:{number}")));
            }
        }
        assert_eq!((learned.places.len(), learned.left_out), (MOST_PLACES, 10));
        assert!(learned.places.values().all(|times| *times == 2));
    }
}
