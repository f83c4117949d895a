//! Interpreters that were prepared with pandas: from asking for a fork, or for a sandbox of the template, to the first
//! output; what one more costs in memory; a hundred at once; beside one that imports for itself.

use super::http::Client;
use super::{Daemon, Result, create_of, least, most, pss, say};
use crate::measure::Times;
use crate::run::{self, Done};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const ROUNDS: usize = 50;
const IMPORTS: usize = 10;
const MANY: usize = 100;
/// Where the packages are seen.
const PACKAGES: &str = "/packages";
const PREPARE: &str = "import sys; sys.path.insert(0, '/packages'); import pandas as pd";
const FIRST: &str = "print(pd.__version__, flush=True)";

/// The figures, with pandas of PyPI in a folder of its own.
pub(crate) fn judge() -> Done {
    let binary = run::release()?;
    let daemon = Daemon::make(&binary, &["--pool", "0"], &template)?;
    let mut client = daemon.client()?;
    // The first one prepares.
    let began = Instant::now();
    let parent = create_of(&mut client, r#"{"template": "pandas"}"#)?;
    say("preparing the template once, ms", began.elapsed().as_secs_f64() * 1e3, "");
    let forked = forks(&mut client, &parent)?;
    let claimed = claims(&mut client)?;
    let imported = imports(&mut client, &parent)?;
    let ratio = imported.quantile(0.5) / forked.quantile(0.5);
    say("fork to first output with pandas, p95 ms", forked.quantile(0.95), "");
    say("claim of the template to first output with pandas, p50 ms", claimed.quantile(0.5), "");
    say("an import of pandas in a live sandbox to first output, p50 ms", imported.quantile(0.5), "");
    run::together([
        most("fork to first output with pandas, p50 ms", forked.quantile(0.5), 15.0),
        least("that import, in such forks", ratio, 1.0),
        memory(&mut client, &parent),
        many(&daemon, &mut client, &parent),
    ])
}

/// Pandas, and a template that shows and prepares it.
fn template(state: &Path, folder: &Path) -> Done {
    let packages = folder.join("packages");
    let mut install = Command::new("/usr/bin/python3");
    install.args(["-m", "pip", "install", "--quiet", "--no-compile", "--only-binary", ":all:", "--target"]);
    if run::must(install.arg(&packages).arg("pandas")).is_err() {
        return Err("pandas could not be installed by `/usr/bin/python3 -m pip`".into());
    }
    // Not compiled again by each who imports.
    run::must(Command::new("/usr/bin/python3").args(["-m", "compileall", "-q"]).arg(&packages))?;
    std::fs::create_dir_all(state.join("serve/templates"))?;
    let text = format!(
        "level = \"container\"\nwarm = {{ prepare = \"{PREPARE}\", interpreter = \"/usr/bin/python3\" }}\n\
         [envelope.filesystem]\nread-only = [\"{}:{PACKAGES}\"]\n",
        packages.display()
    );
    std::fs::write(state.join("serve/templates/pandas.toml"), text)?;
    Ok(())
}

/// Starts the code in a sandbox, and waits for its first byte and its end.
fn first(client: &mut Client, id: &str, body: &serde_json::Value, began: Instant) -> Result<u128> {
    let path = format!("/v1/sandboxes/{id}/execs?output=raw");
    let mut first = None;
    client.ask("POST", &path, &body.to_string())?.drain(&mut |_| {
        first.get_or_insert_with(|| began.elapsed().as_nanos());
    })?;
    first.ok_or_else(|| "no output".into())
}

fn code(code: &str) -> serde_json::Value {
    serde_json::json!({ "warm": true, "argv": ["-c", code] })
}

fn fork(client: &mut Client, parent: &str, count: usize) -> Result<Vec<String>> {
    let path = format!("/v1/sandboxes/{parent}/fork");
    let made = client.call("POST", &path, &format!(r#"{{"count": {count}}}"#))?;
    let id =
        |child: &serde_json::Value| Ok(child["sandbox"]["id"].as_str().ok_or("a fork failed")?.to_owned());
    made.as_array().ok_or("no forks")?.iter().map(id).collect()
}

fn end(client: &mut Client, id: &str) -> Done {
    client.call("DELETE", &format!("/v1/sandboxes/{id}"), "").map(drop)
}

fn forks(client: &mut Client, parent: &str) -> Result<Times> {
    let mut times = Times::default();
    for round in 0..ROUNDS + 5 {
        let began = Instant::now();
        let child = fork(client, parent, 1)?.remove(0);
        let took = first(client, &child, &code(FIRST), began)?;
        if round >= 5 {
            times.add(took);
        }
        end(client, &child)?;
    }
    Ok(times)
}

/// Sandboxes of the template, of which some wait.
fn claims(client: &mut Client) -> Result<Times> {
    let mut times = Times::default();
    for round in 0..ROUNDS + 5 {
        std::thread::sleep(Duration::from_millis(50));
        let began = Instant::now();
        let id = create_of(client, r#"{"template": "pandas"}"#)?;
        let took = first(client, &id, &code(FIRST), began)?;
        if round >= 5 {
            times.add(took);
        }
        end(client, &id)?;
    }
    Ok(times)
}

/// As it is without: the same line, and the interpreter begins from nothing.
fn imports(client: &mut Client, parent: &str) -> Result<Times> {
    let body = serde_json::json!({ "argv": ["/usr/bin/python3", "-c", format!("{PREPARE}; {FIRST}")] });
    let mut times = Times::default();
    for round in 0..=IMPORTS {
        let took = first(client, parent, &body, Instant::now())?;
        if round > 0 {
            times.add(took);
        }
    }
    Ok(times)
}

/// What a process of its own takes when it has said its first and waits: pages that nobody shares.
fn memory(client: &mut Client, parent: &str) -> Done {
    let look = "print(next(line for line in open('/proc/self/smaps_rollup') if line.startswith('Anonymous:')).split()[1])";
    let mut seen = Vec::new();
    for child in fork(client, parent, 10)? {
        let path = format!("/v1/sandboxes/{child}/execs?output=whole");
        let answer = client.call("POST", &path, &code(look).to_string())?;
        let text = answer["stdout"]["text"].as_str().ok_or("no output")?;
        seen.push(text.trim().parse::<u32>()?);
        end(client, &child)?;
    }
    seen.sort_unstable();
    let mid = seen.get(seen.len() / 2).ok_or("no forks")?;
    most("private memory of a fork's interpreter, KiB", f64::from(*mid), 2048.0)
}

/// A hundred forks, each of which says something.
fn many(daemon: &Daemon, client: &mut Client, parent: &str) -> Done {
    let mut clients = (0..4).map(|_| daemon.client()).collect::<Result<Vec<_>>>()?;
    let began = Instant::now();
    let children = fork(client, parent, MANY)?;
    std::thread::scope(|scope| {
        let parts = children.chunks(MANY.div_ceil(clients.len()));
        let threads: Vec<_> = clients
            .iter_mut()
            .zip(parts)
            .map(|(client, part)| {
                scope.spawn(move || {
                    part.iter().try_for_each(|id| {
                        first(client, id, &code(FIRST), began).map(drop).map_err(|error| error.to_string())
                    })
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a caller panicked".to_owned())?)
    })?;
    let all = began.elapsed().as_secs_f64();
    let keepers = daemon
        .keepers()?
        .iter()
        .try_fold(0, |sum, pid| Ok::<_, Box<dyn std::error::Error>>(sum + pss(*pid)?))?;
    for child in children {
        end(client, &child)?;
    }
    say(
        "a hundred forks, keeper, reaper and init of each, KiB",
        f64::from(u32::try_from(keepers / 101)?),
        "",
    );
    most("a hundred forks with pandas to their outputs, s", all, 1.5)
}
