//! The gate's end of the socket to the keeper.

use super::{Durability, Frame, MOST_FRAME_BYTES, Orders, Recorder, Reply, Unrecorded};
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
    taker: Taker,
    /// Of rules that are not whole yet.
    text: RefCell<String>,
}

/// Who takes orders; nobody at first.
#[derive(Default)]
struct Taker(RefCell<Option<Rc<dyn Orders>>>);

impl fmt::Debug for Taker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Taker")
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
    pub fn new(socket: OwnedFd, stop: Stop) -> io::Result<Self> {
        let socket = packets(socket)?;
        let (queue, queued) = (RefCell::default(), Notify::new());
        let (taker, text) = (Taker::default(), RefCell::default());
        Ok(Self(Rc::new(Shared { socket, queue, queued, stop, taker, text })))
    }

    /// Says who takes the keeper's orders. To be said before [`Self::carry`] runs.
    pub(crate) fn obeyed_by(&self, taker: impl Orders + 'static) {
        *self.0.taker.0.borrow_mut() = Some(Rc::new(taker));
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
                        Reply::Written { .. } | Reply::Failed { .. } => return Err(Unrecorded),
                        order @ (Reply::Stop
                        | Reply::Renewed(_)
                        | Reply::Given(_)
                        | Reply::Rules { .. }) => self.obey(order).await?,
                    },
                }
                continue;
            };
            id += 1;
            self.send(&frame).await?;
            loop {
                match self.receive(&mut buffer).await? {
                    Reply::Written { id: written } if written == id => break,
                    Reply::Written { .. } | Reply::Failed { .. } => return Err(Unrecorded),
                    order @ (Reply::Stop | Reply::Renewed(_) | Reply::Given(_) | Reply::Rules { .. }) => {
                        self.obey(order).await?;
                    }
                }
            }
            for done in waiting {
                // Whoever has given up waiting does nothing, which is fine.
                let _ = done.send(());
            }
        }
    }

    /// Does what is not an answer. Rules that can not be read are the end: what should hold is not known.
    async fn obey(&self, order: Reply) -> Result<(), Unrecorded> {
        let taker = self.taker.0.borrow().clone();
        match order {
            Reply::Stop => self.stop.stop(StopCause::Asked),
            Reply::Renewed(secret) => taker.iter().for_each(|taker| taker.renewed(secret.clone())),
            Reply::Given(secret) => taker.iter().for_each(|taker| taker.given(secret.clone())),
            Reply::Rules { change, text, more } => {
                self.text.borrow_mut().push_str(&text);
                if more {
                    return Ok(());
                }
                let whole = std::mem::take(&mut *self.text.borrow_mut());
                let rules = serde_json::from_str(&whole).map_err(|_| Unrecorded)?;
                if !taker.is_some_and(|taker| taker.rules(&rules)) {
                    return Err(Unrecorded);
                }
                let frame = Frame { id: 0, synced: false, events: Vec::new(), applied: Some(change) };
                self.send(&serde_json::to_vec(&frame).map_err(|_| Unrecorded)?).await?;
            }
            Reply::Written { .. } | Reply::Failed { .. } => return Err(Unrecorded),
        }
        Ok(())
    }

    /// As much of the queue as fits one packet.
    fn next_frame(&self, id: u64) -> Option<(Vec<u8>, Vec<oneshot::Sender<()>>)> {
        let mut queue = self.queue.borrow_mut();
        let mut frame = Frame { id, synced: false, events: Vec::new(), applied: None };
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
