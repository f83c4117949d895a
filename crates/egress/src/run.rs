//! The gate as a role: from its sockets to its end.

use crate::accept::{MOST_CONNECTIONS, MOST_NAME_CONNECTIONS, accept, accept_dialled};
use crate::dial::{Dialler, NoWorld, SystemLookup, SystemWorld, World};
use crate::dns::{serve_tcp, serve_udp};
use crate::entrance::Entrance;
use crate::gate::Gate;
use crate::http::Secrets;
use crate::inbound::Protocols;
use crate::observe::observe;
use crate::readers::Readers;
use crate::record::{Orders, Recorder, Renewed, SocketRecorder};
use crate::sockets::{Sockets, listener, own_address, redirected_address};
use crate::stop::{Stop, StopCause};
use crate::tape::Mode;
use crate::tls::{Ca, Servers};
use fumehood_model::egress::{Egress, Rules, Table};
use fumehood_vault::vault::Vault;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::{LocalSet, spawn_local};

/// What is still to be said at the end is said in this time, or not.
pub(crate) const LAST_WORDS: Duration = Duration::from_millis(700);

/// What the gate is to hold.
#[derive(Debug)]
pub struct Config {
    pub egress: Egress,
    /// The authority of this sandbox, where a rule opens TLS.
    pub ca: Option<Ca>,
    pub vault: Vault,
    /// What is believed of servers, beside the host's own authorities.
    pub servers: Servers,
    /// The host's own settings for names.
    pub resolv_conf: PathBuf,
    pub hosts: PathBuf,
    pub tape: Mode,
}

/// The gate could not begin.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("start the gate's runtime")]
    Runtime(#[source] io::Error),
    #[error("watch the gateway's sockets")]
    Sockets(#[source] io::Error),
    #[error("hand over what was fetched")]
    Outcome(#[source] io::Error),
}

// === impl Config ===

impl Config {
    /// With the files that every program of this host reads.
    pub fn new(egress: Egress, ca: Option<Ca>, vault: Vault, servers: Servers) -> Self {
        Self {
            egress,
            ca,
            vault,
            servers,
            resolv_conf: "/etc/resolv.conf".into(),
            hosts: "/etc/hosts".into(),
            tape: Mode::Off,
        }
    }
}

/// Is the gate, until the keeper at the other end of `record` says that the run is over, goes away, or
/// can not write the record. All connections end with it.
///
/// Preconditions: the caller has one thread and no other runtime.
pub fn run(config: Config, sockets: Sockets, record: OwnedFd) -> Result<(), RunError> {
    let Config { egress, ca, vault, servers, resolv_conf, hosts, tape } = config;
    let table = Table::new(egress).opening_all(tape.sees_all());
    let world: Box<dyn World> = if tape.plays() {
        Box::new(NoWorld)
    } else {
        Box::new(SystemWorld::new(SystemLookup::new(resolv_conf, hosts)))
    };
    let readers = Readers::new(servers, ca, vault, tape);
    let secrets = readers.secrets();
    run_with(table, world, (sockets, record), (readers, secrets))
}

/// Does what the keeper wants.
struct Obedient<C> {
    /// Not the gate itself, which holds the recorder that holds this.
    change: C,
    secrets: Rc<Secrets>,
    /// The clause as the sandbox was made with.
    made: Egress,
}

impl<C: Fn(Egress) -> bool> Orders for Obedient<C> {
    fn renewed(&self, secret: Renewed) {
        self.secrets.take_renewed(secret);
    }

    fn given(&self, secret: Renewed) {
        self.secrets.take_given(secret);
    }

    fn rules(&self, rules: &Rules) -> bool {
        rules.within(&self.made).is_ok_and(&self.change)
    }
}

/// The same, with others who read what the gate only passes on.
pub(crate) fn run_with<P: Protocols<Gate<SocketRecorder>>>(
    table: Table,
    world: Box<dyn World>,
    (sockets, record): (Sockets, OwnedFd),
    (protocols, secrets): (P, Rc<Secrets>),
) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(RunError::Runtime)?;
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let stop = Stop::new();
        let recorder = SocketRecorder::new(record, stop.clone()).map_err(RunError::Sockets)?;
        let dialler = Dialler::new(world);
        let made = table.egress().clone();
        let gate = Gate::new(table, recorder.clone(), dialler, stop.clone());
        recorder.obeyed_by(Obedient { change: gate.changer(), secrets, made });
        spawn_local(recorder.carry());
        serve(&gate, sockets, protocols).map_err(RunError::Sockets)?;
        match stop.stopped().await {
            StopCause::Asked => {
                // Whoever is late with the last is cut off without it.
                let _ = tokio::time::timeout(LAST_WORDS, gate.last_words()).await;
            }
            StopCause::Unrecorded => {}
        }
        Ok(())
    })
}

/// Puts every socket to work.
pub(crate) fn serve<R: Recorder, P: Protocols<Gate<R>>>(
    gate: &Gate<R>,
    sockets: Sockets,
    protocols: P,
) -> io::Result<()> {
    let Sockets { listeners, redirected, names_udp, names_tcp, proxy, observer } = sockets;
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let entrance = Entrance::new(gate.clone(), Rc::new(protocols));
    for socket in listeners {
        let listener = listener(socket)?;
        spawn_local(accept_dialled(listener, Arc::clone(&room), entrance.clone(), own_address));
    }
    if let Some(socket) = redirected {
        let listener = listener(socket)?;
        spawn_local(accept_dialled(listener, Arc::clone(&room), entrance.clone(), redirected_address));
    }
    spawn_local(accept(listener(proxy)?, room, {
        move |stream| crate::proxy::serve(entrance.clone(), stream)
    }));
    let name_room = Arc::new(Semaphore::new(MOST_NAME_CONNECTIONS));
    let names = gate.clone();
    spawn_local(accept(listener(names_tcp)?, name_room, move |stream| serve_tcp(names.clone(), stream)));
    spawn_local(fatal(gate.clone(), serve_udp(gate.clone(), names_udp)));
    if let Some(observer) = observer {
        spawn_local(fatal(gate.clone(), observe(gate.clone(), observer)));
    }
    let turns = gate.clone();
    spawn_local(async move { turns.journal().turns().await });
    Ok(())
}

/// What can not be seen can not be recorded: a socket that fails ends everything.
async fn fatal<R: Recorder>(gate: Gate<R>, work: impl Future<Output = io::Result<()>>) {
    if work.await.is_err() {
        gate.stop().stop(StopCause::Asked);
    }
}
