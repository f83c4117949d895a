//! QEMU's monitor: one command at a time, each with a deadline.
//!
//! QEMU is not trusted: it runs what the guest makes it run. An answer is read up to a limit, and says no more
//! than whether the command was done.

use fumehood_sys::socket;
use serde_json::{Value, json};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Far above the longest answer that is asked for.
const LINE_LIMIT_BYTES: u64 = 64 * 1024;
/// Between two looks at a migration, which takes some milliseconds.
/// Bytes a second: more than any disk takes.
const FASTEST: u64 = 1 << 40;
const PAUSE: Duration = Duration::from_micros(500);

/// Our end of the monitor.
#[derive(Debug)]
pub(crate) struct Monitor {
    stream: BufReader<UnixStream>,
    deadline: Instant,
}

// === impl Monitor ===

impl Monitor {
    /// Everything that is asked for must be answered until `deadline`.
    pub(crate) fn new(stream: UnixStream, deadline: Instant) -> Self {
        Self { stream: BufReader::new(stream), deadline }
    }

    /// Lets a machine that was started with `-incoming defer` load its state from one of its descriptors.
    pub(crate) fn restore(&mut self, state: u32) -> io::Result<()> {
        // Said at once, as each answer takes a turn of QEMU's loop; what follows a refusal is refused too.
        let incoming = ("migrate-incoming", json!({ "uri": format!("fd:{state}") }));
        let all = [("qmp_capabilities", json!({})), ("migrate-set-capabilities", sharing(true)), incoming];
        let lines: String = all.iter().map(|(name, arguments)| line(name, arguments)).collect();
        self.limit()?;
        self.stream.get_mut().write_all(lines.as_bytes())?;
        all.iter().try_for_each(|(name, _)| self.answer(name).map(drop))
    }

    /// Writes the state of the machine, all but its shared memory, to a file. The machine stands still afterwards.
    pub(crate) fn save(&mut self, state: BorrowedFd<'_>) -> io::Result<()> {
        self.begin()?;
        self.write(state)
    }

    /// Writes the state to a file that is handed over.
    fn write(&mut self, state: BorrowedFd<'_>) -> io::Result<()> {
        // What it was started with can only be read from; a file to write to is handed over.
        let line = line("getfd", &json!({ "fdname": "state" }));
        socket::send(self.stream.get_ref().as_fd(), line.as_bytes(), &[state])?;
        self.answer("getfd")?;
        self.ask("migrate", &json!({ "uri": "fd:state" }))?;
        loop {
            let answer = self.command("query-migrate", &json!({}))?;
            match answer.get("status").and_then(Value::as_str) {
                Some("completed") => return Ok(()),
                Some("setup" | "active" | "device" | "wait-unplug") => std::thread::sleep(PAUSE),
                other => return Err(io::Error::other(format!("the state was not written: {other:?}"))),
            }
        }
    }

