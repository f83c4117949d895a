//! The daemon as its callers feel it: over HTTP on loopback, with the release binary.

mod http;
mod snapshot;
mod soak;
pub(crate) mod warm;

pub(crate) use soak::soak;

use crate::bench::Scratch;
use crate::measure::Times;
use crate::memory;
use crate::run::{self, Done};
use http::Client;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const ROUNDS: usize = 100;
const BURST: usize = 100;
const IDLE: u64 = 1000;
const BUSY: usize = 200;
const STREAM_BYTES: u64 = 1_000_000_000;

/// A daemon on a state folder of its own.
struct Daemon {
    child: Child,
    binary: PathBuf,
    state: PathBuf,
    address: SocketAddr,
    flags: Vec<String>,
    key: String,
    _folder: Scratch,
}

/// Every figure of the daemon.
pub(crate) fn judge() -> Done {
    let binary = run::release()?;
    let warm = warm(&binary);
    let cold = cold(&binary);
    let compared = match (&warm, &cold) {
        (Ok(warm), Ok(cold)) => most("a cold create, ms more", cold - warm, 10.0),
        (Err(problem), _) | (_, Err(problem)) => Err(problem.to_string().into()),
    };
    run::together([compared, snapshot::judge(&binary), burst(&binary), many(&binary), halt(&binary)])
}

/// From a pool: claim and first byte; then what a live sandbox does.
fn warm(binary: &Path) -> Result<f64> {
    let daemon = Daemon::start(binary, &["--pool", "16"])?;
    std::thread::sleep(Duration::from_secs(1));
    let mut client = daemon.client()?;
    let first = first_bytes(&mut client)?;
    let mut missed = vec![
        most("claim to first byte, p50 ms", first.quantile(0.5), 5.0),
        most("claim to first byte, p95 ms", first.quantile(0.95), 15.0),
    ];
    let id = create(&mut client)?;
    let execs = format!("/v1/sandboxes/{id}/execs");
    let mut round = Times::default();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        client.ask("POST", &execs, r#"{"argv": ["/bin/true"]}"#)?.drain(&mut |_| {})?;
        round.add(began.elapsed().as_nanos());
    }
    missed.push(most("exec round trip, p50 ms", round.quantile(0.5), 3.0));
    let began = Instant::now();
    let mut bytes = 0;
    let body = format!(r#"{{"argv": ["head", "-c", "{STREAM_BYTES}", "/dev/zero"]}}"#);
    let raw = format!("{execs}?output=raw");
    client.ask("POST", &raw, &body)?.drain(&mut |part| bytes += part.len() as u64)?;
    if bytes != STREAM_BYTES {
        return Err(format!("the stream had {bytes} bytes").into());
    }
    #[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
    let rate = bytes as f64 / 1e6 / began.elapsed().as_secs_f64();
    missed.push(least("stream of standard output, MB/s", rate, 300.0));
    let (mut pauses, mut resumes) = (Times::default(), Times::default());
    for _ in 0..ROUNDS {
        for (verb, times) in [("pause", &mut pauses), ("resume", &mut resumes)] {
            let began = Instant::now();
            client.call("POST", &format!("/v1/sandboxes/{id}/{verb}"), "")?;
            times.add(began.elapsed().as_nanos());
        }
    }
    missed.push(most("pause, p50 ms", pauses.quantile(0.5), 20.0));
    missed.push(most("resume, p50 ms", resumes.quantile(0.5), 5.0));
    run::together(missed)?;
    Ok(first.quantile(0.5))
}

fn cold(binary: &Path) -> Result<f64> {
    let daemon = Daemon::start(binary, &["--most-pool", "0"])?;
    let first = first_bytes(&mut daemon.client()?)?;
    say("cold create to first byte, p50 ms", first.quantile(0.5), "");
    Ok(first.quantile(0.5))
}

/// A hundred callers at once.
fn burst(binary: &Path) -> Done {
    let daemon = Daemon::start(binary, &[])?;
    let clients = (0..BURST).map(|_| daemon.client()).collect::<Result<Vec<_>>>()?;
    let threads: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            std::thread::spawn(move || {
                let began = Instant::now();
                let made = create(&mut client).map_err(|error| error.to_string());
                made.map(|_| began.elapsed().as_nanos())
            })
        })
        .collect();
    let mut times = Times::default();
    for thread in threads {
        times.add(thread.join().map_err(|_| "a caller panicked")??);
    }
    most("burst of 100 creates, p95 ms", times.quantile(0.95), 300.0)
}

