//! What is said when something is refused before a command ran: the step, one cause, one remedy.

use crate::screen;
use fumehood_model::ending::Ending;
use fumehood_model::envelope::Flaw;
use fumehood_model::report::{Captured, Usage};
use serde::Serialize;
use std::fmt;

/// Why nothing was done. Texts have literal values in backticks and no full stop at their end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The step, as a phrase after "failed to": `read the arguments`.
    pub(crate) step: String,
    pub(crate) why: String,
    pub(crate) remedy: String,
}

/// The object that `run --json` prints when there was no run: the keys of a report, all there.
#[derive(Serialize)]
struct RefusedReport<'a> {
    task: Option<&'a str>,
    ending: Ending,
    hits: [(); 0],
    stdout: Captured,
    stderr: Captured,
    dropped_bytes: u64,
    resources: Usage,
    level: Option<&'a str>,
    enforcement: [(); 0],
}

// === impl Refusal ===

impl Refusal {
    /// A refusal at `step`.
    pub(crate) fn new(step: &str, why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { step: step.to_owned(), why: why.into(), remedy: remedy.into() }
    }

    /// Every flaw of an envelope in one refusal, each with the flag or the field that says it.
    pub(crate) fn flaws(flaws: &[Flaw], place: impl Fn(&Flaw) -> String) -> Self {
        let step = "read the envelope";
        match flaws {
            [] => {
                Self::new(step, "the envelope is flawed", "run `fumehood schema` to see what can be written")
            }
            [flaw] => Self::new(step, format!("{}: {}", place(flaw), flaw.what), flaw.remedy.clone()),
            many => {
                let each = |flaw: &Flaw| format!("\n  - {}: {}; {}", place(flaw), flaw.what, flaw.remedy);
                let list: String = many.iter().map(each).collect();
                Self::new(
                    step,
                    format!("{} things are wrong:{list}", many.len()),
                    "mend each of them as it says",
                )
            }
        }
    }

    /// Says it on standard error.
    pub(crate) fn tell(&self) {
        screen::tell(&self.to_string());
    }

    /// Says it as the one JSON object that `run --json` promises.
    pub(crate) fn say_json(&self) {
        let nothing = || Captured { text: String::new(), base64: false };
        screen::say_json(&RefusedReport {
            task: None,
            ending: self.ending(),
            hits: [],
            stdout: nothing(),
            stderr: nothing(),
            dropped_bytes: 0,
            resources: Usage::default(),
            level: None,
            enforcement: [],
        });
    }

    /// The same as an ending.
    pub(crate) fn ending(&self) -> Ending {
        Ending::NotStarted { step: self.step.clone(), why: self.why.clone(), remedy: self.remedy.clone() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fumehood: {}", self.why)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "\n  remedy: {}", self.remedy) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flaw(field: &'static str) -> Flaw {
        Flaw { field, entry: None, what: "`0` is no size".to_owned(), remedy: "write `512M`".to_owned() }
    }

    #[test]
    fn one_flaw_reads_as_one_cause_and_one_remedy() {
        let refusal = Refusal::flaws(&[flaw("resources.memory")], |flaw| flaw.field.to_owned());
        assert_eq!(refusal.to_string(), "fumehood: resources.memory: `0` is no size\n  remedy: write `512M`");
    }

    #[test]
    fn many_flaws_are_told_at_once() {
        let refusal = Refusal::flaws(&[flaw("a"), flaw("b")], |flaw| flaw.field.to_owned());
        assert_eq!(refusal.why.lines().count(), 3);
    }
}
