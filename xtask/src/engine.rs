//! The engine alone, with prepared pools: the benchmark of the container level, held to its figures.

use crate::run::{self, Done};
use serde_json::Value;

/// Each figure with the most that its median may be, in milliseconds.
const MOST_MS: [(&str, f64); 2] = [("launch", 0.7), ("cycle", 1.2)];

/// Runs the benchmark, shows its line and what was made of it.
pub(crate) fn judge() -> Done {
    let mut command =
        run::cargo(&["bench", "--locked", "--package", "fumehood-backend-native", "--bench", "engine"]);
    let told = run::output(&mut command)?;
    let line = told.lines().find(|line| line.starts_with("{\"bench\":\"engine\""));
    let line = line.ok_or("engine: the benchmark printed no figures")?;
    run::say(line);
    let flaws = missed(&serde_json::from_str(line)?);
    if flaws.is_empty() { Ok(()) } else { Err(flaws.join("\n").into()) }
}

/// What the figures miss; a figure that is not there is missed.
fn missed(figures: &Value) -> Vec<String> {
    let mut missed = Vec::new();
    for (name, most) in MOST_MS {
        match figures[name]["p50_ms"].as_f64() {
            Some(p50) => {
                run::say(&format!("engine: {name} p50 {p50:.3} ms of {most}"));
                if p50 > most {
                    missed.push(format!("engine: {name} p50 {p50:.3} ms of {most}: missed"));
                }
            }
            None => missed.push(format!("engine: {name}: there is no figure")),
        }
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_and_missing_figures_are_missed() {
        let figures = |text: &str| missed(&serde_json::from_str(text).unwrap()).len();
        assert_eq!(figures(r#"{"launch":{"p50_ms":0.6},"cycle":{"p50_ms":1.1}}"#), 0);
        assert_eq!(figures(r#"{"launch":{"p50_ms":0.8},"cycle":{"p50_ms":1.1}}"#), 1);
        assert_eq!(figures(r#"{"launch":{"p50_ms":0.6}}"#), 1);
    }
}
