//! `/v1/sandboxes/{id}/execs`: commands, their output as it comes, their input.
//!
//! A client that vanishes ends nothing: the command goes on, and can be attached to from where the client was.

use super::ask::{Asked, Words};
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::{ApiError, Code};
use crate::keeper::{Conversation, Frame};
use crate::live::Use;
use crate::stream::{self, Tap};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use fumehood_keep::frame::Kind;
use fumehood_keep::wire::{Ask, Exec, ExecStatus, Said, WARM_PLACE};
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, StatusCode};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;

/// What is kept of each stream of a command whose output is answered as a whole.
const MOST_WHOLE_BYTES: usize = 8 << 20;
const NDJSON: HeaderValue = HeaderValue::from_static("application/x-ndjson");
const RAW: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// One command.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Run {
    /// The command and its arguments. Either this or `shell`.
    argv: Vec<String>,
    /// A line for `/bin/sh`.
    shell: Option<String>,
    env: BTreeMap<String, String>,
    cwd: Option<String>,
    terminal: Option<Terminal>,
    /// Whether input comes by `/stdin`; without it, input is at its end from the start.
    stdin: bool,
    timeout_ms: Option<u64>,
    tag: Option<String>,
    /// Answer as soon as it runs.
    detach: bool,
    /// Go on with the interpreter that was prepared in the sandbox: `argv` is what follows `python3`.
    warm: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Terminal {
    rows: u16,
    columns: u16,
}

