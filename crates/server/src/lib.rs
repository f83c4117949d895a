//! The daemon: many sandboxes over HTTP, for many teams.
//!
//! It owns the registry, the keys, the pools and the doors. It holds no secret's value, never forks, and is not
//! needed for a sandbox to live on: each has its own keeper, which outlives the daemon and is adopted again.
//!
//! - [`engine::Engine`] has the verbs; every door translates to them.
//! - A [`live::Live`] is had from [`engine::Engine::find`] alone, which asks whose it is: no verb takes a bare id.
//! - A [`live::Use`] keeps a sandbox from being paused by a timer while somebody is at work in it.

pub mod caller;
pub mod client;
pub mod clock;
pub mod config;
pub mod door;
pub mod e2b;
pub mod engine;
mod environment;
pub mod error;
pub mod fleet;
pub mod halt;
pub mod http;
pub mod keeper;
pub mod keys;
pub mod live;
pub mod log;
mod network;
mod pool;
pub mod quota;
mod registry;
pub mod sandbox;
pub mod serve;
mod spawn;
pub mod stream;
mod template;
pub mod tls;
pub mod tokens;
pub mod trace;
