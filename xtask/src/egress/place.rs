//! The private network: a range of the documentation's addresses that belongs to this host, a server in it, and
//! the peers. Everything in it ends with this value.

use crate::run::{self, Done};
use std::cell::RefCell;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where the server is, and what it is called.
const ADDRESS: &str = "203.0.113.7";
const HOST: &str = "api.example.com";

/// Where programs look for the host's certificate authorities.
const BUNDLE: &str = "/etc/ssl/certs/ca-certificates.crt";

/// The network, from inside.
#[derive(Debug)]
pub(super) struct Place {
    folder: PathBuf,
    running: RefCell<Vec<Child>>,
}

// === impl Place ===

impl Place {
    /// Makes this process's own namespaces the place, and starts the server.
    pub(super) fn enter(folder: &Path) -> Result<Self, Box<dyn Error>> {
        let place = Self { folder: folder.to_owned(), running: RefCell::default() };
        run::must(Command::new("ip").args(["link", "set", "lo", "up"]))?;
        // An address of the host's own would be refused; of a local route no interface tells.
        run::must(Command::new("ip").args(["route", "add", "local", "203.0.113.0/24", "dev", "lo"]))?;
        place.lay("/etc/hosts", format!("127.0.0.1 localhost\n{ADDRESS} {HOST}\n").into())?;
        place.lay("/etc/resolv.conf", "nameserver 203.0.113.53\n".into())?;
        let mut server = place.beside();
        server.arg("serve").arg(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut server = server.spawn()?;
        let mut ready = String::new();
        BufReader::new(server.stdout.take().ok_or("no output")?).read_line(&mut ready)?;
        place.running.borrow_mut().push(server);
        if ready.trim() != "ready" {
            return Err("the server did not start".into());
        }
        let mut bundle = std::fs::read(BUNDLE)?;
        bundle.extend(std::fs::read(place.authority())?);
        place.lay(BUNDLE, bundle)?;
        Ok(place)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The authority of the server.
    pub(super) fn authority(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// The client, without any wall.
    pub(super) fn beside(&self) -> Command {
        Command::new(self.folder.join("load"))
    }

    /// `fumehood run`, with its state in here.
    pub(super) fn fumehood(&self, home: &Path) -> Command {
        let mut command = Command::new(self.folder.join("fumehood"));
        command.args(["run", "-q"]).env("HOME", home).env("FUMEHOOD_STATE", home.join("state"));
        command.env("PATH", "/usr/bin:/bin").current_dir("/");
        command
    }

    /// The client in a sandbox. The authority that it has to name is `/input/ca.pem`, unless TLS is opened.
    pub(super) fn inside(&self, rule: &str) -> Command {
        let mut command = self.fumehood(&self.folder);
        command.args(["--timeout", "600s", "--allow", rule]);
        for name in ["load", "ca.pem"] {
            command.arg("--ro").arg(format!("{}:/input/{name}", self.folder.join(name).display()));
        }
        command.args(["--", "/input/load"]);
        command
    }

    /// Starts a peer, and waits until it listens.
    pub(super) fn peer(&self, command: &mut Command, port: u16) -> Done {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.running.borrow_mut().push(command.spawn()?);
        let end = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > end {
                return Err(format!("{command:?} does not listen").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// A file in the place of one of the host's, for this namespace alone.
    fn lay(&self, over: &str, content: Vec<u8>) -> Done {
        let own = self.folder.join(over.trim_start_matches('/').replace('/', "-"));
        std::fs::write(&own, content)?;
        run::must(Command::new("mount").arg("--bind").arg(own).arg(over))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for child in self.running.get_mut() {
            // What has ended already needs no end.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
