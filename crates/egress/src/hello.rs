//! The first message of a TLS client, read from bytes. Nothing is answered and nothing believed: only the
//! name that it asks for is taken out.
//!
//! **Invariant:** reading is total, and a message in which a name could be read in two ways is refused.

/// The longest first message that is waited for. Those of post-quantum clients have about 2 KiB.
pub const MOST_HELLO_BYTES: usize = 64 << 10;

const RECORD_HANDSHAKE: u8 = 22;
const MESSAGE_CLIENT_HELLO: u8 = 1;
/// A record holds no more in the clear.
const MOST_RECORD_BYTES: usize = 1 << 14;
const EXTENSION_SERVER_NAME: u16 = 0;
const EXTENSION_ALPN: u16 = 16;
const EXTENSION_ENCRYPTED_HELLO: u16 = 0xfe0d;
/// Extensions that are told apart when it is looked whether one comes twice.
const MOST_EXTENSIONS: usize = 256;

/// What is known of the first bytes of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hello {
    /// It may become one.
    Incomplete,
    NotTls,
    /// It begins like TLS, and no server would take it, or not all in the same way.
    Malformed(&'static str),
    Whole(ClientHello),
}

/// What a client says first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// As it came.
    pub server_name: Option<String>,
    /// The protocols inside, in the client's order.
    pub alpn: Vec<Vec<u8>>,
    /// Whether it has an encrypted second self, or pretends to: browsers send noise in its place. Either
    /// way the name outside is the one that is judged.
    pub encrypted: bool,
}

/// Reads forward and never past the end.
#[derive(Clone, Copy)]
struct Reader<'a>(&'a [u8]);

/// The message ended before what it promised.
const SHORT: &str = "the TLS handshake is not whole";

// === impl Hello ===

impl Hello {
    /// Reads what a client sent so far, from its first byte on.
    pub fn read(bytes: &[u8]) -> Self {
        match bytes {
            [] | [RECORD_HANDSHAKE] => return Self::Incomplete,
            [RECORD_HANDSHAKE, 3, ..] => {}
            _ => return Self::NotTls,
        }
        let message = match message(bytes) {
            Ok(Some(message)) => message,
            Ok(None) if bytes.len() < MOST_HELLO_BYTES => return Self::Incomplete,
            Ok(None) => return Self::Malformed("the TLS handshake has no end"),
            Err(why) => return Self::Malformed(why),
        };
        match ClientHello::read(&message) {
            Ok(hello) => Self::Whole(hello),
            Err(why) => Self::Malformed(why),
        }
    }
}

