//! The variables, PATH and HOME of a command.
