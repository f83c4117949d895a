//! What is said of a gateway, what is refused, and what is left of one: nothing.

use crate::guest::{self, Caller, Copy, Lab, PATIENCE, am_root, both_callers, task};
use fumehood_backend::Backend;
use fumehood_backend::gateway::Ports;
use fumehood_backend_native::Native;
use fumehood_model::enforcement::Clause;
use fumehood_sys::poll::{self, Interest};
use std::io::Write;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

both_callers! {
    without_a_gateway_there_is_no_route
    the_enforcement_says_what_holds
    what_can_not_be_listened_to_is_refused
    one_that_was_prepared_works
    one_that_is_never_launched_leaves_nothing
    an_image_asks_the_gateway_for_names
}

fn without_a_gateway_there_is_no_route() {
    let lab = Lab::new();
    let mut guest = lab.launch(None);
    assert!(guest.instance.take_gateway().is_none());
    let out = guest.run(
        "import socket\n\
         try: socket.create_connection(('203.0.113.7', 443), timeout=10)\n\
         except OSError as e: print(e.errno)\n\
         print('nameserver' in open('/etc/resolv.conf').read())\n",
    );
    assert_eq!(out, "101\nFalse\n");
}

fn the_enforcement_says_what_holds() {
    let lab = Lab::new();
    let said = |ports: Option<Ports>| {
        let (_, plan) = lab.plan(ports).unwrap();
        let held = plan.enforcement().of(Clause::Network).to_vec();
        held.into_iter()
            .map(|mechanism| format!("{}: {}", mechanism.name, mechanism.detail))
            .collect::<Vec<_>>()
    };
    let listed = said(Some(Ports::Listed(vec![443, 22, 443])));
    assert!(listed[1].starts_with("listeners: TCP 22 443, names (53)"), "{listed:?}");
    let every = said(Some(Ports::Every));
    assert!(every[1].starts_with("nf_tables: TCP to every port"), "{every:?}");
    for with in [&listed, &every] {
        assert!(with[0].contains("the only route leads to a gateway"), "{with:?}");
    }
    assert!(said(None)[0].contains("there is no route"));
}

fn what_can_not_be_listened_to_is_refused() {
    let lab = Lab::new();
    for (ports, why) in [((100..=164).collect(), "65 ports are named"), (vec![0], "there is no port 0")] {
        let refused = lab.plan(Some(Ports::Listed(ports))).unwrap_err();
        assert_eq!(refused.clause, Clause::Network);
        assert!(refused.why.contains(why) && !refused.remedy.is_empty(), "{refused:?}");
    }
    // The port of names is heard in any case, and does not count.
    assert!(lab.plan(Some(Ports::Listed((1..=65).collect()))).is_ok());
}

fn one_that_was_prepared_works() {
    for ports in [Ports::Listed(vec![443]), Ports::Every] {
        let lab = Lab::with(Native::pooled());
        let mut pool: Vec<_> = (0..3).map(|_| lab.plan(Some(ports.clone())).unwrap()).collect();
        for (_, plan) in &mut pool {
            plan.begin();
        }
        for (id, plan) in pool {
            let mut guest = lab.start(id, plan);
            let gateway = guest.instance.take_gateway().unwrap();
            let running = guest.start(
                "import socket\n\
                 print(socket.create_connection(('2001:db8::7', 443), timeout=10).recv(9).decode())\n",
            );
            let listener =
                gateway.any.or_else(|| gateway.listeners.into_iter().next().map(|(_, l)| l)).unwrap();
            assert!(poll::wait(&[(listener.as_fd(), Interest::Read)], Some(PATIENCE)).unwrap()[0].ready);
            TcpListener::from(listener).accept().unwrap().0.write_all(b"hello").unwrap();
            assert_eq!(guest.finish(running), "hello\n");
        }
    }
}

fn one_that_is_never_launched_leaves_nothing() {
    let lab = Lab::with(Native::pooled());
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    for ports in [Ports::Listed(vec![443]), Ports::Every, Ports::Listed(vec![])] {
        let (id, mut plan) = lab.plan(Some(ports)).unwrap();
        plan.begin();
        drop(plan);
        lab.native.reap(&id).unwrap();
    }
    // Companions that are still on their way out are not waited for.
    let end = Instant::now() + PATIENCE;
    while open() > before + 2 && Instant::now() < end {
        std::thread::park_timeout(Duration::from_millis(5));
    }
    assert!(open() <= before + 2, "{before} and then {}: descriptors stay open", open());
}

