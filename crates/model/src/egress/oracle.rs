//! The decision as it is defined: every rule is looked at, and none is looked up.
//! Tables of random rules have to say the same of random asks.

use super::*;
use proptest::prelude::*;
use proptest::sample::select;

/// The best of all rules that allow it: one with a secret before one without, then the first.
fn best(rules: &[Rule], ask: Ask<'_>) -> Option<usize> {
    let allows = |rule: &&Rule| {
        let here = rule.hosts.matches(&ask.identity.host) && rule.ports.contains(ask.identity.port());
        here && rule.speaks(ask.identity.scheme)
            && match ask.request {
                None => matches!(rule.matter, Matter::Tcp | Matter::Tls),
                Some(request) if request.path.ambiguous().is_some() && rule.matter.is_bound_to_path() => {
                    false
                }
                Some(request) => rule.matter.allows(request.method, request.path),
            }
    };
    let best = rules.iter().enumerate().filter(|(_, rule)| allows(rule));
    best.min_by_key(|(place, rule)| (rule.binding.is_none(), *place)).map(|(place, _)| place)
}

/// The last thing in which the closest rule differs.
fn why_not(rules: &[Rule], ask: Ask<'_>) -> Denial {
    let Ask { identity, request } = ask;
    let reason = |rule: &Rule| {
        if !rule.ports.contains(identity.port()) {
            return (1, Denial::Port);
        }
        if !rule.speaks(identity.scheme) {
            return (2, Denial::Scheme);
        }
        let Some(request) = request else { return (3, Denial::NotInspected) };
        match request.path.ambiguous() {
            Some(flaw) if rule.matter.is_bound_to_path() => (4, Denial::AmbiguousPath(flaw)),
            Some(_) | None if rule.matter.allows_path(request.path) => (5, Denial::Method),
            Some(_) | None => (3, Denial::Path),
        }
    };
    let reasons = rules.iter().filter(|rule| rule.hosts.matches(&identity.host)).map(reason);
    match (reasons.max_by_key(|(depth, _)| *depth), &identity.host) {
        (Some((_, why)), _) => why,
        (None, Host::Name(_)) => Denial::NoRule,
        (None, Host::Address(address)) => match address::internal(*address) {
            Some(why) => Denial::Internal(*address, why),
            None => Denial::RawAddress,
        },
    }
}

fn opening(rules: &[Rule], host: &Host, port: u16) -> Opening {
    let mut opening = Opening::default();
    for rule in rules.iter().filter(|rule| rule.hosts.matches(host) && rule.ports.contains(port)) {
        opening.tls |= rule.speaks(Scheme::Https);
        opening.open_tls |= rule.needs_inside();
        opening.http |= rule.speaks(Scheme::Http);
        opening.tcp |= rule.speaks(Scheme::Tcp);
    }
    opening
}

const HOSTS: [&str; 6] =
    ["example.com", "a.example.com", "b.a.example.com", "*.example.com", "*.a.example.com", "203.0.113.7"];
const PORTS: [&str; 5] = ["", ":443", ":8443", ":440-450", ":1-65535"];
const FRONTS: [&str; 4] = ["", "GET ", "POST,GET ", "PUT "];
const PATHS: [&str; 20] = [
    "/",
    "/**",
    "/o",
    "/o/",
    "/o/**",
    "/o/r",
    "/o/r/**",
    "/o%2Fr",
    "/o%2Fr/**",
    "/o/r.git",
    "/o/r.git/**",
    "/r",
    "/.git",
    "/@o/r",
    "/@o%2Fr/**",
    "/o/r/info/refs",
    "/o//r",
    "//",
    "/o/r/s/t/**",
    "/o%2Fr%2Fs",
];
const SECRETS: [&str; 4] = ["", "", " with bearer:A", " with bearer:B"];
const ASKED_PATHS: [&str; 26] = [
    "/",
    "//",
    "/o",
    "/o/",
    "/o/r",
    "/o/r/",
    "/o/r/s",
    "/o/r/s/t/u",
    "/o%2Fr",
    "/o%2fr/s",
    "/o%2Fr%2Fs",
    "/@o%2Fr/x",
    "/o/r.git",
    "/o//r",
    "/o/../o/r",
    "/o/..%2Fo/r",
    "/o/r/..;/x",
    "/o/%2e%2e/r",
    "/o/r/info/refs?service=git-upload-pack",
    "/o/r.git/info/refs?service=git-receive-pack",
    "/o/r.git.git/info/refs?service=git-upload-pack",
    "/o/r/git-upload-pack",
    "/r.git/git-receive-pack",
    "/.git.git/git-upload-pack",
    "/git-upload-pack",
    "/elsewhere",
];

