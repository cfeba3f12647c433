//! Which way a wrong value came: only asked once a program has been refused.

use std::collections::{HashMap, HashSet};

use paceline_plan::Rank;

use super::hazard::Layout;
use super::order::Graph;
use super::shape::NONE;
use crate::Place;
use crate::program::{Slot, StepId};

/// Values that are followed from step to step, at most: nobody reads a longer path.
const FOLLOWED_MAX: usize = 1 << 16;

/// Of the values that one step handles.
const STARTS_MAX: u32 = 1 << 10;

/// Every step that had a hand in what a step handles, or in what a cell holds in the end; the earliest first, without
/// the step itself. Of very many, some.
pub(super) fn path(graph: &Graph, in_place: bool, rank: Rank, to: Destination) -> Vec<(Rank, StepId)> {
    let mut when = vec![0; 2 * graph.matches.steps()];
    (0..).zip(&graph.order).for_each(|(position, &node)| when[node as usize] = position);
    let mut tracer = Tracer { graph, in_place, when, writes: HashMap::new() };
    let (start, own) = match to {
        Destination::Step(step) => {
            let own = graph.matches.first[rank] + step as usize;
            let action = graph.action(own);
            let slot = action.write().or_else(|| action.reads().next());
            let cells = slot.map_or(0, |slot| (slot.blocks * slot.parts).min(STARTS_MAX));
            ((0..cells).map(|index| (own, index)).collect(), Some(own))
        }
        Destination::Output(cell) => (tracer.writer(rank, cell, 0, u32::MAX).into_iter().collect(), None),
    };
    let mut steps: Vec<usize> = tracer.trace(start).into_iter().filter(|step| Some(*step) != own).collect();
    steps.sort_by_key(|&step| tracer.when[2 * step + 1]);
    steps.into_iter().map(|step| graph.locate(step as u32)).collect()
}

/// Where a wrong value turned up.
pub(super) enum Destination {
    /// In the hands of this step.
    Step(StepId),
    /// In this cell of the output.
    Output(Slot),
}

struct Tracer<'a> {
    graph: &'a Graph<'a>,
    in_place: bool,
    /// The position of each start and end in the order of the symbolic execution.
    when: Vec<u32>,
    /// Of the ranks that were asked about: all writes, rising.
    writes: HashMap<Rank, Vec<Write>>,
}

/// A write to a cell.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Write {
    cell: u32,
    when: u32,
    /// Counted through all ranks.
    step: u32,
    /// Which of the cells of that step.
    index: u32,
}

impl Tracer<'_> {
    /// Follows values, as (step, which of its cells), back to the inputs.
    fn trace(&mut self, mut open: Vec<(usize, u32)>) -> HashSet<usize> {
        let graph = self.graph;
        let mut seen: HashSet<_> = open.iter().copied().collect();
        while let Some((step, index)) = open.pop().filter(|_| seen.len() <= FOLLOWED_MAX) {
            let (rank, _) = graph.locate(step as u32);
            let send = graph.matches.send[step];
            let time = self.when[2 * step + usize::from(!send)];
            let mut sources = Vec::new();
            for read in graph.action(step).reads() {
                sources.extend(self.writer(rank, read, index, time));
            }
            let peer = graph.matches.peer[step];
            if !send && peer != NONE {
                sources.push((peer as usize, index));
            }
            open.extend(sources.into_iter().filter(|source| seen.insert(*source)));
        }
        seen.into_iter().map(|(step, _)| step).collect()
    }

    /// The step that wrote one of the cells of a slot last before this time, and as which of its own.
    fn writer(&mut self, rank: Rank, slot: Slot, index: u32, before: u32) -> Option<(usize, u32)> {
        let memory = Memory::of(self.graph, rank, self.in_place);
        let cell = memory.layout.nth_cell(memory.located(slot), index)?;
        let (graph, when) = (self.graph, &self.when);
        let writes = self.writes.entry(rank).or_insert_with(|| memory.writes(graph, when));
        let earlier = writes.partition_point(|write| (write.cell, write.when) < (cell, before));
        let last = writes[..earlier].last().filter(|write| write.cell == cell)?;
        Some((last.step as usize, last.index))
    }
}

/// The cells of one rank.
struct Memory {
    place: Place,
    layout: Layout,
    in_place: bool,
}

impl Memory {
    fn of(graph: &Graph, rank: Rank, in_place: bool) -> Self {
        let program = graph.program;
        let place = Place { kind: program.kind, rank, world: program.ranks.len(), root: program.root };
        let layout = Layout::new(&place, program.parts, program.ranks[rank].scratch_blocks);
        Memory { place, layout, in_place }
    }

    /// Where a slot lies.
    fn located(&self, slot: Slot) -> Slot {
        if self.in_place { self.place.in_place(slot) } else { slot }
    }

    /// All writes, rising.
    fn writes(&self, graph: &Graph, when: &[u32]) -> Vec<Write> {
        let mut writes = Vec::new();
        for step in graph.matches.first[self.place.rank]..graph.matches.first[self.place.rank + 1] {
            let action = graph.action(step);
            let vanishes = self.in_place && self.place.vanishes_in_place(action);
            let Some(slot) = action.write().filter(|_| !vanishes) else { continue };
            let (when, step, mut index) = (when[2 * step + 1], step as u32, 0);
            self.layout.each_cell(self.located(slot), |cell| {
                writes.push(Write { cell: cell as u32, when, step, index });
                index += 1;
            });
        }
        writes.sort_unstable();
        writes
    }
}
