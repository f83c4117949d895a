//! What holds each clause of an envelope here, as a value.

use crate::cgroup::Hierarchy;
use crate::root::scratch_bytes;
use crate::shape::Shape;
use crate::{Native, gateway};
use fumehood_backend::{LayerDisk, Placement};
use fumehood_model::enforcement::{Clause, Enforcement, Mechanism, Strength};
use fumehood_model::envelope::{Envelope, WorkspaceMode};
use fumehood_model::quantity;
use fumehood_sys::host;

/// A file system is this much smaller than what it was asked for, at most, for being whole.
const SIZE_STEP: u64 = 1 << 20;

/// What holds each clause of `envelope` in that shape.
pub(crate) fn of(
    native: &Native,
    envelope: &Envelope,
    placement: &Placement,
    (landlock, shape): (u32, &Shape),
) -> Enforcement {
    let why = match shape {
        Shape::Container | Shape::Rooted { .. } => None,
        Shape::Bare { why } => Some(why),
    };
    let (filesystem, privilege, credentials, cleanup) = match why {
        None => rooted(envelope, placement, landlock, shape),
        Some(why) => bare(envelope, placement, landlock, why),
    };
    Enforcement(vec![
        (Clause::Filesystem, filesystem),
        (Clause::Network, network(placement, shape)),
        (Clause::Privilege, privilege),
        (Clause::Credentials, credentials),
        (Clause::Resources, resources(native, envelope, placement, shape)),
        (Clause::Cleanup, cleanup),
    ])
}

/// Files, privilege, credentials and cleanup.
type Four = (Vec<Mechanism>, Vec<Mechanism>, Vec<Mechanism>, Vec<Mechanism>);

const fn kernel(name: &'static str, detail: String) -> Mechanism {
    Mechanism { name, detail, strength: Strength::Kernel }
}

const fn watch(name: &'static str, detail: String) -> Mechanism {
    Mechanism { name, detail, strength: Strength::Watch }
}

fn network(placement: &Placement, shape: &Shape) -> Vec<Mechanism> {
    if shape.has_network() {
        return gateway::mechanisms(placement.gateway.as_ref());
    }
    let detail = match shape {
        Shape::Bare { .. } => {
            "no socket of any family can be made, but pairs of them: no internet, no loopback, no socket of the host's"
        }
        Shape::Container | Shape::Rooted { .. } => {
            "no socket can be made but of the unix family: no internet, no loopback"
        }
    };
    vec![kernel("seccomp", detail.to_owned())]
}

fn filter(envelope: &Envelope, more: &str) -> Mechanism {
    let profile = format!("{:?}", envelope.privilege().syscalls).to_lowercase();
    kernel("seccomp", format!("allow-list `{profile}`; 32-bit and x32 calls are killed{more}"))
}

fn rooted(envelope: &Envelope, placement: &Placement, landlock: u32, shape: &Shape) -> Four {
    let root = host::euid() == 0;
    let user_namespace = if root {
        "a user namespace and a kernel uid of its own"
    } else {
        "a user namespace; its kernel uid is the caller's, shared with the caller's other sandboxes"
    };
    let filesystem = vec![
        kernel(
            "mount-namespace",
            "a private memory-backed root; the host's folders are read-only views".to_owned(),
        ),
        kernel(
            "landlock",
            format!(
                "version {landlock}; makes and removes files only in scratch, HOME, /workspace, /out and caches; opens what is in /dev and /proc as it is"
            ),
        ),
    ];
    let mut privilege = vec![
        kernel("user-namespace", user_namespace.to_owned()),
        kernel("capabilities", "none; no_new_privs; bounding set empty".to_owned()),
        filter(envelope, if shape.has_network() { "" } else { "; no System V object and no message queue" }),
        kernel("pid-namespace", "sees and signals its own processes only".to_owned()),
    ];
    let warm = placement.living.as_ref().is_some_and(|living| living.warm.is_some()).then(|| {
        let detail = "commands that go on with the prepared interpreter are started like all others, behind the same walls; they have its memory in common, so the layout of addresses and the seed of hashes too";
        kernel("warm-image", detail.to_owned())
    });
    privilege.extend(warm);
    let credentials = vec![
        kernel("empty-environment", "only named variables enter; no host descriptor does".to_owned()),
        kernel("mount-namespace", "no file of the home folder is visible but toolchains".to_owned()),
    ];
    let cleanup = vec![
        kernel("pid-namespace", "every process ends with init, and init with its keeper".to_owned()),
        kernel("mount-namespace", "mounts and scratch vanish with the last process".to_owned()),
    ];
    (filesystem, privilege, credentials, cleanup)
}

