//! The first program of a machine: what a kernel that has just started leaves to be done.
//!
//! Not here yet: mounting `/proc`, `/dev` and `/sys`, the root's overlay, the network, and opening the port
//! that frames come through.

use crate::call::{self, Errno};
use crate::line::Line;

/// Makes a system of what the kernel gives, and opens the stream to the host.
pub(crate) fn begin() -> Result<Line, Errno> {
    // No level starts `guestd` this way yet.
    Err(call::EPERM)
}

/// Ends the machine.
pub(crate) fn finish() {
    // sync, then reboot with LINUX_REBOOT_CMD_POWER_OFF.
    let _ = call::plain(162, [0; 6]);
    let _ = call::plain(169, [0xfee1_dead, 0x2812_1969, 0x4321_fedc, 0, 0, 0]);
}
