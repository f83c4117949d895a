//! The probes that apply to the process level, in both of its shapes: with the namespaces that this host permits, and
//! on a host that permits none. Their controls stand beside the probes themselves.

use super::bench::{Bench, Job, SHUT};
use super::cleanup::{c01, c02, c13};
use super::files::{f01, f02, f10, f11, f13, f14, f15, f22, f26, f32};
use super::kernel::{ABSENT, NO_FAMILY, k04, k06, k07, k10, k16, k20, k21, k22, k23, k27, k30};
use super::processes::{k03, k17, k18, k26};
use super::resources::{r01, r02, r04, r05, r08, r13, timed};
use crate::lab::{self, Caller};
use fumehood_backend::conformance::Verdict;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

/// Makes four tests of each probe: two shapes, two callers.
macro_rules! in_both_shapes {
    ($($name:ident => $probe:expr;)*) => {$(
        mod $name {
            use super::*;
            use crate::escape::bench::Wall;
            use crate::escape::expect_held;

            #[test]
            fn with_namespaces_called_by_root() {
                expect_held(Caller::Root, Wall::Process, $probe);
            }

            #[test]
            fn with_namespaces_called_by_a_user() {
                expect_held(Caller::User, Wall::Process, $probe);
            }

            #[test]
            fn without_namespaces_called_by_root() {
                expect_held(Caller::Root, Wall::Bare, $probe);
            }

            #[test]
            fn without_namespaces_called_by_a_user() {
                expect_held(Caller::User, Wall::Bare, $probe);
            }
        }
    )*};
}

in_both_shapes! {
    k01_the_level_is_real => k01;
    k03_roots_of_other_processes => k03;
    k04_no_stray_descriptor => k04;
    k06_kernel_settings => k06;
    k07_kernel_facts => k07;
    k09_release_agent => |b: &Bench| b.doors("k09", ABSENT);
    k10_init_binary => k10;
    k12_namespaces => |b: &Bench| b.doors("k12", SHUT);
    k13_mounts => |b: &Bench| b.doors("k13", SHUT);
    k14_uring => |b: &Bench| b.doors("k14", SHUT);
    k15_kernel_programs => |b: &Bench| b.doors("k15", SHUT);
    k16_keys => k16;
    k17_memory_of_other_processes => k17;
    k18_signals_to_other_processes => k18;
    k19_devices => |b: &Bench| b.doors("k19", ABSENT);
    k20_engine_sockets => k20;
    k21_message_bus => k21;
    k22_socket_file_in_a_view => k22;
    k23_abstract_socket => k23;
    k24_vsock => |b: &Bench| b.doors("k24", NO_FAMILY);
    k25_socket_families => |b: &Bench| b.doors("k25", NO_FAMILY);
    k26_terminal_injection => k26;
    k27_other_entries => k27;
    k30_setuid_gains_nothing => k30;
    k32_administration => |b: &Bench| b.doors("k32", SHUT);
    p01_metadata_of_files_outside => p01;
    p02_settings_of_other_processes => p02;
    p03_hard_links_out_of_a_view => p03;
    p04_the_first_process_is_out_of_reach => p04;
    c01_files_of_the_last_run => c01;
    c02_memory_of_the_last_run => c02;
    f01_host_secrets => f01;
    f02_another_sandbox => f02;
    f10_reopen_for_writing => f10;
    f11_remount => f11;
    f26_name_prefix => f26;
    r01_forks => |b: &Bench| r01(b, "forks");
    r02_memory_anonymous => |b: &Bench| r02(b, "fill anonymous");
    r04_descriptors => r04;
    r05_output_flood => r05;
    r09_stubborn_child => |b: &Bench| timed(b, "./probe stubborn @");
    r09_stopped_child => |b: &Bench| timed(b, "kill -STOP $$; : @");
    r10_daemon => |b: &Bench| timed(b, "./probe daemon @; ./probe pause @");
}

/// The filter is on, and the report names the level and, where there are none, says that there are no namespaces.
fn k01(bench: &Bench) -> Verdict {
    let came = bench.run(&Job::new("readlink /proc/self/ns/pid || true"));
    if came.report["level"]["level"] != "process" {
        return Verdict::Breached(format!("the report says level {}", came.report["level"]));
    }
    let bare = bench.wall == super::bench::Wall::Bare;
    let told = came.report["enforcement"].to_string();
    if told.contains("pid-namespace") == bare || told.contains("landlock-scope") != bare {
        return Verdict::Breached(format!("the enforcement tells of another shape: {told}"));
    }
    came.finished()
}

