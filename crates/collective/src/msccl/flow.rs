//! Where every chunk lies in the program: the file is played once, chunk by chunk.
//!
//! A chunk of ours has a size that depends on which part of its block it is. So it matters what lies in a chunk of memory,
//! and a chunk that holds another part than its place is for is given a place in scratch: as part p of the block whose
//! first part would be p chunks before.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;

use paceline_plan::{CollectiveKind, Rank};

use super::connect::Wiring;
use super::file::{Block, Chunks, File, Gpu, Operation, Step};
use super::memory::Memory;
use super::order::Place;
use super::runs::{Run, push};
use super::{Fault, ReadError};
use crate::program::Space;

/// What is kept that a file overwrites.
#[derive(Clone, Copy)]
pub(super) struct Policy {
    /// Read the input from a copy, so that it may be overwritten where it is the output, too.
    save_input: bool,
    /// Give what is written to a chunk other memory than what was written before, which may still be under way.
    rename: bool,
}

impl Policy {
    /// The cheapest first.
    pub const ALL: [Policy; 3] = [
        Policy { save_input: false, rename: false },
        Policy { save_input: true, rename: false },
        Policy { save_input: true, rename: true },
    ];
}

/// Where everything lies.
pub(super) struct Flow {
    /// By rank, thread block and step.
    pub moves: Vec<Vec<Vec<Moves>>>,
    /// What each rank copies before anything else: from where, and where to.
    pub copies: Vec<Vec<(Vec<Run>, Vec<Run>)>>,
    /// The blocks of scratch that each rank uses.
    pub scratch: Vec<Vec<u64>>,
}

/// What one step touches.
#[derive(Default)]
pub(super) struct Moves {
    /// What it reads: to send, to copy, or as an operand.
    pub source: Vec<Run>,
    /// The other operand of a local reduction.
    pub left: Vec<Run>,
    /// What it writes.
    pub destination: Vec<Run>,
    /// A copy that the next step, a reduction, does on its way.
    pub merged: bool,
}

impl Moves {
    fn runs(&self) -> usize {
        self.source.len() + self.left.len() + self.destination.len()
    }
}

/// What a chunk of memory holds.
#[derive(Clone, Copy)]
struct Content {
    /// Which part of its block it is.
    part: u32,
    /// Of how many ranks it has the contribution.
    contributions: u32,
}

#[derive(Clone, Copy, Default)]
struct Cell {
    holds: Option<(Content, Space, u64)>,
    writes: u32,
    saved: bool,
    /// What is read of the saved input begins here, or has ended.
    cut: bool,
    copied: bool,
}

/// Plays the steps in an order in which they could be done.
pub(super) fn play(
    file: &File,
    wiring: &Wiring,
    memories: &[Memory],
    order: &[Place],
    policy: Policy,
) -> Result<Flow, ReadError> {
    let mut player = Player::new(file, memories, policy);
    // A step of the program touches three runs, at most.
    let (mut runs, runs_max) = (0, 3 * file.pieces_max());
    for &(rank, block, index) in order {
        let step = &file.gpus[rank].blocks[block].steps[index];
        let from = wiring.ends[rank][block].from;
        let refuse = |fault| ReadError { line: step.line, fault };
        let moves = player.step((rank, block, index), from).map_err(refuse)?;
        runs += moves.runs() as u64;
        if runs > runs_max {
            let what = format!("up to here {runs} runs of chunks that do not follow each other");
            return Err(refuse(Fault::TooLarge(what)));
        }
        player.moves[rank][block].push(moves);
    }
    let flow = player.finish();
    check_scratch(file, memories, &flow)?;
    Ok(flow)
}

/// A place of scratch that keeps one part apart from others may take a whole block: there are not to be many.
fn check_scratch(file: &File, memories: &[Memory], flow: &Flow) -> Result<(), ReadError> {
    let (mut cells, cells_max) = (0, 2 * file.chunks_max());
    for ((gpu, memory), scratch) in file.gpus.iter().zip(memories).zip(&flow.scratch) {
        cells += u64::from(memory.end()) + scratch.len() as u64 * u64::from(memory.parts);
        if cells > cells_max {
            let what = format!("up to here {cells} chunks, some of which only keep parts of blocks apart");
            return Err(ReadError { line: gpu.line, fault: Fault::TooLarge(what) });
        }
    }
    Ok(())
}

