//! Real work, by root and by an ordinary user: what the README promises must simply work.

use crate::both_callers::both_callers;
use crate::lab::{self, Caller, Lab, Ran, finish, installed};
use crate::subjects::captured;
use std::process::Stdio;
use std::time::Duration;

both_callers! {
    a_python_script_with_files_in_and_out
    inputs_keep_the_execute_bit
    git_clones_and_commits
    make_builds_and_the_changes_apply
    a_node_script
    binary_data_through_a_pipeline
    a_shell_in_a_terminal
    a_session_goes_on
    a_cache_stays
    a_timeout
    an_interrupt
    exit_codes_and_signals
    output_streams_while_input_is_open
    names_that_are_not_text
    empty_input
    closed_output
    large_arguments
    the_object_is_whole
    root_inside_is_refused
    a_refusal_names_its_remedy
}

fn ok(ran: &Ran) {
    assert_eq!(ran.code(), 0, "{}", ran.told());
}

fn a_python_script_with_files_in_and_out(lab: &Lab) {
    if !installed("python3") {
        return;
    }
    let script = lab.file(
        "sum.py",
        "import csv, json, pathlib\nrows = list(csv.reader(open('data.csv')))\n\
         pathlib.Path('/out/sum.json').write_text(json.dumps({'sum': sum(int(r[1]) for r in rows), 'name': rows[0][0]}))\n",
    );
    let data = lab.file("data.csv", "ünïcode,1\nb,2\nc,39\n");
    let results = lab.path().join("results");
    let flags = [
        "--in",
        script.to_str().unwrap(),
        "--in",
        data.to_str().unwrap(),
        "--out",
        results.to_str().unwrap(),
    ];
    // The output folder need not be there yet.
    ok(&lab.run(&flags, &["/usr/bin/python3", "sum.py"]));
    let sum: serde_json::Value =
        serde_json::from_slice(&std::fs::read(results.join("sum.json")).unwrap()).unwrap();
    assert_eq!(sum, serde_json::json!({"sum": 42, "name": "ünïcode"}));
}

fn inputs_keep_the_execute_bit(lab: &Lab) {
    use std::os::unix::fs::PermissionsExt;
    let program = lab.file("program", "#!/bin/sh\necho executed\n");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4750)).unwrap();
    let data = lab.file("data", "");
    std::fs::set_permissions(&data, PermissionsExt::from_mode(0o600)).unwrap();
    let flags = ["--in", program.to_str().unwrap(), "--in", data.to_str().unwrap()];
    let ran = lab.run(&flags, &["sh", "-c", "./program && stat -c %a program data"]);
    ok(&ran);
    // Anyone inside may run it, and nothing of the rest of its mode has entered.
    assert_eq!(ran.out(), "executed\n755\n644\n", "{}", ran.told());
}

fn git(lab: &Lab, folder: &std::path::Path, args: &[&str]) -> Ran {
    let mut command = lab.command("git");
    command.arg("-C").arg(folder).args(["-c", "user.name=A", "-c", "user.email=a@example.com"]).args(args);
    let ran = finish(command, b"");
    ok(&ran);
    ran
}

fn git_clones_and_commits(lab: &Lab) {
    if !installed("git") {
        return;
    }
    let origin = lab.folder("origin");
    git(lab, &origin, &["init", "-q", "-b", "main"]);
    std::fs::write(origin.join("file"), "one\n").unwrap();
    lab.give_all(&origin);
    git(lab, &origin, &["add", "."]);
    git(lab, &origin, &["commit", "-qm", "one"]);
    let head = git(lab, &origin, &["rev-parse", "HEAD"]).out();
    let script = format!(
        "set -e; git clone -q {0} copy; cd copy; git config user.name B; git config user.email b@example.com; \
         echo two >> file; git commit -qam two; git rev-list --count HEAD; git rev-parse HEAD~1; git -C {0} status --short",
        origin.display()
    );
    let ran = lab.run(&["--ro", origin.to_str().unwrap()], &["sh", "-c", &script]);
    ok(&ran);
    assert_eq!(ran.out(), format!("2\n{head}"), "{}", ran.told());
    // The same in the project itself: a commit is made inside, and nothing is made on the host.
    let inside = "git -c user.name=B -c user.email=b@example.com commit -q --allow-empty -m three && git rev-list --count HEAD";
    let ran = lab.run(&["--workspace", origin.to_str().unwrap()], &["sh", "-c", inside]);
    ok(&ran);
    assert_eq!(ran.out(), "2\n", "{}", ran.told());
    assert_eq!(git(lab, &origin, &["rev-parse", "HEAD"]).out(), head);
}

