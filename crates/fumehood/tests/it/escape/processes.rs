//! The kernel wall, where another process is the target: on the host, or at the terminal.

use super::bench::{Bench, Job, SHUT, Wall};
use super::{open, probes};
use crate::lab::{self, Caller};
use fumehood_backend::conformance::Verdict;
use std::process::Child;

probes! {
    k03_roots_of_other_processes => k03, control open!(k03);
    k17_memory_of_other_processes => k17, control open!(k17);
    k18_signals_to_other_processes => k18, control open!(k18);
    k26_terminal_injection => k26, control open!(k26);
}

/// A process of the caller on the host, outside every sandbox.
struct Victim(Child);

impl Victim {
    fn new(bench: &Bench, canary: &str) -> Self {
        let mut command = bench.lab.command(bench.probe());
        Self(command.arg("pause").env("VICTIM", canary).spawn().unwrap())
    }

    /// The letter for its state in `/proc`.
    fn state(&self) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

pub(super) fn k03(bench: &Bench) -> Verdict {
    let (secret, canary) = bench.secret();
    let victim = Victim::new(bench, &canary);
    let came = bench.run(&Job::new(format!(
        "for p in /proc/[0-9]*; do cat $p/root{0} $p/cwd/secret $p/environ $p/root/../..{0}; done 2> /dev/null\n\
         cat /proc/{1}/environ /proc/{1}/root{0} /proc/self/task/*/root{0}",
        secret.display(),
        victim.0.id()
    )));
    came.leaks(&canary)
}

pub(super) fn k17(bench: &Bench) -> Verdict {
    let victim = Victim::new(bench, "");
    bench.doors(&format!("k17 {}", victim.0.id()), &[SHUT, &["ESRCH", "ENOENT", "EBADF"]].concat())
}

pub(super) fn k18(bench: &Bench) -> Verdict {
    let victim = Victim::new(bench, "");
    let came = bench.run(&Job::new(format!("./probe k18 {}", victim.0.id())));
    if victim.state() == 'T' {
        return Verdict::Breached("a process on the host was stopped".to_owned());
    }
    // Inside, that number may belong to a process of the sandbox's own; the host's view decides.
    came.finished()
}

/// Puts the runner on a terminal of ours, and looks whether anything was typed into it from inside.
pub(super) fn k26(bench: &Bench) -> Verdict {
    const DRIVER: &str = r#"
import fcntl, os, pty, select, struct, sys, termios, time
master, slave = pty.openpty()
child = os.fork()
if child == 0:
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for fd in (0, 1, 2): os.dup2(slave, fd)
    os.close(master)
    os.execvp(sys.argv[1], sys.argv[1:])
settings = termios.tcgetattr(slave)
seen = b''
end = time.monotonic() + 60
while time.monotonic() < end:
    ready, _, _ = select.select([master], [], [], 0.05)
    if ready:
        seen += os.read(master, 65536)
    elif os.waitpid(child, os.WNOHANG)[0]:
        break
# What was typed and not read waits in the queue; a raw terminal hands it over without a line's end.
settings[3] &= ~(termios.ICANON | termios.ECHO)
termios.tcsetattr(slave, termios.TCSANOW, settings)
pending = struct.unpack('i', fcntl.ioctl(slave, termios.FIONREAD, b'\0' * 4))[0]
sys.stdout.buffer.write(seen)
print('pending', pending)
"#;
    if !lab::installed("python3") {
        return Verdict::NotApplicable("the terminal is driven by `python3`".to_owned());
    }
    // Not `--json`: the terminal itself must be handed in as it would be to a person.
    let script = "chmod 755 probe 2> /dev/null; ./probe k26; echo end of probe".to_owned();
    let mut argv: Vec<String> = vec!["-c".to_owned(), DRIVER.to_owned()];
    if bench.wall == Wall::Open {
        argv.extend(["sh", "-c"].map(str::to_owned));
    } else {
        let (binary, probe) = (bench.lab.binary(), bench.probe());
        if bench.wall == Wall::Bare {
            argv.extend([probe.to_str().unwrap(), "forbid"].map(str::to_owned));
        }
        argv.extend([binary.to_str().unwrap(), "run", "--in", probe.to_str().unwrap()].map(str::to_owned));
        if bench.wall != Wall::Fumehood {
            argv.extend(["--level", "process"].map(str::to_owned));
        }
        argv.extend(["--", "sh", "-c"].map(str::to_owned));
    }
    argv.push(script);
    let mut command = bench.lab.command("/usr/bin/python3");
    command.args(argv);
    let came = bench.came(lab::finish(command, b""));
    let Some(pending) = came.number("pending ") else { return came.unclear("the driver did not end") };
    if pending != 0 {
        return Verdict::Breached(format!("{pending} bytes were typed into the host's terminal"));
    }
    if !came.out().contains("end of probe") {
        return came.unclear("the script did not reach its end");
    }
    match came.attempts().into_iter().find(|(_, result)| result == "done") {
        Some((name, _)) => Verdict::Breached(format!("{name} was done")),
        None => Verdict::Held,
    }
}

/// Kept here so that the terminal's control also runs as a user would.
#[test]
fn k26_control_as_a_user() {
    let verdict = super::without_walls(Caller::User, k26);
    assert!(!matches!(verdict, Verdict::Held), "{verdict}");
}
