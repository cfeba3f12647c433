//! How the steps of a rank are shared out among thread blocks.
//!
//! Every message takes a channel of its edge, and messages of one channel are sent and received in the same order. A thread
//! block has the messages of one channel from one peer, and of the same channel to one peer: to that to which it can pass
//! most of them on as they come in. Local steps have thread blocks of their own. Each does its steps in an order in which
//! all of the rank's could be done one after the other, so thread blocks never hold each other up.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use paceline_plan::Rank;

use super::{STEPS_MAX, WriteError};
use crate::Program;
use crate::program::{Action, Slot, StepId};
use crate::verify::{Capacity, Graph, Matches};

/// A thread block.
#[derive(Default)]
pub(super) struct Lane {
    pub send: Option<Rank>,
    pub receive: Option<Rank>,
    pub channel: u32,
    pub steps: Vec<LaneStep>,
}

pub(super) struct LaneStep {
    /// MSCCL's word for what it does.
    pub operation: &'static str,
    pub source: Option<Slot>,
    pub destination: Option<Slot>,
    /// The thread block and the step for which it waits.
    pub after: Option<(usize, usize)>,
    /// Somebody waits for it.
    pub has_waiting: bool,
}

/// For every rank an order in which its steps can be done one after the other: that in which they stand, if they can.
pub(super) fn sequences(program: &Program, matches: &Matches, graph: &Graph) -> Vec<Vec<StepId>> {
    let mut chained = program.clone();
    for rank in &mut chained.ranks {
        for (previous, step) in rank.steps.iter_mut().skip(1).enumerate() {
            step.after.push(previous as StepId);
        }
    }
    let steps = program.ranks.iter().map(|rank| (0..rank.steps.len() as StepId).collect());
    let mut sequences: Vec<Vec<StepId>> = steps.collect();
    if Graph::new(&chained, matches, Capacity::Unbounded).is_ok() {
        return sequences;
    }
    // A send is done when it starts, all else when it ends: of whatever any of them waits for, that comes later.
    let mut when = vec![0; 2 * matches.steps()];
    graph.order.iter().enumerate().for_each(|(position, &node)| when[node as usize] = position);
    for (rank, sequence) in sequences.iter_mut().enumerate() {
        sequence.sort_by_key(|&step| {
            let global = matches.first[rank] + step as usize;
            when[2 * global + usize::from(!matches.send[global])]
        });
    }
    sequences
}

/// The channel of each message, by its send and its receive, in steps counted through all ranks.
pub(super) struct Channels {
    of: Vec<u32>,
    /// The most messages that one channel of an edge has.
    pub most: usize,
}

impl Channels {
    /// Gives each message the first channel of its edge that has room and whose messages are received in the order in
    /// which they are sent.
    pub fn of(program: &Program, matches: &Matches, sequences: &[Vec<StepId>], room: usize) -> Channels {
        let mut position = vec![0; matches.steps()];
        for (rank, sequence) in sequences.iter().enumerate() {
            sequence.iter().enumerate().for_each(|(at, &step)| position[matches.first[rank] + step as usize] = at);
        }
        let mut channels = Channels { of: vec![0; matches.steps()], most: 0 };
        for (rank, sequence) in sequences.iter().enumerate() {
            // Of each channel of an edge: where its last message is received, and how many it has.
            let mut edges: HashMap<Rank, Vec<(usize, usize)>> = HashMap::new();
            for &step in sequence {
                let Action::Send { to, .. } = program.ranks[rank].steps[step as usize].action else { continue };
                let send = matches.first[rank] + step as usize;
                let receive = matches.peer[send] as usize;
                let edge = edges.entry(to).or_default();
                let fits = |&(last, count): &(usize, usize)| last < position[receive] && count < room;
                let channel = edge.iter().position(fits).unwrap_or_else(|| {
                    edge.push((0, 0));
                    edge.len() - 1
                });
                edge[channel] = (position[receive], edge[channel].1 + 1);
                channels.most = channels.most.max(edge[channel].1);
                channels.of[send] = channel as u32;
                channels.of[receive] = channel as u32;
            }
        }
        channels
    }
}

