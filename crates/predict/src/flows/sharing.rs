//! Who gets how much of which link.
//!
//! # The levels
//!
//! An allocation is max-min fair exactly if every link has a *level*, and every flow's rate is the lowest level on its
//! route; where a link that is full carries, at its level, all that it can, and one that is not full has the level
//! infinity. (A flow's *bottleneck* is the link of that lowest level: Bertsekas and Gallager, §6.5.2.)
//!
//! # A change
//!
//! When flows come and go, the levels of a few links are *open*: full links that lost or gained a flow, and for a flow
//! without any full link the narrowest one. They are found by filling: all flows that cross an open link rise together;
//! one stops where the level of a link that is not open stops it, all others of a link when that link is full. Then the
//! links whose load has changed by this, although they are not open, are looked at: one that was full, or is too full now,
//! must be opened, too, and the filling is repeated. When there is none, all links have levels as above. So a change goes as
//! far as full links carry it, and not through a wide core that all flows cross.

use crate::agenda::Agenda;
use crate::topology::LinkId;

/// A route that was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteId(u32);

/// Links, routes, and the flows that share them.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    links: Vec<Shared>,
    /// The links of all routes, and where each route begins and ends there.
    hops: Vec<LinkId>,
    routes: Vec<(u32, u32)>,
    members: Vec<Member>,
    /// Flows that have come, and full links that a flow has left, since the last settling.
    fresh: Vec<u32>,
    loosened: Vec<LinkId>,
    /// The number of this settling, and of this filling.
    settling: u32,
    filling: u32,
    open: Vec<LinkId>,
    /// Links that are not open and whose load has changed.
    suspects: Vec<LinkId>,
    /// Flows that a link stops that is not open, the lowest level first.
    stopped: Vec<(f64, u32)>,
    /// What each rising flow of a link would get, at least.
    shares: Agenda<LinkId>,
    /// Flows whose rate was changed, with their rate before.
    changed: Vec<(u32, f64)>,
}

#[derive(Debug)]
struct Shared {
    capacity: f64,
    /// The sum of the rates; of those that are known, while it is being filled.
    load: f64,
    /// Infinite if the link is not full.
    level: f64,
    /// The flows, and which hop of theirs this is.
    flows: Vec<(u32, u32)>,
    /// Open in this settling.
    opened: u32,
    /// Flows that are still rising.
    rising: u32,
    /// How often `load` was corrected since it was last summed up.
    corrections: u32,
}

#[derive(Clone, Debug, Default)]
struct Member {
    route: u32,
    rate: f64,
    /// Where it stands among the flows of each of its links. Empty if it is not here.
    places: Vec<u32>,
    /// The filling that has seen it, and that has found its rate; the settling that has noted its change.
    seen: u32,
    found: u32,
    noted: u32,
}

/// Sums of rates are right to rounding. What is this little above its capacity is full, not too full.
const ROUNDING: f64 = 1e-9;

/// So often a sum is corrected before it is made anew.
const CORRECTIONS_MAX: u32 = 1024;

impl Sharing {
    pub fn new(capacities: impl IntoIterator<Item = f64>) -> Sharing {
        let link = |capacity: f64| {
            assert!(capacity > 0.0 && capacity.is_finite(), "a link of {capacity} bytes per second");
            let (load, level, flows) = (0.0, f64::INFINITY, Vec::new());
            Shared { capacity, load, level, flows, opened: 0, rising: 0, corrections: 0 }
        };
        Sharing { links: capacities.into_iter().map(link).collect(), ..Sharing::default() }
    }

    pub fn add_route(&mut self, links: &[LinkId]) -> RouteId {
        assert!(links.iter().all(|&link| (link as usize) < self.links.len()), "no such link: {links:?}");
        let begin = self.hops.len() as u32;
        self.hops.extend_from_slice(links);
        self.routes.push((begin, self.hops.len() as u32));
        RouteId(self.routes.len() as u32 - 1)
    }

    pub fn links(&self) -> usize {
        self.links.len()
    }

    pub fn links_of(&self, route: RouteId) -> &[LinkId] {
        let (begin, end) = self.routes[route.0 as usize];
        &self.hops[begin as usize..end as usize]
    }

    pub fn rate(&self, flow: u32) -> f64 {
        self.members[flow as usize].rate
    }

    pub fn load(&self, link: LinkId) -> f64 {
        self.links[link as usize].load
    }

    /// The flows whose rate the last settling has changed, with their rate before.
    pub fn changed(&self) -> &[(u32, f64)] {
        &self.changed
    }

    pub fn forget_changes(&mut self) {
        self.changed.clear();
    }

    /// A flow comes. Until the next settling it gets nothing.
    pub fn join(&mut self, flow: u32, route: RouteId) {
        if self.members.len() <= flow as usize {
            self.members.resize(flow as usize + 1, Member::default());
        }
        let member = &mut self.members[flow as usize];
        (member.route, member.rate) = (route.0, 0.0);
        let (begin, end) = self.routes[route.0 as usize];
        for (hop, &link) in self.hops[begin as usize..end as usize].iter().enumerate() {
            let flows = &mut self.links[link as usize].flows;
            member.places.push(flows.len() as u32);
            flows.push((flow, hop as u32));
        }
        self.fresh.push(flow);
    }

