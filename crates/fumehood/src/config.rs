//! Which `fumehood.toml` speaks for a run, and how far it may speak.
//!
//! Named with `--config`, or trusted by `fumehood trust`, it may say anything. Found by itself, it
//! may have been written by what is about to be run, and may only narrow.

use crate::command::RunArguments;
use crate::host;
use crate::refusal::Refusal;
use crate::{images, spec};
use fumehood_model::envelope::file::{FileFlaw, Located, parse, read as read_whole};
use fumehood_model::envelope::{
    Defaults, Envelope, EnvelopeSpec, LayerError, Layered, found_file, named_file,
};
use fumehood_model::text::shown;
use fumehood_runtime::trust::{self, Pin, TrustError};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The name that is looked for.
pub(crate) const FILE_NAME: &str = "fumehood.toml";
const STEP: &str = "read the envelope";
/// Sticky and writable by all: whoever put a file there, it is nobody's project.
const SHARED: u32 = 0o1002;
/// How a file came to speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// With `--config`.
    Named,
    /// It lies in the folder or above it, and was trusted as it is.
    Trusted,
    /// It lies there, and was trusted as it was before.
    Changed,
    /// It lies there.
    Found,
}

/// An envelope, and the file that had a say in it.
#[derive(Debug)]
pub(crate) struct Spoken {
    pub(crate) layered: Layered,
    /// For standard error: which file, and how far it may speak.
    pub(crate) note: Option<String>,
}

/// Puts the file and the flags together.
pub(crate) fn settle(
    flags: &EnvelopeSpec,
    args: &RunArguments,
    defaults: &Defaults,
) -> Result<Spoken, Refusal> {
    let (file, standing) = match &args.config {
        Some(named) => (defaults.base.join(named), Standing::Named),
        None => match find(search_start(flags, defaults), defaults.home.as_deref()) {
            Some(found) => {
                refuse_link(&found)?;
                (found, Standing::Found)
            }
            None => return flags_alone(flags, args, defaults),
        },
    };
    let text = read(&file)?;
    let standing = match standing {
        Standing::Named => Standing::Named,
        Standing::Trusted | Standing::Changed | Standing::Found => {
            match pin(defaults.state.as_deref(), &file, &text)? {
                Pin::Trusted => Standing::Trusted,
                Pin::Changed => Standing::Changed,
                Pin::Unknown => Standing::Found,
            }
        }
    };
    let name = shown(&file.to_string_lossy());
    let folder = file.parent().unwrap_or(Path::new("/"));
    let mut read_more = defaults.clone();
    if text.contains("presets") && defaults.presets.is_empty() {
        read_more.presets = host::presets(defaults.home.as_deref())?;
    }
    if text.contains("image") && defaults.images.is_empty() {
        read_more.images = images::all(defaults.state.as_deref())?;
    }
    let defaults = &read_more;
    let located = read_whole(&text, folder, defaults).map_err(|flaws| in_file(&name, &flaws))?;
    let layered = match standing {
        Standing::Named | Standing::Trusted => named_file(flags, &located, defaults),
        Standing::Found | Standing::Changed => found_file(flags, &located, defaults),
    };
    let layered = layered.map_err(|error| refusal(error, &located, (&name, standing), args))?;
    let how = match standing {
        Standing::Named => "named with `--config`",
        Standing::Trusted => "trusted",
        Standing::Found => "not trusted, so it only narrows",
        Standing::Changed => "changed since it was trusted, so it only narrows",
    };
    Ok(Spoken { layered, note: Some(format!("using `{name}` ({how})")) })
}

/// Reads a file's text; its flaws are told with their lines.
pub(crate) fn parse_alone(text: &str, name: &str) -> Result<Located, Refusal> {
    parse(text).map_err(|flaws| in_file(name, &flaws))
}

fn flags_alone(flags: &EnvelopeSpec, args: &RunArguments, defaults: &Defaults) -> Result<Spoken, Refusal> {
    let envelope = Envelope::check(flags, defaults)
        .map_err(|flaws| Refusal::flaws(&flaws, |flaw| spec::place(args, flaw)))?;
    Ok(Spoken { layered: Layered { spec: flags.clone(), envelope }, note: None })
}

/// The project's folder, where there is one.
fn search_start<'a>(flags: &'a EnvelopeSpec, defaults: &'a Defaults) -> &'a Path {
    flags.filesystem.workspace.as_deref().map_or(&defaults.base, Path::new)
}

