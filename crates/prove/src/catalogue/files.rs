//! The file wall: what enters, what leaves, and what crosses on the way.

use super::{ALL, EVERY, MODULE, alone, no_views, together};
use crate::bench::{Bench, Job};
use crate::canary::contains;
use crate::finding::Finding;
use crate::probe::{How, Probe, Side, Wall};
use crate::scene::SECRETS;
use fumehood_model::level::Level;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};
use std::path::Path;

const F: Wall = Wall::Files;
/// Rounds of a race. Each is a run of its own.
const ROUNDS: usize = 2;

pub(super) fn probes() -> Vec<Probe> {
    vec![
        together(
            ("F01", F, "read and list what the caller keeps at home"),
            EVERY,
            How::Bare,
            |scene| {
                let home = scene.home();
                let files = SECRETS.iter().map(|name| home.join(name).display().to_string());
                ["read".to_owned(), scene.secret_file()].into_iter().chain(files).collect()
            },
            |step, scene| step.leaks(&scene.secret),
        ),
        together(
            ("F01L", F, "list the caller's home"),
            ALL,
            How::Bare,
            |scene| vec!["list".to_owned(), scene.home().display().to_string()],
            |step, scene| step.leaks(&scene.secret),
        ),
        alone(("F02", F, "read another sandbox's workspace"), ALL, another_sandbox),
        alone(("F10", F, "write where it may only read, by every way round"), EVERY, |bench, side| {
            spoil(bench, side, "spoil")
        })
        .unless(no_views),
        alone(("F11", F, "remount what it may only read"), ALL, |bench, side| spoil(bench, side, "remount"))
            .unless(no_views),
        alone(("F12", F, "have a file copied in through a link to the host"), ALL, copy_in),
        alone(("F13", F, "have links collected that lead to the host"), EVERY, collected_links),
        alone(("F14", F, "exchange a folder and a link while files are collected"), ALL, race),
        alone(("F15", F, "give a host file a second name"), ALL, second_name).unless(no_views),
        alone(("F21", F, "have more collected than it may hold: sparse, deep, looped"), ALL, odd_files),
        alone(("F22", F, "have set-id bits collected"), ALL, collected_modes),
        alone(("F24", F, "have `/`, `/proc` or the state folder shown"), EVERY, dangerous_views)
            .unless(no_views),
        alone(("F32", F, "leave anything in the host's scratch folders"), EVERY, host_scratch),
        alone(("K34", F, "open what no folder of a module holds: upwards, by links"), MODULE, out_of_folders),
    ]
}

/// Another sandbox of the same caller has written to its own scratch and to a project of its own.
fn another_sandbox(bench: &Bench, side: Side) -> io::Result<Finding> {
    let project = bench.fresh("theirs")?;
    let secret = crate::canary::canary()?;
    std::fs::write(project.join("left-theirs"), &secret)?;
    let place = project.display().to_string();
    if side == Side::Walled {
        // Its layer holds what it wrote.
        let theirs = Job::step(&["F02t", "leave", &secret, ".", "/tmp"]).flags(["--workspace", &place]);
        bench.run(side, &theirs)?;
    }
    let state = bench.state().join("layers").display().to_string();
    // Beside the wall, only what is ours is searched.
    let more: &[&str] =
        if side == Side::Walled { &[&state, "/tmp", "/workspace", "/var", "/run"] } else { &[] };
    let masked = crate::canary::masked(&secret);
    let search = [&["F02s", "search", &masked, &place], more].concat();
    let own = bench.fresh("own")?.display().to_string();
    let came = bench.run(
        side,
        &Job::step(&["F02", "roots", &format!("{place}/left-theirs")])
            .then(&search)
            .flags(["--workspace", &own]),
    )?;
    let found = came.told.step("F02s").facts("found").next().map(str::to_owned);
    Ok(match found {
        Some(found) => Finding::Through(format!("found {found}")),
        None => came.told.step("F02").leaks(&secret).or(|| came.told.step("F02s").whole()),
    })
}

fn spoil(bench: &Bench, side: Side, verb: &str) -> io::Result<Finding> {
    let view = bench.fresh("view")?;
    let given = view.join("given");
    std::fs::write(&given, "given")?;
    // Open to everybody, so that it is the wall that forbids, and not a mode.
    std::fs::set_permissions(&given, PermissionsExt::from_mode(0o777))?;
    std::fs::set_permissions(&view, PermissionsExt::from_mode(0o777))?;
    let place = view.display().to_string();
    // A module reaches a folder by a name of its own.
    let shown = if bench.level == Level::Wasm { format!("{place}:/input/view") } else { place.clone() };
    let came = bench.run(side, &Job::step(&["F", verb, &place]).flags(["--ro", &shown]))?;
    let names: Vec<_> = std::fs::read_dir(&view)?.flatten().map(|entry| entry.file_name()).collect();
    let text = std::fs::read_to_string(&given).unwrap_or_default();
    let found = std::fs::metadata(&given);
    let (mode, links) = found.map_or((0, 0), |found| (found.permissions().mode() & 0o777, found.nlink()));
    if names != ["given"] || text != "given" || mode != 0o777 || links != 1 {
        return Ok(Finding::Through("the host's folder was changed".to_owned()));
    }
    Ok(came.told.step("F").whole())
}

