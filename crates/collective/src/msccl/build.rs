//! The program of a file that has been played: which step waits for which follows from the memory that they touch.

use std::collections::{HashMap, VecDeque};

use paceline_plan::{CollectiveKind, Rank};

use super::connect::Wiring;
use super::file::{File, Operation, PIECES_OF_STEP, Step};
use super::flow::{Flow, Moves};
use super::order::Place as FilePlace;
use super::runs::{Run, pieces};
use super::strict::STEPS_OF_GPU_MAX;
use super::{Fault, ReadError, STEPS_MAX};
use crate::program::{Action, Combine, Fold, Message, Order, RankProgram, Slot, StepId};
use crate::{Place, Program, RankBuilder};

/// The program, and the line of each step of each rank.
pub(super) fn build(
    file: &File,
    wiring: &Wiring,
    root: Rank,
    order: &[FilePlace],
    flow: &Flow,
) -> Result<(Program, Vec<Vec<usize>>), ReadError> {
    let world = file.gpus.len();
    let mut builds = Builds {
        file,
        wiring,
        flow,
        steps: vec![Vec::new(); world],
        next: HashMap::new(),
        named: HashMap::new(),
        sent: HashMap::new(),
        done: HashMap::new(),
        left: file.pieces_max(),
        // To wait for many, a step takes as many before it that do nothing, and each knows what those before it do.
        done_left: STEPS_MAX as u64 * file.pieces_max() / PIECES_OF_STEP,
    };
    for (rank, copies) in flow.copies.iter().enumerate() {
        for (from, into) in copies {
            for slots in builds.slots(rank, &[from, into]) {
                builds.push(rank, file.gpus[rank].line, &[], Action::Copy { from: slots[0], into: slots[1] })?;
            }
        }
    }
    order.iter().try_for_each(|&place| builds.step(place))?;
    let lines = builds.steps.iter().map(|steps| steps.iter().map(|step| step.line).collect()).collect();
    let place = |rank| Place { kind: file.kind, rank, world, root };
    // A builder has much to remember: one at a time.
    let ranks = (0..).zip(builds.steps).map(|(rank, steps)| ordered(RankBuilder::new(place(rank), file.parts), steps));
    let ranks = ranks.collect();
    Ok((Program { algorithm: file.name.clone(), kind: file.kind, root, parts: file.parts, ranks }, lines))
}

/// Adds the waits that follow from memory.
fn ordered(mut builder: RankBuilder, steps: Vec<Unordered>) -> RankProgram {
    for step in steps {
        step.waits.iter().for_each(|&earlier| builder.wait_for(earlier));
        builder.push(step.action);
    }
    builder.finish()
}

/// A step of a rank.
#[derive(Clone)]
struct Unordered {
    line: usize,
    action: Action,
    /// Whom it waits for whatever memory they touch.
    waits: Vec<StepId>,
}

struct Builds<'a> {
    file: &'a File,
    wiring: &'a Wiring,
    flow: &'a Flow,
    steps: Vec<Vec<Unordered>>,
    /// The next free name of a message of each edge.
    next: HashMap<(Rank, Rank), Message>,
    /// The first names of the messages that each thread block has sent and nobody received.
    named: HashMap<(Rank, usize), VecDeque<Message>>,
    /// How often each thread block has sent.
    sent: HashMap<(Rank, usize), usize>,
    /// Of a barrier, whose waits are not about memory: what is complete when a step is.
    done: HashMap<FilePlace, Vec<StepId>>,
    /// How many more steps, and what they wait for, there may be; and entries of `done`.
    left: u64,
    done_left: u64,
}

