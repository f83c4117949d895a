//! The stream between a keeper and a guest that has a kernel of its own, and both of its ends.
//!
//! [`frame`] is what they say, [`entry`] is how files travel. Outside, a [`session::Session`] keeps the
//! rules and touches no descriptor; a [`host::Host`] carries between it, the stream, and what commands read
//! and write; a [`GuestInstance`] is that as a backend's instance, for which a level brings its
//! [`instance::Machine`]. Inside, `guestd` ([`image`]) does what is asked.
//!
//! **Invariant:** whatever comes from the guest, nothing here panics, waits, or keeps more than the windows
//! of the channels that were opened from outside.
//! **Invariant:** what is not of the protocol, or comes when it may not, ends the guest, with a cause.

#[path = "../wire/bytes.rs"]
mod bytes;
#[path = "../wire/entry.rs"]
pub mod entry;
#[path = "../wire/frame.rs"]
pub mod frame;
pub mod host;
pub mod image;
pub mod instance;
mod refused;
#[path = "../wire/report.rs"]
mod report;
pub mod session;

pub use instance::GuestInstance;

impl frame::Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
