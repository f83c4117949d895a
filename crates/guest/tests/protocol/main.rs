//! The stream between a host and its guest, against anything that could come.

#[cfg(test)]
mod rules;
