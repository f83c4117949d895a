//! A copy-on-write workspace of 5 GB and 50,000 files, beside an empty one: the start costs the same.

use crate::bench::Scratch;
use crate::measure::{Times, time};
use crate::run::{self, Done};
use std::fs::File;
use std::path::Path;
use std::process::Command;

const ROUNDS: usize = 100;
const FILES: usize = 50_000;
const BYTES: u64 = 5_000_000_000;
const MOST_MS: f64 = 2.0;

/// Measures both, interleaved.
pub(crate) fn large_beside_empty() -> Done {
    let binary = run::release()?;
    let scratch = Scratch::new()?;
    let (large, empty) = (scratch.0.join("large"), scratch.0.join("empty"));
    std::fs::create_dir_all(&empty)?;
    fill(&large)?;
    let mut both = [(large, Times::default()), (empty, Times::default())];
    for round in 0..ROUNDS + 5 {
        // In turn: whoever goes second meets warmer caches.
        both.reverse();
        for (folder, times) in &mut both {
            let mut command = Command::new(&binary);
            command.args(["run", "-q", "--workspace"]).arg(&*folder).args(["--", "/bin/true"]);
            command.env("HOME", &scratch.0).env("FUMEHOOD_STATE", scratch.0.join("state"));
            let elapsed = time(&mut command)?;
            if round >= 5 {
                times.add(elapsed);
            }
        }
    }
    if both.first().is_some_and(|(folder, _)| folder.ends_with("empty")) {
        both.reverse();
    }
    let [large, empty] = both.map(|(_, times)| times.quantile(0.5));
    let difference = large - empty;
    let line = serde_json::json!({
        "bench": "workspace", "rounds": ROUNDS, "files": FILES, "bytes": BYTES, "large_p50_ms": large,
        "empty_p50_ms": empty, "difference_ms": difference,
    });
    run::say(&line.to_string());
    run::say(&format!(
        "workspace: {large:.2} ms large, {empty:.2} ms empty, difference {difference:.2} of {MOST_MS}"
    ));
    if difference <= MOST_MS { Ok(()) } else { Err("workspace: missed".into()) }
}

/// Sparse files in a tree, so that only the shape is large.
fn fill(root: &Path) -> Done {
    let each = BYTES / u64::try_from(FILES)?;
    for number in 0..FILES {
        let folder = root.join(format!("d{}", number / 250));
        if number % 250 == 0 {
            std::fs::create_dir_all(&folder)?;
        }
        File::create(folder.join(format!("f{number}")))?.set_len(each)?;
    }
    Ok(())
}
