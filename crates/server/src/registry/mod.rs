//! What must survive the daemon: one SQLite file, written by one thread.
//!
//! **Invariant:** a file that is not ours, damaged, newer or locked is refused with its cause, and never written to.
//! **Invariant:** one daemon a folder: a lock on `lock` is held as long as the registry is open, by the kernel's own
//! book-keeping, so that no dead daemon holds it.

mod keys;
mod sandboxes;
mod snapshots;

pub use keys::Key;
pub(crate) use sandboxes::{Repeat, Row};
pub(crate) use snapshots::Kept;

use crate::error::{ApiError, Code};
use rusqlite::{Connection, OpenFlags};
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Marks the file as ours: "fume".
const APPLICATION: i64 = 0x6675_6d65;
/// The shape of the tables. A file with a higher number is not touched.
const SCHEMA: i64 = 1;
/// How long another process may hold the file locked.
const PATIENCE: Duration = Duration::from_secs(2);
/// Jobs that wait for the writer before callers do.
const QUEUE: usize = 1024;

const TABLES: &str = "
    CREATE TABLE sandboxes (
        id TEXT PRIMARY KEY, team TEXT NOT NULL, ended_ms INTEGER, body TEXT NOT NULL, spec TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX living ON sandboxes (id) WHERE ended_ms IS NULL;
    CREATE TABLE keys (
        hash BLOB PRIMARY KEY, name TEXT NOT NULL UNIQUE, team TEXT NOT NULL, scopes INTEGER NOT NULL,
        created_ms INTEGER NOT NULL, expires_ms INTEGER
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE repeats (
        team TEXT NOT NULL, key TEXT NOT NULL, fingerprint TEXT NOT NULL, sandbox TEXT NOT NULL,
        created_ms INTEGER NOT NULL, PRIMARY KEY (team, key)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE snapshots (
        team TEXT NOT NULL, name TEXT NOT NULL, folder TEXT NOT NULL, body TEXT NOT NULL, spec TEXT NOT NULL,
        PRIMARY KEY (team, name)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE quotas (team TEXT PRIMARY KEY, body TEXT NOT NULL) STRICT, WITHOUT ROWID;
";

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// The registry. Cheap to clone; closed when the last one goes.
#[derive(Clone, Debug)]
pub struct Registry {
    jobs: mpsc::Sender<Job>,
    /// Held, not read.
    _lock: Arc<File>,
}

// === impl Registry ===

impl Registry {
    /// Opens, and makes where it is missing, the registry in `folder`.
    ///
    /// # Errors
    /// [`Code::Registry`]: another daemon has it, or the file can not be trusted. Nothing was changed then.
    pub fn open(folder: &Path) -> Result<Self, ApiError> {
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(ApiError::of_host(Code::Registry, "make the daemon's folder", &error));
            }
            Ok(()) | Err(_) => {}
        }
        let lock = lock(&folder.join("lock"))?;
        let connection = open(&folder.join("registry.sqlite"))?;
        let (jobs, mut waiting) = mpsc::channel::<Job>(QUEUE);
        let mut connection = connection;
        std::thread::Builder::new()
            .name("registry".to_owned())
            .spawn(move || {
                while let Some(job) = waiting.blocking_recv() {
                    job(&mut connection);
                }
            })
            .map_err(|error| failed("start the registry's thread", error))?;
        Ok(Self { jobs, _lock: Arc::new(lock) })
    }

    /// Does something on the writer's thread.
    async fn run<T: Send + 'static>(
        &self,
        what: &'static str,
        job: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            // A caller who went away does not make it undone.
            let _ = answer.send(job(connection));
        });
        self.jobs.send(job).await.map_err(|_| failed(what, "its thread ended"))?;
        let done = answered.await.map_err(|_| failed(what, "its thread ended"))?;
        done.map_err(|error| unwritten(what, &error))
    }

    /// Brings all that was written into the one file.
    pub(crate) async fn settle(&self) -> Result<(), ApiError> {
        self.run("settle the registry", |connection| {
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        })
        .await
    }

    /// The quotas of every team that has one.
    pub(crate) async fn quotas(&self) -> Result<Vec<(String, String)>, ApiError> {
        self.run("read the quotas", |connection| {
            let mut statement = connection.prepare("SELECT team, body FROM quotas")?;
            let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect()
        })
        .await
    }

    /// Sets the quota of a team.
    pub(crate) async fn set_quota(&self, team: String, body: String) -> Result<(), ApiError> {
        self.run("set a quota", move |connection| {
            connection
                .execute("INSERT OR REPLACE INTO quotas (team, body) VALUES (?1, ?2)", (team, body))
                .map(|_| ())
        })
        .await
    }
}

