//! The range itself, tried without any wall: what these tests show to be reachable is what a wall must hold.

use crate::both_callers::both_callers;
use crate::lab::{Caller, Lab};
use crate::range::{Flaw, Range};
use crate::stand::{Stand, Wall};
use serde_json::json;
use std::time::{Duration, Instant};

both_callers! {
    real_clients_reach_the_servers
    the_binary_runs_and_reaches_nothing
}

#[test]
fn starting_one_is_cheap() {
    drop(Range::start());
    let start = Instant::now();
    let range = Range::start();
    let took = start.elapsed();
    println!("a range starts in {took:?}");
    drop(range);
    // 0.2 s on an idle machine; this is the bound beyond which tests of the network would be too dear.
    assert!(took < Duration::from_secs(3), "{took:?}");
}

/// One client after another in one range, each of another kind.
fn real_clients_reach_the_servers(lab: &Lab) {
    let stand = Stand::new(lab.caller);
    stand.range.name("*.example.com", &["203.0.113.7", "2001:db8::7"]);
    let shell = |script: &str| {
        let seen = stand.beside(&["sh", "-ec", script]);
        assert_eq!(seen.ran.code(), 0, "{script}: {}\n{}", seen.ran.told(), seen.log.told());
        seen
    };
    let seen = shell("curl -sS https://api.example.com/hello");
    assert_eq!(seen.log.requests(), ["GET api.example.com /hello"]);
    assert_eq!(seen.log.names(), ["api.example.com"]);
    // Both packets are seen, whoever listens.
    let seen = shell("curl -sS --ipv4 http://api.example.com:4 || :; echo x > /dev/udp/203.0.113.9/9 || :");
    assert_eq!(seen.log.dialled(), ["tcp 203.0.113.7:4"]);
    stand.range.repository("one.git");
    shell("git clone -q https://api.example.com/git/one.git && cat one/README");
    stand.range.key("/git/two.git", "Basic c29tZW9uZTp3b3Jk");
    stand.range.repository("two.git");
    shell(
        "git clone -q https://someone:word@api.example.com/git/two.git && cd two && echo more >> README && \
           git -c user.name=A -c user.email=a@example.com commit -qam more && git push -q",
    );
    let refused = stand.beside(&[
        "git",
        "-c",
        "credential.helper=",
        "ls-remote",
        "https://someone:other@api.example.com/git/two.git",
    ]);
    assert_ne!(refused.ran.code(), 0, "{}", refused.ran.told());
    let seen = shell(
        "exec 3<>/dev/null; python3 -c \"import socket; s = socket.create_connection(('mail.example.com', 25)); print(s.recv(99))\"",
    );
    assert!(seen.ran.out().contains("220 range ready"), "{}", seen.ran.told());
}

/// The unmodified binary with the range for a host: today no door of it leads out.
fn the_binary_runs_and_reaches_nothing(lab: &Lab) {
    let stand = Stand::new(lab.caller);
    stand.range.name("api.example.com", &["203.0.113.7"]);
    let asks = json!([{"id": "one", "ask": {"scheme": "https", "host": "api.example.com", "port": 443}}])
        .to_string();
    let seen = stand.client(Wall::Fumehood, &[], "ask.py", &[&asks]);
    assert_eq!(seen.ran.code(), 0, "{}", seen.ran.told());
    assert!(seen.ran.out().contains("\"reached\": false"), "{}", seen.ran.told());
    assert!(seen.log.0.is_empty(), "{}", seen.log.told());
    assert!(!stand.record().is_empty());
    let seen = stand.client(Wall::Open, &[], "ask.py", &[&asks]);
    assert!(seen.ran.out().contains("\"reached\": true"), "{}", seen.ran.told());
}

#[test]
fn a_flaw_in_a_certificate_is_seen_by_a_client_that_looks() {
    let stand = Stand::new(Caller::User);
    stand.range.name("*.example.com", &["203.0.113.7"]);
    let flaws = [Flaw::Expired, Flaw::SelfSigned, Flaw::WrongName, Flaw::UnknownAuthority, Flaw::WantsClient];
    for (place, flaw) in flaws.into_iter().enumerate() {
        let name = format!("flaw-{place}.example.com");
        stand.range.certificate(&name, Some(flaw));
        let seen = stand.beside(&["curl", "-sS", &format!("https://{name}/")]);
        assert_ne!(seen.ran.code(), 0, "{flaw:?}: {}", seen.ran.told());
        assert!(seen.log.requests().is_empty(), "{flaw:?}: {}", seen.log.told());
    }
}

