//! The rules of a living sandbox, in words: how they are told to its gate when they change.

use super::clause::{Egress, Opened, Reach};
use super::rule::{Rule, RuleFlaw};
use serde::{Deserialize, Serialize};

/// What of an egress clause may change while a sandbox lives. Ceilings, resolutions, authorities and a proxy stay as
/// they were made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    reach: String,
    rules: Vec<String>,
    ranges: Vec<String>,
}

// === impl Rules ===

impl Rules {
    /// Those of a clause.
    pub fn of(egress: &Egress) -> Self {
        Self {
            reach: egress.reach.name().to_owned(),
            rules: egress.rules.iter().map(Rule::to_string).collect(),
            ranges: egress.ranges.iter().map(Opened::to_string).collect(),
        }
    }

    /// The clause `made` with these in place of its own.
    ///
    /// # Errors
    /// They are not what [`Rules::of`] writes.
    pub fn within(&self, made: &Egress) -> Result<Egress, RuleFlaw> {
        let reach = [Reach::Names, Reach::Rules, Reach::Public].into_iter();
        let reach = reach.into_iter().find(|reach| reach.name() == self.reach);
        let reach = reach.ok_or_else(|| RuleFlaw {
            what: "the reach is none".to_owned(),
            remedy: "write `dns`, `allow` or `proxy`",
        })?;
        Ok(Egress {
            reach,
            rules: self.rules.iter().map(|text| Rule::parse(text)).collect::<Result<_, _>>()?,
            ranges: self.ranges.iter().map(|text| Opened::parse(text)).collect::<Result<_, _>>()?,
            ..made.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_was_meant() {
        let egress = |rules: &[&str], ranges: &[&str], reach| Egress {
            reach,
            rules: rules.iter().map(|text| Rule::parse(text).unwrap()).collect(),
            ranges: ranges.iter().map(|text| Opened::parse(text).unwrap()).collect(),
            resolutions: Vec::new(),
            ceilings: Vec::new(),
            upstream: None,
            authorities: Vec::new(),
        };
        let made = egress(&["a.example.com"], &[], Reach::Rules);
        for wanted in [
            egress(&[], &[], Reach::Names),
            egress(
                &["GET https://api.example.com/v1/** with bearer:T", "*.example.org:22"],
                &[],
                Reach::Rules,
            ),
            egress(&["http://a.example.com"], &["192.0.2.0/24:80", "[2001:db8::/32]:1-65535"], Reach::Public),
        ] {
            let told = serde_json::to_string(&Rules::of(&wanted)).unwrap();
            let heard: Rules = serde_json::from_str(&told).unwrap();
            assert_eq!(heard.within(&made).unwrap(), wanted);
        }
        let odd = Rules { reach: "all".to_owned(), rules: Vec::new(), ranges: Vec::new() };
        assert!(odd.within(&made).is_err());
    }
}
