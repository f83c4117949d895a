//! The host's side of an attack: files, listeners and a process that must not be reached.

use crate::canary::canary;
use crate::finding::Finding;
use crate::probe::Side;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Where people keep what nobody else should read.
pub(crate) const SECRETS: &[&str] = &[
    ".ssh/id_ed25519",
    ".aws/credentials",
    ".kube/config",
    ".mozilla/firefox/logins.json",
    ".bash_history",
    ".netrc",
    ".config/gh/hosts.yml",
    ".docker/config.json",
    ".gnupg/private.key",
    ".npmrc",
    ".git-credentials",
];

/// One side's canaries.
#[derive(Debug)]
pub(crate) struct Scene {
    dir: PathBuf,
    side: Side,
    /// In files, and in the other process.
    pub(crate) secret: String,
    /// In a variable of the caller's.
    pub(crate) variable: String,
    engine: UnixListener,
    named: UnixListener,
    abstract_name: String,
    key: String,
    abstracted: UnixListener,
    victim: Child,
}

// === impl Scene ===

impl Scene {
    /// Sets it in a new folder; its process joins `group`.
    pub(crate) fn set(dir: PathBuf, side: Side, attack: &Path, group: i32) -> io::Result<Self> {
        std::fs::create_dir(&dir)?;
        let (secret, variable) = (canary()?, canary()?);
        let home = dir.join("home");
        for name in SECRETS {
            let path = home.join(name);
            std::fs::create_dir_all(path.parent().unwrap_or(&home))?;
            std::fs::write(path, &secret)?;
        }
        std::fs::write(home.join(format!("named-{secret}")), "")?;
        std::fs::write(dir.join("secret"), &secret)?;
        let abstract_name = format!("fumehood-prove-{}", canary()?);
        let abstracted = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&abstract_name)?)?;
        let engine = listener(&dir.join("docker.sock"))?;
        let named = listener(&dir.join("listener"))?;
        for socket in [&abstracted, &engine, &named] {
            socket.set_nonblocking(true)?;
        }
        let mut victim = Command::new(attack);
        victim.arg("pause").env_clear().env("VICTIM", &secret);
        victim.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(group);
        let victim = victim.current_dir("/").spawn()?;
        let key = format!("fumehood-prove-{}", canary()?);
        Ok(Self { dir, side, secret, variable, engine, named, abstract_name, key, abstracted, victim })
    }

    /// The home of the caller.
    pub(crate) fn home(&self) -> PathBuf {
        self.dir.join("home")
    }

    /// Where a secret is looked for: behind the wall, in all there is but programs; beside it, in what is ours.
    pub(crate) fn searched(&self) -> Vec<String> {
        match self.side {
            Side::Walled => {
                ["/workspace", "/tmp", "/etc", "/run", "/var", "/input", "/out", "/home", "/root"]
                    .map(str::to_owned)
                    .to_vec()
            }
            Side::Open => vec![self.home().display().to_string()],
        }
    }

    /// A file with the secret.
    pub(crate) fn secret_file(&self) -> String {
        self.dir.join("secret").display().to_string()
    }

    /// A socket named as that of a container engine.
    pub(crate) fn engine(&self) -> String {
        self.dir.join("docker.sock").display().to_string()
    }

    /// A socket file.
    pub(crate) fn named(&self) -> String {
        self.dir.join("listener").display().to_string()
    }

    /// A socket in the abstract namespace, as the attacker names it.
    pub(crate) fn abstracted(&self) -> String {
        format!("@{}", self.abstract_name)
    }

    /// The name of the key in the caller's session; the secret is its value.
    pub(crate) fn key_name(&self) -> &str {
        &self.key
    }

    /// The process that must not be reached.
    pub(crate) fn victim(&self) -> u32 {
        self.victim.id()
    }

    /// Through where a listener was called, else as `otherwise` says.
    pub(crate) fn called(&self, otherwise: Finding) -> Finding {
        let sockets = [&self.engine, &self.named, &self.abstracted];
        if sockets.iter().any(|socket| socket.accept().is_ok()) {
            return Finding::Through("a listener of the host was called".to_owned());
        }
        otherwise
    }

    /// Through where the other process was stopped or is gone.
    pub(crate) fn hurt(&self, otherwise: Finding) -> Finding {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.victim())).unwrap_or_default();
        match stat.rsplit(") ").next().and_then(|rest| rest.chars().next()) {
            Some('T') => Finding::Through("a process of the host was stopped".to_owned()),
            None | Some('Z') => Finding::Through("a process of the host was ended".to_owned()),
            Some(_) => otherwise,
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // A process that is gone already has nothing left to end.
        if self.victim.kill().is_ok() {
            drop(self.victim.wait());
        }
    }
}

fn listener(path: &Path) -> io::Result<UnixListener> {
    let socket = UnixListener::bind(path)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o777))?;
    Ok(socket)
}
