//! The built binary, as a user runs it and as an attacker meets it.
//!
//! Everything is judged from outside: a probe prints raw facts, and the host decides. What this
//! machine can not do (a second user, without root) is printed as not applicable, never passed over.

#![expect(clippy::wildcard_enum_match_arm, reason = "a verdict that is not held is handed on as it stands")]

#[cfg(test)]
mod both_callers;
#[cfg(test)]
mod broken;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod deputy;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod escape;
#[cfg(test)]
mod gate;
#[cfg(test)]
mod gvisor;
#[cfg(test)]
mod images;
#[cfg(test)]
mod lab;
#[cfg(test)]
mod living;
#[cfg(test)]
mod living_files;
#[cfg(test)]
mod living_levels;
#[cfg(test)]
mod machine;
#[cfg(test)]
mod microvm;
#[cfg(test)]
mod network;
#[cfg(test)]
mod priority;
#[cfg(test)]
mod process;
#[cfg(test)]
mod prove;
#[cfg(test)]
mod publish;
#[cfg(test)]
mod real_work;
#[cfg(test)]
mod record_sinks;
#[cfg(test)]
mod record_tamper;
#[cfg(test)]
mod record_truth;
#[cfg(test)]
mod replay;
#[cfg(test)]
mod residue;
#[cfg(test)]
mod seeing;
#[cfg(test)]
mod serve;
#[cfg(test)]
mod starved;
#[cfg(test)]
mod subjects;
#[cfg(test)]
mod templates;
#[cfg(test)]
#[cfg(feature = "wasm")]
mod wasm;
