//! `filesystem.Filesystem`: files and folders, over the keeper's verbs.

use super::Door;
use super::connect::{self, Envelopes, Fault, Status};
use super::entries::{self, absolute, look, parent};
use super::envd::{enter, strange};
use super::route::Guest;
use super::watchers::Events;
use crate::error::{ApiError, Code};
use crate::keeper::{Conversation, Frame, Keeper};
use crate::live::Use;
use crate::stream::Tap;
use axum::body::Body;
use axum::response::Response;
use fumehood_keep::wire::{Ask, Change, MOST_PATH_BYTES, Said};
use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};

/// The deepest list.
const MOST_DEPTH: u32 = 64;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Asked {
    path: String,
    source: String,
    destination: String,
    depth: u32,
    recursive: bool,
    include_entry: bool,
    watcher_id: String,
}

/// A folder that is being watched.
struct Watched {
    entered: Use,
    conversation: Conversation,
    path: String,
    includes_entry: bool,
}

pub(super) async fn serve(
    door: &Door,
    guest: Guest,
    method: &str,
    headers: HeaderMap,
    body: Body,
) -> Response {
    if method == "WatchDir" {
        let watched = match Envelopes::new(&headers, body) {
            Ok(mut envelopes) => match envelopes.one().await {
                Ok(asked) => watch(&guest, asked).await,
                Err(fault) => Err(fault),
            },
            Err(fault) => Err(fault),
        };
        return match watched {
            Err(fault) => connect::failed(&fault),
            Ok(watched) => {
                let (tap, response) = connect::streaming();
                let keepalive = connect::keepalive(&headers);
                let until = connect::timeout(&headers).ok().flatten();
                tokio::spawn(async move { pour(watched, &tap, keepalive, until).await });
                response
            }
        };
    }
    connect::answer(unary(door, &guest, method, &headers, body).await)
}

async fn unary(
    door: &Door,
    guest: &Guest,
    method: &str,
    headers: &HeaderMap,
    body: Body,
) -> Result<Value, Fault> {
    let asked: Asked = connect::unary(headers, body).await?;
    let sandbox = guest.live.id().as_str();
    match method {
        "GetWatcherEvents" => {
            return Ok(json!({ "events": door.watchers.take(sandbox, &asked.watcher_id)? }));
        }
        "RemoveWatcher" => {
            door.watchers.remove(sandbox, &asked.watcher_id)?;
            return Ok(json!({}));
        }
        "CreateWatcher" => {
            let watched = watch(guest, asked).await?;
            let events = Events::default();
            let task = tokio::spawn(gather(watched, events.clone()));
            let id = door.watchers.keep(&guest.engine, sandbox, events, task.abort_handle())?;
            return Ok(json!({ "watcherId": id }));
        }
        _ => {}
    }
    let entered = enter(guest).await?;
    let keeper = entered.keeper();
    match method {
        "Stat" => entry(keeper, &path(guest, &asked.path)?).await,
        "MakeDir" => {
            let path = path(guest, &asked.path)?;
            keeper.call(&Ask::MakeDir { path: path.clone() }).await?;
            entry(keeper, &path).await
        }
        "Move" => rename(keeper, &path(guest, &asked.source)?, &path(guest, &asked.destination)?).await,
        "ListDir" => list(keeper, path(guest, &asked.path)?, asked.depth).await,
        "Remove" => {
            match keeper.call(&Ask::Remove { path: path(guest, &asked.path)? }).await.map_err(ApiError::from)
            {
                Ok(_) => Ok(json!({})),
                // What is not there is removed already.
                Err(error) if error.code == Code::NotFound => Ok(json!({})),
                Err(error) => Err(error.into()),
            }
        }
        other => {
            let shown: String = other.chars().take(64).collect();
            Err(Fault::new(Status::Unimplemented, format!("there is no method `{shown}`")))
        }
    }
}

fn path(guest: &Guest, asked: &str) -> Result<String, Fault> {
    if asked.len() > MOST_PATH_BYTES || asked.contains('\0') {
        return Err(Fault::new(Status::InvalidArgument, "the path is too long, or has a NUL"));
    }
    Ok(absolute(&guest.live.sandbox().home, asked))
}

async fn entry(keeper: &Keeper, path: &str) -> Result<Value, Fault> {
    let entry = look(keeper, path).await?;
    Ok(json!({ "entry": entries::words(keeper, &entry).await }))
}

