//! How an algorithm states what a rank does: one step after the other, as if nothing ever ran at the same time.

use std::collections::BTreeMap;

use paceline_plan::{CollectiveKind, Rank};

use crate::program::{Action, Combine, Fold, KernelId, Message, Order, RankProgram, Slot, Space, Step, StepId, blocks};
use crate::waits::Waits;

/// Where a rank stands: in which collective, which of how many, and who is the root (0 where there is none).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The collective.
    pub kind: CollectiveKind,
    /// The rank.
    pub rank: Rank,
    /// How many ranks there are.
    pub world: usize,
    /// The root.
    pub root: Rank,
}

impl Place {
    /// Where a slot lies when input and output are one memory: two slots share memory in place exactly if what this
    /// returns overlaps. See [`Space`] for the rule.
    pub fn in_place(&self, slot: Slot) -> Slot {
        let (input, output) = blocks(self.kind, self.rank, self.root, self.world);
        let moved = match slot.space {
            Space::Input if 0 < input && input < output => Some((Space::Output, self.rank as u32)),
            Space::Output if input > output => Some((Space::Input, self.rank as u32)),
            Space::Output if input == output => Some((Space::Input, slot.block)),
            _ => None,
        };
        moved.map_or(slot, |(space, block)| Slot { space, block, ..slot })
    }

    /// Is this a copy of memory onto itself when input and output are one memory? The engine does nothing then.
    pub fn vanishes_in_place(&self, action: &Action) -> bool {
        matches!(action, Action::Copy { from, into } if self.in_place(*from) == self.in_place(*into))
    }

    /// Must the later of two steps wait for the earlier one? It must if one writes what the other touches, with input
    /// and output apart or as one memory.
    pub(crate) fn conflict_of(&self, one: &Action, other: &Action) -> bool {
        let own = |a: &Slot, b: &Slot| a.overlaps(b);
        let together = |a: &Slot, b: &Slot| self.in_place(*a).overlaps(&self.in_place(*b));
        let vanishes = self.vanishes_in_place(one) || self.vanishes_in_place(other);
        conflicts(one, other, own) || (!vanishes && conflicts(one, other, together))
    }
}

/// Builds a [`RankProgram`] from steps in *sequential* order.
///
/// It derives from the slots which step must wait for which: a read waits for the write before it, a write for the
/// reads and the write before it, with [`Space::Input`] and [`Space::Output`] taken as different memories and as one, so
/// that the program is right both ways. Waits that follow from other waits of the same rank are left out. Messages are
/// numbered: the k-th send from a to b is the one that the k-th receive from a on b takes.
///
/// ```
/// use paceline_collective::{Place, RankBuilder, Space};
/// use paceline_plan::CollectiveKind;
///
/// let place = Place { kind: CollectiveKind::Broadcast, rank: 1, world: 3, root: 0 };
/// let mut builder = RankBuilder::new(place, 1);
/// let output = builder.tile(Space::Output, 0);
/// builder.receive(0, output);
/// builder.send(2, output);
/// assert_eq!(builder.finish().steps[1].after, [0]);
/// ```
///
/// The cost is about the parts that the steps touch, and what they wait for.
#[derive(Debug)]
pub struct RankBuilder {
    place: Place,
    parts: u32,
    /// Input and output are known to be different memory.
    apart: bool,
    steps: Vec<Step>,
    scratch_blocks: u32,
    waits: Waits,
    sent: BTreeMap<Rank, Message>,
    received: BTreeMap<Rank, Message>,
}

impl RankBuilder {
    /// A rank without steps. `parts` is [`crate::Program::parts`].
    pub fn new(place: Place, parts: u32) -> Self {
        RankBuilder {
            place,
            parts,
            apart: false,
            steps: Vec::new(),
            scratch_blocks: 0,
            waits: Waits::default(),
            sent: BTreeMap::new(),
            received: BTreeMap::new(),
        }
    }

    /// A rank whose input and output are different memory, see [`RankProgram::apart`].
    pub(crate) fn apart(place: Place, parts: u32) -> Self {
        RankBuilder { apart: true, ..RankBuilder::new(place, parts) }
    }

