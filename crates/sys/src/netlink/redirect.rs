//! One rule set of the kernel's packet filter: all TCP that comes in goes to one port.
//!
//! Only the port is replaced, so the listener still learns the dialled address from the socket's own, and
//! the dialled port from the kernel's memory of the connection (`SO_ORIGINAL_DST`).

use super::{Batch, CREATE, NESTED, Nest, Netlink};
use crate::raw::Result;
use std::ffi::CStr;
use std::net::Ipv4Addr;

/// `NFNL_SUBSYS_NFTABLES`
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const NEW_CHAIN: u16 = SUBSYSTEM << 8 | 3;
const NEW_RULE: u16 = SUBSYSTEM << 8 | 6;
/// `NFPROTO_INET`: both versions of IP.
const BOTH: u8 = 1;
/// `NLM_F_APPEND`: behind the rules that are there.
const APPEND: u16 = 0x800;

const TABLE: &CStr = c"gate";
const CHAIN: &CStr = c"arriving";

/// Before the kernel decides where a packet goes.
const HOOK_PREROUTING: u32 = 0;
const PRIORITY_DESTINATION: i32 = -100;

const REGISTER_VERDICT: u32 = 0;
const REGISTER: u32 = 1;
const META_VERSION: u32 = 15;
const META_PROTOCOL: u32 = 16;
const BASE_NETWORK: u32 = 1;
const BASE_TRANSPORT: u32 = 2;
const VERDICT_ACCEPT: u32 = 1;
/// `NFT_NAT_DNAT`
const DESTINATION: u32 = 1;
const TCP: u8 = 6;

/// Redirects all TCP that arrives in the current namespace to `port`, but not what goes to a port in `spared`
/// at any address, nor to `spared_place`.
pub(crate) fn redirect_all(port: u16, spared: &[u16], spared_place: (Ipv4Addr, u16)) -> Result<()> {
    let mut batch = Batch::new();
    batch.filter_message(BATCH_BEGIN, 0, 0, SUBSYSTEM);
    batch.filter_message(NEW_TABLE, CREATE, BOTH, 0);
    batch.text(1, TABLE);
    batch.filter_message(NEW_CHAIN, CREATE, BOTH, 0);
    batch.text(1, TABLE);
    batch.text(3, CHAIN);
    let hook = batch.nest(NESTED | 4);
    batch.big(1, HOOK_PREROUTING);
    batch.big(2, PRIORITY_DESTINATION.cast_unsigned());
    batch.end(hook);
    batch.text(7, c"nat");
    for port in spared {
        let rule = batch.rule();
        batch.port_is(*port);
        batch.accept();
        batch.end_rule(rule);
    }
    let (address, at_port) = spared_place;
    let rule = batch.rule();
    batch.port_is(at_port);
    batch.address_is(address);
    batch.accept();
    batch.end_rule(rule);
    let rule = batch.rule();
    batch.meta_is(META_PROTOCOL, TCP);
    batch.replace_port(port);
    batch.end_rule(rule);
    // The end of a transaction is not answered by every kernel; what it brought about is.
    batch.await_this();
    batch.filter_message(BATCH_END, 0, 0, SUBSYSTEM);
    Netlink::open(libc::NETLINK_NETFILTER)?.apply(batch)
}

/// A rule in the making, with the list of its expressions.
#[derive(Debug)]
struct Rule(Nest);

/// An expression in the making: the list's element, and what belongs to its kind.
#[derive(Debug)]
struct Expression(Nest, Nest);

// === impl Batch ===

impl Batch {
    /// A message with `struct nfgenmsg`.
    fn filter_message(&mut self, kind: u16, flags: u16, family: u8, resource: u16) {
        self.begin(kind, flags);
        self.put(&[family, 0]);
        self.put(&resource.to_be_bytes());
    }

    fn rule(&mut self) -> Rule {
        self.filter_message(NEW_RULE, CREATE | APPEND, BOTH, 0);
        self.text(1, TABLE);
        self.text(2, CHAIN);
        Rule(self.nest(NESTED | 4))
    }

    fn end_rule(&mut self, rule: Rule) {
        self.end(rule.0);
    }

    fn expression(&mut self, kind: &CStr) -> Expression {
        let element = self.nest(NESTED | 1);
        self.text(1, kind);
        Expression(element, self.nest(NESTED | 2))
    }

    fn end_expression(&mut self, expression: Expression) {
        self.end(expression.1);
        self.end(expression.0);
    }

    fn big(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// A constant, within the attribute of an expression.
    fn constant(&mut self, kind: u16, value: &[u8]) {
        let data = self.nest(NESTED | kind);
        self.attribute(1, value);
        self.end(data);
    }

    /// Goes on with the rule if the register holds `value`.
    fn compare(&mut self, value: &[u8]) {
        let compare = self.expression(c"cmp");
        self.big(1, REGISTER);
        self.big(2, 0);
        self.constant(3, value);
        self.end_expression(compare);
    }

    fn meta_is(&mut self, key: u32, value: u8) {
        let meta = self.expression(c"meta");
        self.big(1, REGISTER);
        self.big(2, key);
        self.end_expression(meta);
        self.compare(&[value]);
    }

    fn payload_is(&mut self, base: u32, offset: u32, value: &[u8]) {
        let payload = self.expression(c"payload");
        self.big(1, REGISTER);
        self.big(2, base);
        self.big(3, offset);
        self.big(4, value.len() as u32);
        self.end_expression(payload);
        self.compare(value);
    }

    fn port_is(&mut self, port: u16) {
        self.meta_is(META_PROTOCOL, TCP);
        self.payload_is(BASE_TRANSPORT, 2, &port.to_be_bytes());
    }

    fn address_is(&mut self, address: Ipv4Addr) {
        self.meta_is(META_VERSION, libc::NFPROTO_IPV4 as u8);
        self.payload_is(BASE_NETWORK, 16, &address.octets());
    }

    fn accept(&mut self) {
        let verdict = self.expression(c"immediate");
        self.big(1, REGISTER_VERDICT);
        let data = self.nest(NESTED | 2);
        let code = self.nest(NESTED | 2);
        self.big(1, VERDICT_ACCEPT);
        self.end(code);
        self.end(data);
        self.end_expression(verdict);
    }

    /// Keeps the address that was dialled and replaces the port.
    fn replace_port(&mut self, port: u16) {
        let constant = self.expression(c"immediate");
        self.big(1, REGISTER);
        self.constant(2, &port.to_be_bytes());
        self.end_expression(constant);
        let nat = self.expression(c"nat");
        self.big(1, DESTINATION);
        self.big(2, u32::from(BOTH));
        self.big(5, REGISTER);
        self.end_expression(nat);
    }
}
