//! The parity matrix, written from the conformance run and from nothing else.

use crate::run::{self, Done};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

const HEAD: &str = "# What holds where\n\n\
Written by `cargo xtask conformance` from a run of the conformance list; do not edit.\n\n\
HELD, BREACHED and INCONCLUSIVE are what the host saw from outside; NOT-APPLICABLE means that the tool can \
not be asked. `no wall` is the control: a wall's case must be BREACHED there.\n";

/// Runs the list and writes `docs/parity.md`. The run's own failures are reported after the matrix.
pub(crate) fn write() -> Done {
    let metadata = crate::metadata::read()?;
    let target = metadata["target_directory"].as_str().ok_or("cargo names no target folder")?;
    let folders = ["tmp", "x86_64-unknown-linux-gnu/tmp"].map(|folder| Path::new(target).join(folder));
    // What an earlier run saw says nothing of this one.
    for file in folders.iter().flat_map(|folder| verdicts(folder)) {
        std::fs::remove_file(file)?;
    }
    let mut command =
        run::cargo(&["test", "--locked", "--package", "fumehood", "--test", "it", "--", "conformance::"]);
    let ran = run::must(&mut command);
    let mut rows: BTreeMap<(usize, String), BTreeMap<String, Value>> = BTreeMap::new();
    for folder in &folders {
        collect(folder, &mut rows)?;
    }
    let file = run::root().join("docs/parity.md");
    std::fs::create_dir_all(run::root().join("docs"))?;
    std::fs::write(&file, render(&rows)?)?;
    run::say(&format!("conformance: {} cases in docs/parity.md", rows.len()));
    ran
}

/// The files that the tests wrote, one a subject.
fn verdicts(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("conformance-"));
    ours.map(|entry| entry.path()).collect()
}

/// Reads each subject's verdicts; the key keeps the order of the list.
fn collect(folder: &Path, rows: &mut BTreeMap<(usize, String), BTreeMap<String, Value>>) -> Done {
    for file in verdicts(folder) {
        for (place, line) in std::fs::read_to_string(file)?.lines().enumerate() {
            let verdict: Value = serde_json::from_str(line)?;
            let case = verdict["case"].as_str().unwrap_or_default().to_owned();
            let subject = verdict["subject"].as_str().unwrap_or_default().to_owned();
            rows.entry((place, case)).or_default().insert(subject, verdict);
        }
    }
    Ok(())
}

fn render(rows: &BTreeMap<(usize, String), BTreeMap<String, Value>>) -> Result<String, std::fmt::Error> {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // Its version says what it can do; the rest is its builder's name for it.
    let kernel = kernel.trim().split('-').next().unwrap_or_default();
    let mut text = format!("{HEAD}\nKernel {kernel}, {}.\n", std::env::consts::ARCH);
    let mut subjects: Vec<&String> = rows.values().flat_map(BTreeMap::keys).collect();
    subjects.sort_unstable();
    subjects.dedup();
    let mut group = "";
    for ((_, case), verdicts) in rows {
        let Some(first) = verdicts.values().next() else { continue };
        let own = first["group"].as_str().unwrap_or_default();
        if own != group {
            group = own;
            let names = subjects.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" | ");
            write!(text, "\n## {own}\n\n| case | {names} |\n|---|{}\n", "---|".repeat(subjects.len()))?;
        }
        let words: Vec<_> = subjects
            .iter()
            .map(|name| verdicts.get(*name).and_then(|verdict| verdict["verdict"].as_str()).unwrap_or("–"))
            .collect();
        let says = first["says"].as_str().unwrap_or_default();
        writeln!(text, "| `{case}`: {says} | {} |", words.join(" | "))?;
    }
    Ok(text)
}
