//! The record: what was done, in what order, so that a change shows.
//!
//! One file a task (`RECORDS/ID.jsonl`) and one index (`RECORDS/index.jsonl`), each a chain of JSON
//! lines. The index opens and closes every file: an opening line's digest is bound into the file's
//! first line, a closing line holds the number of lines and the last digest.
//!
//! This crate owns the format, the writer and the judge. It knows nothing of sandboxes; time comes in
//! as an argument. What is recorded, and when, is for its callers.
//!
//! **Invariant:** an append that answers with an error left no line, and no append follows it.
//! **Invariant:** nothing here removes or rewrites a byte that an earlier process wrote.
//!
//! What the chain shows: any change, removal, insertion, doubling or swap of lines; a file cut short,
//! missing, exchanged for another or not named by the index; a cut index whose tasks still have files.
//!
//! What it can not show by itself: whoever may write the folder can compute digests as well as we can,
//! so he can write a whole false record; and a cut of the index's end *together with* the files of the
//! tasks opened there leaves a shorter record that is whole. Both need the head ([`head`]) to have been
//! kept elsewhere: [`verify()`] then finds that the index no longer holds it. The end of a *lost* task's
//! file is as long as the crash left it, or as somebody cut it.

mod branch;
mod cap;
mod digest;
mod error;
mod index;
mod ledger;
mod line;
mod log;
mod mirror;
mod open;
mod proof;
mod prune;
mod read;
mod show;
mod sign;
mod tail;
mod text;
mod verify;
mod walk;

pub use digest::{BadDigest, Digest, Head};
pub use error::RecordError;
pub use ledger::{Break, CrashSeal};
pub use line::{Flaw, Line};
pub use log::TaskLog;
pub use mirror::{BadMirror, MirrorTo, mirror_to};
pub use open::{index_path, task_path};
pub use proof::TaskState;
pub use prune::{Pruned, prune};
pub use read::{FindError, Life, TaskSummary, Transcript, find, list, read};
pub use show::{show, show_list, show_report, to_json};
pub use sign::{BadHex, KeyError, PublicKey, SignError, Signature, SignedHead, SigningKey, key_path, sign};
pub use text::{bytes, os_text, text};
pub use verify::{Expected, IndexReport, ReadError, Report, TaskReport, head, verify, verify_with};