fn refusal(
    error: LayerError,
    file: &Located,
    (name, standing): (&str, Standing),
    args: &RunArguments,
) -> Refusal {
    match error {
        LayerError::Flags(flaws) => Refusal::flaws(&flaws, |flaw| match spec::flag_of(flaw.field) {
            Some(flag) if spec::was_typed(args, flag) => flag.to_owned(),
            Some(_) | None => match file.line(flaw.field, flaw.entry) {
                Some(line) => format!("{name}:{line}: {}", flaw.field),
                None => flaw.field.to_owned(),
            },
        }),
        LayerError::File(flaws) => in_file(name, &flaws),
        LayerError::Widens(flaws) => {
            let how = match standing {
                Standing::Changed => "has changed since it was trusted,",
                Standing::Found | Standing::Named | Standing::Trusted => "was found, not named,",
            };
            let list: String =
                flaws.iter().map(|flaw| format!("\n  - {}: {}", place(name, flaw), flaw.what)).collect();
            Refusal::new(
                STEP,
                format!(
                    "`{name}` {how} so it may only narrow, and it asks for more than the flags do:{list}"
                ),
                format!(
                    "read it, then `fumehood trust {name}` (until it changes), or name it: `--config {name}`"
                ),
            )
        }
    }
}

fn in_file(name: &str, flaws: &[FileFlaw]) -> Refusal {
    match flaws {
        [flaw] => Refusal::new(STEP, format!("{}: {}", place(name, flaw), flaw.what), flaw.remedy.clone()),
        many => {
            let each =
                |flaw: &FileFlaw| format!("\n  - {}: {}; {}", place(name, flaw), flaw.what, flaw.remedy);
            let list: String = many.iter().map(each).collect();
            Refusal::new(
                STEP,
                format!("{} things are wrong:{list}", many.len()),
                "mend each of them as it says",
            )
        }
    }
}

fn place(name: &str, flaw: &FileFlaw) -> String {
    let field = flaw.field.as_deref().map(|field| format!(": {}", shown(field))).unwrap_or_default();
    match flaw.line {
        Some(line) => format!("{name}:{line}{field}"),
        None => format!("{name}{field}"),
    }
}

/// Reads a file once: what is judged is what is used.
pub(crate) fn read(file: &Path) -> Result<String, Refusal> {
    let name = shown(&file.to_string_lossy());
    let refuse = |why: String| Refusal::new(STEP, why, "name a plain file of yours: `--config FILE`");
    let bytes = trust::read_file(file).map_err(|error| refuse(with_source(&error)))?;
    String::from_utf8(bytes).map_err(|_| refuse(format!("`{name}` is not UTF-8 text")))
}

/// A file that was found by itself must not show us another one.
fn refuse_link(file: &Path) -> Result<(), Refusal> {
    if fs::symlink_metadata(file).is_ok_and(|facts| facts.is_file()) {
        return Ok(());
    }
    let name = shown(&file.to_string_lossy());
    Err(Refusal::new(
        STEP,
        format!("`{name}` is not a plain file"),
        format!("make it one, or name the file: `--config {name}`"),
    ))
}

/// What its owner has said about the file as it is now.
fn pin(state: Option<&Path>, file: &Path, text: &str) -> Result<Pin, Refusal> {
    let Some(state) = state else { return Ok(Pin::Unknown) };
    trust::is_trusted(state, file, text.as_bytes()).map_err(|error| distrusted(&error))
}

/// The list of trusted files can not be used.
pub(crate) fn distrusted(error: &TrustError) -> Refusal {
    Refusal::new("look the trust up", with_source(error), "name the file instead: `--config FILE`")
}

fn with_source(error: &TrustError) -> String {
    let source = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
    format!("failed to {error}{source}")
}

/// The nearest `fumehood.toml` at `start` or above it. The search ends at the home folder, where the
/// file system changes, and at folders that are shared by all.
pub(crate) fn find(start: &Path, home: Option<&Path>) -> Option<PathBuf> {
    let start = &real_path(start)?;
    let device = fs::metadata(start).ok()?.dev();
    for folder in start.ancestors() {
        let facts = fs::metadata(folder).ok()?;
        let shared = facts.mode() & SHARED == SHARED;
        if facts.dev() != device || (shared && folder != start) {
            return None;
        }
        let file = folder.join(FILE_NAME);
        if fs::symlink_metadata(&file).is_ok() {
            return Some(file);
        }
        if Some(folder) == home {
            return None;
        }
    }
    None
}

/// Parents by name are not parents where there is a link or `..` on the way.
#[expect(
    clippy::disallowed_methods,
    reason = "finds a file that is then read once and judged by its content"
)]
pub(crate) fn real_path(path: &Path) -> Option<PathBuf> {
    fs::canonicalize(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_file_is_found_and_the_search_ends_at_home() {
        let top = tempfile::tempdir().unwrap();
        let deep = top.path().join("home/project/src");
        fs::create_dir_all(&deep).unwrap();
        fs::write(top.path().join(FILE_NAME), "").unwrap();
        let home = top.path().join("home");
        assert_eq!(find(&deep, Some(&home)), None);
        fs::write(home.join("project").join(FILE_NAME), "").unwrap();
        assert_eq!(find(&deep, Some(&home)), Some(home.join("project").join(FILE_NAME)));
        assert_eq!(find(&deep, None), Some(home.join("project").join(FILE_NAME)));
    }
}