fn make_builds_and_the_changes_apply(lab: &Lab) {
    if !installed("make") || !installed("gcc") {
        return;
    }
    let project = lab.folder("project");
    std::fs::write(project.join("Makefile"), "hello: hello.c\n\tgcc -o hello hello.c\n\trm -f old\n")
        .unwrap();
    std::fs::write(project.join("hello.c"), "#include <stdio.h>\nint main(void) { puts(\"built\"); }\n")
        .unwrap();
    std::fs::write(project.join("old"), "old").unwrap();
    lab.give_all(&project);
    let (report, ran) =
        lab.json(&["--workspace", project.to_str().unwrap()], &["sh", "-c", "make -s && ./hello"]);
    ok(&ran);
    assert_eq!(captured(&report["stdout"]), b"built\n", "{}", ran.told());
    assert_eq!(report["changes"]["added"], 1, "{report}");
    assert_eq!(report["changes"]["deleted"], 1, "{report}");
    assert!(!project.join("hello").exists() && project.join("old").exists());
    let task = report["task"].as_str().unwrap();
    let verb = |verb: &str| {
        let mut command = lab.fumehood();
        command.args([verb, task]);
        finish(command, b"")
    };
    let diff = verb("diff");
    assert!(diff.out().contains("hello") && diff.out().contains("old"), "{}", diff.told());
    ok(&verb("apply"));
    assert!(project.join("hello").exists() && !project.join("old").exists());
    let built = finish(lab.command(project.join("hello")), b"");
    assert_eq!(built.out(), "built\n");
    let mut owner = lab.command("stat");
    owner.args(["-c", "%u"]).arg(project.join("hello")).arg(project.join("Makefile"));
    let owners = finish(owner, b"").out();
    let owners: Vec<_> = owners.lines().collect();
    assert_eq!(owners[0], owners[1], "what is applied belongs to the user");
}

