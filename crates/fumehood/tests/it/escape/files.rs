//! The file wall: what enters, what leaves, and what crosses on the way.

use super::bench::{Bench, Came, HostSocket, Job, Wall};
use super::{open, probes};
use crate::lab::{self, Caller};
use fumehood_backend::conformance::Verdict;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

probes! {
    f01_host_secrets => f01, control open!(f01);
    f02_another_sandbox => f02, control open!(f02);
    f10_reopen_for_writing => f10, control open!(f10);
    f11_remount => f11, control open!(f11);
    f12_copy_in_through_a_link => f12, control f12_control;
    f13_copy_out_of_links => f13, control f13_control;
    f14_copy_out_race => f14, control f13_control;
    f15_copy_out_of_hard_links => f15, control f15_control;
    f22_copied_modes => f22, control f22_control;
    f23_odd_names => f23, control f23_control;
    f24_dangerous_mounts => f24, control open!(f24);
    f26_name_prefix => f26, control open!(f26);
    f29_files_that_host_tools_execute => f29, control f29_control;
    f31_interrupted_copy_out => f31, control f31_control;
    f32_host_scratch => f32, control f32_control;
}

pub(super) fn f01(bench: &Bench) -> Verdict {
    let canary = lab::canary();
    let home = bench.lab.home();
    let files = [
        ".ssh/id_ed25519",
        ".aws/credentials",
        ".kube/config",
        ".mozilla/firefox/logins.json",
        ".bash_history",
        ".netrc",
        ".config/gh/hosts.yml",
        ".docker/config.json",
        ".gnupg/private.key",
        ".npmrc",
        ".pypirc",
        ".env",
        ".cargo/credentials.toml",
        ".git-credentials",
    ];
    for file in files {
        let path = home.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, &canary).unwrap();
    }
    std::fs::write(home.join(format!("named-{canary}")), "").unwrap();
    bench.lab.give_all(&home);
    let reads = files.map(|file| format!("cat ~/{file} {}/{file}", home.display())).join("; ");
    let job = format!(
        "{reads}\nfind {0} ~ -type f -exec cat {{}} + ; ls -aR ~ {0}; cat /proc/self/environ",
        home.display()
    );
    bench.run(&Job::new(job)).leaks(&canary)
}

