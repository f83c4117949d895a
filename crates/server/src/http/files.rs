//! `/v1/sandboxes/{id}/files`: raw bytes both ways, in constant memory.

use super::ask::{Asked, Words};
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::{ApiError, Code};
use crate::keeper::{Frame, Keeper};
use crate::live::Use;
use crate::stream;
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use fumehood_keep::frame::Kind;
use fumehood_keep::wire::{Ask, Entry, MOST_PATH_BYTES, Said};
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use http::{HeaderMap, HeaderValue, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A path inside.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct At {
    path: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteQuery {
    path: String,
    /// Permission bits, in octal digits.
    mode: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FolderQuery {
    path: String,
    #[serde(default = "one")]
    depth: u32,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WatchQuery {
    path: String,
    #[serde(default)]
    recursive: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MoveBody {
    from: String,
    to: String,
}

/// What is in a folder.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Entries {
    #[schemars(with = "Vec<serde_json::Value>")]
    entries: Vec<Entry>,
    /// Whether there is more.
    cut: bool,
}

/// What part of a file is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Whole,
    /// From this byte to this one, both of them included.
    Between(u64, u64),
    From(u64),
    Last(u64),
}

const fn one() -> u32 {
    1
}

pub(super) async fn read(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
    Asked(At { path }): Asked<At>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    judge(&path)?;
    let live = engine.find(&caller, &id)?;
    let entered = engine.enter(&live).await?;
    let part = headers.get(RANGE).map_or(Ok(Part::Whole), part)?;
    let span =
        if part == Part::Whole { None } else { Some(span(part, stat(entered.keeper(), &path).await?.size)?) };
    let (offset, length) = span.map_or((0, None), |(first, last)| (first, Some(last - first + 1)));
    let mut conversation = entered.keeper().ask(&Ask::Read { path, offset, length }).await?;
    let entry = entry(conversation.answer().await?)?;
    let (tap, body) = stream::flow();
    let total = entry.size;
    let length = length.unwrap_or(total);
    tokio::spawn(async move { pour(entered, conversation, &tap, length).await });
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    if let Some((first, last)) = span {
        if let Ok(value) = HeaderValue::from_str(&format!("bytes {first}-{last}/{total}")) {
            headers.insert(CONTENT_RANGE, value);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// Passes on what the keeper reads. A file that ends too early breaks the answer, which has told its length.
pub(crate) async fn pour(
    entered: Use,
    mut conversation: crate::keeper::Conversation,
    tap: &stream::Tap,
    length: u64,
) {
    let mut left = length;
    loop {
        match conversation.next().await {
            Ok(Some(Frame::Bytes(Kind::Data, bytes))) => {
                let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                if size > left {
                    break tap.broken().await;
                }
                left -= size;
                if !tap.bytes(bytes).await {
                    break;
                }
            }
            Ok(Some(Frame::Bytes(Kind::DataEnd, _))) if left == 0 => break,
            Ok(_) | Err(_) => break tap.broken().await,
        }
    }
    drop(entered);
}

pub(super) async fn write(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
    Asked(query): Asked<WriteQuery>,
    mut body: Body,
) -> Result<(StatusCode, Json<Entry>), ApiError> {
    judge(&query.path)?;
    let mode = query.mode.map(|mode| u32::from_str_radix(&mode, 8).ok().filter(|mode| *mode <= 0o7777));
    let mode = mode.map(|mode| {
        mode.ok_or_else(|| {
            ApiError::plain(Code::BadRequest, "read the query", "`mode` is octal, at most 7777")
        })
    });
    let ask = Ask::Write { path: query.path, mode: mode.transpose()? };
    let live = engine.find(&caller, &id)?;
    let entered = engine.enter(&live).await?;
    let (mut hear, mut speak) = entered.keeper().ask(&ask).await?.split();
    let send = async {
        while let Some(bytes) = stream::next(&mut body).await? {
            if !bytes.is_empty() {
                speak.send(Kind::Data, &bytes).await?;
            }
        }
        // Only a body that came whole is ended: everything else the keeper throws away.
        speak.send(Kind::DataEnd, b"").await?;
        Ok::<(), ApiError>(())
    };
    let said = tokio::select! {
        // A keeper that refuses does so before all is sent.
        said = hear.answer() => said?,
        sent = send => match sent {
            Ok(()) => hear.answer().await?,
            Err(error) => return Err(refusal(&mut hear, error).await),
        },
    };
    Ok((StatusCode::CREATED, Json(entry(said)?)))
}

/// What the keeper had to say before it hung up, or else why sending failed.
async fn refusal(hear: &mut crate::keeper::Hear, error: ApiError) -> ApiError {
    if error.code != Code::Ending {
        return error;
    }
    match hear.answer().await {
        Err(said @ fumehood_keep::client::CallError::Failed(_)) => said.into(),
        Ok(_) | Err(_) => error,
    }
}

pub(super) async fn stat_file(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
    Asked(At { path }): Asked<At>,
) -> Result<Json<Entry>, ApiError> {
    judge(&path)?;
    let live = engine.find(&caller, &id)?;
    let entered = engine.enter(&live).await?;
    stat(entered.keeper(), &path).await.map(Json)
}

pub(super) async fn list(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
    Asked(FolderQuery { path, depth }): Asked<FolderQuery>,
) -> Result<Json<Entries>, ApiError> {
    judge(&path)?;
    let live = engine.find(&caller, &id)?;
    let entered = engine.enter(&live).await?;
    let asked = Ask::ListDir { path, depth: depth.max(1) };
    let Said::Entries { entries, cut } = entered.keeper().call(&asked).await? else { return Err(odd()) };
    Ok(Json(Entries { entries, cut }))
}

pub(super) async fn make_folder(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
    Words(At { path }): Words<At>,
) -> Result<StatusCode, ApiError> {
    judge(&path)?;
    let live = engine.find(&caller, &id)?;
    engine.enter(&live).await?.keeper().call(&Ask::MakeDir { path }).await?;
    Ok(StatusCode::CREATED)
}

pub(super) async fn rename(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
    Words(MoveBody { from, to }): Words<MoveBody>,
) -> Result<StatusCode, ApiError> {
    judge(&from)?;
    judge(&to)?;
    let live = engine.find(&caller, &id)?;
    engine.enter(&live).await?.keeper().call(&Ask::Move { from, to }).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn remove(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
    Asked(At { path }): Asked<At>,
) -> Result<StatusCode, ApiError> {
    judge(&path)?;
    let live = engine.find(&caller, &id)?;
    engine.enter(&live).await?.keeper().call(&Ask::Remove { path }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Watching is no use that keeps a sandbox from being paused: an idle one with a watch is idle.
pub(super) async fn watch(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
    Asked(WatchQuery { path, recursive }): Asked<WatchQuery>,
) -> Result<Response, ApiError> {
    judge(&path)?;
    let live = engine.find(&caller, &id)?;
    let entered = engine.enter(&live).await?;
    let mut conversation = entered.keeper().ask(&Ask::Watch { path, recursive }).await?;
    conversation.answer().await?;
    drop(entered);
    let (tap, body) = stream::flow();
    tokio::spawn(async move {
        loop {
            let frame = tokio::select! {
                frame = conversation.next() => frame,
                () = tap.closed() => return,
            };
            match frame {
                Ok(Some(Frame::Said(Said::Changed { path, change }))) => {
                    if !tap.line(&serde_json::json!({ "path": path, "change": change })).await {
                        return;
                    }
                }
                Ok(Some(Frame::Said(_) | Frame::Bytes(..))) => {}
                Ok(None) | Err(_) => return,
            }
        }
    });
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(response)
}

async fn stat(keeper: &Keeper, path: &str) -> Result<Entry, ApiError> {
    entry(keeper.call(&Ask::Stat { path: path.to_owned() }).await?)
}

fn entry(said: Said) -> Result<Entry, ApiError> {
    let Said::Entry { entry } = said else { return Err(odd()) };
    Ok(entry)
}

fn odd() -> ApiError {
    ApiError::plain(Code::Internal, "use the file", "the keeper answered something else")
}

fn judge(path: &str) -> Result<(), ApiError> {
    if path.is_empty() || path.len() > MOST_PATH_BYTES || path.contains('\0') {
        let cause = format!("a path has 1 to {MOST_PATH_BYTES} bytes, and no NUL");
        return Err(ApiError::plain(Code::BadRequest, "read the path", cause));
    }
    Ok(())
}

/// One range, as most clients send it. Several at once are not served, which the standard allows: all is sent.
fn part(value: &HeaderValue) -> Result<Part, ApiError> {
    let bad = || ApiError::plain(Code::BadRange, "read `Range`", "it is not `bytes=FIRST-LAST`");
    let text = value.to_str().map_err(|_| bad())?;
    let Some(range) = text.strip_prefix("bytes=") else { return Ok(Part::Whole) };
    if range.contains(',') {
        return Ok(Part::Whole);
    }
    let (first, last) = range.split_once('-').ok_or_else(bad)?;
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| bad());
    match (first.trim().is_empty(), last.trim().is_empty()) {
        (true, true) => Err(bad()),
        (true, false) => Ok(Part::Last(number(last)?)),
        (false, true) => Ok(Part::From(number(first)?)),
        (false, false) => Ok(Part::Between(number(first)?, number(last)?)),
    }
}

/// The first and the last byte of a part of a file of this size.
fn span(part: Part, size: u64) -> Result<(u64, u64), ApiError> {
    let (first, last) = match part {
        Part::Whole => (0, size.saturating_sub(1)),
        Part::Between(first, last) => (first, last.min(size.saturating_sub(1))),
        Part::From(first) => (first, size.saturating_sub(1)),
        Part::Last(count) => (size.saturating_sub(count), size.saturating_sub(1)),
    };
    if first >= size || last < first {
        return Err(ApiError::plain(Code::BadRange, "read this part", format!("the file has {size} bytes"))
            .with("size", size));
    }
    Ok((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_within_the_file() {
        let of = |text: &str| part(&HeaderValue::from_str(text).unwrap());
        assert_eq!(span(of("bytes=0-0").unwrap(), 10).unwrap(), (0, 0));
        assert_eq!(span(of("bytes=5-").unwrap(), 10).unwrap(), (5, 9));
        assert_eq!(span(of("bytes=-3").unwrap(), 10).unwrap(), (7, 9));
        assert_eq!(span(of("bytes=-30").unwrap(), 10).unwrap(), (0, 9));
        assert_eq!(span(of("bytes=5-500").unwrap(), 10).unwrap(), (5, 9));
        assert_eq!(of("bytes=0-1,3-4").unwrap(), Part::Whole);
        for bad in ["bytes=-", "bytes=a-b", "bytes=5", "bytes=99999999999999999999-"] {
            assert_eq!(of(bad).unwrap_err().code, Code::BadRange, "{bad}");
        }
        for (text, size) in [("bytes=10-", 10), ("bytes=0-", 0), ("bytes=-1", 0), ("bytes=5-4", 10)] {
            assert_eq!(span(of(text).unwrap(), size).unwrap_err().code, Code::BadRange, "{text}");
        }
    }
}
