//! Who commands run as, and within which limits.

use crate::call::{self, Errno};
use crate::{filter, frame};

/// One past the last capability that any kernel knows.
const CAPABILITIES: u64 = 64;

/// What the started process becomes before it executes.
pub(crate) struct Person<'a> {
    filter: Option<&'a [u8]>,
    who: Option<frame::Person>,
    limits: [(u32, u64); frame::MOST_LIMITS],
    count: usize,
}

/// Who it is to be, before the filter is known.
pub(crate) type Wish = Person<'static>;

// === impl Person ===

impl Person<'_> {
    /// Whether it is to be another than the first process is.
    pub(crate) const fn is_somebody(&self) -> bool {
        self.who.is_some()
    }

    /// The same, with a filter.
    pub(crate) const fn under<'b>(&self, filter: Option<&'b [u8]>) -> Person<'b> {
        Person { filter, who: self.who, limits: self.limits, count: self.count }
    }

    pub(crate) fn of(exec: &frame::Exec<'_>) -> Self {
        let mut person = Self { filter: None, who: exec.person, limits: [(0, 0); frame::MOST_LIMITS], count: 0 };
        for (place, limit) in person.limits.iter_mut().zip(exec.limits.each()) {
            *place = limit;
            person.count += 1;
        }
        person
    }

    /// Runs in the started process: kernel calls only.
    pub(crate) fn become_it(&self) -> Result<(), Errno> {
        for (resource, value) in self.limits.iter().take(self.count) {
            limit(*resource, *value)?;
        }
        if let Some(who) = self.who {
            give_up(who)?;
        }
        self.filter.map_or(Ok(()), filter::enforce)
    }
}

/// Becomes somebody who has no other groups and no capability, and can gain none.
fn give_up(frame::Person { uid, gid }: frame::Person) -> Result<(), Errno> {
    // PR_CAPBSET_DROP, until the kernel knows no more of them.
    for capability in 0..CAPABILITIES {
        if call::plain(157, [24, capability, 0, 0, 0, 0]).is_err() {
            break;
        }
    }
    let (uid, gid) = (u64::from(uid), u64::from(gid));
    // setgroups to none, setresgid, setresuid. The last takes every capability away with it.
    call::plain(116, [0; 6])?;
    call::plain(119, [gid, gid, gid, 0, 0, 0])?;
    call::plain(117, [uid, uid, uid, 0, 0, 0])?;
    // PR_SET_NO_NEW_PRIVS.
    call::plain(157, [38, 1, 0, 0, 0, 0]).map(drop)
}

/// Sets one limit, soft and hard. One that is lower already is kept.
fn limit(resource: u32, value: u64) -> Result<(), Errno> {
    let both = [value, value];
    // SAFETY: `both` is the two numbers that the kernel reads; the process is this one.
    let set = unsafe {
        call::raw(302, [0, u64::from(resource), call::address(both.as_ptr()), 0, 0, 0])
    };
    match set {
        Err(call::EPERM) | Ok(_) => Ok(()),
        Err(errno) => Err(errno),
    }
}
