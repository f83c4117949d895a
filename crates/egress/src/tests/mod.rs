//! The gate as a whole, between a client and a server of the test, in a world of the test's making.

mod ceilings;
mod identity;
pub(crate) mod lab;
mod names;
mod proxy;
mod readers;
mod transparent;
mod whole;
