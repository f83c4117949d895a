//! What the self-test needs beside its probes: namespaces for a control, a guard that cleans up after a killed
//! self-test, and a network in which every address is its own.

use crate::call::{self, plain, sys};
use crate::{numbers, say};
use std::ffi::CString;
use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

const USER: i64 = 0x1000_0000;
const MOUNT: i64 = 0x0002_0000;
const UTS: i64 = 0x0400_0000;
const NET: i64 = 0x4000_0000;
const IPC: i64 = 0x0800_0000;

/// Before a step of the control: `bare` as the caller, with root in mounts and a host name of its own, so that the
/// host stays whole; `capable` with every capability over namespaces of its own, network and memory too.
pub(crate) fn open(how: &str) -> Result<(), i32> {
    let root = plain(107, &[]) == Ok(0);
    match (how, root) {
        ("bare", false) => Ok(()),
        ("bare", true) => {
            plain(272, &[MOUNT | UTS])?;
            private()
        }
        ("capable", true) => {
            plain(272, &[MOUNT | UTS | NET | IPC])?;
            private()
        }
        ("capable", false) => {
            own_user(MOUNT | UTS | NET | IPC)?;
            private()
        }
        _ => Err(22),
    }
}

/// Becomes a command on a host that lets nobody make a user namespace.
pub(crate) fn closed(command: &[&str]) -> std::process::ExitCode {
    let done = own_user(MOUNT).and_then(|()| {
        std::fs::write("/proc/sys/user/max_user_namespaces", "0")
            .map_err(|error| error.raw_os_error().unwrap_or(5))
    });
    let error = match done {
        Ok(()) => call::execute(command),
        Err(error) => error,
    };
    say(&format!("no command: {}", numbers::name(error)));
    std::process::ExitCode::FAILURE
}

/// Becomes a command on a kernel that answers as one without Landlock does.
pub(crate) fn unable(command: &[&str]) -> std::process::ExitCode {
    let step = |code: u64, yes: u64, no: u64, value: u64| code | yes << 16 | no << 24 | value << 32;
    // Load the number of the call; if it is `landlock_create_ruleset`, ENOSYS; else let it pass.
    let mut filter =
        [step(0x20, 0, 0, 0), step(0x15, 0, 1, 444), step(0x06, 0, 0, 0x0005_0026), step(0x06, 0, 0, 0x7fff_0000)];
    let mut program = [filter.len() as u64, filter.as_mut_ptr() as u64];
    let done = plain(157, &[38, 1, 0, 0, 0])
        .and_then(|_| sys(157, [22.into(), 2.into(), (&mut program).into(), 0.into(), 0.into()]));
    let error = match done {
        Ok(_) => call::execute(command),
        Err(error) => error,
    };
    say(&format!("no command: {}", numbers::name(error)));
    std::process::ExitCode::FAILURE
}

/// Nothing that is mounted here is seen elsewhere.
fn private() -> Result<(), i32> {
    let (none, root) = (CString::default(), CString::new("/").unwrap_or_default());
    sys(165, [(&none).into(), (&root).into(), 0.into(), 0x4_4000.into(), 0.into()]).map(drop)
}

/// A user namespace in which this user is itself, and others beside it.
fn own_user(more: i64) -> Result<(), i32> {
    let (uid, gid) = (plain(107, &[])?, plain(108, &[])?);
    plain(272, &[USER | more])?;
    let write = |file: &str, text: String| {
        std::fs::write(format!("/proc/self/{file}"), text).map_err(|error| error.raw_os_error().unwrap_or(5))
    };
    write("uid_map", format!("{uid} {uid} 1"))?;
    write("setgroups", "deny".to_owned())?;
    write("gid_map", format!("{gid} {gid} 1"))
}

