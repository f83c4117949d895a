//! The parity matrix, written from the conformance run and from nothing else: level by level into `docs/levels.md`,
//! and against the references into `docs/parity.md`.

use crate::run::{self, Done};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

const HEAD: &str = "# What holds where\n\n\
Written by `cargo xtask conformance` from a run of the conformance list; do not edit.\n\n\
HELD, BREACHED and INCONCLUSIVE are what the host saw from outside; NOT-APPLICABLE means that the tool can \
not be asked, and GAP that a level is declared not to hold it. `no wall` is the control: a wall's case must be BREACHED there.\n";

/// The levels, weakest first.
const LEVELS: [&str; 5] = ["wasm", "process", "container", "gvisor", "microvm"];
/// Between these two the matrix of the levels stands.
const BEGIN: &str = "<!-- parity: written by `cargo xtask conformance`; do not edit -->";
const END: &str = "<!-- /parity -->";

/// Runs the list and writes the matrices. The run's own failures are reported after the matrix.
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
    let page = run::root().join("docs/levels.md");
    let text = std::fs::read_to_string(&page)?;
    std::fs::write(&page, between(&text, (BEGIN, END), &levels(&rows, &absent(&folders)?)?)?)?;
    run::say(&format!("conformance: {} cases in docs/parity.md and docs/levels.md", rows.len()));
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

/// What the tests left word of: levels that did not start for a caller, and why.
fn absent(folders: &[PathBuf]) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let mut lines = Vec::new();
    for entry in folders.iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten()) {
        if !entry.file_name().to_string_lossy().starts_with("absent-") {
            continue;
        }
        let told: Value = serde_json::from_str(&std::fs::read_to_string(entry.path())?)?;
        let why = told["absent"].as_str().unwrap_or_default();
        // What `doctor` found, if that is what was left.
        let found = serde_json::from_str::<Value>(why).ok();
        let why = found.as_ref().and_then(|found| found[0]["why"].as_str()).unwrap_or(why);
        lines.push(format!("{} does not start there: {why}", told["subject"].as_str().unwrap_or_default()));
    }
    lines.sort();
    Ok(lines)
}

/// A text with another matrix between its marks.
pub(crate) fn between(text: &str, (begin, end): (&str, &str), matrix: &str) -> Result<String, String> {
    let missing = || format!("the page has no `{begin}` … `{end}`");
    let (before, rest) = text.split_once(begin).ok_or_else(missing)?;
    let (_, after) = rest.split_once(end).ok_or_else(missing)?;
    Ok(format!("{before}{begin}\n\n{matrix}\n{end}{after}"))
}

/// One column a level. A cell is one word where both callers agree.
fn levels(
    rows: &BTreeMap<(usize, String), BTreeMap<String, Value>>,
    absent: &[String],
) -> Result<String, std::fmt::Error> {
    let mut text = format!("Kernel {}, {}.\n\n", kernel(), std::env::consts::ARCH);
    writeln!(text, "| case | {} |\n|---|{}", LEVELS.join(" | "), "---|".repeat(LEVELS.len()))?;
    let mut gaps = Gaps::new();
    for ((_, case), verdicts) in rows {
        let Some(first) = verdicts.values().next() else { continue };
        let cells = LEVELS.map(|level| cell(level, case, verdicts, &mut gaps));
        writeln!(
            text,
            "| {}: `{case}` | {} |",
            first["group"].as_str().unwrap_or_default(),
            cells.join(" | ")
        )?;
    }
    writeln!(text)?;
    for ((level, caller, word, why), cases) in gaps {
        let which = if cases.len() == rows.len() {
            "every case".to_owned()
        } else {
            cases.iter().map(|case| format!("`{case}`")).collect::<Vec<_>>().join(", ")
        };
        writeln!(text, "- `{level}` as {caller}, {which}: {word}: {why}")?;
    }
    for line in absent {
        writeln!(text, "- {line}")?;
    }
    Ok(text)
}

/// Cases that are not held, by level, caller, word and reason.
type Gaps = BTreeMap<(String, &'static str, String, String), Vec<String>>;

fn cell(level: &str, case: &str, verdicts: &BTreeMap<String, Value>, gaps: &mut Gaps) -> String {
    let mut words = Vec::new();
    for caller in ["root", "user"] {
        let Some(verdict) = verdicts.get(&format!("{level}, {caller}")) else { continue };
        let word = verdict["verdict"].as_str().unwrap_or_default().to_lowercase();
        if word != "held" {
            let reason = verdict["reason"].as_str().unwrap_or_default();
            let key = (level.to_owned(), caller, word.clone(), reason.to_owned());
            gaps.entry(key).or_default().push(case.to_owned());
        }
        words.push((caller, word));
    }
    match words.as_slice() {
        // It was not built in, or did not start on the host of this run.
        [] => "–".to_owned(),
        [(_, one)] => one.clone(),
        [(_, one), (_, other)] if one == other => one.clone(),
        more => more.iter().map(|(caller, word)| format!("{caller}: {word}")).collect::<Vec<_>>().join(", "),
    }
}

/// Its version says what it can do; the rest is its builder's name for it.
pub(crate) fn kernel() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    kernel.trim().split('-').next().unwrap_or_default().to_owned()
}

fn render(rows: &BTreeMap<(usize, String), BTreeMap<String, Value>>) -> Result<String, std::fmt::Error> {
    let mut text = format!("{HEAD}\nKernel {}, {}.\n", kernel(), std::env::consts::ARCH);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let text = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        assert_eq!(
            between(&text, (BEGIN, END), "new").unwrap(),
            format!("before\n{BEGIN}\n\nnew\n{END}\nafter\n")
        );
        assert!(between("no marks", (BEGIN, END), "new").is_err());
    }

    #[test]
    fn callers_that_differ_are_both_told() {
        let verdict = |word: &str| serde_json::json!({"verdict": word, "reason": "r"});
        let verdicts = BTreeMap::from([
            ("container, root".to_owned(), verdict("HELD")),
            ("container, user".to_owned(), verdict("GAP")),
        ]);
        let mut gaps = Gaps::new();
        assert_eq!(cell("container", "c", &verdicts, &mut gaps), "root: held, user: gap");
        let key = ("container".to_owned(), "user", "gap".to_owned(), "r".to_owned());
        assert_eq!(gaps.get(&key).unwrap(), &["c"]);
        assert_eq!(cell("gvisor", "c", &verdicts, &mut gaps), "–");
    }
}