struct Player<'a> {
    file: &'a File,
    memories: &'a [Memory],
    policy: Policy,
    /// Contributions of a complete reduction; none where nothing is reduced.
    complete: Option<u32>,
    cells: Vec<Vec<Cell>>,
    places: Vec<Places>,
    /// How often each chunk is written.
    writes: Vec<Vec<u32>>,
    /// What each thread block has sent and nobody received.
    messages: HashMap<(Rank, usize), VecDeque<Vec<Content>>>,
    moves: Vec<Vec<Vec<Moves>>>,
}

impl<'a> Player<'a> {
    fn new(file: &'a File, memories: &'a [Memory], policy: Policy) -> Self {
        use CollectiveKind::{AllReduce, Push, PushPull, Reduce, ReduceScatter};
        let reduces = matches!(file.kind, AllReduce | Reduce | ReduceScatter | Push | PushPull);
        let input = |memory: &Memory| {
            let mut cells = vec![Cell::default(); memory.end() as usize];
            for (at, number) in memory.inputs().enumerate() {
                let content = Content { part: memory.part(number), contributions: 1 };
                cells[number as usize].holds = Some((content, Space::Input, at as u64));
            }
            cells
        };
        let written = |(gpu, memory): (&Gpu, &Memory)| {
            let mut writes = vec![0; memory.end() as usize];
            for block in &gpu.blocks {
                for (index, step) in block.steps.iter().enumerate() {
                    let chunks = step.destination.filter(|_| !merges(memory, block, index));
                    let numbers = chunks.map_or(0..0, |chunks| memory.numbers(chunks, step.count));
                    numbers.for_each(|number| writes[number as usize] += 1);
                }
            }
            writes
        };
        Player {
            file,
            memories,
            policy,
            complete: reduces.then(|| file.kind.contributors(file.gpus.len()) as u32),
            cells: memories.iter().map(input).collect(),
            places: file.gpus.iter().zip(memories).map(|(gpu, memory)| Places::of(memory, &gpu.blocks)).collect(),
            writes: file.gpus.iter().zip(memories).map(written).collect(),
            messages: HashMap::new(),
            moves: file.gpus.iter().map(|gpu| gpu.blocks.iter().map(|_| Vec::new()).collect()).collect(),
        }
    }

    fn step(&mut self, (rank, block, index): Place, from: Option<(Rank, usize)>) -> Result<Moves, Fault> {
        let memory = &self.memories[rank];
        let steps = &self.file.gpus[rank].blocks[block];
        let step = &steps.steps[index];
        if merges(memory, steps, index) {
            return Ok(Moves { merged: true, ..Moves::default() });
        }
        let mut moves = Moves::default();
        let mut contents = Vec::new();
        if step.operation.receives() {
            let message = from.and_then(|sender| self.messages.get_mut(&sender)).and_then(VecDeque::pop_front);
            // A step is played after the one that sends to it.
            contents = message.unwrap_or_default();
        }
        if let Some(source) = step.source {
            let read;
            (moves.source, read) = self.read(rank, memory.numbers(source, step.count))?;
            contents = if step.operation.receives() { fold(read, contents)? } else { read };
        }
        if step.operation == Operation::Reduce {
            let left = index.checked_sub(1).filter(|&before| merges(memory, steps, before));
            let left = left.map_or(step.destination, |before| steps.steps[before].source);
            let read;
            (moves.left, read) = self.read(rank, left.map_or(0..0, |left| memory.numbers(left, step.count)))?;
            contents = fold(read, contents)?;
        }
        let folds = step.operation == Operation::Reduce || (step.operation.receives() && step.source.is_some());
        moves.destination = match step.destination {
            Some(chunks) => self.write(rank, memory.numbers(chunks, step.count), &contents, folds),
            None if step.operation == Operation::ReceiveReduceSend => self.pass(rank, block, &contents),
            None => Vec::new(),
        };
        if step.operation.sends() {
            self.messages.entry((rank, block)).or_default().push_back(contents);
        }
        Ok(moves)
    }

