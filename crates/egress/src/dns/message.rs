//! Questions read, answers written. No more of DNS than a resolver for a closed list of names needs.
//!
//! **Invariant:** reading is total, and nothing follows a pointer: a question has no use for one.

use fumehood_model::egress::Name;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A whole answer is shorter than every client takes without EDNS, so none is ever cut.
pub const MOST_ANSWER_BYTES: usize = 512;

const HEADER_BYTES: usize = 12;
const FLAG_ANSWER: u16 = 0x8000;
const FLAG_RECURSION_DESIRED: u16 = 0x0100;
const FLAG_RECURSION_AVAILABLE: u16 = 0x0080;
const CLASS_IN: u16 = 1;
/// What a client may use of our answers without fragments.
const EDNS_BYTES: u16 = 1232;
/// Names keep their addresses for good; clients still ask from time to time.
const TTL_S: u32 = 300;
/// How long a client may believe in a no. Rules do not change while a sandbox lives.
const NEGATIVE_TTL_S: u32 = 60;

/// The type of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind(pub u16);

/// What a client wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    id: u16,
    recursion_desired: bool,
    /// Name, type and class as they came: an answer repeats them byte by byte.
    raw: Vec<u8>,
    edns: bool,
    pub kind: Kind,
    pub subject: Subject,
}

/// Whom a question is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    Root,
    Name(Name),
    /// Labels that no host has; shown for the record, escaped.
    Odd(String),
}

/// Why bytes are no question that is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unread {
    /// Not to be answered: too short, or itself an answer.
    Dropped,
    /// To be answered with this error.
    Wrong(Vec<u8>),
}

/// What is said to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    Addresses {
        v4: Option<Ipv4Addr>,
        v6: Option<Ipv6Addr>,
    },
    Pointer(&'a Name),
    /// The name is there, and has no record of that type.
    Nothing,
    NoSuchName,
    /// No more names can be given addresses.
    Failure,
}

/// Response codes.
#[derive(Clone, Copy)]
enum Code {
    Good = 0,
    Format = 1,
    Failure = 2,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
    /// Version of EDNS; its upper half travels in the EDNS record.
    BadVersion = 16,
}

/// Reads forward and never past the end.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

// === impl Kind ===

impl Kind {
    pub const A: Self = Self(1);
    pub const PTR: Self = Self(12);
    pub const AAAA: Self = Self(28);
    pub const ANY: Self = Self(255);
    const SOA: Self = Self(6);
    const OPT: Self = Self(41);

    /// The name of the type, `TYPE…` where it has no common one.
    pub fn name(self) -> String {
        match self.0 {
            1 => "A",
            2 => "NS",
            5 => "CNAME",
            6 => "SOA",
            10 => "NULL",
            12 => "PTR",
            15 => "MX",
            16 => "TXT",
            28 => "AAAA",
            33 => "SRV",
            35 => "NAPTR",
            64 => "SVCB",
            65 => "HTTPS",
            255 => "ANY",
            number => return format!("TYPE{number}"),
        }
        .to_owned()
    }
}

// === impl Question ===

impl Question {
    /// Reads one question.
    pub fn parse(bytes: &[u8]) -> Result<Self, Unread> {
        let mut reader = Reader { bytes, at: 0 };
        let Some([id, flags, questions, answers, authorities, additional]) = reader.header() else {
            return Err(Unread::Dropped);
        };
        if flags & FLAG_ANSWER != 0 {
            return Err(Unread::Dropped);
        }
        let recursion_desired = flags & FLAG_RECURSION_DESIRED != 0;
        let mut question = Self {
            id,
            recursion_desired,
            raw: Vec::new(),
            edns: false,
            kind: Kind(0),
            subject: Subject::Root,
        };
        if flags & 0x7800 != 0 {
            return Err(Unread::Wrong(question.error(Code::NotImplemented)));
        }
        let shape = (questions, answers, authorities);
        let Some(()) = (shape == (1, 0, 0)).then(|| question.read(&mut reader)).flatten() else {
            question.raw.clear();
            return Err(Unread::Wrong(question.error(Code::Format)));
        };
        let class = question.raw.last_chunk::<2>().map(|class| u16::from_be_bytes(*class));
        match reader.additional(additional) {
            Some(Some(version)) => {
                question.edns = true;
                if version != 0 {
                    return Err(Unread::Wrong(question.error(Code::BadVersion)));
                }
            }
            Some(None) => {}
            None => return Err(Unread::Wrong(question.error(Code::Format))),
        }
        if class != Some(CLASS_IN) {
            return Err(Unread::Wrong(question.error(Code::Refused)));
        }
        Ok(question)
    }

