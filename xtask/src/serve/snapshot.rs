//! Snapshots and forks of a sandbox that changed some megabytes of its copy of a project: for how long it stands still,
//! and how long the whole takes.

use super::http::Client;
use super::{Daemon, Result, create_of, most, say};
use crate::measure::Times;
use crate::run::Done;
use std::path::Path;
use std::time::Instant;

const ROUNDS: u32 = 20;
/// What is changed, in megabytes; the bound is for the one in the middle.
const SIZES: [u32; 3] = [0, 20, 100];
const BOUND_MB: u32 = 20;
/// Of so many files.
const FILES: u32 = 8;

/// What of a snapshot is looked at.
struct Seen {
    frozen: Times,
    whole: Times,
}

/// Every size, and the one in the middle while its files are held open for writing.
pub(crate) fn judge(binary: &Path) -> Done {
    let daemon = Daemon::make(binary, &["--most-pool", "0"], &project)?;
    let mut client = daemon.client()?;
    let mut frozen = Vec::new();
    let mut done = Ok(());
    for megabytes in SIZES {
        let id = changed(&mut client, megabytes)?;
        let seen = snapshots(&mut client, &id)?;
        let what = format!("snapshot with {megabytes} MB changed");
        say(&format!("{what}, as a whole, p50 ms"), seen.whole.quantile(0.5), "");
        let still = format!("{what}: stands still, p50 ms");
        if megabytes == BOUND_MB {
            done = most(&still, seen.frozen.quantile(0.5), 20.0);
            hold(&mut client, &id)?;
            let held = snapshots(&mut client, &id)?.frozen.quantile(0.5);
            say(&format!("{what}, all of it open for writing: stands still, p50 ms"), held, "");
            let per = (held - frozen.first().copied().unwrap_or(0.0)) / f64::from(BOUND_MB);
            say("standing still for a MB that is open for writing, ms", per, "");
        } else {
            say(&still, seen.frozen.quantile(0.5), "");
        }
        frozen.push(seen.frozen.quantile(0.5));
        let began = Instant::now();
        let forked = client.call("POST", &format!("/v1/sandboxes/{id}/fork"), "{}")?;
        say(&format!("fork with {megabytes} MB changed, ms"), began.elapsed().as_secs_f64() * 1e3, "");
        let child = forked[0]["sandbox"]["id"].as_str().ok_or("no fork")?.to_owned();
        for id in [id, child] {
            client.call("DELETE", &format!("/v1/sandboxes/{id}"), "")?;
        }
    }
    done
}

/// A template with a project to be copied on write.
fn project(state: &Path, folder: &Path) -> Done {
    let project = folder.join("project");
    std::fs::create_dir_all(&project)?;
    std::fs::write(project.join("file"), "of the project")?;
    std::fs::create_dir_all(state.join("serve/templates"))?;
    let text = format!("[envelope.filesystem]\nworkspace = \"{}\"\n", project.display());
    std::fs::write(state.join("serve/templates/project.toml"), text)?;
    Ok(())
}

fn changed(client: &mut Client, megabytes: u32) -> Result<String> {
    let id = create_of(client, r#"{"template": "project"}"#)?;
    let each = megabytes * 1_000_000 / FILES;
    let line = format!("for i in $(seq {FILES}); do head -c {each} /dev/urandom > big$i; done; sync");
    let body = serde_json::json!({ "shell": line });
    client.call("POST", &format!("/v1/sandboxes/{id}/execs?output=whole"), &body.to_string())?;
    Ok(id)
}

/// Keeps all files open for writing.
fn hold(client: &mut Client, id: &str) -> Done {
    let line = "exec 3<>big1 4<>big2 5<>big3 6<>big4 7<>big5 8<>big6 9<>big7; sleep 600 8<>big8";
    let body = serde_json::json!({ "shell": line, "detach": true });
    client.call("POST", &format!("/v1/sandboxes/{id}/execs"), &body.to_string())?;
    std::thread::sleep(std::time::Duration::from_millis(300));
    Ok(())
}

fn snapshots(client: &mut Client, id: &str) -> Result<Seen> {
    let mut seen = Seen { frozen: Times::default(), whole: Times::default() };
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let taken = client.call("POST", &format!("/v1/sandboxes/{id}/snapshots"), "{}")?;
        seen.whole.add(began.elapsed().as_nanos());
        let frozen = taken["frozen_us"].as_u64().ok_or("no time")?;
        seen.frozen.add(u128::from(frozen) * 1000);
        let name = taken["name"].as_str().ok_or("no name")?;
        client.call("DELETE", &format!("/v1/snapshots/{name}"), "")?;
    }
    Ok(seen)
}