/// A thousand that do nothing.
fn many(binary: &Path) -> Done {
    let daemon = Daemon::start(binary, &["--most-pool", "0"])?;
    let mut client = daemon.client()?;
    for _ in 0..IDLE {
        create(&mut client)?;
    }
    let mut lists = Times::default();
    for _ in 0..10 {
        let began = Instant::now();
        client.call("GET", "/v1/sandboxes?limit=1000", "")?;
        lists.add(began.elapsed().as_nanos());
    }
    let share = |kib: u64, of: u64| u32::try_from(kib / of).map_or(f64::NAN, f64::from);
    let keepers =
        daemon.keepers()?.iter().try_fold(0, |sum, pid| Ok::<_, Box<dyn Error>>(sum + pss(*pid)?))?;
    let own = pss(daemon.child.id())?;
    run::together([
        most("1,000 idle sandboxes, KiB each", share(keepers, IDLE), 3072.0),
        most("the daemon with 1,000, KiB", share(own, 1), 150.0 * 1024.0),
        most("list of 1,000, p50 ms", lists.quantile(0.5), 50.0),
    ])
}

/// The kill switch among many that are busy.
fn halt(binary: &Path) -> Done {
    let daemon = Daemon::start(binary, &["--most-pool", "0"])?;
    let mut client = daemon.client()?;
    for _ in 0..BUSY {
        let id = create(&mut client)?;
        let body = r#"{"shell": "while :; do :; done", "detach": true}"#;
        client.call("POST", &format!("/v1/sandboxes/{id}/execs"), body)?;
    }
    let began = Instant::now();
    run::output(daemon.command(&["halt", "--all"]).stdin(Stdio::null()))?;
    most("halt of 200 busy sandboxes, s", began.elapsed().as_secs_f64(), 1.0)
}

/// Times from the request for a sandbox to the first byte that a command in it gave.
fn first_bytes(client: &mut Client) -> Result<Times> {
    let mut times = Times::default();
    for round in 0..ROUNDS + 5 {
        let began = Instant::now();
        let id = create(client)?;
        let body = r#"{"argv": ["/bin/echo", "first"]}"#;
        let path = format!("/v1/sandboxes/{id}/execs?output=raw");
        let mut first = None;
        client.ask("POST", &path, body)?.drain(&mut |_| {
            first.get_or_insert_with(|| began.elapsed().as_nanos());
        })?;
        // The first ones find caches cold.
        if round >= 5 {
            times.add(first.ok_or("no output")?);
        }
        client.call("DELETE", &format!("/v1/sandboxes/{id}"), "")?;
    }
    Ok(times)
}

/// What a daemon says.
fn log_of(state: &Path) -> PathBuf {
    state.with_extension("log")
}

/// An address that nobody has, below the ports that the kernel gives to whoever does not choose: a daemon that starts
/// again finds it free.
fn free() -> Result<SocketAddr> {
    let first = 20_000 + u16::try_from(std::process::id() % 10_000)?;
    let mut ports = (first..first + 100).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    ports.find(|address| TcpListener::bind(address).is_ok()).ok_or_else(|| "there is no free port".into())
}

fn create(client: &mut Client) -> Result<String> {
    create_of(client, "{}")
}

fn create_of(client: &mut Client, body: &str) -> Result<String> {
    let made = client.call("POST", "/v1/sandboxes", body)?;
    Ok(made["id"].as_str().ok_or("a sandbox without an id")?.to_owned())
}

