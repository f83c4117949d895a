//! What a keeper of a living sandbox and its callers say to each other.
//!
//! A keeper listens on a socket in its sandbox's folder. A caller connects, says one [`wire::Ask`], and reads
//! [`wire::Said`] and streams until the keeper closes. One connection is one verb: a caller that vanishes takes
//! nothing with it but its own connection.
//!
//! It must not know how a sandbox is made, nor who may ask.

pub mod client;
pub mod fault;
pub mod frame;
pub mod literals;
pub mod wire;