/// Another sandbox of the same caller is running with a project of its own.
pub(super) fn f02(bench: &Bench) -> Verdict {
    let canary = lab::canary();
    let project = bench.lab.folder("theirs");
    std::fs::write(project.join("secret"), &canary).unwrap();
    bench.lab.give_all(&project);
    let mut other = None;
    if bench.wall != Wall::Open {
        let mut command = bench.lab.fumehood();
        command.args(["run", "--workspace"]).arg(&project).args(["--", "sh", "-c"]);
        command.arg(format!("echo {canary} > written; cp written /tmp/written; echo ready; cat; true"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        if let Err(why) = lab::await_word(&mut child, "ready") {
            return Verdict::Inconclusive(why);
        }
        other = Some(child);
    }
    let came = bench.run(&Job::new(format!(
        "cat {0}/secret {0}/written; cat /tmp/written; echo spoilt > {0}/secret; \
         for f in /proc/[0-9]*/root/workspace/*; do timeout 1 head -c 1000 $f; done; \
         find {1} /var/lib/fumehood -type f -size -64k -exec cat {{}} + | head -c 10000000",
        project.display(),
        bench.lab.state().display()
    )));
    if let Some(child) = other {
        // Its input ends, and so does it.
        lab::collect(child, b"");
    }
    if std::fs::read_to_string(project.join("secret")).unwrap() != canary {
        return Verdict::Breached("the other project was changed".to_owned());
    }
    came.leaks(&canary)
}

/// A read-only view of a file that its modes let anyone write.
fn view(bench: &Bench) -> PathBuf {
    let view = bench.lab.folder("view");
    std::fs::write(view.join("given"), "given").unwrap();
    bench.lab.give_all(&view);
    for path in [view.clone(), view.join("given")] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    }
    view
}

fn view_unchanged(view: &Path, came: &Came) -> Verdict {
    let names: Vec<_> = std::fs::read_dir(view).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    if names != ["given"] || std::fs::read_to_string(view.join("given")).unwrap() != "given" {
        return Verdict::Breached("the view was changed on the host".to_owned());
    }
    if std::fs::metadata(view.join("given")).unwrap().permissions().mode() & 0o777 != 0o777 {
        return Verdict::Breached("a mode was changed on the host".to_owned());
    }
    came.finished()
}

pub(super) fn f10(bench: &Bench) -> Verdict {
    let view = view(bench);
    let job = Job::new(format!(
        "exec 8< {0}/given; echo x > /proc/self/fd/8; echo x > /dev/fd/8; cd {0}; echo x > /proc/self/cwd/given; \
         echo x > /proc/self/root{0}/given; echo x > /proc/1/root{0}/given; chmod 600 {0}/given; chmod 600 /proc/self/fd/8; \
         touch {0}/new; mv {0}/given {0}/moved; ln {0}/given {0}/linked; truncate -s 0 {0}/given",
        view.display()
    ))
    .flags(["--ro", view.to_str().unwrap()]);
    view_unchanged(&view, &bench.run(&job))
}

pub(super) fn f11(bench: &Bench) -> Verdict {
    let view = view(bench);
    let job = Job::new(format!(
        "mount -o remount,rw {0}; mount -o remount,bind,rw {0}; mount -o remount,rw /; mkdir m; mount --bind / m; \
         mount --bind {0} m; mount -t tmpfs none {0}; umount {0}; umount -l {0}; echo x > {0}/given; echo x > m/given; \
         unshare -Urm sh -c 'mount -o remount,bind,rw {0}; echo x > {0}/given'",
        view.display()
    ))
    .flags(["--ro", view.to_str().unwrap()]);
    view_unchanged(&view, &bench.run(&job))
}

/// The project holds a link to a host folder; a file is copied in through it.
fn f12(bench: &Bench) -> Verdict {
    let target = bench.lab.folder("target");
    for mode in ["", ":rw"] {
        let project = bench.lab.folder(if mode.is_empty() { "layered" } else { "written" });
        symlink(&target, project.join("link")).unwrap();
        symlink(target.join("new-file"), project.join("dangling")).unwrap();
        let given = bench.lab.file("given", "given");
        for at in ["/workspace/link/planted", "/workspace/dangling", "link/planted", "../../target/planted"] {
            let job = Job::new("").flags([
                "--workspace".to_owned(),
                format!("{}{mode}", project.display()),
                "--in".to_owned(),
                format!("{}:{at}", given.display()),
            ]);
            let came = bench.run(&job);
            if came.cause() != "exited" && came.cause() != "not_started" {
                return came.unclear("neither run nor refused");
            }
            if let Verdict::Breached(why) = empty(&target) {
                return Verdict::Breached(format!("{at}{mode}: {why}"));
            }
        }
    }
    empty(&target)
}

fn empty(target: &Path) -> Verdict {
    if std::fs::read_dir(target).unwrap().next().is_some() {
        return Verdict::Breached("a file landed in a host folder".to_owned());
    }
    Verdict::Held
}

fn f12_control() -> Verdict {
    let bench = Bench::new(Caller::User, Wall::Open);
    let target = bench.lab.folder("target");
    symlink(&target, bench.lab.folder("layered").join("link")).unwrap();
    std::fs::write(bench.lab.path().join("layered/link/planted"), "given").unwrap();
    empty(&target)
}

const LINKS: &str = "ln -s @/secret absolute; ln -s ../secret upward; ln -s ../../../../..@/secret far; \
     ln -s @ folder; ln -s /proc/self/environ environment; ln -s /proc/self/root@/secret magic; \
     mkdir deep; ln -s ../../secret deep/upward; ln -s absolute twice; mkfifo pipe; echo kept > plain";

pub(super) fn f13(bench: &Bench) -> Verdict {
    let (secret, canary) = bench.secret();
    let collected = bench.lab.folder("collected");
    let links = LINKS.replace('@', secret.parent().unwrap().to_str().unwrap());
    let mut job = Job::new(format!("cd /out; {links}")).flags(["--out", collected.to_str().unwrap()]);
    job.env.push(("COPIER".to_owned(), canary.clone()));
    let came = bench.run(&job);
    match no_secret_beneath(&collected, &canary) {
        Verdict::Held if !collected.join("plain").is_file() => {
            came.unclear("the plain file was not collected")
        }
        Verdict::Held => came.finished(),
        other => other,
    }
}

/// A collector that follows what it finds.
fn f13_control() -> Verdict {
    let bench = Bench::new(Caller::User, Wall::Open);
    let (secret, canary) = bench.secret();
    let links = LINKS.replace('@', secret.parent().unwrap().to_str().unwrap());
    let collected = bench.lab.folder("collected");
    bench.run(&Job::new(format!(
        "mkdir out; cd out; {links}; rm pipe folder; COPIER={canary} cp -L * {}",
        collected.display()
    )));
    no_secret_beneath(&collected, &canary)
}

/// Held when nothing beneath is a link or holds the canary.
fn no_secret_beneath(folder: &Path, canary: &str) -> Verdict {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let found = std::fs::symlink_metadata(&path).unwrap();
        if found.is_dir() {
            let verdict = no_secret_beneath(&path, canary);
            if verdict != Verdict::Held {
                return verdict;
            }
        } else if !found.is_file() {
            return Verdict::Breached(format!("`{}` is no plain file", path.display()));
        } else if lab::contains(&std::fs::read(&path).unwrap(), canary) {
            return Verdict::Breached(format!("`{}` holds a host secret", path.display()));
        }
    }
    Verdict::Held
}

