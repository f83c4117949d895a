//! Sandboxes that live on between commands: by the command line, and by the socket of their keeper.

use crate::both_callers::both_callers;
use crate::lab::{self, Caller, Lab, Ran, finish};
use crate::residue::{Host, SETTLED};
use fumehood_keep::client::{Connection, Frame};
use fumehood_keep::frame::Kind;
use fumehood_keep::wire::{Ask, Exec, FailureCode, Said, Sandbox};
use fumehood_model::ending::Ending;
use std::cell::RefCell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

both_callers! {
    a_command_is_as_if_it_ran_here
    many_commands_run_at_once
    who_comes_back_sees_all_that_was_said
    what_runs_in_the_background_outlives_its_shell
    a_terminal_knows_its_size_and_takes_what_is_typed
    a_command_that_takes_too_long_ends
    files_live_as_long_as_the_sandbox
    a_port_inside_is_reached
    a_sandbox_of_a_pool_is_claimed_once
    its_time_ends_it
    what_can_not_be_is_told_and_leaves_nothing
    the_record_tells_of_every_command
    a_flood_is_held_back_while_somebody_reads_it
}

/// A sandbox of one test.
pub(crate) struct Living<'l> {
    lab: &'l Lab,
    pub(crate) id: String,
}

/// What came of one command.
#[derive(Debug, Default)]
pub(crate) struct Done {
    output: Vec<u8>,
    error: Vec<u8>,
    last: Option<Said>,
}

// === impl Living ===

impl<'l> Living<'l> {
    pub(crate) fn new(lab: &'l Lab, flags: &[&str]) -> Self {
        let ran = create(lab, flags);
        assert_eq!(ran.code(), 0, "{}", ran.told());
        Self { lab, id: ran.out().trim().to_owned() }
    }

    /// One that somebody else has made.
    pub(crate) fn of(lab: &'l Lab, id: &str) -> Self {
        Self { lab, id: id.to_owned() }
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.lab.state().join("sandboxes").join(&self.id)
    }

    pub(crate) fn ask(&self, ask: &Ask) -> Connection {
        Connection::ask(&self.folder().join("keeper.sock"), ask).unwrap()
    }

