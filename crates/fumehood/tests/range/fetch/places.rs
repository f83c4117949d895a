//! Where a fetch may go: schemes, and every spelling and answer that leads to what is internal.

use super::probes::Probe;
use super::{RIGHT, RIGHT_80, control, encoded, stand};
use crate::both_callers::both_callers;
use crate::lab::Lab;
use crate::probes::INTERNAL;
use crate::stand::Stand;
use serde_json::json;

both_callers! {
    e48_nothing_but_http_is_fetched
    e49_answers_that_are_internal
    e49_rebinding_and_mixed_answers
    e49_metadata_and_special_addresses
    e49_spellings_and_wrappers_of_ipv4
    e49_names_that_only_look_allowed
    e49_redirects_are_judged_anew
}

const RULES: &[&str] = &["--allow", "http://allowed.test", "--allow", "http://*.allowed.test"];

fn probe<'a>(urls: impl IntoIterator<Item = String>) -> Probe<'a> {
    Probe { flags: &[], urls: urls.into_iter().collect(), packets: &[], names: false, shown: true }
}

fn e48_nothing_but_http_is_fetched(lab: &Lab) {
    let file = lab.file("canary", "canary-of-a-file");
    let urls = [
        format!("file://{}", file.display()),
        format!("FILE://{}", file.display()),
        format!("File://localhost{}", file.display()),
        file.display().to_string(),
        "gopher://denied.test/_GET".to_owned(),
        "ftp://denied.test/".to_owned(),
        "dict://denied.test:80/x".to_owned(),
        "ldap://denied.test/".to_owned(),
        "data:text/plain,canary-of-a-file".to_owned(),
        "unix:/run/socket".to_owned(),
        "jar:http://denied.test/a!/b".to_owned(),
        "view-source:http://denied.test/".to_owned(),
        "url:http://denied.test/".to_owned(),
        "http://http://denied.test/".to_owned(),
        "http:denied.test".to_owned(),
        "http:/denied.test".to_owned(),
        "http:///denied.test".to_owned(),
        "ws://denied.test/".to_owned(),
        "denied.test".to_owned(),
    ];
    let stand = stand(lab);
    for url in &urls {
        let seen = stand.fetch(&[url]);
        assert_eq!(seen.ran.code(), 125, "{url}: {}", seen.ran.told());
        assert!(seen.log.0.is_empty() && !seen.ran.out().contains("canary"), "{url}: {}", seen.log.told());
        assert!(seen.ran.err().contains("remedy: "), "{url}: {}", seen.ran.told());
    }
    // The control: a client that takes them gets the file, or dials.
    let seen = stand.beside(&["curl", "-sS", &urls[0]]);
    assert_eq!(seen.ran.out(), "canary-of-a-file", "{}", seen.ran.told());
    assert!(!control(&stand, "ftp://denied.test/").log.dialled().is_empty());
}

fn e49_answers_that_are_internal(lab: &Lab) {
    // A link-local address without an interface leads nowhere, so without a wall nothing would be seen of it.
    let internal: Vec<&str> = INTERNAL.iter().copied().filter(|address| *address != "fe80::1").collect();
    let hosts = (0..internal.len()).map(|place| format!("n{place}.allowed.test"));
    let urls = hosts.chain(["alias.allowed.test".to_owned()]).map(|host| format!("http://{host}/"));
    let urls: Vec<String> = urls.collect();
    let zone = |stand: &Stand| {
        for (place, address) in internal.iter().enumerate() {
            stand.range.name(&format!("n{place}.allowed.test"), &[address]);
        }
        stand.range.zone("alias.allowed.test", &json!({"cname": "inside.test"}));
        stand.range.name("inside.test", &["10.1.2.3"]);
    };
    // Under rules that name them, and where everything public is open.
    Probe { flags: RULES, names: true, ..probe(urls.clone()) }.holds(lab, zone);
    Probe { names: true, shown: false, ..probe(urls) }.holds(lab, zone);
}

fn e49_rebinding_and_mixed_answers(lab: &Lab) {
    let stand = stand(lab);
    let zone = || {
        let turns = json!({"answers": [[RIGHT], ["10.1.2.3"], ["169.254.169.254"]], "ttl": 0});
        stand.range.zone("turns.allowed.test", &turns);
        stand.range.name("mixed.allowed.test", &["10.1.2.3", RIGHT, "fd00:ec2::254"]);
    };
    let urls =
        ["turns", "turns", "turns", "mixed", "mixed"].map(|name| format!("http://{name}.allowed.test/"));
    zone();
    let strays: Vec<String> = urls.iter().flat_map(|url| control(&stand, url).log.dialled()).collect();
    assert!(strays.iter().any(|line| line.contains("10.1.2.3")), "the probe proves nothing: {strays:?}");
    for flags in [&[][..], RULES] {
        zone();
        let mut codes = Vec::new();
        for url in &urls {
            let seen = stand.fetch(&[flags, &["--no-cache", url.as_str()]].concat());
            assert!(seen.log.dialled().iter().all(|line| line == RIGHT_80), "{url}: {}", seen.log.told());
            codes.push(seen.ran.code());
        }
        assert_eq!(codes, [0, 1, 1, 0, 0], "{flags:?}");
    }
}