/// Rules of every form; those that would be refused are left out.
fn rule() -> impl Strategy<Value = Option<Rule>> {
    let any = (
        select(&HOSTS[..]),
        select(&PORTS[..]),
        select(&PATHS[..]),
        select(&FRONTS[..]),
        select(&SECRETS[..]),
    );
    (any, 0..6_u8).prop_map(|((host, port, path, front, secret), form)| {
        let text = match form {
            0 => format!("{host}{port}{secret}"),
            1 => format!("http://{host}{port}{path}"),
            2 => format!("git-read https://{host}{port}{path}{secret}"),
            3 => format!("git-write http://{host}{port}{path}"),
            _ => format!("{front}https://{host}{port}{path}{secret}"),
        };
        Rule::parse(&text).ok()
    })
}

fn asked() -> impl Strategy<Value = (Identity, Option<(&'static str, UrlPath)>)> {
    let hosts = [
        "example.com",
        "a.example.com",
        "b.a.example.com",
        "x.b.a.example.com",
        "other.test",
        "203.0.113.7",
        "10.0.0.1",
    ];
    let schemes = [Scheme::Https, Scheme::Https, Scheme::Http, Scheme::Tcp];
    let request = (select(&["GET", "POST", "PUT", "get"][..]), select(&ASKED_PATHS[..]));
    let place = (select(schemes.to_vec()), select(hosts.to_vec()), select(vec![443_u16, 8443, 80, 445]));
    (place, proptest::option::weighted(0.8, request)).prop_map(|((scheme, host, port), request)| {
        let identity = Identity::new(scheme, Host::parse(host).expect("a host"), port).expect("a port");
        let request = request.filter(|_| scheme != Scheme::Tcp);
        (identity, request.map(|(method, path)| (method, UrlPath::parse(path).expect("a path"))))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if std::env::var_os("FUMEHOOD_TEST_FULL").is_some() { 20_000 } else { 200 }))]

    #[test]
    fn the_index_says_what_the_rules_say(
        rules in proptest::collection::vec(rule(), 0..40),
        asks in proptest::collection::vec(asked(), 60),
    ) {
        let rules: Vec<Rule> = rules.into_iter().flatten().collect();
        let table = Table::new(Egress {
            reach: Reach::Rules,
            rules: rules.clone(),
            ranges: Vec::new(),
            resolutions: Vec::new(),
            ceilings: Vec::new(),
            upstream: None,
            authorities: Vec::new(),
        });
        for (identity, request) in &asks {
            let request = request.as_ref().map(|(method, path)| Request { method, path });
            let ask = Ask { identity, request };
            let defined = best(&rules, ask).map(RuleId::Rule).ok_or_else(|| why_not(&rules, ask));
            let said = table.decide(ask).map(|permit| permit.rule());
            prop_assert_eq!(said, defined, "{} {:?}", identity, request);
            prop_assert_eq!(table.opening(&identity.host, identity.port()), opening(&rules, &identity.host, identity.port()));
        }
    }
}

/// The random rules and asks above meet each other: every answer comes of them.
#[test]
fn every_answer_is_tried() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut answers = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let mut draw = |count| {
            (0..count).filter_map(|_| rule().new_tree(&mut runner).ok()?.current()).collect::<Vec<_>>()
        };
        let rules = draw(30);
        for _ in 0..20 {
            let (identity, request) = asked().new_tree(&mut runner).expect("an ask").current();
            let request = request.as_ref().map(|(method, path)| Request { method, path });
            let ask = Ask { identity: &identity, request };
            answers.insert(match best(&rules, ask) {
                Some(_) => "allowed",
                None => why_not(&rules, ask).code(),
            });
        }
    }
    for code in [
        "allowed",
        "no_rule",
        "port",
        "scheme",
        "not_inspected",
        "path",
        "ambiguous_path",
        "method",
        "raw_address",
        "internal_address",
    ] {
        assert!(answers.contains(code), "{code}: {answers:?}");
    }
}
