//! Packets: sending what no rule names, and reading what passes.

use crate::call::{plain, sys};
use crate::{attempt, numbers, say};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

/// A server of the self-test answers in a moment, or not at all.
const PATIENCE: Duration = Duration::from_millis(1500);
const SHOWN_BYTES: usize = 600;

/// Does what a verb of this module says; whether there is such.
pub(crate) fn done(verb: &str, words: &[&str]) -> bool {
    match (verb, words) {
        ("tcp", [host, port, sent]) => tcp(host, port, &unescaped(sent)),
        // With `$NAME` replaced by what that variable holds here.
        ("tcp-variables", [host, port, sent]) => {
            let mut sent = (*sent).to_owned();
            for (name, value) in std::env::vars() {
                sent = sent.replace(&format!("${name}"), &value);
            }
            tcp(host, port, &unescaped(&sent));
        }
        ("udp", [host, port, sent]) => udp(host, port, sent),
        ("icmp", [host]) => icmp(host),
        ("dns", [server, over, kind, name]) => dns(server, over, kind, name),
        ("hello", [host, port, server_name]) => tcp(host, port, &hello(server_name)),
        ("proxy", [sent]) => proxy(&unescaped(sent)),
        ("follow", [url]) => follow(url),
        _ => return false,
    }
    true
}

/// `\r`, `\n` and `\\` as they are meant.
fn unescaped(text: &str) -> Vec<u8> {
    text.replace("\\r", "\r").replace("\\n", "\n").into_bytes()
}

/// Sends bytes and shows what comes back.
fn tcp(host: &str, port: &str, sent: &[u8]) {
    let name = format!("tcp:{host}:{port}");
    let Some(address) = address(host) else {
        say(&format!("try {name} no-address"));
        return;
    };
    let port = port.parse().unwrap_or(0);
    exchange(&name, SocketAddr::new(address, port), sent);
}

fn exchange(name: &str, place: SocketAddr, sent: &[u8]) {
    let result = TcpStream::connect_timeout(&place, PATIENCE).and_then(|mut stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(sent)?;
        let mut got = vec![0; SHOWN_BYTES];
        let mut length = 0;
        while let Ok(more) = stream.read(got.get_mut(length..).unwrap_or_default()) {
            if more == 0 {
                break;
            }
            length += more;
        }
        got.truncate(length);
        Ok(got)
    });
    match result {
        Ok(got) => {
            say(&format!("try {name} done"));
            say(&format!("answer {}", printable(&got)));
        }
        Err(error) => say(&format!("try {name} {}", numbers::name(error.raw_os_error().unwrap_or(110)))),
    }
}

/// Goes wherever it is sent.
fn follow(url: &str) {
    let mut url = url.to_owned();
    for _ in 0..5 {
        let rest = url.trim_start_matches("http://");
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let Some(address) = address(host) else { return say(&format!("try {url} no-address")) };
        let sent = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let mut got = String::new();
        let answered = TcpStream::connect_timeout(&(address, 80).into(), PATIENCE).and_then(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(sent.as_bytes())?;
            stream.read_to_string(&mut got)
        });
        say(&format!("try {url} {}", if answered.is_ok() { "done" } else { "silence" }));
        match got.lines().find_map(|line| line.strip_prefix("Location: ")) {
            Some(next) => next.trim().clone_into(&mut url),
            None => return,
        }
    }
}

fn printable(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '.' }).collect()
}

/// An address, or a name resolved as the host's configuration says: by the first name server in it.
fn address(host: &str) -> Option<IpAddr> {
    if let Ok(address) = host.parse() {
        return Some(address);
    }
    let answer = ask(&server()?, "udp", 1, host)?;
    // The first address of the answer section; names in it are compressed by our server and by the wall.
    let at =
        answer.windows(10).position(|part| part.starts_with(&[0, 1, 0, 1]) && part.ends_with(&[0, 4]))?;
    let bytes: [u8; 4] = answer.get(at + 10..at + 14)?.try_into().ok()?;
    Some(IpAddr::V4(Ipv4Addr::from(bytes)))
}