/// What Landlock does not judge: modes, owners, times and attributes of what the caller owns, by path, by a handle
/// that was opened for reading, and through a link.
pub(super) fn p01(bench: &Bench) -> Verdict {
    let view = bench.lab.folder("view");
    let (shown, hidden) = (bench.lab.file("view/shown", "x"), bench.lab.file("hidden", "x"));
    for file in [&shown, &hidden] {
        std::fs::set_permissions(file, PermissionsExt::from_mode(0o644)).unwrap();
    }
    let state = || {
        let of = |path: &std::path::PathBuf| {
            let meta = std::fs::metadata(path).unwrap();
            (meta.mode(), meta.mtime(), meta.mtime_nsec(), meta.uid(), meta.gid())
        };
        (of(&shown), of(&hidden))
    };
    let before = state();
    let script = format!(
        "for f in {0} {1}; do chmod 777 $f; touch -d @1 $f; chgrp 0 $f; setfattr -n user.x -v y $f; ln -s $f link; chmod 777 link; touch -d @1 link; rm link; done\n\
         exec 5< {0}; chmod 777 /dev/fd/5; perl -e 'open F, \"<\", shift; chmod 0777, F; utime 1, 1, F' {0}\n\
         perl -e 'chdir shift; chmod 0777, \"../hidden\", \"shown\"; utime 1, 1, \"../hidden\", \"shown\"' {2}\n\
         echo x > own; chmod 751 own; touch -d @1 own; stat -c 'own=%a %Y' own",
        shown.display(),
        hidden.display(),
        view.display()
    );
    let came = bench.run(&Job::new(script).flags(["--ro".to_owned(), view.display().to_string()]));
    if state() != before {
        return Verdict::Breached(format!("{before:?} became {:?}", state()));
    }
    // What is its own it may change.
    if !came.out().contains("own=751 1\n") {
        return came.unclear("its own file could not be changed");
    }
    came.finished()
}

/// Limits, priorities and processors of a process of the caller's outside.
pub(super) fn p02(bench: &Bench) -> Verdict {
    let mut command = bench.lab.command(bench.probe());
    let mut victim = command.arg("pause").spawn().unwrap();
    let pid = victim.id();
    let state = || {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
        let stat = read("stat");
        let nice = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(16).map(str::to_owned));
        let allowed =
            read("status").lines().find(|line| line.starts_with("Cpus_allowed:")).map(str::to_owned);
        (read("limits"), nice, allowed)
    };
    lab::poll(lab::DEADLINE, || {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "probe")
    });
    let before = state();
    let came = bench.run(&Job::new(format!(
        "prlimit --pid {pid} --nofile=3:3; renice -n 19 -p {pid}; renice -n 19 -u $(id -u); taskset -p 1 {pid}; \
         chrt -i -p 0 {pid}; ionice -c 3 -p {pid}; true"
    )));
    let after = state();
    victim.kill().unwrap();
    victim.wait().unwrap();
    if after != before {
        return Verdict::Breached(format!("{before:?} became {after:?}"));
    }
    came.finished()
}

/// A file of a view gets no second name where the sandbox may write, and none of ours gets one in the view.
pub(super) fn p03(bench: &Bench) -> Verdict {
    let view = bench.lab.folder("view");
    let shown = bench.lab.file("view/shown", "x");
    let came = bench.run(
        &Job::new(format!(
            "echo y > own; ln {0} stolen; ln own {1}/planted; mv {0} moved; cp {0} copy && mv copy {1}/planted; true",
            shown.display(),
            view.display()
        ))
        .flags(["--ro".to_owned(), view.display().to_string()]),
    );
    let names: Vec<_> = std::fs::read_dir(&view).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let meta = std::fs::metadata(&shown).unwrap();
    if names != ["shown"] || meta.nlink() != 1 {
        return Verdict::Breached(format!("{names:?}, {} names", meta.nlink()));
    }
    came.finished()
}

/// Whoever could end the first process would be free of it: here nobody can, or everything ends with it.
pub(super) fn p04(bench: &Bench) -> Verdict {
    let mark = lab::canary();
    let came = bench.run(&Job::new(format!(
        "setsid sh -c 'sleep 61; : {mark}' > /dev/null 2>&1 &\n\
         kill -KILL $PPID; kill -STOP $PPID; prlimit --pid $PPID --cpu=1:1; prlimit --pid $PPID --nofile=0:0; sleep 0.1"
    )));
    if lab::poll(lab::DEADLINE, || super::resources::survivors(&mark).is_empty()) {
        return if came.ended() || came.cause() == "signalled" || came.cause() == "lost" {
            Verdict::Held
        } else {
            came.finished()
        };
    }
    Verdict::Breached("a process outlived the run".to_owned())
}

/// What is written through a workspace in the caller's own folder, and collected from `/out`, is held by the same
/// walls as at the container level.
mod with_a_workspace {
    use super::*;
    use crate::escape::bench::Wall;
    use crate::escape::expect_held;

    #[test]
    fn placeholders_with_namespaces() {
        expect_held(Caller::User, Wall::Process, c13);
    }

    #[test]
    fn outputs_with_namespaces() {
        for probe in [f13, f14, f15, f22, f32] {
            expect_held(Caller::User, Wall::Process, probe);
        }
    }

    /// Where `/proc` is closed nobody inside can count them.
    #[test]
    fn orphans() {
        expect_held(Caller::User, Wall::Process, r13);
    }

    #[test]
    fn processor_time() {
        expect_held(Caller::User, Wall::Process, r08);
    }
}