impl Builds<'_> {
    fn step(&mut self, place: FilePlace) -> Result<(), ReadError> {
        let (rank, block, index) = place;
        let step = &self.file.gpus[rank].blocks[block].steps[index];
        let moves = &self.flow.moves[rank][block][index];
        let mut waits = self.waits(place, step);
        let ends = &self.wiring.ends[rank][block];
        if let (true, Some(sender)) = (step.operation.receives(), ends.from) {
            waits = self.receive(place, sender, step, waits)?;
        }
        if let (true, Some(receiver)) = (step.operation.sends(), ends.to) {
            waits = self.send(place, receiver, step, waits)?;
        } else if let (false, false, Operation::Copy | Operation::Reduce) =
            (step.operation.receives(), moves.merged, step.operation)
        {
            waits = self.local(place, step, waits)?;
        }
        if self.file.kind == CollectiveKind::Barrier {
            self.done_left = self.done_left.checked_sub(waits.len() as u64).ok_or_else(|| too_many(step.line))?;
            self.done.insert(place, waits);
        }
        Ok(())
    }

    /// What a step of a barrier waits for.
    fn waits(&self, (rank, block, index): FilePlace, step: &Step) -> Vec<StepId> {
        let before = index.checked_sub(1).map(|before| (rank, block, before));
        let awaited = step.after.map(|(block, index)| (rank, block, index));
        let awaited = before.into_iter().chain(awaited).filter_map(|place| self.done.get(&place)).flatten();
        let mut waits: Vec<_> = awaited.copied().collect();
        waits.sort_unstable();
        waits.dedup();
        waits
    }

    fn receive(
        &mut self,
        place: FilePlace,
        sender: (Rank, usize),
        step: &Step,
        waits: Vec<StepId>,
    ) -> Result<Vec<StepId>, ReadError> {
        let rank = place.0;
        let first = self.named.get_mut(&sender).and_then(VecDeque::pop_front).unwrap_or_default();
        let received = self.wiring.ends[rank][place.1].receives.iter().position(|&index| index == place.2);
        let send = received.and_then(|nth| self.wiring.ends[sender.0][sender.1].sends.get(nth).copied());
        let Some(send) = send else { return Ok(waits) };
        let pieces = self.message((sender.0, sender.1, send), place);
        let mut done = Vec::new();
        for (message, piece) in (first..).zip(pieces) {
            let slot = |run: &Run| run.slot(self.file.parts, &self.flow.scratch[rank]);
            let fold = piece.get(2).map(|with| Fold {
                with: slot(with),
                order: Order::LocalFirst,
                combine: Combine::Reduction,
                last: piece[1].last,
            });
            let action = Action::Receive { from: sender.0, message, into: slot(&piece[1]), fold };
            done.push(self.push(rank, step.line, &waits, action)?);
        }
        Ok(done)
    }

    fn send(
        &mut self,
        place: FilePlace,
        receiver: (Rank, usize),
        step: &Step,
        waits: Vec<StepId>,
    ) -> Result<Vec<StepId>, ReadError> {
        let (rank, block, _) = place;
        let nth = self.sent.entry((rank, block)).or_default();
        let receive = self.wiring.ends[receiver.0][receiver.1].receives.get(*nth).copied();
        *nth += 1;
        let Some(receive) = receive else { return Ok(waits) };
        let pieces = self.message(place, (receiver.0, receiver.1, receive));
        let next = self.next.entry((rank, receiver.0)).or_default();
        let first = *next;
        *next += pieces.len() as Message;
        self.named.entry((rank, block)).or_default().push_back(first);
        let mut done = Vec::new();
        for (message, piece) in (first..).zip(pieces) {
            let from = piece[0].slot(self.file.parts, &self.flow.scratch[rank]);
            done.push(self.push(rank, step.line, &waits, Action::Send { to: receiver.0, message, from })?);
        }
        Ok(done)
    }

    fn local(
        &mut self,
        (rank, block, index): FilePlace,
        step: &Step,
        waits: Vec<StepId>,
    ) -> Result<Vec<StepId>, ReadError> {
        let Moves { source, left, destination, .. } = &self.flow.moves[rank][block][index];
        let mut done = Vec::new();
        if step.operation == Operation::Copy {
            for slots in self.slots(rank, &[source, destination]) {
                done.push(self.push(rank, step.line, &waits, Action::Copy { from: slots[0], into: slots[1] })?);
            }
            return Ok(done);
        }
        for piece in pieces(&[left, source, destination], self.file.parts) {
            let slot = |run: &Run| run.slot(self.file.parts, &self.flow.scratch[rank]);
            let [left, right, into] = [slot(&piece[0]), slot(&piece[1]), slot(&piece[2])];
            let action = Action::Combine { left, right, into, combine: Combine::Reduction, last: piece[2].last };
            done.push(self.push(rank, step.line, &waits, action)?);
        }
        Ok(done)
    }

    /// The pieces of a message: where each lies with the sender, where it goes, and with what it is folded, if it is.
    fn message(&self, send: FilePlace, receive: FilePlace) -> Vec<Vec<Run>> {
        let moves = |(rank, block, index): FilePlace| &self.flow.moves[rank][block][index];
        let operation = |(rank, block, index): FilePlace| self.file.gpus[rank].blocks[block].steps[index].operation;
        let (sent, received) = (moves(send), moves(receive));
        let from = if operation(send) == Operation::Send { &sent.source } else { &sent.destination };
        if received.source.is_empty() {
            return pieces(&[from, &received.destination], self.file.parts);
        }
        pieces(&[from, &received.destination, &received.source], self.file.parts)
    }

    fn slots(&self, rank: Rank, lists: &[&[Run]]) -> Vec<Vec<Slot>> {
        let slot = |run: &Run| run.slot(self.file.parts, &self.flow.scratch[rank]);
        pieces(lists, self.file.parts).iter().map(|piece| piece.iter().map(slot).collect()).collect()
    }

    /// Refuses what would cost the verifier much more than the file's own steps have.
    fn push(&mut self, rank: Rank, line: usize, waits: &[StepId], action: Action) -> Result<StepId, ReadError> {
        self.left = self.left.checked_sub(1 + waits.len() as u64).ok_or_else(|| too_many(line))?;
        let steps = &mut self.steps[rank];
        // A step of the file that receives and sends is two.
        if steps.len() == 2 * STEPS_OF_GPU_MAX {
            return Err(too_many(line));
        }
        steps.push(Unordered { line, action, waits: waits.to_vec() });
        Ok(steps.len() as StepId - 1)
    }
}

fn too_many(line: usize) -> ReadError {
    let what = "by this step, it has become many times as many steps, and waits, as stand in the file";
    ReadError { line, fault: Fault::TooLarge(what.into()) }
}
