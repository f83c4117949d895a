//! What the range saw: facts, in order, each with the time of its note.

use serde_json::Value;

/// The facts of one stretch of time.
#[derive(Debug)]
pub(crate) struct Log(pub(crate) Vec<Value>);

impl Log {
    /// The facts of one kind: `wire`, `dns`, `open`, `tls`, `request`, `bytes`, `banner`, `message`, `close`, ...
    pub(crate) fn all<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |fact| fact["kind"] == kind)
    }

    /// The names that were asked for, each once, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for fact in self.all("dns") {
            let name = fact["name"].as_str().unwrap_or("<malformed>").to_owned();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Packets that start something, but for name queries to the range's own resolver: `tcp 203.0.113.7:443`.
    pub(crate) fn dialled(&self) -> Vec<String> {
        let resolver =
            |fact: &Value| fact["port"] == 53 && (fact["to"] == "192.0.2.53" || fact["to"] == "2001:db8::53");
        let mut dialled: Vec<String> = Vec::new();
        for fact in self.all("wire").filter(|fact| !resolver(fact)) {
            let word = |key: &str| fact[key].as_str().unwrap_or_default();
            let line =
                format!("{} {}:{}", word("protocol"), word("to"), fact["port"].as_u64().unwrap_or_default());
            if !dialled.contains(&line) {
                dialled.push(line);
            }
        }
        dialled
    }

    /// The requests that a server read, as `METHOD HOST TARGET`.
    pub(crate) fn requests(&self) -> Vec<String> {
        let word = |fact: &Value, key: &str| fact[key].as_str().unwrap_or_default().to_owned();
        let line = |fact: &Value| {
            format!("{} {} {}", word(fact, "method"), word(fact, "host"), word(fact, "target"))
        };
        self.all("request").map(line).collect()
    }

    /// Whether `needle` stands anywhere in it: a payload, a name, a head, a body.
    pub(crate) fn has(&self, needle: &str) -> bool {
        self.0.iter().any(|fact| fact.to_string().to_lowercase().contains(&needle.to_lowercase()))
    }

    /// The facts between two moments, in seconds since the epoch.
    pub(crate) fn between(&self, from: f64, to: f64) -> Self {
        let within = |fact: &&Value| fact["at"].as_f64().is_some_and(|at| at >= from && at <= to);
        Self(self.0.iter().filter(within).cloned().collect())
    }

    /// One line a fact, for a failure's message.
    pub(crate) fn told(&self) -> String {
        let clip = |fact: &Value| fact.to_string().chars().take(300).collect::<String>();
        self.0.iter().map(clip).collect::<Vec<_>>().join("\n")
    }
}