    /// A whole block.
    pub fn tile(&self, space: Space, block: usize) -> Slot {
        self.tiles(space, block, 1)
    }

    /// `count` whole blocks from `block` on.
    pub fn tiles(&self, space: Space, block: usize, count: usize) -> Slot {
        Slot { space, block: block as u32, blocks: count as u32, part: 0, parts: self.parts }
    }

    /// Send a slot.
    pub fn send(&mut self, to: Rank, from: Slot) -> StepId {
        let message = next(&mut self.sent, to);
        self.push(Action::Send { to, message, from })
    }

    /// Take a message in and store it.
    pub fn receive(&mut self, from: Rank, into: Slot) -> StepId {
        let message = next(&mut self.received, from);
        self.push(Action::Receive { from, message, into, fold: None })
    }

    /// Take a message in and reduce it with `with`. `last`: the result is final.
    pub fn receive_fold(&mut self, from: Rank, with: Slot, into: Slot, last: bool) -> StepId {
        self.receive_with(from, into, Fold { with, order: Order::LocalFirst, combine: Combine::Reduction, last })
    }

    /// Take a message in and fold it as told.
    pub fn receive_with(&mut self, from: Rank, into: Slot, fold: Fold) -> StepId {
        let message = next(&mut self.received, from);
        self.push(Action::Receive { from, message, into, fold: Some(fold) })
    }

    /// Reduce two slots: `into = left ⊕ right`. `last`: the result is final.
    pub fn combine(&mut self, left: Slot, right: Slot, into: Slot, last: bool) -> StepId {
        self.push(Action::Combine { left, right, into, combine: Combine::Reduction, last })
    }

    /// Combine two slots by a kernel.
    pub fn combine_by(&mut self, kernel: KernelId, left: Slot, right: Slot, into: Slot, last: bool) -> StepId {
        self.push(Action::Combine { left, right, into, combine: Combine::Kernel(kernel), last })
    }

    /// `into = from`.
    pub fn copy(&mut self, from: Slot, into: Slot) -> StepId {
        self.push(Action::Copy { from, into })
    }

    /// `into = kernel(from)`.
    pub fn map(&mut self, kernel: KernelId, from: Slot, into: Slot) -> StepId {
        self.push(Action::Map { from, into, kernel })
    }

    /// The next step waits for this one, whatever slots they touch.
    pub fn wait_for(&mut self, step: StepId) {
        self.waits.wait_for(step);
    }

    /// A world of one rank: its input is its output. (The average over one rank is that rank's value.)
    pub fn alone(mut self) -> RankProgram {
        let (from, into) = (self.tile(Space::Input, 0), self.tile(Space::Output, 0));
        self.copy(from, into);
        self.finish()
    }

    /// The program of this rank.
    pub fn finish(self) -> RankProgram {
        RankProgram { scratch_blocks: self.scratch_blocks, steps: self.steps }
    }

    /// A step whose message has its name.
    pub(crate) fn push(&mut self, action: Action) -> StepId {
        let (mut reads, write) = (action.reads(), action.write());
        let reads = [reads.next(), reads.next()];
        let reads = || reads.iter().flatten().copied();
        let scratch = |slot: Slot| if slot.space == Space::Scratch { slot.block + slot.blocks } else { 0 };
        self.scratch_blocks = reads().chain(write).map(scratch).fold(self.scratch_blocks, u32::max);
        self.waits.touch(self.parts, reads(), write);
        if !self.apart && !self.place.vanishes_in_place(&action) {
            let together = |slot| self.place.in_place(slot);
            self.waits.touch_in_place(self.parts, reads().map(together), write.map(together));
        }
        self.steps.push(Step { action, after: self.waits.next_step() });
        self.steps.len() as StepId - 1
    }
}

fn next(counters: &mut BTreeMap<Rank, Message>, peer: Rank) -> Message {
    let counter = counters.entry(peer).or_default();
    *counter += 1;
    *counter - 1
}

