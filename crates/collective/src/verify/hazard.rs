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
///
/// Of the steps that touch a cell, a read is compared with the write before it, a write also with the reads since: if these
/// are in order, so are all others. Most are by what the steps of their rank wait for: that is quickly seen. Only what is
/// left is looked for along everything that happens on all ranks.
pub(super) fn check(graph: &Graph, in_place: &[bool]) -> Result<(), Refusal> {
    let program = graph.program;
    for (rank, sequence) in sequences(graph).iter().enumerate() {
        let place = Place { kind: program.kind, rank, world: program.ranks.len(), root: program.root };
        let within = Within::of(graph, rank, sequence);
        for &in_place in in_place {
            check_rank(graph, &place, sequence, &within, in_place)?;
        }
    }
    Ok(())
}

/// The steps of each rank in an order in which they may begin to touch memory. A step whose accesses have certainly ended
/// when another begins its own stands before it; so do the steps for which it waits.
fn sequences(graph: &Graph) -> Vec<Vec<StepId>> {
    let matches = graph.matches;
    let mut sequences = vec![Vec::new(); graph.program.ranks.len()];
    let mut started = vec![false; matches.steps()];
    for &node in graph.order.iter().filter(|&&node| !is_end(node)) {
        let (step, peer) = (node / 2, matches.peer[node as usize / 2]);
        started[step as usize] = true;
        let there = peer != NONE && started[peer as usize];
        let begin = match matches.send[step as usize] {
            true => [Some(step), there.then_some(peer)],
            false => [(peer == NONE || there).then_some(step), None],
        };
        for (rank, step) in begin.into_iter().flatten().map(|step| graph.locate(step)) {
            sequences[rank].push(step);
        }
    }
    sequences
}

fn check_rank(
    graph: &Graph,
    place: &Place,
    sequence: &[StepId],
    within: &Within,
    in_place: bool,
) -> Result<(), Refusal> {
    let content = &graph.program.ranks[place.rank];
    let layout = Layout::new(place, graph.program.parts, content.scratch_blocks);
    let located = |slot: Slot| if in_place { place.in_place(slot) } else { slot };
    let mut accesses = Accesses::new(layout.cells());
    let mut suspects = Vec::new();
    for &step in sequence {
        let action = &content.steps[step as usize].action;
        if in_place && place.vanishes_in_place(action) {
            continue;
        }
        let mut compare = |earlier: StepId, cell: usize| {
            if earlier != step && !within.follows(step, earlier) {
                suspects.push(Suspects { earlier, later: step, cell: cell as u32 });
            }
        };
        for slot in action.reads() {
            layout.each_cell(located(slot), |cell| accesses.read(step, cell, &mut compare));
        }
        if let Some(slot) = action.write() {
            layout.each_cell(located(slot), |cell| accesses.write(step, cell, &mut compare));
        }
        if suspects.len() >= SUSPECTS_MAX {
            check_across(graph, place.rank, &layout, std::mem::take(&mut suspects), in_place)?;
        }
    }
    check_across(graph, place.rank, &layout, suspects, in_place)
}

/// Two steps that share a cell, and that their own rank does not order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Suspects {
    earlier: StepId,
    later: StepId,
    cell: u32,
}

/// So many are looked at together, about.
const SUSPECTS_MAX: usize = 1 << 20;

/// Looks for the order of suspects on the other ranks.
fn check_across(
    graph: &Graph,
    rank: Rank,
    layout: &Layout,
    mut suspects: Vec<Suspects>,
    in_place: bool,
) -> Result<(), Refusal> {
    suspects.sort_unstable();
    suspects.dedup_by_key(|suspects| (suspects.earlier, suspects.later));
    let at_once = STEPS_PER_WORD * (KNOWN_WORDS_MAX / (2 * graph.matches.steps()).max(1)).max(1);
    let of_one_step: Vec<_> = suspects.chunk_by(|one, other| one.earlier == other.earlier).collect();
    for some in of_one_step.chunks(at_once) {
        let across = Across::of(graph, rank, some.iter().map(|suspects| suspects[0].earlier).collect());
        let mut all = some.iter().copied().flatten();
        if let Some(racing) = all.find(|suspects| !across.follows(suspects.later, suspects.earlier)) {
            let (step, other) = (racing.later.max(racing.earlier), racing.later.min(racing.earlier));
            let reason = Reason::Hazard { other, cell: layout.cell(racing.cell as usize) };
            return Err(Refusal { related: vec![(rank, other)], in_place, ..Refusal::at(rank, step, reason) });
        }
    }
    Ok(())
}

