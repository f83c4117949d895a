//! `process.Process`: commands and terminals, over the keeper's execs.
//!
//! A client that goes away ends nothing. Its deadline does: a command is given as long as its client said it waits.

use super::connect::{self, Envelopes, Fault, Status};
use super::entries::absolute;
use super::envd::{enter, strange};
use super::interpreter;
use super::route::Guest;
use crate::keeper::{Conversation, Frame, Keeper};
use crate::live::Use;
use crate::stream::Tap;
use axum::body::Body;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fumehood_keep::frame::Kind;
use fumehood_keep::wire::{Ask, Exec, ExecStatus, Said};
use fumehood_model::ending::Ending;
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

const MOST_SIDE: u32 = 4096;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StartRequest {
    process: Config,
    pty: Option<Pty>,
    tag: Option<String>,
    /// Clients that do not say so keep the input open.
    stdin: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    cmd: String,
    args: Vec<String>,
    envs: BTreeMap<String, String>,
    cwd: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pty {
    size: Option<Size>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Size {
    cols: u32,
    rows: u32,
}

/// Which process: by number, or by name.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Selector {
    pid: Option<u32>,
    tag: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Selected {
    process: Selector,
    pty: Option<Pty>,
    input: Input,
    signal: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Input {
    stdin: Option<String>,
    pty: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Piece {
    start: Option<Selected>,
    data: Option<Selected>,
}

/// A command that is being followed.
struct Followed {
    entered: Use,
    conversation: Conversation,
    pid: u32,
    keepalive: Duration,
    /// When the client stops waiting, where that ends no command.
    until: Option<Instant>,
}

pub(super) async fn serve(guest: Guest, method: &str, headers: HeaderMap, body: Body) -> Response {
    match method {
        "Start" => stream(start(&guest, &headers, body).await),
        "Connect" => stream(attach(&guest, &headers, body).await),
        "StreamInput" => match stream_input(&guest, &headers, body).await {
            Ok(()) => {
                let (tap, response) = connect::streaming();
                tap.bytes(connect::message(&json!({}))).await;
                tap.bytes(connect::last(None)).await;
                response
            }
            Err(fault) => connect::failed(&fault),
        },
        "List" => connect::answer(list(&guest).await),
        method => connect::answer(unary(&guest, method, &headers, body).await),
    }
}

async fn unary(guest: &Guest, method: &str, headers: &HeaderMap, body: Body) -> Result<Value, Fault> {
    let asked: Selected = connect::unary(headers, body).await?;
    let entered = enter(guest).await?;
    let keeper = entered.keeper();
    let exec = find(keeper, &asked.process, true).await?.exec;
    match method {
        "Update" => {
            if let Some(size) = asked.pty.and_then(|pty| pty.size) {
                let (rows, columns) = sides(size)?;
                keeper.call(&Ask::Resize { exec, rows, columns }).await?;
            }
        }
        "SendInput" => feed(keeper, exec, &asked.input.bytes()?).await?,
        "SendSignal" => {
            let signal = signal(&asked.signal)?;
            keeper.call(&Ask::Signal { exec, signal }).await?;
        }
        "CloseStdin" => {
            let mut conversation = keeper.ask(&Ask::Input { exec }).await?;
            conversation.send(Kind::InputEnd, b"").await?;
            conversation.answer().await?;
        }
        other => {
            let shown: String = other.chars().take(64).collect();
            return Err(Fault::new(Status::Unimplemented, format!("there is no method `{shown}`")));
        }
    }
    Ok(json!({}))
}

async fn start(guest: &Guest, headers: &HeaderMap, body: Body) -> Result<Followed, Fault> {
    let asked: StartRequest = Envelopes::new(headers, body)?.one().await?;
    let timeout = connect::timeout(headers)?;
    guest.engine.quotas().exec(&guest.live.team(), guest.live.sandbox().key.as_deref())?;
    let entered = enter(guest).await?;
    let home = guest.live.sandbox().home;
    let Config { cmd, args, envs, cwd } = asked.process;
    if cmd.is_empty() {
        return Err(Fault::new(Status::InvalidArgument, "`process.cmd` is empty"));
    }
    let terminal = match asked.pty {
        Some(pty) => Some(sides(pty.size.unwrap_or(Size { cols: 80, rows: 24 }))?),
        None => None,
    };
    let exec = Exec {
        argv: std::iter::once(cmd).chain(args).collect(),
        env: envs.into_iter().collect(),
        cwd: Some(absolute(&home, cwd.as_deref().unwrap_or(""))),
        terminal,
        stdin: terminal.is_some() || asked.stdin.unwrap_or(true),
        timeout_ms: timeout.map(crate::clock::millis),
        tag: asked.tag.filter(|tag| !tag.is_empty()),
        actor: guest.actor.clone(),
    };
    follow(entered, &Ask::Exec(exec), headers, None).await
}

/// Follows a command from now on.
async fn attach(guest: &Guest, headers: &HeaderMap, body: Body) -> Result<Followed, Fault> {
    let asked: Selected = Envelopes::new(headers, body)?.one().await?;
    let until = connect::timeout(headers)?.and_then(|timeout| Instant::now().checked_add(timeout));
    let entered = enter(guest).await?;
    let found = find(entered.keeper(), &asked.process, false).await?;
    let ask =
        Ask::Attach { exec: found.exec, stdout_from: found.stdout_bytes, stderr_from: found.stderr_bytes };
    follow(entered, &ask, headers, until).await
}

async fn follow(
    entered: Use,
    ask: &Ask,
    headers: &HeaderMap,
    until: Option<Instant>,
) -> Result<Followed, Fault> {
    let mut conversation = entered.keeper().ask(ask).await?;
    match conversation.answer().await? {
        Said::Started { pid, .. } => {
            Ok(Followed { entered, conversation, pid, keepalive: connect::keepalive(headers), until })
        }
        _ => Err(strange("Started")),
    }
}

fn stream(followed: Result<Followed, Fault>) -> Response {
    match followed {
        Err(fault) => connect::failed(&fault),
        Ok(followed) => {
            let (tap, response) = connect::streaming();
            tokio::spawn(async move { pour(followed, &tap).await });
            response
        }
    }
}

async fn pour(mut followed: Followed, tap: &Tap) {
    let start = json!({ "event": { "start": { "pid": followed.pid } } });
    if !tap.bytes(connect::message(&start)).await {
        return;
    }
    let fault = loop {
        let next = tokio::select! {
            frame = followed.conversation.next() => frame,
            () = tap.closed() => return,
            () = tokio::time::sleep(followed.keepalive) => {
                tap.bytes(connect::message(&json!({ "event": { "keepalive": {} } }))).await;
                continue;
            }
            () = until(followed.until) => {
                break Some(Fault::new(Status::DeadlineExceeded, "the command runs on; its client stopped waiting"));
            }
        };
        match next {
            Ok(Some(Frame::Bytes(kind, bytes))) => {
                if !tap.bytes(data(kind, &bytes)).await {
                    return;
                }
            }
            Ok(Some(Frame::Said(Said::Ended { ending, .. }))) => match end(&ending) {
                Ok(words) => {
                    tap.bytes(connect::message(&words)).await;
                    break None;
                }
                Err(fault) => break Some(fault),
            },
            Ok(Some(Frame::Said(Said::Failed(failure)))) => {
                break Some(crate::error::ApiError::from(failure).into());
            }
            Ok(Some(Frame::Said(_))) => {}
            // Never an invented ending: a stream that breaks says that it broke.
            Ok(None) => {
                break Some(Fault::new(Status::Unavailable, "the keeper ended before the command did"));
            }
            Err(error) => break Some(error.into()),
        }
    };
    tap.bytes(connect::last(fault.as_ref())).await;
    drop(followed.entered);
}

async fn until(end: Option<Instant>) {
    match end {
        Some(end) => tokio::time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}

fn data(kind: Kind, bytes: &[u8]) -> bytes::Bytes {
    let name: &[u8] = match kind {
        Kind::Stderr => b"stderr",
        Kind::Terminal => b"pty",
        Kind::Stdout | Kind::Json | Kind::Input | Kind::InputEnd | Kind::Data | Kind::DataEnd => b"stdout",
    };
    let text = STANDARD.encode(bytes);
    connect::envelope(0, &[br#"{"event":{"data":{""#, name, br#"":""#, text.as_bytes(), br#""}}}"#])
}

/// How a command ended, in envd's words. One that ran out of time has none.
fn end(ending: &Ending) -> Result<Value, Fault> {
    let (code, exited, status, error) = match ending {
        Ending::Exited { code } => (i64::from(*code), true, format!("exit status {code}"), None),
        Ending::TimedOut { limit_ms } => {
            let message = format!("the command was ended after {limit_ms} ms, as its client asked");
            return Err(Fault::new(Status::DeadlineExceeded, message));
        }
        Ending::Signalled { name, .. } | Ending::Killed { name, .. } => {
            (-1, false, format!("signal: {name}"), Some(format!("signal: {name}")))
        }
        Ending::OutOfMemory { limit, limit_bytes, peak_bytes } => {
            let cause = format!("out of memory: {limit} is {limit_bytes} bytes, {peak_bytes} were used");
            (137, false, "signal: SIGKILL".to_owned(), Some(cause))
        }
        Ending::LimitPassed { limit, limit_bytes, peak_bytes } => {
            let cause = format!("limit passed: {limit} is {limit_bytes} bytes, {peak_bytes} were used");
            (-1, false, "limit passed".to_owned(), Some(cause))
        }
        Ending::NotStarted { step, why, remedy } => {
            return Err(Fault::new(Status::InvalidArgument, format!("failed to {step}: {why}; {remedy}")));
        }
        Ending::Halted => (-1, false, "halted".to_owned(), Some("the kill switch ended it".to_owned())),
        Ending::Lost => return Err(Fault::new(Status::Unavailable, "the command was lost with its keeper")),
    };
    let mut words = json!({ "exitCode": code, "exited": exited, "status": status });
    if let (Some(error), Some(words)) = (error, words.as_object_mut()) {
        words.insert("error".to_owned(), json!(error));
    }
    Ok(json!({ "event": { "end": words } }))
}

async fn execs(keeper: &Keeper) -> Result<Vec<ExecStatus>, Fault> {
    match keeper.call(&Ask::List).await? {
        Said::Execs { execs } => Ok(execs),
        _ => Err(strange("Execs")),
    }
}

async fn list(guest: &Guest) -> Result<Value, Fault> {
    let entered = enter(guest).await?;
    let execs = execs(entered.keeper()).await?;
    let shown = execs.iter().filter(|exec| exec.ending.is_none() && !is_kernel(exec)).map(|exec| {
        let (cmd, args) = exec.argv.split_first().map_or(("", &[][..]), |(cmd, args)| (cmd.as_str(), args));
        let mut words = json!({
            "config": { "cmd": cmd, "args": args, "envs": {}, "cwd": exec.cwd },
            "pid": exec.pid,
        });
        if let (Some(tag), Some(words)) = (&exec.tag, words.as_object_mut()) {
            words.insert("tag".to_owned(), json!(tag));
        }
        words
    });
    Ok(json!({ "processes": shown.collect::<Vec<_>>() }))
}

fn is_kernel(exec: &ExecStatus) -> bool {
    exec.tag.as_deref().is_some_and(|tag| tag.starts_with(interpreter::TAG))
}

/// The newest command that is meant.
async fn find(keeper: &Keeper, selector: &Selector, runs: bool) -> Result<ExecStatus, Fault> {
    let is_meant = |exec: &ExecStatus| match (selector.pid, &selector.tag) {
        (Some(pid), _) => exec.pid == pid,
        (None, Some(tag)) => exec.tag.as_ref() == Some(tag),
        (None, None) => false,
    };
    let meant = execs(keeper).await?.into_iter().filter(|exec| is_meant(exec) && !is_kernel(exec));
    let newest = meant.max_by_key(|exec| (exec.ending.is_none(), exec.exec));
    newest.filter(|exec| !runs || exec.ending.is_none()).ok_or_else(|| {
        let which = match (selector.pid, &selector.tag) {
            (Some(pid), _) => format!("with pid {pid}"),
            (None, Some(tag)) => format!("with tag {}", tag.chars().take(128).collect::<String>()),
            (None, None) => return Fault::new(Status::InvalidArgument, "no process is selected"),
        };
        Fault::new(Status::NotFound, format!("process {which} not found"))
    })
}

/// Gives input to a command.
pub(super) async fn feed(keeper: &Keeper, exec: u32, bytes: &[u8]) -> Result<(), Fault> {
    if bytes.is_empty() {
        return Ok(());
    }
    let (mut hear, mut speak) = keeper.ask(&Ask::Input { exec }).await?.split();
    let send = async {
        speak.send(Kind::Input, bytes).await?;
        speak.close().await
    };
    // A command that is gone says so before all is sent.
    let (sent, answer) = tokio::join!(send, hear.answer());
    answer?;
    Ok(sent?)
}

async fn stream_input(guest: &Guest, headers: &HeaderMap, body: Body) -> Result<(), Fault> {
    let mut envelopes = Envelopes::new(headers, body)?;
    let entered = enter(guest).await?;
    let mut exec = None;
    while let Some(piece) = envelopes.next::<Piece>().await? {
        if let Some(start) = piece.start {
            exec = Some(find(entered.keeper(), &start.process, true).await?.exec);
        }
        if let Some(data) = piece.data {
            let exec = exec.ok_or_else(|| {
                Fault::new(Status::InvalidArgument, "the first message does not say which process is meant")
            })?;
            feed(entered.keeper(), exec, &data.input.bytes()?).await?;
        }
    }
    Ok(())
}

fn signal(value: &Value) -> Result<u8, Fault> {
    match (value.as_str(), value.as_u64()) {
        (Some("SIGNAL_SIGKILL"), _) | (_, Some(9)) => Ok(9),
        (Some("SIGNAL_SIGTERM"), _) | (_, Some(15)) => Ok(15),
        (_, _) => Err(Fault::new(Status::InvalidArgument, "a signal is SIGNAL_SIGTERM or SIGNAL_SIGKILL")),
    }
}

fn sides(size: Size) -> Result<(u16, u16), Fault> {
    let side = |side: u32| u16::try_from(side).ok().filter(|_| (1..=MOST_SIDE).contains(&side));
    side(size.rows).zip(side(size.cols)).ok_or_else(|| {
        let message = format!("a terminal has 1 to {MOST_SIDE} rows and columns");
        Fault::new(Status::InvalidArgument, message)
    })
}

// === impl Input ===

impl Input {
    fn bytes(&self) -> Result<Vec<u8>, Fault> {
        let text = self.stdin.as_deref().or(self.pty.as_deref()).unwrap_or("");
        STANDARD
            .decode(text)
            .map_err(|error| Fault::new(Status::InvalidArgument, format!("read the input: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_is_never_an_invented_code() {
        let exited = end(&Ending::Exited { code: 3 }).unwrap();
        assert_eq!(
            exited,
            json!({ "event": { "end": { "exitCode": 3, "exited": true, "status": "exit status 3" } } })
        );
        assert_eq!(end(&Ending::Lost).unwrap_err().status, Status::Unavailable);
        assert_eq!(end(&Ending::TimedOut { limit_ms: 5 }).unwrap_err().status, Status::DeadlineExceeded);
    }

    #[test]
    fn output_of_any_bytes_is_json() {
        let bytes = data(Kind::Stderr, &[0, 255, b'"', b'\n']);
        let words: Value = serde_json::from_slice(&bytes[5..]).unwrap();
        assert_eq!(words, json!({ "event": { "data": { "stderr": "AP8iCg==" } } }));
    }

    #[test]
    fn signals_and_sizes_are_read() {
        assert_eq!(signal(&json!("SIGNAL_SIGKILL")).unwrap(), 9);
        assert_eq!(signal(&json!(15)).unwrap(), 15);
        assert!(signal(&json!("SIGHUP")).is_err());
        assert!(sides(Size { cols: 0, rows: 5 }).is_err());
        assert_eq!(sides(Size { cols: 80, rows: 24 }).unwrap(), (24, 80));
    }
}
