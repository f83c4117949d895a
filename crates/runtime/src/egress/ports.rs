//! At which ports the gateway has to listen for a clause.

use fumehood_backend::gateway::{GatewaySpec, MOST_PORTS, Ports};
use fumehood_model::egress::{Egress, Reach};
use std::collections::BTreeSet;

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
