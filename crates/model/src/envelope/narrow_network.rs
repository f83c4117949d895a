//! In what a child's network and secrets are more than its parent's.

use super::clauses::{Network, Secret};
use super::narrow::Widening;
use crate::egress::{Egress, Host, Pattern, Reach, Rule};
use crate::enforcement::Clause;
use std::fmt::Display;

pub(super) fn widen_network(parent: &Network, child: &Network, found: &mut Vec<Widening>) {
    let Network { egress, publish } = child;
    let mut add = |field, what| found.push(Widening::new(Clause::Network, field, what));
    for publish in publish.iter().filter(|publish| !parent.publish.contains(publish)) {
        add("network.publish", format!("the port {} of the host would lead inside", publish.host_port));
    }
    match (&parent.egress, egress) {
        (_, None) => {}
        (None, Some(egress)) => {
            let field = if egress.rules.is_empty() { "network.net" } else { "network.allow" };
            add(field, "there is no network to begin with".to_owned());
        }
        (Some(parent), Some(child)) => widen_egress(parent, child, &mut add),
    }
}

pub(super) fn widen_secrets(parent: &[Secret], child: &[Secret], found: &mut Vec<Widening>) {
    for secret in child.iter().filter(|secret| !parent.contains(secret)) {
        let what = format!("the secret `{}` is added", secret.name);
        found.push(Widening::new(Clause::Credentials, "credentials.secrets", what));
    }
}

fn widen_egress(parent: &Egress, child: &Egress, add: &mut impl FnMut(&'static str, String)) {
    // Taken apart in full, so that a new field can not be forgotten here.
    let Egress { reach, rules, ranges, resolutions, ceilings, upstream, authorities } = child;
    if *reach > parent.reach {
        add("network.net", format!("`{}` is more than `{}`", reach.name(), parent.reach.name()));
    }
    let mut added = |field, entry: &dyn Display| add(field, format!("`{entry}` is added"));
    for rule in rules.iter().filter(|rule| !holds(parent, rule)) {
        added("network.allow", rule);
    }
    for range in ranges.iter().filter(|range| !parent.ranges.iter().any(|held| held.covers(range))) {
        added("network.allow-cidr", range);
    }
    for resolution in resolutions {
        if !parent.resolutions.iter().any(|held| held.covers(resolution)) {
            added("network.resolve", &format!("{}={}", resolution.hosts, resolution.range));
        }
    }
    for authority in authorities.iter().filter(|authority| !parent.authorities.contains(authority)) {
        added("network.authorities", &authority.hosts);
    }
    if *upstream != parent.upstream {
        add("network.upstream", "it goes through another proxy".to_owned());
    }
    for held in &parent.ceilings {
        let kept = ceilings
            .iter()
            .any(|ceiling| ceiling.of == held.of && ceiling.hosts == held.hosts && ceiling.most <= held.most);
        if !kept {
            add("network.limits", format!("the ceiling of {} {} is lifted", held.most, held.of.name()));
        }
    }
}

/// Whether the parent could do all that a rule allows.
fn holds(parent: &Egress, rule: &Rule) -> bool {
    let public = parent.reach == Reach::Public
        && rule.binding.is_none()
        && match &rule.hosts {
            Pattern::Exactly(Host::Name(name)) | Pattern::Below(name) => name.is_public_form(),
            // A rule that names an address opens it also where it is the host's own; the public reach does not.
            Pattern::Exactly(Host::Address(_)) => false,
        };
    public || parent.rules.iter().any(|held| held.covers(rule))
}
