//! Ceilings: each stops what goes beyond it, and says which it was.

use crate::both_callers::both_callers;
use crate::lab::Lab;
use crate::stand::{Seen, Stand};

both_callers! {
    requests_and_their_rate
    connections_at_the_same_time
    bytes_in_both_directions
    each_host_by_itself
}

const RULES: &[(&str, &str)] = &[
    ("https", "https://api.example.com/**"),
    ("https", "api.example.com"),
    ("http", "http://api.example.com"),
];

fn stand(lab: &Lab) -> Stand {
    let stand = Stand::new(lab.caller);
    stand.range.name("*.example.com", &["203.0.113.7"]);
    stand
}

/// A run under a ceiling, and its control under none.
fn both(stand: &Stand, limit: &str, rules: &[&str], script: &str) -> (Seen, Seen) {
    let mut flags: Vec<&str> = rules.iter().flat_map(|rule| ["--allow", rule]).collect();
    let free = stand.inside(&flags, &["sh", "-c", script]);
    flags.extend(["--net-limit", limit]);
    (stand.inside(&flags, &["sh", "-c", script]), free)
}

fn named(stand: &Stand, seen: &Seen, word: &str) {
    assert!(seen.ran.err().contains(word), "the ceiling is not named: {}", seen.ran.told());
    let record = stand.record();
    // The run without a ceiling was before this one.
    let told = record.iter().any(|line| line["event"] == "egress.denied" && line["reason"] == "ceiling");
    assert!(told, "{record:?}");
}

fn requests_and_their_rate(lab: &Lab) {
    let stand = stand(lab);
    for (scheme, rule) in RULES {
        for limit in ["requests=3", "per-minute=3"] {
            let script = format!(
                "for n in 1 2 3 4 5 6; do curl -sS -m 5 -o /dev/null {scheme}://api.example.com/$n; done; true"
            );
            let (seen, free) = both(&stand, limit, &[rule], &script);
            assert_eq!(free.log.all("request").count(), 6, "{rule}: {}", free.ran.told());
            assert_eq!(seen.log.all("request").count(), 3, "{rule} {limit}: {}", seen.ran.told());
            named(&stand, &seen, limit.split_once('=').unwrap().0);
        }
    }
}

fn connections_at_the_same_time(lab: &Lab) {
    let stand = stand(lab);
    for (scheme, rule) in RULES {
        let script = format!(
            "for n in 1 2 3 4; do curl -sS -m 8 -o /dev/null '{scheme}://api.example.com/drip?n=20&ms=100&turn='$n & done; wait"
        );
        let (seen, free) = both(&stand, "connections=2", &[rule], &script);
        assert_eq!(free.log.all("request").count(), 4, "{rule}: {}", free.ran.told());
        assert_eq!(seen.log.all("request").count(), 2, "{rule}: {}", seen.ran.told());
        named(&stand, &seen, "connections");
    }
}

fn bytes_in_both_directions(lab: &Lab) {
    let stand = stand(lab);
    for (scheme, rule) in RULES {
        let script = format!(
            "head -c 300000 /dev/zero | curl -sS -m 8 -X POST --data-binary @- {scheme}://api.example.com/body; curl -sS -m 8 -o /dev/null {scheme}://api.example.com/after; true"
        );
        let (seen, free) = both(&stand, "bytes-out=100KiB", &[rule], &script);
        assert!(free.ran.out().contains("300000"), "{rule}: {}", free.ran.told());
        assert!(!seen.ran.out().contains("300000"), "{rule}: {}", seen.ran.told());
        assert!(!seen.log.has("/after"), "{rule}: {}", seen.log.told());
        named(&stand, &seen, "bytes-out");
        let script = format!(
            "curl -sS -m 8 -o got {scheme}://api.example.com/stream/500000; wc -c < got; curl -sS -m 8 -o /dev/null {scheme}://api.example.com/after; true"
        );
        let (seen, free) = both(&stand, "bytes-in=100KiB", &[rule], &script);
        assert!(free.ran.out().contains("500000"), "{rule}: {}", free.ran.told());
        let got: u64 = seen.ran.out().trim().parse().unwrap_or(0);
        assert!(got <= 100 << 10, "{rule}: {}", seen.ran.told());
        assert!(!seen.log.has("/after"), "{rule}: {}", seen.log.told());
        named(&stand, &seen, "bytes-in");
    }
}

fn each_host_by_itself(lab: &Lab) {
    let stand = stand(lab);
    let script = "for host in one two; do for n in 1 2 3; do curl -sS -m 5 -o /dev/null https://$host.example.com/$n; done; done; true";
    let (seen, free) = both(&stand, "requests@one.example.com=1", &["https://*.example.com/**"], script);
    assert_eq!(free.log.all("request").count(), 6, "{}", free.ran.told());
    let of = |host: &str| seen.log.all("request").filter(|request| request["host"] == host).count();
    assert_eq!((of("one.example.com"), of("two.example.com")), (1, 3), "{}", seen.ran.told());
}
