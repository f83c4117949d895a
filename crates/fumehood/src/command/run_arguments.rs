//! The flags of `fumehood run`, as they were typed. Nothing here is checked beyond its form.

use super::NetworkArguments;
use crate::refusal::Refusal;
use crate::spec;
use clap::Parser;
use fumehood_model::envelope::Syscalls;
use fumehood_model::level::{Blast, Level, Trust};
use std::ffi::OsString;
use std::path::PathBuf;

/// Run a command in a sandbox.
#[derive(Clone, Debug, Default, Parser)]
#[command(
    about = ABOUT,
    max_term_width = 100,
    override_usage = "fumehood run [FLAGS] [--] COMMAND [ARGUMENTS]",
    after_help = EXAMPLES,
    disable_help_flag = true
)]
pub(crate) struct RunArguments {
    /// Project folder, seen at `/workspace`. What is written goes to a layer beside it (`fumehood
    /// diff`, `apply`, `discard`); `:ro` forbids writing, `:rw` writes to the folder itself
    #[arg(long, short = 'w', value_name = "DIR[:ro|:rw]", help_heading = "Files")]
    pub(crate) workspace: Option<OsString>,
    /// Copy a file in: to `/workspace`, or to DEST. May be repeated
    #[arg(long = "in", value_name = "FILE[:DEST]", help_heading = "Files")]
    pub(crate) inputs: Vec<OsString>,
    /// Collect the plain files that the command leaves in `/out`
    #[arg(long, short = 'o', value_name = "DIR", help_heading = "Files")]
    pub(crate) out: Option<OsString>,
    /// Show a host file or folder read-only, at its own path or at DEST. May be repeated
    #[arg(long = "ro", value_name = "PATH[:DEST]", help_heading = "Files")]
    pub(crate) read_only: Vec<OsString>,
    /// Go on where the last run of this name stopped: same HOME and, with the same --workspace, same
    /// layer
    #[arg(long, value_name = "NAME", help_heading = "Files")]
    pub(crate) session: Option<String>,
    /// Keep a cache for this project: `npm`, `pip`, `cargo`, or a folder inside. May be repeated
    #[arg(long = "cache", value_name = "KIND|DIR", help_heading = "Files")]
    pub(crate) caches: Vec<String>,
    /// Stand on an image of the store (`fumehood image pull`), or on an unpacked root folder (beginning with `./` or
    /// `/`), in place of the host's system folders. Without a command the image's own is run
    #[arg(long, value_name = "NAME|DIR", help_heading = "Files")]
    pub(crate) image: Option<OsString>,
    /// Stand on a template that was built (`fumehood template build NAME`), in place of the host's system folders
    #[arg(long, value_name = "NAME", conflicts_with = "image", help_heading = "Files")]
    pub(crate) template: Option<String>,
    /// Pull the image first, where it is not in the store
    #[arg(long, requires = "image", help_heading = "Files")]
    pub(crate) pull: bool,

    #[command(flatten)]
    pub(crate) network: NetworkArguments,
    /// Show everything that leaves, and everything that does not, as it happens
    #[arg(long, help_heading = "Network")]
    pub(crate) watch_net: bool,
    /// Open every public host (`--net proxy`), and write the rules that would have done to a new FILE
    #[arg(long, value_name = "FILE", help_heading = "Network")]
    pub(crate) learn: Option<PathBuf>,

