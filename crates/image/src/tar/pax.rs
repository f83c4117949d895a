//! The records of a POSIX extended header: `LENGTH KEY=VALUE\n`.

use crate::fault::{Code, Fault};

/// What such a header says that is of use here. Owners, attributes and comments are not.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pax {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) mtime: Option<(u64, u32)>,
    /// It tells of a sparse file.
    pub(super) sparse: bool,
}

// === impl Pax ===

impl Pax {
    pub(super) fn parse(mut rest: &[u8]) -> Result<Self, Fault> {
        let mut pax = Self::default();
        while !rest.is_empty() {
            let (record, after) = record(rest).ok_or_else(|| bad("a record is cut or has a wrong length"))?;
            rest = after;
            let at =
                record.iter().position(|byte| *byte == b'=').ok_or_else(|| bad("a record has no value"))?;
            let (key, value) = record.split_at_checked(at).unwrap_or_default();
            pax.take(key, value.get(1..).unwrap_or_default())?;
        }
        Ok(pax)
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), Fault> {
        let twice = match key {
            b"path" => self.path.replace(value.to_vec()).is_some(),
            b"linkpath" => self.link.replace(value.to_vec()).is_some(),
            b"size" => {
                self.size.replace(decimal(value).ok_or_else(|| bad("the size is no number"))?).is_some()
            }
            b"mtime" => {
                self.mtime.replace(time(value).ok_or_else(|| bad("the time is no number"))?).is_some()
            }
            key if key.starts_with(b"GNU.sparse.") => {
                self.sparse = true;
                false
            }
            _ => false,
        };
        // Which of two is meant, readers do not agree on.
        if twice { Err(bad("a key is there twice")) } else { Ok(()) }
    }

    /// Whether it says what only one entry can be told.
    pub(super) fn is_about_an_entry(&self) -> bool {
        self.path.is_some() || self.link.is_some() || self.size.is_some() || self.sparse
    }
}

/// The first record without its length and line end, and what follows it.
fn record(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let length = usize::try_from(decimal(bytes.get(..space)?)?).ok()?;
    let (whole, after) = bytes.split_at_checked(length)?;
    let record = whole.get(space + 1..)?.strip_suffix(b"\n")?;
    Some((record, after))
}

fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Seconds and nanoseconds; before 1970 is 1970.
fn time(text: &[u8]) -> Option<(u64, u32)> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let dot = text.iter().position(|byte| *byte == b'.').unwrap_or(text.len());
    let (whole, fraction) = text.split_at_checked(dot)?;
    let secs = decimal(whole)?;
    let fraction = fraction.strip_prefix(b".").unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let nanos =
        (0..9).fold(0_u32, |sum, at| sum * 10 + fraction.get(at).map_or(0, |digit| u32::from(digit - b'0')));
    Some(if negative { (0, 0) } else { (secs, nanos) })
}

fn bad(what: &str) -> Fault {
    Fault::new(Code::BadLayer, format!("an extended header is damaged: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, value: &str) -> Vec<u8> {
        let bare = key.len() + value.len() + 3;
        let mut length = bare;
        while length != bare + length.to_string().len() {
            length = bare + length.to_string().len();
        }
        format!("{length} {key}={value}\n").into_bytes()
    }

    #[test]
    fn records_are_read_and_others_passed_over() {
        let bytes = [
            record("path", "a=b/ü"),
            record("SCHILY.xattr.security.capability", "x\ny"),
            record("mtime", "12.5"),
            record("size", "9"),
        ];
        let pax = Pax::parse(&bytes.concat()).unwrap();
        assert_eq!(pax.path.as_deref(), Some("a=b/ü".as_bytes()));
        assert_eq!((pax.size, pax.mtime), (Some(9), Some((12, 500_000_000))));
        assert!(pax.is_about_an_entry());
    }

    #[test]
    fn damage_and_double_talk_are_refused() {
        for bytes in [
            "5 a=b\n",
            "99 path=x\n",
            "7 path\n",
            "path=x\n",
            "9 size=-\n",
            "10 mtime=x\n",
            "0 a=b\n",
            "6 a=bc",
        ] {
            assert!(Pax::parse(bytes.as_bytes()).is_err(), "{bytes:?}");
        }
        assert!(Pax::parse(&[record("path", "a"), record("path", "b")].concat()).is_err());
    }
}
