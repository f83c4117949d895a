//! The code interpreter at port 49999: one Python that remembers for each context.
//!
//! A context is a command inside, found by its tag: it outlives the daemon, and the keeper alone knows of it. Here
//! are only the locks that let one piece of code run after the other.

use super::connect::Fault;
use super::entries::absolute;
use super::refusal::Refusal;
use super::route::Guest;
use super::{Door, envd};
use crate::error::{ApiError, Code};
use crate::http::Words;
use crate::keeper::{Conversation, Frame, Keeper};
use crate::keys::random_hex;
use crate::live::Use;
use crate::stream::{self, Tap};
use axum::Json;
use axum::extract::{FromRequest as _, Request};
use axum::response::{IntoResponse as _, Response};
use bytes::BytesMut;
use fumehood_keep::frame::Kind;
use fumehood_keep::wire::{Ask, Exec, ExecStatus, Said};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;

/// What the tags of kernels begin with.
pub(super) const TAG: &str = "fumehood.kernel:";
const KERNEL: &str = include_str!("../../interpreter/kernel.py");
/// Where the kernel is put inside.
const PATH: &str = "/tmp/.fumehood-kernel.py";
/// The context of who names none.
const DEFAULT: &str = "default";
const MOST_CONTEXTS: usize = 32;
const ID_BYTES: usize = 8;
/// The longest event of a kernel.
const MOST_LINE_BYTES: usize = 64 << 20;
/// How long code that its caller left may take to stop when it is interrupted.
const PATIENCE: Duration = Duration::from_secs(10);
const INTERRUPT: u8 = 2;
const KILL: u8 = 9;

/// One lock for each context, by the sandbox's id and its own.
#[derive(Debug, Default)]
pub(super) struct Kernels(Mutex<Locks>);

type Locks = HashMap<(String, String), Arc<tokio::sync::Mutex<()>>>;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Execute {
    code: String,
    context_id: Option<String>,
    language: Option<String>,
    env_vars: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NewContext {
    language: Option<String>,
    cwd: Option<String>,
}

/// Code that runs.
struct Run {
    entered: Use,
    conversation: Conversation,
    exec: u32,
    id: String,
    _alone: OwnedMutexGuard<()>,
}

/// How the events of a piece of code came to their end.
enum End {
    Whole,
    /// The client is gone.
    Left,
    /// The kernel is.
    Died(String),
}

// === impl Kernels ===

impl Kernels {
    async fn alone(&self, sandbox: &str, context: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry((sandbox.to_owned(), context.to_owned())).or_default())
        };
        lock.lock_owned().await
    }
}

pub(super) async fn serve(door: &Door, guest: Guest, request: Request) -> Response {
    answer(door, &guest, request).await.unwrap_or_else(|refusal| refusal.into_response())
}

