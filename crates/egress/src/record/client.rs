//! The gate's end of the socket to the keeper.

use super::{Durability, Frame, MOST_FRAME_BYTES, Recorder, Renewed, Reply, Unrecorded};
use crate::sockets::packets;
use crate::stop::{Stop, StopCause};
use fumehood_model::event::Event;
use fumehood_sys::socket;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::{Notify, oneshot};
use zeroize::Zeroizing;

/// Room for the braces and numbers of a frame.
const FRAME_OVERHEAD_BYTES: usize = 256;

/// A recorder that asks the keeper. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SocketRecorder(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    socket: UdpSocket,
    queue: RefCell<VecDeque<Waiting>>,
    queued: Notify,
    stop: Stop,
    renew: Renew,
}

/// Who takes newer values of secrets.
struct Renew(Box<dyn Fn(Renewed)>);

impl fmt::Debug for Renew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Renew")
    }
}

/// Events that are not written yet, and who waits for them.
#[derive(Debug)]
struct Waiting {
    events: Vec<Event>,
    size_bytes: usize,
    durability: Durability,
    done: oneshot::Sender<()>,
}

// === impl SocketRecorder ===

impl SocketRecorder {
    /// Takes over one end of `fumehood_sys::socket::pair`. Needs a runtime; [`Self::carry`] has to run.
    ///
    /// # Errors
    /// The runtime can not watch the descriptor.
    pub fn new(socket: OwnedFd, stop: Stop, renew: impl Fn(Renewed) + 'static) -> io::Result<Self> {
        let socket = packets(socket)?;
        let renew = Renew(Box::new(renew));
        Ok(Self(Rc::new(Shared { socket, queue: RefCell::default(), queued: Notify::new(), stop, renew })))
    }

    /// Carries frames and replies until the keeper is gone or fails. Then everything stops, and
    /// whoever waits learns that nothing was written.
    pub async fn carry(self) {
        let shared = &*self.0;
        if shared.carry().await.is_err() {
            shared.stop.stop(StopCause::Unrecorded);
        }
        // Dropping the senders is the answer to those who wait.
        shared.queue.borrow_mut().clear();
    }
}

impl Recorder for SocketRecorder {
    async fn write(&self, events: Vec<Event>, durability: Durability) -> Result<(), Unrecorded> {
        if self.0.stop.cause() == Some(StopCause::Unrecorded) {
            return Err(Unrecorded);
        }
        let size_bytes = serde_json::to_vec(&events).map_err(|_| Unrecorded)?.len();
        if size_bytes > MOST_FRAME_BYTES - FRAME_OVERHEAD_BYTES {
            // The fields of an event are cut where it is made; this can only be a flaw of ours.
            self.0.stop.stop(StopCause::Unrecorded);
            return Err(Unrecorded);
        }
        let (done, written) = oneshot::channel();
        self.0.queue.borrow_mut().push_back(Waiting { events, size_bytes, durability, done });
        self.0.queued.notify_one();
        written.await.map_err(|_| Unrecorded)
    }
}

// === impl Shared ===

impl Shared {
    async fn carry(&self) -> Result<(), Unrecorded> {
        let mut id = 0;
        let mut buffer = Zeroizing::new(vec![0; MOST_FRAME_BYTES]);
        loop {
            let Some((frame, waiting)) = self.next_frame(id + 1) else {
                tokio::select! {
                    () = self.queued.notified() => {}
                    reply = self.receive(&mut buffer) => match reply? {
                        Reply::Stop => self.stop.stop(StopCause::Asked),
                        Reply::Renewed(renewed) => self.renew.0(renewed),
                        Reply::Written { .. } | Reply::Failed { .. } => return Err(Unrecorded),
                    },
                }
                continue;
            };
            id += 1;
            self.send(&frame).await?;
            loop {
                match self.receive(&mut buffer).await? {
                    Reply::Written { id: written } if written == id => break,
                    Reply::Stop => self.stop.stop(StopCause::Asked),
                    Reply::Renewed(renewed) => self.renew.0(renewed),
                    Reply::Written { .. } | Reply::Failed { .. } => return Err(Unrecorded),
                }
            }
            for done in waiting {
                // Whoever has given up waiting does nothing, which is fine.
                let _ = done.send(());
            }
        }
    }

    /// As much of the queue as fits one packet.
    fn next_frame(&self, id: u64) -> Option<(Vec<u8>, Vec<oneshot::Sender<()>>)> {
        let mut queue = self.queue.borrow_mut();
        let mut frame = Frame { id, synced: false, events: Vec::new() };
        let mut waiting = Vec::new();
        let mut room = MOST_FRAME_BYTES - FRAME_OVERHEAD_BYTES;
        while let Some(next) = queue.pop_front_if(|next| next.size_bytes <= room) {
            room -= next.size_bytes;
            frame.synced |= next.durability == Durability::Synced;
            frame.events.extend(next.events);
            waiting.push(next.done);
        }
        if waiting.is_empty() {
            return None;
        }
        // What was written out once before can be written out again.
        serde_json::to_vec(&frame).ok().map(|bytes| (bytes, waiting))
    }

    async fn send(&self, bytes: &[u8]) -> Result<(), Unrecorded> {
        let send = || socket::send(self.socket.as_fd(), bytes, &[]);
        self.socket.async_io(Interest::WRITABLE, send).await.map_err(|_| Unrecorded)
    }

    async fn receive(&self, buffer: &mut [u8]) -> Result<Reply, Unrecorded> {
        let receive = || socket::receive(self.socket.as_fd(), buffer);
        let packet = self.socket.async_io(Interest::READABLE, receive).await.map_err(|_| Unrecorded)?;
        let bytes = buffer.get(..packet.length).ok_or(Unrecorded)?;
        // The empty packet of a keeper that is gone is no reply either.
        serde_json::from_slice(bytes).map_err(|_| Unrecorded)
    }
}
