//! The lines of the record, each text within its bounds.

use crate::wall::{Asked, End};
use fumehood_model::egress::{Denial, Identity};
use fumehood_model::event::{EgressDenied, EgressEnded, EgressName, Event};
use fumehood_model::text;

/// Longer texts are cut: what a program inside sends can be of any length.
const MOST_CHARS: usize = 1024;

/// A text of others, as it may stand in a line.
pub(crate) fn short(text: &str) -> String {
    text::cut(text, MOST_CHARS)
}

pub(crate) fn place(identity: &Identity) -> String {
    short(&identity.to_string())
}

pub(crate) fn denied(asked: Asked<'_>, denial: &Denial) -> EgressDenied {
    let Asked { identity, request, via } = asked;
    EgressDenied {
        to: place(identity),
        via: via.name().to_owned(),
        method: request.map(|request| short(request.method)),
        path: request.map(|request| short(request.path.sent_path())),
        reason: denial.code().to_owned(),
        why: short(&denial.to_string()),
        remedy: short(&denial.remedy(identity, request)),
        count: 1,
    }
}

pub(crate) fn ended(id: u64, end: &End) -> Event {
    Event::EgressEnded(EgressEnded {
        id,
        address: end.address.map(|address| address.to_string()),
        status: end.status,
        bytes_out: end.bytes_out,
        bytes_in: end.bytes_in,
        fault: end.fault.as_deref().map(short),
        masked: end.masked.clone(),
    })
}

pub(crate) fn name(name: &str, kind: &str, answered: bool) -> EgressName {
    EgressName { name: short(name), kind: short(kind), count: 1, answered }
}
