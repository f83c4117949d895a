//! `multipart/form-data`, read as it comes: a part is passed on in pieces, and never held whole.
//!
//! **Invariant:** parsing is total, and what is held is at most [`MOST_HEAD_BYTES`] and one piece of the body.

use crate::error::{ApiError, Code};
use crate::stream;
use axum::body::Body;
use bytes::{Buf as _, Bytes, BytesMut};

/// The longest head of a part.
const MOST_HEAD_BYTES: usize = 16 << 10;
/// The longest boundary that the standard allows.
const MOST_BOUNDARY_BYTES: usize = 70;

/// A form that is being read.
#[derive(Debug)]
pub(super) struct Form {
    body: Body,
    kept: BytesMut,
    /// What stands before each part but the first: a line end, two dashes, the boundary.
    delimiter: Vec<u8>,
    state: At,
    is_done: bool,
}

/// Where in a form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Before a delimiter's rest: its line end, or the two dashes of the last.
    Delimiter,
    /// In the content of a part.
    Content,
    End,
}

/// The head of one part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) name: String,
    /// As it was sent: a path stays a path.
    pub(super) filename: Option<String>,
}

// === impl Form ===

impl Form {
    /// A form of this content type.
    pub(super) fn new(content_type: &str, body: Body) -> Result<Self, ApiError> {
        let boundary = content_type.split(';').skip(1).find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"').to_owned())
        });
        let boundary = boundary.filter(|text| (1..=MOST_BOUNDARY_BYTES).contains(&text.len()));
        let boundary = boundary.ok_or_else(|| flawed("the content type has no boundary"))?;
        let delimiter = format!("\r\n--{boundary}").into_bytes();
        // As if a line had ended before: the first delimiter has no other mark.
        let mut kept = BytesMut::new();
        kept.extend_from_slice(b"\r\n");
        Ok(Self { body, kept, delimiter, state: At::Content, is_done: false })
    }

    /// The next part; what was left of the one before is passed over.
    pub(super) async fn part(&mut self) -> Result<Option<Part>, ApiError> {
        while self.state == At::Content {
            if self.piece().await?.is_none() {
                break;
            }
        }
        if self.state == At::End {
            return Ok(None);
        }
        while self.kept.len() < 2 {
            self.more().await?;
        }
        if self.kept.starts_with(b"--") {
            self.state = At::End;
            return Ok(None);
        }
        loop {
            if let Some(end) = find(&self.kept, b"\r\n\r\n") {
                let head = self.kept.split_to(end);
                self.kept.advance(4);
                self.state = At::Content;
                return read_head(&head).map(Some);
            }
            if self.kept.len() > MOST_HEAD_BYTES {
                return Err(flawed("a part's head is too long"));
            }
            self.more().await?;
        }
    }

    /// The next piece of the part's content; `None` at its end.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, ApiError> {
        if self.state != At::Content {
            return Ok(None);
        }
        loop {
            match find(&self.kept, &self.delimiter) {
                Some(0) => {
                    self.kept.advance(self.delimiter.len());
                    self.state = At::Delimiter;
                    return Ok(None);
                }
                Some(end) => return Ok(Some(self.kept.split_to(end).freeze())),
                None => {}
            }
            // What could be the beginning of a delimiter waits for more.
            let sure = self.kept.len().saturating_sub(self.delimiter.len() - 1);
            if sure > 0 {
                return Ok(Some(self.kept.split_to(sure).freeze()));
            }
            self.more().await?;
        }
    }

    async fn more(&mut self) -> Result<(), ApiError> {
        if !self.is_done
            && let Some(bytes) = stream::next(&mut self.body).await?
        {
            self.kept.extend_from_slice(&bytes);
            return Ok(());
        }
        self.is_done = true;
        Err(flawed("it ends before its last boundary"))
    }
}

fn read_head(head: &[u8]) -> Result<Part, ApiError> {
    let head = std::str::from_utf8(head).map_err(|_| flawed("a part's head is not UTF-8"))?;
    let mut part = Part::default();
    for line in head.split("\r\n") {
        let Some((name, value)) = line.split_once(':') else { continue };
        if !name.trim().eq_ignore_ascii_case("content-disposition") {
            continue;
        }
        for (name, value) in parameters(value) {
            match name.as_str() {
                "name" => part.name = value,
                "filename" => part.filename = Some(value),
                _ => {}
            }
        }
    }
    Ok(part)
}

