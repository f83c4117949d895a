//! Files of a guest that has a kernel of its own: the host does not see them, so a command of `guestd`'s works on them
//! inside, as the sandbox's user, and says what came of it.
//!
//! What it says is a guest's word: it is read up to a limit, and taken for nothing but names, numbers and bytes.
//!
//! **Invariant:** nothing here waits for a guest when its caller is gone.

use super::failure::{bad_request, failed};
use super::transfer::{Caller, Over};
use super::{checked, clean, not_a_file};
use fumehood_backend::answer::{self, FAILED, Front, OK, Piece};
use fumehood_keep::frame::Kind;
use fumehood_keep::wire::{Ask, Change, Entry, EntryKind, Failure, FailureCode, MOST_ENTRIES, Said};
use fumehood_sys::poll::{self, Interest};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

/// One answer has to fit one frame of a keeper, with room for what is around the entries.
const MOST_ANSWER_BYTES: usize = fumehood_keep::frame::MOST_BYTES - 4096;
/// More than the longest entry, chunk or change.
const MOST_UNREAD_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 64 << 10;
/// How long a guest or a caller may say nothing in the middle of something.
const PATIENCE: Duration = Duration::from_mins(10);
/// Says that a file which is replaced keeps its own mode.
const KEEP_MODE: u32 = 0o10_000;
const ENOTSUP: i32 = 95;

/// A piece of work on files that a guest does, and who asked for it.
#[derive(Debug)]
pub(crate) struct Inside {
    ask: Ask,
    /// What is told of in a failure.
    path: PathBuf,
    caller: Caller,
    feed: Option<File>,
    answer: File,
    unread: Vec<u8>,
}

/// What the guest is told to do.
pub(crate) fn words(ask: &Ask) -> Result<Vec<OsString>, Failure> {
    let path = |path: &String| checked(path).map(|path| clean(path).into_os_string());
    let number = |number: u64| OsString::from(number.to_string());
    Ok(match ask {
        Ask::Stat { path: at } => vec!["stat".into(), path(at)?],
        Ask::ListDir { path: at, depth } => {
            if *depth == 0 {
                return Err(bad_request("list the folder", "a depth of 0 asks for nothing".to_owned()));
            }
            vec!["list".into(), path(at)?, number(u64::from(*depth))]
        }
        Ask::Read { path: at, offset, length } => {
            vec!["read".into(), path(at)?, number(*offset), number(length.unwrap_or(u64::MAX))]
        }
        Ask::Write { path: at, mode } => {
            if at.ends_with('/') {
                let why = "the path ends with `/`, as that of a folder".to_owned();
                return Err(bad_request("write the file", why));
            }
            let mode = mode.map_or(KEEP_MODE, |mode| mode & 0o777);
            vec!["write".into(), path(at)?, number(u64::from(mode))]
        }
        Ask::MakeDir { path: at } => vec!["mkdir".into(), path(at)?],
        Ask::Move { from, to } => vec!["move".into(), path(from)?, path(to)?],
        Ask::Remove { path: at } => vec!["remove".into(), path(at)?],
        Ask::Watch { path: at, recursive } => {
            vec!["watch".into(), path(at)?, number(u64::from(*recursive))]
        }
        Ask::Status
        | Ask::Exec(_)
        | Ask::Attach { .. }
        | Ask::Input { .. }
        | Ask::List
        | Ask::Signal { .. }
        | Ask::Resize { .. }
        | Ask::Dial { .. }
        | Ask::Pause
        | Ask::Resume
        | Ask::Snapshot { .. }
        | Ask::Halt
        | Ask::Release
        | Ask::Claim(_)
        | Ask::Apply { .. }
        | Ask::Network(_)
        | Ask::Expire { .. }
        | Ask::Stop { .. } => {
            return Err(bad_request("work on files", "that is no work on files".to_owned()));
        }
    })
}

fn path_of(ask: &Ask) -> &str {
    if let Ask::Stat { path }
    | Ask::ListDir { path, .. }
    | Ask::Read { path, .. }
    | Ask::Write { path, .. }
    | Ask::MakeDir { path }
    | Ask::Remove { path }
    | Ask::Watch { path, .. }
    | Ask::Move { from: path, .. } = ask
    {
        return path;
    }
    "/"
}

