//! The kernel facilities Fumehood stands on: one module per facility, and the only unsafe code.
//!
//! Every wrapper takes and returns owned or borrowed descriptors, never raw numbers, and reports
//! the kernel's own error. Nothing here decides anything.
//!
//! `launch` is special: its operations run in a child that shares our memory, between `clone3` and
//! `execve`. They allocate nothing, take no lock and call nothing but the kernel; that is why all
//! they need is prepared beforehand in a [`launch::Program`].

#![expect(
    clippy::cast_sign_loss,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "system call arguments are machine words: descriptors, flags and sizes are cast to and from them"
)]

pub mod bpf;
pub mod confine;
pub mod datagram;
pub mod dirfd;
mod entry;
pub mod host;
pub mod idmap;
pub mod inotify;
pub mod interfaces;
pub mod kvm;
pub mod landlock;
pub mod launch;
pub mod loopdev;
pub mod memfd;
pub mod metadata;
mod netlink;
pub mod notify;
pub mod observer;
pub mod poll;
pub mod process;
mod raw;
pub mod rights;
pub mod socket;
pub mod splice;
pub mod terminal;
