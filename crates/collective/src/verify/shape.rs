//! Is every step well-formed, and does every message have one sender and one receiver?

use std::collections::HashMap;

use paceline_plan::{CollectiveKind, Rank};

use super::{Reason, Refusal};
use crate::Place;
use crate::program::{Action, Message, Program, Slot, Space, StepId, blocks};

/// Who sends and who receives each message, in steps counted through all ranks.
pub(crate) struct Matches {
    /// The number of steps of all ranks before each rank, and of all.
    pub first: Vec<usize>,
    /// For a send the step that receives, and the other way round; [`NONE`] for local steps.
    pub peer: Vec<u32>,
    /// Is it a send?
    pub send: Vec<bool>,
    messages: usize,
}

/// A program may come from a file: cells of one rank beyond this (4,096 ranks' blocks in as many parts) are refused
/// before anything is allocated for them.
const CELLS_MAX: u64 = 1 << 24;

/// No step.
pub(crate) const NONE: u32 = u32::MAX;

impl Matches {
    pub fn steps(&self) -> usize {
        self.peer.len()
    }

    /// The rank and the step of a step counted through all ranks.
    pub fn locate(&self, step: usize) -> (Rank, StepId) {
        let rank = self.first.partition_point(|&first| first <= step) - 1;
        (rank, (step - self.first[rank]) as StepId)
    }

    pub fn messages(&self) -> usize {
        self.messages
    }
}

/// Checks everything that can be seen without asking when a step happens.
pub(crate) fn check(program: &Program) -> Result<Matches, Refusal> {
    let (kind, world, root) = (program.kind, program.ranks.len(), program.root);
    let right = match kind {
        CollectiveKind::SendReceive => world == 2,
        _ => world > 0 && kind.contributors(world) > 0,
    };
    if !right || root >= world || program.parts == 0 {
        return Err(Refusal::of(root, None, Reason::World { kind, world, root }));
    }
    for (rank, steps) in program.ranks.iter().enumerate() {
        let place = Place { kind, rank, world, root };
        let (input, output) = blocks(kind, rank, root, world);
        let all_blocks = [input, output, steps.scratch_blocks].into_iter().map(u64::from).sum::<u64>();
        let cells = all_blocks * u64::from(program.parts);
        if cells > CELLS_MAX {
            return Err(Refusal::of(rank, None, Reason::Cells(cells)));
        }
        for (step, content) in steps.steps.iter().enumerate() {
            let refuse = |reason| Refusal::at(rank, step as StepId, reason);
            if let Some(&after) = content.after.iter().find(|&&after| after as usize >= steps.steps.len()) {
                return Err(refuse(Reason::After(after)));
            }
            check_action(program, &place, &content.action).map_err(refuse)?;
        }
    }
    pair(program)
}

fn check_action(program: &Program, place: &Place, action: &Action) -> Result<(), Reason> {
    let (reads, write) = (action.reads(), action.write());
    for slot in reads.clone().chain(write) {
        check_range(program, place, slot)?;
    }
    if let Action::Send { to: peer, .. } | Action::Receive { from: peer, .. } = *action
        && (peer >= place.world || peer == place.rank)
    {
        return Err(Reason::Peer(peer));
    }
    let Some(write) = write else { return Ok(()) };
    if write.space == Space::Input {
        return Err(Reason::WritesInput(write));
    }
    for read in reads {
        check_shape(read, write)?;
        // A combination may write over an operand. A kernel of a map may not, because what it writes may be longer.
        let same_is_fine = !matches!(action, Action::Map { .. });
        for (a, b) in [(read, write), (place.in_place(read), place.in_place(write))] {
            if a.overlaps(&b) && !(same_is_fine && a == b) {
                return Err(Reason::Overlap { read, write });
            }
        }
    }
    Ok(())
}

