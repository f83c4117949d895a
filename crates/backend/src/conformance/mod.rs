//! The list of cases that every level must pass.
