//! What of a network a caller may ask for who is not the operator.
//!
//! Public places, as many as are named. Beyond those only what the operator's template has: the host's own networks,
//! its files, its ports, and where a secret may go are not a caller's to say.

use crate::error::{ApiError, Code};
use fumehood_model::egress::{Opened, Rule};
use serde::Deserialize;
use serde_json::Value;
use std::net::IpAddr;

/// Entries of one list, as texts.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct Words {
    net: Option<String>,
    allow: Vec<String>,
    allow_cidr: Vec<String>,
    resolve: Vec<String>,
    presets: Vec<String>,
    publish: Vec<String>,
    /// Absent and empty are not the same: what is written takes the template's place.
    limits: Option<Vec<String>>,
    upstream: Option<String>,
    authorities: Vec<String>,
}

/// Refuses a `network` clause that reaches further than what is public, or in a template's clause. Entries for
/// secrets in `own` are the caller's.
///
/// `here` are this host's addresses, public ones too: what listens at them is not a caller's to reach. Names that lead
/// there, and ranges that hold them, are refused when they are dialled.
pub(crate) fn judge(
    (template, asked): (&Value, &Value),
    own: &dyn Fn(&str) -> bool,
    here: &[IpAddr],
) -> Result<(), ApiError> {
    let held = read(template)?;
    // Taken apart in full, so that a new field can not be forgotten here.
    let Words { net: _, allow, allow_cidr, resolve, presets, publish, limits, upstream, authorities } =
        read(asked)?;
    let held_rules: Vec<Rule> = held.allow.iter().filter_map(|text| Rule::parse(text).ok()).collect();
    for text in &allow {
        let rule = Rule::parse(text).map_err(|flaw| bad(text, &flaw.what, flaw.remedy))?;
        let mut bare = rule.clone();
        if rule.binding.as_ref().is_some_and(|binding| own(&binding.secret)) {
            bare.binding = None;
        }
        let is_here = rule.address().is_some_and(|address| here.contains(&address));
        if (is_here || !bare.is_public()) && !held_rules.iter().any(|held| held.covers(&rule)) {
            return Err(refused("allow", text));
        }
    }
    let held_ranges: Vec<Opened> =
        held.allow_cidr.iter().filter_map(|text| Opened::parse(text).ok()).collect();
    for text in &allow_cidr {
        let range = Opened::parse(text).map_err(|flaw| bad(text, &flaw.what, flaw.remedy))?;
        let is_here = range.range.is_one() && here.iter().any(|address| range.range.contains(*address));
        if (is_here || !range.is_public()) && !held_ranges.iter().any(|held| held.covers(&range)) {
            return Err(refused("allow-cidr", text));
        }
    }
    let lists = [
        ("resolve", &resolve, &held.resolve),
        ("presets", &presets, &held.presets),
        ("publish", &publish, &held.publish),
        ("authorities", &authorities, &held.authorities),
    ];
    for (name, asked, held) in lists {
        if let Some(entry) = asked.iter().find(|entry| !held.contains(entry)) {
            return Err(refused(name, entry));
        }
    }
    if let Some(proxy) = upstream.filter(|proxy| Some(proxy) != held.upstream.as_ref()) {
        return Err(refused("upstream", &proxy));
    }
    let ceilings = held.limits.unwrap_or_default();
    if limits.is_some_and(|limits| ceilings.iter().any(|limit| !limits.contains(limit))) {
        let cause = "`network.limits` leaves out a ceiling of the template";
        return Err(ApiError::new(
            Code::Forbidden,
            "make the envelope",
            cause,
            "name the template's ceilings beside yours: the lowest of each holds",
        ));
    }
    Ok(())
}

/// The addresses of this host now.
///
/// # Errors
/// They can not be known; then nothing is judged by them.
pub(crate) fn own_addresses() -> Result<Vec<IpAddr>, ApiError> {
    fumehood_sys::interfaces::addresses()
        .map_err(|error| ApiError::of_host(Code::Internal, "look at this host's addresses", &error))
}

