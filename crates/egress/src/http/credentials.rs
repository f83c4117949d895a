//! Where secrets touch requests and responses: after the decision was recorded, and nowhere else.

use super::exchange::Ask;
use super::upstream::About;
use crate::wall::Cleared;
use bytes::Bytes;
use fumehood_model::egress::Denial;
use http::HeaderMap;

/// Puts the secret of a rule into a request that was cleared, over a connection whose server has
/// shown its certificate.
pub(crate) fn inject(cleared: &Cleared, about: &About, _ask: &mut Ask) -> Result<(), Denial> {
    let Some(binding) = cleared.binding() else { return Ok(()) };
    let secret = binding.secret.clone();
    if !about.certified {
        return Err(Denial::Secret { secret, why: "the connection is not verified TLS".to_owned() });
    }
    Err(Denial::Secret { secret, why: "there is no vault".to_owned() })
}

/// Looks through what leaves, or masks what comes. Without secrets there is nothing to do.
#[derive(Debug, Default)]
pub(crate) struct Filter {}

impl Filter {
    pub(crate) fn data(&mut self, data: Bytes) -> Result<Bytes, Denial> {
        Ok(data)
    }

    pub(crate) fn rest(&mut self) -> Result<Bytes, Denial> {
        Ok(Bytes::new())
    }

    pub(crate) fn fields(&mut self, _fields: &mut HeaderMap) -> Result<(), Denial> {
        Ok(())
    }
}
