//! `fumehood run --explain`: the envelope, the level and why, what holds each clause. Runs nothing.

use crate::prepare::Prepared;
use crate::refusal::Refusal;
use crate::{screen, tasks};
use fumehood_model::egress::Reach;
use fumehood_model::enforcement::{Clause, Enforcement, Mechanism, Strength};
use fumehood_model::envelope::{Cleanup, Envelope, Network, Root};
use fumehood_model::level::{Choice, Level};
use fumehood_model::quantity::{show_bytes, show_cpus, show_duration};
use fumehood_runtime::run::explain;
use serde::Serialize;
use std::path::PathBuf;

/// What `--explain --json` prints.
#[derive(Serialize)]
struct Explained<'a> {
    level: &'a Choice,
    envelope: &'a Envelope,
    enforcement: &'a Enforcement,
    toolchains: &'a [PathBuf],
    environment: Vec<String>,
    command: Where<'a>,
    notes: &'a [String],
}

/// Where the command resolves.
#[derive(Serialize)]
struct Where<'a> {
    name: Option<String>,
    inside: Option<String>,
    host: Option<String>,
    flag: Option<&'a str>,
}

/// Prints it.
pub(crate) fn say(prepared: &Prepared, json: bool) -> Result<(), Refusal> {
    let enforcement = enforcement(prepared)?;
    let request = &prepared.request;
    let names: Vec<String> =
        request.exec.env.iter().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
    let shown = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let command = Where {
        name: request.exec.argv.first().map(|word| word.to_string_lossy().into_owned()),
        inside: shown(&prepared.resolution.inside),
        host: shown(&prepared.resolution.host),
        flag: prepared.resolution.flag.as_deref(),
    };
    if json {
        screen::say_json(&Explained {
            level: &request.choice,
            envelope: &request.envelope,
            enforcement: &enforcement,
            toolchains: &request.toolchains,
            environment: names,
            command,
            notes: &prepared.notes,
        });
        return Ok(());
    }
    screen::say(&text(prepared, &enforcement, &names, &command));
    Ok(())
}

/// What would hold each clause. Nothing is started.
fn enforcement(prepared: &Prepared) -> Result<Enforcement, Refusal> {
    let state = tasks::state()?;
    explain(prepared.backend.as_ref(), &state, &prepared.request)
        .map_err(|no| Refusal::new("plan the sandbox", no.to_string(), no.remedy))
}

fn text(prepared: &Prepared, enforcement: &Enforcement, names: &[String], command: &Where<'_>) -> String {
    let request = &prepared.request;
    let mut lines = vec![row("level", &format!("{}: {}", request.choice.level, request.choice.reason))];
    for clause in Clause::ALL {
        let mut facts = facts(clause, &request.envelope, request.choice.level);
        facts.extend(enforcement.of(clause).iter().map(held));
        push(&mut lines, clause.name(), &facts);
    }
    let roots: Vec<String> = request.toolchains.iter().map(|root| root.display().to_string()).collect();
    push(&mut lines, "toolchains", &roots);
    push(&mut lines, "variables", &[names.join(" ")]);
    push(&mut lines, "command", &[place(command)]);
    push(&mut lines, "notes", &prepared.notes);
    lines.join("\n")
}

/// What the envelope says in one clause.
fn facts(clause: Clause, envelope: &Envelope, level: Level) -> Vec<String> {
    match clause {
        Clause::Filesystem => file_facts(envelope, level),
        Clause::Network => network_facts(envelope.network()),
        Clause::Privilege => {
            let privilege = envelope.privilege();
            vec![format!(
                "uid {} inside, system calls `{}`, no capability",
                privilege.uid,
                privilege.syscalls.name()
            )]
        }
        Clause::Credentials => secret_facts(envelope),
        Clause::Resources => resource_facts(envelope),
        Clause::Cleanup => vec![match envelope.cleanup() {
            Cleanup::Remove => "all is removed but the layer of a workspace that was changed".to_owned(),
            Cleanup::RemoveAll => "all is removed, the layer of a changed workspace too".to_owned(),
        }],
    }
}