/// A time or a number of ours as SQLite has it.
fn stored(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn loaded(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

fn failed(what: &str, cause: impl ToString) -> ApiError {
    ApiError::plain(Code::Registry, what, cause.to_string())
}

/// Why a statement was not carried out. Nothing of it was written then.
fn unwritten(what: &str, error: &rusqlite::Error) -> ApiError {
    use rusqlite::ErrorCode;
    let remedy = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "another program holds `serve/registry.sqlite` locked: end it, and try again"
        }
        Some(ErrorCode::DiskFull) => fumehood_model::remedy::NO_SPACE,
        Some(ErrorCode::ReadOnly) => {
            "the registry is read-only: mount the disk of the state folder writable, and give yourself the rights to `serve`"
        }
        Some(ErrorCode::CannotOpen) => {
            "see that `serve` in the state folder is yours, and that the daemon may open more files (`ulimit -n`)"
        }
        Some(ErrorCode::SystemIoFailure) => {
            "the disk of the state folder is full or fails: free space there, and look at the host's log"
        }
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            "the registry is damaged: end the daemon, and bring a copy of `serve/registry.sqlite` back"
        }
        Some(_) | None => Code::Registry.remedy(),
    };
    ApiError::new(Code::Registry, what, error.to_string(), remedy)
}

fn lock(path: &Path) -> Result<File, ApiError> {
    let what = "take the daemon's folder";
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = file.map_err(|error| ApiError::of_host(Code::Registry, what, &error))?;
    let until = std::time::Instant::now() + PATIENCE;
    let mut locked = file.try_lock();
    // A process that a daemon was just starting when it died holds what it held, until it is its own program.
    while matches!(locked, Err(TryLockError::WouldBlock)) && std::time::Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        locked = file.try_lock();
    }
    match locked {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ApiError::new(
            Code::Registry,
            what,
            "another daemon runs on this state folder",
            "use that one, end it first, or name another folder with `FUMEHOOD_STATE`",
        )),
        Err(TryLockError::Error(error)) => Err(failed(what, error)),
    }
}

fn open(path: &Path) -> Result<Connection, ApiError> {
    let is_new = std::fs::metadata(path).map_or(true, |meta| meta.len() == 0);
    if !is_new {
        // First without the right to change anything: what is refused stays as it was.
        judge(&connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?, path)?;
    } else {
        let made = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
        made.map_err(|error| ApiError::of_host(Code::Registry, "make the registry", &error))?;
    }
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    prepare(&connection, is_new).map_err(|error| broken(path, &error))?;
    Ok(connection)
}

fn connect(path: &Path, access: OpenFlags) -> Result<Connection, ApiError> {
    let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| broken(path, &error))?;
    connection.busy_timeout(PATIENCE).map_err(|error| broken(path, &error))?;
    Ok(connection)
}

fn prepare(connection: &Connection, is_new: bool) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // Lost at most with the machine's power, never with the process.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    if is_new {
        let setup = format!(
            "BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {SCHEMA}; {TABLES} COMMIT;"
        );
        connection.execute_batch(&setup)?;
    }
    Ok(())
}

/// Refuses a file that is not ours, newer, or damaged.
fn judge(connection: &Connection, path: &Path) -> Result<(), ApiError> {
    let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let application = number("application_id").map_err(|error| broken(path, &error))?;
    let schema = number("user_version").map_err(|error| broken(path, &error))?;
    if application != APPLICATION {
        return Err(refused(path, "it is some other program's file"));
    }
    if schema != SCHEMA {
        return Err(ApiError::new(
            Code::Registry,
            "open the registry",
            format!("`{}` has the shape {schema}, and this build knows {SCHEMA}", path.display()),
            "run the build that wrote it, or a newer one",
        ));
    }
    let whole: String = connection
        .pragma_query_value(None, "quick_check", |row| row.get(0))
        .map_err(|error| broken(path, &error))?;
    if whole == "ok" { Ok(()) } else { Err(refused(path, &whole)) }
}

fn broken(path: &Path, error: &rusqlite::Error) -> ApiError {
    use rusqlite::ErrorCode;
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => ApiError::new(
            Code::Registry,
            "open the registry",
            format!("another program holds `{}` locked", path.display()),
            "end that program; nothing was changed",
        ),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => refused(path, &error.to_string()),
        Some(_) | None => unwritten("open the registry", error),
    }
}