/// A process inside exchanges a folder and a link to a host folder until it is ended.
pub(super) fn f14(bench: &Bench) -> Verdict {
    let (_, canary) = bench.secret();
    for round in 0..5 {
        let collected = bench.lab.folder(&format!("collected-{round}"));
        let job = Job::new(format!(
            "mkdir /out/a; for i in 1 2 3 4 5 6 7 8; do echo inside > /out/a/secret$i; done; echo inside > /out/a/secret; \
             ln -s {0} /out/b; (setsid ./probe swap /out/a /out/b > /dev/null 2>&1 &)\n\
             (setsid sh -c 'while :; do rm -f /out/c; ln -s {0}/secret /out/c; rm -f /out/c; echo x > /out/c; done' \
             > /dev/null 2>&1 &)",
            bench.lab.path().display()
        ))
        .flags(["--out", collected.to_str().unwrap()]);
        let came = bench.run(&job);
        let verdict = no_secret_beneath(&collected, &canary);
        if verdict != Verdict::Held {
            return verdict;
        }
        if !came.ended() {
            return came.finished();
        }
    }
    Verdict::Held
}

pub(super) fn f15(bench: &Bench) -> Verdict {
    let view = view(bench);
    let project = bench.lab.folder("project");
    let owned = project.join("owned");
    std::fs::write(&owned, "owned").unwrap();
    bench.lab.give_all(&project);
    let collected = bench.lab.folder("collected");
    let job = Job::new(format!(
        "ln {0}/given /out/hard; ln /workspace/owned /out/own; ln {0}/given given; echo a > /out/one; ln /out/one /out/two",
        view.display()
    ))
    .flags(["--ro", view.to_str().unwrap(), "--out", collected.to_str().unwrap(), "--workspace"])
    .flags([format!("{}:rw", project.display())]);
    let came = bench.run(&job);
    match one_name(&[view.join("given"), owned]) {
        Verdict::Held => came.finished(),
        other => other,
    }
}

/// Held when no file has got a second name.
fn one_name(files: &[PathBuf]) -> Verdict {
    match files.iter().find(|file| std::fs::metadata(file).unwrap().nlink() != 1) {
        Some(file) => Verdict::Breached(format!("`{}` has a second name", file.display())),
        None => Verdict::Held,
    }
}

fn f15_control() -> Verdict {
    let bench = Bench::new(Caller::User, Wall::Open);
    let file = bench.lab.file("file", "x");
    std::fs::hard_link(&file, bench.lab.path().join("second")).unwrap();
    one_name(&[file])
}

const MODES: &str = "cp /bin/true program; chmod 6777 program; mkdir folder; chmod 7777 folder; echo x > folder/file; \
     chmod 4666 folder/file; setfattr -n user.mark -v x program 2> /dev/null; \
     python3 -c 'import os; os.setxattr(\"program\", \"user.mark\", b\"x\")'";

pub(super) fn f22(bench: &Bench) -> Verdict {
    let collected = bench.lab.folder("collected");
    let came =
        bench.run(&Job::new(format!("cd /out; {MODES}; cd -")).flags(["--out", collected.to_str().unwrap()]));
    if !collected.join("program").is_file() {
        return came.unclear("the file was not collected");
    }
    match plain_modes(&bench.lab, &collected) {
        Verdict::Held => came.finished(),
        other => other,
    }
}

