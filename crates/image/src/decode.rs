//! From a layer as it is sent to an archive: plain, gzip or zstd, and never far more than was sent.

use crate::fault::{Code, Fault};
use crate::limits::Limits;
use flate2::bufread::MultiGzDecoder;
use fumehood_model::text::shown;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::cell::Cell;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

const BUFFER_BYTES: usize = 128 << 10;
/// What the strongest of the usual settings needs.
const WINDOW_BYTES: u64 = 128 << 20;
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Of a frame that is to be skipped; its first byte counts from 0x50 to 0x5f.
const SKIPPED: [u8; 3] = [0x2a, 0x4d, 0x18];

/// How a layer is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

/// A layer unpacked, with an eye on how much it becomes.
pub(crate) struct Decoded<R> {
    inner: Decoder<Counted<R>>,
    sent: Rc<Cell<u64>>,
    unpacked: u64,
    /// What all layers together may still become.
    room: u64,
    limits: Limits,
}

enum Decoder<R> {
    Plain(BufReader<R>),
    Gzip(Box<MultiGzDecoder<BufReader<R>>>),
    Zstd(Box<Frames<BufReader<R>>>),
}

/// Counts what passes, for who looks on from elsewhere.
struct Counted<R> {
    inner: R,
    passed: Rc<Cell<u64>>,
}

/// Zstandard frames, one after the other.
struct Frames<R> {
    source: R,
    decoder: FrameDecoder,
    open: bool,
}

// === impl Packing ===

impl Packing {
    /// What a media type says; `None` where it is no layer's.
    pub(crate) fn of(media_type: &str) -> Result<Self, Fault> {
        match media_type {
            "application/vnd.oci.image.layer.v1.tar"
            | "application/vnd.oci.image.layer.nondistributable.v1.tar"
            | "application/vnd.docker.image.rootfs.diff.tar" => Ok(Self::Plain),
            "application/vnd.oci.image.layer.v1.tar+gzip"
            | "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"
            | "application/vnd.docker.image.rootfs.diff.tar.gzip"
            | "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip" => Ok(Self::Gzip),
            "application/vnd.oci.image.layer.v1.tar+zstd"
            | "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd"
            | "application/vnd.docker.image.rootfs.diff.tar.zstd" => Ok(Self::Zstd),
            other => Err(Fault::new(
                Code::Unsupported,
                format!("a layer is of the media type `{}`, which is not known", shown(other)),
            )),
        }
    }

    /// What the first bytes are.
    fn seen(first: &[u8]) -> Self {
        let skipped = first.get(1..4) == Some(&SKIPPED) && first.first().is_some_and(|b| b & 0xf0 == 0x50);
        if first.starts_with(&GZIP) {
            Self::Gzip
        } else if first.starts_with(&ZSTD) || skipped {
            Self::Zstd
        } else {
            Self::Plain
        }
    }
}

// === impl Decoded ===

impl<R: Read> Decoded<R> {
    /// Unpacks `inner`, which is packed as `said`, or as its first bytes say where nobody said.
    pub(crate) fn new(inner: R, said: Option<Packing>, room: u64, limits: Limits) -> io::Result<Self> {
        let sent = Rc::new(Cell::new(0));
        let counted = Counted { inner, passed: Rc::clone(&sent) };
        let mut source = BufReader::with_capacity(BUFFER_BYTES, counted);
        let seen = Packing::seen(source.fill_buf()?);
        if said.is_some_and(|said| said != seen) {
            return Err(Fault::new(Code::BadLayer, "a layer is not packed as its media type says").into());
        }
        let inner = match seen {
            Packing::Plain => Decoder::Plain(source),
            Packing::Gzip => Decoder::Gzip(Box::new(MultiGzDecoder::new(source))),
            Packing::Zstd => Decoder::Zstd(Box::new(Frames::new(source))),
        };
        Ok(Self { inner, sent, unpacked: 0, room, limits })
    }

    fn judge(&self) -> Result<(), Fault> {
        if self.unpacked > self.room {
            let why = format!("the image unpacks to more than {} bytes", self.limits.unpacked_bytes);
            return Err(Fault::new(Code::TooLarge, why));
        }
        let allowed =
            self.sent.get().saturating_mul(self.limits.ratio).saturating_add(self.limits.free_bytes);
        if self.unpacked <= allowed {
            return Ok(());
        }
        let why = format!(
            "a layer of {} bytes so far unpacks to more than {} times as many",
            self.sent.get(),
            self.limits.ratio
        );
        Err(Fault::new(Code::Bomb, why))
    }
}

