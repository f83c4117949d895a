//! Whatever arrives at the resolver inside is answered shortly, under its own number, or not at all.

#![no_main]

use fumehood_egress::dns::message::MOST_ANSWER_BYTES;
use fumehood_egress::dns::{Question, Unread, respond};
use fumehood_egress::names::Names;
use fumehood_model::egress::{Egress, Reach, Table};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    Table::new(Egress {
        reach: Reach::Public,
        rules: Vec::new(),
        ranges: Vec::new(),
        resolutions: Vec::new(),
        ceilings: Vec::new(),
        upstream: None,
        authorities: Vec::new(),
    })
});

fuzz_target!(|bytes: &[u8]| {
    let answer = match Question::parse(bytes) {
        Ok(question) => question.answer(&respond(&TABLE, &mut Names::default(), &question)),
        Err(Unread::Wrong(answer)) => answer,
        Err(Unread::Dropped) => return,
    };
    assert_eq!(answer[..2], bytes[..2]);
    assert!(answer.len() <= MOST_ANSWER_BYTES);
    assert_eq!(Question::parse(&answer), Err(Unread::Dropped));
});
