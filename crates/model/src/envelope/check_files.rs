//! The check of the filesystem clause.

use super::paths::{self, PathFlaw, WORKSPACE};
use super::{
    Access, Cache, Defaults, Filesystem, FilesystemSpec, Flaw, HostUse, Input, Mount, Root, Workspace,
    WorkspaceMode,
};
use crate::image::{self, ImageRoot, Reference, Version};
use crate::text::shown;
use std::path::{Path, PathBuf};

/// What stands where inside, gathered to find two things at one place.
#[derive(Debug)]
struct Place {
    field: &'static str,
    entry: usize,
    at: PathBuf,
    /// A copied file: nothing can stand beneath it.
    file: bool,
}

/// Every flaw of the clause goes to `flaws`; `None` only together with one.
pub(super) fn filesystem(
    spec: &FilesystemSpec,
    defaults: &Defaults,
    flaws: &mut Vec<Flaw>,
) -> Option<Filesystem> {
    let before = flaws.len();
    let mode = spec.workspace_mode.unwrap_or(WorkspaceMode::CopyOnWrite);
    let mut one = |field, text: &Option<String>, used| {
        named(field, paths::source(text.as_deref()?, used, defaults), flaws)
    };
    let source = one("filesystem.workspace", &spec.workspace, HostUse::Workspace(mode));
    let output = one("filesystem.output", &spec.output, HostUse::Output);
    let root = root(spec.image.as_deref(), defaults, flaws);
    let workspace = source.map(|source| Workspace { source, mode });
    let mounts = mounts(spec, defaults, flaws);
    let inputs = inputs(spec, defaults, flaws);
    let caches = caches(spec, defaults, flaws);
    session(spec.session.as_deref(), flaws);
    output_beside_workspace(output.as_deref(), workspace.as_ref(), flaws);
    inputs_can_land(&inputs, &mounts, workspace.as_ref(), flaws);
    one_thing_a_place(&gather(&mounts, &inputs, &caches), flaws);
    (flaws.len() == before).then(|| Filesystem {
        root: root.unwrap_or(Root::HostSystem),
        workspace,
        mounts: mounts.into_iter().map(|(_, mount)| mount).collect(),
        inputs: inputs.into_iter().map(|(_, input)| input).collect(),
        output,
        caches: caches.into_iter().map(|(_, cache)| cache).collect(),
        session: spec.session.clone(),
    })
}

/// The value, or its flaw among the others.
fn named<T>(field: &'static str, read: Result<T, PathFlaw>, flaws: &mut Vec<Flaw>) -> Option<T> {
    read.map_err(|PathFlaw { what, remedy }| flaws.push(Flaw::new(field, what, remedy))).ok()
}

/// The same for an entry of a list.
fn listed<T>(
    field: &'static str,
    entry: usize,
    read: Result<T, PathFlaw>,
    flaws: &mut Vec<Flaw>,
) -> Option<(usize, T)> {
    read.map(|value| (entry, value))
        .map_err(|PathFlaw { what, remedy }| flaws.push(Flaw::new(field, what, remedy).at(entry)))
        .ok()
}

/// A folder, or the name of an image that is in the store.
fn root(written: Option<&str>, defaults: &Defaults, flaws: &mut Vec<Flaw>) -> Option<Root> {
    const FIELD: &str = "filesystem.image";
    let text = written?;
    if image::is_folder(text) {
        return named(FIELD, paths::source(text, HostUse::Shown, defaults), flaws).map(Root::Directory);
    }
    named(FIELD, stored(text, defaults), flaws).map(Root::Image)
}

