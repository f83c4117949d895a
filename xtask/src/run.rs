//! Starting other programs, and saying what happened.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How every command here ends.
pub(crate) type Done = Result<(), Box<dyn Error>>;

/// The top of the repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The cargo that runs this.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// Runs to a good end, or says which command did not.
pub(crate) fn must(command: &mut Command) -> Done {
    let status = command.status()?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}").into()) }
}

/// The standard output of a command that must succeed.
pub(crate) fn output(command: &mut Command) -> Result<String, Box<dyn Error>> {
    let output = command.output()?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{command:?}: {}\n{told}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// One line on standard output.
pub(crate) fn say(line: &str) {
    // Whoever reads may go away; there is no one else to tell.
    drop(writeln!(std::io::stdout(), "{line}"));
}

/// One line on standard error.
pub(crate) fn complain(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// The release binary, built now.
pub(crate) fn release() -> Result<PathBuf, Box<dyn Error>> {
    must(&mut cargo(&["build", "--release", "--package", "fumehood"]))?;
    let metadata = crate::metadata::read()?;
    let folder = metadata["target_directory"].as_str().ok_or("cargo names no target folder")?;
    Ok(Path::new(folder).join("x86_64-unknown-linux-gnu/release/fumehood"))
}

/// Where a program is, along a plain search path.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|place| place.is_file())
}
