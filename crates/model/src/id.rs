//! Identifiers.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Crockford's base 32 in lower case: no `i`, `l`, `o`, `u`, so an id can be read aloud.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Nine digits of milliseconds (good until the year 3084) and seven of randomness.
const LENGTH: usize = 16;

/// The name of one task: of its sandbox, its record, its layer and everything it could leave behind.
///
/// Sixteen characters of `0-9a-z`, so it is safe in a path, a cgroup name and a terminal, and sorts
/// by time of birth.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TaskId(String);

/// What is wrong with a text that should be a task id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a task id is 16 characters of 0-9 and a-z, as `fumehood audit list` shows them")]
pub struct BadTaskId;

// === impl TaskId ===

impl TaskId {
    /// The id of a task born at `unix_millis`, told from its siblings by `random`.
    pub fn new(unix_millis: u64, random: u64) -> Self {
        let digits = |value: u64, count: u32| {
            (0..count).rev().map(move |place| {
                let index = (value >> (place * 5)) & 31;
                ALPHABET.get(usize::try_from(index).unwrap_or(0)).map_or('0', |byte| char::from(*byte))
            })
        };
        Self(digits(unix_millis, 9).chain(digits(random, 7)).collect())
    }

    /// Reads an id back.
    pub fn parse(text: &str) -> Result<Self, BadTaskId> {
        let good = text.len() == LENGTH && text.bytes().all(|byte| ALPHABET.contains(&byte));
        if good { Ok(Self(text.to_owned())) } else { Err(BadTaskId) }
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for TaskId {
    type Error = BadTaskId;

    fn try_from(text: String) -> Result<Self, BadTaskId> {
        Self::parse(&text)
    }
}

impl From<TaskId> for String {
    fn from(id: TaskId) -> Self {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_birth_and_read_back() {
        let early = TaskId::new(1_000, u64::MAX);
        let late = TaskId::new(1_001, 0);
        assert!(early < late);
        assert_eq!(TaskId::parse(early.as_str()), Ok(early));
    }

    #[test]
    fn an_id_can_not_leave_its_folder() {
        for text in
            ["", ".", "..", "../../etc/passwd", "0123456789abcde/", "0123456789ABCDEF", "0123456789abcdeé"]
        {
            assert_eq!(TaskId::parse(text), Err(BadTaskId), "{text:?}");
        }
    }
}
