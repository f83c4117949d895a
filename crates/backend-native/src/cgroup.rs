//! Resource limits by cgroup: version 2 where it is ours, else version 1, else none.
//!
//! Sandboxes sit beneath our own cgroup, so that whatever limits us limits them too. Every folder is
//! named after its task and can be removed by that name alone.

use fumehood_model::envelope::Resources;
use fumehood_model::id::TaskId;
use fumehood_sys::poll::{self, Interest};
use fumehood_sys::process;
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where this host lets us put cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hierarchy {
    /// One tree; its folder is ours to divide. With `leave`, we are alone in it and must first move out of
    /// it into a leaf: a folder that limits its children holds no process itself.
    V2 { base: PathBuf, leave: bool },
    /// A tree per controller.
    V1 {
        memory: PathBuf,
        pids: PathBuf,
        cpu: Option<PathBuf>,
        /// Where a sandbox that lives on can be stopped and go on.
        freezer: Option<PathBuf>,
    },
    /// None that we may write to, and why.
    None { why: String },
}

/// The cgroup of one sandbox. Removed by [`remove`], not by dropping: the sandbox may outlive us.
#[derive(Debug)]
pub struct Cgroup {
    version: Version,
    /// Folders to remove, and where the counters are.
    memory: PathBuf,
    pids: PathBuf,
    cpu: Option<PathBuf>,
    freezer: Option<PathBuf>,
    /// Of each, the open file that the child joins through.
    pub joins: Vec<OwnedFd>,
}

/// Which interface files there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    One,
    Two,
}

/// One counter reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub memory_bytes: Option<u64>,
    pub peak_bytes: Option<u64>,
    pub oom_kills: u64,
    pub fork_failures: u64,
}

/// How the names of our folders begin.
const PREFIX: &str = "fumehood-";
/// A process that was killed leaves its cgroup only when it is gone: some milliseconds.
const REMOVAL_LIMIT: Duration = Duration::from_secs(1);
/// How long the kernel is asked to take memory back, and how much at once.
const PUSH_LIMIT: Duration = Duration::from_secs(1);
const PUSHED_AT_ONCE: u64 = 32 << 20;
/// How long processes may take to stop: one in a call of the kernel's does so when that is over.
const FREEZE_LIMIT: Duration = Duration::from_secs(5);
const SHORTEST_PAUSE: Duration = Duration::from_micros(30);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// Microseconds of one scheduling period under a processor limit.
const PERIOD_US: u64 = 100_000;

// === impl Hierarchy ===

impl Hierarchy {
    /// Whether what lives on in it can be stopped by it.
    pub(crate) const fn can_freeze(&self) -> bool {
        matches!(self, Self::V2 { .. } | Self::V1 { freezer: Some(_), .. })
    }

    /// Looks at the mounts and at where we are in them; makes nothing.
    pub fn find() -> Self {
        let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mut mounts = Mounts::default();
        if let Some(tree) = Self::v2(&mut mounts, &membership) {
            return tree;
        }
        let mut ours =
            |controller| own_folder(&mut mounts, &membership, Some(controller)).filter(|base| writable(base));
        match (ours("memory"), ours("pids")) {
            (Some(memory), Some(pids)) => {
                Self::V1 { memory, pids, cpu: ours("cpu"), freezer: ours("freezer") }
            }
            _ if fumehood_sys::host::euid() == 0 => Self::None {
                why: "no cgroup tree with the memory and pids controllers is writable".to_owned(),
            },
            _ => Self::None { why: "no cgroup is delegated to this user".to_owned() },
        }
    }

    /// Our own folder where it is delegated to us, as by `systemd-run --user --scope -p Delegate=yes`. With
    /// root, else the top of the tree, as container engines without systemd do.
    fn v2(mounts: &mut Mounts, membership: &str) -> Option<Self> {
        let own = own_folder(mounts, membership, None)?;
        if divided(&own) {
            return Some(Self::V2 { base: own, leave: false });
        }
        if delegated(&own) && alone_in(&own) {
            return Some(Self::V2 { base: own, leave: true });
        }
        let top = mounts.find(None).filter(|top| fumehood_sys::host::euid() == 0 && divided(top))?;
        Some(Self::V2 { base: top, leave: false })
    }

