//! The first program of a machine: what a kernel that has just started leaves to be done.
//!
//! [`begin`] runs once, before the snapshot: modules, devices, the system folders of the image, the folders that
//! a sandbox has, the network, the stream. [`furnish`] runs in machines that are made from it and differ from each
//! other, as a command of the host's: the workspace, and files that stand before others.
//!
//! ```text
//! /            memory-backed, root's alone          /dev    the kernel's, with pts and shm
//! /usr /opt …  the image's, read-only               /etc    made for sandboxes, or the image's
//! /tmp /var/tmp HOME /out /workspace                of one scratch space with a size
//! ```
//!
//! **Invariant:** nothing that a command can write is mounted with set-id bits or devices.

use crate::call::{self, Errno, Fd, Pollfd, address, plain, raw, word};
use crate::file;
use crate::line::Line;
use alloc::vec::Vec;

const MS_RDONLY: u64 = 1;
const MS_NOSUID: u64 = 2;
const MS_NODEV: u64 = 4;
const MS_NOEXEC: u64 = 8;
const MS_REMOUNT: u64 = 32;
const MS_BIND: u64 = 4096;
const PLAIN: u64 = MS_NOSUID | MS_NODEV;

const ENOENT: Errno = Errno(2);
const EEXIST: Errno = Errno(17);
const EINVAL: Errno = Errno(22);

/// Root's alone: the kernel's devices, and where the root image is mounted before parts of it are shown.
const HIDDEN: &[u8] = b"/.machine";
const DEVICES: &[u8] = b"/.machine/dev";
const IMAGE: &[u8] = b"/.machine/image";
const ROOT_DISK: &[u8] = b"/.machine/dev/vda";
const SECOND_DISK: &[u8] = b"/.machine/dev/vdb";
/// Devices of a minimal `/dev`.
const NODES: [(&[u8], u8, u8); 6] =
    [(b"null", 1, 3), (b"zero", 1, 5), (b"full", 1, 7), (b"random", 1, 8), (b"urandom", 1, 9), (b"tty", 5, 0)];
/// What of the image is shown.
const SYSTEM: [&[u8]; 9] =
    [b"usr", b"opt", b"etc", b"bin", b"sbin", b"lib", b"lib32", b"lib64", b"libx32"];
/// The scratch space, and what of it is for everybody.
const SCRATCH: &[u8] = b"/.machine/scratch";
const SHARED: [&[u8]; 4] = [b"/tmp", b"/var/tmp", b"/dev/shm", b"/run/lock"];

const LINKS: [(&[u8], &[u8]); 5] = [
    (b"/proc/self/fd", b"/dev/fd"),
    (b"/proc/self/fd/0", b"/dev/stdin"),
    (b"/proc/self/fd/1", b"/dev/stdout"),
    (b"/proc/self/fd/2", b"/dev/stderr"),
    (b"pts/ptmx", b"/dev/ptmx"),
];

/// Looks at a device that has not appeared, five milliseconds apart.
const LOOKS: u32 = 2000;
const POLLHUP: i16 = 16;

// === begin ===

/// Makes a system of what the kernel gives, and opens the stream to the host.
pub(crate) fn begin() -> Result<Line, Errno> {
    for (kind, at, flags) in [
        (b"proc".as_slice(), b"/proc".as_slice(), PLAIN | MS_NOEXEC),
        (b"sysfs", b"/sys", PLAIN | MS_NOEXEC),
        (b"tmpfs", b"/dev", MS_NOSUID | MS_NOEXEC),
    ] {
        mount(kind, at, kind, flags, b"")?;
    }
    own(b"/", 0o755, None)?;
    make_folder(HIDDEN, 0o700)?;
    make_folder(DEVICES, 0o700)?;
    mount(b"devtmpfs", DEVICES, b"devtmpfs", MS_NOSUID | MS_NOEXEC, b"")?;
    devices()?;
    modules()?;
    system()?;
    folders()?;
    name()?;
    network()?;
    port()
}

/// Ends the machine.
pub(crate) fn finish() {
    // sync, then reboot with LINUX_REBOOT_CMD_RESTART: QEMU ends then.
    let _ = plain(162, [0; 6]);
    let _ = plain(169, [0xfee1_dead, 0x2812_1969, 0x0123_4567, 0, 0, 0]);
}

