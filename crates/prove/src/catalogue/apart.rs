//! What a kernel of a level's own answers by itself, which is nobody's but that level's.
//!
//! A call that is refused leaves no trace on the host, so such probes are judged by its answer. A level with a kernel of its
//! own may let a call succeed that reaches nothing of the host's, or refuse it by another error than Linux would. Each is
//! declared here, with the answer that was seen and why it is no way out, told beside the verdict, and named in
//! `docs/limitations.md`. What is not declared counts.

use crate::told::Step;
use fumehood_model::level::Level;

/// An attempt whose answer does not count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Apart {
    pub(crate) level: Level,
    pub(crate) probe: &'static str,
    pub(crate) attempt: &'static str,
    pub(crate) answer: &'static str,
    /// As a phrase.
    pub(crate) why: &'static str,
}

const ALL: &[Apart] = &[
    gvisor(
        "K17",
        "environ-first",
        "done",
        "its first process has no variable of the caller's, and runs as the guest does",
    ),
    gvisor("K19", "/dev/fuse", "done", "a device of gVisor's own, which nobody without capabilities can use"),
    gvisor(
        "K19",
        "/dev/net/tun",
        "done",
        "a device of gVisor's own, which nobody without capabilities can use",
    ),
    gvisor("K25", "sctp", "EINVAL", "gVisor knows no such protocol"),
    machine("K07", "/sys/kernel/notes"),
    machine("K07", "/sys/kernel/mm/transparent_hugepage/enabled"),
    gvisor("K31", "set-mtu", "ENOTTY", "gVisor knows no such request"),
    gvisor(
        "K31",
        "raise-priority",
        "done",
        "a number that gVisor keeps; its threads on the host stay as they are",
    ),
    gvisor("K31", "realtime", "EINVAL", "gVisor knows no such order"),
];

const fn gvisor(
    probe: &'static str,
    attempt: &'static str,
    answer: &'static str,
    why: &'static str,
) -> Apart {
    Apart { level: Level::Gvisor, probe, attempt, answer, why }
}

const fn machine(probe: &'static str, attempt: &'static str) -> Apart {
    let why = "what the machine's own kernel tells of itself";
    Apart { level: Level::Microvm, probe, attempt, answer: "done", why }
}

/// A step without the attempts that do not count, and those.
pub(crate) fn apart(level: Level, probe: &str, step: &Step) -> (Step, Vec<&'static Apart>) {
    let mut found = Vec::new();
    let lines = step.lines.iter().filter(|line| {
        let met = ALL.iter().find(|apart| {
            let told = format!("try {} {}", apart.attempt, apart.answer);
            apart.level == level && apart.probe == probe && **line == told
        });
        found.extend(met);
        met.is_none()
    });
    let lines = lines.cloned().collect();
    (Step { lines, over: step.over }, found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_declared_is_set_apart_and_nothing_else() {
        let told =
            crate::told::Told::read(b"step K19\ntry /dev/fuse done\ntry /dev/kvm done\nover K19\n", "N");
        let step = told.step("K19");
        let (rest, found) = apart(Level::Gvisor, "K19", &step);
        assert_eq!(rest.attempts(), [("/dev/kvm", "done")]);
        assert_eq!(found.len(), 1);
        assert_eq!(apart(Level::Container, "K19", &step).0, step);
        // Another answer counts.
        let told = crate::told::Told::read(b"step K25\ntry sctp done\nover K25\n", "N");
        assert!(apart(Level::Gvisor, "K25", &told.step("K25")).1.is_empty());
    }

    #[test]
    fn every_declaration_is_of_a_probe_and_named_among_the_limitations() {
        let probes = crate::catalogue::all();
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/limitations.md");
        let text = std::fs::read_to_string(page).unwrap();
        for apart in ALL {
            assert!(probes.iter().any(|probe| probe.id == apart.probe), "{}", apart.probe);
            assert!(
                text.contains(&format!("`{}`", apart.attempt)),
                "docs/limitations.md does not name `{}`",
                apart.attempt
            );
        }
    }
}
