//! `guestd` as PID 1 of a namespace, over a socket, under a host of ours.

#![expect(clippy::wildcard_enum_match_arm, reason = "a test names the event that it waits for")]

#[cfg(test)]
mod dialling;
#[cfg(test)]
mod files;
#[cfg(test)]
mod guest;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod running;
#[cfg(test)]
mod streams;
