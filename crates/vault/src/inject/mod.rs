//! Puts a value into a request's head or body.
//!
//! An injection *sets* its field: what the client had there is gone, under every spelling that a server
//! may take for the same. So a program inside can not use an account of its own where a rule binds one,
//! and whether it sends the placeholder or nothing makes no difference (but for [`Injection::Body`] and
//! [`Injection::SigV4`], which work on what the client sent).
//!
//! Order: decide, record, check the request with the [`Guard`](crate::guard::Guard), edit the head in all
//! other ways, inject last. A signature covers the head as it is then.
//!
//! The head then holds the value. Its fields are marked sensitive, so that `Debug` hides them, but they are
//! not wiped: they are to be dropped once they are sent.
//!
//! What comes back says what was done by name alone, for the record.

mod body;
mod fields;
mod sigv4;

use crate::placeholder::Shape;
use crate::secret::{Secret, SecretName};
use http::header::HeaderName;
use http::{HeaderMap, Method, Uri};
use std::fmt;

pub use body::{BODY_LIMIT_BYTES, body};
pub use sigv4::{Payload, needs_payload};

/// How a value is put into a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Injection {
    /// `Authorization: Bearer VALUE`.
    Bearer,
    /// `Authorization: Basic …` of `user:VALUE`, or of the value itself, which is then `user:password`.
    Basic {
        /// The user, where the value is the password alone.
        user: Option<String>,
    },
    /// The value is the whole of one field. Made by [`Injection::header`].
    Header {
        /// Which.
        name: HeaderName,
    },
    /// The value is one parameter of the query. Made by [`Injection::query`].
    Query {
        /// Which.
        parameter: String,
    },
    /// The request, which the client signed with the placeholder's keys, is signed again with the real
    /// ones (AWS Signature Version 4).
    SigV4 {
        /// The region that must be in the client's signature; any, if not named.
        region: Option<String>,
        /// The same for the service.
        service: Option<String>,
    },
    /// The placeholder is replaced where it stands in the body.
    Body,
}

/// The parts of a request's head that an injection reads and changes.
pub struct Head<'a> {
    /// The method.
    pub method: &'a Method,
    /// Path and query; scheme and authority if the form of the request has them.
    pub uri: &'a mut Uri,
    /// The fields.
    pub fields: &'a mut HeaderMap,
}

/// Where in a request something is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The value of a field, or a field's name.
    Field(HeaderName),
    /// The host, in the target or in a field that names it.
    Host,
    /// The path.
    Path,
    /// The query.
    Query,
    /// The body or its trailers.
    Body,
    /// The method.
    Method,
}

/// What an injection did. Holds no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injected {
    /// Which secret was used.
    pub secret: SecretName,
    /// Where it was put.
    pub place: Place,
    /// In how many places; 0 if the body holds no placeholder, so that nothing was used.
    pub count: usize,
}

/// Why a value was not put in. The request must then not be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InjectError {
    /// Past its end.
    #[error("`{0}` is no longer good")]
    Expired(SecretName),
    /// The value has not the form that this kind needs.
    #[error("the value of `{secret}` does not fit: {why}")]
    Shape {
        /// Whose.
        secret: SecretName,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The request has not the form that this kind needs.
    #[error("the request can not carry `{secret}`: {why}")]
    Request {
        /// Whose.
        secret: SecretName,
        /// What is in the way.
        why: &'static str,
    },
    /// The client signed for another region or service than the rule allows.
    #[error("the request is signed for {what} `{asked}`, and `{secret}` is bound to `{bound}`")]
    Scope {
        /// Whose.
        secret: SecretName,
        /// `region` or `service`.
        what: &'static str,
        /// What the client wrote, made safe to show.
        asked: String,
        /// What the rule says.
        bound: String,
    },
}

/// Why an injection can not be made. Its text says what to write instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadInjection {
    /// No name of a field.
    #[error("a field's name has letters, digits and `-`, as in `X-Api-Key`")]
    FieldName,
    /// A field that says how the message is framed or where it goes.
    #[error("this field says where a request goes or how it is framed: bind the secret to another")]
    FramingField,
    /// No name of a parameter.
    #[error("a query parameter's name is 1 to 128 visible characters")]
    Parameter,
    /// No user.
    #[error("a user has no `:` and no control characters, and 256 bytes at most")]
    User,
}

// === impl Injection ===

