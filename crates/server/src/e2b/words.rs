//! The shapes of E2B's control plane, and their times.

use crate::sandbox::{Metrics, OnTimeout, Sandbox, State};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The version of envd that we speak like. Clients decide by it what they send.
pub(super) const ENVD_VERSION: &str = "0.6.4";
/// Labels of ours begin with this; a caller's metadata does not.
pub(super) const OWN: &str = "e2b:";
/// The label of a sandbox whose ports need no token.
pub(super) const PUBLIC: &str = "e2b:public";
/// The label with the network as the caller wrote it.
pub(super) const NETWORK: &str = "e2b:network";
/// The label with the template as the caller named it.
pub(super) const TEMPLATE: &str = "e2b:template";
/// What every sandbox must show as its end, shown where it has none: the last day of 2999.
const NEVER_MS: u64 = 32_503_593_600_000;
const MEBIBYTE: u64 = 1 << 20;

/// What lets a client talk to a sandbox.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) envd: String,
    pub(super) traffic: String,
    pub(super) domain: Option<String>,
}

/// A sandbox, as create, connect, resume and fork answer it.
pub(super) fn short(sandbox: &Sandbox, access: &Access) -> Value {
    json!({
        "templateID": template(sandbox),
        "sandboxID": sandbox.id,
        "clientID": "fumehood",
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": access.envd,
        "trafficAccessToken": access.traffic,
        "domain": access.domain,
    })
}

/// A sandbox in a list.
pub(super) fn listed(sandbox: &Sandbox) -> Map<String, Value> {
    let words = json!({
        "templateID": template(sandbox),
        "sandboxID": sandbox.id,
        "clientID": "fumehood",
        "startedAt": rfc3339(sandbox.created_ms),
        "endAt": rfc3339(sandbox.expires_ms.unwrap_or(NEVER_MS)),
        "cpuCount": cores(sandbox),
        "memoryMB": sandbox.memory_limit_bytes / MEBIBYTE,
        "diskSizeMB": sandbox.disk_limit_bytes / MEBIBYTE,
        "state": if sandbox.state == State::Running { "running" } else { "paused" },
        "envdVersion": ENVD_VERSION,
        "metadata": metadata(&sandbox.labels),
    });
    match words {
        Value::Object(words) => words,
        _ => Map::new(),
    }
}

/// A sandbox, looked at.
pub(super) fn detailed(sandbox: &Sandbox, access: &Access) -> Value {
    let mut words = listed(sandbox);
    let on_timeout = match sandbox.on_timeout {
        OnTimeout::Stop => "kill",
        OnTimeout::Pause => "pause",
    };
    words.insert("envdAccessToken".to_owned(), json!(access.envd));
    words.insert("domain".to_owned(), json!(access.domain));
    words.insert(
        "lifecycle".to_owned(),
        json!({ "autoResume": sandbox.auto_resume, "onTimeout": on_timeout }),
    );
    if let Some(network) = sandbox.labels.get(NETWORK).and_then(|text| serde_json::from_str(text).ok()) {
        let network: Value = network;
        words.insert("network".to_owned(), network);
    }
    Value::Object(words)
}

/// One measurement.
pub(super) fn metric(metrics: &Metrics) -> Value {
    // Thousandths of a core, as a percentage of one.
    let percent = metrics.cpu_milli / 10;
    json!({
        "timestamp": rfc3339(metrics.at_ms),
        "timestampUnix": metrics.at_ms / 1000,
        "cpuCount": metrics.cpu_count,
        "cpuUsedPct": percent,
        "memUsed": metrics.memory_bytes,
        "memTotal": metrics.memory_limit_bytes,
        "memCache": 0,
        "diskUsed": metrics.disk_bytes,
        "diskTotal": metrics.disk_limit_bytes,
    })
}

fn template(sandbox: &Sandbox) -> &str {
    sandbox.labels.get(TEMPLATE).unwrap_or(&sandbox.template)
}

fn metadata(labels: &BTreeMap<String, String>) -> BTreeMap<&String, &String> {
    labels.iter().filter(|(name, _)| !name.starts_with(OWN)).collect()
}

/// Whole cores, at least one.
fn cores(sandbox: &Sandbox) -> u64 {
    let all = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    match sandbox.cpu_milli {
        Some(milli) => milli.div_ceil(1000).max(1),
        None => u64::try_from(all()).unwrap_or(1),
    }
}

/// A time, in UTC and milliseconds.
pub(super) fn rfc3339(unix_ms: u64) -> String {
    let (days, ms) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    // The civil calendar, counted in eras of 400 years that start on 1 March.
    let days = days.saturating_add(719_468);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era.saturating_mul(400) + u64::from(month <= 2);
    let (hours, minutes, seconds) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{:03}Z", ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_printed() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(1_796_022_896_789), "2026-11-30T07:14:56.789Z");
        assert_eq!(rfc3339(NEVER_MS), "2999-12-31T00:00:00.000Z");
        // As late as can be said: no panic.
        let _ = rfc3339(u64::MAX);
    }
}