#[test]
fn the_resolver_answers_as_told() {
    let stand = Stand::new(Caller::User);
    stand.range.zone("turn.example.com", &json!({"answers": [["203.0.113.7"], ["10.1.2.3"]]}));
    stand.range.zone("alias.example.com", &json!({"cname": "target.example.org"}));
    stand.range.name("target.example.org", &["198.51.100.4"]);
    stand.range.zone("a.example.com", &json!({"cname": "b.example.com"}));
    stand.range.zone("b.example.com", &json!({"cname": "a.example.com"}));
    for hostile in [
        "loop",
        "huge",
        "wrong-id",
        "wrong-question",
        "truncated",
        "garbage",
        "silence",
        "servfail",
        "pointer",
    ] {
        stand.range.zone(
            &format!("{hostile}.example.com"),
            &json!({"hostile": hostile, "answers": [["203.0.113.9"]]}),
        );
    }
    let ask = |name: &str| {
        let seen = stand.beside(&["timeout", "8", "getent", "ahostsv4", name]);
        seen.ran.out().split_whitespace().next().unwrap_or_default().to_owned()
    };
    assert_eq!(ask("turn.example.com"), "203.0.113.7");
    assert_eq!(ask("turn.example.com"), "10.1.2.3");
    assert_eq!(ask("alias.example.com"), "198.51.100.4");
    assert_eq!(ask("truncated.example.com"), "203.0.113.9", "over TCP it is whole");
    for bad in ["a", "loop", "wrong-id", "garbage", "servfail", "unknown"] {
        assert_eq!(ask(&format!("{bad}.example.com")), "", "{bad}");
    }
}

#[test]
fn ssh_and_postgres_are_the_real_ones() {
    let stand = Stand::new(if crate::lab::am_root() { Caller::Root } else { Caller::User });
    stand.range.name("*.example.com", &["203.0.113.7"]);
    let repository = stand.range.repository("one.git");
    let ssh = stand.range.ssh();
    let key = stand.lab.file("key", &ssh.client_key);
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let hosts = stand.lab.file("known", format!("git.example.com {}\n", ssh.host_key));
    let command = format!("ssh -o UserKnownHostsFile={} -i {}", hosts.display(), key.display());
    let url = format!("ssh://{}@git.example.com{}", ssh.account, repository.folder.display());
    let seen = stand.beside(&["env", &format!("GIT_SSH_COMMAND={command}"), "git", "ls-remote", &url]);
    assert!(seen.ran.out().contains(&repository.commit), "{}", seen.ran.told());
    stand.range.database();
    let seen = stand.beside(&["psql", "-h", "db.example.com", "-U", "range", "-Atc", "select 6*7", "range"]);
    assert_eq!(seen.ran.out(), "42\n", "{}", seen.ran.told());
}

/// Cargo is the builder's own, wherever that is: the account of the tests runs it.
#[test]
fn cargo_takes_from_the_mirror() {
    let stand = Stand::new(if crate::lab::am_root() { Caller::Root } else { Caller::User });
    stand.range.name("mirror.example.com", &["203.0.113.7"]);
    stand.range.mirrors("mirror.example.com");
    let script = "mkdir -p one/src && cd one && : > src/lib.rs && printf '[package]\\nname = \"one\"\\nversion = \"0.1.0\"\\nedition = \"2021\"\\n[dependencies]\\nrangepack = { version = \"1\", registry = \"mirror\" }\\n' > Cargo.toml && \
                  CARGO_HOME=$PWD/home CARGO_REGISTRIES_MIRROR_INDEX=sparse+https://mirror.example.com/files/cargo/ CARGO_HTTP_CAINFO=/etc/ssl/certs/ca-certificates.crt RUSTC=${1%cargo}rustc \"$1\" fetch && ls home/registry/src/*/rangepack-1.0.0/src/lib.rs";
    let seen = stand.beside(&["sh", "-ec", script, "sh", env!("CARGO")]);
    assert_eq!(seen.ran.code(), 0, "{}\n{}", seen.ran.told(), seen.log.told());
}

#[test]
fn protocols_and_hosts_are_as_told() {
    let stand = Stand::new(Caller::User);
    stand.range.name("*.example.com", &["203.0.113.7"]);
    stand.range.protocols("old.example.com", &["http/1.1"]);
    stand.range.protocols("bare.example.com", &[]);
    for (name, spoken) in [("new.example.com", "2"), ("old.example.com", "1.1"), ("bare.example.com", "1.1")]
    {
        let seen = stand.beside(&[
            "curl",
            "-sS",
            "-o",
            "/dev/null",
            "-w",
            "%{http_version}",
            &format!("https://{name}/"),
        ]);
        assert_eq!(seen.ran.out(), spoken, "{name}: {}", seen.ran.told());
    }
    stand.range.hosts("127.0.0.1 localhost\n198.51.100.9 listed.test\n");
    let seen = stand.beside(&["curl", "-sS", "http://listed.test/"]);
    assert_eq!(seen.log.dialled(), ["tcp 198.51.100.9:80"], "{}", seen.ran.told());
}

/// The kit stands where the clients inside look for it.
#[test]
fn the_kit_is_in_reach_inside() {
    let stand = Stand::new(Caller::User);
    let python = stand
        .inside(&[], &["/usr/bin/python3", "-c", "import aiohttp, grpc, h2, httpx, requests, websockets"]);
    assert_eq!(python.ran.code(), 0, "{}", python.ran.told());
    let node = stand.inside(&[], &["node", "-e", "require('ws'); require('@grpc/grpc-js')"]);
    assert_eq!(node.ran.code(), 0, "{}", node.ran.told());
}
