use std::ops::Range;

use paceline_collective::verify::{Reason, Refusal};
use paceline_collective::{Action, Algorithm, Place, Program, RankProgram, Topology};
use paceline_plan::{CollectiveKind, Rank};

/// A program as the simulator needs it: what each step moves or computes, and what waits for what, in some 30 bytes per
/// step. Prepared once, simulated as often as one likes.
#[derive(Clone, Debug)]
pub struct PreparedProgram {
    /// Into how many parts a tile of a block is cut.
    pub(super) parts: u32,
    /// The number of steps of all ranks before each rank, and of all.
    pub(super) first: Vec<u32>,
    pub(super) steps: Vec<Step>,
    /// What waits for the steps, step by step.
    successors: Vec<u32>,
    /// Sender and receiver of each channel: the messages between two ranks in one direction leave one after the other.
    pub(super) pairs: Vec<(u32, u32)>,
}

/// One step. What is known of it lies together: ranks take turns, so whatever is looked up is far from what was before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub kind: Kind,
    /// How many parts, of all its blocks, it moves or computes.
    pub amount: u32,
    /// For a send the step that receives, and the other way round; [`NONE`] for local steps.
    pub peer: u32,
    /// For a send, the channel that it takes; [`NONE`] for others.
    pub channel: u32,
    /// How many steps it waits for.
    pub waits: u32,
    /// Where those that wait for it, of the same rank, end in the list of all. They begin where those of the step before
    /// end.
    end: u32,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    /// Stores a message.
    Store,
    /// Folds a message into what is there.
    Fold,
    /// Combines, copies, maps.
    Local,
}

/// No step, no channel.
pub(super) const NONE: u32 = u32::MAX;

/// One side of a message: the peer, the message's name, and the step, in the order in which sides are matched.
type Side = (u32, u32, u32);

impl PreparedProgram {
    /// Of a program that is there.
    ///
    /// # Errors
    /// If a message lacks its sender or receiver or has two, a rank that is named does not exist, or a step waits for one
    /// that does not. That a program is right, [`verify`](paceline_collective::verify()) proves.
    pub fn of_program(program: &Program) -> Result<PreparedProgram, Refusal> {
        let mut builder = Builder::new(program.kind, program.ranks.len(), program.root, program.parts)?;
        for rank in &program.ranks {
            builder.push(rank)?;
        }
        builder.finish()
    }

    /// Of an algorithm, rank by rank: the programs of a thousand ranks together would be some hundred megabytes.
    ///
    /// # Errors
    /// As [`PreparedProgram::of_program`].
    pub fn of_algorithm(
        algorithm: &dyn Algorithm,
        topology: &Topology,
        root: Rank,
    ) -> Result<PreparedProgram, Refusal> {
        let world = topology.world();
        let mut builder = Builder::new(algorithm.kind(), world, root, algorithm.parts(topology))?;
        for rank in 0..world {
            builder.push(&algorithm.rank_program(rank, topology, root))?;
        }
        builder.finish()
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.first.len() - 1
    }

    /// The steps of all ranks, in one tile.
    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// The messages of all ranks, in one tile.
    pub fn messages(&self) -> usize {
        self.steps.iter().filter(|step| step.kind == Kind::Send).count()
    }

    /// The steps of a rank.
    pub(super) fn steps_of(&self, rank: usize) -> Range<u32> {
        self.first[rank]..self.first[rank + 1]
    }

    /// The steps that wait for this one.
    pub(super) fn successors(&self, step: u32) -> &[u32] {
        let begin = step.checked_sub(1).map_or(0, |before| self.steps[before as usize].end);
        &self.successors[begin as usize..self.steps[step as usize].end as usize]
    }
}

/// Takes in one rank after the other.
struct Builder {
    kind: CollectiveKind,
    root: Rank,
    world: usize,
    prepared: PreparedProgram,
    /// The messages that each rank sends, and that it receives.
    sends: Vec<Vec<Side>>,
    receives: Vec<Vec<Side>>,
}