fn refused(path: &Path, why: &str) -> ApiError {
    let aside: PathBuf = path.with_extension("sqlite.aside");
    ApiError::new(
        Code::Registry,
        "open the registry",
        format!("`{}` is damaged or not ours, and was not changed: {why}", path.display()),
        format!(
            "bring a copy of it back, or move it to `{}`: living sandboxes are found again without it, keys, quotas \
             and names of snapshots are not",
            aside.display()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn a_second_daemon_is_refused_and_a_dead_one_is_not_in_the_way() {
        let base = folder();
        let first = Registry::open(base.path()).unwrap();
        let second = Registry::open(base.path()).unwrap_err();
        assert_eq!(second.code, Code::Registry);
        assert!(second.cause.contains("another daemon"), "{second:?}");
        drop(first);
        Registry::open(base.path()).unwrap();
    }

    #[test]
    fn what_is_not_a_registry_is_refused_and_stays_as_it_was() {
        for content in [&b"this is no database, and longer than a header of one is"[..], &[0; 5000][..]] {
            let base = folder();
            let path = base.path().join("registry.sqlite");
            std::fs::write(&path, content).unwrap();
            let error = Registry::open(base.path()).unwrap_err();
            assert!(error.cause.contains("not changed"), "{error:?}");
            assert_eq!(std::fs::read(&path).unwrap(), content);
        }
    }

    #[test]
    fn a_damaged_page_and_a_newer_shape_are_refused_and_left_alone() {
        let base = folder();
        let path = base.path().join("registry.sqlite");
        drop(Registry::open(base.path()).unwrap());
        // The writer's thread closes the file a moment after the last handle is gone.
        let mut whole = std::fs::read(&path).unwrap();
        for _ in 0..1000 {
            if whole.len() > 4096 && !base.path().join("registry.sqlite-wal").exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
            whole = std::fs::read(&path).unwrap();
        }
        let mut damaged = whole.clone();
        damaged[4096..4400].fill(0xff);
        std::fs::write(&path, &damaged).unwrap();
        assert!(Registry::open(base.path()).unwrap_err().cause.contains("not changed"));
        assert_eq!(std::fs::read(&path).unwrap(), damaged);

        whole[60..64].copy_from_slice(&7_u32.to_be_bytes());
        std::fs::write(&path, &whole).unwrap();
        assert!(Registry::open(base.path()).unwrap_err().cause.contains("shape 7"));
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }

    #[test]
    fn a_file_that_another_program_locks_is_told_of() {
        let base = folder();
        let path = base.path().join("registry.sqlite");
        drop(Registry::open(base.path()).unwrap());
        let other = Connection::open(&path).unwrap();
        other.pragma_update(None, "locking_mode", "EXCLUSIVE").unwrap();
        other.execute_batch("BEGIN EXCLUSIVE").unwrap();
        let error = Registry::open(base.path()).unwrap_err();
        assert!(error.cause.contains("locked"), "{error:?}");
    }

    #[tokio::test]
    async fn ended_sandboxes_come_in_parts_of_which_none_is_read_twice() {
        use crate::sandbox::{Ended, Filter, Page, Sandbox, State};
        let base = folder();
        let registry = Registry::open(base.path()).unwrap();
        let sandbox = |number: u64| Sandbox {
            team: if number.is_multiple_of(3) { "b" } else { "a" }.to_owned(),
            state: State::Ended,
            labels: std::collections::BTreeMap::from([(
                "even".to_owned(),
                number.is_multiple_of(2).to_string(),
            )]),
            ended: Some(Ended { at_ms: number, cause: "stopped".to_owned() }),
            ..crate::sandbox::testing::sandbox(number)
        };
        for number in 1..=30 {
            let row = Row { sandbox: sandbox(number), spec: fumehood_keep::wire::Spec::default() };
            registry.register(row, None).await.unwrap();
            registry.update(sandbox(number).id.to_string(), move || sandbox(number)).await.unwrap();
        }
        let even = std::collections::BTreeMap::from([("even".to_owned(), "true".to_owned())]);
        let filter = Filter { states: vec![State::Ended], labels: even, ..Filter::default() };
        for oldest_first in [true, false] {
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let page = Page { after: after.clone(), limit: None, oldest_first };
                let part = registry.ended(Some("a".to_owned()), filter.clone(), page, 3).await.unwrap();
                let Some(last) = part.last() else { break };
                after = Some(last.id.to_string());
                assert!(part.len() <= 3);
                seen.extend(part.iter().map(|sandbox| sandbox.created_ms));
            }
            let mut wanted: Vec<u64> = (1..=30).filter(|number| number % 2 == 0 && number % 3 != 0).collect();
            if !oldest_first {
                wanted.reverse();
            }
            assert_eq!(seen, wanted);
        }
    }
}
