//! Local work: what the driver copies, combines and maps on behalf of the programs.

use paceline_collective::{Action, Combine, Fold, Order, Slot, StepId};
use paceline_plan::Rank;

use crate::engine::Engine;
use crate::frame::{Header, Kind};
use crate::interface::OpId;
use crate::operation::Operation;
use crate::work::{Incoming, Item, Job, PoolBuffer, Region, Source, Token, Work};

impl Engine {
    /// Queues work on `base .. base + total` of a step's slot.
    pub(crate) fn push_work(
        &mut self,
        index: u32,
        tile: u32,
        step: StepId,
        incoming: Incoming,
        base: usize,
        total: usize,
    ) {
        let op = &self.ops[index as usize];
        let item = Item {
            priority: op.priority,
            sequence: self.sequence,
            op: OpId { index, generation: op.generation },
            tile,
            step,
            incoming,
            base,
            total,
            done: 0,
            taken: 0,
        };
        self.sequence += 1;
        self.queue.push(item);
    }

    /// The next piece of local work, most urgent first. Several may be out at once.
    pub fn work(&mut self) -> Option<Work> {
        let mut item = self.queue.pop()?;
        let (job, bytes) = job(&mut self.ops[item.op.index as usize], &item, self.config.work_bytes);
        item.taken = bytes;
        let token = Token(self.taken.insert(item));
        Some(Work { token, job })
    }

    /// Is there local work?
    pub fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The work is done. `written` is the length that a kernel has written; other jobs write what they were told to.
    pub fn worked(&mut self, token: Token, written: Option<usize>) {
        let Some(mut item) = self.taken.remove(token.0) else { return };
        let index = item.op.index;
        let op = &mut self.ops[index as usize];
        if !op.live || op.generation != item.op.generation {
            return;
        }
        item.done += item.taken;
        if item.done < item.total {
            self.queue.push(item);
            return;
        }
        let action = *op.schedule.action(item.step);
        if let Some(into) = result(&action)
            && (is_kernel(&action) || matches!(item.incoming, Incoming::None))
        {
            op.set_slot_bytes(into, item.tile, written.unwrap_or(item.total));
        }
        match item.incoming {
            Incoming::None => self.complete_step(index, item.tile, item.step),
            Incoming::Pool(buffer) => {
                self.pool.release_buffer(buffer);
                self.moved(index, item.tile, item.step, item.total);
            }
            Incoming::Reference { peer, .. } => {
                self.acknowledge(index, &item, peer);
                self.moved(index, item.tile, item.step, item.total);
            }
        }
        self.run_startable();
    }

    fn acknowledge(&mut self, index: u32, item: &Item, peer: Rank) {
        let op = &self.ops[index as usize];
        let Action::Receive { message, .. } = *op.schedule.action(item.step) else { return };
        let header = Header {
            signature: op.signature,
            tile: item.tile,
            message,
            offset: item.base as u32,
            message_bytes: item.total as u32,
            ..Header::new(Kind::Taken, op.key)
        };
        self.peers[peer].control.push_back(header);
    }

    /// The next pool buffer whose memory the driver may drop.
    pub fn released_buffer(&mut self) -> Option<PoolBuffer> {
        self.pool.released()
    }
}

