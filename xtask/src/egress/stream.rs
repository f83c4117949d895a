//! One long stream, unread: beside a proxy's `CONNECT`, and beside nothing in between.

use super::place::Place;
use super::{Bound, Figures, figures_of, middle};
use crate::run::{self, Done};
use serde_json::json;
use std::process::Command;

const ROUNDS: usize = 7;
const BYTES: &str = "1000000000";
const SQUID: u16 = 3128;
const TINYPROXY: u16 = 8888;

/// Measures TLS by a rule `host`, and bytes as they are by a rule `host:PORT`.
pub(super) fn measure(place: &Place, figures: &mut Figures) -> Done {
    let ca = place.authority();
    let tls = |mut command: Command, ca: &str, proxy: &str| {
        command.args(["stream", ca, proxy, BYTES, "0"]);
        command
    };
    let ca = ca.to_str().ok_or("a folder with a strange name")?;
    let mut sides = vec![
        ("direct", tls(place.beside(), ca, "-")),
        ("fumehood", tls(place.inside("api.example.com"), "/input/ca.pem", "-")),
    ];
    for (name, port, start) in [
        ("squid", SQUID, squid as fn(&Place) -> Result<Command, Box<dyn std::error::Error>>),
        ("tinyproxy", TINYPROXY, tinyproxy),
    ] {
        if run::find(name).is_none() {
            figures.missing(name);
            continue;
        }
        place.peer(&mut start(place)?, port)?;
        sides.push((name, tls(place.beside(), ca, &format!("127.0.0.1:{port}"))));
    }
    let rates = compare(figures, "stream_tls", sides)?;
    let rate =
        |wanted: &str| rates.iter().find(|(name, _)| *name == wanted).map_or(f64::NAN, |(_, rate)| *rate);
    figures.hold("tunnelled TLS, of direct", rate("fumehood") / rate("direct"), Bound::Least(0.5));
    for peer in ["squid", "tinyproxy"] {
        figures.hold(&format!("tunnelled TLS, of {peer}"), rate("fumehood") / rate(peer), Bound::Least(0.8));
    }
    let plain = |mut command: Command| {
        command.args(["bytes", BYTES]);
        command
    };
    let sides =
        vec![("direct", plain(place.beside())), ("fumehood", plain(place.inside("api.example.com:9000")))];
    let rates = compare(figures, "stream_bytes", sides)?;
    if let [(_, direct), (_, ours)] = rates.as_slice() {
        run::say(&format!("egress: plain bytes, of direct: {:.2}", ours / direct));
    }
    Ok(())
}

/// The middle rate of each side, in GB a second.
fn compare(
    figures: &mut Figures,
    figure: &str,
    mut sides: Vec<(&'static str, Command)>,
) -> Result<Vec<(&'static str, f64)>, Box<dyn std::error::Error>> {
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); sides.len()];
    for _ in 0..ROUNDS {
        for ((_, command), rates) in sides.iter_mut().zip(&mut rates) {
            rates.push(figures_of(command)?["gb_per_s"].as_f64().unwrap_or(f64::NAN));
        }
    }
    let mut middles = Vec::new();
    for ((name, _), rates) in sides.iter().zip(&rates) {
        let rate = middle(rates);
        figures.line(figure, json!({"side": name, "rounds": ROUNDS, "bytes": BYTES, "p50_gb_per_s": rate}));
        middles.push((*name, rate));
    }
    Ok(middles)
}

fn squid(place: &Place) -> Result<Command, Box<dyn std::error::Error>> {
    let file = place.folder().join("squid.conf");
    let text = format!(
        "http_port 127.0.0.1:{SQUID}\nhttp_access allow all\ncache deny all\naccess_log none\ncache_log /dev/null\n\
         pid_filename none\ncache_store_log none\nhosts_file /etc/hosts\nshutdown_lifetime 0 seconds\n"
    );
    std::fs::write(&file, text)?;
    let mut command = Command::new("squid");
    command.arg("-N").arg("-f").arg(file);
    Ok(command)
}

fn tinyproxy(place: &Place) -> Result<Command, Box<dyn std::error::Error>> {
    let file = place.folder().join("tinyproxy.conf");
    let text = format!(
        "Port {TINYPROXY}\nListen 127.0.0.1\nTimeout 600\nMaxClients 100\nLogLevel Critical\nConnectPort 443\n"
    );
    std::fs::write(&file, text)?;
    let mut command = Command::new("tinyproxy");
    command.arg("-d").arg("-c").arg(file);
    Ok(command)
}
