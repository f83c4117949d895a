//! The level `wasm`, as a user runs modules and as a module meets its walls.

mod hostile;
mod working;

use crate::lab::{Lab, Ran, finish};

/// Does what its first argument says.
const TOOL: &str = include_str!("tool.wat");
/// Copies standard input to standard output.
const CAT: &str = r#"(module
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (loop $more
      (i32.store (i32.const 0) (i32.const 64))
      (i32.store (i32.const 4) (i32.const 4096))
      (if (call $read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8)) (then unreachable))
      (if (i32.load (i32.const 8)) (then
        (i32.store (i32.const 4) (i32.load (i32.const 8)))
        (if (call $write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 12)) (then unreachable))
        (br $more))))))"#;

/// A module whose `_start` is this.
fn starting(body: &str) -> String {
    format!("(module (memory (export \"memory\") 1) (func $it (export \"_start\") {body}))")
}

/// Puts a module into the place, from its text.
fn module(lab: &Lab, name: &str, text: &str) -> String {
    let bytes = wat::parse_str(text).unwrap();
    lab.file(name, bytes).to_str().unwrap().to_owned()
}

/// `fumehood run --level wasm FLAGS -- MODULE WORDS`.
fn run(lab: &Lab, flags: &[&str], words: &[&str]) -> Ran {
    fed(lab, flags, words, b"")
}

fn fed(lab: &Lab, flags: &[&str], words: &[&str], input: &[u8]) -> Ran {
    let mut command = lab.fumehood();
    command.args(["run", "--level", "wasm"]).args(flags).arg("--").args(words);
    finish(command, input)
}

/// The ending of a run, and what is told beside it.
fn ending(lab: &Lab, flags: &[&str], words: &[&str]) -> serde_json::Value {
    let flags = [&["--level", "wasm"], flags].concat();
    lab.json(&flags, words).0
}