    /// Where these chunks are read, and what they hold.
    fn read(&mut self, rank: Rank, numbers: Range<u32>) -> Result<(Vec<Run>, Vec<Content>), Fault> {
        let (memory, cells) = (&self.memories[rank], &mut self.cells[rank]);
        let in_input = |cell: &Cell| matches!(cell.holds, Some((_, Space::Input, _)));
        let all_in_input = numbers.clone().all(|number| in_input(&cells[number as usize]));
        let (mut runs, mut contents) = (Vec::new(), Vec::new());
        if self.policy.save_input && all_in_input {
            for boundary in [numbers.start, numbers.end] {
                cells.get_mut(boundary as usize).into_iter().for_each(|cell| cell.cut = true);
            }
        }
        for number in numbers {
            let cell = &mut cells[number as usize];
            let Some((content, mut space, mut at)) = cell.holds else {
                return Err(Fault::Undefined(memory.name(number)));
            };
            if space == Space::Input && self.policy.save_input {
                (space, at) = (Space::Scratch, self.places[rank].saved(at));
                cell.saved = true;
            } else if let (Space::Input, false, Some(output)) = (space, all_in_input, memory.output(number)) {
                // What lies side by side in place is to be one slot.
                (space, at) = (Space::Output, u64::from(output));
                cell.copied = true;
            }
            push(&mut runs, space, at, false);
            contents.push(content);
        }
        Ok((runs, contents))
    }

    /// Where these chunks are written.
    fn write(&mut self, rank: Rank, numbers: Range<u32>, contents: &[Content], folds: bool) -> Vec<Run> {
        let (memory, places) = (&self.memories[rank], &self.places[rank]);
        let mut runs = Vec::new();
        for (number, &content) in numbers.zip(contents) {
            let cell = &mut self.cells[rank][number as usize];
            cell.writes += 1;
            let final_write = cell.writes == self.writes[rank][number as usize];
            let fits = memory.part(number) == content.part && (final_write || !self.policy.rename);
            let (space, at) = match memory.output(number).filter(|_| fits) {
                Some(output) => (Space::Output, u64::from(output)),
                None => {
                    let version = if self.policy.rename { cell.writes % 2 } else { 0 };
                    (Space::Scratch, places.scratch(number, version, content.part))
                }
            };
            cell.holds = Some((content, space, at));
            push(&mut runs, space, at, folds && self.complete == Some(content.contributions));
        }
        runs
    }

    /// Where lies what a thread block only passes on.
    fn pass(&self, rank: Rank, block: usize, contents: &[Content]) -> Vec<Run> {
        let mut runs = Vec::new();
        let first = contents.first().map_or(0, |content| content.part);
        for (index, content) in contents.iter().enumerate() {
            let at = self.places[rank].passing(block, first as usize + index, content.part);
            push(&mut runs, Space::Scratch, at, self.complete == Some(content.contributions));
        }
        runs
    }

    fn finish(self) -> Flow {
        let ranks = self.memories.iter().zip(&self.cells).zip(&self.places);
        let copies: Vec<_> = ranks.map(|((memory, cells), places)| copies(memory, cells, places)).collect();
        let mut scratch = Vec::new();
        for ((copies, moves), memory) in copies.iter().zip(&self.moves).zip(self.memories) {
            let moves = moves.iter().flatten();
            let of_moves = moves.flat_map(|moves| [&moves.source, &moves.left, &moves.destination]);
            let runs = of_moves.chain(copies.iter().map(|(_, into)| into)).flatten();
            let used: BTreeSet<u64> =
                runs.filter(|run| run.space == Space::Scratch).flat_map(|run| run.blocks(memory.parts)).collect();
            scratch.push(used.into_iter().collect());
        }
        Flow { moves: self.moves, copies, scratch }
    }
}