fn server() -> Option<String> {
    let text = std::fs::read_to_string("/etc/resolv.conf").ok()?;
    text.lines().find_map(|line| line.strip_prefix("nameserver ")).map(|server| server.trim().to_owned())
}

fn udp(host: &str, port: &str, sent: &str) {
    attempt(&format!("udp:{host}:{port}"), || {
        let address: IpAddr = host.parse().map_err(|_| 22)?;
        let any: SocketAddr = if address.is_ipv4() {
            (Ipv4Addr::UNSPECIFIED, 0).into()
        } else {
            (Ipv6Addr::UNSPECIFIED, 0).into()
        };
        let code = |error: std::io::Error| error.raw_os_error().unwrap_or(0);
        let socket = UdpSocket::bind(any).map_err(code)?;
        let _ = socket.set_broadcast(true);
        socket.send_to(sent.as_bytes(), (address, port.parse().unwrap_or(0))).map(|_| 0).map_err(code)
    });
}

/// An echo request, raw and by the kernel's own kind of socket.
fn icmp(host: &str) {
    let Ok(address) = host.parse::<IpAddr>() else { return };
    let (family, protocol, request) = if address.is_ipv4() { (2_i64, 1_i64, 8_u8) } else { (10, 58, 128) };
    for (name, kind) in [("raw", 3_i64), ("datagram", 2)] {
        attempt(&format!("icmp-{name}:{host}"), || {
            let socket = plain(41, &[family, kind, protocol])?;
            let mut packet = *b"\0\0\0\0\0\x01\0\x01prove-echo-request-payload";
            packet[0] = request;
            if protocol == 1 {
                let sum = checksum(&packet);
                packet[2..4].copy_from_slice(&sum);
            }
            let mut place = [0_u8; 28];
            place[..2].copy_from_slice(&u16::try_from(family).unwrap_or(0).to_ne_bytes());
            let length: i64 = match address {
                IpAddr::V4(address) => {
                    place[4..8].copy_from_slice(&address.octets());
                    16
                }
                IpAddr::V6(address) => {
                    place[8..24].copy_from_slice(&address.octets());
                    28
                }
            };
            let size = i64::try_from(packet.len()).unwrap_or(0);
            sys(
                44,
                [
                    socket.into(),
                    (&mut packet).into(),
                    size.into(),
                    0.into(),
                    (&mut place).into(),
                    length.into(),
                ],
            )
        });
    }
}

fn checksum(packet: &[u8]) -> [u8; 2] {
    let words = packet.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!u16::try_from(sum).unwrap_or(0)).to_be_bytes()
}

fn dns(server: &str, over: &str, kind: &str, name: &str) {
    let label = format!("dns:{server}:{over}:{kind}");
    let server = if server == "own" { self::server().unwrap_or_default() } else { server.to_owned() };
    match ask(&server, over, kind.parse().unwrap_or(1), name) {
        // The low half of the fourth byte is the answer's code.
        Some(answer) => say(&format!("try {label} answered-{}", answer.get(3).map_or(99, |byte| byte & 15))),
        None => say(&format!("try {label} silence")),
    }
}

/// Asks one question; the answer as it came.
fn ask(server: &str, over: &str, kind: u16, name: &str) -> Option<Vec<u8>> {
    let address: IpAddr = server.parse().ok()?;
    let mut question = vec![0x50, 0x56, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        question.push(u8::try_from(label.len()).ok()?);
        question.extend(label.as_bytes());
    }
    question.push(0);
    question.extend(kind.to_be_bytes());
    question.extend([0, 1]);
    let mut answer = vec![0; 1500];
    if over == "tcp" {
        let mut stream = TcpStream::connect_timeout(&(address, 53).into(), PATIENCE).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let mut framed = u16::try_from(question.len()).ok()?.to_be_bytes().to_vec();
        framed.extend(question);
        stream.write_all(&framed).ok()?;
        let length = stream.read(&mut answer).ok()?;
        return answer.get(2..length).map(<[u8]>::to_vec);
    }
    let any: SocketAddr =
        if address.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(any).ok()?;
    socket.set_read_timeout(Some(Duration::from_millis(500))).ok()?;
    socket.send_to(&question, (address, 53)).ok()?;
    let (length, _) = socket.recv_from(&mut answer).ok()?;
    answer.truncate(length);
    Some(answer)
}

