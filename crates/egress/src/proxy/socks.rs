//! SOCKS5: one greeting, one request. No authentication, and connections alone.

use fumehood_model::egress::{Host, Name};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const VERSION: u8 = 5;
const METHOD_NONE: u8 = 0;
const COMMAND_CONNECT: u8 = 1;

/// Answers to a greeting.
pub const WELCOME: [u8; 2] = [VERSION, METHOD_NONE];
pub const NO_METHOD: [u8; 2] = [VERSION, 0xff];

/// Codes of a reply.
pub const SUCCEEDED: u8 = 0;
pub const NOT_ALLOWED: u8 = 2;
const GENERAL_FAILURE: u8 = 1;
const NO_SUCH_COMMAND: u8 = 7;
const NO_SUCH_ADDRESS_TYPE: u8 = 8;

/// What a client offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    More,
    /// It wants to prove who it is, or is no greeting.
    Wrong,
    Hello {
        length: usize,
    },
}

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    More,
    /// To be answered with this code.
    Wrong(u8),
    To {
        host: Host,
        port: u16,
        length: usize,
    },
}

// === impl Greeting ===

impl Greeting {
    pub fn parse(bytes: &[u8]) -> Self {
        match bytes {
            [] | [VERSION] => Self::More,
            [VERSION, count, rest @ ..] => match rest.get(..usize::from(*count)) {
                None => Self::More,
                Some(methods) if methods.contains(&METHOD_NONE) => Self::Hello { length: 2 + methods.len() },
                Some(_) => Self::Wrong,
            },
            _ => Self::Wrong,
        }
    }
}

// === impl Request ===

impl Request {
    pub fn parse(bytes: &[u8]) -> Self {
        let (command, kind, rest) = match bytes {
            [VERSION, command, 0, kind, rest @ ..] => (*command, *kind, rest),
            [] | [VERSION] | [VERSION, _] | [VERSION, _, 0] => return Self::More,
            _ => return Self::Wrong(GENERAL_FAILURE),
        };
        if command != COMMAND_CONNECT {
            return Self::Wrong(NO_SUCH_COMMAND);
        }
        let (host, port, used) = match kind {
            1 => match rest.split_first_chunk::<4>() {
                Some((address, rest)) => (Ok(Host::Address(Ipv4Addr::from(*address).into())), rest, 4),
                None => return Self::More,
            },
            4 => match rest.split_first_chunk::<16>() {
                Some((address, rest)) => (Ok(Host::address(IpAddr::V6(Ipv6Addr::from(*address)))), rest, 16),
                None => return Self::More,
            },
            3 => match rest.split_first().map(|(length, rest)| (rest, usize::from(*length))) {
                Some((rest, length)) => match rest.split_at_checked(length) {
                    Some((name, rest)) => (named(name), rest, 1 + length),
                    None => return Self::More,
                },
                None => return Self::More,
            },
            _ => return Self::Wrong(NO_SUCH_ADDRESS_TYPE),
        };
        match (host, port.first_chunk::<2>().map(|port| u16::from_be_bytes(*port))) {
            (_, None) => Self::More,
            (Err(code), Some(_)) => Self::Wrong(code),
            (Ok(_), Some(0)) => Self::Wrong(GENERAL_FAILURE),
            (Ok(host), Some(port)) => Self::To { host, port, length: 4 + used + 2 },
        }
    }
}

/// A domain name; many clients send addresses this way, in their usual spelling.
fn named(bytes: &[u8]) -> Result<Host, u8> {
    let text = std::str::from_utf8(bytes).map_err(|_| GENERAL_FAILURE)?;
    match text.parse::<IpAddr>() {
        Ok(address) => Ok(Host::address(address)),
        Err(_) => Name::parse(text).map(Host::Name).map_err(|_| GENERAL_FAILURE),
    }
}

/// A reply; the address in it means nothing.
pub fn reply(code: u8) -> [u8; 10] {
    [VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn greetings_without_proof_are_taken() {
        assert_eq!(Greeting::parse(&[5, 2, 2, 0, 5]), Greeting::Hello { length: 4 });
        assert_eq!(Greeting::parse(&[5, 2, 0]), Greeting::More);
        assert_eq!(Greeting::parse(&[5, 1, 2]), Greeting::Wrong);
        assert_eq!(Greeting::parse(&[5, 0]), Greeting::Wrong);
        assert_eq!(Greeting::parse(&[4, 1]), Greeting::Wrong);
    }

    #[test]
    fn requests_name_a_host() {
        let domain = [&[5, 1, 0, 3, 15][..], b"api.example.com", &[1, 187]].concat();
        let expected = Host::parse("api.example.com").unwrap();
        assert_eq!(Request::parse(&domain), Request::To { host: expected, port: 443, length: domain.len() });
        for end in 0..domain.len() {
            assert_eq!(Request::parse(&domain[..end]), Request::More);
        }
        let expected = Host::parse("203.0.113.7").unwrap();
        let v4 = [5, 1, 0, 1, 203, 0, 113, 7, 0, 22, 99];
        assert_eq!(Request::parse(&v4), Request::To { host: expected.clone(), port: 22, length: 10 });
        let mapped = [&[5, 1, 0, 4][..], &[0; 10], &[255, 255, 203, 0, 113, 7, 0, 22]].concat();
        assert_eq!(Request::parse(&mapped), Request::To { host: expected, port: 22, length: 22 });
    }

    #[test]
    fn other_wishes_are_refused() {
        let v4 = |command| [5, command, 0, 1, 203, 0, 113, 7, 0, 22];
        assert_eq!(Request::parse(&v4(2)), Request::Wrong(NO_SUCH_COMMAND));
        assert_eq!(Request::parse(&v4(3)), Request::Wrong(NO_SUCH_COMMAND));
        assert_eq!(Request::parse(&[5, 1, 0, 2, 0]), Request::Wrong(NO_SUCH_ADDRESS_TYPE));
        assert_eq!(Request::parse(&[5, 1, 1, 1]), Request::Wrong(GENERAL_FAILURE));
        assert_eq!(Request::parse(&[5, 1, 0, 1, 1, 1, 1, 1, 0, 0]), Request::Wrong(GENERAL_FAILURE));
        for name in ["0x7f.1", "user@a", "a b", "", "[::1]", "127.1"] {
            let length = u8::try_from(name.len()).unwrap();
            let bytes = [&[5, 1, 0, 3, length][..], name.as_bytes(), &[0, 80]].concat();
            assert_eq!(Request::parse(&bytes), Request::Wrong(GENERAL_FAILURE), "{name}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = Greeting::parse(&bytes);
            let _ = Request::parse(&bytes);
            let with = [&[5, 1, 0][..], &bytes].concat();
            if let Request::To { length, port, .. } = Request::parse(&with) {
                prop_assert!(length <= with.len() && port != 0);
            }
        }
    }
}
