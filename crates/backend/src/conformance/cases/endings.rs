//! Endings: every run ends with what really happened.

use super::{facts, holds, nothing};
use crate::conformance::{Case, Outcome, Verdict, Want};

pub(super) const CASES: &[Case] = &[
    Case {
        name: "exit-code-0",
        clause: None,
        says: "Success is success, and output arrives.",
        inside: &["echo done=yes; echo @NONCE@; exit 0"],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| match outcomes.last() {
            Some(Outcome { code: Some(0), .. }) => facts(outcomes, stage, &[("done", "yes")]),
            other => wrong_code(other),
        },
    },
    Case {
        name: "exit-codes-pass",
        clause: None,
        says: "The command's own exit code passes through.",
        inside: &["exit 1", "exit 42", "exit 124", "exit 125", "exit 255"],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, _| {
            let codes: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.code).collect();
            if codes.len() < 5 {
                wrong_code(None)
            } else {
                holds(codes == [1, 42, 124, 125, 255], &format!("{codes:?}"))
            }
        },
    },
    Case {
        name: "exit-code-is-not-taken-for-ours",
        clause: None,
        says: "A command that exits with one of our own codes is still told as its own exit.",
        inside: &["exit 124", "exit 125", "exit 122"],
        wants: &[Want::Cause],
        setup: nothing,
        verdict: |outcomes, _| every_cause(outcomes, "exited"),
    },
    Case {
        name: "signal-is-told",
        clause: None,
        says: "A command ended by a signal gives 128 and the signal's number.",
        inside: &["kill -SEGV $$; sleep 5", "kill -KILL $$; sleep 5"],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, _| {
            let codes: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.code).collect();
            if codes.len() < 2 { wrong_code(None) } else { holds(codes == [139, 137], &format!("{codes:?}")) }
        },
    },
    Case {
        name: "signal-has-a-cause",
        clause: None,
        says: "The cause of such an end is the signal, not memory and not an exit.",
        inside: &["kill -ABRT $$; sleep 5", "kill -KILL $$; sleep 5"],
        wants: &[Want::Cause],
        setup: nothing,
        verdict: |outcomes, _| every_cause(outcomes, "signalled"),
    },
    Case {
        name: "command-not-found",
        clause: None,
        says: "A command that is not there is told as not started, with its own code.",
        inside: &[""],
        wants: &[Want::Program(&["no-such-command-anywhere"]), Want::Cause],
        setup: nothing,
        verdict: |outcomes, _| match outcomes.last() {
            Some(Outcome { code: Some(127), cause: Some(cause), .. }) if cause == "not_started" => {
                Verdict::Held
            }
            other => wrong_code(other),
        },
    },
    Case {
        name: "command-not-executable",
        clause: None,
        says: "A file that can not be executed is told as not started, with its own code.",
        inside: &[""],
        wants: &[Want::Program(&["/etc/passwd"]), Want::Cause],
        setup: nothing,
        verdict: |outcomes, _| match outcomes.last() {
            Some(Outcome { code: Some(126), cause: Some(cause), .. }) if cause == "not_started" => {
                Verdict::Held
            }
            other => wrong_code(other),
        },
    },
    Case {
        name: "standard-input-ends",
        clause: None,
        says: "Without input, standard input is at its end.",
        inside: &["echo got=$(cat | wc -c); echo @NONCE@"],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| facts(outcomes, stage, &[("got", "0")]),
    },
    Case {
        name: "streams-stay-apart",
        clause: None,
        says: "Standard output and error arrive apart, byte for byte.",
        inside: &["printf 'out\\377\\000put'; printf 'err\\376or' >&2"],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, _| match outcomes.last() {
            Some(outcome) => {
                let kept = outcome.stdout == b"out\xff\0put" && outcome.stderr.starts_with(b"err\xfeor");
                if outcome.stdout.is_empty() {
                    Verdict::Inconclusive(outcome.said())
                } else {
                    holds(kept, "bytes were lost, changed or mixed")
                }
            }
            None => wrong_code(None),
        },
    },
];

fn every_cause(outcomes: &[Outcome], expected: &str) -> Verdict {
    let causes: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.cause.as_deref()).collect();
    if causes.len() < outcomes.len() || causes.is_empty() {
        return Verdict::Inconclusive("a run ended without a cause".to_owned());
    }
    holds(causes.iter().all(|cause| *cause == expected), &format!("{causes:?}"))
}

fn wrong_code(outcome: Option<&Outcome>) -> Verdict {
    match outcome {
        Some(outcome) => Verdict::Inconclusive(format!(
            "code {:?}, cause {:?}: {}",
            outcome.code,
            outcome.cause,
            outcome.said().chars().take(200).collect::<String>()
        )),
        None => Verdict::Inconclusive("a run ended without a code".to_owned()),
    }
}
