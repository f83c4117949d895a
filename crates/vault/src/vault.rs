//! The secrets of one sandbox, each with its placeholder.
//!
//! What the gate holds: it asks for a secret by name once a request was decided and recorded, and makes
//! a [`Masker`] and a [`Guard`] of all of them. Both are made anew after a value was added or renewed;
//! streams that were begun before go on with what they began with.

use crate::guard::Guard;
use crate::mask::Masker;
use crate::placeholder::{Placeholder, PlaceholderError, Shape};
use crate::secret::{Secret, SecretName};
use std::fmt;

/// Values that were renewed are masked for this many renewals more: an answer to the old one may come
/// late.
const REMEMBERED: usize = 3;

/// The secrets of one sandbox. Wiped when dropped.
#[derive(Default)]
pub struct Vault {
    entries: Vec<Entry>,
}

struct Entry {
    secret: Secret,
    placeholder: Placeholder,
    /// Values that it had before, the latest last.
    former: Vec<Secret>,
}

/// Why a secret was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VaultError {
    /// The name is there already.
    #[error("`{0}` is declared twice")]
    Twice(SecretName),
    /// A renewed value for a name that is not there.
    #[error("there is no secret `{0}`")]
    Unknown(SecretName),
    /// No placeholder could be made.
    #[error("`{name}`: {error}")]
    Placeholder {
        /// For whom.
        name: SecretName,
        /// Why.
        error: PlaceholderError,
    },
}

// === impl VaultError ===

impl VaultError {
    /// What the operator can do.
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Twice(_) => "give each secret a name of its own",
            Self::Unknown(_) => "declare it with `--secret`",
            Self::Placeholder { error, .. } => error.remedy(),
        }
    }
}

// === impl Vault ===

impl Vault {
    /// Takes a secret over and makes its placeholder. `shape` follows from the rules that use it:
    /// [`Injection::shape`](crate::inject::Injection::shape).
    pub fn add(
        &mut self,
        secret: Secret,
        shape: Shape,
        random: &mut dyn FnMut(&mut [u8]),
    ) -> Result<Placeholder, VaultError> {
        if self.get(secret.name()).is_some() {
            return Err(VaultError::Twice(secret.name().clone()));
        }
        let placeholder = Placeholder::new(&secret, shape, random)
            .map_err(|error| VaultError::Placeholder { name: secret.name().clone(), error })?;
        let shown = placeholder.clone();
        self.entries.push(Entry { secret, placeholder, former: Vec::new() });
        Ok(shown)
    }

    /// Puts a newer value in the place of the one of that name. The placeholder stays, as the program
    /// inside has it already; the value before is still masked for a while.
    pub fn renew(&mut self, secret: Secret) -> Result<(), VaultError> {
        let Some(entry) = self.entries.iter_mut().find(|entry| entry.secret.name() == secret.name()) else {
            return Err(VaultError::Unknown(secret.name().clone()));
        };
        entry.former.push(std::mem::replace(&mut entry.secret, secret));
        let surplus = entry.former.len().saturating_sub(REMEMBERED);
        entry.former.drain(..surplus);
        Ok(())
    }

    /// A secret and its placeholder.
    pub fn get(&self, name: &SecretName) -> Option<(&Secret, &Placeholder)> {
        let entry = self.entries.iter().find(|entry| entry.secret.name() == name)?;
        Some((&entry.secret, &entry.placeholder))
    }

    /// Each name with what stands in the sandbox's variable of that name.
    pub fn placeholders(&self) -> impl Iterator<Item = (&SecretName, &Placeholder)> {
        self.entries.iter().map(|entry| (entry.secret.name(), &entry.placeholder))
    }

    /// The secrets that end within `ahead_millis` from now, or have ended.
    pub fn ending(&self, now_unix_millis: u64, ahead_millis: u64) -> impl Iterator<Item = &SecretName> {
        let then = now_unix_millis.saturating_add(ahead_millis);
        self.entries
            .iter()
            .map(|entry| &entry.secret)
            .filter(move |secret| !secret.is_good_at(then))
            .map(Secret::name)
    }

    /// Looks for all values in responses.
    pub fn masker(&self) -> Masker {
        Masker::new(self.entries.iter().flat_map(|entry| {
            let values = std::iter::once(&entry.secret).chain(entry.former.iter().rev());
            values.map(|secret| (secret, &entry.placeholder))
        }))
    }

    /// Looks for all placeholders in requests.
    pub fn guard(&self) -> Guard {
        Guard::new(self.placeholders())
    }
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.placeholders().map(|(name, _)| name.as_str())).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{random, secret};

    #[test]
    fn a_renewed_value_keeps_its_placeholder_and_the_old_one_is_masked_still() {
        let mut vault = Vault::default();
        let first = "ghs_16C7e42F292c6912E7710c838347Ae178B4a";
        let next = "ghs_Zx81kQpW77aa01mNbV5510qqLkJ9911xYhGt";
        let placeholder = vault.add(secret("T", first), Shape::Opaque, &mut random(1)).expect("it is new");
        let twice = vault.add(secret("T", next), Shape::Opaque, &mut random(1));
        assert!(matches!(twice, Err(VaultError::Twice(_))));
        vault.renew(secret("T", next)).expect("it is there");
        assert!(matches!(vault.renew(secret("U", next)), Err(VaultError::Unknown(_))));
        let masked = vault.masker().whole(format!("{first} {next}").as_bytes()).expect("a find");
        assert_eq!(masked, format!("{placeholder} {placeholder}").as_bytes());
        for turn in 0..REMEMBERED {
            vault.renew(secret("T", &format!("another-value-{turn}"))).expect("it is there");
        }
        assert_eq!(vault.masker().whole(first.as_bytes()), None);
        assert!(vault.masker().whole(next.as_bytes()).is_some());
        assert!(vault.guard().host(placeholder.as_str()).is_err());
        assert_eq!(format!("{vault:?}"), r#"["T"]"#);
    }

    #[test]
    fn what_ends_soon_is_named() {
        let mut vault = Vault::default();
        let name = SecretName::parse("SHORT").expect("a name");
        let short = Secret::new(name.clone(), b"value".to_vec().into(), Some(10_000)).expect("a secret");
        vault.add(short, Shape::Opaque, &mut random(1)).expect("it is new");
        vault.add(secret("LONG", "value"), Shape::Opaque, &mut random(2)).expect("it is new");
        assert_eq!(vault.ending(1_000, 8_999).count(), 0);
        assert_eq!(vault.ending(1_000, 9_000).collect::<Vec<_>>(), [&name]);
    }
}
