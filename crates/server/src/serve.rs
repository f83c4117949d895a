//! Listens: on the daemon's own socket, on the kill switch's, and on addresses that were named.
//!
//! **Invariant:** a client that is slow, silent or one of too many holds nothing that another needs.

use crate::config::Config;
use crate::door::Peer;
use crate::engine::{Engine, folder};
use crate::error::{ApiError, Code};
use crate::{http, log, tls};
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::fs::{self, File, Permissions};
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;

/// A request's head is whole by then, counted from the end of the request before. Clients keep a connection that lies
/// idle for 300 s, and send a request over one that has been closed meanwhile: it is theirs to close.
const HEAD: Duration = Duration::from_secs(330);
/// A connection of HTTP/2 is asked for a sign of life so often.
const PING: Duration = Duration::from_secs(60);
/// The first bytes of a connection are here by then.
const FIRST: Duration = Duration::from_secs(10);
/// Connections over TCP at once; more are closed at once.
const MOST_CONNECTIONS: usize = 4096;
/// Requests of one connection at once.
const MOST_STREAMS: u32 = 256;
/// How long requests under way may take when the daemon ends.
const LAST: Duration = Duration::from_secs(5);
/// The longest path that fits a socket address, with its end.
const ADDRESS_BYTES: usize = 107;
/// What a connection of HTTP/2 begins with.
const HTTP2: &[u8] = b"PRI";

/// The daemon's own socket in a state folder.
#[must_use]
pub fn socket(state: &Path) -> PathBuf {
    folder(state).join("api.sock")
}

/// The kill switch's own socket in a state folder.
#[must_use]
pub fn halt_socket(state: &Path) -> PathBuf {
    folder(state).join("halt.sock")
}

/// Runs the daemon until it is told to end.
///
/// # Errors
/// The folder is another daemon's, the registry can not be trusted, or an address can not be listened at.
pub fn run(config: Config, listen: &[SocketAddr]) -> Result<(), ApiError> {
    raise_limits();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| ApiError::plain(Code::Internal, "start the daemon", error.to_string()))?;
    let done = runtime.block_on(serve(config, listen));
    runtime.shutdown_timeout(Duration::from_secs(1));
    done
}

