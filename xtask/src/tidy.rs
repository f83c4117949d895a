//! The checks that no compiler makes: tiers, budgets, names, documentation.

use crate::{metadata, run};
use std::error::Error;
use std::path::Path;
use std::process::Command;

/// Each crate with its tier: a crate may build on lower tiers alone.
const TIERS: &[(&str, u8)] = &[
    ("fumehood-model", 0),
    ("fumehood-sys", 1),
    ("fumehood-audit", 1),
    ("fumehood-vault", 1),
    ("fumehood-keep", 1),
    ("fumehood-warm", 2),
    ("fumehood-prove", 2),
    ("fumehood-backend", 2),
    ("fumehood-image", 2),
    ("fumehood-egress", 2),
    ("fumehood-backend-native", 3),
    ("fumehood-guest", 3),
    ("fumehood-runtime", 3),
    ("fumehood-backend-gvisor", 4),
    ("fumehood-backend-microvm", 4),
    ("fumehood-backend-wasm", 4),
    ("fumehood-server", 4),
    ("fumehood", 5),
    ("xtask", 6),
];
const FILE_LINES: usize = 600;
const FUNCTION_LINES: usize = 80;
/// A reasoned `expect(clippy::too_many_lines)` may go to this.
const REASONED_LINES: usize = 120;
/// The daemon is a tenth of them: an HTTP server and a database that others keep well (ADR 0140).
const LOCKED_PACKAGES: usize = 380;
const EMPTY_NAMES: &[&str] = &["core", "common", "util", "utils", "helper", "helpers", "manager"];
/// Crates whose public items all carry documentation.
const DOCUMENTED: &[&str] =
    &["crates/model/src", "crates/backend/src", "crates/runtime/src", "crates/vault/src"];

/// Runs every check and reports every flaw at once.
pub(crate) fn check() -> run::Done {
    let mut flaws = Vec::new();
    tiers(&mut flaws)?;
    locked(&mut flaws)?;
    for file in
        run::output(Command::new("git").args(["ls-files", "-z"]).current_dir(run::root()))?.split('\0')
    {
        let Ok(text) = std::fs::read_to_string(run::root().join(file)) else { continue };
        stray_names(file, &text, &mut flaws);
        if file.ends_with(".rs") {
            budgets(file, &text, &mut flaws);
            module_names(file, &text, &mut flaws);
            if DOCUMENTED.iter().any(|folder| file.starts_with(folder)) && !file.ends_with("tests.rs") {
                documented(file, &text, &mut flaws);
            }
        }
    }
    if flaws.is_empty() {
        run::say("tidy: no flaw");
        return Ok(());
    }
    Err(format!("{}\ntidy: {} flaws", flaws.join("\n"), flaws.len()).into())
}

fn tiers(flaws: &mut Vec<String>) -> run::Done {
    let tier = |name: &str| TIERS.iter().find(|(crate_name, _)| *crate_name == name).map(|(_, tier)| *tier);
    for (name, uses) in metadata::edges(&metadata::read()?) {
        let Some(own) = tier(&name) else {
            flaws.push(format!("{name}: has no tier in xtask/src/tidy.rs"));
            continue;
        };
        for used in uses {
            if tier(&used).is_none_or(|lower| lower >= own) {
                flaws.push(format!("{name}: builds on {used}, which is not of a lower tier"));
            }
        }
        if name == "fumehood-runtime" && metadata_names_backend(&name)? {
            flaws.push(format!("{name}: names a backend"));
        }
    }
    Ok(())
}

/// Whether the engine's manifest names a level: the binary alone wires one.
fn metadata_names_backend(name: &str) -> Result<bool, Box<dyn Error>> {
    let folder = name.trim_start_matches("fumehood-");
    let manifest = std::fs::read_to_string(run::root().join("crates").join(folder).join("Cargo.toml"))?;
    Ok(manifest.contains("fumehood-backend-"))
}

fn locked(flaws: &mut Vec<String>) -> run::Done {
    let lock = std::fs::read_to_string(run::root().join("Cargo.lock"))?;
    let count = lock.lines().filter(|line| *line == "[[package]]").count();
    if count > LOCKED_PACKAGES {
        flaws.push(format!("Cargo.lock: {count} packages, of {LOCKED_PACKAGES}"));
    }
    Ok(())
}

