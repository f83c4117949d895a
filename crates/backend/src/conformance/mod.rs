//! The list of cases that every level must pass.
//!
//! A case is judged from outside. The host plants random canaries, runs a script inside, and looks
//! for the canaries in what came out and at what changed on the host. A script never grades itself:
//! it prints raw facts and a nonce that shows it ran to its end, and the host decides.
//!
//! The same list runs against a level of ours and against a reference tool, so that a case which
//! nothing could fail, or nothing could pass, is seen. This module must not know any [`Subject`].

mod cases;
mod gaps;
mod stage;

pub use gaps::{GAPS, Gap, gap};
pub use stage::Stage;

use fumehood_model::enforcement::Clause;
use fumehood_model::level::Level;
use std::fmt;
use std::path::PathBuf;

/// One thing that must hold.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Stable, `kebab-case`.
    pub name: &'static str,
    /// The clause that promises it; `None` for the endings, which every clause needs.
    pub clause: Option<Clause>,
    /// What holds, as one sentence.
    pub says: &'static str,
    /// Scripts for `sh`, run one after the other, each in a sandbox of its own. `@DIR@`, `@HOME@`,
    /// `@NONCE@`, `@TCP@` and `@SOCKET@` are replaced by the stage's own.
    pub inside: &'static [&'static str],
    /// What the sandbox must be asked for.
    pub wants: &'static [Want],
    /// Plants what the script looks for.
    pub setup: fn(&Stage) -> std::io::Result<()>,
    /// Decides, from what came out of each script and from the host's own view.
    pub verdict: fn(&[Outcome], &Stage) -> Verdict,
}

/// Something a case asks of the sandbox. A subject that has no such thing says so in
/// [`Subject::supports`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// The stage's `project` folder, copy-on-write.
    CopyOnWrite,
    /// The stage's `project` folder, read-only.
    WorkspaceReadOnly,
    /// The stage's `project` folder, written through.
    WorkspaceReadWrite,
    /// The stage's `view` folder, read-only, at the same path.
    ReadOnlyView,
    /// The stage's `input` file, copied in.
    Input,
    /// `/out` collected to the stage's `collected` folder.
    Output,
    /// The stage's `stdin` file as standard input.
    StdinFile,
    /// A descriptor of the caller, number 9, open on the stage's secret.
    StrayDescriptor,
    /// The host's variable `CONFORMANCE_NAMED` copied by name.
    NamedVariable,
    /// The variable `CONFORMANCE_SET` set to `as given`.
    SetVariable,
    /// At most this many bytes of memory.
    Memory(u64),
    /// At most this many processes.
    Processes(u32),
    /// At most this many milliseconds.
    Timeout(u64),
    /// At most this many bytes of output kept, the rest drained.
    OutputCap(u64),
    /// A structured cause beside the exit code.
    Cause,
    /// This program and its arguments, in place of the script.
    Program(&'static [&'static str]),
}

/// One script, ready to run.
#[derive(Clone, Debug)]
pub struct Script {
    /// For `sh -c`, every placeholder replaced.
    pub text: String,
    pub wants: &'static [Want],
}

/// What came out of one run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The exit code of the whole tool.
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// The structured cause, from a subject that has one.
    pub cause: Option<String>,
    /// The words of the limits and denials met on the way.
    pub hits: Vec<String>,
    pub elapsed_ms: u64,
}

/// What the host concludes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Held,
    /// The wall let something through: what.
    Breached(String),
    /// The subject can not be asked this: why.
    NotApplicable(String),
    /// Declared in [`GAPS`]: the level does not hold it, and says so: why.
    Gap(String),
    /// The run does not tell: why. Never counted as held.
    Inconclusive(String),
}

/// Something that runs scripts behind walls.
pub trait Subject {
    /// How the matrix names it.
    fn name(&self) -> String;

    /// The level of ours that it is; none for a reference.
    fn level(&self) -> Option<Level> {
        None
    }

    /// Whether it can be asked what `case` wants; else why not.
    fn supports(&self, case: &Case) -> Result<(), String>;

    /// Runs one script on `stage`.
    fn run(&self, script: &Script, stage: &Stage) -> std::io::Result<Outcome>;
}

/// Every case, clause by clause.
pub fn cases() -> Vec<Case> {
    cases::all()
}

