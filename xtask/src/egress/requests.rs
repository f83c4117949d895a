//! Requests through opened TLS: beside `mitmproxy`, and what they take longer than without a wall.

use super::place::Place;
use super::{Bound, Figures, figures_of, middle};
use crate::run::{self, Done};
use serde_json::json;
use std::path::PathBuf;
use std::process::Command;

const ROUNDS: usize = 5;
const SECONDS: &str = "2";
/// Connections at the same time, for the rate; for the latency there is one.
const CONNECTIONS: &str = "8";
const MITMPROXY: u16 = 8080;
const RULE: &str = "GET https://api.example.com/v1/**";

/// One way to the server.
struct Side {
    name: &'static str,
    command: fn(&Place) -> Command,
    ca: String,
    proxy: &'static str,
}

/// Measures the rate, and then the latency.
pub(super) fn measure(place: &Place, figures: &mut Figures) -> Done {
    let own = place.authority().to_str().ok_or("a folder with a strange name")?.to_owned();
    let mut sides = vec![
        Side { name: "direct", command: Place::beside, ca: own.clone(), proxy: "-" },
        Side {
            name: "fumehood",
            command: |place| place.inside(RULE),
            ca: "/run/fumehood/ca.crt".to_owned(),
            proxy: "-",
        },
    ];
    match mitmproxy() {
        None => figures.missing("mitmproxy"),
        Some(program) => {
            let settings = place.folder().join("mitmproxy");
            let mut command = Command::new(program);
            command.args(["-q", "--listen-host", "127.0.0.1", "--listen-port", &MITMPROXY.to_string()]);
            command.arg("--set").arg(format!("confdir={}", settings.display()));
            command.arg("--set").arg(format!("ssl_verify_upstream_trusted_ca={own}"));
            place.peer(&mut command, MITMPROXY)?;
            let ca = settings.join("mitmproxy-ca-cert.pem").display().to_string();
            sides.push(Side { name: "mitmproxy", command: Place::beside, ca, proxy: "127.0.0.1:8080" });
        }
    }
    let all: Vec<&Side> = sides.iter().collect();
    let rates = compare(place, figures, (&all, CONNECTIONS), "per_second")?;
    let latencies = compare(place, figures, (&all, "1"), "p50_ms")?;
    let of = |figures: &[(&str, f64)], wanted: &str| {
        figures.iter().find(|(name, _)| *name == wanted).map_or(f64::NAN, |(_, value)| *value)
    };
    let ratio = of(&rates, "fumehood") / of(&rates, "mitmproxy");
    figures.hold("opened TLS, requests a second, of mitmproxy", ratio, Bound::Least(10.0));
    let added = of(&latencies, "fumehood") - of(&latencies, "direct");
    figures.hold("opened TLS, latency, ms more than direct", added, Bound::Most(0.5));
    Ok(())
}

fn compare(
    place: &Place,
    figures: &mut Figures,
    (sides, connections): (&[&Side], &str),
    wanted: &str,
) -> Result<Vec<(&'static str, f64)>, Box<dyn std::error::Error>> {
    let mut values: Vec<Vec<f64>> = vec![Vec::new(); sides.len()];
    for _ in 0..ROUNDS {
        for (side, values) in sides.iter().zip(&mut values) {
            let mut command = (side.command)(place);
            command.args(["get", &side.ca, side.proxy, connections, SECONDS]);
            values.push(figures_of(&mut command)?[wanted].as_f64().unwrap_or(f64::NAN));
        }
    }
    let mut middles = Vec::new();
    for (side, values) in sides.iter().zip(&values) {
        let value = middle(values);
        figures.line(
            "requests",
            json!({"side": side.name, "rounds": ROUNDS, "connections": connections, wanted: value}),
        );
        middles.push((side.name, value));
    }
    Ok(middles)
}

/// Along the search path, or in the folder of builds.
fn mitmproxy() -> Option<PathBuf> {
    let own = std::env::var_os("FUMEHOOD_BENCH_MITMDUMP").map(PathBuf::from);
    own.or_else(|| run::find("mitmdump"))
}
