//! The gvisor level beside `runsc run`: the benchmark of the level, held to its figures.

use crate::run::{self, Done};
use serde_json::Value;

/// Of what `runsc run` takes to its end, the most that a sandbox may take to its first output.
const MOST_OF_RUNSC: f64 = 0.8;
/// The most that a further command may take, in milliseconds.
const FURTHER_MS: f64 = 5.0;

/// Runs the benchmark, shows its line and what was made of it.
pub(crate) fn judge() -> Done {
    let words = ["bench", "--locked", "--package", "fumehood-backend-gvisor", "--bench", "engine"];
    run::must(run::cargo(&words).arg("--no-run"))?;
    let told = run::output(&mut run::cargo(&words))?;
    let line = told.lines().find(|line| line.starts_with("{\"bench\":\"gvisor\""));
    let line = line.ok_or("gvisor: the benchmark printed no figures")?;
    run::say(line);
    let flaws = missed(&serde_json::from_str(line)?);
    if flaws.is_empty() { Ok(()) } else { Err(flaws.join("\n").into()) }
}

/// What the figures miss; a figure that is not there is missed.
fn missed(figures: &Value) -> Vec<String> {
    let p50 = |name: &str| figures[name]["p50_ms"].as_f64();
    let of_runsc = |name: &str| p50(name).zip(p50("runsc_whole")).map(|(ours, theirs)| ours / theirs);
    let shown = |figure: Option<f64>| figure.map_or("none".to_owned(), |figure| format!("{figure:.2}"));
    let mut missed = Vec::new();
    for (name, figure, most) in [
        ("first output of a new sandbox, of `runsc run`", of_runsc("first"), MOST_OF_RUNSC),
        ("first output of one from a pool, of `runsc run`", of_runsc("parked"), MOST_OF_RUNSC),
        ("a further command, in milliseconds", p50("further"), FURTHER_MS),
    ] {
        run::say(&format!("gvisor: {name}: {}, at most {most}", shown(figure)));
        if figure.is_none_or(|figure| figure > most) {
            missed.push(format!("gvisor: {name}: {}, at most {most}: missed", shown(figure)));
        }
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
                r#"{{"first":{{"p50_ms":{first}}},"parked":{{"p50_ms":9}},"further":{{"p50_ms":{further}}},"runsc_whole":{{"p50_ms":100}}}}"#
            );
            missed(&serde_json::from_str(&text).unwrap()).len()
        };
        assert_eq!(figures(70.0, 2.0), 0);
        assert_eq!(figures(90.0, 2.0), 1);
        assert_eq!(figures(90.0, 6.0), 2);
        assert_eq!(missed(&Value::Null).len(), 3);
    }
}
