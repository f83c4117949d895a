//! Known toolchain roots under the home folder, and where a command resolves.
