//! What a workspace, an image or an earlier command prepares must not make the launcher or the collector
//! act on the host for it.

use crate::both_callers::both_callers;
use crate::lab::{self, Lab};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

both_callers! {
    links_of_an_image_stay_in_it
    links_of_a_workspace_make_nothing_on_the_host
    links_of_a_session_make_nothing_on_the_host
    a_cache_in_the_workspace_is_seen
    outputs_land_where_the_path_led_before
    no_file_of_a_written_workspace_runs_as_its_owner
    arguments_do_not_reach_the_terminal
    terminals_are_left_for_others
    a_session_that_is_being_made_is_left_alone
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

fn links_of_an_image_stay_in_it(lab: &Lab) {
    let canary = lab::canary();
    let secret = lab.folder("secret");
    lab.file("secret/key", &canary);
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o755)).unwrap();
    let image = lab.folder("image");
    for (name, to) in [("etc", text(&secret)), ("opt", text(&secret)), ("usr", "/")] {
        symlink(to, image.join(name)).unwrap();
    }
    for (name, to) in [("bin", "usr/usr/bin"), ("lib", "usr/usr/lib"), ("lib64", "usr/usr/lib64")] {
        symlink(to, image.join(name)).unwrap();
    }
    let script = format!("cat /etc/key /opt/key /usr{}/key", text(&secret));
    let ran = lab.run(&["--image", text(&image)], &["/bin/sh", "-c", &script]);
    assert!(!lab::contains(&ran.stdout, &canary), "{}", ran.told());
}

fn links_of_a_workspace_make_nothing_on_the_host(lab: &Lab) {
    let (outside, workspace, data) = (lab.folder("outside"), lab.folder("workspace"), lab.folder("data"));
    symlink(&outside, workspace.join("sub")).unwrap();
    let file = lab.file("data/file", "x");
    for flags in [
        ["--ro", &format!("{}:/workspace/sub/a/b", text(&data))],
        ["--cache", "/workspace/sub/a/b"],
        ["--in", &format!("{}:sub/a/b", text(&file))],
    ] {
        let ran = lab.run(&["--workspace", text(&workspace), flags[0], flags[1]], &["true"]);
        assert!(is_empty(&outside), "{flags:?}: {}", ran.told());
        assert!(ran.err().contains("a link stands on the way"), "{flags:?}: {}", ran.told());
    }
}

fn links_of_a_session_make_nothing_on_the_host(lab: &Lab) {
    let outside = lab.folder("outside");
    let plant = format!("ln -s {0} ~/.cache && ln -s {0} ~/a && printf %s ~", text(&outside));
    let ran = lab.run(&["--session", "s"], &["sh", "-c", &plant]);
    assert_eq!(ran.code(), 0, "{}", ran.told());
    for cache in ["pip", &format!("{}/a/b/c", ran.out())] {
        let ran = lab.run(&["--session", "s", "--cache", cache], &["true"]);
        assert!(is_empty(&outside), "{cache}: {}", ran.told());
        assert_ne!(ran.code(), 0, "{cache}: {}", ran.told());
    }
}

fn a_cache_in_the_workspace_is_seen(lab: &Lab) {
    let workspace = lab.folder("workspace");
    let flags = ["--workspace", text(&workspace), "--cache", "/workspace/deps/kept"];
    let ran = lab.run(&flags, &["sh", "-c", "echo x > deps/kept/file && echo y > deps/other"]);
    assert_eq!(ran.code(), 0, "{}", ran.told());
    let ran = lab.run(&flags, &["cat", "deps/kept/file"]);
    assert_eq!(ran.out(), "x\n", "{}", ran.told());
}

fn outputs_land_where_the_path_led_before(lab: &Lab) {
    let outside = lab.folder("outside");
    for (target, way) in
        [("workspace/sub/out", "sub"), ("workspace/new/out", "new"), ("workspace/out", "out")]
    {
        let workspace = lab.folder("workspace");
        lab.folder("workspace/sub");
        let swap = format!("rm -rf {way}; ln -s {} {way}; echo x > /out/file", text(&outside));
        let target = lab.path().join(target);
        let flags = ["--workspace", &format!("{}:rw", text(&workspace)), "--out", text(&target)];
        let ran = lab.run(&flags, &["sh", "-c", &swap]);
        assert!(is_empty(&outside), "{flags:?}: {}", ran.told());
        std::fs::remove_dir_all(&workspace).unwrap();
    }
}

