//! The resource wall: every ceiling is finite, and its end is told.

use super::bench::{Bench, Came, Job, Wall};
use super::{open, probes};
use crate::lab::{self, Caller, Lab, Ran};
use fumehood_backend::conformance::Verdict;
use std::process::Stdio;
use std::time::Duration;

probes! {
    r01_forks => |b: &Bench| r01(b, "forks"), control open!(|b: &Bench| r01(b, "forks"));
    r01_threads => |b: &Bench| r01(b, "threads"), control open!(|b: &Bench| r01(b, "threads"));
    r02_memory_anonymous => |b: &Bench| r02(b, "fill anonymous"), control open!(|b: &Bench| r02(b, "fill anonymous"));
    r02_memory_file => |b: &Bench| r02(b, "fill memfd"), control open!(|b: &Bench| r02(b, "fill memfd"));
    r02_memory_shared => |b: &Bench| r02(b, "fill /dev/shm/probe-fill"), control || r02_control("/dev/shm/probe-fill");
    r02_memory_scratch => |b: &Bench| r02(b, "fill /tmp/probe-fill"), control || r02_control("/tmp/probe-fill");
    r02_memory_pipes => |b: &Bench| r02(b, "fill-pipes"), control open!(|b: &Bench| r02(b, "fill-pipes"));
    r02_memory_sockets => |b: &Bench| r02(b, "fill-sockets"), control open!(|b: &Bench| r02(b, "fill-sockets"));
    r03_disk => r03, control open!(r03);
    r04_descriptors => r04, control open!(r04);
    r05_output_flood => r05, control r05_control;
    r07_output_without_lines => r07, control r07_control;
    r08_processor_time => r08, control open!(r08);
    r08_processors_told => r08_told, control r08_told_control;
    r09_stubborn_child => |b: &Bench| timed(b, "./probe stubborn @"), control || timed_control("./probe stubborn @");
    r09_stopped_child => |b: &Bench| timed(b, "kill -STOP $$; : @"), control || timed_control("kill -STOP $$; : @");
    r10_daemon => |b: &Bench| timed(b, "./probe daemon @; ./probe pause @"),
        control || timed_control("./probe daemon @; ./probe pause @");
    r10_daemon_that_holds_the_pipe => |b: &Bench| timed(b, "./probe daemon-hold @; ./probe pause @"),
        control || timed_control("./probe daemon-hold @; ./probe pause @");
    r13_orphans => r13, control r13_control;
    r19_reader_gone => r19, control r19_control;
}

pub(super) fn r01(bench: &Bench, what: &str) -> Verdict {
    let came = bench.run(&Job::new(format!("./probe {what} 400")).flags(["--pids", "64"]));
    match came.number("made ") {
        Some(made) if made > 64 => Verdict::Breached(format!("{made} {what} under a limit of 64")),
        Some(_) => came.finished(),
        None => came.unclear("the count was not told"),
    }
}

pub(super) fn r02(bench: &Bench, what: &str) -> Verdict {
    let came = bench.run(&Job::new(format!("./probe {what} 400")).flags(["--mem", "64MiB"]));
    match came.number("filled ") {
        // A gap that the run itself names beside its limits is no false promise, and no wall either.
        Some(400..)
            if came.report["enforcement"].to_string().contains(&format!("{} are not seen", gap(what))) =>
        {
            Verdict::NotApplicable("`enforcement` names this gap".to_owned())
        }
        Some(400..) => Verdict::Breached("400 MiB were filled under a limit of 64 MiB".to_owned()),
        Some(_) => came.finished(),
        None if came.cause() == "out_of_memory" || came.hit("out_of_memory") => Verdict::Held,
        None => came.unclear("ended, but not for memory"),
    }
}

/// How `enforcement` names what a resident-memory watch does not see.
fn gap(what: &str) -> &'static str {
    match what {
        "fill memfd" | "fill-sockets" => "memory files, System V segments and socket buffers",
        _ => "(no gap is allowed here)",
    }
}