/// Who has written each cell last, and who has read it since.
struct Accesses {
    /// The last that wrote it, and the first entry of those that have read it since.
    cells: Vec<(StepId, u32)>,
    /// A step, and the next entry of the same cell.
    readers: Vec<(StepId, u32)>,
}

impl Accesses {
    fn new(cells: usize) -> Self {
        Accesses { cells: vec![(NONE, NONE); cells], readers: Vec::new() }
    }

    /// Calls `compare` with what must be over when the next step reads this cell.
    fn read(&mut self, step: StepId, cell: usize, compare: &mut impl FnMut(StepId, usize)) {
        let (writer, readers) = &mut self.cells[cell];
        if *writer != NONE {
            compare(*writer, cell);
        }
        self.readers.push((step, *readers));
        *readers = self.readers.len() as u32 - 1;
    }

    /// As [`Accesses::read`], for a write.
    fn write(&mut self, step: StepId, cell: usize, compare: &mut impl FnMut(StepId, usize)) {
        let (writer, mut entry) = std::mem::replace(&mut self.cells[cell], (step, NONE));
        if writer != NONE {
            compare(writer, cell);
        }
        while let Some(&(reader, next)) = self.readers.get(entry as usize) {
            compare(reader, cell);
            entry = next;
        }
    }
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
        for block in 0..slot.blocks {
            let first = self.first(slot) + block * self.parts;
            (first..first + slot.parts).for_each(|cell| visit(cell as usize));
        }
    }

    /// The number of one of the cells that [`Layout::each_cell`] visits, counted from 0.
    pub fn nth_cell(&self, slot: Slot, index: u32) -> Option<u32> {
        let (block, part) = (index / slot.parts, index % slot.parts);
        (block < slot.blocks).then(|| self.first(slot) + block * self.parts + part)
    }

    fn first(&self, slot: Slot) -> u32 {
        let space = match slot.space {
            Space::Input => 0,
            Space::Output => self.input,
            Space::Scratch => self.input + self.output,
        };
        (space + slot.block) * self.parts + slot.part
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

    /// Has the earlier one ended when the later one begins?
    fn follows(&self, later: StepId, earlier: StepId) -> bool {
        let (word, bit) = (earlier as usize / STEPS_PER_WORD, earlier as usize % STEPS_PER_WORD);
        self.bits[later as usize * self.words + word] >> bit & 1 == 1
    }
}

/// For some steps of one rank, where it is known that their accesses have ended, whatever way that takes through other
/// ranks.
struct Across<'a> {
    graph: &'a Graph<'a>,
    rank: Rank,
    /// Rising.
    steps: Vec<StepId>,
    words: usize,
    /// For each start and end, a bit for each of the steps.
    known: Vec<u64>,
}

impl<'a> Across<'a> {
    /// Carries the bits along everything that happens before something else. The steps are rising.
    fn of(graph: &'a Graph, rank: Rank, steps: Vec<StepId>) -> Self {
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
        Across { graph, rank, steps, words, known }
    }

    /// Have the accesses of the earlier one, one of the steps, ended when the later one begins its own?
    fn follows(&self, later: StepId, earlier: StepId) -> bool {
        let Ok(index) = self.steps.binary_search(&earlier) else { return false };
        let matches = self.graph.matches;
        let later = matches.first[self.rank] + later as usize;
        let sender = Some(matches.peer[later]).filter(|&peer| peer != NONE && !matches.send[later]);
        [Some(later), sender.map(|sender| sender as usize)].into_iter().flatten().any(|step| {
            let start = 2 * step * self.words;
            self.known[start + index / STEPS_PER_WORD] >> (index % STEPS_PER_WORD) & 1 == 1
        })
    }
}