/// Does one of two steps write what the other touches?
fn conflicts(one: &Action, other: &Action, share: impl Fn(&Slot, &Slot) -> bool) -> bool {
    let hits = |one: &Action, other: &Action| {
        one.write().is_some_and(|write| other.reads().chain(other.write()).any(|slot| share(&write, &slot)))
    };
    hits(one, other) || hits(other, one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Topology;
    use crate::registry::registry;

    fn builder(kind: CollectiveKind) -> RankBuilder {
        RankBuilder::new(Place { kind, rank: 1, world: 4, root: 0 }, 2)
    }

    fn part(space: Space, block: u32, part: u32) -> Slot {
        Slot::of_parts(space, block, part, 1)
    }

    #[test]
    fn reads_wait_for_writes_and_writes_for_both() {
        let mut builder = builder(CollectiveKind::AllReduce);
        let scratch = part(Space::Scratch, 0, 0);
        builder.receive(0, scratch);
        builder.send(2, scratch);
        builder.send(3, scratch);
        builder.receive(0, part(Space::Scratch, 0, 1));
        builder.receive(0, scratch);
        let after: Vec<_> = builder.finish().steps.into_iter().map(|step| step.after).collect();
        // The last one follows the first through the sends.
        assert_eq!(after, [vec![], vec![0], vec![0], vec![], vec![1, 2]]);
    }

    #[test]
    fn messages_are_numbered_per_edge_and_direction() {
        let mut builder = builder(CollectiveKind::AllReduce);
        let numbers = |builder: RankBuilder| {
            let number = |step: Step| match step.action {
                Action::Send { message, .. } | Action::Receive { message, .. } => message,
                _ => unreachable!("there are only messages"),
            };
            builder.finish().steps.into_iter().map(number).collect::<Vec<_>>()
        };
        for peer in [0, 2, 0] {
            builder.send(peer, part(Space::Input, 0, 0));
        }
        builder.receive(0, part(Space::Output, 0, 0));
        assert_eq!(numbers(builder), [0, 0, 1, 0]);
    }

    #[test]
    fn in_place_the_single_block_is_the_own_one_of_the_many() {
        // Rank 1: its output is block 1 of the input.
        let mut reduce_scatter = builder(CollectiveKind::ReduceScatter);
        reduce_scatter.send(0, part(Space::Input, 0, 0));
        reduce_scatter.send(2, part(Space::Input, 1, 0));
        reduce_scatter.receive(0, part(Space::Output, 0, 0));
        assert_eq!(reduce_scatter.finish().steps[2].after, [1]);
        let mut all_gather = builder(CollectiveKind::AllGather);
        all_gather.send(0, part(Space::Input, 0, 0));
        all_gather.receive(0, part(Space::Output, 0, 0));
        all_gather.receive(0, part(Space::Output, 1, 0));
        assert_eq!(all_gather.finish().steps[2].after, [0]);
    }

    #[test]
    fn nobody_waits_for_a_copy_only_because_of_memory_that_in_place_it_does_not_touch() {
        let mut builder = builder(CollectiveKind::Broadcast);
        builder.place.rank = 0;
        builder.copy(part(Space::Input, 0, 0), part(Space::Output, 0, 0));
        builder.send(2, part(Space::Input, 0, 0));
        builder.send(3, part(Space::Output, 0, 0));
        let steps = builder.finish().steps;
        assert_eq!((&*steps[1].after, &*steps[2].after), (&[][..], &[0][..]));
    }

    #[test]
    fn no_wait_follows_from_the_others() {
        for (world, algorithm) in (1..10).flat_map(|world| registry().iter().map(move |algorithm| (world, algorithm))) {
            let topology = Topology::of_hosts(&(0..world).map(|rank| rank % 3).collect::<Vec<_>>());
            for rank in (0..world).filter(|_| algorithm.supports(world)) {
                let steps = algorithm.rank_program(rank, &topology, 0).steps;
                // Waits point backwards, so the ancestors of a step are known when it is reached.
                let mut ancestors: Vec<Vec<StepId>> = Vec::new();
                for step in &steps {
                    let implied =
                        |wait: &StepId| step.after.iter().any(|&other| ancestors[other as usize].contains(wait));
                    assert!(!step.after.iter().any(implied), "{} {}, rank {rank}", algorithm.name(), algorithm.kind());
                    let all =
                        step.after.iter().flat_map(|&wait| ancestors[wait as usize].iter().copied().chain([wait]));
                    ancestors.push(all.collect());
                }
            }
        }
    }
}
