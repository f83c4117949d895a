//! Cleanup: a run leaves nothing, and finds nothing.

use super::{both, finished, holds, nothing};
use crate::conformance::{Case, Outcome, Stage, Verdict};
use fumehood_model::enforcement::Clause;

const CLAUSE: Option<Clause> = Some(Clause::Cleanup);

pub(super) const CASES: &[Case] = &[
    Case {
        name: "daemon-ends-with-the-run",
        clause: CLAUSE,
        says: "A daemon that left its session and its parent ends with the run.",
        inside: &[
            "perl -e 'use POSIX; exit if fork; POSIX::setsid(); exit if fork; close STDIN; close STDOUT; \
             close STDERR; $SIG{$_} = \"IGNORE\" for qw(TERM HUP INT); sleep 60 while 1' @NONCE@; echo @NONCE@",
        ],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| match finished(outcomes, stage) {
            Ok(outcome) => both(holds(stage.survivors().is_empty(), "the daemon is still there"), || {
                holds(outcome.elapsed_ms < 20_000, "the run waited for the daemon")
            }),
            Err(verdict) => verdict,
        },
    },
    Case {
        name: "daemon-with-the-pipe",
        clause: CLAUSE,
        says: "A daemon that keeps standard output open does not keep the run from ending.",
        inside: &[
            "perl -e 'use POSIX; exit if fork; POSIX::setsid(); sleep 60 while 1' @NONCE@ & echo @NONCE@",
        ],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| match finished(outcomes, stage) {
            Ok(outcome) => both(holds(outcome.elapsed_ms < 20_000, "the run waited for the daemon"), || {
                holds(stage.survivors().is_empty(), "the daemon is still there")
            }),
            Err(verdict) => verdict,
        },
    },
    Case {
        name: "next-run-finds-no-file",
        clause: CLAUSE,
        says: "What one run writes outside its workspace, the next does not find.",
        inside: &[
            "for d in /tmp /var/tmp /dev/shm ~ . /run /var/cache; do echo left-behind > $d/@SOCKET@; done; echo @NONCE@",
            "for d in /tmp /var/tmp /dev/shm ~ . /run /var/cache; do cat $d/@SOCKET@; done; echo @NONCE@",
        ],
        wants: &[],
        setup: nothing,
        verdict: left_nothing,
    },
    Case {
        name: "next-run-finds-no-memory",
        clause: CLAUSE,
        says: "Shared memory, queues and semaphores of one run are not there for the next.",
        inside: &[
            "perl -e 'my $m = shmget(0x46484f44, 64, 01666) and shmwrite(shmget(0x46484f44, 64, 0666), \"left-behind\", 0, 11)'; \
             echo @NONCE@",
            "perl -e 'my $m = shmget(0x46484f44, 64, 0666) or exit; shmread($m, my $b, 0, 11); print \"$b\\n\"'; \
             echo @NONCE@",
        ],
        wants: &[],
        setup: nothing,
        verdict: left_nothing,
    },
];

fn left_nothing(outcomes: &[Outcome], stage: &Stage) -> Verdict {
    for outcome in outcomes {
        if let Err(verdict) = finished(std::slice::from_ref(outcome), stage) {
            return verdict;
        }
    }
    let found = outcomes.last().is_some_and(|last| last.said().contains("left-behind"));
    holds(!found, "the second run found what the first had left")
}
