//! The kernel wall, where another process is the target.

use super::{ALL, together};
use crate::finding::Finding;
use crate::probe::{How, Probe, Wall};

const K: Wall = Wall::Kernel;
const GONE: &[&str] = &["EPERM", "EACCES", "ENOSYS", "ESRCH", "ENOENT", "EBADF"];

pub(super) fn probes() -> Vec<Probe> {
    vec![
        together(
            ("K03", K, "walk through other processes to the host's files"),
            ALL,
            How::Bare,
            |scene| vec!["roots".to_owned(), scene.secret_file()],
            |step, scene| step.leaks(&scene.secret),
        ),
        together(
            ("K17", K, "look into a process of the host, and into the first one"),
            ALL,
            How::Bare,
            |scene| vec!["memory".to_owned(), scene.victim().to_string()],
            |step, _| step.doors(GONE),
        ),
        together(
            ("K18", K, "stop a process of the host"),
            ALL,
            How::Bare,
            |scene| vec!["signals".to_owned(), scene.victim().to_string()],
            // Inside, that number may belong to a process of the sandbox's own: the host's view decides.
            |step, scene| scene.hurt(step.whole().or(|| Finding::Quiet)),
        ),
    ]
}
