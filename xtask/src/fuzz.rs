//! Every fuzz target for a while: those that the manifest of the fuzz crate names.

use crate::run::{self, Done};
use std::process::Command;

/// Runs each target for `seconds`; all are run, whatever another one found.
pub(crate) fn smoke(seconds: &str) -> Done {
    let folder = run::root().join("fuzz");
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml"))?;
    let mut flaws = Vec::new();
    for target in targets(&manifest) {
        if let Err(problem) = run::must(Command::new(folder.join("run")).args([target, seconds])) {
            flaws.push(format!("fuzz: {target}: {problem}"));
        }
    }
    if flaws.is_empty() { Ok(()) } else { Err(flaws.join("\n").into()) }
}

/// The names of the binaries in the text of a manifest.
fn targets(manifest: &str) -> Vec<&str> {
    manifest
        .split("[[bin]]")
        .skip(1)
        .filter_map(|part| part.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"')))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binaries_of_a_manifest_are_found() {
        let manifest =
            "[package]\nname = \"x\"\n[[bin]]\nname = \"a\"\npath = \"a.rs\"\n[[bin]]\nname = \"b\"\n";
        assert_eq!(targets(manifest), ["a", "b"]);
    }
}
