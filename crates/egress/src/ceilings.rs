//! What may leave at most. Pure: the clock comes as an argument, as the time since the wall was put up.

use fumehood_model::egress::{Ceiling, Counted, Denial, Host};
use std::collections::HashMap;
use std::time::Duration;

const MINUTE_NS: u64 = 60_000_000_000;

/// All ceilings, and how far each is reached.
#[derive(Debug)]
pub(crate) struct Ceilings {
    all: Vec<Limit>,
}

/// A connection that counts until it is given back.
#[derive(Debug)]
#[must_use]
pub(crate) struct Slot(Host);

#[derive(Debug)]
struct Limit {
    of: Counted,
    most: u64,
    scope: Scope,
}

/// Over whom is counted.
#[derive(Debug)]
enum Scope {
    Everyone(u64),
    /// Each host by itself. There are no more than there are names and opened addresses.
    Each(fumehood_model::egress::Pattern, HashMap<Host, u64>),
}

// === impl Ceilings ===

impl Ceilings {
    /// What was written, and for what was not written about everyone together, the default.
    pub(crate) fn new(written: &[Ceiling]) -> Self {
        let limit = |ceiling: &Ceiling| Limit {
            of: ceiling.of,
            most: ceiling.most,
            scope: match &ceiling.hosts {
                None => Scope::Everyone(0),
                Some(hosts) => Scope::Each(hosts.clone(), HashMap::new()),
            },
        };
        let mut all: Vec<Limit> = written.iter().map(limit).collect();
        for of in Counted::ALL {
            if !written.iter().any(|ceiling| ceiling.of == of && ceiling.hosts.is_none()) {
                all.push(Limit { of, most: of.default(), scope: Scope::Everyone(0) });
            }
        }
        Self { all }
    }

    /// Counts a request, or a connection that is not HTTP. One that is refused is not counted. Where no more
    /// bytes may pass, there is none.
    pub(crate) fn request(&mut self, host: &Host, now: Duration) -> Result<(), Denial> {
        let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        for of in [Counted::BytesOut, Counted::BytesIn, Counted::Requests] {
            self.check(of, host, |count, most| count < most)?;
        }
        self.check(Counted::PerMinute, host, |next_ns, most| pace(next_ns, most, now_ns).is_some())?;
        self.change(Counted::Requests, host, |count, _| count.saturating_add(1));
        self.change(Counted::PerMinute, host, |next_ns, most| pace(next_ns, most, now_ns).unwrap_or(next_ns));
        Ok(())
    }

    /// Takes a connection.
    pub(crate) fn connect(&mut self, host: &Host) -> Result<Slot, Denial> {
        self.check(Counted::Connections, host, |count, most| count < most)?;
        self.change(Counted::Connections, host, |count, _| count.saturating_add(1));
        Ok(Slot(host.clone()))
    }

    /// Gives a connection back.
    pub(crate) fn disconnect(&mut self, slot: Slot) {
        let Slot(host) = slot;
        self.change(Counted::Connections, &host, |count, _| count.saturating_sub(1));
    }

    /// Counts bytes, before they are passed on. Those that would pass a ceiling are not to be, and with them
    /// what was left of it is spent: smaller ones do not slip through after them.
    pub(crate) fn bytes(&mut self, host: &Host, bytes_out: u64, bytes_in: u64) -> Result<(), Denial> {
        for (of, more) in [(Counted::BytesOut, bytes_out), (Counted::BytesIn, bytes_in)] {
            if more > 0 {
                let fits = |count: u64, most| count.checked_add(more).is_some_and(|sum| sum <= most);
                if let Err(denial) = self.check(of, host, fits) {
                    self.change(of, host, |count, most| if fits(count, most) { count } else { most });
                    return Err(denial);
                }
            }
        }
        for (of, more) in [(Counted::BytesOut, bytes_out), (Counted::BytesIn, bytes_in)] {
            if more > 0 {
                self.change(of, host, |count, _| count.saturating_add(more));
            }
        }
        Ok(())
    }

    fn check(&self, of: Counted, host: &Host, fits: impl Fn(u64, u64) -> bool) -> Result<(), Denial> {
        let mut limits = self.all.iter().filter(|limit| limit.of == of);
        match limits.find(|limit| limit.count(host).is_some_and(|count| !fits(count, limit.most))) {
            Some(limit) => Err(Denial::Ceiling { of, most: limit.most }),
            None => Ok(()),
        }
    }

    fn change(&mut self, of: Counted, host: &Host, to: impl Fn(u64, u64) -> u64) {
        for Limit { most, scope, .. } in self.all.iter_mut().filter(|limit| limit.of == of) {
            match scope {
                Scope::Everyone(count) => *count = to(*count, *most),
                Scope::Each(hosts, counts) if hosts.matches(host) => {
                    let count = counts.entry(host.clone()).or_default();
                    *count = to(*count, *most);
                }
                Scope::Each(..) => {}
            }
        }
    }
}

// === impl Limit ===

