//! No room left: on the host's side of a collection, and for names inside.

use super::bench::{Bench, Job, Wall};
use super::{open, probes};
use crate::lab::{self, Caller};
use fumehood_backend::conformance::Verdict;
use std::path::Path;
use std::process::Command;

probes! {
    f31_full_disk => f31, control f31_control;
    r03_names_in_scratch => |b: &Bench| r03(b, "/tmp"), control open!(|b: &Bench| r03(b, "."));
    r03_names_in_the_workspace => |b: &Bench| r03(b, "."), control open!(|b: &Bench| r03(b, "."));
}

/// More than the output folder's whole file system holds. Zeros would not do: holes are kept.
const LARGE: u64 = 4 << 20;
/// More names than a limit of 64 MiB leaves room for.
const NAMES: u64 = 60_000;

/// Runs a job in a mount namespace where `collected` is a file system of 1 MiB; what it told, and each
/// file in that folder with its size.
fn beside_a_tiny_disk(bench: &Bench, job: &Job, collected: &Path) -> (String, String) {
    let inner = bench.command(job);
    let script = "mount -t tmpfs -o size=1m,mode=0777 none \"$1\"; d=$1; r=$2; shift 2; \"$@\" > \"$r\" 2>&1; \
                  find \"$d\" -mindepth 1 -printf '%P %s\\n'; echo looked";
    let told = bench.lab.path().join("told");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(collected).arg(&told);
    command.arg(inner.get_program()).args(inner.get_args()).env_clear();
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(place) = inner.get_current_dir() {
        command.current_dir(place);
    }
    let listed = lab::finish(command, b"").out();
    (std::fs::read_to_string(told).unwrap_or_default(), listed)
}

fn f31(bench: &Bench) -> Verdict {
    if !lab::am_root() {
        return Verdict::NotApplicable("a tiny file system needs root".to_owned());
    }
    let collected = bench.lab.folder("collected");
    let job = Job::new(format!("head -c {LARGE} /dev/urandom > /out/large"))
        .flags(["--out", collected.to_str().unwrap()]);
    let (told, listed) = beside_a_tiny_disk(bench, &job, &collected);
    match listed.as_str() {
        // Nothing appeared; the report must say what and why.
        "looked\n" if told.contains("not_collected") && told.contains("No space left") => Verdict::Held,
        "looked\n" => Verdict::Breached(format!("the loss was not told: {told}")),
        _ if listed.ends_with("looked\n") => Verdict::Breached(format!("a part stayed: {listed}")),
        _ => Verdict::Inconclusive(format!("{listed}\n{told}")),
    }
}

fn f31_control() -> Verdict {
    if !Caller::Root.available() {
        return Verdict::NotApplicable("the control needs root".to_owned());
    }
    let bench = Bench::new(Caller::Root, Wall::Open);
    let collected = bench.lab.folder("collected");
    let job = Job::new(format!("head -c {LARGE} /dev/urandom > {}/large", collected.display()));
    let (told, listed) = beside_a_tiny_disk(&bench, &job, &collected);
    if listed.starts_with("large ") { Verdict::Breached(listed) } else { Verdict::Inconclusive(told) }
}

/// Empty files take no bytes, and the host's file systems have a last one all the same. Where bytes are
/// watched, the watch looks once a second: the script stays for that.
fn r03(bench: &Bench, folder: &str) -> Verdict {
    let project = bench.lab.folder("project");
    let script = format!(
        "cd {folder}; mkdir names; cd names; perl -e 'for $i (1..{NAMES}) {{ open(F, \">\", $i) or last; close F; $n++ }} \
         print \"made $n\\n\"'; sleep 3; cd ..; rm -r names"
    );
    let came = bench.run(&Job::new(script).flags([
        "--disk",
        "64MiB",
        "--mem",
        "512MiB",
        "--workspace",
        project.to_str().unwrap(),
    ]));
    match came.number("made ") {
        _ if came.cause() == "limit_passed" => Verdict::Held,
        Some(made) if u64::try_from(made) == Ok(NAMES) => {
            Verdict::Breached(format!("{NAMES} files were made under a limit of 64 MiB"))
        }
        Some(_) => came.finished(),
        None => came.unclear("the count was not told"),
    }
}
