//! URLs that are fetched. There is one reading of each; what readers take in different ways is refused, and
//! nothing is repaired.

use fumehood_model::egress::{Identity, IdentityFlaw, NameFlaw, PathFlaw, Scheme, UrlPath};
use fumehood_model::text::shown;
use std::fmt::{self, Write as _};

/// Longer than what servers take.
const MOST_BYTES: usize = 8 << 10;

/// A place and a path to ask it for. Whatever stood after `#` is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    identity: Identity,
    path: UrlPath,
}

/// Why text is no URL that is fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlFlaw {
    #[error("it is longer than 8 KiB")]
    Long,
    #[error("it has a space, a backslash or a control character")]
    Character,
    #[error("it does not say how it is to be fetched")]
    NoScheme,
    #[error("`{0}:` is not fetched, only `http:` and `https:` are")]
    Scheme(String),
    #[error("there have to be two slashes, and then a host")]
    Slashes,
    #[error("its host is encoded, or not written in ASCII")]
    Encoded,
    #[error("it says who asks (`user@`)")]
    User,
    #[error(transparent)]
    Authority(IdentityFlaw),
    #[error(transparent)]
    Path(PathFlaw),
}

// === impl Url ===

impl Url {
    /// Reads a whole URL.
    ///
    /// # Errors
    /// Everything that is not exactly `http://` or `https://`, a host, perhaps a port, a path and a query.
    pub fn parse(text: &str) -> Result<Self, UrlFlaw> {
        Self::read(&plain(text.as_bytes())?)
    }

    /// Reads what a server redirects to, from here.
    pub(crate) fn join(&self, location: &[u8]) -> Result<Self, UrlFlaw> {
        let location = plain(location)?;
        if scheme(&location).is_some() {
            return Self::read(&location);
        }
        if location.starts_with("//") {
            return Self::read(&format!("{}:{location}", self.identity.scheme));
        }
        let target = location.split('#').next().unwrap_or_default();
        let target = match target.chars().next() {
            None => return Ok(self.clone()),
            Some('/') => target.to_owned(),
            Some('?') => format!("{}{target}", self.path.sent_path()),
            Some(_) => {
                let folder = self.path.sent_path().rsplit_once('/').map_or("", |(folder, _)| folder);
                format!("{folder}/{target}")
            }
        };
        Ok(Self { identity: self.identity.clone(), path: path(&target)? })
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    pub fn path(&self) -> &UrlPath {
        &self.path
    }

    fn read(text: &str) -> Result<Self, UrlFlaw> {
        let name = scheme(text).ok_or(UrlFlaw::NoScheme)?;
        let scheme = match name.to_ascii_lowercase().as_str() {
            "https" => Scheme::Https,
            "http" => Scheme::Http,
            other => return Err(UrlFlaw::Scheme(shown(other))),
        };
        let rest = text.split_once(':').map_or("", |(_, rest)| rest);
        let rest = rest.strip_prefix("//").ok_or(UrlFlaw::Slashes)?;
        let rest = rest.split('#').next().unwrap_or_default();
        let (authority, target) = match rest.find(['/', '?']) {
            Some(at) => rest.split_at_checked(at).unwrap_or((rest, "")),
            None => (rest, ""),
        };
        if authority.is_empty() {
            return Err(UrlFlaw::Slashes);
        }
        if authority.contains('@') {
            return Err(UrlFlaw::User);
        }
        if authority.contains('%') {
            return Err(UrlFlaw::Encoded);
        }
        let identity = Identity::from_authority(scheme, authority).map_err(UrlFlaw::Authority)?;
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        Ok(Self { identity, path: path(&target)? })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.identity, self.path.sent())
    }
}

// === impl UrlFlaw ===

impl UrlFlaw {
    /// What can be done.
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Long => "ask for something shorter",
            Self::Character => "encode them: a space is `%20`, a backslash `%5C`",
            Self::NoScheme | Self::Scheme(_) | Self::Slashes => {
                "write the whole URL: `https://example.com/page`; a file is read by `cat`"
            }
            Self::Encoded => "write the host in its ASCII form, `xn--…`",
            Self::User => {
                "leave it out; `--secret` and a rule `… with basic:NAME` send a name and a password"
            }
            Self::Authority(IdentityFlaw::Host(NameFlaw::OddAddress)) => {
                "write an address in its usual form, as in `203.0.113.7` or `[2001:db8::7]`"
            }
            Self::Authority(_) => "write the host as it is, and a port from 1 to 65535",
            Self::Path(_) => "write the path as the server's own links do",
        }
    }
}

/// What stands before the first colon, where that is a scheme by its letters.
fn scheme(text: &str) -> Option<&str> {
    let (name, _) = text.split_once(':')?;
    let mut bytes = name.bytes();
    let first = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic());
    let rest = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    (first && bytes.all(rest)).then_some(name)
}