/// The body of the first message, put together from its records. `None`: there is more to come.
fn message(bytes: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
    let mut rest = Reader(bytes);
    let mut message = Vec::new();
    while let Some(&[kind, major, _minor, high, low]) = rest.0.first_chunk::<5>() {
        if kind != RECORD_HANDSHAKE || major != 3 {
            return Err("something else comes into the TLS handshake");
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length == 0 || length > MOST_RECORD_BYTES {
            return Err("a TLS record has a length that none has");
        }
        let (whole, body) = (rest.0.len() >= 5 + length, rest.0.get(5..).unwrap_or_default());
        message.extend_from_slice(body.get(..length).unwrap_or(body));
        if let Some(&[kind, high, middle, low]) = message.first_chunk::<4>() {
            let length = usize::from(u16::from_be_bytes([middle, low])) | usize::from(high) << 16;
            if kind != MESSAGE_CLIENT_HELLO {
                return Err("the TLS handshake does not begin with the client's hello");
            }
            if length > MOST_HELLO_BYTES {
                return Err("the TLS handshake has no end");
            }
            if let Some(body) = message.get(4..4 + length) {
                return Ok(Some(body.to_vec()));
            }
        }
        if !whole {
            return Ok(None);
        }
        rest = Reader(rest.0.get(5 + length..).unwrap_or_default());
    }
    match rest.0 {
        [kind, ..] if *kind != RECORD_HANDSHAKE => Err("something else comes into the TLS handshake"),
        _ => Ok(None),
    }
}

// === impl ClientHello ===

impl ClientHello {
    fn read(message: &[u8]) -> Result<Self, &'static str> {
        let mut rest = Reader(message);
        let mut hello = Self::default();
        // Version and randomness; session, cipher suites, compression.
        rest.take(2 + 32).ok_or(SHORT)?;
        rest.short_block().ok_or(SHORT)?;
        rest.block().filter(|suites| !suites.0.is_empty()).ok_or(SHORT)?;
        rest.short_block().filter(|methods| !methods.0.is_empty()).ok_or(SHORT)?;
        if rest.0.is_empty() {
            return Ok(hello);
        }
        let mut extensions = rest.block().filter(|_| rest.0.is_empty()).ok_or(SHORT)?;
        let mut seen = Vec::new();
        while !extensions.0.is_empty() {
            let kind = extensions.half().ok_or(SHORT)?;
            let body = extensions.block().ok_or(SHORT)?;
            if seen.contains(&kind) || seen.len() >= MOST_EXTENSIONS {
                return Err("the TLS handshake says something twice");
            }
            seen.push(kind);
            match kind {
                EXTENSION_SERVER_NAME => hello.server_name = Some(server_name(body)?),
                EXTENSION_ALPN => hello.alpn = protocols(body).ok_or(SHORT)?,
                EXTENSION_ENCRYPTED_HELLO => hello.encrypted = true,
                _ => {}
            }
        }
        Ok(hello)
    }
}

