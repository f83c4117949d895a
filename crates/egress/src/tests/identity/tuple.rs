//! What a client says, at random: in every place where a destination can be said, in right and odd spellings.
//!
//! A spelling is made from a host by a twist, and the twist says whether the host is still meant. So what has to
//! come of a tuple is known from how it was made, and from no reader of the gate.

use super::world::{HOSTS, PORTS};

/// A generator whose numbers are the same for the same seed.
#[derive(Debug)]
pub(super) struct Random(u64);

/// One text that names a host, and maybe a port.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) text: String,
    /// Who is meant; nobody, where a text is none or a stranger.
    host: Option<&'static str>,
    port: Option<u16>,
}

#[derive(Debug)]
pub(super) enum Way {
    /// To the address that stands for a name, or to an address itself.
    Dialled {
        host: &'static str,
        six: bool,
    },
    /// The text of the target, and that of its `Host`.
    Connect {
        target: Claim,
        host: Option<Claim>,
    },
    Socks {
        host: Claim,
    },
    /// A whole URL in the request line, sent to the proxy.
    Absolute,
}

#[derive(Debug)]
pub(super) enum Speech {
    /// A handshake that goes no further.
    Hello {
        sni: Option<Claim>,
    },
    /// A real handshake for a host, and a request inside.
    Tls {
        sni: &'static str,
        request: Request,
    },
    Clear {
        request: Request,
    },
    Bytes,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) absolute: Option<(&'static str, Claim)>,
    pub(super) hosts: Vec<Claim>,
    pub(super) path: &'static str,
    pub(super) http2: bool,
}

#[derive(Debug)]
pub(super) struct Tuple {
    pub(super) way: Way,
    pub(super) port: u16,
    pub(super) speech: Speech,
}

/// A place, as the tuple means it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meant {
    pub(super) host: String,
    pub(super) port: u16,
}

#[derive(Debug)]
pub(super) enum Expected {
    Refused,
    Reaches { host: String, port: u16, kind: &'static str },
}

/// Twists after which the host is the same.
const KEEPING: usize = 4;
const TWISTS: usize = 24;

pub(super) fn canonical(text: &str) -> String {
    let text = text.to_ascii_lowercase();
    text.strip_suffix('.').unwrap_or(&text).to_owned()
}

/// The name that a handshake for a host says; an address is not said.
pub(super) fn sni_of(host: &str) -> Option<String> {
    (!is_address(host)).then(|| host.to_owned())
}

fn is_address(host: &str) -> bool {
    host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

// === impl Random ===

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        // The finaliser of splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let limit = u64::try_from(limit).unwrap();
        usize::try_from((mixed ^ (mixed >> 31)) % limit).unwrap()
    }

    /// Whether something happens that happens so often in a hundred.
    fn percent(&mut self, often: usize) -> bool {
        self.below(100) < often
    }

    fn host(&mut self) -> &'static str {
        HOSTS[self.below(HOSTS.len())].0
    }
}

// === impl Claim ===

impl Claim {
    /// Mostly `host` in some spelling, sometimes another one.
    fn about(random: &mut Random, host: &'static str) -> Self {
        let host = if random.percent(15) { random.host() } else { host };
        let twist = if random.percent(75) { random.below(KEEPING) } else { random.below(TWISTS) };
        let (text, keeps) = twisted(host, twist);
        Self { text, host: keeps.then_some(host), port: None }
    }

    /// The same with a port behind it, or without where it is the usual one.
    fn with_port(random: &mut Random, host: &'static str, port: u16, usual: Option<u16>) -> Self {
        let mut claim = Self::about(random, host);
        if claim.text.matches(':').count() > 1 && !claim.text.starts_with('[') {
            claim.text = format!("[{}]", claim.text);
        }
        if usual == Some(port) && random.percent(60) {
            claim.port = usual;
            return claim;
        }
        let (text, meant) = match random.below(20) {
            0 => (format!(":{}", PORTS[random.below(PORTS.len())]), None),
            1 => (":".to_owned(), None),
            2 => (format!(":+{port}"), None),
            3 => (format!(":{}", u32::from(port) + 65536), None),
            4 => (format!(":{port}:{port}"), None),
            5 => (String::new(), usual),
            _ => (format!(":{port}"), Some(port)),
        };
        let meant = meant.or_else(|| {
            text.strip_prefix(':').and_then(|text| {
                let plain = text.bytes().all(|byte| byte.is_ascii_digit());
                text.parse().ok().filter(|_| plain)
            })
        });
        claim.text.push_str(&text);
        claim.port = meant;
        claim
    }