    /// Reads name, type and class.
    fn read(&mut self, reader: &mut Reader<'_>) -> Option<()> {
        let start = reader.at;
        self.subject = reader.subject()?;
        self.kind = Kind(reader.half()?);
        reader.half()?;
        self.raw = reader.bytes.get(start..reader.at)?.to_vec();
        Some(())
    }

    /// The bytes of an answer.
    pub fn answer(&self, answer: &Answer<'_>) -> Vec<u8> {
        let code = match answer {
            Answer::Addresses { .. } | Answer::Pointer(_) | Answer::Nothing => Code::Good,
            Answer::NoSuchName => Code::NoSuchName,
            Answer::Failure => Code::Failure,
        };
        let mut records = Vec::new();
        let mut count = 0;
        let mut add = |kind: Kind, data: &[u8]| {
            // The owner is the name in the question, at the end of the header.
            records.extend([0xc0, 0x0c]);
            put_record(&mut records, kind, TTL_S, data);
            count += 1;
        };
        match answer {
            Answer::Addresses { v4, v6 } => {
                if let Some(address) = v4 {
                    add(Kind::A, &address.octets());
                }
                if let Some(address) = v6 {
                    add(Kind::AAAA, &address.octets());
                }
            }
            Answer::Pointer(name) => add(Kind::PTR, &wire(name.as_str())),
            Answer::Nothing | Answer::NoSuchName | Answer::Failure => {}
        }
        let negative = count == 0 && !matches!(answer, Answer::Failure);
        let mut bytes = self.head(code, count, u16::from(negative));
        bytes.append(&mut records);
        if negative {
            bytes.push(0);
            put_record(&mut bytes, Kind::SOA, NEGATIVE_TTL_S, &authority());
        }
        self.end(bytes, code)
    }

    fn error(&self, code: Code) -> Vec<u8> {
        self.end(self.head(code, 0, 0), code)
    }

    fn head(&self, code: Code, answers: u16, authorities: u16) -> Vec<u8> {
        let recursion = if self.recursion_desired { FLAG_RECURSION_DESIRED } else { 0 };
        // Opcodes other than `QUERY` are answered under `QUERY`: they are refused as such.
        let flags = FLAG_ANSWER | FLAG_RECURSION_AVAILABLE | recursion | (code as u16 & 0xf);
        let questions = u16::from(!self.raw.is_empty());
        let words = [self.id, flags, questions, answers, authorities, u16::from(self.edns)];
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u16::to_be_bytes).collect();
        bytes.extend_from_slice(&self.raw);
        bytes
    }

    fn end(&self, mut bytes: Vec<u8>, code: Code) -> Vec<u8> {
        if self.edns {
            bytes.push(0);
            bytes.extend(Kind::OPT.0.to_be_bytes());
            bytes.extend(EDNS_BYTES.to_be_bytes());
            // Upper half of the code, version 0, no flags, no options.
            bytes.extend([u8::try_from(code as u16 >> 4).unwrap_or(0), 0, 0, 0, 0, 0]);
        }
        bytes
    }
}