    /// Makes the cgroup of `id` with its limits. On failure nothing is left.
    /// With `freezes` it can be frozen, where this host has what that takes.
    pub fn create(
        &self,
        id: &TaskId,
        limits: &Resources,
        host_cpus: u32,
        freezes: bool,
    ) -> io::Result<Option<Cgroup>> {
        let cgroup = match self {
            Self::None { .. } => return Ok(None),
            Self::V2 { base, leave } => {
                if *leave {
                    move_out(base)?;
                }
                let folder = named(base, id);
                Cgroup {
                    version: Version::Two,
                    memory: folder.clone(),
                    pids: folder.clone(),
                    cpu: Some(folder.clone()),
                    freezer: freezes.then_some(folder),
                    joins: Vec::new(),
                }
            }
            Self::V1 { memory, pids, cpu, freezer } => {
                // Without a limit below the host's there is nothing to enforce, and no folder to make.
                let limited = limits.cpu_millis < host_cpus.saturating_mul(1000);
                let cpu = cpu.as_ref().filter(|_| limited).map(|base| named(base, id));
                Cgroup {
                    version: Version::One,
                    memory: named(memory, id),
                    pids: named(pids, id),
                    cpu,
                    freezer: freezer.as_ref().filter(|_| freezes).map(|base| named(base, id)),
                    joins: Vec::new(),
                }
            }
        };
        cgroup.make(limits, host_cpus).map(Some)
    }

    /// The sandboxes that have a folder here.
    pub fn present(&self) -> Vec<TaskId> {
        let bases = match self {
            Self::None { .. } => Vec::new(),
            Self::V2 { base, .. } => vec![base],
            Self::V1 { memory, pids, cpu, freezer } => {
                [Some(memory), Some(pids), cpu.as_ref(), freezer.as_ref()].into_iter().flatten().collect()
            }
        };
        let entries = bases.into_iter().flat_map(|base| fs::read_dir(base).into_iter().flatten().flatten());
        let named =
            |entry: fs::DirEntry| TaskId::parse(entry.file_name().to_str()?.strip_prefix(PREFIX)?).ok();
        entries.filter_map(named).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Every folder that a sandbox named `id` could have left.
    pub fn folders(&self, id: &TaskId) -> Vec<PathBuf> {
        match self {
            Self::None { .. } => Vec::new(),
            Self::V2 { base, .. } => vec![named(base, id)],
            // The freezer first: who is frozen in it can not be ended through another.
            Self::V1 { memory, pids, cpu, freezer } => {
                [freezer.as_ref(), Some(memory), Some(pids), cpu.as_ref()]
                    .into_iter()
                    .flatten()
                    .map(|base| named(base, id))
                    .collect()
            }
        }
    }
}

// === impl Cgroup ===

impl Cgroup {
    fn make(mut self, limits: &Resources, host_cpus: u32) -> io::Result<Self> {
        let result =
            self.make_folders().and_then(|()| self.limit(limits, host_cpus)).and_then(|()| self.open_joins());
        match result {
            Ok(joins) => {
                self.joins = joins;
                Ok(self)
            }
            Err(error) => {
                for folder in self.folders() {
                    let _ = fs::remove_dir(folder);
                }
                Err(error)
            }
        }
    }

    fn make_folders(&self) -> io::Result<()> {
        self.folders().into_iter().try_for_each(fs::create_dir)
    }

    fn limit(&self, limits: &Resources, host_cpus: u32) -> io::Result<()> {
        let quota = u64::from(limits.cpu_millis) * PERIOD_US / 1000;
        let limited = limits.cpu_millis < host_cpus.saturating_mul(1000);
        match self.version {
            Version::One => {
                write(&self.memory, "memory.limit_in_bytes", limits.memory_bytes)?;
                // Swap would let memory grow past the limit; the file exists where swap is counted.
                let _ = write(&self.memory, "memory.memsw.limit_in_bytes", limits.memory_bytes);
                write(&self.pids, "pids.max", u64::from(limits.processes) + 1)?;
                self.cpu.as_ref().map_or(Ok(()), |cpu| write(cpu, "cpu.cfs_quota_us", quota))
            }
            Version::Two => {
                write(&self.memory, "memory.max", limits.memory_bytes)?;
                let _ = write(&self.memory, "memory.swap.max", 0);
                let _ = write(&self.memory, "memory.oom.group", 0);
                write(&self.pids, "pids.max", u64::from(limits.processes) + 1)?;
                if limited {
                    write(&self.pids, "cpu.max", format_args!("{quota} {PERIOD_US}"))
                } else {
                    Ok(())
                }
            }
        }
    }