/// The same where the folder is the host's: the file goes with the mount namespace's own tmpfs.
fn r02_control(path: &str) -> Verdict {
    if !Caller::Root.available() {
        return Verdict::NotApplicable("the control needs root".to_owned());
    }
    let bench = Bench::new(Caller::Root, Wall::Open);
    let folder = std::path::Path::new(path).parent().unwrap().display();
    let came = bench.run(&Job::new(format!(
        "cp probe /mnt/probe 2> /dev/null; p=$PWD/probe; exec 8< probe; mount -t tmpfs none {folder} && \
         /proc/self/fd/8 fill {path} 400"
    )));
    match came.number("filled ") {
        Some(400..) => Verdict::Breached("filled".to_owned()),
        _ => came.unclear("the fill did not run"),
    }
}

fn r03(bench: &Bench) -> Verdict {
    let project = bench.lab.folder("project");
    let job = Job::new("./probe fill ./large 1000; rm -f large").flags([
        "--disk",
        "64MiB",
        "--mem",
        "512MiB",
        "--workspace",
        project.to_str().unwrap(),
    ]);
    let came = bench.run(&job);
    match came.number("filled ") {
        Some(1000..) => Verdict::Breached("1,000 MiB were written under a limit of 64 MiB".to_owned()),
        Some(_) => came.finished(),
        None if came.cause() == "limit_passed" || came.hit("disk_full") => Verdict::Held,
        // The probe was the shell's child; the shell tells the signal.
        None if came.report["stderr"]["text"]
            .as_str()
            .is_some_and(|text| text.contains("File size limit")) =>
        {
            Verdict::Held
        }
        None => came.unclear("ended, but not for the disk"),
    }
}

/// As many as the caller itself may open: inside, there is a ceiling of the envelope's below that.
pub(super) fn r04(bench: &Bench) -> Verdict {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let hard: i64 = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(1 << 20);
    let most = (hard - 64).min(60_000);
    let through = ["sh", "-c", "ulimit -n $(ulimit -Hn); exec \"$@\"", "sh"].map(str::to_owned).to_vec();
    count_files(&bench.run(&Job { through, ..Job::new(format!("./probe files {most}")) }), most)
}

fn count_files(came: &Came, most: i64) -> Verdict {
    match came.number("made ") {
        Some(made) if made >= most => Verdict::Breached(format!("{made} open files")),
        Some(_) => came.finished(),
        None => came.unclear("the count was not told"),
    }
}

/// 200 MB a stream in the full profile, a tenth of it in the fast one.
fn flood() -> u64 {
    if std::env::var_os("FUMEHOOD_TEST_FULL").is_some() { 200_000_000 } else { 20_000_000 }
}

pub(super) fn r05(bench: &Bench) -> Verdict {
    let each = flood();
    let job = Job::new(format!(
        "head -c {each} /dev/zero | tr '\\0' x; head -c {each} /dev/zero | tr '\\0' y >&2; exit 7"
    ))
    .flags(["--max-output", "1MiB"]);
    let mut command = bench.command(&job);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let watched = watch_memory(child.id());
    let came = bench.came(lab::collect(child, b""));
    let peak = watched.join().unwrap();
    let dropped = came.report["dropped_bytes"].as_u64().unwrap_or(0);
    let kept = u64::try_from(came.stdout.len() + came.stderr.len()).unwrap();
    if kept > 2 << 20 {
        return Verdict::Breached(format!("{kept} bytes were kept under a cap of 1 MiB"));
    }
    if came.report["ending"]["code"] != 7 || dropped + kept < 2 * each {
        return came.unclear(&format!("{dropped} dropped, {kept} kept of {}", 2 * each));
    }
    if peak > 64 << 10 {
        return Verdict::Breached(format!("the keeper grew to {peak} KiB"));
    }
    let told = came.report["hits"]
        .as_array()
        .is_some_and(|hits| hits.iter().any(|hit| hit["kind"] == "output_limit"));
    if told { Verdict::Held } else { came.unclear("the loss was not told") }
}

