//! What the tests of several modules need.

use crate::secret::{Secret, SecretName};
use zeroize::Zeroizing;

/// Bytes that look random and are the same for the same seed.
pub(crate) fn random(seed: u64) -> impl FnMut(&mut [u8]) {
    let mut state = seed;
    move |bytes: &mut [u8]| {
        for byte in bytes {
            // The finaliser of splitmix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = state;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            *byte = (mixed ^ (mixed >> 31)).to_le_bytes()[0];
        }
    }
}

pub(crate) fn secret(name: &str, value: &str) -> Secret {
    let name = SecretName::parse(name).expect("a name");
    Secret::new(name, Zeroizing::new(value.as_bytes().to_vec()), None).expect("a secret")
}
