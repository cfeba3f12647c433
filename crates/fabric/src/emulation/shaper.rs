//! When the messages of one link arrive: arithmetic on the clocks of ports. Time is an argument.

use std::cell::Cell;
use std::collections::VecDeque;

use paceline_plan::LinkClass;

use super::ports::{Nanoseconds, PortNumber, Ports};

/// A message is announced at its receiver's port when it begins to leave, or so little before that nobody else could
/// have come in between: a wake-up is saved. In the time of the undilated network.
pub(super) const AHEAD_S: f64 = 50e-6;

/// What a link costs and which ports it leads through.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) out: PortNumber,
    pub(super) into: PortNumber,
    pub(super) class: LinkClass,
    /// [`AHEAD_S`], dilated like the rest.
    pub(super) ahead_s: f64,
}

impl Path {
    /// How long a message keeps a port busy.
    fn busy(&self, bytes: usize) -> Nanoseconds {
        nanoseconds(self.class.busy_s(bytes))
    }

    /// From when a message has passed both ports to its arrival.
    fn latency(&self) -> Nanoseconds {
        nanoseconds(self.class.alpha_s - self.class.overhead_s)
    }

    /// How long a message without bytes takes.
    pub(super) fn alpha(&self) -> Nanoseconds {
        nanoseconds(self.class.alpha_s)
    }
}

fn nanoseconds(seconds: f64) -> Nanoseconds {
    // A cast saturates.
    (seconds * 1e9).round() as Nanoseconds
}

/// The messages of a sender on one link, from when they are accepted to their arrival. There is at most one that has not
/// passed both ports: the next is chosen when that has gone, as late as possible.
pub(super) struct Shaper<F> {
    path: Path,
    queued: Option<Queued<F>>,
    /// When the last message had passed both ports.
    clear: Nanoseconds,
    /// By arrival, which is the order of sending.
    under_way: VecDeque<(Nanoseconds, F)>,
    /// A message was refused since the last was accepted: the next could have left as soon as there was room.
    refused: Cell<bool>,
    /// A refused one has not been asked for again.
    wanted: Cell<bool>,
}

/// Has a time at its sender's port, which lies ahead.
struct Queued<F> {
    message: F,
    start: Nanoseconds,
    busy: Nanoseconds,
}

impl<F> Shaper<F> {
    pub(super) fn new(path: Path) -> Shaper<F> {
        let (refused, wanted) = (Cell::new(false), Cell::new(false));
        Shaper { path, queued: None, clear: 0, under_way: VecDeque::new(), refused, wanted }
    }

    /// May a message be sent? If not, [`Shaper::next_event`] says when to ask again, and asking counts as waiting: the next
    /// message that is sent, whichever it is by then, leaves when there was room.
    pub(super) fn has_room(&self, now: Nanoseconds) -> bool {
        let room = self.queued.is_none() && self.clear <= now;
        self.wanted.set(!room);
        if !room {
            self.refused.set(true);
        }
        room
    }

    /// Does somebody wait for room that is there now? Says it once, as it asks for them.
    pub(super) fn room_opened(&self, now: Nanoseconds) -> bool {
        self.wanted.get() && self.has_room(now)
    }

    /// Accepts a message. If one had to wait for room it leaves when there was some, however late this is called. (It need
    /// not be the same: an urgent one that was not there yet takes the turn of the one that waited.)
    pub(super) fn send(&mut self, message: F, bytes: usize, now: Nanoseconds, ports: &Ports) {
        // Nobody does this without room; but if so, it follows the one before.
        self.announce(Nanoseconds::MAX, ports);
        let waited = self.refused.take();
        self.wanted.set(false);
        let earliest = if waited { self.clear.min(now) } else { now };
        let busy = self.path.busy(bytes);
        let start = ports.port(self.path.out).reserve(earliest, busy);
        self.queued = Some(Queued { message, start, busy });
        self.announce(now, ports);
    }

    /// Takes the receiver's port for a message that begins to leave.
    pub(super) fn announce(&mut self, now: Nanoseconds, ports: &Ports) {
        let ahead = nanoseconds(self.path.ahead_s);
        let begun = |queued: &mut Queued<F>| queued.start <= now.saturating_add(ahead);
        if let Some(Queued { message, start, busy }) = self.queued.take_if(begun) {
            let start = ports.port(self.path.into).reserve(start, busy);
            self.clear = start.saturating_add(busy);
            self.under_way.push_back((self.clear.saturating_add(self.path.latency()), message));
        }
    }

    /// When the message arrives that has been under way for longest.
    pub(super) fn next_arrival(&self) -> Option<Nanoseconds> {
        self.under_way.front().map(|(arrival, _)| *arrival)
    }

    /// That message.
    pub(super) fn first(&self) -> Option<&F> {
        self.under_way.front().map(|(_, message)| message)
    }

    /// Takes it.
    pub(super) fn take(&mut self) -> Option<F> {
        self.under_way.pop_front().map(|(_, message)| message)
    }

    /// When there is something to do next: a message begins to leave, or arrives, or there is room again. Arrivals only
    /// if `arrivals`.
    pub(super) fn next_event(&self, arrivals: bool) -> Option<Nanoseconds> {
        let queued = self.queued.as_ref().map(|queued| queued.start.saturating_sub(nanoseconds(self.path.ahead_s)));
        let arrival = self.next_arrival().filter(|_| arrivals);
        let room = (self.wanted.get() && self.queued.is_none()).then_some(self.clear);
        [queued, arrival, room].into_iter().flatten().min()
    }

    /// Is nothing under way, and does nobody wait for room?
    pub(super) fn is_idle(&self) -> bool {
        self.is_empty() && !self.wanted.get()
    }

    /// Is nothing under way?
    pub(super) fn is_empty(&self) -> bool {
        self.queued.is_none() && self.under_way.is_empty()
    }

    /// Forgets everything. Ports stay taken for what they were.
    pub(super) fn clear(&mut self) {
        self.queued = None;
        self.under_way.clear();
        self.wanted.set(false);
        self.refused.set(false);
    }
}

#[cfg(test)]
mod tests;
