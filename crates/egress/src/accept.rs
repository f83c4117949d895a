//! Connections taken, each a task of its own.

use crate::entrance::{Entrance, reset};
use crate::gate::Gate;
use crate::inbound::Protocols;
use crate::record::Recorder;
use crate::sockets::DialledAddress;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::spawn_local;

/// Connections at the same time, whatever the ceilings say: each needs up to four descriptors.
pub(crate) const MOST_CONNECTIONS: usize = 8192;
/// Connections at the same time that ask for names.
pub(crate) const MOST_NAME_CONNECTIONS: usize = 64;
/// Where no descriptor is free, one will be.
const PAUSE: Duration = Duration::from_millis(20);

/// Takes connections for ever, as many at a time as there is room.
pub(crate) async fn accept<F: Future<Output = ()> + 'static>(
    listener: TcpListener,
    room: Arc<Semaphore>,
    serve: impl Fn(TcpStream) -> F,
) {
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                // Delay is the network's to make.
                let _ = stream.set_nodelay(true);
                let served = serve(stream);
                spawn_local(async move {
                    served.await;
                    drop(place);
                });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Takes connections that were dialled as if nothing were in between.
pub(crate) async fn accept_dialled<R: Recorder, P: Protocols<Gate<R>>>(
    listener: TcpListener,
    room: Arc<Semaphore>,
    entrance: Entrance<R, P>,
    address: DialledAddress,
) {
    let serve = |stream: TcpStream| {
        let entrance = entrance.clone();
        async move {
            match address(&stream) {
                Ok(to) => entrance.dialled(stream, to).await,
                // It ended before it could be asked.
                Err(_) => reset(&stream),
            }
        }
    };
    accept(listener, room, serve).await;
}
