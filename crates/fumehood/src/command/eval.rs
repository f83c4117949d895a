//! `fumehood eval`: a small script, on an interpreter that is a module, at the level `wasm`.

use super::{RunArguments, run};
use crate::interpreters::{self, Interpreter, Lang};
use crate::refusal::Refusal;
use crate::{tasks, usage};
use clap::Parser;
use fumehood_model::level::Level;
use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What one argument of a program may hold, with room for what else is there.
const MOST_CODE_BYTES: u64 = 120 << 10;

/// Run a small script in a sandbox without any system.
#[derive(Clone, Debug, Parser)]
#[command(about = ABOUT, max_term_width = 100, after_help = EXAMPLES, override_usage = USAGE)]
struct EvalArguments {
    /// Language: `js` or `python`
    #[arg(long, short = 'l', value_name = "LANG")]
    lang: Option<Lang>,
    /// The script itself
    #[arg(short = 'e', value_name = "CODE", allow_hyphen_values = true, conflicts_with = "setup")]
    code: Option<OsString>,
    /// Get the interpreter of a language, once: with `pip`, pinned by its hash
    #[arg(long, value_name = "LANG", conflicts_with_all = ["lang", "words"])]
    setup: Option<Lang>,
    /// Take the interpreter from this file instead; its hash must be the same
    #[arg(long, value_name = "FILE", requires = "setup")]
    from: Option<PathBuf>,
    /// Copy a file in: to `/workspace`, or to DEST. May be repeated
    #[arg(long = "in", value_name = "FILE[:DEST]")]
    inputs: Vec<OsString>,
    /// Collect the plain files that the script leaves in `/out`
    #[arg(long, short = 'o', value_name = "DIR")]
    out: Option<OsString>,
    /// Project folder, seen at `/workspace`, as with `fumehood run`
    #[arg(long, short = 'w', value_name = "DIR[:ro|:rw]")]
    workspace: Option<OsString>,
    /// Show a host file or folder read-only, at its own path or at DEST. May be repeated
    #[arg(long = "ro", value_name = "PATH[:DEST]")]
    read_only: Vec<OsString>,
    /// Let a host variable in, or set one. May be repeated
    #[arg(long, value_name = "NAME[=VALUE]")]
    env: Vec<OsString>,
    /// End the script after this time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    timeout: Option<String>,
    /// Memory of everything inside
    #[arg(long = "mem", value_name = "SIZE", allow_hyphen_values = true)]
    memory: Option<String>,
    /// Print one JSON object on standard output, with the script's output in it
    #[arg(long)]
    json: bool,
    /// Say nothing but why a script did not run or did not end by itself
    #[arg(long, short = 'q')]
    quiet: bool,
    /// A file, or `-` for standard input; then the script's own arguments
    #[arg(value_name = "FILE", trailing_var_arg = true)]
    words: Vec<OsString>,
}

const USAGE: &str = "fumehood eval --lang LANG [FLAGS] (-e CODE | FILE | -) [ARGUMENTS]\n       \
                     fumehood eval --setup LANG [--from FILE]";

const ABOUT: &str = "Run a small script in a sandbox without any system.

The interpreter is a WebAssembly module: the script makes no system calls, starts no process and has no
network. It sees `/workspace`, `/tmp`, HOME and what flags name. It prints what it prints; the value of its
last line is not shown.";

const EXAMPLES: &str = "Examples:
  fumehood eval --setup js
  fumehood eval --lang js -e 'console.log(40 + 2)'
  echo 'print(sum(range(10)))' | fumehood eval --lang python -
  fumehood eval --lang js --in data.json report.js";

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args = match usage::parse_or_tell::<EvalArguments>("eval", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let outcome = match args.setup {
        Some(lang) => interpreters::set_up(lang, args.from.as_deref()).map(|()| ExitCode::SUCCESS),
        None => return evaluate(&args),
    };
    outcome.unwrap_or_else(|refusal| {
        refusal.tell();
        ExitCode::FAILURE
    })
}

fn evaluate(args: &EvalArguments) -> ExitCode {
    run::with(args.json, || prepare(args))
}

/// The same, as `fumehood run` would be asked for it.
fn prepare(args: &EvalArguments) -> Result<RunArguments, Refusal> {
    let Some(lang) = args.lang else {
        return Err(Refusal::new(
            "read the arguments",
            "no language is named",
            "add `--lang js` or `--lang python`",
        ));
    };
    let Interpreter { path, module, name, eval } = interpreters::find(lang, &tasks::state()?)?;
    let mut inputs = args.inputs.clone();
    let mut command = vec![OsString::from(name)];
    let mut words = args.words.iter();
    match (&args.code, words.next()) {
        (Some(code), first) => {
            command.extend([OsString::from(eval), code.clone()]);
            command.extend(first.cloned());
        }
        (None, Some(first)) if first == "-" => command.extend([OsString::from(eval), typed()?]),
        (None, Some(file)) => command.push(brought(file, args, &mut inputs)?),
        (None, None) => {
            return Err(Refusal::new(
                "read the arguments",
                "there is no script",
                "write `-e CODE`, a FILE, or `-`",
            ));
        }
    }
    command.extend(words.cloned());
    Ok(RunArguments {
        level: Some(Level::Wasm),
        module: Some((path, module.to_owned())),
        inputs,
        command,
        out: args.out.clone(),
        workspace: args.workspace.clone(),
        read_only: args.read_only.clone(),
        env: args.env.clone(),
        timeout: args.timeout.clone(),
        memory: args.memory.clone(),
        json: args.json,
        quiet: args.quiet,
        no_tty: !args.words.is_empty() || args.code.is_some(),
        ..RunArguments::default()
    })
}

/// The name of a script inside: in a workspace it is there already, else it is copied in.
fn brought(file: &OsStr, args: &EvalArguments, inputs: &mut Vec<OsString>) -> Result<OsString, Refusal> {
    if args.workspace.is_some() {
        return Ok(file.to_owned());
    }
    let name = Path::new(file).file_name().ok_or_else(|| {
        Refusal::new(
            "read the arguments",
            format!("`{}` is no file", file.to_string_lossy()),
            "name a script",
        )
    })?;
    inputs.push(file.to_owned());
    Ok(name.to_owned())
}

/// A script from standard input.
fn typed() -> Result<OsString, Refusal> {
    let mut code = String::new();
    let refused = |why: String| Refusal::new("read the script", why, "put it into a file, and name that");
    let input = std::io::stdin().lock();
    input.take(MOST_CODE_BYTES + 1).read_to_string(&mut code).map_err(|error| refused(error.to_string()))?;
    if code.len() as u64 > MOST_CODE_BYTES {
        return Err(refused(format!("it is longer than {} KiB", MOST_CODE_BYTES >> 10)));
    }
    Ok(code.into())
}