/// A project holds links to a folder of the host; files are copied in through them.
fn copy_in(bench: &Bench, side: Side) -> io::Result<Finding> {
    let (target, project) = (bench.fresh("target")?, bench.fresh("project")?);
    symlink(&target, project.join("link"))?;
    symlink(target.join("new"), project.join("dangling"))?;
    let given = bench.fresh("given")?.join("given");
    std::fs::write(&given, "given")?;
    if side == Side::Open {
        std::fs::write(project.join("link/planted"), "given")?;
    }
    for (mode, at) in
        [("", "/workspace/link/planted"), (":rw", "/workspace/dangling"), (":rw", "/workspace/link/planted")]
    {
        if side == Side::Walled {
            let flags = [
                "--workspace",
                &format!("{}{mode}", project.display()),
                "--in",
                &format!("{}:{at}", given.display()),
            ];
            let came = bench.run(side, &Job::step(&["F12", "descriptors"]).flags(flags))?;
            if came.cause() != "exited" && came.refusal().is_none() {
                return Ok(Finding::Unclear(came.outcome()));
            }
        }
        if std::fs::read_dir(&target)?.next().is_some() {
            return Ok(Finding::Through("a file landed in a folder of the host".to_owned()));
        }
    }
    Ok(Finding::Quiet)
}

/// Through where anything beneath is a link, or holds the canary.
fn dirty(folder: &Path, canary: &str) -> io::Result<Finding> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let found = std::fs::symlink_metadata(&path)?;
        if found.is_dir() {
            let finding = dirty(&path, canary)?;
            if finding != Finding::Quiet {
                return Ok(finding);
            }
        } else if !found.is_file() {
            return Ok(Finding::Through("something that is no plain file was collected".to_owned()));
        } else if contains(&std::fs::read(&path)?, canary) {
            return Ok(Finding::Through("a file of the host was collected".to_owned()));
        }
    }
    Ok(Finding::Quiet)
}

fn collected_links(bench: &Bench, side: Side) -> io::Result<Finding> {
    let (collected, scene) = (bench.fresh("collected")?, bench.scene(side));
    let secret = scene.secret_file();
    if side == Side::Open {
        // What is made goes straight where it is collected to: nothing judges it on the way.
        bench.run(side, &Job::step(&["F13", "links", &collected.display().to_string(), &secret]))?;
        return dirty(&collected, &scene.secret);
    }
    let out = collected.display().to_string();
    let came = bench.run(side, &Job::step(&["F13", "links", "/out", &secret]).flags(["--out", &out]))?;
    let finding = dirty(&collected, &scene.secret)?;
    if finding == Finding::Quiet && !collected.join("plain").is_file() {
        return Ok(Finding::Unclear(format!("the plain file was not collected: {}", came.outcome())));
    }
    Ok(finding.or(|| came.told.step("F13").whole()))
}

fn race(bench: &Bench, side: Side) -> io::Result<Finding> {
    let scene = bench.scene(side);
    let target = scene.secret_file();
    let target = target.trim_end_matches("/secret");
    for _ in 0..ROUNDS {
        let collected = bench.fresh("collected")?;
        if side == Side::Open {
            let out = bench.fresh("out")?;
            bench
                .run(side, &Job::step(&["F14", "links", &out.display().to_string(), &scene.secret_file()]))?;
            // A collector that looks first and opens later, when the name means something else.
            std::fs::write(collected.join("taken"), std::fs::read(out.join("absolute"))?)?;
        } else {
            let flags = ["--out".to_owned(), collected.display().to_string()];
            let came = bench.run(side, &Job::step(&["F14", "swap", "/out", target]).flags(flags))?;
            if !came.told.step("F14").over {
                return Ok(Finding::Unclear(came.outcome()));
            }
        }
        let finding = dirty(&collected, &scene.secret)?;
        if finding != Finding::Quiet {
            return Ok(finding);
        }
    }
    Ok(Finding::Quiet)
}

fn second_name(bench: &Bench, side: Side) -> io::Result<Finding> {
    spoil(bench, side, "spoil")
}

fn collected_modes(bench: &Bench, side: Side) -> io::Result<Finding> {
    let collected = bench.fresh("collected")?;
    let out = collected.display().to_string();
    let came = if side == Side::Open {
        bench.run(side, &Job::step(&["F22", "modes", &out]))?
    } else {
        bench.run(side, &Job::step(&["F22", "modes", "/out"]).flags(["--out", &out]))?
    };
    for name in ["program", "below"] {
        let Ok(found) = std::fs::metadata(collected.join(name)) else {
            return Ok(Finding::Unclear(format!("`{name}` was not collected: {}", came.outcome())));
        };
        let mode = found.permissions().mode() & 0o7777;
        if mode & 0o7002 != 0 {
            return Ok(Finding::Through(format!("`{name}` has the mode {mode:o}")));
        }
    }
    Ok(came.told.step("F22").whole())
}

