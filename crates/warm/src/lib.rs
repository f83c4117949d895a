//! Prepared interpreters: a Python process that has come to some point, as a file from which it goes on in any number
//! of sandboxes.
//!
//! ```text
//!  template's sandbox                         host              a child's sandbox
//!  python3: PREPARE, source ──► image ──► sandboxes/ID/warm/ ──► PLACE: head of the image (RESTORER)
//!                                         shown read-only        maps itself over its own process, goes on
//! ```
//!
//! Nothing of a process crosses but its memory and its registers: a child is a command of its own sandbox, started as
//! all others are, behind that sandbox's walls. So it has that sandbox's namespaces, limits, files and network,
//! and no descriptor, no socket and no identity of the process that was prepared. What all children of an image have
//! in common is what was in its memory: the layout of its addresses and the seed of its hashes among it.
//!
//! **Invariant:** nothing outside of a sandbox reads an image but as bytes.

/// The program at the head of every image, as built beside this crate.
pub const RESTORER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/restore"));
/// Where what a preparation writes begins: before it there is room for [`RESTORER`].
pub const TABLE_AT: u64 = 0x1_0000;

/// The guest folder in which an image is shown, and its name there.
pub const FOLDER: &str = "/run/fumehood/warm";
pub const NAME: &str = "python3";
/// The guest path of an image: a command.
pub use fumehood_keep::wire::WARM_PLACE as PLACE;

const PREPARE: &str = include_str!("prepare.py");
const WAKE: &str = include_str!("wake.py");
/// Runs the two in modules of their own, and leaves `__main__` to the preparation.
const START: &str = "\
import sys
def _():
    made = []
    for name, source in (('_fumehood_wake', sys.argv[1]), ('_fumehood_prepare', sys.argv[2])):
        module = type(sys)(name)
        exec(compile(source, '<' + name + '>', 'exec'), module.__dict__)
        made.append(module)
    made[1].prepare(sys.argv[3], '<prepare>', made[0])
_()";

/// The command that prepares an interpreter by `source` and writes the image to its standard output, which must be a
/// file: all of it but [`RESTORER`].
#[must_use]
pub fn command(interpreter: &str, source: &str) -> Vec<String> {
    [interpreter, "-c", START, WAKE, PREPARE, source].map(str::to_owned).to_vec()
}

#[cfg(test)]
mod tests;
