//! Host paths that no sandbox may have, and why: the one table, by name alone.
//!
//! The check of an envelope asks it about a path as written; whoever can look at the host asks it
//! again about the place where the path really leads, with [`refused`].

use super::{Defaults, WorkspaceMode};
use std::fmt;
use std::path::{Path, PathBuf};

/// Host folders that give away the host: exact, and everything beneath.
const SECRETS: [(&str, &str); 6] = [
    ("/proc", "it shows the host's processes and their open files"),
    ("/sys", "it shows, and controls, the host's kernel"),
    ("/dev", "it holds the host's devices"),
    ("/run/user", "it holds the sockets of your keys and your desktop"),
    ("/var/run/user", "it holds the sockets of your keys and your desktop"),
    ("/boot", "it holds the host's kernel"),
];
/// Host folders that may not be shown whole.
const WHOLES: [(&str, &str); 3] = [
    ("/", "it is the whole host"),
    ("/run", "it holds the control sockets of the host's services"),
    ("/var/run", "it holds the control sockets of the host's services"),
];
/// Sockets that command the host, beneath `/run` and `/var/run`.
const CONTROL_SOCKETS: [&str; 8] =
    ["docker.sock", "podman", "containerd", "crio", "dbus", "systemd", "libvirt", "snapd.socket"];
/// Host folders that belong to the system, themselves: people do keep work beneath them.
const SYSTEM_FOLDERS: [&str; 8] =
    ["/usr", "/usr/local", "/var", "/var/lib", "/var/cache", "/var/log", "/opt", "/home"];
/// Host folders that belong to the system with everything beneath: what is written there is executed
/// or obeyed by the host.
const SYSTEM_TREES: [&str; 16] = [
    "/etc",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libx32",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/var/spool",
];

/// What a host path is named for: each use has its own refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostUse {
    /// It is seen inside and never written: a view, an input, an image.
    Shown,
    /// It is the workspace.
    Workspace(WorkspaceMode),
    /// Outputs are collected into it.
    Output,
}

/// Why a host path is refused, for a sentence that begins with the path; and what to do instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRefusal {
    verdict: &'static str,
    why: &'static str,
    /// What to write instead.
    pub remedy: &'static str,
}

/// Why a sandbox may not have the absolute host path `path`, if there is a reason.
///
/// Nothing is looked up, and `..` is taken as a name: give it a path as written, with its `..`
/// collapsed, and as the kernel resolves it. The home and the state folder of `defaults` are compared
/// by name too, so that they are to be given in the same form.
pub fn refused(path: &Path, used: HostUse, defaults: &Defaults) -> Option<HostRefusal> {
    let shown = |why| HostRefusal {
        verdict: "can not be shown inside",
        why,
        remedy: "name the folder or the file beneath it that the work needs",
    };
    why_not_shown(path, defaults).map(shown).or_else(|| match used {
        HostUse::Shown | HostUse::Workspace(WorkspaceMode::ReadOnly) => None,
        HostUse::Workspace(WorkspaceMode::CopyOnWrite | WorkspaceMode::ReadWrite) => of_the_system(path)
            .then_some(HostRefusal {
                verdict: "can not be a workspace that is written",
                why: "it belongs to the system",
                remedy: "take it read-only (`:ro`), or work in a folder of your own",
            }),
        HostUse::Output => of_the_system(path).then_some(HostRefusal {
            verdict: "can not take outputs",
            why: "it belongs to the system",
            remedy: "name a folder of your own, such as `./out`",
        }),
    })
}

fn of_the_system(path: &Path) -> bool {
    SYSTEM_FOLDERS.iter().any(|folder| path == Path::new(folder))
        || SYSTEM_TREES.iter().any(|tree| path.starts_with(tree))
}

fn why_not_shown(path: &Path, defaults: &Defaults) -> Option<&'static str> {
    let whole = WHOLES.iter().find(|(folder, _)| path == Path::new(folder));
    let secret = SECRETS.iter().find(|(folder, _)| path.starts_with(folder));
    let socket = CONTROL_SOCKETS
        .iter()
        .any(|name| ["/run", "/var/run"].iter().any(|run| path.starts_with(Path::new(run).join(name))));
    let holds = |folder: &Option<PathBuf>| folder.as_deref().is_some_and(|folder| folder.starts_with(path));
    let in_state = defaults.state.as_deref().is_some_and(|state| path.starts_with(state));
    if let Some((_, why)) = whole.or(secret) {
        Some(why)
    } else if socket {
        Some("it is a control socket of the host")
    } else if holds(&defaults.home) {
        Some("it holds your home folder, with every key in it")
    } else if holds(&defaults.state) || in_state {
        Some("it holds the state of Fumehood itself")
    } else {
        None
    }
}

// === impl HostRefusal ===

impl fmt::Display for HostRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.verdict, self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(path: &str, used: HostUse) -> bool {
        refused(Path::new(path), used, &Defaults::for_tests()).is_some()
    }

    #[test]
    fn a_folder_of_the_system_is_shown_and_never_written() {
        let written = [
            HostUse::Workspace(WorkspaceMode::CopyOnWrite),
            HostUse::Workspace(WorkspaceMode::ReadWrite),
            HostUse::Output,
        ];
        for folder in [
            "/etc",
            "/etc/cron.d",
            "/usr",
            "/var",
            "/lib",
            "/usr/bin",
            "/usr/lib/systemd/system",
            "/var/spool/cron",
            "/opt",
        ] {
            for used in written {
                assert!(judged(folder, used), "{folder} {used:?}");
            }
            for used in [HostUse::Shown, HostUse::Workspace(WorkspaceMode::ReadOnly)] {
                assert!(!judged(folder, used), "{folder} {used:?}");
            }
        }
        for folder in ["/usr/src/app", "/var/www/site", "/opt/app", "/home/ann/work", "/srv", "/library"] {
            for used in written {
                assert!(!judged(folder, used), "{folder} {used:?}");
            }
        }
    }

    #[test]
    fn what_gives_away_the_host_is_refused_for_every_use() {
        for path in ["/", "/boot", "/proc/1/root", "/run/docker.sock", "/home", "/home/ann/.local/state"] {
            for used in [HostUse::Shown, HostUse::Workspace(WorkspaceMode::ReadOnly), HostUse::Output] {
                assert!(judged(path, used), "{path} {used:?}");
            }
        }
    }
}
