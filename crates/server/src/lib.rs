//! The daemon: many sandboxes over HTTP, for many teams.
//!
//! It owns the registry, the keys, the pools and the doors. It holds no secret's value, never forks, and is not
//! needed for a sandbox to live on: each has its own keeper, which outlives the daemon and is adopted again.