fn devices() -> Result<(), Errno> {
    own(b"/dev", 0o755, None)?;
    for (name, major, minor) in NODES {
        let path = file::terminated(&[b"/dev/".as_slice(), name].concat());
        let number = u64::from(major) << 8 | u64::from(minor);
        // mknod of a character device, then chmod, which no mask changes.
        // SAFETY: the path ends in a zero.
        unsafe { raw(133, [address(path.as_ptr()), 0o020_666, number, 0, 0, 0]) }?;
        // SAFETY: as above.
        unsafe { raw(90, [address(path.as_ptr()), 0o666, 0, 0, 0, 0]) }?;
    }
    for folder in [b"/dev/pts".as_slice(), b"/dev/shm"] {
        make_folder(folder, 0o755)?;
    }
    mount(b"devpts", b"/dev/pts", b"devpts", MS_NOSUID | MS_NOEXEC, b"mode=0620,ptmxmode=0666,max=256")?;
    for (to, at) in LINKS {
        link(to, at)?;
    }
    Ok(())
}

/// Loads what the kernel has as modules, in the order of their names, and lets their files go.
fn modules() -> Result<(), Errno> {
    let mut names = entries(b"/modules")?;
    names.sort();
    let folder = file::open_folder(None, b"/modules\0")?;
    for name in &names {
        let name = file::terminated(name);
        let module = file::open_file(&folder, &name)?;
        // finit_module, without parameters.
        // SAFETY: the parameters end in a zero.
        unsafe { raw(313, [word(module.number()), address(c"".as_ptr()), 0, 0, 0, 0]) }?;
        file::remove(&folder, &name)?;
    }
    Ok(())
}