fn e49_metadata_and_special_addresses(lab: &Lab) {
    let hosts = [
        "169.254.169.254",
        "169.254.170.2",
        "100.100.100.200",
        "192.0.0.192",
        "168.63.129.16",
        "[fd00:ec2::254]",
        "[fd20:ce::254]",
        "metadata.google.internal",
        "metadata.google.internal.",
        "METADATA.google.internal",
        "metadata",
        "instance-data",
        "localhost",
        "0.0.0.0",
        "[::]",
        "127.0.0.1",
        "127.0.0.2",
        "[::1]",
        "10.1.2.3",
        "100.64.0.1",
        "192.0.0.9",
        "198.19.255.1",
        "192.168.0.1",
        "172.31.0.1",
        "[fc00::1]",
    ];
    let zone = |stand: &Stand| {
        for name in ["metadata.google.internal", "metadata", "instance-data"] {
            stand.range.name(name, &["169.254.169.254"]);
        }
        stand.range.hosts("127.0.0.1 localhost\n");
    };
    probe(hosts.map(|host| format!("http://{host}/latest"))).holds(lab, zone);
}

fn e49_spellings_and_wrappers_of_ipv4(lab: &Lab) {
    let hosts = [
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "0x7f000001",
        "0xa9fea9fe",
        "2852039166",
        "10.66051",
        "127.0.0.1.",
        "[::ffff:169.254.169.254]",
        "[::ffff:0:a9fe:a9fe]",
        "[::a9fe:a9fe]",
        "[2002:a9fe:a9fe::1]",
        "[2001:0:a9fe:a9fe::1]",
        "[64:ff9b::a9fe:a9fe]",
        "[64:ff9b:1::a9fe:a9fe]",
        "[::ffff:7f00:1]",
        "[64:ff9b::7f00:1]",
    ];
    probe(hosts.map(|host| format!("http://{host}/"))).holds(lab, |_| {});
    // A name that stands for an address is a name; its answer is refused.
    let zone = |stand: &Stand| stand.range.name("127.0.0.1.nip.test", &["127.0.0.1"]);
    let names = probe(["http://127.0.0.1.nip.test/".to_owned()]);
    Probe { names: true, ..names }.holds(lab, zone);
}

fn e49_names_that_only_look_allowed(lab: &Lab) {
    let seen_by_curl = [
        "http://evilallowed.test/",
        "http://allowed.test.sink.test/",
        "http://allowed.test-sink.test/",
        "http://denied.test#@allowed.test/",
        "http://denied.test/?@allowed.test",
        "http://denied.test?@allowed.test/",
        "http://allowed.test@denied.test/",
        "http://allowed.test:80@denied.test/",
        "http://allowed.test:8080/",
        "https://allowed.test/",
    ];
    let named = probe(seen_by_curl.map(str::to_owned));
    Probe { flags: RULES, packets: &[RIGHT_80], ..named }.holds(lab, |_| {});
    let refused = [
        "http://denied.test\\@allowed.test/",
        "http:\\\\denied.test\\",
        "http://allowed..test/",
        "http://.allowed.test/",
        "http:// allowed.test/",
        "http://allowed.test /",
        "http://denied.test%23@allowed.test/",
        "http://denied.test%2f.allowed.test/",
        "http://allowed。test/",
        "http://ａllowed.test/",
        "http://al\u{ad}lowed.test/",
        "http://аllowed.test/",
    ];
    let odd = probe(refused.map(str::to_owned));
    Probe { flags: RULES, shown: false, ..odd }.holds(lab, |_| {});
    // The same name is the same name, however it is written.
    let stand = stand(lab);
    for url in ["http://ALLOWED.test./", "hTTp://a.b.allowed.test:80", "http://xn--bcher-kva.allowed.test/"] {
        let seen = stand.fetch(&[RULES, &[url]].concat());
        assert_eq!(seen.ran.code(), 0, "{url}: {}", seen.ran.told());
        assert_eq!(seen.log.dialled(), [RIGHT_80], "{url}");
    }
}

fn e49_redirects_are_judged_anew(lab: &Lab) {
    let from = |to: &str| format!("http://allowed.test/redirect?to={}", encoded(to));
    let zone = |stand: &Stand| stand.range.name("inside.allowed.test", &["10.9.9.9"]);
    let targets = [
        "http://denied.test/",
        "//denied.test/",
        "http://10.1.2.3/",
        "http://169.254.169.254/latest",
        "http://[fd00:ec2::254]/",
        "http://[::ffff:127.0.0.1]/",
        "http://2130706433/",
        "http://allowed.test:8080/",
        "https://denied.test/",
        "http://allowed.test@denied.test/",
        "http://inside.allowed.test/",
        "http://localhost/",
    ];
    let hops = probe(targets.map(from));
    Probe { flags: RULES, packets: &[RIGHT_80], ..hops }.holds(lab, zone);
    // Where everything public is open, what is internal is not.
    let internal = [targets[2], targets[3], targets[4], targets[5], targets[6], targets[10], targets[11]];
    let hops = probe(internal.map(from));
    Probe { packets: &[RIGHT_80], shown: false, ..hops }.holds(lab, zone);
    let odd = [
        "file:///etc/passwd",
        "gopher://denied.test/",
        "/\\denied.test/",
        "\\\\denied.test/",
        "///denied.test/",
    ];
    let hops = probe(odd.map(from));
    Probe { packets: &[RIGHT_80], shown: false, ..hops }.holds(lab, zone);
}
