//! Network: no rule names anything, so nothing is reachable.

use super::{both, facts, holds, not_called, nothing};
use crate::conformance::{Case, Want};
use fumehood_model::enforcement::Clause;

const CLAUSE: Option<Clause> = Some(Clause::Network);

pub(super) const CASES: &[Case] = &[
    Case {
        name: "only-loopback",
        clause: CLAUSE,
        says: "Loopback is the only interface.",
        inside: &[
            "echo interfaces=$(perl -ne 'print \"$1 \" if /^\\s*(\\S+):/' /proc/net/dev); echo @NONCE@",
        ],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| facts(outcomes, stage, &[("interfaces", "lo")]),
    },
    Case {
        name: "no-route",
        clause: CLAUSE,
        says: "There is no route to anywhere else.",
        inside: &["echo routes=$(perl -ne '$n++ if $. > 1; END { print $n + 0 }' /proc/net/route); \
             perl -MSocket -e 'socket(my $s, PF_INET, SOCK_STREAM, 0) or die; \
             print \"connect=\", connect($s, sockaddr_in(80, inet_aton(\"192.0.2.1\"))) ? \"done\" : $!+0, \"\\n\"'; \
             echo @NONCE@"],
        wants: &[],
        setup: nothing,
        // 101 is ENETUNREACH: no route, not a silent drop.
        verdict: |outcomes, stage| facts(outcomes, stage, &[("routes", "0"), ("connect", "101")]),
    },
    Case {
        name: "host-loopback-absent",
        clause: CLAUSE,
        says: "A listener on the host's loopback can not be reached.",
        inside: &["perl -MSocket -e 'for my $a (\"127.0.0.1\", \"0.0.0.0\", \"127.1.2.3\") { \
             socket(my $s, PF_INET, SOCK_STREAM, 0) or next; connect($s, sockaddr_in(@TCP@, inet_aton($a))) }'; \
             echo @NONCE@"],
        wants: &[],
        setup: nothing,
        verdict: not_called,
    },
    Case {
        name: "abstract-socket-absent",
        clause: CLAUSE,
        says: "A host listener in the abstract socket namespace can not be reached.",
        inside: &["perl -MSocket -e 'my $s; socket($s, PF_UNIX, SOCK_STREAM, 0) and \
             connect($s, pack(\"Sx\", AF_UNIX) . \"@SOCKET@\") and print \"connected\\n\"'; echo @NONCE@"],
        wants: &[],
        setup: |stage| stage.listen_abstract(),
        verdict: not_called,
    },
    Case {
        name: "socket-file-refused",
        clause: CLAUSE,
        says: "A host listener behind a socket file of a read-only view can not be reached.",
        inside: &["perl -MSocket -e 'my $s; socket($s, PF_UNIX, SOCK_STREAM, 0) and \
             connect($s, sockaddr_un(\"@DIR@/view/listener\")) and print \"connected\\n\"'; echo @NONCE@"],
        wants: &[Want::ReadOnlyView],
        setup: |stage| stage.listen_at(&stage.view().join("listener")),
        verdict: not_called,
    },
    Case {
        name: "own-loopback-works",
        clause: CLAUSE,
        says: "Programs inside reach each other over loopback.",
        inside: &["perl -MSocket -e 'socket(my $l, PF_INET, SOCK_STREAM, 0) or die; \
             bind($l, sockaddr_in(0, INADDR_LOOPBACK)) or die; listen($l, 1) or die; \
             my ($p) = sockaddr_in(getsockname($l)); socket(my $c, PF_INET, SOCK_STREAM, 0) or die; \
             connect($c, sockaddr_in($p, INADDR_LOOPBACK)) or die; print \"loopback=works\\n\"'; echo @NONCE@"],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| facts(outcomes, stage, &[("loopback", "works")]),
    },
    Case {
        name: "socket-families-by-name",
        clause: CLAUSE,
        says: "Socket families that no program needs are refused: vsock, packet, crypto, bluetooth, CAN.",
        inside: &["for f in 40 17 38 31 29 44; do perl -MSocket -e \
             'my $s; my $r = socket($s, $ARGV[0], $ARGV[0] == 38 ? 5 : 3, 0) || socket($s, $ARGV[0], 1, 0); \
             print \"family$ARGV[0]=\", $r ? \"open\" : \"refused\", \"\\n\"' $f; done; echo @NONCE@"],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| {
            let families = ["family40", "family17", "family38", "family31", "family29", "family44"];
            facts(outcomes, stage, &families.map(|family| (family, "refused")))
        },
    },
    Case {
        name: "interfaces-can-be-listed",
        clause: CLAUSE,
        says: "Programs that list interfaces over netlink see loopback; no other netlink is open.",
        inside: &["perl -MSocket -e 'for my $p (0, 4, 9, 12, 15, 16) { my $r = socket(my $s, 16, 3, $p); \
             print \"netlink$p=\", $r ? \"open\" : \"refused\", \"\\n\" }'; echo @NONCE@"],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| {
            let others = ["netlink4", "netlink9", "netlink12", "netlink15", "netlink16"];
            both(facts(outcomes, stage, &others.map(|other| (other, "refused"))), || {
                both(facts(outcomes, stage, &[("netlink0", "open")]), || holds(!stage.was_called(), "called"))
            })
        },
    },
];