/// How output is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Output {
    /// Lines of JSON as it comes.
    #[default]
    Stream,
    /// The bytes of standard output; how the command ended is in the trailer `fumehood-ending`.
    Raw,
    /// One object at the end.
    Whole,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RunQuery {
    output: Output,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct AttachQuery {
    output: Output,
    /// So many bytes of standard output were seen.
    stdout_from: u64,
    stderr_from: u64,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SignalBody {
    /// By number.
    signal: u8,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct InputQuery {
    /// Whether the input ends with this request.
    eof: bool,
}

/// A command's output, while it is being watched.
struct Watched {
    entered: Use,
    conversation: Conversation,
    exec: u32,
    pid: u32,
}

pub(super) async fn run(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
    Asked(query): Asked<RunQuery>,
    Words(run): Words<Run>,
) -> Result<Response, ApiError> {
    let live = engine.find(&caller, &id)?;
    let (exec, detach) = command(run, &caller)?;
    engine.quotas().exec(&live.team(), Some(&caller.name))?;
    let entered = engine.enter(&live).await?;
    let watched = start(entered, &Ask::Exec(exec)).await?;
    if detach {
        let started = json!({ "exec": watched.exec, "pid": watched.pid });
        return Ok((StatusCode::ACCEPTED, Json(started)).into_response());
    }
    answer(watched, query.output).await
}

pub(super) async fn attach(
    State(engine): State<Engine>,
    caller: Caller,
    Path((id, exec)): Path<(String, String)>,
    Asked(query): Asked<AttachQuery>,
) -> Result<Response, ApiError> {
    let live = engine.find(&caller, &id)?;
    let exec = number(&exec)?;
    let entered = engine.enter(&live).await?;
    let AttachQuery { output, stdout_from, stderr_from } = query;
    answer(start(entered, &Ask::Attach { exec, stdout_from, stderr_from }).await?, output).await
}

pub(super) async fn list(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Vec<ExecStatus>>, ApiError> {
    let live = engine.find(&caller, &id)?;
    let Said::Execs { execs } = engine.enter(&live).await?.keeper().call(&Ask::List).await? else {
        return Err(ApiError::plain(
            Code::Internal,
            "list the commands",
            "the keeper answered something else",
        ));
    };
    Ok(Json(execs))
}

pub(super) async fn input(
    State(engine): State<Engine>,
    caller: Caller,
    Path((id, exec)): Path<(String, String)>,
    Asked(query): Asked<InputQuery>,
    mut body: Body,
) -> Result<StatusCode, ApiError> {
    let live = engine.find(&caller, &id)?;
    let exec = number(&exec)?;
    let entered = engine.enter(&live).await?;
    let (mut hear, mut speak) = entered.keeper().ask(&Ask::Input { exec }).await?.split();
    let send = async {
        while let Some(bytes) = stream::next(&mut body).await? {
            if !bytes.is_empty() {
                speak.send(Kind::Input, &bytes).await?;
            }
        }
        if query.eof {
            speak.send(Kind::InputEnd, b"").await?;
        } else {
            speak.close().await?;
        }
        Ok::<(), ApiError>(())
    };
    // A command that is gone says so before all is sent.
    let (sent, answer) = tokio::join!(send, hear.answer());
    answer?;
    sent?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn signal(
    State(engine): State<Engine>,
    caller: Caller,
    Path((id, exec)): Path<(String, String)>,
    Words(SignalBody { signal }): Words<SignalBody>,
) -> Result<StatusCode, ApiError> {
    let live = engine.find(&caller, &id)?;
    let exec = number(&exec)?;
    engine.enter(&live).await?.keeper().call(&Ask::Signal { exec, signal }).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn resize(
    State(engine): State<Engine>,
    caller: Caller,
    Path((id, exec)): Path<(String, String)>,
    Words(Terminal { rows, columns }): Words<Terminal>,
) -> Result<StatusCode, ApiError> {
    let live = engine.find(&caller, &id)?;
    let exec = number(&exec)?;
    engine.enter(&live).await?.keeper().call(&Ask::Resize { exec, rows, columns }).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn number(text: &str) -> Result<u32, ApiError> {
    text.parse().map_err(|_| ApiError::plain(Code::NoExec, "find the command", "its id is a number"))
}

fn command(run: Run, caller: &Caller) -> Result<(Exec, bool), ApiError> {
    let argv = match (run.argv.is_empty(), run.shell, run.warm) {
        (false, None, false) => run.argv,
        (_, None, true) => std::iter::once(WARM_PLACE.to_owned()).chain(run.argv).collect(),
        (true, Some(line), false) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line],
        (_, _, _) => {
            let cause = "it has either `argv`, not empty unless `warm`, or `shell`, not with `warm`";
            return Err(ApiError::plain(Code::BadRequest, "read the command", cause));
        }
    };
    let exec = Exec {
        argv,
        env: run.env.into_iter().collect(),
        cwd: run.cwd,
        terminal: run.terminal.map(|terminal| (terminal.rows, terminal.columns)),
        stdin: run.stdin,
        timeout_ms: run.timeout_ms,
        tag: run.tag,
        actor: caller.actor(),
    };
    Ok((exec, run.detach))
}

async fn start(entered: Use, ask: &Ask) -> Result<Watched, ApiError> {
    let mut conversation = entered.keeper().ask(ask).await?;
    let Said::Started { exec, pid } = conversation.answer().await? else {
        return Err(ApiError::plain(Code::Internal, "run the command", "the keeper answered something else"));
    };
    Ok(Watched { entered, conversation, exec, pid })
}

async fn answer(watched: Watched, output: Output) -> Result<Response, ApiError> {
    let (exec, pid) = (watched.exec, watched.pid);
    let (tap, body) = stream::flow();
    let content_type = match output {
        Output::Whole => return whole(watched).await,
        Output::Stream => {
            tokio::spawn(async move { lines(watched, &tap).await });
            NDJSON
        }
        Output::Raw => {
            tokio::spawn(async move { raw(watched, &tap).await });
            RAW
        }
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(HeaderName::from_static("fumehood-exec"), HeaderValue::from(exec));
    headers.insert(HeaderName::from_static("fumehood-pid"), HeaderValue::from(pid));
    if output == Output::Raw {
        headers.insert(http::header::TRAILER, HeaderValue::from_static("fumehood-ending"));
    }
    Ok(response)
}

/// The next frame, or that the client is gone.
async fn next(watched: &mut Watched, tap: &Tap) -> Option<Result<Option<Frame>, ApiError>> {
    tokio::select! {
        frame = watched.conversation.next() => Some(frame.map_err(ApiError::from)),
        () = tap.closed() => None,
    }
}

async fn lines(mut watched: Watched, tap: &Tap) {
    let (exec, pid) = (watched.exec, watched.pid);
    if !tap.line(&json!({ "type": "started", "exec": exec, "pid": pid })).await {
        return;
    }
    while let Some(frame) = next(&mut watched, tap).await {
        let line = match frame {
            Ok(Some(Frame::Bytes(kind, bytes))) => piece(kind, &bytes),
            Ok(Some(Frame::Said(Said::Ended { exec, ending, hits, usage }))) => {
                let end =
                    json!({ "type": "ended", "exec": exec, "ending": ending, "hits": hits, "usage": usage });
                tap.line(&end).await;
                return;
            }
            Ok(Some(Frame::Said(Said::Failed(failure)))) => {
                tap.line(&json!({ "type": "error", "error": ApiError::from(failure) })).await;
                return;
            }
            Ok(Some(Frame::Said(_))) => continue,
            Ok(None) => {
                tap.line(&json!({ "type": "error", "error": gone() })).await;
                return;
            }
            Err(error) => {
                tap.line(&json!({ "type": "error", "error": error })).await;
                return;
            }
        };
        if !tap.line(&line).await {
            return;
        }
    }
    drop(watched.entered);
}

/// Never an invented ending: a stream that breaks says that it broke.
fn gone() -> ApiError {
    ApiError::plain(Code::Ending, "follow the command", "its keeper ended before the command did")
}

fn piece(kind: Kind, bytes: &Bytes) -> serde_json::Value {
    let name = match kind {
        Kind::Stderr => "stderr",
        Kind::Terminal => "terminal",
        Kind::Stdout | Kind::Json | Kind::Input | Kind::InputEnd | Kind::Data | Kind::DataEnd => "stdout",
    };
    match std::str::from_utf8(bytes) {
        Ok(text) => json!({ "type": name, "text": text }),
        Err(_) => json!({ "type": name, "base64": STANDARD.encode(bytes) }),
    }
}

async fn raw(mut watched: Watched, tap: &Tap) {
    while let Some(frame) = next(&mut watched, tap).await {
        match frame {
            Ok(Some(Frame::Bytes(Kind::Stdout | Kind::Terminal, bytes))) => {
                if !tap.bytes(bytes).await {
                    return;
                }
            }
            Ok(Some(Frame::Said(Said::Ended { ending, .. }))) => {
                let mut trailers = HeaderMap::new();
                let words = serde_json::to_string(&ending).unwrap_or_default();
                if let Ok(value) = HeaderValue::from_str(&words) {
                    trailers.insert(HeaderName::from_static("fumehood-ending"), value);
                }
                tap.trailers(trailers).await;
                return;
            }
            Ok(Some(Frame::Said(Said::Failed(_))) | None) | Err(_) => {
                tap.broken().await;
                return;
            }
            Ok(Some(Frame::Bytes(..) | Frame::Said(_))) => {}
        }
    }
    drop(watched.entered);
}

async fn whole(mut watched: Watched) -> Result<Response, ApiError> {
    let (mut stdout, mut stderr, mut is_cut) = (Vec::new(), Vec::new(), false);
    loop {
        match watched.conversation.next().await? {
            Some(Frame::Bytes(kind, bytes)) => {
                let kept = if kind == Kind::Stderr { &mut stderr } else { &mut stdout };
                let room = MOST_WHOLE_BYTES.saturating_sub(kept.len());
                is_cut |= bytes.len() > room;
                kept.extend_from_slice(bytes.get(..room).unwrap_or(&bytes));
            }
            Some(Frame::Said(Said::Ended { exec, ending, hits, usage })) => {
                let mut words = json!({
                    "exec": exec, "ending": ending, "hits": hits, "usage": usage, "cut": is_cut,
                });
                for (name, bytes) in [("stdout", stdout), ("stderr", stderr)] {
                    let value = match String::from_utf8(bytes) {
                        Ok(text) => json!({ "text": text }),
                        Err(error) => json!({ "base64": STANDARD.encode(error.as_bytes()) }),
                    };
                    if let Some(words) = words.as_object_mut() {
                        words.insert(name.to_owned(), value);
                    }
                }
                drop(watched.entered);
                return Ok(Json(words).into_response());
            }
            Some(Frame::Said(Said::Failed(failure))) => return Err(failure.into()),
            Some(Frame::Said(_)) => {}
            None => return Err(gone()),
        }
    }
}
