//! Modules that loop, grow, recurse, trap, reach out, and bytes that are made to break what reads them.

use super::{TOOL, ending, module, run, starting};
use crate::both_callers::both_callers;
use crate::lab::{Caller, Lab, finish};

both_callers! {
    a_loop_ends_at_the_wall_clock
    a_trap_is_no_code_of_the_modules
    memory_has_an_end
    nothing_outside_of_its_folders_is_opened
    an_import_that_is_not_offered_is_named
    bytes_that_are_no_module_break_nothing
    the_engine_runs_inside_only
}

fn a_loop_ends_at_the_wall_clock(lab: &Lab) {
    let spin = module(lab, "spin.wasm", &starting("(loop $l (br $l))"));
    let told = ending(lab, &["--timeout", "500ms"], &[&spin]);
    assert_eq!(told["ending"]["cause"], "timed_out", "{told}");
    let calls = r#"(module
      (import "wasi_snapshot_preview1" "sched_yield" (func $y (result i32)))
      (memory (export "memory") 1)
      (func (export "_start") (loop $l (drop (call $y)) (br $l))))"#;
    let calls = module(lab, "calls.wasm", calls);
    let told = ending(lab, &["--timeout", "500ms"], &[&calls]);
    assert_eq!(told["ending"]["cause"], "timed_out", "{told}");
}

fn a_trap_is_no_code_of_the_modules(lab: &Lab) {
    for (name, body, signal, says) in [
        ("unreachable", "unreachable", "SIGILL", "`unreachable` instruction executed, in `it`"),
        ("divide", "(drop (i32.div_u (i32.const 1) (i32.const 0)))", "SIGFPE", "integer divide by zero"),
        ("memory", "(drop (i32.load (i32.const -4)))", "SIGSEGV", "out of bounds memory access"),
        (
            "far",
            "(drop (i32.load offset=4294967295 (i32.const -1)))",
            "SIGSEGV",
            "out of bounds memory access",
        ),
        ("deep", "(call $it)", "SIGSEGV", "call stack exhausted"),
    ] {
        let path = module(lab, &format!("{name}.wasm"), &starting(body));
        let told = ending(lab, &[], &[&path]);
        assert_eq!(told["ending"]["cause"], "signalled", "{name}: {told}");
        assert_eq!(told["ending"]["name"], signal, "{name}: {told}");
        let said = told["stderr"]["text"].as_str().unwrap();
        assert!(said.contains(says), "{name}: {told}");
    }
}

/// What is past the limit is not given; what is used of it counts.
fn memory_has_an_end(lab: &Lab) {
    let grow = r#"(module
      (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
      (memory (export "memory") 1)
      (func (export "_start") (local $at i32)
        (if (i32.ge_s (memory.grow (i32.const 4096)) (i32.const 0)) (then (call $exit (i32.const 9))))
        (loop $more
          (if (i32.ge_s (memory.grow (i32.const 1)) (i32.const 0)) (then
            (local.set $at (i32.mul (i32.sub (memory.size) (i32.const 1)) (i32.const 65536)))
            (memory.fill (local.get $at) (i32.const 7) (i32.const 65536))
            (br $more))))
        (call $exit (i32.const 3))))"#;
    let grow = module(lab, "grow.wasm", grow);
    let told = ending(lab, &["--mem", "64MiB"], &[&grow]);
    let cause = told["ending"]["cause"].as_str().unwrap();
    match lab.caller {
        Caller::Root => assert_eq!(cause, "out_of_memory", "{told}"),
        // Without a cgroup the kernel refuses the growth itself, and the module goes on to its end.
        Caller::User => {
            assert!(cause == "out_of_memory" || (cause == "exited" && told["ending"]["code"] == 3), "{told}")
        }
    }
}

