//! Sandboxes that are built before their command is known.

#[cfg(test)]
mod tests {
    use fumehood_backend::{Backend, Event, GuestStdio, Instance, Placement, Plan, WaitStatus};
    use fumehood_backend_native::Native;
    use fumehood_model::envelope::{Defaults, Envelope, EnvelopeSpec};
    use fumehood_model::exec::ExecRequest;
    use fumehood_model::id::TaskId;
    use fumehood_sys::poll::{self, Interest};
    use fumehood_sys::{host, process};
    use std::collections::BTreeSet;
    use std::ffi::OsString;
    use std::io::{BufRead as _, BufReader};
    use std::os::fd::AsFd as _;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};
    use tempfile::TempDir;

    const LIMIT: Duration = Duration::from_secs(20);

    /// A folder of state, a backend for it, and the name of one sandbox.
    struct Place {
        state: TempDir,
        native: Native,
        id: TaskId,
    }

    // === impl Place ===

    impl Place {
        fn new() -> Self {
            let state = tempfile::tempdir_in("/var/tmp").unwrap();
            for name in ["root", "lower", "layer", "empty"] {
                std::fs::create_dir(state.path().join(name)).unwrap();
            }
            Self { state, native: Native::pooled(), id: TaskId::new(0, host::random().unwrap()) }
        }

        /// As [`begun`], in this place.
        fn begun(&self, spec: &EnvelopeSpec) -> (Box<dyn Plan>, Option<u32>) {
            begun(&self.native, self.state.path(), &self.id, spec)
        }

        /// Nothing of the sandbox may be here now.
        fn end(&self, instance: Box<dyn Instance>) {
            drop(instance);
            self.native.reap(&self.id).unwrap();
            assert!(!self.native.leftovers().contains(&self.id), "a cgroup stays");
        }
    }

    /// A plan that has begun, and the first process that it started meanwhile, if it did.
    fn begun(
        native: &Native,
        state: &Path,
        id: &TaskId,
        spec: &EnvelopeSpec,
    ) -> (Box<dyn Plan>, Option<u32>) {
        let envelope = Envelope::check(spec, &defaults()).unwrap();
        let placement = Placement {
            id: id.clone(),
            shared: state.to_owned(),
            scratch: state.join("scratch"),
            layer: None,
            home: None,
            home_at: PathBuf::from("/home/user"),
            caches: Vec::new(),
            toolchains: Vec::new(),
            gateway: None,
            files: Vec::new(),
            living: None,
        };
        let mut plan = native.plan(&envelope, &placement).unwrap();
        let before = inits();
        plan.begin();
        let made = inits().difference(&before).next().copied();
        (plan, made)
    }

    fn defaults() -> Defaults {
        Defaults {
            base: PathBuf::from("/"),
            home: None,
            state: None,
            host_memory_bytes: host::memory_bytes(),
            host_cpus: host::processors(),
            timeout: Some(LIMIT),
            output_bytes: 1 << 20,
            presets: std::collections::BTreeMap::new(),
            images: std::collections::BTreeMap::new(),
        }
    }

    /// The first processes of sandboxes that this very thread started, once each has given itself its name and
    /// those who helped to build them are gone.
    fn inits() -> BTreeSet<u32> {
        let name = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let mut living = BTreeSet::new();
        let settled = poll_until(|| {
            let children = std::fs::read_to_string("/proc/thread-self/children").unwrap();
            living = children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
            living.retain(|pid| is_there(*pid));
            living.iter().all(|pid| name(*pid) == "init\n")
        });
        assert!(settled, "children that are not the first of a sandbox: {living:?}");
        living
    }

    fn is_there(pid: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
    }

    fn poll_until(mut reached: impl FnMut() -> bool) -> bool {
        let end = Instant::now() + LIMIT;
        while !reached() {
            if Instant::now() > end {
                return false;
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        true
    }

    /// Runs a command in a live sandbox to its end.
    fn run(instance: &mut dyn Instance, argv: &[&str]) -> WaitStatus {
        let (stdin, feed) = process::pipe(false).unwrap();
        let (_output, stdout) = process::pipe(false).unwrap();
        let stderr = stdout.try_clone().unwrap();
        drop(feed);
        let request = ExecRequest {
            argv: argv.iter().map(OsString::from).collect(),
            env: vec![(OsString::from("PATH"), OsString::from("/usr/bin:/bin"))],
            cwd: PathBuf::from("/workspace"),
            terminal: None,
        };
        instance.exec(&request, GuestStdio::Pipes { stdin, stdout, stderr }).unwrap();
        let end = Instant::now() + LIMIT;
        loop {
            match instance.next_event() {
                Some(Event::Ended { status, .. }) => return status,
                Some(Event::Started) => {}
                Some(other) => panic!("{other:?}"),
                None => {
                    assert!(Instant::now() < end, "the command does not end");
                    poll::wait(&[(instance.events(), Interest::Read)], Some(LIMIT)).unwrap();
                }
            }
        }
    }

    #[test]
    fn a_sandbox_that_waits_is_handed_over() {
        let place = Place::new();
        let (plan, waiting) = place.begun(&EnvelopeSpec::default());
        let waiting = waiting.expect("nothing waits");
        let mut instance = plan.launch().unwrap();
        assert!(is_there(waiting) && inits() == [waiting].into(), "another sandbox was made");
        // Its walls are those of any launch: no capability, a filter, its own processes only.
        let judge = "grep -q 'CapBnd:.0000000000000000' /proc/self/status && grep -q 'Seccomp:.2' /proc/self/status && ! test -e /proc/200000";
        assert_eq!(run(instance.as_mut(), &["sh", "-c", judge]), WaitStatus::Exited(0));
        place.end(instance);
        assert!(poll_until(|| !is_there(waiting)));
    }

    #[test]
    fn one_that_was_ended_while_it_waited_is_built_again() {
        let place = Place::new();
        let (plan, waiting) = place.begun(&EnvelopeSpec::default());
        let waiting = waiting.expect("nothing waits");
        let pidfd = process::open_pidfd(i32::try_from(waiting).unwrap()).unwrap();
        process::send_signal(pidfd.as_fd(), 9).unwrap();
        assert!(process::wait_gone(pidfd.as_fd(), LIMIT).unwrap());
        let mut instance = plan.launch().unwrap();
        assert!(!is_there(waiting));
        assert_eq!(run(instance.as_mut(), &["true"]), WaitStatus::Exited(0));
        place.end(instance);
    }

    #[test]
    fn one_that_nobody_takes_leaves_nothing() {
        let place = Place::new();
        let (plan, waiting) = place.begun(&EnvelopeSpec::default());
        let waiting = waiting.expect("nothing waits");
        let groups = place.native.leftovers().contains(&place.id);
        assert_eq!(groups, host::euid() == 0, "the cgroup that this test looks for");
        drop(plan);
        assert!(!Path::new(&format!("/proc/{waiting}")).exists(), "a process stays");
        assert!(!place.native.leftovers().contains(&place.id), "a cgroup stays");
    }

    /// What goes in is recorded before it is read, and the record is begun after the plan.
    #[test]
    fn nothing_is_built_ahead_around_an_input() {
        let place = Place::new();
        let file = place.state.path().join("input");
        std::fs::write(&file, "as it was").unwrap();
        let mut spec = EnvelopeSpec::default();
        spec.filesystem.inputs = vec![file.to_str().unwrap().to_owned()];
        let (plan, waiting) = place.begun(&spec);
        assert_eq!(waiting, None, "a sandbox waits with what was read too early");
        std::fs::write(&file, "as it is").unwrap();
        let mut instance = plan.launch().unwrap();
        let judge = "grep -q '^as it is$' /workspace/input";
        assert_eq!(run(instance.as_mut(), &["sh", "-c", judge]), WaitStatus::Exited(0));
        place.end(instance);
    }

    /// Where the test below tells the one before it which sandbox to hold.
    const HELD: &str = "FUMEHOOD_TEST_HELD";

    /// Started by the test below, in a process of its own that is then killed.
    #[test]
    #[ignore = "waits to be killed; the test of the same purpose starts it"]
    fn hold_one() {
        let held = std::env::var(HELD).unwrap();
        let (state, id) = held.split_once(' ').unwrap();
        let id = TaskId::parse(id).unwrap();
        let (_plan, waiting) = begun(&Native::pooled(), Path::new(state), &id, &EnvelopeSpec::default());
        eprintln!("waiting {}", waiting.expect("nothing waits"));
        std::thread::park_timeout(LIMIT * 10);
    }

    #[test]
    fn one_that_waits_ends_with_its_keeper() {
        let place = Place::new();
        let mut keeper = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::hold_one", "--ignored", "--nocapture"])
            .env(HELD, format!("{} {}", place.state.path().display(), place.id))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(keeper.stderr.take().unwrap()).lines();
        let said = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("waiting ")?.parse().ok());
        let waiting: u32 = said.expect("the keeper says which process waits");
        assert!(is_there(waiting));
        keeper.kill().unwrap();
        keeper.wait().unwrap();
        assert!(poll_until(|| !is_there(waiting)), "a sandbox outlives its keeper");
        // Its cgroup is found by its name, by whoever comes next.
        place.native.reap(&place.id).unwrap();
        assert!(!place.native.leftovers().contains(&place.id), "a cgroup stays");
    }
}
