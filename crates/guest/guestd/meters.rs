//! What the guest's own kernel counts.

use crate::file;
use crate::frame::Metered;

/// Enough for the lines that are looked for; some of these files go on for long.
const ROOM_BYTES: usize = 16 * 1024;
/// The unit of times in `/proc` is a hundredth of a second.
const TICK_MS: u64 = 10;

/// What can be read now. What can not is zero.
pub(crate) fn read() -> Metered {
    let mut room = [0; ROOM_BYTES];
    let (total, free) = match file::small(b"/proc/meminfo\0", &mut room) {
        Ok(text) => (field(text, b"MemTotal:"), field(text, b"MemAvailable:")),
        Err(_) => (0, 0),
    };
    let oom_kills = file::small(b"/proc/vmstat\0", &mut room).map_or(0, |text| field(text, b"oom_kill "));
    let cpu_ms = file::small(b"/proc/stat\0", &mut room).map_or(0, |text| {
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        // user, nice, system; the fourth is idle.
        line.split(|byte| *byte == b' ').filter_map(number).take(3).sum::<u64>() * TICK_MS
    });
    let processes = file::small(b"/proc/loadavg\0", &mut room).map_or(0, |text| {
        let counts = text.split(|byte| *byte == b' ').nth(3).unwrap_or_default();
        counts.split(|byte| *byte == b'/').nth(1).and_then(number).unwrap_or(0)
    });
    Metered { memory_bytes: total.saturating_sub(free) * 1024, cpu_ms, oom_kills, processes }
}

/// The number behind a word at the beginning of a line.
fn field(text: &[u8], name: &[u8]) -> u64 {
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split(|byte| *byte == b' ').find_map(number)).unwrap_or(0)
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |sum, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    })
}