/// What a rank copies from its input before anything else.
fn copies(memory: &Memory, cells: &[Cell], places: &Places) -> Vec<(Vec<Run>, Vec<Run>)> {
    // What is read at once is saved at once: `RankProgram::apart` takes such copies back.
    let mut saved: Vec<(Vec<Run>, Vec<Run>)> = Vec::new();
    let (mut from, mut into) = (Vec::new(), Vec::new());
    for (at, number) in (0..).zip(memory.inputs()) {
        let cell = &cells[number as usize];
        if cell.saved {
            if cell.cut || saved.is_empty() {
                saved.push((Vec::new(), Vec::new()));
            }
            let last = saved.len() - 1;
            push(&mut saved[last].0, Space::Input, at, false);
            push(&mut saved[last].1, Space::Scratch, places.saved(at), false);
        }
        // What nobody writes is the result as it stands.
        if let Some(output) = memory.output(number).filter(|_| cell.copied || cell.writes == 0) {
            push(&mut from, Space::Input, at, false);
            push(&mut into, Space::Output, u64::from(output), false);
        }
    }
    saved.push((from, into));
    saved
}

/// The memory of one rank's scratch, numbered with gaps: wherever a chunk may lie, for whatever part it holds.
struct Places {
    parts: u64,
    /// Numbers of one version of the chunks.
    chunks: u64,
    /// Where thread blocks have what they only pass on, and how far apart.
    passing: u64,
    passing_each: u64,
    /// Where the saved input is.
    saved: u64,
    /// Blocks with the same distance of chunk and part.
    blocks: u64,
}

impl Places {
    fn of(memory: &Memory, blocks: &[Block]) -> Places {
        let parts = u64::from(memory.parts);
        let chunks = u64::from(memory.end()).next_multiple_of(parts);
        let steps = blocks.iter().flat_map(|block| &block.steps);
        let counts = steps.filter(|step| step.operation == Operation::ReceiveReduceSend).map(|step| step.count);
        let passing_each = (parts + u64::from(counts.max().unwrap_or(0))).next_multiple_of(parts);
        let passing = 2 * chunks;
        let saved = passing + blocks.len() as u64 * passing_each;
        let blocks = (saved + memory.inputs().len() as u64) / parts + 3;
        Places { parts, chunks, passing, passing_each, saved, blocks }
    }

    fn scratch(&self, number: u32, version: u32, part: u32) -> u64 {
        self.at(u64::from(version) * self.chunks + u64::from(number), part)
    }

    fn passing(&self, block: usize, offset: usize, part: u32) -> u64 {
        self.at(self.passing + block as u64 * self.passing_each + offset as u64, part)
    }

    fn saved(&self, input: u64) -> u64 {
        self.at(self.saved + input, (input % self.parts) as u32)
    }

    /// Chunks whose parts follow each other as they do lie side by side.
    fn at(&self, number: u64, part: u32) -> u64 {
        let start = number + self.parts - u64::from(part);
        let block = start % self.parts * self.blocks + start / self.parts;
        block * self.parts + u64::from(part)
    }
}

/// Does a copy only bring the operand for the reduction that follows it, so that the two are one step of ours?
fn merges(memory: &Memory, block: &Block, index: usize) -> bool {
    let (Some(copy), Some(reduce)) = (block.steps.get(index), block.steps.get(index + 1)) else { return false };
    let numbers = |step: &Step, chunks: Option<Chunks>| chunks.map(|chunks| memory.numbers(chunks, step.count));
    let (into, with) = (numbers(reduce, reduce.destination), numbers(reduce, reduce.source));
    copy.operation == Operation::Copy
        && reduce.operation == Operation::Reduce
        && !copy.has_waiting
        && numbers(copy, copy.destination) == into
        && matches!((into, with), (Some(into), Some(with)) if into.end <= with.start || with.end <= into.start)
}

/// Combines what is here with what comes.
fn fold(here: Vec<Content>, comes: Vec<Content>) -> Result<Vec<Content>, Fault> {
    let combine = |(here, comes): (Content, Content)| {
        if here.part != comes.part {
            return Err(Fault::Mixed { with: here.part, part: comes.part });
        }
        Ok(Content { contributions: here.contributions.saturating_add(comes.contributions), ..here })
    };
    here.into_iter().zip(comes).map(combine).collect()
}
