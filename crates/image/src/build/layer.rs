//! A root written as one layer: an archive that says nothing of the day, the owner or the order in which it was made, so
//! that the same files are the same layer.

use super::tree::{Node, Tree};
use crate::digest::Digest;
use crate::fault::{Code, Fault};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek as _, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

const BLOCK_BYTES: u64 = 512;
const NAME_BYTES: usize = 100;
/// `O_TMPFILE`.
const NAMELESS: i32 = 0o20_200_000;

/// A layer, in a file without a name.
#[derive(Debug)]
pub struct Layer {
    file: File,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
}

/// Counts and hashes what is written.
struct Sum<W> {
    inner: W,
    hash: Sha256,
    bytes: u64,
}

// === impl Layer ===

impl Layer {
    /// Writes what a tree holds. The file is beneath `folder`, and gone with this.
    ///
    /// # Errors
    /// A file of the host can not be read, or there is no room.
    pub fn write(tree: &Tree, folder: &Path) -> Result<Self, Fault> {
        let stored = |error: io::Error| Fault::store("write a layer", &error);
        let mut nameless = File::options();
        nameless.read(true).write(true).mode(0o600).custom_flags(NAMELESS);
        let file = nameless.open(folder).map_err(stored)?;
        let mut sum = Sum { inner: BufWriter::new(file), hash: Sha256::new(), bytes: 0 };
        let mut known = BTreeMap::new();
        for (path, node) in &tree.nodes {
            match earlier(path, node, &mut known) {
                Some(first) => {
                    head(&mut sum, (b'1', 0o644), inside(path), inside(&first), 0).map_err(stored)?;
                }
                None => entry(&mut sum, path, node)?,
            }
        }
        sum.write_all(&[0; 1024]).and_then(|()| sum.flush()).map_err(stored)?;
        let Sum { inner, hash, bytes: size } = sum;
        let file = inner.into_inner().map_err(|error| stored(error.into_error()))?;
        Ok(Self { file, digest: Digest::from_hash(hash.finalize().as_slice()), size })
    }

    /// From its beginning.
    pub(crate) fn read(&self) -> io::Result<impl Read + '_> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))?;
        Ok(file)
    }
}

impl<W: Write> Write for Sum<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(bytes.get(..written).unwrap_or_default());
        self.bytes = self.bytes.saturating_add(u64::try_from(written).unwrap_or(0));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// The path under which a file of several names was written first.
fn earlier(path: &Path, node: &Node, known: &mut BTreeMap<(u64, u64), PathBuf>) -> Option<PathBuf> {
    let Node::File { from, .. } = node else { return None };
    let found = std::fs::symlink_metadata(from).ok().filter(|found| found.nlink() > 1)?;
    match known.entry((found.dev(), found.ino())) {
        Entry::Occupied(first) => Some(first.get().clone()),
        Entry::Vacant(place) => {
            place.insert(path.to_owned());
            None
        }
    }
}

fn inside(path: &Path) -> &[u8] {
    path.strip_prefix("/").unwrap_or(path).as_os_str().as_bytes()
}

fn entry(to: &mut impl Write, path: &Path, node: &Node) -> Result<(), Fault> {
    let stored = |error: io::Error| Fault::store("write a layer", &error);
    let name = inside(path);
    match node {
        Node::Folder => head(to, (b'5', 0o755), name, b"", 0).map_err(stored),
        Node::Link(target) => head(to, (b'2', 0o777), name, target.as_os_str().as_bytes(), 0).map_err(stored),
        Node::Text(bytes) => {
            let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
            head(to, (b'0', 0o644), name, b"", size)
                .and_then(|()| to.write_all(bytes))
                .and_then(|()| fill(to, size))
                .map_err(stored)
        }
        Node::File { from, executable } => {
            let unread = |error: io::Error| {
                Fault::new(Code::BadSource, format!("`{}` can not be read: {error}", from.display()))
            };
            let file = File::open(from).map_err(unread)?;
            let size = file.metadata().map_err(unread)?.len();
            let mode = if *executable { 0o755 } else { 0o644 };
            head(to, (b'0', mode), name, b"", size).map_err(stored)?;
            // One that grows meanwhile is what it was; one that shrinks is none.
            let copied = io::copy(&mut file.take(size), to).map_err(stored)?;
            if copied != size {
                return Err(Fault::new(
                    Code::BadSource,
                    format!("`{}` was changed meanwhile", from.display()),
                ));
            }
            fill(to, size).map_err(stored)
        }
    }
}

