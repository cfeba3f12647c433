//! A second opinion on programs, by running them: plain, exhaustive, and without a line in common with the verifier.
//!
//! The machine runs a program once for every start and every end of a step, each time holding that one back until
//! nothing else can happen. Steps lock the cells that they touch, so two that are not in order meet in one of these
//! runs: the one that holds back the end of the earlier. Where no two meet, the values are the same in every run, and
//! one run with sums of contributions in the cells tells what they are. So a program passes exactly if no schedule can
//! break it.

use std::collections::{BTreeMap, HashMap};

use paceline_collective::{Action, Place, Program, Slot, Space, Step, blocks};
use paceline_plan::CollectiveKind;

use crate::sums::Sums;

/// Is the program right in every schedule? `rendezvous`: a send ends after its receive, otherwise it may end at once.
pub fn check(program: &Program, rendezvous: bool) -> Result<(), String> {
    let plan = Plan::new(program, rendezvous)?;
    for in_place in [false, true] {
        let mut numbers = Numbers::new();
        let touches = plan.touches(in_place, &mut numbers)?;
        let run = |held_back: &dyn Fn(usize) -> bool| Run::new(&plan, &touches).finish(held_back);
        let order = run(&|_| false)?;
        for event in 0..plan.waits.len() {
            // A send stops reading when it or its receive has ended: hold back both, too.
            let other_end = plan.peer[event / 2].filter(|_| event % 2 == 1).map(|peer| 2 * peer + 1);
            for held_back in [None, other_end].into_iter().take(1 + usize::from(other_end.is_some())) {
                run(&|next| next == event || Some(next) == held_back)
                    .map_err(|why| format!("{why} (in place: {in_place}, holding back event {event})"))?;
            }
        }
        for rank in 0..program.ranks.len() {
            run(&|next| plan.steps[next / 2].0.rank == rank)
                .map_err(|why| format!("{why} (in place: {in_place}, holding back rank {rank})"))?;
        }
        Sums::default().run(&plan, &touches, in_place, numbers, &order)?;
    }
    Ok(())
}

/// Does the end of `later` have to wait, directly or not, for the start of `earlier`? Both are steps of `rank`.
pub fn follows(program: &Program, rendezvous: bool, rank: usize, earlier: u32, later: u32) -> bool {
    let plan = Plan::new(program, rendezvous).expect("the program is right");
    let (from, to) = (2 * (plan.first[rank] + earlier as usize), 2 * (plan.first[rank] + later as usize) + 1);
    let mut seen = vec![false; plan.waits.len()];
    let mut open = vec![from];
    while let Some(event) = open.pop() {
        if !std::mem::replace(&mut seen[event], true) {
            open.extend(&plan.then[event]);
        }
    }
    seen[to]
}

/// All steps, and the waits between their starts (event 2g) and ends (2g + 1).
pub struct Plan<'a> {
    pub program: &'a Program,
    pub steps: Vec<(Place, &'a Step)>,
    first: Vec<usize>,
    /// The other side of a message.
    pub peer: Vec<Option<usize>>,
    then: Vec<Vec<usize>>,
    waits: Vec<usize>,
}

impl<'a> Plan<'a> {
    fn new(program: &'a Program, rendezvous: bool) -> Result<Self, String> {
        let (kind, world, root) = (program.kind, program.ranks.len(), program.root);
        let mut plan = Plan {
            program,
            steps: Vec::new(),
            first: Vec::new(),
            peer: Vec::new(),
            then: Vec::new(),
            waits: Vec::new(),
        };
        for (rank, content) in program.ranks.iter().enumerate() {
            plan.first.push(plan.steps.len());
            plan.steps.extend(content.steps.iter().map(|step| (Place { kind, rank, world, root }, step)));
        }
        let ends = plan.match_messages()?;
        plan.then = vec![Vec::new(); 2 * plan.steps.len()];
        plan.waits = vec![0; 2 * plan.steps.len()];
        for own in 0..plan.steps.len() {
            plan.wait(2 * own, 2 * own + 1);
            for &after in &plan.steps[own].1.after {
                plan.wait(2 * (plan.first[plan.steps[own].0.rank] + after as usize) + 1, 2 * own);
            }
        }
        for (send, receive) in ends {
            plan.wait(2 * send, 2 * receive + 1);
            if rendezvous {
                plan.wait(2 * receive + 1, 2 * send + 1);
            }
        }
        Ok(plan)
    }

    fn wait(&mut self, earlier: usize, later: usize) {
        self.then[earlier].push(later);
        self.waits[later] += 1;
    }

