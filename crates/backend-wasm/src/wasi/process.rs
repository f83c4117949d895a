//! Arguments, environment, clocks, randomness, and the end.

#![expect(clippy::too_many_arguments, reason = "the signatures are WASI's own")]

use super::Call;
use super::errno::Errno;
use super::memory::Memory;
use rustix::time::{ClockId, Timespec};
use std::fmt;

/// The module has ended by itself, with this code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit(pub(crate) u32);

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exited with {}", self.0)
    }
}

impl std::error::Error for Exit {}

pub(super) fn arguments(call: &mut Call<'_>, list: u32, bytes: u32) -> Result<(), Errno> {
    strings(&mut call.memory, &call.host.arguments, list, bytes)
}

pub(super) fn arguments_sizes(call: &mut Call<'_>, count: u32, bytes: u32) -> Result<(), Errno> {
    sizes(&mut call.memory, &call.host.arguments, count, bytes)
}

pub(super) fn environment(call: &mut Call<'_>, list: u32, bytes: u32) -> Result<(), Errno> {
    strings(&mut call.memory, &call.host.environment, list, bytes)
}

pub(super) fn environment_sizes(call: &mut Call<'_>, count: u32, bytes: u32) -> Result<(), Errno> {
    sizes(&mut call.memory, &call.host.environment, count, bytes)
}

/// A list of addresses, and the strings that they lead to, each ended by a zero.
fn strings(memory: &mut Memory<'_>, strings: &[Vec<u8>], mut list: u32, mut at: u32) -> Result<(), Errno> {
    for string in strings {
        memory.write_u32(list, at)?;
        memory.write(at, string)?;
        let end = u32::try_from(string.len()).ok().and_then(|length| at.checked_add(length));
        let end = end.ok_or(Errno::OVERFLOW)?;
        memory.write(end, &[0])?;
        at = end.checked_add(1).ok_or(Errno::OVERFLOW)?;
        list = list.checked_add(4).ok_or(Errno::OVERFLOW)?;
    }
    Ok(())
}

fn sizes(memory: &mut Memory<'_>, strings: &[Vec<u8>], count: u32, bytes: u32) -> Result<(), Errno> {
    memory.write_size(count, strings.len())?;
    memory.write_size(bytes, strings.iter().map(|string| string.len() + 1).sum())
}

/// The kernel's clock for a number of the module's.
pub(super) const fn clock(id: u32) -> Result<ClockId, Errno> {
    match id {
        0 => Ok(ClockId::Realtime),
        1 => Ok(ClockId::Monotonic),
        2 => Ok(ClockId::ProcessCPUTime),
        3 => Ok(ClockId::ThreadCPUTime),
        _ => Err(Errno::INVAL),
    }
}

pub(super) fn nanos(time: Timespec) -> u64 {
    let whole = u64::try_from(time.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000);
    whole.saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

pub(super) fn clock_resolution(call: &mut Call<'_>, id: u32, to: u32) -> Result<(), Errno> {
    call.memory.write_u64(to, nanos(rustix::time::clock_getres(clock(id)?)))
}

pub(super) fn clock_time(call: &mut Call<'_>, id: u32, _precision: u64, to: u32) -> Result<(), Errno> {
    call.memory.write_u64(to, nanos(rustix::time::clock_gettime(clock(id)?)))
}

pub(super) fn random(call: &mut Call<'_>, at: u32, length: u32) -> Result<(), Errno> {
    let mut rest = call.memory.slice_mut(at, length)?;
    while !rest.is_empty() {
        let filled = rustix::rand::getrandom(&mut *rest, rustix::rand::GetRandomFlags::empty())?;
        rest = rest.get_mut(filled..).ok_or(Errno::IO)?;
    }
    Ok(())
}

pub(super) fn give_way(_call: &mut Call<'_>) -> Result<(), Errno> {
    std::thread::yield_now();
    Ok(())
}

/// There is no other process to be told anything; a module that would end itself has `proc_exit`.
pub(super) fn raise(_call: &mut Call<'_>, _signal: u32) -> Result<(), Errno> {
    Err(Errno::NOSYS)
}

pub(super) fn no_accept(call: &mut Call<'_>, fd: u32, _flags: u32, _to: u32) -> Result<(), Errno> {
    no_socket(call, fd)
}

pub(super) fn no_receive(
    call: &mut Call<'_>,
    fd: u32,
    _list: u32,
    _count: u32,
    _flags: u32,
    _read: u32,
    _to: u32,
) -> Result<(), Errno> {
    no_socket(call, fd)
}

pub(super) fn no_send(
    call: &mut Call<'_>,
    fd: u32,
    _list: u32,
    _count: u32,
    _flags: u32,
    _to: u32,
) -> Result<(), Errno> {
    no_socket(call, fd)
}

pub(super) fn no_shutdown(call: &mut Call<'_>, fd: u32, _how: u32) -> Result<(), Errno> {
    no_socket(call, fd)
}

/// No descriptor of a module is a socket.
fn no_socket(call: &Call<'_>, fd: u32) -> Result<(), Errno> {
    call.host.table.get(fd)?;
    Err(Errno::NOTSOCK)
}