fn f22_control() -> Verdict {
    let bench = Bench::new(Caller::User, Wall::Open);
    let collected = bench.lab.folder("collected");
    bench.run(&Job::new(format!("mkdir out; cd out; {MODES}; cp -a . {}", collected.display())));
    plain_modes(&bench.lab, &collected)
}

/// Held when nothing has a set-id or sticky bit, is open for others to write, or carries attributes.
fn plain_modes(lab: &lab::Lab, collected: &Path) -> Verdict {
    for name in ["program", "folder", "folder/file"] {
        let mode = std::fs::metadata(collected.join(name)).unwrap().permissions().mode();
        if mode & 0o7002 != 0 {
            return Verdict::Breached(format!("`{name}` has mode {mode:o}"));
        }
    }
    let mut command = lab.command("/usr/bin/python3");
    command.args(["-c", "import os, sys; print(os.listxattr(sys.argv[1]))"]).arg(collected.join("program"));
    let listed = lab::finish(command, b"").out();
    if listed.trim() == "[]" || listed.is_empty() { Verdict::Held } else { Verdict::Breached(listed) }
}

/// Names that break shells, logs and terminals.
fn odd_names() -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = [
        &b"two\nlines"[..],
        b"\x1b[2J\x1b]0;title\x07",
        b"-rf",
        b"$(touch owned)",
        b"`id`",
        b"'\";|&<>*?[]{}~!",
        b" ",
        b"...",
        b"\xff\xfe\x80",
        b"tab\there",
        b"back\\slash",
    ]
    .map(<[u8]>::to_vec)
    .to_vec();
    names.push("\u{202e}gpj.exe".as_bytes().to_vec());
    names.push("e\u{301}\u{fb01}".as_bytes().to_vec());
    names.push(vec![b'n'; 255]);
    names
}

