//! The descriptors of channels: what is read for the guest, and where what it sends is written.

use crate::frame::{ERROR, OUTPUT, PAYLOAD_BYTES};
use crate::session::Session;
use fumehood_sys::poll::{Interest, Watch};
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

/// What belongs to one channel here.
#[derive(Debug, Default)]
pub(super) struct Ends {
    pub(super) what: What,
    pub(super) input: Option<End>,
    pub(super) outputs: [Option<End>; 2],
    /// The caller's end, until the guest has answered.
    pub(super) theirs: Option<OwnedFd>,
    /// Its end was said.
    pub(super) ended: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum What {
    #[default]
    Command,
    Tunnel,
}

/// One descriptor, as it is watched.
#[derive(Debug)]
pub(super) struct End {
    pub(super) file: File,
    pub(super) key: u64,
    pub(super) socket: bool,
    pub(super) watched: Option<Interest>,
}

// === impl Ends ===

impl Ends {
    /// Writes what came, as far as it is taken.
    pub(super) fn push_outputs(&mut self, channel: u32, session: &mut Session, watch: &Watch) {
        for (place, stream) in [OUTPUT, ERROR].into_iter().enumerate() {
            let Some(slot) = self.outputs.get_mut(place) else { continue };
            while let Some(end) = slot {
                let bytes = session.output(channel, stream);
                if bytes.is_empty() {
                    break;
                }
                match end.file.write(bytes) {
                    Ok(count) => session.took(channel, stream, count),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => {
                        drop_end(watch, slot);
                        match self.what {
                            What::Command => session.close(channel, stream),
                            What::Tunnel => session.release(channel),
                        }
                    }
                }
            }
            if session.is_over(channel, stream)
                && let Some(end) = slot
            {
                end.shut_down();
                drop_end(watch, slot);
            }
        }
    }

    /// Reads what may be sent inward.
    pub(super) fn pull_input(&mut self, channel: u32, session: &mut Session, watch: &Watch) {
        let mut buffer = [0; PAYLOAD_BYTES];
        while let Some(end) = &mut self.input {
            // A terminal or a connection that the guest has not answered for carries nothing yet.
            if self.theirs.is_some() {
                return;
            }
            let Some(most) = session.may_send(channel) else { return drop_end(watch, &mut self.input) };
            let Some(room) = buffer.get_mut(..most).filter(|room| !room.is_empty()) else { return };
            match end.file.read(room) {
                Ok(0) => {
                    drop_end(watch, &mut self.input);
                    session.end_input(channel);
                }
                Ok(count) => session.input(channel, room.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    drop_end(watch, &mut self.input);
                    match self.what {
                        What::Command => session.end_input(channel),
                        What::Tunnel => session.release(channel),
                    }
                }
            }
        }
    }

    pub(super) fn drop_all(&mut self, watch: &Watch) {
        let [output, error] = &mut self.outputs;
        for slot in [&mut self.input, output, error] {
            drop_end(watch, slot);
        }
    }
}

pub(super) fn drop_end(watch: &Watch, slot: &mut Option<End>) {
    if let Some(mut end) = slot.take() {
        end.watch(watch, None);
    }
}

// === impl End ===

impl End {
    pub(super) fn watch(&mut self, watch: &Watch, wanted: Option<Interest>) {
        let file = self.file.as_fd();
        let done = match (self.watched, wanted) {
            (None, Some(interest)) => watch.add(file, self.key, interest),
            (Some(_), None) => watch.remove(file),
            (Some(before), Some(now)) if before != now => watch.change(file, self.key, now),
            (Some(_), Some(_)) | (None, None) => Ok(()),
        };
        // What can not be watched (a file that is always ready) is tried at each turn instead.
        self.watched = done.map_or(None, |()| wanted);
    }

    /// Tells the other side of a connection that no more comes.
    pub(super) fn shut_down(&self) {
        if self.socket
            && let Ok(second) = self.file.as_fd().try_clone_to_owned()
        {
            let _ = UnixStream::from(second).shutdown(Shutdown::Write);
        }
    }
}
