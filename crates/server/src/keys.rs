//! Keys: minted once, shown once, kept as hashes.
//!
//! A key is found by the hash of the whole of it, so that how long a look takes tells nothing about any key, and ten
//! thousand wrong ones cost ten thousand hashes.

use crate::caller::{Caller, Scopes};
use crate::clock;
use crate::engine::folder;
use crate::error::{ApiError, Code};
use crate::http::{mint, views};
pub use crate::registry::Key;
use crate::registry::Registry;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{PoisonError, RwLock};

/// What a key begins with: the E2B SDKs of before 2026 send no other.
const PREFIX: &str = "e2b_";
/// Random bytes of a key.
const RANDOM_BYTES: usize = 20;
/// The longest key that is looked at.
const MOST_KEY_BYTES: usize = 256;
/// The longest name of a key or a team.
const MOST_NAME_BYTES: usize = 64;

/// The keys that let in.
#[derive(Debug)]
pub struct Keys {
    registry: Registry,
    known: RwLock<HashMap<[u8; 32], Key>>,
}

/// A key that is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewKey {
    pub name: String,
    pub team: String,
    pub scopes: Scopes,
    /// Milliseconds since 1970; never if absent.
    pub expires_ms: Option<u64>,
}

// === impl Keys ===

impl Keys {
    /// The keys that the registry has.
    ///
    /// # Errors
    /// The registry can not be read.
    pub async fn load(registry: Registry) -> Result<Self, ApiError> {
        let known = registry.keys().await?.into_iter().map(|key| (key.hash, key)).collect();
        Ok(Self { registry, known: RwLock::new(known) })
    }

    /// Who comes with this key.
    ///
    /// # Errors
    /// [`Code::Unauthenticated`], in the same words whatever was wrong with it.
    pub fn admit(&self, key: &[u8]) -> Result<Caller, ApiError> {
        let hash: [u8; 32] = Sha256::digest(key.get(..MOST_KEY_BYTES).unwrap_or(key)).into();
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let fresh = |key: &&Key| key.expires_ms.is_none_or(|end| end > clock::now_ms());
        match known.get(&hash).filter(fresh) {
            Some(found) if key.len() <= MOST_KEY_BYTES => {
                Ok(Caller { team: found.team.clone(), name: found.name.clone(), scopes: found.scopes })
            }
            Some(_) | None => Err(unauthenticated()),
        }
    }

    /// Mints a key: the one time that it is seen.
    ///
    /// # Errors
    /// The name is no name, or taken.
    pub async fn mint(&self, new: NewKey) -> Result<String, ApiError> {
        name(&new.name, "key")?;
        name(&new.team, "team")?;
        let text = format!("{PREFIX}{}", random_hex(RANDOM_BYTES)?);
        let key = Key {
            hash: Sha256::digest(text.as_bytes()).into(),
            name: new.name,
            team: new.team,
            scopes: new.scopes,
            created_ms: clock::now_ms(),
            expires_ms: new.expires_ms,
        };
        if !self.registry.add_key(key.clone()).await? {
            let cause = format!("there is a key `{}`", key.name);
            return Err(ApiError::plain(Code::Exists, "make the key", cause));
        }
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(key.hash, key);
        Ok(text)
    }

    /// All keys, by name.
    pub fn list(&self) -> Vec<Key> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut keys: Vec<Key> = known.values().cloned().collect();
        keys.sort_by(|a, b| a.name.cmp(&b.name));
        keys
    }

    /// Removes a key: it lets nobody in from now on.
    ///
    /// # Errors
    /// There is none of this name.
    pub async fn remove(&self, name: &str) -> Result<(), ApiError> {
        self.known.write().unwrap_or_else(PoisonError::into_inner).retain(|_, key| key.name != name);
        if self.registry.remove_key(name.to_owned()).await? {
            return Ok(());
        }
        Err(ApiError::new(
            Code::NotFound,
            "remove the key",
            "there is no key of this name",
            "`fumehood keys ls` lists them",
        ))
    }
}

/// Does what a route about keys does, on a state folder that no daemon runs on.
///
/// # Errors
/// As the route; a daemon runs there after all.
pub fn without_daemon(
    state: &Path,
    method: &str,
    path: &str,
    body: &serde_json::Value,
) -> Result<serde_json::Value, ApiError> {
    let failed = |cause: String| ApiError::plain(Code::Internal, "use the keys", cause);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed(error.to_string()))?;
    runtime.block_on(async {
        let keys = Keys::load(Registry::open(&folder(state))?).await?;
        let answer = match (method, path.strip_prefix("/v1/keys/")) {
            ("POST", None) => {
                let body = serde_json::from_value(body.clone()).map_err(|error| {
                    ApiError::plain(Code::BadRequest, "read what was asked", error.to_string())
                })?;
                serde_json::to_value(mint(&keys, body).await?)
            }
            ("DELETE", Some(name)) => {
                keys.remove(name).await?;
                Ok(serde_json::Value::Null)
            }
            (_, _) => serde_json::to_value(views(&keys)),
        };
        answer.map_err(|error| failed(error.to_string()))
    })
}