    pub fn is_send(&self, own: usize) -> bool {
        matches!(self.steps[own].1.action, Action::Send { .. })
    }

    fn match_messages(&mut self) -> Result<Vec<(usize, usize)>, String> {
        let mut edges: BTreeMap<(usize, usize, u32), [Vec<usize>; 2]> = BTreeMap::new();
        for (own, (place, step)) in self.steps.iter().enumerate() {
            match step.action {
                Action::Send { to, message, .. } => edges.entry((place.rank, to, message)).or_default()[0].push(own),
                Action::Receive { from, message, .. } => {
                    edges.entry((from, place.rank, message)).or_default()[1].push(own);
                }
                _ => {}
            }
        }
        self.peer = vec![None; self.steps.len()];
        let mut ends = Vec::new();
        for (edge, sides) in edges {
            let [send, receive] = sides.map(<[usize; 1]>::try_from);
            let (Ok([send]), Ok([receive])) = (send, receive) else {
                return Err(format!("message {edge:?} has not exactly one sender and one receiver"));
            };
            let (Action::Send { from, .. }, Action::Receive { into, .. }) =
                (&self.steps[send].1.action, &self.steps[receive].1.action)
            else {
                unreachable!("sorted into sides above");
            };
            same_shape(*from, *into)?;
            self.peer[send] = Some(receive);
            self.peer[receive] = Some(send);
            ends.push((send, receive));
        }
        Ok(ends)
    }
}

fn same_shape(one: Slot, other: Slot) -> Result<(), String> {
    let shape = |slot: Slot| (slot.blocks, slot.part, slot.parts);
    if shape(one) == shape(other) { Ok(()) } else { Err(format!("{one} does not fit {other}")) }
}

impl Plan<'_> {
    /// The cells that each step reads and writes. In place, a copy of memory onto itself touches nothing.
    fn touches(&self, in_place: bool, numbers: &mut Numbers) -> Result<Vec<Touches>, String> {
        self.steps.iter().map(|(place, step)| self.touched(place, &step.action, in_place, numbers)).collect()
    }

    fn touched(
        &self,
        place: &Place,
        action: &Action,
        in_place: bool,
        numbers: &mut Numbers,
    ) -> Result<Touches, String> {
        let write = match action.write() {
            Some(slot) if slot.space == Space::Input => return Err("writes the input".into()),
            Some(slot) => self.cells(place, slot, in_place, numbers)?,
            None => Vec::new(),
        };
        let mut reads = Vec::new();
        for slot in action.reads() {
            let cells = self.cells(place, slot, in_place, numbers)?;
            if let Some(write) = action.write() {
                same_shape(slot, write)?;
            }
            if cells != write && cells.iter().any(|cell| write.contains(cell)) {
                return Err("overwrites a part of what it reads".into());
            }
            reads.push(cells);
        }
        let vanishes = in_place && matches!(action, Action::Copy { .. }) && reads[0] == write;
        Ok(if vanishes { Touches::default() } else { Touches { reads, write } })
    }

    /// The cells of a slot. In place, the output is where the input is, by the rule that `Space` states.
    pub fn cells(
        &self,
        place: &Place,
        slot: Slot,
        in_place: bool,
        numbers: &mut Numbers,
    ) -> Result<Vec<usize>, String> {
        let (input, output) = blocks(place.kind, place.rank, place.root, place.world);
        let (count, other) = match slot.space {
            Space::Input => (input, output),
            Space::Output => (output, input),
            Space::Scratch => (self.program.ranks[place.rank].scratch_blocks, 0),
        };
        let parts = self.program.parts;
        let beyond = slot.block + slot.blocks > count || slot.part + slot.parts > parts;
        let partial = slot.blocks != 1 && (slot.part != 0 || slot.parts != parts);
        if beyond || partial || slot.blocks * slot.parts == 0 {
            return Err(format!("there is no {slot}"));
        }
        let one_memory = in_place && count > 0 && other > 0;
        let mut cells = Vec::new();
        for block in slot.block..slot.block + slot.blocks {
            for part in slot.part..slot.part + slot.parts {
                let block = if one_memory && count < other { place.rank as u32 } else { block };
                let space = if one_memory { Space::Output } else { slot.space };
                let next = numbers.len();
                cells.push(*numbers.entry((place.rank, space, block, part)).or_insert(next));
            }
        }
        Ok(cells)
    }
}

/// Numbers cells as they come up: rank, space, block, part.
pub type Numbers = HashMap<(usize, Space, u32, u32), usize>;

