//! The decision, rule by rule; the same cases go through the whole wall in the binary's own tests.

use super::*;

fn egress(reach: Reach, rules: &[&str]) -> Egress {
    let rules = rules.iter().map(|rule| Rule::parse(rule).expect("the test writes rules")).collect();
    Egress {
        reach,
        rules,
        ranges: Vec::new(),
        resolutions: Vec::new(),
        ceilings: Vec::new(),
        upstream: None,
        authorities: Vec::new(),
    }
}

fn table(rules: &[&str]) -> Table {
    Table::new(egress(Reach::Rules, rules))
}

fn identity(text: &str) -> Identity {
    let (scheme, rest) = text.split_once("://").expect("the test writes a scheme");
    let scheme = match scheme {
        "https" => Scheme::Https,
        "http" => Scheme::Http,
        _ => Scheme::Tcp,
    };
    Identity::from_authority(scheme, rest).expect("the test writes an authority")
}

fn judged(table: &Table, to: &str, request: Option<(&str, &str)>) -> Result<RuleId, Denial> {
    let identity = identity(to);
    let path = request.map(|(_, path)| UrlPath::parse(path));
    let request = match (&path, request) {
        (Some(Ok(path)), Some((method, _))) => Some(Request { method, path }),
        (Some(Err(flaw)), _) => return Err(Denial::AmbiguousPath(*flaw)),
        (None, _) | (Some(_), None) => None,
    };
    table.decide(Ask { identity: &identity, request }).map(|permit| permit.rule())
}

#[test]
fn a_rule_reads_as_it_is_written() {
    for text in [
        "api.example.com",
        "http://api.example.com",
        "http://api.example.com:8080",
        "https://api.example.com:8443",
        "db.example.com:5432",
        "example.com:8000-8010",
        "*.example.com",
        "*.example.com:22",
        "GET https://api.example.com/v1/**",
        "GET,HEAD https://api.example.com/v1/items",
        "https://api.example.com/**",
        "https://api.example.com/%2A",
        "https://api.example.com/v1///**",
        "https://api.example.com with bearer:TOKEN",
        "https://api.example.com/v1/** with header:x-api-key:KEY",
        "git-read https://git.example.com/owner/name.git",
        "git-write https://git.example.com/owner/name with basic:x-access-token:GH",
        "*.example.com:443",
        "10.1.2.3:8080",
        "http://10.1.2.3:8080",
        "[2001:db8::1]:5432",
        "http://[2001:db8::1]:81",
        "https://s3.example.com/bucket/** with sigv4:AWS",
    ] {
        let rule = Rule::parse(text).unwrap_or_else(|flaw| panic!("{text}: {flaw}"));
        assert_eq!(rule.to_string(), text);
        assert!(rule.covers(&rule), "{text}");
    }
    assert_eq!(Rule::parse("https://api.example.com").unwrap().to_string(), "api.example.com");
    assert_eq!(Rule::parse("API.Example.COM.").unwrap().to_string(), "api.example.com");
    assert_eq!(Rule::parse("bücher.example").unwrap().to_string(), "xn--bcher-kva.example");
}

#[test]
fn a_rule_that_says_too_much_or_nothing_is_refused() {
    for text in [
        "",
        "*",
        "*.",
        "*.com",
        "*.co.uk",
        "*.github.io",
        "*.*.example.com",
        "api.*.com",
        "a*.example.com",
        "example.com:0",
        "example.com:65536",
        "example.com:",
        "example.com:9-8",
        "example.com:http",
        "http://0x7f000001",
        "http://2130706433",
        "127.1:80",
        "0177.0.0.1:80",
        "::ffff:1.2.3.4x:80",
        "https://user@example.com",
        "https://example.com/a?b",
        "https://example.com/../x",
        "https://example.com/*/x",
        "https://example.com/a**",
        "ftp://example.com",
        "get https://example.com/",
        "CONNECT https://example.com/",
        "GET example.com",
        "http://example.com with bearer:T",
        "example.com:22 with bearer:T",
        "https://example.com with bearer:",
        "https://example.com with bearer:A-B",
        "https://example.com with header:Host:T",
        "https://example.com with magic:T",
        "git-read https://example.com",
        "git-read https://example.com/a/**",
        "exa mple.com",
        "example..com",
        "-",
        "a\tb.com",
        "https://example.com\\@evil.test",
    ] {
        if text == "-" {
            continue;
        }
        assert!(Rule::parse(text).is_err(), "{text:?} was taken for {:?}", Rule::parse(text));
    }
}

