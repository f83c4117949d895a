//! What works: words, streams, codes, files in and out, the workspace, and what is kept of a compilation.

use super::{CAT, TOOL, ending, fed, module, run, starting};
use crate::both_callers::both_callers;
use crate::lab::{Lab, finish};

both_callers! {
    a_module_is_given_streams_and_ends_with_its_own_code
    files_go_in_and_come_out
    a_workspace_is_laid_over
    a_module_is_compiled_once
    what_a_module_can_not_have_is_refused
    what_is_no_module_is_told_so
    an_interpreter_is_the_one_whose_hash_is_known
}

fn a_module_is_given_streams_and_ends_with_its_own_code(lab: &Lab) {
    let cat = module(lab, "cat.wasm", CAT);
    let text = "line\n".repeat(40_000);
    let ran = fed(lab, &["-q"], &[&cat], text.as_bytes());
    assert_eq!((ran.code(), ran.out()), (0, text), "{}", ran.told());
    let tool = module(lab, "tool.wasm", TOOL);
    let ran = run(lab, &["-q"], &[&tool, "e7"]);
    assert_eq!((ran.code(), ran.out(), ran.err()), (7, String::new(), String::new()));
    let told = ending(lab, &[], &[&tool, "e0"]);
    assert_eq!(told["ending"]["cause"], "exited");
    assert_eq!(told["level"]["level"], "wasm", "{told}");
}

fn files_go_in_and_come_out(lab: &Lab) {
    let tool = module(lab, "tool.wasm", TOOL);
    lab.file("data.txt", "forty-two");
    let ran = run(lab, &["-q", "--in", "data.txt"], &[&tool, "r3data.txt"]);
    assert_eq!(ran.out(), "00\nforty-two", "{}", ran.told());
    // The fourth descriptor is the first folder by name, and HOME comes before `/out`.
    let ran = run(lab, &["-q", "--in", "data.txt:/data/x"], &[&tool, "r4x"]);
    assert_eq!(ran.out(), "00\nforty-two", "{}", ran.told());
    let out = lab.folder("results");
    let ran = run(lab, &["-q", "--out", "results"], &[&tool, "w5made.txt"]);
    assert_eq!((ran.code(), ran.out()), (0, "00\n".to_owned()), "{}", ran.told());
    assert_eq!(std::fs::read_to_string(out.join("made.txt")).unwrap(), "made");
}

fn a_workspace_is_laid_over(lab: &Lab) {
    let tool = module(lab, "tool.wasm", TOOL);
    let project = lab.folder("project");
    let file = lab.file("project/file", "before");
    let ran = run(lab, &["-q", "--workspace", "project"], &[&tool, "w3file"]);
    assert_eq!(ran.out(), "00\n", "{}", ran.told());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "before");
    let mut apply = lab.fumehood();
    apply.args(["apply"]).current_dir(&project);
    let applied = finish(apply, b"");
    assert_eq!(applied.code(), 0, "{}", applied.told());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "made");
    // Read-only is the kernel's answer, not the engine's.
    let ran = run(lab, &["-q", "--workspace", "project:ro"], &[&tool, "w3file"]);
    assert_eq!(ran.out(), "69\n", "{}", ran.told());
    // Written through, where the filter has fewer calls.
    let ran = run(lab, &["-q", "--workspace", "project:rw"], &[&tool, "w3new"]);
    assert_eq!(ran.out(), "00\n", "{}", ran.told());
    assert_eq!(std::fs::read_to_string(project.join("new")).unwrap(), "made");
}