fn check_range(program: &Program, place: &Place, slot: Slot) -> Result<(), Reason> {
    let (input, output) = blocks(place.kind, place.rank, place.root, place.world);
    let available = match slot.space {
        Space::Input => input,
        Space::Output => output,
        Space::Scratch => program.ranks[place.rank].scratch_blocks,
    };
    let within = |start: u32, count: u32, end: u32| count > 0 && u64::from(start) + u64::from(count) <= u64::from(end);
    let whole = slot.blocks == 1 || (slot.part == 0 && slot.parts == program.parts);
    if within(slot.block, slot.blocks, available) && within(slot.part, slot.parts, program.parts) && whole {
        Ok(())
    } else {
        Err(Reason::Range(slot))
    }
}

/// Parts of one number have the same length in every block, but part 0 and part 1 may differ by an element.
fn check_shape(one: Slot, other: Slot) -> Result<(), Reason> {
    let shape = |slot: Slot| (slot.blocks, slot.part, slot.parts);
    if shape(one) == shape(other) { Ok(()) } else { Err(Reason::Shape(one, other)) }
}

/// Finds the receive of each send.
fn pair(program: &Program) -> Result<Matches, Refusal> {
    let mut first = vec![0];
    for rank in &program.ranks {
        first.push(first[first.len() - 1] + rank.steps.len());
    }
    let mut peer = vec![NONE; first[program.ranks.len()]];
    let send = actions(program).map(|(_, _, action)| matches!(action, Action::Send { .. })).collect();
    let mut sends: HashMap<Edge, Side> = HashMap::new();
    for (rank, step, action) in actions(program) {
        if let Action::Send { to, message, from: slot } = *action {
            let edge = Edge { from: rank, to, message };
            if let Some(first) = sends.insert(edge, Side { step, slot, receiver: None }) {
                return Err(edge.twofold(rank, step, first.step, "sender"));
            }
        }
    }
    let messages = sends.len();
    for (rank, step, action) in actions(program) {
        let Action::Receive { from, message, into, .. } = *action else { continue };
        let edge = Edge { from, to: rank, message };
        let Some(send) = sends.get_mut(&edge) else {
            return Err(edge.unmatched(rank, step, "sender"));
        };
        if let Some(first) = send.receiver.replace(step) {
            return Err(edge.twofold(rank, step, first, "receiver"));
        }
        check_shape(send.slot, into)
            .map_err(|reason| Refusal { related: vec![(from, send.step)], ..Refusal::at(rank, step, reason) })?;
        let (sender, receiver) = (first[from] + send.step as usize, first[rank] + step as usize);
        peer[sender] = receiver as u32;
        peer[receiver] = sender as u32;
    }
    let lonely = sends
        .iter()
        .filter(|(_, send)| send.receiver.is_none())
        .map(|(edge, send)| (edge.from, send.step, *edge))
        .min();
    if let Some((rank, step, edge)) = lonely {
        return Err(edge.unmatched(rank, step, "receiver"));
    }
    Ok(Matches { first, peer, send, messages })
}

/// A message on a directed edge.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Edge {
    from: Rank,
    to: Rank,
    message: Message,
}

impl Edge {
    fn unmatched(self, rank: Rank, step: StepId, lacks: &'static str) -> Refusal {
        let Edge { from, to, message } = self;
        Refusal::at(rank, step, Reason::Unmatched { from, to, message, lacks })
    }

    fn twofold(self, rank: Rank, step: StepId, first: StepId, side: &'static str) -> Refusal {
        let Edge { from, to, message } = self;
        let reason = Reason::Twofold { from, to, message, side };
        Refusal { related: vec![(rank, first)], ..Refusal::at(rank, step, reason) }
    }
}

/// The sender's side of a message.
struct Side {
    step: StepId,
    slot: Slot,
    receiver: Option<StepId>,
}

/// Every step of every rank.
fn actions(program: &Program) -> impl Iterator<Item = (Rank, StepId, &Action)> {
    program.ranks.iter().enumerate().flat_map(|(rank, content)| {
        content.steps.iter().enumerate().map(move |(step, content)| (rank, step as StepId, &content.action))
    })
}