/// The next chunk of an item, and its length.
fn job(op: &mut Operation, item: &Item, work_bytes: usize) -> (Job, usize) {
    let action = &op.arriving(item.tile, item.step);
    let op = &*op;
    if is_kernel(action) {
        return (kernel_job(op, item, action), item.total);
    }
    let position = item.base + item.done;
    let region = |slot: &Slot| op.region(item.op, slot, item.tile, position);
    let rest = item.total - item.done;
    let room = slots(action).into_iter().flatten().map(|slot| region(slot).bytes).min().unwrap_or(rest);
    let bytes =
        rest.min(op.geometry.whole_elements(work_bytes * usize::from(op.tuning.reducing_threads.max(1)))).min(room);
    assert!(bytes > 0 || rest == 0, "{}: step {} reaches beyond its slots", op.key, item.step);
    let cut = |slot: &Slot| Region { bytes, ..region(slot) };
    let operand = |slot: &Slot| Source::Region(cut(slot));
    let incoming = |into: &Slot| match item.incoming {
        Incoming::Pool(buffer) => Source::Pool { buffer, offset: position, bytes },
        Incoming::Reference { peer, reference } => Source::Reference { peer, reference, offset: item.done, bytes },
        Incoming::None => operand(into),
    };
    let unread = op.schedule.is_unread(item.step);
    let job = match action {
        Action::Receive { into, fold: None, .. } => Job::Copy { from: incoming(into), into: cut(into), unread },
        Action::Receive { into, fold: Some(fold), .. } => {
            let (left, right) = ordered(fold.order, operand(&fold.with), incoming(into));
            Job::Combine { left, right, into: cut(into), combine: fold.combine, last: fold.last }
        }
        Action::Combine { left, right, into, combine, last } => {
            let (left, right) = (operand(left), operand(right));
            Job::Combine { left, right, into: cut(into), combine: *combine, last: *last }
        }
        Action::Copy { from, into } => Job::Copy { from: operand(from), into: cut(into), unread },
        Action::Map { from, into, kernel } => Job::Map { from: operand(from), into: cut(into), kernel: *kernel },
        Action::Send { from, .. } => Job::Copy { from: operand(from), into: cut(from), unread: false },
    };
    (job, bytes)
}

/// A kernel sees whole slots: all that lies in its operands, and the capacity for its result.
fn kernel_job(op: &Operation, item: &Item, action: &Action) -> Job {
    let region = |slot: &Slot| op.region(item.op, slot, item.tile, 0);
    let operand = |slot: &Slot| Source::Region(Region { bytes: op.slot_bytes(slot, item.tile), ..region(slot) });
    let room =
        |slot: &Slot| Region { bytes: op.geometry.capacity(slot, item.tile, op.schedule.parts()), ..region(slot) };
    let bytes = item.total;
    match action {
        Action::Receive { into, fold: Some(Fold { with, order, combine, last }), .. } => {
            let message = match item.incoming {
                Incoming::Pool(buffer) => Source::Pool { buffer, offset: 0, bytes },
                Incoming::Reference { peer, reference } => Source::Reference { peer, reference, offset: 0, bytes },
                Incoming::None => operand(into),
            };
            let (left, right) = ordered(*order, operand(with), message);
            Job::Combine { left, right, into: room(into), combine: *combine, last: *last }
        }
        Action::Combine { left, right, into, combine, last } => Job::Combine {
            left: operand(left),
            right: operand(right),
            into: room(into),
            combine: *combine,
            last: *last,
        },
        Action::Map { from, into, kernel } => Job::Map { from: operand(from), into: room(into), kernel: *kernel },
        Action::Receive { into: slot, .. } | Action::Send { from: slot, .. } | Action::Copy { into: slot, .. } => {
            Job::Copy { from: operand(slot), into: room(slot), unread: false }
        }
    }
}

fn ordered(order: Order, with: Source, message: Source) -> (Source, Source) {
    match order {
        Order::LocalFirst => (with, message),
        Order::MessageFirst => (message, with),
    }
}

/// Does a kernel do the work?
fn is_kernel(action: &Action) -> bool {
    match action {
        Action::Map { .. } => true,
        Action::Combine { combine, .. } => *combine != Combine::Reduction,
        Action::Receive { fold: Some(fold), .. } => fold.combine != Combine::Reduction,
        _ => false,
    }
}

/// Where the result goes.
fn result(action: &Action) -> Option<&Slot> {
    match action {
        Action::Receive { into, .. }
        | Action::Combine { into, .. }
        | Action::Copy { into, .. }
        | Action::Map { into, .. } => Some(into),
        Action::Send { .. } => None,
    }
}

/// The slots that a step touches.
fn slots(action: &Action) -> [Option<&Slot>; 3] {
    match action {
        Action::Receive { into, fold, .. } => [Some(into), fold.as_ref().map(|fold| &fold.with), None],
        Action::Combine { left, right, into, .. } => [Some(left), Some(right), Some(into)],
        Action::Copy { from, into } | Action::Map { from, into, .. } => [Some(from), Some(into), None],
        Action::Send { from, .. } => [Some(from), None, None],
    }
}