// === impl Reader ===

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn half(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.at = self.at.checked_add(count).filter(|at| *at <= self.bytes.len())?;
        Some(())
    }

    fn header(&mut self) -> Option<[u16; HEADER_BYTES / 2]> {
        let mut words = [0; HEADER_BYTES / 2];
        for word in &mut words {
            *word = self.half()?;
        }
        Some(words)
    }

    /// A name without pointers.
    fn subject(&mut self) -> Option<Subject> {
        let mut labels: Vec<&[u8]> = Vec::new();
        let start = self.at;
        loop {
            let length = usize::from(self.byte()?);
            if length == 0 {
                break;
            }
            let label = self.bytes.get(self.at..self.at.checked_add(length)?)?;
            if length > 63 || self.at + length - start > 254 {
                return None;
            }
            self.at += length;
            labels.push(label);
        }
        if labels.is_empty() {
            return Some(Subject::Root);
        }
        // A dot inside a label must not become one between two.
        let plain = labels.iter().all(|label| label.is_ascii() && !label.contains(&b'.'));
        let text = labels.iter().map(|label| label.escape_ascii().to_string()).collect::<Vec<_>>().join(".");
        Some(match Name::parse(&text) {
            Ok(name) if plain => Subject::Name(name),
            Ok(_) | Err(_) => Subject::Odd(text),
        })
    }

    /// The additional records: the version of EDNS, if it is spoken. `None` where they are not whole,
    /// or where EDNS stands there twice.
    fn additional(&mut self, count: u16) -> Option<Option<u8>> {
        let mut version = None;
        for _ in 0..count {
            let root = matches!(self.subject()?, Subject::Root);
            let kind = Kind(self.half()?);
            self.half()?;
            let extended = [self.byte()?, self.byte()?, self.byte()?, self.byte()?];
            let length = self.half()?;
            self.skip(usize::from(length))?;
            if kind == Kind::OPT && (!root || version.replace(extended[1]).is_some()) {
                return None;
            }
        }
        (self.at == self.bytes.len()).then_some(version)
    }
}

/// Everything of a record but its owner.
fn put_record(bytes: &mut Vec<u8>, kind: Kind, ttl_s: u32, data: &[u8]) {
    bytes.extend(kind.0.to_be_bytes());
    bytes.extend(CLASS_IN.to_be_bytes());
    bytes.extend(ttl_s.to_be_bytes());
    bytes.extend(u16::try_from(data.len()).unwrap_or(u16::MAX).to_be_bytes());
    bytes.extend_from_slice(data);
}

/// A name as it travels.
fn wire(name: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(name.len() + 2);
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap_or(0));
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes
}

/// The start of authority that comes with a no: it says how long the no holds.
fn authority() -> Vec<u8> {
    let mut bytes = wire("gateway.fumehood.internal");
    bytes.extend(wire("nobody.fumehood.internal"));
    for number in [1, 3600, 600, 86_400, NEGATIVE_TTL_S] {
        bytes.extend(number.to_be_bytes());
    }
    bytes
}

/// The address that a name of the reverse tree is about.
pub fn reverse(name: &Name) -> Option<std::net::IpAddr> {
    let mut labels: Vec<&str> = name.as_str().split('.').collect();
    labels.reverse();
    match labels.as_slice() {
        ["arpa", "in-addr", a, b, c, d] => {
            // The usual parser takes no leading zeros, and so one spelling alone.
            format!("{a}.{b}.{c}.{d}").parse().ok().map(std::net::IpAddr::V4)
        }
        ["arpa", "ip6", nibbles @ ..] if nibbles.len() == 32 => {
            let digits = nibbles.iter().all(|nibble| nibble.len() == 1);
            let number = u128::from_str_radix(&nibbles.concat(), 16).ok().filter(|_| digits)?;
            Some(std::net::IpAddr::V6(Ipv6Addr::from(number)))
        }
        _ => None,
    }
}
