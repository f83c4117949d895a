//! What one decision takes among ten thousand rules: one JSON line.
//!
//! The rules are of six kinds: a host each, a wildcard each, a path each below different folders of one host, a path each
//! below the same folder of one host, a port each of one host, and a method each of one path. Of each kind one ask is allowed,
//! by the last rule, and one is denied.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a bench prints its line, and stops where it can not measure"
)]

use fumehood_model::egress::{Ask, Egress, Host, Identity, Reach, Request, Rule, Scheme, Table, UrlPath};
use std::hint::black_box;
use std::time::{Duration, Instant};

const RULES: usize = 10_000;
/// Decisions that are timed together, and how often.
const LOT: u32 = 200;
const ROUNDS: usize = 50;

/// One kind of rules, with what is asked of them.
struct Kind {
    name: &'static str,
    rule: fn(usize) -> String,
    /// Host and port, method, path.
    asked: fn(usize) -> (String, u16, String, String),
}

const KINDS: [Kind; 6] = [
    Kind {
        name: "hosts",
        rule: |number| format!("https://h{number}.example.com/v1/**"),
        asked: |number| get(format!("h{number}.example.com"), "/v1/items".to_owned()),
    },
    Kind {
        name: "wildcards",
        rule: |number| format!("https://*.h{number}.example.com/v1/**"),
        asked: |number| get(format!("a.b.h{number}.example.com"), "/v1/items".to_owned()),
    },
    Kind {
        name: "folders",
        rule: |number| format!("GET https://api.example.com/f{number}/**"),
        asked: |number| get("api.example.com".to_owned(), format!("/f{number}/items")),
    },
    Kind {
        name: "one_folder",
        rule: |number| format!("GET https://api.example.com/repos/owner/r{number}/**"),
        asked: |number| get("api.example.com".to_owned(), format!("/repos/owner/r{number}/issues")),
    },
    Kind {
        name: "ports",
        rule: |number| format!("https://api.example.com:{}/v1/**", number + 1),
        asked: |number| {
            let (host, _, method, path) = get("api.example.com".to_owned(), "/v1/items".to_owned());
            (host, u16::try_from(number + 1).expect("a port"), method, path)
        },
    },
    Kind {
        name: "methods",
        rule: |number| format!("M{number} https://api.example.com/v1/**"),
        asked: |number| ("api.example.com".to_owned(), 443, format!("M{number}"), "/v1/items".to_owned()),
    },
];

fn get(host: String, path: String) -> (String, u16, String, String) {
    (host, 443, "GET".to_owned(), path)
}

fn main() {
    let mut fields = Vec::new();
    for kind in KINDS {
        let table = table(&kind);
        for (verdict, number) in [("allowed", RULES - 1), ("denied", RULES)] {
            let (host, port, method, path) = (kind.asked)(number);
            let host = Host::parse(&host).expect("a host");
            let identity = Identity::new(Scheme::Https, host, port).expect("a place");
            let path = UrlPath::parse(&path).expect("a path");
            let ask = Ask { identity: &identity, request: Some(Request { method: &method, path: &path }) };
            assert_eq!(table.decide(ask).is_ok(), verdict == "allowed", "{} {verdict}", kind.name);
            fields.push(format!("\"{}_{verdict}_p50_us\":{:.3}", kind.name, time(&table, ask)));
        }
    }
    println!("{{\"bench\":\"decide\",\"rules\":{RULES},{}}}", fields.join(","));
}

fn table(kind: &Kind) -> Table {
    let rules = (0..RULES).map(|number| Rule::parse(&(kind.rule)(number)).expect("a rule"));
    Table::new(Egress {
        reach: Reach::Rules,
        rules: rules.collect(),
        ranges: Vec::new(),
        resolutions: Vec::new(),
        ceilings: Vec::new(),
        upstream: None,
        authorities: Vec::new(),
    })
}

/// The middle time of one decision, in microseconds.
fn time(table: &Table, ask: Ask<'_>) -> f64 {
    let mut times: Vec<Duration> = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..LOT {
            drop(black_box(table.decide(black_box(ask))));
        }
        times.push(start.elapsed() / LOT);
    }
    times.sort_unstable();
    times.get(ROUNDS / 2).copied().unwrap_or_default().as_secs_f64() * 1e6
}
