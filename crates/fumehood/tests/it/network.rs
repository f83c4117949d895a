//! The network of sandboxes that the daemon has: who may open what, and rules that change while a sandbox lives.

use crate::lab::{Lab, finish};
use crate::serve::{Daemon, caller, key};
use serde_json::{Value, json};
use std::fs::Permissions;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A server for every name below `example.com`, reached as the proxy of a template.
struct Upstream {
    child: Child,
    port: u16,
    /// `HOST KEY` of each request.
    heard: Receiver<String>,
}

impl Upstream {
    /// Starts it, with a certificate of an authority of its own in `ca.pem`.
    fn start(lab: &Lab) -> Self {
        let make = [
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -days 30 -subj /CN=range",
            "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout leaf.key -out leaf.csr -subj /CN=leaf",
            "printf 'subjectAltName=DNS:*.example.com\\nbasicConstraints=CA:FALSE\\n' > leaf.ext",
            "openssl x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile leaf.ext -out leaf.pem",
        ];
        let mut shell = lab.command("sh");
        shell.args(["-ec", &make.join("\n")]).current_dir(lab.path());
        let made = finish(shell, b"");
        assert_eq!(made.code(), 0, "{}", made.told());
        let mut python = lab.command("python3");
        python.args(["-c", include_str!("upstream.py"), "leaf.pem", "leaf.key"]).current_dir(lab.path());
        let mut child = python.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = lines.next().unwrap().unwrap().parse().unwrap();
        let (told, heard) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| told.send(line)));
        Self { child, port, heard }
    }

    fn hears(&self) -> String {
        self.heard.recv_timeout(Duration::from_secs(20)).unwrap()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A template whose way out leads to that server, with a secret of the operator's for one host.
fn template(lab: &Lab, upstream: &Upstream) {
    let folder = lab.state().join("serve/templates");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::set_permissions(lab.state(), Permissions::from_mode(0o700)).unwrap();
    lab.file("operators.key", "the-operators-own-value");
    let text = format!(
        "[envelope.network]\nnet = \"allow\"\nupstream = \"http://127.0.0.1:{}\"\n\
         authorities = [\"*.example.com={1}/ca.pem\"]\n\
         allow = [\"https://held.example.com/** with header:X-Key:HELD\"]\n\
         [envelope.credentials]\nsecrets = [\"HELD=file:{1}/operators.key\"]\n",
        upstream.port,
        lab.path().display()
    );
    std::fs::write(folder.join("out.toml"), text).unwrap();
    lab.give_all(&lab.state());
}

fn e2b_rule(host: &str, value: &str) -> Value {
    json!({ host: [{ "transform": { "headers": { "X-Key": value } } }] })
}

/// What is not opened has the certificate of the server itself, which nobody inside believes.
const ASK_ANY: &str = "curl -ksS -m 20 -w ' %{http_code}' https://";
const ASK: &str = "curl -sS -m 20 -w ' %{http_code}' https://";

#[test]
fn rules_change_while_a_sandbox_lives_and_what_is_given_stays_secret() {
    const FIRST: &str = "first-literal-value";
    const SECOND: &str = "second-literal-value";
    let lab = Lab::new(caller());
    let upstream = Upstream::start(&lab);
    template(&lab, &upstream);
    let daemon = Daemon::start(&lab, &[]);
    let tenant = key(&lab, &["--team", "local", "--scope", "read,write,exec"]);
    let held = e2b_rule("held.example.com", "${fumehood.secret.HELD}")["held.example.com"].clone();
    let mut rules = e2b_rule("api.example.com", FIRST);
    rules["held.example.com"] = held.clone();
    let body = json!({ "templateID": "out", "timeout": 300, "network": { "rules": rules } });
    let (status, made) = daemon.ask_as(&tenant, "POST", "/v2/sandboxes", &body);
    assert_eq!(status, 201, "{made}");
    let id = made["sandboxID"].as_str().unwrap().to_owned();
    let shell = |id: &str, line: &str| daemon.shell(id, line)["stdout"]["text"].as_str().unwrap().to_owned();
    let put =
        |id: &str, body: Value| daemon.ask_as(&tenant, "PUT", &format!("/sandboxes/{id}/network"), &body);

    // Put in unasked, and masked in what comes back.
    let answer = shell(&id, &format!("{ASK}api.example.com/; env"));
    assert!(answer.contains(" 200"), "{answer}");
    assert_eq!(upstream.hears(), format!("api.example.com {FIRST}"));
    assert!(!answer.contains(FIRST) && answer.to_lowercase().contains("x-key"), "{answer}");

    // Other rules: what was open is not, what is named is, without the header.
    let (status, told) = put(&id, json!({ "allowOut": ["other.example.com"] }));
    assert_eq!(status, 204, "{told}");
    assert!(!shell(&id, &format!("{ASK}api.example.com/ 2>&1")).contains(" 200"));
    assert!(shell(&id, &format!("{ASK_ANY}other.example.com/")).contains(" 200"));
    assert_eq!(upstream.hears(), "other.example.com None");

    // The same host again, with another value; and the operator's secret where the operator lets it go.
    let mut rules = e2b_rule("api.example.com", SECOND);
    rules["held.example.com"] = held;
    let (status, told) = put(&id, json!({ "rules": rules }));
    assert_eq!(status, 204, "{told}");
    assert!(shell(&id, &format!("{ASK}api.example.com/")).contains(" 200"));
    assert_eq!(upstream.hears(), format!("api.example.com {SECOND}"));
    assert!(shell(&id, &format!("{ASK}held.example.com/")).contains(" 200"));
    assert_eq!(upstream.hears(), "held.example.com the-operators-own-value");
    let (_, info) = daemon.ask_as(&tenant, "GET", &format!("/sandboxes/{id}"), &Value::Null);
    assert_eq!(
        info["network"]["rules"]["api.example.com"][0]["transform"]["headers"]["X-Key"], "***",
        "{info}"
    );

    // A child has the files, and no rule with what its parent's caller gave.
    let (_, forked) = daemon.ask("POST", &format!("/v1/sandboxes/{id}/fork"), &json!({ "count": 1 }));
    let child = forked[0]["sandbox"]["id"].as_str().unwrap_or_else(|| panic!("{forked}")).to_owned();
    assert!(!shell(&child, &format!("{ASK}api.example.com/ 2>&1")).contains(" 200"));

    // Nothing, by our own API.
    let (status, told) = daemon.ask("PUT", &format!("/v1/sandboxes/{id}/network"), &json!({}));
    assert_eq!(status, 204, "{told}");
    assert!(!shell(&id, &format!("{ASK_ANY}other.example.com/ 2>&1")).contains(" 200"));

    // Recorded, and the values are written nowhere.
    let mut show = lab.fumehood();
    show.args(["audit", "show", &id, "--json"]);
    let record = finish(show, b"").out();
    assert_eq!(record.matches("network.changed").count(), 3, "{record}");
    for value in [FIRST, SECOND] {
        let mut grep = lab.command("grep");
        grep.args(["-rlF", value, "."]).current_dir(lab.state());
        let found = finish(grep, b"");
        assert_eq!((found.code(), found.out()), (1, String::new()), "`{value}` stands in a file");
    }
}

#[test]
fn a_caller_opens_what_is_public_and_the_rest_is_the_operators() {
    let lab = Lab::new(caller());
    let upstream = Upstream::start(&lab);
    template(&lab, &upstream);
    let daemon = Daemon::start(&lab, &[]);
    let tenant = key(&lab, &["--team", "local", "--scope", "read,write,exec"]);
    let make = |network: Value| {
        let body = json!({ "template": "out", "envelope": { "network": network } });
        daemon.ask_as(&tenant, "POST", "/v1/sandboxes", &body)
    };
    let forbidden = [
        json!({ "allow": ["https://evil.example.com/** with bearer:HELD"] }),
        json!({ "allow": ["127.0.0.1:5432"] }),
        json!({ "allow": ["host.fumehood.internal:22"] }),
        json!({ "allow-cidr": ["169.254.169.254/32:80"] }),
        json!({ "publish": ["8080"] }),
        json!({ "upstream": "http://evil.example.com:1" }),
        json!({ "authorities": ["*.example.com=/etc/passwd"] }),
    ];
    for network in &forbidden {
        let (status, told) = make(network.clone());
        assert_eq!((status, &told["code"]), (403, &json!("forbidden")), "{network}: {told}");
    }
    let (status, made) = make(json!({}));
    assert_eq!(status, 201, "{made}");
    let id = made["id"].as_str().unwrap();
    let path = format!("/v1/sandboxes/{id}/network");
    for network in forbidden.iter().take(3) {
        let (status, told) = daemon.ask_as(&tenant, "PUT", &path, network);
        assert_eq!((status, &told["code"]), (403, &json!("forbidden")), "{network}: {told}");
    }
    let e2b = format!("/sandboxes/{id}/network");
    let (status, told) = daemon.ask_as(&tenant, "PUT", &e2b, &json!({ "allowOut": ["127.0.0.1"] }));
    assert_eq!(status, 403, "{told}");
    for (body, why) in [
        (json!({ "allow": ["a b"] }), "a b"),
        (json!({ "allow": ["api.example.com:7777"] }), "7777"),
        (json!({ "net": "all" }), "all"),
        (json!({ "alow": [] }), "alow"),
    ] {
        let (status, told) = daemon.ask_as(&tenant, "PUT", &path, &body);
        assert!((400..=501).contains(&status) && told.to_string().contains(why), "{body}: {status} {told}");
        assert!(told["remediation"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{told}");
    }
    // One without a way out has none to open.
    let alone = daemon.create(&json!({}));
    let body = json!({ "allow": ["api.example.com"] });
    let (_, told) = daemon.ask("PUT", &format!("/v1/sandboxes/{alone}/network"), &body);
    assert_eq!(told["code"], "unsupported", "{told}");
    // A key that may only look changes nothing.
    let reader = key(&lab, &["--team", "local", "--scope", "read"]);
    let (status, _) = daemon.ask_as(&reader, "PUT", &path, &json!({}));
    assert_eq!(status, 403);
}
