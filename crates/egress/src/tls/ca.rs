//! The authority of one sandbox: made with it, believed inside of it alone, and gone with it.

use aws_lc_rs::rand;
use fumehood_model::egress::Host;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use std::cell::OnceCell;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Longer than any sandbox lives, and shorter than any client minds.
const VALID_DAYS: u32 = 30;

/// A key and a certificate that certifies leaves. The key is nowhere but here, and is never shown.
pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
    pem: String,
    not_before: SystemTime,
    /// One key for all leaves: making one costs more than signing does. A sandbox that opens nothing needs none.
    leaf_key: OnceCell<LeafKey>,
}

/// The key of the leaves, as who certifies it and as who signs with it takes it.
struct LeafKey {
    pair: KeyPair,
    signing: Arc<dyn rustls::sign::SigningKey>,
}

/// Why no certificate came about.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    #[error("a certificate could not be made: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("a key could not be used: {0}")]
    Key(#[from] rustls::Error),
    #[error("the host gives no random numbers")]
    Random,
}

// === impl Ca ===

impl Ca {
    /// Makes the authority of the sandbox `id`, valid from a day before `now`, because clocks differ.
    pub fn make(id: &str, now: SystemTime) -> Result<Self, CaError> {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let not_before = now.checked_sub(DAY).unwrap_or(now);
        let mut params = params(&format!("Fumehood sandbox CA {id}"), not_before)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?;
        Ok(Self {
            der: certificate.der().clone(),
            pem: certificate.pem(),
            issuer: Issuer::new(params, key),
            not_before,
            leaf_key: OnceCell::new(),
        })
    }

    fn leaf_key(&self) -> Result<&LeafKey, CaError> {
        if let Some(known) = self.leaf_key.get() {
            return Ok(known);
        }
        let made = LeafKey::make()?;
        Ok(self.leaf_key.get_or_init(|| made))
    }

    /// The certificate, for those who shall believe it.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// A certificate for exactly this host.
    pub(crate) fn leaf(&self, host: &Host) -> Result<Arc<CertifiedKey>, CaError> {
        let (name, text) = match host {
            Host::Name(name) => (SanType::DnsName(name.as_str().try_into()?), name.to_string()),
            Host::Address(address) => (SanType::IpAddress(*address), address.to_string()),
        };
        // A common name has room for 64 characters, and nobody looks at it where there is the other.
        let common = if text.len() <= 64 { text.as_str() } else { "fumehood" };
        let mut params = params(common, self.not_before)?;
        params.subject_alt_names = vec![name];
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let LeafKey { pair, signing } = self.leaf_key()?;
        let certificate = params.signed_by(pair, &self.issuer)?;
        let chain = vec![certificate.der().clone()];
        Ok(Arc::new(CertifiedKey::new(chain, Arc::clone(signing))))
    }
}

// === impl LeafKey ===

impl LeafKey {
    fn make() -> Result<Self, CaError> {
        let pair = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pair.serialize_der()));
        let signing = rustls::crypto::aws_lc_rs::sign::any_supported_type(&private)?;
        Ok(Self { pair, signing })
    }
}

/// What all certificates have. Some clients refuse two of one issuer with the same number.
fn params(common: &str, not_before: SystemTime) -> Result<CertificateParams, CaError> {
    let mut serial = [0; 16];
    rand::fill(&mut serial).map_err(|_| CaError::Random)?;
    // The number is positive, and has its full length.
    if let Some(first) = serial.first_mut() {
        *first = (*first & 0x3f) | 0x40;
    }
    let since = not_before.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common);
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.not_before = rcgen::date_time_ymd(1970, 1, 1) + since;
    params.not_after = params.not_before + DAY * (VALID_DAYS + 1);
    Ok(params)
}

impl fmt::Debug for Ca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ca").field("pem", &self.pem).finish_non_exhaustive()
    }
}
