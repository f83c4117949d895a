//! A lab in a range: where the built binary runs, and where the control runs beside it.

use crate::kit;
use crate::lab::{Caller, Lab, Ran, finish};
use crate::log::Log;
use crate::range::{Mark, Range};
use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

/// How long a packet or a late request may take to be noted once its sender has ended.
const SETTLE: Duration = Duration::from_millis(60);

/// One test's lab and range.
#[derive(Debug)]
pub(crate) struct Stand {
    pub(crate) lab: Lab,
    pub(crate) range: Range,
}

/// What stands around a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wall {
    Fumehood,
    /// None: the client runs on the range's host, as the control of every probe.
    Open,
}

/// What a client did, and what the range saw of it.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) ran: Ran,
    pub(crate) log: Log,
}

// === impl Stand ===

impl Stand {
    /// A new lab in a new range.
    pub(crate) fn new(caller: Caller) -> Self {
        Self { lab: Lab::new(caller), range: Range::start() }
    }

    /// `fumehood run FLAGS -- ARGV` on the range's host, with the kit's Python packages in reach.
    pub(crate) fn inside<S: AsRef<OsStr>>(&self, flags: &[&str], argv: &[S]) -> Seen {
        self.inside_with(&[], flags, argv)
    }

    /// The same, by a caller who has these variables besides the usual ones.
    pub(crate) fn inside_with<S: AsRef<OsStr>>(
        &self,
        variables: &[(&str, &str)],
        flags: &[&str],
        argv: &[S],
    ) -> Seen {
        let mark = self.range.mark();
        let ran = finish(self.started(variables, flags, argv), b"");
        Seen { ran, log: self.settled(mark) }
    }

    /// The command of [`Stand::inside_with`], to be started by the test.
    pub(crate) fn started<S: AsRef<OsStr>>(
        &self,
        variables: &[(&str, &str)],
        flags: &[&str],
        argv: &[S],
    ) -> Command {
        let mut command = self.lab.fumehood();
        command.envs(variables.iter().copied());
        command.arg("run").args(flags).args(self.kit_flags()).arg("--").args(argv);
        self.range.enter(&command)
    }

    /// `fumehood fetch WORDS` on the range's host.
    pub(crate) fn fetch(&self, words: &[&str]) -> Seen {
        let mark = self.range.mark();
        let mut command = self.lab.fumehood();
        command.arg("fetch").args(words);
        let ran = finish(self.range.enter(&command), b"");
        Seen { ran, log: self.settled(mark) }
    }

    /// The same client without any wall.
    pub(crate) fn beside<S: AsRef<OsStr>>(&self, argv: &[S]) -> Seen {
        let mark = self.range.mark();
        let (program, arguments) = argv.split_first().unwrap();
        let mut command = self.lab.command(program);
        command.args(arguments).env("PYTHONPATH", kit::python()).env("NODE_PATH", kit::node());
        let ran = finish(self.range.enter(&command), b"");
        Seen { ran, log: self.settled(mark) }
    }

    /// Behind `wall`.
    pub(crate) fn behind<S: AsRef<OsStr>>(&self, wall: Wall, flags: &[&str], argv: &[S]) -> Seen {
        match wall {
            Wall::Fumehood => self.inside(flags, argv),
            Wall::Open => self.beside(argv),
        }
    }

    /// A client of `clients/`: with `--in` for the sandbox, and its argv for either side of the wall.
    pub(crate) fn client(&self, wall: Wall, flags: &[&str], name: &str, arguments: &[&str]) -> Seen {
        let path = kit::client(&self.lab, name);
        let path = path.to_str().unwrap();
        let (mut all, program) = match wall {
            Wall::Fumehood => (vec!["--in", path], name),
            Wall::Open => (Vec::new(), path),
        };
        all.extend(flags);
        let argv: Vec<&str> = ["/usr/bin/python3", program].iter().chain(arguments).copied().collect();
        self.behind(wall, &all, &argv)
    }

    /// The record of the last run, event for event.
    pub(crate) fn record(&self) -> Vec<serde_json::Value> {
        let mut command = self.lab.fumehood();
        command.args(["audit", "show", "--json"]);
        let ran = finish(self.range.enter(&command), b"");
        assert_eq!(ran.code(), 0, "{}", ran.told());
        ran.out().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// What the range saw since, once it has had the time to see it.
    pub(crate) fn settled(&self, mark: Mark) -> Log {
        std::thread::park_timeout(SETTLE);
        self.range.since(mark)
    }

    fn kit_flags(&self) -> [String; 8] {
        let (python, node) = (kit::python(), kit::node());
        [
            "--ro".to_owned(),
            format!("{}:/input/python", python.display()),
            "--ro".to_owned(),
            format!("{}:/input/node", node.display()),
            "--env".to_owned(),
            "PYTHONPATH=/input/python".to_owned(),
            "--env".to_owned(),
            "NODE_PATH=/input/node".to_owned(),
        ]
    }
}
