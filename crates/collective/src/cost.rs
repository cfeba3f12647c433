//! What a program costs, found by walking it.
//!
//! The machine that is walked: a message of b bytes keeps a port of its sender busy for overhead + beta·b, and arrives
//! alpha + beta·b after its start; a port of its receiver is busy for the last overhead + beta·b of that. Sending and
//! receiving do not disturb each other (full duplex). Between hosts a message also keeps the ports of the hosts' network
//! interfaces busy for as long, which all ranks of a host share; otherwise any two ranks have a way of their own.
//! Whoever folds, combines, maps or copies b bytes needs gamma·b more, and takes nothing in meanwhile; only a copy that
//! would vanish in place is free. Whatever can start first does; of several, the earliest tile.
//!
//! Source: R. Hockney, "The communication challenge for MPP" (1994), with the single-ported, full-duplex ranks of
//! Sanders, Speck and Träff (2009), the overhead of Culler et al. (1993) and Alexandrov et al. (1995), and the gamma of
//! Thakur, Rabenseifner and Gropp (2005).

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap, VecDeque};

use paceline_plan::{LinkCost, LinkCosts, Rank};

use crate::program::{Action, Slot};
use crate::verify::{Graph, Matches, NONE};
use crate::{Capacity, Place, Program, Refusal, Topology, tiles};

/// How much a collective moves, and in which pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Bytes per block.
    pub bytes: usize,
    /// Bytes per tile of a block. At least 1.
    pub tile_bytes: usize,
    /// Tiles in flight per rank. At least 1.
    pub window: usize,
}

/// What a program costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Messages, of all ranks and tiles.
    pub messages: usize,
    /// The bytes that the busiest sender puts on the wire.
    pub bytes_sent_max: usize,
    /// The longest chain of messages of one tile each of which is sent only after the one before has arrived.
    pub rounds: usize,
    /// From the start to the last end.
    pub seconds: f64,
}

/// Walks a program. Refuses one that would never end.
///
/// The cost is messages × log(messages).
///
/// # Panics
/// If program and topology have different numbers of ranks.
pub fn walk(program: &Program, load: &Load, topology: &Topology, costs: &LinkCosts) -> Result<Cost, Refusal> {
    assert_eq!(program.ranks.len(), topology.world(), "a program of one world on another");
    let matches = crate::verify::match_messages(program)?;
    let rounds = Graph::new(program, &matches, Capacity::Rendezvous)?.rounds();
    let mut walker = Walker::new(program, &matches, *load, topology, *costs);
    walker.run();
    Ok(Cost {
        messages: matches.messages() * walker.tiles,
        bytes_sent_max: walker.ranks.iter().map(|rank| rank.bytes_sent).max().unwrap_or(0),
        rounds,
        seconds: walker.now,
    })
}

struct Walker<'a> {
    program: &'a Program,
    matches: &'a Matches,
    load: Load,
    topology: &'a Topology,
    costs: LinkCosts,
    tiles: usize,
    /// The steps that wait for each step.
    then: Vec<Vec<u32>>,
    ranks: Vec<Rankwise>,
    /// The network interface of each host.
    interfaces: Vec<Ports>,
    /// Tiles that some rank has begun and not all have ended.
    open: HashMap<usize, Tile>,
    queue: BinaryHeap<Reverse<Candidate>>,
    now: f64,
}

/// The two directions of a rank or of a network interface.
#[derive(Clone, Default)]
struct Ports {
    sends_until: f64,
    takes: Calendar,
}

/// When a port takes something in. What is under way is entered ahead of time; what arrives earlier comes before it.
#[derive(Clone, Default)]
struct Calendar {
    /// Begin and end of what lies ahead, in order.
    busy: VecDeque<(f64, f64)>,
    /// Everything before is past.
    past: f64,
}

/// What one rank is doing.
#[derive(Clone, Default)]
struct Rankwise {
    ports: Ports,
    bytes_sent: usize,
    /// Tiles begun, and how many of the oldest ones are complete.
    begun: usize,
    complete: usize,
}

/// The state of all steps in one tile.
struct Tile {
    /// How many steps each one waits for; one more until its rank has begun the tile.
    waits: Vec<usize>,
    /// When each is ready.
    ready: Vec<f64>,
    /// Steps still to end, by rank and in total.
    left: Vec<usize>,
    all_left: usize,
}

/// A step, or a message by its send, that could start.
struct Candidate {
    start: f64,
    tile: usize,
    step: usize,
}

