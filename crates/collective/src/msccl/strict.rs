//! What a file says, taken at its word: every thread block one step after the other, every chunk of memory a cell. The
//! verifier finds what waits for itself and what is left to chance.

use std::collections::HashMap;

use paceline_plan::{CollectiveKind, Rank};

use super::connect::{Ends, Wiring};
use super::file::{Block, Chunks, File, Operation, Step as FileStep};
use super::memory::Memory;
use super::{Fault, ReadError};
use crate::Program;
use crate::program::{Action, Combine, Fold, Message, Order, RankProgram, Slot, Space, Step, StepId};
use crate::verify::{Capacity, Reason, Refusal, verify_order};

/// Steps of one gpu, at most: the verifier has a bit for every two of them (and a step that receives and sends is two to
/// it), so that this is 512 MiB.
pub(super) const STEPS_OF_GPU_MAX: usize = 1 << 15;

/// Refuses a file whose steps could wait for each other for ever, even on links that hold everything, or race.
pub(super) fn check(file: &File, wiring: &Wiring, memories: &[Memory]) -> Result<(), ReadError> {
    for gpu in &file.gpus {
        let steps: usize = gpu.blocks.iter().map(|block| block.steps.len()).sum();
        if steps > STEPS_OF_GPU_MAX {
            let what = format!("{steps} steps on one gpu, more than {STEPS_OF_GPU_MAX}");
            return Err(ReadError { line: gpu.line, fault: Fault::TooLarge(what) });
        }
    }
    let first_messages = first_messages(file, wiring);
    let mut lines = Vec::with_capacity(file.gpus.len());
    let mut ranks = Vec::with_capacity(file.gpus.len());
    for (rank, gpu) in file.gpus.iter().enumerate() {
        let (program, of_steps) = RankWriter::new(&memories[rank], &gpu.blocks).write(rank, wiring, &first_messages);
        ranks.push(program);
        lines.push(of_steps);
    }
    let program = Program { algorithm: String::new(), kind: CollectiveKind::AllReduce, root: 0, parts: 1, ranks };
    verify_order(&program, Capacity::Unbounded).map_err(|refusal| explain(refusal, file.line, &lines, memories))
}

/// The number of the first message of each thread block that sends: messages of one edge have different numbers, whatever
/// channel they take.
fn first_messages(file: &File, wiring: &Wiring) -> Vec<Vec<Message>> {
    let mut next: HashMap<(Rank, Rank), Message> = HashMap::new();
    let mut first = Vec::with_capacity(file.gpus.len());
    for (rank, gpu) in file.gpus.iter().enumerate() {
        let number = |(block, ends): (&Block, &Ends)| {
            let next = block.send.map(|peer| next.entry((rank, peer)).or_default());
            next.map_or(0, |next| {
                *next += ends.sends.len() as Message;
                *next - ends.sends.len() as Message
            })
        };
        first.push(gpu.blocks.iter().zip(&wiring.ends[rank]).map(number).collect());
    }
    first
}

/// Says with lines and chunks what the verifier says with steps and cells.
fn explain(refusal: Refusal, line: usize, lines: &[Vec<usize>], memories: &[Memory]) -> ReadError {
    let line_of = |(rank, step): (Rank, StepId)| lines[rank][step as usize];
    let line = refusal.step.map_or(line, |step| line_of((refusal.rank, step)));
    let fault = match &refusal.reason {
        Reason::Cycle => {
            let mut through: Vec<_> = refusal.steps().map(line_of).collect();
            through.dedup();
            Fault::Deadlock(through)
        }
        Reason::Hazard { other, cell } => {
            let chunk = memories[refusal.rank].name(cell.block);
            Fault::Race { other: line_of((refusal.rank, *other)), chunk }
        }
        _ => Fault::Refused(Box::new(refusal)),
    };
    ReadError { line, fault }
}

/// Writes what one rank does, with every chunk a block of scratch.
struct RankWriter<'a> {
    memory: &'a Memory,
    blocks: &'a [Block],
    steps: Vec<Step>,
    lines: Vec<usize>,
    /// The last action of each step of each thread block.
    ends: Vec<Vec<StepId>>,
    /// Where each thread block's own cells begin: they hold what it only passes on.
    own: Vec<u32>,
    cells: u32,
}