fn network_facts(network: &Network) -> Vec<String> {
    let Network { egress, publish } = network;
    let mut facts = match egress {
        None => vec!["none: no route exists".to_owned()],
        Some(egress) => {
            let mut facts = vec![match egress.reach {
                Reach::Names => "dns: public names resolve, nothing connects".to_owned(),
                Reach::Rules => "allow: only what the rules name".to_owned(),
                Reach::Public => "proxy: every public host, recorded".to_owned(),
            }];
            facts.extend(egress.rules.iter().map(|rule| format!("rule: {rule}")));
            facts.extend(egress.ranges.iter().map(|range| format!("range: {range}")));
            facts.extend(
                egress.resolutions.iter().map(|known| format!("{} may be in {}", known.hosts, known.range)),
            );
            facts.extend(egress.ceilings.iter().map(|ceiling| match &ceiling.hosts {
                None => format!("ceiling: {} {}", ceiling.most, ceiling.of.name()),
                Some(hosts) => format!("ceiling: {} {} for {hosts}", ceiling.most, ceiling.of.name()),
            }));
            facts.extend(egress.upstream.iter().map(|up| format!("through {}:{}", up.host, up.port)));
            facts
        }
    };
    facts.extend(
        publish.iter().map(|port| format!("127.0.0.1:{} of the host leads to {}", port.host_port, port.port)),
    );
    facts
}

fn secret_facts(envelope: &Envelope) -> Vec<String> {
    let secrets = envelope.secrets();
    if secrets.is_empty() {
        return vec!["no secret".to_owned()];
    }
    secrets
        .iter()
        .map(|secret| format!("secret {} ({}): a placeholder inside", secret.name, secret.source.kind()))
        .collect()
}

fn file_facts(envelope: &Envelope, level: Level) -> Vec<String> {
    let files = envelope.filesystem();
    let mut facts = vec![match &files.root {
        Root::HostSystem if level == Level::Wasm => "root: the engine, and no system".to_owned(),
        Root::HostSystem => "root: the host's system folders, read-only".to_owned(),
        Root::Image(image) => format!("root: image `{}`, {}, read-only", image.name, image.digest),
        Root::Directory(folder) => format!("root: `{}`, read-only", folder.display()),
    }];
    facts.push(match &files.workspace {
        Some(workspace) => format!("/workspace: `{}`, {}", workspace.source.display(), workspace.mode.name()),
        None => "/workspace: empty, gone afterwards".to_owned(),
    });
    facts.extend(
        files.mounts.iter().map(|m| format!("{}: `{}`, read-only", m.at.display(), m.source.display())),
    );
    facts.extend(
        files.inputs.iter().map(|i| format!("{}: a copy of `{}`", i.at.display(), i.source.display())),
    );
    facts.extend(
        files.output.iter().map(|out| format!("/out: plain files are collected in `{}`", out.display())),
    );
    facts.extend(files.caches.iter().map(|cache| format!("cache: {cache}")));
    facts.extend(files.session.iter().map(|name| format!("session: {name}")));
    facts
}

fn resource_facts(envelope: &Envelope) -> Vec<String> {
    let limits = envelope.resources();
    let time = limits.timeout.map_or_else(|| "none (a terminal)".to_owned(), show_duration);
    vec![
        format!("memory {}, processors {}", show_bytes(limits.memory_bytes), show_cpus(limits.cpu_millis)),
        format!("processes {}, open files {}", limits.processes, limits.open_files),
        format!("disk {}, one file {}", show_bytes(limits.disk_bytes), show_bytes(limits.file_size_bytes)),
        format!("time {time}, output {}", show_bytes(limits.output_bytes)),
    ]
}

fn held(mechanism: &Mechanism) -> String {
    // What is only noticed after the fact is not held.
    let how = match mechanism.strength {
        Strength::Watch => "watched by",
        Strength::Kernel => "held by",
    };
    format!("{how} {}: {}", mechanism.name, mechanism.detail)
}

fn place(command: &Where<'_>) -> String {
    match (&command.name, &command.inside, &command.host) {
        (None, _, _) => "none given".to_owned(),
        (Some(name), Some(inside), _) => format!("{name} is {inside}"),
        (Some(name), None, Some(host)) => {
            let way = command.flag.map(|flag| format!("; `{flag}` brings it in")).unwrap_or_default();
            format!("{name} is not inside; the host has {host}{way}")
        }
        (Some(name), None, None) => format!("{name} is neither inside nor on the host"),
    }
}

fn push(lines: &mut Vec<String>, name: &str, facts: &[String]) {
    for (index, fact) in facts.iter().enumerate() {
        lines.push(row(if index == 0 { name } else { "" }, fact));
    }
}

fn row(name: &str, text: &str) -> String {
    format!("{name:<12}{text}")
}
