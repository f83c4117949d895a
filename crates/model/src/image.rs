//! What an image is called, and what a run is told of one.
//!
//! ```text
//! [HOST[:PORT]/]PATH[:TAG][@sha256:HEX]      python:3.12    registry.example.com/team/tool@sha256:…
//! ```
//!
//! Without a host it is `docker.io`, there without a folder `library/`, and without tag and digest `latest`.

use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

const DEFAULT_HOST: &str = "docker.io";
const DEFAULT_FOLDER: &str = "library/";
const DEFAULT_TAG: &str = "latest";
/// What registries take.
const PATH_BYTES: usize = 255;
const TAG_BYTES: usize = 128;
const HEX_BYTES: usize = 64;

/// A name that was read, whole and in one spelling.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    host: String,
    path: String,
    version: Version,
}

/// Which of the images of a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    Tag(String),
    /// `sha256:HEX`. A tag beside it says nothing more.
    Digest(String),
}

/// Why a text is no name of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferenceFlaw(&'static str);

/// An image of the store, found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImageRoot {
    /// As it was asked for, in its whole spelling.
    pub name: String,
    /// Of its manifest: `sha256:HEX`.
    pub digest: String,
    /// Where its unpacked root is on the host.
    #[serde(skip)]
    pub folder: PathBuf,
}

// === impl Reference ===

impl Reference {
    /// Reads a name.
    ///
    /// # Errors
    /// What is wrong with it, as the rest of a sentence about it.
    pub fn parse(text: &str) -> Result<Self, ReferenceFlaw> {
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (text, None),
        };
        let (name, tag) = match name.rsplit_once(':') {
            Some((front, tag)) if !tag.contains('/') => (front, Some(tag)),
            Some(_) | None => (name, None),
        };
        let (host, path) = match name.split_once('/') {
            Some((first, rest)) if is_host(first) => (first.to_ascii_lowercase(), rest.to_owned()),
            Some(_) => (DEFAULT_HOST.to_owned(), name.to_owned()),
            None => (DEFAULT_HOST.to_owned(), format!("{DEFAULT_FOLDER}{name}")),
        };
        // Two spellings of one registry.
        let host = if host == "index.docker.io" { DEFAULT_HOST.to_owned() } else { host };
        if !is_host_text(&host) {
            return Err(ReferenceFlaw("its registry is no host name"));
        }
        if path.len() > PATH_BYTES || !path.split('/').all(is_component) {
            return Err(ReferenceFlaw(
                "a name has lower-case letters, digits, and `.`, `_`, `-` between them",
            ));
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(ReferenceFlaw("a tag has up to 128 letters, digits, `_`, `.` and `-`"));
        }
        let version = match (digest, tag) {
            (Some(digest), _) if is_digest(digest) => Version::Digest(digest.to_owned()),
            (Some(_), _) => return Err(ReferenceFlaw("a digest is `sha256:` and 64 hexadecimal digits")),
            (None, tag) => Version::Tag(tag.unwrap_or(DEFAULT_TAG).to_owned()),
        };
        Ok(Self { host, path, version })
    }

    /// The registry, `HOST[:PORT]`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// What the registry calls it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The tag or the digest.
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// As people type it: without what is left out by default, but for the tag, where that reads back as the same.
    pub fn short(&self) -> String {
        let whole = self.to_string();
        let without_host = whole.strip_prefix("docker.io/").unwrap_or(&whole);
        let shortest = without_host.strip_prefix(DEFAULT_FOLDER).unwrap_or(without_host);
        let same = |text: &&str| Self::parse(text).as_ref() == Ok(self);
        [shortest, without_host].into_iter().find(same).unwrap_or(&whole).to_owned()
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.path)?;
        match &self.version {
            Version::Tag(tag) => write!(f, ":{tag}"),
            Version::Digest(digest) => write!(f, "@{digest}"),
        }
    }
}

impl fmt::Display for ReferenceFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for ReferenceFlaw {}

