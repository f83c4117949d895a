//! Who asks, and how far their key reaches.

use crate::error::{ApiError, Code};
use serde::{Deserialize, Serialize};

/// The team of the operator, and of what was made without the daemon.
pub const LOCAL_TEAM: &str = "local";

/// Somebody who was let in: by a key, or by the operator's own socket.
///
/// **Invariant:** it is made by the doors alone, after they have seen a key or a peer's uid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub team: String,
    /// The key's name, for the record.
    pub name: String,
    pub scopes: Scopes,
}

/// What a key may be used for.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// See sandboxes, metrics, files.
    Read,
    /// Create, pause, resume, snapshot, fork and stop sandboxes; change files.
    Write,
    /// Run commands and talk to ports.
    Exec,
    /// The kill switch, of the key's own team.
    Halt,
    /// Everything, of every team; keys and quotas.
    Admin,
}

/// A set of scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scopes(u8);

// === impl Caller ===

impl Caller {
    /// The operator of this installation.
    #[must_use]
    pub fn operator() -> Self {
        Self { team: LOCAL_TEAM.to_owned(), name: "operator".to_owned(), scopes: Scopes::ALL }
    }

    /// Whether what belongs to `team` is this caller's to use.
    #[must_use]
    pub fn owns(&self, team: &str) -> bool {
        self.team == team || self.scopes.has(Scope::Admin)
    }

    /// Who asked, as the record names it.
    #[must_use]
    pub fn actor(&self) -> String {
        format!("{}/{}", self.team, self.name)
    }

    /// Goes on if the key reaches so far.
    ///
    /// # Errors
    /// [`Code::Forbidden`].
    pub fn needs(&self, scope: Scope) -> Result<(), ApiError> {
        if self.scopes.has(scope) {
            return Ok(());
        }
        let cause = format!("the key `{}` has no scope `{}`", self.name, scope.word());
        Err(ApiError::plain(Code::Forbidden, "do this with this key", cause).with("scope", scope.word()))
    }
}

// === impl Scope ===

impl Scope {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Exec, Self::Halt, Self::Admin];

    const fn bit(self) -> u8 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
            Self::Exec => 4,
            Self::Halt => 8,
            Self::Admin => 16,
        }
    }

    /// The word on the wire.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Exec => "exec",
            Self::Halt => "halt",
            Self::Admin => "admin",
        }
    }

    /// The scope of this name.
    #[must_use]
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.word() == word)
    }
}

// === impl Scopes ===

impl Scopes {
    /// Every scope.
    pub const ALL: Self = Self(31);
    /// What a key has if nothing else is said.
    pub const USUAL: Self = Self(7);

    /// Whether it has the scope; `admin` has every other.
    #[must_use]
    pub const fn has(self, scope: Scope) -> bool {
        self.0 & (scope.bit() | Scope::Admin.bit()) != 0
    }

    /// As stored: a number of bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// From what was stored. Bits that mean nothing are left out.
    #[must_use]
    pub const fn of_bits(bits: u8) -> Self {
        Self(bits & Self::ALL.0)
    }

    /// The words.
    pub fn words(self) -> Vec<&'static str> {
        Scope::ALL.into_iter().filter(|scope| self.0 & scope.bit() != 0).map(Scope::word).collect()
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<T: IntoIterator<Item = Scope>>(scopes: T) -> Self {
        Self(scopes.into_iter().fold(0, |bits, scope| bits | scope.bit()))
    }
}
