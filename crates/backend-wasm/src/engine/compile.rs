//! From a module on standard input to machine code on standard output, and one line about it on standard error.

use super::config;
use crate::words::Answer;
use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;
use wasmtime::{Module, UnknownImportError};

/// The size of a page of a module's memory.
const PAGE_BYTES: u64 = 64 << 10;

pub(super) fn compile() -> Result<ExitCode, String> {
    let mut module = Vec::new();
    io::stdin().lock().read_to_end(&mut module).map_err(|error| format!("read the module: {error}"))?;
    let (answer, code) = match judge(&module) {
        Ok((least_bytes, code)) => (Answer::Compiled { least_bytes }, code),
        Err(answer) => (answer, Vec::new()),
    };
    let mut output = io::stdout().lock();
    let written = output.write_all(&code).and_then(|()| output.flush());
    written.map_err(|error| format!("write the compiled module: {error}"))?;
    let told = io::stderr().write_all(answer.line().as_bytes());
    told.map_err(|error| format!("answer: {error}"))?;
    Ok(ExitCode::SUCCESS)
}

/// The least memory that it needs, and its code.
fn judge(bytes: &[u8]) -> Result<(u64, Vec<u8>), Answer> {
    let invalid = |error: wasmtime::Error| Answer::Invalid(told(&error));
    let engine = config::engine().map_err(invalid)?;
    let module = Module::new(&engine, bytes).map_err(invalid)?;
    let linker = config::linker(&engine).map_err(invalid)?;
    if let Err(error) = linker.instantiate_pre(&module) {
        return Err(match error.downcast_ref::<UnknownImportError>() {
            Some(import) => {
                Answer::Import { module: import.module().to_owned(), name: import.name().to_owned() }
            }
            None => Answer::Invalid(told(&error)),
        });
    }
    if module.get_export("_start").is_none() {
        return Err(Answer::NoStart);
    }
    let least_bytes =
        module.resources_required().max_initial_memory_size.unwrap_or(0).saturating_mul(PAGE_BYTES);
    Ok((least_bytes, module.serialize().map_err(invalid)?))
}

/// An error with its causes, on one line.
fn told(error: &wasmtime::Error) -> String {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    causes.join(": ")
}