fn a_node_script(lab: &Lab) {
    if !installed("node") {
        return;
    }
    let script = lab.file(
        "script.js",
        "const os = require('os'), fs = require('fs');\nfs.writeFileSync('/out/n', Object.keys(os.networkInterfaces()).join());\n\
         Promise.all([1, 2, 3].map(async n => n * 2)).then(all => console.log(all.join(' ')));\n",
    );
    let out = lab.folder("out");
    let flags = ["--in", script.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let ran = lab.run(&flags, &["node", "script.js"]);
    ok(&ran);
    assert_eq!(ran.out(), "2 4 6\n");
    assert_eq!(std::fs::read_to_string(out.join("n")).unwrap(), "lo");
}

fn binary_data_through_a_pipeline(lab: &Lab) {
    let data = lab::random(5_000_000);
    let mut command = lab.fumehood();
    command.args(["run", "-q", "--", "sh", "-c", "cat | cat"]);
    let ran = finish(command, &data);
    ok(&ran);
    assert!(ran.stdout == data, "{} bytes came back", ran.stdout.len());
}

/// Types into a terminal, resizes it, and reads what a person would see.
fn a_shell_in_a_terminal(lab: &Lab) {
    const DRIVER: &str = r#"
import fcntl, os, pty, select, signal, struct, sys, termios, time
def size(rows, columns): fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack('HHHH', rows, columns, 0, 0))
child, master = pty.fork()
if child == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
size(30, 100)
seen = b''
def until(word, limit=30):
    global seen
    end = time.monotonic() + limit
    while word not in seen:
        if time.monotonic() > end: print(seen); sys.exit('no ' + repr(word))
        if select.select([master], [], [], 0.1)[0]:
            try: seen += os.read(master, 65536)
            except OSError: break
    if word not in seen: print(seen); sys.exit('ended before ' + repr(word))
    seen = seen.split(word, 1)[1]
def say(text): os.write(master, text.encode())
say('test -t 0 && test -t 1 && test -t 2 && echo ter""minal\n'); until(b'terminal')
size(41, 133)
end = time.monotonic() + 20
while True:
    say('echo si""ze $(stty size) do""ne\n'); until(b'size '); answer = seen
    until(b'done')
    if answer.startswith(b'41 133') or b'41 133' in answer.split(b'done')[0]: break
    if time.monotonic() > end: sys.exit('the size did not arrive')
say('cat\nmarker\n'); until(b'marker'); until(b'marker'); say('\x03'); until(b'$ ')
say('echo af""ter\n'); until(b'after')
say('exit 9\n')
_, status = os.waitpid(child, 0)
sys.exit(0 if os.waitstatus_to_exitcode(status) == 9 else 'code %d' % os.waitstatus_to_exitcode(status))
"#;
    if !installed("python3") {
        return;
    }
    let mut command = lab.command("/usr/bin/python3");
    command.args(["-c", DRIVER]).arg(lab.binary()).args(["run", "--", "sh", "-i"]);
    ok(&finish(command, b""));
}

fn a_session_goes_on(lab: &Lab) {
    let project = lab.folder("project");
    std::fs::write(project.join("package"), "x").unwrap();
    lab.give_all(&project);
    let flags = ["--workspace", project.to_str().unwrap(), "--session", "web"];
    let first = "mkdir -p modules && echo installed > modules/a && echo mine > ~/.npmrc && rm package";
    ok(&lab.run(&flags, &["sh", "-c", first]));
    let ran = lab.run(&flags, &["sh", "-c", "cat modules/a ~/.npmrc; ls package"]);
    assert_eq!(ran.out(), "installed\nmine\n", "{}", ran.told());
    assert_ne!(ran.code(), 0, "what the session removed is gone");
    assert!(project.join("package").exists() && !project.join("modules").exists());
    let other = lab.folder("other");
    std::fs::write(other.join("package"), "y").unwrap();
    let flags = ["--workspace", other.to_str().unwrap(), "--session", "web"];
    let ran = lab.run(&flags, &["cat", "package"]);
    assert_eq!(ran.code(), 125, "a session's layer is of one folder alone: {}", ran.told());
    assert!(ran.told().contains("belongs to the workspace"), "{}", ran.told());
}

fn a_cache_stays(lab: &Lab) {
    let project = lab.folder("project");
    let flags = ["--workspace", project.to_str().unwrap(), "--cache", "/var/cache/tool"];
    ok(&lab.run(&flags, &["sh", "-c", "echo kept > /var/cache/tool/file"]));
    let ran = lab.run(&flags, &["cat", "/var/cache/tool/file"]);
    assert_eq!(ran.out(), "kept\n", "{}", ran.told());
    let other = lab.folder("other");
    let flags = ["--workspace", other.to_str().unwrap(), "--cache", "/var/cache/tool"];
    assert_ne!(lab.run(&flags, &["cat", "/var/cache/tool/file"]).code(), 0, "a cache belongs to one project");
}

fn a_timeout(lab: &Lab) {
    let (report, ran) = lab.json(&["--timeout", "1s"], &["sh", "-c", "echo before; sleep 60"]);
    assert_eq!(ran.code(), 124, "{}", ran.told());
    assert_eq!(report["ending"]["cause"], "timed_out");
    assert_eq!(captured(&report["stdout"]), b"before\n", "what came before is kept");
    assert!(ran.elapsed < Duration::from_secs(10), "{:?}", ran.elapsed);
}