#[test]
fn hosts_ports_and_schemes() {
    let one = table(&["api.example.com"]);
    assert!(judged(&one, "https://api.example.com", None).is_ok());
    assert!(judged(&one, "https://API.example.com.", None).is_ok());
    assert_eq!(judged(&one, "http://api.example.com", None), Err(Denial::Port));
    assert_eq!(judged(&one, "tcp://api.example.com:443", None), Err(Denial::Scheme));
    assert_eq!(judged(&one, "https://evilapi.example.com", None), Err(Denial::NoRule));
    let wild = table(&["*.example.com"]);
    assert!(judged(&wild, "https://a.b.example.com", None).is_ok());
    for no in ["https://example.com", "https://evilexample.com", "https://example.com.evil.test"] {
        assert_eq!(judged(&wild, no, None), Err(Denial::NoRule), "{no}");
    }
    let range = table(&["example.com:8000-8010"]);
    assert!(judged(&range, "tcp://example.com:8010", None).is_ok());
    assert!(judged(&range, "https://example.com:8000", None).is_ok());
    assert_eq!(judged(&range, "tcp://example.com:8011", None), Err(Denial::Port));
}

#[test]
fn methods_and_paths() {
    let rules = table(&["GET https://api.example.com/v1/**"]);
    let ask = |method, path| judged(&rules, "https://api.example.com", Some((method, path)));
    for path in [
        "/v1",
        "/v1/",
        "/v1/items",
        "/v1/a//b",
        "/v1/./x",
        "/v1/a/../b",
        "/v1/x?q=/../y",
        "/v1/a%20b",
        "/v1/%61",
    ] {
        assert!(ask("GET", path).is_ok(), "{path}: {:?}", ask("GET", path));
    }
    for path in [
        "/v1evil",
        "/",
        "/v1/../admin",
        "/v1/%2e%2e/admin",
        "/v1/%2E%2E%2Fadmin",
        "/v1/%252e%252e/admin",
        "//v1/x",
        "/v1/..%2fv1/x",
        "/admin/..%2Fv1/x",
        "/v1//../admin",
        "/v1/..;/admin",
        "/v1\\..\\admin",
        "/v1/%5c..%5cadmin",
        "/v1/%00",
        "/v1/%zz",
        "/..",
        "/V1/x",
        "v1",
    ] {
        assert!(ask("GET", path).is_err(), "{path}");
    }
    assert_eq!(ask("POST", "/v1/items"), Err(Denial::Method));
    assert_eq!(ask("get", "/v1/items"), Err(Denial::Method));
    assert_eq!(ask("GET", "/v2"), Err(Denial::Path));
    assert_eq!(judged(&rules, "https://api.example.com", None), Err(Denial::NotInspected));
    assert!(rules.opening(&identity("https://api.example.com").host, 443).open_tls);
    // What is sent on is what was judged.
    assert_eq!(UrlPath::parse("/v1/a/../b?x=1").unwrap().sent(), "/v1/b?x=1");
    assert_eq!(UrlPath::parse("/v1/%2e/b").unwrap().sent(), "/v1/b");
    assert_eq!(UrlPath::parse("/@scope%2fname").unwrap().sent(), "/@scope%2fname");
    let exact = table(&["https://npm.example.com/@scope/name"]);
    assert!(judged(&exact, "https://npm.example.com", Some(("GET", "/@scope%2fname"))).is_ok());
}

