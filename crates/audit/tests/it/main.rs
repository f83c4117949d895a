//! The record as its callers and its attackers meet it.

mod crash;
mod full;
mod hostile;
mod kit;
mod mirror;
mod names;
mod parallel;
mod tamper;
mod text;
mod write;
