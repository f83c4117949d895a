//! What a layer says of the layers below it, which its own files can not say.

use crate::fault::{Code, Fault};
use crate::tar::Name;
use std::collections::{BTreeMap, BTreeSet};

/// Kept beside the files of a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Names that are gone.
    pub(crate) gone: BTreeSet<Name>,
    /// Folders whose content is gone.
    pub(crate) emptied: BTreeSet<Name>,
    /// Folders that no entry made: what is below stays what it is.
    pub(crate) implied: BTreeSet<Name>,
    /// Other names of files that are below.
    pub(crate) links: BTreeMap<Name, Name>,
    /// Devices and pipes that were left out.
    pub(crate) special: u64,
}

const GONE: u8 = b'g';
const EMPTIED: u8 = b'e';
const IMPLIED: u8 = b'i';
const LINK: u8 = b'l';
const SPECIAL: u8 = b's';

// === impl Marks ===

impl Marks {
    /// Records: a letter, a name, for a link a second name, each with a NUL behind it.
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut record = |letter: u8, texts: &[&[u8]]| {
            out.push(letter);
            for text in texts {
                out.extend_from_slice(text);
                out.push(0);
            }
        };
        for (letter, names) in [(GONE, &self.gone), (EMPTIED, &self.emptied), (IMPLIED, &self.implied)] {
            names.iter().for_each(|name| record(letter, &[name.bytes()]));
        }
        self.links.iter().for_each(|(name, to)| record(LINK, &[name.bytes(), to.bytes()]));
        record(SPECIAL, &[self.special.to_string().as_bytes()]);
        out
    }

    /// Reads what [`Marks::write`] wrote, and nothing else.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, Fault> {
        let mut marks = Self::default();
        let mut rest = bytes;
        let mut whole = false;
        while let Some((letter, after)) = rest.split_first() {
            let (first, after) = text(after)?;
            rest = after;
            if *letter == SPECIAL {
                let number = std::str::from_utf8(first).ok().and_then(|text| text.parse().ok());
                marks.special = number.ok_or_else(damaged)?;
                whole = rest.is_empty();
                continue;
            }
            let name = Name::parse(first)?;
            match *letter {
                GONE => drop(marks.gone.insert(name)),
                EMPTIED => drop(marks.emptied.insert(name)),
                IMPLIED => drop(marks.implied.insert(name)),
                LINK => {
                    let (second, after) = text(rest)?;
                    rest = after;
                    marks.links.insert(name, Name::parse(second)?);
                }
                _ => return Err(damaged()),
            }
        }
        if whole { Ok(marks) } else { Err(damaged()) }
    }
}

fn text(bytes: &[u8]) -> Result<(&[u8], &[u8]), Fault> {
    let end = bytes.iter().position(|byte| *byte == 0).ok_or_else(damaged)?;
    let (text, rest) = bytes.split_at_checked(end).ok_or_else(damaged)?;
    Ok((text, rest.get(1..).unwrap_or_default()))
}

fn damaged() -> Fault {
    Fault::new(Code::Store, "a layer of the store is damaged")
        .with_remedy("remove the image and pull it again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let name = |text: &str| Name::parse(text.as_bytes()).unwrap();
        let marks = Marks {
            gone: [name("a"), name("b/\u{fc}")].into(),
            emptied: [Name::default(), name("e")].into(),
            implied: [name("usr")].into(),
            links: [(name("l"), name("bin/x"))].into(),
            special: 3,
        };
        let bytes = marks.write();
        assert_eq!(Marks::read(&bytes), Ok(marks));
        for length in 0..bytes.len() {
            assert!(Marks::read(bytes.get(..length).unwrap()).is_err(), "cut after {length} bytes");
        }
    }
}
