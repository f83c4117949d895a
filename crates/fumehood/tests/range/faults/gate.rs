//! The gate dies, or its record can not be written: the network ends, and no other comes.

use crate::both_callers::both_callers;
use crate::lab::{self, Caller, Lab};
use crate::processes;
use crate::stand::Stand;
use std::process::Stdio;

both_callers! {
    e41_a_gate_that_is_killed_never_comes_back
    without_room_for_the_record_nothing_leaves
}

/// Downloads, then tries all ways out until its time is over, and says how each ended.
const CLIENT: &str = "
import socket, time, urllib.request
got = 0
try:
    with urllib.request.urlopen('http://api.example.com/drip?n=100&ms=40', timeout=10) as answer:
        while part := answer.read(1):
            got += len(part)
    print('whole', got, flush=True)
except (OSError, Exception) as problem:
    print('cut', got, type(problem).__name__, flush=True)
reached = 0
for turn in range(12):
    for place in (('api.example.com', 80), ('203.0.113.7', 80), ('203.0.113.7', 443), ('198.51.100.66', 4), ('192.0.2.53', 53), ('198.18.0.1', 3128)):
        try:
            with socket.create_connection(place, timeout=0.5) as stream:
                stream.settimeout(0.5)
                stream.sendall(b'GET /later HTTP/1.1\\r\\nHost: api.example.com\\r\\nConnection: close\\r\\n\\r\\n')
                reached += b'served_by' in stream.recv(4096) + stream.recv(4096)
        except OSError:
            pass
    time.sleep(0.1)
print('reached', reached, flush=True)
";

fn e41_a_gate_that_is_killed_never_comes_back(lab: &Lab) {
    let stand = Stand::new(lab.caller);
    stand.range.name("*.example.com", &["203.0.113.7"]);
    let argv = ["/usr/bin/python3", "-c", CLIENT];
    for kills in [false, true] {
        let begin = stand.range.mark();
        let mut command = stand.started(&[], &["--allow", "http://api.example.com"], &argv);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let arrived = || stand.range.since(begin).all("request").next().is_some();
        assert!(lab::poll(lab::DEADLINE, arrived), "nothing arrived");
        let gate = processes::gate(child.id()).expect("a gate");
        if kills {
            processes::kill(gate, "KILL");
            assert!(lab::poll(lab::DEADLINE, || !processes::place(gate, "fd").exists()
                || processes::gate(child.id()).is_none()));
        }
        let killed = stand.range.mark();
        let ran = lab::collect(child, b"");
        let log = stand.settled(killed);
        // The run goes on to its own end either way.
        assert_eq!(ran.code(), 0, "{}", ran.told());
        if kills {
            assert!(ran.out().contains("cut ") && ran.out().contains("reached 0\n"), "{}", ran.told());
            assert!(log.dialled().is_empty() && log.names().is_empty(), "{}", log.told());
            assert_eq!(log.all("request").count(), 0, "{}", log.told());
            assert!(ran.err().contains("its network ended"), "{}", ran.told());
        } else {
            assert!(ran.out().contains("whole 100") && !ran.out().contains("reached 0\n"), "{}", ran.told());
            assert!(log.all("request").count() > 0, "{}", log.told());
            assert!(!ran.err().contains("its network ended"), "{}", ran.told());
        }
    }
}

/// The disk of the state folder fills while the run goes on.
fn without_room_for_the_record_nothing_leaves(lab: &Lab) {
    let stand = Stand::new(lab.caller);
    stand.range.name("*.example.com", &["203.0.113.7"]);
    let state = stand.lab.folder("state");
    stand.range.small(&state, 8 << 20, if lab.caller == Caller::User && lab::am_root() { 12_345 } else { 0 });
    let script = "curl -sS -o /dev/null -w 'before %{http_code}\\n' http://api.example.com/before; read go; \
                  for n in $(seq 80); do curl -sS -m 3 -o /dev/null -w 'after %{http_code}\\n' http://api.example.com/after-$n; done; echo end";
    for full in [false, true] {
        let begin = stand.range.mark();
        let mut command = stand.started(&[], &["--allow", "http://api.example.com"], &["sh", "-c", script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let arrived = || {
            stand.range.since(begin).all("close").next().is_some()
                || stand.range.since(begin).all("request").next().is_some()
        };
        assert!(lab::poll(lab::DEADLINE, arrived), "nothing arrived");
        // Its end is written as well by now.
        std::thread::park_timeout(std::time::Duration::from_millis(700));
        if full {
            stand.range.fill(&state);
        }
        let filled = stand.range.mark();
        let ran = lab::collect(child, b"go\n");
        let log = stand.settled(filled);
        let later = log.all("request").count();
        assert!(ran.out().contains("before 200") && ran.out().contains("end"), "{}", ran.told());
        if full {
            // A page of the file that was taken already has room for some lines.
            assert!(later < 40, "{later} requests left without a record: {}", ran.told());
            assert!(!ran.out().ends_with("after 200\nend\n"), "{}", ran.told());
            assert!(ran.err().contains("record"), "{}", ran.told());
        } else {
            assert_eq!(later, 80, "{}", ran.told());
        }
    }
}