impl Limit {
    /// How far it is reached for this host; `None` where it is not about it.
    fn count(&self, host: &Host) -> Option<u64> {
        match &self.scope {
            Scope::Everyone(count) => Some(*count),
            Scope::Each(hosts, counts) => {
                hosts.matches(host).then(|| counts.get(host).copied().unwrap_or_default())
            }
        }
    }
}

/// One more at this pace: a minute's worth may come at once, and then one each time that its share of
/// the minute has passed. `next_ns` is when the pace would be even; gives its next value, or `None` where
/// it is too soon.
fn pace(next_ns: u64, most: u64, now_ns: u64) -> Option<u64> {
    let share_ns = MINUTE_NS.checked_div(most)?;
    let next_ns = next_ns.max(now_ns).saturating_add(share_ns);
    (next_ns <= now_ns.saturating_add(MINUTE_NS)).then_some(next_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    fn ceilings(written: &[&str]) -> Ceilings {
        let written: Vec<Ceiling> = written.iter().map(|text| Ceiling::parse(text).unwrap()).collect();
        Ceilings::new(&written)
    }

    #[test]
    fn a_ceiling_is_reached_exactly() {
        let mut ceilings = ceilings(&["requests=2", "bytes-out=10", "connections=1"]);
        let api = host("api.example.com");
        for _ in 0..2 {
            ceilings.request(&api, Duration::ZERO).unwrap();
        }
        let denial = ceilings.request(&api, Duration::ZERO).unwrap_err();
        assert_eq!(denial, Denial::Ceiling { of: Counted::Requests, most: 2 });
        ceilings.bytes(&api, 10, 1 << 20).unwrap();
        assert_eq!(
            ceilings.bytes(&api, 1, 0).unwrap_err(),
            Denial::Ceiling { of: Counted::BytesOut, most: 10 }
        );
        ceilings.bytes(&api, 0, 5).unwrap();
        assert!(ceilings.request(&api, Duration::ZERO).is_err());
        let slot = ceilings.connect(&api).unwrap();
        assert!(ceilings.connect(&host("other.example.com")).is_err());
        ceilings.disconnect(slot);
        let _slot = ceilings.connect(&api).unwrap();
    }

    #[test]
    fn a_pattern_counts_each_host_by_itself_and_others_not_at_all() {
        let mut ceilings = ceilings(&["requests@*.example.com=1"]);
        for name in ["a.example.com", "b.example.com"] {
            ceilings.request(&host(name), Duration::ZERO).unwrap();
            assert!(ceilings.request(&host(name), Duration::ZERO).is_err());
        }
        for _ in 0..10 {
            ceilings.request(&host("example.org"), Duration::ZERO).unwrap();
        }
    }

    #[test]
    fn a_pace_lets_a_minute_at_once_and_then_drips() {
        let mut ceilings = ceilings(&["per-minute=60"]);
        let api = host("api.example.com");
        for _ in 0..60 {
            ceilings.request(&api, Duration::ZERO).unwrap();
        }
        assert!(ceilings.request(&api, Duration::from_millis(900)).is_err());
        ceilings.request(&api, Duration::from_secs(1)).unwrap();
        assert!(ceilings.request(&api, Duration::from_secs(1)).is_err());
        for _ in 0..60 {
            ceilings.request(&api, Duration::from_secs(600)).unwrap();
        }
        assert!(ceilings.request(&api, Duration::from_secs(600)).is_err());
    }

    #[test]
    fn nothing_at_all_is_a_ceiling_too() {
        let mut ceilings = ceilings(&["per-minute=0", "requests=0"]);
        let api = host("api.example.com");
        assert!(ceilings.request(&api, Duration::from_secs(3600)).is_err());
        ceilings.bytes(&api, 1, 1).unwrap();
    }

    #[test]
    fn what_was_too_much_leaves_nothing_for_smaller_ones() {
        let mut ceilings = ceilings(&["bytes-out@*.example.com=100"]);
        let (one, two) = (host("one.example.com"), host("two.example.com"));
        ceilings.bytes(&one, 60, 0).unwrap();
        assert!(ceilings.bytes(&one, 60, 0).is_err());
        assert!(ceilings.bytes(&one, 1, 0).is_err());
        let denial = ceilings.request(&one, Duration::ZERO).unwrap_err();
        assert_eq!(denial, Denial::Ceiling { of: Counted::BytesOut, most: 100 });
        ceilings.request(&two, Duration::ZERO).unwrap();
        ceilings.bytes(&two, 100, 0).unwrap();
    }

    proptest! {
        #[test]
        fn no_sequence_passes_a_ceiling(most in 1_u64..2000, steps in proptest::collection::vec(0_u64..500, 0..50)) {
            let mut ceilings = ceilings(&[&format!("bytes-out={most}"), &format!("requests={most}")]);
            let api = host("api.example.com");
            let (mut passed, mut requests) = (0, 0);
            for step in steps {
                if ceilings.bytes(&api, step, 0).is_ok() { passed += step; }
                if ceilings.request(&api, Duration::ZERO).is_ok() { requests += 1; }
            }
            prop_assert!(passed <= most && requests <= most);
        }
    }
}