impl<'a> Walker<'a> {
    fn new(program: &'a Program, matches: &'a Matches, load: Load, topology: &'a Topology, costs: LinkCosts) -> Self {
        let mut then = vec![Vec::new(); matches.steps()];
        for (rank, content) in program.ranks.iter().enumerate() {
            let first = matches.first[rank];
            for (step, content) in content.steps.iter().enumerate() {
                content.after.iter().for_each(|&after| then[first + after as usize].push((first + step) as u32));
            }
        }
        Walker {
            program,
            matches,
            load,
            topology,
            costs,
            tiles: tiles(load.bytes, load.tile_bytes),
            then,
            ranks: vec![Rankwise::default(); program.ranks.len()],
            interfaces: vec![Ports::default(); topology.hosts()],
            open: HashMap::new(),
            queue: BinaryHeap::new(),
            now: 0.0,
        }
    }

    fn run(&mut self) {
        (0..self.ranks.len()).for_each(|rank| self.begin_tiles(rank, 0.0));
        while let Some(Reverse(candidate)) = self.queue.pop() {
            let start = self.earliest(&candidate);
            if start > candidate.start {
                self.queue.push(Reverse(Candidate { start, ..candidate }));
            } else {
                self.execute(&candidate);
            }
        }
    }

    /// Begins as many tiles as the window allows.
    fn begin_tiles(&mut self, rank: Rank, time: f64) {
        while self.ranks[rank].begun < self.tiles.min(self.ranks[rank].complete + self.load.window) {
            let tile = self.ranks[rank].begun;
            self.ranks[rank].begun += 1;
            self.open.entry(tile).or_insert_with(|| Tile::new(self.program));
            let (first, end) = (self.matches.first[rank], self.matches.first[rank + 1]);
            (first..end).for_each(|step| self.release(tile, step, time));
            if first == end {
                self.ranks[rank].complete += 1;
            }
        }
    }

    /// One of the things that a step waits for has happened.
    fn release(&mut self, tile: usize, step: usize, time: f64) {
        let Some(state) = self.open.get_mut(&tile) else { return };
        state.waits[step] -= 1;
        state.ready[step] = state.ready[step].max(time);
        if state.waits[step] > 0 {
            return;
        }
        let peer = self.matches.peer[step];
        let send = if peer == NONE || self.matches.send[step] { step } else { peer as usize };
        if peer == NONE {
            self.queue.push(Reverse(Candidate { start: time, tile, step }));
        } else if state.waits[peer as usize] == 0 {
            // The sender must be ready when the message starts, the receiver when it begins to arrive.
            let receive = self.matches.peer[send] as usize;
            let (sent, taken) = (state.ready[send], state.ready[receive]);
            let start = sent.max(taken - self.link(send, receive).latency());
            self.queue.push(Reverse(Candidate { start, tile, step: send }));
        }
    }

    /// When a candidate can start, as the ports are now.
    fn earliest(&self, candidate: &Candidate) -> f64 {
        let (rank, _) = self.matches.locate(candidate.step);
        match self.matches.peer[candidate.step] {
            NONE => {
                let work = self.work(candidate.tile, candidate.step);
                self.ranks[rank].ports.takes.free(candidate.start, work)
            }
            receive => {
                let receiver = self.matches.locate(receive as usize).0;
                let link = self.link(candidate.step, receive as usize);
                let bytes = self.message_bytes(candidate);
                let busy = link.busy(bytes);
                let taking = busy + self.work(candidate.tile, receive as usize);
                let mut start = candidate.start.max(self.ranks[rank].ports.sends_until);
                if self.topology.same_host(rank, receiver) {
                    return self.arrival(receiver, start + link.latency(), taking, None) - link.latency();
                }
                start = start.max(self.interfaces[self.topology.host(rank)].sends_until);
                let interface = Some((self.topology.host(receiver), busy));
                self.arrival(receiver, start + link.latency(), taking, interface) - link.latency()
            }
        }
    }

    /// When a rank, and the interface of its host for a shorter time, can begin to take something in.
    fn arrival(&self, receiver: Rank, earliest: f64, taking: f64, interface: Option<(usize, f64)>) -> f64 {
        let mut time = self.ranks[receiver].ports.takes.free(earliest, taking);
        let Some((host, busy)) = interface else { return time };
        loop {
            let free = self.interfaces[host].takes.free(time, busy);
            if free == time {
                return time;
            }
            time = self.ranks[receiver].ports.takes.free(free, taking);
        }
    }

