//! Files: only what was named enters, only what was named leaves.

use super::{both, facts, finished, holds, no_leak, nothing, text};
use crate::conformance::{Case, Outcome, Stage, Verdict, Want};
use fumehood_model::enforcement::Clause;
use std::io;
use std::os::unix::fs::PermissionsExt;

const CLAUSE: Option<Clause> = Some(Clause::Filesystem);

pub(super) const CASES: &[Case] = &[
    Case {
        name: "host-file-absent",
        clause: CLAUSE,
        says: "A host file that was not named can not be read, listed or looked up.",
        inside: &["cat @DIR@/secret; ls -laR @DIR@; head -c 100 /proc/self/root@DIR@/secret; echo @NONCE@"],
        wants: &[],
        setup: nothing,
        verdict: no_leak,
    },
    Case {
        name: "home-absent",
        clause: CLAUSE,
        says: "Nothing of the caller's home enters.",
        inside: &["cat @HOME@/.ssh/id_canary ~/.ssh/id_canary; cat @HOME@/.aws/credentials; \
             find @HOME@ ~ -type f -exec cat {} +; echo @NONCE@"],
        wants: &[],
        setup: plant_home,
        verdict: no_leak,
    },
    Case {
        name: "host-shared-memory-absent",
        clause: CLAUSE,
        says: "The host's /dev/shm is not the sandbox's.",
        inside: &["cat /dev/shm/@SOCKET@; ls /dev/shm; echo @NONCE@"],
        wants: &[],
        setup: |stage| std::fs::write(shm(stage), stage.secret()),
        verdict: |outcomes, stage| {
            drop(std::fs::remove_file(shm(stage)));
            no_leak(outcomes, stage)
        },
    },
    Case {
        name: "system-read-only",
        clause: CLAUSE,
        says: "The host's system folders can not be written.",
        inside: &["for d in /usr /usr/bin /usr/lib /bin; do echo x > $d/@SOCKET@; done; echo @NONCE@"],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| {
            let planted = ["/usr", "/usr/bin", "/usr/lib", "/bin"]
                .iter()
                .any(|folder| std::fs::remove_file(format!("{folder}/{}", stage.socket_name())).is_ok());
            both(holds(!planted, "a file appeared in a system folder of the host"), || {
                no_leak(outcomes, stage)
            })
        },
    },
    Case {
        name: "etc-curated",
        clause: CLAUSE,
        says: "The host's password hashes are not in the sandbox's /etc.",
        inside: &["cat /etc/shadow /etc/gshadow /etc/sudoers; echo @NONCE@"],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| {
            let hashes = text(std::path::Path::new("/etc/shadow"));
            let said: String = outcomes.iter().map(Outcome::said).collect();
            let leaked = hashes.lines().any(|line| !line.is_empty() && said.lines().any(|seen| seen == line));
            both(holds(!leaked, "a line of the host's /etc/shadow came out"), || no_leak(outcomes, stage))
        },
    },
    Case {
        name: "input-enters",
        clause: CLAUSE,
        says: "A file that was named is there, whole, in the working directory.",
        inside: &["echo content=$(cat input.txt); echo @NONCE@"],
        wants: &[Want::Input],
        setup: |stage| std::fs::write(stage.input(), "an input\n"),
        verdict: |outcomes, stage| facts(outcomes, stage, &[("content", "an input")]),
    },
    Case {
        name: "output-leaves",
        clause: CLAUSE,
        says: "A plain file in /out is collected whole.",
        inside: &["mkdir -p /out/deep && printf 'from inside' > /out/deep/result && echo @NONCE@"],
        wants: &[Want::Output],
        setup: nothing,
        verdict: |outcomes, stage| {
            both(no_leak(outcomes, stage), || {
                let collected = text(&stage.collected().join("deep/result"));
                holds(collected == "from inside", "the file was not collected whole")
            })
        },
    },
    Case {
        name: "output-link-not-followed",
        clause: CLAUSE,
        says: "A link in /out is never followed on the host.",
        inside: &["ln -s @DIR@/secret /out/absolute; ln -s ../secret /out/upward; ln -s @DIR@ /out/folder; \
             echo @NONCE@"],
        wants: &[Want::Output],
        setup: nothing,
        verdict: |outcomes, stage| {
            both(no_leak(outcomes, stage), || {
                let followed = ["absolute", "upward", "folder/secret"]
                    .iter()
                    .any(|name| text(&stage.collected().join(name)) == stage.secret());
                holds(!followed, "a link from inside points at a host file")
            })
        },
    },
    Case {
        name: "workspace-readable",
        clause: CLAUSE,
        says: "The project is seen with its content.",
        inside: &["echo content=$(cat /workspace/given); echo @NONCE@"],
        wants: &[Want::WorkspaceReadOnly],
        setup: plant_project,
        verdict: |outcomes, stage| facts(outcomes, stage, &[("content", "given by the host")]),
    },
    Case {
        name: "workspace-read-only",
        clause: CLAUSE,
        says: "A read-only workspace can not be changed.",
        inside: &["cd /workspace; echo x > new; echo x > given; rm -f given; chmod 777 given; \
             mount -o remount,rw /workspace; echo x > given; echo @NONCE@"],
        wants: &[Want::WorkspaceReadOnly],
        setup: plant_project,
        verdict: project_unchanged,
    },
    Case {
        name: "workspace-copy-on-write",
        clause: CLAUSE,
        says: "Writes to a copy-on-write workspace work inside and never reach the host by themselves.",
        inside: &["cd /workspace; echo x > new; echo changed > given; rm -r folder; \
             echo content=$(cat given); test -e folder || echo removed=yes; echo @NONCE@"],
        wants: &[Want::CopyOnWrite],
        setup: plant_project,
        verdict: |outcomes, stage| {
            both(facts(outcomes, stage, &[("content", "changed"), ("removed", "yes")]), || {
                project_unchanged(outcomes, stage)
            })
        },
    },
    Case {
        name: "workspace-read-write",
        clause: CLAUSE,
        says: "A written-through workspace changes on the host, as asked.",
        inside: &["cd /workspace; printf through > given && echo @NONCE@"],
        wants: &[Want::WorkspaceReadWrite],
        setup: plant_project,
        verdict: |outcomes, stage| {
            both(no_leak(outcomes, stage), || {
                holds(text(&stage.project().join("given")) == "through", "the write did not arrive")
            })
        },
    },
    Case {
        name: "view-read-only",
        clause: CLAUSE,
        says: "A read-only view can be read and not written, also by way of /proc.",
        inside: &[
            "echo content=$(cat @DIR@/view/given); echo x > @DIR@/view/given; echo x > @DIR@/view/new; \
             exec 8< @DIR@/view/given; echo x > /proc/self/fd/8; mount -o remount,bind,rw @DIR@/view; \
             echo x > @DIR@/view/given; echo @NONCE@",
        ],
        wants: &[Want::ReadOnlyView],
        setup: |stage| {
            std::fs::write(stage.view().join("given"), "shown")?;
            open_up(&stage.view().join("given"))
        },
        verdict: |outcomes, stage| {
            both(facts(outcomes, stage, &[("content", "shown")]), || {
                let same = text(&stage.view().join("given")) == "shown" && !stage.view().join("new").exists();
                holds(same, "the view was changed on the host")
            })
        },
    },
    Case {
        name: "scratch-is-writable",
        clause: CLAUSE,
        says: "The working directory, HOME, /tmp, /var/tmp, /dev/shm and /out can be written to.",
        inside: &[
            "for d in . ~ /tmp /var/tmp /dev/shm /out; do echo x > $d/file || echo closed=$d; done; echo all=tried; echo @NONCE@",
        ],
        wants: &[Want::Output],
        setup: nothing,
        verdict: |outcomes, stage| {
            both(facts(outcomes, stage, &[("all", "tried")]), || {
                let closed = outcomes.iter().find_map(|outcome| outcome.fact("closed"));
                holds(closed.is_none(), &format!("{} is closed", closed.unwrap_or_default()))
            })
        },
    },
    Case {
        name: "names-survive",
        clause: CLAUSE,
        says: "File names that are not text keep their bytes.",
        inside: &["cd /workspace; echo names=$(ls | od -An -tx1 | tr -d ' \\n'); echo @NONCE@"],
        wants: &[Want::WorkspaceReadOnly],
        setup: |stage| {
            use std::os::unix::ffi::OsStrExt;
            std::fs::write(stage.project().join(std::ffi::OsStr::from_bytes(b"a\xff\xc3\xbc\x1b-")), "")
        },
        verdict: |outcomes, stage| facts(outcomes, stage, &[("names", "61ffc3bc1b2d0a")]),
    },
    Case {
        name: "stray-descriptor-closed",
        clause: CLAUSE,
        says: "No descriptor of the caller enters but the three streams.",
        inside: &["cat <&9; for f in 3 4 5 6 7 8 9 10 11 12; do cat /proc/self/fd/$f; done; echo @NONCE@"],
        wants: &[Want::StrayDescriptor],
        setup: nothing,
        verdict: no_leak,
    },
    Case {
        name: "stdin-file-untouched",
        clause: CLAUSE,
        says: "A host file on standard input can be read, not written, resized or given another mode.",
        inside: &["echo content=$(cat); (: > /proc/self/fd/0); (echo x >> /proc/self/fd/0); (echo x >&0); \
             chmod 000 /proc/self/fd/0; touch -d '2001-01-01' /proc/self/fd/0; echo @NONCE@"],
        wants: &[Want::StdinFile],
        setup: |stage| {
            std::fs::write(stage.stdin(), "typed")?;
            open_up(&stage.stdin())
        },
        verdict: |outcomes, stage| {
            let kept =
                std::fs::metadata(stage.stdin()).is_ok_and(|now| now.permissions().mode() & 0o777 == 0o666);
            both(facts(outcomes, stage, &[("content", "typed")]), || {
                holds(kept && text(&stage.stdin()) == "typed", "the file on standard input was changed")
            })
        },
    },
];

fn shm(stage: &Stage) -> String {
    format!("/dev/shm/{}", stage.socket_name())
}

fn plant_home(stage: &Stage) -> io::Result<()> {
    for (folder, file) in [(".ssh", "id_canary"), (".aws", "credentials")] {
        let folder = stage.home().join(folder);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(file), stage.secret())?;
    }
    std::fs::write(stage.home().join(".bash_history"), stage.secret())
}

fn plant_project(stage: &Stage) -> io::Result<()> {
    std::fs::create_dir_all(stage.project().join("folder"))?;
    std::fs::write(stage.project().join("folder/inner"), "inner")?;
    std::fs::write(stage.project().join("given"), "given by the host")
}

/// Anyone may write, so that only the wall can refuse.
fn open_up(path: &std::path::Path) -> io::Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))
}

fn project_unchanged(outcomes: &[Outcome], stage: &Stage) -> Verdict {
    if let Err(verdict) = finished(outcomes, stage) {
        return verdict;
    }
    let project = stage.project();
    let same = text(&project.join("given")) == "given by the host"
        && text(&project.join("folder/inner")) == "inner"
        && !project.join("new").exists();
    holds(same, "the project was changed on the host")
}