    /// A flow goes.
    pub fn leave(&mut self, flow: u32) {
        let rate = self.members[flow as usize].rate;
        for hop in 0..self.members[flow as usize].places.len() {
            let (begin, _) = self.routes[self.members[flow as usize].route as usize];
            let link = self.hops[begin as usize + hop];
            let place = self.members[flow as usize].places[hop] as usize;
            let shared = &mut self.links[link as usize];
            shared.flows.swap_remove(place);
            if let Some(&(moved, hop)) = shared.flows.get(place) {
                self.members[moved as usize].places[hop as usize] = place as u32;
            }
            shared.load = if shared.flows.is_empty() { 0.0 } else { shared.load - rate };
            shared.corrections += 1;
            if shared.level.is_finite() {
                self.loosened.push(link);
            }
        }
        self.members[flow as usize].places.clear();
    }

    /// Finds the rates after all that has come and gone.
    pub fn settle(&mut self) {
        if self.fresh.is_empty() && self.loosened.is_empty() {
            return;
        }
        self.settling += 1;
        self.open.clear();
        for index in 0..self.loosened.len() {
            self.open(self.loosened[index]);
        }
        self.loosened.clear();
        for index in 0..self.fresh.len() {
            self.open_for(self.fresh[index]);
        }
        self.fresh.clear();
        let mut filled = 0;
        while filled < self.open.len() {
            filled = self.open.len();
            self.fill();
            self.look_at_suspects();
        }
    }

    fn open(&mut self, link: LinkId) {
        let shared = &mut self.links[link as usize];
        if shared.opened != self.settling {
            shared.opened = self.settling;
            self.open.push(link);
        }
    }

    /// The full links of a flow that has come; the narrowest one if none is full.
    fn open_for(&mut self, flow: u32) {
        if self.members[flow as usize].places.is_empty() {
            return; // It has gone already.
        }
        let (begin, end) = self.routes[self.members[flow as usize].route as usize];
        let mut full = false;
        let mut narrowest = self.hops[begin as usize];
        for hop in begin..end {
            let link = self.hops[hop as usize];
            let Shared { level, capacity, .. } = self.links[link as usize];
            if level.is_finite() {
                full = true;
                self.open(link);
            }
            if capacity < self.links[narrowest as usize].capacity {
                narrowest = link;
            }
        }
        if !full {
            self.open(narrowest);
        }
    }

    /// Finds the levels of the open links, given those of the others, and the rates of the flows that cross them:
    /// progressive filling.
    fn fill(&mut self) {
        self.begin_filling();
        let (mut water, mut next) = (0.0, 0);
        while let Some((share, link)) = self.shares.pop() {
            let Shared { capacity, load, rising, .. } = self.links[link as usize];
            if rising == 0 {
                continue;
            }
            // What others got less than this link's share is left for the rest: the share has risen meanwhile.
            let rate = ((capacity - load) / f64::from(rising)).max(water);
            if rate > share {
                self.shares.push(rate, link);
                continue;
            }
            let before = next;
            while let Some(&(level, flow)) = self.stopped.get(next).filter(|(level, _)| *level <= rate) {
                next += 1;
                water = level;
                self.found(flow, level);
            }
            if next > before {
                self.shares.push(share, link);
                continue;
            }
            water = rate;
            self.links[link as usize].level = rate;
            for place in 0..self.links[link as usize].flows.len() {
                let (flow, _) = self.links[link as usize].flows[place];
                self.found(flow, rate);
            }
        }
    }

    /// All flows of the open links rise from nothing.
    fn begin_filling(&mut self) {
        self.filling += 1;
        self.stopped.clear();
        for index in 0..self.open.len() {
            let link = self.open[index];
            let shared = &mut self.links[link as usize];
            (shared.load, shared.level, shared.corrections) = (0.0, f64::INFINITY, 0);
            let flows = shared.flows.len();
            shared.rising = flows as u32;
            if flows > 0 {
                self.shares.push(shared.capacity / flows as f64, link);
            }
            for place in 0..flows {
                let (flow, _) = self.links[link as usize].flows[place];
                if self.members[flow as usize].seen != self.filling {
                    self.members[flow as usize].seen = self.filling;
                    let level = self.level_elsewhere(flow);
                    if level.is_finite() {
                        self.stopped.push((level, flow));
                    }
                }
            }
        }
        self.stopped.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    }

    /// The lowest level of a flow's links that are not open.
    fn level_elsewhere(&self, flow: u32) -> f64 {
        let route = RouteId(self.members[flow as usize].route);
        let levels = self.links_of(route).iter().map(|&link| &self.links[link as usize]);
        levels.filter(|shared| shared.opened != self.settling).map(|shared| shared.level).fold(f64::INFINITY, f64::min)
    }

    /// A flow rises no further, if it has not stopped already.
    fn found(&mut self, flow: u32, rate: f64) {
        let member = &mut self.members[flow as usize];
        if member.found == self.filling {
            return;
        }
        member.found = self.filling;
        let before = std::mem::replace(&mut member.rate, rate);
        if rate != before && member.noted != self.settling {
            member.noted = self.settling;
            self.changed.push((flow, before));
        }
        let (begin, end) = self.routes[member.route as usize];
        for &link in &self.hops[begin as usize..end as usize] {
            let shared = &mut self.links[link as usize];
            if shared.opened == self.settling {
                shared.load += rate;
                shared.rising -= 1;
            } else if rate != before {
                shared.load += rate - before;
                shared.corrections += 1;
                self.suspects.push(link);
            }
        }
    }

    /// Links whose load has changed without their level having been asked.
    fn look_at_suspects(&mut self) {
        while let Some(link) = self.suspects.pop() {
            let shared = &mut self.links[link as usize];
            if shared.corrections > CORRECTIONS_MAX {
                shared.corrections = 0;
                shared.load = shared.flows.iter().map(|&(flow, _)| self.members[flow as usize].rate).sum();
            }
            if shared.level.is_finite() || shared.load > shared.capacity * (1.0 + ROUNDING) {
                self.open(link);
            }
        }
    }
}