fn bare(envelope: &Envelope, placement: &Placement, landlock: u32, why: &str) -> Four {
    let root = host::euid() == 0;
    let kept = [
        placement.home.is_some().then_some("its session's HOME"),
        (!placement.caches.is_empty()).then_some("caches"),
    ];
    let kept: String = kept.into_iter().flatten().map(|place| format!(", {place}")).collect();
    let filesystem = vec![kernel(
        "landlock",
        format!(
            "version {landlock}, on the host's own tree: reads system folders, a closed list of /etc, toolchains and what is named; writes beneath its own folder alone{kept} and a workspace that is written through. Names and sizes of other files can be seen ({why})"
        ),
    )];
    let user = if root { "a kernel uid of its own" } else { "its kernel uid is the caller's" };
    let metadata =
        if root { "" } else { "; modes and times are changed by the keeper, beneath what may be written" };
    let privilege = vec![
        kernel("uid", user.to_owned()),
        kernel("capabilities", "none; no_new_privs".to_owned()),
        filter(envelope, &format!("; no System V object, no message queue, no setting of another process{metadata}")),
        kernel(
            "landlock-scope",
            "signals and traces its own processes only; /proc is closed, but for what is not about any process".to_owned(),
        ),
    ];
    let credentials = vec![
        kernel("empty-environment", "only named variables enter; no host descriptor does".to_owned()),
        kernel("landlock", "no file of the home folder can be opened but toolchains".to_owned()),
    ];
    let cleanup = vec![
        kernel("landlock-scope", "its first process ends every other, at the end of the keeper too".to_owned()),
        watch("orphans", "where the first process itself is killed the keeper ends what it left, and the cgroup where there is one".to_owned()),
    ];
    (filesystem, privilege, credentials, cleanup)
}

fn resources(native: &Native, envelope: &Envelope, placement: &Placement, shape: &Shape) -> Vec<Mechanism> {
    let limits = envelope.resources();
    let counted = if shape.has_root() {
        "in its user namespace"
    } else if host::euid() == 0 {
        "of its uid"
    } else {
        "more than the user had at its start"
    };
    let memory = quantity::show_bytes(limits.memory_bytes);
    let grouped = format!(
        "memory {memory}, {} processes, {} cpu",
        limits.processes,
        quantity::show_cpus(limits.cpu_millis)
    );
    let mut held = match &native.hierarchy {
        Hierarchy::V2 { .. } => vec![kernel("cgroup-v2", grouped)],
        Hierarchy::V1 { .. } => vec![kernel("cgroup-v1", grouped)],
        Hierarchy::None { why } => vec![
            kernel(
                "rlimits",
                format!("{} processes {counted}; data of each process {memory}", limits.processes),
            ),
            watch(
                "resident-memory-watch",
                format!(
                    "all together {memory}, looked at every 50 ms; memory files, System V segments and socket buffers are not seen ({why})"
                ),
            ),
        ],
    };
    let scratch = if shape.has_root() {
        kernel("tmpfs-size", format!("scratch {} in memory", quantity::show_bytes(scratch_bytes(envelope))))
    } else {
        watch(
            "byte-watch",
            format!("scratch {} on disk, looked at every second", quantity::show_bytes(limits.disk_bytes)),
        )
    };
    held.push(scratch);
    held.push(kernel(
        "rlimits",
        format!(
            "file size {}, {} open files, no core files",
            quantity::show_bytes(limits.file_size_bytes),
            limits.open_files
        ),
    ));
    // As for the cgroup itself: only what lives on is to be paused.
    if placement.living.is_some() && !native.hierarchy.can_freeze() {
        let detail = "no cgroup that can be frozen is ours: it is paused by SIGSTOP to every process, until no thread runs. One that lets a timer or a descriptor of its own continue it runs until it is stopped again, within a second; a snapshot during which anything ran is taken again, and refused after three times";
        held.push(watch("stop-signals", detail.to_owned()));
    }
    held.extend(disk(envelope, placement));
    let clock = if shape.has_root() { "pid-namespace" } else { "landlock-scope" };
    held.push(kernel(clock, "at the wall clock every process ends with its first".to_owned()));
    held
}

/// What holds the disk limit for the layer.
#[must_use]
pub fn disk(envelope: &Envelope, placement: &Placement) -> Vec<Mechanism> {
    let Some(workspace) = &envelope.filesystem().workspace else { return Vec::new() };
    let limit_bytes = envelope.resources().disk_bytes;
    let limit = quantity::show_bytes(limit_bytes);
    let watch = |detail| Mechanism { name: "byte-watch", detail, strength: Strength::Watch };
    let image = |bytes: u64, detail| Mechanism {
        name: "loop-image",
        detail: format!("the layer is a file system of {} in a file{detail}", quantity::show_bytes(bytes)),
        strength: Strength::Kernel,
    };
    match (workspace.mode, placement.layer.as_ref().map(|layer| &layer.disk)) {
        // What a read-write workspace takes is the host's own, and nobody counts it.
        (WorkspaceMode::ReadOnly | WorkspaceMode::ReadWrite, _) => Vec::new(),
        (WorkspaceMode::CopyOnWrite, Some(LayerDisk::Image { bytes, .. })) if *bytes > limit_bytes => vec![
            image(*bytes, ", as the session began with"),
            watch(format!("{limit} of it, looked at every second")),
        ],
        (WorkspaceMode::CopyOnWrite, Some(LayerDisk::Image { bytes, .. })) => {
            let less = limit_bytes - bytes > SIZE_STEP;
            vec![image(*bytes, if less { "; there was no room for more when it was made" } else { "" })]
        }
        (WorkspaceMode::CopyOnWrite, Some(LayerDisk::Folder { why })) => {
            vec![watch(format!("disk-backed layer {limit}, looked at every second ({why})"))]
        }
        (WorkspaceMode::CopyOnWrite, None) => {
            vec![watch(format!("disk-backed layer {limit}, looked at every second"))]
        }
    }
}
