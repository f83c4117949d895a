//! The keeper's side of the egress wall: the gate is another process, and the record is the keeper's.

pub(crate) mod ports;
pub(crate) mod secrets;