/// Waits until standard input ends, which it does with whoever holds its other end; then asks the process group
/// that this process leads to end, and removes the folders.
pub(crate) fn guard(folders: &[&str]) -> std::process::ExitCode {
    let _ = plain(109, &[0, 0]);
    for signal in [1, 2, 15] {
        call::ignore(signal);
    }
    say("guarding");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let group = plain(39, &[]).unwrap_or(0);
    // Who was stopped by a probe hears it too.
    let _ = plain(62, &[-group, 15]);
    let _ = plain(62, &[-group, 18]);
    let end = Instant::now() + Duration::from_secs(10);
    // A run that was asked to end takes a moment, and its reaper another.
    while Instant::now() < end && others(group) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let there = || folders.iter().any(|folder| std::fs::symlink_metadata(folder).is_ok());
    while Instant::now() < end + Duration::from_secs(10) && there() {
        folders.iter().for_each(|folder| remove(std::path::Path::new(folder)));
        std::thread::sleep(Duration::from_millis(10));
    }
    std::process::ExitCode::SUCCESS
}

/// Removes a folder with all in it, whatever the modes: an overlay leaves folders that their owner can not enter.
fn remove(folder: &std::path::Path) {
    let Ok(found) = std::fs::symlink_metadata(folder) else { return };
    if !found.is_dir() {
        let _ = std::fs::remove_file(folder);
        return;
    }
    let _ = std::fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o700));
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        remove(&entry.path());
    }
    let _ = std::fs::remove_dir(folder);
}

/// Whether anybody else is left in the group.
fn others(group: i64) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|process| process.file_name().to_str()?.parse::<i64>().ok()).any(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        let (state, own) = (fields.next(), fields.nth(1));
        pid != group && state != Some("Z") && own.and_then(|own| own.parse().ok()) == Some(group)
    })
}

/// Becomes a command that has a file open which it was not given.
pub(crate) fn with_stray(file: &str, command: &[&str]) -> std::process::ExitCode {
    for number in [7, 9] {
        if let Ok(opened) = crate::doors::open(file, 2) {
            let _ = plain(33, &[opened, number]);
        }
    }
    say(&format!("no command: {}", numbers::name(call::execute(command))));
    std::process::ExitCode::FAILURE
}

/// Becomes a command whose session keyring holds a value.
pub(crate) fn with_key(name: &str, value: &str, command: &[&str]) -> std::process::ExitCode {
    let text = |word: &str| CString::new(word).unwrap_or_default();
    let (kind, name, content) = (text("user"), text(name), text(value));
    // A session keyring of its own, so that the caller's stays as it is.
    let _ = plain(250, &[1, 0]);
    let length = i64::try_from(value.len()).unwrap_or(0);
    let _ = sys(248, [(&kind).into(), (&name).into(), (&content).into(), length.into(), (-3).into()]);
    say(&format!("no command: {}", numbers::name(call::execute(command))));
    std::process::ExitCode::FAILURE
}

/// Makes a network of its own in which every address is local, with servers in it, and adds a line to `log` for
/// each first packet that is seen there. It lasts until standard input ends.
pub(crate) fn range(log: &str, folder: &str) -> std::process::ExitCode {
    let failed = |step: &str, error: i32| {
        say(&format!("no network: {step}: {}", numbers::name(error)));
        std::process::ExitCode::FAILURE
    };
    let watcher = match network(folder) {
        Ok(watcher) => watcher,
        Err((step, error)) => return failed(step, error),
    };
    let Ok(mut file) = std::fs::File::options().create(true).append(true).open(log) else {
        return failed("open the log", 2);
    };
    let own = plain(39, &[]).unwrap_or(0);
    match call::fork() {
        Ok(0) => {
            let _ = plain(157, &[1, 9, 0, 0, 0]);
            if plain(110, &[]) == Ok(own) {
                crate::serve::all(log);
            }
            call::exit(1);
        }
        Ok(_) => {}
        Err(error) => return failed("start the servers", error),
    }
    if !crate::serve::listening() {
        return failed("wait for the servers", 110);
    }
    say(&format!("range {own}"));
    let mut packet = [0_u8; 256];
    loop {
        let entry = |number: u64| number & 0xffff_ffff | 1 << 32;
        let mut poll = [entry(watcher.cast_unsigned()), entry(0)];
        let _ = sys(7, [(&mut poll).into(), 2.into(), (-1).into()]);
        // MSG_DONTWAIT.
        while let Ok(length) =
            sys(45, [watcher.into(), (&mut packet).into(), 256.into(), 0x40.into(), 0.into(), 0.into()])
        {
            let length = usize::try_from(length).unwrap_or(0).min(256);
            if let Some(line) = crate::wire::packet(&packet[..length]) {
                let _ = file.write_all(format!("packet {line}\n").as_bytes());
            }
        }
        if poll[1] >> 48 != 0 {
            // Nobody holds the other end any more.
            return std::process::ExitCode::SUCCESS;
        }
    }
}