fn no_file_of_a_written_workspace_runs_as_its_owner(lab: &Lab) {
    if !lab::installed("python3") {
        return;
    }
    let workspace = lab.folder("workspace");
    // By number, so that no library falls back: chmod, fchmod, fchmodat, fchmodat2, open, openat, an unnamed
    // file with a name, creat, mknod, openat2.
    let script = r"
import ctypes, os, struct
call = ctypes.CDLL(None).syscall
here = b'/workspace/'
for bits in (0o4755, 0o2755):
    name = b'%o' % bits
    for number in (90, 91, 268, 452):
        path = here + b'mode%d-' % number + name
        fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o755)
        first = {90: (path,), 91: (fd,), 268: (-100, path), 452: (-100, path)}[number]
        call(number, *first, bits, 0)
    call(2, here + b'open-' + name, os.O_CREAT | os.O_WRONLY, bits)
    call(257, -100, here + b'openat-' + name, os.O_CREAT | os.O_WRONLY, bits)
    fd = call(257, -100, here, os.O_TMPFILE | os.O_WRONLY, bits)
    call(265, -100, b'/proc/self/fd/%d' % fd, -100, here + b'unnamed-' + name, 0x400)
    call(85, here + b'creat-' + name, bits)
    call(133, here + b'mknod-' + name, 0o100000 | bits, 0)
    how = struct.pack('QQQ', os.O_CREAT | os.O_WRONLY, bits, 0)
    call(437, -100, here + b'openat2-' + name, how, len(how))
";
    let flags = ["--workspace", &format!("{}:rw", text(&workspace))];
    let ran = lab.run(&flags, &["python3", "-c", script]);
    assert_eq!(ran.code(), 0, "{}", ran.told());
    let entries: Vec<_> = std::fs::read_dir(&workspace).unwrap().map(|entry| entry.unwrap()).collect();
    assert!(entries.len() >= 8, "{}", ran.told());
    for entry in entries {
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o6000, 0, "{:?} {mode:o}", entry.file_name());
    }
    let ran = lab
        .run(&flags, &["sh", "-c", "umask 0; echo x > a; chmod 0777 a; mkdir -m 1777 b; cp -a /bin/true c"]);
    assert_eq!(ran.code(), 0, "{}", ran.told());
    let ran = lab.run(&["--workspace", text(&workspace)], &["sh", "-c", "echo x > d; chmod 6755 d"]);
    assert_eq!(ran.code(), 0, "the layer is nobody's but its owner's: {}", ran.told());
}

fn arguments_do_not_reach_the_terminal(lab: &Lab) {
    let ran = lab.run(&[], &["no\u{1b}]0;title\u{7}\nfumehood: such"]);
    assert_eq!(ran.code(), 127, "{}", ran.told());
    let told = ran.err();
    assert!(!told.contains('\u{1b}') && !told.contains("\nfumehood: such"), "{told:?}");
    let ran = lab.run(&["--workspace", "no\u{1b}[2Jsuch"], &["true"]);
    assert!(!ran.err().contains('\u{1b}'), "{:?}", ran.err());
}

fn terminals_are_left_for_others(lab: &Lab) {
    if !lab::installed("python3") {
        return;
    }
    let script = "
import os
count = 0
try:
    while count < 1000: os.open('/dev/ptmx', os.O_RDWR); count += 1
except OSError: pass
print(count)";
    let ran = lab.run(&[], &["python3", "-c", script]);
    let count: u32 = ran.out().trim().parse().unwrap_or_else(|_| panic!("{}", ran.told()));
    assert!((1..=256).contains(&count), "{count}");
}

fn a_session_that_is_being_made_is_left_alone(lab: &Lab) {
    let workspace = lab.folder("workspace");
    let flags = ["--workspace", text(&workspace), "--session", "s"];
    assert_eq!(lab.run(&[], &["true"]).code(), 0);
    // What the first of two first runs has made so far.
    for folder in ["state/sessions/s", "state/sessions/s/layer", "state/sessions/s/layer/upper"] {
        let folder = lab.folder(folder);
        std::fs::set_permissions(folder, PermissionsExt::from_mode(0o700)).unwrap();
    }
    let image = lab.file("state/sessions/s/layer/disk.img", "the other's");
    let held = std::fs::File::open(lab.path().join("state/sessions/s/layer")).unwrap();
    held.lock().unwrap();
    let ran = lab.run(&flags, &["true"]);
    assert_eq!(ran.code(), 125, "{}", ran.told());
    assert_eq!(std::fs::read(&image).unwrap(), b"the other's");
    drop(held);
    // What a killed one left is made anew.
    std::fs::remove_file(image).unwrap();
    assert_eq!(lab.run(&flags, &["sh", "-c", "echo x > file"]).code(), 0);
    let ran = lab.run(&flags, &["cat", "file"]);
    assert_eq!(ran.out(), "x\n", "{}", ran.told());
}

#[test]
fn output_that_can_not_be_written_is_told() {
    let lab = Lab::new(lab::Caller::User);
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for (flag, code) in [("--no-tty", 0), ("--json", 125)] {
        let mut command = lab.fumehood();
        command.args(["run", flag, "--", "echo", "x"]).stdout(full());
        let ran = command.stdin(std::process::Stdio::null()).output().unwrap();
        let told = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(code), "{told}");
        assert!(told.contains("No space left"), "{told}");
    }
}
