//! What every door answers when something was not done: one shape, a closed list of codes, one table of statuses.

use fumehood_keep::client::CallError;
use fumehood_keep::wire::{Failure, FailureCode};
use http::StatusCode;
use serde::Serialize;
use std::collections::BTreeMap;

/// Why something was not done, as a caller sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{message}: {cause}")]
pub struct ApiError {
    pub code: Code,
    /// What was not done: a fragment that fits after "failed to".
    pub message: String,
    pub cause: String,
    /// What the caller can do now. Never empty.
    pub remediation: String,
    /// Facts, by name: an id, a limit with its unit.
    pub context: BTreeMap<String, String>,
}

/// The closed list of codes. Stable: a code may be added, never renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// What was asked makes no sense.
    BadRequest,
    /// No key, a wrong one, or one whose time is over.
    Unauthenticated,
    /// The key's scopes do not reach so far.
    Forbidden,
    /// A name in `Host` or `Origin` that is not ours.
    ForeignHost,
    /// No such thing, or another team's.
    NotFound,
    /// No such route.
    NoRoute,
    /// The route does not take this method.
    NoMethod,
    Exists,
    NotAFile,
    NotAFolder,
    /// The sandbox's own files refuse it.
    Denied,
    NoSpace,
    TooLarge,
    BadRange,
    /// The sender was too slow.
    TooSlow,
    /// No such exec, or it has ended.
    NoExec,
    /// Nothing listens at that port inside.
    PortClosed,
    Paused,
    NotPaused,
    /// The kill switch is on.
    Halted,
    /// The same idempotency key came with another request.
    KeyReused,
    /// A quota of the team or of the key is used up.
    QuotaExceeded,
    /// Too much at once; later it may be done.
    Busy,
    /// This level, or this build, can not do it.
    Unsupported,
    /// The sandbox is ending, or has ended meanwhile.
    Ending,
    /// No sandbox came to be.
    NotBorn,
    /// The registry could not be read or written.
    Registry,
    /// A fault of ours or of the host.
    Internal,
}

// === impl ApiError ===

impl ApiError {
    /// An error with its cause and remedy.
    pub fn new(
        code: Code,
        message: impl Into<String>,
        cause: impl Into<String>,
        remediation: impl Into<String>,
    ) -> Self {
        let remediation = Some(remediation.into()).filter(|text| !text.trim().is_empty());
        Self {
            code,
            message: message.into(),
            cause: cause.into(),
            remediation: remediation.unwrap_or_else(|| code.remedy().to_owned()),
            context: BTreeMap::new(),
        }
    }

    /// An error with the remedy that fits every error of this code.
    pub fn plain(code: Code, message: impl Into<String>, cause: impl Into<String>) -> Self {
        Self::new(code, message, cause, code.remedy())
    }

    /// An error of the host's: with the remedy that fits it, where one is known.
    pub fn of_host(code: Code, message: impl Into<String>, error: &std::io::Error) -> Self {
        let remedy = fumehood_model::remedy::of_io(error).unwrap_or(code.remedy());
        Self::new(code, message, error.to_string(), remedy)
    }

    /// No such sandbox. Says the same whether it never was or is another team's.
    #[must_use]
    pub fn no_sandbox(id: &str) -> Self {
        let shown: String = id.chars().take(64).collect();
        Self::plain(Code::NotFound, "find the sandbox", format!("sandbox `{shown}` was not found"))
            .with("sandbox", shown)
    }

    /// With one more fact.
    #[must_use]
    pub fn with(mut self, name: &str, fact: impl ToString) -> Self {
        self.context.insert(name.to_owned(), fact.to_string());
        self
    }

    /// The HTTP status that goes with the code.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.code.status()
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        let Failure { code, message, cause, remediation } = failure;
        Self::new(code.into(), message, cause, remediation)
    }
}

impl From<CallError> for ApiError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Failed(failure) => failure.into(),
            // A keeper that is there, and could not be asked just now, is no sandbox that is ending.
            CallError::Unreachable(source) if source.kind() == std::io::ErrorKind::WouldBlock => {
                Self::plain(Code::Busy, "reach the sandbox's keeper", "too many ask it at once")
            }
            CallError::Unreachable(source) if fumehood_model::remedy::of_io(&source).is_some() => {
                Self::of_host(Code::Busy, "reach the sandbox's keeper", &source)
            }
            CallError::Unreachable(source) => {
                Self::plain(Code::Ending, "reach the sandbox's keeper", source.to_string())
            }
            CallError::Closed => {
                Self::plain(Code::Ending, "hear the sandbox's keeper", "it closed the connection")
            }
            CallError::Flaw(flaw) => {
                Self::plain(Code::Internal, "understand the sandbox's keeper", flaw.to_string())
            }
            CallError::Words(source) => {
                Self::plain(Code::Internal, "understand the sandbox's keeper", source.to_string())
            }
        }
    }
}

impl axum::response::IntoResponse for ApiError {
    fn into_response(self) -> axum::response::Response {
        let status = self.status();
        let mut response = (status, axum::Json(&self)).into_response();
        if self.code.is_worth_another_try() {
            response.headers_mut().insert(http::header::RETRY_AFTER, http::HeaderValue::from_static("1"));
        }
        response.extensions_mut().insert(self.code);
        response
    }
}

// === impl Code ===

impl Code {
    /// All of them.
    pub const ALL: [Self; 28] = [
        Self::BadRequest,
        Self::Unauthenticated,
        Self::Forbidden,
        Self::ForeignHost,
        Self::NotFound,
        Self::NoRoute,
        Self::NoMethod,
        Self::Exists,
        Self::NotAFile,
        Self::NotAFolder,
        Self::Denied,
        Self::NoSpace,
        Self::TooLarge,
        Self::BadRange,
        Self::TooSlow,
        Self::NoExec,
        Self::PortClosed,
        Self::Paused,
        Self::NotPaused,
        Self::Halted,
        Self::KeyReused,
        Self::QuotaExceeded,
        Self::Busy,
        Self::Unsupported,
        Self::Ending,
        Self::NotBorn,
        Self::Registry,
        Self::Internal,
    ];