    fn execute(&mut self, candidate: &Candidate) {
        let &Candidate { start, tile, step } = candidate;
        let (rank, _) = self.matches.locate(step);
        let receive = self.matches.peer[step];
        if receive == NONE {
            let work = self.work(tile, step);
            self.ranks[rank].ports.takes.enter(start, start + work, start);
            return self.end(tile, step, start + work);
        }
        let receiver = self.matches.locate(receive as usize).0;
        let link = *self.link(step, receive as usize);
        let bytes = self.message_bytes(candidate);
        let begins = start + link.latency();
        let arrived = begins + link.busy(bytes);
        // What is fetched keeps the sender's memory, not its port.
        let fetched = self.costs.fetched && self.topology.same_host(rank, receiver);
        let (left, free) = if fetched {
            (arrived, start + link.overhead)
        } else {
            (start + link.busy(bytes), start + link.busy(bytes))
        };
        let taken = arrived + self.work(tile, receive as usize);
        self.ranks[rank].ports.sends_until = free;
        self.ranks[rank].bytes_sent += bytes;
        self.ranks[receiver].ports.takes.enter(begins, taken, start);
        if !self.topology.same_host(rank, receiver) {
            self.interfaces[self.topology.host(rank)].sends_until = left;
            self.interfaces[self.topology.host(receiver)].takes.enter(begins, arrived, start);
        }
        self.end(tile, step, left);
        self.end(tile, receive as usize, taken);
    }

    fn message_bytes(&self, message: &Candidate) -> usize {
        self.action(message.step).reads().map(|slot| self.bytes(message.tile, slot)).sum()
    }

    /// What the link of a message costs.
    fn link(&self, send: usize, receive: usize) -> &LinkCost {
        let (sender, receiver) = (self.matches.locate(send).0, self.matches.locate(receive).0);
        if self.topology.same_host(sender, receiver) { &self.costs.within } else { &self.costs.across }
    }

    fn end(&mut self, tile: usize, step: usize, time: f64) {
        self.now = self.now.max(time);
        for next in 0..self.then[step].len() {
            self.release(tile, self.then[step][next] as usize, time);
        }
        let (rank, _) = self.matches.locate(step);
        let Some(state) = self.open.get_mut(&tile) else { return };
        state.left[rank] -= 1;
        state.all_left -= 1;
        if state.all_left == 0 {
            self.open.remove(&tile);
        }
        let left = |tile: &usize| self.open.get(tile).is_some_and(|tile| tile.left[rank] > 0);
        let ports = &mut self.ranks[rank];
        while ports.complete < ports.begun && !left(&ports.complete) {
            ports.complete += 1;
        }
        self.begin_tiles(rank, time);
    }

    fn action(&self, step: usize) -> &'a Action {
        let (rank, step) = self.matches.locate(step);
        &self.program.ranks[rank].steps[step as usize].action
    }

    /// Seconds that a step computes.
    fn work(&self, tile: usize, step: usize) -> f64 {
        let action = self.action(step);
        let place = |rank| {
            let Program { kind, root, ref ranks, .. } = *self.program;
            Place { kind, rank, world: ranks.len(), root }
        };
        let slot = match action {
            Action::Send { .. } | Action::Receive { fold: None, .. } => return 0.0,
            Action::Copy { .. } if place(self.matches.locate(step).0).vanishes_in_place(action) => return 0.0,
            Action::Receive { into, .. }
            | Action::Combine { into, .. }
            | Action::Copy { into, .. }
            | Action::Map { into, .. } => *into,
        };
        self.costs.within.gamma * self.bytes(tile, slot) as f64
    }

    fn bytes(&self, tile: usize, slot: Slot) -> usize {
        let begin = tile * self.load.tile_bytes;
        let length = self.load.tile_bytes.min(self.load.bytes - begin);
        let cut = |part: u32| (length as u128 * u128::from(part) / u128::from(self.program.parts)) as usize;
        slot.blocks as usize * (cut(slot.part + slot.parts) - cut(slot.part))
    }
}

impl Calendar {
    /// The first time from `earliest` on at which the port is free for so long. What takes no time fits anywhere.
    fn free(&self, earliest: f64, seconds: f64) -> f64 {
        if seconds == 0.0 {
            return earliest;
        }
        let mut time = earliest.max(self.past);
        for &(begin, end) in &self.busy {
            if time + seconds <= begin {
                break;
            }
            time = time.max(end);
        }
        time
    }

    /// Enters what begins and ends then. Nothing will ask for a time before `now` any more.
    fn enter(&mut self, begin: f64, end: f64, now: f64) {
        if begin == end {
            return;
        }
        while let Some(&(_, end)) = self.busy.front().filter(|&&(_, end)| end <= now) {
            self.past = self.past.max(end);
            self.busy.pop_front();
        }
        let place = self.busy.partition_point(|&(other, _)| other < begin);
        self.busy.insert(place, (begin, end));
    }
}

impl Tile {
    fn new(program: &Program) -> Self {
        let steps = || program.ranks.iter().flat_map(|rank| &rank.steps);
        let waits: Vec<_> = steps().map(|step| step.after.len() + 1).collect();
        let left: Vec<_> = program.ranks.iter().map(|rank| rank.steps.len()).collect();
        Tile { ready: vec![0.0; waits.len()], all_left: waits.len(), waits, left }
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.start.total_cmp(&other.start).then((self.tile, self.step).cmp(&(other.tile, other.step)))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}