fn stored(text: &str, defaults: &Defaults) -> Result<ImageRoot, PathFlaw> {
    let name = Reference::parse(text).map_err(|flaw| PathFlaw {
        what: format!("`{}` names no image: {flaw}", shown(text)),
        remedy: "write `NAME:TAG`, as in `python:3.12`; a folder begins with `./` or `/`".to_owned(),
    })?;
    let by_digest = match name.version() {
        Version::Digest(digest) => defaults.images.get(&format!("@{digest}")),
        Version::Tag(_) => None,
    };
    let found = defaults.images.get(&name.to_string()).or(by_digest).ok_or_else(|| PathFlaw {
        what: format!("there is no image `{}` in the store", shown(&name.short())),
        remedy: format!(
            "`fumehood image pull {0}` brings it, or `--pull`; a folder is written `./{0}`",
            shown(text)
        ),
    })?;
    Ok(ImageRoot { name: name.to_string(), ..found.clone() })
}

fn mounts(spec: &FilesystemSpec, defaults: &Defaults, flaws: &mut Vec<Flaw>) -> Vec<(usize, Mount)> {
    let read = |text: &String| {
        let (source, place) = paths::split(text);
        let source = paths::source(source, HostUse::Shown, defaults)?;
        let at = match place {
            Some(place) => paths::guest(place, defaults)?,
            // Without a place of its own it is seen where the host has it; `..` can only go by name.
            None => {
                let same = paths::collapse(&source).unwrap_or_default();
                paths::guest(&same.to_string_lossy(), defaults)?
            }
        };
        Ok(Mount { source, at, access: Access::Read })
    };
    let entries = spec.read_only.iter().enumerate();
    entries.filter_map(|(entry, text)| listed("filesystem.read-only", entry, read(text), flaws)).collect()
}

fn inputs(spec: &FilesystemSpec, defaults: &Defaults, flaws: &mut Vec<Flaw>) -> Vec<(usize, Input)> {
    let read = |text: &String| {
        let (source, place) = paths::split(text);
        let source = paths::source(source, HostUse::Shown, defaults)?;
        let at = match place {
            Some(place) => paths::guest(place, defaults)?,
            None => paths::beneath_workspace(&source)?,
        };
        Ok(Input { source, at })
    };
    let entries = spec.inputs.iter().enumerate();
    entries.filter_map(|(entry, text)| listed("filesystem.inputs", entry, read(text), flaws)).collect()
}

fn caches(spec: &FilesystemSpec, defaults: &Defaults, flaws: &mut Vec<Flaw>) -> Vec<(usize, Cache)> {
    let read = |text: &String| match text.as_str() {
        "npm" => Ok(Cache::Npm),
        "pip" => Ok(Cache::Pip),
        "cargo" => Ok(Cache::Cargo),
        folder if folder.starts_with('/') => paths::guest(folder, defaults).map(Cache::Directory),
        other => Err(PathFlaw {
            what: format!("`{}` is not a cache", shown(other)),
            remedy: "write `npm`, `pip`, `cargo`, or an absolute folder inside".to_owned(),
        }),
    };
    let mut caches: Vec<(usize, Cache)> = Vec::new();
    for (entry, text) in spec.caches.iter().enumerate() {
        let Some((entry, cache)) = listed("filesystem.caches", entry, read(text), flaws) else { continue };
        if caches.iter().any(|(_, other)| *other == cache) {
            let what = format!("`{}` is named twice", shown(text));
            flaws.push(Flaw::new("filesystem.caches", what, "name it once").at(entry));
        } else {
            caches.push((entry, cache));
        }
    }
    caches
}

fn session(name: Option<&str>, flaws: &mut Vec<Flaw>) {
    let Some(name) = name else { return };
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let good = name.bytes().next().is_some_and(plain)
        && name.len() <= 64
        && name.bytes().all(|byte| plain(byte) || matches!(byte, b'.' | b'_' | b'-'));
    if !good {
        let what = format!("`{}` is not the name of a session", shown(name));
        let remedy = "a name is up to 64 of `a-z`, `0-9`, `.`, `_`, `-`, and begins with a letter or digit";
        flaws.push(Flaw::new("filesystem.session", what, remedy));
    }
}

