//! Templates: built of this host's own programs, stood on at every level that has a root, and refused where they are flawed.

use crate::both_callers::both_callers;
use crate::lab::{self, Caller, Lab, Ran, finish, installed};
use crate::machine;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

both_callers! {
    a_template_is_built_and_stood_on
    a_template_of_ones_own_has_steps_and_a_check
    a_flawed_template_leaves_no_name
    what_was_built_is_listed_and_removed
}

/// A compiler is some hundred megabytes.
const PATIENCE: Duration = Duration::from_secs(300);

fn template(lab: &Lab, words: &[&str]) -> Ran {
    let mut command = lab.fumehood();
    command.arg("template").args(words).env("TMPDIR", lab.folder("scratch"));
    let ran = lab::finish_within(command, b"", PATIENCE);
    let left = std::fs::read_dir(lab.path().join("scratch")).unwrap().count();
    assert_eq!(left, 0, "something is left in the folder for temporary files: {}", ran.told());
    ran
}

fn built(lab: &Lab, name: &str) -> Value {
    let ran = template(lab, &["build", "--json", name]);
    assert_eq!(ran.code(), 0, "{}", ran.told());
    serde_json::from_slice(&ran.stdout).unwrap()
}

/// Names in the store: none of them is of something half made.
fn names(lab: &Lab) -> Vec<String> {
    let mut command = lab.fumehood();
    command.args(["image", "ls", "--json"]);
    let listed = finish(command, b"").out();
    let name = |line: &str| serde_json::from_str::<Value>(line).unwrap()["name"].as_str().map(str::to_owned);
    listed.lines().filter_map(name).collect()
}

fn stands(lab: &Lab, flags: &[&str]) {
    let script =
        "printf 'one\\ntwo\\n' | sort -r | tr a-z A-Z; ls /usr/bin/python3 2>/dev/null; id -un; echo $LANG";
    let ran = lab.run(&[&["--quiet", "--template", "shell"], flags].concat(), &["sh", "-c", script]);
    assert_eq!(ran.out(), "TWO\nONE\nuser\nC.UTF-8\n", "{flags:?}: {}", ran.told());
}

fn a_template_is_built_and_stood_on(lab: &Lab) {
    let refused = lab.run(&["--template", "shell"], &["true"]);
    assert_eq!(refused.code(), 125);
    assert!(refused.err().contains("fumehood template build shell"), "{}", refused.told());
    let one = built(lab, "shell");
    assert_eq!(one["image"], "localhost/shell:latest");
    assert!(one["bytes"].as_u64().unwrap() < 200 << 20, "{one}");
    // Of the same files the same image is made.
    assert_eq!(built(lab, "shell")["digest"], one["digest"]);
    assert_eq!(names(lab), ["localhost/shell:latest"]);
    for level in ["process", "container"] {
        stands(lab, &["--level", level]);
    }
    // By the image's name it is the same; without a command, the template's own.
    let ran = lab.run(&["--quiet", "--image", "localhost/shell"], &["sh", "-c", "echo it ran"]);
    assert_eq!(ran.out(), "it ran\n", "{}", ran.told());
    if installed("runsc") && lab.caller == Caller::Root && cfg!(feature = "gvisor") {
        stands(lab, &["--level", "gvisor"]);
    }
    // One that lives on.
    let mut command = lab.fumehood();
    command.args(["create", "--template", "shell"]);
    let id = finish(command, b"").out().trim().to_owned();
    let mut command = lab.fumehood();
    command.args(["exec", &id, "--", "sh", "-c", "ls /usr/bin/python3 || echo living"]);
    let ran = finish(command, b"");
    let mut command = lab.fumehood();
    command.args(["rm", &id]);
    assert_eq!(finish(command, b"").code(), 0);
    assert_eq!(ran.out(), "living\n", "{}", ran.told());
}

#[test]
#[cfg(feature = "microvm")]
fn a_machine_stands_on_a_template() {
    if machine::available() && Caller::Root.available() {
        let (lab, _) = machine::lab(Caller::Root);
        built(&lab, "shell");
        stands(&lab, &["--level", "microvm", "--accept-tcg", "--mem", machine::MEMORY]);
    }
}

/// All that come with Fumehood, each with its check, where this host has what they are made of.
#[test]
fn each_that_is_shipped_works() {
    let lab = Lab::new(Caller::User);
    for (name, program) in [("python", "python3"), ("node", "node"), ("git", "git"), ("build", "gcc")] {
        if Path::new("/usr/bin").join(program).exists() {
            assert_eq!(built(&lab, name)["image"], format!("localhost/{name}:latest"));
        } else {
            println!("NOT-APPLICABLE: there is no /usr/bin/{program}, so the template `{name}` is left out");
        }
    }
}

