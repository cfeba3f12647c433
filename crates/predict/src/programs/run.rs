use std::cmp::Reverse;
use std::collections::BinaryHeap;

use paceline_collective::cost::Load;
use paceline_collective::tiles;
use paceline_collective::verify::{Reason, Refusal};

use super::prepared::{Kind, NONE, Step, refusal};
use super::turns::{Piece, Turns, Way};
use super::{Combining, Machine, Outcome, PreparedProgram};
use crate::agenda::Agenda;
use crate::flows::{FlowId, FlowNetwork, RouteId, SIMULTANEOUS};

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
    turns: Turns,
    ranks: Vec<RankState>,
    /// The places of the tiles of each rank, `window` of them one after the other: a tile is at its number modulo that.
    places: Vec<Place>,
    /// How many steps each step still waits for, place by place; or [`BEGUN`], or [`ON_ITS_WAY`].
    waits: Vec<u32>,
    agenda: Agenda<Happening>,
    now: f64,
    ended: Vec<f64>,
    messages: usize,
}

/// What a flow is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cargo {
    /// A message, by its send.
    Message(Piece),
    /// Work that takes the place of receiving.
    Work(u32),
}

/// The messages from one rank to another.
struct Channel {
    route: RouteId,
    latency_s: f64,
    overhead_bytes: f64,
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

/// Something that happens by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// A message, by its send, is where its receiver can take it in.
    Arrives(Piece),
    /// A rank has done its work.
    Worked(u32),
}

/// Both sides of a message were ready, or the tile has not begun yet. So a side whose own tile has begun and that finds no
/// wait left at the other side finds it in the same tile: an earlier one would have had to end there before a later one
/// could begin at the same place.
const BEGUN: u32 = u32::MAX;

/// A send is ready, and its message on its way to the receiver.
const ON_ITS_WAY: u32 = u32::MAX - 1;

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
            Channel { route, latency_s, overhead_bytes, bytes: 0.0 }
        };
        let channels: Vec<Channel> = program.pairs.iter().map(channel).collect();
        let turns = Turns::new(machine.sending, channels.len(), program.world());
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
            turns,
            ranks,
            places: vec![Place { tile: NONE, left: 0 }; window * program.world()],
            waits: vec![BEGUN; window * program.steps()],
            agenda: Agenda::default(),
            now: 0.0,
            ended: vec![0.0; program.world()],
            messages: 0,
        }
    }

    pub fn run(mut self) -> Result<Outcome, Refusal> {
        (0..self.program.world()).for_each(|rank| self.begin_tiles(rank));
        let (mut completed, mut cargoes, mut happenings) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(now) = self.next_moment() {
            self.now = now;
            self.flows.take_completed(now, &mut completed);
            // All of them before the first one lets another flow begin, which takes one of their numbers. Of what is
            // simultaneous, the earliest tile and step come first.
            cargoes.extend(completed.drain(..).map(|flow| self.cargoes[flow.index()]));
            cargoes.sort_unstable();
            cargoes.drain(..).for_each(|cargo| self.carried(cargo));
            let until = now + now * SIMULTANEOUS;
            happenings.extend(std::iter::from_fn(|| self.agenda.pop_until(until)).map(|(_, what)| what));
            happenings.sort_unstable();
            happenings.drain(..).for_each(|what| self.happened(what));
        }
        self.finish()
    }

    fn next_moment(&mut self) -> Option<f64> {
        let event = self.agenda.peek().map(|(time, _)| time);
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
        let Step { kind, channel, .. } = self.program.steps[piece.step as usize];
        match kind {
            Kind::Local => self.work(rank, piece),
            Kind::Store | Kind::Fold => self.meet(piece),
            Kind::Send => {
                let slot = self.slot(piece);
                self.waits[slot] = ON_ITS_WAY;
                self.push(self.channels[channel as usize].latency_s, Happening::Arrives(piece));
            }
        }
    }

    fn push(&mut self, seconds: f64, what: Happening) {
        self.agenda.push(self.now + seconds, what);
    }

    fn happened(&mut self, what: Happening) {
        match what {
            Happening::Arrives(piece) => {
                let slot = self.slot(piece);
                self.waits[slot] = 0;
                self.meet(piece);
            }
            Happening::Worked(rank) => self.worked(rank as usize),
        }
    }

    /// One side of a message is where the other one can meet it. If that is there, too, the message can leave.
    fn meet(&mut self, piece: Piece) {
        let Step { kind, peer, .. } = self.program.steps[piece.step as usize];
        let peer = Piece { step: peer, ..piece };
        let (own, others) = (self.slot(piece), self.slot(peer));
        if self.waits[others] == 0 {
            (self.waits[own], self.waits[others]) = (BEGUN, BEGUN);
            self.send(if kind == Kind::Send { piece } else { peer });
        }
    }

    /// A message, by its send, leaves as soon as it has its turn.
    fn send(&mut self, piece: Piece) {
        if self.turns.may_leave(piece, self.way(piece)) {
            self.leave(piece);
        }
    }

    fn way(&self, send: Piece) -> Way {
        let channel = self.program.steps[send.step as usize].channel;
        let (sender, receiver) = self.program.pairs[channel as usize];
        Way { channel, sender, receiver }
    }

    fn leave(&mut self, piece: Piece) {
        let bytes = self.bytes(piece);
        self.messages += 1;
        let channel = &mut self.channels[self.program.steps[piece.step as usize].channel as usize];
        channel.bytes += bytes;
        let flow = self.flows.add(channel.route, bytes + channel.overhead_bytes, self.now);
        self.load_on(flow, Cargo::Message(piece));
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
            Cargo::Message(piece) => self.left(piece),
            Cargo::Work(rank) => self.worked(rank as usize),
        }
    }

    /// A message has been taken in, and its sender may overwrite it.
    fn left(&mut self, piece: Piece) {
        let way = self.way(piece);
        self.turns.through(way).into_iter().flatten().for_each(|next| self.leave(next));
        self.end(way.sender as usize, piece);
        let (receiver, step) = (way.receiver as usize, self.program.steps[piece.step as usize].peer);
        let receive = Piece { step, ..piece };
        if self.program.steps[step as usize].kind == Kind::Fold && self.gamma > 0.0 {
            self.work(receiver, receive);
        } else {
            self.end(receiver, receive);
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
            self.push(seconds, Happening::Worked(number));
        } else {
            let flow = self.flows.add(port, seconds * port_capacity, self.now);
            self.load_on(flow, Cargo::Work(number));
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
                let waits =
                    |&step: &u32| (1..ON_ITS_WAY).contains(&self.waits[self.slot(Piece { tile: place.tile, step })]);
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