    /// The one table of statuses.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::BadRequest => StatusCode::BAD_REQUEST,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::Forbidden | Self::ForeignHost | Self::Denied => StatusCode::FORBIDDEN,
            Self::NotFound | Self::NoRoute | Self::NoExec => StatusCode::NOT_FOUND,
            Self::NoMethod => StatusCode::METHOD_NOT_ALLOWED,
            Self::Exists
            | Self::NotAFile
            | Self::NotAFolder
            | Self::Paused
            | Self::NotPaused
            | Self::Ending => StatusCode::CONFLICT,
            Self::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BadRange => StatusCode::RANGE_NOT_SATISFIABLE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::PortClosed => StatusCode::BAD_GATEWAY,
            Self::Halted => StatusCode::LOCKED,
            Self::KeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::QuotaExceeded => StatusCode::TOO_MANY_REQUESTS,
            Self::Busy | Self::Registry => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unsupported => StatusCode::NOT_IMPLEMENTED,
            Self::NotBorn | Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// What helps against every error of this code.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::BadRequest => "correct the request; `GET /v1/openapi.json` describes every route",
            Self::Unauthenticated => {
                "send `Authorization: Bearer KEY` or `X-API-KEY: KEY`; `fumehood keys new` makes a key"
            }
            Self::Forbidden => "use a key that has the scope; `fumehood keys new --scope` makes one",
            Self::ForeignHost => "call by a loopback name, or start the daemon with `--domain NAME`",
            Self::NotFound => "list what there is: `GET /v1/sandboxes`, `GET /v1/snapshots`",
            Self::NoRoute | Self::NoMethod => "look the route up in `GET /v1/openapi.json`",
            Self::Exists => "remove what is there first, or choose another name",
            Self::NotAFile => "name a regular file",
            Self::NotAFolder => "name a folder",
            Self::Denied => "choose a path that the sandbox's user may use",
            Self::NoSpace => {
                "remove files in the sandbox, or create one with a higher `resources.disk`; free space on the host"
            }
            Self::TooLarge => "send less at once; files go through `PUT /v1/sandboxes/{id}/files`, unlimited",
            Self::BadRange => "ask for a range that the file has; a stat tells its size",
            Self::TooSlow => "send the request without pauses",
            Self::NoExec => "list the sandbox's commands: `GET /v1/sandboxes/{id}/execs`",
            Self::PortClosed => {
                "start the server inside first, listening on the loopback or on every address"
            }
            Self::Paused => "resume the sandbox first",
            Self::NotPaused => "the sandbox runs already; nothing is to be done",
            Self::Halted => "have an operator release the kill switch: `fumehood halt release`",
            Self::KeyReused => "use a new idempotency key for a new request",
            Self::QuotaExceeded => "stop what is not needed, or have an operator raise the quota",
            Self::Busy => "try again in a moment",
            Self::Unsupported => {
                "create the sandbox at another level; `fumehood doctor` tells what each can do"
            }
            Self::Ending => "create another sandbox",
            Self::NotBorn => "`fumehood doctor` tells what this host lacks",
            Self::Registry => "look at the daemon's log; the registry is `serve/registry.sqlite`",
            Self::Internal => "look at the daemon's log, and report what it says",
        }
    }

    /// Whether the same request can succeed a moment later, so that a client may send it again by itself.
    #[must_use]
    pub const fn is_worth_another_try(self) -> bool {
        matches!(self, Self::Busy | Self::Registry)
    }

    /// The word on the wire.
    #[must_use]
    pub fn word(self) -> String {
        serde_json::to_value(self).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
    }
}

impl From<FailureCode> for Code {
    fn from(code: FailureCode) -> Self {
        match code {
            FailureCode::BadRequest => Self::BadRequest,
            FailureCode::NotFound => Self::NotFound,
            FailureCode::Exists => Self::Exists,
            FailureCode::NotAFile => Self::NotAFile,
            FailureCode::NotAFolder => Self::NotAFolder,
            FailureCode::Denied => Self::Denied,
            FailureCode::NoSpace => Self::NoSpace,
            FailureCode::TooLarge => Self::TooLarge,
            FailureCode::NoExec => Self::NoExec,
            FailureCode::PortClosed => Self::PortClosed,
            FailureCode::Paused => Self::Paused,
            FailureCode::NotPaused => Self::NotPaused,
            FailureCode::Halted => Self::Halted,
            FailureCode::Busy => Self::Busy,
            FailureCode::Unsupported => Self::Unsupported,
            FailureCode::Ending => Self::Ending,
            FailureCode::Internal => Self::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_lacks_a_remedy_or_a_status() {
        for code in Code::ALL {
            assert!(code.remedy().len() > 10, "{code:?}");
            assert!(code.status().is_client_error() || code.status().is_server_error(), "{code:?}");
            assert!(!ApiError::new(code, "do it", "it was not", " ").remediation.trim().is_empty());
            assert!(!code.word().is_empty());
        }
    }

    #[test]
    fn the_list_of_codes_is_whole() {
        let words: std::collections::BTreeSet<String> = Code::ALL.iter().map(|code| code.word()).collect();
        assert_eq!(words.len(), Code::ALL.len());
        // The last one's place tells of one that was added to the type and not to the list.
        assert_eq!(Code::Internal as usize + 1, Code::ALL.len());
    }
}
