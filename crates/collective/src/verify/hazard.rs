//! Do two steps of a rank touch one cell at the same time, one of them writing?
//!
//! A local step touches its slots from its start to its end. A send reads from its start until it or its receive has
//! ended, whichever is known first. A receive touches nothing before its message exists, so it begins when both it and
//! its send have started: an order that goes through a peer counts.

use std::collections::{BTreeSet, HashSet};

use paceline_plan::Rank;

use super::order::{Graph, is_end};
use super::shape::NONE;
use super::{Reason, Refusal};
use crate::Place;
use crate::program::{Slot, Space, StepId, blocks};

/// Checks every rank, in place or not.
///
/// Most pairs are in order by what the steps of their rank wait for: that is quickly seen. Only what is left is looked for
/// along everything that happens on all ranks.
pub(super) fn check(graph: &Graph, in_place: &[bool]) -> Result<(), Refusal> {
    let program = graph.program;
    for (rank, sequence) in sequences(graph).iter().enumerate() {
        let place = Place { kind: program.kind, rank, world: program.ranks.len(), root: program.root };
        let within = Within::of(graph, rank, sequence);
        for &in_place in in_place {
            check_rank(graph, &place, &within, in_place)?;
        }
    }
    Ok(())
}

/// The steps of each rank, each after those for which it waits.
fn sequences(graph: &Graph) -> Vec<Vec<StepId>> {
    let mut sequences = vec![Vec::new(); graph.program.ranks.len()];
    for &node in graph.order.iter().filter(|&&node| !is_end(node)) {
        let (rank, step) = graph.locate(node / 2);
        sequences[rank].push(step);
    }
    sequences
}

fn check_rank(graph: &Graph, place: &Place, within: &Within, in_place: bool) -> Result<(), Refusal> {
    let at_once = STEPS_PER_WORD / 2 * (KNOWN_WORDS_MAX / (2 * graph.matches.steps()).max(1)).max(1);
    let mut seen = HashSet::new();
    let mut suspects = Vec::new();
    for (cell, touches) in cells(graph, place, in_place) {
        for (index, &(step, writes)) in touches.iter().enumerate() {
            for &(other, other_writes) in &touches[..index] {
                let apart = step != other && (writes || other_writes) && !within.ordered(step, other);
                if apart && seen.insert((step, other)) {
                    suspects.push((step, other, cell));
                }
                if suspects.len() == at_once {
                    check_across(graph, place.rank, &std::mem::take(&mut suspects), in_place)?;
                }
            }
        }
    }
    check_across(graph, place.rank, &suspects, in_place)
}

/// Checks pairs of steps that share a cell and that their own rank does not order.
fn check_across(graph: &Graph, rank: Rank, pairs: &[(StepId, StepId, Slot)], in_place: bool) -> Result<(), Refusal> {
    if pairs.is_empty() {
        return Ok(());
    }
    let across = Across::of(graph, rank, pairs.iter().flat_map(|&(step, other, _)| [step, other]));
    let racing = pairs.iter().find(|(step, other, _)| !across.ordered(*step, *other));
    racing.map_or(Ok(()), |&(step, other, cell)| {
        let reason = Reason::Hazard { other, cell };
        Err(Refusal { related: vec![(rank, other)], in_place, ..Refusal::at(rank, step, reason) })
    })
}

/// For each cell that any step writes: who touches it, and whether it writes.
fn cells(graph: &Graph, place: &Place, in_place: bool) -> impl Iterator<Item = (Slot, Vec<(StepId, bool)>)> {
    let (program, content) = (graph.program, &graph.program.ranks[place.rank]);
    let layout = Layout::new(place, program.parts, content.scratch_blocks);
    let mut touches = vec![Vec::new(); layout.cells()];
    for (step, action) in content.steps.iter().map(|step| &step.action).enumerate() {
        if in_place && place.vanishes_in_place(action) {
            continue;
        }
        let reads = action.reads().map(|slot| (slot, false));
        for (slot, writes) in reads.chain(action.write().map(|slot| (slot, true))) {
            let slot = if in_place { place.in_place(slot) } else { slot };
            layout.each_cell(slot, |cell| touches[cell].push((step as StepId, writes)));
        }
    }
    let written = |touches: &[(StepId, bool)]| touches.iter().any(|&(_, writes)| writes);
    touches
        .into_iter()
        .enumerate()
        .filter(move |(_, touches)| written(touches))
        .map(move |(cell, touches)| (layout.cell(cell), touches))
}

/// The numbers of the cells of one rank: input, output, scratch; block by block, part by part.
pub(super) struct Layout {
    parts: u32,
    input: u32,
    output: u32,
    scratch: u32,
}

impl Layout {
    pub fn new(place: &Place, parts: u32, scratch: u32) -> Self {
        let (input, output) = blocks(place.kind, place.rank, place.root, place.world);
        Layout { parts, input, output, scratch }
    }

    pub fn cells(&self) -> usize {
        ((self.input + self.output + self.scratch) * self.parts) as usize
    }

