//! The self-test at every level that starts here, as root and as an ordinary user: the counts into `docs/prove.md`, and
//! each report, as a terminal shows it, into `docs/proof.md`.

use crate::conformance::{between, kernel};
use crate::run::{self, Done};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const LEVELS: [&str; 5] = ["wasm", "process", "container", "gvisor", "microvm"];
const WALLS: [&str; 7] = ["kernel", "files", "network", "credentials", "resources", "cleanup", "record"];
const BEGIN: &str = "<!-- prove: written by `cargo xtask prove`; do not edit -->";
const END: &str = "<!-- /prove -->";
const HEAD: &str = "# What the self-test found\n\n\
Written by `cargo xtask prove` from runs of `fumehood prove`; do not edit. What the words mean stands in [prove.md](prove.md). \
A result from another host is no result: run it on yours.\n";
/// An ordinary user that no account of a usual machine has.
const USER: &str = "12345";

/// One self-test: its report, and as a terminal shows it.
struct Proof {
    level: &'static str,
    caller: &'static str,
    /// Why there is none, or the report.
    report: Result<Value, String>,
    text: String,
}

/// Proves every level. `image` is a folder that machines stand on; without it they stand on this host's system.
pub(crate) fn write(image: Option<&str>) -> Done {
    let metadata = crate::metadata::read()?;
    let target = metadata["target_directory"].as_str().ok_or("cargo names no target folder")?;
    run::must(&mut run::cargo(&["build", "--locked", "--package", "fumehood"]))?;
    let folder = std::env::temp_dir().join(format!("fumehood-proof-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let made = proofs(Path::new(target), &folder, image);
    // What a self-test leaves is its record, which was read.
    std::fs::remove_dir_all(&folder)?;
    let proofs = made?;
    let page = run::root().join("docs/prove.md");
    let text = std::fs::read_to_string(&page)?;
    std::fs::write(&page, between(&text, (BEGIN, END), &counts(&proofs)?)?)?;
    std::fs::write(run::root().join("docs/proof.md"), reports(&proofs)?)?;
    let red = proofs.iter().filter(|proof| proof.report.as_ref().is_ok_and(|report| !green(report)));
    let red: Vec<String> = red.map(|proof| format!("{} as {}", proof.level, proof.caller)).collect();
    if red.is_empty() { Ok(()) } else { Err(format!("not every wall is held: {}", red.join(", ")).into()) }
}

fn green(report: &Value) -> bool {
    let count = |name: &str| report["counts"][name].as_u64().unwrap_or(0);
    count("held") > 0 && count("breached") + count("broken") == 0
}

fn proofs(
    target: &Path,
    folder: &Path,
    image: Option<&str>,
) -> Result<Vec<Proof>, Box<dyn std::error::Error>> {
    let built = target.join("x86_64-unknown-linux-gnu/debug/fumehood");
    let binary = folder.join("fumehood");
    std::fs::copy(built, &binary)?;
    let mut proofs = Vec::new();
    let root =
        std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    for caller in ["root", "user"] {
        let place = folder.join(caller);
        std::fs::create_dir(&place)?;
        if caller == "user" && root {
            run::must(Command::new("chown").arg(format!("{USER}:{USER}")).arg(&place))?;
        } else if caller == "root" && !root {
            continue;
        }
        for level in LEVELS {
            run::say(&format!("prove: {level} as {caller}"));
            proofs.push(proof(&binary, &place, (level, caller), image, caller == "user" && root)?);
        }
    }
    Ok(proofs)
}

fn proof(
    binary: &Path,
    place: &Path,
    (level, caller): (&'static str, &'static str),
    image: Option<&str>,
    lower: bool,
) -> Result<Proof, Box<dyn std::error::Error>> {
    let mut command = if lower {
        let mut command = Command::new("setpriv");
        command
            .args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups", "--"])
            .arg(binary);
        command
    } else {
        Command::new(binary)
    };
    command.args(["prove", "--level", level, "--json"]);
    if level == "microvm" {
        command.arg("--accept-tcg");
        command.args(image.iter().flat_map(|image| ["--image", *image]));
    }
    command
        .env("FUMEHOOD_STATE", place.join("state"))
        .env("HOME", place)
        .env("TMPDIR", place)
        .current_dir(place);
    let out = command.output()?;
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let report = serde_json::from_slice::<Value>(&out.stdout)
        .map_err(|_| said.lines().next().unwrap_or_default().trim_start_matches("fumehood: ").to_owned());
    let text = report.as_ref().map(table).unwrap_or_default();
    Ok(Proof { level, caller, report, text })
}

/// As a terminal shows it, without what this host's builder calls its kernel.
fn table(report: &Value) -> String {
    let word = |name: &str| report[name].as_str().unwrap_or_default().to_owned();
    let host = &report["host"];
    let mut text = format!(
        "fumehood {} at level {}, as {}, on Linux {} ({}), cgroups {}\npolicy {}\n",
        word("version"),
        word("level"),
        host["caller"].as_str().unwrap_or_default(),
        kernel(),
        host["arch"].as_str().unwrap_or_default(),
        host["cgroups"].as_str().unwrap_or_default(),
        word("policy_sha256").get(..16).unwrap_or_default(),
    );
    for wall in WALLS {
        let _ = writeln!(text, "\n{wall:<12}{} held", of(report, wall));
        for row in rows(report, wall) {
            let word = |name: &str| row[name].as_str().unwrap_or_default();
            let _ = writeln!(text, "  {:<6}{:<15}{}", word("id"), word("verdict"), word("tries"));
            if !word("reason").is_empty() {
                let _ = writeln!(text, "        {}", word("reason"));
            }
            for apart in row["apart"].as_array().into_iter().flatten() {
                let _ = writeln!(text, "        apart from {}", apart.as_str().unwrap_or_default());
            }
        }
    }
    text
}

fn rows<'a>(report: &'a Value, wall: &'a str) -> impl Iterator<Item = &'a Value> {
    report["rows"].as_array().into_iter().flatten().filter(move |row| row["wall"] == wall)
}

fn of(report: &Value, wall: &str) -> String {
    let count = |other: bool| {
        let counted = |row: &&Value| {
            let verdict = row["verdict"].as_str().unwrap_or_default();
            verdict == "HELD" || (other && verdict != "NOT-APPLICABLE")
        };
        rows(report, wall).filter(counted).count()
    };
    format!("{} of {}", count(false), count(true))
}

/// One line a level and caller.
fn counts(proofs: &[Proof]) -> Result<String, std::fmt::Error> {
    let mut text = format!(
        "Held of what could be asked, each with a control that turned red. Kernel {}, {}; the reports are in [proof.md](proof.md).\n\n",
        kernel(),
        std::env::consts::ARCH
    );
    writeln!(
        text,
        "| level | caller | {} | all | not applicable |\n|---|---|{}---|---|",
        WALLS.join(" | "),
        "---|".repeat(7)
    )?;
    let mut absent = Vec::new();
    for Proof { level, caller, report, .. } in proofs {
        match report {
            Ok(report) => {
                let counts = &report["counts"];
                let count = |name: &str| counts[name].as_u64().unwrap_or(0);
                let asked = count("held") + count("breached") + count("broken");
                let each = WALLS.map(|wall| of(report, wall)).join(" | ");
                let (held, none) = (count("held"), count("not_applicable"));
                writeln!(text, "| `{level}` | {caller} | {each} | {held} of {asked} | {none} |")?;
            }
            Err(why) => absent.push(format!("- `{level}` as {caller}: {why}")),
        }
    }
    if !absent.is_empty() {
        writeln!(text, "\n{}", absent.join("\n"))?;
    }
    Ok(text)
}

fn reports(proofs: &[Proof]) -> Result<String, std::fmt::Error> {
    let mut text = HEAD.to_owned();
    for proof in proofs.iter().filter(|proof| proof.report.is_ok()) {
        write!(text, "\n## `{}`, {}\n\n```text\n{}```\n", proof.level, proof.caller, proof.text)?;
    }
    Ok(text)
}

/// The folder that the tests of the level `microvm` made, if they did.
pub(crate) fn tested_root() -> Option<String> {
    let metadata = crate::metadata::read().ok()?;
    let target = PathBuf::from(metadata["target_directory"].as_str()?);
    let root = target.join("x86_64-unknown-linux-gnu/tmp/microvm/root");
    root.is_dir().then(|| root.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_is_counted_of_what_could_be_asked() {
        let row =
            |verdict: &str| serde_json::json!({"wall": "files", "verdict": verdict, "id": "F", "tries": "t"});
        let report = serde_json::json!({"rows": [row("HELD"), row("NOT-APPLICABLE"), row("BREACHED")]});
        assert_eq!(of(&report, "files"), "1 of 2");
        assert_eq!(of(&report, "kernel"), "0 of 0");
        assert!(!green(&report));
    }
}
