//! What a client of the proxy is told.

use fumehood_model::egress::Denial;
use serde_json::json;

pub(super) const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// A refusal with its reason, as every client can show it.
pub(super) fn refusal(status: u16, denial: &Denial, remedy: &str) -> Vec<u8> {
    let phrase = if status == 403 { "Forbidden" } else { "Bad Request" };
    let body = json!({
        "error": { "code": denial.code(), "message": denial.to_string(), "remedy": remedy }
    });
    let body = format!("{body}\n");
    let head = format!(
        "HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         X-Fumehood-Denied: {}\r\nConnection: close\r\n\r\n",
        body.len(),
        denial.code()
    );
    [head.as_bytes(), body.as_bytes()].concat()
}
