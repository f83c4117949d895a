//! The gvisor level beside `runsc run`: the benchmark of the level, held to its figures.

use crate::run::{self, Done};
use serde_json::Value;

/// Of what `runsc run` takes to its end, the most that a sandbox may take to its first output.
const MOST_OF_RUNSC: f64 = 0.8;
/// The most that a further command may take, in milliseconds.
const FURTHER_MS: f64 = 5.0;

/// Runs the benchmark, shows its line and what was made of it.
pub(crate) fn judge() -> Done {
    let mut command =
        run::cargo(&["bench", "--locked", "--package", "fumehood-backend-gvisor", "--bench", "engine"]);
    let told = run::output(&mut command)?;
    let line = told.lines().find(|line| line.starts_with("{\"bench\":\"gvisor\""));
    let line = line.ok_or("gvisor: the benchmark printed no figures")?;
    run::say(line);
    let flaws = missed(&serde_json::from_str(line)?);
    if flaws.is_empty() { Ok(()) } else { Err(flaws.join("\n").into()) }
}

/// What the figures miss; a figure that is not there is missed.
fn missed(figures: &Value) -> Vec<String> {
    let p50 = |name: &str| figures[name]["p50_ms"].as_f64().unwrap_or(f64::NAN);
    let ratio = p50("first") / p50("runsc_whole");
    let also = p50("first") / p50("runsc_first");
    let further = p50("further");
    run::say(&format!(
        "gvisor: first output at {ratio:.2} of `runsc run` (its own first output: {also:.2}), of {MOST_OF_RUNSC}; \
         a further command {further:.2} ms, of {FURTHER_MS}"
    ));
    let mut missed = Vec::new();
    // What is no number is missed as well.
    if !(ratio <= MOST_OF_RUNSC) {
        missed.push(format!("gvisor: first output at {ratio:.2} of `runsc run`: missed"));
    }
    if !(further <= FURTHER_MS) {
        missed.push(format!("gvisor: a further command takes {further:.2} ms: missed"));
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_and_missing_figures_are_missed() {
        let figures = |first: f64, further: f64| {
            let text = format!(
                r#"{{"first":{{"p50_ms":{first}}},"further":{{"p50_ms":{further}}},"runsc_whole":{{"p50_ms":100}}}}"#
            );
            missed(&serde_json::from_str(&text).unwrap()).len()
        };
        assert_eq!(figures(70.0, 2.0), 0);
        assert_eq!(figures(90.0, 2.0), 1);
        assert_eq!(figures(90.0, 6.0), 2);
        assert_eq!(missed(&Value::Null).len(), 2);
    }
}
