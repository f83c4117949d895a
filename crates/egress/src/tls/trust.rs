//! What a sandbox is given so that its programs believe its authority, in addition to what they
//! believed before. Bytes in, bytes out: the runtime puts them in place.
//!
//! Needed only where some rule opens TLS. Nothing here replaces a trust store by a smaller one: hosts
//! whose TLS passes unread are still verified against the host's own authorities.

use super::jks::{self, StoreFlaw, Trusted};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Where systems keep the bundle of their authorities. Each that exists on the host is overlaid.
pub const BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Where Java's is, beside `lib/security/cacerts` of each of its homes, which are mostly links to it.
pub const JAVA_STORES: [&str; 3] =
    ["/etc/ssl/certs/java/cacerts", "/etc/pki/ca-trust/extracted/java/cacerts", "/etc/pki/java/cacerts"];

/// The name of our entry in Java's store.
const ALIAS: &str = "fumehood-sandbox-ca";

/// A variable that a program reads, and which of the two files it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    pub name: &'static str,
    pub value: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// The path of the whole bundle: the program believes that file alone.
    Bundle,
    /// The path of our authority alone: the program adds it to its own.
    Authority,
    /// A switch.
    Literal(&'static str),
}

/// All of them. The operator's own (`--env`) win, one by one.
pub const VARIABLES: [Variable; 17] = [
    // OpenSSL and what is built on it, Go, Rust's `rustls-native-certs`, httpx, uv, Ruby.
    bundle("SSL_CERT_FILE"),
    // Node, and what is built on it.
    Variable { name: "NODE_EXTRA_CA_CERTS", value: Value::Authority },
    bundle("npm_config_cafile"),
    Variable { name: "DENO_CERT", value: Value::Authority },
    // Python's requests has a bundle of its own.
    bundle("REQUESTS_CA_BUNDLE"),
    bundle("PIP_CERT"),
    bundle("HTTPLIB2_CA_CERTS"),
    bundle("CURL_CA_BUNDLE"),
    bundle("GIT_SSL_CAINFO"),
    bundle("CARGO_HTTP_CAINFO"),
    bundle("AWS_CA_BUNDLE"),
    bundle("CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE"),
    bundle("NIX_SSL_CERT_FILE"),
    bundle("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"),
    bundle("BUNDLE_SSL_CA_CERT"),
    // uv has its own authorities, and takes the system's when told to, by either name.
    Variable { name: "UV_NATIVE_TLS", value: Value::Literal("true") },
    Variable { name: "UV_SYSTEM_CERTS", value: Value::Literal("true") },
];

const fn bundle(name: &'static str) -> Variable {
    Variable { name, value: Value::Bundle }
}

/// What Java's store was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JavaStore {
    /// The host's own, with our authority in it.
    Extended(Vec<u8>),
    /// The host's is in a form that can not be added to: the system's bundle and our authority.
    FromBundle(Vec<u8>, StoreFlaw),
}

/// The variables, for files at these paths inside, without those that are `set` already.
pub fn variables(
    bundle_path: &str,
    authority_path: &str,
    is_set: impl Fn(&str) -> bool,
) -> Vec<(&'static str, String)> {
    let unset = VARIABLES.iter().filter(|variable| !is_set(variable.name));
    unset
        .map(|variable| {
            let value = match variable.value {
                Value::Bundle => bundle_path,
                Value::Authority => authority_path,
                Value::Literal(value) => value,
            };
            (variable.name, value.to_owned())
        })
        .collect()
}

/// What comes behind the host's bundle, whose last byte is `last`: our authority.
pub fn addition(last: Option<u8>, authority_pem: &str) -> Vec<u8> {
    let open_line = last.is_some_and(|last| last != b'\n');
    let mut out = Vec::with_capacity(authority_pem.len() + 1);
    out.extend(open_line.then_some(b'\n'));
    out.extend_from_slice(authority_pem.as_bytes());
    out
}

/// How much longer than the host's Java's store becomes.
pub const fn java_room(authority_der: &[u8]) -> usize {
    authority_der.len() + 128
}

/// Java's store with our authority in it. `bundle` gives the host's, in PEM, for where `host` can not be
/// added to.
pub fn extend_java(
    host: Vec<u8>,
    bundle: impl FnOnce() -> Vec<u8>,
    authority_der: &[u8],
    unix_millis: u64,
) -> JavaStore {
    let own = Trusted { alias: ALIAS, der: authority_der };
    match jks::extend(host, own, unix_millis) {
        Ok(store) => JavaStore::Extended(store),
        Err(flaw) => {
            // What the bundle has beside certificates is of no use to Java.
            let found: Vec<_> = CertificateDer::pem_slice_iter(&bundle()).filter_map(Result::ok).collect();
            let aliases: Vec<String> = (0..found.len()).map(|place| format!("system-{place}")).collect();
            let system = aliases.iter().zip(&found).map(|(alias, der)| Trusted { alias, der });
            JavaStore::FromBundle(jks::store(system.chain([own]), unix_millis), flaw)
        }
    }
}
