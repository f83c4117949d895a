//! The resolver inside. It answers names that a rule names, with addresses that stand for them; to all
//! others it says that they do not exist. No question ever leaves.

pub mod message;
mod serve;

#[cfg(test)]
mod tests;

pub use message::{Answer, Kind, Question, Subject, Unread};
pub(crate) use serve::{serve_tcp, serve_udp};

use crate::names::{Meaning, Names};
use fumehood_model::egress::{Name, Table};

/// What the resolver says to a question, and whether it has said yes.
pub fn respond<'a>(table: &Table, names: &'a mut Names, question: &Question) -> Answer<'a> {
    let name = match &question.subject {
        Subject::Root => return Answer::Nothing,
        Subject::Odd(_) => return Answer::NoSuchName,
        Subject::Name(name) => name,
    };
    if let Some(address) = message::reverse(name) {
        return match names.meaning(address) {
            Meaning::Name(named) if question.kind == Kind::PTR => Answer::Pointer(named),
            Meaning::Name(_) => Answer::Nothing,
            Meaning::Nobody | Meaning::Literal => Answer::NoSuchName,
        };
    }
    if !table.answers(name) {
        return Answer::NoSuchName;
    }
    addresses(names, name, question.kind)
}

fn addresses<'a>(names: &mut Names, name: &Name, kind: Kind) -> Answer<'a> {
    if ![Kind::A, Kind::AAAA, Kind::ANY].contains(&kind) {
        return Answer::Nothing;
    }
    match names.give(name) {
        None => Answer::Failure,
        Some(given) => Answer::Addresses {
            v4: (kind != Kind::AAAA).then_some(given.v4),
            v6: (kind != Kind::A).then_some(given.v6),
        },
    }
}