async fn serve(config: Config, listen: &[SocketAddr]) -> Result<(), ApiError> {
    let state = config.state.clone();
    let tls = config.tls.as_ref().map(tls::acceptor).transpose()?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let engine = Engine::open(config).await?;
    let (end, ended) = watch::channel(false);
    let router = http::router(engine.clone());
    start_kill_switch(&engine, &halt_socket(&state))?;
    let own = bind(&socket(&state))?;
    tokio::spawn(accept_local(own, router.clone(), ended.clone()));
    log::info("serve", &format!("listens at {}", socket(&state).display()));
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    for address in listen {
        let failed = |error: std::io::Error| not_listening(&address.to_string(), &error);
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let at = listener.local_addr().map_err(failed)?;
        log::info("serve", &format!("listens at {scheme}://{at}"));
        let greeter = Greeter { router: router.clone(), tls: tls.clone() };
        tokio::spawn(accept(listener, greeter, ended.clone(), Arc::clone(&places)));
    }
    wait_for_end().await?;
    log::info("serve", "ends; sandboxes live on");
    let _ = end.send(true);
    drop(router);
    drop(ended);
    let _ = tokio::time::timeout(LAST, end.closed()).await;
    engine.close().await;
    for path in [socket(&state), halt_socket(&state)] {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

async fn wait_for_end() -> Result<(), ApiError> {
    let failed = |error: std::io::Error| ApiError::plain(Code::Internal, "hear signals", error.to_string());
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// The kill switch has a thread and a runtime of its own: a daemon that is busy, or stuck, still halts.
fn start_kill_switch(engine: &Engine, path: &Path) -> Result<(), ApiError> {
    let failed = |error: std::io::Error| not_listening(&path.display().to_string(), &error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let listener = {
        let _inside = runtime.enter();
        bind(path)?
    };
    let router = http::kill_switch(engine.clone());
    std::thread::Builder::new()
        .name("halt".to_owned())
        .spawn(move || {
            let (_end, ended) = watch::channel(false);
            runtime.block_on(accept_local(listener, router, ended));
        })
        .map_err(failed)?;
    Ok(())
}

/// Listens at a path in a folder that is ours alone. What a dead daemon left there is removed: the registry's lock
/// says that it is dead.
fn bind(path: &Path) -> Result<UnixListener, ApiError> {
    let failed = |error: std::io::Error| not_listening(&path.display().to_string(), &error);
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        Ok(()) | Err(_) => {}
    }
    let listener = if path.as_os_str().len() <= ADDRESS_BYTES {
        UnixListener::bind(path).map_err(failed)?
    } else {
        let folder = path.parent().unwrap_or(Path::new("."));
        let handle = File::open(folder).map_err(failed)?;
        let name = path.file_name().unwrap_or_default();
        UnixListener::bind(Path::new("/proc/self/fd").join(handle.as_raw_fd().to_string()).join(name))
            .map_err(failed)?
    };
    fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

async fn accept_local(listener: UnixListener, router: Router, mut ended: watch::Receiver<bool>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = ended.changed() => return,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Ok(credentials) = stream.peer_cred() else { continue };
        let peer = Peer::Local { uid: credentials.uid() };
        tokio::spawn(converse(stream, peer, router.clone(), ended.clone(), false));
    }
}

/// What meets a new connection.
#[derive(Clone)]
struct Greeter {
    router: Router,
    tls: Option<TlsAcceptor>,
}

async fn accept(
    listener: TcpListener,
    greeter: Greeter,
    mut ended: watch::Receiver<bool>,
    places: Arc<Semaphore>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = ended.changed() => return,
        };
        let Ok((stream, address)) = accepted else {
            // Out of descriptors, most likely: those who are here go first.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
        tokio::spawn(greet(stream, address, greeter.clone(), ended.clone(), place));
    }
}

async fn greet(
    stream: TcpStream,
    address: SocketAddr,
    Greeter { router, tls }: Greeter,
    ended: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
) {
    let _ = stream.set_nodelay(true);
    if let Some(tls) = tls {
        // Who speaks no TLS, or none of ours, is closed; a handshake takes no longer than first bytes may.
        if let Ok(Ok(stream)) = tokio::time::timeout(FIRST, tls.accept(stream)).await {
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            converse(stream, Peer::Tcp(address), router, ended, is_http2).await;
        }
        return;
    }
    if let Ok(Some(is_http2)) = tokio::time::timeout(FIRST, first_bytes(&stream)).await {
        converse(stream, Peer::Tcp(address), router, ended, is_http2).await;
    }
}

/// Whether a connection begins as one of HTTP/2 does; `None` where it ends before it begins.
async fn first_bytes(stream: &TcpStream) -> Option<bool> {
    let mut bytes = [0; HTTP2.len()];
    loop {
        let count = stream.peek(&mut bytes).await.ok()?;
        let seen = bytes.get(..count)?;
        if seen.is_empty() {
            return None;
        }
        if !HTTP2.starts_with(seen) {
            return Some(false);
        }
        if count == HTTP2.len() {
            return Some(true);
        }
        // What is there stays there, so waiting for it to be readable would not wait.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    peer: Peer,
    router: Router,
    mut ended: watch::Receiver<bool>,
    is_http2: bool,
) {
    let service = TowerToHyperService::new(router.layer(axum::Extension(peer)));
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(64 << 10);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MOST_STREAMS)
        .keep_alive_interval(Some(PING))
        .keep_alive_timeout(FIRST)
        .max_header_list_size(64 << 10);
    let builder = if is_http2 { builder.http2_only() } else { builder.http1_only() };
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = ended.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// A daemon of thousands of sandboxes has more descriptors open than a shell is given.
fn raise_limits() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

fn not_listening(at: &str, error: &std::io::Error) -> ApiError {
    ApiError::new(
        Code::Internal,
        format!("listen at `{at}`"),
        error.to_string(),
        "name another address with `--listen`, or end the program that has this one",
    )
}
