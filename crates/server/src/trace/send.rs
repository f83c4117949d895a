//! The one sender: in batches, over one request at a time, and none twice.

use super::{Counts, Span, request};
use axum::body::Body;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// Spans of one request.
const MOST_SPANS: usize = 512;
/// How long the first of a batch waits for more.
const GATHER: Duration = Duration::from_millis(500);
/// A collector that has not answered by then is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Failures are told of so often, and no more.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Where spans go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Collector {
    /// `HOST:PORT`.
    authority: String,
    path: String,
}

// === impl Collector ===

impl Collector {
    /// Reads `http://HOST:PORT`, with a path before `/v1/traces` or without one.
    pub(super) fn parse(base: &str) -> Option<Self> {
        let rest = base.strip_prefix("http://")?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = authority.rsplit_once(':')?;
        let _: u16 = port.parse().ok()?;
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'@');
        if host.is_empty() || !plain(authority) || !plain(path) {
            return None;
        }
        let path = path.trim_end_matches('/');
        let path = if path.is_empty() { "/v1/traces".to_owned() } else { format!("/{path}/v1/traces") };
        Some(Self { authority: authority.to_owned(), path })
    }

    async fn send(&self, body: Vec<u8>) -> io::Result<()> {
        let stream = TcpStream::connect(&self.authority).await?;
        let handshake = hyper::client::conn::http1::handshake::<_, Body>(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(io::Error::other)?;
        let carried = tokio::spawn(connection);
        let request = Request::builder()
            .method(Method::POST)
            .uri(&self.path)
            .header(HOST, &self.authority)
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(Bytes::from(body)))
            .map_err(io::Error::other)?;
        let answer = sender.send_request(request).await.map_err(io::Error::other);
        carried.abort();
        match answer?.status() {
            status if status.is_success() => Ok(()),
            status => Err(io::Error::other(format!("it answered {}", status_words(status)))),
        }
    }
}

fn status_words(status: StatusCode) -> String {
    status.to_string()
}

/// Sends what comes, until nobody sends any more.
pub(super) async fn carry(collector: Collector, mut spans: mpsc::Receiver<Span>, counts: Arc<Counts>) {
    let mut number = 0_u64;
    let mut told: Option<Instant> = None;
    while let Some(first) = spans.recv().await {
        let mut batch = vec![first];
        let end = tokio::time::Instant::now() + GATHER;
        while batch.len() < MOST_SPANS
            && let Ok(Some(span)) = tokio::time::timeout_at(end, spans.recv()).await
        {
            batch.push(span);
        }
        let words: Vec<Value> = batch
            .iter()
            .map(|span| {
                number = number.wrapping_add(1);
                span.words(number)
            })
            .collect();
        let count = u64::try_from(words.len()).unwrap_or(u64::MAX);
        let body = serde_json::to_vec(&request(&words)).unwrap_or_default();
        let sent = tokio::time::timeout(PATIENCE, collector.send(body)).await;
        let sent = sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        match sent {
            Ok(()) => {
                counts.sent.fetch_add(count, Ordering::Relaxed);
            }
            Err(error) => {
                counts.dropped.fetch_add(count, Ordering::Relaxed);
                if told.is_none_or(|at| at.elapsed() >= TOLD_EVERY) {
                    told = Some(Instant::now());
                    crate::log::warn(
                        "traces",
                        &format!(
                            "{count} spans did not reach {}: {error}; dropped spans are counted in /metrics",
                            collector.authority
                        ),
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_are_read() {
        let of = |base: &str| Collector::parse(base).map(|one| (one.authority, one.path));
        let some = |authority: &str, path: &str| Some((authority.to_owned(), path.to_owned()));
        assert_eq!(of("http://127.0.0.1:4318"), some("127.0.0.1:4318", "/v1/traces"));
        assert_eq!(of("http://[::1]:4318/otlp/"), some("[::1]:4318", "/otlp/v1/traces"));
        for none in [
            "",
            "http://",
            "http://host",
            "http://u:p@h:1",
            "http://h:99999",
            "https://h:1",
            "http://h:1/a b",
        ] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}
