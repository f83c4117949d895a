//! What the program inside reads when its request goes nowhere: why, and what would change it.

use super::flow::Broken;
use super::head::HeadFlaw;
use crate::tls::TlsFault;
use crate::wall::DialError;
use bytes::Bytes;
use fumehood_model::egress::{Denial, Identity, Request};
use fumehood_model::text;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::json;
use std::fmt;

/// An answer of ours, whole.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) fields: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) told: Told,
}

/// What an answer says, apart from its form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// A word of a closed list.
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) remedy: String,
}

/// Why a server's answer could not be had. Ours are [`Denial`]s.
#[derive(Debug)]
pub(crate) enum Fault {
    Dial(DialError),
    Tls(TlsFault),
    /// The server's head is none.
    Head(HeadFlaw),
    Framing(&'static str),
    Broken(Broken),
    /// The connection was of no more use, and nothing was sent over it.
    NotSent(Broken),
    /// The server closed before it said anything.
    NoAnswer,
    /// The server wants to know the client by a certificate.
    ClientCertificate,
}

/// In which form the client reads an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Http,
    Grpc,
}

/// What `grpc-status` says.
const GRPC_PERMISSION_DENIED: u16 = 7;
const GRPC_UNAVAILABLE: u16 = 14;

// === impl Answer ===

impl Answer {
    /// A refusal. The program inside learns the rule that would allow it.
    pub(crate) fn denied(
        denial: &Denial,
        identity: &Identity,
        request: Option<Request<'_>>,
        form: Form,
    ) -> Self {
        let what = match request {
            Some(request) => {
                let path = text::shown(request.path.sent_path());
                format!("{} {identity}{path}", text::shown(request.method))
            }
            None => identity.to_string(),
        };
        let message = format!("fumehood denied {what}: {denial}");
        let remedy = denial.remedy(identity, request);
        Self::new(status(denial), denial.code(), &message, &remedy, form)
    }

    /// A head that is none. There is no request to speak of.
    pub(crate) fn flawed(flaw: HeadFlaw) -> Self {
        let status = match flaw {
            HeadFlaw::Long | HeadFlaw::Fields => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            HeadFlaw::Form(_) => StatusCode::BAD_REQUEST,
        };
        let message = format!("fumehood denied the request: {flaw}");
        Self::new(
            status,
            "malformed",
            &message,
            "send a request that every reader takes in one way",
            Form::Http,
        )
    }

    /// A server that could not be had.
    pub(crate) fn fault(fault: &Fault, identity: &Identity, form: Form) -> Self {
        let message = format!("fumehood got no answer from {identity}: {fault}");
        Self::new(fault.status(), fault.code(), &message, fault.remedy(), form)
    }

    /// An expectation that nobody knows.
    pub(crate) fn expectation() -> Self {
        let message = "fumehood denied the request: it expects something other than `100-continue`";
        Self::new(StatusCode::EXPECTATION_FAILED, "malformed", message, "leave `Expect` out", Form::Http)
    }

    fn new(status: StatusCode, code: &'static str, message: &str, remedy: &str, form: Form) -> Self {
        let told = Told { code, message: message.to_owned(), remedy: remedy.to_owned() };
        let mut fields = HeaderMap::new();
        fields.insert(http::header::SERVER, HeaderValue::from_static("fumehood"));
        fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        match form {
            Form::Http => {
                let body = json!({"error": {"code": code, "message": message, "remedy": remedy}});
                fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
                Self { status, fields, body: Bytes::from(format!("{body}\n")), told }
            }
            Form::Grpc => {
                let denied = status.is_client_error();
                let number = if denied { GRPC_PERMISSION_DENIED } else { GRPC_UNAVAILABLE };
                fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
                fields.insert(HeaderName::from_static("grpc-status"), HeaderValue::from(number));
                if let Ok(message) = HeaderValue::from_str(&percent(&format!("{message}; {remedy}"))) {
                    fields.insert(HeaderName::from_static("grpc-message"), message);
                }
                Self { status: StatusCode::OK, fields, body: Bytes::new(), told }
            }
        }
    }
}

