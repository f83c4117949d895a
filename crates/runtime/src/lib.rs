//! The engine: the state folder, the launch, the keeper and its loop, the files wall, the reaper.
//!
//! It is handed a backend and never names one. It owns everything that a run leaves on the host, and
//! the order of things: record first, act second, clean up always.

pub mod causes;
mod durable;
mod egress;
pub mod environment;
pub mod fetch;
pub mod files;
mod finish;
pub mod keep;
mod keeper;
mod meter;
mod places;
pub mod presets;
mod reaper;
pub mod run;
pub mod state;
mod streams;
pub mod tape;
pub mod toolchains;
pub mod trust;
