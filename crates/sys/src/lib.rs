//! The kernel facilities Fumehood stands on: one file per facility, and the only unsafe code.
//!
//! Every wrapper takes and returns owned or borrowed descriptors, never raw numbers, and reports
//! the kernel's own error. Nothing here decides anything.

pub mod dirfd;
pub mod memfd;
pub mod socket;
