//! A program with its arguments, laid out as the kernel reads it, before the child exists.

use std::ffi::{CStr, CString, c_char};
use std::ptr;

/// What is executed.
#[derive(Debug)]
pub struct Command {
    path: CString,
    /// Held: the arrays below point into these.
    _strings: Vec<CString>,
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
}

// SAFETY: the addresses are of strings that are owned here, never change, and are only read.
unsafe impl Send for Command {}
// SAFETY: as above.
unsafe impl Sync for Command {}

// === impl Command ===

impl Command {
    /// `path` is the guest's or the host's, as the root is when it is executed.
    #[must_use]
    pub fn new(path: CString, arguments: Vec<CString>, environment: Vec<CString>) -> Self {
        // The bytes of a string stay where they are when it is moved.
        let array = |strings: &[CString]| {
            strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect::<Vec<_>>()
        };
        let (argv, envp) = (array(&arguments), array(&environment));
        let strings = arguments.into_iter().chain(environment).collect();
        Self { path, _strings: strings, argv, envp }
    }

    pub(super) fn path(&self) -> &CStr {
        &self.path
    }

    /// Each ends in a null.
    pub(super) fn arrays(&self) -> (*const *const c_char, *const *const c_char) {
        (self.argv.as_ptr(), self.envp.as_ptr())
    }
}