/// The memory of a process with what is beneath it, each page shared out; in KiB.
fn pss(pid: u32) -> Result<u64> {
    memory::field(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}

fn most(what: &str, seen: f64, bound: f64) -> Done {
    verdict(what, seen, seen <= bound, &format!("of at most {bound}"))
}

fn least(what: &str, seen: f64, bound: f64) -> Done {
    verdict(what, seen, seen >= bound, &format!("of at least {bound}"))
}

fn verdict(what: &str, seen: f64, met: bool, bound: &str) -> Done {
    run::say(&serde_json::json!({ "bench": "serve", "what": what, "seen": seen }).to_string());
    let line = format!("serve: {what}: {seen:.2} {bound}");
    say(what, seen, &format!(" {bound}: {}", if met { "met" } else { "missed" }));
    if met { Ok(()) } else { Err(format!("{line}: missed").into()) }
}

fn say(what: &str, seen: f64, rest: &str) {
    run::say(&format!("serve: {what}: {seen:.2}{rest}"));
}

// === impl Daemon ===

impl Daemon {
    fn start(binary: &Path, flags: &[&str]) -> Result<Self> {
        Self::make(binary, flags, &|_, _| Ok(()))
    }

    /// As [`Daemon::start`], after its state folder was furnished; what is beside that folder goes with it.
    fn make(binary: &Path, flags: &[&str], furnish: &dyn Fn(&Path, &Path) -> Done) -> Result<Self> {
        let folder = Scratch::new()?;
        let state = folder.0.join("state");
        std::fs::create_dir_all(&state)?;
        std::fs::set_permissions(&state, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        furnish(&state, &folder.0)?;
        let address = free()?;
        let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        let mut daemon = Self {
            child: Self::spawn(binary, &state, address, &flags)?,
            binary: binary.to_owned(),
            state,
            address,
            flags,
            key: String::new(),
            _folder: folder,
        };
        daemon.listens()?;
        daemon.key = run::output(&mut daemon.command(&["keys", "new", "bench"]))?.trim().to_owned();
        Ok(daemon)
    }

    fn spawn(binary: &Path, state: &Path, address: SocketAddr, flags: &[String]) -> Result<Child> {
        let mut command = Command::new(binary);
        command.args(["serve", "--listen", &address.to_string()]).args(flags);
        command.env("FUMEHOOD_STATE", state).env("HOME", state.parent().unwrap_or(state));
        let log = std::fs::File::options().create(true).append(true).open(log_of(state))?;
        Ok(command.stdin(Stdio::null()).stderr(log).spawn()?)
    }

    fn listens(&mut self) -> Done {
        let until = Instant::now() + Duration::from_secs(30);
        while std::net::TcpStream::connect(self.address).is_err() {
            if Instant::now() > until || self.child.try_wait()?.is_some() {
                let told = std::fs::read_to_string(log_of(&self.state)).unwrap_or_default();
                let last: Vec<&str> = told.lines().rev().take(5).collect();
                return Err(format!("the daemon does not listen: {last:?}").into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(words).env("FUMEHOOD_STATE", &self.state);
        command
    }

    fn client(&self) -> Result<Client> {
        Client::new(self.address, &self.key)
    }

    /// The processes of all sandboxes that this state folder has: keepers, reapers, and init of each.
    fn keepers(&self) -> Result<Vec<u32>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            let wanted = format!("FUMEHOOD_STATE={}", self.state.display());
            let ours = environment.split(|byte| *byte == 0).any(|one| one == wanted.as_bytes());
            let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if ours && command.split(|byte| *byte == 0).any(|word| word == b"keeper") {
                found.push(pid);
                found.extend(memory::beneath(pid)?);
            }
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may be gone already; what it made is ended by the next line in any case.
        drop(
            self.command(&["halt", "--all", "--destroy"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status(),
        );
        drop(self.child.kill());
        drop(self.child.wait());
        // What cleans up after sandboxes does so beside us.
        let sandboxes = self.state.join("sandboxes");
        let until = Instant::now() + Duration::from_secs(20);
        while std::fs::read_dir(&sandboxes).is_ok_and(|mut all| all.next().is_some())
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