/// The largest resident size that a process reached, in KiB.
fn watch_memory(pid: u32) -> std::thread::JoinHandle<u64> {
    std::thread::spawn(move || {
        let mut peak = 0;
        lab::poll(lab::DEADLINE, || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let now = status
                .lines()
                .find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
            peak = peak.max(now.unwrap_or(0));
            now.is_none()
        });
        peak
    })
}

/// A capture without a cap.
fn r05_control() -> Verdict {
    let bench = Bench::new(Caller::User, Wall::Open);
    r05(&bench)
}

fn r07(bench: &Bench) -> Verdict {
    let jobs = [
        ("head -c 20000000 /dev/zero | tr '\\0' x", "1MiB"),
        ("perl -e 'print \"\\xe2\\x82\\xac\" x 1000'", "1000"),
        ("perl -e 'print \"\\xff\\xc3\\x28\\x00\" x 1000'", "10MiB"),
    ];
    for (script, cap) in jobs {
        let came = bench.run(&Job::new(format!("{script}; exit 7")).flags(["--max-output", cap]));
        if came.report["ending"]["code"] != 7 {
            return came.unclear(script);
        }
        let expected: &[u8] = match cap {
            "1MiB" => b"x",
            "1000" => b"\xe2\x82\xac",
            _ => b"\xff\xc3\x28\x00",
        };
        if let Verdict::Breached(why) = repeats(&came.stdout, expected) {
            return Verdict::Breached(format!("{script}: {why}"));
        }
    }
    Verdict::Held
}

/// Held when the bytes are nothing but the pattern again and again, cut anywhere.
fn repeats(bytes: &[u8], pattern: &[u8]) -> Verdict {
    let whole = bytes.iter().zip(pattern.iter().cycle()).all(|(byte, expected)| byte == expected);
    if whole && !bytes.is_empty() {
        Verdict::Held
    } else {
        Verdict::Breached("bytes were changed".to_owned())
    }
}

/// Text that was made to fit is not what was written.
fn r07_control() -> Verdict {
    let lossy = String::from_utf8_lossy(b"\xff\xc3\x28\x00\xff").into_owned();
    repeats(lossy.as_bytes(), b"\xff\xc3\x28\x00")
}

/// Eight burners, so that a busy machine leaves the control its share.
pub(super) fn r08(bench: &Bench) -> Verdict {
    let came = bench.run(&Job::new("./probe burn 2 8").flags(["--cpus", "0.25"]));
    if bench.wall != Wall::Open && !came.report["enforcement"].to_string().contains("cpu") && came.ended() {
        return Verdict::NotApplicable(
            "nothing here holds processor time for this caller, and the report says so".to_owned(),
        );
    }
    match came.number("burnt ") {
        Some(burnt) if burnt > 1_000 => {
            Verdict::Breached(format!("{burnt} ms in 2 s under a quarter of a processor"))
        }
        Some(_) => came.finished(),
        None => came.unclear("the time was not told"),
    }
}

fn r08_told(bench: &Bench) -> Verdict {
    let came = bench.run(&Job::new("echo processors $(nproc)").flags(["--cpus", "1"]));
    if bench.wall != Wall::Open && !came.report["enforcement"].to_string().contains("cpu") && came.ended() {
        return Verdict::NotApplicable("nothing here holds processor time for this caller".to_owned());
    }
    match came.number("processors ") {
        Some(1) => came.finished(),
        Some(count) => Verdict::Breached(format!("{count} processors are told under a limit of 1")),
        None => came.unclear("the count was not told"),
    }
}

fn r08_told_control() -> Verdict {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return Verdict::NotApplicable("this machine has one processor".to_owned());
    }
    r08_told(&Bench::new(Caller::User, Wall::Open))
}

/// The script's time runs out; then nothing of it is left, and the call has returned.
pub(super) fn timed(bench: &Bench, script: &str) -> Verdict {
    let mark = format!("mark-{}", lab::canary());
    let came = bench.run(&Job::new(script.replace('@', &mark)).flags(["--timeout", "1s"]));
    let survivors = survivors(&mark);
    if !survivors.is_empty() {
        return Verdict::Breached(format!("processes {survivors:?} outlived the timeout"));
    }
    if came.ran.elapsed > Duration::from_secs(15) {
        return Verdict::Breached(format!("the call returned after {:?}", came.ran.elapsed));
    }
    if came.cause() == "timed_out" && came.ran.code() == 124 {
        Verdict::Held
    } else {
        came.unclear("not timed out")
    }
}

