//! From a request to `execve`, or to the reason why not.

use crate::guest::{Guest, Streams, pipes, request, start};
use fumehood_backend::{Event, ExecError, WaitStatus};
use fumehood_backend_native::control::{Control, wire};
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

#[test]
fn output_and_exit_code_come_back() {
    let mut guest = Guest::new();
    let outcome = guest.run(&request(&["echo", "a b", "c"]), false).unwrap();
    assert_eq!((outcome.stdout.as_str(), outcome.status), ("a b c\n", WaitStatus::Exited(0)));
    for code in [0_u8, 1, 42, 255] {
        let outcome = guest.run(&request(&["sh", "-c", &format!("exit {code}")]), false).unwrap();
        assert_eq!(outcome.status, WaitStatus::Exited(code));
    }
}

#[test]
fn the_streams_are_three_and_in_order() {
    let mut guest = Guest::new();
    let (_, streams) = guest.exec(&request(&["sh", "-c", "cat; echo err >&2"]), false);
    let Streams { mut stdin, mut stdout, mut stderr } = streams;
    stdin.write_all(b"in\n").unwrap();
    drop(stdin);
    let (mut out, mut err) = (String::new(), String::new());
    stdout.read_to_string(&mut out).unwrap();
    stderr.read_to_string(&mut err).unwrap();
    assert_eq!((out.as_str(), err.as_str()), ("in\n", "err\n"));
}

#[test]
fn a_command_starts_from_a_clean_state() {
    let mut guest = Guest::new();
    assert_eq!(guest.shell("ls /proc/self/fd | tr '\\n' ' '"), "0 1 2 3 ", "a descriptor got in");
    let masks = guest.shell("grep -E '^Sig(Blk|Ign):' /proc/self/status | tr -d '\\t\\n'");
    assert_eq!(masks, "SigBlk:0000000000000000SigIgn:0000000000000000");
    assert_eq!(guest.shell("umask"), "0022\n");
    assert_eq!(
        guest.shell("[ $(ps -o sid= -p $$) = $$ ] && [ $(ps -o pgid= -p $$) = $$ ] && echo own"),
        "own\n"
    );
    let outcome = guest.run(&request(&["env"]), false).unwrap();
    assert_eq!(outcome.stdout, "PATH=/usr/local/bin:/usr/bin:/bin\n");
    assert_eq!(guest.shell("cat /proc/1/comm"), "init\n");
}

#[test]
fn bytes_that_are_not_text_pass_through() {
    let mut guest = Guest::new();
    let mut odd = request(&["sh", "-c", "printf %s \"$1$V\" | od -An -tx1", "sh"]);
    odd.argv.push(OsString::from_vec(vec![0xff, b'\n', 0x80]));
    odd.env.push(("V".into(), OsString::from_vec(vec![0xfe])));
    assert_eq!(guest.run(&odd, false).unwrap().stdout, " ff 0a 80 fe\n");
}

#[test]
fn a_command_that_is_not_there_is_not_found() {
    let mut guest = Guest::new();
    for name in ["no-such-command", "/no/such/command", "./no-such", "/etc/passwd/below", ""] {
        let result = match guest.control.exec(&request(&[name]), pipes().0, false) {
            Ok(_) => match guest.event().1 {
                Event::NotStarted(error) => error,
                other => panic!("{other:?}"),
            },
            Err(error) => error,
        };
        assert_eq!(result, ExecError::NotFound, "{name:?}");
    }
    let mut nowhere = request(&["echo"]);
    nowhere.env = vec![("PATH".into(), "/no/such/folder:".into())];
    assert_eq!(guest.run(&nowhere, false).unwrap_err(), ExecError::NotFound);
    nowhere.env.clear();
    assert_eq!(guest.run(&nowhere, false).unwrap().status, WaitStatus::Exited(0), "no usual path");
}

#[test]
fn the_path_is_searched_as_a_shell_does() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    fs::create_dir(&first).unwrap();
    fs::create_dir(&second).unwrap();
    write(&first.join("tool"), "#!/bin/sh\necho first", 0o644);
    write(&first.join("data"), "", 0o644);
    write(&second.join("tool"), "#!/bin/sh\necho second", 0o755);
    write(&second.join("plain"), "echo \"plain $0 $1 $#\"", 0o755);
    write(&second.join("orphan"), "#!/no/such/interpreter", 0o755);
    let mut guest = Guest::new();
    let mut run = |argv: &[&str]| {
        let mut request = request(argv);
        let path = format!("{}:{}:{}", "/x".repeat(4000), first.display(), second.display());
        request.env = vec![("PATH".into(), path.into())];
        guest.run(&request, false).map(|outcome| outcome.stdout)
    };
    assert_eq!(run(&["tool"]).unwrap(), "second\n", "a file without the right is passed over");
    assert_eq!(run(&["data"]).unwrap_err(), ExecError::NotExecutable(ErrorKind::PermissionDenied));
    assert_eq!(run(&["orphan"]).unwrap_err(), ExecError::NotExecutable(ErrorKind::NotFound));
    let plain = second.join("plain");
    let expected = format!("plain {} x 2\n", plain.display());
    assert_eq!(run(&["plain", "x", "y"]).unwrap(), expected);
    assert_eq!(run(&[plain.to_str().unwrap(), "x", "y"]).unwrap(), expected);
    assert_eq!(
        run(&[first.join("data").to_str().unwrap()]).unwrap_err(),
        ExecError::NotExecutable(ErrorKind::PermissionDenied)
    );
}

