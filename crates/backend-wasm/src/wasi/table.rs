//! What the numbers of a module's descriptors stand for.

use super::errno::Errno;
use rustix::fs::FileType;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// One open thing.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) file: OwnedFd,
    /// The name under which a folder is given, for those that are there from the start.
    pub(crate) given_as: Option<Vec<u8>>,
}

/// The module's own table: its numbers are not the kernel's.
#[derive(Debug)]
pub(crate) struct Table {
    entries: BTreeMap<u32, Entry>,
    most: usize,
}

// === impl Entry ===

impl Entry {
    pub(crate) fn kind(&self) -> Result<FileType, Errno> {
        Ok(FileType::from_raw_mode(rustix::fs::fstat(&self.file)?.st_mode))
    }
}

impl AsFd for Entry {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

// === impl Table ===

impl Table {
    /// An empty one, for at most `most` entries.
    pub(crate) const fn new(most: usize) -> Self {
        Self { entries: BTreeMap::new(), most }
    }

    /// Under the lowest number that is free.
    pub(crate) fn add(&mut self, entry: Entry) -> Result<u32, Errno> {
        if self.entries.len() >= self.most {
            return Err(Errno::MFILE);
        }
        let taken = self.entries.keys().zip(0_u32..).take_while(|(number, index)| *number == index).count();
        let number = u32::try_from(taken).map_err(|_| Errno::MFILE)?;
        self.entries.insert(number, entry);
        Ok(number)
    }

    pub(crate) fn get(&self, number: u32) -> Result<&Entry, Errno> {
        self.entries.get(&number).ok_or(Errno::BADF)
    }

    pub(crate) fn remove(&mut self, number: u32) -> Result<Entry, Errno> {
        self.entries.remove(&number).ok_or(Errno::BADF)
    }

    /// Moves one onto a number that is in use.
    pub(crate) fn renumber(&mut self, from: u32, to: u32) -> Result<(), Errno> {
        self.get(to)?;
        let entry = self.remove(from)?;
        self.entries.insert(to, entry);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry { file: std::fs::File::open("/dev/null").unwrap().into(), given_as: None }
    }

    #[test]
    fn the_lowest_free_number_is_taken_and_the_table_is_finite() {
        let mut table = Table::new(3);
        assert_eq!((0..3).map(|_| table.add(entry()).unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(table.add(entry()).unwrap_err(), Errno::MFILE);
        table.remove(1).unwrap();
        assert_eq!(table.add(entry()), Ok(1));
        assert_eq!(table.renumber(2, 9).unwrap_err(), Errno::BADF);
        table.renumber(2, 0).unwrap();
        assert_eq!(table.get(2).unwrap_err(), Errno::BADF);
    }
}
