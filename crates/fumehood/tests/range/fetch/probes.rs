//! One list of URLs that must not be reached, each tried without a wall first.

use super::{control, stand};
use crate::lab::Lab;
use crate::stand::Stand;

/// URLs, and what may be seen of them.
pub(super) struct Probe<'a> {
    pub(super) flags: &'a [&'a str],
    pub(super) urls: Vec<String>,
    /// Packets that are right: those of the first hop.
    pub(super) packets: &'a [&'a str],
    /// Whether names may be asked for: where the answer is what is refused.
    pub(super) names: bool,
    /// Whether `curl` is led astray by each of them.
    pub(super) shown: bool,
}

// === impl Probe ===

impl Probe<'_> {
    /// Every URL is refused, and nothing of it leaves.
    pub(super) fn holds(&self, lab: &Lab, prepare: impl Fn(&Stand)) {
        let stand = stand(lab);
        prepare(&stand);
        let mut flaws = Vec::new();
        for url in &self.urls {
            if self.shown && self.strays(&control(&stand, url)).is_empty() {
                flaws.push(format!("{url} proves nothing: without a wall nothing is seen of it"));
            }
            let words = [self.flags, &["--no-cache", "--json", url.as_str()]].concat();
            let seen = stand.fetch(&words);
            let strays = self.strays(&seen);
            let refused = matches!(seen.ran.code(), 1 | 125) && seen.ran.out().contains("\"error\":{");
            if !strays.is_empty() || !refused {
                flaws.push(format!("{url}: {strays:?}: {}", seen.ran.told()));
            }
        }
        assert!(flaws.is_empty(), "{}", flaws.join("\n"));
    }

    fn strays(&self, seen: &crate::stand::Seen) -> Vec<String> {
        let packets = seen.log.dialled().into_iter().filter(|line| !self.packets.contains(&line.as_str()));
        let names =
            seen.log.names().into_iter().filter(|name| !self.names && !name.ends_with("allowed.test"));
        packets.chain(names).collect()
    }
}
