//! What programs inside can reach, and what the holder of the gateway sees of it.

use crate::guest::{Guest, Lab, PATIENCE, both_callers};
use fumehood_backend::Event;
use fumehood_backend::gateway::{PROXY, Ports};
use fumehood_sys::datagram;
use fumehood_sys::observer::{self, Attempt, Protocol};
use fumehood_sys::poll::{self, Interest};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

both_callers! {
    a_listener_hears_every_address
    names_are_asked_and_answered_at_every_address
    what_nobody_listens_to_is_refused_at_once_and_seen
    the_inside_is_its_own
    nothing_else_is_there
    one_listener_hears_every_port
    connections_that_differ_in_their_port_alone_are_told_apart
    the_proxy_is_at_its_address_alone
    the_first_packet_is_not_lost
    closed_sockets_leave_no_network
    what_a_flood_hides_is_counted
    many_ports_are_listened_to
    a_server_inside_is_dialled
}

const HOSTS: [&str; 5] = ["203.0.113.7", "2001:db8::7", "198.18.0.1", "fd66:756d:6568:1::5", "8.8.8.8"];

fn readable(socket: BorrowedFd<'_>, limit: Duration) -> bool {
    poll::wait(&[(socket, Interest::Read)], Some(limit)).unwrap()[0].ready
}