fn an_interrupt(lab: &Lab) {
    for signal in ["INT", "TERM"] {
        let mut command = lab.fumehood();
        command.args(["run", "-q", "--", "sh", "-c"]);
        command.arg(format!("trap 'echo caught; exit 5' {signal}; echo ready; while :; do sleep 0.05; done"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        lab::await_word(&mut child, "ready\n").unwrap();
        let mut kill = std::process::Command::new("kill");
        assert!(kill.arg(format!("-{signal}")).arg(child.id().to_string()).status().unwrap().success());
        let ran = lab::collect(child, b"");
        assert_eq!(ran.out(), "caught\n", "{}", ran.told());
    }
}

fn exit_codes_and_signals(lab: &Lab) {
    for code in [0, 1, 2, 77, 121, 122, 123, 124, 125, 126, 127, 128, 137, 255] {
        let ran = lab.run(&["-q"], &["sh", "-c", &format!("exit {code}")]);
        assert_eq!(ran.code(), code, "{}", ran.told());
    }
    for (signal, number) in [("KILL", 9), ("TERM", 15), ("SEGV", 11), ("ABRT", 6), ("PIPE", 13)] {
        let ran = lab.run(&["-q"], &["sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(ran.code(), 128 + number, "{}", ran.told());
    }
    assert_eq!(lab.run(&["-q"], &["no-such-command"]).code(), 127);
    assert_eq!(lab.run(&["-q"], &["/etc/passwd"]).code(), 126);
}

/// A prompt must be seen before it is answered.
fn output_streams_while_input_is_open(lab: &Lab) {
    let mut command = lab.fumehood();
    command.args(["run", "-q", "--", "sh", "-c", "echo name; read n; echo hello $n"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    lab::await_word(&mut child, "name\n").unwrap();
    let ran = lab::collect(child, b"ada\n");
    assert_eq!(ran.out(), "hello ada\n", "{}", ran.told());
    // Input that never ends does not keep a command that has ended.
    let mut command = lab.fumehood();
    command
        .args(["run", "-q", "--", "true"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let input = child.stdin.take();
    let status = lab::wait(&mut child, Duration::from_secs(20));
    if status.is_none() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    drop(input);
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
}

fn names_that_are_not_text(lab: &Lab) {
    use std::os::unix::ffi::OsStrExt;
    let project = lab.folder("project");
    let name = std::ffi::OsStr::from_bytes(b"bin\xff\nary\xc3\xa9");
    std::fs::write(project.join(name), b"\x00\xff\xfe").unwrap();
    lab.give_all(&project);
    let copy = "for f in *; do cp \"$f\" \"copy-$f\"; done";
    let (report, ran) = lab.json(&["--workspace", project.to_str().unwrap()], &["sh", "-c", copy]);
    ok(&ran);
    let mut command = lab.fumehood();
    command.args(["apply", report["task"].as_str().unwrap()]);
    ok(&finish(command, b""));
    let copied = project.join(std::ffi::OsStr::from_bytes(b"copy-bin\xff\nary\xc3\xa9"));
    assert_eq!(std::fs::read(copied).unwrap(), b"\x00\xff\xfe");
}

fn empty_input(lab: &Lab) {
    let ran = lab.run(&["-q"], &["sh", "-c", "cat; echo end"]);
    assert_eq!(ran.out(), "end\n", "{}", ran.told());
}

fn closed_output(lab: &Lab) {
    let mut command = lab.command("sh");
    command
        .args(["-c", "\"$0\" run -q -- sh -c 'while :; do echo y; done' | head -n 2; echo next"])
        .arg(lab.binary());
    let ran = finish(command, b"");
    assert_eq!(ran.out(), "y\ny\nnext\n", "{}", ran.told());
    let mut command = lab.command("sh");
    command.args(["-c", "\"$0\" run -q -- true >&- 2>&-; echo $?"]).arg(lab.binary());
    assert_eq!(finish(command, b"").out(), "0\n");
}

fn large_arguments(lab: &Lab) {
    let long = "x".repeat(100_000);
    let ran = lab.run(&["-q"], &["sh", "-c", "echo ${#1} ${#2}", "sh", &long, "ü \n'\"$`"]);
    ok(&ran);
    assert_eq!(ran.out(), "100000 7\n".replace('7', if ran.out().ends_with(" 8\n") { "8" } else { "7" }));
}

fn the_object_is_whole(lab: &Lab) {
    let (report, ran) = lab.json(&[], &["sh", "-c", "printf 'a\\377'; echo e >&2; exit 3"]);
    assert_eq!(ran.code(), 3);
    for field in
        ["task", "ending", "hits", "stdout", "stderr", "dropped_bytes", "resources", "level", "enforcement"]
    {
        assert!(!report[field].is_null(), "{field}: {report}");
    }
    assert_eq!(report["ending"], serde_json::json!({"cause": "exited", "code": 3}));
    assert_eq!(report["stdout"]["base64"], true);
    assert_eq!(captured(&report["stdout"]), b"a\xff");
    assert_eq!(report["stderr"], serde_json::json!({"text": "e\n", "base64": false}));
    assert_eq!(ran.out().trim().lines().count(), 1, "one object, one line");
    assert_eq!(report["enforcement"].as_array().unwrap().len(), 6, "every clause is accounted for");
}

fn root_inside_is_refused(lab: &Lab) {
    let (report, ran) = lab.json(&["--user", "0"], &["true"]);
    assert_eq!(ran.code(), 125, "{}", ran.told());
    assert_ne!(report["ending"]["remedy"], "", "{report}");
}

fn a_refusal_names_its_remedy(lab: &Lab) {
    let home = lab.home();
    let loop_at = lab.path().join("loop");
    std::os::unix::fs::symlink(&loop_at, &loop_at).unwrap();
    let file = lab.file("file", "");
    let bad: [&[&str]; 12] = [
        &["--mem", "0"],
        &["--mem", "-1"],
        &["--mem", "99999999999999999999G"],
        &["--mem", "12parsecs"],
        &["--workspace", "/no/such/folder"],
        &["--workspace", loop_at.to_str().unwrap()],
        &["--workspace", file.to_str().unwrap()],
        &["--in", "/no/such/file"],
        &["--timeout", "soon"],
        &["--level", "castle"],
        &["--no-such-flag"],
        &["--in", home.to_str().unwrap()],
    ];
    for flags in bad {
        let ran = lab.run(flags, &["true"]);
        assert_eq!(ran.code(), 125, "{flags:?}: {}", ran.told());
        assert!(ran.err().contains('`') && ran.err().len() > 20, "{flags:?}: {}", ran.told());
        assert!(ran.stdout.is_empty(), "{flags:?}: {}", ran.told());
    }
}

/// A host file on standard input keeps its content, mode and times.
#[test]
fn a_file_on_standard_input_is_untouched() {
    let lab = Lab::new(Caller::User);
    let file = lab.file("input", "typed");
    let before = std::fs::metadata(&file).unwrap();
    let mut command = lab.fumehood();
    command.args([
        "run",
        "-q",
        "--",
        "sh",
        "-c",
        "cat; (echo x > /proc/self/fd/0); chmod 000 /proc/self/fd/0; touch /proc/self/fd/0",
    ]);
    command.stdin(std::fs::File::options().read(true).write(true).open(&file).unwrap());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let ran = lab::collect(command.spawn().unwrap(), b"");
    assert_eq!(ran.out(), "typed", "{}", ran.told());
    let after = std::fs::metadata(&file).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "typed");
    assert_eq!(before.permissions(), after.permissions());
    assert_eq!(before.modified().unwrap(), after.modified().unwrap());
}
