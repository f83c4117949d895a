//! `/files` of envd: raw bytes both ways, in constant memory.

use super::entries::{absolute, name};
use super::envd::{enter, known_user};
use super::multipart::Form;
use super::refusal::Refusal;
use super::route::{FileQuery, Guest};
use crate::error::{ApiError, Code};
use crate::http::files::pour;
use crate::keeper::Keeper;
use crate::stream;
use axum::Json;
use axum::body::Body;
use axum::extract::Query;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use fumehood_keep::client::CallError;
use fumehood_keep::frame::Kind;
use fumehood_keep::wire::{Ask, Entry, MOST_PATH_BYTES, Said};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderName};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use serde_json::{Value, json};

/// Where the bytes of a file come from.
enum Source<'a> {
    Body(&'a mut Body),
    Form(&'a mut Form),
}

pub(super) async fn read(guest: &Guest, parts: &Parts) -> Result<Response, Refusal> {
    let query = query(parts)?;
    let path = path(guest, query.path.as_deref())?;
    let entered = enter(guest).await?;
    let ask = Ask::Read { path, offset: 0, length: None };
    let mut conversation = entered.keeper().ask(&ask).await?;
    let entry = entry(conversation.answer().await?)?;
    let (tap, body) = stream::flow();
    tokio::spawn(async move { pour(entered, conversation, &tap, entry.size).await });
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(entry.size));
    Ok(response)
}

pub(super) async fn write(guest: &Guest, parts: &Parts, mut body: Body) -> Result<Response, Refusal> {
    let query = query(parts)?;
    judge_headers(&parts.headers)?;
    let content_type = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let entered = enter(guest).await?;
    let keeper = entered.keeper();
    let mut written = Vec::new();
    if content_type.get(..19).is_some_and(|start| start.eq_ignore_ascii_case("multipart/form-data")) {
        let mut form = Form::new(content_type, body)?;
        while let Some(part) = form.part().await? {
            if part.name != "file" {
                continue;
            }
            let named = query.path.as_deref().or(part.filename.as_deref());
            let path = path(guest, named)?;
            written.push(store(keeper, path, Source::Form(&mut form)).await?);
        }
    } else {
        let path = path(guest, query.path.as_deref())?;
        written.push(store(keeper, path, Source::Body(&mut body)).await?);
    }
    Ok(Json(written).into_response())
}

fn query(parts: &Parts) -> Result<FileQuery, Refusal> {
    let Query(query) = Query::<FileQuery>::try_from_uri(&parts.uri)
        .map_err(|error| ApiError::plain(Code::BadRequest, "read the query", error.body_text()))?;
    known_user(query.username.as_deref())?;
    Ok(query)
}

/// What is asked for by header and not done is refused.
fn judge_headers(headers: &HeaderMap) -> Result<(), Refusal> {
    let refuse = |cause: &str, remedy: &str| {
        Err(Refusal(ApiError::new(Code::Unsupported, "write the file", cause, remedy)))
    };
    let is_plain = |value: &HeaderValue| value == "identity";
    if !headers.get(CONTENT_ENCODING).is_none_or(is_plain) {
        return refuse("a compressed body is not taken", "send the bytes as they are: leave `gzip` out");
    }
    let is_metadata = |name: &HeaderName| name.as_str().starts_with("x-metadata-");
    if headers.keys().any(is_metadata) {
        return refuse("files have no metadata here", "leave `metadata` out, or write it into a file beside");
    }
    Ok(())
}

fn path(guest: &Guest, asked: Option<&str>) -> Result<String, Refusal> {
    let asked =
        asked.filter(|path| !path.is_empty() && path.len() <= MOST_PATH_BYTES && !path.contains('\0'));
    let asked = asked.ok_or_else(|| {
        Refusal::bad("read the path", "it is missing, too long, or has a NUL", "name a file by `path`")
    })?;
    Ok(absolute(&guest.live.sandbox().home, asked))
}

fn entry(said: Said) -> Result<Entry, Refusal> {
    match said {
        Said::Entry { entry } => Ok(entry),
        _ => Err(Refusal(ApiError::plain(
            Code::Internal,
            "read the file",
            "the keeper answered something else",
        ))),
    }
}

async fn store(keeper: &Keeper, path: String, mut source: Source<'_>) -> Result<Value, Refusal> {
    let (mut hear, mut speak) = keeper.ask(&Ask::Write { path, mode: None }).await?.split();
    let send = async {
        while let Some(bytes) = source.next().await? {
            if !bytes.is_empty() {
                speak.send(Kind::Data, &bytes).await?;
            }
        }
        // Only a body that came whole is ended: everything else the keeper throws away.
        speak.send(Kind::DataEnd, b"").await?;
        Ok::<(), Refusal>(())
    };
    let said = tokio::select! {
        // A keeper that refuses does so before all is sent.
        said = hear.answer() => said?,
        sent = send => match sent {
            Ok(()) => hear.answer().await?,
            Err(Refusal(error)) if error.code == Code::Ending => match hear.answer().await {
                Err(said @ CallError::Failed(_)) => return Err(said.into()),
                Ok(_) | Err(_) => return Err(Refusal(error)),
            },
            Err(refusal) => return Err(refusal),
        },
    };
    let entry = entry(said)?;
    Ok(json!({ "name": name(&entry.path), "type": "file", "path": entry.path }))
}

// === impl Source ===

impl Source<'_> {
    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        match self {
            Self::Body(body) => stream::next(body).await,
            Self::Form(form) => form.piece().await,
        }
    }
}
