//! TLS at the addresses that are named: a certificate and its key, as files.

use crate::error::{ApiError, Code};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// What is offered, the best first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Where a certificate and its key are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// PEM: the server's own certificate first, then those between it and the authority.
    pub certificates: PathBuf,
    /// PEM.
    pub key: PathBuf,
}

/// Reads them.
///
/// # Errors
/// One is not there, is none, or they do not belong together.
pub(crate) fn acceptor(files: &Files) -> Result<TlsAcceptor, ApiError> {
    let bad = |path: &Path, cause: &dyn Display| {
        ApiError::new(
            Code::BadRequest,
            "read the certificate and its key",
            format!("`{}`: {cause}", path.display()),
            "give PEM files: the certificate for the names of `--domain` (the name and `*.NAME`) first, and its key",
        )
    };
    let certificates = CertificateDer::pem_file_iter(&files.certificates)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| bad(&files.certificates, &error))?;
    if certificates.is_empty() {
        return Err(bad(&files.certificates, &"it has no certificate"));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| bad(&files.key, &error))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(certificates, key))
        .map_err(|error| bad(&files.certificates, &error))?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(TlsAcceptor::from(Arc::new(config)))
}
