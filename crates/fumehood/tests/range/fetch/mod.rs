//! `fumehood fetch`: another way to the same wall, so everything that is tried of the first is tried again of this one.

mod amounts;
mod places;
mod probes;

use crate::both_callers::both_callers;
use crate::lab::{self, Lab};
use crate::stand::{Seen, Stand};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::time::Duration;

pub(crate) const RIGHT: &str = "203.0.113.7";
pub(crate) const SINK: &str = "198.51.100.66";
pub(crate) const RIGHT_80: &str = "tcp 203.0.113.7:80";

both_callers! {
    a_page_comes_out_as_it_is
    a_page_that_was_kept_is_not_asked_for_again
    every_hop_stands_in_the_record
    a_secret_goes_where_its_rule_says_and_no_further
    the_process_that_reads_is_confined
}

/// The zone of all probes: two names at their place, everything else at the sink.
pub(crate) fn stand(lab: &Lab) -> Stand {
    let stand = Stand::new(lab.caller);
    stand.range.name("*", &[SINK]);
    stand.range.name("allowed.test", &[RIGHT]);
    stand.range.name("*.allowed.test", &[RIGHT]);
    stand
}

/// The same page without a wall.
pub(crate) fn control(stand: &Stand, url: &str) -> Seen {
    stand.beside(&["curl", "-sSLg", "--max-time", "5", "-o", "/dev/null", "--max-filesize", "100000000", url])
}

