//! What each of many flows gets of the links that they share, and when it is through.
//!
//! A flow is a number of bytes on a route. All flows under way share the links max-min fairly: no flow can get more unless
//! one that has no more than it gets less. That is what many long TCP streams come to that share links, roughly, and what
//! fair queueing gives exactly. Between two changes (a flow comes or goes) all rates are constant, so time jumps from one
//! to the next.
//!
//! Source: Bertsekas and Gallager, "Data Networks" (2nd edition, 1992), §6.5.2. For simulation: Casanova et al.,
//! "Versatile, scalable, and accurate simulation of distributed applications and platforms" (2014), §4.
//!
//! ```
//! use paceline_predict::flows::FlowNetwork;
//!
//! // Two links of 100 bytes per second in a row. One flow takes both, another only the second.
//! let mut network = FlowNetwork::new([100.0, 100.0]);
//! let (both, second) = (network.add_route(&[0, 1]), network.add_route(&[1]));
//! let (long, short) = (network.add(both, 150.0, 0.0), network.add(second, 50.0, 0.0));
//! assert_eq!((network.rate(long), network.rate(short)), (50.0, 50.0));
//! assert_eq!(network.next_completion(), Some(1.0));
//! let mut completed = Vec::new();
//! network.take_completed(1.0, &mut completed);
//! assert_eq!(completed, [short]);
//! // The long one has 100 bytes left, and the links for itself.
//! assert_eq!(network.next_completion(), Some(2.0));
//! ```

mod sharing;

use crate::agenda::Agenda;
use crate::topology::LinkId;
pub use sharing::RouteId;
use sharing::Sharing;

/// A flow under way. Numbers are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(u32);

/// Links, and the flows on them.
///
/// Time never goes back: every `now` is at least the one before. Rates are found when they are asked for, once for all that
/// has changed at one moment, and only for flows that a change reaches through links that are full. The results are a
/// function of the calls and their order.
///
/// The cost of a change is about (flows reached) × (links of a route) × log(links reached), and as much again each time that
/// it is found to reach further.
#[derive(Debug, Default)]
pub struct FlowNetwork {
    sharing: Sharing,
    flows: Vec<Flow>,
    free: Vec<u32>,
    /// When each flow will be through, if nothing changes.
    ends: Agenda<End>,
    now: f64,
}

#[derive(Clone, Debug, Default)]
struct Flow {
    /// Bytes left at `since`.
    left: f64,
    since: f64,
    /// The entry of the queue that counts. Odd while the flow is under way.
    version: u32,
    /// It shares links: it has some, and bytes.
    shares: bool,
}

/// The end of a flow. It counts if the version is still the flow's.
#[derive(Clone, Copy, Debug)]
struct End {
    flow: u32,
    version: u32,
}

/// Moments that lie closer together than this, relative to the time since 0, differ by rounding.
pub(crate) const SIMULTANEOUS: f64 = 1e-12;

impl FlowId {
    /// A small number that no other flow under way has.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl FlowNetwork {
    /// Links of these capacities, in bytes per second.
    ///
    /// # Panics
    /// If one is not positive, or not finite.
    pub fn new(capacities: impl IntoIterator<Item = f64>) -> FlowNetwork {
        FlowNetwork { sharing: Sharing::new(capacities), ..FlowNetwork::default() }
    }

    /// Registers a route, for any number of flows. Without links it takes no time.
    ///
    /// # Panics
    /// If there is no such link.
    pub fn add_route(&mut self, links: &[LinkId]) -> RouteId {
        self.sharing.add_route(links)
    }

    /// A flow of so many bytes sets out.
    ///
    /// # Panics
    /// If the number of bytes is negative or not finite, or time goes back.
    pub fn add(&mut self, route: RouteId, bytes: f64, now: f64) -> FlowId {
        assert!(bytes >= 0.0 && bytes.is_finite(), "a flow of {bytes} bytes");
        self.advance(now);
        let id = self.free.pop().unwrap_or_else(|| {
            self.flows.push(Flow::default());
            self.flows.len() as u32 - 1
        });
        let shares = bytes > 0.0 && !self.sharing.links_of(route).is_empty();
        let flow = &mut self.flows[id as usize];
        *flow = Flow { left: bytes, since: now, version: flow.version.wrapping_add(1), shares };
        if shares {
            self.sharing.join(id, route);
        } else {
            self.ends.push(now, End { flow: id, version: flow.version });
        }
        FlowId(id)
    }