fn nothing_outside_of_its_folders_is_opened(lab: &Lab) {
    let tool = module(lab, "tool.wasm", TOOL);
    lab.folder("project/sub");
    lab.file("secret", "secret");
    for (target, name) in [("/etc/passwd", "absolute"), ("../secret", "up"), ("/proc/self/environ", "proc")] {
        std::os::unix::fs::symlink(target, lab.path().join("project").join(name)).unwrap();
    }
    let flags = ["-q", "--workspace", "project"];
    let above = format!("r3../../../{}", lab.path().join("secret").display());
    for word in [
        "r3..",
        "r3../etc/passwd",
        "r3sub/../../etc/passwd",
        "r3/etc/passwd",
        "r3/proc/self/environ",
        "r3absolute",
        "r3up",
        "r3proc",
        "r3sub/../absolute",
        "w3../made",
        "w3absolute",
        "w3up",
        "d3../made",
        "u3../tmp",
        &above,
    ] {
        let ran = run(lab, &flags, &[&tool, word]);
        assert_eq!(ran.out(), "76\n", "{word}: {}", ran.told());
    }
    // No link that leads out by itself is made; one that would is kept as a name, and not followed.
    for (word, answer) in [("l3/etc/passwd", "76\n"), ("l3../../etc/passwd", "00\n")] {
        assert_eq!(run(lab, &flags, &[&tool, word]).out(), answer, "{word}");
    }
    // There is no descriptor but those that were given.
    for fd in 7..=9 {
        assert_eq!(run(lab, &flags, &[&tool, &format!("r{fd}etc")]).out(), "08\n", "{fd}");
    }
}

fn an_import_that_is_not_offered_is_named(lab: &Lab) {
    for (module_name, name, kind) in [
        ("env", "system", "(func (param i32) (result i32))"),
        ("wasi_snapshot_preview1", "path_escape", "(func)"),
        ("env", "memory", "(memory 1)"),
        ("wasi_snapshot_preview1", "fd_close", "(func (param i64))"),
    ] {
        let text =
            format!("(module (import \"{module_name}\" \"{name}\" {kind}) (func (export \"_start\")))");
        let path = module(lab, "import.wasm", &text);
        let told = ending(lab, &[], &[&path]);
        assert_eq!(told["ending"]["cause"], "not_started", "{told}");
        let why = told["ending"]["why"].as_str().unwrap();
        assert!(why.contains(name) && !told["ending"]["remedy"].as_str().unwrap().is_empty(), "{told}");
    }
}

fn bytes_that_are_no_module_break_nothing(lab: &Lab) {
    let header = b"\0asm\x01\0\0\0".to_vec();
    let nested = {
        let mut code = vec![0];
        code.extend([0x02, 0x40].repeat(20_000));
        code.extend([0x0b].repeat(20_001));
        let mut section = vec![1];
        leb(&mut section, code.len());
        section.extend(code);
        let mut bytes = header.clone();
        bytes.extend([1, 4, 1, 0x60, 0, 0, 3, 2, 1, 0, 7, 10, 1, 6]);
        bytes.extend(b"_start\0\0\x0a");
        leb(&mut bytes, section.len());
        bytes.extend(section);
        bytes
    };
    let mut noise = header.clone();
    let mut word = 1_u32;
    noise.extend((0..4096).map(|_| {
        word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        word.to_be_bytes()[0]
    }));
    let huge_count = [&header[..], &[1, 5, 0xff, 0xff, 0xff, 0xff, 0x0f]].concat();
    let cut = wat::parse_str(TOOL).unwrap()[..700].to_vec();
    let tables = wat::parse_str("(module (table 4000000000 funcref) (func (export \"_start\")))").unwrap();
    for (name, bytes, starts) in [
        ("empty", header, false),
        ("noise", noise, false),
        ("count", huge_count, false),
        ("cut", cut, false),
        ("tables", tables, false),
        ("nested", nested, true),
    ] {
        let path = lab.file(&format!("{name}.wasm"), bytes).to_str().unwrap().to_owned();
        let told = ending(lab, &[], &[&path]);
        let cause = told["ending"]["cause"].as_str().unwrap();
        if !starts {
            assert_eq!(cause, "not_started", "{name}: {told}");
        }
        assert!(cause == "not_started" || told["ending"]["code"] == 0, "{name}: {told}");
        let shown = told["ending"].to_string();
        assert!(!shown.contains('\u{1b}'), "{name}");
    }
}

/// A number as modules write it: seven bits a byte, the lowest first.
fn leb(to: &mut Vec<u8>, mut value: usize) {
    loop {
        let low = u8::try_from(value & 0x7f).unwrap();
        value >>= 7;
        to.push(if value == 0 { low } else { low | 0x80 });
        if value == 0 {
            return;
        }
    }
}

fn the_engine_runs_inside_only(lab: &Lab) {
    for words in [&["wasm-engine", "compile"][..], &["wasm-engine"]] {
        let mut command = lab.fumehood();
        command.args(words);
        let ran = finish(command, b"");
        assert_eq!(ran.code(), 125, "{}", ran.told());
        assert!(ran.err().contains("inside a sandbox only"), "{}", ran.told());
    }
}
