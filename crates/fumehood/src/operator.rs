//! What the operator of this host has laid down for everybody: `/etc/fumehood/operator.toml`.
//!
//! A caller can not lower it, so it counts only where no caller could have written it: a plain file of root's that
//! nobody else may write, in folders of which the same is true. One that is otherwise refuses every run rather than
//! being passed over.

use crate::refusal::Refusal;
use fumehood_audit::MirrorTo;
use fumehood_model::level::Level;
use fumehood_model::text::shown;
use serde::Deserialize;
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Where it is. No flag or variable names another.
const PLACE: &str = "/etc/fumehood/operator.toml";
/// `O_NOFOLLOW` and `O_NONBLOCK` on this target.
const PLAINLY: i32 = 0o400_000 | 0o4_000;
/// Longer than anything that an operator means.
const MOST_BYTES: u64 = 64 << 10;
/// Bits of a mode by which somebody else may write.
const OTHERS_WRITE: u32 = 0o022;

/// What it says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Operator {
    /// No run has a weaker level.
    pub(crate) floor: Option<Level>,
    /// Where every line of every record goes besides, before what it tells is done: `file:/PATH` or `syslog:/PATH`.
    mirror: Option<String>,
}

// === impl Operator ===

impl Operator {
    /// Reads it. Where there is none nothing is laid down.
    pub(crate) fn read() -> Result<Self, Refusal> {
        let place = Path::new(PLACE);
        let file = match File::options().read(true).custom_flags(PLAINLY).open(place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            other => other.map_err(|error| unread(&error))?,
        };
        let meta = file.metadata().map_err(|error| unread(&error))?;
        let above = place.ancestors().skip(1).map(fs::symlink_metadata);
        let above = above.collect::<io::Result<Vec<_>>>().map_err(|error| unread(&error))?;
        if !meta.is_file() {
            return Err(refuse("it is not a plain file", "put a plain file there, or remove it"));
        }
        if !std::iter::once(&meta).chain(&above).all(is_roots_alone) {
            let why = "it, or a folder above it, is not root's alone to write";
            return Err(refuse(
                why,
                &format!("`chown root:root` and `chmod go-w` what is above it and `{PLACE}`"),
            ));
        }
        let mut text = String::new();
        file.take(MOST_BYTES).read_to_string(&mut text).map_err(|error| unread(&error))?;
        let operator = Self::parse(&text)?;
        if let Some(mirror) = &operator.mirror {
            let to = MirrorTo::parse(mirror);
            fumehood_audit::mirror_to(to.map_err(|error| {
                refuse(&format!("`{PLACE}`: `{}`: {error}", shown(mirror)), "name one, or leave it out")
            })?);
        }
        Ok(operator)
    }

    fn parse(text: &str) -> Result<Self, Refusal> {
        toml::from_str(text).map_err(|error| {
            let words = Level::ALL.map(|level| format!("`{level}`")).join(", ");
            refuse(
                &shown(error.message()),
                &format!(
                    "it may say `floor = \"LEVEL\"`, one of {words}, and `mirror = \"syslog:/dev/log\"`"
                ),
            )
        })
    }
}

fn is_roots_alone(meta: &Metadata) -> bool {
    meta.uid() == 0 && meta.mode() & OTHERS_WRITE == 0
}

fn unread(error: &io::Error) -> Refusal {
    refuse(&format!("it can not be read: {error}"), "let everybody read it, or remove it")
}

fn refuse(why: &str, remedy: &str) -> Refusal {
    Refusal::new(&format!("read `{PLACE}`"), why, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_is_one_of_the_levels_and_nothing_else_can_be_said() {
        assert_eq!(Operator::parse("").unwrap(), Operator::default());
        assert_eq!(Operator::parse("floor = \"gvisor\"").unwrap().floor, Some(Level::Gvisor));
        for text in ["floor = \"none\"", "floor = 3", "ceiling = \"gvisor\"", "[floor]", "floor"] {
            assert!(Operator::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_others_can_write_is_not_roots_alone() {
        let folder = tempfile::tempdir().unwrap();
        let meta = fs::metadata(folder.path()).unwrap();
        assert_eq!(is_roots_alone(&meta), meta.uid() == 0);
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert!(!is_roots_alone(&fs::metadata(folder.path()).unwrap()));
    }
}
