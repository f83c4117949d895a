//! At which ports the gateway has to listen for a clause.

use fumehood_backend::gateway::{GatewaySpec, MOST_PORTS, Ports};
use fumehood_model::egress::{Egress, Reach};
use std::collections::BTreeSet;

/// The ports that sandboxes which live on have beside those of their rules, which may change.
const USUAL: [u16; 2] = [80, 443];

/// As [`gateway`], for a sandbox whose rules may change.
pub(crate) fn living(egress: &Egress) -> GatewaySpec {
    let GatewaySpec { ports } = gateway(egress);
    let ports = match ports {
        Ports::Every => Ports::Every,
        Ports::Listed(mut ports) => {
            ports.extend(USUAL);
            ports.sort_unstable();
            ports.dedup();
            if ports.len() > MOST_PORTS { Ports::Every } else { Ports::Listed(ports) }
        }
    };
    GatewaySpec { ports }
}

/// A port of the rules at which a gateway of `made` does not listen.
pub(crate) fn unheard(made: &GatewaySpec, egress: &Egress) -> Option<String> {
    match (&made.ports, gateway(egress).ports) {
        (Ports::Every, _) => None,
        (Ports::Listed(_), Ports::Every) => Some("every port".to_owned()),
        (Ports::Listed(made), Ports::Listed(wanted)) => {
            wanted.iter().find(|port| !made.contains(port)).map(|port| format!("the port {port}"))
        }
    }
}

/// Those that the rules name; all of them where every public place may be reached, or where they are too many.
pub(crate) fn gateway(egress: &Egress) -> GatewaySpec {
    let named =
        egress.rules.iter().map(|rule| &rule.ports).chain(egress.ranges.iter().map(|range| &range.ports));
    let mut ports = BTreeSet::new();
    let ports = match egress.reach {
        Reach::Names => Ports::Listed(Vec::new()),
        Reach::Public => Ports::Every,
        Reach::Rules => {
            for port in named.flat_map(|ports| ports.range()) {
                ports.insert(port);
                if ports.len() > MOST_PORTS {
                    return GatewaySpec { ports: Ports::Every };
                }
            }
            Ports::Listed(ports.into_iter().collect())
        }
    };
    GatewaySpec { ports }
}