/// So many random bytes, as hexadecimal digits.
pub(crate) fn random_hex(bytes: usize) -> Result<String, ApiError> {
    let mut random = vec![0; bytes];
    let mut filled = 0;
    while let Some(rest) = random.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let got = rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty());
        filled +=
            got.map_err(|error| ApiError::plain(Code::Internal, "draw randomness", error.to_string()))?;
    }
    Ok(hex(&random))
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// No key, a wrong one, an old one: all the same to who asks.
pub(crate) fn unauthenticated() -> ApiError {
    ApiError::plain(Code::Unauthenticated, "let you in", "there is no key, or not one that opens")
}

/// Names of keys, teams and snapshots: letters, digits, `.`, `_` and `-`, beginning with a letter or a digit.
pub(crate) fn name(text: &str, what: &str) -> Result<(), ApiError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let good = text.len() <= MOST_NAME_BYTES
        && text.bytes().all(plain)
        && text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if good {
        return Ok(());
    }
    Err(ApiError::new(
        Code::BadRequest,
        format!("name the {what}"),
        "the name is not one",
        format!(
            "use at most {MOST_NAME_BYTES} of the letters a to z, digits, `.`, `_` and `-`, beginning with a letter or a digit"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::Scope;

    fn new(name: &str, expires_ms: Option<u64>) -> NewKey {
        NewKey {
            name: name.to_owned(),
            team: "t".to_owned(),
            scopes: Scopes::from_iter([Scope::Read]),
            expires_ms,
        }
    }

    #[tokio::test]
    async fn a_key_lets_in_until_it_is_over_or_removed_and_is_nowhere_at_rest() {
        let base = tempfile::tempdir().unwrap();
        let registry = Registry::open(base.path()).unwrap();
        let keys = Keys::load(registry.clone()).await.unwrap();
        let key = keys.mint(new("one", None)).await.unwrap();
        let digits = key.strip_prefix("e2b_").unwrap();
        assert!(digits.len() == 40 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let caller = keys.admit(key.as_bytes()).unwrap();
        assert!(caller.needs(Scope::Read).is_ok());
        assert_eq!(caller.needs(Scope::Write).unwrap_err().code, Code::Forbidden);
        assert_eq!(keys.mint(new("one", None)).await.unwrap_err().code, Code::Exists);
        let over = keys.mint(new("over", Some(1))).await.unwrap();
        assert_eq!(keys.admit(over.as_bytes()).unwrap_err().code, Code::Unauthenticated);
        for entry in std::fs::read_dir(base.path()).unwrap() {
            let content = std::fs::read(entry.unwrap().path()).unwrap();
            assert!(!content.windows(key.len()).any(|window| window == key.as_bytes()));
        }
        // Another start knows it again.
        let again = Keys::load(registry).await.unwrap();
        assert_eq!(again.admit(key.as_bytes()).unwrap(), caller);
        keys.remove("one").await.unwrap();
        assert!(keys.admit(key.as_bytes()).is_err());
        assert_eq!(keys.remove("one").await.unwrap_err().code, Code::NotFound);
    }

    #[tokio::test]
    async fn wrong_keys_all_read_the_same() {
        let base = tempfile::tempdir().unwrap();
        let keys = Keys::load(Registry::open(base.path()).unwrap()).await.unwrap();
        let key = keys.mint(new("one", None)).await.unwrap();
        let longer = format!("{key}0");
        let huge = vec![b'a'; 1 << 20];
        for wrong in [&b""[..], b"e2b_", &key.as_bytes()[1..], longer.as_bytes(), &huge] {
            assert_eq!(keys.admit(wrong).unwrap_err(), unauthenticated());
        }
    }

    #[test]
    fn names_can_not_leave_a_folder_or_a_line() {
        for bad in ["", ".", "..", "-x", "a/b", "a b", "a\n", "é", &"a".repeat(65)] {
            assert!(name(bad, "key").is_err(), "{bad:?}");
        }
        assert!(name("a.b_c-9", "key").is_ok());
    }
}