/// The header, behind an extended one where a name has no room in it.
fn head(to: &mut impl Write, (kind, mode): (u8, u32), name: &[u8], link: &[u8], size: u64) -> io::Result<()> {
    let mut records = Vec::new();
    for (key, text) in [("path", name), ("linkpath", link)] {
        if text.len() > NAME_BYTES {
            records.extend(record(key, text));
        }
    }
    if !records.is_empty() {
        let size = u64::try_from(records.len()).unwrap_or(u64::MAX);
        block(to, (b'x', 0o644), b"pax", b"", size)?;
        to.write_all(&records)?;
        fill(to, size)?;
    }
    let short = |text: &'_ [u8]| text.get(..text.len().min(NAME_BYTES)).unwrap_or_default().to_vec();
    block(to, (kind, mode), &short(name), &short(link), size)
}

/// `LENGTH KEY=TEXT` and a line end, the length counting itself.
fn record(key: &str, text: &[u8]) -> Vec<u8> {
    let bare = key.len() + text.len() + 3;
    let length =
        (1..20).map(|digits| bare + digits).find(|sum| sum.to_string().len() == sum - bare).unwrap_or(bare);
    [format!("{length} {key}=").as_bytes(), text, b"\n"].concat()
}

fn block(
    to: &mut impl Write,
    (kind, mode): (u8, u32),
    name: &[u8],
    link: &[u8],
    size: u64,
) -> io::Result<()> {
    let mut header: Vec<u8> = Vec::with_capacity(512);
    let mut field = |bytes: &[u8], wide: usize| {
        let end = header.len() + wide;
        header.extend(bytes);
        header.resize(end, 0);
    };
    field(name, 100);
    field(format!("{mode:07o}").as_bytes(), 8);
    field(b"0000000", 8);
    field(b"0000000", 8);
    field(format!("{size:011o}").as_bytes(), 12);
    field(b"00000000000", 12);
    field(b"        ", 8);
    field(&[kind], 1);
    field(link, 100);
    field(b"ustar\x0000", 255);
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    if let Some(place) = header.get_mut(148..156) {
        place.copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    to.write_all(&header)
}

fn fill(to: &mut impl Write, size: u64) -> io::Result<()> {
    let rest = size.next_multiple_of(BLOCK_BYTES).saturating_sub(size);
    io::copy(&mut io::repeat(0).take(rest), to).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tar::{Archive, What};

    fn tree(names: &[&str]) -> Tree {
        let mut tree = Tree::default();
        for name in names {
            tree.nodes.insert(name.into(), Node::Text(b"text".to_vec()));
        }
        tree
    }

    #[test]
    fn our_own_reader_reads_it_back() {
        let folder = tempfile::tempdir().unwrap();
        let long = format!("/{}/{}", "a".repeat(120), "b".repeat(90));
        let mut tree = tree(&["/short", &long]);
        tree.nodes.insert("/link".into(), Node::Link("/".repeat(150).into()));
        let layer = Layer::write(&tree, folder.path()).unwrap();
        let mut archive = Archive::new(layer.read().unwrap());
        let mut seen = Vec::new();
        while let Some(entry) = archive.next_entry().unwrap() {
            let parts: Vec<usize> = entry.name.parts().map(<[u8]>::len).collect();
            seen.push((parts, matches!(entry.what, What::Link(_)), entry.size));
        }
        assert_eq!(seen, [(vec![120, 90], false, 4), (vec![4], true, 0), (vec![5], false, 4)]);
    }

    #[test]
    fn the_same_files_are_the_same_layer() {
        let folder = tempfile::tempdir().unwrap();
        let of = |names: &[&str]| Layer::write(&tree(names), folder.path()).unwrap().digest;
        assert_eq!(of(&["/a", "/b"]), of(&["/b", "/a"]));
        assert_ne!(of(&["/a"]), of(&["/b"]));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
