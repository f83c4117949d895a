//! The wasm level: a WebAssembly engine inside the container level's walls.
//!
//! A module makes no system calls. It has the functions of [`wasi`], on the folders that the envelope names, and
//! nothing else. The engine that holds it to that reads and compiles what nobody trusts, so it stands in a sandbox of
//! the container level itself, whose root holds two files: this program and the compiled module. Endings, streams,
//! limits, workspace views, `/out` and kills are that level's own.
//!
//! ```text
//! keeper ─ hash the module ─ compiled before? ─ no ─► sandbox: compile ─► artifact, by its digest
//!                                  │ yes                                      │
//!                                  └──────────────► sandbox: engine ◄─────────┘
//! ```
//!
//! **Invariant:** nothing outside of a sandbox parses, compiles or runs a module, and no artifact is mapped there.

mod cache;
mod compile;
mod enforcement;
mod engine;
mod folders;
mod instance;
mod module;
mod plan;
mod wasi;
mod words;

pub use engine::{Warm, main as engine_main};
pub use module::Source;
pub use words::ROLE;

use fumehood_backend::{Backend, Placement, Plan, ReapError};
use fumehood_backend_native::Native;
use fumehood_model::enforcement::Unenforceable;
use fumehood_model::envelope::Envelope;
use fumehood_model::id::TaskId;
use fumehood_model::level::Level;
use std::rc::Rc;

/// The wasm level on this host, for one module.
#[derive(Debug)]
pub struct Wasm {
    walls: Rc<Native>,
    source: Source,
}

// === impl Wasm ===

impl Wasm {
    /// Runs `source` behind those walls.
    pub fn new(walls: Native, source: Source) -> Self {
        Self { walls: Rc::new(walls), source }
    }
}

impl Backend for Wasm {
    fn level(&self) -> Level {
        Level::Wasm
    }

    fn plan(&self, envelope: &Envelope, placement: &Placement) -> Result<Box<dyn Plan>, Unenforceable> {
        let plan = plan::WasmPlan::new(&self.walls, &self.source, envelope, placement)?;
        Ok(Box::new(plan))
    }

    fn leftovers(&self) -> Vec<TaskId> {
        self.walls.leftovers()
    }

    fn reap(&self, id: &TaskId) -> Result<(), ReapError> {
        self.walls.reap(id)
    }
}

/// Bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