/// A timeout that ends only the process that it knows.
fn timed_control(script: &str) -> Verdict {
    let bench = Bench::new(Caller::User, Wall::Open);
    let mark = format!("mark-{}", lab::canary());
    let mut command = bench.command(&Job::new(script.replace('@', &mark)));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let started = lab::poll(lab::DEADLINE, || {
        let found = survivors(&mark);
        found.len() > usize::from(script.contains("daemon")) + 1 || (found.len() == 1 && stopped(found[0]))
    });
    // SIGTERM to the one process is what a careless wrapper sends.
    let term = std::process::Command::new("kill").arg("-TERM").arg(child.id().to_string()).status().unwrap();
    assert!(started && term.success());
    if !script.contains("STOP") {
        child.wait().unwrap();
    }
    let left = survivors(&mark);
    for pid in &left {
        std::process::Command::new("kill").arg("-KILL").arg(pid.to_string()).status().unwrap();
    }
    child.wait().unwrap();
    if left.is_empty() { Verdict::Held } else { Verdict::Breached(format!("{left:?} are left")) }
}

fn stopped(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "))
}

/// Live processes whose arguments carry a mark.
pub(crate) fn survivors(mark: &str) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| lab::contains(&line, mark))
    })
    .collect()
}

pub(super) fn r13(bench: &Bench) -> Verdict {
    zombies(&bench.run(&Job::new("./probe orphans 1000")))
}

fn zombies(came: &Came) -> Verdict {
    match came.number("zombies ") {
        Some(0) => came.finished(),
        Some(count) => Verdict::Breached(format!("{count} zombies")),
        None => came.unclear("the count was not told"),
    }
}

/// A PID 1 that buries nobody.
fn r13_control() -> Verdict {
    if !Caller::Root.available() {
        return Verdict::NotApplicable("the control needs root".to_owned());
    }
    let bench = Bench::new(Caller::Root, Wall::Open);
    zombies(&bench.run(&Job::new(
        "unshare --pid --fork --mount-proc perl -e 'unless (fork) { exec \"./probe\", \"orphans\", \"200\" } \
         select undef, undef, undef, 4'",
    )))
}

/// Whoever reads the output goes away; the run ends by itself.
fn r19(bench: &Bench) -> Verdict {
    let mark = format!("mark-{}", lab::canary());
    let ran =
        reader_gone(&bench.lab, &format!("{} run -- sh -c 'exec yes {mark}'", bench.lab.binary().display()));
    judge_reader(&ran, &mark)
}

fn reader_gone(lab: &Lab, pipeline: &str) -> Ran {
    let mut command = lab.command("timeout");
    command.args(["--kill-after=1", "20", "sh", "-c"]).arg(format!("{pipeline} | head -n 1; echo through"));
    lab::finish(command, b"")
}

fn judge_reader(ran: &Ran, mark: &str) -> Verdict {
    let left = survivors(mark);
    if !left.is_empty() || ran.elapsed > Duration::from_secs(15) {
        return Verdict::Breached(format!("still running after {:?}: {left:?}", ran.elapsed));
    }
    let through = ran.out().contains(mark) && ran.out().contains("through");
    if through { Verdict::Held } else { Verdict::Inconclusive(ran.told()) }
}

/// A writer that ignores that nobody reads.
fn r19_control() -> Verdict {
    let lab = Lab::new(Caller::User);
    let mark = format!("mark-{}", lab::canary());
    let ran = reader_gone(
        &lab,
        &format!("perl -e '$SIG{{PIPE}} = \"IGNORE\"; $| = 1; print \"{mark}\\n\" while 1' {mark}"),
    );
    judge_reader(&ran, &mark)
}
