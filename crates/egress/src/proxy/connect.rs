//! The head of a CONNECT request.
//!
//! **Invariant:** what is accepted names one place, and nothing follows it before it is answered.

use fumehood_model::egress::{Host, Identity, Scheme};

/// The port of the proxy inside.
pub const PROXY_PORT: u16 = 3128;
/// Clients send a few lines.
pub const MOST_HEAD_BYTES: usize = 16 << 10;

const HEAD_END: &[u8] = b"\r\n\r\n";

/// What is known of the bytes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connect {
    More,
    Wrong(&'static str),
    To { host: Host, port: u16 },
}

// === impl Connect ===

impl Connect {
    /// Reads everything that was sent so far.
    pub fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(HEAD_END.len()).position(|four| four == HEAD_END);
        match end {
            None if bytes.len() > MOST_HEAD_BYTES => Self::Wrong("the head of the request has no end"),
            None => Self::More,
            Some(end) if end + HEAD_END.len() < bytes.len() => {
                Self::Wrong("bytes follow the request before it was answered")
            }
            Some(end) => {
                let head = bytes.get(..end).unwrap_or_default();
                read(head).map_or_else(Self::Wrong, |(host, port)| Self::To { host, port })
            }
        }
    }
}

fn read(head: &[u8]) -> Result<(Host, u16), &'static str> {
    let head = std::str::from_utf8(head).map_err(|_| "the head of the request is no text")?;
    let mut lines = head.split("\r\n");
    let target = lines.next().and_then(target).ok_or("the first line of the request is none")?;
    // Without a port of its own it would be that of a scheme, and a tunnel has none.
    let identity = Identity::from_authority(Scheme::Tcp, target)
        .map_err(|_| "the target of the request is no `host:port`")?;
    let mut host_seen = false;
    for line in lines {
        let (name, value) = field(line).ok_or("a line of the request's head is none")?;
        if name.eq_ignore_ascii_case("transfer-encoding")
            || (name.eq_ignore_ascii_case("content-length") && value != "0")
        {
            return Err("the request has a body, which a tunnel has not");
        }
        if name.eq_ignore_ascii_case("host") {
            if std::mem::replace(&mut host_seen, true) {
                return Err("the request names its host twice");
            }
            // Some leave the port out.
            if !identity.is_named_by(value) && !Host::parse(value).is_ok_and(|host| host == identity.host) {
                return Err("the request's target and its `Host` differ");
            }
        }
    }
    let port = identity.port();
    Ok((identity.host, port))
}

/// `CONNECT host:port HTTP/1.1`.
fn target(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("CONNECT ")?;
    let target = rest.strip_suffix(" HTTP/1.1").or_else(|| rest.strip_suffix(" HTTP/1.0"))?;
    (!target.contains(' ')).then_some(target)
}

/// A field of the head, with nothing that some readers would take in another way.
fn field(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once(':')?;
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let plain = |byte: u8| byte == b'\t' || (byte >= b' ' && byte != 0x7f);
    let good = !name.is_empty() && name.bytes().all(token) && value.bytes().all(plain);
    good.then(|| (name, value.trim_matches([' ', '\t'])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn to(host: &str, port: u16) -> Connect {
        Connect::To { host: Host::parse(host).unwrap(), port }
    }

    #[test]
    fn a_target_is_read() {
        for (text, expected) in [
            ("CONNECT api.example.com:443 HTTP/1.1\r\n\r\n", to("api.example.com", 443)),
            (
                "CONNECT API.example.com.:443 HTTP/1.1\r\nHost: api.example.com:443\r\nUser-Agent: x\r\n\r\n",
                to("api.example.com", 443),
            ),
            (
                "CONNECT api.example.com:22 HTTP/1.0\r\nHost: api.example.com\r\n\r\n",
                to("api.example.com", 22),
            ),
            ("CONNECT [2001:db8::1]:443 HTTP/1.1\r\n\r\n", to("2001:db8::1", 443)),
            ("CONNECT [::ffff:10.0.0.1]:443 HTTP/1.1\r\n\r\n", to("10.0.0.1", 443)),
            ("CONNECT a:1 HTTP/1.1\r\nContent-Length: 0\r\n\r\n", to("a", 1)),
        ] {
            assert_eq!(Connect::parse(text.as_bytes()), expected, "{text}");
            for end in 0..text.len() {
                assert_eq!(Connect::parse(&text.as_bytes()[..end]), Connect::More, "{text}");
            }
        }
    }

    #[test]
    fn what_readers_differ_on_is_refused() {
        for text in [
            "CONNECT api.example.com HTTP/1.1\r\n\r\n",
            "CONNECT api.example.com:0 HTTP/1.1\r\n\r\n",
            "CONNECT api.example.com:99999 HTTP/1.1\r\n\r\n",
            "CONNECT user@api.example.com:443 HTTP/1.1\r\n\r\n",
            "CONNECT http://api.example.com:443 HTTP/1.1\r\n\r\n",
            "CONNECT 0x7f.1:443 HTTP/1.1\r\n\r\n",
            "CONNECT 2130706433:443 HTTP/1.1\r\n\r\n",
            "CONNECT  api.example.com:443 HTTP/1.1\r\n\r\n",
            "CONNECT api.example.com:443  HTTP/1.1\r\n\r\n",
            "CONNECT api.example.com:443 HTTP/2\r\n\r\n",
            "connect api.example.com:443 HTTP/1.1\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nHost: b.example\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:80\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\nHost: a.example\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nHost : a.example\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nA: b\r\n folded\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nA: b\nHost: c\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nContent-Length: 5\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "CONNECT a.example:443 HTTP/1.1\r\n\r\n\x16\x03\x01",
            "CONNECT a.example:443 HTTP/1.1\r\nA: \0\r\n\r\n",
        ] {
            assert!(matches!(Connect::parse(text.as_bytes()), Connect::Wrong(_)), "{text:?}");
        }
        let endless = [b"CONNECT ".as_slice(), &vec![b'a'; MOST_HEAD_BYTES]].concat();
        assert!(matches!(Connect::parse(&endless), Connect::Wrong(_)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in "CONNECT [ -~]{0,30} HTTP/1.1\r\n([ -~]{0,20}\r\n){0,3}\r\n") {
            if let Connect::To { port, .. } = Connect::parse(bytes.as_bytes()) {
                prop_assert!(port != 0);
            }
        }
    }
}