impl Builder {
    fn new(kind: CollectiveKind, world: usize, root: Rank, parts: u32) -> Result<Builder, Refusal> {
        if world == 0 || root >= world || parts == 0 {
            return Err(refusal(root, None, Reason::World { kind, world, root }));
        }
        let prepared =
            PreparedProgram { parts, first: vec![0], steps: Vec::new(), successors: Vec::new(), pairs: Vec::new() };
        Ok(Builder { kind, root, world, prepared, sends: Vec::new(), receives: Vec::new() })
    }

    /// The next rank.
    fn push(&mut self, program: &RankProgram) -> Result<(), Refusal> {
        let rank = self.sends.len();
        let place = Place { kind: self.kind, rank, world: self.world, root: self.root };
        let first = self.prepared.steps.len() as u32;
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for (index, step) in (0..).zip(&program.steps) {
            let exists = |peer: Rank| {
                let peers = peer < self.world && peer != rank;
                if peers { Ok(peer as u32) } else { Err(refusal(rank, Some(index), Reason::Peer(peer))) }
            };
            let (kind, slot) = match step.action {
                Action::Send { to, message, from } => {
                    sends.push((exists(to)?, message, first + index));
                    (Kind::Send, from)
                }
                Action::Receive { from, message, into, fold } => {
                    receives.push((exists(from)?, message, first + index));
                    (if fold.is_some() { Kind::Fold } else { Kind::Store }, into)
                }
                Action::Combine { into, .. } | Action::Copy { into, .. } | Action::Map { into, .. } => {
                    (Kind::Local, into)
                }
            };
            let free = place.vanishes_in_place(&step.action);
            let amount = if free { 0 } else { slot.blocks.saturating_mul(slot.parts) };
            let waits = step.after.len() as u32;
            self.prepared.steps.push(Step { kind, amount, peer: NONE, channel: NONE, waits, end: 0 });
        }
        self.successors(rank, first, program)?;
        sends.sort_unstable();
        receives.sort_unstable();
        self.sends.push(sends);
        self.receives.push(receives);
        self.prepared.first.push(self.prepared.steps.len() as u32);
        Ok(())
    }

    /// Turns what a step waits for into what waits for it.
    fn successors(&mut self, rank: usize, first: u32, program: &RankProgram) -> Result<(), Refusal> {
        let mut counts = vec![0u32; program.steps.len()];
        for (index, step) in (0..).zip(&program.steps) {
            for &after in &step.after {
                let Some(followers) = counts.get_mut(after as usize) else {
                    return Err(refusal(rank, Some(index), Reason::After(after)));
                };
                *followers += 1;
            }
        }
        let mut end = self.prepared.successors.len() as u32;
        // Where the next follower of each step goes.
        let mut places = Vec::with_capacity(counts.len());
        for (step, followers) in self.prepared.steps[first as usize..].iter_mut().zip(counts) {
            places.push(end);
            end += followers;
            step.end = end;
        }
        self.prepared.successors.resize(end as usize, NONE);
        for (step, after) in (first..).zip(program.steps.iter().map(|step| &step.after)) {
            for &after in after {
                let place = &mut places[after as usize];
                self.prepared.successors[*place as usize] = step;
                *place += 1;
            }
        }
        Ok(())
    }

    /// Finds the receive of each send.
    fn finish(mut self) -> Result<PreparedProgram, Refusal> {
        self.number_channels()?;
        for receiver in 0..self.world {
            let mut guess: Option<(u32, usize)> = None;
            for &(sender, message, step) in &self.receives[receiver] {
                let sends = &self.sends[sender as usize];
                // Messages are received in the order of their names, mostly: the next one is at the next place.
                let wanted = |send: &Side| (send.0, send.1) == (receiver as u32, message);
                let place = match guess {
                    Some((last, place)) if last == sender && sends.get(place).is_some_and(wanted) => place,
                    _ => sends.partition_point(|send| (send.0, send.1) < (receiver as u32, message)),
                };
                let edge = |reason| refusal(receiver, Some(step - self.prepared.first[receiver]), reason);
                let (from, to) = (sender as usize, receiver);
                let Some(&(.., send)) = sends.get(place).filter(|&send| wanted(send)) else {
                    return Err(edge(Reason::Unmatched { from, to, message, lacks: "sender" }));
                };
                if self.prepared.steps[send as usize].peer != NONE {
                    return Err(edge(Reason::Twofold { from, to, message, side: "receiver" }));
                }
                self.prepared.steps[send as usize].peer = step;
                self.prepared.steps[step as usize].peer = send;
                guess = Some((sender, place + 1));
            }
        }
        self.check_sends()?;
        Ok(self.prepared)
    }

