use crate::program::{Slot, StepId};

/// Finds for each step, in sequential order, the earlier ones that it must wait for: those that write what it touches, or
/// touch what it writes, except those for which a step waits that it waits for.
///
/// For each cell (a part of a block) it remembers who wrote it last, and who has read it since. Whoever came before has been
/// waited for by them. So the cost of a step is about the cells that it touches and, for each wait, a bit per step that lies
/// between the wait's own waits and the step; not the number of earlier steps.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// Input and output as different memories, and as one.
    apart: Memory,
    in_place: Memory,
    /// What the next step may have to wait for.
    candidates: Vec<StepId>,
    ancestors: Ancestors,
    steps: StepId,
}

/// What the cells of one rank have last been used for, space by space.
#[derive(Debug, Default)]
struct Memory {
    cells: [Vec<Cell>; 3],
    /// Readers: a step, and the next entry of the same cell.
    readers: Vec<(StepId, u32)>,
}

/// A part of a block.
#[derive(Clone, Copy, Debug)]
struct Cell {
    /// The last step that wrote it.
    writer: StepId,
    /// The first entry of those that have read it since.
    readers: u32,
}

/// For each step, a bit for every step that it follows, without the words at both ends that are zero.
#[derive(Debug, Default)]
struct Ancestors {
    /// Of each step: the first word, and where the words begin and end in `words`.
    ranges: Vec<(usize, usize, usize)>,
    words: Vec<u64>,
    /// The bits of the step in hand.
    bits: Vec<u64>,
}

/// No step, no entry.
const NONE: u32 = u32::MAX;

impl Waits {
    /// The next step touches these slots when input and output are different memories.
    pub fn touch(&mut self, parts: u32, reads: impl Iterator<Item = Slot>, write: Option<Slot>) {
        self.apart.touch(self.steps, parts, reads, write, &mut self.candidates);
    }

    /// The next step touches these slots when input and output are one memory, and the slots are named so that those are
    /// equal that are the same memory.
    pub fn touch_in_place(&mut self, parts: u32, reads: impl Iterator<Item = Slot>, write: Option<Slot>) {
        self.in_place.touch(self.steps, parts, reads, write, &mut self.candidates);
    }

    /// The next step waits for this one, whatever they touch.
    pub fn wait_for(&mut self, step: StepId) {
        if step < self.steps {
            self.candidates.push(step);
        }
    }

    /// What the step waits for, rising. What comes now is about the one after it.
    pub fn next_step(&mut self) -> Vec<StepId> {
        // From the latest to the earliest: whatever a later one follows need not be named.
        self.candidates.sort_unstable_by(|a, b| b.cmp(a));
        let mut after = self.ancestors.next_step(&self.candidates);
        after.reverse();
        self.candidates.clear();
        self.steps += 1;
        after
    }
}

impl Memory {
    fn touch(
        &mut self,
        step: StepId,
        parts: u32,
        reads: impl Iterator<Item = Slot>,
        write: Option<Slot>,
        candidates: &mut Vec<StepId>,
    ) {
        for slot in reads {
            let (space, range) = self.range(slot, parts);
            for cell in &mut self.cells[space][range] {
                candidates.extend(Some(cell.writer).filter(|&writer| writer != NONE));
                self.readers.push((step, cell.readers));
                cell.readers = self.readers.len() as u32 - 1;
            }
        }
        let Some(slot) = write else { return };
        let (space, range) = self.range(slot, parts);
        for index in range {
            let cell = std::mem::replace(&mut self.cells[space][index], Cell { writer: step, readers: NONE });
            candidates.extend(Some(cell.writer).filter(|&writer| writer != NONE));
            let mut entry = cell.readers;
            while let Some(&(reader, next)) = self.readers.get(entry as usize) {
                // It may read what it writes.
                candidates.extend(Some(reader).filter(|&reader| reader != step));
                entry = next;
            }
        }
    }

    /// A slot is some parts of one block, or all parts of some: one range of cells. Afterwards they are there.
    fn range(&mut self, slot: Slot, parts: u32) -> (usize, std::ops::Range<usize>) {
        let space = slot.space as usize;
        let begin = slot.block as usize * parts as usize + slot.part as usize;
        let end = begin + slot.blocks as usize * slot.parts as usize;
        if self.cells[space].len() < end {
            self.cells[space].resize(end, Cell { writer: NONE, readers: NONE });
        }
        (space, begin..end)
    }
}

