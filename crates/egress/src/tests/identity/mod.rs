//! One identity, tried at random: whatever a client says in however many places and spellings, the place that is
//! judged is the one that is dialled, certified, injected for and recorded; or nothing is dialled at all.
//!
//! The whole gate stands between: entrance, proxies, TLS on both sides, readers of HTTP, secrets, dialler. Only the
//! world is the test's own: each name has an address that no other has, so what was dialled says who was meant.
//!
//! 20,000 tuples in the normal profile, a million with `FUMEHOOD_TEST_FULL`, each gate on a thread of its own.
//! `FUMEHOOD_TEST_SEED` runs one again.

mod client;
mod tuple;
mod world;

use super::lab::{Lab, parsed};
use crate::entrance::Entrance;
use crate::gate::Gate;
use crate::readers::Readers;
use crate::record::memory::MemoryRecorder;
use crate::tape::Mode;
use crate::tls::Ca;
use fumehood_model::egress::{Authority, Rule};
use fumehood_model::event::{EgressAllowed, Event};
use fumehood_vault::placeholder::Shape;
use fumehood_vault::secret::{Secret, SecretName};
use fumehood_vault::vault::Vault;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Instant, SystemTime};
use tuple::{Expected, Random, Tuple};
use world::{Fact, Servers};
use zeroize::Zeroizing;

/// Tuples for each gate: its record is in memory.
const BATCH: u64 = 500;

type Door = Entrance<MemoryRecorder, Readers<Gate<MemoryRecorder>>>;

/// What came of all tuples, by kind.
#[derive(Debug, Default)]
struct Counts(BTreeMap<&'static str, u64>);

#[test]
fn judged_dialled_certified_injected_and_recorded_are_one() {
    let full = std::env::var_os("FUMEHOOD_TEST_FULL").is_some();
    let count: u64 = if full { 1_000_000 } else { 20_000 };
    let seed = std::env::var("FUMEHOOD_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| {
        u64::from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos())
    });
    println!("FUMEHOOD_TEST_SEED={seed}");
    let (started, next) = (Instant::now(), AtomicU64::new(0));
    let work = || {
        let outside = Rc::new(world::Outside::new());
        let mut counts = Counts::default();
        loop {
            let batch = next.fetch_add(1, Ordering::Relaxed);
            if batch >= count / BATCH {
                return counts;
            }
            let mut random = Random::new(seed.wrapping_add(batch));
            run_batch(&outside, &mut random, &mut counts);
            if batch % 100 == 99 {
                println!("about {} tuples, {} s", (batch + 1) * BATCH, started.elapsed().as_secs());
            }
        }
    };
    let mut counts = Counts::default();
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            counts.merge(thread.join().unwrap());
        }
    });
    println!("{count} tuples in {} s: {counts:?}", started.elapsed().as_secs());
    assert_eq!(counts.0.values().sum::<u64>(), count);
    // Each kind has to have come out both ways, or the test would hold for a gate that refuses everything.
    for kind in ["opened", "unread", "clear", "bytes", "refused"] {
        assert!(counts.0.get(kind).is_some_and(|seen| *seen > count / 200), "{kind}: {counts:?}");
    }
}

fn run_batch(outside: &Rc<world::Outside>, random: &mut Random, counts: &mut Counts) {
    let change = |egress: &mut fumehood_model::egress::Egress| {
        egress.rules = parsed(world::RULES, Rule::parse);
        let file = outside.path();
        let named = |hosts: &str| Authority::parse(&format!("{hosts}={}", file.display())).unwrap();
        egress.authorities = ["*.example.com", "203.0.113.8"].map(named).to_vec();
    };
    Lab::with(change, async |lab| {
        let servers = Servers::start(&lab.world, outside).await;
        let ca = Ca::make("identity", SystemTime::now()).unwrap();
        let inside = client::believing([ca.der(), outside.der()]);
        let believed = crate::tls::Servers::read(&lab.gate.table().egress().authorities).unwrap();
        let readers = Readers::new(believed, Some(ca), vault(), Mode::Off);
        let mut door: Door = Entrance::new(lab.gate.clone(), Rc::new(readers));
        // Each client speaks first, however late: which way it takes is not to depend on how busy the machine is.
        door.grace = client::LIMIT;
        for _ in 0..BATCH {
            let tuple = Tuple::random(random);
            let (lines, dials) = (lab.record.len(), lab.world.dial_count());
            let leaf = client::perform(&lab, &door, &inside, &tuple).await;
            let seen = Seen {
                recorded: allowed(lab.record.since(lines)),
                dialled: lab.world.dialled_since(dials),
                facts: servers.take(),
                leaf,
            };
            counts.add(judge(&tuple, &seen));
        }
    });
}