    /// A channel for each pair of ranks of which one sends to the other.
    fn number_channels(&mut self) -> Result<(), Refusal> {
        for (sender, sends) in self.sends.iter().enumerate() {
            let mut last: Option<Side> = None;
            for &(to, message, step) in sends {
                let known = last.filter(|last| last.0 == to);
                if known.is_some_and(|known| known.1 == message) {
                    let (from, to) = (sender, to as usize);
                    let reason = Reason::Twofold { from, to, message, side: "sender" };
                    return Err(refusal(sender, Some(step - self.prepared.first[sender]), reason));
                }
                if known.is_none() {
                    self.prepared.pairs.push((sender as u32, to));
                }
                self.prepared.steps[step as usize].channel = self.prepared.pairs.len() as u32 - 1;
                last = Some((to, message, step));
            }
        }
        Ok(())
    }

    /// Has every send its receive?
    fn check_sends(&self) -> Result<(), Refusal> {
        for (sender, sends) in self.sends.iter().enumerate() {
            for &(to, message, step) in sends {
                if self.prepared.steps[step as usize].peer == NONE {
                    let reason = Reason::Unmatched { from: sender, to: to as usize, message, lacks: "receiver" };
                    return Err(refusal(sender, Some(step - self.prepared.first[sender]), reason));
                }
            }
        }
        Ok(())
    }
}

pub(super) fn refusal(rank: Rank, step: Option<u32>, reason: Reason) -> Refusal {
    Refusal { rank, step, related: Vec::new(), path: Vec::new(), in_place: false, reason }
}

#[cfg(test)]
mod tests {
    use paceline_collective::registry;

    use super::*;

    #[test]
    fn it_is_the_same_by_program_and_by_algorithm() {
        for (world, algorithm) in [1, 2, 5, 8].into_iter().flat_map(|world| {
            registry::registry().iter().filter(move |algorithm| algorithm.supports(world)).map(move |a| (world, *a))
        }) {
            let topology = Topology::of_hosts(&(0..world).map(|rank| rank / 3).collect::<Vec<_>>());
            let root = algorithm.usual_root(&topology);
            let program = algorithm.program(&topology, root);
            let (one, other) = (
                PreparedProgram::of_program(&program).unwrap(),
                PreparedProgram::of_algorithm(algorithm, &topology, root).unwrap(),
            );
            assert_eq!(format!("{one:?}"), format!("{other:?}"));
            assert_eq!(one.messages(), algorithm.messages(&topology), "{} {}", algorithm.name(), algorithm.kind());
            for (rank, steps) in program.ranks.iter().enumerate() {
                for (step, content) in (one.first[rank]..).zip(&steps.steps) {
                    let follows = |&before: &u32| one.successors(one.first[rank] + before).contains(&step);
                    assert!(content.after.iter().all(follows));
                    assert!(one.steps_of(rank).contains(&step));
                }
            }
        }
    }

    #[test]
    fn a_program_that_does_not_fit_together_is_refused() {
        let ring = registry::find(CollectiveKind::AllReduce, "ring").unwrap().program(&Topology::flat(3), 0);
        let refused = |change: &dyn Fn(&mut Program)| {
            let mut program = ring.clone();
            change(&mut program);
            PreparedProgram::of_program(&program).unwrap_err().to_string()
        };
        let send_as = |program: &mut Program, name: u32| {
            let Action::Send { message, .. } = &mut program.ranks[1].steps[0].action else { panic!("no send") };
            *message = name;
        };
        for (text, words) in [
            (refused(&|program| send_as(program, 9)), "has no sender"),
            (refused(&|program| send_as(program, 1)), "has a second sender"),
            (refused(&|program| drop(program.ranks[2].steps.pop())), "has no receiver"),
            (refused(&|program| program.ranks[1].steps[1].after.push(99)), "rank 1, step 1: waits for step 99"),
            (refused(&|program| program.ranks.truncate(2)), "rank 2 is no peer"),
            (refused(&|program| program.parts = 0), "does not exist"),
        ] {
            assert!(text.contains(words), "{text}");
        }
    }
}