/// Whether what is written for a root is a folder, not the name of an image.
pub fn is_folder(text: &str) -> bool {
    let relative =
        |dots: &str| text == dots || text.strip_prefix(dots).is_some_and(|rest| rest.starts_with('/'));
    text.is_empty() || text.starts_with('/') || relative(".") || relative("..")
}

/// Whether the text is `sha256:` and its digits.
pub fn is_digest(text: &str) -> bool {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.strip_prefix("sha256:").is_some_and(|hex| hex.len() == HEX_BYTES && hex.bytes().all(digit))
}

/// Whether the first part of a name is a registry, as every client tells them apart.
fn is_host(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost"
}

fn is_host_text(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if address.parse::<std::net::Ipv6Addr>().is_ok() => {
                ("address", port.strip_prefix(':').or((!port.is_empty()).then_some("")))
            }
            Some(_) | None => return false,
        },
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, None),
        },
    };
    let label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let is_port = |port: &str| {
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    name.len() <= PATH_BYTES && name.split('.').all(label) && port.is_none_or(is_port)
}

fn is_component(part: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let fits = part.bytes().all(|byte| word(byte) || matches!(byte, b'.' | b'_' | b'-'));
    let ends = part.bytes().next().is_some_and(word) && part.bytes().next_back().is_some_and(word);
    fits && ends && !part.contains("..")
}

fn is_tag(tag: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= TAG_BYTES
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|byte| word(byte) || matches!(byte, b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> String {
        Reference::parse(text).map_or_else(|flaw| format!("! {flaw}"), |name| name.to_string())
    }

    #[test]
    fn a_name_has_one_whole_spelling() {
        let hex = "a".repeat(64);
        let cases = [
            ("python", "docker.io/library/python:latest".to_owned()),
            ("python:3.12-slim", "docker.io/library/python:3.12-slim".to_owned()),
            ("team/tool", "docker.io/team/tool:latest".to_owned()),
            ("index.docker.io/library/x", "docker.io/library/x:latest".to_owned()),
            ("localhost:5000/x:y", "localhost:5000/x:y".to_owned()),
            ("Registry.Example.com/a/b_c", "registry.example.com/a/b_c:latest".to_owned()),
            ("[::1]:5000/x", "[::1]:5000/x:latest".to_owned()),
            (&format!("x:1@sha256:{hex}"), format!("docker.io/library/x@sha256:{hex}")),
        ];
        for (text, expected) in cases {
            assert_eq!(whole(text), expected, "{text}");
            assert_eq!(whole(&expected), expected, "the whole spelling is stable");
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "",
            "A",
            "a//b",
            "a/../b",
            "..",
            "a/.b",
            "a:",
            "a:-x",
            "a@",
            "a@sha256:1",
            "a@md5:x",
            "a b",
            "a\u{0}",
            "x.example.com:0/a",
            "x.example.com:99999/a",
            "x.example.com:+1/a",
            "[::1/a",
            "[zz]/a",
            "a:b:c/d",
            "a/",
        ] {
            assert!(Reference::parse(text).is_err(), "{text:?} is {}", whole(text));
        }
    }

    #[test]
    fn a_folder_is_told_from_a_name() {
        for text in ["/x", "./x", "../x", ".", "..", ""] {
            assert!(is_folder(text), "{text:?}");
        }
        for text in ["x", "x/y", ".x", "..x/y"] {
            assert!(!is_folder(text), "{text:?}");
        }
    }

    #[test]
    fn the_short_form_leaves_the_usual_out() {
        let short = |text: &str| Reference::parse(text).unwrap().short();
        assert_eq!(short("python"), "python:latest");
        assert_eq!(short("team/x:1"), "team/x:1");
        // What would be read as something else stays.
        assert_eq!(short("docker.io/library/a/b"), "library/a/b:latest");
        assert_eq!(short("docker.io/localhost/x"), "docker.io/localhost/x:latest");
        assert_eq!(short("localhost:5000/x"), "localhost:5000/x:latest");
    }
}
