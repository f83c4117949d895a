//! What the host contributes: its memory, its processors, its terminal, its user.

use crate::command::RunArguments;
use crate::refusal::Refusal;
use fumehood_model::envelope::{Defaults, Preset};
use fumehood_model::exec::WindowSize;
use fumehood_runtime::presets;
use fumehood_sys::host::{euid, memory_bytes, processors};
use fumehood_sys::terminal;
use std::collections::BTreeMap;
use std::fs;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A program that asks for JSON waits for the answer: a minute, unless it says otherwise.
const JSON_TIMEOUT: Duration = Duration::from_secs(60);
/// Nobody is there to press Ctrl-C, and builds are long.
const UNATTENDED_TIMEOUT: Duration = Duration::from_secs(3600);
/// A captured stream is held in memory, on its way to one JSON text.
const CAPTURED_OUTPUT_BYTES: u64 = 16 << 20;
/// A streamed one is only counted: pipelines of large files go through whole.
const STREAMED_OUTPUT_BYTES: u64 = 1 << 40;
/// The size of a terminal that does not say.
const USUAL_SIZE: WindowSize = WindowSize { rows: 24, columns: 80 };

/// Which of our streams are terminals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terminals {
    pub(crate) stdin: bool,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
}

/// Folders of the host that a run starts from.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    pub(crate) cwd: PathBuf,
    pub(crate) home: Option<PathBuf>,
    /// The state folder, whether it is there yet or not.
    pub(crate) state: Option<PathBuf>,
}

// === impl Places ===

impl Places {
    /// Where we stand.
    pub(crate) fn now() -> Result<Self, Refusal> {
        let cwd = std::env::current_dir().map_err(|error| {
            let why = format!("the current folder is gone or can not be read: {error}");
            Refusal::new("read the arguments", why, "`cd` to a folder that is there")
        })?;
        let home = home();
        let state = state_root(home.as_deref());
        Ok(Self { cwd, home, state })
    }
}

// === impl Terminals ===

impl Terminals {
    /// Asks the kernel.
    pub(crate) fn now() -> Self {
        Self {
            stdin: std::io::stdin().is_terminal(),
            stdout: std::io::stdout().is_terminal(),
            stderr: std::io::stderr().is_terminal(),
        }
    }

    /// Whether the command gets a terminal of its own.
    pub(crate) fn wanted(self, args: &RunArguments) -> bool {
        let natural = self.stdin && self.stdout && !args.json;
        (natural || args.tty) && !args.no_tty && !args.tape
    }

    /// Whether somebody is there to end a run by hand.
    fn attended(self) -> bool {
        self.stdin || self.stdout || self.stderr
    }
}

/// The defaults of an envelope here and now.
pub(crate) fn defaults(args: &RunArguments, terminals: Terminals, places: &Places) -> Defaults {
    let timeout = if args.json {
        Some(JSON_TIMEOUT)
    } else if terminals.attended() {
        None
    } else {
        Some(UNATTENDED_TIMEOUT)
    };
    Defaults {
        base: places.cwd.clone(),
        home: places.home.clone(),
        state: places.state.clone(),
        host_memory_bytes: memory_bytes(),
        host_cpus: processors(),
        timeout,
        output_bytes: if args.json { CAPTURED_OUTPUT_BYTES } else { STREAMED_OUTPUT_BYTES },
        presets: BTreeMap::new(),
        images: BTreeMap::new(),
    }
}

/// What the presets of rules mean here. Read only for who names one: most runs do not.
pub(crate) fn presets(home: Option<&Path>) -> Result<BTreeMap<String, Preset>, Refusal> {
    let variable = |name: &str| std::env::var_os(name);
    let home = home.unwrap_or(Path::new("/nonexistent"));
    let places = presets::Places { home, system: Path::new("/"), variable: &variable };
    presets::presets(&places).map_err(|error| {
        Refusal::new(
            "read the presets",
            error.to_string(),
            "write `[presets]` with `name = [\"RULE\"]` lines",
        )
    })
}

/// The home folder: HOME where it is ours, else what `/etc/passwd` says.
pub(crate) fn home() -> Option<PathBuf> {
    let uid = euid();
    let ours = |path: &Path| path.is_absolute() && fs::metadata(path).is_ok_and(|facts| facts.uid() == uid);
    let named = std::env::var_os("HOME").map(PathBuf::from).filter(|home| ours(home));
    named.or_else(|| passwd_home(&fs::read_to_string("/etc/passwd").ok()?, uid))
}

/// Our state folder: where it is told to be, or where the kind of user has it.
pub(crate) fn state_root(home: Option<&Path>) -> Option<PathBuf> {
    let absolute =
        |name| std::env::var_os(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute());
    absolute("FUMEHOOD_STATE").or_else(|| match euid() {
        0 => Some(PathBuf::from("/var/lib/fumehood")),
        _ => absolute("XDG_STATE_HOME")
            .or_else(|| Some(home?.join(".local/state")))
            .map(|folder| folder.join("fumehood")),
    })
}

/// The size of our terminal: of the first of our streams that is one.
pub(crate) fn window_size() -> WindowSize {
    let size =
        terminal::size(std::io::stdin().as_fd()).or_else(|_| terminal::size(std::io::stdout().as_fd())).ok();
    match size {
        Some((rows, columns)) if rows > 0 && columns > 0 => WindowSize { rows, columns },
        Some(_) | None => USUAL_SIZE,
    }
}

fn passwd_home(passwd: &str, uid: u32) -> Option<PathBuf> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let owner: u32 = fields.nth(2)?.parse().ok()?;
        let home = fields.nth(2)?;
        (owner == uid && home.starts_with('/')).then(|| PathBuf::from(home))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_found_without_a_name_service() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(passwd_home(passwd, 1000), Some(PathBuf::from("/home/ann")));
        assert_eq!(passwd_home(passwd, 7), None);
    }

    #[test]
    fn a_terminal_is_given_where_both_ends_are_one() {
        let both = Terminals { stdin: true, stdout: true, stderr: true };
        let none = Terminals { stdin: false, stdout: false, stderr: false };
        let plain = RunArguments::default();
        assert!(both.wanted(&plain));
        assert!(!none.wanted(&plain));
        assert!(!both.wanted(&RunArguments { json: true, ..RunArguments::default() }));
        assert!(none.wanted(&RunArguments { tty: true, ..RunArguments::default() }));
    }
}