impl Injection {
    /// For `header:NAME:…`.
    pub fn header(name: &str) -> Result<Self, BadInjection> {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| BadInjection::FieldName)?;
        if fields::is_framing(&name) { Err(BadInjection::FramingField) } else { Ok(Self::Header { name }) }
    }

    /// For `query:PARAMETER:…`.
    pub fn query(parameter: &str) -> Result<Self, BadInjection> {
        let good = !parameter.is_empty() && parameter.len() <= 128;
        if good && parameter.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self::Query { parameter: parameter.to_owned() })
        } else {
            Err(BadInjection::Parameter)
        }
    }

    /// For `basic:…` and `basic:USER:…`.
    pub fn basic(user: Option<&str>) -> Result<Self, BadInjection> {
        let good = |user: &str| {
            !user.contains(':') && !user.bytes().any(|byte| byte.is_ascii_control()) && user.len() <= 256
        };
        if user.is_none_or(good) {
            Ok(Self::Basic { user: user.map(str::to_owned) })
        } else {
            Err(BadInjection::User)
        }
    }

    /// How a value that is injected so is built, for its placeholder.
    pub const fn shape(&self) -> Shape {
        match self {
            Self::Basic { user: None } => Shape::Pair,
            Self::SigV4 { .. } => Shape::AwsKeys,
            Self::Bearer | Self::Basic { .. } | Self::Header { .. } | Self::Query { .. } | Self::Body => {
                Shape::Opaque
            }
        }
    }

    /// Where the value goes.
    pub fn place(&self) -> Place {
        match self {
            Self::Bearer | Self::Basic { .. } | Self::SigV4 { .. } => {
                Place::Field(http::header::AUTHORIZATION)
            }
            Self::Header { name } => Place::Field(name.clone()),
            Self::Query { .. } => Place::Query,
            Self::Body => Place::Body,
        }
    }
}

// === impl Head ===

impl<'a> From<&'a mut http::request::Parts> for Head<'a> {
    fn from(parts: &'a mut http::request::Parts) -> Self {
        Self { method: &parts.method, uri: &mut parts.uri, fields: &mut parts.headers }
    }
}

impl fmt::Debug for Head<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Head({} …, {} fields)", self.method, self.fields.len())
    }
}

// === impl Place ===

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, "field `{name}`"),
            Self::Host => f.write_str("host"),
            Self::Path => f.write_str("path"),
            Self::Query => f.write_str("query"),
            Self::Body => f.write_str("body"),
            Self::Method => f.write_str("method"),
        }
    }
}

// === impl InjectError ===

impl InjectError {
    /// What can be done, by the one who wrote the rule or the program inside.
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Expired(_) => "renew the credential; one from a command is renewed by itself",
            Self::Shape { .. } => {
                "give the value in the form that the rule's kind names, or choose another kind"
            }
            Self::Request { .. } => "send the request in the form that the message names",
            Self::Scope { .. } => "set the client's region, or write a rule for that region and service",
        }
    }
}

/// Puts `secret` into `head`. Everything but [`Injection::Body`], which is [`body`].
///
/// `payload` matters to [`Injection::SigV4`] alone: see [`needs_payload`]. On an error the head may not be
/// sent; it holds nothing of the value.
pub fn inject(
    head: &mut Head<'_>,
    injection: &Injection,
    secret: &Secret,
    payload: Payload<'_>,
    now_unix_millis: u64,
) -> Result<Injected, InjectError> {
    if !secret.is_good_at(now_unix_millis) {
        return Err(InjectError::Expired(secret.name().clone()));
    }
    match injection {
        Injection::Bearer => fields::bearer(head, secret)?,
        Injection::Basic { user } => fields::basic(head, user.as_deref(), secret)?,
        Injection::Header { name } => fields::whole(head, name, secret)?,
        Injection::Query { parameter } => fields::query(head, parameter, secret)?,
        Injection::SigV4 { region, service } => {
            let bound = sigv4::Bound { region: region.as_deref(), service: service.as_deref() };
            sigv4::sign(head, &bound, secret, payload)?;
        }
        Injection::Body => {
            return Err(request(secret, "its value goes into the body, which must be there as a whole"));
        }
    }
    Ok(Injected { secret: secret.name().clone(), place: injection.place(), count: 1 })
}

fn shape(secret: &Secret, why: &'static str) -> InjectError {
    InjectError::Shape { secret: secret.name().clone(), why }
}

fn request(secret: &Secret, why: &'static str) -> InjectError {
    InjectError::Request { secret: secret.name().clone(), why }
}

#[cfg(test)]
mod tests;
