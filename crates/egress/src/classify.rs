//! What a client speaks, by its first bytes.

use crate::hello::{ClientHello, Hello};
use fumehood_model::egress::{Denial, Host, Name};

/// A request line that is longer makes nothing of the bytes but bytes.
pub const MOST_LINE_BYTES: usize = 8 << 10;
/// How HTTP/2 begins when it is spoken in the clear.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";

/// What the first bytes say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum First {
    /// Not enough to tell.
    More,
    Tls(ClientHello),
    /// Begins like TLS, and is none.
    BadTls(&'static str),
    Http,
    Other,
}

// === impl First ===

impl First {
    /// Looks at everything that a client sent so far.
    pub fn look(bytes: &[u8]) -> Self {
        match Hello::read(bytes) {
            Hello::Incomplete => Self::More,
            Hello::Whole(hello) => Self::Tls(hello),
            Hello::Malformed(why) => Self::BadTls(why),
            Hello::NotTls => match http(bytes) {
                Some(true) => Self::Http,
                Some(false) => Self::Other,
                None => Self::More,
            },
        }
    }
}

/// Whether it is a whole request line of HTTP: other protocols begin with words, too. `None`: it may be.
fn http(bytes: &[u8]) -> Option<bool> {
    let common = bytes.iter().zip(HTTP2_PREFACE).take_while(|(a, b)| a == b).count();
    if common == HTTP2_PREFACE.len() {
        return Some(true);
    }
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let line = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
    let token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let method = line.iter().take_while(|byte| token(byte)).count();
    match line.get(method) {
        None if end.is_none() && method <= 32 => return None,
        Some(b' ') if (1..=32).contains(&method) => {}
        Some(_) | None => return Some(false),
    }
    if line.contains(&0) {
        return Some(false);
    }
    if end.is_none() {
        return (line.len() > MOST_LINE_BYTES).then_some(false);
    }
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let version = line.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
    Some(version.starts_with(b"HTTP/"))
}

/// Whether the name in a handshake is that of the place that was dialled.
pub fn judge_name(hello: &ClientHello, dialled: &Host) -> Result<(), Denial> {
    match (&hello.server_name, dialled) {
        (None, Host::Name(_)) => Err(Denial::NoServerName),
        (None, Host::Address(_)) => Ok(()),
        (Some(sent), Host::Name(name)) => match Name::parse(sent) {
            Ok(sent) if sent == *name => Ok(()),
            Ok(_) | Err(_) => Err(Denial::OtherName(sent.clone())),
        },
        (Some(sent), Host::Address(_)) => match Host::parse(sent) {
            Ok(sent) if sent == *dialled => Ok(()),
            Ok(_) | Err(_) => Err(Denial::OtherName(sent.clone())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hello::tests::client_hello;
    use proptest::prelude::*;

    #[test]
    fn protocols_are_told_apart() {
        let tls = client_hello(Some("api.example.com"));
        assert!(matches!(First::look(&tls), First::Tls(_)));
        for http in [
            &b"GET / HTTP/1.1\r\n"[..],
            b"M-SEARCH * HTTP/1.1\r\nHost",
            b"GET /a b HTTP/1.1\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET / HTTP/3.7\r\n",
        ] {
            assert_eq!(First::look(http), First::Http, "{http:?}");
        }
        for other in [
            &b"SSH-2.0-OpenSSH_9.6\r\n"[..],
            b"get key\r\n",
            b"PING\r\n",
            b"EHLO example.com\r\n",
            b"CONNECT {\"verbose\":false}\r\n",
            b"\0\0\0\x08\x04\xd2\x16\x2f",
            b"*1\r\n$4\r\nPING\r\n",
            b"a\0",
            b" GET / HTTP/1.1\r\n",
            b"\r\n",
        ] {
            assert_eq!(First::look(other), First::Other, "{other:?}");
        }
        for more in [&b""[..], b"G", b"GET", b"GET /", b"SSH", b"PRI * HTTP/2.0"] {
            assert_eq!(First::look(more), First::More, "{more:?}");
        }
        let long = [b"GET /".as_slice(), &vec![b'a'; MOST_LINE_BYTES]].concat();
        assert_eq!(First::look(&long), First::Other);
    }

    #[test]
    fn the_name_in_the_handshake_is_that_of_the_place() {
        let judge = |sent: Option<&str>, dialled: &str| {
            let hello = ClientHello { server_name: sent.map(str::to_owned), ..ClientHello::default() };
            judge_name(&hello, &Host::parse(dialled).unwrap())
        };
        assert_eq!(judge(Some("api.example.com"), "api.example.com"), Ok(()));
        assert_eq!(judge(Some("API.Example.com"), "api.example.com"), Ok(()));
        assert_eq!(judge(None, "api.example.com"), Err(Denial::NoServerName));
        assert_eq!(
            judge(Some("evil.example"), "api.example.com"),
            Err(Denial::OtherName("evil.example".into()))
        );
        assert!(judge(Some("api.example.com.evil.example"), "api.example.com").is_err());
        assert_eq!(judge(None, "203.0.113.7"), Ok(()));
        assert_eq!(judge(Some("203.0.113.7"), "203.0.113.7"), Ok(()));
        assert!(judge(Some("api.example.com"), "203.0.113.7").is_err());
        assert!(judge(Some("0xcb007107"), "203.0.113.7").is_err());
    }

    proptest! {
        /// What was once told of some bytes stays true of more.
        #[test]
        fn more_bytes_change_no_verdict(bytes in "[A-Z]{1,8} [ -~]{0,20}(HTTP/1.1)?\r?\n?[ -~]{0,5}") {
            let bytes = bytes.as_bytes();
            let whole = First::look(bytes);
            for end in 0..bytes.len() {
                let part = First::look(&bytes[..end]);
                prop_assert!(part == First::More || part == whole, "{part:?} {whole:?}");
            }
        }
    }
}