#[test]
fn one_git_repository_to_read_or_to_write() {
    let read = table(&["git-read https://git.example.com/o/r.git"]);
    let write = table(&["git-write https://git.example.com/o/r"]);
    for (method, path, reads, writes) in [
        ("GET", "/o/r.git/info/refs?service=git-upload-pack", true, true),
        ("GET", "/o/r/info/refs?service=git-upload-pack", true, true),
        ("POST", "/o/r.git/git-upload-pack", true, true),
        ("GET", "/o/r.git/info/refs?service=git-receive-pack", false, true),
        ("POST", "/o/r.git/git-receive-pack", false, true),
        ("GET", "/o/r.git/info/refs", false, false),
        ("GET", "/o/r.git/info/refs?service=git-upload-pack&service=git-receive-pack", false, false),
        ("GET", "/o/other.git/info/refs?service=git-upload-pack", false, false),
        ("POST", "/o/r.git/git-upload-pack/x", false, false),
        ("GET", "/o/r.git/settings", false, false),
    ] {
        assert_eq!(
            judged(&read, "https://git.example.com", Some((method, path))).is_ok(),
            reads,
            "{method} {path}"
        );
        assert_eq!(
            judged(&write, "https://git.example.com", Some((method, path))).is_ok(),
            writes,
            "{method} {path}"
        );
    }
}

#[test]
fn a_rule_with_a_secret_wins() {
    let rules = table(&["api.example.com", "GET https://api.example.com/v1/** with bearer:TOKEN"]);
    let identity = identity("https://api.example.com");
    let path = UrlPath::parse("/v1/x").unwrap();
    let permit = rules
        .decide(Ask { identity: &identity, request: Some(Request { method: "GET", path: &path }) })
        .unwrap();
    assert_eq!(permit.binding().map(|binding| binding.secret.as_str()), Some("TOKEN"));
    let path = UrlPath::parse("/v2").unwrap();
    let permit = rules
        .decide(Ask { identity: &identity, request: Some(Request { method: "GET", path: &path }) })
        .unwrap();
    assert_eq!(permit.binding(), None);
}

#[test]
fn internal_addresses_are_dropped_or_refused() {
    let rules = table(&["api.example.com", "http://10.1.2.3:8080"]);
    let to = identity("https://api.example.com");
    let reach = |addresses: &[&str]| {
        let permit = rules.decide(Ask { identity: &to, request: None }).unwrap();
        let addresses: Vec<_> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        rules.reach(&permit, &to, &addresses)
    };
    for bad in [
        "169.254.169.254",
        "127.0.0.1",
        "10.1.2.3",
        "::ffff:10.1.2.3",
        "64:ff9b::a9fe:a9fe",
        "fd00:ec2::254",
        "0.0.0.0",
    ] {
        assert!(matches!(reach(&[bad]), Err(Denial::Internal(..))), "{bad}");
    }
    assert_eq!(reach(&["10.1.2.3", "203.0.113.7"]), Ok(vec!["203.0.113.7".parse().unwrap()]));
    let to = identity("http://10.1.2.3:8080");
    let path = UrlPath::parse("/").unwrap();
    let request = Some(Request { method: "GET", path: &path });
    let permit = rules.decide(Ask { identity: &to, request }).unwrap();
    let address = "10.1.2.3".parse().unwrap();
    assert_eq!(rules.reach(&permit, &to, &[address]), Ok(vec![address]));
    assert!(matches!(judged(&rules, "http://10.1.2.4:8080", None), Err(Denial::Internal(..))));
    assert_eq!(judged(&rules, "https://203.0.113.9", None), Err(Denial::RawAddress));
    let mut clause = egress(Reach::Rules, &["db.example.com:5432"]);
    clause.resolutions.push(Resolution::parse("db.example.com=10.0.0.0/8").unwrap());
    clause.resolutions.push(Resolution::parse("db.example.com=169.254.0.0/16").unwrap());
    clause.ranges.push(Opened::parse("10.9.0.0/16:53-54").unwrap());
    let table = Table::new(clause);
    let to = identity("tcp://db.example.com:5432");
    let permit = table.decide(Ask { identity: &to, request: None }).unwrap();
    let addresses = ["10.1.2.3", "169.254.169.254", "192.168.1.1"].map(|text| text.parse().unwrap());
    assert_eq!(table.reach(&permit, &to, &addresses), Ok(vec![addresses[0]]));
    assert_eq!(judged(&table, "tcp://10.9.1.1:53", None), Ok(RuleId::Range(0)));
    assert!(judged(&table, "tcp://10.9.1.1:55", None).is_err());
}