/// Everything that can be seen of one tuple.
#[derive(Debug)]
struct Seen {
    recorded: Vec<EgressAllowed>,
    dialled: Vec<String>,
    facts: Vec<Fact>,
    /// The host of the certificate that the client was shown.
    leaf: Option<String>,
}

/// Compares every part with what the client said; what kind of tuple it was.
fn judge(tuple: &Tuple, seen: &Seen) -> &'static str {
    let told = || format!("{tuple:?}\n{seen:?}");
    let expected = tuple.expected();
    if let (Some(leaf), Some(place)) = (&seen.leaf, tuple.dialled()) {
        assert_eq!(*leaf, place.host, "the leaf is for another host: {}", told());
    }
    let Expected::Reaches { host, port, kind } = &expected else {
        assert!(seen.dialled.is_empty() && seen.facts.is_empty(), "it left: {}", told());
        assert!(seen.recorded.is_empty(), "it was recorded as allowed: {}", told());
        return "refused";
    };
    let address = world::address(host);
    let place = format!("{address}:{port}");
    assert!(seen.dialled.iter().all(|dialled| *dialled == place), "dialled: {}", told());
    let [recorded] = seen.recorded.as_slice() else {
        panic!("recorded {} times: {}", seen.recorded.len(), told())
    };
    let [fact] = seen.facts.as_slice() else { panic!("{} arrived: {}", seen.facts.len(), told()) };
    assert_eq!((fact.address.as_str(), fact.port), (address, *port), "arrived: {}", told());
    let scheme = match *kind {
        "opened" | "unread" => "https://",
        "clear" => "http://",
        _ => "",
    };
    let usual = matches!((scheme, port), ("https://", 443) | ("http://", 80));
    let authority = if usual { host.clone() } else { format!("{host}:{port}") };
    assert_eq!(recorded.to, format!("{scheme}{authority}"), "recorded: {}", told());
    if matches!(*kind, "opened" | "unread") {
        let sni = fact.sni.as_deref().map(tuple::canonical);
        assert_eq!(sni, tuple::sni_of(host), "certified: {}", told());
    }
    if matches!(*kind, "opened" | "clear") {
        assert_eq!(fact.host, Some(authority), "asked for: {}", told());
    }
    // The value of this very place, in its field, and the record's word for it.
    let (name, value) = world::secret(host, *port).filter(|_| *kind == "opened").unzip();
    assert_eq!(recorded.credential.as_deref(), name, "the credential's name: {}", told());
    assert_eq!(fact.value.as_deref(), value, "injected: {}", told());
    kind
}

fn allowed(events: Vec<Event>) -> Vec<EgressAllowed> {
    let line = |event| if let Event::EgressAllowed(line) = event { Some(line) } else { None };
    events.into_iter().filter_map(line).collect()
}

fn vault() -> Vault {
    let mut vault = Vault::default();
    let mut random = Random::new(7);
    for (name, value) in world::SECRETS {
        let name = SecretName::parse(name).unwrap();
        let secret = Secret::new(name, Zeroizing::new(value.as_bytes().to_vec()), None).unwrap();
        let mut fill = |bytes: &mut [u8]| bytes.fill_with(|| u8::try_from(random.below(256)).unwrap());
        vault.add(secret, Shape::Opaque, &mut fill).unwrap();
    }
    vault
}

// === impl Counts ===

impl Counts {
    fn add(&mut self, kind: &'static str) {
        *self.0.entry(kind).or_default() += 1;
    }

    fn merge(&mut self, other: Self) {
        for (kind, seen) in other.0 {
            *self.0.entry(kind).or_default() += seen;
        }
    }
}
