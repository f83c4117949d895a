//! The `runsc` of this host: where it is, and which.

use fumehood_model::enforcement::{Clause, Unenforceable};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where a system keeps it. The caller's PATH is not asked: what stands there may not be root's.
const PLACES: [&str; 5] = [
    "/usr/local/sbin/runsc",
    "/usr/local/bin/runsc",
    "/usr/bin/runsc",
    "/usr/sbin/runsc",
    "/opt/gvisor/bin/runsc",
];

/// Releases are named by their day. The first one that runs in a user namespace of ours, without asking the host's root for anything.
const OLDEST: u32 = 20_230_601;
/// Releases before this one have flaws that are known to all.
const SOUND: u32 = 20_250_401;

const REMEDY: &str = "install gVisor's `runsc` (Debian: `apt-get install runsc/bookworm-backports`, or a release from gvisor.dev) into /usr/local/bin";

/// A `runsc` that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runsc {
    pub path: PathBuf,
    /// As it says itself: `20240729.0`.
    pub version: String,
    release: u32,
}

// === impl Runsc ===

impl Runsc {
    /// The one of this host. What it is, is written down in `notes` for as long as the file is the same: to ask
    /// it takes longer than everything else of a plan.
    ///
    /// # Errors
    /// There is none, or one that is too old, or that does not say what it is.
    pub fn find(notes: &Path) -> Result<Self, Unenforceable> {
        let places = PLACES.map(PathBuf::from);
        Self::first(&places, notes)
    }

    fn first(places: &[PathBuf], notes: &Path) -> Result<Self, Unenforceable> {
        let found = places.iter().find_map(|path| Some((path, fs::metadata(path).ok()?)));
        let (path, facts) = found
            .filter(|(_, facts)| facts.is_file())
            .ok_or_else(|| cannot("there is no `runsc` on this host".to_owned(), REMEDY))?;
        if facts.mode() & 0o022 != 0 || facts.uid() != 0 {
            let why = format!("`{}` could have been changed by others than root", path.display());
            return Err(cannot(why, "`chown root` and `chmod go-w` it, if it is what it should be"));
        }
        let mark = format!(
            "{} {} {} {} {}",
            path.display(),
            facts.dev(),
            facts.ino(),
            facts.size(),
            facts.mtime_nsec() ^ facts.mtime()
        );
        let note = notes.join("runsc");
        let known = fs::read_to_string(&note).unwrap_or_default();
        let said = match known.strip_prefix(&mark).and_then(|rest| rest.strip_prefix('\n')) {
            Some(said) => said.to_owned(),
            None => {
                let said = ask(path)?;
                // Without the note it is asked the next time.
                let _ = fs::write(note, format!("{mark}\n{said}"));
                said
            }
        };
        Self::judge(path, &said)
    }

    fn judge(path: &Path, said: &str) -> Result<Self, Unenforceable> {
        let Some((version, release)) = version(said) else {
            let why = format!("`{}` does not say which version it is", path.display());
            return Err(cannot(why, REMEDY));
        };
        if release < OLDEST {
            let why = format!(
                "`{}` is of version {version}, which is too old to be run without the host's root",
                path.display()
            );
            return Err(cannot(why, REMEDY));
        }
        Ok(Self { path: path.to_path_buf(), version: version.to_owned(), release })
    }

    /// What is known to be wrong with it.
    #[must_use]
    pub fn flaw(&self) -> Option<&'static str> {
        (self.release < SOUND)
            .then_some("older than April 2025: CVE-2025-2713 and later flaws are not mended in it")
    }

    /// In the words of an enforcement.
    #[must_use]
    pub fn describe(&self) -> String {
        let flaw = self.flaw().map(|flaw| format!(", {flaw}")).unwrap_or_default();
        format!("runsc {}{flaw}", self.version)
    }
}

fn ask(path: &Path) -> Result<String, Unenforceable> {
    let mut command = Command::new(path);
    let asked = command.arg("--version").env_clear().stdin(Stdio::null()).stderr(Stdio::null()).output();
    let output = asked
        .map_err(|error| cannot(format!("`{}` can not be executed: {error}", path.display()), REMEDY))?;
    Ok(String::from_utf8_lossy(output.stdout.get(..200).unwrap_or(&output.stdout)).into_owned())
}

/// `runsc version release-20240729.0`, or `0.0~20240729.0`: what follows the day's number is not compared.
fn version(said: &str) -> Option<(&str, u32)> {
    let word = said.lines().next()?.strip_prefix("runsc version ")?;
    let digits = word.find("20").and_then(|at| word.get(at..))?;
    let release = digits.get(..8)?.parse().ok()?;
    let end = digits.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(digits.len());
    Some((digits.get(..end)?, release))
}

pub(crate) fn cannot(why: String, remedy: &str) -> Unenforceable {
    Unenforceable { clause: Clause::Privilege, why, remedy: remedy.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn both_spellings_of_a_version_are_read() {
        assert_eq!(
            version("runsc version 0.0~20240729.0\nspec: 1.0.2-dev\n"),
            Some(("20240729.0", 20_240_729))
        );
        assert_eq!(version("runsc version release-20250505.0\n"), Some(("20250505.0", 20_250_505)));
        assert_eq!(version("runc version 1.1.5\n"), None);
        assert_eq!(version("runsc version VERSION_MISSING\n"), None);
    }

    #[test]
    fn what_is_missing_old_or_anybodys_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runsc");
        let notes = tempfile::tempdir().unwrap();
        let find = || Runsc::first(std::slice::from_ref(&path), notes.path());
        assert!(find().unwrap_err().why.contains("no `runsc`"));
        let program = |mode: u32, version: &str| {
            fs::write(&path, format!("#!/bin/sh\necho runsc version {version}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        program(0o755, "0.0~20221219.0");
        if fumehood_sys::host::euid() != 0 {
            assert!(find().unwrap_err().why.contains("changed by others"));
            return;
        }
        assert!(find().unwrap_err().why.contains("too old"));
        program(0o777, "release-20250505.0");
        assert!(find().unwrap_err().why.contains("changed by others"));
        program(0o755, "release-20250505.0");
        let sound = find().unwrap();
        assert_eq!((sound.version.as_str(), sound.flaw()), ("20250505.0", None));
        // From now on the file itself is not asked, until it is another.
        assert_eq!(find().unwrap(), sound);
        program(0o755, "release-20240729.0 ");
        assert!(find().unwrap().describe().contains("CVE"));
        program(0o755, "none");
        assert!(find().unwrap_err().why.contains("which version"));
    }
}
