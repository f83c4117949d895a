//! Other rules for a sandbox that lives: checked as those that it began with, recorded, and held by its gate before
//! whoever asked is answered.
//!
//! What was made at its launch stays: the ports that are listened at, ceilings, resolutions, authorities, a proxy.

use super::connection::Role;
use super::failures;
use super::keeper::{Keeper, Verdict};
use crate::egress::ports;
use crate::run::RunRequest;
use fumehood_backend::gateway::GatewaySpec;
use fumehood_keep::wire::{FailureCode, Network, Phase, Said, Spec};
use fumehood_model::egress::{Egress, Reach, Rules};
use fumehood_model::envelope::{Defaults, Envelope, EnvelopeSpec};
use fumehood_model::event::Event;
use serde::Deserialize as _;
use std::collections::BTreeSet;

const STEP: &str = "change the network";
/// Rules at once: the gate holds them in memory.
const MOST_RULES: usize = 2000;
const GIVEN: &str = "=given:";

/// What a sandbox's network was made as.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    egress: Option<Egress>,
    /// Where its gateway listens.
    gateway: Option<GatewaySpec>,
    /// The envelope as it was written.
    words: EnvelopeSpec,
    defaults: Defaults,
}

// === impl Made ===

impl Made {
    pub(super) fn of(run: &RunRequest, spec: &Spec, defaults: &Defaults) -> Self {
        let egress = run.envelope.network().egress.clone();
        let gateway = egress.as_ref().map(ports::living);
        // It was read before it was launched.
        let words = EnvelopeSpec::deserialize(&spec.envelope).unwrap_or_default();
        Self { egress, gateway, words, defaults: defaults.clone() }
    }

    /// The clause with other rules in it, and its words.
    fn changed(&self, asked: &Network) -> Verdict<(Egress, EnvelopeSpec)> {
        let (Some(made), Some(gateway)) = (&self.egress, &self.gateway) else {
            return Err(failures::new(
                FailureCode::Unsupported,
                (STEP, "it was made without a network, and has no way out that rules could open".to_owned()),
                "make a sandbox with `net = \"allow\"`, and as many rules as it begins with",
            ));
        };
        if asked.allow.len() + asked.allow_cidr.len() > MOST_RULES {
            let cause = format!("there are more than {MOST_RULES} rules");
            return Err(failures::bad(STEP, cause, "name fewer, or use wildcards"));
        }
        let words = self.words(asked);
        let envelope = Envelope::check(&words, &self.defaults).map_err(|flaws| {
            let cause: Vec<String> = flaws.iter().map(ToString::to_string).collect();
            failures::bad(STEP, cause.join("; "), "docs/egress.md has the words of rules")
        })?;
        let egress = match envelope.network().egress.clone() {
            Some(egress) => egress,
            None => Egress { reach: Reach::Rules, rules: Vec::new(), ranges: Vec::new(), ..made.clone() },
        };
        if let Some(port) = ports::unheard(gateway, &egress) {
            return Err(failures::new(
                FailureCode::Unsupported,
                (STEP, format!("{port} was not named when it was made, and nothing listens for it")),
                "make a sandbox that names the port from its beginning, or `net = \"proxy\"`",
            ));
        }
        let egress = Rules::of(&egress).within(made);
        let egress = egress.map_err(|flaw| failures::bad(STEP, flaw.what, flaw.remedy))?;
        Ok((egress, words))
    }

    /// The words with other rules in them. Secrets that no rule uses any more are not named.
    fn words(&self, asked: &Network) -> EnvelopeSpec {
        let mut words = self.words.clone();
        let is_empty = asked.allow.is_empty() && asked.allow_cidr.is_empty();
        words.network.net = match asked.net.as_deref() {
            // The network that it has stays one; nothing of it is open.
            None | Some("none") if is_empty => Some("allow".to_owned()),
            _ => asked.net.clone(),
        };
        words.network.allow.clone_from(&asked.allow);
        words.network.allow_cidr.clone_from(&asked.allow_cidr);
        words.network.presets = Vec::new();
        let secrets = &mut words.credentials.secrets;
        secrets.extend(asked.literals.iter().map(|(name, _)| format!("{name}{GIVEN}")));
        let used: BTreeSet<&str> =
            asked.allow.iter().filter_map(|rule| rule.rsplit_once(" with ")?.1.rsplit(':').next()).collect();
        secrets.retain(|text| used.contains(text.split('=').next().unwrap_or_default()));
        words
    }
}

// === impl Keeper ===

impl Keeper<'_> {
    pub(super) fn network(&mut self, number: u64, asked: Network) -> Verdict<()> {
        match self.phase() {
            Phase::Running | Phase::Paused => {}
            Phase::Halted => return Err(failures::halted()),
            Phase::Ending => return Err(failures::ending()),
        }
        let (egress, words) = self.life.net.changed(&asked)?;
        let Network { actor, net, allow, allow_cidr, literals } = asked;
        let network = serde_json::json!({ "net": net, "allow": allow, "allow-cidr": allow_cidr });
        let change = Event::NetworkChanged { actor, network };
        if !self.record(&change) {
            return Err(self.unrecorded());
        }
        let rules = Rules::of(&egress);
        let told = self.wall.change(&rules, &literals).map_err(no_gate);
        let change = self.undone(&change, told)?;
        // Those given now may be named by later rules too.
        let secrets = &mut self.life.net.words.credentials.secrets;
        secrets.extend(literals.iter().map(|(name, _)| format!("{name}{GIVEN}")));
        if let Ok(words) = serde_json::to_value(&words) {
            self.life.spec.envelope = words;
        }
        self.write_description();
        self.set_role(number, Role::Rules(change));
        Ok(())
    }

    /// Answers those whose rules hold.
    pub(super) fn tell_of_rules(&mut self) {
        for connection in self.connections.values_mut() {
            let Role::Rules(change) = connection.role else { continue };
            match self.wall.holds(change) {
                Some(true) => connection.answer(&Said::Done),
                Some(false) => {}
                None => connection.fail(no_gate("the gate is gone".to_owned())),
            }
        }
    }
}

fn no_gate(cause: String) -> fumehood_keep::wire::Failure {
    failures::new(
        FailureCode::Internal,
        (STEP, format!("nothing leaves this sandbox any more: {cause}")),
        "make another sandbox, from a snapshot of this one if its files are needed",
    )
}
