//! The server: small JSON, or as many bytes as the path says.

use super::{BLOCK_BYTES, BYTES_PORT, HOST};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;

/// The answer to everything but `/stream/BYTES`.
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 27\r\n\r\n{\"items\":[1,2,3],\"more\":0}\n";
/// One thread a connection, and a thousand of them.
const STACK_BYTES: usize = 64 << 10;

/// Serves until standard input ends.
pub(super) fn serve(folder: &Path) {
    let config = Arc::new(certified(folder));
    on(443, move |stream| {
        let tls = ServerConnection::new(Arc::clone(&config)).map_err(io::Error::other)?;
        requests(StreamOwned::new(tls, stream))
    });
    on(BYTES_PORT, |mut stream| {
        let mut asked = [0; 8];
        stream.read_exact(&mut asked)?;
        give(&mut stream, u64::from_be_bytes(asked))
    });
    println!("ready");
    io::copy(&mut io::stdin(), &mut io::sink()).expect("standard input");
}

fn on<F>(port: u16, serve: F)
where
    F: Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static,
{
    let listener = TcpListener::bind(("0.0.0.0", port)).expect("a free port");
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = Arc::clone(&serve);
            // Clients go away in the middle; that is their matter.
            let work = move || drop(stream.set_nodelay(true).and_then(|()| serve(stream)));
            thread::Builder::new().stack_size(STACK_BYTES).spawn(work).expect("a thread");
        }
    });
}

fn requests(mut stream: impl Read + Write) -> io::Result<()> {
    let (mut head, mut length) = (vec![0; 4096], 0);
    loop {
        let read = stream.read(&mut head[length..])?;
        length += read;
        if read == 0 || length == head.len() {
            return Ok(());
        }
        if !head[..length].ends_with(b"\r\n\r\n") {
            continue;
        }
        let path = head[..length].split(|byte| *byte == b' ').nth(1).unwrap_or_default();
        let wanted =
            path.strip_prefix(b"/stream/").and_then(|bytes| str::from_utf8(bytes).ok()?.parse().ok());
        match wanted {
            Some(bytes) => {
                write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\n\r\n")?;
                give(&mut stream, bytes)?;
            }
            None => stream.write_all(ANSWER)?,
        }
        stream.flush()?;
        length = 0;
    }
}

fn give(stream: &mut impl Write, bytes: u64) -> io::Result<()> {
    let block = vec![b'x'; BLOCK_BYTES];
    let mut left = bytes;
    while left > 0 {
        let now = usize::try_from(left).unwrap_or(usize::MAX).min(block.len());
        stream.write_all(&block[..now])?;
        left -= u64::try_from(now).unwrap_or(left);
    }
    Ok(())
}

/// An authority, told to the clients, and a certificate by it.
fn certified(folder: &Path) -> ServerConfig {
    let mut params = CertificateParams::new(Vec::new()).expect("an authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.distinguished_name = called("an authority for a bench");
    let ca_key = KeyPair::generate().expect("a key");
    let ca = params.self_signed(&ca_key).expect("an authority");
    let part = folder.join("ca.part");
    std::fs::write(&part, ca.pem()).expect("a file for the authority");
    std::fs::rename(part, folder.join("ca.pem")).expect("a file for the authority");
    let key = KeyPair::generate().expect("a key");
    let mut leaf = CertificateParams::new(vec![HOST.to_owned()]).expect("a name");
    // OpenSSL takes a certificate with the name of its authority for one that signed itself.
    leaf.distinguished_name = called(HOST);
    let leaf = leaf.signed_by(&key, &Issuer::new(params, ca_key)).expect("a certificate");
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let chain = vec![leaf.der().clone()];
    ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).expect("a configuration")
}

fn called(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}