#[test]
fn a_working_directory_that_can_not_be_entered_is_said() {
    let mut guest = Guest::new();
    let mut elsewhere = request(&["pwd"]);
    elsewhere.cwd = "/no/such/folder".into();
    let error = guest.run(&elsewhere, false).unwrap_err();
    assert_eq!(error, ExecError::WorkingDirectory(ErrorKind::NotFound));
    elsewhere.cwd = "/etc/passwd".into();
    let error = guest.run(&elsewhere, false).unwrap_err();
    assert_eq!(error, ExecError::WorkingDirectory(ErrorKind::NotADirectory));
    elsewhere.cwd = "/usr".into();
    assert_eq!(guest.run(&elsewhere, false).unwrap().stdout, "/usr\n");
}

#[test]
fn a_megabyte_of_arguments_and_environment_arrives_whole() {
    let mut guest = Guest::new();
    let mut large =
        request(&["sh", "-c", "echo $# ${#V7} ${1000} | md5sum >/dev/null; echo $# ${#V7}", "sh"]);
    large.argv.extend((0..1000).map(|_| OsString::from("x".repeat(1000))));
    large.env.extend((0..50).map(|n| (format!("V{n}").into(), "y".repeat(1000 + n).into())));
    assert_eq!(guest.run(&large, false).unwrap().stdout, "1000 1007\n");
    // Around the size where a block moves out of the packet.
    for length in wire::INLINE_BYTES - 100..wire::INLINE_BYTES + 3 {
        if length % 20 == 0 || length > wire::INLINE_BYTES - 70 {
            let text = "z".repeat(length);
            let outcome = guest.run(&request(&["true", &text]), false).unwrap();
            assert_eq!(outcome.status, WaitStatus::Exited(0), "{length}");
        }
    }
}

#[test]
fn what_the_kernel_will_not_take_is_too_large() {
    let mut guest = Guest::new();
    let limit_bytes = wire::BLOCK_BYTES;
    let one = request(&["true", &"x".repeat(200 * 1024)]);
    assert_eq!(guest.run(&one, false).unwrap_err(), ExecError::TooLarge { limit_bytes });
    let all = request(&["true", &"x".repeat(limit_bytes)]);
    let refused = guest.control.exec(&all, pipes().0, false);
    assert_eq!(refused.unwrap_err(), ExecError::TooLarge { limit_bytes });
    assert_eq!(guest.shell("echo on"), "on\n");
}

#[test]
fn an_inner_zero_is_refused() {
    let mut guest = Guest::new();
    let refused = guest.control.exec(&request(&["echo", "a\0b"]), pipes().0, false);
    assert_eq!(refused.unwrap_err(), ExecError::NotExecutable(ErrorKind::InvalidInput));
}

#[test]
fn a_user_of_the_same_number_can_not_look_into_init() {
    let (control, theirs) = Control::new().unwrap();
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let mut guest = Guest { control, process: start(theirs, nobody) };
    assert_eq!(guest.shell("id -u; stat -c %u /proc/$$/mem"), "65534\n65534\n");
    let looks = "ls /proc/1/fd 2>/dev/null || echo no; cat /proc/1/maps 2>/dev/null || echo no; stat -c %u /proc/1/mem";
    assert_eq!(guest.shell(looks), "no\nno\n0\n");
    let outcome =
        guest.run(&request(&["sh", "-c", "kill -9 1; kill -STOP 1; kill -9 -1; echo on"]), false).unwrap();
    assert_eq!(outcome.stdout, "on\n", "init or the shell was ended");
}

/// Anywhere else "kill all" would reach what is not the guest's. Tried as the second process of a
/// namespace, so that the test does no harm if it fails.
#[test]
fn as_any_process_but_the_first_it_does_nothing() {
    let (control, theirs) = Control::new().unwrap();
    let mut process = start(theirs, "sh -c '\"$0\"; exit $?'");
    drop(control);
    assert_eq!(process.wait(), Some(70));
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}