/// Runs one case against one subject.
pub fn examine(case: &Case, subject: &dyn Subject, stage: &Stage) -> Verdict {
    if let Some(gap) = subject.level().and_then(|level| gap(level, case.name)) {
        return Verdict::Gap(gap.why.to_owned());
    }
    if let Err(why) = subject.supports(case) {
        return Verdict::NotApplicable(why);
    }
    if let Err(error) = (case.setup)(stage) {
        return Verdict::Inconclusive(format!("the stage could not be set: {error}"));
    }
    let mut outcomes = Vec::new();
    for inside in case.inside {
        let script = Script { text: stage.fill(inside), wants: case.wants };
        match subject.run(&script, stage) {
            Ok(outcome) => outcomes.push(outcome),
            Err(error) => return Verdict::Inconclusive(format!("the subject could not be run: {error}")),
        }
    }
    (case.verdict)(&outcomes, stage)
}

/// A folder that a subject needs, so that it is made before the run.
pub fn folders(stage: &Stage) -> [PathBuf; 4] {
    [stage.project(), stage.view(), stage.collected(), stage.home()]
}

// === impl Case ===

impl Case {
    /// The word under which the matrix groups it.
    pub const fn group(&self) -> &'static str {
        match self.clause {
            Some(clause) => clause.name(),
            None => "endings",
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// Standard output and error together, as text.
    pub fn said(&self) -> String {
        let mut text = String::from_utf8_lossy(&self.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&self.stderr));
        text
    }

    /// The value of a `name=value` line on standard output.
    pub fn fact(&self, name: &str) -> Option<String> {
        let text = String::from_utf8_lossy(&self.stdout);
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=').map(|v| v.trim().to_owned()))
    }
}

// === impl Verdict ===

impl Verdict {
    /// The word for the matrix.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Held => "HELD",
            Self::Breached(_) => "BREACHED",
            Self::NotApplicable(_) => "NOT-APPLICABLE",
            Self::Gap(_) => "GAP",
            Self::Inconclusive(_) => "INCONCLUSIVE",
        }
    }

    /// Why, where there is more to say than the word.
    pub fn reason(&self) -> &str {
        match self {
            Self::Held => "",
            Self::Breached(why) | Self::NotApplicable(why) | Self::Gap(why) | Self::Inconclusive(why) => why,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())?;
        if self.reason().is_empty() { Ok(()) } else { write!(f, ": {}", self.reason()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A subject with no wall at all: it hands every canary out.
    struct Leaky;

    impl Subject for Leaky {
        fn name(&self) -> String {
            "leaky".to_owned()
        }

        fn supports(&self, _case: &Case) -> Result<(), String> {
            Ok(())
        }

        fn run(&self, _script: &Script, stage: &Stage) -> std::io::Result<Outcome> {
            let stdout = format!("{}\n{}\n", stage.secret(), stage.nonce()).into_bytes();
            Ok(Outcome { code: Some(0), stdout, ..Outcome::default() })
        }
    }

    /// A subject that says nothing: it must never count as held.
    struct Mute;

    impl Subject for Mute {
        fn name(&self) -> String {
            "mute".to_owned()
        }

        fn supports(&self, _case: &Case) -> Result<(), String> {
            Ok(())
        }

        fn run(&self, _script: &Script, _stage: &Stage) -> std::io::Result<Outcome> {
            Ok(Outcome::default())
        }
    }

    fn verdicts(subject: &dyn Subject, clause: Option<Clause>) -> Vec<(&'static str, Verdict)> {
        let base =
            std::env::temp_dir().join(format!("conformance-{}-{}", std::process::id(), subject.name()));
        let chosen = cases().into_iter().filter(|case| clause.is_none() || case.clause == clause);
        let verdicts = chosen
            .map(|case| {
                let stage = Stage::new(base.join(case.name)).unwrap();
                (case.name, examine(&case, subject, &stage))
            })
            .collect();
        std::fs::remove_dir_all(&base).unwrap();
        verdicts
    }

    #[test]
    fn names_are_unique_and_every_clause_has_cases() {
        let all = cases();
        let mut names: Vec<_> = all.iter().map(|case| case.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
        for clause in Clause::ALL {
            assert!(all.iter().any(|case| case.clause == Some(clause)), "{clause}");
        }
        assert!(all.len() >= 40, "{}", all.len());
    }

    #[test]
    fn every_gap_is_of_a_case_and_has_a_reason() {
        let all = cases();
        for gap in GAPS {
            assert!(all.iter().any(|case| case.name == gap.case), "{}", gap.case);
            assert!(!gap.why.is_empty());
        }
    }

    #[test]
    fn silence_is_never_held() {
        for (name, verdict) in verdicts(&Mute, None) {
            assert_ne!(verdict, Verdict::Held, "{name}");
        }
    }

    #[test]
    fn a_leaked_file_is_never_held() {
        for (name, verdict) in verdicts(&Leaky, Some(Clause::Filesystem)) {
            assert_ne!(verdict, Verdict::Held, "{name}");
        }
    }
}
