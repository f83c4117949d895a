//! The nouns and the pure decisions of Fumehood.
//!
//! A sandbox is a value with an envelope, and an envelope is a closed list of six clauses. This
//! crate owns those words, the checks that turn what a caller wrote into a value that can be
//! trusted, and the decisions made from such values. It touches neither the host nor a guest:
//! clock, randomness, environment and files come in as arguments.
//!
//! **Invariant:** a limit, a permission or a path that is not named is denied; no type here has a
//! variant that means "everything".

pub mod code;
pub mod egress;
pub mod ending;
pub mod enforcement;
pub mod envelope;
pub mod event;
pub mod exec;
pub mod id;
pub mod image;
pub mod level;
pub mod quantity;
pub mod remedy;
pub mod report;
pub mod text;
