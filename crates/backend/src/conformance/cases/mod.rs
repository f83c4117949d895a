//! The cases, one file a clause, and the judgements that they share.

mod cleanup;
mod credentials;
mod endings;
mod filesystem;
mod network;
mod privilege;
mod resources;

use super::{Case, Outcome, Stage, Verdict};

/// Every case, clause by clause.
pub(super) fn all() -> Vec<Case> {
    [
        filesystem::CASES,
        network::CASES,
        privilege::CASES,
        credentials::CASES,
        resources::CASES,
        cleanup::CASES,
        endings::CASES,
    ]
    .concat()
}

/// Nothing to plant.
fn nothing(_stage: &Stage) -> std::io::Result<()> {
    Ok(())
}

/// The last outcome, if its script ran to the end and nothing of the host's secret came out.
fn finished<'o>(outcomes: &'o [Outcome], stage: &Stage) -> Result<&'o Outcome, Verdict> {
    let Some(last) = outcomes.last() else { return Err(Verdict::Inconclusive("nothing ran".to_owned())) };
    if outcomes.iter().any(|outcome| outcome.said().contains(stage.secret())) {
        return Err(Verdict::Breached("the host's canary came out".to_owned()));
    }
    if String::from_utf8_lossy(&last.stdout).contains(stage.nonce()) {
        return Ok(last);
    }
    let said: String = last.said().chars().take(200).collect();
    Err(Verdict::Inconclusive(format!("the script did not reach its end (code {:?}): {said}", last.code)))
}

/// Held when the script ran and the secret is in nothing that came out.
fn no_leak(outcomes: &[Outcome], stage: &Stage) -> Verdict {
    match finished(outcomes, stage) {
        Ok(_) => Verdict::Held,
        Err(verdict) => verdict,
    }
}

/// Held when the script ran and no listener of the host was called.
fn not_called(outcomes: &[Outcome], stage: &Stage) -> Verdict {
    if stage.was_called() {
        return Verdict::Breached("a listener of the host was called from inside".to_owned());
    }
    match finished(outcomes, stage) {
        Ok(_) => Verdict::Held,
        Err(verdict) => verdict,
    }
}

/// Held when the script ran and each fact has the value that is expected of it.
fn facts(outcomes: &[Outcome], stage: &Stage, expected: &[(&str, &str)]) -> Verdict {
    let outcome = match finished(outcomes, stage) {
        Ok(outcome) => outcome,
        Err(verdict) => return verdict,
    };
    for (name, value) in expected {
        match outcome.fact(name) {
            Some(found) if found == *value => {}
            Some(found) => return Verdict::Breached(format!("{name} is `{found}`, not `{value}`")),
            None => return Verdict::Inconclusive(format!("the script did not say {name}")),
        }
    }
    Verdict::Held
}

/// Held when the condition is met, else breached with the reason.
fn holds(condition: bool, otherwise: &str) -> Verdict {
    if condition { Verdict::Held } else { Verdict::Breached(otherwise.to_owned()) }
}

/// The first verdict that is not held.
fn both(first: Verdict, second: impl FnOnce() -> Verdict) -> Verdict {
    if first == Verdict::Held { second() } else { first }
}

/// A file's text, or an empty one where it can not be read.
fn text(path: &std::path::Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