/// Its own files stay as they are.
fn an_image_asks_the_gateway_for_names() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let image = folder.path().join("image");
    std::fs::create_dir_all(image.join("etc")).unwrap();
    for (name, text) in [("passwd", "root:x:0:0:::\n"), ("resolv.conf", "nameserver 192.0.2.53\n")] {
        std::fs::write(image.join("etc").join(name), text).unwrap();
    }
    // A shell, and what it is loaded with.
    let loaded = Command::new("ldd").arg("/bin/sh").output().unwrap();
    let loaded = String::from_utf8(loaded.stdout).unwrap();
    let libraries = loaded.split_whitespace().filter(|word| word.starts_with('/'));
    for file in libraries.chain(["/bin/sh"]) {
        let to = image.join(file.strip_prefix('/').unwrap());
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(file, to).unwrap();
    }
    std::fs::create_dir_all(image.join("usr")).unwrap();
    let lab = Lab::of_image(&image);
    let script = "for file in passwd resolv.conf hosts; do while read -r line; do echo \"$line\"; done < /etc/$file; done";
    let mut guest = lab.launch(Some(Ports::Listed(vec![443])));
    let running = guest.command(&["/bin/sh", "-c", script]);
    let expected = "root:x:0:0:::\nnameserver 198.18.0.1\n\
                    127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n";
    assert_eq!(guest.finish(running), expected);
}

/// Where the process that is to be ended makes its sandboxes.
const KEEPS_IN: &str = "FUMEHOOD_TEST_KEEPS_IN";
const ROUNDS: u64 = 25;

mod killed_at_any_moment {
    use crate::guest::Caller;

    #[test]
    fn by_root() {
        if crate::guest::am_root() {
            super::killed_at_any_moment(concat!(module_path!(), "::by_root"), Caller::Root);
        } else {
            println!("NOT-APPLICABLE: the tests do not run as root, so the root caller is left out");
        }
    }

    #[test]
    fn by_a_user() {
        super::killed_at_any_moment(concat!(module_path!(), "::by_a_user"), Caller::User);
    }
}

/// Ends a keeper without a word, again and again, and looks for what it has made.
fn killed_at_any_moment(name: &str, caller: Caller) {
    if let Some(folder) = std::env::var_os(KEEPS_IN) {
        return keep(PathBuf::from(folder));
    }
    let (copy, folder) = (Copy::new(), tempfile::tempdir_in("/var/tmp").unwrap());
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let before = network_namespaces();
    for round in 0..ROUNDS {
        let mut command = copy.command(name, caller);
        command.env(KEEPS_IN, folder.path().join(round.to_string())).stdout(Stdio::null());
        let mut keeper = guest::start(&mut command);
        // From before it has begun to several sandboxes later.
        std::thread::park_timeout(Duration::from_millis(round * round / 4));
        let made = descendants(keeper.id());
        keeper.kill().unwrap();
        keeper.wait().unwrap();
        let alive = || made.iter().filter(|pid| exists(**pid)).collect::<Vec<_>>();
        assert!(within(PATIENCE, || alive().is_empty()), "round {round}: {:?} live on", alive());
        // A cgroup outlives its maker; a run has its reaper for that.
        for number in 1..50 {
            Native::find().reap(&task(number, keeper.id())).unwrap();
        }
    }
    let Some(before) = before else {
        return println!("NOT-APPLICABLE: only root is told how many network namespaces there are");
    };
    // Other tests make some at the same time; those of ours would be far more.
    let few = || network_namespaces().is_some_and(|now| now < before + ROUNDS);
    assert!(
        within(PATIENCE, few),
        "{before} network namespaces were there, and now {:?}",
        network_namespaces()
    );
}

/// A keeper that makes one sandbox after the other.
fn keep(folder: PathBuf) {
    let lab = Lab::at(folder, Native::find());
    loop {
        let ports = if am_root() { Ports::Every } else { Ports::Listed(vec![80, 443]) };
        let mut guest = lab.launch(Some(ports));
        let gateway = guest.instance.take_gateway().unwrap();
        let running = guest.start("print('x', flush=True); import time; time.sleep(0.02)");
        let running = guest.await_line(running, "x");
        drop((running, gateway));
    }
}

fn within(limit: Duration, mut reached: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !reached() {
        if Instant::now() > end {
            return false;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    true
}

fn exists(pid: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn descendants(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap());
    children.flat_map(|child| std::iter::once(child).chain(descendants(child))).collect()
}

/// How many the kernel has in memory.
fn network_namespaces() -> Option<u64> {
    let caches = std::fs::read_to_string("/proc/slabinfo").ok()?;
    let line = caches.lines().find(|line| line.starts_with("net_namespace "))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