    fn means(&self, place: &Meant) -> bool {
        self.host == Some(place.host.as_str()) && self.port == Some(place.port)
    }
}

/// A spelling of a host, and whether it still means that host.
fn twisted(host: &'static str, twist: usize) -> (String, bool) {
    let address = is_address(host);
    let mixed = |text: &str| -> String {
        let turn = |(place, letter): (usize, char)| {
            if place % 2 == 0 { letter.to_ascii_uppercase() } else { letter }
        };
        text.chars().enumerate().map(turn).collect()
    };
    match twist {
        0 => (host.to_owned(), true),
        1 => (host.to_uppercase(), true),
        2 => (mixed(host), true),
        // A number with a dot behind it is one of the odd spellings.
        3 => (format!("{host}."), !address),
        4 => (format!("{host}.."), false),
        5 => (format!(".{host}"), false),
        6 => (format!("evil.example.org@{host}"), false),
        7 => (format!("{host}@evil.example.org"), false),
        8 => (format!("{host}.evil.example.org"), false),
        9 => (format!("x{host}"), false),
        10 => (format!("{host}%2eevil.example.org"), false),
        11 => (host.replace('.', "%2e"), false),
        12 => (host.replace('.', "\u{3002}"), false),
        13 => (host.replace('.', "\u{ad}."), false),
        14 => (format!("{host}\0.evil.example.org"), false),
        15 => (format!("{host}/evil"), false),
        16 => (format!("{host}#evil"), false),
        17 => (format!("{host}\\evil"), false),
        18 => (format!("{host},evil.example.org"), false),
        19 => (format!("[{host}]"), false),
        20 => (host.replacen('.', "..", 1), false),
        21 if address => ("3405803784".to_owned(), false),
        21 => (format!("{host}?x"), false),
        22 if address => ("0xcb.0.113.8".to_owned(), false),
        22 => (format!("{host}\u{7f}"), false),
        _ if address => ("203.0.113.010".to_owned(), false),
        _ => (host.replace('e', "\u{435}"), false),
    }
}

// === impl Tuple ===

impl Tuple {
    pub(super) fn random(random: &mut Random) -> Self {
        let host = random.host();
        let port = match (host, random.percent(70)) {
            ("plain.example.com" | "203.0.113.8", true) => 80,
            ("tcp.example.com", true) => 7000,
            (_, true) => 443,
            (_, false) => PORTS[random.below(PORTS.len())],
        };
        let way = match random.below(10) {
            0 | 1 => Way::Connect {
                target: Claim::with_port(random, host, port, None),
                host: random.percent(30).then(|| Claim::with_port(random, host, port, None)),
            },
            2 => Way::Socks { host: Claim::about(random, host) },
            3 => Way::Absolute,
            _ => Way::Dialled { host, six: random.percent(50) },
        };
        let clear = matches!(way, Way::Absolute) || matches!(port, 80 | 8080) || random.percent(5);
        let speech = if clear {
            Speech::Clear {
                request: Request::random(random, ("http", 80), host, port, matches!(way, Way::Absolute)),
            }
        } else if port == 7000 && random.percent(60) || random.percent(3) {
            Speech::Bytes
        } else if random.percent(35) && !is_address(host) {
            let sni = if random.percent(85) { host } else { HOSTS[random.below(7)].0 };
            let sni = if is_address(sni) { "evil.example.org" } else { sni };
            let mut request = Request::random(random, ("https", 443), host, port, false);
            request.http2 = random.percent(20) && request.hosts.len() == 1;
            Speech::Tls { sni, request }
        } else {
            Speech::Hello { sni: random.percent(95).then(|| Claim::about(random, host)) }
        };
        Self { way, port, speech }
    }