/// Shows the image's system folders.
fn system() -> Result<(), Errno> {
    make_folder(IMAGE, 0o700)?;
    await_path(ROOT_DISK)?;
    mount(ROOT_DISK, IMAGE, b"erofs", PLAIN | MS_RDONLY, b"")?;
    let image = file::open_folder(None, &file::terminated(IMAGE))?;
    for name in SYSTEM {
        let terminated = file::terminated(name);
        let Ok(stat) = file::look(&image, &terminated) else { continue };
        let at = [b"/", name].concat();
        match stat.kind() {
            file::KIND_LINK => {
                let mut target = [0; 256];
                let length = file::read_link(&image, &terminated, &mut target)?;
                link(target.get(..length).unwrap_or_default(), &at)?;
            }
            file::KIND_FOLDER if name == b"etc" && file::open_folder(None, b"/etc.over\0").is_ok() => {
                // Who answers for names is said before what the image says.
                make_folder(&at, 0o755)?;
                let layers = [b"lowerdir=/etc.over:".as_slice(), IMAGE, b"/etc"].concat();
                mount(b"overlay", &at, b"overlay", PLAIN | MS_RDONLY, &layers)?;
            }
            file::KIND_FOLDER => {
                make_folder(&at, 0o755)?;
                bind(&[IMAGE, b"/", name].concat(), &at, MS_RDONLY)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn name() -> Result<(), Errno> {
    let name = b"sandbox";
    // SAFETY: sethostname reads as many bytes as are said.
    unsafe { raw(170, [address(name.as_ptr()), name.len() as u64, 0, 0, 0, 0]) }.map(drop)
}

/// Waits for the port that the host has opened.
fn port() -> Result<Line, Errno> {
    let name = first_port()?;
    let from = file::open(None, &file::terminated(&[DEVICES, b"/", name.as_slice()].concat()), file::O_RDWR)?;
    for _ in 0..LOOKS {
        let mut entries = [Pollfd::reading(&from)];
        call::poll_for(&mut entries, 0)?;
        let [Pollfd { found, .. }] = entries;
        if found & POLLHUP == 0 {
            let to = file::above(from.number())?;
            let from = file::above(from.number())?;
            return Line::over(from, to).map(Line::without_end);
        }
        pause()?;
    }
    Err(ENOENT)
}

fn first_port() -> Result<Vec<u8>, Errno> {
    for _ in 0..LOOKS {
        if let Some(name) = entries(DEVICES)?.into_iter().find(|name| name.starts_with(b"vport")) {
            return Ok(name);
        }
        pause()?;
    }
    Err(ENOENT)
}

fn await_path(path: &[u8]) -> Result<(), Errno> {
    let path = file::terminated(path);
    for _ in 0..LOOKS {
        if file::open(None, &path, file::O_RDONLY).is_ok() {
            return Ok(());
        }
        pause()?;
    }
    Err(ENOENT)
}

fn pause() -> Result<(), Errno> {
    call::poll_for(&mut [], 5)
}

// === network ===

/// `struct ifreq`: a name, then what is said of it.
#[repr(C)]
struct Interface {
    name: [u8; 16],
    value: [u8; 24],
}

const SIOCADDRT: u64 = 0x890B;
const SIOCGIFINDEX: u64 = 0x8933;
const SIOCSIFFLAGS: u64 = 0x8914;
const SIOCSIFADDR: u64 = 0x8916;
const SIOCSIFNETMASK: u64 = 0x891C;
const IFF_UP: u16 = 1;
const IFF_NOARP: u16 = 0x80;
const AF_INET: u64 = 2;
const AF_INET6: u64 = 10;
const RTF_UP: u16 = 1;

/// The sandbox's own addresses; every other is the neighbour's.
const VERSION_4: [u8; 4] = [192, 0, 0, 8];
const VERSION_6: [u8; 16] = [0xfd, 0x66, 0x75, 0x6d, 0x65, 0x68, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8];

/// Loopback, and the card where there is one.
fn network() -> Result<(), Errno> {
    write_text(b"/proc/sys/net/ipv4/ip_unprivileged_port_start", b"0")?;
    let socket = datagram_socket(AF_INET)?;
    up(&socket, b"lo", IFF_UP)?;
    if entries(b"/sys/class/net")?.iter().all(|name| name != b"eth0") {
        return Ok(());
    }
    // It gives itself no address, and asks nobody whether its own is free.
    let _ = write_text(b"/proc/sys/net/ipv6/conf/eth0/addr_gen_mode", b"1");
    let _ = write_text(b"/proc/sys/net/ipv6/conf/eth0/accept_dad", b"0");
    let _ = write_text(b"/proc/sys/net/ipv6/conf/eth0/accept_ra", b"0");
    let _ = write_text(b"/proc/sys/net/ipv6/conf/eth0/router_solicitations", b"0");
    version_4(&socket, SIOCSIFADDR, VERSION_4)?;
    version_4(&socket, SIOCSIFNETMASK, [255; 4])?;
    up(&socket, b"eth0", IFF_UP | IFF_NOARP)?;
    route_4(&socket)?;
    version_6()
}

fn datagram_socket(family: u64) -> Result<Fd, Errno> {
    // SOCK_DGRAM | SOCK_CLOEXEC.
    plain(41, [family, 2 | 0o2_000_000, 0, 0, 0, 0]).map(call::new_fd)
}

fn interface(name: &[u8]) -> Interface {
    let mut request = Interface { name: [0; 16], value: [0; 24] };
    request.name.iter_mut().zip(name).for_each(|(place, byte)| *place = *byte);
    request
}

fn ask(socket: &Fd, what: u64, request: &mut Interface) -> Result<(), Errno> {
    // SAFETY: `request` is the 40 bytes of `struct ifreq`, read and written.
    unsafe { raw(16, [word(socket.number()), what, address(&raw mut *request), 0, 0, 0]) }.map(drop)
}

fn up(socket: &Fd, name: &[u8], flags: u16) -> Result<(), Errno> {
    let mut request = interface(name);
    set(&mut request.value, 0, &flags.to_ne_bytes());
    ask(socket, SIOCSIFFLAGS, &mut request)
}

fn version_4(socket: &Fd, what: u64, address: [u8; 4]) -> Result<(), Errno> {
    let mut request = interface(b"eth0");
    set(&mut request.value, 0, &(AF_INET as u16).to_ne_bytes());
    set(&mut request.value, 4, &address);
    ask(socket, what, &mut request)
}

/// Everything is on the link: nobody is asked for, and every frame goes to the other end.
fn route_4(socket: &Fd) -> Result<(), Errno> {
    // `struct rtentry`: destination at 8, gateway at 24, mask at 40, flags at 56, the device's name at 88.
    let mut entry = [0_u8; 120];
    for family in [8, 24, 40] {
        set(&mut entry, family, &(AF_INET as u16).to_ne_bytes());
    }
    set(&mut entry, 56, &RTF_UP.to_ne_bytes());
    let name = b"eth0\0";
    set(&mut entry, 88, &address(name.as_ptr()).to_ne_bytes());
    // SAFETY: `entry` is `struct rtentry`, and the name in it ends in a zero.
    unsafe { raw(16, [word(socket.number()), SIOCADDRT, address(entry.as_ptr()), 0, 0, 0]) }.map(drop)
}

fn version_6() -> Result<(), Errno> {
    let Ok(socket) = datagram_socket(AF_INET6) else { return Ok(()) };
    let mut request = interface(b"eth0");
    ask(&socket, SIOCGIFINDEX, &mut request)?;
    let mut index = [0; 4];
    index.iter_mut().zip(request.value).for_each(|(place, byte)| *place = byte);
    // `struct in6_ifreq`.
    let mut own = [0_u8; 24];
    set(&mut own, 0, &VERSION_6);
    set(&mut own, 16, &128_u32.to_ne_bytes());
    set(&mut own, 20, &index);
    // SAFETY: `own` is as the kernel reads it.
    unsafe { raw(16, [word(socket.number()), SIOCSIFADDR, address(own.as_ptr()), 0, 0, 0]) }?;
    // `struct in6_rtmsg`: three addresses, then type, lengths, metric, time, flags, interface.
    let mut route = [0_u8; 80];
    set(&mut route, 56, &1024_u32.to_ne_bytes());
    set(&mut route, 72, &u32::from(RTF_UP).to_ne_bytes());
    set(&mut route, 76, &index);
    // SAFETY: `route` is as the kernel reads it.
    unsafe { raw(16, [word(socket.number()), SIOCADDRT, address(route.as_ptr()), 0, 0, 0]) }.map(drop)
}

fn set(into: &mut [u8], at: usize, bytes: &[u8]) {
    into.iter_mut().skip(at).zip(bytes).for_each(|(place, byte)| *place = *byte);
}

// === the sandbox's own folders ===

/// What `/setup` says, each ended by a zero: the user's number, the size of scratch in bytes, whether the workspace
/// is a scratch folder too (`empty`), HOME, whether there is an `/out`.
fn folders() -> Result<(), Errno> {
    let mut room = [0; 4096];
    let text = file::small(b"/setup\0", &mut room)?;
    let words: Vec<&[u8]> = text.split(|byte| *byte == 0).collect();
    let [uid, size, workspace, home, out, ..] = words.as_slice() else { return Err(EINVAL) };
    let uid = number(uid)?;
    make_folder(SCRATCH, 0o755)?;
    mount(b"tmpfs", SCRATCH, b"tmpfs", PLAIN, &[b"mode=0755,size=".as_slice(), size].concat())?;
    for (place, at) in SHARED.iter().enumerate() {
        scratch(&[b's', b'0' + place as u8], at, 0o1777, None)?;
    }
    scratch(b"home", home, 0o755, Some(uid))?;
    let user = [b"/run/user/".as_slice(), &digits(uid)].concat();
    make_folders(&user)?;
    scratch(b"run", &user, 0o700, Some(uid))?;
    if *out == b"out" {
        scratch(b"out", b"/out", 0o755, Some(uid))?;
    }
    if *workspace == b"empty" { scratch(b"workspace", b"/workspace", 0o755, Some(uid)) } else { Ok(()) }
}

/// What it is told: the user's number and how the workspace is (`empty`, `read-only`, `copy-on-write`); then pairs
/// of a file of ours and the path that it stands in front of.
pub(crate) fn furnish(words: &[&[u8]]) -> Result<(), Errno> {
    let [uid, workspace, covers @ ..] = words else { return Err(EINVAL) };
    match *workspace {
        b"empty" => {}
        b"read-only" => {
            make_folder(b"/workspace", 0o755)?;
            mount(SECOND_DISK, b"/workspace", b"erofs", PLAIN | MS_RDONLY, b"")?;
        }
        b"copy-on-write" => copy_on_write(number(uid)?)?,
        _ => return Err(EINVAL),
    }
    for pair in covers.chunks(2) {
        let [from, at] = pair else { return Err(EINVAL) };
        match bind(from, at, MS_RDONLY) {
            // Nothing to stand in front of.
            Ok(()) | Err(ENOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// A folder of the scratch space, shown at `at`.
fn scratch(name: &[u8], at: &[u8], mode: u16, owner: Option<u32>) -> Result<(), Errno> {
    let folder = [SCRATCH, b"/", name].concat();
    make_folder(&folder, mode)?;
    own(&folder, mode, owner)?;
    make_folders(at)?;
    bind(&folder, at, 0)
}

fn own(path: &[u8], mode: u16, owner: Option<u32>) -> Result<(), Errno> {
    let folder = file::open(None, &file::terminated(path), file::O_RDONLY)?;
    if let Some(uid) = owner {
        file::set_owner(&folder, uid, uid)?;
    }
    file::set_mode(&folder, mode)
}

/// The workspace's image beneath a layer of its own.
fn copy_on_write(uid: u32) -> Result<(), Errno> {
    let [lower, upper, work] = [b"/.machine/scratch/lower".as_slice(), b"/.machine/scratch/upper", b"/.machine/scratch/work"];
    for folder in [lower, upper, work] {
        make_folder(folder, 0o755)?;
    }
    mount(SECOND_DISK, lower, b"erofs", PLAIN | MS_RDONLY, b"")?;
    own(upper, 0o755, Some(uid))?;
    make_folder(b"/workspace", 0o755)?;
    // Its marks are root's, which memory has in every kernel; the command can not set them.
    let options = [
        b"lowerdir=".as_slice(), lower, b",upperdir=", upper, b",workdir=", work, b",redirect_dir=nofollow,metacopy=off",
    ];
    mount(b"overlay", b"/workspace", b"overlay", PLAIN, &options.concat())
}

fn number(text: &[u8]) -> Result<u32, Errno> {
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u32::from(byte - b'0')).ok_or(EINVAL);
    text.iter().try_fold(0_u32, |sum, byte| {
        sum.checked_mul(10).and_then(|sum| sum.checked_add(digit(byte).ok()?)).ok_or(EINVAL)
    })
}

fn digits(mut number: u32) -> Vec<u8> {
    let mut text = Vec::new();
    loop {
        text.insert(0, b'0' + (number % 10) as u8);
        number /= 10;
        if number == 0 {
            return text;
        }
    }
}

// === what both use ===

fn mount(what: &[u8], at: &[u8], kind: &[u8], flags: u64, options: &[u8]) -> Result<(), Errno> {
    let [what, at, kind, options] = [what, at, kind, options].map(file::terminated);
    let strings = [&what, &at, &kind].map(|text| address(text.as_ptr()));
    let [what, at, kind] = strings;
    // SAFETY: each string ends in a zero and outlives the call.
    unsafe { raw(165, [what, at, kind, flags, address(options.as_ptr()), 0]) }.map(drop)
}

/// Shows a folder or file at another place; with [`MS_RDONLY`] it can not be written there.
fn bind(from: &[u8], at: &[u8], read_only: u64) -> Result<(), Errno> {
    mount(from, at, b"", MS_BIND, b"")?;
    mount(b"none", at, b"", MS_REMOUNT | MS_BIND | PLAIN | read_only, b"")
}

/// One folder. It may be there already.
fn make_folder(path: &[u8], mode: u16) -> Result<(), Errno> {
    let path = file::terminated(path);
    // SAFETY: the path ends in a zero.
    match unsafe { raw(83, [address(path.as_ptr()), u64::from(mode), 0, 0, 0, 0]) } {
        Ok(_) | Err(EEXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// A folder and those above it.
fn make_folders(path: &[u8]) -> Result<(), Errno> {
    for (place, byte) in path.iter().enumerate().skip(1) {
        if *byte == b'/' {
            make_folder(path.get(..place).unwrap_or_default(), 0o755)?;
        }
    }
    make_folder(path, 0o755)
}

fn link(to: &[u8], at: &[u8]) -> Result<(), Errno> {
    let (to, at) = (file::terminated(to), file::terminated(at));
    // SAFETY: both strings end in a zero.
    match unsafe { raw(88, [address(to.as_ptr()), address(at.as_ptr()), 0, 0, 0, 0]) } {
        Ok(_) | Err(EEXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn write_text(path: &[u8], text: &[u8]) -> Result<(), Errno> {
    let file = file::open(None, &file::terminated(path), file::O_RDWR)?;
    file::write(&file, text).map(drop)
}

/// The names in a folder. One that is not there has none.
fn entries(path: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
    /// Where in an entry its length is, and where its name begins.
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let folder = match file::open_folder(None, &file::terminated(path)) {
        Ok(folder) => folder,
        Err(ENOENT) => return Ok(Vec::new()),
        Err(errno) => return Err(errno),
    };
    let mut names = Vec::new();
    let mut room = [0_u8; 4096];
    loop {
        let count = file::list(&folder, &mut room)?;
        if count == 0 {
            return Ok(names);
        }
        let mut rest = room.get(..count).unwrap_or_default();
        while let Some([low, high]) = rest.get(LENGTH..LENGTH + 2) {
            let length = usize::from(u16::from_ne_bytes([*low, *high]));
            let name = rest.get(NAME..length).unwrap_or_default();
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            if name != b"." && name != b".." && !name.is_empty() {
                names.push(name.to_vec());
            }
            if length == 0 {
                break;
            }
            rest = rest.get(length..).unwrap_or_default();
        }
    }
}