/// The thread blocks of one rank.
pub(super) fn lanes(
    program: &Program,
    matches: &Matches,
    sequence: &[StepId],
    channels: &Channels,
    rank: Rank,
) -> Result<Vec<Lane>, WriteError> {
    let messages = Messages::of(program, matches, sequence, channels, rank);
    let mut sharing = Sharing { rank, lanes: Vec::new(), places: HashMap::new(), known: Vec::new(), local: None };
    let mut by_receive: HashMap<(Rank, u32), usize> = HashMap::new();
    let mut by_send: HashMap<(Rank, u32), usize> = HashMap::new();
    for &id in sequence {
        if sharing.places.contains_key(&id) {
            continue; // It was passed on with what it passes on.
        }
        let step = &program.ranks[rank].steps[id as usize];
        let channel = messages.channel(id);
        match step.action {
            Action::Receive { from, .. } => {
                let send = messages.pairs.get(&(from, channel)).copied();
                let lane = *by_receive.entry((from, channel)).or_insert_with(|| {
                    let lane = sharing.open(send, Some(from), channel);
                    by_send.extend(send.map(|to| ((to, channel), lane)));
                    lane
                });
                let passed_on = messages.passes_on(id).filter(|&(_, to)| send == Some(to)).map(|(send, _)| send);
                sharing.message(lane, (id, passed_on), &step.action, &step.after);
            }
            Action::Send { to, .. } => {
                let lane = *by_send.entry((to, channel)).or_insert_with(|| {
                    let from = messages.pairs_back.get(&(to, channel)).copied();
                    let lane = sharing.open(Some(to), from, channel);
                    by_receive.extend(from.map(|from| ((from, channel), lane)));
                    lane
                });
                sharing.message(lane, (id, None), &step.action, &step.after);
            }
            Action::Copy { .. } | Action::Combine { .. } | Action::Map { .. } => {
                sharing.local(id, &step.action, &step.after)?;
            }
        }
    }
    Ok(sharing.lanes)
}

/// What can be said of a rank's messages before they are shared out.
struct Messages<'a> {
    channels: &'a [u32],
    /// For a receive the next send of the rank, and to whom, if it only waits for the receive, sends what that stored, and
    /// takes the same channel. (A later one would get ahead of those before it, which may have a longer way.)
    passed_on: HashMap<StepId, (StepId, Rank)>,
    /// For a sender and a channel to whom its messages are passed on, and the other way round.
    pairs: HashMap<(Rank, u32), Rank>,
    pairs_back: HashMap<(Rank, u32), Rank>,
}

impl<'a> Messages<'a> {
    fn of(
        program: &Program,
        matches: &Matches,
        sequence: &[StepId],
        channels: &'a Channels,
        rank: Rank,
    ) -> Messages<'a> {
        let steps = &program.ranks[rank].steps;
        let own = matches.first[rank]..matches.first[rank + 1];
        let mut messages = Messages {
            channels: &channels.of[own],
            passed_on: HashMap::new(),
            pairs: HashMap::new(),
            pairs_back: HashMap::new(),
        };
        let mut position = vec![0; steps.len()];
        sequence.iter().enumerate().for_each(|(at, &step)| position[step as usize] = at);
        let mut last_sent = None;
        let mut passes: BTreeMap<(u32, Rank, Rank), usize> = BTreeMap::new();
        for &id in sequence {
            let step = &steps[id as usize];
            let Action::Send { to, from: sent, .. } = step.action else { continue };
            let before = last_sent.replace(position[id as usize]);
            let [receive] = step.after[..] else { continue };
            let Action::Receive { from, into, .. } = steps[receive as usize].action else { continue };
            let channel = messages.channel(id);
            let next = before.is_none_or(|before| before < position[receive as usize]);
            if into == sent && channel == messages.channel(receive) && next {
                messages.passed_on.insert(receive, (id, to));
                *passes.entry((channel, from, to)).or_default() += 1;
            }
        }
        let mut passes: Vec<_> = passes.into_iter().collect();
        passes.sort_by_key(|&(_, count)| Reverse(count));
        for ((channel, from, to), _) in passes {
            let free = |pairs: &HashMap<(Rank, u32), Rank>, peer| !pairs.contains_key(&(peer, channel));
            if free(&messages.pairs, from) && free(&messages.pairs_back, to) {
                messages.pairs.insert((from, channel), to);
                messages.pairs_back.insert((to, channel), from);
            }
        }
        messages
    }

    fn channel(&self, step: StepId) -> u32 {
        self.channels[step as usize]
    }

    fn passes_on(&self, receive: StepId) -> Option<(StepId, Rank)> {
        self.passed_on.get(&receive).copied()
    }
}