/// Takes the next connection.
fn accept(listener: &OwnedFd) -> TcpStream {
    assert!(readable(listener.as_fd(), PATIENCE), "nobody connects");
    let listener = TcpListener::from(listener.try_clone().unwrap());
    let (stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn local(stream: &TcpStream) -> SocketAddr {
    let address = stream.local_addr().unwrap();
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn at(host: &str, port: u16) -> SocketAddr {
    SocketAddr::new(host.parse().unwrap(), port)
}

/// What the observer has seen until now.
fn seen(observer: &OwnedFd) -> Vec<Attempt> {
    let mut seen = Vec::new();
    let mut file = std::fs::File::from(observer.try_clone().unwrap());
    let mut packet = [0; 256];
    while readable(observer.as_fd(), Duration::ZERO) {
        let length = file.read(&mut packet).unwrap();
        seen.push(observer::attempt(&packet[..length]).unwrap());
    }
    seen
}

fn a_listener_hears_every_address() {
    let lab = Lab::new();
    let (mut guest, gateway) = lab.listed(&[443, 22]);
    let running = guest.start(&format!(
        "import socket\n\
         for host in {HOSTS:?}:\n\
         \x20   with socket.create_connection((host, 443), timeout=10) as s:\n\
         \x20       s.sendall(b'hello')\n\
         \x20       print(s.recv(5).decode())\n"
    ));
    assert_eq!(gateway.listeners.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [22, 443]);
    for host in HOSTS {
        let mut stream = accept(&gateway.listeners[1].1);
        assert_eq!(local(&stream), at(host, 443));
        let mut hello = [0; 5];
        stream.read_exact(&mut hello).unwrap();
        stream.write_all(&hello).unwrap();
    }
    assert_eq!(guest.finish(running), "hello\n".repeat(5));
    assert_eq!(seen(&gateway.observer), []);
}

fn names_are_asked_and_answered_at_every_address() {
    let lab = Lab::new();
    let (mut guest, gateway) = lab.listed(&[443]);
    let running = guest.start(
        "import socket\n\
         for host in '8.8.8.8', '2001:4860:4860::8888', '198.18.0.1':\n\
         \x20   family = socket.AF_INET6 if ':' in host else socket.AF_INET\n\
         \x20   u = socket.socket(family, socket.SOCK_DGRAM); u.settimeout(10)\n\
         \x20   u.connect((host, 53)); u.send(b'over udp'); print(u.recv(99).decode())\n\
         \x20   with socket.create_connection((host, 53), timeout=10) as t:\n\
         \x20       t.sendall(b'over tcp'); print(t.recv(99).decode())\n",
    );
    for host in ["8.8.8.8", "2001:4860:4860::8888", "198.18.0.1"] {
        assert!(readable(gateway.names_udp.as_fd(), PATIENCE), "no question");
        let mut buffer = [0; 512];
        let asked = datagram::receive(gateway.names_udp.as_fd(), &mut buffer).unwrap();
        assert_eq!((&buffer[..asked.length], asked.to), (b"over udp".as_slice(), host.parse().unwrap()));
        assert!(!asked.truncated);
        datagram::send(gateway.names_udp.as_fd(), b"answer", asked.to, asked.from).unwrap();
        let mut stream = accept(&gateway.names_tcp);
        assert_eq!(local(&stream), at(host, 53));
        let mut question = [0; 8];
        stream.read_exact(&mut question).unwrap();
        stream.write_all(&question).unwrap();
    }
    assert_eq!(guest.finish(running), "answer\nover tcp\n".repeat(3));
    assert_eq!(seen(&gateway.observer), []);
}

fn what_nobody_listens_to_is_refused_at_once_and_seen() {
    let lab = Lab::new();
    let (mut guest, gateway) = lab.listed(&[443]);
    let out = guest.run(
        "import socket, time\n\
         start = time.monotonic()\n\
         def tell(name, call):\n\
         \x20   try: call(); print(name, 'done')\n\
         \x20   except OSError as e: print(name, type(e).__name__)\n\
         def udp(host):\n\
         \x20   u = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET, socket.SOCK_DGRAM)\n\
         \x20   u.settimeout(10); u.connect((host, 443)); u.send(b'x'); u.recv(9)\n\
         for host in '203.0.113.7', '2001:db8::7':\n\
         \x20   tell('tcp', lambda: socket.create_connection((host, 80), timeout=10))\n\
         \x20   for i in range(20): tell('udp', lambda: udp(host))\n\
         print('fast' if time.monotonic() - start < 5 else 'slow')\n",
    );
    let refused = |protocol: &str| format!("{protocol} ConnectionRefusedError\n");
    let each = refused("tcp") + &refused("udp").repeat(20);
    assert_eq!(out, each.repeat(2) + "fast\n");
    let expected: Vec<Attempt> = ["203.0.113.7", "2001:db8::7"]
        .into_iter()
        .flat_map(|host| {
            let attempt = move |protocol, port| Attempt { protocol, to: at(host, port) };
            [attempt(Protocol::Tcp, 80)].into_iter().chain([attempt(Protocol::Udp, 443); 20])
        })
        .collect();
    assert_eq!(seen(&gateway.observer), expected);
}

fn the_inside_is_its_own() {
    let lab = Lab::new();
    let (mut guest, gateway) = lab.listed(&[443]);
    let out = guest.run(
        "import socket\n\
         for family, host in (socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1'), (socket.AF_INET, '0.0.0.0'):\n\
         \x20   for port in 443, 53, 3128, 1:\n\
         \x20       l = socket.socket(family); l.bind((host, port)); l.listen()\n\
         \x20       c = socket.create_connection((host, port), timeout=10)\n\
         \x20       a, _ = l.accept(); a.send(b'own'); print(c.recv(9).decode(), end=' '); l.close()\n\
         \x20   try: socket.create_connection((host, 443), timeout=10)\n\
         \x20   except ConnectionRefusedError: print('refused')\n\
         u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(('127.0.0.1', 53))\n\
         v = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); v.sendto(b'udp', ('127.0.0.1', 53))\n\
         print(u.recv(9).decode())\n",
    );
    assert_eq!(out, "own own own own refused\n".repeat(3) + "udp\n");
    assert_eq!(seen(&gateway.observer), [], "loopback went out");
    assert!(!readable(gateway.listeners[0].1.as_fd(), Duration::ZERO));
}

fn nothing_else_is_there() {
    let lab = Lab::new();
    let (mut guest, gateway) = lab.listed(&[443]);
    let out = guest.run(
        "import os, socket\n\
         print('links', sorted(os.listdir('/sys/class/net') if os.path.isdir('/sys/class/net') else\n\
         \x20   [l.split(':')[0].strip() for l in open('/proc/net/dev').readlines()[2:]]))\n\
         print('routes', [l.split()[:3] for l in open('/proc/net/route').readlines()[1:]])\n\
         six = [l.split() for l in open('/proc/net/ipv6_route')]\n\
         print('routes6', sorted({(r[0], r[4], r[9]) for r in six if r[9] == 'eth0'}))\n\
         print('addresses6', sorted(l.split()[0] for l in open('/proc/net/if_inet6')))\n\
         for kind in socket.SOCK_RAW, socket.SOCK_DGRAM:\n\
         \x20   for family, protocol in (socket.AF_INET, 1), (socket.AF_INET6, 58):\n\
         \x20       try: socket.socket(family, kind, protocol); print('ping')\n\
         \x20       except PermissionError: print('no ping')\n\
         try: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0); print('packets')\n\
         except OSError: print('no packets')\n\
         print(open('/etc/resolv.conf').read(), end='')\n\
         print(socket.getaddrinfo('localhost', 1, type=socket.SOCK_STREAM)[0][4][0])\n",
    );
    let every = "0".repeat(32);
    let (own, router) = ("fd66756d656800000000000000000008", "fd66756d656800000000000000000001");
    let expected = format!(
        "links ['eth0', 'lo']\n\
         routes [['eth0', '00000000', '010000C0']]\n\
         routes6 [('{every}', '{router}', 'eth0'), ('{own}', '{every}', 'eth0'), ('ff{}', '{every}', 'eth0')]\n\
         addresses6 ['{}1', '{own}']\n\
         no ping\nno ping\nno ping\nno ping\nno packets\n\
         nameserver 198.18.0.1\n\
         ::1\n",
        "0".repeat(30),
        "0".repeat(31),
    );
    assert_eq!(out, expected);
    assert_eq!(seen(&gateway.observer), []);
}

/// A sandbox all of whose ports are heard, and the one listener.
fn every(lab: &Lab) -> (Guest<'_>, fumehood_backend::gateway::Gateway) {
    let mut guest = lab.launch(Some(Ports::Every));
    let gateway = guest.instance.take_gateway().unwrap();
    (guest, gateway)
}

fn one_listener_hears_every_port() {
    let lab = Lab::new();
    let (mut guest, gateway) = every(&lab);
    let running = guest.start(
        "import socket\n\
         for host in '203.0.113.7', '2001:db8::7', '198.18.0.1':\n\
         \x20   for port in 1, 22, 443, 8080, 65535:\n\
         \x20       with socket.create_connection((host, port), timeout=10) as s: print(s.recv(99).decode())\n\
         with socket.create_connection(('8.8.8.8', 53), timeout=10) as s: print(s.recv(99).decode())\n\
         with socket.create_connection(('198.18.0.1', 3128), timeout=10) as s: print(s.recv(99).decode())\n\
         with socket.create_connection(('203.0.113.7', 3128), timeout=10) as s: print(s.recv(99).decode())\n\
         u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(10)\n\
         u.connect(('203.0.113.7', 443)); u.send(b'x')\n\
         try: u.recv(9)\n\
         except ConnectionRefusedError: print('refused')\n",
    );
    let any = gateway.any.as_ref().unwrap();
    let mut expected = String::new();
    let mut serve = |listener: &OwnedFd, to: SocketAddr, redirected: bool| {
        let mut stream = accept(listener);
        assert_eq!(local(&stream).ip(), to.ip());
        let told = datagram::dialled(stream.as_fd(), to.is_ipv4());
        if redirected {
            assert_eq!(told.unwrap(), to);
        }
        stream.write_all(to.to_string().as_bytes()).unwrap();
        expected += &format!("{to}\n");
    };
    for host in ["203.0.113.7", "2001:db8::7", "198.18.0.1"] {
        for port in [1, 22, 443, 8080, 65535] {
            serve(any, at(host, port), true);
        }
    }
    serve(&gateway.names_tcp, at("8.8.8.8", 53), false);
    serve(&gateway.proxy, at("198.18.0.1", 3128), false);
    serve(any, at("203.0.113.7", 3128), true);
    assert_eq!(guest.finish(running), expected + "refused\n");
    let udp = Attempt { protocol: Protocol::Udp, to: at("203.0.113.7", 443) };
    assert_eq!(seen(&gateway.observer), [udp]);
}

/// Two connections from one port, which the kernel must not take for one.
fn connections_that_differ_in_their_port_alone_are_told_apart() {
    let lab = Lab::new();
    let (mut guest, gateway) = every(&lab);
    let running = guest.start(
        "import socket\n\
         def dial(port):\n\
         \x20   s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.settimeout(10)\n\
         \x20   s.bind(('', 40000)); s.connect(('203.0.113.7', port)); return s\n\
         both = [dial(80), dial(443)]\n\
         print(*[s.recv(9).decode() for s in both])\n",
    );
    let streams = [accept(gateway.any.as_ref().unwrap()), accept(gateway.any.as_ref().unwrap())];
    for mut stream in streams {
        let to = datagram::dialled(stream.as_fd(), true).unwrap();
        stream.write_all(to.port().to_string().as_bytes()).unwrap();
    }
    assert_eq!(guest.finish(running), "80 443\n");
}

fn the_proxy_is_at_its_address_alone() {
    let lab = Lab::new();
    let (mut guest, gateway) = lab.listed(&[443]);
    let running = guest.start(
        "import socket\n\
         try: socket.create_connection(('203.0.113.7', 3128), timeout=10)\n\
         except ConnectionRefusedError: print('refused')\n\
         print(socket.create_connection(('198.18.0.1', 3128), timeout=10).recv(9).decode())\n",
    );
    let mut stream = accept(&gateway.proxy);
    assert_eq!(local(&stream), SocketAddr::V4(PROXY));
    stream.write_all(b"proxy").unwrap();
    drop(stream);
    assert_eq!(guest.finish(running), "refused\nproxy\n");
    assert_eq!(seen(&gateway.observer), [Attempt { protocol: Protocol::Tcp, to: at("203.0.113.7", 3128) }]);

    // A rule may name that port too.
    let (mut guest, gateway) = lab.listed(&[3128]);
    let running = guest.start(
        "import socket\n\
         for host in '203.0.113.7', '198.18.0.1':\n\
         \x20   print(socket.create_connection((host, 3128), timeout=10).recv(9).decode())\n",
    );
    accept(&gateway.listeners[0].1).write_all(b"listener").unwrap();
    accept(&gateway.proxy).write_all(b"proxy").unwrap();
    assert_eq!(guest.finish(running), "listener\nproxy\n");
}

/// A link that is not quite up would drop it, and the program would wait for a second.
fn the_first_packet_is_not_lost() {
    for _ in 0..10 {
        let lab = Lab::new();
        let (mut guest, gateway) = lab.listed(&[443]);
        let running = guest.start(
            "import socket, time\n\
             start = time.monotonic()\n\
             socket.create_connection(('203.0.113.7', 443), timeout=10).recv(9)\n\
             print('slow' if time.monotonic() - start > 0.9 else 'fast')\n",
        );
        accept(&gateway.listeners[0].1).write_all(b"x").unwrap();
        assert_eq!(guest.finish(running), "fast\n");
    }
}

fn closed_sockets_leave_no_network() {
    let lab = Lab::new();
    let (mut guest, gateway) = lab.listed(&[443]);
    let running = guest.start(
        "import socket\n\
         s = socket.create_connection(('203.0.113.7', 443), timeout=10)\n\
         print(s.recv(9).decode())\n\
         try: print(s.recv(9))\n\
         except OSError: print('reset')\n\
         for host in '203.0.113.7', '2001:db8::7':\n\
         \x20   try: socket.create_connection((host, 443), timeout=0.3); print('connected')\n\
         \x20   except OSError as e: print('none')\n\
         try:\n\
         \x20   u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(0.3)\n\
         \x20   u.connect(('8.8.8.8', 53)); u.send(b'x'); u.recv(9); print('answered')\n\
         except OSError: print('none')\n",
    );
    let mut stream = accept(&gateway.listeners[0].1);
    stream.write_all(b"first").unwrap();
    drop(gateway);
    drop(stream);
    let out = guest.finish(running);
    assert!(
        ["first\nb''\n", "first\nreset\n"].iter().any(|start| out == format!("{start}none\nnone\nnone\n")),
        "{out}"
    );
}

fn many_ports_are_listened_to() {
    let lab = Lab::new();
    let ports: Vec<u16> = (1000..1064).collect();
    let (mut guest, gateway) = lab.listed(&ports);
    assert_eq!(gateway.listeners.iter().map(|(port, _)| *port).collect::<Vec<_>>(), ports);
    let running = guest.start(
        "import socket\n\
         for port in 1000, 1063:\n\
         \x20   s = socket.create_connection(('2001:db8::7', port), timeout=10); print(s.recv(9).decode())\n",
    );
    for place in [0, 63] {
        let mut stream = accept(&gateway.listeners[place].1);
        let port = local(&stream).port();
        stream.write_all(port.to_string().as_bytes()).unwrap();
    }
    assert_eq!(guest.finish(running), "1000\n1063\n");
}

/// The host's side of a published port.
fn a_server_inside_is_dialled() {
    let lab = Lab::new();
    let (mut guest, gateway) = lab.listed(&[443]);
    let running = guest.start(
        "import socket\n\
         l = socket.create_server(('127.0.0.1', 443))\n\
         print('listening', flush=True)\n\
         c, peer = l.accept()\n\
         c.sendall(c.recv(9)); print(peer[0])\n",
    );
    assert!(matches!(guest.event(), Event::Started));
    let running = guest.await_line(running, "listening");
    let wanted = guest.instance.dial(443).unwrap();
    let Event::Dialled { call, result } = guest.event() else { panic!("another event") };
    assert_eq!(call, wanted);
    let mut stream = TcpStream::from(result.unwrap());
    stream.set_nonblocking(false).unwrap();
    stream.write_all(b"echo").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "echo");
    assert_eq!(guest.finish_started(running), "127.0.0.1\n");
    assert!(!readable(gateway.listeners[0].1.as_fd(), Duration::ZERO), "it went out and came back");
}

fn what_a_flood_hides_is_counted() {
    const SENT: usize = 5_000;
    let lab = Lab::new();
    let (mut guest, gateway) = lab.listed(&[443]);
    let out = guest.run(&format!(
        "import socket\n\
         u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         for i in range({SENT}): u.sendto(b'x', ('203.0.113.7', 443))\n\
         print('sent')\n"
    ));
    assert_eq!(out, "sent\n");
    let seen = seen(&gateway.observer).len();
    let lost = usize::try_from(observer::lost(gateway.observer.as_fd()).unwrap()).unwrap();
    assert!(lost > 0, "the flood was too small to be one");
    assert_eq!(seen + lost, SENT);
}