    /// End the command after this time: `90s`, `5m` [default: none at a terminal, 60s with --json,
    /// else 1h]
    #[arg(long, value_name = "TIME", help_heading = "Limits", allow_hyphen_values = true)]
    pub(crate) timeout: Option<String>,
    /// Memory of everything inside, scratch included: `512M`, `2GiB` [default: 4GiB, or half of the
    /// host's]
    #[arg(
        long = "mem",
        visible_alias = "memory",
        value_name = "SIZE",
        help_heading = "Limits",
        allow_hyphen_values = true
    )]
    pub(crate) memory: Option<String>,
    /// Processors: `2`, `0.5` [default: all]
    #[arg(long, value_name = "NUMBER", help_heading = "Limits", allow_hyphen_values = true)]
    pub(crate) cpus: Option<String>,
    /// Processes and threads [default: 512]
    #[arg(long, value_name = "NUMBER", help_heading = "Limits", allow_hyphen_values = true)]
    pub(crate) pids: Option<u32>,
    /// Bytes that may be written to the layer of a workspace, or to scratch (which ends at half of
    /// --mem) [default: 10GiB]
    #[arg(long, value_name = "SIZE", help_heading = "Limits", allow_hyphen_values = true)]
    pub(crate) disk: Option<String>,
    /// Output that is passed on; the rest is counted and dropped [default: 16MiB with --json, else
    /// 1TiB]
    #[arg(long, value_name = "SIZE", help_heading = "Limits", allow_hyphen_values = true)]
    pub(crate) max_output: Option<String>,

    /// Level: `process`, `container`, `gvisor`, `microvm`, or `wasm` for a WebAssembly file. Left out,
    /// it follows from --trust and --blast (`fumehood choose`)
    #[arg(long, value_name = "LEVEL", help_heading = "Isolation", value_parser = spec::level_parser(), hide_possible_values = true)]
    pub(crate) level: Option<Level>,
    /// Take a microvm whose processor is emulated by software, where there is no KVM: slower, and no
    /// security boundary that QEMU vouches for
    #[arg(long, help_heading = "Isolation")]
    pub(crate) accept_tcg: bool,
    /// How far the input can be trusted: `low`, `medium`, `high` [default: medium]
    #[arg(long, value_name = "TRUST", help_heading = "Isolation", value_parser = spec::trust_parser(), hide_possible_values = true)]
    pub(crate) trust: Option<Trust>,
    /// The worst it could do: `low`, `medium`, `high` [default: medium]
    #[arg(long, value_name = "BLAST", help_heading = "Isolation", value_parser = spec::blast_parser(), hide_possible_values = true)]
    pub(crate) blast: Option<Blast>,
    /// System calls: `default`, or `debug` for debuggers
    #[arg(long, value_name = "PROFILE", help_heading = "Isolation", value_parser = spec::syscalls_parser(), hide_possible_values = true)]
    pub(crate) syscalls: Option<Syscalls>,
    /// Take the envelope from this file; flags go on top
    #[arg(long, value_name = "FILE", help_heading = "Isolation")]
    pub(crate) config: Option<PathBuf>,

    /// Let a host variable in, or set one. May be repeated
    #[arg(long = "env", short = 'e', value_name = "NAME[=VALUE]", help_heading = "Command")]
    pub(crate) env: Vec<OsString>,
    /// Start in this folder of the sandbox [default: /workspace]
    #[arg(long, value_name = "DIR", help_heading = "Command")]
    pub(crate) cwd: Option<PathBuf>,
    /// Be this user id inside [default: 1000]
    #[arg(long, value_name = "UID", help_heading = "Command", allow_hyphen_values = true)]
    pub(crate) user: Option<u32>,
    /// Give the command a terminal, even where standard input or output is none
    #[arg(long, overrides_with = "no_tty", conflicts_with = "json", help_heading = "Command")]
    pub(crate) tty: bool,
    /// Give the command no terminal
    #[arg(long, overrides_with = "tty", help_heading = "Command")]
    pub(crate) no_tty: bool,

    /// Keep what `fumehood replay` needs to run it again without a network: input, output, files copied in, answers to
    /// requests. It gets no terminal
    #[arg(long, conflicts_with_all = ["tty", "session"], help_heading = "Output")]
    pub(crate) tape: bool,
    /// Print one JSON object on standard output, with the command's output in it
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Print what would be enforced, and by what; run nothing
    #[arg(long, help_heading = "Output")]
    pub(crate) explain: bool,
    /// Say nothing but why a command did not run or did not end by itself
    #[arg(long, short = 'q', help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Print this
    #[arg(long, short = 'h', action = clap::ArgAction::HelpShort, help_heading = "Output")]
    pub(crate) help: Option<bool>,

    /// The module that runs, and its hash, where it is not the command's first word.
    #[arg(skip)]
    pub(crate) module: Option<(PathBuf, String)>,
    #[arg(value_name = "COMMAND", trailing_var_arg = true, hide = true)]
    pub(crate) command: Vec<OsString>,
}

const ABOUT: &str = "Run a command in a sandbox.

Inside are the host's system folders (read-only), your toolchains (read-only), an empty HOME, an
empty `/workspace` to work in, and no network. What no flag and no `fumehood.toml` names is not
there: not even the folder that you are in (`--workspace .` shows it).";

const EXAMPLES: &str = "Examples:
  A script, a file in, a folder out:
    fumehood run --in plot.py --in data.csv --out results -- python3 plot.py
  Your project; the changes wait for `fumehood apply`:
    fumehood run --workspace . -- make test
  Two runs that share a layer and HOME:
    fumehood run --workspace . --session web -- npm install --offline
    fumehood run --workspace . --session web -- npm test
  For programs: one JSON object, ended after 30 s, at most 1 GiB:
    fumehood run --json --timeout 30s --mem 1GiB -- python3 -c 'print(1)'

Exit codes: the command's own; 121 a watched limit, 122 lost, 123 halted, 124 timed out, 125 not
started, 126 not executable, 127 not found, 137 out of memory, 128+n ended by signal n.";

// === impl RunArguments ===

impl RunArguments {
    /// The same, with the image of its template in the template's place.
    pub(crate) fn on_its_template(mut self) -> Result<Self, Refusal> {
        if let Some(name) = self.template.take() {
            self.image = Some(super::template::built(&name)?);
        }
        Ok(self)
    }
}
