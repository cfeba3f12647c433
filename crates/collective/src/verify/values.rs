//! Symbolic execution: does every rank end with what the collective promises?
//!
//! There are no hazards any more when this runs, so any order that respects the waits gives the same values.

use paceline_plan::{CollectiveKind, Rank};

use super::expression::{Expressions, Id, Piece};
use super::hazard::Layout;
use super::order::{Graph, is_end};
use super::path::{Destination, path};
use super::{Reason, Refusal};
use crate::Place;
use crate::program::{Action, Fold, Order, Slot, Space, StepId, blocks};

/// Runs the program and compares the outputs, with input and output apart or as one memory.
pub(super) fn check(graph: &Graph, in_place: bool) -> Result<(), Refusal> {
    let mut execution = Execution::new(graph, in_place);
    let explain = |refusal: Refusal| {
        let to = match (&refusal.reason, refusal.step) {
            (Reason::Result { cell, .. } | Reason::Disagree { cell, .. }, _) => Destination::Output(*cell),
            (_, step) => Destination::Step(step.unwrap_or(0)),
        };
        Refusal { path: path(graph, in_place, refusal.rank, to), in_place, ..refusal }
    };
    execution.run().map_err(explain)?;
    execution.check_outputs().map_err(explain)
}

struct Execution<'a> {
    graph: &'a Graph<'a>,
    in_place: bool,
    expressions: Expressions,
    memories: Vec<Memory>,
    /// What each send took with it, by step.
    messages: Vec<Vec<Id>>,
}

/// The cells of one rank, and which step wrote each last.
struct Memory {
    place: Place,
    layout: Layout,
    cells: Vec<Option<Id>>,
    writer: Vec<Option<StepId>>,
}

impl<'a> Execution<'a> {
    fn new(graph: &'a Graph, in_place: bool) -> Self {
        let program = graph.program;
        let world = program.ranks.len();
        let silent = (program.kind.contributors(world) < world).then_some(program.root);
        let mut expressions = Expressions::new(world, silent);
        let mut memories = Vec::with_capacity(world);
        for (rank, content) in program.ranks.iter().enumerate() {
            let place = Place { kind: program.kind, rank, world, root: program.root };
            let layout = Layout::new(&place, program.parts, content.scratch_blocks);
            let (cells, writer) = (vec![None; layout.cells()], vec![None; layout.cells()]);
            let mut memory = Memory { place, layout, cells, writer };
            for block in 0..blocks(program.kind, rank, program.root, world).0 {
                for part in 0..program.parts {
                    let slot = memory.located(Slot::of_parts(Space::Input, block, part, 1), in_place);
                    let value = expressions.input(rank, (block, part));
                    let cells = &mut memory.cells;
                    memory.layout.each_cell(slot, |cell| cells[cell] = Some(value));
                }
            }
            memories.push(memory);
        }
        Execution { graph, in_place, expressions, memories, messages: vec![Vec::new(); graph.matches.steps()] }
    }

    /// A send takes its message when it starts; everything else happens at its end.
    fn run(&mut self) -> Result<(), Refusal> {
        for &node in &self.graph.order {
            let global = node / 2;
            if is_end(node) == self.graph.matches.send[global as usize] {
                continue;
            }
            let (rank, step) = self.graph.locate(global);
            let action = self.graph.action(global as usize);
            self.execute(rank, step, global, action).map_err(|reason| Refusal::at(rank, step, reason))?;
        }
        Ok(())
    }

    fn execute(&mut self, rank: Rank, step: StepId, global: u32, action: &Action) -> Result<(), Reason> {
        let by = (rank, step);
        match action {
            Action::Send { from, .. } => {
                self.messages[global as usize] = self.read(rank, *from)?;
            }
            Action::Receive { into, fold, .. } => {
                let send = self.graph.matches.peer[global as usize];
                let message = std::mem::take(&mut self.messages[send as usize]);
                let values = match fold {
                    None => message,
                    Some(fold) => self.fold(by, fold, message)?,
                };
                self.write(rank, step, *into, &values);
            }
            Action::Combine { left, right, into, combine, last } => {
                let pairs = self.read(rank, *left)?.into_iter().zip(self.read(rank, *right)?).collect();
                let values = self.combine(by, *combine, pairs, *last)?;
                self.write(rank, step, *into, &values);
            }
            Action::Copy { .. } if self.in_place && self.memories[rank].place.vanishes_in_place(action) => {}
            Action::Copy { from, into } => {
                let values = self.read(rank, *from)?;
                self.write(rank, step, *into, &values);
            }
            Action::Map { from, into, kernel } => {
                let mut values = self.read(rank, *from)?;
                let of = values.len();
                let mut head = None;
                for (index, value) in values.iter_mut().enumerate() {
                    *value = self.expressions.map(*kernel, *value, by, Piece { head, index, of });
                    head.get_or_insert(*value);
                }
                self.write(rank, step, *into, &values);
            }
        }
        Ok(())
    }