fn a_module_is_compiled_once(lab: &Lab) {
    let tool = module(lab, "tool.wasm", TOOL);
    let kept = || -> Vec<_> {
        let listing = std::fs::read_dir(lab.state().join("shared/wasm"));
        let mut names: Vec<_> = listing.into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        names
    };
    assert_eq!(run(lab, &[], &[&tool, "e0"]).code(), 0);
    let first = kept();
    assert_eq!(first.len(), 2, "{first:?}");
    let times =
        || -> Vec<_> { kept().iter().map(|path| path.metadata().unwrap().modified().unwrap()).collect() };
    let made = times();
    assert_eq!(run(lab, &[], &[&tool, "e3"]).code(), 3);
    assert_eq!((kept(), times()), (first.clone(), made), "it was compiled again");
    // Code that is not what was made is never run.
    let code = first.iter().find(|path| path.extension().is_some_and(|kind| kind == "code")).unwrap();
    let mut bytes = std::fs::read(code).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(code, bytes).unwrap();
    let told = ending(lab, &[], &[&tool, "e3"]);
    assert_eq!(told["ending"]["cause"], "not_started", "{told}");
    assert!(told["stderr"]["text"].as_str().unwrap().contains("not what it was when it was made"), "{told}");
    assert_eq!(run(lab, &[], &[&tool, "e3"]).code(), 3, "it is made again");
}

fn what_a_module_can_not_have_is_refused(lab: &Lab) {
    let tool = module(lab, "tool.wasm", TOOL);
    lab.file("x", "");
    for (flags, word) in [
        (&["--allow", "api.example.com"][..], "network"),
        (&["--publish", "8080"], "network"),
        (&["--in", "x:/x"], "filesystem"),
        (&["--image", "/"], "filesystem"),
    ] {
        let ran = run(lab, flags, &[&tool, "e0"]);
        assert_eq!(ran.code(), 125, "{flags:?}: {}", ran.told());
        assert!(ran.err().contains(word) || ran.err().contains("image"), "{flags:?}: {}", ran.told());
        assert!(ran.err().contains("remedy"), "{flags:?}: {}", ran.told());
    }
}

fn what_is_no_module_is_told_so(lab: &Lab) {
    let script = lab.file("script.sh", "#!/bin/sh\n").to_str().unwrap().to_owned();
    let component = lab.file("component.wasm", b"\0asm\x0d\0\x01\0").to_str().unwrap().to_owned();
    let library = module(lab, "library.wasm", "(module (func (export \"add\")))");
    let large = module(lab, "large.wasm", &starting("").replace("\") 1)", "\") 16384)"));
    for (flags, path, what) in [
        (&[][..], script.as_str(), "not a WebAssembly module"),
        (&[], &component, "component"),
        (&[], &library, "_start"),
        (&[], "nowhere.wasm", "no such file"),
        (&[], "/tmp", "not a regular file"),
        (&["--mem", "512MiB"], &large, "--memory"),
    ] {
        let ran = run(lab, flags, &[path]);
        assert_eq!(ran.code(), 125, "{path}: {}", ran.told());
        assert!(ran.err().contains(what) && ran.err().contains("remedy"), "{path}: {}", ran.told());
    }
}

fn an_interpreter_is_the_one_whose_hash_is_known(lab: &Lab) {
    let eval = |words: &[&str]| {
        let mut command = lab.fumehood();
        command.arg("eval").args(words);
        finish(command, b"")
    };
    let ran = eval(&["--lang", "js", "-e", "1+1"]);
    assert_eq!(ran.code(), 125, "{}", ran.told());
    assert!(ran.err().contains("fumehood eval --setup js"), "{}", ran.told());
    let cat = module(lab, "cat.wasm", CAT);
    let ran = eval(&["--setup", "js", "--from", &cat]);
    assert_eq!(ran.code(), 1, "{}", ran.told());
    assert!(
        ran.err().contains("SHA-256") && !lab.state().join("interpreters/js.wasm").exists(),
        "{}",
        ran.told()
    );
    // One that was exchanged since is not compiled.
    std::fs::copy(&cat, lab.state().join("interpreters/js.wasm")).unwrap();
    let ran = eval(&["--lang", "js", "-e", "1+1"]);
    assert_eq!(ran.code(), 125, "{}", ran.told());
    assert!(ran.err().contains("set it up again"), "{}", ran.told());
    for words in [&["--lang", "js"][..], &["-e", "1"], &["--lang", "perl", "-e", "1"]] {
        assert_ne!(eval(words).code(), 0, "{words:?}");
    }
}
