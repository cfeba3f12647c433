use paceline_collective::{Action, Combine, Message, Program, RankProgram, Slot, Space, Step, StepId};
use paceline_plan::Rank;

use crate::hash::Map;
use crate::shortcut::{Shortcut, shortcuts};

/// One rank's program, prepared for execution: successors instead of predecessors, and messages found by name.
#[derive(Debug)]
pub struct RankSchedule {
    parts: u32,
    scratch_blocks: u32,
    actions: Vec<Action>,
    /// How many steps each step waits for.
    waits: Vec<u32>,
    /// The steps that wait for step s are `successors[first[s]..first[s + 1]]`.
    first: Vec<u32>,
    successors: Vec<StepId>,
    receives: Names,
    sends: Names,
    message_blocks: u32,
    dynamic: bool,
    shortcuts: Vec<Option<Shortcut>>,
    /// For each step: it writes to the output what no later step reads.
    unread: Vec<bool>,
}

impl RankSchedule {
    /// Prepares a rank's program, which is believed to have passed the verifier. `parts` is the program's. For programs
    /// in which only other ranks have kernels, use [`RankSchedule::of`].
    ///
    /// # Panics
    /// If a step waits for a step that does not exist, or a message name stands twice on an edge.
    pub fn new(program: &RankProgram, parts: u32) -> RankSchedule {
        let steps = &program.steps;
        let (first, successors) = successors(steps);
        let (mut receives, mut sends) = (Names::default(), Names::default());
        for (id, step) in (0u32..).zip(steps) {
            let twice = match &step.action {
                Action::Send { to, message, .. } => sends.insert(*to, *message, id),
                Action::Receive { from, message, .. } => receives.insert(*from, *message, id),
                Action::Combine { .. } | Action::Map { .. } | Action::Copy { .. } => false,
            };
            assert!(!twice, "step {id} repeats the name of a message");
        }
        RankSchedule {
            parts,
            scratch_blocks: program.scratch_blocks,
            actions: steps.iter().map(|step| step.action).collect(),
            waits: steps.iter().map(|step| step.after.len() as u32).collect(),
            first,
            successors,
            receives,
            sends,
            message_blocks: steps.iter().map(|step| message_blocks(&step.action)).max().unwrap_or(0),
            dynamic: is_dynamic(program),
            shortcuts: shortcuts(program),
            unread: (0..steps.len()).map(|index| is_unread(&steps[index..])).collect(),
        }
    }

    /// Prepares a rank's part of a whole program. If any rank has a kernel, lengths may vary on all.
    ///
    /// # Panics
    /// As [`RankSchedule::new`], or if there is no such rank.
    pub fn of(program: &Program, rank: Rank) -> RankSchedule {
        let dynamic = program.ranks.iter().any(is_dynamic);
        RankSchedule { dynamic, ..RankSchedule::new(&program.ranks[rank], program.parts) }
    }

    /// The program's number of parts.
    pub fn parts(&self) -> u32 {
        self.parts
    }

    /// Blocks of scratch per tile in flight.
    pub fn scratch_blocks(&self) -> u32 {
        self.scratch_blocks
    }

    /// Do kernels, here or on other ranks, decide the lengths of what lies in the slots?
    pub fn dynamic(&self) -> bool {
        self.dynamic
    }

    pub(crate) fn steps(&self) -> usize {
        self.actions.len()
    }

    pub(crate) fn action(&self, step: StepId) -> &Action {
        &self.actions[step as usize]
    }

    /// What a receive may do instead of storing its message.
    pub(crate) fn shortcut(&self, step: StepId) -> Option<&Shortcut> {
        self.shortcuts[step as usize].as_ref()
    }

    /// Does no step read what this one writes to the output?
    pub(crate) fn is_unread(&self, step: StepId) -> bool {
        self.unread[step as usize]
    }

    /// The rank of the group that a message comes from or goes to.
    pub(crate) fn partner(&self, step: StepId) -> Option<Rank> {
        match self.actions[step as usize] {
            Action::Send { to, .. } => Some(to),
            Action::Receive { from, .. } => Some(from),
            _ => None,
        }
    }

    /// The most blocks that travel as one message.
    pub(crate) fn message_blocks(&self) -> u32 {
        self.message_blocks
    }

    pub(crate) fn waits(&self) -> &[u32] {
        &self.waits
    }

    pub(crate) fn successors(&self, step: StepId) -> &[StepId] {
        &self.successors[self.first[step as usize] as usize..self.first[step as usize + 1] as usize]
    }

    pub(crate) fn receive(&self, from: Rank, message: Message) -> Option<StepId> {
        self.receives.find(from, message)
    }

