//! Compiled code, back from a file. The one place of this crate with unsafe code.

use sha2::{Digest as _, Sha256};
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use wasmtime::{Engine, Module};

/// Bytes that are hashed at once.
const STEP_BYTES: usize = 128 << 10;

/// Opens compiled code whose bytes come to `digest`.
pub(super) fn open(engine: &Engine, mut file: File, digest: &str) -> Result<Module, String> {
    let found = hash(&mut file).map_err(|error| format!("read the compiled module: {error}"))?;
    if found != digest {
        return Err("the compiled module is not what it was when it was made".to_owned());
    }
    file.rewind().map_err(|error| format!("read the compiled module: {error}"))?;
    // SAFETY: the bytes are those that a compilation of ours wrote for this very module and engine, as the digest from
    // outside shows, on a view that this sandbox can not write. That compilation read a module that nobody trusts: if
    // it was taken over, the bytes are its choice. So they are only ever taken where that module runs anyway, inside
    // the walls that would hold it then (ADR 0123).
    let module = unsafe { Module::deserialize_open_file(engine, file) };
    module.map_err(|error| format!("the compiled module is for another engine: {error}"))
}

fn hash(file: &mut File) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; STEP_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(crate::hex(&hash.finalize())),
            read => hash.update(buffer.get(..read).unwrap_or_default()),
        }
    }
}
