//! The other end of a sandbox's network, from inside and from outside, as root and as an ordinary user.

#![expect(clippy::wildcard_enum_match_arm, reason = "a test names the event that it waits for")]

#[cfg(test)]
mod guest;
#[cfg(test)]
mod holding;
#[cfg(test)]
mod reaching;