    /// Calls `visit` with the number of each cell of a slot, in the order in which they travel.
    pub fn each_cell(&self, slot: Slot, mut visit: impl FnMut(usize)) {
        let space = match slot.space {
            Space::Input => 0,
            Space::Output => self.input,
            Space::Scratch => self.input + self.output,
        };
        for block in slot.block..slot.block + slot.blocks {
            let first = (space + block) * self.parts + slot.part;
            (first..first + slot.parts).for_each(|cell| visit(cell as usize));
        }
    }

    /// The cell of this number.
    pub fn cell(&self, number: usize) -> Slot {
        let (block, part) = (number as u32 / self.parts, number as u32 % self.parts);
        let (space, block) = if block < self.input {
            (Space::Input, block)
        } else if block < self.input + self.output {
            (Space::Output, block - self.input)
        } else {
            (Space::Scratch, block - self.input - self.output)
        };
        Slot::of_parts(space, block, part, 1)
    }
}

const STEPS_PER_WORD: usize = u64::BITS as usize;

/// Words of [`Across`], at most, where that leaves room for any steps at all: 128 MiB.
const KNOWN_WORDS_MAX: usize = 1 << 24;

/// For each step of one rank, a bit for every step of that rank that has ended when it begins, as the waits within the
/// rank say.
struct Within {
    words: usize,
    bits: Vec<u64>,
}

impl Within {
    fn of(graph: &Graph, rank: Rank, sequence: &[StepId]) -> Self {
        let steps = &graph.program.ranks[rank].steps;
        let words = steps.len().div_ceil(STEPS_PER_WORD);
        let mut bits = vec![0u64; steps.len() * words];
        for &step in sequence {
            let at = step as usize * words;
            for &earlier in &steps[step as usize].after {
                let earlier = earlier as usize;
                for word in 0..words {
                    bits[at + word] |= bits[earlier * words + word];
                }
                bits[at + earlier / STEPS_PER_WORD] |= 1 << (earlier % STEPS_PER_WORD);
            }
        }
        Within { words, bits }
    }

    fn ordered(&self, one: StepId, other: StepId) -> bool {
        let follows = |later: StepId, earlier: StepId| {
            let (word, bit) = (earlier as usize / STEPS_PER_WORD, earlier as usize % STEPS_PER_WORD);
            self.bits[later as usize * self.words + word] >> bit & 1 == 1
        };
        follows(one, other) || follows(other, one)
    }
}

/// For some steps of one rank, a bit for each of them whose accesses have certainly ended when it begins its own, whatever
/// way that takes through other ranks.
struct Across {
    /// Rising.
    steps: Vec<StepId>,
    words: usize,
    bits: Vec<u64>,
}

impl Across {
    /// Carries the bits along everything that happens before something else.
    fn of(graph: &Graph, rank: Rank, steps: impl Iterator<Item = StepId>) -> Self {
        let steps: Vec<StepId> = steps.collect::<BTreeSet<_>>().into_iter().collect();
        let matches = graph.matches;
        let (first, words) = (matches.first[rank], steps.len().div_ceil(STEPS_PER_WORD));
        let mut column = vec![None; matches.first[rank + 1] - first];
        steps.iter().enumerate().for_each(|(index, &step)| column[step as usize] = Some(index));
        let mut known = vec![0u64; 2 * matches.steps() * words];
        for &node in &graph.order {
            let at = node as usize * words;
            for &earlier in graph.before(node) {
                let from = earlier as usize * words;
                for word in 0..words {
                    known[at + word] |= known[from + word];
                }
            }
            // A step of this rank ends here: itself, or the send whose receive this is.
            let step = node as usize / 2;
            let send = matches.peer[step] as usize;
            for ended in [step, send] {
                let index = ended.checked_sub(first).and_then(|ended| column.get(ended).copied().flatten());
                if let Some(index) = index.filter(|_| is_end(node) && (ended == step || matches.send[ended])) {
                    known[at + index / STEPS_PER_WORD] |= 1 << (index % STEPS_PER_WORD);
                }
            }
        }
        let mut bits = Vec::with_capacity(steps.len() * words);
        for step in steps.iter().map(|&step| first + step as usize) {
            let start = 2 * step * words;
            let sender = if matches.send[step] { NONE } else { matches.peer[step] };
            for word in 0..words {
                let at_sender = if sender == NONE { 0 } else { known[2 * sender as usize * words + word] };
                bits.push(known[start + word] | at_sender);
            }
        }
        Across { steps, words, bits }
    }

    /// Of steps that it was made for.
    fn ordered(&self, one: StepId, other: StepId) -> bool {
        let follows = |later: StepId, earlier: StepId| {
            let (Ok(later), Ok(earlier)) = (self.steps.binary_search(&later), self.steps.binary_search(&earlier))
            else {
                return false;
            };
            self.bits[later * self.words + earlier / STEPS_PER_WORD] >> (earlier % STEPS_PER_WORD) & 1 == 1
        };
        follows(one, other) || follows(other, one)
    }
}
