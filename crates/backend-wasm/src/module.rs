//! The module that is to run, as the caller names it.

use fumehood_backend::LaunchError;
use fumehood_model::text::shown;
use sha2::{Digest as _, Sha256};
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// What is read of a module at most.
const MOST_BYTES: u64 = 256 << 20;
/// `\0asm`, and version 1 of a module; a component has another.
const MAGIC: &[u8; 4] = b"\0asm";
const VERSION: [u8; 4] = [1, 0, 0, 0];
const COMPONENT: [u8; 4] = [0x0d, 0, 1, 0];
/// `O_NONBLOCK` on this target: a fifo is not waited for.
const NONBLOCKING: i32 = 0o4000;

/// A memory of one page, and a `_start` that returns.
const LEAST: &[u8] = b"\0asm\x01\0\0\0\
    \x01\x04\x01\x60\0\0\
    \x03\x02\x01\0\
    \x05\x03\x01\0\x01\
    \x07\x13\x02\x06memory\x02\0\x06_start\0\0\
    \x0a\x04\x01\x02\0\x0b";

/// Where a module comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file of the host, read as the caller.
    File(PathBuf),
    /// One in a folder of ours, whose SHA-256 was found to be this when it was put there. It is read, and held to
    /// that, when it is compiled.
    Known { path: PathBuf, hash: String },
    /// One that does nothing: to see whether the level works here.
    Least,
}

/// A module, by its hash; and its bytes, as far as they had to be read for that.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) content: Content,
    /// SHA-256 of its bytes.
    pub(crate) hash: String,
}

/// The bytes of a module.
#[derive(Debug)]
pub(crate) enum Content {
    Read(Vec<u8>),
    At(PathBuf),
}

// === impl Source ===

impl Source {
    /// Finds it. What is not a module is told from one by its first bytes; the rest is for the compilation.
    pub(crate) fn find(&self) -> Result<Module, LaunchError> {
        let bytes = match self {
            Self::Known { path, hash } => {
                return Ok(Module { content: Content::At(path.clone()), hash: hash.clone() });
            }
            Self::Least => LEAST.to_vec(),
            Self::File(path) => load(path)?,
        };
        let hash = crate::hex(&Sha256::digest(&bytes));
        Ok(Module { content: Content::Read(bytes), hash })
    }
}

// === impl Module ===

impl Module {
    /// Its bytes, which come to its hash.
    pub(crate) fn bytes(&self) -> Result<Cow<'_, [u8]>, LaunchError> {
        let path = match &self.content {
            Content::Read(bytes) => return Ok(Cow::Borrowed(bytes)),
            Content::At(path) => path,
        };
        let bytes = load(path)?;
        if crate::hex(&Sha256::digest(&bytes)) != self.hash {
            return Err(refused(path, "it is not what it was when it was set up", "set it up again"));
        }
        Ok(Cow::Owned(bytes))
    }
}

fn load(path: &Path) -> Result<Vec<u8>, LaunchError> {
    let bytes = read(path).map_err(|error| {
        let text = error.to_string();
        let why = text.split(" (os error").next().unwrap_or_default().to_lowercase();
        refused(path, &why, NOT_THERE)
    })?;
    judge(&bytes).map_err(|(why, remedy)| refused(path, why, remedy))?;
    Ok(bytes)
}

fn refused(path: &Path, why: &str, remedy: &str) -> LaunchError {
    let step = format!("read the module `{}`", shown(&path.to_string_lossy()));
    LaunchError { step, why: why.to_owned(), remedy: remedy.to_owned() }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::options().read(true).custom_flags(NONBLOCKING).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 256 MiB"));
    }
    Ok(bytes)
}

fn judge(bytes: &[u8]) -> Result<(), (&'static str, &'static str)> {
    let Some((magic, rest)) = bytes.split_first_chunk::<4>() else { return Err(NOT_WASM) };
    match (magic, rest.first_chunk::<4>()) {
        (MAGIC, Some(&VERSION)) => Ok(()),
        (MAGIC, Some(&COMPONENT)) => Err((
            "it is a component, and this level runs modules",
            "build it for WASI preview 1 (`wasm32-wasip1`), which makes a module",
        )),
        (MAGIC, _) => Err(("it is of a version of WebAssembly that is not known", "build it as version 1")),
        (_, _) => Err(NOT_WASM),
    }
}

const NOT_THERE: &str =
    "at this level the command is a WebAssembly file of the host: `fumehood run --level wasm module.wasm`";

const NOT_WASM: (&str, &str) = (
    "it is not a WebAssembly module",
    "build one for WASI preview 1 (`wasm32-wasip1`); a program of the host runs with `--level container`",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_module_is_told_from_one() {
        assert_eq!(judge(LEAST), Ok(()));
        assert_eq!(judge(b""), Err(NOT_WASM));
        assert_eq!(judge(b"#!/bin/sh\n"), Err(NOT_WASM));
        assert!(judge(b"\0asm\x0d\0\x01\0").unwrap_err().0.contains("component"));
        assert!(judge(b"\0asm\x02\0\0\0").is_err());
        assert!(judge(b"\0asm").is_err());
    }

    #[test]
    fn the_least_module_runs() {
        crate::Warm::new(LEAST).unwrap().once().unwrap();
    }
}
