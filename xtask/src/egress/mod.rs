//! The egress wall, held to its figures: each side in turn, round by round, in one private network.

mod memory;
mod place;
mod requests;
mod start;
mod stream;

use crate::bench::Scratch;
use crate::run::{self, Done};
use place::Place;
use serde_json::{Value, json};
use std::error::Error;
use std::path::Path;
use std::process::Command;

/// What came out of one part: its figures, and those that are missed.
#[derive(Debug, Default)]
struct Figures {
    missed: Vec<String>,
}

/// A figure that has to be on one side of a bound.
#[derive(Clone, Copy, Debug)]
enum Bound {
    Most(f64),
    Least(f64),
}

/// One part: measures, and adds its figures.
type Part = fn(&Place, &mut Figures) -> Done;

/// The parts that need a private network.
const WITHIN: [(&str, Part); 4] = [
    ("start", start::measure),
    ("stream", stream::measure),
    ("requests", requests::measure),
    ("memory", memory::measure),
];
/// The one that needs none.
const DECIDE: &str = "decide";

/// The parts that are named, or all of them where none is.
pub(crate) fn judge(named: &[&str]) -> Done {
    let known: Vec<&str> = WITHIN.iter().map(|(name, _)| *name).chain([DECIDE]).collect();
    if let Some(unknown) = named.iter().find(|name| !known.contains(name)) {
        return Err(
            format!("bench egress: there is no part `{unknown}`; there are: {}", known.join(", ")).into()
        );
    }
    let wanted = |name: &str| named.is_empty() || named.contains(&name);
    let decided = if wanted(DECIDE) { decide() } else { Ok(()) };
    let inside: Vec<&str> = WITHIN.iter().map(|(name, _)| *name).filter(|name| wanted(name)).collect();
    let within = if inside.is_empty() { Ok(()) } else { in_a_network(&inside) };
    run::together([decided, within])
}

/// Starts this program again in a network of its own, for these parts.
fn in_a_network(parts: &[&str]) -> Done {
    if !crate::bench::is_root()? {
        return Err("bench egress: a private network and the memory of others need root".into());
    }
    let fumehood = run::release()?;
    let folder = Scratch::new()?;
    let examples = ["build", "--release", "--package", "fumehood-egress", "--example", "load"];
    run::must(&mut run::cargo(&examples))?;
    let load = fumehood.with_file_name("examples").join("load");
    for (from, name) in [(fumehood, "fumehood"), (load, "load"), (std::env::current_exe()?, "xtask")] {
        std::fs::copy(&from, folder.0.join(name))?;
        std::fs::set_permissions(folder.0.join(name), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    }
    let mut within = Command::new("unshare");
    within.args(["--net", "--mount", "--propagation", "private", "--"]);
    within.arg(folder.0.join("xtask")).args(["bench", "egress-within"]).arg(&folder.0).args(parts);
    run::again(&mut within)
}

/// These parts, in the private network, which [`judge`] has made.
pub(crate) fn within(folder: &Path, named: &[&str]) -> Done {
    let place = Place::enter(folder)?;
    let mut figures = Figures::default();
    for (name, part) in WITHIN.into_iter().filter(|(name, _)| named.contains(name)) {
        if let Err(problem) = part(&place, &mut figures) {
            figures.missed.push(format!("egress: {name}: could not be measured: {problem}"));
        }
    }
    figures.end()
}

/// One decision among ten thousand rules.
fn decide() -> Done {
    let told = run::output(&mut run::cargo(&["bench", "--package", "fumehood-model", "--bench", "decide"]))?;
    let line = told.lines().find(|line| line.starts_with("{\"bench\":\"decide\""));
    let line = line.ok_or("decide: the benchmark printed no figures")?;
    run::say(line);
    let mut figures = Figures::default();
    let values: Value = serde_json::from_str(line)?;
    let values = values.as_object().ok_or("decide: no figures")?;
    for (name, value) in values.iter().filter(|(name, _)| name.ends_with("_us")) {
        figures.hold(&format!("decide {name}"), value.as_f64().unwrap_or(f64::NAN), Bound::Most(2.0));
    }
    figures.end()
}

// === impl Figures ===

impl Figures {
    fn line(&mut self, figure: &str, mut values: Value) {
        values["bench"] = json!("egress");
        values["figure"] = json!(figure);
        run::say(&values.to_string());
    }

    /// Holds a figure against its bound. What is no number is missed.
    fn hold(&mut self, what: &str, value: f64, bound: Bound) {
        let (met, word, limit) = match bound {
            Bound::Most(most) => (value <= most, "at most", most),
            Bound::Least(least) => (value >= least, "at least", least),
        };
        if met {
            run::say(&format!("egress: {what}: {value:.2} of {word} {limit}: met"));
        } else {
            self.missed.push(format!("egress: {what}: {value:.2} of {word} {limit}: missed"));
        }
    }

    fn missing(&mut self, what: &str) {
        self.missed.push(format!("egress: {what}: missing, so the figure can not be shown"));
    }

    fn end(self) -> Done {
        if self.missed.is_empty() { Ok(()) } else { Err(self.missed.join("\n").into()) }
    }
}

/// The middle one of some numbers.
fn middle(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The line of JSON that a client printed.
fn figures_of(command: &mut Command) -> Result<Value, Box<dyn Error>> {
    let told = run::output(command)?;
    let line = told.lines().find(|line| line.starts_with('{')).ok_or("the client printed no figures")?;
    Ok(serde_json::from_str(line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_its_bound_is_missed() {
        let mut figures = Figures::default();
        figures.hold("a", 1.0, Bound::Most(1.0));
        figures.hold("b", 0.8, Bound::Least(0.8));
        assert!(figures.missed.is_empty());
        figures.hold("c", 1.1, Bound::Most(1.0));
        figures.hold("d", 0.7, Bound::Least(0.8));
        figures.hold("e", f64::NAN, Bound::Least(0.8));
        figures.hold("f", f64::NAN, Bound::Most(0.8));
        assert_eq!(figures.missed.len(), 4);
    }

    #[test]
    fn the_middle_is_no_outlier() {
        assert_eq!(middle(&[9.0, 1.0, 2.0]).to_bits(), 2.0_f64.to_bits());
        assert!(middle(&[]).is_nan());
    }
}
