//! The porter: carries what comes to a published port between the host's loopback and a server inside. It is no
//! way out: the host's side connected first, and nothing is dialled here.

use crate::sockets::packets;
use crate::tunnel::{Direction, Fault, Pipes, pump};
use fumehood_sys::socket::{discard, receive};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::{LocalSet, spawn_local};

/// Carries pairs of connections (the host's first) that come through `pairs`, until that ends.
///
/// Preconditions: the caller has one thread and no other runtime.
///
/// # Errors
/// The runtime could not begin, or `pairs` failed.
pub fn carry(pairs: OwnedFd) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    LocalSet::new().block_on(&runtime, async {
        let pairs = packets(pairs)?;
        let pipes = Rc::new(Pipes::default());
        let mut tag = [0; 1];
        loop {
            let packet = pairs.async_io(Interest::READABLE, || receive(pairs.as_fd(), &mut tag)).await?;
            if packet.length == 0 {
                return Ok(());
            }
            let mut ends = packet.descriptors.into_iter();
            if let (Some(host), Some(guest)) = (ends.next(), ends.next()) {
                let pipes = Rc::clone(&pipes);
                spawn_local(async move {
                    // A connection that breaks is told to both ends by its end, and to nobody else.
                    let _ = join(&pipes, host, guest).await;
                });
            }
        }
    })
}

async fn join(pipes: &Pipes, host: OwnedFd, guest: OwnedFd) -> Result<(), Fault> {
    // The guest may hold the connection too, and change how it ends.
    let kept = guest.try_clone().map_err(Fault::Client)?;
    let (mut host, mut guest) = (stream(host)?, stream(guest)?);
    let (from_host, mut to_host) = host.split();
    let (from_guest, mut to_guest) = guest.split();
    let inward = pump(pipes, from_host.as_ref(), &mut to_guest, Direction::In, |_| Ok(()));
    let outward = pump(pipes, from_guest.as_ref(), &mut to_host, Direction::Out, |_| Ok(()));
    let ended = tokio::try_join!(inward, outward).map(drop);
    drop(guest);
    discard(kept);
    ended
}

fn stream(socket: OwnedFd) -> Result<TcpStream, Fault> {
    let stream = std::net::TcpStream::from(socket);
    stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)).map_err(Fault::Client)
}