/// Becomes a command in the network of a range.
pub(crate) fn enter(pid: &str, command: &[&str]) -> std::process::ExitCode {
    let root = plain(107, &[]) == Ok(0);
    let kinds: &[&str] = if root { &["net", "mnt"] } else { &["user", "net", "mnt"] };
    let mut done = Ok(0);
    // Entering mounts leads to their root; back to where we were.
    let here = std::env::current_dir().unwrap_or_default();
    // All are opened first: within the first, the others may be out of sight.
    let opened: Vec<_> =
        kinds.iter().map(|kind| crate::doors::open(&format!("/proc/{pid}/ns/{kind}"), 0)).collect();
    for number in opened {
        done = done.and_then(|_| plain(308, &[number?, 0]));
    }
    let _ = std::env::set_current_dir(here);
    let error = match done {
        Ok(_) => call::execute(command),
        Err(error) => error,
    };
    say(&format!("no command: {}", numbers::name(error)));
    std::process::ExitCode::FAILURE
}

/// The namespaces, their routes, the name server's address, and the socket that sees all of it.
fn network(folder: &str) -> Result<i64, (&'static str, i32)> {
    if plain(107, &[]) == Ok(0) {
        plain(272, &[NET | MOUNT]).map_err(|error| ("make the namespaces", error))?;
    } else {
        own_user(NET | MOUNT).map_err(|error| ("make the namespaces", error))?;
    }
    private().map_err(|error| ("keep mounts apart", error))?;
    let text = |word: &str| CString::new(word).unwrap_or_default();
    for name in ["resolv.conf", "hosts"] {
        let (from, to) = (text(&format!("{folder}/{name}")), text(&format!("/etc/{name}")));
        sys(165, [(&from).into(), (&to).into(), 0.into(), 0x1000.into(), 0.into()])
            .map_err(|error| ("put a file into /etc", error))?;
    }
    // The kernel's own kind of echo is allowed to this user's group, so that only the wall stands in its way.
    let gid = plain(108, &[]).unwrap_or(0);
    let _ = std::fs::write("/proc/sys/net/ipv4/ping_group_range", format!("{gid} {gid}"));
    routes().map_err(|error| ("make every address local", error))?;
    // A packet socket for every protocol: SOCK_DGRAM, so that packets begin with their IP header.
    plain(41, &[17, 2, i64::from(3_u16.to_be())]).map_err(|error| ("watch packets", error))
}

/// Loopback up, and both internets routed to it as addresses of its own.
fn routes() -> Result<(), i32> {
    let netlink = plain(41, &[16, 3, 0])?;
    let ask = |kind: u16, flags: u16, body: &[u8]| -> Result<(), i32> {
        let mut message = Vec::new();
        let length = u32::try_from(16 + body.len()).unwrap_or(0);
        message.extend(length.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((flags | 5).to_ne_bytes());
        message.extend(1_u32.to_ne_bytes());
        message.extend(0_u32.to_ne_bytes());
        message.extend(body);
        let size = i64::try_from(message.len()).unwrap_or(0);
        sys(44, [netlink.into(), message.as_mut_slice().into(), size.into(), 0.into(), 0.into(), 0.into()])?;
        let mut answer = [0_u8; 4096];
        sys(45, [netlink.into(), (&mut answer).into(), 4096.into(), 0.into(), 0.into(), 0.into()])?;
        match i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
            0 => Ok(()),
            error => Err(-error),
        }
    };
    let mut up = [0_u8; 16];
    up[4] = 1;
    up[8] = 1;
    up[12] = 1;
    ask(16, 0, &up)?;
    for family in [2_u8, 10] {
        // Table `local`, protocol `static`, scope `host`, kind `local`; then the interface.
        let mut body = vec![family, 0, 0, 0, 255, 4, 254, 2, 0, 0, 0, 0];
        body.extend([8, 0, 4, 0, 1, 0, 0, 0]);
        ask(24, 0x600, &body)?;
    }
    Ok(())
}
