//! Credentials from end to end: used outside, and nowhere else.
//!
//! A test makes a secret that no other run ever had, binds it, and lets real clients work inside. What arrived is read
//! from the log of the range; what stayed is looked for in everything that can be read inside and in everything
//! that was written outside. Each search has a run in which it finds something.

mod echoes;
mod elsewhere;
mod kinds;
mod residue;
mod sources;
mod work;

use crate::lab::{self, Lab};
use crate::stand::{Seen, Stand, Wall};
use std::path::PathBuf;

/// The rules of most tests: one path of one API, and one repository.
const API: &str = "GET,POST https://api.example.com/v1/** with bearer:GH";
const GIT: &str = "git-write https://git.example.com/git/one.git with basic:x-access-token:GH";

/// A stand with a secret.
#[derive(Debug)]
struct Held {
    stand: Stand,
    value: String,
}

// === impl Held ===

impl Held {
    /// A value in the form of a well-known kind of token, and two repositories that want it.
    fn new(lab: &Lab) -> Self {
        Self::of(lab, format!("ghp_{}", word(36)))
    }

    fn of(lab: &Lab, value: String) -> Self {
        let stand = Stand::new(lab.caller);
        stand.range.name("*.example.com", &["203.0.113.7"]);
        stand.range.name("*.example.org", &["198.51.100.4"]);
        stand.range.name("*.other.example.org", &["198.51.100.5"]);
        Self { stand, value }
    }

    /// The repositories `one.git` and `two.git`, each of which wants the value as a password.
    fn repositories(&self) -> PathBuf {
        let basic = format!("Basic {}", base64(&format!("x-access-token:{}", self.value)));
        let one = self.stand.range.repository("one.git");
        self.stand.range.repository("two.git");
        self.stand.range.key("/git/", &basic);
        one.folder
    }

    /// A run of `script` with the secret from a variable, and these flags besides.
    fn sh(&self, flags: &[&str], script: &str) -> Seen {
        let all = [&["--secret", "GH=env:HELD"], flags].concat();
        self.stand.inside_with(&[("HELD", &self.value)], &all, &["sh", "-c", script])
    }

    /// The same script beside the sandbox, the value in the place of the placeholder.
    fn beside(&self, script: &str) -> Seen {
        let script = format!("export GH='{}'; {script}", self.value);
        self.stand.behind(Wall::Open, &[], &["sh", "-c", &script])
    }

    /// `--in` for a client, which then stands in the working folder.
    fn client(&self, name: &str) -> String {
        crate::kit::client(&self.stand.lab, name).to_str().unwrap().to_owned()
    }
}

/// The value of a field of a request that the range saw; empty where there is none.
fn field(request: &serde_json::Value, name: &str) -> String {
    let head = request["head"].as_str().unwrap_or_default();
    let found = head.split("\r\n").filter_map(|line| line.split_once(':'));
    let mut found = found.filter(|(own, _)| own.trim().eq_ignore_ascii_case(name));
    found.next().map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
}

/// Every form in which a value is looked for.
fn forms(value: &str) -> Vec<Vec<u8>> {
    let mut forms = vec![value.as_bytes().to_vec(), value.bytes().rev().collect()];
    for before in ["", "x", "xy"] {
        // What of it does not depend on what stands before and after.
        let whole = base64(&format!("{before}{value}"));
        let first = (before.len() * 8).div_ceil(6);
        let last = (before.len() + value.len()) * 8 / 6;
        forms.push(whole.as_bytes()[first..last].to_vec());
    }
    let each = |write: fn(u8) -> String| value.bytes().map(write).collect::<String>().into_bytes();
    forms.push(each(|byte| format!("{byte:02x}")));
    forms.push(each(|byte| format!("{byte:02X}")));
    forms.push(each(|byte| format!("%{byte:02X}")));
    forms.push(each(|byte| format!("%{byte:02x}")));
    forms.push(each(|byte| format!("\\u{:04x}", u32::from(byte))));
    forms.push(each(|byte| match byte {
        b if b.is_ascii_alphanumeric() || b"-_.~".contains(&b) => char::from(b).to_string(),
        b => format!("%{b:02X}"),
    }));
    let json = serde_json::to_string(value).unwrap();
    forms.push(json.as_bytes()[1..json.len() - 1].to_vec());
    forms
}

/// Which form stands in `bytes`.
fn found(bytes: &[u8], value: &str) -> Option<String> {
    let stands = |form: &Vec<u8>| bytes.windows(form.len()).any(|window| window == form.as_slice());
    forms(value).into_iter().find(stands).map(|form| String::from_utf8_lossy(&form).into_owned())
}

/// Nothing that a run says or writes may hold it.
fn assert_silent(seen: &Seen, value: &str) {
    for (name, bytes) in [("standard output", &seen.ran.stdout), ("standard error", &seen.ran.stderr)] {
        assert_eq!(found(bytes, value), None, "on {name}: {}", seen.ran.told());
    }
}

fn base64(text: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for part in text.as_bytes().chunks(3) {
        let bits =
            part.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - part.len()));
        for place in 0..=part.len() {
            out.push(char::from(LETTERS[(bits >> (18 - 6 * place) & 63) as usize]));
        }
        out.push_str(&"=".repeat(3 - part.len()));
    }
    out
}

/// Random letters and digits.
fn word(count: usize) -> String {
    const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    lab::random(count).into_iter().map(|byte| char::from(LETTERS[usize::from(byte) % 62])).collect()
}

/// The search finds each form that it names, or it would find none anywhere.
#[test]
fn the_search_sees_each_form() {
    let value = format!("ghp_{}\"/+", word(20));
    for prefix in ["", "a", "ab"] {
        let text = format!("{prefix}{value}{prefix}");
        assert!(found(base64(&text).as_bytes(), &value).is_some(), "{prefix:?}");
    }
    for form in forms(&value) {
        assert!(found(&[b"<".as_slice(), &form, b">"].concat(), &value).is_some());
    }
    assert_eq!(found(word(4096).as_bytes(), &value), None);
    assert_eq!(base64("x-access-token:a"), "eC1hY2Nlc3MtdG9rZW46YQ==");
}