// === impl Inside ===

impl Inside {
    /// `feed` is what the guest reads, and `answer` what it says.
    pub(crate) fn new(ask: Ask, caller: Caller, feed: OwnedFd, answer: OwnedFd) -> Self {
        let path = path_of(&ask).into();
        Self { ask, path, caller, feed: Some(feed.into()), answer: answer.into(), unread: Vec::new() }
    }

    /// Says to the caller what comes of it. Returns when that is said, or one of both is gone.
    pub(crate) fn work(mut self) {
        let said = match self.verb() {
            Ok(said) => Some(said),
            Err(Over::Failed(failure)) => Some(Said::Failed(failure)),
            Err(Over::Gone) => None,
        };
        self.caller.close(said.as_ref());
    }

    fn verb(&mut self) -> Result<Said, Over> {
        match self.ask {
            Ask::Write { .. } => {
                self.upload()?;
                self.verdict("write")?;
                Ok(Said::Entry { entry: self.entry()? })
            }
            Ask::Stat { .. } => {
                self.verdict("look at")?;
                Ok(Said::Entry { entry: self.entry()? })
            }
            Ask::Read { .. } => {
                self.verdict("read")?;
                let entry = self.entry()?;
                self.caller.say(&Said::Entry { entry })?;
                self.download()
            }
            Ask::ListDir { .. } => {
                self.verdict("list")?;
                self.list()
            }
            Ask::Watch { .. } => {
                self.verdict("watch")?;
                self.caller.say(&Said::Done)?;
                self.changes()
            }
            Ask::MakeDir { .. } => self.verdict("make the folder").map(|()| Said::Done),
            Ask::Move { .. } => self.verdict("move").map(|()| Said::Done),
            Ask::Remove { .. }
            | Ask::Status
            | Ask::Exec(_)
            | Ask::Attach { .. }
            | Ask::Input { .. }
            | Ask::List
            | Ask::Signal { .. }
            | Ask::Resize { .. }
            | Ask::Dial { .. }
            | Ask::Pause
            | Ask::Resume
            | Ask::Snapshot { .. }
            | Ask::Halt
            | Ask::Release
            | Ask::Claim(_)
            | Ask::Apply { .. }
            | Ask::Expire { .. }
            | Ask::Network(_)
            | Ask::Stop { .. } => self.verdict("remove").map(|()| Said::Done),
        }
    }

    /// Whether the guest could do it.
    fn verdict(&mut self, verb: &str) -> Result<(), Over> {
        let first = self.need(1)?;
        if first.first() == Some(&OK) {
            self.unread.drain(..1);
            return Ok(());
        }
        if first.first() != Some(&FAILED) {
            return Err(self.garbage());
        }
        let number = self.need(5)?.get(1..5).and_then(|four| <[u8; 4]>::try_from(four).ok());
        let number = i32::try_from(u32::from_le_bytes(number.unwrap_or_default())).unwrap_or(0);
        let path = self.path.clone();
        if number == ENOTSUP && !matches!(self.ask, Ask::Move { .. }) {
            return Err(not_a_file(&path, "device, pipe or socket").into());
        }
        Err(failed(verb, &path, &io::Error::from_raw_os_error(number)).into())
    }

    fn entry(&mut self) -> Result<Entry, Over> {
        loop {
            match Piece::parse(&self.unread) {
                Front::Whole(Some(piece), length) => {
                    let entry = shown(&piece);
                    self.unread.drain(..length);
                    return Ok(entry);
                }
                Front::More => self.more()?,
                Front::Whole(None, _) | Front::Garbage => return Err(self.garbage()),
            }
        }
    }

    fn list(&mut self) -> Result<Said, Over> {
        let (mut entries, mut bytes, mut cut) = (Vec::new(), 0_usize, false);
        loop {
            match Piece::parse(&self.unread) {
                Front::Whole(None, _) => return Ok(Said::Entries { entries, cut }),
                Front::Whole(Some(piece), length) => {
                    let entry = shown(&piece);
                    let size = serde_json::to_vec(&entry).map_or(usize::MAX, |text| text.len());
                    bytes = bytes.saturating_add(size).saturating_add(1);
                    cut |= entries.len() >= MOST_ENTRIES || bytes > MOST_ANSWER_BYTES;
                    if cut {
                        return Ok(Said::Entries { entries, cut });
                    }
                    entries.push(entry);
                    self.unread.drain(..length);
                }
                Front::More => self.more()?,
                Front::Garbage => return Err(self.garbage()),
            }
        }
    }