    fn fold(&mut self, by: (Rank, StepId), fold: &Fold, message: Vec<Id>) -> Result<Vec<Id>, Reason> {
        let local = self.read(by.0, fold.with)?.into_iter();
        let pairs = match fold.order {
            Order::LocalFirst => local.zip(message).collect(),
            Order::MessageFirst => message.into_iter().zip(local).collect(),
        };
        self.combine(by, fold.combine, pairs, fold.last)
    }

    fn combine(
        &mut self,
        by: (Rank, StepId),
        combine: crate::Combine,
        pairs: Vec<(Id, Id)>,
        last: bool,
    ) -> Result<Vec<Id>, Reason> {
        let of = pairs.len();
        let mut values: Vec<Id> = Vec::with_capacity(of);
        for (index, pair) in pairs.into_iter().enumerate() {
            let piece = Piece { head: values.first().copied(), index, of };
            values.push(self.expressions.combine(combine, pair, last, by, piece)?);
        }
        Ok(values)
    }

    /// The values in a slot. All of them are defined, and none is torn out of what a kernel wrote as a whole.
    fn read(&self, rank: Rank, slot: Slot) -> Result<Vec<Id>, Reason> {
        let memory = &self.memories[rank];
        let mut values = Vec::new();
        let mut undefined = None;
        memory.layout.each_cell(memory.located(slot, self.in_place), |cell| match memory.cells[cell] {
            Some(value) => values.push(value),
            None => undefined = undefined.or(Some(memory.layout.cell(cell))),
        });
        if let Some(cell) = undefined {
            return Err(Reason::Undefined(cell));
        }
        let mut expected = None;
        for &value in &values {
            let piece = self.expressions.get(value).piece;
            let fits = match (expected, piece) {
                (None, None | Some((_, 0, _))) => true,
                (Some(next), Some(piece)) => next == piece,
                _ => false,
            };
            if !fits {
                return Err(Reason::Torn(slot));
            }
            expected = piece.and_then(|(head, index, of)| (index + 1 < of).then_some((head, index + 1, of)));
        }
        if expected.is_some() { Err(Reason::Torn(slot)) } else { Ok(values) }
    }

    fn write(&mut self, rank: Rank, step: StepId, slot: Slot, values: &[Id]) {
        let memory = &mut self.memories[rank];
        let slot = memory.located(slot, self.in_place);
        let (cells, writer) = (&mut memory.cells, &mut memory.writer);
        let mut values = values.iter();
        memory.layout.each_cell(slot, |cell| {
            cells[cell] = values.next().copied();
            writer[cell] = Some(step);
        });
    }

    /// Of all wrong outputs, that which was written first is nearest to the fault; the others may only be its copies. What
    /// nobody wrote comes before all.
    fn check_outputs(&self) -> Result<(), Refusal> {
        let mut ends = Vec::new();
        let mut earliest: Option<(u32, Rank, Slot, Promise, Fault)> = None;
        for (rank, cell, promise) in self.outputs() {
            let Some(fault) = self.fault(rank, cell, &promise) else { continue };
            let Some((maker, step)) = fault.by else { return Err(self.refusal(rank, cell, &promise, fault)) };
            if ends.is_empty() {
                ends = self.ends();
            }
            let end = ends.get(self.graph.matches.first[maker] + step as usize).copied().unwrap_or(0);
            if earliest.is_none_or(|(first, ..)| end < first) {
                earliest = Some((end, rank, cell, promise, fault));
            }
        }
        earliest.map_or(Ok(()), |(_, rank, cell, promise, fault)| Err(self.refusal(rank, cell, &promise, fault)))
    }

    /// Every cell of an output of which the collective promises something.
    fn outputs(&self) -> impl Iterator<Item = (Rank, Slot, Promise)> {
        let program = self.graph.program;
        let world = program.ranks.len();
        (0..world).flat_map(move |rank| {
            let outputs = blocks(program.kind, rank, program.root, world).1;
            let promised = move |block| Some((block, Promise::of(program.kind, rank, program.root, block)?));
            (0..outputs).filter_map(promised).flat_map(move |(block, promise)| {
                (0..program.parts).map(move |part| (rank, Slot::of_parts(Space::Output, block, part, 1), promise))
            })
        })
    }

    /// When each step ends, counted through all ranks.
    fn ends(&self) -> Vec<u32> {
        let mut ends = vec![0; self.graph.matches.steps()];
        for (position, &node) in (0..).zip(&self.graph.order).filter(|&(_, &node)| is_end(node)) {
            ends[node as usize / 2] = position;
        }
        ends
    }