async fn answer(door: &Door, guest: &Guest, request: Request) -> Result<Response, Refusal> {
    let path = request.uri().path().to_owned();
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match (request.method().clone(), parts.as_slice()) {
        (Method::GET, ["health"]) => Ok("OK".into_response()),
        (Method::POST, ["execute"]) => {
            let Words(asked) = Words::from_request(request, &()).await?;
            execute(door, guest, asked).await
        }
        (Method::GET, ["contexts"]) => {
            let entered = envd::enter(guest).await?;
            let kernels = kernels(entered.keeper()).await?;
            Ok(Json(kernels.iter().map(context).collect::<Vec<_>>()).into_response())
        }
        (Method::POST, ["contexts"]) => {
            let Words(asked) = Words::from_request(request, &()).await?;
            create(guest, asked).await
        }
        (Method::DELETE, ["contexts", id]) => {
            let entered = envd::enter(guest).await?;
            let found = find(entered.keeper(), id).await?.ok_or_else(|| missing(id))?;
            end(entered.keeper(), found.exec).await?;
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        (Method::POST, ["contexts", id, "restart"]) => restart(door, guest, id).await,
        (_, _) => Err(Refusal(ApiError::plain(
            Code::NoRoute,
            "call the code interpreter",
            "it has `/execute`, `/contexts` and `/health`",
        ))),
    }
}

async fn create(guest: &Guest, asked: NewContext) -> Result<Response, Refusal> {
    judge_language(asked.language.as_deref())?;
    let entered = envd::enter(guest).await?;
    if kernels(entered.keeper()).await?.len() >= MOST_CONTEXTS {
        let cause = format!("the sandbox has {MOST_CONTEXTS} contexts already");
        return Err(Refusal(ApiError::new(
            Code::Busy,
            "make the context",
            cause,
            "remove one that is not needed",
        )));
    }
    let id = random_hex(ID_BYTES)?;
    let cwd = absolute(&guest.live.sandbox().home, asked.cwd.as_deref().unwrap_or(""));
    start(guest, entered.keeper(), &id, cwd.clone()).await?;
    Ok(Json(json!({ "id": id, "language": "python", "cwd": cwd })).into_response())
}

async fn restart(door: &Door, guest: &Guest, id: &str) -> Result<Response, Refusal> {
    let entered = envd::enter(guest).await?;
    let found = find(entered.keeper(), id).await?;
    let home = guest.live.sandbox().home;
    let cwd = match &found {
        Some(found) => {
            end(entered.keeper(), found.exec).await?;
            found.cwd.clone()
        }
        None if id == DEFAULT => home,
        None => return Err(missing(id)),
    };
    // Whoever ran code in it has seen it die by now, or does soon.
    let _alone = door.kernels.alone(guest.live.id().as_str(), id).await;
    start(guest, entered.keeper(), id, cwd).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn execute(door: &Door, guest: &Guest, asked: Execute) -> Result<Response, Refusal> {
    judge_language(asked.language.as_deref())?;
    if asked.language.is_some() && asked.context_id.is_some() {
        return Err(Refusal::bad("run the code", "it names a language and a context", "name one of them"));
    }
    guest.engine.quotas().exec(&guest.live.team(), guest.live.sandbox().key.as_deref())?;
    let entered = envd::enter(guest).await?;
    let context = asked.context_id.as_deref().unwrap_or(DEFAULT);
    let alone = door.kernels.alone(guest.live.id().as_str(), context).await;
    let keeper = entered.keeper();
    let (exec, seen) = match find(keeper, context).await? {
        Some(found) => (found.exec, (found.stdout_bytes, found.stderr_bytes)),
        None if context == DEFAULT => {
            (start(guest, keeper, context, guest.live.sandbox().home).await?, (0, 0))
        }
        None => return Err(missing(context)),
    };
    let attach = Ask::Attach { exec, stdout_from: seen.0, stderr_from: seen.1 };
    let mut conversation = keeper.ask(&attach).await?;
    conversation.answer().await?;
    let id = random_hex(ID_BYTES)?;
    let mut line =
        json!({ "id": id, "code": asked.code, "env": asked.env_vars.unwrap_or_default() }).to_string();
    line.push('\n');
    super::process::feed(keeper, exec, line.as_bytes()).await.map_err(refused)?;
    let (tap, body) = stream::flow();
    let run = Run { entered, conversation, exec, id, _alone: alone };
    tokio::spawn(async move { events(run, &tap).await });
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(response)
}

async fn events(mut run: Run, tap: &Tap) {
    let mut kept = BytesMut::new();
    match pass(&mut run, &mut kept, Some(tap)).await {
        End::Whole => {}
        End::Left => {
            let interrupt = Ask::Signal { exec: run.exec, signal: INTERRUPT };
            let _ = run.entered.keeper().call(&interrupt).await;
            // Until it has stopped, the next code would only wait behind it.
            if tokio::time::timeout(PATIENCE, pass(&mut run, &mut kept, None)).await.is_err() {
                let kill = Ask::Signal { exec: run.exec, signal: KILL };
                let _ = run.entered.keeper().call(&kill).await;
            }
        }
        End::Died(cause) => {
            let error = json!({ "type": "error", "name": "KernelDied", "value": cause, "traceback": cause });
            tap.line(&error).await;
            tap.line(&json!({ "type": "end_of_execution" })).await;
        }
    }
}

/// Passes on the events of this run, until its last.
async fn pass(run: &mut Run, kept: &mut BytesMut, tap: Option<&Tap>) -> End {
    loop {
        while let Some(end) = kept.iter().position(|byte| *byte == b'\n') {
            let line = kept.split_to(end + 1);
            let Some(event) = event(&line, &run.id) else { continue };
            let is_last = event.get("type").is_some_and(|kind| kind == "end_of_execution");
            if let Some(tap) = tap
                && !tap.line(&event).await
                && !is_last
            {
                return End::Left;
            }
            if is_last {
                return End::Whole;
            }
        }
        if kept.len() > MOST_LINE_BYTES {
            return End::Died("an event of the kernel is too long".to_owned());
        }
        let gone = async {
            match tap {
                Some(tap) => tap.closed().await,
                None => std::future::pending().await,
            }
        };
        let frame = tokio::select! {
            frame = run.conversation.next() => frame,
            () = gone => return End::Left,
        };
        match frame {
            Ok(Some(Frame::Bytes(Kind::Stdout, bytes))) => kept.extend_from_slice(&bytes),
            Ok(Some(Frame::Said(Said::Ended { ending, .. }))) => {
                return End::Died(format!("the context's Python has ended: {}", ending.cause()));
            }
            Ok(Some(Frame::Said(Said::Failed(failure)))) => return End::Died(failure.to_string()),
            Ok(Some(Frame::Bytes(..) | Frame::Said(_))) => {}
            Ok(None) => return End::Died("the keeper ended before the code did".to_owned()),
            Err(error) => return End::Died(error.to_string()),
        }
    }
}

/// An event of the run of this id, without that id; `None` for everything else that a kernel says.
fn event(line: &[u8], id: &str) -> Option<Value> {
    let mut event: Value = serde_json::from_slice(line).ok()?;
    let found = event.as_object_mut()?.remove("id")?;
    (found == id).then_some(event)
}

/// Starts a kernel, and gives the number of its command.
async fn start(guest: &Guest, keeper: &Keeper, id: &str, cwd: String) -> Result<u32, Refusal> {
    let (mut hear, mut speak) =
        keeper.ask(&Ask::Write { path: PATH.to_owned(), mode: Some(0o644) }).await?.split();
    speak.send(Kind::Data, KERNEL.as_bytes()).await?;
    speak.send(Kind::DataEnd, b"").await?;
    hear.answer().await?;
    let exec = Exec {
        argv: ["/usr/bin/env", "python3", "-u", PATH].map(str::to_owned).to_vec(),
        cwd: Some(cwd),
        stdin: true,
        tag: Some(format!("{TAG}{id}")),
        actor: guest.actor.clone(),
        ..Exec::default()
    };
    match keeper.call(&Ask::Exec(exec)).await? {
        Said::Started { exec, .. } => Ok(exec),
        _ => Err(Refusal(ApiError::plain(
            Code::Internal,
            "start Python",
            "the keeper answered something else",
        ))),
    }
}

/// Ends a kernel, and sees it end.
async fn end(keeper: &Keeper, exec: u32) -> Result<(), Refusal> {
    let mut watch = keeper.ask(&Ask::Attach { exec, stdout_from: u64::MAX, stderr_from: u64::MAX }).await?;
    watch.answer().await?;
    keeper.call(&Ask::Signal { exec, signal: KILL }).await?;
    let ended = async {
        while let Ok(Some(frame)) = watch.next().await {
            if matches!(frame, Frame::Said(Said::Ended { .. } | Said::Failed(_))) {
                break;
            }
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.map_err(|_| {
        Refusal(ApiError::plain(Code::Busy, "end the context", "it was killed, and has not ended yet"))
    })
}

/// The kernels that run.
async fn kernels(keeper: &Keeper) -> Result<Vec<ExecStatus>, Refusal> {
    let Said::Execs { execs } = keeper.call(&Ask::List).await? else {
        return Err(Refusal(ApiError::plain(
            Code::Internal,
            "list contexts",
            "the keeper answered something else",
        )));
    };
    Ok(execs.into_iter().filter(|exec| exec.ending.is_none() && id_of(exec).is_some()).collect())
}

async fn find(keeper: &Keeper, id: &str) -> Result<Option<ExecStatus>, Refusal> {
    Ok(kernels(keeper).await?.into_iter().find(|exec| id_of(exec) == Some(id)))
}

fn id_of(exec: &ExecStatus) -> Option<&str> {
    exec.tag.as_deref()?.strip_prefix(TAG)
}

fn context(exec: &ExecStatus) -> Value {
    json!({ "id": id_of(exec), "language": "python", "cwd": exec.cwd })
}

fn judge_language(language: Option<&str>) -> Result<(), Refusal> {
    match language {
        None | Some("" | "python" | "python3") => Ok(()),
        Some(other) => {
            let shown: String = other.chars().take(32).collect();
            let cause = format!("`{shown}` has no kernel");
            Err(Refusal::bad("run the code", cause, "use `python`; run other languages as commands"))
        }
    }
}

fn missing(id: &str) -> Refusal {
    let shown: String = id.chars().take(64).collect();
    let cause = format!("context `{shown}` was not found");
    Refusal(ApiError::new(Code::NotFound, "find the context", cause, "make one first: `POST /contexts`"))
}

fn refused(fault: Fault) -> Refusal {
    Refusal(ApiError::plain(Code::Ending, "hand the code over", fault.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_other_runs_are_passed_over() {
        let line = br#"{"type":"stdout","id":"a","text":"x"}"#;
        assert_eq!(event(line, "a"), Some(json!({ "type": "stdout", "text": "x" })));
        assert_eq!(event(line, "b"), None);
        for odd in [&b"x"[..], b"[]", b"{}", br#"{"id":null,"type":"stdout"}"#, b"\xff"] {
            assert_eq!(event(odd, "a"), None);
        }
    }
}
