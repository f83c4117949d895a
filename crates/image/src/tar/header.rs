//! One block of 512 bytes that stands before an entry's content: V7, ustar and GNU.

use crate::fault::{Code, Fault};

pub(super) const BLOCK_BYTES: usize = 512;

/// Which of the three forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Old,
    Ustar,
    Gnu,
}

/// A header whose checksum is right.
#[derive(Debug)]
pub(super) struct Header<'b> {
    block: &'b [u8; BLOCK_BYTES],
    pub(super) form: Form,
}

// === impl Header ===

impl<'b> Header<'b> {
    /// Reads a block; `None` for one of zeros, which ends an archive.
    pub(super) fn parse(block: &'b [u8; BLOCK_BYTES]) -> Result<Option<Self>, Fault> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let form = match (field(block, 257, 6), field(block, 263, 2)) {
            (b"ustar\0", _) => Form::Ustar,
            (b"ustar ", b" \0") => Form::Gnu,
            _ => Form::Old,
        };
        let header = Self { block, form };
        let said = header.octal(148, 8, "checksum")?;
        let plain =
            |at: usize| if (148..156).contains(&at) { b' ' } else { block.get(at).copied().unwrap_or(0) };
        let sum: u64 = (0..BLOCK_BYTES).map(|at| u64::from(plain(at))).sum();
        // Some old writers took bytes as signed numbers.
        let signed: i64 = (0..BLOCK_BYTES).map(|at| i64::from(plain(at).cast_signed())).sum();
        if said != sum && i64::try_from(said) != Ok(signed) {
            return Err(Fault::new(Code::BadLayer, "an archive's header has a wrong checksum"));
        }
        Ok(Some(header))
    }

    /// The letter for what it is.
    pub(super) fn kind(&self) -> u8 {
        self.block.get(156).copied().unwrap_or(0)
    }

    /// The name, of both of its fields.
    pub(super) fn name(&self) -> Vec<u8> {
        let name = text(field(self.block, 0, 100));
        let prefix = if self.form == Form::Ustar { text(field(self.block, 345, 155)) } else { &[] };
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }

    /// Where a link leads.
    pub(super) fn link(&self) -> Vec<u8> {
        text(field(self.block, 157, 100)).to_vec()
    }

    /// Bytes of content.
    pub(super) fn size(&self) -> Result<u64, Fault> {
        self.number(124, 12, "size")
    }

    /// Permission bits.
    pub(super) fn mode(&self) -> Result<u64, Fault> {
        self.number(100, 8, "mode")
    }

    /// When content was changed, in seconds; before 1970 is 1970.
    pub(super) fn mtime(&self) -> Result<u64, Fault> {
        let raw = field(self.block, 136, 12);
        if raw.first().is_some_and(|byte| *byte == 0xff) {
            return Ok(0);
        }
        self.number(136, 12, "time")
    }

    fn number(&self, at: usize, length: usize, what: &str) -> Result<u64, Fault> {
        number(field(self.block, at, length), what)
    }

    fn octal(&self, at: usize, length: usize, what: &str) -> Result<u64, Fault> {
        octal(field(self.block, at, length), what)
    }
}

/// A number: octal digits, or, with the highest bit, all other bits of the field.
pub(super) fn number(raw: &[u8], what: &str) -> Result<u64, Fault> {
    let (first, rest) = raw.split_first().ok_or_else(|| bad(what))?;
    if first & 0x80 == 0 {
        return octal(raw, what);
    }
    if first & 0x40 != 0 {
        return Err(bad(what));
    }
    let start = u64::from(first & 0x3f);
    rest.iter().try_fold(start, |sum, byte| {
        let shifted = sum.checked_mul(256).ok_or_else(|| bad(what))?;
        Ok(shifted | u64::from(*byte))
    })
}

fn octal(raw: &[u8], what: &str) -> Result<u64, Fault> {
    let blank = |byte: &u8| *byte == b' ' || *byte == 0;
    let start = raw.iter().position(|byte| *byte != b' ').unwrap_or(raw.len());
    let digits = raw.get(start..).unwrap_or_default();
    let end = digits.iter().position(blank).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at_checked(end).ok_or_else(|| bad(what))?;
    if !rest.iter().all(blank) {
        return Err(bad(what));
    }
    digits.iter().try_fold(0_u64, |sum, digit| {
        let digit = match digit {
            b'0'..=b'7' => u64::from(digit - b'0'),
            _ => return Err(bad(what)),
        };
        sum.checked_mul(8).map(|sum| sum | digit).ok_or_else(|| bad(what))
    })
}

fn bad(what: &str) -> Fault {
    Fault::new(Code::BadLayer, format!("the {what} in an archive's header is no number"))
}

fn field(block: &[u8; BLOCK_BYTES], at: usize, length: usize) -> &[u8] {
    block.get(at..at + length).unwrap_or_default()
}

fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}