impl Ancestors {
    /// Of candidates, the latest first, those that no later one follows; the next step follows them all.
    fn next_step(&mut self, candidates: &[StepId]) -> Vec<StepId> {
        let Some(&latest) = candidates.first() else {
            self.ranges.push((0, 0, 0));
            return Vec::new();
        };
        let end = latest as usize / 64 + 1;
        let mut begin = end;
        self.bits.resize(self.bits.len().max(end), 0);
        let mut after = Vec::new();
        for &candidate in candidates {
            let (word, bit) = (candidate as usize / 64, 1 << (candidate % 64));
            if self.bits[word] & bit != 0 {
                continue;
            }
            after.push(candidate);
            let (first, from, to) = self.ranges[candidate as usize];
            let theirs = &self.words[from..to];
            self.bits[first..first + theirs.len()].iter_mut().zip(theirs).for_each(|(all, these)| *all |= these);
            self.bits[word] |= bit;
            begin = begin.min(word).min(if theirs.is_empty() { word } else { first });
        }
        let from = self.words.len();
        self.words.extend_from_slice(&self.bits[begin..end]);
        self.bits[begin..end].fill(0);
        self.ranges.push((begin, from, self.words.len()));
        after
    }
}

#[cfg(test)]
mod tests {
    use crate::program::{Action, Slot, StepId};
    use crate::registry::registry;
    use crate::{Place, RankProgram, Topology};

    /// What a step must wait for, by comparing it with every earlier one.
    fn by_definition(place: &Place, program: &RankProgram, apart: bool) -> Vec<Vec<StepId>> {
        let mut ancestors: Vec<Vec<bool>> = Vec::new();
        let mut all = Vec::new();
        for (index, step) in program.steps.iter().enumerate() {
            let mut follows = vec![false; index];
            let mut after = Vec::new();
            for earlier in (0..index).rev() {
                if !follows[earlier] && conflict(place, &program.steps[earlier].action, &step.action, apart) {
                    after.insert(0, earlier as StepId);
                    follows[earlier] = true;
                    (0..earlier).for_each(|before| follows[before] |= ancestors[earlier][before]);
                }
            }
            ancestors.push(follows);
            all.push(after);
        }
        all
    }

    fn conflict(place: &Place, one: &Action, other: &Action, apart: bool) -> bool {
        let hits = |a: &Action, b: &Action, name: &dyn Fn(Slot) -> Slot| {
            let Some(write) = a.write() else { return false };
            b.reads().chain(b.write()).any(|slot| name(write).overlaps(&name(slot)))
        };
        let either = |name: &dyn Fn(Slot) -> Slot| hits(one, other, name) || hits(other, one, name);
        let moves = !place.vanishes_in_place(one) && !place.vanishes_in_place(other);
        either(&|slot| slot) || (!apart && moves && either(&|slot| place.in_place(slot)))
    }

    #[test]
    fn every_algorithm_waits_for_what_it_must() {
        let mut waits = 0;
        for (world, algorithm) in (1..=13).flat_map(|world| registry().iter().map(move |algorithm| (world, algorithm)))
        {
            let topology = Topology::of_hosts(&(0..world).map(|rank| rank % 3).collect::<Vec<_>>());
            for rank in (0..world).filter(|_| algorithm.supports(world)) {
                let program = algorithm.rank_program(rank, &topology, 0);
                let place = Place { kind: algorithm.kind(), rank, world, root: 0 };
                if algorithm.kind() == paceline_plan::CollectiveKind::Barrier {
                    continue; // It waits for more than memory.
                }
                let found: Vec<_> = program.steps.iter().map(|step| step.after.clone()).collect();
                let told = format!("{} {}, rank {rank} of {world}", algorithm.name(), algorithm.kind());
                assert_eq!(found, by_definition(&place, &program, false), "{told}");
                waits += found.iter().map(Vec::len).sum::<usize>();
            }
        }
        assert!(waits > 10_000, "only {waits} waits");
    }
}
