//! Before the guest is frozen, and after it goes on.

use crate::call::{Errno, address, plain, raw, word};
use crate::file;
use crate::frame::SEED_BYTES;

/// Writes out what is buffered. This program says nothing after its answer until it is spoken to, so that no
/// frame is cut by the freeze.
pub(crate) fn prepare() -> Result<(), Errno> {
    // sync.
    plain(162, [0; 6]).map(drop)
}

/// Gives the kernel new randomness, and the clock of the world outside. Both or an error: a copy that draws
/// the same numbers as another must not go on.
pub(crate) fn thaw(unix_ns: u64, seed: &[u8; SEED_BYTES]) -> Result<(), Errno> {
    reseed(seed)?;
    let time = [unix_ns / 1_000_000_000, unix_ns % 1_000_000_000];
    // clock_settime of CLOCK_REALTIME.
    // SAFETY: `time` is the two numbers that the kernel reads.
    unsafe { raw(227, [0, address(time.as_ptr()), 0, 0, 0, 0]) }.map(drop)
}

/// `struct rand_pool_info`.
#[repr(C)]
struct Pool {
    bits: i32,
    bytes: i32,
    seed: [u8; SEED_BYTES],
}

fn reseed(seed: &[u8; SEED_BYTES]) -> Result<(), Errno> {
    const RNDADDENTROPY: u64 = 0x4008_5203;
    const RNDRESEEDCRNG: u64 = 0x5207;
    let device = file::open(None, b"/dev/urandom\0", file::O_RDWR)?;
    let pool = Pool { bits: (SEED_BYTES * 8) as i32, bytes: SEED_BYTES as i32, seed: *seed };
    let words = [word(device.number()), RNDADDENTROPY, address(&raw const pool), 0, 0, 0];
    // SAFETY: `pool` is laid out as the kernel reads it.
    unsafe { raw(16, words) }?;
    // Without it the kernel would use what it has until it thinks of it.
    plain(16, [word(device.number()), RNDRESEEDCRNG, 0, 0, 0, 0]).map(drop)
}
