//! The order in which a file's steps could be done, one after the other.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use paceline_plan::Rank;

use super::connect::Wiring;
use super::file::File;

/// A step: its rank, thread block and place in that.
pub(super) type Place = (usize, usize, usize);

/// All steps, round by round: a step is in the round of the last that it waits for, and what receives is one round after
/// what sends to it. Within a round by rank, and first what sends nothing; then the thread blocks of a rank take turns to
/// send. Only what a ring of waits holds up is missing.
pub(super) fn rounds(file: &File, wiring: &Wiring) -> Vec<Place> {
    let mut graph = Steps::of(file, wiring);
    let ready = (0..graph.places.len()).filter(|&step| graph.waits[step] == 0);
    let mut heap: BinaryHeap<_> =
        ready.collect::<Vec<_>>().into_iter().map(|step| Reverse(graph.enter(step))).collect();
    let mut order = Vec::with_capacity(graph.places.len());
    while let Some(Reverse(next)) = heap.pop() {
        order.push(graph.places[next.step]);
        for (later, received) in std::mem::take(&mut graph.then[next.step]) {
            graph.round[later] = graph.round[later].max(next.round + u32::from(received));
            graph.waits[later] -= 1;
            if graph.waits[later] == 0 {
                heap.push(Reverse(graph.enter(later)));
            }
        }
    }
    order
}

/// A step that could be done. What comes first, is done first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Next {
    round: u32,
    rank: Rank,
    /// 0 if it does not send; else the thread block has sent one time less in this round.
    turn: u32,
    step: usize,
}

/// All steps, counted by rank, thread block and place.
struct Steps<'a> {
    file: &'a File,
    places: Vec<Place>,
    /// For how many each waits.
    waits: Vec<u32>,
    /// Those that wait for each, and whether they receive from it.
    then: Vec<Vec<(usize, bool)>>,
    round: Vec<u32>,
    /// The last round in which each thread block has sent, and how often it has then.
    sent: HashMap<(Rank, usize), (u32, u32)>,
}

impl<'a> Steps<'a> {
    fn of(file: &'a File, wiring: &Wiring) -> Self {
        let mut first: Vec<Vec<usize>> = Vec::new();
        let mut places: Vec<Place> = Vec::new();
        for (rank, gpu) in file.gpus.iter().enumerate() {
            let mut of_rank = Vec::new();
            for (block, content) in gpu.blocks.iter().enumerate() {
                of_rank.push(places.len());
                places.extend((0..content.steps.len()).map(|step| (rank, block, step)));
            }
            first.push(of_rank);
        }
        let number = |(rank, block, step): Place| first[rank][block] + step;
        let (mut waits, mut then) = (vec![0; places.len()], vec![Vec::new(); places.len()]);
        let mut follows = |earlier: Place, later: Place, receives: bool| {
            then[number(earlier)].push((number(later), receives));
            waits[number(later)] += 1;
        };
        for &(rank, block, step) in &places {
            let own = (rank, block, step);
            if step > 0 {
                follows((rank, block, step - 1), own, false);
            }
            if let Some((other, awaited)) = file.gpus[rank].blocks[block].steps[step].after {
                follows((rank, other, awaited), own, false);
            }
        }
        for (rank, ends) in wiring.ends.iter().enumerate() {
            for (block, ends) in ends.iter().enumerate() {
                let Some((peer, sender)) = ends.from else { continue };
                for (&here, &there) in ends.receives.iter().zip(&wiring.ends[peer][sender].sends) {
                    follows((peer, sender, there), (rank, block, here), true);
                }
            }
        }
        let round = vec![0; places.len()];
        Steps { file, places, waits, then, round, sent: HashMap::new() }
    }

    /// A step that waits for nothing any more.
    fn enter(&mut self, step: usize) -> Next {
        let (round, (rank, block, place)) = (self.round[step], self.places[step]);
        let mut turn = 0;
        if self.file.gpus[rank].blocks[block].steps[place].operation.sends() {
            let (last, times) = self.sent.entry((rank, block)).or_default();
            *times = if *last == round { *times + 1 } else { 1 };
            (*last, turn) = (round, *times);
        }
        Next { round, rank, turn, step }
    }
}
