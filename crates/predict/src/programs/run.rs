use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use paceline_collective::cost::Load;
use paceline_collective::tiles;
use paceline_collective::verify::{Reason, Refusal};

use super::prepared::{Kind, NONE, Step, refusal};
use super::{Combining, Machine, Outcome, PreparedProgram};
use crate::flows::{FlowId, FlowNetwork, RouteId};

/// A program under way.
pub(super) struct Run<'a> {
    program: &'a PreparedProgram,
    load: Load,
    tiles: u32,
    window: usize,
    gamma: f64,
    flows: FlowNetwork,
    /// What each flow under way carries.
    cargoes: Vec<Cargo>,
    channels: Vec<Channel>,
    ranks: Vec<RankState>,
    /// The places of the tiles of each rank, `window` of them one after the other: a tile is at its number modulo that.
    places: Vec<Place>,
    /// How many steps each step still waits for, place by place; [`BEGUN`] for a message that waits no more.
    waits: Vec<u32>,
    queue: BinaryHeap<Reverse<Event>>,
    now: f64,
    ended: Vec<f64>,
    messages: usize,
}

/// What a flow is.
#[derive(Clone, Copy)]
enum Cargo {
    /// The message that its channel has under way.
    Message { channel: u32 },
    /// Work that takes the place of receiving.
    Work { rank: u32 },
}

/// The messages from one rank to another.
struct Channel {
    route: RouteId,
    latency_s: f64,
    overhead_bytes: f64,
    /// The one under way, and those that wait for their turn.
    leaving: Option<Piece>,
    waiting: BinaryHeap<Reverse<Piece>>,
    bytes: f64,
}

/// What one rank computes.
struct RankState {
    /// Its port, for work that takes the place of receiving, and how many bytes a second it takes in.
    port: RouteId,
    port_capacity: f64,
    working: Option<Piece>,
    waiting: BinaryHeap<Reverse<Piece>>,
    /// Tiles begun.
    begun: u32,
}

/// Where a rank keeps the state of a tile.
#[derive(Clone, Copy)]
struct Place {
    tile: u32,
    /// Steps that have not ended.
    left: u32,
}

/// A step in a tile; of several, the earliest tile and step are served first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    tile: u32,
    step: u32,
}

/// A message has arrived at the step that takes it in, or the work of a step is done.
#[derive(Clone, Copy)]
struct Event {
    time: f64,
    rank: u32,
    arrived: bool,
    piece: Piece,
}

/// Both sides of a message were ready, or the tile has not begun yet. So a side whose own tile has begun and that finds no
/// wait left at the other side finds it in the same tile: an earlier one would have had to end there before a later one
/// could begin at the same place.
const BEGUN: u32 = u32::MAX;

/// Moments that lie closer together than this, relative to the time since the start, differ by rounding.
const SIMULTANEOUS: f64 = 1e-12;

