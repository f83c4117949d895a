//! Signed URLs of files: who has one may read, or write, one path, until a time.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sha2::{Digest as _, Sha256};

/// What a signature is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    Write,
}

/// What is signed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signed<'a> {
    pub(super) path: &'a str,
    pub(super) operation: Operation,
    pub(super) user: &'a str,
    /// Seconds since 1970.
    pub(super) expiration: Option<u64>,
}

// === impl Signed ===

impl Signed<'_> {
    /// The signature by a sandbox's token.
    pub(super) fn by(&self, token: &str) -> String {
        let word = match self.operation {
            Operation::Read => "read",
            Operation::Write => "write",
        };
        let mut text = format!("{}:{word}:{}:{token}", self.path, self.user);
        if let Some(expiration) = self.expiration {
            text.push_str(&format!(":{expiration}"));
        }
        format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)))
    }

    /// Whether this is the signature, and its time is not over. How long that takes tells nothing.
    pub(super) fn holds(&self, token: &str, signature: &str, now_ms: u64) -> bool {
        let fresh = self.expiration.is_none_or(|end| end >= now_ms / 1000);
        fresh && Sha256::digest(signature) == Sha256::digest(self.by(token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_for_one_path_one_operation_one_user_and_one_time() {
        let signed = Signed { path: "/a", operation: Operation::Read, user: "", expiration: Some(10) };
        let text = signed.by("t");
        assert!(text.starts_with("v1_") && !text.contains('='));
        assert!(signed.holds("t", &text, 10_999));
        assert!(!signed.holds("t", &text, 11_000));
        assert!(!signed.holds("u", &text, 0));
        for other in [
            Signed { path: "/b", ..signed },
            Signed { operation: Operation::Write, ..signed },
            Signed { user: "root", ..signed },
            Signed { expiration: None, ..signed },
        ] {
            assert!(!other.holds("t", &text, 0), "{other:?}");
        }
    }
}