impl<'a> RankWriter<'a> {
    fn new(memory: &'a Memory, blocks: &'a [Block]) -> Self {
        let (mut cells, mut id) = (memory.end(), 0);
        let (mut own, mut ends) = (Vec::new(), Vec::new());
        for block in blocks {
            own.push(cells);
            let passing = block.steps.iter().filter(|step| step.operation == Operation::ReceiveReduceSend);
            cells = cells.saturating_add(passing.map(|step| step.count).max().unwrap_or(0).max(1));
            let end = |step: &FileStep| {
                id += 1 + StepId::from(step.operation.sends() && step.operation.receives());
                id - 1
            };
            ends.push(block.steps.iter().map(end).collect());
        }
        RankWriter { memory, blocks, steps: Vec::new(), lines: Vec::new(), ends, own, cells }
    }

    fn write(mut self, rank: Rank, wiring: &Wiring, first_messages: &[Vec<Message>]) -> (RankProgram, Vec<usize>) {
        for (index, block) in self.blocks.iter().enumerate() {
            let ends = &wiring.ends[rank][index];
            let (mut sent, mut received) = (first_messages[rank][index], 0);
            for (place, step) in block.steps.iter().enumerate() {
                let previous = place.checked_sub(1).map(|previous| self.ends[index][previous]);
                let awaited = step.after.map(|(block, step)| self.ends[block][step]);
                let mut after: Vec<StepId> = previous.into_iter().chain(awaited).collect();
                if let (true, Some((from, sender))) = (step.operation.receives(), ends.from) {
                    let message = first_messages[from][sender] + received;
                    received += 1;
                    self.push(step.line, std::mem::take(&mut after), self.receive(index, step, from, message));
                    after.push(self.steps.len() as StepId - 1);
                }
                if let (true, Some(to)) = (step.operation.sends(), block.send) {
                    let from = if step.operation == Operation::Send { step.source } else { step.destination };
                    let from = from.map_or_else(|| self.passing(index, step), |chunks| self.slot(chunks, step));
                    self.push(step.line, after, Action::Send { to, message: sent, from });
                    sent += 1;
                } else if !step.operation.receives() {
                    self.push(step.line, after, self.local(index, step));
                }
            }
        }
        (RankProgram { scratch_blocks: self.cells, steps: self.steps }, self.lines)
    }

    fn push(&mut self, line: usize, after: Vec<StepId>, action: Action) {
        self.steps.push(Step { action, after });
        self.lines.push(line);
    }

    fn receive(&self, block: usize, step: &FileStep, from: Rank, message: Message) -> Action {
        let into = step.destination.map_or_else(|| self.passing(block, step), |chunks| self.slot(chunks, step));
        let fold = step.source.map(|with| Fold {
            with: self.slot(with, step),
            order: Order::LocalFirst,
            combine: Combine::Reduction,
            last: false,
        });
        Action::Receive { from, message, into, fold }
    }

    fn local(&self, block: usize, step: &FileStep) -> Action {
        match (step.operation, step.source, step.destination) {
            (Operation::Copy, Some(from), Some(into)) => {
                Action::Copy { from: self.slot(from, step), into: self.slot(into, step) }
            }
            (_, Some(right), Some(into)) => {
                let (right, into) = (self.slot(right, step), self.slot(into, step));
                Action::Combine { left: into, right, into, combine: Combine::Reduction, last: false }
            }
            // Nothing: a cell that nobody else knows stays what it is.
            _ => {
                let nothing = cells(self.own[block], 1);
                Action::Copy { from: nothing, into: nothing }
            }
        }
    }

    fn slot(&self, chunks: Chunks, step: &FileStep) -> Slot {
        cells(self.memory.numbers(chunks, step.count).start, step.count)
    }

    fn passing(&self, block: usize, step: &FileStep) -> Slot {
        cells(self.own[block], step.count)
    }
}

fn cells(first: u32, count: u32) -> Slot {
    Slot { space: Space::Scratch, block: first, blocks: count, part: 0, parts: 1 }
}
