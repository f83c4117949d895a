//! The host's side of a case: a folder with canaries, listeners that count callers, and processes
//! that must not be seen.

use std::cell::RefCell;
use std::io::{self, Read};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// One case's scene. Dropped, it ends what it started; the folder belongs to the caller.
#[derive(Debug)]
pub struct Stage {
    dir: PathBuf,
    secret: String,
    stray: String,
    nonce: String,
    tcp: TcpListener,
    sockets: RefCell<Vec<UnixListener>>,
    held: RefCell<Vec<Child>>,
}

// === impl Stage ===

impl Stage {
    /// Sets a scene in `dir`, which is made.
    pub fn new(dir: PathBuf) -> io::Result<Self> {
        let (secret, stray, nonce) = (random_hex()?, random_hex()?, random_hex()?);
        let tcp = TcpListener::bind("127.0.0.1:0")?;
        tcp.set_nonblocking(true)?;
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&dir)?;
        let stage =
            Self { dir, secret, stray, nonce, tcp, sockets: RefCell::default(), held: RefCell::default() };
        for folder in super::folders(&stage) {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(stage.secret_file(), &stage.secret)?;
        Ok(stage)
    }

    /// What must never come out.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// What stands in the caller's own variables, and must never come out.
    pub fn stray(&self) -> &str {
        &self.stray
    }

    /// What a script prints last, to show that it ran.
    pub fn nonce(&self) -> &str {
        &self.nonce
    }

    /// The scene's folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A host file that holds the secret, next to everything that may be shown.
    pub fn secret_file(&self) -> PathBuf {
        self.dir.join("secret")
    }

    /// The caller's home.
    pub fn home(&self) -> PathBuf {
        self.dir.join("home")
    }

    /// The project that a workspace shows.
    pub fn project(&self) -> PathBuf {
        self.dir.join("project")
    }

    /// The folder that a read-only view shows.
    pub fn view(&self) -> PathBuf {
        self.dir.join("view")
    }

    /// Where `/out` is collected.
    pub fn collected(&self) -> PathBuf {
        self.dir.join("collected")
    }

    /// The file copied in.
    pub fn input(&self) -> PathBuf {
        self.dir.join("input.txt")
    }

    /// The file that is standard input.
    pub fn stdin(&self) -> PathBuf {
        self.dir.join("stdin.txt")
    }

    /// A name in the abstract socket namespace, or of a socket file, that belongs to this scene.
    pub fn socket_name(&self) -> String {
        format!("conformance-{}", self.nonce)
    }

    /// `text` with its placeholders replaced.
    pub fn fill(&self, text: &str) -> String {
        let port = self.tcp.local_addr().map_or(0, |address| address.port()).to_string();
        text.replace("@DIR@", &self.dir.to_string_lossy())
            .replace("@HOME@", &self.home().to_string_lossy())
            .replace("@NONCE@", &self.nonce)
            .replace("@TCP@", &port)
            .replace("@SOCKET@", &self.socket_name())
    }

    /// Listens in the host's abstract socket namespace.
    pub fn listen_abstract(&self) -> io::Result<()> {
        let address = SocketAddr::from_abstract_name(self.socket_name())?;
        self.keep_listener(UnixListener::bind_addr(&address)?)
    }

    /// Listens at a socket file that anyone may write to.
    pub fn listen_at(&self, path: &Path) -> io::Result<()> {
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
        self.keep_listener(listener)
    }

    /// Starts a host process that carries the secret among its arguments and variables.
    pub fn hold_secret_process(&self) -> io::Result<()> {
        let child = Command::new("sleep")
            .arg("600")
            .env("CONFORMANCE_HELD", &self.secret)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        self.held.borrow_mut().push(child);
        Ok(())
    }

    /// Whether anyone has connected to a listener of this scene.
    pub fn was_called(&self) -> bool {
        self.tcp.accept().is_ok() || self.sockets.borrow().iter().any(|listener| listener.accept().is_ok())
    }

    /// Host processes whose arguments carry this scene's nonce. Given a deadline by the caller.
    pub fn survivors(&self) -> Vec<u32> {
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
            .filter(|pid| {
                std::fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| String::from_utf8_lossy(&line).contains(&self.nonce))
            })
            .collect()
    }

    fn keep_listener(&self, listener: UnixListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        self.sockets.borrow_mut().push(listener);
        Ok(())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for mut child in self.held.borrow_mut().drain(..) {
            // A child that is already gone has nothing left to end.
            if child.kill().is_ok() {
                drop(child.wait());
            }
        }
    }
}

/// 128 random bits.
fn random_hex() -> io::Result<String> {
    let mut bytes = [0u8; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