    pub(crate) fn send(&self, to: Rank, message: Message) -> Option<StepId> {
        self.sends.find(to, message)
    }

    /// The most blocks that any slot names in a space.
    pub(crate) fn blocks_named(&self, space: Space) -> u32 {
        let end = |slot: &Slot| if slot.space == space { slot.block + slot.blocks } else { 0 };
        let ends = |action: &Action| match action {
            Action::Send { from, .. } => end(from),
            Action::Receive { into, fold, .. } => end(into).max(fold.as_ref().map_or(0, |fold| end(&fold.with))),
            Action::Combine { left, right, into, .. } => end(left).max(end(right)).max(end(into)),
            Action::Copy { from, into } | Action::Map { from, into, .. } => end(from).max(end(into)),
        };
        self.actions.iter().map(ends).max().unwrap_or(0)
    }
}

/// Steps by the peer and the name of their messages.
#[derive(Debug, Default)]
struct Names {
    /// The first ones: to compare a few is cheaper than to ask a map.
    few: Vec<(Rank, Message, StepId)>,
    /// All others.
    many: Map<(Rank, Message), StepId>,
}

impl Names {
    const FEW: usize = 8;

    /// True if the name stands there already.
    fn insert(&mut self, peer: Rank, message: Message, step: StepId) -> bool {
        let known = self.find(peer, message).is_some();
        if self.few.len() < Names::FEW {
            self.few.push((peer, message, step));
        } else {
            self.many.insert((peer, message), step);
        }
        known
    }

    fn find(&self, peer: Rank, message: Message) -> Option<StepId> {
        let few = self.few.iter().find(|&&(of, name, _)| of == peer && name == message);
        match few {
            Some(&(_, _, step)) => Some(step),
            None if self.many.is_empty() => None,
            None => self.many.get(&(peer, message)).copied(),
        }
    }
}

/// Does the first of these steps write to the output what none of the others reads? Steps stand in an order in which they
/// may run, as a rule; where they do not, a cache is used for nothing or misses something, and that is all.
fn is_unread(steps: &[Step]) -> bool {
    let [first, later @ ..] = steps else { return false };
    let written = first.action.write().filter(|slot| slot.space == Space::Output);
    written.is_some_and(|slot| !later.iter().any(|step| step.action.reads().any(|read| read.overlaps(&slot))))
}

/// Where the successors of each step begin, and the successors of all steps: those that wait for it.
fn successors(steps: &[Step]) -> (Vec<u32>, Vec<StepId>) {
    let mut first = vec![0u32; steps.len() + 1];
    for &before in steps.iter().flat_map(|step| &step.after) {
        first[before as usize + 1] += 1;
    }
    for index in 1..first.len() {
        first[index] += first[index - 1];
    }
    let mut fill = first.clone();
    let mut successors = vec![0; first[steps.len()] as usize];
    for (id, step) in (0u32..).zip(steps) {
        for &before in &step.after {
            successors[fill[before as usize] as usize] = id;
            fill[before as usize] += 1;
        }
    }
    (first, successors)
}

/// Has it a kernel, so that lengths may vary?
fn is_dynamic(program: &RankProgram) -> bool {
    program.steps.iter().any(|step| match &step.action {
        Action::Receive { fold, .. } => fold.as_ref().is_some_and(|fold| fold.combine != Combine::Reduction),
        Action::Combine { combine, .. } => *combine != Combine::Reduction,
        Action::Map { .. } => true,
        Action::Send { .. } | Action::Copy { .. } => false,
    })
}

fn message_blocks(action: &Action) -> u32 {
    match action {
        Action::Send { from, .. } => from.blocks,
        Action::Receive { into, .. } => into.blocks,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use paceline_collective::Topology;
    use paceline_collective::registry::find;
    use paceline_plan::CollectiveKind;

    use super::*;

    #[test]
    fn what_peers_get_is_read_and_what_they_give_at_last_is_not() {
        let algorithm = find(CollectiveKind::AllReduce, "direct-scatter").expect("it is there");
        let ranks = Topology::flat(4);
        let schedule = RankSchedule::new(&algorithm.rank_program(1, &ranks, 0), algorithm.parts(&ranks));
        let unread: Vec<&Action> = (0..schedule.steps() as StepId)
            .filter(|&step| schedule.is_unread(step))
            .map(|step| schedule.action(step))
            .collect();
        // The reduced parts of the three others; the own one is sent to them.
        assert_eq!(unread.len(), 3, "{unread:?}");
        let received = |action: &&Action| matches!(action, Action::Receive { fold: None, into, .. } if into.part != 1);
        assert!(unread.iter().all(received), "{unread:?}");
    }
}