fn a_template_of_ones_own_has_steps_and_a_check(lab: &Lab) {
    built(lab, "shell");
    let text = "about = 'mine'\nfrom = 'localhost/shell'\nenv = { GREETING = 'hello' }\ncwd = '/opt/mine'\n\
        command = ['/opt/mine/greet']\ncheck = 'test -s /opt/mine/greet'\n\
        [[step]]\nrun = '''mkdir -p /out/opt/mine; printf '#!/bin/sh\\necho $GREETING from $(pwd)\\n' > /out/opt/mine/greet; \
        chmod +x /out/opt/mine/greet'''\n\
        [[step]]\nrun = 'cat /opt/mine/greet > /out/second'\n";
    let file = lab.file("mine.toml", text);
    let one = built(lab, file.to_str().unwrap());
    assert_eq!((&one["template"], &one["layers"]), (&"mine".into(), &3.into()));
    let mut command = lab.fumehood();
    command.args(["run", "--quiet", "--template", "mine"]);
    let ran = finish(command, b"");
    assert_eq!(ran.out(), "hello from /opt/mine\n", "{}", ran.told());
    assert!(lab.run(&["-q", "--template", "mine"], &["cat", "/second"]).out().contains("GREETING"));
    // A folder that is a root, beside the file.
    let root = lab.folder("root");
    std::fs::create_dir_all(root.join("usr/bin")).unwrap();
    std::fs::copy("/bin/busybox", root.join("usr/bin/sh")).unwrap();
    std::os::unix::fs::symlink("usr/bin", root.join("bin")).unwrap();
    lab.give_all(&root);
    let file = lab.file("small.toml", "from = './root'\ncheck = 'echo ok'\n");
    built(lab, file.to_str().unwrap());
    assert_eq!(lab.run(&["-q", "--template", "small"], &["sh", "-c", "echo small"]).out(), "small\n");
}

fn a_flawed_template_leaves_no_name(lab: &Lab) {
    built(lab, "shell");
    for (name, text, says) in [
        ("check", "from = 'localhost/shell'\ncheck = 'echo not today; exit 3'", "not today"),
        ("step", "from = 'localhost/shell'\n[[step]]\nrun = 'cd /nowhere'", "ended with code"),
        ("program", "programs = ['no-such-program']", "no-such-program"),
        ("path", "paths = ['/no/such/path']", "/no/such/path"),
        ("whole", "programs = ['sh']\npaths = ['/']", "nothing at"),
        ("image", "from = 'localhost/none'", "no image"),
        ("key", "programmes = ['sh']", "programmes"),
        ("folder", "from = './none'", "none"),
        ("rule", "from = 'localhost/shell'\n[[step]]\nrun = 'true'\nallow = ['http://']", "http://"),
    ] {
        let file = lab.file(&format!("{name}.toml"), text);
        let ran = template(lab, &["build", file.to_str().unwrap()]);
        assert_eq!(ran.code(), 1, "{name}: {}", ran.told());
        assert!(ran.err().contains(says) && ran.err().contains("remedy"), "{name}: {}", ran.told());
        let ran = template(lab, &["build", "--json", file.to_str().unwrap()]);
        let told: Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert!(told["error"]["message"].is_string(), "{told}");
    }
    assert_eq!(names(lab), ["localhost/shell:latest"]);
    for words in
        [&["build", "nothing"][..], &["build", "missing.toml"], &["show", "nothing"], &["rm", "nothing"]]
    {
        let ran = template(lab, words);
        assert!(ran.code() == 1 && ran.err().contains("remedy"), "{words:?}: {}", ran.told());
    }
}

fn what_was_built_is_listed_and_removed(lab: &Lab) {
    let listed = template(lab, &["ls"]).out();
    assert!(listed.lines().count() == 5 && !listed.contains("built"), "{listed}");
    assert!(template(lab, &["show", "shell"]).out().contains("programs = ["));
    built(lab, "shell");
    assert!(template(lab, &["ls"]).out().contains("shell       built"));
    // The daemon offers it under this name; a file of the operator's own stays.
    let file = lab.state().join("serve/templates/shell.toml");
    assert!(std::fs::read_to_string(&file).unwrap().contains("localhost/shell:latest"));
    std::fs::write(&file, "level = 'process'\n").unwrap();
    built(lab, "shell");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "level = 'process'\n");
    assert_eq!(template(lab, &["rm", "shell"]).code(), 0);
    assert!(file.exists() && names(lab).is_empty());
    assert_eq!(lab.run(&["--template", "shell"], &["true"]).code(), 125);
}
