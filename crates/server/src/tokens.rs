//! Tokens that open one sandbox for one purpose: derived from a key in the daemon's folder, so none is stored.

use crate::error::{ApiError, Code};
use crate::keys::{hex, random_hex};
use sha2::{Digest as _, Sha256};
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Random bytes of the key.
const KEY_BYTES: usize = 32;
/// Hexadecimal digits of a token.
const TOKEN_DIGITS: usize = 40;

/// What derives tokens.
pub struct Tokens {
    key: String,
}

/// What a token is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Commands and files of the sandbox.
    Inside,
    /// Its ports.
    Ports,
}

// === impl Tokens ===

impl Tokens {
    /// Reads the key, or makes it.
    pub(crate) fn open(folder: &Path) -> Result<Self, ApiError> {
        let path = folder.join("tokens.key");
        let failed = |error: std::io::Error| {
            ApiError::plain(Code::Registry, "read `serve/tokens.key`", error.to_string())
        };
        match std::fs::read_to_string(&path) {
            Ok(key) if key.len() == 2 * KEY_BYTES => Ok(Self { key }),
            Ok(_) => Err(ApiError::new(
                Code::Registry,
                "read `serve/tokens.key`",
                "it is not what the daemon wrote",
                "remove it: every sandbox has new tokens then",
            )),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let key = random_hex(KEY_BYTES)?;
                let fresh = folder.join("tokens.key.new");
                let file =
                    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh);
                let mut file = file.map_err(failed)?;
                file.write_all(key.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
                std::fs::rename(&fresh, &path).map_err(failed)?;
                Ok(Self { key })
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// The token of a sandbox.
    #[must_use]
    pub fn token(&self, purpose: Purpose, id: &str) -> String {
        let word = match purpose {
            Purpose::Inside => "inside",
            Purpose::Ports => "ports",
        };
        let inner = Sha256::digest(format!("{}\0{word}\0{id}", self.key));
        let outer = Sha256::new().chain_update(&self.key).chain_update(b"\0").chain_update(inner).finalize();
        let mut token = hex(&outer);
        token.truncate(TOKEN_DIGITS);
        token
    }

    /// Whether this is the token. How long that takes tells nothing.
    #[must_use]
    pub fn opens(&self, purpose: Purpose, id: &str, token: &[u8]) -> bool {
        Sha256::digest(token) == Sha256::digest(self.token(purpose, id))
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_opens_its_sandbox_for_its_purpose_alone_and_after_a_restart() {
        let base = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(base.path()).unwrap();
        let token = tokens.token(Purpose::Inside, "a");
        let again = Tokens::open(base.path()).unwrap();
        assert!(again.opens(Purpose::Inside, "a", token.as_bytes()));
        assert!(!again.opens(Purpose::Ports, "a", token.as_bytes()));
        assert!(!again.opens(Purpose::Inside, "b", token.as_bytes()));
        assert!(!again.opens(Purpose::Inside, "a", b""));
        std::fs::write(base.path().join("tokens.key"), "short").unwrap();
        assert_eq!(Tokens::open(base.path()).unwrap_err().code, Code::Registry);
    }
}