async fn rename(keeper: &Keeper, from: &str, to: &str) -> Result<Value, Fault> {
    // With the folders to it, as a write has them. What is wrong with them the move itself tells.
    match keeper.call(&Ask::MakeDir { path: parent(to).to_owned() }).await.map_err(ApiError::from) {
        Ok(_) => {}
        Err(error) if matches!(error.code, Code::Exists | Code::Denied | Code::NotAFolder) => {}
        Err(error) => return Err(error.into()),
    }
    keeper.call(&Ask::Move { from: from.to_owned(), to: to.to_owned() }).await?;
    entry(keeper, to).await
}

async fn list(keeper: &Keeper, path: String, depth: u32) -> Result<Value, Fault> {
    let depth = depth.clamp(1, MOST_DEPTH);
    match keeper.call(&Ask::ListDir { path, depth }).await? {
        Said::Entries { cut: true, entries } => {
            let message = format!("the folder has more than {} entries; list its parts", entries.len());
            Err(Fault::new(Status::ResourceExhausted, message))
        }
        Said::Entries { entries, .. } => Ok(json!({ "entries": entries::all(keeper, &entries).await })),
        _ => Err(strange("Entries")),
    }
}

async fn watch(guest: &Guest, asked: Asked) -> Result<Watched, Fault> {
    let path = path(guest, &asked.path)?;
    let entered = enter(guest).await?;
    let ask = Ask::Watch { path: path.clone(), recursive: asked.recursive };
    let mut conversation = entered.keeper().ask(&ask).await?;
    match conversation.answer().await? {
        Said::Done => Ok(Watched { entered, conversation, path, includes_entry: asked.include_entry }),
        _ => Err(strange("Done")),
    }
}

async fn gather(mut watched: Watched, events: Events) {
    loop {
        match next(&mut watched).await {
            Ok((path, change)) => events.add(event(&watched, &path, change).await),
            Err(fault) => return events.end(fault),
        }
    }
}

async fn pour(
    mut watched: Watched,
    tap: &Tap,
    keepalive: std::time::Duration,
    until: Option<std::time::Duration>,
) {
    if !tap.bytes(connect::message(&json!({ "start": {} }))).await {
        return;
    }
    let end = async {
        match until {
            Some(until) => tokio::time::sleep(until).await,
            None => std::future::pending().await,
        }
    };
    let mut end = std::pin::pin!(end);
    let fault = loop {
        let change = tokio::select! {
            change = next(&mut watched) => change,
            () = tap.closed() => return,
            () = end.as_mut() => break Fault::new(Status::DeadlineExceeded, "the watch's time is over"),
            () = tokio::time::sleep(keepalive) => {
                tap.bytes(connect::message(&json!({ "keepalive": {} }))).await;
                continue;
            }
        };
        match change {
            Ok((path, change)) => {
                let event = event(&watched, &path, change).await;
                if !tap.bytes(connect::message(&json!({ "filesystem": event }))).await {
                    return;
                }
            }
            Err(fault) => break fault,
        }
    };
    tap.bytes(connect::last(Some(&fault))).await;
}

/// The next change. May be dropped between polls and loses nothing.
async fn next(watched: &mut Watched) -> Result<(String, Change), Fault> {
    loop {
        match watched.conversation.next().await? {
            Some(Frame::Said(Said::Changed { path, change })) => return Ok((path, change)),
            Some(Frame::Said(Said::Failed(failure))) => return Err(ApiError::from(failure).into()),
            Some(Frame::Said(_) | Frame::Bytes(..)) => {}
            None => return Err(Fault::new(Status::Unavailable, "the keeper ended the watch")),
        }
    }
}

/// A change in envd's words.
async fn event(watched: &Watched, path: &str, change: Change) -> Value {
    let below = path.strip_prefix(watched.path.trim_end_matches('/')).unwrap_or(path);
    let mut event = json!({ "name": below.trim_start_matches('/'), "type": word(change) });
    let keeper = watched.entered.keeper();
    if watched.includes_entry
        && let Ok(entry) = look(keeper, path).await
        && let Some(event) = event.as_object_mut()
    {
        event.insert("entry".to_owned(), entries::words(keeper, &entry).await);
    }
    event
}

const fn word(change: Change) -> &'static str {
    match change {
        Change::Created => "EVENT_TYPE_CREATE",
        Change::Written => "EVENT_TYPE_WRITE",
        Change::Removed => "EVENT_TYPE_REMOVE",
        Change::Moved => "EVENT_TYPE_RENAME",
        Change::Mode => "EVENT_TYPE_CHMOD",
    }
}