/// The cells of a step: of each slot that it reads, and of the one that it writes.
#[derive(Clone, Default)]
pub struct Touches {
    pub reads: Vec<Vec<usize>>,
    pub write: Vec<usize>,
}

#[derive(Clone, Copy, Default)]
struct Lock {
    readers: usize,
    written: bool,
}

/// One schedule.
struct Run<'a> {
    plan: &'a Plan<'a>,
    touches: &'a [Touches],
    locks: Vec<Lock>,
    holds: Vec<bool>,
    waits: Vec<usize>,
    happened: Vec<bool>,
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan<'a>, touches: &'a [Touches]) -> Self {
        let cells = touches.iter().flat_map(|touches| touches.reads.iter().flatten().chain(&touches.write)).max();
        Run {
            plan,
            touches,
            locks: vec![Lock::default(); cells.map_or(0, |last| last + 1)],
            holds: vec![false; touches.len()],
            waits: plan.waits.clone(),
            happened: vec![false; plan.waits.len()],
        }
    }

    /// Runs to the end, and says in which order. What `held_back` picks happens only when nothing else can.
    fn finish(mut self, held_back: &dyn Fn(usize) -> bool) -> Result<Vec<usize>, String> {
        let mut ready: Vec<usize> = (0..self.waits.len()).filter(|&event| self.waits[event] == 0).collect();
        let mut late = Vec::new();
        let mut order = Vec::new();
        loop {
            let event = match ready.pop() {
                Some(event) if held_back(event) => {
                    late.push(event);
                    continue;
                }
                Some(event) => event,
                None => match late.pop() {
                    Some(event) => event,
                    None => break,
                },
            };
            self.happen(event).map_err(|why| format!("step {:?}: {why}", self.plan.steps[event / 2]))?;
            order.push(event);
            for &next in &self.plan.then[event] {
                self.waits[next] -= 1;
                if self.waits[next] == 0 {
                    ready.push(next);
                }
            }
        }
        if order.len() < self.waits.len() { Err("stuck".into()) } else { Ok(order) }
    }

    fn happen(&mut self, event: usize) -> Result<(), String> {
        let (own, starts) = (event / 2, event.is_multiple_of(2));
        self.happened[event] = true;
        let peer = self.plan.peer[own];
        if starts {
            // A receive touches nothing before its send has started.
            return match peer {
                Some(receive) if self.plan.is_send(own) => {
                    self.hold(own)?;
                    if self.happened[2 * receive] { self.hold(receive) } else { Ok(()) }
                }
                Some(send) if !self.happened[2 * send] => Ok(()),
                _ => self.hold(own),
            };
        }
        self.release(own);
        if let Some(send) = peer.filter(|_| !self.plan.is_send(own)) {
            self.release(send);
        }
        self.check_barrier(self.plan.steps[own].0)
    }

    /// Locks what a step touches.
    fn hold(&mut self, own: usize) -> Result<(), String> {
        let Touches { reads, write } = &self.touches[own];
        let free = |cell: &&usize| !self.locks[**cell].written;
        let unread = |cell: &&usize| self.locks[**cell].readers == 0;
        if !reads.iter().flatten().chain(write).all(|cell| free(&cell)) || !write.iter().all(|cell| unread(&cell)) {
            return Err("races".into());
        }
        reads.iter().flatten().for_each(|&cell| self.locks[cell].readers += 1);
        write.iter().for_each(|&cell| self.locks[cell].written = true);
        self.holds[own] = true;
        Ok(())
    }

    fn release(&mut self, own: usize) {
        if std::mem::replace(&mut self.holds[own], false) {
            let Touches { reads, write } = &self.touches[own];
            reads.iter().flatten().for_each(|&cell| self.locks[cell].readers -= 1);
            write.iter().for_each(|&cell| self.locks[cell].written = false);
        }
    }

    fn check_barrier(&self, place: Place) -> Result<(), String> {
        if place.kind != CollectiveKind::Barrier {
            return Ok(());
        }
        let plan = self.plan;
        let events = |rank: usize| {
            let end = plan.first.get(rank + 1).copied().unwrap_or(plan.steps.len());
            2 * plan.first[rank]..2 * end
        };
        let left = events(place.rank).all(|event| self.happened[event]);
        let absent = (0..place.world).find(|&rank| !events(rank).any(|event| self.happened[event]));
        match absent {
            Some(rank) if left => Err(format!("left before rank {rank} came")),
            _ => Ok(()),
        }
    }
}
