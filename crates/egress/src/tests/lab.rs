//! A gate with everything around it.

use crate::dial::{Dialler, Local, World as Dialled};
use crate::entrance::Entrance;
use crate::gate::Gate;
use crate::hello::ClientHello;
use crate::inbound::{Inbound, Protocols};
use crate::names::Synthetic;
use crate::record::memory::MemoryRecorder;
use crate::stop::Stop;
use crate::wall::{DialError, Wall};
use fumehood_model::egress::{Ceiling, Egress, Name, Reach, Rule, Table, Upstream};
use fumehood_model::event::{EgressDenied, Event};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

/// Names, and servers at addresses that are not this machine's.
#[derive(Clone, Debug, Default)]
pub(crate) struct World(Rc<Places>);

#[derive(Debug, Default)]
struct Places {
    names: RefCell<HashMap<String, Vec<IpAddr>>>,
    servers: RefCell<HashMap<SocketAddr, SocketAddr>>,
    own: RefCell<Vec<IpAddr>>,
    dialled: RefCell<Vec<SocketAddr>>,
    looked_up: RefCell<Vec<String>>,
}

/// Everything around one gate.
pub(crate) struct Lab {
    pub(crate) gate: Gate<MemoryRecorder>,
    pub(crate) record: MemoryRecorder,
    pub(crate) world: World,
    pub(crate) entrance: Entrance<MemoryRecorder, Named>,
    pub(crate) stop: Stop,
}

/// Says over the connection who was given it, and what came first.
#[derive(Debug)]
pub(crate) struct Named;

// === impl World ===

impl World {
    pub(crate) fn name(&self, name: &str, addresses: &[&str]) {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        self.0.names.borrow_mut().insert(name.to_owned(), addresses);
    }

    pub(crate) fn own(&self, address: &str) {
        self.0.own.borrow_mut().push(address.parse().unwrap());
    }

    /// A server that hands each of its connections to `serve`.
    pub(crate) async fn server<F: Future<Output = ()> + 'static>(
        &self,
        at: &str,
        serve: impl Fn(TcpStream) -> F + 'static,
    ) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.0.servers.borrow_mut().insert(at.parse().unwrap(), listener.local_addr().unwrap());
        spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                spawn_local(serve(stream));
            }
        });
    }

    /// A server that sends back what it gets, and says so first if it is asked to.
    pub(crate) async fn echo(&self, at: &str, banner: &'static str) {
        let serve = move |mut stream: TcpStream| async move {
            let _ = stream.write_all(banner.as_bytes()).await;
            let (mut from, mut to) = stream.split();
            let _ = tokio::io::copy(&mut from, &mut to).await;
            let _ = to.shutdown().await;
        };
        self.server(at, serve).await;
    }

    /// Every address that was dialled.
    pub(crate) fn dialled(&self) -> Vec<String> {
        self.0.dialled.borrow().iter().map(SocketAddr::to_string).collect()
    }

    pub(crate) fn dial_count(&self) -> usize {
        self.0.dialled.borrow().len()
    }

    /// The addresses after the first `count`.
    pub(crate) fn dialled_since(&self, count: usize) -> Vec<String> {
        self.0.dialled.borrow().iter().skip(count).map(SocketAddr::to_string).collect()
    }

    pub(crate) fn looked_up(&self) -> Vec<String> {
        self.0.looked_up.borrow().clone()
    }
}

impl Dialled for World {
    fn lookup<'a>(&'a self, name: &'a Name) -> Local<'a, Result<Vec<IpAddr>, DialError>> {
        self.0.looked_up.borrow_mut().push(name.to_string());
        let found = self.0.names.borrow().get(name.as_str()).cloned().ok_or(DialError::NoSuchName);
        Box::pin(async move { found })
    }

    fn connect(&self, to: SocketAddr) -> Local<'static, io::Result<TcpStream>> {
        self.0.dialled.borrow_mut().push(to);
        let server = self.0.servers.borrow().get(&to).copied();
        Box::pin(async move {
            match server {
                Some(server) => TcpStream::connect(server).await,
                None => Err(io::ErrorKind::ConnectionRefused.into()),
            }
        })
    }

    fn own_addresses(&self) -> io::Result<Vec<IpAddr>> {
        Ok(self.0.own.borrow().clone())
    }
}

// === impl Lab ===

impl Lab {
    /// Runs `test` around a gate with these rules.
    pub(crate) fn run(rules: &[&str], test: impl AsyncFnOnce(Self)) {
        Self::with(|egress| egress.rules = parsed(rules, Rule::parse), test);
    }