impl<'a> Run<'a> {
    pub fn new(program: &'a PreparedProgram, load: &Load, machine: &Machine<'_>) -> Run<'a> {
        let network = machine.network;
        let tiles = tiles(load.bytes, load.tile_bytes) as u32;
        let window = load.window.min(tiles as usize);
        let mut flows = FlowNetwork::new(network.links().iter().map(|link| link.capacity));
        let channel = |&(from, to): &(u32, u32)| {
            let route = network.route(from as usize, to as usize, &machine.choice);
            let (latency_s, overhead_bytes) = (route.latency_s, route.overhead_bytes);
            let route = flows.add_route(&route.links);
            Channel { route, latency_s, overhead_bytes, leaving: None, waiting: BinaryHeap::new(), bytes: 0.0 }
        };
        let channels = program.pairs.iter().map(channel).collect();
        let ranks = (0..program.world()).map(|rank| {
            let link = network.port_in(rank);
            let beside = machine.combining == Combining::Beside;
            let port = flows.add_route(if beside { &[] } else { std::slice::from_ref(&link) });
            let port_capacity = if beside { 0.0 } else { network.links()[link as usize].capacity };
            RankState { port, port_capacity, working: None, waiting: BinaryHeap::new(), begun: 0 }
        });
        let ranks = ranks.collect();
        Run {
            program,
            load: *load,
            tiles,
            window,
            gamma: machine.gamma,
            flows,
            cargoes: Vec::new(),
            channels,
            ranks,
            places: vec![Place { tile: NONE, left: 0 }; window * program.world()],
            waits: vec![BEGUN; window * program.steps()],
            queue: BinaryHeap::new(),
            now: 0.0,
            ended: vec![0.0; program.world()],
            messages: 0,
        }
    }

    pub fn run(mut self) -> Result<Outcome, Refusal> {
        (0..self.program.world()).for_each(|rank| self.begin_tiles(rank));
        let (mut completed, mut cargoes) = (Vec::new(), Vec::new());
        while let Some(now) = self.next_moment() {
            self.now = now;
            self.flows.take_completed(now, &mut completed);
            // All of them before the first one lets another flow begin, which takes one of their numbers.
            cargoes.extend(completed.drain(..).map(|flow| self.cargoes[flow.index()]));
            cargoes.drain(..).for_each(|cargo| self.carried(cargo));
            let until = now + now * SIMULTANEOUS;
            while let Some(&Reverse(event)) = self.queue.peek().filter(|event| event.0.time <= until) {
                self.queue.pop();
                self.happened(event);
            }
        }
        self.finish()
    }

    fn next_moment(&mut self) -> Option<f64> {
        let event = self.queue.peek().map(|event| event.0.time);
        match (self.flows.next_completion(), event) {
            (Some(flow), Some(event)) => Some(flow.min(event).max(self.now)),
            (one, other) => one.or(other).map(|time| time.max(self.now)),
        }
    }

    /// Begins the tiles whose places are free: their steps that wait for nothing are ready.
    fn begin_tiles(&mut self, rank: usize) {
        let program = self.program;
        let steps = program.steps_of(rank);
        while self.ranks[rank].begun < self.tiles {
            let tile = self.ranks[rank].begun;
            let place = &mut self.places[rank * self.window + tile as usize % self.window];
            if place.left > 0 {
                return;
            }
            *place = Place { tile, left: steps.len() as u32 };
            self.ranks[rank].begun += 1;
            let (all, slots) = (steps.start as usize..steps.end as usize, self.slot(Piece { tile, step: steps.start }));
            self.waits[slots..slots + steps.len()]
                .iter_mut()
                .zip(&program.steps[all])
                .for_each(|(waits, step)| *waits = step.waits);
            for step in steps.clone().filter(|&step| program.steps[step as usize].waits == 0) {
                self.ready(rank, Piece { tile, step });
            }
        }
    }

    /// Where the waits of a step in a tile are counted.
    fn slot(&self, piece: Piece) -> usize {
        piece.tile as usize % self.window * self.program.steps() + piece.step as usize
    }

    /// A step of a rank waits for nothing more.
    fn ready(&mut self, rank: usize, piece: Piece) {
        let Step { kind, peer, .. } = self.program.steps[piece.step as usize];
        if kind == Kind::Local {
            return self.work(rank, piece);
        }
        let peer = Piece { step: peer, ..piece };
        let (own, others) = (self.slot(piece), self.slot(peer));
        if self.waits[others] == 0 {
            (self.waits[own], self.waits[others]) = (BEGUN, BEGUN);
            self.send(if kind == Kind::Send { piece } else { peer });
        }
    }

    /// Both sides of a message are ready.
    fn send(&mut self, piece: Piece) {
        let channel = self.program.steps[piece.step as usize].channel;
        if self.channels[channel as usize].leaving.is_some() {
            self.channels[channel as usize].waiting.push(Reverse(piece));
        } else {
            self.leave(channel, piece);
        }
    }

    fn leave(&mut self, channel: u32, piece: Piece) {
        let bytes = self.bytes(piece);
        let state = &mut self.channels[channel as usize];
        state.leaving = Some(piece);
        state.bytes += bytes;
        self.messages += 1;
        let flow = self.flows.add(state.route, bytes + state.overhead_bytes, self.now);
        self.load_on(flow, Cargo::Message { channel });
    }

    fn load_on(&mut self, flow: FlowId, cargo: Cargo) {
        if self.cargoes.len() <= flow.index() {
            self.cargoes.resize(flow.index() + 1, cargo);
        }
        self.cargoes[flow.index()] = cargo;
    }

    /// A flow is through.
    fn carried(&mut self, cargo: Cargo) {
        match cargo {
            Cargo::Message { channel } => self.left(channel),
            Cargo::Work { rank } => self.worked(rank as usize),
        }
    }

    /// A message has left: its sender may overwrite it, and the next one has its turn.
    fn left(&mut self, channel: u32) {
        let state = &mut self.channels[channel as usize];
        let time = self.now + state.latency_s;
        let Some(piece) = state.leaving.take() else { return };
        if let Some(Reverse(next)) = state.waiting.pop() {
            self.leave(channel, next);
        }
        let (sender, receiver) = self.program.pairs[channel as usize];
        let receive = Piece { step: self.program.steps[piece.step as usize].peer, ..piece };
        self.queue.push(Reverse(Event { time, rank: receiver, arrived: true, piece: receive }));
        self.end(sender as usize, piece);
    }

    fn happened(&mut self, Event { rank, arrived, piece, .. }: Event) {
        let rank = rank as usize;
        if !arrived {
            self.worked(rank);
        } else if self.program.steps[piece.step as usize].kind == Kind::Fold && self.gamma > 0.0 {
            self.work(rank, piece);
        } else {
            self.end(rank, piece);
        }
    }

    /// A step has something to compute.
    fn work(&mut self, rank: usize, piece: Piece) {
        if self.ranks[rank].working.is_some() {
            self.ranks[rank].waiting.push(Reverse(piece));
        } else {
            self.begin_work(rank, piece);
        }
    }

    fn begin_work(&mut self, rank: usize, piece: Piece) {
        let seconds = self.gamma * self.bytes(piece);
        let RankState { port, port_capacity, .. } = self.ranks[rank];
        self.ranks[rank].working = Some(piece);
        let number = rank as u32;
        if port_capacity == 0.0 {
            self.queue.push(Reverse(Event { time: self.now + seconds, rank: number, arrived: false, piece }));
        } else {
            let flow = self.flows.add(port, seconds * port_capacity, self.now);
            self.load_on(flow, Cargo::Work { rank: number });
        }
    }

    /// A rank has done its work, and begins the next.
    fn worked(&mut self, rank: usize) {
        let Some(piece) = self.ranks[rank].working.take() else { return };
        if let Some(Reverse(next)) = self.ranks[rank].waiting.pop() {
            self.begin_work(rank, next);
        }
        self.end(rank, piece);
    }

    /// A step of a rank has ended.
    fn end(&mut self, rank: usize, piece: Piece) {
        let program = self.program;
        for &next in program.successors(piece.step) {
            let next = Piece { step: next, ..piece };
            let slot = self.slot(next);
            self.waits[slot] -= 1;
            if self.waits[slot] == 0 {
                self.ready(rank, next);
            }
        }
        self.ended[rank] = self.now;
        let place = &mut self.places[rank * self.window + piece.tile as usize % self.window];
        place.left -= 1;
        if place.left == 0 {
            self.begin_tiles(rank);
        }
    }

    /// The bytes that a step moves or computes.
    fn bytes(&self, piece: Piece) -> f64 {
        let begin = piece.tile as usize * self.load.tile_bytes;
        let tile = self.load.tile_bytes.min(self.load.bytes - begin);
        let amount = self.program.steps[piece.step as usize].amount;
        tile as f64 * f64::from(amount) / f64::from(self.program.parts)
    }

    /// Has everything ended that was to end?
    fn finish(self) -> Result<Outcome, Refusal> {
        for (rank, state) in self.ranks.iter().enumerate() {
            let places = &self.places[rank * self.window..(rank + 1) * self.window];
            if let Some(place) = places.iter().find(|place| place.left > 0) {
                let waits = |&step: &u32| !matches!(self.waits[self.slot(Piece { tile: place.tile, step })], 0 | BEGUN);
                let step = self.program.steps_of(rank).find(waits).map(|step| step - self.program.first[rank]);
                return Err(refusal(rank, step, Reason::Cycle));
            }
            debug_assert_eq!(state.begun, self.tiles);
        }
        let mut link_bytes = vec![0.0; self.flows.links()];
        for channel in &self.channels {
            self.flows.route(channel.route).iter().for_each(|&link| link_bytes[link as usize] += channel.bytes);
        }
        Ok(Outcome { seconds: self.now, rank_seconds: self.ended, messages: self.messages, link_bytes })
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        self.time.total_cmp(&other.time).then((self.piece, self.arrived).cmp(&(other.piece, other.arrived)))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Event {}