/// Outputs are collected without the care that `apply` takes with what host tools execute, so they
/// may go into a folder of the workspace and not over it.
fn output_beside_workspace(output: Option<&Path>, workspace: Option<&Workspace>, flaws: &mut Vec<Flaw>) {
    let (Some(output), Some(workspace)) = (output, workspace) else { return };
    let lexical = |path: &Path| paths::collapse(path).unwrap_or_default();
    if lexical(&workspace.source).starts_with(lexical(output)) {
        let what = format!("`{}` holds the workspace", shown(&output.to_string_lossy()));
        let remedy =
            "name a folder in it or beside it; changes to the workspace come back with `fumehood apply`";
        flaws.push(Flaw::new("filesystem.output", what, remedy));
    }
}

/// An input is copied: it needs a folder that can be written, and must not write to the host.
fn inputs_can_land(
    inputs: &[(usize, Input)],
    mounts: &[(usize, Mount)],
    workspace: Option<&Workspace>,
    flaws: &mut Vec<Flaw>,
) {
    for (entry, input) in inputs {
        let in_workspace = workspace.filter(|_| input.at.starts_with(WORKSPACE)).map(|held| held.mode);
        let in_view = mounts.iter().any(|(_, mount)| input.at != mount.at && input.at.starts_with(&mount.at));
        let why = match (in_view, in_workspace) {
            (true, _) => "is beneath a read-only view",
            (false, Some(WorkspaceMode::ReadOnly)) => "is in the read-only workspace",
            (false, Some(WorkspaceMode::ReadWrite)) => "would be written to the host's folder at once",
            (false, Some(WorkspaceMode::CopyOnWrite) | None) => continue,
        };
        let what = format!("the input `{}` {why}", shown(&input.at.to_string_lossy()));
        flaws.push(Flaw::new("filesystem.inputs", what, "say another place: `FILE:/input/NAME`").at(*entry));
    }
}

fn gather(mounts: &[(usize, Mount)], inputs: &[(usize, Input)], caches: &[(usize, Cache)]) -> Vec<Place> {
    let place = |field, entry: usize, at: &Path| Place { field, entry, at: at.to_owned(), file: false };
    let views = mounts.iter().map(|(entry, mount)| place("filesystem.read-only", *entry, &mount.at));
    let files = inputs
        .iter()
        .map(|(entry, input)| Place { file: true, ..place("filesystem.inputs", *entry, &input.at) });
    let folders = caches.iter().filter_map(|(entry, cache)| match cache {
        Cache::Directory(at) => Some(place("filesystem.caches", *entry, at)),
        Cache::Npm | Cache::Pip | Cache::Cargo => None,
    });
    views.chain(files).chain(folders).collect()
}

