//! What the attacker told: its lines, step by step.
//!
//! **Invariant:** these are bytes from a sandbox. Reading them is total.

use crate::canary::contains;
use crate::finding::Finding;
use std::collections::BTreeMap;

/// All that one run of the attacker said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    steps: BTreeMap<String, Step>,
    /// Whether the last line was the one that was agreed on.
    pub(crate) ended: bool,
}

/// The lines of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) lines: Vec<String>,
    pub(crate) over: bool,
}

// === impl Told ===

impl Told {
    pub(crate) fn read(bytes: &[u8], nonce: &str) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut told =
            Self { ended: text.lines().any(|line| line == format!("end {nonce}")), ..Self::default() };
        let mut current: Option<String> = None;
        for line in text.lines() {
            if let Some(id) = line.strip_prefix("step ").filter(|id| !id.contains(' ')) {
                current = Some(id.to_owned());
                told.steps.entry(id.to_owned()).or_default();
            } else if let Some(id) = &current
                && let Some(step) = told.steps.get_mut(id)
            {
                if line == format!("over {id}") {
                    step.over = true;
                    current = None;
                } else {
                    step.lines.push(line.to_owned());
                }
            }
        }
        told
    }

    /// One step; one that did not run is empty, and not over.
    pub(crate) fn step(&self, id: &str) -> Step {
        self.steps.get(id).cloned().unwrap_or_default()
    }
}

// === impl Step ===

impl Step {
    /// Attempts: name and result.
    pub(crate) fn attempts(&self) -> Vec<(&str, &str)> {
        self.lines.iter().filter_map(|line| line.strip_prefix("try ")?.rsplit_once(' ')).collect()
    }

    /// Quiet where each attempt met one of these errors, and there was one.
    pub(crate) fn doors(&self, shut: &[&str]) -> Finding {
        let attempts = self.attempts();
        let open: Vec<String> = attempts
            .iter()
            .filter(|(_, result)| !shut.contains(result))
            .map(
                |(name, result)| {
                    if *result == "done" { (*name).to_owned() } else { format!("{name} ({result})") }
                },
            )
            .collect();
        if !open.is_empty() {
            return Finding::Through(open.join(", "));
        }
        if attempts.is_empty() { Finding::Unclear(self.told("nothing was tried")) } else { self.whole() }
    }

    /// As [`Step::doors`], counting as open only what was done.
    pub(crate) fn done(&self) -> Finding {
        let attempts = self.attempts();
        let open: Vec<&str> =
            attempts.iter().filter(|(_, result)| *result == "done").map(|(name, _)| *name).collect();
        if !open.is_empty() {
            return Finding::Through(open.join(", "));
        }
        if attempts.is_empty() { Finding::Unclear(self.told("nothing was tried")) } else { self.whole() }
    }

    /// Through where a canary came out.
    pub(crate) fn leaks(&self, canary: &str) -> Finding {
        if let Some(line) = self.lines.iter().find(|line| contains(line.as_bytes(), canary)) {
            let what = line.split(' ').next().unwrap_or_default();
            return Finding::Through(format!("the host's canary came out (`{what} …`)"));
        }
        self.whole()
    }

    /// Quiet where the step came to its end.
    pub(crate) fn whole(&self) -> Finding {
        if self.over && !self.lines.iter().any(|line| line.starts_with("step ended by signal")) {
            Finding::Quiet
        } else {
            Finding::Unclear(self.told("the attack did not come to its end"))
        }
    }

    /// The number after a word at the start of a line.
    pub(crate) fn number(&self, word: &str) -> Option<i64> {
        self.lines.iter().find_map(|line| line.strip_prefix(word)?.trim().split(' ').next()?.parse().ok())
    }

    /// Lines that begin with a word, without it.
    pub(crate) fn facts<'a>(&'a self, word: &'a str) -> impl Iterator<Item = &'a str> {
        self.lines.iter().filter_map(move |line| line.strip_prefix(word)?.strip_prefix(' '))
    }

    fn told(&self, why: &str) -> String {
        let last: Vec<&str> = self.lines.iter().rev().take(3).map(String::as_str).collect();
        if last.is_empty() {
            format!("{why}; it said nothing")
        } else {
            format!("{why}; last: {}", last.join(" | "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_apart() {
        let told = Told::read(b"step A\ntry a EPERM\nover A\nstep B\ntry b done\nover B\nend N\n", "N");
        assert!(told.ended);
        assert_eq!(told.step("A").doors(&["EPERM"]), Finding::Quiet);
        assert_eq!(told.step("B").doors(&["EPERM"]), Finding::Through("b".to_owned()));
        assert!(matches!(told.step("C").doors(&["EPERM"]), Finding::Unclear(_)));
    }

    #[test]
    fn silence_and_a_cut_step_are_unclear() {
        assert!(matches!(Told::read(b"", "N").step("A").whole(), Finding::Unclear(_)));
        let cut = Told::read(b"step A\ntry a EPERM\n", "N");
        assert!(!cut.ended);
        assert!(matches!(cut.step("A").doors(&["EPERM"]), Finding::Unclear(_)));
        let killed = Told::read(b"step A\ntry a EPERM\nstep ended by signal 9\nover A\n", "N");
        assert!(matches!(killed.step("A").doors(&["EPERM"]), Finding::Unclear(_)));
    }

    #[test]
    fn a_guest_can_not_end_another_step() {
        let told = Told::read(b"step A\nover B\ntry a done\nover A\n", "N");
        assert_eq!(told.step("A").done(), Finding::Through("a".to_owned()));
        assert!(!told.step("B").over);
    }

    #[test]
    fn any_bytes_are_read() {
        for bytes in [
            &b"\xff\xfe"[..],
            b"step \n",
            b"over A",
            b"try \nstep A\ntry\ntry x\n",
            b"step A\nstep A\nover A",
        ] {
            let told = Told::read(bytes, "N");
            let _ = (told.step("A").attempts(), told.step("").whole(), told.step("A").number("x"));
        }
    }
}