    /// When the next flow will be through, if nothing changes before.
    pub fn next_completion(&mut self) -> Option<f64> {
        self.settle();
        while let Some((time, end)) = self.ends.peek() {
            if self.is_valid(&end) {
                return Some(time.max(self.now));
            }
            self.ends.pop();
        }
        None
    }

    /// Removes all flows that are through by now, and appends them to `completed`, in the order of their ends. The next flows
    /// that set out use their numbers again.
    ///
    /// # Panics
    /// If time goes back.
    pub fn take_completed(&mut self, now: f64, completed: &mut Vec<FlowId>) {
        self.advance(now);
        let until = now + now.abs() * SIMULTANEOUS;
        while let Some((_, end)) = self.ends.pop_until(until) {
            if self.is_valid(&end) {
                self.end(end.flow);
                completed.push(FlowId(end.flow));
            }
        }
    }

    /// Removes a flow, and gives the bytes that it had left.
    ///
    /// # Panics
    /// If there is no such flow, or time goes back.
    pub fn remove(&mut self, flow: FlowId, now: f64) -> f64 {
        self.advance(now);
        let Flow { left, since, version, shares } = self.flows[flow.index()];
        assert!(version & 1 == 1, "flow {} is not under way", flow.0);
        let carried = if shares { self.sharing.rate(flow.0) * (now - since) } else { 0.0 };
        self.end(flow.0);
        (left - carried).max(0.0)
    }

    /// Bytes per second that a flow gets now. A flow that shares no links is through at once: infinity.
    ///
    /// # Panics
    /// If there is no such flow.
    pub fn rate(&mut self, flow: FlowId) -> f64 {
        self.settle();
        let Flow { version, shares, .. } = self.flows[flow.index()];
        assert!(version & 1 == 1, "flow {} is not under way", flow.0);
        if shares { self.sharing.rate(flow.0) } else { f64::INFINITY }
    }

    /// Bytes per second that a link carries now, at most its capacity (to rounding).
    ///
    /// # Panics
    /// If there is no such link.
    pub fn load(&mut self, link: LinkId) -> f64 {
        self.settle();
        self.sharing.load(link)
    }

    /// The links of a route.
    pub fn route(&self, route: RouteId) -> &[LinkId] {
        self.sharing.links_of(route)
    }

    /// How many links there are.
    pub fn links(&self) -> usize {
        self.sharing.links()
    }

    /// How many flows are under way.
    pub fn under_way(&self) -> usize {
        self.flows.len() - self.free.len()
    }

    /// What was still open at the moment before is settled before time moves on.
    fn advance(&mut self, now: f64) {
        assert!(now >= self.now, "time goes back from {} to {now}", self.now);
        if now > self.now {
            self.settle();
            self.now = now;
        }
    }

    fn settle(&mut self) {
        self.sharing.settle();
        for &(id, rate_before) in self.sharing.changed() {
            let flow = &mut self.flows[id as usize];
            let rate = self.sharing.rate(id);
            if rate == rate_before {
                continue;
            }
            flow.left = (flow.left - rate_before * (self.now - flow.since)).max(0.0);
            flow.since = self.now;
            flow.version = flow.version.wrapping_add(2);
            let time = self.now + flow.left / rate;
            self.ends.push(time, End { flow: id, version: flow.version });
        }
        self.sharing.forget_changes();
        // What does not count any more must not pile up.
        if self.ends.len() > 64 + 4 * self.under_way() {
            let mut ends = std::mem::take(&mut self.ends);
            ends.retain(|end| self.is_valid(end));
            self.ends = ends;
        }
    }

    fn is_valid(&self, end: &End) -> bool {
        self.flows[end.flow as usize].version == end.version
    }

    fn end(&mut self, flow: u32) {
        let state = &mut self.flows[flow as usize];
        state.version = state.version.wrapping_add(1);
        if state.shares {
            self.sharing.leave(flow);
        }
        self.free.push(flow);
    }
}

#[cfg(test)]
mod tests;
