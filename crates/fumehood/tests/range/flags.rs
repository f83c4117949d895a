//! What the flags about the network do beyond rules: learning, watching, secrets that end, the record.

use crate::both_callers::both_callers;
use crate::lab::Lab;
use crate::stand::Stand;
use std::os::unix::fs::PermissionsExt as _;

both_callers! {
    what_was_learned_is_enough_and_no_more
    each_refusal_is_one_line_with_its_rule
    a_secret_that_ends_is_asked_for_again
    everything_stands_in_the_record_under_one_task
}

/// Fetches each URL and prints its status, or what failed.
const FETCH: &str = "
import sys, urllib.request, urllib.error
for url in sys.argv[1:]:
    try:
        print(url, urllib.request.urlopen(url, timeout=10).status)
    except urllib.error.HTTPError as error:
        print(url, error.code)
    except OSError as error:
        print(url, error)
";

fn stand(lab: &Lab) -> Stand {
    let stand = Stand::new(lab.caller);
    for (name, address) in [("api.example.com", "203.0.113.7"), ("other.example.com", "203.0.113.8")] {
        stand.range.name(name, &[address]);
    }
    stand
}

fn fetch<'a>(urls: &[&'a str]) -> Vec<&'a str> {
    ["/usr/bin/python3", "-c", FETCH].into_iter().chain(urls.iter().copied()).collect()
}

fn what_was_learned_is_enough_and_no_more(lab: &Lab) {
    let stand = stand(lab);
    let file = stand.lab.folder("learned").join("rules.toml");
    let file = file.to_str().unwrap();
    let urls = ["https://api.example.com/a", "https://api.example.com/b", "http://api.example.com/c"];
    let seen = stand.inside(&["--learn", file], &fetch(&urls));
    assert_eq!(seen.ran.code(), 0, "{}", seen.ran.told());
    let text = std::fs::read_to_string(file).unwrap();
    assert!(
        text.contains("\"api.example.com\", # 2") && text.contains("\"http://api.example.com\", # 1"),
        "{text}"
    );
    let again = stand.inside(&["--learn", file], &fetch(&urls));
    assert_eq!(again.ran.code(), 125, "a file is not written over: {}", again.ran.told());
    let seen =
        stand.inside(&["--config", file], &fetch(&[&urls[..], &["https://other.example.com/"]].concat()));
    let out = seen.ran.out();
    assert_eq!(out.matches(" 200").count(), 3, "{}", seen.ran.told());
    assert!(!seen.log.has("203.0.113.8") && !seen.log.has("other.example.com"), "{}", seen.log.told());
}

fn each_refusal_is_one_line_with_its_rule(lab: &Lab) {
    let stand = stand(lab);
    let urls = ["https://other.example.com/", "https://other.example.com/", "http://api.example.com/"];
    let seen = stand.inside(
        &["--allow", "GET https://api.example.com/v1/**"],
        &fetch(&[&urls[..], &["https://api.example.com/v2"]].concat()),
    );
    let err = seen.ran.err();
    assert_eq!(err.matches("`--allow 'other.example.com'`").count(), 1, "{err}");
    assert!(err.contains("`--allow 'http://api.example.com'` would allow it"), "{err}");
    assert!(err.contains("`--allow 'GET https://api.example.com/v2'` would allow it"), "{err}");
    assert!(seen.ran.out().contains("/v2 403"), "{}", seen.ran.told());
    let quiet = stand.inside(&["-q", "--allow", "api.example.com"], &fetch(&urls));
    assert!(!quiet.ran.err().contains("denied"), "{}", quiet.ran.told());
    let watched =
        stand.inside(&["--watch-net", "--allow", "api.example.com"], &fetch(&["https://api.example.com/"]));
    let err = watched.ran.err();
    assert!(err.contains("allowed: https://api.example.com by `api.example.com`"), "{err}");
    assert!(err.contains("ended: https://api.example.com (203.0.113.7)"), "{err}");
}

fn a_secret_that_ends_is_asked_for_again(lab: &Lab) {
    let stand = stand(lab);
    let folder = stand.lab.folder("counter");
    let script = stand.lab.file(
        "counter/next",
        "#!/bin/sh\ncd \"$(dirname \"$0\")\"\necho >> calls\nprintf '{\"value\": \"token-%d-0123456789\", \"expires_in\": 3}' \"$(wc -l < calls)\"\n",
    );
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    stand.lab.give_all(&folder);
    let secret = format!("T=cmd:{}", script.display());
    let client = format!("{FETCH}\n");
    let client =
        client.replace("    try:", "    import time; time.sleep(0 if url == sys.argv[1] else 4)\n    try:");
    let urls = ["https://api.example.com/one", "https://api.example.com/two"];
    let argv: Vec<&str> = ["/usr/bin/python3", "-c", &client].into_iter().chain(urls).collect();
    let rule = "https://api.example.com with bearer:T";
    let seen = stand.inside(&["--secret", &secret, "--allow", rule], &argv);
    assert_eq!(seen.ran.out().matches(" 200").count(), 2, "{}", seen.ran.told());
    let heads: Vec<String> = seen.log.all("request").map(|request| request["head"].to_string()).collect();
    // On a busy machine the first may have ended before it was used once.
    let number = |head: &String| -> u32 {
        let rest = head.split_once("Bearer token-").unwrap_or_else(|| panic!("{heads:?}")).1;
        rest.split_once("-0123456789").unwrap().0.parse().unwrap()
    };
    assert!(number(&heads[0]) < number(&heads[1]), "{heads:?}");
    let record = stand.record().iter().map(ToString::to_string).collect::<String>();
    assert!(!record.contains("0123456789"), "{record}");
}

fn everything_stands_in_the_record_under_one_task(lab: &Lab) {
    let stand = stand(lab);
    let urls = [
        "https://api.example.com/v1/a?token=hush",
        "https://api.example.com/no",
        "https://other.example.com/",
    ];
    stand.inside(&["--allow", "GET https://api.example.com/v1/**"], &fetch(&urls));
    let record = stand.record();
    let of = |name: &str| record.iter().filter(|line| line["event"] == name).collect::<Vec<_>>();
    let [allowed] = of("egress.allowed")[..] else { panic!("{record:?}") };
    assert_eq!(
        (&allowed["to"], &allowed["method"], &allowed["path"]),
        (&"https://api.example.com".into(), &"GET".into(), &"/v1/a".into())
    );
    assert_eq!(allowed["rule"], "GET https://api.example.com/v1/**");
    let [ended] = of("egress.ended")[..] else { panic!("{record:?}") };
    assert_eq!(
        (&ended["id"], &ended["status"], &ended["address"]),
        (&allowed["id"], &200.into(), &"203.0.113.7".into())
    );
    assert!(
        of("egress.denied").iter().any(|line| line["path"] == "/no" && line["reason"] == "path"),
        "{record:?}"
    );
    assert!(
        of("egress.name").iter().any(|line| line["name"] == "other.example.com" && line["answered"] == false)
    );
    // The command's own arguments are in the record; of what left, queries are not.
    let left =
        record.iter().filter(|line| line["event"].as_str().is_some_and(|name| name.starts_with("egress.")));
    let text: String = left.map(ToString::to_string).collect();
    assert!(!text.contains("hush"), "a query is in the record: {text}");
    let verified = stand.lab.fumehood().args(["audit", "verify"]).output().unwrap();
    assert!(verified.status.success(), "{verified:?}");
}
