//! What of the wall can be seen or touched from inside: nothing.

use crate::both_callers::both_callers;
use crate::lab::Lab;
use crate::stand::Stand;

both_callers! {
    s02_s03_s04_the_broker_is_out_of_reach
    s05_nothing_is_put_in_without_a_verified_server
}

/// Looks for the processes and sockets of the wall, reads what it can of the first process, and sends signals to
/// everything that has a number.
const CLIENT: &str = "
import os, signal, urllib.request, ctypes
get = lambda: urllib.request.urlopen('https://api.example.com/v1/x', timeout=10).status
assert get() == 200
seen = []
for process in filter(str.isdigit, os.listdir('/proc')):
    for name in ('comm', 'cmdline', 'environ'):
        try:
            seen.append(open(f'/proc/{process}/{name}', 'rb').read())
        except OSError:
            pass
text = b' '.join(seen)
print('gate', sum(text.count(b'fumehood' + word) for word in (b'-gate', b'-reaper')))
sockets = [line.split()[-1] for line in open('/proc/net/unix').read().splitlines()[1:] if len(line.split()) > 7]
print('sockets', sockets)
paths = [os.path.join(top, name) for top, _, names in os.walk('/run') for name in names if os.path.exists(os.path.join(top, name)) and (os.stat(os.path.join(top, name)).st_mode & 0o170000) == 0o140000]
print('paths', paths)
sent = 0
libc = ctypes.CDLL(None)
for process in range(2, 6000):
    if process == os.getpid():
        continue
    try:
        os.kill(process, signal.SIGKILL)
        sent += 1
    except OSError:
        pass
    if libc.ptrace(16, process, 0, 0) == 0:
        print('traced', process)
assert get() == 200
print('sent', sent, 'and still served')
";

fn s02_s03_s04_the_broker_is_out_of_reach(lab: &Lab) {
    let stand = Stand::new(lab.caller);
    stand.range.name("api.example.com", &["203.0.113.7"]);
    let value = crate::lab::canary();
    let flags = ["--secret", "GH=env:HELD", "--allow", "https://api.example.com/v1/** with bearer:GH"];
    let seen = stand.inside_with(&[("HELD", &value)], &flags, &["/usr/bin/python3", "-c", CLIENT]);
    assert_eq!(seen.ran.code(), 0, "{}", seen.ran.told());
    for line in ["gate 0\n", "sockets []\n", "paths []\n", "and still served\n"] {
        assert!(seen.ran.out().contains(line), "{line}: {}", seen.ran.told());
    }
    assert!(!seen.ran.out().contains("traced"), "{}", seen.ran.told());
    assert_eq!(seen.log.all("request").count(), 2, "{}", seen.log.told());
    assert!(
        seen.log.all("request").all(|request| request["head"].to_string().contains(&value)),
        "{}",
        seen.log.told()
    );
    // The look is not blind: beside the sandbox it sees processes of that name while a run is on.
    let gate = format!(
        "sleep 3 & {} run --allow api.example.com -- sh -c 'getent hosts api.example.com; sleep 2' & sleep 1; cat /proc/[0-9]*/comm; wait",
        stand.lab.binary().display()
    );
    let beside = stand.beside(&[
        "sh",
        "-c",
        &format!("export FUMEHOOD_STATE={}; {gate}", stand.lab.state().display()),
    ]);
    assert!(beside.ran.out().contains("fumehood-gate"), "{}", beside.ran.told());
}

/// Plain HTTP, an address of the sandbox's choice, a server with a false certificate: never.
fn s05_nothing_is_put_in_without_a_verified_server(lab: &Lab) {
    let stand = Stand::new(lab.caller);
    stand.range.name("*.example.com", &["203.0.113.7"]);
    let value = crate::lab::canary();
    let flags = [
        "--secret",
        "GH=env:HELD",
        "--allow",
        "https://*.example.com/v1/** with bearer:GH",
        "--allow",
        "http://api.example.com",
        "--allow",
        "http://203.0.113.7",
        "--allow",
        "https://203.0.113.9/**",
    ];
    for (name, flaw) in [
        ("expired", crate::range::Flaw::Expired),
        ("self", crate::range::Flaw::SelfSigned),
        ("wrong", crate::range::Flaw::WrongName),
        ("stranger", crate::range::Flaw::UnknownAuthority),
    ] {
        stand.range.certificate(&format!("{name}.example.com"), Some(flaw));
    }
    let script = "curl -sS http://api.example.com/v1/x; curl -sS -H 'Host: api.example.com' http://203.0.113.7/v1/x; \
                  curl -sSk --resolve api.example.com:443:203.0.113.9 https://api.example.com/v1/x; \
                  curl -sSk --connect-to api.example.com:443:203.0.113.66:443 https://api.example.com/v1/x; \
                  curl -sSk -H 'Host: api.example.com' https://203.0.113.9/v1/x; \
                  for name in expired self wrong stranger; do curl -sSk https://$name.example.com/v1/x; done; \
                  curl -sSf https://api.example.com/v1/right";
    let seen = stand.inside_with(&[("HELD", &value)], &flags, &["sh", "-c", script]);
    assert_eq!(seen.ran.code(), 0, "{}", seen.ran.told());
    let with: Vec<_> =
        seen.log.all("request").filter(|request| request["head"].to_string().contains(&value)).collect();
    assert_eq!(with.len(), 1, "{}", seen.log.told());
    assert_eq!(with[0]["target"], "/v1/right");
}