/// Sends bytes to the proxy that the variables name; without one, to where its own first line would lead.
fn proxy(sent: &[u8]) {
    let named = ["http_proxy", "HTTP_PROXY"].iter().find_map(|name| std::env::var(name).ok());
    let named =
        named.and_then(|place| place.trim_start_matches("http://").trim_end_matches('/').parse().ok());
    match named {
        Some(place) => exchange("proxy", place, sent),
        None => {
            // The control: what a proxy that judges nothing would do with the first line.
            let line = String::from_utf8_lossy(sent).into_owned();
            let target = line.split(' ').nth(1).unwrap_or_default().trim_start_matches("http://").to_owned();
            let authority =
                target.split('/').next().unwrap_or_default().rsplit('@').next().unwrap_or_default();
            let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "80"));
            tcp(host, port, sent);
        }
    }
}

/// The first message of TLS with a server name in it, or with none.
fn hello(server_name: &str) -> Vec<u8> {
    let mut extensions = Vec::new();
    let mut put = |kind: u16, body: &[u8]| {
        extensions.extend(kind.to_be_bytes());
        extensions.extend(u16::try_from(body.len()).unwrap_or(0).to_be_bytes());
        extensions.extend(body);
    };
    if server_name != "-" {
        let length = u16::try_from(server_name.len()).unwrap_or(0);
        let mut body = (length + 3).to_be_bytes().to_vec();
        body.push(0);
        body.extend(length.to_be_bytes());
        body.extend(server_name.as_bytes());
        put(0, &body);
    }
    // Versions, groups, signatures and a key share: what a server looks at before it answers.
    put(43, &[2, 3, 4]);
    put(10, &[0, 2, 0, 29]);
    put(13, &[0, 2, 8, 4]);
    let mut share = vec![0, 36, 0, 29, 0, 32];
    share.extend([9; 32]);
    put(51, &share);
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 2, 0x13, 1, 1, 0]);
    body.extend(u16::try_from(extensions.len()).unwrap_or(0).to_be_bytes());
    body.extend(extensions);
    let mut message = vec![1, 0];
    message.extend(u16::try_from(body.len()).unwrap_or(0).to_be_bytes());
    message.extend(body);
    let mut record = vec![22, 3, 1];
    record.extend(u16::try_from(message.len()).unwrap_or(0).to_be_bytes());
    record.extend(message);
    record
}

/// What a packet is, where it is a first one: `tcp ADDRESS:PORT`, `udp …`, `icmp ADDRESS`.
pub(crate) fn packet(bytes: &[u8]) -> Option<String> {
    let (protocol, to, rest): (u8, IpAddr, &[u8]) = match bytes.first()? >> 4 {
        4 => {
            let header = usize::from(bytes.first()? & 15) * 4;
            let to: [u8; 4] = bytes.get(16..20)?.try_into().ok()?;
            (*bytes.get(9)?, to.into(), bytes.get(header..)?)
        }
        6 => {
            let to: [u8; 16] = bytes.get(24..40)?.try_into().ok()?;
            (*bytes.get(6)?, to.into(), bytes.get(40..)?)
        }
        _ => return None,
    };
    let port = || Some(u16::from_be_bytes(rest.get(2..4)?.try_into().ok()?));
    let from = || Some(u16::from_be_bytes(rest.get(0..2)?.try_into().ok()?));
    match protocol {
        // SYN without ACK.
        6 if rest.get(13)? & 0x12 == 2 => Some(format!("tcp {}", SocketAddr::new(to, port()?))),
        // What comes from the name server's port is an answer.
        17 if from()? != 53 => Some(format!("udp {}", SocketAddr::new(to, port()?))),
        1 if rest.first() == Some(&8) => Some(format!("icmp {to}")),
        58 if rest.first() == Some(&128) => Some(format!("icmp {to}")),
        _ => None,
    }
}