/// Two things at one place, or something beneath a file.
fn one_thing_a_place(places: &[Place], flaws: &mut Vec<Flaw>) {
    let beneath_file = |file: &Place, other: &Place| file.file && other.at.starts_with(&file.at);
    for (index, later) in places.iter().enumerate() {
        let clash = places.iter().take(index).find(|earlier| {
            earlier.at == later.at || beneath_file(earlier, later) || beneath_file(later, earlier)
        });
        if let Some(earlier) = clash {
            let text = |place: &Place| shown(&place.at.to_string_lossy());
            let what = if earlier.at == later.at {
                format!("two things would stand at `{}`", text(later))
            } else {
                format!("`{}` and `{}` can not both be there: one is a file", text(earlier), text(later))
            };
            flaws.push(Flaw::new(later.field, what, "give one of them another place").at(later.entry));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> FilesystemSpec {
        FilesystemSpec::default()
    }

    fn texts(entries: &[&str]) -> Vec<String> {
        entries.iter().map(|entry| (*entry).to_owned()).collect()
    }

    fn checked(spec: &FilesystemSpec) -> Result<Filesystem, Vec<Flaw>> {
        let mut flaws = Vec::new();
        filesystem(spec, &Defaults::for_tests(), &mut flaws).ok_or(flaws)
    }

    #[test]
    fn the_silent_clause_gives_nothing() {
        let files = checked(&spec()).expect("silence is good");
        assert!(files.root == Root::HostSystem && files.workspace.is_none() && files.mounts.is_empty());
        assert!(files.inputs.is_empty() && files.output.is_none() && files.caches.is_empty());
    }

    #[test]
    fn views_and_inputs_have_their_places() {
        let files = checked(&FilesystemSpec {
            read_only: texts(&["/srv/a", "../lib", "b:/data/b", "b:c"]),
            inputs: texts(&["/srv/data.csv", "x:in/x.csv"]),
            ..spec()
        })
        .expect("all are good");
        let places: Vec<_> = files.mounts.iter().map(|mount| mount.at.to_str()).collect();
        assert_eq!(places, [Some("/srv/a"), Some("/home/ann/lib"), Some("/data/b"), Some("/workspace/c")]);
        let places: Vec<_> = files.inputs.iter().map(|input| input.at.to_str()).collect();
        assert_eq!(places, [Some("/workspace/data.csv"), Some("/workspace/in/x.csv")]);
    }

    #[test]
    fn two_things_never_share_a_place() {
        for (read_only, inputs, caches) in [
            (texts(&["/a:/x", "/b:/x"]), texts(&[]), texts(&[])),
            (texts(&["/a:/x"]), texts(&["/b:/x"]), texts(&[])),
            (texts(&[]), texts(&["/b:/x", "/c:/x/y"]), texts(&[])),
            (texts(&["/a:/x/y"]), texts(&["/b:/x"]), texts(&[])),
            (texts(&["/a:/x"]), texts(&["/b:/x/y"]), texts(&[])),
            (texts(&["/a:/x"]), texts(&[]), texts(&["/x"])),
            (texts(&[]), texts(&[]), texts(&["npm", "npm"])),
        ] {
            let wrong = checked(&FilesystemSpec { read_only, inputs, caches, ..spec() });
            assert_eq!(wrong.as_ref().map_err(Vec::len), Err(1), "{wrong:?}");
        }
        let near = FilesystemSpec { read_only: texts(&["/a:/x", "/b:/x/y", "/c:/xy"]), ..spec() };
        assert!(checked(&near).is_ok());
    }

    #[test]
    fn inputs_never_write_to_the_host() {
        let with = |mode, inputs: &[&str]| {
            let workspace = Some(".".to_owned());
            checked(&FilesystemSpec {
                workspace,
                workspace_mode: Some(mode),
                inputs: texts(inputs),
                ..spec()
            })
        };
        assert!(with(WorkspaceMode::CopyOnWrite, &["/srv/x"]).is_ok());
        assert!(with(WorkspaceMode::ReadOnly, &["/srv/x"]).is_err());
        assert!(with(WorkspaceMode::ReadWrite, &["/srv/x"]).is_err());
        assert!(with(WorkspaceMode::ReadWrite, &["/srv/x:/input/x"]).is_ok());
    }

    #[test]
    fn outputs_do_not_go_round_apply() {
        let with = |output: &str| {
            checked(&FilesystemSpec {
                workspace: Some(".".to_owned()),
                output: Some(output.to_owned()),
                ..spec()
            })
        };
        for bad in [".", "./x/..", "/home/ann/work"] {
            assert!(with(bad).is_err(), "{bad}");
        }
        assert!(with("out").is_ok() && with("/srv/out").is_ok());
    }

    #[test]
    fn names_of_sessions_and_caches_are_plain() {
        for bad in ["", ".", "..", "../x", "A", "-x", "a/b", "é", "a\0", &"a".repeat(65)] {
            assert!(checked(&FilesystemSpec { session: Some(bad.to_owned()), ..spec() }).is_err(), "{bad:?}");
        }
        assert!(checked(&FilesystemSpec { session: Some("a.b_c-9".to_owned()), ..spec() }).is_ok());
        for bad in ["yarn", "", "/", "/proc", "/tmp", "relative"] {
            assert!(checked(&FilesystemSpec { caches: texts(&[bad]), ..spec() }).is_err(), "{bad:?}");
        }
    }
}
