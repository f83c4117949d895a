//! The network of the built binary, tried in a range: a private network in which every address is local.
//!
//! # How to use it
//!
//! [`range::Range::start`] makes a network and mount namespace and starts `servers/main.py` in it. There
//! every IPv4 and IPv6 address belongs to loopback, `/etc/resolv.conf` names a name server on 192.0.2.53,
//! and the trust store holds a private authority besides the usual ones. The unmodified binary, started
//! through [`stand::Stand`], has that namespace for its host: the documentation ranges stand for the
//! internet, and no flag relaxes a check. Nothing leaves the machine.
//!
//! A test says what the name server answers ([`range::Range::name`], [`range::Range::zone`]), lets a client run
//! inside a sandbox ([`stand::Stand::inside`]) or beside it ([`stand::Stand::beside`], which is the control), and judges by what the
//! range saw ([`log::Log`]): each TCP SYN, UDP datagram and ICMP packet whether anyone listens or not
//! (`wire`), each name query (`dns`), each connection with its dialled address (`open`), its SNI and ALPN (`tls`) and
//! each request (`request`). Nothing that a client prints is proof that a wall held.
//!
//! Every port of `servers/streams.py` speaks what the client's first bytes ask for: TLS (a certificate for any
//! name, made on demand), HTTP/1, HTTP/2 with gRPC, WebSocket, git, or an echo. Port 22 is the real `sshd`
//! ([`range::Range::ssh`]), 25, 2525 and 9000 speak first, 5432 is the real PostgreSQL
//! ([`range::Range::database`]). What a path does is listed in `servers/behaviours.py`; mirrors of package
//! registries are made by [`range::Range::mirrors`].
//!
//! # Which side of the wall
//!
//! `cases`, `daily` and `probes` each hold one list for both sides. What runs beside the sandbox shows that the
//! list can fail: every ask is answered, every tool works, every probe is seen. What runs inside is in their `held.rs`.
//! Those are made tests by `mod held;` in `cases/mod.rs` and in `daily.rs`, and in `probes/mod.rs` by `mod held;` with
//! `use held::held;` in the place of the empty `held!`.
//!
//! `fetch` is another way to the same wall, with probes of its own; its control is `curl`, beside it.
//!
//! The clients that are not part of a usual system come from `kit/`, pinned, by `kit/install.sh`;
//! `scripts/test.sh` calls it.

#[cfg(test)]
#[path = "../it/both_callers.rs"]
mod both_callers;
#[cfg(test)]
mod cases;
#[cfg(test)]
mod credentials;
#[cfg(test)]
mod daily;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod fetch;
#[cfg(test)]
mod flags;
#[cfg(test)]
mod kit;
#[cfg(test)]
#[path = "../it/lab.rs"]
#[expect(dead_code, reason = "shared with the other tests of the binary, which use all of it")]
mod lab;
#[cfg(test)]
mod living;
#[cfg(test)]
mod log;
#[cfg(test)]
mod probes;
#[cfg(test)]
mod processes;
#[cfg(test)]
mod range;
#[cfg(test)]
mod replay;
#[cfg(test)]
mod servers;
#[cfg(test)]
mod stand;