/// The object that `--json` prints.
pub(crate) fn told(seen: &Seen) -> Value {
    serde_json::from_slice(&seen.ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", seen.ran.told()))
}

/// As the text of a query.
pub(crate) fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn names(record: &[Value]) -> Vec<&str> {
    record.iter().map(|line| line["event"].as_str().unwrap()).collect()
}

fn a_page_comes_out_as_it_is(lab: &Lab) {
    let stand = stand(lab);
    for url in
        ["http://allowed.test/page?q", "https://allowed.test/page?q", "HTTP://ALLOWED.TEST.:80/page?q#x"]
    {
        let seen = stand.fetch(&[url]);
        assert_eq!(seen.ran.code(), 0, "{url}: {}", seen.ran.told());
        let page: Value = serde_json::from_str(&seen.ran.out()).unwrap();
        assert_eq!((&page["served_by"], &page["target"]), (&RIGHT.into(), &"/page?q".into()), "{url}");
        assert_eq!(seen.ran.err(), "");
    }
    for kind in ["gzip", "deflate", "br", "zstd"] {
        let seen = stand.fetch(&[&format!("http://allowed.test/echo?as={kind}")]);
        assert!(seen.ran.out().starts_with("GET /echo?as="), "{kind}: {}", seen.ran.told());
    }
    let seen = stand.fetch(&["--json", "http://allowed.test/redirect?to=/files/none"]);
    let object = told(&seen);
    assert_eq!(seen.ran.code(), 1);
    assert_eq!(
        (&object["status"], &object["final_url"]),
        (&404.into(), &"http://allowed.test/files/none".into())
    );
    assert_eq!(object["body"], "no such file\n");
    let seen = stand.fetch(&["--json", "http://allowed.test/stream/300"]);
    assert_eq!(told(&seen)["bytes"], 300);
    assert!(told(&seen)["body_base64"].as_str().unwrap().starts_with("AAECAw"), "{}", seen.ran.told());
    let seen = stand.fetch(&["-X", "HEAD", "http://allowed.test/page"]);
    assert_eq!((seen.ran.code(), seen.ran.out().as_str()), (0, ""));
    assert_eq!(seen.log.requests(), ["HEAD allowed.test /page"]);
    let file = stand.lab.path().join("page");
    for path in ["one", "two"] {
        let seen = stand.fetch(&["-o", "page", &format!("http://allowed.test/{path}")]);
        assert_eq!((seen.ran.code(), seen.ran.out().as_str()), (0, ""), "{}", seen.ran.told());
        assert!(std::fs::read_to_string(&file).unwrap().contains(&format!("/{path}")));
    }
    let seen = stand.fetch(&["-o", "page", "--allow", "http://other.test", "http://allowed.test/three"]);
    assert_eq!(seen.ran.code(), 1, "{}", seen.ran.told());
    assert!(std::fs::read_to_string(&file).unwrap().contains("/two"), "a refusal left the file alone");
    let seen =
        stand.fetch(&["https://no-such.test/", "--resolve", "no-such.test=10.0.0.0/8", "--timeout", "5s"]);
    assert_eq!(seen.ran.code(), 0, "{}", seen.ran.told());
}

fn a_page_that_was_kept_is_not_asked_for_again(lab: &Lab) {
    let stand = stand(lab);
    let get = |words: &[&str]| {
        let seen = stand.fetch(&[words, &["--json", "http://allowed.test/page"]].concat());
        assert_eq!(seen.ran.code(), 0, "{}", seen.ran.told());
        (told(&seen)["from_cache"] == true, seen.log.0.is_empty(), told(&seen)["body"].clone())
    };
    let first = get(&[]);
    assert_eq!((first.0, first.1), (false, false));
    assert_eq!(get(&[]), (true, true, first.2));
    let record = stand.record();
    assert_eq!(names(&record), ["fetch.started", "task.closed"]);
    assert_eq!(record[0]["from_cache"], true);
    // Other rules are another question, and so is one that says so.
    assert!(!get(&["--allow", "http://allowed.test"]).0);
    assert!(!get(&["--no-cache"]).0);
    assert!(!get(&["--cache-time", "1ms"]).0);
    assert!(get(&[]).0);
    let denied = stand.fetch(&["--allow", "http://other.test", "http://allowed.test/page"]);
    assert_eq!(denied.ran.code(), 1, "{}", denied.ran.told());
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let folder = stand.lab.state().join("fetched");
    assert_eq!(mode(&folder), 0o700);
    assert!(std::fs::read_dir(&folder).unwrap().all(|entry| mode(&entry.unwrap().path()) == 0o600));
    for path in ["status/500", "echo?as=gzip&no=store"] {
        let seen = stand.fetch(&[&format!("http://allowed.test/{path}")]);
        let again = stand.fetch(&["--json", &format!("http://allowed.test/{path}")]);
        assert!(!seen.log.requests().is_empty());
        assert_eq!(told(&again)["from_cache"] == true, !path.starts_with("status"), "{path}");
    }
}

fn every_hop_stands_in_the_record(lab: &Lab) {
    let stand = stand(lab);
    let seen = stand.fetch(&[
        "--allow",
        "http://allowed.test",
        "http://allowed.test/redirect?to=http://denied.test/there%3Fsecret-query",
    ]);
    assert_eq!(seen.ran.code(), 1, "{}", seen.ran.told());
    assert!(seen.ran.err().contains("--allow 'GET http://denied.test/there'"), "{}", seen.ran.told());
    assert_eq!(seen.log.dialled(), [RIGHT_80]);
    let record = stand.record();
    assert_eq!(
        names(&record),
        ["fetch.started", "egress.allowed", "egress.ended", "egress.denied", "task.closed"]
    );
    assert!(record[1..4].iter().all(|line| line["via"] == "fetch" || line["event"] == "egress.ended"));
    assert_eq!(
        (&record[1]["path"], &record[1]["rule"]),
        (&"/redirect".into(), &"http://allowed.test".into())
    );
    assert_eq!((&record[2]["status"], &record[2]["address"]), (&302.into(), &RIGHT.into()));
    assert_eq!((&record[3]["to"], &record[3]["reason"]), (&"http://denied.test".into(), &"no_rule".into()));
    assert!(!record.iter().any(|line| line.to_string().contains("secret-query")), "{record:?}");
    let mut verify = stand.lab.fumehood();
    verify.args(["audit", "verify"]);
    let ran = lab::finish(stand.range.enter(&verify), b"");
    assert_eq!(ran.code(), 0, "{}", ran.told());
}

fn a_secret_goes_where_its_rule_says_and_no_further(lab: &Lab) {
    let stand = stand(lab);
    let value = "tok-4f9a7c1e8b3d2065";
    let file = stand.lab.file("token", value);
    let secret = format!("TOKEN=file:{}", file.display());
    let flags = [
        "--secret",
        secret.as_str(),
        "--allow",
        "https://api.allowed.test/** with bearer:TOKEN",
        "--allow",
        "https://other.allowed.test/**",
    ];
    let get = |url: &str| stand.fetch(&[&flags[..], &["--json", url]].concat());
    let carried = |seen: &Seen| {
        let heads = seen.log.all("request").map(|request| request["head"].as_str().unwrap().contains(value));
        heads.collect::<Vec<_>>()
    };
    let seen = get("https://api.allowed.test/echo");
    assert_eq!(seen.ran.code(), 0, "{}", seen.ran.told());
    assert_eq!(carried(&seen), [true]);
    assert!(!seen.ran.out().contains(value), "an echo is masked: {}", seen.ran.told());
    assert_eq!(stand.record()[1]["credential"], "TOKEN");
    let again = get("https://api.allowed.test/echo");
    assert_eq!((&told(&again)["from_cache"], carried(&again)), (&false.into(), vec![true]));
    let seen = get("https://api.allowed.test/redirect?to=https://other.allowed.test/echo");
    assert_eq!(carried(&seen), [true, false], "{}", seen.log.told());
    let seen = get("https://api.allowed.test/redirect?to=https://denied.test/");
    assert_eq!((seen.ran.code(), carried(&seen)), (1, vec![true]), "{}", seen.ran.told());
    let kept = stand.lab.state().join("fetched");
    let pages = std::fs::read_dir(&kept).map_or(0, |pages| pages.count());
    assert_eq!(pages, 0, "nothing that used a secret is kept");
}

fn the_process_that_reads_is_confined(lab: &Lab) {
    let stand = stand(lab);
    let mut command = stand.lab.fumehood();
    command.args(["fetch", "--timeout", "4s", "http://allowed.test/raw/hang"]);
    let mut command = stand.range.enter(&command);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut found = Vec::new();
    lab::poll(Duration::from_secs(4), || {
        found = std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| std::fs::read_to_string(entry.path().join("status")).ok())
            .filter(|status| status.starts_with("Name:\tfumehood-fetch\n"))
            .collect();
        // It is named a moment before it is confined.
        !found.is_empty() && found.iter().all(|status| status.contains("NoNewPrivs:\t1"))
    });
    assert!(!found.is_empty(), "no process was seen");
    for status in &found {
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.split('\t').skip(1).collect::<Vec<_>>().join(" ")
        };
        assert_eq!((field("NoNewPrivs").as_str(), field("CapPrm").as_str()), ("1", "0000000000000000"));
        assert!(!field("Uid").starts_with("0 "), "{status}");
        assert_eq!(field("Groups").trim(), "", "{status}");
    }
    let ended = lab::wait(&mut child, Duration::from_secs(20)).expect("the timeout ends it");
    assert_eq!(ended.code(), Some(1));
}