/// The one name that the extension holds.
fn server_name(mut body: Reader<'_>) -> Result<String, &'static str> {
    const ODD: &str = "the server's name in the TLS handshake is none";
    let mut list = body.block().filter(|_| body.0.is_empty()).ok_or(ODD)?;
    let kind = list.take(1).ok_or(ODD)?;
    let name = list.block().filter(|name| list.0.is_empty() && !name.0.is_empty()).ok_or(ODD)?;
    if kind != [0] || !name.0.iter().all(u8::is_ascii_graphic) {
        return Err(ODD);
    }
    String::from_utf8(name.0.to_vec()).map_err(|_| ODD)
}

fn protocols(mut body: Reader<'_>) -> Option<Vec<Vec<u8>>> {
    let mut list = body.block().filter(|_| body.0.is_empty())?;
    let mut protocols = Vec::new();
    while !list.0.is_empty() {
        protocols.push(list.short_block()?.0.to_vec());
    }
    Some(protocols)
}

// === impl Reader ===

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn half(&mut self) -> Option<u16> {
        self.take(2)?.first_chunk().map(|two| u16::from_be_bytes(*two))
    }

    /// Bytes after their length in two bytes.
    fn block(&mut self) -> Option<Self> {
        let length = self.half()?;
        self.take(usize::from(length)).map(Self)
    }

    /// Bytes after their length in one byte.
    fn short_block(&mut self) -> Option<Self> {
        let length = *self.take(1)?.first()?;
        self.take(usize::from(length)).map(Self)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(bytes: &[u8]) -> Vec<u8> {
        [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
    }

    fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
        [kind.to_be_bytes().to_vec(), block(body)].concat()
    }

    fn name_extension(name: &[u8]) -> Vec<u8> {
        extension(EXTENSION_SERVER_NAME, &block(&[vec![0], block(name)].concat()))
    }

    /// The message of a client with these extensions, without its records.
    fn hello(extensions: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 1, 1, 0]);
        body.extend(block(&extensions.concat()));
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&[MESSAGE_CLIENT_HELLO], &length[1..], &body].concat()
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        message.chunks(size).flat_map(|part| [vec![RECORD_HANDSHAKE, 3, 1], block(part)].concat()).collect()
    }

    /// What a client sends that asks for this name.
    pub(crate) fn client_hello(name: Option<&str>) -> Vec<u8> {
        let alpn = extension(EXTENSION_ALPN, &block(b"\x02h2\x08http/1.1"));
        let name = name.map(|name| name_extension(name.as_bytes()));
        records(&hello(&name.into_iter().chain([alpn]).collect::<Vec<_>>()), 1 << 14)
    }

    #[test]
    fn name_and_protocols_are_read_however_they_are_cut() {
        let message = hello(&[
            name_extension(b"api.example.com"),
            extension(EXTENSION_ALPN, &block(b"\x02h2\x08http/1.1")),
            extension(EXTENSION_ENCRYPTED_HELLO, &[1, 2, 3]),
        ]);
        let expected = ClientHello {
            server_name: Some("api.example.com".into()),
            alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            encrypted: true,
        };
        for size in [1, 3, 50, 1 << 14] {
            let bytes = records(&message, size);
            assert_eq!(Hello::read(&bytes), Hello::Whole(expected.clone()), "{size}");
            for end in 0..bytes.len() {
                assert_eq!(Hello::read(&bytes[..end]), Hello::Incomplete, "{size} {end}");
            }
            let more = [bytes, b"\x14\x03\x03 and more".to_vec()].concat();
            assert_eq!(Hello::read(&more), Hello::Whole(expected.clone()));
        }
    }

    #[test]
    fn without_a_name_it_is_whole() {
        let expected = ClientHello::default();
        assert_eq!(Hello::read(&records(&hello(&[]), 100)), Hello::Whole(expected));
    }

    #[test]
    fn two_meanings_are_refused() {
        let name = name_extension(b"api.example.com");
        let two = [vec![0], block(b"a.example"), vec![0], block(b"b.example")].concat();
        for extensions in [
            vec![name.clone(), name.clone()],
            vec![extension(EXTENSION_SERVER_NAME, &block(&two))],
            vec![extension(EXTENSION_SERVER_NAME, &[])],
            vec![extension(EXTENSION_SERVER_NAME, &block(&[vec![1], block(b"a.example")].concat()))],
            vec![name_extension(b"")],
            vec![name_extension(b"api\0.example.com")],
            vec![name_extension("\u{e9}.example.com".as_bytes())],
            vec![name[..name.len() - 1].to_vec()],
        ] {
            let bytes = records(&hello(&extensions), 1 << 14);
            assert!(matches!(Hello::read(&bytes), Hello::Malformed(_)), "{extensions:?}");
        }
    }

    #[test]
    fn other_protocols_are_not_tls_and_odd_tls_is_malformed() {
        for other in
            [&b"GET / HTTP/1.1\r\n"[..], b"SSH-2.0-x\r\n", b"\x16\x02\x00\x00\x05", b"\x80\x2e\x01\x03"]
        {
            assert_eq!(Hello::read(other), Hello::NotTls);
        }
        for odd in [
            &b"\x16\x03\x01\x00\x00"[..],
            b"\x16\x03\x01\x40\x01\x01",
            b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
            b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
            b"\x16\x03\x01\x00\x01\x01\x15\x03\x01\x00\x02\x01\x00",
            b"\x16\x03\x01\x00\x04\x01\x00\x00\x00",
        ] {
            assert!(matches!(Hello::read(odd), Hello::Malformed(_)), "{odd:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(mut bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Hello::read(&bytes);
            if let Some(front) = bytes.get_mut(..2) { front.copy_from_slice(&[RECORD_HANDSHAKE, 3]); }
            let _ = Hello::read(&bytes);
        }

        #[test]
        fn changed_bytes_never_make_another_name(at in 0_usize..200, to in any::<u8>()) {
            let mut bytes = client_hello(Some("api.example.com"));
            if let Some(byte) = bytes.get_mut(at) { *byte = to; }
            if let Hello::Whole(ClientHello { server_name: Some(name), .. }) = Hello::read(&bytes) {
                let expected = "api.example.com";
                let differing = name.bytes().zip(expected.bytes()).filter(|(a, b)| a != b).count();
                prop_assert!(differing <= 1 && name.len() == expected.len());
            }
        }
    }
}
