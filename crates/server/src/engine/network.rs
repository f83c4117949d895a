//! Other rules for a sandbox that lives.

use super::Engine;
use crate::caller::{Caller, Scope};
use crate::error::ApiError;
use crate::live::Live;
use crate::{network, template};
use fumehood_keep::literals::Literals;
use fumehood_keep::wire::{Ask, Network, Spec};
use serde_json::{Value, json};

/// What secrets that a caller gave are called.
pub(crate) const GIVEN: &str = "GIVEN_";

/// What a caller wants a sandbox to reach, in the words of `fumehood.toml`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    pub net: Option<String>,
    pub allow: Vec<String>,
    pub allow_cidr: Vec<String>,
    /// Secrets of the caller's own that the rules use.
    pub literals: Literals,
}

// === impl Engine ===

impl Engine {
    /// Lets a sandbox reach this, and nothing else, from now on. Ceilings and what else its network was made with stay.
    ///
    /// # Errors
    /// It is more than the caller may ask for; the sandbox was made without a network; its keeper could not do it.
    pub async fn change_network(&self, caller: &Caller, live: &Live, reach: Reach) -> Result<(), ApiError> {
        let _transition = live.transition().await;
        let Reach { net, allow, allow_cidr, literals } = reach;
        let clause = json!({ "net": net, "allow": allow, "allow-cidr": allow_cidr });
        if !caller.scopes.has(Scope::Admin) {
            // Against what its template has now, not against what somebody once got.
            let template = self.template(caller, &live.sandbox().template).await?;
            let is_own = |name: &str| literals.get(name).is_some();
            network::judge((clause_of(&template), &clause), &is_own, &network::own_addresses()?)?;
        }
        let given = literals.clone();
        let asked = Network { actor: caller.actor(), net, allow, allow_cidr, literals };
        self.ask(live, &Ask::Network(asked)).await?;
        let spec = live.change_spec(|spec| {
            set(&mut spec.envelope, clause);
            template::name(spec, &given);
        });
        self.0.registry.update_spec(live.id().to_string(), spec).await
    }
}

// === impl Engine ===

impl Engine {
    /// Puts another value into one of a sandbox's labels, or takes it away.
    pub(crate) async fn relabel(&self, live: &Live, name: &str, value: Option<String>) {
        live.change(|sandbox| {
            sandbox.labels.remove(name);
            sandbox.labels.extend(value.map(|value| (name.to_owned(), value)));
        });
        self.keep(live).await;
    }
}

/// The `network` clause of a spec.
pub(crate) fn clause_of(spec: &Spec) -> &Value {
    spec.envelope.get("network").unwrap_or(&Value::Null)
}

/// Puts what may change of a `network` clause into an envelope; its presets were rules too.
fn set(envelope: &mut Value, clause: Value) {
    let network = envelope.get_mut("network").and_then(Value::as_object_mut);
    if let Some(network) = network {
        for field in ["net", "allow", "allow-cidr", "presets"] {
            network.remove(field);
        }
    }
    template::lay(envelope, json!({ "network": clause }));
}

/// A spec for somebody else's sandbox: rules that use a secret which was given by hand are not in it.
pub(crate) fn without_given(mut spec: Spec) -> Spec {
    spec.literals = Literals::default();
    let keep = |list: Option<&mut Value>, keeps: &dyn Fn(&str) -> bool| {
        if let Some(list) = list.and_then(Value::as_array_mut) {
            list.retain(|entry| entry.as_str().is_none_or(keeps));
        }
    };
    keep(spec.envelope.pointer_mut("/credentials/secrets"), &|entry| !entry.starts_with(GIVEN));
    keep(spec.envelope.pointer_mut("/network/allow"), &|entry| {
        entry.rsplit_once(" with ").is_none_or(|(_, with)| !with.contains(&format!(":{GIVEN}")))
    });
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_have_no_rules_with_secrets_of_their_parents_caller() {
        let envelope = json!({
            "network": { "allow": ["a.example.com", "https://a.example.com/** with header:x-key:GIVEN_1_0"] },
            "credentials": { "secrets": ["T=env:T", "GIVEN_1_0=given:"] },
        });
        let spec = without_given(Spec { envelope, ..Spec::default() });
        assert_eq!(spec.envelope["network"]["allow"], json!(["a.example.com"]));
        assert_eq!(spec.envelope["credentials"]["secrets"], json!(["T=env:T"]));
        assert_eq!(without_given(Spec::default()), Spec::default());
    }
}