    fn fault(&self, rank: Rank, cell: Slot, promise: &Promise) -> Option<Fault> {
        let (value, writer) = self.memories[rank].cell(cell, self.in_place);
        let by = writer.map(|writer| (rank, writer));
        let Some(value) = value else { return Some(Fault { what: Wrong::Content, by }) };
        let expression = self.expressions.get(value);
        let (kind, world) = (self.graph.program.kind, self.memories.len());
        let complete = match promise.from {
            Some(from) => self.expressions.is_of(value, from),
            None => self.expressions.lacks(value).is_none(),
        };
        if expression.place != (promise.block, cell.part) || !complete {
            return Some(Fault { what: Wrong::Content, by });
        }
        if promise.from.is_none() && kind.contributors(world) > 1 && !expression.last {
            return Some(Fault { what: Wrong::NotLast, by: Some(expression.made_by.unwrap_or((rank, 0))) });
        }
        let first = || self.memories[0].cell(cell, self.in_place).0;
        let differs = matches!(kind, CollectiveKind::AllReduce | CollectiveKind::PushPull) && first() != Some(value);
        differs.then_some(Fault { what: Wrong::Disagree, by })
    }

    /// Says what is wrong. That takes time and memory, and very many outputs may be wrong.
    fn refusal(&self, rank: Rank, cell: Slot, promise: &Promise, fault: Fault) -> Refusal {
        let (value, writer) = self.memories[rank].cell(cell, self.in_place);
        let made_by = value.and_then(|value| self.expressions.get(value).made_by);
        let (related, reason): (Vec<_>, _) = match fault.what {
            Wrong::Content => {
                let found = value.map_or_else(|| "nobody writes it".into(), |value| self.describe(value));
                let what = format!("should hold {promise}, but {found}");
                (made_by.into_iter().collect(), Reason::Result { cell, what })
            }
            Wrong::NotLast => (writer.map(|writer| (rank, writer)).into_iter().collect(), Reason::NotLast(cell)),
            Wrong::Disagree => {
                let (_, first_writer) = self.memories[0].cell(cell, self.in_place);
                let first = first_writer.map(|step| (0, step));
                (first.into_iter().chain(made_by).collect(), Reason::Disagree { cell, other: 0 })
            }
        };
        let (rank, step) = fault.by.map_or((rank, None), |(rank, step)| (rank, Some(step)));
        Refusal { related, ..Refusal::of(rank, step, reason) }
    }

    fn describe(&self, value: Id) -> String {
        let ranks: Vec<_> = self.expressions.contributors(value).map(|rank| rank.to_string()).collect();
        let (block, part) = self.expressions.get(value).place;
        format!("holds part {part} of block {block} of rank {}", ranks.join(", "))
    }
}

/// A cell of an output that is not what the collective promises.
#[derive(Clone, Copy)]
struct Fault {
    what: Wrong,
    /// Who made it so: the last that wrote it, or who made what should be final.
    by: Option<(Rank, StepId)>,
}

#[derive(Clone, Copy)]
enum Wrong {
    Content,
    NotLast,
    Disagree,
}

impl Memory {
    /// Where a slot lies.
    fn located(&self, slot: Slot, in_place: bool) -> Slot {
        if in_place { self.place.in_place(slot) } else { slot }
    }

    /// What a cell holds, and who wrote it last.
    fn cell(&self, cell: Slot, in_place: bool) -> (Option<Id>, Option<StepId>) {
        let mut content = (None, None);
        let slot = self.located(cell, in_place);
        self.layout.each_cell(slot, |number| content = (self.cells[number], self.writer[number]));
        content
    }
}

/// What a block of an output must be: a block of one rank, or (without a rank) the reduction of a block of all that
/// contribute.
#[derive(Clone, Copy)]
struct Promise {
    from: Option<Rank>,
    block: u32,
}

impl Promise {
    /// None where the collective promises nothing.
    fn of(kind: CollectiveKind, rank: Rank, root: Rank, block: u32) -> Option<Promise> {
        let (from, block) = match kind {
            CollectiveKind::AllReduce | CollectiveKind::Reduce => (None, 0),
            CollectiveKind::PushPull | CollectiveKind::Push => (None, 0),
            CollectiveKind::ReduceScatter => (None, rank as u32),
            CollectiveKind::AllGather | CollectiveKind::Gather => (Some(block as Rank), 0),
            CollectiveKind::Broadcast => (Some(root), 0),
            CollectiveKind::Scatter => (Some(root), rank as u32),
            CollectiveKind::AllToAll => (Some(block as Rank), rank as u32),
            CollectiveKind::SendReceive if rank == 1 => (Some(0), 0),
            CollectiveKind::SendReceive | CollectiveKind::Barrier => return None,
        };
        Some(Promise { from, block })
    }
}

impl std::fmt::Display for Promise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.from {
            Some(rank) => write!(f, "block {} of rank {rank}", self.block),
            None => write!(f, "the reduction of block {} of all ranks", self.block),
        }
    }
}
