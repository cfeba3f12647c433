use super::{Link, LinkId, Node, PathChoice, Speeds, capacity};

/// Hosts with a port on each level.
#[derive(Clone, Debug)]
pub(super) struct BCube {
    ports: usize,
    levels: usize,
    /// From host 0 to its switch on level 0; the way back is the next one, then comes level 1, after the last one host 1.
    first: LinkId,
}

impl BCube {
    pub fn new(ports: usize, levels: usize, speeds: &Speeds, links: &mut Vec<Link>) -> BCube {
        let across = &speeds.network.across;
        let bcube = BCube { ports, levels, first: links.len() as LinkId };
        for host in 0..ports.pow(levels as u32) {
            for level in 0..levels {
                let (from, to) = (Node::Host(host), Node::Switch { tier: level, number: bcube.switch(host, level) });
                let latency_s = across.alpha_s - across.overhead_s;
                links.push(Link { from, to, capacity: capacity(across), latency_s });
                links.push(Link { from: to, to: from, capacity: capacity(across), latency_s: 0.0 });
            }
        }
        bcube
    }

    /// The number of a host's switch on a level: the host's number without that digit.
    fn switch(&self, host: usize, level: usize) -> usize {
        let place = self.ports.pow(level as u32);
        host / (place * self.ports) * place + host % place
    }

    fn up(&self, host: usize, level: usize) -> LinkId {
        self.first + 2 * (host * self.levels + level) as LinkId
    }

    /// Digit by digit; the hosts in between pass it on.
    pub fn path(&self, from: usize, to: usize, choice: &PathChoice, links: &mut Vec<LinkId>) {
        let named = choice.levels.iter().copied().filter(|&level| level < self.levels);
        let mut host = from;
        // A digit that is right already is passed over, so a level may come twice.
        for level in named.chain((0..self.levels).rev()) {
            let place = self.ports.pow(level as u32);
            let digit = |host: usize| host / place % self.ports;
            if digit(host) == digit(to) {
                continue;
            }
            let next = host - digit(host) * place + digit(to) * place;
            links.extend([self.up(host, level), self.up(next, level) + 1]);
            host = next;
        }
    }
}