#[test]
fn the_levels() {
    let public = Table::new(egress(Reach::Public, &[]));
    assert_eq!(judged(&public, "https://www.example.org", None), Ok(RuleId::Public));
    for no in [
        "http://127.0.0.1",
        "http://[::ffff:7f00:1]",
        "http://metadata.google.internal",
        "http://localhost",
        "http://router",
    ] {
        assert!(judged(&public, no, None).is_err(), "{no}");
    }
    let names = Table::new(egress(Reach::Names, &[]));
    assert_eq!(judged(&names, "https://www.example.org", None), Err(Denial::NamesOnly));
    let name = |text| Name::parse(text).unwrap();
    assert!(names.answers(&name("www.example.org")));
    assert!(!names.answers(&name("metadata.google.internal")));
    let rules = table(&["api.example.com", "*.example.org"]);
    assert!(rules.answers(&name("api.example.com")) && rules.answers(&name("a.b.example.org")));
    assert!(!rules.answers(&name("x.api.example.com")) && !rules.answers(&name("example.org")));
}

#[test]
fn authorities_name_one_place_or_none() {
    for bad in [
        "",
        ":80",
        "a b",
        "user@example.com",
        "example.com/",
        "example.com:",
        "example.com:0",
        "example.com:70000",
        "example.com:80:80",
        "::1",
        "[::1",
        "[::1]x",
        "[fe80::1%25eth0]",
        "2130706433",
        "0x7f.1",
        "127.1",
        "0177.0.0.1",
        "example..com",
        "example.com..",
        "exam\u{ff0e}ple.com",
        "example.com%00.evil.test",
        "example.com\\",
        "example.com#",
    ] {
        assert!(Identity::from_authority(Scheme::Http, bad).is_err(), "{bad:?}");
    }
    let mapped = Identity::from_authority(Scheme::Http, "[::ffff:7f00:1]").unwrap();
    assert_eq!(mapped.to_string(), "http://127.0.0.1");
    assert_eq!(identity("https://example.com:443").to_string(), "https://example.com");
    assert_eq!(identity("https://Example.com.:444").to_string(), "https://example.com:444");
}

#[test]
fn an_encoded_slash_is_judged_as_every_server_reads_it() {
    let rules =
        table(&["https://git.example.com/api/projects/42/**", "git-read https://git.example.com/o/r"]);
    let ask = |method, path| judged(&rules, "https://git.example.com", Some((method, path)));
    assert!(ask("POST", "/api/projects/42/issues").is_ok());
    assert!(ask("GET", "/api/projects/42/files/a%2Fb").is_ok());
    // To a server that takes `%2F` for a character, these are other projects.
    for path in ["/api/projects/42%2Fevil/issues", "/api/projects%2F42/issues", "/api%2Fprojects/42/x"] {
        assert_eq!(ask("POST", path), Err(Denial::Path), "{path}");
    }
    assert!(ask("GET", "/o%2Fr/info/refs?service=git-upload-pack").is_err());
    let rule = "GET https://git.example.com/api/projects/o%2Fr/**";
    assert_eq!(Rule::parse(rule).unwrap().to_string(), rule);
    let rules = table(&[rule]);
    let ask = |path| judged(&rules, "https://git.example.com", Some(("GET", path)));
    assert!(ask("/api/projects/o%2fr/issues").is_ok());
    assert_eq!(ask("/api/projects/o/r/issues"), Err(Denial::Path));
    assert!(ask("/api/projects/o%252fr/issues").is_err());
    assert!(ask("/api/projects/o%25252fr/issues").is_err());
}

