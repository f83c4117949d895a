//! Whether this host's KVM can run Linux.

use std::sync::OnceLock;

static FOUND: OnceLock<Result<(), String>> = OnceLock::new();

/// Asked of KVM itself, once in a process: some milliseconds.
///
/// # Errors
/// Why it can not, as a phrase.
pub fn works() -> Result<(), String> {
    FOUND.get_or_init(fumehood_sys::kvm::try_guest).clone()
}
