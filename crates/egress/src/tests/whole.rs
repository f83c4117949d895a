//! The role from its start to its end: real sockets, a keeper that writes, the host's own network.

use super::lab::Named;
use crate::dial::{SystemLookup, SystemWorld};
use crate::record::{Intake, Taken};
use crate::run::run_with;
use crate::sockets::Sockets;
use fumehood_model::egress::{Egress, Reach, Rule, Rules, Table};
use fumehood_model::event::Event;
use fumehood_sys::socket::{Wait, pair, wait};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

struct Whole {
    proxy: SocketAddr,
    /// Tells the keeper to end the run, or to fall over.
    end: std::sync::mpsc::Sender<bool>,
    /// Other rules, and where it says that they hold.
    change: std::sync::mpsc::Sender<Rules>,
    changed: std::sync::mpsc::Receiver<u64>,
    gate: thread::JoinHandle<()>,
    keeper: thread::JoinHandle<Vec<Event>>,
}

fn clause(rules: &[String]) -> Egress {
    Egress {
        reach: Reach::Rules,
        rules: rules.iter().map(|rule| Rule::parse(rule).unwrap()).collect(),
        ranges: Vec::new(),
        resolutions: Vec::new(),
        ceilings: Vec::new(),
        upstream: None,
        authorities: Vec::new(),
    }
}

fn start(rules: &[String]) -> Whole {
    let egress = clause(rules);
    let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = listener();
    let place = proxy.local_addr().unwrap();
    let sockets = Sockets {
        listeners: vec![OwnedFd::from(listener())],
        redirected: None,
        names_udp: OwnedFd::from(UdpSocket::bind("[::1]:0").unwrap()),
        names_tcp: OwnedFd::from(listener()),
        proxy: OwnedFd::from(proxy),
        observer: None,
    };
    let (near, far) = pair().unwrap();
    let gate = thread::spawn(move || {
        let lookup = SystemLookup::new("/etc/resolv.conf".into(), "/etc/hosts".into());
        let world = Box::new(SystemWorld::new(lookup));
        run_with(Table::new(egress), world, (sockets, near), (Named, std::rc::Rc::default())).unwrap();
    });
    let (end, ends) = std::sync::mpsc::channel();
    let (change, changes) = std::sync::mpsc::channel();
    let (applied, changed) = std::sync::mpsc::channel();
    let keeper = thread::spawn(move || {
        let mut intake = Intake::new(far);
        let mut events = Vec::new();
        loop {
            match ends.try_recv() {
                Ok(true) => intake.stop().unwrap(),
                Ok(false) => return events,
                Err(_) => {}
            }
            if let Ok(rules) = changes.try_recv() {
                intake.change(7, &rules).unwrap();
            }
            wait(intake.as_fd(), Wait::Packet, Duration::from_millis(5)).unwrap();
            match intake.take().unwrap() {
                Taken::Events { id, events: more, .. } => {
                    events.extend(more);
                    // A gate that has said its last may be gone before it is answered.
                    let _ = intake.reply(id, true);
                }
                Taken::Applied(change) => applied.send(change).unwrap(),
                Taken::Nothing => {}
                Taken::End => return events,
            }
        }
    });
    Whole { proxy: place, end, change, changed, gate, keeper }
}

fn echo() -> SocketAddr {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = server.local_addr().unwrap();
    thread::spawn(move || {
        for stream in server.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut back = stream.try_clone().unwrap();
                std::io::copy(&mut stream, &mut back)
            });
        }
    });
    place
}

fn connect(proxy: SocketAddr, to: SocketAddr) -> TcpStream {
    let mut client = TcpStream::connect(proxy).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    client.write_all(format!("CONNECT {to} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
    let mut answer = [0; 39];
    client.read_exact(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
    client
}

#[test]
fn a_run_ends_within_a_second_and_leaves_a_whole_record() {
    let server = echo();
    // Loopback is reached only because the rule names this very address.
    let whole = start(&[server.to_string()]);
    let mut client = connect(whole.proxy, server);
    client.write_all(b"\0some bytes").unwrap();
    let mut back = [0; 11];
    client.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"\0some bytes");
    let start = Instant::now();
    whole.end.send(true).unwrap();
    whole.gate.join().unwrap();
    let events = whole.keeper.join().unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(client.read(&mut back).unwrap_or(0), 0);
    assert_eq!(events.iter().map(Event::name).collect::<Vec<_>>(), ["egress.allowed", "egress.ended"]);
    assert!(TcpStream::connect(whole.proxy).is_err(), "nobody listens any more");
}

#[test]
fn without_its_keeper_the_gate_is_gone() {
    let server = echo();
    let whole = start(&[server.to_string()]);
    let mut client = connect(whole.proxy, server);
    client.write_all(b"\0x").unwrap();
    client.read_exact(&mut [0; 2]).unwrap();
    let start = Instant::now();
    whole.end.send(false).unwrap();
    whole.keeper.join().unwrap();
    whole.gate.join().unwrap();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(client.read(&mut [0; 2]).unwrap_or(0), 0);
    assert!(TcpStream::connect(whole.proxy).is_err());
}

#[test]
fn rules_that_change_cut_what_they_do_not_allow_and_leave_the_rest() {
    let (kept, cut) = (echo(), echo());
    let whole = start(&[kept.to_string(), cut.to_string()]);
    let mut clients = [connect(whole.proxy, kept), connect(whole.proxy, cut)];
    let mut ask = |place: usize| {
        let client = &mut clients[place];
        let _ = client.write_all(b"\0x");
        client.read_exact(&mut [0; 2]).is_ok()
    };
    assert!(ask(0) && ask(1));
    // As long as a text of many packets, most of it about others.
    let mut rules: Vec<String> = (0..1000).map(|place| format!("h{place}.example.com:7")).collect();
    rules.push(kept.to_string());
    whole.change.send(Rules::of(&clause(&rules))).unwrap();
    assert_eq!(whole.changed.recv_timeout(Duration::from_secs(10)).unwrap(), 7);
    assert!(ask(0), "what is still allowed goes on");
    assert!(!ask(1), "what is not does not");
    let mut late = TcpStream::connect(whole.proxy).unwrap();
    late.write_all(format!("CONNECT {cut} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
    let mut answer = [0; 12];
    late.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 403");
    // And back again: what was cut stays cut, what comes now is let through.
    let both = clause(&[kept.to_string(), cut.to_string()]);
    whole.change.send(Rules::of(&both)).unwrap();
    whole.changed.recv_timeout(Duration::from_secs(10)).unwrap();
    connect(whole.proxy, cut).write_all(b"\0x").unwrap();
    whole.end.send(true).unwrap();
    whole.gate.join().unwrap();
    let events = whole.keeper.join().unwrap();
    assert!(events.iter().any(|event| event.name() == "egress.denied"), "{events:?}");
}