    /// The place that the connection is to, where it is to one.
    pub(super) fn dialled(&self) -> Option<Meant> {
        let (host, port) = match &self.way {
            Way::Dialled { host, .. } => (Some(*host), Some(self.port)),
            Way::Connect { target, host } => {
                let agrees = host.as_ref().is_none_or(|own| {
                    own.host == target.host
                        && (own.port.is_none() && !own.text.contains(':') || own.port == target.port)
                });
                (target.host.filter(|_| agrees), target.port)
            }
            Way::Socks { host } => (host.host, Some(self.port)),
            Way::Absolute => {
                let Speech::Clear { request } = &self.speech else { return None };
                let (_, claim) = request.absolute.as_ref()?;
                (claim.host, claim.port)
            }
        };
        Some(Meant { host: host?.to_owned(), port: port? })
    }

    /// What has to come of it.
    pub(super) fn expected(&self) -> Expected {
        let Some(place) = self.dialled() else { return Expected::Refused };
        let open = kind_of(&place);
        let kind = match (&self.speech, open) {
            (Speech::Hello { sni }, "unread" | "bytes") => {
                let same = sni.as_ref().is_some_and(|sni| sni.host == Some(place.host.as_str()));
                // A name that is no text can not be sent.
                same.then_some("unread")
            }
            (Speech::Tls { sni, .. }, "unread" | "bytes") => (*sni == place.host).then_some("unread"),
            (Speech::Tls { sni, request }, "opened") => {
                (*sni == place.host && request.agrees("https", &place, &self.way) && request.may(&place))
                    .then_some("opened")
            }
            // No line of text is no request: under a rule for any protocol it is bytes, to where they were dialled.
            (Speech::Clear { request }, "bytes") if !request.is_text(&self.way) => Some("bytes"),
            (Speech::Clear { request }, "clear" | "bytes") => {
                request.agrees("http", &place, &self.way).then_some("clear")
            }
            (Speech::Bytes, "bytes") => Some("bytes"),
            _ => None,
        };
        match kind {
            Some(kind) => Expected::Reaches { host: place.host, port: place.port, kind },
            None => Expected::Refused,
        }
    }
}

/// What the rules of `world` open at a place.
fn kind_of(place: &Meant) -> &'static str {
    match (place.host.as_str(), place.port) {
        ("api.example.com", 443 | 8443) => "opened",
        ("two.example.com" | "x.wild.example.com" | "y.wild.example.com" | "free.example.com", 443) => {
            "opened"
        }
        ("pass.example.com", 443) => "unread",
        ("plain.example.com", 80 | 8080) | ("api.example.com" | "203.0.113.8", 80) => "clear",
        ("tcp.example.com", 7000) => "bytes",
        _ => "closed",
    }
}

// === impl Request ===

impl Request {
    fn random(
        random: &mut Random,
        (scheme, usual): (&'static str, u16),
        host: &'static str,
        port: u16,
        whole: bool,
    ) -> Self {
        let claim = |random: &mut Random| Claim::with_port(random, host, port, Some(usual));
        let absolute = (whole || random.percent(10)).then(|| {
            let scheme = if random.percent(95) { scheme } else { "ftp" };
            let mut whole = claim(random);
            // In a URL these end the host, and what follows is a path.
            while whole.text.contains(['/', '?']) {
                whole = claim(random);
            }
            (scheme, whole)
        });
        let count = match random.below(30) {
            0 => 0,
            1 => 2,
            _ => 1,
        };
        let hosts = (0..count).map(|_| claim(random)).collect();
        let path = if random.percent(95) { "/v1/x" } else { "/v2" };
        Self { absolute, hosts, path, http2: false }
    }

    /// Whether every part of it names the place. A whole URL in the request line is for proxies alone.
    fn agrees(&self, scheme: &str, place: &Meant, way: &Way) -> bool {
        let absolute = match (self.absolute.as_ref().filter(|_| !self.http2), way) {
            (Some((own, claim)), Way::Absolute) => *own == scheme && claim.means(place),
            (whole, _) => whole.is_none(),
        };
        absolute && self.hosts.len() == 1 && self.hosts.iter().all(|claim| claim.means(place))
    }

    fn is_text(&self, way: &Way) -> bool {
        matches!(way, Way::Absolute)
            || self.absolute.as_ref().is_none_or(|(_, claim)| !claim.text.contains('\0'))
    }

    fn may(&self, place: &Meant) -> bool {
        self.path == "/v1/x" || (place.host.as_str(), place.port) != ("api.example.com", 443)
    }
}
