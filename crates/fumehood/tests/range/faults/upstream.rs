//! Servers and name servers that fail, lie, or attack.

use crate::both_callers::both_callers;
use crate::lab::Lab;
use crate::stand::Stand;
use serde_json::json;

both_callers! {
    a_server_that_fails_is_told_and_the_next_request_goes_on
    a_name_server_that_fails_is_told_and_misleads_nobody
}

/// What curl may make of an answer: its exit code and the status.
#[derive(Debug)]
struct Fault {
    path: &'static str,
    good: fn(i32, u16, &str) -> bool,
    /// Whether curl itself finds nothing wrong with it.
    fine: bool,
}

const PARTIAL: fn(i32, u16, &str) -> bool = |code, status, _| code != 0 || status == 502;
const BAD_GATEWAY: fn(i32, u16, &str) -> bool = |code, status, _| code == 0 && status == 502;

const FAULTS: &[Fault] = &[
    Fault {
        path: "/raw/half-close",
        good: |code, status, body| code == 0 && status == 200 && body == "whole",
        fine: true,
    },
    Fault {
        path: "/raw/no-length",
        good: |code, status, body| code == 0 && status == 200 && body == "to the end",
        fine: true,
    },
    Fault {
        path: "/raw/early",
        good: |code, status, body| code == 0 && status == 200 && body == "ok",
        fine: true,
    },
    // Cut off, for all that TLS says of it, and never whole to a client: curl by itself takes it.
    Fault {
        path: "/raw/no-notice",
        good: |code, status, body| code != 0 || status == 502 || body == "in the clear",
        fine: true,
    },
    Fault { path: "/raw/lying-length", good: PARTIAL, fine: false },
    Fault { path: "/raw/reset/2000", good: PARTIAL, fine: false },
    Fault { path: "/raw/bad-chunk", good: |code, status, _| code != 0 || status == 502, fine: false },
    Fault { path: "/raw/endless-headers", good: BAD_GATEWAY, fine: false },
    Fault { path: "/raw/big-header/1000000", good: BAD_GATEWAY, fine: false },
    Fault { path: "/raw/garbage", good: BAD_GATEWAY, fine: false },
    Fault { path: "/raw/two-lengths", good: BAD_GATEWAY, fine: true },
    Fault { path: "/raw/switch", good: BAD_GATEWAY, fine: false },
    Fault { path: "/raw/hang", good: |code, _, _| code == 28, fine: false },
];

fn script(scheme: &str) -> String {
    let one = |fault: &Fault| {
        format!(
            "curl -sS -m 4 --http1.1 -o body -w '%{{http_code}}' '{scheme}://api.example.com{}' > status; \
             echo \"{} $? $(cat status) $(head -c 200 body 2>/dev/null | tr -d '\\000\\n')\"; rm -f body; \
             curl -sS -m 5 -o next -w 'next %{{http_code}}\\n' {scheme}://api.example.com/page; ",
            fault.path, fault.path
        )
    };
    FAULTS.iter().map(one).collect()
}

fn a_server_that_fails_is_told_and_the_next_request_goes_on(lab: &Lab) {
    let stand = Stand::new(lab.caller);
    stand.range.name("api.example.com", &["203.0.113.7"]);
    let beside = stand.beside(&["sh", "-c", &script("https")]);
    for fault in FAULTS {
        let (code, status, _) = told(&beside.ran.out(), fault.path);
        assert_eq!(
            code == 0 && status == 200,
            fault.fine,
            "the server is not as it should be: {fault:?}: {}",
            beside.ran.told()
        );
    }
    for (scheme, rule) in [("https", "https://api.example.com/**"), ("http", "http://api.example.com")] {
        let seen = stand.inside(&["--allow", rule], &["sh", "-c", &script(scheme)]);
        for fault in FAULTS {
            let (code, status, body) = told(&seen.ran.out(), fault.path);
            assert!(
                (fault.good)(code, status, &body),
                "{scheme} {fault:?}: {code} {status} {body:?}\n{}",
                seen.ran.told()
            );
        }
        assert_eq!(seen.ran.out().matches("next 200").count(), FAULTS.len(), "{scheme}: {}", seen.ran.told());
        let record = stand.record();
        let faults =
            record.iter().filter(|line| line["event"] == "egress.ended" && line["fault"].is_string());
        assert!(faults.count() >= 6, "{record:?}");
    }
    // Nobody listens; what listens speaks no TLS.
    for port in [4, 9000] {
        let rule = format!("https://api.example.com:{port}/**");
        let url = format!("https://api.example.com:{port}/");
        let seen =
            stand.inside(&["--allow", &rule], &["curl", "-sS", "-m", "20", "-w", "%{http_code}", &url]);
        assert!(seen.ran.out().ends_with("502") && seen.ran.out().contains("remedy"), "{}", seen.ran.told());
    }
}

/// Exit code, status and body of a path.
fn told(out: &str, path: &str) -> (i32, u16, String) {
    let line = out
        .lines()
        .find_map(|line| line.strip_prefix(path)?.strip_prefix(' '))
        .unwrap_or_else(|| panic!("{path}: {out}"));
    let mut words = line.splitn(3, ' ');
    let mut number = || words.next().and_then(|word| word.parse::<u16>().ok()).unwrap_or(0);
    let (code, status) = (number(), number());
    (i32::from(code), status, words.next().unwrap_or_default().to_owned())
}

fn a_name_server_that_fails_is_told_and_misleads_nobody(lab: &Lab) {
    let stand = Stand::new(lab.caller);
    stand.range.name("good.example.com", &["203.0.113.7"]);
    let shapes = ["loop", "wrong-id", "wrong-question", "garbage", "silence", "servfail", "pointer", "huge"];
    let mut script = String::new();
    for shape in shapes {
        stand
            .range
            .zone(&format!("{shape}.example.com"), &json!({"hostile": shape, "answers": [["203.0.113.9"]]}));
        script += &format!(
            "curl -sS -m 20 -o body -w '{shape} %{{http_code}} %{{time_total}}\\n' http://{shape}.example.com/; "
        );
    }
    script += "curl -sS -o /dev/null -w 'gone %{http_code}\\n' http://gone.example.com/; \
               curl -sS -o /dev/null -w 'good %{http_code}\\n' http://good.example.com/";
    let seen = stand.inside(&["--allow", "http://*.example.com"], &["sh", "-c", &script]);
    let out = seen.ran.out();
    assert!(out.contains("good 200"), "{}", seen.ran.told());
    for shape in shapes.iter().filter(|shape| !matches!(**shape, "huge")) {
        assert!(
            ["502", "504"].iter().any(|status| out.contains(&format!("{shape} {status} "))),
            "{shape}: {}",
            seen.ran.told()
        );
    }
    assert!(out.contains("gone 502"), "{}", seen.ran.told());
    // What a hostile answer says is not dialled; a large one that is in order may be.
    let strays: Vec<_> = seen
        .log
        .all("request")
        .filter(|request| {
            !["good.example.com", "huge.example.com"].iter().any(|name| request["host"] == *name)
        })
        .collect();
    assert!(strays.is_empty(), "{strays:?}");
    // The servers do answer so: beside the sandbox the same names fail as well, and the good one does not.
    let beside = stand.beside(&["sh", "-c", &script]);
    assert!(
        beside.ran.out().contains("good 200") && !beside.ran.out().contains("servfail 200"),
        "{}",
        beside.ran.told()
    );
}
