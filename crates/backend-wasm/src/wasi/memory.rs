//! The module's memory, as it must be read: every address may be anything.
//!
//! **Invariant:** an address or a length that does not lie in the memory is [`Errno::FAULT`].

use super::errno::Errno;
use std::ops::Range;

/// The most vectors of one read or write, as the kernel has it.
const MOST_VECTORS: u32 = 1024;

/// The linear memory of a module, during one call.
pub(crate) struct Memory<'a>(pub(crate) &'a mut [u8]);

// === impl Memory ===

impl Memory<'_> {
    pub(crate) fn slice(&self, at: u32, length: u32) -> Result<&[u8], Errno> {
        self.0.get(range(at, length)).ok_or(Errno::FAULT)
    }

    pub(crate) fn slice_mut(&mut self, at: u32, length: u32) -> Result<&mut [u8], Errno> {
        self.0.get_mut(range(at, length)).ok_or(Errno::FAULT)
    }

    pub(crate) fn write(&mut self, at: u32, bytes: &[u8]) -> Result<(), Errno> {
        let length = u32::try_from(bytes.len()).map_err(|_| Errno::OVERFLOW)?;
        self.slice_mut(at, length)?.copy_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn write_u32(&mut self, at: u32, value: u32) -> Result<(), Errno> {
        self.write(at, &value.to_le_bytes())
    }

    pub(crate) fn write_u64(&mut self, at: u32, value: u64) -> Result<(), Errno> {
        self.write(at, &value.to_le_bytes())
    }

    /// A length of ours. No buffer of ours is longer than four gibibytes.
    pub(crate) fn write_size(&mut self, at: u32, value: usize) -> Result<(), Errno> {
        self.write_u32(at, u32::try_from(value).map_err(|_| Errno::OVERFLOW)?)
    }

    pub(crate) fn u32(&self, at: u32) -> Result<u32, Errno> {
        self.array(at).map(u32::from_le_bytes)
    }

    pub(crate) fn array<const N: usize>(&self, at: u32) -> Result<[u8; N], Errno> {
        let from = at as usize;
        let found = self.0.get(from..).and_then(|rest| rest.first_chunk::<N>());
        found.copied().ok_or(Errno::FAULT)
    }

    /// The address and length of each vector of a list, all of them in the memory.
    pub(crate) fn vectors(&self, list: u32, count: u32) -> Result<Vec<(u32, u32)>, Errno> {
        if count > MOST_VECTORS {
            return Err(Errno::INVAL);
        }
        let vector = |index: u32| {
            let at = list.checked_add(index * 8).ok_or(Errno::FAULT)?;
            let length_at = at.checked_add(4).ok_or(Errno::FAULT)?;
            let (at, length) = (self.u32(at)?, self.u32(length_at)?);
            self.slice(at, length)?;
            Ok((at, length))
        };
        (0..count).map(vector).collect()
    }
}

fn range(at: u32, length: u32) -> Range<usize> {
    let at = at as usize;
    at..at + length as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_address_leads_out_of_the_memory(at: u32, length: u32, count in 0_u32..2000) {
            let mut bytes = vec![7_u8; 4096];
            let mut memory = Memory(&mut bytes);
            let fits = u64::from(at) + u64::from(length) <= 4096;
            prop_assert_eq!(memory.slice(at, length).is_ok(), fits);
            prop_assert_eq!(memory.slice_mut(at, length).is_ok(), fits);
            if let Ok(list) = memory.vectors(at, count) {
                prop_assert!(list.iter().all(|(at, length)| u64::from(*at) + u64::from(*length) <= 4096));
            }
        }
    }
}
