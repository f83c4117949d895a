//! What a self-test says.

use crate::finding::Verdict;
use crate::probe::Wall;
use fumehood_model::level::Level;
use serde::Serialize;
use serde_json::Value;

/// One probe.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub id: &'static str,
    pub wall: Wall,
    /// What was tried.
    pub tries: &'static str,
    #[serde(flatten)]
    pub verdict: Verdict,
    /// What the same attack did with the wall open; empty where it was not asked.
    pub control: String,
    /// What the level's own kernel answered by itself, and why that is no way out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub apart: Vec<String>,
    pub ms: u64,
}

/// How many of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub held: usize,
    pub breached: usize,
    pub broken: usize,
    pub not_applicable: usize,
}

/// On what it was tested. A result from another host is none.
#[derive(Clone, Debug, Serialize)]
pub struct Host {
    pub kernel: String,
    pub arch: &'static str,
    /// `root`, or `user` and the uid.
    pub caller: String,
    /// `2`, `1` or `1 and 2`.
    pub cgroups: &'static str,
}

/// The whole.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub version: &'static str,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    pub level: Level,
    pub host: Host,
    /// SHA-256 of the envelope that the sandbox of most probes had.
    pub policy_sha256: String,
    /// What held each clause, as the run itself said.
    pub enforcement: Value,
    /// Whether the slow probes were left out.
    pub quick: bool,
    /// Whether every wall was opened, so that all must be breached.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub open: bool,
    /// Probes of the catalogue that this level or these flags leave out.
    pub left_out: usize,
    pub took_ms: u64,
    pub counts: Counts,
    pub rows: Vec<Row>,
}

// === impl Counts ===

impl Counts {
    /// Counts verdicts.
    #[must_use]
    pub fn of<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Self {
        let mut counts = Self::default();
        for row in rows {
            match row.verdict {
                Verdict::Held => counts.held += 1,
                Verdict::Breached(_) => counts.breached += 1,
                Verdict::Broken(_) => counts.broken += 1,
                Verdict::NotApplicable(_) => counts.not_applicable += 1,
            }
        }
        counts
    }

    /// How many could be asked.
    #[must_use]
    pub const fn applicable(&self) -> usize {
        self.held + self.breached + self.broken
    }
}

// === impl Report ===

impl Report {
    /// Whether every probe that could be asked was held, and there was one; with the walls open, whether every one of
    /// them saw it.
    #[must_use]
    pub const fn is_green(&self) -> bool {
        let wanted = if self.open { self.counts.breached } else { self.counts.held };
        wanted > 0 && wanted == self.counts.applicable()
    }
}

/// Milliseconds since 1970 as a day and a time, UTC.
pub(crate) fn date(at_ms: u64) -> String {
    let (days, second) = (at_ms / 86_400_000, at_ms / 1000 % 86_400);
    // The civil calendar, counted in eras of 400 years that start on 1 March.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_green_only_where_all_that_was_asked_held() {
        let count = |held, breached, broken| Counts { held, breached, broken, not_applicable: 3 };
        let green = |counts: Counts| counts.held > 0 && counts.held == counts.applicable();
        assert!(green(count(2, 0, 0)));
        assert!(!green(count(2, 1, 0)));
        assert!(!green(count(2, 0, 1)));
        assert!(!green(count(0, 0, 0)));
    }
}
