//! A cgroup of one's own from the user's systemd, where nothing else gives one.
//!
//! An ordinary user may not make cgroups, but their systemd may: it starts us again in a scope that is
//! delegated to us. That costs some tens of milliseconds, and buys limits that the kernel holds.

use fumehood_backend_native::Hierarchy;
use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Says that we are in a scope already, or must not ask for one. Any value will do.
const ASKED: &str = "FUMEHOOD_SCOPE";

/// Starts this program again in a scope of its own, if that is possible and would help. Returns where it is
/// not, and then nothing has happened.
pub(crate) fn enter(name: &str, words: &[OsString]) {
    let asked = std::env::var_os(ASKED).is_some();
    if asked || fumehood_sys::host::euid() == 0 || !manager_answers() {
        return;
    }
    if !matches!(Hierarchy::find(), Hierarchy::None { .. }) {
        return;
    }
    let Some(starter) = starter() else { return };
    let Ok(program) = std::env::current_exe() else { return };
    // Only returns when it could not be started; then the limits are watched, and said to be.
    let _ = command(&starter, &program, name, words).exec();
}

fn command(starter: &Path, program: &Path, name: &str, words: &[OsString]) -> Command {
    let mut command = Command::new(starter);
    command.args(["--user", "--scope", "--quiet", "--collect", "--property=Delegate=yes", "--"]);
    command.arg(program).arg(name).args(words).env(ASKED, "entered");
    command
}

/// Whether the user's manager is there: its socket takes a connection.
fn manager_answers() -> bool {
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_absolute());
    folder.is_some_and(|folder| UnixStream::connect(folder.join("systemd/private")).is_ok())
}

/// Systemd's own program, from where systems have it and not from wherever PATH leads.
fn starter() -> Option<PathBuf> {
    ["/usr/bin/systemd-run", "/bin/systemd-run"].into_iter().map(PathBuf::from).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_passed_on_after_a_mark_and_the_scope_is_entered_once() {
        let words =
            [OsString::from("--mem"), OsString::from("1G"), OsString::from("--"), OsString::from("true")];
        let command = command(Path::new("/usr/bin/systemd-run"), Path::new("/opt/fumehood"), "run", &words);
        let said: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let mark = said.iter().position(|word| word == "--").unwrap();
        assert_eq!(said[mark + 1..], ["/opt/fumehood", "run", "--mem", "1G", "--", "true"]);
        assert!(said[..mark].contains(&"--property=Delegate=yes".to_owned()));
        assert!(command.get_envs().any(|(name, value)| name == ASKED && value.is_some()));
    }
}