/// Thread blocks in the making.
struct Sharing {
    rank: Rank,
    lanes: Vec<Lane>,
    /// Where each step has gone.
    places: HashMap<StepId, (usize, usize)>,
    /// For each thread block the last step of each other for which it has waited.
    known: Vec<HashMap<usize, usize>>,
    /// The thread block for local steps that is not yet full.
    local: Option<usize>,
}

impl Sharing {
    fn open(&mut self, send: Option<Rank>, receive: Option<Rank>, channel: u32) -> usize {
        self.lanes.push(Lane { send, receive, channel, steps: Vec::new() });
        self.known.push(HashMap::new());
        self.lanes.len() - 1
    }

    /// A send, or a receive with what passes it on, if that is the same step of MSCCL.
    fn message(&mut self, lane: usize, (id, passed_on): (StepId, Option<StepId>), action: &Action, after: &[StepId]) {
        let step = |operation, source, destination| LaneStep {
            operation,
            source,
            destination,
            after: None,
            has_waiting: false,
        };
        let last = match (*action, passed_on.is_some()) {
            (Action::Receive { into, fold: Some(fold), .. }, passes) => {
                step(if passes { "rrcs" } else { "rrc" }, Some(fold.with), Some(into))
            }
            (Action::Receive { into, .. }, passes) => step(if passes { "rcs" } else { "r" }, None, Some(into)),
            (action, _) => step("s", action.reads().next(), None),
        };
        let waits = self.waits(lane, after);
        self.append(lane, waits, last);
        let place = (lane, self.lanes[lane].steps.len() - 1);
        [Some(id), passed_on].into_iter().flatten().for_each(|id| _ = self.places.insert(id, place));
    }

    fn local(&mut self, id: StepId, action: &Action, after: &[StepId]) -> Result<(), WriteError> {
        let step = |operation, source, destination| LaneStep {
            operation,
            source: Some(source),
            destination: Some(destination),
            after: None,
            has_waiting: false,
        };
        let (first, second) = match *action {
            Action::Combine { left, right, into, .. } if into == left => (step("re", right, into), None),
            Action::Combine { left, right, into, .. } if into == right => (step("re", left, into), None),
            Action::Combine { left, right, into, .. } => (step("cpy", left, into), Some(step("re", right, into))),
            Action::Copy { from, into } | Action::Map { from, into, .. } => (step("cpy", from, into), None),
            Action::Send { .. } | Action::Receive { .. } => return Ok(()),
        };
        let needed = |waits: &[(usize, usize)]| waits.len().max(1) + usize::from(second.is_some());
        let room = |lane: &usize| self.lanes[*lane].steps.len() + needed(&self.waits(*lane, after)) <= STEPS_MAX;
        let lane = match self.local.filter(room) {
            Some(lane) => lane,
            None => self.open(None, None, 0),
        };
        self.local = Some(lane);
        let waits = self.waits(lane, after);
        if needed(&waits) > STEPS_MAX {
            return Err(WriteError::Waits { rank: self.rank, step: id, waits: waits.len() });
        }
        self.append(lane, waits, first);
        if let Some(second) = second {
            self.append(lane, Vec::new(), second);
        }
        self.places.insert(id, (lane, self.lanes[lane].steps.len() - 1));
        Ok(())
    }

    /// What of these a thread block must still wait for: of each other block the last one.
    fn waits(&self, lane: usize, after: &[StepId]) -> Vec<(usize, usize)> {
        let mut latest: BTreeMap<usize, usize> = BTreeMap::new();
        for (other, step) in after.iter().filter_map(|id| self.places.get(id).copied()) {
            let known = self.known[lane].get(&other).is_some_and(|&known| known >= step);
            if other != lane && !known {
                let entry = latest.entry(other).or_default();
                *entry = step.max(*entry);
            }
        }
        latest.into_iter().collect()
    }

    /// Appends a step, and before it as many that do nothing but wait as it takes.
    fn append(&mut self, lane: usize, waits: Vec<(usize, usize)>, mut step: LaneStep) {
        for &(other, awaited) in &waits {
            self.lanes[other].steps[awaited].has_waiting = true;
            self.known[lane].insert(other, awaited);
        }
        let steps = &mut self.lanes[lane].steps;
        if let Some((last, rest)) = waits.split_last() {
            steps.extend(rest.iter().map(|&wait| LaneStep::nothing(wait)));
            step.after = Some(*last);
        }
        steps.push(step);
    }
}

impl LaneStep {
    fn nothing(after: (usize, usize)) -> Self {
        LaneStep { operation: "nop", source: None, destination: None, after: Some(after), has_waiting: false }
    }
}