    /// Passes content on, from the guest's chunks to frames.
    fn download(&mut self) -> Result<Said, Over> {
        loop {
            let head = self.need(4)?.get(..4).and_then(|four| <[u8; 4]>::try_from(four).ok());
            let length = usize::try_from(u32::from_le_bytes(head.unwrap_or_default())).unwrap_or(usize::MAX);
            if length == 0 {
                self.caller.send(Kind::DataEnd, &[])?;
                return Err(Over::Gone);
            }
            if length > MOST_UNREAD_BYTES / 2 {
                return Err(self.garbage());
            }
            self.need(4 + length)?;
            let chunk = self.unread.get(4..4 + length).unwrap_or_default();
            self.caller.send(Kind::Data, chunk)?;
            self.unread.drain(..4 + length);
        }
    }

    /// Passes content on, from frames to the guest's chunks.
    fn upload(&mut self) -> Result<(), Over> {
        let mut buffer = Vec::new();
        loop {
            let kind = self.caller.next(&mut buffer)?;
            if !matches!(kind, Kind::Data | Kind::DataEnd) {
                let why = "a frame came that is no content".to_owned();
                return Err(bad_request("write the file", why).into());
            }
            for chunk in buffer.chunks(READ_BYTES) {
                let length = u32::try_from(chunk.len()).unwrap_or(u32::MAX).to_le_bytes();
                if !self.give(&length) || !self.give(chunk) {
                    // The guest has said why.
                    return Ok(());
                }
            }
            if kind == Kind::DataEnd {
                self.give(&[0; 4]);
                self.feed = None;
                return Ok(());
            }
        }
    }

    /// Says whether the guest still takes it.
    fn give(&mut self, bytes: &[u8]) -> bool {
        self.feed.as_mut().is_some_and(|feed| feed.write_all(bytes).is_ok())
    }

    fn changes(&mut self) -> Result<Said, Over> {
        loop {
            match answer::change(&self.unread) {
                Front::Whole((change, path), length) => {
                    let path = String::from_utf8_lossy(path).into_owned();
                    let change = match change {
                        answer::Change::Created => Change::Created,
                        answer::Change::Written => Change::Written,
                        answer::Change::Removed => Change::Removed,
                        answer::Change::Moved => Change::Moved,
                        answer::Change::Mode => Change::Mode,
                    };
                    self.unread.drain(..length);
                    self.caller.say(&Said::Changed { path, change })?;
                }
                Front::More => match self.fetch(None) {
                    Err(Over::Failed(_)) => return Err(self.unwatched()),
                    other => other?,
                },
                Front::Garbage => return Err(self.garbage()),
            }
        }
    }

    /// At least so many bytes that were not used yet.
    fn need(&mut self, count: usize) -> Result<&[u8], Over> {
        while self.unread.len() < count {
            self.more()?;
        }
        Ok(&self.unread)
    }

    fn more(&mut self) -> Result<(), Over> {
        self.fetch(Some(PATIENCE))
    }

