//! Which way a wrong value came: only asked once a program has been refused.

use std::collections::HashSet;

use paceline_plan::Rank;

use super::hazard::Layout;
use super::order::Graph;
use super::shape::NONE;
use crate::Place;
use crate::program::{Slot, StepId};

/// Every step that had a hand in what a step handles, or in what a cell holds in the end; the earliest first, without
/// the step itself.
pub(super) fn path(graph: &Graph, in_place: bool, rank: Rank, to: Destination) -> Vec<(Rank, StepId)> {
    let mut when = vec![0; 2 * graph.matches.steps()];
    graph.order.iter().enumerate().for_each(|(position, &node)| when[node as usize] = position);
    let tracer = Tracer { graph, in_place, when };
    let (start, own) = match to {
        Destination::Step(step) => {
            let own = graph.matches.first[rank] + step as usize;
            let action = graph.action(own);
            let slot = action.write().or_else(|| action.reads().next());
            let cells = slot.map_or(0, |slot| (slot.blocks * slot.parts) as usize);
            ((0..cells).map(|index| (own, index)).collect(), Some(own))
        }
        Destination::Output(cell) => (tracer.writer(rank, cell, usize::MAX).into_iter().collect(), None),
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
    when: Vec<usize>,
}

impl Tracer<'_> {
    /// Follows values, as (step, which of its cells), back to the inputs.
    fn trace(&self, mut open: Vec<(usize, usize)>) -> HashSet<usize> {
        let mut seen: HashSet<_> = open.iter().copied().collect();
        while let Some((step, index)) = open.pop() {
            let (rank, _) = self.graph.locate(step as u32);
            let send = self.graph.matches.send[step];
            let time = self.when[2 * step + usize::from(!send)];
            let mut sources = Vec::new();
            for read in self.graph.action(step).reads() {
                sources.extend(self.cell(rank, read, index).and_then(|cell| self.writer(rank, cell, time)));
            }
            let peer = self.graph.matches.peer[step];
            if !send && peer != NONE {
                sources.push((peer as usize, index));
            }
            open.extend(sources.into_iter().filter(|source| seen.insert(*source)));
        }
        seen.into_iter().map(|(step, _)| step).collect()
    }

    /// The step that wrote a cell last before this time, and as which of its cells.
    fn writer(&self, rank: Rank, cell: Slot, before: usize) -> Option<(usize, usize)> {
        let (first, end) = (self.graph.matches.first[rank], self.graph.matches.first[rank + 1]);
        let wanted = self.cell(rank, cell, 0);
        let place = self.place(rank);
        let writers = (first..end).filter_map(|step| {
            let action = self.graph.action(step);
            let write = action.write().filter(|_| !(self.in_place && place.vanishes_in_place(action)))?;
            let mut cells = 0..(write.blocks * write.parts) as usize;
            let index = cells.find(|&index| self.cell(rank, write, index) == wanted)?;
            (self.when[2 * step + 1] < before).then_some((step, index))
        });
        writers.max_by_key(|&(step, _)| self.when[2 * step + 1])
    }

    /// One cell of a slot, where it lies in memory.
    fn cell(&self, rank: Rank, slot: Slot, index: usize) -> Option<Slot> {
        let place = self.place(rank);
        let layout = Layout::new(&place, self.graph.program.parts, self.graph.program.ranks[rank].scratch_blocks);
        let mut cells = Vec::new();
        let slot = if self.in_place { place.in_place(slot) } else { slot };
        layout.each_cell(slot, |number| cells.push(layout.cell(number)));
        cells.get(index).copied()
    }

    fn place(&self, rank: Rank) -> Place {
        let program = self.graph.program;
        Place { kind: program.kind, rank, world: program.ranks.len(), root: program.root }
    }
}