    pub(crate) fn call(&self, ask: &Ask) -> Said {
        match self.ask(ask).next().unwrap() {
            Some(Frame::Said(said)) => said,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn exec(&self, argv: &[&str]) -> Done {
        follow(&mut self.ask(&Ask::Exec(exec(argv))))
    }

    /// Starts one, and gives its number and the connection.
    pub(crate) fn start(&self, exec: Exec) -> (u32, Connection) {
        let mut connection = self.ask(&Ask::Exec(exec));
        match connection.next().unwrap() {
            Some(Frame::Said(Said::Started { exec, .. })) => (exec, connection),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn fumehood(&self, words: &[&str], input: &[u8]) -> Ran {
        let mut command = self.lab.fumehood();
        command.args(words);
        finish(command, input)
    }

    pub(crate) fn keeper_pid(&self) -> i32 {
        let words = std::fs::read(self.folder().join("sandbox.json")).unwrap();
        let sandbox: Sandbox = serde_json::from_slice(&words).unwrap();
        i32::try_from(sandbox.keeper_pid).unwrap()
    }

    pub(crate) fn stop(&self) {
        let ran = self.fumehood(&["stop", &self.id], b"");
        assert_eq!(ran.code(), 0, "{}", ran.told());
        assert!(!self.folder().exists());
    }
}

impl Drop for Living<'_> {
    fn drop(&mut self) {
        if self.folder().join("keeper.sock").exists() {
            let _ = Connection::call(&self.folder().join("keeper.sock"), &Ask::Stop { keep_files: false });
        }
    }
}

// === impl Done ===

impl Done {
    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.output).into_owned()
    }

    pub(crate) fn ending(&self) -> &Ending {
        match &self.last {
            Some(Said::Ended { ending, .. }) => ending,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn refused(&self) -> FailureCode {
        match &self.last {
            Some(Said::Failed(failure)) => {
                assert!(!failure.remediation.is_empty(), "{failure:?}");
                failure.code
            }
            other => panic!("{other:?}"),
        }
    }
}

thread_local! {
    /// What every sandbox of this thread is created with.
    static LEVEL: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Everything that this thread creates from now on is created with these words.
pub(crate) fn create_with(words: &[&str]) {
    LEVEL.set(words.iter().map(|word| (*word).to_owned()).collect());
}

pub(crate) fn create(lab: &Lab, flags: &[&str]) -> Ran {
    let mut command = lab.fumehood();
    command.arg("create").args(LEVEL.with_borrow(Clone::clone)).args(flags);
    finish(command, b"")
}

fn exec(argv: &[&str]) -> Exec {
    Exec { argv: argv.iter().map(|word| (*word).to_owned()).collect(), ..Exec::default() }
}

pub(crate) fn shell(script: &str) -> Exec {
    exec(&["sh", "-c", script])
}

pub(crate) fn follow(connection: &mut Connection) -> Done {
    let mut done = Done::default();
    while let Some(frame) = connection.next().unwrap() {
        match frame {
            Frame::Bytes(Kind::Stderr, bytes) => done.error.extend(bytes),
            Frame::Bytes(_, bytes) => done.output.extend(bytes),
            Frame::Said(said) => done.last = Some(said),
        }
    }
    done
}

pub(crate) const ENDED_WELL: Ending = Ending::Exited { code: 0 };

pub(crate) fn a_command_is_as_if_it_ran_here(lab: &Lab) {
    let one = Living::new(lab, &["--env", "GIVEN=as given"]);
    let ran = one.fumehood(
        &[
            "exec",
            "--env",
            "MORE=too",
            &one.id,
            "--",
            "sh",
            "-c",
            "cat; echo \"$GIVEN $MORE $PWD\" >&2; exit 7",
        ],
        b"through and through",
    );
    assert_eq!((ran.code(), ran.out().as_str()), (7, "through and through"), "{}", ran.told());
    assert_eq!(ran.err().trim(), "as given too /workspace");
    let missing = one.fumehood(&["exec", &one.id, "--", "no-such-command"], b"");
    assert_eq!(missing.code(), 127, "{}", missing.told());
    assert!(missing.err().contains("remedy:"));
    // Without input it is at its end from the start.
    assert_eq!(one.exec(&["cat"]).ending(), &ENDED_WELL);
    let listed = one.fumehood(&["ls"], b"");
    assert!(listed.out().contains(&one.id), "{}", listed.told());
    one.stop();
    let gone = one.fumehood(&["exec", &one.id, "--", "true"], b"");
    assert_eq!(gone.code(), 125, "{}", gone.told());
}

fn many_commands_run_at_once(lab: &Lab) {
    const MANY: usize = 40;
    let one = Living::new(lab, &[]);
    // Each waits for the last one: they end only if all run together.
    let script = |number: usize| {
        format!("touch at.{number}; until [ $(ls at.* | wc -l) = {MANY} ]; do sleep 0.1; done; echo {number}")
    };
    let mut all: Vec<_> = (0..MANY).map(|number| one.start(shell(&script(number)))).collect();
    for (number, (exec, connection)) in all.iter_mut().enumerate() {
        let done = follow(connection);
        assert_eq!(done.out(), format!("{number}\n"), "command {exec}: {done:?}");
        assert_eq!(done.ending(), &ENDED_WELL);
    }
}

pub(crate) fn who_comes_back_sees_all_that_was_said(lab: &Lab) {
    let one = Living::new(lab, &[]);
    let mut asked = shell("echo first; read line; echo got $line; echo aside >&2");
    asked.stdin = true;
    asked.tag = Some("mine".to_owned());
    let (number, connection) = one.start(asked);
    drop(connection);
    let mut back = one.ask(&Ask::Attach { exec: number, stdout_from: 2, stderr_from: 0 });
    let mut input = one.ask(&Ask::Input { exec: number });
    input.send(Kind::Input, b"a line\n").unwrap();
    input.send(Kind::InputEnd, &[]).unwrap();
    assert_eq!(input.next().unwrap(), Some(Frame::Said(Said::Done)));
    let done = follow(&mut back);
    assert_eq!((done.out().as_str(), done.error.as_slice()), ("rst\ngot a line\n", b"aside\n".as_slice()));
    // And again, when it is long over.
    let again = follow(&mut one.ask(&Ask::Attach { exec: number, stdout_from: 0, stderr_from: 6 }));
    assert_eq!((again.out().as_str(), again.error.as_slice()), ("first\ngot a line\n", b"".as_slice()));
    assert_eq!(again.ending(), &ENDED_WELL);
    let Said::Execs { execs } = one.call(&Ask::List) else { panic!() };
    assert_eq!((execs[0].tag.as_deref(), execs[0].stdout_bytes), (Some("mine"), 17));
    assert!(execs[0].ending.is_some());
    let logged = one.fumehood(&["logs", &one.id, &number.to_string()], b"");
    assert_eq!(logged.out(), "first\ngot a line\n", "{}", logged.told());
}

pub(crate) fn what_runs_in_the_background_outlives_its_shell(lab: &Lab) {
    let one = Living::new(lab, &[]);
    let before = Instant::now();
    let done = one.exec(&[
        "sh",
        "-c",
        "(until [ -e go ]; do sleep 0.1; done; echo went > went; sleep 1000) & echo $!",
    ]);
    assert_eq!(done.ending(), &ENDED_WELL);
    // It still has the stream, and that is no reason to wait for it.
    assert!(before.elapsed() < Duration::from_secs(20));
    assert_eq!(one.exec(&["touch", "go"]).ending(), &ENDED_WELL);
    assert!(lab::poll(lab::DEADLINE, || one.exec(&["cat", "went"]).out() == "went\n"));
    let pid = done.out().trim().to_owned();
    assert_eq!(one.exec(&["kill", "-0", &pid]).ending(), &ENDED_WELL);
}

pub(crate) fn a_terminal_knows_its_size_and_takes_what_is_typed(lab: &Lab) {
    let one = Living::new(lab, &[]);
    let mut asked = shell("stty size; read word; stty size; echo got $word; cat");
    asked.terminal = Some((30, 100));
    asked.stdin = true;
    // What is typed before the terminal is there waits for it; and no time that somebody names ends the keeper.
    let mut ahead = shell("read word; echo got $word");
    (ahead.terminal, ahead.stdin, ahead.timeout_ms) = (Some((24, 80)), true, Some(u64::MAX));
    let mut early = one.ask(&Ask::Exec(ahead));
    early.send(Kind::Input, b"ahead\n").unwrap();
    assert_eq!(one.call(&Ask::Expire { at_ms: Some(u64::MAX) }), Said::Done);
    let done = follow(&mut early);
    assert!(done.out().ends_with("got ahead\r\n"), "{done:?}");
    let (number, mut connection) = one.start(asked);
    let first = connection.next().unwrap();
    assert!(
        matches!(&first, Some(Frame::Bytes(Kind::Terminal, bytes)) if bytes.starts_with(b"30 100")),
        "{first:?}"
    );
    assert_eq!(one.call(&Ask::Resize { exec: number, rows: 11, columns: 22 }), Said::Done);
    connection.send(Kind::Input, b"hello\n").unwrap();
    connection.send(Kind::InputEnd, &[]).unwrap();
    let done = follow(&mut connection);
    assert!(done.out().contains("11 22\r\ngot hello\r\n"), "{done:?}");
    assert_eq!(done.ending(), &ENDED_WELL);
}

pub(crate) fn a_command_that_takes_too_long_ends(lab: &Lab) {
    let one = Living::new(lab, &[]);
    let mut asked = shell("trap '' TERM; while :; do sleep 1000; done");
    asked.timeout_ms = Some(200);
    let (_, mut connection) = one.start(asked);
    assert_eq!(follow(&mut connection).ending(), &Ending::TimedOut { limit_ms: 200 });
    let (number, mut connection) = one.start(exec(&["sleep", "1000"]));
    assert_eq!(one.call(&Ask::Signal { exec: number, signal: 15 }), Said::Done);
    assert_eq!(follow(&mut connection).ending(), &Ending::Killed { signal: 15, name: "SIGTERM".to_owned() });
    let late = follow(&mut one.ask(&Ask::Signal { exec: number, signal: 15 }));
    assert_eq!(late.refused(), FailureCode::NoExec);
}

pub(crate) fn files_live_as_long_as_the_sandbox(lab: &Lab) {
    let project = lab.folder("project");
    lab.file("project/given", "from the host");
    let one = Living::new(lab, &["--workspace", project.to_str().unwrap()]);
    let wrote = one.exec(&["sh", "-c", "cat given; echo new > made; echo kept > $HOME/kept"]);
    assert_eq!((wrote.out().as_str(), wrote.ending()), ("from the host", &ENDED_WELL), "{wrote:?}");
    assert_eq!(one.exec(&["sh", "-c", "cat made $HOME/kept"]).out(), "new\nkept\n");
    assert!(!project.join("made").exists());
    assert_eq!(one.call(&Ask::Stop { keep_files: true }), Said::Done);
    assert_eq!(std::fs::read_to_string(one.folder().join("home/kept")).unwrap(), "kept\n");
    assert!(!one.folder().join("keeper.sock").exists());
    // What was to be kept is not taken for what was left.
    let listed = one.fumehood(&["ls"], b"");
    assert!(listed.out().contains("files kept"), "{}", listed.told());
    let removed = one.fumehood(&["rm", &one.id], b"");
    assert_eq!(removed.code(), 0, "{}", removed.told());
    assert!(!one.folder().exists());
}

pub(crate) fn a_port_inside_is_reached(lab: &Lab) {
    use std::io::{Read as _, Write as _};
    if !lab::installed("python3") {
        println!("NOT-APPLICABLE: there is no python3 to serve with");
        return;
    }
    let one = Living::new(lab, &[]);
    let closed = follow(&mut one.ask(&Ask::Dial { port: 7001 }));
    assert_eq!(closed.refused(), FailureCode::PortClosed);
    let (_, _serving) = one.start(exec(&["python3", "-c", SERVER]));
    let mut found = None;
    assert!(lab::poll(lab::DEADLINE, || {
        let mut connection = one.ask(&Ask::Dial { port: 7001 });
        found =
            matches!(connection.next(), Ok(Some(Frame::Said(Said::Done)))).then(|| connection.into_stream());
        found.is_some()
    }));
    let mut stream = found.unwrap();
    stream.write_all(&vec![b'x'; 1 << 20]).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "1048576");
}

/// Says how much it was told.
const SERVER: &str = "
import socket
s = socket.create_server(('127.0.0.1', 7001))
while True:
    c, _ = s.accept()
    n = 0
    while True:
        b = c.recv(65536)
        if not b: break
        n += len(b)
    c.sendall(str(n).encode())
    c.close()
";

fn a_sandbox_of_a_pool_is_claimed_once(lab: &Lab) {
    let one = Living::new(lab, &[]);
    let claim = |actor: &str| {
        Ask::Claim(fumehood_keep::wire::Claim { actor: actor.to_owned(), ..Default::default() })
    };
    // It was made for somebody.
    assert_eq!(follow(&mut one.ask(&claim("ann"))).refused(), FailureCode::Exists);
    let pooled = keeper(lab, r#"{"env":[],"labels":{},"actor":"pool","pooled":true}"#);
    let Some(id) = pooled["id"].as_str() else { panic!("{pooled}") };
    let pooled = Living { lab, id: id.to_owned() };
    let mine = fumehood_keep::wire::Claim {
        actor: "ann".to_owned(),
        env: vec![("WHOSE".to_owned(), "ann's".to_owned())],
        ..Default::default()
    };
    assert_eq!(pooled.call(&Ask::Claim(mine)), Said::Done);
    assert_eq!(pooled.exec(&["sh", "-c", "echo $WHOSE"]).out(), "ann's\n");
    assert_eq!(follow(&mut pooled.ask(&claim("bob"))).refused(), FailureCode::Exists);
}

/// The role itself, and its answer.
pub(crate) fn keeper(lab: &Lab, spec: &str) -> serde_json::Value {
    let mut command = lab.fumehood();
    command.arg("keeper");
    // It closes its output when it has answered, though it lives on.
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), spec.as_bytes()).unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(child.stdout.as_mut().unwrap(), &mut answer).unwrap();
    std::thread::spawn(move || child.wait());
    serde_json::from_str(&answer).unwrap()
}

pub(crate) fn its_time_ends_it(lab: &Lab) {
    let one = Living::new(lab, &["--ttl", "1h"]);
    let (_, mut connection) = one.start(exec(&["sleep", "1000"]));
    assert_eq!(one.call(&Ask::Expire { at_ms: Some(1) }), Said::Done);
    let done = follow(&mut connection);
    assert!(matches!(done.ending(), Ending::Killed { signal: 9, .. }), "{done:?}");
    assert!(lab::poll(lab::DEADLINE, || !one.folder().exists()));
    let verified = one.fumehood(&["audit", "verify"], b"");
    assert_eq!(verified.code(), 0, "{}", verified.told());
}

fn what_can_not_be_is_told_and_leaves_nothing(lab: &Lab) {
    for flags in [
        &["--workspace", "/no/such/folder"][..],
        &["--config", "/no/such/file"],
        &["--ttl", "soon"],
        &["--label", "nothing"],
    ] {
        let ran = create(lab, flags);
        assert_ne!(ran.code(), 0, "{flags:?}: {}", ran.told());
        assert!(ran.err().contains("remedy:"), "{flags:?}: {}", ran.told());
    }
    for spec in [
        r#"{"env":[],"labels":{},"actor":"a","envelope":{"nonsense":1}}"#,
        r#"{"env":[],"labels":{},"actor":"a","level":"iron"}"#,
        r#"{"env":[["A B","1"]],"labels":{},"actor":"a"}"#,
        r#"{"env":[],"labels":{},"actor":"a","envelope":{"filesystem":{"session":"s"}}}"#,
        "not even JSON",
    ] {
        let born = keeper(lab, spec);
        assert_eq!(born["born"], "failed", "{spec}: {born}");
        assert_ne!(born["remediation"], "", "{spec}: {born}");
    }
    let left: Vec<_> =
        std::fs::read_dir(lab.state().join("sandboxes")).into_iter().flatten().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    let one = Living::new(lab, &[]);
    assert_eq!(follow(&mut one.ask(&Ask::Exec(Exec::default()))).refused(), FailureCode::BadRequest);
    assert_eq!(follow(&mut one.ask(&Ask::Exec(exec(&["nope"])))).refused(), FailureCode::NotFound);
    assert_eq!(follow(&mut one.ask(&Ask::Resume)).refused(), FailureCode::NotPaused);
    // Not even a frame.
    let mut stream = fumehood_keep::client::connect(&one.folder().join("keeper.sock")).unwrap();
    std::io::Write::write_all(&mut stream, b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(follow(&mut Connection::from(stream)).refused(), FailureCode::BadRequest);
    assert_eq!(one.exec(&["true"]).ending(), &ENDED_WELL);
}

pub(crate) fn the_record_tells_of_every_command(lab: &Lab) {
    let one = Living::new(lab, &["--label", "for=the record"]);
    one.exec(&["echo", "one"]);
    one.exec(&["false"]);
    one.stop();
    let shown = one.fumehood(&["audit", "show", &one.id], b"");
    let names: Vec<_> =
        shown.out().lines().filter_map(|line| line.split_whitespace().nth(2).map(str::to_owned)).collect();
    assert_eq!(
        names,
        [
            "sandbox.launched",
            "sandbox.living",
            "exec.started",
            "exec.ended",
            "exec.started",
            "exec.ended",
            "sandbox.stopped",
            "task.closed"
        ],
        "{}",
        shown.told()
    );
    let verified = one.fumehood(&["audit", "verify"], b"");
    assert_eq!(verified.code(), 0, "{}", verified.told());
}

pub(crate) fn a_flood_is_held_back_while_somebody_reads_it(lab: &Lab) {
    const BYTES: usize = 64 << 20;
    let one = Living::new(lab, &[]);
    let flood = format!("head -c {BYTES} /dev/zero");
    let (_, mut slow) = one.start(shell(&format!("{flood}; echo end >&2")));
    // Others are served meanwhile, and nothing is lost for who comes to read at last.
    assert_eq!(one.exec(&["echo", "beside"]).out(), "beside\n");
    let done = follow(&mut slow);
    assert_eq!((done.output.len(), done.error.as_slice()), (BYTES, b"end\n".as_slice()));
    // Where nobody reads, the oldest is forgotten and the last bytes are kept.
    let (number, connection) = one.start(shell(&format!("{flood}; echo end")));
    drop(connection);
    assert!(lab::poll(lab::DEADLINE, || {
        let Said::Execs { execs } = one.call(&Ask::List) else { panic!() };
        execs.iter().any(|exec| exec.exec == number && exec.ending.is_some())
    }));
    let kept = follow(&mut one.ask(&Ask::Attach { exec: number, stdout_from: 0, stderr_from: 0 }));
    assert!(kept.output.ends_with(b"\0end\n") && kept.output.len() <= 1 << 20, "{}", kept.output.len());
}

/// A place for root alone: where nothing may freeze, what is asked is refused.
#[test]
fn pause_stops_everything_and_resume_goes_on() {
    for caller in [Caller::Root, Caller::User] {
        if !caller.available() {
            continue;
        }
        let lab = Lab::new(caller);
        let one = Living::new(&lab, &[]);
        let counts = "i=0; while :; do i=$((i+1)); echo $i > $HOME/next && mv $HOME/next $HOME/count; done";
        let (_, _counting) = one.start(shell(counts));
        let count = || std::fs::read_to_string(one.folder().join("home/count")).ok();
        assert!(lab::poll(lab::DEADLINE, || count().is_some()));
        match one.call(&Ask::Pause) {
            Said::Paused { .. } => {}
            Said::Failed(failure) => {
                assert_eq!(failure.code, FailureCode::Unsupported, "{failure:?}");
                assert!(!failure.remediation.is_empty());
                println!("NOT-APPLICABLE: {failure}");
                let before = count();
                assert!(lab::poll(lab::DEADLINE, || count() != before), "it goes on");
                continue;
            }
            other => panic!("{other:?}"),
        }
        let stopped = count();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(count(), stopped);
        assert_eq!(follow(&mut one.ask(&Ask::Exec(exec(&["true"])))).refused(), FailureCode::Paused);
        assert_eq!(one.call(&Ask::Resume), Said::Done);
        assert!(lab::poll(lab::DEADLINE, || count() != stopped));
        // Halted is the same, and more.
        assert_eq!(one.call(&Ask::Halt), Said::Done);
        let halted = count();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(count(), halted);
        assert_eq!(follow(&mut one.ask(&Ask::Exec(exec(&["true"])))).refused(), FailureCode::Halted);
        assert_eq!(one.call(&Ask::Release), Said::Done);
        assert!(lab::poll(lab::DEADLINE, || count() != halted));
        // A frozen sandbox ends too.
        assert!(matches!(one.call(&Ask::Pause), Said::Paused { .. }));
        one.stop();
    }
}

#[test]
fn whoever_dies_nothing_is_left() {
    for caller in [Caller::Root, Caller::User] {
        if !caller.available() {
            continue;
        }
        for frozen in [false, true] {
            let lab = Lab::alone(caller);
            let before = Host::now(&lab);
            let one = Living::new(&lab, &[]);
            let (_, _running) = one.start(shell("sleep 1000 & setsid sleep 1000 & sleep 1000"));
            if frozen && !matches!(one.call(&Ask::Pause), Said::Paused { .. }) {
                continue;
            }
            let pid = one.keeper_pid();
            let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
            assert!(killed.success());
            let left = || Host::now(&lab).beyond(&before);
            assert!(lab::poll(SETTLED, || left().is_empty()), "{caller:?}, frozen {frozen}: {:?}", left());
            assert!(lab::poll(SETTLED, || !one.folder().exists()));
            let verified = one.fumehood(&["audit", "verify"], b"");
            assert_eq!(verified.code(), 0, "{}", verified.told());
            let shown = one.fumehood(&["audit", "show", &one.id], b"");
            assert!(shown.out().contains("lost") && shown.out().contains("task.closed"), "{}", shown.told());
        }
    }
}

#[test]
fn stop_leaves_nothing() {
    for caller in [Caller::Root, Caller::User] {
        if !caller.available() {
            continue;
        }
        let lab = Lab::alone(caller);
        let before = Host::now(&lab);
        let one = Living::new(&lab, &[]);
        let (_, mut running) = one.start(shell("sleep 1000 & setsid sleep 1000 & sleep 1000"));
        one.stop();
        assert!(matches!(follow(&mut running).ending(), Ending::Killed { signal: 9, .. }));
        let left = || Host::now(&lab).beyond(&before);
        assert!(lab::poll(SETTLED, || left().is_empty()), "{caller:?}: {:?}", left());
    }
}
