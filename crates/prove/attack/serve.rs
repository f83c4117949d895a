//! The servers of a range: names, and whatever a client's first bytes ask for. They note all that reaches them.
//!
//! A name says itself what it stands for: a label `a-203-0-113-7` resolves to that address, two of them joined by `--`
//! to both, and one that begins with `r-` to the first when it is asked for first, and to the last from then on.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Ports that speak, besides the name server's.
const PORTS: [u16; 10] = [80, 443, 22, 25, 853, 5432, 8080, 9999, 3000, 8443];
/// A client that says no more has said all.
const PATIENCE: Duration = Duration::from_millis(300);
const NOTED_BYTES: usize = 8192;

type Log = Arc<Mutex<std::fs::File>>;

/// Serves until it is ended.
pub(crate) fn all(log: &str) {
    let Ok(file) = std::fs::File::options().create(true).append(true).open(log) else { return };
    let log: Log = Arc::new(Mutex::new(file));
    for port in PORTS {
        if let Ok(listener) = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)) {
            let log = Arc::clone(&log);
            std::thread::spawn(move || accept(&listener, &log, streams));
        }
    }
    let asked = Arc::new(Mutex::new(BTreeSet::new()));
    for address in [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)] {
        let (log, asked) = (Arc::clone(&log), Arc::clone(&asked));
        // The second may be refused where the first takes both; then it is not needed.
        if let Ok(socket) = UdpSocket::bind((address, 53)) {
            std::thread::spawn(move || names(&socket, &log, &asked));
        }
    }
    if let Ok(listener) = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 53)) {
        accept(&listener, &log, names_by_stream);
    }
}

/// Waits until all of it listens.
pub(crate) fn listening() -> bool {
    let end = Instant::now() + Duration::from_secs(10);
    let last: SocketAddr = (Ipv4Addr::LOCALHOST, 53).into();
    while Instant::now() < end {
        if TcpStream::connect_timeout(&last, Duration::from_millis(200)).is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

fn accept(listener: &TcpListener, log: &Log, serve: fn(TcpStream, &Log)) {
    for stream in listener.incoming().flatten() {
        let log = Arc::clone(log);
        std::thread::spawn(move || serve(stream, &log));
    }
}

fn note(log: &Log, line: &str) {
    if let Ok(mut file) = log.lock() {
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}

fn place(stream: &TcpStream) -> String {
    let Ok(address) = stream.local_addr() else { return "nowhere".to_owned() };
    SocketAddr::new(address.ip().to_canonical(), address.port()).to_string()
}

fn streams(mut stream: TcpStream, log: &Log) {
    let place = place(&stream);
    note(log, &format!("open {place}"));
    if matches!(stream.local_addr().map(|address| address.port()), Ok(22 | 25)) {
        let _ = stream.write_all(b"220 greetings of the range\r\n");
    }
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let mut got = Vec::new();
    let mut block = [0; 2048];
    while let Ok(length @ 1..) = stream.read(&mut block) {
        got.extend_from_slice(block.get(..length).unwrap_or_default());
        if got.len() > NOTED_BYTES || (got.ends_with(b"\r\n\r\n") && got.starts_with(b"GET ")) {
            break;
        }
    }
    let shown: String =
        got.iter().map(|byte| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '.' }).collect();
    note(log, &format!("bytes {place} {shown}"));
    // `/to/HOST` leads there.
    if let Some(rest) = shown.strip_prefix("GET /to/") {
        let host = rest.split(' ').next().unwrap_or_default();
        let answer =
            format!("HTTP/1.1 302 Found\r\nLocation: http://{host}/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        let _ = stream.write_all(answer.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        return;
    }
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n");
    let _ = stream.shutdown(std::net::Shutdown::Write);
}

fn names(socket: &UdpSocket, log: &Log, asked: &Mutex<BTreeSet<String>>) {
    let mut question = [0; 1500];
    while let Ok((length, from)) = socket.recv_from(&mut question) {
        let Some(answer) = answer(question.get(..length).unwrap_or_default(), log, asked) else { continue };
        let _ = socket.send_to(&answer, from);
    }
}

fn names_by_stream(mut stream: TcpStream, log: &Log) {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let mut question = [0; 1500];
    let Ok(length @ 3..) = stream.read(&mut question) else { return };
    let asked = Mutex::new(BTreeSet::new());
    let Some(answer) = answer(question.get(2..length).unwrap_or_default(), log, &asked) else { return };
    let size = u16::try_from(answer.len()).unwrap_or(0).to_be_bytes();
    let _ = stream.write_all(&[&size[..], &answer].concat());
}

fn answer(question: &[u8], log: &Log, asked: &Mutex<BTreeSet<String>>) -> Option<Vec<u8>> {
    let (mut at, mut labels) = (12, Vec::new());
    loop {
        let length = usize::from(*question.get(at)?);
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(question.get(at + 1..at + 1 + length)?).into_owned());
        at += 1 + length;
    }
    let kind = u16::from_be_bytes([*question.get(at + 1)?, *question.get(at + 2)?]);
    let name = labels.join(".");
    note(log, &format!("dns {name} {kind}"));
    let addresses = if kind == 1 { addresses(&name, asked) } else { Vec::new() };
    let mut answer = question.get(..at + 5)?.to_vec();
    // An authoritative answer without error.
    answer[2..4].copy_from_slice(&[0x85, 0x80]);
    answer[6..12].copy_from_slice(&[0, u8::try_from(addresses.len()).ok()?, 0, 0, 0, 0]);
    for address in addresses {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}

/// What a name stands for; one that does not say, for an address that is the same for all.
fn addresses(name: &str, asked: &Mutex<BTreeSet<String>>) -> Vec<Ipv4Addr> {
    let lower = name.to_lowercase();
    let read =
        |text: &str| text.split('-').map(str::parse).collect::<Result<Vec<u8>, _>>().ok()?.try_into().ok();
    let read = |text: &str| read(text).map(|bytes: [u8; 4]| Ipv4Addr::from(bytes));
    for label in lower.split('.') {
        if let Some(list) = label.strip_prefix("a-") {
            return list.split("--").filter_map(read).collect();
        }
        if let Some(list) = label.strip_prefix("r-") {
            let first = asked.lock().map(|mut asked| asked.insert(lower.clone())).unwrap_or(false);
            let all: Vec<Ipv4Addr> = list.split("--").filter_map(read).collect();
            let one = if first { all.first() } else { all.last() };
            return one.copied().into_iter().collect();
        }
    }
    vec![Ipv4Addr::new(198, 51, 100, 250)]
}