    /// What is asked from now on must be answered until then.
    pub(crate) fn extend(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Stops the processor.
    pub(crate) fn pause(&mut self) -> io::Result<()> {
        self.ask("stop", &json!({}))
    }

    pub(crate) fn go_on(&mut self) -> io::Result<()> {
        self.ask("cont", &json!({}))
    }

    /// Writes all of the machine to a file, its memory too. It stands still before and afterwards.
    pub(crate) fn save_whole(&mut self, state: BorrowedFd<'_>) -> io::Result<()> {
        self.share(false)?;
        self.ask("migrate-set-parameters", &json!({ "max-bandwidth": FASTEST, "downtime-limit": 60_000 }))?;
        self.write(state)
    }

    /// Lets a machine that was started with `-incoming defer` load all of itself, its memory too. It stood still when
    /// it was written, and still does.
    pub(crate) fn load_whole(&mut self, state: u32) -> io::Result<()> {
        self.ask("qmp_capabilities", &json!({}))?;
        self.ask("migrate-incoming", &json!({ "uri": format!("fd:{state}") }))?;
        self.await_load()
    }

    /// Writes down a machine that has loaded all of itself, but for the memory that it shares.
    pub(crate) fn save_rest(&mut self, state: BorrowedFd<'_>) -> io::Result<()> {
        self.share(true)?;
        self.write(state)
    }

    /// As [`Monitor::restore`], for a machine that stood still when it was written: waits until it has loaded, and lets
    /// it go on.
    pub(crate) fn restore_still(&mut self, state: u32) -> io::Result<()> {
        self.restore(state)?;
        self.await_load()?;
        self.go_on()
    }

    fn await_load(&mut self) -> io::Result<()> {
        loop {
            let answer = self.command("query-status", &json!({}))?;
            match answer.get("status").and_then(Value::as_str) {
                Some("inmigrate") => std::thread::sleep(PAUSE),
                Some("paused" | "postmigrate" | "prelaunch") => return Ok(()),
                other => return Err(io::Error::other(format!("the state was not loaded: {other:?}"))),
            }
        }
    }

    /// Ends the machine.
    pub(crate) fn quit(&mut self) -> io::Result<()> {
        self.ask("quit", &json!({}))
    }

    fn begin(&mut self) -> io::Result<()> {
        self.ask("qmp_capabilities", &json!({}))?;
        self.share(true)
    }

    /// Whether memory that it shares with a file is left to that file.
    fn share(&mut self, shares: bool) -> io::Result<()> {
        self.ask("migrate-set-capabilities", &sharing(shares))
    }

    fn ask(&mut self, name: &str, arguments: &Value) -> io::Result<()> {
        self.command(name, arguments).map(drop)
    }

    fn command(&mut self, name: &str, arguments: &Value) -> io::Result<Value> {
        let line = line(name, arguments);
        self.limit()?;
        self.stream.get_mut().write_all(line.as_bytes())?;
        self.answer(name)
    }

    fn answer(&mut self, name: &str) -> io::Result<Value> {
        loop {
            let mut answer = self.line()?;
            if let Some(error) = answer.get("error") {
                return Err(io::Error::other(format!("QEMU refused `{name}`: {error}")));
            }
            // The greeting and events come between.
            if let Some(done) = answer.get_mut("return") {
                return Ok(done.take());
            }
        }
    }

    fn line(&mut self) -> io::Result<Value> {
        self.limit()?;
        let mut line = Vec::new();
        self.stream.by_ref().take(LINE_LIMIT_BYTES).read_until(b'\n', &mut line)?;
        if !line.ends_with(b"\n") {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        serde_json::from_slice(&line).map_err(io::Error::other)
    }

    fn limit(&self) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let stream = self.stream.get_ref();
        stream.set_read_timeout(Some(left))?;
        stream.set_write_timeout(Some(left))
    }
}

fn line(name: &str, arguments: &Value) -> String {
    format!("{}\n", json!({ "execute": name, "arguments": arguments }))
}

/// What says whether memory that is shared with a file is left to that file.
fn sharing(shares: bool) -> Value {
    json!({ "capabilities": [{ "capability": "x-ignore-shared", "state": shares }] })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A monitor that answers with these lines, whatever is asked.
    fn answering(lines: &[&str]) -> Monitor {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let text = lines.join("\n") + "\n";
        std::thread::spawn(move || {
            (&theirs).write_all(text.as_bytes()).unwrap();
            io::copy(&mut &theirs, &mut io::sink()).unwrap();
        });
        Monitor::new(ours, Instant::now() + Duration::from_secs(20))
    }

    #[test]
    fn greetings_and_events_are_passed_over() {
        let mut monitor = answering(&[
            r#"{"QMP":{}}"#,
            r#"{"return":{}}"#,
            r#"{"event":"STOP"}"#,
            r#"{"return":{}}"#,
            r#"{"return":{}}"#,
        ]);
        monitor.restore(6).unwrap();
    }

    #[test]
    fn a_refusal_is_an_error_with_its_words() {
        let error = answering(&[r#"{"error":{"desc":"no such state"}}"#]).restore(6).unwrap_err();
        assert!(error.to_string().contains("no such state"), "{error}");
    }

    #[test]
    fn a_migration_that_fails_is_an_error() {
        let done = r#"{"return":{}}"#;
        let failed = r#"{"return":{"status":"failed"}}"#;
        assert!(answering(&[done, done, done, done, failed]).save(io::stderr().as_fd()).is_err());
    }

    #[test]
    fn what_is_no_answer_ends_it() {
        for line in ["", "{", "[]]", &"x".repeat(70_000)] {
            assert!(answering(&[line]).quit().is_err());
        }
    }
}
