//! What happens before what.
//!
//! Every step has a start and an end. A step starts after the ends of what it waits for; a message cannot end before
//! its send has started; and an edge with little room holds back the end of a send, or a message, until its receiver
//! has consumed another one. If these waits have no cycle, every schedule comes to its end.

use paceline_plan::{CollectiveKind, Rank};

use super::shape::{Matches, NONE};
use super::{Capacity, Reason, Refusal};
use crate::program::{Action, Program, StepId};

/// The starts and ends of all steps, and for each what comes before it.
///
/// Step g (counted through all ranks) starts at node 2g and ends at node 2g + 1. Under [`Capacity::Messages`] there is
/// one node more for each message: the moment when it and all before it on its edge are consumed.
pub(crate) struct Graph<'a> {
    pub program: &'a Program,
    pub matches: &'a Matches,
    /// Every start and end, each after all that comes before it.
    pub order: Vec<u32>,
    /// The nodes before node n are `before[range[n]..range[n + 1]]`. Only what is certain whatever a link does beyond
    /// [`Capacity`]: a hazard may not hide behind a full queue.
    before: Vec<u32>,
    range: Vec<u32>,
}

impl<'a> Graph<'a> {
    /// Refuses programs in which a wait closes a ring.
    pub fn new(program: &'a Program, matches: &'a Matches, capacity: Capacity) -> Result<Self, Refusal> {
        let (before, range) = certain(program, matches, capacity == Capacity::Rendezvous);
        let mut graph = Graph { program, matches, order: Vec::new(), before, range };
        let queues = match capacity {
            Capacity::Messages(room) => Some(Queues::new(program, matches, room)),
            Capacity::Rendezvous | Capacity::Unbounded => None,
        };
        graph.order = graph.sort(queues.as_ref())?;
        Ok(graph)
    }

    pub fn before(&self, node: u32) -> &[u32] {
        &self.before[self.range[node as usize] as usize..self.range[node as usize + 1] as usize]
    }

    /// The rank and the step of a step counted through all ranks.
    pub fn locate(&self, step: u32) -> (Rank, StepId) {
        self.matches.locate(step as usize)
    }

    pub fn action(&self, step: usize) -> &'a Action {
        let (rank, step) = self.locate(step as u32);
        &self.program.ranks[rank].steps[step as usize].action
    }

    /// The longest chain of messages each of which is sent only after the one before has arrived.
    pub fn rounds(&self) -> usize {
        let mut rounds = vec![0; 2 * self.matches.steps()];
        for &node in &self.order {
            let chain = self.before(node).iter().map(|&earlier| {
                // From the start of a send to the end of its receive.
                let arrives = is_end(node) && !is_end(earlier) && earlier / 2 != node / 2;
                let returns = is_end(node) && is_end(earlier);
                if returns { 0 } else { rounds[earlier as usize] + usize::from(arrives) }
            });
            rounds[node as usize] = chain.max().unwrap_or(0);
        }
        rounds.into_iter().max().unwrap_or(0)
    }

    /// A barrier: whatever makes a rank leave it must have come from every rank.
    pub fn check_barrier(&self) -> Result<(), Refusal> {
        if self.program.kind != CollectiveKind::Barrier {
            return Ok(());
        }
        let world = self.program.ranks.len();
        let words = world.div_ceil(64);
        let mut come = vec![0u64; 2 * self.matches.steps() * words];
        let mut left = vec![0u64; world * words];
        for &node in &self.order {
            let (rank, _) = self.locate(node / 2);
            for word in 0..words {
                let heard =
                    self.before(node).iter().fold(0, |all, &earlier| all | come[earlier as usize * words + word]);
                let own = if rank / 64 == word { 1 << (rank % 64) } else { 0 };
                come[node as usize * words + word] = heard | own;
                left[rank * words + word] |= heard | own;
            }
        }
        for rank in 0..world {
            let unheard = |&other: &Rank| other != rank && left[rank * words + other / 64] >> (other % 64) & 1 == 0;
            if let Some(other) = (0..world).find(unheard) {
                let step = self.program.ranks[rank].steps.len().checked_sub(1).map(|last| last as StepId);
                return Err(Refusal::of(rank, step, Reason::Barrier(other)));
            }
        }
        Ok(())
    }

    /// Depth first along what comes before: a node is appended when all before it are. A node met again on the way down
    /// closes a ring.
    fn sort(&self, queues: Option<&Queues>) -> Result<Vec<u32>, Refusal> {
        let steps = self.matches.steps();
        let nodes = 2 * steps + queues.map_or(0, |queues| queues.receive.len());
        let mut state = vec![Visit::New; nodes];
        let mut order = Vec::with_capacity(2 * steps);
        let mut path: Vec<(u32, usize)> = Vec::new();
        for root in 0..nodes as u32 {
            if state[root as usize] == Visit::New {
                state[root as usize] = Visit::OnPath;
                path.push((root, 0));
            }
            while let Some(&mut (node, ref mut tried)) = path.last_mut() {
                let Some(earlier) = self.nth_before(queues, node, *tried) else {
                    state[node as usize] = Visit::Done;
                    if (node as usize) < 2 * steps {
                        order.push(node);
                    }
                    path.pop();
                    continue;
                };
                *tried += 1;
                match state[earlier as usize] {
                    Visit::Done => {}
                    Visit::New => {
                        state[earlier as usize] = Visit::OnPath;
                        path.push((earlier, 0));
                    }
                    Visit::OnPath => return Err(self.cycle(&path, earlier)),
                }
            }
        }
        Ok(order)
    }

    /// The certain predecessors of a node, then those that a full edge adds.
    fn nth_before(&self, queues: Option<&Queues>, node: u32, index: usize) -> Option<u32> {
        let certain = if (node as usize) < 2 * self.matches.steps() { self.before(node) } else { &[] };
        match certain.get(index) {
            Some(&earlier) => Some(earlier),
            None => queues.and_then(|queues| queues.before(self.matches, node, index - certain.len())),
        }
    }

    fn cycle(&self, path: &[(u32, usize)], closing: u32) -> Refusal {
        let start = path.iter().position(|&(node, _)| node == closing).unwrap_or(0);
        let mut steps: Vec<_> = path[start..]
            .iter()
            .filter(|(node, _)| (*node as usize) < 2 * self.matches.steps())
            .map(|(node, _)| self.locate(node / 2))
            .collect();
        steps.dedup();
        let (rank, step) = steps.remove(0);
        Refusal { related: steps, ..Refusal::at(rank, step, Reason::Cycle) }
    }
}

