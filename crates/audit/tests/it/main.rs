//! The record as its callers and its attackers meet it.

mod kit;
mod write;