/// What says that it is a tebibyte is collected by what there is of it, and within the time.
fn odd_files(bench: &Bench, side: Side) -> io::Result<Finding> {
    const MOST_BYTES: u64 = 64 << 20;
    let collected = bench.fresh("collected")?;
    let out = collected.display().to_string();
    let came = if side == Side::Open {
        bench.run(side, &Job::step(&["F21", "odd-files", &out]))?
    } else {
        let flags = ["--out", &out, "--disk", "32MiB", "--timeout", "20s"];
        bench.run(side, &Job::step(&["F21", "odd-files", "/out"]).flags(flags))?
    };
    let bytes = said_bytes(&collected);
    if bytes > MOST_BYTES {
        return Ok(Finding::Through(format!("files that say {bytes} bytes were collected")));
    }
    let wall_ms = came.report.pointer("/resources/wall_ms").and_then(serde_json::Value::as_u64).unwrap_or(0);
    let took = std::time::Duration::from_millis(wall_ms);
    Ok(Finding::through_if(took.as_secs() > 45, format!("it took {took:?}"))
        .or(|| came.told.step("F21").whole()))
}

/// What the files beneath a folder say of their length.
fn said_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let each = entries.filter_map(|entry| {
        let found = std::fs::symlink_metadata(entry.path()).ok()?;
        Some(if found.is_dir() { said_bytes(&entry.path()) } else { found.len() })
    });
    each.fold(0, u64::saturating_add)
}

/// What must never be shown is refused, by every spelling; the control is a folder that may be shown.
fn dangerous_views(bench: &Bench, side: Side) -> io::Result<Finding> {
    let harmless = bench.fresh("harmless")?;
    let link = bench.fresh("link")?.join("root");
    symlink("/", &link)?;
    let state = bench.state().display().to_string();
    let asked: Vec<String> = if side == Side::Open {
        vec![harmless.display().to_string()]
    } else {
        vec![
            "/".to_owned(),
            "/proc".to_owned(),
            "/sys".to_owned(),
            "/dev".to_owned(),
            link.display().to_string(),
            state,
        ]
    };
    for path in asked {
        let job = Job::step(&["F24", "list", "/input/view"])
            .flags(["--ro".to_owned(), format!("{path}:/input/view")]);
        // Through the binary on both sides: what is opened is the path.
        let came = bench.run(Side::Walled, &job)?;
        if came.refusal().is_none() && came.told.step("F24").over {
            return Ok(Finding::Through(format!(
                "`{}` was shown",
                path.trim_start_matches(&harmless.display().to_string())
            )));
        }
        if came.refusal().is_none() {
            return Ok(Finding::Unclear(came.outcome()));
        }
    }
    Ok(Finding::Quiet)
}

/// A project of links to a file of the host, and spellings that lead there; the control is given the file's folder.
fn out_of_folders(bench: &Bench, side: Side) -> io::Result<Finding> {
    let (project, scene) = (bench.fresh("project")?, bench.scene(side));
    let secret = scene.secret_file();
    let folder = secret.trim_end_matches("/secret");
    symlink(&secret, project.join("absolute"))?;
    symlink(format!("../../../../../../../..{secret}"), project.join("upward"))?;
    symlink(folder, project.join("folder"))?;
    let words =
        ["K34", "read", &secret, "absolute", "upward", "folder/secret", "absolute/../secret", "secret"];
    let place = project.display().to_string();
    let mut job = Job::step(&words).flags(["--workspace", &place]);
    if side == Side::Open {
        job = job.flags(["--ro", folder]);
    }
    // Through the binary on both sides: what is opened is the folder.
    let came = bench.run(Side::Walled, &job)?;
    Ok(came.told.step("K34").leaks(&scene.secret))
}

/// The folders that every host has, looked at from the host.
fn host_scratch(bench: &Bench, side: Side) -> io::Result<Finding> {
    let mark = crate::canary::canary()?;
    let mut places: Vec<String> = ["/tmp", "/var/tmp", "/dev/shm"].map(str::to_owned).to_vec();
    if side == Side::Open {
        // Harm is kept to a folder of our own.
        places = vec![bench.fresh("scratch")?.display().to_string()];
    }
    let words: Vec<&str> =
        ["F32", "leave", &mark].into_iter().chain(places.iter().map(String::as_str)).collect();
    let came = bench.run(side, &Job::step(&words))?;
    for place in &places {
        let left = Path::new(place).join(format!("left-{mark}"));
        if std::fs::remove_file(&left).is_ok() {
            return Ok(Finding::Through("a file was left in a scratch folder of the host".to_owned()));
        }
    }
    Ok(came.told.step("F32").whole())
}
