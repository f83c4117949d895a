//! How a rule uses a secret.

use super::rule::{RuleFlaw, flaw};
use crate::text::shown;
use serde::{Serialize, Serializer};
use std::fmt;

/// The use of one secret under a rule, in one way. Holds its name, never the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    pub secret: String,
    pub inject: Inject,
}

/// How a secret is put into a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Inject {
    Bearer,
    /// HTTP basic: with a user, or with `user:password` as the secret's value.
    Basic {
        user: Option<String>,
    },
    Header {
        name: String,
    },
    Query {
        parameter: String,
    },
    /// AWS Signature Version 4: the request is signed again.
    Sigv4,
    /// The placeholder is replaced in the body.
    Body,
}

// === impl Binding ===

impl Binding {
    /// Reads `bearer:NAME`, `basic:NAME`, `basic:USER:NAME`, `header:HEADER:NAME`,
    /// `query:PARAMETER:NAME`, `sigv4:NAME` or `body:NAME`.
    pub fn parse(text: &str) -> Result<Self, RuleFlaw> {
        let parts: Vec<&str> = text.split(':').collect();
        let (inject, secret) = match parts.as_slice() {
            ["bearer", secret] => (Inject::Bearer, secret),
            ["basic", secret] => (Inject::Basic { user: None }, secret),
            ["basic", user, secret] if is_user(user) => {
                (Inject::Basic { user: Some((*user).to_owned()) }, secret)
            }
            ["header", name, secret] if is_injectable_header(name) => {
                (Inject::Header { name: name.to_ascii_lowercase() }, secret)
            }
            ["query", parameter, secret] if is_secret_name(parameter) => {
                (Inject::Query { parameter: (*parameter).to_owned() }, secret)
            }
            ["sigv4", secret] => (Inject::Sigv4, secret),
            ["body", secret] => (Inject::Body, secret),
            _ => {
                return Err(flaw(
                    &format!("`{}` is no way to use a secret", shown(text)),
                    "write `bearer:NAME`, `basic:NAME`, `basic:USER:NAME`, `header:HEADER:NAME`, `query:PARAMETER:NAME`, `sigv4:NAME` or `body:NAME`",
                ));
            }
        };
        if !is_secret_name(secret) {
            return Err(flaw(
                &format!("`{}` is no name of a secret", shown(secret)),
                "write the name that `--secret NAME=SOURCE` gives it: letters, digits and `_`",
            ));
        }
        Ok(Self { secret: (*secret).to_owned(), inject })
    }
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { secret, inject } = self;
        match inject {
            Inject::Bearer => write!(f, "bearer:{secret}"),
            Inject::Basic { user: None } => write!(f, "basic:{secret}"),
            Inject::Basic { user: Some(user) } => write!(f, "basic:{user}:{secret}"),
            Inject::Header { name } => write!(f, "header:{name}:{secret}"),
            Inject::Query { parameter } => write!(f, "query:{parameter}:{secret}"),
            Inject::Sigv4 => write!(f, "sigv4:{secret}"),
            Inject::Body => write!(f, "body:{secret}"),
        }
    }
}

impl Serialize for Binding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A name that can be a variable's.
pub(crate) fn is_secret_name(text: &str) -> bool {
    let start = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    start && text.len() <= 128 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn is_user(text: &str) -> bool {
    (1..=256).contains(&text.len()) && text.bytes().all(|byte| (0x21..0x7f).contains(&byte) && byte != b':')
}

/// Headers that say where a request goes or how long it is are ours alone.
fn is_injectable_header(name: &str) -> bool {
    const OURS: [&str; 12] = [
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "upgrade",
        "te",
        "trailer",
        "expect",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "content-encoding",
    ];
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    (1..=128).contains(&name.len())
        && name.bytes().all(token)
        && !OURS.contains(&name.to_ascii_lowercase().as_str())
}
