//! Do two steps of a rank touch one cell at the same time, one of them writing?
//!
//! A local step touches its slots from its start to its end. A send reads from its start until it or its receive has
//! ended, whichever is known first. A receive touches nothing before its message exists, so it begins when both it and
//! its send have started: an order that goes through a peer counts.

use paceline_plan::Rank;

use super::order::{Graph, is_end};
use super::shape::NONE;
use super::{Reason, Refusal};
use crate::Place;
use crate::program::{Slot, Space, StepId, blocks};

/// Checks every rank, in place or not.
pub(super) fn check(graph: &Graph, in_place: &[bool]) -> Result<(), Refusal> {
    let program = graph.program;
    let mut known = Vec::new();
    for rank in 0..program.ranks.len() {
        let place = Place { kind: program.kind, rank, world: program.ranks.len(), root: program.root };
        let finished = Finished::before_each_step(graph, rank, &mut known);
        for &in_place in in_place {
            check_rank(graph, &place, &finished, in_place)?;
        }
    }
    Ok(())
}

fn check_rank(graph: &Graph, place: &Place, finished: &Finished, in_place: bool) -> Result<(), Refusal> {
    for (cell, touches) in cells(graph, place, in_place) {
        for (index, &(step, writes)) in touches.iter().enumerate() {
            for &(other, other_writes) in &touches[..index] {
                if step != other && (writes || other_writes) && !finished.ordered(step, other) {
                    return Err(Refusal {
                        related: vec![(place.rank, other)],
                        in_place,
                        ..Refusal::at(place.rank, step, Reason::Hazard { other, cell })
                    });
                }
            }
        }
    }
    Ok(())
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

/// For each step of one rank, a bit for every step of that rank whose accesses have certainly ended when it begins its.
struct Finished {
    words: usize,
    bits: Vec<u64>,
}

impl Finished {
    /// Carries the bits along everything that happens before something else. `known` is memory to reuse.
    fn before_each_step(graph: &Graph, rank: Rank, known: &mut Vec<u64>) -> Self {
        let matches = graph.matches;
        let (first, end) = (matches.first[rank], matches.first[rank + 1]);
        let words = (end - first).div_ceil(64);
        known.clear();
        known.resize(2 * matches.steps() * words, 0);
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
                if is_end(node) && (first..end).contains(&ended) && (ended == step || matches.send[ended]) {
                    known[at + (ended - first) / 64] |= 1 << ((ended - first) % 64);
                }
            }
        }
        let mut bits = Vec::with_capacity((end - first) * words);
        for step in first..end {
            let start = 2 * step * words;
            let sender = if matches.send[step] { NONE } else { matches.peer[step] };
            for word in 0..words {
                let at_sender = if sender == NONE { 0 } else { known[2 * sender as usize * words + word] };
                bits.push(known[start + word] | at_sender);
            }
        }
        Finished { words, bits }
    }

    fn ordered(&self, one: StepId, other: StepId) -> bool {
        let follows = |later: StepId, earlier: StepId| {
            self.bits[later as usize * self.words + earlier as usize / 64] >> (earlier % 64) & 1 == 1
        };
        follows(one, other) || follows(other, one)
    }
}
