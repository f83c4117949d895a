//! Handle-relative file work.
