//! A network of our own in which every address is local, and what was seen there.
//!
//! The attacker's program makes it (`attack range`): namespaces, routes, servers, and a packet socket that sees what
//! nobody listens to. The documentation ranges stand for the internet. Nothing leaves this machine.
//!
//! **Invariant:** no two probes share an address, so that each may look at one log that all of them fill.

use std::collections::BTreeSet;
use std::io::{self, BufRead as _, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// How long what was sent may take to be noted, once its sender has ended.
const SETTLE: Duration = Duration::from_millis(60);
/// Numbers above are the servers' own.
const MOST_SHARES: u8 = 240;

/// A running range.
#[derive(Debug)]
pub(crate) struct Range {
    child: Child,
    pid: String,
    log: PathBuf,
    next: AtomicU8,
}

/// The addresses of one side of one probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share(pub(crate) u8);

/// What was seen, line by line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen(String);

// === impl Range ===

impl Range {
    /// Starts one in a new folder.
    pub(crate) fn start(attack: &Path, folder: PathBuf, group: i32) -> io::Result<Self> {
        std::fs::create_dir(&folder)?;
        std::fs::write(folder.join("resolv.conf"), "nameserver 192.0.2.53\n")?;
        std::fs::write(folder.join("hosts"), "127.0.0.1 localhost\n::1 localhost\n")?;
        let log = folder.join("log");
        let mut command = Command::new(attack);
        command.arg("range").arg(&log).arg(&folder).env_clear().current_dir("/").process_group(group);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        match line.trim().strip_prefix("range ") {
            Some(pid) => Ok(Self { pid: pid.to_owned(), child, log, next: AtomicU8::new(1) }),
            None => {
                // It has ended by itself, or does with the pipe.
                drop(child.stdin.take());
                drop(child.wait());
                Err(io::Error::other(format!("no network to attack in: {}", line.trim())))
            }
        }
    }

    /// What leads a command into it.
    pub(crate) fn through(&self) -> Vec<String> {
        vec!["enter".to_owned(), self.pid.clone()]
    }

    /// Addresses that no other has.
    pub(crate) fn share(&self) -> io::Result<Share> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number > MOST_SHARES {
            Err(io::Error::other("the range has no addresses left"))
        } else {
            Ok(Share(number))
        }
    }

    /// All that was seen so far, once it has had the time to be.
    pub(crate) fn seen(&self) -> io::Result<Seen> {
        std::thread::sleep(SETTLE);
        Ok(Seen(String::from_utf8_lossy(&std::fs::read(&self.log)?).into_owned()))
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It can only fail where it is gone.
        let _ = self.child.wait();
    }
}

// === impl Share ===

impl Share {
    /// Where no rule leads.
    pub(crate) fn sink(self) -> String {
        format!("198.51.100.{}", self.0)
    }

    /// The same of version 6.
    pub(crate) fn sink_v6(self) -> String {
        format!("2001:db8:666::{:x}", self.0)
    }

    /// Where a rule leads.
    pub(crate) fn right(self) -> String {
        format!("203.0.113.{}", self.0)
    }

    /// A name that resolves to an address, under a domain.
    pub(crate) fn name(self, addresses: &[&str], domain: &str) -> String {
        let label: Vec<String> = addresses.iter().map(|address| address.replace('.', "-")).collect();
        format!("a-{}.p{}.{domain}", label.join("--"), self.0)
    }

    /// The host that a rule names.
    pub(crate) fn allowed(self) -> String {
        self.name(&[&self.right()], "allowed.test")
    }

    /// A host that no rule names.
    pub(crate) fn denied(self) -> String {
        self.name(&[&self.sink()], "denied.test")
    }
}

// === impl Seen ===

impl Seen {
    /// Places to which a first packet was sent, or that were opened, at one of these addresses and any port.
    pub(crate) fn reached(&self, addresses: &[IpAddr]) -> BTreeSet<String> {
        let places = self.0.lines().filter_map(|line| {
            let line = if line.starts_with("open ") { line } else { line.strip_prefix("packet ")? };
            let (kind, place) = line.split_once(' ')?;
            let address =
                place.parse::<SocketAddr>().map(|place| place.ip()).or_else(|_| place.parse()).ok()?;
            addresses.contains(&address.to_canonical()).then(|| format!("{kind} {place}"))
        });
        places.collect()
    }

    /// Questions for names in which a text stands.
    pub(crate) fn asked(&self, text: &str) -> BTreeSet<String> {
        let questions = self.0.lines().filter_map(|line| line.strip_prefix("dns "));
        let text = text.to_lowercase();
        questions.filter(|question| question.to_lowercase().contains(&text)).map(str::to_owned).collect()
    }

    /// Whether a text stands in what a server read.
    pub(crate) fn read(&self, text: &str) -> bool {
        self.0.lines().any(|line| line.starts_with("bytes ") && line.contains(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "packet tcp 198.51.100.7:80\nopen 198.51.100.7:80\nbytes 198.51.100.7:80 GET /x\n\
                       packet icmp 198.51.100.8\npacket udp [2001:db8:666::7]:53\ndns Canary.denied.test 16\ndns\npacket x\n";

    #[test]
    fn what_was_reached_is_told_by_address() {
        let seen = Seen(LOG.to_owned());
        let at = |address: &str| seen.reached(&[address.parse().unwrap()]).len();
        assert_eq!(at("198.51.100.7"), 2);
        assert_eq!(at("198.51.100.8"), 1);
        assert_eq!(at("2001:db8:666::7"), 1);
        assert_eq!(at("198.51.100.9"), 0);
    }

    #[test]
    fn names_and_bytes_are_found() {
        let seen = Seen(LOG.to_owned());
        assert_eq!(seen.asked("CANARY").len(), 1);
        assert!(seen.read("GET /x") && !seen.read("packet"));
    }
}
