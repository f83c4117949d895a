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

/// One part of a check: its name, and what does it.
pub(crate) type Part = (&'static str, fn() -> Done);

/// Does the parts that are named, or all where none is. What one misses keeps no other from being shown; in the
/// end everything that was missed is told.
pub(crate) fn parts(all: &[Part], named: &[&str]) -> Done {
    if let Some(unknown) = named.iter().find(|name| all.iter().all(|(known, _)| known != *name)) {
        let known: Vec<&str> = all.iter().map(|(known, _)| *known).collect();
        return Err(format!("there is no part `{unknown}`; there are: {}", known.join(", ")).into());
    }
    let wanted = all.iter().filter(|(name, _)| named.is_empty() || named.contains(name));
    together(wanted.map(|(_, part)| part()))
}

/// One result of several: every miss of theirs.
pub(crate) fn together(results: impl IntoIterator<Item = Done>) -> Done {
    let missed: Vec<String> =
        results.into_iter().filter_map(Result::err).map(|problem| problem.to_string()).collect();
    if missed.is_empty() { Ok(()) } else { Err(missed.join("\n").into()) }
}

/// Runs this program once more, as somebody else or elsewhere. What it says of its misses is what was missed here.
pub(crate) fn again(command: &mut Command) -> Done {
    let child = command.stderr(std::process::Stdio::piped()).spawn()?;
    let ended = child.wait_with_output()?;
    let told = String::from_utf8_lossy(&ended.stderr);
    match (ended.status.success(), told.trim()) {
        (true, told) => {
            if !told.is_empty() {
                complain(told);
            }
            Ok(())
        }
        (false, "") => Err(format!("{command:?}: {}", ended.status).into()),
        (false, told) => Err(told.into()),
    }
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
/// One that is named by `FUMEHOOD_BENCH_BINARY` is taken instead, to see whether a bench works; its figures say nothing.
pub(crate) fn release() -> Result<PathBuf, Box<dyn Error>> {
    if let Some(named) = std::env::var_os("FUMEHOOD_BENCH_BINARY") {
        complain("the figures are of the binary that was named, not of a release");
        return Ok(named.into());
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_done_and_every_miss_is_told() {
        let all: [Part; 3] = [("a", || Err("one".into())), ("b", || Ok(())), ("c", || Err("two".into()))];
        assert_eq!(parts(&all, &[]).unwrap_err().to_string(), "one\ntwo");
        assert_eq!(parts(&all, &["c", "b"]).unwrap_err().to_string(), "two");
        assert!(parts(&all, &["b"]).is_ok());
        assert!(parts(&all, &["b", "d"]).unwrap_err().to_string().contains("`d`"));
    }

    #[test]
    fn what_another_of_us_missed_is_missed_here() {
        let shell = |script: &str| again(Command::new("sh").args(["-c", script]));
        assert!(shell("exit 0").is_ok());
        assert_eq!(shell("echo 'a: missed' >&2; exit 1").unwrap_err().to_string(), "a: missed");
        assert!(shell("exit 3").unwrap_err().to_string().contains("exit status: 3"));
    }
}
