use paceline_plan::Fnv1a;

use super::{Link, LinkId, Node, PathChoice, Speeds, Spines, Switches, capacity};

/// Hosts at switches, and at most one tier above them.
#[derive(Clone, Debug)]
pub(super) struct Switched {
    /// From host 0 to its switch; the way back is the next one, then comes host 1.
    first: LinkId,
    /// From switch 0 to spine 0; the way back is the next one, then comes spine 1, after the last one switch 1.
    first_up: LinkId,
    hosts_per_switch: usize,
    spines: usize,
    /// Does a hash choose the spine where nobody says another way?
    hashed: bool,
}

impl Switched {
    pub fn flat(hosts: usize, speeds: &Speeds, links: &mut Vec<Link>) -> Switched {
        Switched::new(hosts, hosts.max(1), 0, 0.0, speeds, links)
    }

    pub fn tree(hosts: usize, switches: &Switches, speeds: &Speeds, links: &mut Vec<Link>) -> Switched {
        let up = switches.hosts as f64 / switches.oversubscription * capacity(&speeds.network.across);
        Switched::new(hosts, switches.hosts, 1, up, speeds, links)
    }

    pub fn fat_tree(
        hosts: usize,
        switches: &Switches,
        hashed: bool,
        speeds: &Speeds,
        links: &mut Vec<Link>,
    ) -> Switched {
        let spines = (switches.hosts as f64 / switches.oversubscription).round() as usize;
        let up = capacity(&speeds.network.across);
        Switched { hashed, ..Switched::new(hosts, switches.hosts, spines, up, speeds, links) }
    }

    fn new(
        hosts: usize,
        hosts_per_switch: usize,
        spines: usize,
        up: f64,
        speeds: &Speeds,
        links: &mut Vec<Link>,
    ) -> Switched {
        let across = &speeds.network.across;
        let first = links.len() as LinkId;
        let switch = |number| Node::Switch { tier: 0, number };
        for host in 0..hosts {
            let (from, to) = (Node::Host(host), switch(host / hosts_per_switch));
            let latency_s = across.alpha_s - across.overhead_s;
            links.push(Link { from, to, capacity: capacity(across), latency_s });
            links.push(Link { from: to, to: from, capacity: capacity(across), latency_s: 0.0 });
        }
        let first_up = links.len() as LinkId;
        for below in 0..hosts.div_ceil(hosts_per_switch) {
            for spine in 0..spines {
                let (from, to) = (switch(below), Node::Switch { tier: 1, number: spine });
                links.push(Link { from, to, capacity: up, latency_s: speeds.hop_s });
                links.push(Link { from: to, to: from, capacity: up, latency_s: speeds.hop_s });
            }
        }
        Switched { first, first_up, hosts_per_switch, spines, hashed: false }
    }

    /// From a host's switch to the host.
    pub fn down(&self, host: usize) -> LinkId {
        self.first + 2 * host as LinkId + 1
    }

    pub fn path(&self, from: usize, to: usize, choice: &PathChoice, links: &mut Vec<LinkId>) {
        links.push(self.first + 2 * from as LinkId);
        let (above, below) = (from / self.hosts_per_switch, to / self.hosts_per_switch);
        if above != below {
            let spine = match choice.spines {
                _ if self.spines == 1 => 0,
                Spines::OfShape if self.hashed => spread(0, from, to) as usize % self.spines,
                Spines::OfShape | Spines::ByReceiver => to % self.spines,
                Spines::Hash { seed } => spread(seed, from, to) as usize % self.spines,
            };
            let up = |switch: usize| self.first_up + 2 * (switch * self.spines + spine) as LinkId;
            links.extend([up(above), up(below) + 1]);
        }
        links.push(self.down(to));
    }
}

/// A hash whose low bits depend on all that goes in. (Those of FNV-1a do not, enough.)
fn spread(seed: u64, from: usize, to: usize) -> u32 {
    let hash = Fnv1a::default().number(seed).number(from as u64).number(to as u64).value();
    // The finaliser of SplitMix64: Steele, Lea and Flood (2014).
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of f flows that a hash puts on m paths the fullest has f/m + √(2·f/m·ln m), for many more flows than paths: Raab and Steger, "Balls
    /// into bins: a simple and tight analysis" (RANDOM 1998, theorem 1). That is where their number tends to, and somewhat more than they
    /// are in the mean.
    #[test]
    fn the_fullest_of_paths_that_a_hash_chooses_has_as_many_flows_as_balls_in_the_fullest_bin() {
        for (hosts, paths) in [(24, 8), (40, 16), (64, 32)] {
            let pairs =
                || (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to))).filter(|(from, to)| from != to);
            let fullest = |seed| {
                let mut flows = vec![0_usize; paths];
                pairs().for_each(|(from, to)| flows[spread(seed, from, to) as usize % paths] += 1);
                flows.into_iter().max().unwrap_or(0) as f64
            };
            let mean = (0..200).map(fullest).sum::<f64>() / 200.0;
            let each = pairs().count() as f64 / paths as f64;
            let expected = each + (2.0 * each * (paths as f64).ln()).sqrt();
            assert!(mean < expected && mean > 0.9 * expected, "{hosts} hosts, {paths} paths: {mean}, {expected}");
        }
    }
}
