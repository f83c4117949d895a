//! A server and its clients for `cargo xtask bench egress`: plain threads and blocking sockets, so that what is
//! measured is what stands between them.
//!
//! ```text
//! load serve FOLDER                               TLS on 443, bytes on 9000; its authority is FOLDER/ca.pem
//! load get CA PROXY CONNECTIONS SECONDS           requests, one after the other on each connection
//! load stream CA PROXY BYTES PAUSE_US             one long answer over TLS; waits so long after each block
//! load bytes BYTES                                as many bytes from port 9000
//! load hold CA CONNECTIONS                        connections that have asked once, until standard input ends
//! ```
//!
//! `PROXY` is an address, or `-`. The figures are one line of JSON.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "a bench prints its line, and stops where it can not measure"
)]

mod client;
mod server;

use std::time::Duration;

/// Whom everything is about.
const HOST: &str = "api.example.com";
/// The port that gives bytes as they are.
const BYTES_PORT: u16 = 9000;
/// What is read and written at once.
const BLOCK_BYTES: usize = 256 << 10;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse::<u64>().expect("a number");
    match words.as_slice() {
        ["serve", folder] => server::serve(folder.as_ref()),
        ["get", ca, proxy, connections, seconds] => {
            client::get(&to(ca, proxy), number(connections), Duration::from_secs(number(seconds)));
        }
        ["stream", ca, proxy, bytes, pause_us] => {
            client::stream(&to(ca, proxy), number(bytes), Duration::from_micros(number(pause_us)));
        }
        ["bytes", bytes] => client::bytes(number(bytes)),
        ["hold", ca, connections] => client::hold(&to(ca, "-"), number(connections)),
        _ => panic_with_usage(),
    }
}

fn to(ca: &str, proxy: &str) -> client::To {
    client::To::new(ca.as_ref(), (proxy != "-").then(|| proxy.to_owned()))
}

#[expect(clippy::panic, reason = "a bench that is called in another way measures nothing")]
fn panic_with_usage() {
    panic!("called in another way than `cargo xtask bench egress` does");
}