    /// The same, with the clause as `change` leaves it.
    pub(crate) fn with(change: impl FnOnce(&mut Egress), test: impl AsyncFnOnce(Self)) {
        let mut egress = Egress {
            reach: Reach::Rules,
            rules: Vec::new(),
            ranges: Vec::new(),
            resolutions: Vec::new(),
            ceilings: Vec::new(),
            upstream: None,
            authorities: Vec::new(),
        };
        change(&mut egress);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async {
            let (world, record, stop) = (World::default(), MemoryRecorder::default(), Stop::new());
            let dialler = Dialler::new(Box::new(world.clone()));
            let gate = Gate::new(Table::new(egress), record.clone(), dialler, stop.clone());
            let entrance = Entrance::new(gate.clone(), Rc::new(Named));
            let lab = Self { gate, record, world, entrance, stop };
            tokio::time::timeout(Duration::from_secs(120), test(lab)).await.expect("the test hangs");
        });
    }

    /// The addresses that the resolver inside would give.
    pub(crate) fn synthetic(&self, name: &str) -> Synthetic {
        self.gate.names().borrow_mut().give(&Name::parse(name).unwrap()).unwrap()
    }

    /// A connection to an address inside.
    pub(crate) async fn dial(&self, to: &str) -> TcpStream {
        let to: SocketAddr = to.parse().unwrap();
        self.accepted(move |entrance, stream| entrance.dialled(stream, to)).await
    }

    /// A connection to a name inside.
    pub(crate) async fn dial_name(&self, name: &str, port: u16) -> TcpStream {
        let address = self.synthetic(name).v4;
        self.dial(&format!("{address}:{port}")).await
    }

    /// A connection to the proxy inside.
    pub(crate) async fn proxy(&self) -> TcpStream {
        self.accepted(crate::proxy::serve).await
    }

    async fn accepted<F: Future<Output = ()> + 'static>(
        &self,
        serve: impl FnOnce(Entrance<MemoryRecorder, Named>, TcpStream) -> F,
    ) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        spawn_local(serve(self.entrance.clone(), stream));
        client
    }

    /// Every line about a refusal.
    pub(crate) fn denials(&self) -> Vec<EgressDenied> {
        let denied = |event| if let Event::EgressDenied(line) = event { Some(line) } else { None };
        self.record.events().into_iter().filter_map(denied).collect()
    }

    /// Reasons of what was refused, with where it wanted to go.
    pub(crate) fn denied(&self) -> Vec<(String, String)> {
        self.denials().into_iter().map(|line| (line.to, line.reason)).collect()
    }

    /// The words that stand for the lines so far: what, and of which number or place.
    pub(crate) fn story(&self) -> Vec<String> {
        let tell = |event: Event| {
            if let Event::EgressAllowed(line) = &event {
                return format!("{} allowed {} by {}", line.id, line.to, line.rule);
            }
            if let Event::EgressDenied(line) = &event {
                return format!("denied {} {}", line.to, line.reason);
            }
            if let Event::EgressEnded(line) = &event {
                let fault = line.fault.as_ref().map_or(String::new(), |fault| format!(" ({fault})"));
                return format!("{} ended {}/{}{fault}", line.id, line.bytes_out, line.bytes_in);
            }
            if let Event::EgressName(line) = &event {
                return format!("name {} {} {}", line.name, line.kind, line.answered);
            }
            panic!("{event:?} is no line of the gate")
        };
        self.record.events().into_iter().map(tell).collect()
    }

    /// Waits until the record has so many lines.
    pub(crate) async fn lines(&self, count: usize) -> Vec<String> {
        while self.record.lines().len() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.story()
    }
}

/// What a client gets until the end, and whether that was a reset.
pub(crate) async fn rest(stream: &mut TcpStream) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes).await {
        Ok(_) => (bytes, false),
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
            (bytes, true)
        }
    }
}

pub(crate) fn parsed<T, E: std::fmt::Debug>(texts: &[&str], parse: impl Fn(&str) -> Result<T, E>) -> Vec<T> {
    texts.iter().map(|text| parse(text).unwrap()).collect()
}

pub(crate) fn ceilings(texts: &[&str]) -> Vec<Ceiling> {
    parsed(texts, Ceiling::parse)
}

pub(crate) fn upstream(text: &str) -> Option<Upstream> {
    Some(Upstream::parse(text).unwrap())
}

// === impl Named ===

impl<W: Wall> Protocols<W> for Named {
    async fn tls(&self, _wall: W, mut inbound: Inbound, hello: ClientHello) {
        let name = hello.server_name.unwrap_or_default();
        let _ = inbound.stream.write_all(format!("tls {name}").as_bytes()).await;
    }

    async fn http(&self, _wall: W, inbound: Inbound) {
        let told = match &inbound.place {
            Some(place) => format!("http {}:{} {}", place.host, place.port(), inbound.via.name()),
            None => format!("http {}", inbound.via.name()),
        };
        let mut stream = crate::http::Prefixed::new(inbound.stream, inbound.first.into());
        let mut first = [0; 4];
        stream.read_exact(&mut first).await.unwrap();
        let told = format!("{told} {}", String::from_utf8_lossy(&first));
        let _ = stream.write_all(told.as_bytes()).await;
        let _ = stream.shutdown().await;
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    }
}