/// Names of package registries' hosts, and paths of a machine that the work was done on.
fn stray_names(file: &str, text: &str, flaws: &mut Vec<String>) {
    if file == "Cargo.lock" || file.ends_with("/Cargo.lock") || file == "deny.toml" {
        return;
    }
    // In pieces, so that this file is not its own flaw.
    let stray = [
        ["crates", ".io"],
        ["pypi", ".org"],
        ["npmjs", ".com"],
        ["npmjs", ".org"],
        ["/work/", "main"],
        ["/work/", "shared"],
        ["/tmp/", "wt/"],
        ["/tmp/", "notes"],
    ];
    for [left, right] in stray {
        let word = format!("{left}{right}");
        for (number, _) in text.lines().enumerate().filter(|(_, line)| line.contains(&word)) {
            flaws.push(format!("{file}:{}: names `{word}`", number + 1));
        }
    }
}

fn budgets(file: &str, text: &str, flaws: &mut Vec<String>) {
    let lines = text.lines().count();
    let test = file.contains("/tests/") || file.ends_with("tests.rs");
    if lines > FILE_LINES && !test {
        flaws.push(format!("{file}: {lines} lines, of {FILE_LINES}"));
    }
    let mut start: Option<(usize, usize)> = None;
    let mut reasoned = false;
    for (number, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        reasoned |= line.contains("clippy::too_many_lines");
        if start.is_none() && is_function(line.trim_start()) && line.trim_end().ends_with('{') {
            start = Some((number, indent));
        }
        if let Some((first, depth)) = start
            && indent == depth
            && line.trim() == "}"
        {
            let length = number - first + 1;
            let most = if reasoned { REASONED_LINES } else { FUNCTION_LINES };
            if length > most && !test {
                flaws.push(format!("{file}:{}: a function of {length} lines, of {most}", first + 1));
            }
            (start, reasoned) = (None, false);
        }
    }
}

fn is_function(line: &str) -> bool {
    let words = ["pub ", "pub(crate) ", "pub(super) ", "const ", "unsafe ", "extern \"C\" "];
    let mut rest = line;
    while let Some(shorter) = words.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = shorter;
    }
    rest.starts_with("fn ")
}

fn module_names(file: &str, text: &str, flaws: &mut Vec<String>) {
    let stem = Path::new(file).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let folder = Path::new(file).parent().and_then(|folder| folder.file_name()?.to_str()).unwrap_or_default();
    for name in EMPTY_NAMES {
        let declared = text.lines().any(|line| line.trim_end().ends_with(&format!("mod {name} {{")));
        if stem == *name || (stem == "mod" && folder == *name) || declared {
            flaws.push(format!("{file}: `{name}` says nothing about what a module owns"));
        }
    }
}

/// A public item needs a comment above its attributes.
fn documented(file: &str, text: &str, flaws: &mut Vec<String>) {
    let items =
        ["pub fn ", "pub const fn ", "pub struct ", "pub enum ", "pub trait ", "pub const ", "pub type "];
    let mut before = "";
    for (number, line) in text.lines().enumerate() {
        let bare = line.trim_start();
        if bare == "mod tests {" {
            return;
        }
        if items.iter().any(|item| bare.starts_with(item)) && !before.starts_with("///") {
            flaws.push(format!("{file}:{}: a public item without documentation", number + 1));
        }
        let attribute = bare.starts_with("#[")
            || bare.starts_with(")]")
            || (before.starts_with("///") && bare.ends_with(','));
        if !attribute {
            before = bare;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_function_is_found() {
        let text = format!("pub(crate) fn long() {{\n{}}}\n", "    x();\n".repeat(90));
        let mut flaws = Vec::new();
        budgets("crates/x/src/lib.rs", &text, &mut flaws);
        assert_eq!(flaws, ["crates/x/src/lib.rs:1: a function of 92 lines, of 80"]);
    }

    #[test]
    fn an_undocumented_item_is_found_and_a_documented_one_is_not() {
        let mut flaws = Vec::new();
        documented("a.rs", "/// Said.\n#[derive(Debug)]\npub struct A;\npub struct B;\n", &mut flaws);
        assert_eq!(flaws, ["a.rs:4: a public item without documentation"]);
    }

    #[test]
    fn an_empty_name_is_found() {
        let mut flaws = Vec::new();
        module_names("crates/x/src/util.rs", "", &mut flaws);
        module_names("crates/x/src/common/mod.rs", "", &mut flaws);
        assert_eq!(flaws.len(), 2);
    }
}