/// Writes each odd name, given in hexadecimal, with its own hexadecimal as content.
fn write_names(folder: &str) -> String {
    let hex: Vec<String> =
        odd_names().iter().map(|name| name.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    format!(
        "perl -e 'for (@ARGV) {{ open my $f, \">\", \"{folder}/\" . pack(\"H*\", $_) or die $!; print $f $_ }}' {}",
        hex.join(" ")
    )
}

fn f23(bench: &Bench) -> Verdict {
    let collected = bench.lab.folder("collected");
    let came = bench.run(&Job::new(write_names("/out")).flags(["--out", collected.to_str().unwrap()]));
    if came.ran.stderr.contains(&0x1b) {
        return Verdict::Breached("an escape sequence reached the terminal".to_owned());
    }
    match names_whole(&collected) {
        Verdict::Held => came.finished(),
        other => other,
    }
}

/// A collector that lets a shell split the names.
fn f23_control() -> Verdict {
    let bench = Bench::new(Caller::User, Wall::Open);
    let collected = bench.lab.folder("collected");
    let naive = format!("cd out; for f in $(ls); do cp $f {}; done", collected.display());
    bench.run(&Job::new(format!("mkdir out; {}; {naive}", write_names("out"))));
    names_whole(&collected)
}

fn names_whole(collected: &Path) -> Verdict {
    for name in odd_names() {
        let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        match std::fs::read_to_string(collected.join(OsStr::from_bytes(&name))) {
            Ok(content) if content == hex => {}
            _ => {
                return Verdict::Breached(format!(
                    "the file whose name is {hex} in hexadecimal is not whole"
                ));
            }
        }
    }
    let count = std::fs::read_dir(collected).unwrap().count();
    if count == odd_names().len() { Verdict::Held } else { Verdict::Breached(format!("{count} names")) }
}

fn f24(bench: &Bench) -> Verdict {
    let everything = bench.lab.path().join("everything");
    symlink("/", &everything).unwrap();
    let (socket_path, socket) = bench.host_socket("docker.sock");
    let home = bench.lab.home().to_str().unwrap().to_owned();
    let link = everything.to_str().unwrap().to_owned();
    std::fs::create_dir_all(bench.lab.state()).unwrap();
    std::fs::set_permissions(bench.lab.state(), PermissionsExt::from_mode(0o700)).unwrap();
    bench.lab.give(&bench.lab.state());
    let state = bench.lab.state().to_str().unwrap().to_owned();
    let asked: Vec<[String; 2]> =
        ["/", "/proc", "/sys", "/dev", "/proc/self/root", "/proc/self/cwd/..", &home, &link, &state]
            .iter()
            .map(|path| ["--workspace".to_owned(), (*path).to_owned()])
            .chain(
                [&home, &link, &state, "/proc", socket_path.to_str().unwrap()]
                    .map(|path| ["--ro".to_owned(), path.to_owned()]),
            )
            .chain([format!("{home}:rw"), "/:rw".to_owned()].map(|path| ["--workspace".to_owned(), path]))
            .collect();
    let mut open = Vec::new();
    for flags in asked {
        let came = bench.run(&Job::new("").flags(flags.clone()));
        if came.ended() {
            open.push(flags.join(" "));
        } else if came.ran.code() != 125 {
            return came.unclear(&flags.join(" "));
        }
    }
    if open.is_empty() { socket.judge(Verdict::Held) } else { Verdict::Breached(open.join(", ")) }
}

pub(super) fn f26(bench: &Bench) -> Verdict {
    let canary = lab::canary();
    let work = bench.lab.folder("work");
    let evil = bench.lab.folder("work-evil");
    std::fs::write(evil.join("secret"), &canary).unwrap();
    std::fs::write(bench.lab.folder("work/inner").join("shown"), "shown").unwrap();
    bench.lab.give_all(&evil);
    let mut verdict = Verdict::Held;
    for form in
        [work.display().to_string(), format!("{}/", work.display()), format!("{}/./inner/..", work.display())]
    {
        let job = Job::new(format!(
            "cat {0}/secret {1}/../work-evil/secret {1}/inner/../../work-evil/secret; ls {1}/..; ls {0}",
            evil.display(),
            work.display()
        ))
        .flags(["--ro".to_owned(), form]);
        let came = bench.run(&job);
        verdict = came.leaks(&canary);
        // The last form may be refused as it stands.
        if verdict != Verdict::Held && came.cause() != "not_started" {
            return verdict;
        }
        verdict = Verdict::Held;
    }
    verdict
}

const EXECUTED: &[&str] = &[
    ".git/hooks/pre-commit",
    ".git/config",
    ".envrc",
    ".vscode/tasks.json",
    ".claude/settings.json",
    "fumehood.toml",
    ".git/hooks/post-checkout",
    ".idea/workspace.xml",
];

/// A project whose files that host tools execute are as the host left them, or absent.
fn project_with_hooks(bench: &Bench) -> PathBuf {
    let project = bench.lab.folder("project");
    for file in EXECUTED.iter().take(4) {
        std::fs::create_dir_all(project.join(file).parent().unwrap()).unwrap();
        std::fs::write(project.join(file), "as the host left it").unwrap();
    }
    std::fs::write(project.join("plain"), "old").unwrap();
    bench.lab.give_all(&project);
    project
}

fn hooks_unchanged(project: &Path) -> Verdict {
    for file in EXECUTED {
        let content = std::fs::read_to_string(project.join(file)).unwrap_or_default();
        if content.contains("planted") {
            return Verdict::Breached(format!("`{file}` was planted"));
        }
    }
    Verdict::Held
}

fn plant_hooks() -> String {
    let writes = EXECUTED
        .iter()
        .map(|file| format!("mkdir -p $(dirname {file}); echo planted > {file}"))
        .collect::<Vec<_>>();
    format!("{}; echo new > plain", writes.join("; "))
}

fn f29(bench: &Bench) -> Verdict {
    let project = project_with_hooks(bench);
    let came = bench.run(&Job::new(plant_hooks()).flags(["--workspace", project.to_str().unwrap()]));
    let Some(task) = came.report["task"].as_str() else { return came.unclear("no task") };
    let mut command = bench.lab.fumehood();
    command.args(["apply", task]);
    let applied = lab::finish(command, b"");
    match hooks_unchanged(&project) {
        Verdict::Held if !applied.told().contains(".envrc") => {
            Verdict::Inconclusive(format!("the refusal names no file: {}", applied.told()))
        }
        Verdict::Held => came.finished(),
        other => other,
    }
}

fn f29_control() -> Verdict {
    let bench = Bench::new(Caller::User, Wall::Open);
    let project = project_with_hooks(&bench);
    bench.run(&Job::new(format!("cd {}; {}", project.display(), plant_hooks())));
    hooks_unchanged(&project)
}

const LARGE: u64 = 64 << 20;

/// The keeper is ended at some moment around the collection; a file that stands there is whole.
fn f31(bench: &Bench) -> Verdict {
    for round in 0..8 {
        let collected = bench.lab.folder(&format!("collected-{round}"));
        let job = Job::new(format!("head -c {LARGE} /dev/zero > /out/large"))
            .flags(["--out", collected.to_str().unwrap()]);
        let mut command = bench.command(&job);
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let appeared = lab::poll(lab::DEADLINE, || {
            std::fs::read_dir(&collected).unwrap().next().is_some() || child.try_wait().unwrap().is_some()
        });
        if !appeared {
            return Verdict::Inconclusive("nothing was collected in time".to_owned());
        }
        // A little later in each round.
        std::thread::park_timeout(std::time::Duration::from_millis(round * 3));
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
        }
        child.wait().unwrap();
        let verdict = whole_or_absent(&collected);
        if verdict != Verdict::Held {
            return verdict;
        }
    }
    Verdict::Held
}