/// Is the node the end of a step, not its start?
pub(super) fn is_end(node: u32) -> bool {
    node % 2 == 1
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    New,
    OnPath,
    Done,
}

/// What comes before each node whatever the links do; with `rendezvous` a send also ends after its receive.
fn certain(program: &Program, matches: &Matches, rendezvous: bool) -> (Vec<u32>, Vec<u32>) {
    let (mut before, mut range) = (Vec::new(), vec![0]);
    for (rank, content) in program.ranks.iter().enumerate() {
        let first = matches.first[rank] as u32;
        for (index, step) in content.steps.iter().enumerate() {
            let own = first + index as u32;
            before.extend(step.after.iter().map(|&after| 2 * (first + after) + 1));
            range.push(before.len() as u32);
            before.push(2 * own);
            match (&step.action, matches.peer[own as usize]) {
                (_, NONE) => {}
                (Action::Receive { .. }, send) => before.push(2 * send),
                (_, receive) if rendezvous => before.push(2 * receive + 1),
                _ => {}
            }
            range.push(before.len() as u32);
        }
    }
    (before, range)
}

/// The directed edges as queues with little room. A message is held back until all but the last `room − 1` of the
/// earlier ones are consumed.
struct Queues {
    room: usize,
    steps: u32,
    /// The receives of all messages, edge by edge, on each in the order of the sender's steps.
    receive: Vec<u32>,
    /// Where the edge of each message begins in `receive`.
    start: Vec<u32>,
    /// The index in `receive` of the message of each step.
    message: Vec<u32>,
}

impl Queues {
    fn new(program: &Program, matches: &Matches, room: usize) -> Self {
        let mut queues = Queues {
            room,
            steps: matches.steps() as u32,
            receive: Vec::with_capacity(matches.messages()),
            start: Vec::with_capacity(matches.messages()),
            message: vec![NONE; matches.steps()],
        };
        for (rank, content) in program.ranks.iter().enumerate() {
            let mut sends: Vec<(Rank, usize)> = Vec::new();
            for (index, step) in content.steps.iter().enumerate() {
                if let Action::Send { to, .. } = step.action {
                    sends.push((to, matches.first[rank] + index));
                }
            }
            sends.sort_by_key(|&(to, _)| to);
            let mut start = (usize::MAX, 0);
            for (to, send) in sends {
                if start.0 != to {
                    start = (to, queues.receive.len() as u32);
                }
                let receive = matches.peer[send];
                queues.message[send] = queues.receive.len() as u32;
                queues.message[receive as usize] = queues.receive.len() as u32;
                queues.receive.push(receive);
                queues.start.push(start.1);
            }
        }
        queues
    }

    /// The predecessors of a node that are due to the room: of a consumption its receive and the consumption before;
    /// of the end of a send or a receive the consumption `room` messages earlier.
    fn before(&self, matches: &Matches, node: u32, index: usize) -> Option<u32> {
        let consumed = |message: u32| 2 * self.steps + message;
        if node >= 2 * self.steps {
            let message = node - 2 * self.steps;
            let previous = (message > self.start[message as usize]).then(|| consumed(message - 1));
            return [Some(2 * self.receive[message as usize] + 1), previous].get(index).copied().flatten();
        }
        if index > 0 || !is_end(node) || matches.peer[node as usize / 2] == NONE {
            return None;
        }
        let message = self.message[node as usize / 2];
        let earlier = (message as usize).checked_sub(self.room)?;
        (earlier >= self.start[message as usize] as usize).then(|| consumed(earlier as u32))
    }
}
