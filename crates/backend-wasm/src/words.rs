//! What the keeper and the engine inside say to each other: the arguments of the engine, and the one line that a
//! compilation answers with.
//!
//! The answer comes from a process that has read a module nobody trusts. It is judged like anything from a guest:
//! what does not parse is no answer.

use fumehood_model::text::shown;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

/// The word that makes the program the engine. Nobody types it: outside of a sandbox it is refused.
pub const ROLE: &str = "wasm-engine";
/// Where the engine and the compiled module are inside; no folder that is given is above them.
pub(crate) const ENGINE_AT: &str = "/run/fumehood/engine";
pub(crate) const ARTIFACT_AT: &str = "/run/fumehood/module";

const COMPILE: &str = "compile";
const RUN: &str = "run";

/// The signal by which the engine ends itself when it could not start the module. No module can send one, and no
/// keeper sends this one.
pub(crate) const BROKEN: u8 = 12;
/// The same, where it is memory that the engine did not get.
pub(crate) const STARVED: u8 = 10;

/// The longest answer that is read, and the longest text of it that is told.
pub(crate) const ANSWER_BYTES: usize = 4096;
const TOLD_CHARACTERS: usize = 400;

/// What the engine is asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// From a module on standard input to an artifact on standard output.
    Compile,
    Run(Run),
}

/// One run of a compiled module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// What the artifact's bytes must come to, as 64 hexadecimal digits.
    pub(crate) digest: String,
    /// What each memory of the module may grow to.
    pub(crate) memory_bytes: u64,
    pub(crate) open_files: u32,
    /// The folder that relative paths start in.
    pub(crate) cwd: PathBuf,
    /// The folders that the module is given, as guest paths.
    pub(crate) folders: Vec<PathBuf>,
    /// The module's own, its name first.
    pub(crate) arguments: Vec<OsString>,
}

/// What came of a compilation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is on standard output, and needs at least that much memory.
    Compiled { least_bytes: u64 },
    /// It is not valid, or asks for what this engine does not have.
    Invalid(String),
    /// It needs a function that nobody offers.
    Import { module: String, name: String },
    /// It has no `_start`.
    NoStart,
}

// === impl Order ===

impl Order {
    /// As the arguments of the engine.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec![ENGINE_AT.into(), ROLE.into()];
        match self {
            Self::Compile => words.push(COMPILE.into()),
            Self::Run(Run { digest, memory_bytes, open_files, cwd, folders, arguments }) => {
                words.extend([RUN.into(), digest.into()]);
                words.extend([memory_bytes.to_string().into(), open_files.to_string().into()]);
                words.extend([cwd.into(), folders.len().to_string().into()]);
                words.extend(folders.iter().map(Into::into));
                words.extend_from_slice(arguments);
            }
        }
        words
    }

    /// From what follows [`ROLE`].
    pub(crate) fn parse(words: &[OsString]) -> Option<Self> {
        let number = |word: &OsString| word.to_str().and_then(|text| text.parse::<u64>().ok());
        match words {
            [order] if order == COMPILE => Some(Self::Compile),
            [order, digest, memory, files, cwd, count, rest @ ..] if order == RUN => {
                let count = usize::try_from(number(count)?).ok()?;
                let (folders, arguments) = rest.split_at_checked(count)?;
                Some(Self::Run(Run {
                    digest: digest.to_str()?.to_owned(),
                    memory_bytes: number(memory)?,
                    open_files: u32::try_from(number(files)?).ok()?,
                    cwd: cwd.into(),
                    folders: folders.iter().map(PathBuf::from).collect(),
                    arguments: arguments.to_vec(),
                }))
            }
            _ => None,
        }
    }
}

// === impl Answer ===

impl Answer {
    /// As one line, fields between tabs.
    pub(crate) fn line(&self) -> String {
        let plain = |text: &str| text.replace(['\t', '\n', '\r'], " ");
        match self {
            Self::Compiled { least_bytes } => format!("compiled\t{least_bytes}\n"),
            Self::Invalid(why) => format!("invalid\t{}\n", plain(why)),
            Self::Import { module, name } => format!("import\t{}\t{}\n", plain(module), plain(name)),
            Self::NoStart => "no-start\n".to_owned(),
        }
    }

    /// Nothing but a whole answer is one, and its texts are made fit to be shown.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
        let told = |text: &str| shown(&text.chars().take(TOLD_CHARACTERS).collect::<String>());
        let fields: Vec<&str> = text.split('\t').collect();
        match fields.as_slice() {
            ["compiled", least] => Some(Self::Compiled { least_bytes: least.parse().ok()? }),
            ["invalid", why] => Some(Self::Invalid(told(why))),
            ["import", module, name] => Some(Self::Import { module: told(module), name: told(name) }),
            ["no-start"] => Some(Self::NoStart),
            _ => None,
        }
    }
}

/// A path as the bytes that a module sees.
pub(crate) fn bytes(text: &OsStr) -> Vec<u8> {
    OsString::from_vec(text.as_bytes().to_vec()).into_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_order_survives_the_way_in() {
        let run = Run {
            digest: "ab".repeat(32),
            memory_bytes: 1 << 33,
            open_files: 4096,
            cwd: "/workspace".into(),
            folders: vec!["/tmp".into(), "/out".into()],
            arguments: vec!["m.wasm".into(), "run".into(), OsString::from_vec(vec![0xff])],
        };
        for order in [Order::Compile, Order::Run(run)] {
            let words = order.words();
            assert_eq!(words[1], ROLE);
            assert_eq!(Order::parse(&words[2..]), Some(order));
        }
        assert_eq!(Order::parse(&["run".into(), "x".into()]), None);
    }

    #[test]
    fn an_answer_survives_the_way_out_and_tells_nothing_raw() {
        for answer in [Answer::Compiled { least_bytes: 65_536 }, Answer::NoStart] {
            assert_eq!(Answer::parse(answer.line().as_bytes()), Some(answer));
        }
        let hostile = Answer::Import { module: "env\n".into(), name: "\u{1b}[2Jx\ty".into() };
        let Some(Answer::Import { name, .. }) = Answer::parse(hostile.line().as_bytes()) else { panic!() };
        assert!(!name.contains('\u{1b}'), "{name}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer_or_none(line: Vec<u8>) {
            let _ = Answer::parse(&line);
        }
    }
}