fn read(clause: &Value) -> Result<Words, ApiError> {
    if clause.is_null() {
        return Ok(Words::default());
    }
    Words::deserialize(clause).map_err(|error| {
        ApiError::new(
            Code::BadRequest,
            "read the network",
            error.to_string(),
            "write it as in `fumehood.toml`; docs/egress.md has its words",
        )
    })
}

fn bad(text: &str, what: &str, remedy: &str) -> ApiError {
    ApiError::new(Code::BadRequest, "read the network", format!("`{}`: {what}", short(text)), remedy)
}

fn refused(field: &str, entry: &str) -> ApiError {
    ApiError::new(
        Code::Forbidden,
        "make the envelope",
        format!("`{}` of `network.{field}` is the operator's to open", short(entry)),
        "name public places; have the operator put the rest into a template, or use a key with the scope `admin`",
    )
}

fn short(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_public_is_a_callers_to_name_and_the_rest_is_the_operators() {
        let template = json!({
            "allow": ["https://api.example.com/** with bearer:T", "10.0.0.5:5432"],
            "limits": ["requests=5"],
            "presets": ["pip"],
        });
        let here = ["192.0.2.9".parse().unwrap(), "2001:db8::9".parse().unwrap()];
        let judged = |asked: Value| judge((&template, &asked), &|name| name.starts_with("OWN_"), &here);
        for fine in [
            json!({}),
            json!(null),
            json!({ "net": "proxy" }),
            json!({ "allow": ["*.example.org", "https://api.example.com/v1 with bearer:T"] }),
            json!({ "allow": ["10.0.0.5:5432"], "presets": ["pip"] }),
            json!({ "allow": ["https://evil.example.com/** with header:X:OWN_1"] }),
            json!({ "allow-cidr": ["192.0.2.0/24:443"], "limits": ["requests=5", "bytes-out=1MiB"] }),
        ] {
            judged(fine.clone()).unwrap_or_else(|error| panic!("{fine}: {error}"));
        }
        for forbidden in [
            // The operator's secret for somebody else.
            json!({ "allow": ["https://evil.example.com/** with bearer:T"] }),
            json!({ "allow": ["https://api.example.com/** with header:X:T"] }),
            json!({ "allow": ["127.0.0.1:22"] }),
            json!({ "allow": ["192.0.2.9:22"] }),
            json!({ "allow": ["[::ffff:192.0.2.9]:22"] }),
            json!({ "allow": ["[2001:db8::9]:22"] }),
            json!({ "allow-cidr": ["192.0.2.9/32:22"] }),
            json!({ "allow": ["host.fumehood.internal:5432"] }),
            json!({ "allow": ["https://host.fumehood.internal with header:X:OWN_1"] }),
            json!({ "allow": ["10.0.0.6:5432"] }),
            json!({ "allow-cidr": ["127.0.0.1/32:80"] }),
            json!({ "allow-cidr": ["169.254.169.254/32:80"] }),
            json!({ "allow-cidr": ["10.0.0.0/8:80"] }),
            json!({ "resolve": ["a.example.com=10.0.0.0/8"] }),
            json!({ "publish": ["8080"] }),
            json!({ "presets": ["npm"] }),
            json!({ "upstream": "http://evil.example.com:1" }),
            json!({ "authorities": ["api.example.com=/etc/shadow"] }),
            json!({ "limits": ["requests=1000000"] }),
            json!({ "limits": [] }),
        ] {
            assert_eq!(judged(forbidden.clone()).unwrap_err().code, Code::Forbidden, "{forbidden}");
        }
        // A secret goes over TLS alone.
        let plain = json!({ "allow": ["http://example.org with header:X:OWN_1"] });
        assert_eq!(judged(plain).unwrap_err().code, Code::BadRequest);
        assert_eq!(judged(json!({ "allow": ["a b"] })).unwrap_err().code, Code::BadRequest);
        assert_eq!(judged(json!({ "alow": [] })).unwrap_err().code, Code::BadRequest);
    }
}
