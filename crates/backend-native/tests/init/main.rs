//! `init` as a plain program in a PID namespace, without any other wall, spoken to as the keeper does.

#![expect(clippy::wildcard_enum_match_arm, reason = "a test names the event that it waits for")]

#[cfg(test)]
mod dialling;
#[cfg(test)]
mod garbage;
#[cfg(test)]
mod guest;
#[cfg(test)]
mod reaping;
#[cfg(test)]
mod starting;
#[cfg(test)]
mod terminal;
#[cfg(test)]
mod wire;