    /// Waits for more of the answer.
    fn fetch(&mut self, patience: Option<Duration>) -> Result<(), Over> {
        if self.unread.len() > MOST_UNREAD_BYTES {
            return Err(self.garbage());
        }
        loop {
            let set = [(self.answer.as_fd(), Interest::Read), (self.caller.as_fd(), Interest::Hangup)];
            let found = poll::wait(&set, patience).map_err(|_interrupted| Over::Gone)?;
            if found.get(1).is_some_and(|caller| caller.hangup) {
                return Err(Over::Gone);
            }
            if found.first().is_some_and(|answer| answer.ready || answer.hangup) {
                break;
            }
            if patience.is_some() {
                return Err(self.silent().into());
            }
        }
        let before = self.unread.len();
        self.unread.resize(before + READ_BYTES, 0);
        let read = self.answer.read(self.unread.get_mut(before..).unwrap_or_default());
        self.unread.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(()),
            Ok(0) | Err(_) => Err(self.silent().into()),
            Ok(_) => Ok(()),
        }
    }

    fn silent(&self) -> Failure {
        self.failure("it did not answer to the end", "look at the sandbox with `fumehood ls ID`")
    }

    fn garbage(&self) -> Over {
        self.failure("it answered what makes no sense", "stop the sandbox, and create another").into()
    }

    fn unwatched(&self) -> Over {
        let cause = "the folder is gone, or more happened than could be told";
        let mut failure =
            self.failure(cause, "list the folder to see what is there now, then watch it again");
        failure.code = FailureCode::Busy;
        failure.into()
    }

    fn failure(&self, cause: &str, remedy: &str) -> Failure {
        Failure {
            code: FailureCode::Internal,
            message: format!("have the guest work on `{}`", self.path.display()),
            cause: cause.to_owned(),
            remediation: remedy.to_owned(),
        }
    }
}

fn shown(piece: &Piece<'_>) -> Entry {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (seconds, nanos) = piece.modified;
    Entry {
        path: text(piece.path),
        odd: std::str::from_utf8(piece.path).is_err(),
        kind: match piece.kind {
            answer::Kind::File => EntryKind::File,
            answer::Kind::Folder => EntryKind::Folder,
            answer::Kind::Link => EntryKind::Link,
            answer::Kind::Other => EntryKind::Other,
        },
        size: piece.size,
        mode: piece.mode,
        owner: piece.uid,
        group: piece.gid,
        modified_ms: seconds.saturating_mul(1000).saturating_add(i64::from(nanos / 1_000_000)),
        link: (piece.kind == answer::Kind::Link).then(|| text(piece.link)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// What a caller reads when a guest answers with these bytes.
    fn told(ask: Ask, answer: &[u8]) -> Vec<u8> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (unread, feed) = fumehood_sys::process::pipe(false).unwrap();
        let (read, write) = fumehood_sys::process::pipe(false).unwrap();
        File::from(write).write_all(answer).unwrap();
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        Inside::new(ask, Caller::new(theirs, Vec::new()).unwrap(), feed, read).work();
        drop(unread);
        let mut bytes = Vec::new();
        (&ours).read_to_end(&mut bytes).unwrap();
        bytes
    }

    fn stat() -> Ask {
        Ask::Stat { path: "/a".to_owned() }
    }

    #[test]
    fn whatever_a_guest_answers_is_an_answer_or_a_failure() {
        let mut entry = vec![OK];
        let piece = Piece {
            kind: answer::Kind::Link,
            mode: 0o777,
            uid: 1,
            gid: 2,
            size: 3,
            modified: (-1, 4),
            path: b"/a",
            link: b"b\xff",
        };
        piece.print(&mut entry);
        assert!(String::from_utf8_lossy(&told(stat(), &entry)).contains("\"link\":\"b\u{fffd}\""));
        for length in 0..entry.len() {
            let said = told(stat(), entry.get(..length).unwrap());
            assert!(String::from_utf8_lossy(&said).contains("failed"), "{length}");
        }
        for bytes in [&b"x"[..], b"+?", b"-\x02\0\0\0", b"-\xff\xff\xff\xff"] {
            assert!(String::from_utf8_lossy(&told(stat(), bytes)).contains("failed"), "{bytes:?}");
        }
        let list = || Ask::ListDir { path: "/a".to_owned(), depth: 1 };
        entry.push(answer::END);
        assert!(String::from_utf8_lossy(&told(list(), &entry)).contains("entries"));
        let read = Ask::Read { path: "/a".to_owned(), offset: 0, length: None };
        let mut content = entry.clone();
        content.pop();
        content.extend(b"\x02\0\0\0hi\0\0\0\0");
        assert!(String::from_utf8_lossy(&told(read, &content)).contains("hi"));
    }

    #[test]
    fn paths_are_told_without_what_leads_up() {
        let words = words(&Ask::Remove { path: "/a/../b//c/.".to_owned() }).unwrap();
        assert_eq!(words, ["remove", "/b/c"]);
        assert!(super::words(&Ask::Remove { path: "b".to_owned() }).is_err());
        assert!(super::words(&Ask::Status).is_err());
    }
}