/// The text, with what is beyond ASCII encoded as every client does it.
fn plain(bytes: &[u8]) -> Result<String, UrlFlaw> {
    if bytes.len() > MOST_BYTES {
        return Err(UrlFlaw::Long);
    }
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            0..=b' ' | 0x7f | b'\\' => return Err(UrlFlaw::Character),
            0x80.. => {
                // Writing to a text does not fail.
                let _ = write!(text, "%{byte:02X}");
            }
            byte => text.push(char::from(*byte)),
        }
    }
    Ok(text)
}

fn path(target: &str) -> Result<UrlPath, UrlFlaw> {
    UrlPath::parse(target).map_err(UrlFlaw::Path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap_or_else(|flaw| panic!("{text}: {flaw}"))
    }

    #[test]
    fn a_url_has_one_spelling() {
        for (written, read) in [
            ("https://example.com", "https://example.com/"),
            ("HTTPS://EXAMPLE.com:443/A?b#c", "https://example.com/A?b"),
            ("hTTp://example.com.:80?q", "http://example.com/?q"),
            ("http://[2001:DB8::7]:8080/a/../b", "http://[2001:db8::7]:8080/b"),
            ("http://example.com#@other.example", "http://example.com/"),
            ("https://example.com/bücher", "https://example.com/b%C3%BCcher"),
        ] {
            assert_eq!(url(written).to_string(), read);
        }
    }

    #[test]
    fn nothing_but_http_is_fetched() {
        for text in [
            "file:///etc/passwd",
            "FILE:///etc/passwd",
            "gopher://example.com/_x",
            "ftp://example.com/",
            "data:text/plain,x",
            "unix:/run/x",
            "jar:http://example.com/a!/b",
            "view-source:http://example.com/",
            "url:http://example.com/",
            "httpx://example.com/",
            "example.com:80",
            "javascript:x",
        ] {
            assert!(matches!(Url::parse(text), Err(UrlFlaw::Scheme(_))), "{text}: {:?}", Url::parse(text));
        }
        for text in ["", "example.com", "/etc/passwd", "//example.com/", "://x", " http://x/", "ht%74p://x"] {
            let flaw = Url::parse(text).unwrap_err();
            assert!(matches!(flaw, UrlFlaw::NoScheme | UrlFlaw::Character), "{text}: {flaw}");
        }
        for text in
            ["http:example.com", "http:/example.com", "http:///example.com", "http:", "https://", "http://?q"]
        {
            assert_eq!(Url::parse(text), Err(UrlFlaw::Slashes), "{text}");
        }
    }

    #[test]
    fn what_readers_take_in_different_ways_is_refused() {
        for text in [
            "http://http://example.com/",
            "http://a@example.com/",
            "http://example.com:80@other.example/",
            "http:\\\\example.com\\",
            "http://example.com\\@other.example/",
            "http://exam\tple.com/",
            "http://example.com/\r\nHost: x",
            "http://example.com:0/",
            "http://example.com:/",
            "http://example.com:99999/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://127.1/",
            "http://0177.0.0.1/",
            "http://[fe80::1%25eth0]/",
            "http://[::1/",
            "http://%6cocalhost/",
            "http://ａ.example/",
            "http://example。com/",
            "http://a..example/",
            "http://.example/",
            "http://example.com/%zz",
            "http://example.com/../../x",
        ] {
            let flaw = Url::parse(text).expect_err(text);
            assert!(!flaw.remedy().is_empty() && !flaw.to_string().is_empty());
        }
        assert_eq!(Url::parse(&format!("http://example.com/{}", "a".repeat(9000))), Err(UrlFlaw::Long));
    }

    #[test]
    fn a_redirect_is_read_from_where_it_stands() {
        let here = url("https://example.com/a/b?c");
        for (location, there) in [
            ("/x", "https://example.com/x"),
            ("x?y", "https://example.com/a/x?y"),
            ("?y", "https://example.com/a/b?y"),
            ("../x", "https://example.com/x"),
            ("#top", "https://example.com/a/b?c"),
            ("", "https://example.com/a/b?c"),
            ("//other.example/x", "https://other.example/x"),
            ("http://other.example", "http://other.example/"),
            ("HTTP://other.example", "http://other.example/"),
        ] {
            assert_eq!(here.join(location.as_bytes()).unwrap().to_string(), there, "{location}");
        }
        for location in [
            "file:///etc/passwd",
            "/\\other.example",
            "\\\\other.example",
            "///other.example",
            "//a@b/",
            "a b",
        ] {
            assert!(here.join(location.as_bytes()).is_err(), "{location}");
        }
    }

    proptest! {
        /// What is shown is read again as the same.
        #[test]
        fn any_text_is_refused_or_has_one_meaning(text in "(?i)(https?:)?//?[a-z0-9.@:%\\[\\]-]{0,12}[/?#]?[ -~ü]{0,12}") {
            if let Ok(read) = Url::parse(&text) {
                prop_assert_eq!(Url::parse(&read.to_string()), Ok(read.clone()));
                if let Ok(there) = read.join(text.as_bytes()) {
                    prop_assert_eq!(Url::parse(&there.to_string()), Ok(there));
                }
            }
        }
    }
}
