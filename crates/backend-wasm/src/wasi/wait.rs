//! Waiting for clocks and descriptors.

use super::Call;
use super::errno::Errno;
use super::process::{clock, nanos};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::time::Duration;

const SUBSCRIPTION_BYTES: u32 = 48;
/// More than any event loop needs.
const MOST: u32 = 4096;
const CLOCK: u8 = 0;
const READ: u8 = 1;
const WRITE: u8 = 2;

/// One thing that is waited for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    userdata: [u8; 8],
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// That much time.
    Time(Duration),
    Read(u32),
    Write(u32),
    /// It can not be waited for; that is an answer at once.
    Wrong(u8, Errno),
}

pub(super) fn poll(call: &mut Call<'_>, asked: u32, answers: u32, count: u32, to: u32) -> Result<(), Errno> {
    if count == 0 || count > MOST {
        return Err(Errno::INVAL);
    }
    let all: Vec<Asked> = (0..count)
        .map(|index| parse(call, asked.checked_add(index * SUBSCRIPTION_BYTES).ok_or(Errno::FAULT)?))
        .collect::<Result<_, Errno>>()?;
    let events = wait(call, &all)?;
    for (event, index) in events.iter().zip(0_u32..) {
        call.memory.write(answers.checked_add(index * 32).ok_or(Errno::FAULT)?, event)?;
    }
    call.memory.write_size(to, events.len())
}

fn parse(call: &Call<'_>, at: u32) -> Result<Asked, Errno> {
    let bytes: [u8; SUBSCRIPTION_BYTES as usize] = call.memory.array(at)?;
    let part =
        |from: usize| bytes.get(from..).and_then(|rest| rest.first_chunk::<8>()).copied().unwrap_or_default();
    let word = |from: usize| u64::from_le_bytes(part(from));
    let half = |from: usize| u32::try_from(word(from) & u64::from(u32::MAX)).unwrap_or(0);
    let kind = bytes.get(8).copied().unwrap_or(u8::MAX);
    let what = match kind {
        CLOCK => {
            let absolute = half(40) & 1 != 0;
            match clock(half(16)) {
                Ok(id) => {
                    let now = if absolute { nanos(rustix::time::clock_gettime(id)) } else { 0 };
                    What::Time(Duration::from_nanos(word(24).saturating_sub(now)))
                }
                Err(errno) => What::Wrong(CLOCK, errno),
            }
        }
        READ | WRITE => match (call.host.table.get(half(16)), kind) {
            (Err(errno), _) => What::Wrong(kind, errno),
            (Ok(_), READ) => What::Read(half(16)),
            (Ok(_), _) => What::Write(half(16)),
        },
        _ => return Err(Errno::INVAL),
    };
    Ok(Asked { userdata: part(0), what })
}

/// Waits until one of them has happened, and gives all that have.
fn wait(call: &Call<'_>, all: &[Asked]) -> Result<Vec<[u8; 32]>, Errno> {
    let mut set = Vec::new();
    let mut limit: Option<Duration> = None;
    for asked in all {
        let (fd, flag) = match asked.what {
            What::Time(time) => {
                limit = Some(limit.map_or(time, |limit| limit.min(time)));
                continue;
            }
            What::Wrong(..) => {
                limit = Some(Duration::ZERO);
                continue;
            }
            What::Read(fd) => (fd, PollFlags::IN),
            What::Write(fd) => (fd, PollFlags::OUT),
        };
        set.push(PollFd::new(call.host.table.get(fd)?, flag));
    }
    let timeout = limit.map(|limit| Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    });
    let found = rustix::io::retry_on_intr(|| rustix::event::poll(&mut set, timeout.as_ref()))?;
    let mut ready = set.iter().map(PollFd::revents);
    let mut events = Vec::new();
    for asked in all {
        match asked.what {
            // The shortest wait is over when nothing else ended it.
            What::Time(time) if found == 0 && Some(time) == limit => {
                events.push(event(asked, CLOCK, 0, 0, false))
            }
            What::Time(_) => {}
            What::Wrong(kind, errno) => events.push(event(asked, kind, errno.0, 0, false)),
            What::Read(_) | What::Write(_) => {
                let flags = ready.next().unwrap_or(PollFlags::empty());
                if !flags.is_empty() {
                    let kind = if matches!(asked.what, What::Read(_)) { READ } else { WRITE };
                    events.push(event(asked, kind, 0, 1, flags.contains(PollFlags::HUP)));
                }
            }
        }
    }
    Ok(events)
}

fn event(asked: &Asked, kind: u8, errno: u16, bytes: u64, hangup: bool) -> [u8; 32] {
    let words = [
        u64::from_le_bytes(asked.userdata),
        u64::from(errno) | u64::from(kind) << 16,
        bytes,
        u64::from(hangup),
    ];
    let mut event = [0; 32];
    for (place, word) in event.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    event
}
