//! Resources: every ceiling is finite and holds.

use super::{both, facts, finished, holds, nothing};
use crate::conformance::{Case, Outcome, Verdict, Want};
use fumehood_model::enforcement::Clause;

const CLAUSE: Option<Clause> = Some(Clause::Resources);

pub(super) const CASES: &[Case] = &[
    Case {
        name: "process-limit",
        clause: CLAUSE,
        says: "A fork past the process limit fails inside, and the run goes on.",
        inside: &["perl -e 'my $n = 0; for (1..400) { my $p = fork; last unless defined $p; \
             if (!$p) { sleep 30; exit } $n++; push @k, $p } kill 9, @k; \
             print \"forks=\", $n < 100 ? \"few\" : $n, \"\\n\"'; echo @NONCE@"],
        wants: &[Want::Processes(64)],
        setup: nothing,
        verdict: |outcomes, stage| facts(outcomes, stage, &[("forks", "few")]),
    },
    Case {
        name: "memory-limit",
        clause: CLAUSE,
        says: "A command that needs more memory than its limit ends, and its cause says so.",
        inside: &["exec perl -e '$m .= \"x\" x 1048576 for 1..700; print \"filled=\", length $m, \"\\n\"'"],
        wants: &[Want::Memory(96 << 20), Want::Cause],
        setup: nothing,
        verdict: |outcomes, _| match outcomes.last() {
            Some(outcome) if outcome.fact("filled").is_some() => {
                Verdict::Breached("700 MiB were filled under a limit of 96 MiB".to_owned())
            }
            Some(outcome) => match outcome.cause.as_deref() {
                Some("out_of_memory") => Verdict::Held,
                // Where the limit is on address space, the command itself is told, and says so.
                Some("exited") if outcome.code != Some(0) && outcome.said().contains("Out of memory") => {
                    Verdict::Held
                }
                other => Verdict::Inconclusive(format!("the cause is {other:?}, code {:?}", outcome.code)),
            },
            None => Verdict::Inconclusive("nothing ran".to_owned()),
        },
    },
    Case {
        name: "timeout",
        clause: CLAUSE,
        says: "A command that ignores SIGTERM is gone soon after its time, with all it started.",
        inside: &["trap '' TERM INT HUP; (trap '' TERM; exec -a x sleep 61 @NONCE@) 2> /dev/null & \
             perl -e '$SIG{TERM} = \"IGNORE\"; sleep 60 while 1' @NONCE@"],
        wants: &[Want::Timeout(1_000), Want::Cause],
        setup: nothing,
        verdict: |outcomes, stage| match outcomes.last() {
            Some(outcome) if outcome.elapsed_ms > 15_000 => {
                Verdict::Breached(format!("it took {} ms", outcome.elapsed_ms))
            }
            Some(outcome) if outcome.cause.as_deref() == Some("timed_out") => {
                holds(stage.survivors().is_empty(), "a process outlived the timeout")
            }
            Some(outcome) => {
                Verdict::Inconclusive(format!("the cause is {:?}: {}", outcome.cause, outcome.said()))
            }
            None => Verdict::Inconclusive("nothing ran".to_owned()),
        },
    },
    Case {
        name: "output-cap",
        clause: CLAUSE,
        says: "Output past the cap is drained, the command goes on, and its exit code stands.",
        inside: &["head -c 8000000 /dev/zero | tr '\\0' 'x'; exit 7"],
        wants: &[Want::OutputCap(1_000_000), Want::Cause],
        setup: nothing,
        verdict: |outcomes, _| match outcomes.last() {
            Some(Outcome { code: Some(7), stdout, hits, .. }) => {
                both(holds(stdout.len() <= 1_000_000, "more than the cap came out"), || {
                    both(holds(stdout.len() >= 900_000, "less than the cap was kept"), || {
                        holds(hits.iter().any(|hit| hit == "output_limit"), "the loss is not told")
                    })
                })
            }
            Some(other) => Verdict::Inconclusive(format!("the code is {:?}", other.code)),
            None => Verdict::Inconclusive("nothing ran".to_owned()),
        },
    },
    Case {
        name: "scratch-is-finite",
        clause: CLAUSE,
        says: "/tmp, /dev/shm and HOME inside have a finite size.",
        inside: &[
            "for d in /tmp /dev/shm ~; do echo size=$(df -Pk $d | perl -ne 'print +(split)[1] if $. == 2'); \
             done; echo @NONCE@",
        ],
        wants: &[Want::Cause],
        setup: nothing,
        verdict: |outcomes, stage| match finished(outcomes, stage) {
            Ok(outcome) => {
                let said = outcome.said();
                let sizes: Vec<u64> =
                    said.lines().filter_map(|line| line.strip_prefix("size=")?.trim().parse().ok()).collect();
                // 64 GiB is more than any default of ours, and less than a disk that is shared as it is.
                both(holds(sizes.len() == 3, "a size was not told"), || {
                    holds(
                        sizes.iter().all(|size| (1..=64 << 20).contains(size)),
                        "a scratch folder has no bound",
                    )
                })
            }
            Err(verdict) => verdict,
        },
    },
    Case {
        name: "descriptors-finite",
        clause: CLAUSE,
        says: "The number of open files has a ceiling.",
        inside: &[
            "echo limit=$(ulimit -Hn | perl -ne 'print /^\\d+$/ && $_ <= 1048576 ? \"finite\" : $_'); \
             echo @NONCE@",
        ],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| facts(outcomes, stage, &[("limit", "finite")]),
    },
];
