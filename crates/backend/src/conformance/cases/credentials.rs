//! Credentials: no variable of the host enters by itself.

use super::{both, facts, holds, no_leak, nothing};
use crate::conformance::{Case, Outcome, Stage, Verdict, Want};
use fumehood_model::enforcement::Clause;

const CLAUSE: Option<Clause> = Some(Clause::Credentials);

// A subject is started with `CONFORMANCE_STRAY`, `AWS_SECRET_ACCESS_KEY` and `LD_CONFORMANCE`, all
// holding the stage's stray canary, and with `CONFORMANCE_NAMED=by name`.
pub(super) const CASES: &[Case] = &[
    Case {
        name: "host-variables-absent",
        clause: CLAUSE,
        says: "No variable of the caller enters by itself, and none can be found in any process.",
        inside: &["env; cat /proc/[0-9]*/environ; echo @NONCE@"],
        wants: &[],
        setup: nothing,
        verdict: no_stray,
    },
    Case {
        name: "named-variable-enters",
        clause: CLAUSE,
        says: "A variable that was named enters, and only that one.",
        inside: &["echo named=$CONFORMANCE_NAMED; env; echo @NONCE@"],
        wants: &[Want::NamedVariable],
        setup: nothing,
        verdict: |outcomes, stage| {
            both(no_stray(outcomes, stage), || facts(outcomes, stage, &[("named", "by name")]))
        },
    },
    Case {
        name: "set-variable-enters",
        clause: CLAUSE,
        says: "A variable that was set has that value.",
        inside: &["echo given=$CONFORMANCE_SET; echo @NONCE@"],
        wants: &[Want::SetVariable],
        setup: nothing,
        verdict: |outcomes, stage| facts(outcomes, stage, &[("given", "as given")]),
    },
];

fn no_stray(outcomes: &[Outcome], stage: &Stage) -> Verdict {
    let leaked = outcomes.iter().any(|outcome| outcome.said().contains(stage.stray()));
    both(holds(!leaked, "a variable of the caller came out"), || no_leak(outcomes, stage))
}
