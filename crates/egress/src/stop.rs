//! The end of everything, told to everyone.

use std::future::Future;
use tokio::sync::watch;

/// Why the gate ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// The run is over.
    Asked,
    /// The record can not be written any more: not another byte.
    Unrecorded,
}

/// Set once, seen by all clones. A worse cause takes the place of a better one.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<Option<StopCause>>);

// === impl Stop ===

impl Stop {
    pub fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    pub fn stop(&self, cause: StopCause) {
        self.0.send_if_modified(|known| {
            let worse = *known != Some(StopCause::Unrecorded) && *known != Some(cause);
            if worse {
                *known = Some(cause);
            }
            worse
        });
    }

    pub fn cause(&self) -> Option<StopCause> {
        *self.0.borrow()
    }

    /// Waits until everything has to end.
    pub fn stopped(&self) -> impl Future<Output = StopCause> + use<> {
        let sender = self.0.clone();
        async move {
            let mut seen = sender.subscribe();
            // This future holds a sender, so the channel does not close.
            match seen.wait_for(Option::is_some).await.map(|cause| *cause) {
                Ok(Some(cause)) => cause,
                Ok(None) | Err(_) => StopCause::Unrecorded,
            }
        }
    }
}

impl Default for Stop {
    fn default() -> Self {
        Self::new()
    }
}
