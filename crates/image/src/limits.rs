//! What an image may cost, whoever made it.

/// Ceilings of one pull. All finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// One index, manifest or configuration.
    pub document_bytes: u64,
    /// Layers of one image.
    pub layers: usize,
    /// All layers as they are sent.
    pub sent_bytes: u64,
    /// All layers unpacked, archive headers included.
    pub unpacked_bytes: u64,
    /// Entries of all layers.
    pub entries: u64,
    /// Unpacked bytes for one sent, beyond [`Limits::free_bytes`].
    pub ratio: u64,
    /// So much of a layer is unpacked before its ratio is looked at: a disk image of zeros is no attack.
    pub free_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            document_bytes: 4 << 20,
            layers: 256,
            sent_bytes: 32 << 30,
            unpacked_bytes: 64 << 30,
            entries: 1_000_000,
            ratio: 200,
            free_bytes: 64 << 20,
        }
    }
}