    /// A version 1 child moves itself through `tasks`: the kernel moves a thread that is the caller
    /// without stopping every fork on the host first, which through `cgroup.procs` costs a grace period
    /// of some ten milliseconds. The child has one thread, so it is the whole process that moves.
    fn open_joins(&self) -> io::Result<Vec<OwnedFd>> {
        let file = match self.version {
            Version::One => "tasks",
            Version::Two => "cgroup.procs",
        };
        let open =
            |folder: &PathBuf| OpenOptions::new().write(true).open(folder.join(file)).map(OwnedFd::from);
        self.folders().into_iter().map(open).collect()
    }

    /// The distinct folders.
    pub fn folders(&self) -> Vec<&PathBuf> {
        match self.version {
            Version::One => [self.freezer.as_ref(), Some(&self.memory), Some(&self.pids), self.cpu.as_ref()]
                .into_iter()
                .flatten()
                .collect(),
            Version::Two => vec![&self.memory],
        }
    }

    /// Whether it can be frozen.
    pub const fn freezes(&self) -> bool {
        self.freezer.is_some()
    }

    /// Stops everybody in it, or lets them go on, and waits until that is so. `Unsupported` where this host has no
    /// such cgroup; `TimedOut` when they did not stop, and then all go on.
    pub fn freeze(&self, frozen: bool) -> io::Result<()> {
        let folder = self.freezer.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let deadline = Instant::now() + FREEZE_LIMIT;
        let mut pause = SHORTEST_PAUSE;
        self.set_frozen(folder, frozen)?;
        while self.is_frozen(folder)? != frozen {
            if Instant::now() >= deadline {
                self.set_frozen(folder, false)?;
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Ok(())
    }

    fn set_frozen(&self, folder: &Path, frozen: bool) -> io::Result<()> {
        match self.version {
            Version::One => write(folder, "freezer.state", if frozen { "FROZEN" } else { "THAWED" }),
            Version::Two => write(folder, "cgroup.freeze", u8::from(frozen)),
        }
    }

    fn is_frozen(&self, folder: &Path) -> io::Result<bool> {
        match self.version {
            Version::One => Ok(fs::read_to_string(folder.join("freezer.state"))?.trim() == "FROZEN"),
            Version::Two => Ok(field(folder, "cgroup.events", "frozen") == Some(1)),
        }
    }

    /// Has the kernel take back what memory it can of those in it, for a moment. Gives the bytes that are fewer.
    pub fn push_out(&self) -> u64 {
        let before = self.counters().memory_bytes.unwrap_or(0);
        let deadline = Instant::now() + PUSH_LIMIT;
        let mut now = before;
        loop {
            // An error says that not all of it could be had, which is what is to be found out.
            let _ = match self.version {
                Version::One => write(&self.memory, "memory.force_empty", 0),
                Version::Two => write(&self.memory, "memory.reclaim", now.min(PUSHED_AT_ONCE)),
            };
            let left = self.counters().memory_bytes.unwrap_or(0);
            if left >= now || left == 0 || Instant::now() >= deadline || self.version == Version::One {
                return before.saturating_sub(left);
            }
            now = left;
        }
    }

    /// Processor time of all who are and were in it, where this cgroup counts it.
    pub fn cpu_ms(&self) -> Option<u64> {
        match self.version {
            Version::One => None,
            Version::Two => field(&self.memory, "cpu.stat", "usage_usec").map(|micros| micros / 1000),
        }
    }

    pub fn counters(&self) -> Counters {
        match self.version {
            Version::One => Counters {
                memory_bytes: number(&self.memory, "memory.usage_in_bytes"),
                peak_bytes: number(&self.memory, "memory.max_usage_in_bytes"),
                oom_kills: field(&self.memory, "memory.oom_control", "oom_kill").unwrap_or(0),
                fork_failures: field(&self.pids, "pids.events", "max").unwrap_or(0),
            },
            Version::Two => Counters {
                memory_bytes: number(&self.memory, "memory.current"),
                peak_bytes: number(&self.memory, "memory.peak"),
                oom_kills: field(&self.memory, "memory.events", "oom_kill").unwrap_or(0),
                fork_failures: field(&self.pids, "pids.events", "max").unwrap_or(0),
            },
        }
    }
}

/// Ends what is still in these folders and removes them. A folder that is not there is fine.
pub fn remove(folders: &[PathBuf]) -> io::Result<()> {
    let mut outcome = Ok(());
    for folder in folders {
        if let Err(error) = remove_one(folder) {
            outcome = Err(error);
        }
    }
    outcome
}

fn remove_one(folder: &Path) -> io::Result<()> {
    let deadline = Instant::now() + REMOVAL_LIMIT;
    let mut pause = SHORTEST_PAUSE;
    let mut thawed = false;
    loop {
        match fs::remove_dir(folder) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => {}
        }
        let anybody = end_members(folder);
        if !thawed {
            // Who is frozen by a version 1 cgroup ends only when it goes on: to its end, which was sent first.
            let _ = write(folder, "freezer.state", "THAWED");
            thawed = true;
        }
        if !anybody {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Ends who is in the cgroup, and waits a moment until one of them is gone. `false`: nobody was seen.
fn end_members(folder: &Path) -> bool {
    let listed = || fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    let open = |pid: &str| Some((pid.to_owned(), process::open_pidfd(pid.parse().ok()?).ok()?));
    let opened: Vec<_> = listed().lines().filter_map(open).collect();
    let whole = write(folder, "cgroup.kill", 1).is_ok();
    // A number may have gone to another process before it was opened; held open, it can not.
    let still = listed();
    let members: Vec<_> =
        opened.iter().filter(|(pid, _)| still.lines().any(|line| line == pid)).map(|(_, fd)| fd).collect();
    for member in members.iter().filter(|_| !whole) {
        let _ = process::send_signal(member.as_fd(), 9);
    }
    let gone: Vec<_> = members.iter().map(|member| (member.as_fd(), Interest::Read)).collect();
    !gone.is_empty() && poll::wait(&gone, Some(LONGEST_PAUSE)).is_ok()
}

fn named(base: &Path, id: &TaskId) -> PathBuf {
    base.join(format!("{PREFIX}{id}"))
}

/// The table of mounts, read only where a tree is not in its usual place: the kernel takes long to
/// print it.
#[derive(Debug, Default)]
struct Mounts(Option<String>);

// === impl Mounts ===

impl Mounts {
    /// Where the tree of `controller` (`None`: version 2) is mounted.
    fn find(&mut self, controller: Option<&str>) -> Option<PathBuf> {
        let usual = match controller {
            None => Path::new("/sys/fs/cgroup").to_path_buf(),
            Some(name) => Path::new("/sys/fs/cgroup").join(name),
        };
        let mark = if controller.is_none() { "cgroup.controllers" } else { "tasks" };
        if usual.join(mark).exists() {
            return Some(usual);
        }
        let table = self.0.get_or_insert_with(|| fs::read_to_string("/proc/self/mounts").unwrap_or_default());
        table.lines().find_map(|line| {
            let mut fields = line.split(' ');
            let (at, kind, options) = (fields.nth(1)?, fields.next()?, fields.next()?);
            let fits = match controller {
                None => kind == "cgroup2",
                Some(name) => kind == "cgroup" && options.split(',').any(|option| option == name),
            };
            fits.then(|| PathBuf::from(at))
        })
    }
}

/// Our own folder in the tree of `controller` (`None`: version 2).
fn own_folder(mounts: &mut Mounts, membership: &str, controller: Option<&str>) -> Option<PathBuf> {
    let own = membership.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let fits = match controller {
            None => number == "0" && controllers.is_empty(),
            Some(name) => controllers.split(',').any(|found| found == name),
        };
        fits.then_some(path)
    })?;
    // A version 2 tree beside version 1 trees has no controllers, wherever it is mounted.
    if controller.is_none() && membership.lines().any(|line| line.split(':').nth(1) == Some("memory")) {
        return None;
    }
    let folder = mounts.find(controller)?.join(own.trim_start_matches('/'));
    folder.is_dir().then_some(folder)
}

/// Whether the children of a version 2 folder that we may write to have the controllers.
fn divided(base: &Path) -> bool {
    writable(base) && lists(base, "cgroup.subtree_control")
}

/// Whether a version 2 folder that we may write to could give its children the controllers.
fn delegated(base: &Path) -> bool {
    writable(base) && lists(base, "cgroup.controllers")
}

fn lists(folder: &Path, file: &str) -> bool {
    let words = fs::read_to_string(folder.join(file)).unwrap_or_default();
    ["memory", "pids"].iter().all(|name| words.split_whitespace().any(|word| word == *name))
}

/// Whether this process is the only one in a folder.
fn alone_in(base: &Path) -> bool {
    let members = fs::read_to_string(base.join("cgroup.procs")).unwrap_or_default();
    members.trim() == std::process::id().to_string()
}

/// Moves this process into a leaf beside its sandboxes, and gives their folder's children the controllers.
/// The leaf goes with the scope that holds it all.
fn move_out(base: &Path) -> io::Result<()> {
    let leaf = base.join("keeper");
    match fs::create_dir(&leaf) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    write(&leaf, "cgroup.procs", std::process::id())?;
    write(base, "cgroup.subtree_control", "+memory +pids")?;
    // Only a limit on processors needs it; where it is not delegated, writing that limit fails and says so.
    let _ = write(base, "cgroup.subtree_control", "+cpu");
    Ok(())
}

fn writable(folder: &Path) -> bool {
    OpenOptions::new().write(true).open(folder.join("cgroup.procs")).is_ok()
}

fn write(folder: &Path, file: &str, value: impl std::fmt::Display) -> io::Result<()> {
    OpenOptions::new().write(true).open(folder.join(file))?.write_all(value.to_string().as_bytes())
}

fn number(folder: &Path, file: &str) -> Option<u64> {
    fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()
}

fn field(folder: &Path, file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(folder.join(file)).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with the files of a version 2 cgroup.
    fn folder(controllers: &str, subtree: &str, members: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (file, content) in [
            ("cgroup.controllers", controllers),
            ("cgroup.subtree_control", subtree),
            ("cgroup.procs", members),
        ] {
            fs::write(folder.path().join(file), content).unwrap();
        }
        folder
    }

    #[test]
    fn a_version_2_folder_is_ours_when_its_children_have_the_controllers() {
        assert!(divided(folder("cpu memory pids", "cpu memory pids", "").path()));
        assert!(!divided(folder("cpu memory pids", "cpu", "").path()));
        assert!(delegated(folder("memory pids", "", "").path()));
        assert!(!delegated(folder("hugetlb", "", "").path()));
    }

    #[test]
    fn a_folder_is_left_only_by_who_is_alone_in_it() {
        let own = std::process::id();
        assert!(alone_in(folder("", "", &format!("{own}\n")).path()));
        assert!(!alone_in(folder("", "", &format!("{own}\n1\n")).path()));
    }

    #[test]
    fn a_limit_is_written_as_each_version_reads_it() {
        let base = tempfile::tempdir().unwrap();
        let limits = Resources {
            memory_bytes: 1 << 20,
            cpu_millis: 500,
            processes: 9,
            disk_bytes: 1,
            file_size_bytes: 1,
            open_files: 1,
            timeout: None,
            output_bytes: 1,
        };
        let one = base.path().join("one");
        fs::create_dir(&one).unwrap();
        for file in ["memory.max", "memory.swap.max", "pids.max", "cpu.max", "memory.oom.group"] {
            fs::write(one.join(file), "").unwrap();
        }
        let cgroup = Cgroup {
            version: Version::Two,
            memory: one.clone(),
            pids: one.clone(),
            cpu: None,
            freezer: None,
            joins: vec![],
        };
        cgroup.limit(&limits, 2).unwrap();
        let read = |file: &str| fs::read_to_string(one.join(file)).unwrap();
        assert_eq!((read("memory.max").as_str(), read("pids.max").as_str()), ("1048576", "10"));
        assert_eq!(read("cpu.max"), "50000 100000");
    }
}