// === impl Told ===

impl Told {
    /// An answer that broke off.
    pub(crate) fn broken(message: &str) -> Self {
        let fault = Fault::NoAnswer;
        Self { code: fault.code(), message: message.to_owned(), remedy: fault.remedy().to_owned() }
    }

    /// An answer in a form that is not understood.
    pub(crate) fn unreadable(message: &str) -> Self {
        let fault = Fault::Framing("");
        Self { code: fault.code(), message: message.to_owned(), remedy: fault.remedy().to_owned() }
    }
}

/// The status that says a refusal best.
const fn status(denial: &Denial) -> StatusCode {
    match denial {
        Denial::Malformed(_) => StatusCode::BAD_REQUEST,
        Denial::OtherName(_) => StatusCode::MISDIRECTED_REQUEST,
        Denial::NamesOnly
        | Denial::NoRule
        | Denial::Port
        | Denial::Scheme
        | Denial::NotInspected
        | Denial::Method
        | Denial::Path
        | Denial::AmbiguousPath(_)
        | Denial::RawAddress
        | Denial::Internal(..)
        | Denial::OwnAddress(_)
        | Denial::NoServerName
        | Denial::HiddenName
        | Denial::Upgrade(_)
        | Denial::NotOpened
        | Denial::NotOnTape
        | Denial::Placeholder { .. }
        | Denial::Secret { .. }
        | Denial::Protocol(_)
        | Denial::Ceiling { .. }
        | Denial::Unrecorded => StatusCode::FORBIDDEN,
    }
}

/// The coding of `grpc-message`: printable ASCII without `%`.
fn percent(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'%' => out.push_str("%25"),
            b' '..=b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

// === impl Form ===

impl Form {
    pub(crate) fn of(fields: &HeaderMap) -> Self {
        let grpc =
            fields.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        if grpc { Self::Grpc } else { Self::Http }
    }
}

// === impl Fault ===

impl Fault {
    fn status(&self) -> StatusCode {
        match self {
            Self::Broken(Broken::Silent) | Self::Tls(TlsFault::Slow) => StatusCode::GATEWAY_TIMEOUT,
            Self::Dial(DialError::Unreachable(error)) if error.kind() == std::io::ErrorKind::TimedOut => {
                StatusCode::GATEWAY_TIMEOUT
            }
            Self::Dial(_)
            | Self::Tls(_)
            | Self::Head(_)
            | Self::Framing(_)
            | Self::Broken(_)
            | Self::NotSent(_)
            | Self::NoAnswer
            | Self::ClientCertificate => StatusCode::BAD_GATEWAY,
        }
    }

    const fn code(&self) -> &'static str {
        match self {
            Self::Dial(_) => "not_reached",
            Self::Tls(_) => "not_certified",
            Self::Head(_) | Self::Framing(_) => "bad_answer",
            Self::Broken(_) | Self::NotSent(_) | Self::NoAnswer => "broken_off",
            Self::ClientCertificate => "client_certificate",
        }
    }

    fn remedy(&self) -> &'static str {
        match self {
            Self::Dial(_) => "look whether the host can reach the server",
            Self::Tls(fault) => fault.remedy(),
            Self::Head(_) | Self::Framing(_) => {
                "the server has to answer in HTTP that every reader takes in one way"
            }
            Self::Broken(_) | Self::NotSent(_) | Self::NoAnswer => "try again, or look at the server",
            Self::ClientCertificate => {
                "a rule without method, path and secret lets the client show its own certificate"
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dial(error) => error.fmt(f),
            Self::Tls(fault) => fault.fmt(f),
            Self::Head(flaw) => write!(f, "the server's answer is no HTTP: {flaw}"),
            Self::Framing(why) => write!(f, "the server's answer can not be read: {why}"),
            Self::Broken(why) | Self::NotSent(why) => why.fmt(f),
            Self::NoAnswer => f.write_str("the server closed the connection without an answer"),
            Self::ClientCertificate => {
                f.write_str("the server asks for a certificate of the client, and this wall has none")
            }
        }
    }
}

impl From<Broken> for Fault {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}
