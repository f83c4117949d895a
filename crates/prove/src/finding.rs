//! What one side of a probe shows, and what both sides together mean.

use serde::Serialize;
use std::fmt;

/// What one side shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The attack came to its end, and nothing got through.
    Quiet,
    /// Something got through: what.
    Through(String),
    /// It can not be told: why.
    Unclear(String),
}

/// What is said of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", content = "reason", rename_all = "SCREAMING-KEBAB-CASE")]
pub enum Verdict {
    /// Nothing got through, and the same attack gets through where the wall is open.
    Held,
    /// Something got through: what.
    Breached(String),
    /// The probe proves nothing: its control stayed green, or a side can not be told. Counts against the wall.
    Broken(String),
    /// It can not be asked here: why.
    NotApplicable(String),
}

/// The verdict on a probe, from what its two sides show.
#[must_use]
pub fn judge(walled: &Finding, open: &Finding) -> Verdict {
    match (walled, open) {
        (Finding::Through(what), _) => Verdict::Breached(what.clone()),
        (Finding::Unclear(why), _) => Verdict::Broken(why.clone()),
        (Finding::Quiet, Finding::Through(_)) => Verdict::Held,
        (Finding::Quiet, Finding::Quiet) => Verdict::Broken(
            "the control stayed green: with the wall open nothing gets through either".to_owned(),
        ),
        (Finding::Quiet, Finding::Unclear(why)) => Verdict::Broken(format!("the control: {why}")),
    }
}

// === impl Finding ===

impl Finding {
    /// The first that is not quiet.
    #[must_use]
    pub fn or(self, next: impl FnOnce() -> Self) -> Self {
        if self == Self::Quiet { next() } else { self }
    }

    /// Through, where it holds.
    #[must_use]
    pub fn through_if(holds: bool, what: impl Into<String>) -> Self {
        if holds { Self::Through(what.into()) } else { Self::Quiet }
    }

    /// What was seen, for the report.
    #[must_use]
    pub fn seen(&self) -> &str {
        match self {
            Self::Quiet => "nothing",
            Self::Through(what) | Self::Unclear(what) => what,
        }
    }
}

// === impl Verdict ===

impl Verdict {
    /// The word for the report.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Held => "HELD",
            Self::Breached(_) => "BREACHED",
            Self::Broken(_) => "BROKEN",
            Self::NotApplicable(_) => "NOT-APPLICABLE",
        }
    }

    /// Why, where there is more to say than the word.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::Held => "",
            Self::Breached(why) | Self::Broken(why) | Self::NotApplicable(why) => why,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        if self.reason().is_empty() { Ok(()) } else { write!(f, ": {}", self.reason()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> [Finding; 3] {
        [Finding::Quiet, Finding::Through("t".to_owned()), Finding::Unclear("u".to_owned())]
    }

    #[test]
    fn held_needs_a_quiet_wall_and_a_red_control() {
        for walled in all() {
            for open in all() {
                let held = judge(&walled, &open) == Verdict::Held;
                let wanted = walled == Finding::Quiet && matches!(open, Finding::Through(_));
                assert_eq!(held, wanted, "{walled:?} {open:?}");
            }
        }
    }

    #[test]
    fn a_breach_is_one_whatever_the_control_shows() {
        for open in all() {
            assert!(matches!(judge(&Finding::Through("x".to_owned()), &open), Verdict::Breached(_)));
        }
    }

    #[test]
    fn a_control_that_stays_green_breaks_the_probe() {
        let verdict = judge(&Finding::Quiet, &Finding::Quiet);
        assert!(matches!(&verdict, Verdict::Broken(why) if why.contains("stayed green")), "{verdict}");
    }

    #[test]
    fn what_can_not_be_told_is_never_held() {
        for open in all() {
            assert!(matches!(judge(&Finding::Unclear("timed out".to_owned()), &open), Verdict::Broken(_)));
        }
        assert!(matches!(judge(&Finding::Quiet, &Finding::Unclear("x".to_owned())), Verdict::Broken(_)));
    }

    #[test]
    fn the_words_of_a_report_are_stable() {
        let text = serde_json::to_string(&Verdict::NotApplicable("w".to_owned())).unwrap();
        assert_eq!(text, r#"{"verdict":"NOT-APPLICABLE","reason":"w"}"#);
        assert_eq!(serde_json::to_string(&Verdict::Held).unwrap(), r#"{"verdict":"HELD"}"#);
    }
}