#[test]
fn a_wildcard_stands_on_nothing_below_which_all_is_public() {
    for text in ["*.kawasaki.jp", "*.co.uk", "*.github.io", "*.ck", "*.jp", "*.xn--55qx5d.cn"] {
        assert!(Rule::parse(text).is_err(), "{text}");
    }
    for text in ["*.city.kawasaki.jp", "*.a.b.kawasaki.jp", "*.example.com", "*.corp.example.co.uk"] {
        assert!(Rule::parse(text).is_ok(), "{text}");
    }
}

#[test]
fn a_repository_is_held_by_a_path_under_all_its_names() {
    let rule = |text: &str| Rule::parse(text).unwrap();
    for (held, asked, covers) in [
        ("https://git.example.com/o/r/**", "git-read https://git.example.com/o/r", false),
        ("https://git.example.com/o/r.git/**", "git-read https://git.example.com/o/r.git", false),
        ("https://git.example.com/o/**", "git-write https://git.example.com/o/r.git", true),
        ("https://git.example.com/**", "git-read https://git.example.com/r", true),
        ("git-write https://git.example.com/o/r", "git-read https://git.example.com/o/r", true),
    ] {
        assert_eq!(rule(held).covers(&rule(asked)), covers, "{held} {asked}");
    }
}

#[test]
fn a_rule_about_requests_lets_nothing_pass_unread() {
    let rules = table(&["GET http://api.example.com/v1/**", "http://files.example.com"]);
    for place in ["http://api.example.com", "http://files.example.com"] {
        assert_eq!(judged(&rules, place, None), Err(Denial::NotInspected), "{place}");
    }
}

#[test]
fn an_address_in_other_clothes_is_the_same() {
    for wrapped in ["::ffff:203.0.113.5", "64:ff9b::cb00:7105", "2002:cb00:7105::1", "203.0.113.5"] {
        let bare = address::bare(wrapped.parse().unwrap());
        assert_eq!(bare, "203.0.113.5".parse::<std::net::IpAddr>().unwrap(), "{wrapped}");
    }
}

/// What it covers, it allows: the check on which narrowing stands.
#[test]
fn what_a_rule_covers_it_allows() {
    const RULES: [&str; 12] = [
        "git.example.com",
        "git.example.com:443",
        "*.example.com",
        "https://git.example.com/**",
        "GET https://git.example.com/o/**",
        "https://git.example.com/o/r/**",
        "https://git.example.com/o/r.git/**",
        "https://git.example.com/o%2Fr/**",
        "GET,POST https://git.example.com/o/r",
        "git-read https://git.example.com/o/r",
        "git-write https://git.example.com/o/r.git",
        "https://git.example.com/@o/r/**",
    ];
    const REQUESTS: [(&str, &str); 12] = [
        ("GET", "/o/r"),
        ("POST", "/o/r"),
        ("GET", "/o/r/info/refs?service=git-upload-pack"),
        ("GET", "/o/r.git/info/refs?service=git-upload-pack"),
        ("GET", "/o/r.git.git/info/refs?service=git-receive-pack"),
        ("POST", "/o/r/git-upload-pack"),
        ("POST", "/o/r.git/git-receive-pack"),
        ("GET", "/o%2Fr"),
        ("GET", "/o%2Fr/x"),
        ("GET", "/@o%2Fr/x"),
        ("PUT", "/other"),
        ("GET", "/o/r%2Fx"),
    ];
    for held in RULES {
        for asked in RULES {
            if !Rule::parse(held).unwrap().covers(&Rule::parse(asked).unwrap()) {
                continue;
            }
            for (method, path) in REQUESTS {
                let by =
                    |rule| judged(&table(&[rule]), "https://git.example.com", Some((method, path))).is_ok();
                assert!(!by(asked) || by(held), "{held} {asked} {method} {path}");
            }
        }
    }
}