impl<R: Read> Read for Decoded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match &mut self.inner {
            Decoder::Plain(inner) => inner.read(buffer),
            Decoder::Gzip(inner) => inner.read(buffer).map_err(damaged),
            Decoder::Zstd(inner) => inner.read(buffer),
        }?;
        self.unpacked = self.unpacked.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        self.judge()?;
        Ok(read)
    }
}

impl<R> fmt::Debug for Decoded<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoded").field("unpacked", &self.unpacked).finish_non_exhaustive()
    }
}

/// A fault of ours passes; what the decoder says becomes one.
fn damaged(error: io::Error) -> io::Error {
    if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) {
        return Fault::new(Code::BadLayer, format!("a layer can not be unpacked: {error}")).into();
    }
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return Fault::new(Code::BadLayer, "a layer ends too early").into();
    }
    error
}

// === impl Counted ===

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.passed.set(self.passed.get().saturating_add(u64::try_from(read).unwrap_or(u64::MAX)));
        Ok(read)
    }
}

// === impl Frames ===

impl<R: BufRead> Frames<R> {
    fn new(source: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW_BYTES);
        Self { source, decoder, open: false }
    }

    /// Opens the next frame that has content; whether there is one.
    fn advance(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.source) {
                Ok(()) => {
                    self.open = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    let skipped = io::copy(&mut (&mut self.source).take(length), &mut io::sink())?;
                    if skipped != length {
                        return Err(Fault::new(Code::BadLayer, "a layer ends too early").into());
                    }
                }
                Err(error) => return Err(bad_frame(&error)),
            }
        }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.open && !self.advance()? {
                return Ok(0);
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let strategy = BlockDecodingStrategy::UptoBytes(buffer.len());
                self.decoder.decode_blocks(&mut self.source, strategy).map_err(|error| bad_frame(&error))?;
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 {
                return Ok(read);
            }
            // A checksum behind the frame is not looked at: the digests of the layer are.
            self.open = false;
        }
    }
}

fn bad_frame(error: &FrameDecoderError) -> io::Error {
    Fault::new(Code::BadLayer, shown(&format!("a layer can not be unpacked: {error}"))).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write as _;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        compress_to_vec(bytes, CompressionLevel::Fastest)
    }

    fn unpack(sent: &[u8], said: Packing, limits: Limits) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        let mut decoded =
            Decoded::new(sent, Some(said), u64::MAX, limits).map_err(|error| error.to_string())?;
        decoded.read_to_end(&mut out).map_err(|error| error.to_string())?;
        Ok(out)
    }

    #[test]
    fn each_packing_gives_the_same_bytes_also_in_parts() {
        let text: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        let limits = Limits::default();
        assert_eq!(unpack(&text, Packing::Plain, limits).unwrap(), text);
        let twice = [text.clone(), text.clone()].concat();
        let two = [gzip(&text), gzip(&text)].concat();
        assert_eq!(unpack(&two, Packing::Gzip, limits).unwrap(), twice);
        let skipped = [0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        let two = [&skipped[..], &zstd(&text), &skipped, &zstd(&text)].concat();
        assert_eq!(unpack(&two, Packing::Zstd, limits).unwrap(), twice);
    }

    #[test]
    fn what_is_cut_or_mislabelled_is_refused() {
        let text = vec![7; 50_000];
        for (packing, sent) in [(Packing::Gzip, gzip(&text)), (Packing::Zstd, zstd(&text))] {
            let cut = sent.get(..sent.len() - 5).unwrap();
            assert!(unpack(cut, packing, Limits::default()).is_err(), "{packing:?}");
            let told = unpack(&sent, Packing::Plain, Limits::default()).unwrap_err();
            assert!(told.contains("media type"), "{told}");
        }
    }

    #[test]
    fn a_bomb_ends_early() {
        let zeros = vec![0; 4 << 20];
        let limits = Limits { free_bytes: 1 << 20, ratio: 10, ..Limits::default() };
        for (packing, sent) in [(Packing::Gzip, gzip(&zeros)), (Packing::Zstd, zstd(&zeros))] {
            let told = unpack(&sent, packing, limits).unwrap_err();
            assert!(told.contains("more than 10 times"), "{told}");
        }
    }
}