/// `form-data; name="a"; filename="b"`: the parameters, unquoted.
fn parameters(value: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = value;
    while let Some((_, after)) = rest.split_once(';') {
        let Some((name, after)) = after.split_once('=') else { break };
        let name = name.trim().to_ascii_lowercase();
        let after = after.trim_start();
        let (text, left) = match after.strip_prefix('"') {
            Some(quoted) => unquote(quoted),
            None => match after.find(';') {
                Some(end) => {
                    after.split_at_checked(end).map_or((String::new(), ""), |(a, b)| (a.trim().to_owned(), b))
                }
                None => (after.trim().to_owned(), ""),
            },
        };
        found.push((name, text));
        rest = left;
    }
    found
}

/// What stands before the closing quote, as browsers and HTTP libraries escape it; and what follows.
fn unquote(text: &str) -> (String, &str) {
    let mut out = String::new();
    let mut chars = text.char_indices();
    while let Some((place, letter)) = chars.next() {
        match letter {
            '"' => return (unescape(&out), text.get(place + 1..).unwrap_or("")),
            '\\' => match chars.clone().next() {
                Some((_, next @ ('\\' | '"'))) => {
                    chars.next();
                    out.push(next);
                }
                Some(_) | None => out.push('\\'),
            },
            letter => out.push(letter),
        }
    }
    (unescape(&out), "")
}

/// The three letters that a quoted name can not have are sent as these.
fn unescape(text: &str) -> String {
    text.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n")
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    let first = *wanted.first()?;
    let mut from = 0;
    while let Some(place) = text.get(from..)?.iter().position(|byte| *byte == first) {
        let at = from + place;
        if text.get(at..)?.starts_with(wanted) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

fn flawed(cause: &str) -> ApiError {
    ApiError::new(Code::BadRequest, "read the form", cause, "send `multipart/form-data`, whole")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::flow;

    /// Reads a form that comes in pieces of this size.
    fn all(text: &[u8], size: usize) -> Result<Vec<(Part, Vec<u8>)>, ApiError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (tap, body) = flow();
            let pieces: Vec<Vec<u8>> = text.chunks(size).map(<[u8]>::to_vec).collect();
            tokio::spawn(async move {
                for piece in pieces {
                    tap.bytes(piece).await;
                }
            });
            let mut form = Form::new("multipart/form-data; boundary=\"xx\"", body)?;
            let mut found = Vec::new();
            while let Some(part) = form.part().await? {
                let mut content = Vec::new();
                while let Some(piece) = form.piece().await? {
                    content.extend_from_slice(&piece);
                }
                found.push((part, content));
            }
            Ok(found)
        })
    }

    #[test]
    fn parts_are_read_in_any_pieces() {
        let text =
            b"--xx\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/a/\xc3\xa4 b.txt\"\r\n\
            Content-Type: x\r\n\r\none\r\n--x\r\n\r\n--xx\r\ncontent-disposition: form-data; name=file; \
            filename=\"c%22\\\\d\"\r\n\r\n\r\n--xx--\r\n";
        for size in [1, 2, 3, 7, 64, 4096] {
            let found = all(text, size).unwrap();
            let names: Vec<&str> = found.iter().filter_map(|(part, _)| part.filename.as_deref()).collect();
            assert_eq!(names, ["/a/ä b.txt", "c\"\\d"]);
            let content: Vec<&[u8]> = found.iter().map(|(_, content)| content.as_slice()).collect();
            assert_eq!(content, [&b"one\r\n--x\r\n"[..], b""]);
        }
    }

    #[test]
    fn a_form_that_is_cut_is_refused_wherever() {
        let text = b"--xx\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\none\r\n--xx--";
        assert!(all(text, 5).is_ok());
        for end in 0..text.len() - 2 {
            assert!(all(&text[..end], 5).is_err(), "{end}");
        }
    }
}