fn whole_or_absent(collected: &Path) -> Verdict {
    match std::fs::metadata(collected.join("large")) {
        Ok(found) if found.len() != LARGE => {
            Verdict::Breached(format!("{} bytes under the final name", found.len()))
        }
        Ok(_) | Err(_) => Verdict::Held,
    }
}

fn f31_control() -> Verdict {
    let bench = Bench::new(Caller::User, Wall::Open);
    let collected = bench.lab.folder("collected");
    bench.run(&Job::new(format!("head -c 1000 /dev/zero > {}/large", collected.display())));
    whole_or_absent(&collected)
}

/// In a mount namespace whose scratch folders are fresh, so that what appears there is the launcher's.
fn scratch_after(bench: &Bench, run: &str) -> Verdict {
    if !lab::am_root() {
        return Verdict::NotApplicable("fresh scratch folders need root".to_owned());
    }
    let place = bench.lab.path();
    let script = format!(
        "set -e; mount --bind {0} /mnt; for d in /tmp /var/tmp /dev/shm; do mount -t tmpfs none $d; done; chmod 1777 /tmp \
         /var/tmp /dev/shm; mkdir -p {0}; mount --bind /mnt {0}; cd {0}; {run} > /mnt/log 2>&1 || true; \
         find /tmp /var/tmp /dev/shm {1} -mindepth 1 -not -path '{0}/*' -not -path '{0}'; find {1} -mindepth 1; echo looked",
        place.display(),
        bench.lab.home().display()
    );
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    let ran = lab::finish(command, b"");
    let log = std::fs::read_to_string(place.join("log")).unwrap_or_default();
    if ran.out() == "looked\n" && log.contains("inside-ran") {
        return Verdict::Held;
    }
    if ran.out().ends_with("looked\n") && ran.out() != "looked\n" {
        return Verdict::Breached(ran.out());
    }
    Verdict::Inconclusive(format!("{}\n{log}", ran.told()))
}

pub(super) fn f32(bench: &Bench) -> Verdict {
    // Where it was built may be beneath a folder that is covered.
    let copy = bench.lab.path().join("fumehood");
    if !copy.exists() {
        std::fs::copy(bench.lab.binary(), &copy).unwrap();
    }
    let command = bench.lab.command(&copy);
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect();
    let run = format!(
        "env -i PATH=$PATH HOME={} FUMEHOOD_STATE={} {} run -- sh -c 'echo inside-ran; touch /tmp/a /var/tmp/a /dev/shm/a ~/a'",
        bench.lab.home().display(),
        bench.lab.state().display(),
        words.join(" ")
    );
    scratch_after(bench, &run)
}

fn f32_control() -> Verdict {
    let bench = Bench::new(Caller::User, Wall::Open);
    scratch_after(&bench, "sh -c 'echo inside-ran; touch /tmp/a'")
}

/// The judgement of a listener is shared; this keeps it honest.
#[test]
fn a_listener_that_is_called_is_seen() {
    let lab = lab::Lab::new(Caller::User);
    let path = lab.path().join("listener");
    let socket = HostSocket::at(&path);
    assert_eq!(socket.judge(Verdict::Held), Verdict::Held);
    let _call = std::os::unix::net::UnixStream::connect(&path).unwrap();
    assert!(matches!(socket.judge(Verdict::Held), Verdict::Breached(_)));
}
