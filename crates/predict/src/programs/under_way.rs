//! Programs in virtual time: one that all ranks begin at once, or many, each as soon as a rank begins it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::mem;
use std::rc::Rc;

use paceline_collective::verify::{Reason, Refusal};

use super::ports::Ports;
use super::prepared::{Kind, Step, refusal};
use super::state::{BEGUN, Ended, ON_ITS_WAY, Operation, State, Turn};
use super::turns::{Piece, Turns, Way};
use super::{Combining, Machine, Outcome, PreparedProgram, Sending};
use crate::agenda::Agenda;
use crate::flows::{FlowId, FlowNetwork, RouteId, SIMULTANEOUS};

/// What those wait for who have begun something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// A rank has done all its steps of an operation.
    Ended { turn: Turn, rank: usize },
    /// What [`UnderWay::occupy`] has put on a rank's port is through.
    Free { rank: usize },
}

/// Programs under way on a machine: of each operation as soon as a rank begins it, beside all that have begun before.
pub(crate) struct UnderWay<'a> {
    /// Two of each operation, which take turns: nobody begins an operation for the third time before everybody has ended it once,
    /// as it ends nowhere before all have begun it.
    states: Vec<State<'a>>,
    flows: FlowNetwork,
    /// What each flow under way carries.
    cargoes: Vec<Cargo>,
    channels: Vec<Channel>,
    turns: Turns,
    /// Of links that are emulated. Messages then are no flows.
    ports: Option<Ports>,
    ranks: Vec<RankState>,
    agenda: Agenda<Happening>,
    now: f64,
    ended_s: Vec<f64>,
    messages: usize,
    /// How much of a message leaves at once, and what is left of those that have begun to.
    frame_bytes: f64,
    rests: BTreeMap<Piece, f64>,
    news: Vec<News>,
    /// Empty between two moments.
    completed: Vec<FlowId>,
    carried: Vec<Cargo>,
    happenings: Vec<Happening>,
}

/// What a flow is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cargo {
    /// A message, by its send.
    Message(Piece),
    /// Work that takes the place of receiving.
    Work(u32),
    /// Something else that does.
    Occupied(u32),
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
    /// Its port, for what takes the place of receiving, and how many bytes a second it takes in; 0: nothing does.
    port: RouteId,
    port_capacity: f64,
    /// Seconds per byte.
    gamma: f64,
    working: Option<Piece>,
    waiting: BinaryHeap<Reverse<Piece>>,
}

/// Something that happens by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// A message, by its send, is where its receiver can take it in.
    Arrives(Piece),
    /// A rank has done its work.
    Worked(u32),
    /// What a rank has begun otherwise is over.
    Free(u32),
    /// A message begins to leave the port of its sender.
    Leaves(Piece),
    /// It has passed the port of its receiver, too.
    Passed(Piece),
}

/// Executes one program, which all ranks begin at once.
pub(super) fn run(operation: Operation<'_>, machine: &Machine<'_>) -> Result<Outcome, Refusal> {
    let mut under_way = UnderWay::new(&[operation], machine);
    (0..operation.program.world()).for_each(|rank| under_way.begin(0, rank));
    while let Some(now) = under_way.next_moment() {
        under_way.advance(now);
    }
    under_way.check_ended()?;
    let UnderWay { now, ended_s, messages, .. } = under_way;
    let mut link_bytes = vec![0.0; under_way.flows.links()];
    for channel in &under_way.channels {
        under_way.flows.route(channel.route).iter().for_each(|&link| link_bytes[link as usize] += channel.bytes);
    }
    Ok(Outcome { seconds: now, rank_seconds: ended_s, messages, link_bytes })
}

impl<'a> UnderWay<'a> {
    /// None under way yet of these operations, the most urgent first.
    ///
    /// # Panics
    /// If program and network have different numbers of ranks, a window or tiles are empty, there are 2³² tiles or more, or gamma is
    /// negative or not finite.
    pub fn new(operations: &[Operation<'a>], machine: &Machine<'_>) -> UnderWay<'a> {
        let network = machine.network;
        assert!(machine.gamma >= 0.0 && machine.gamma.is_finite(), "gamma is {}", machine.gamma);
        let mut flows = FlowNetwork::new(network.links().iter().map(|link| link.capacity));
        let mut channels = Vec::new();
        // By sender and receiver, and by program.
        let (mut numbers, mut of_programs) = (HashMap::new(), HashMap::new());
        let mut number = |&(from, to): &(u32, u32)| {
            *numbers.entry((from, to)).or_insert_with(|| {
                let route = network.route(from as usize, to as usize, &machine.choice);
                let (latency_s, overhead_bytes) = (route.latency_s, route.overhead_bytes);
                let route = flows.add_route(&route.links);
                channels.push(Channel { route, latency_s, overhead_bytes, bytes: 0.0 });
                channels.len() as u32 - 1
            })
        };
        let mut states = Vec::with_capacity(2 * operations.len());
        for operation in operations.iter().chain(operations) {
            let program = operation.program;
            assert_eq!(program.world(), network.world(), "a program of one world on another");
            let of_program = of_programs.entry(std::ptr::from_ref(program));
            let own: &Rc<[u32]> = of_program.or_insert_with(|| program.pairs.iter().map(&mut number).collect());
            states.push(State::new(*operation, own.clone()));
        }
        let turns = Turns::new(machine.sending, channels.len(), network.world());
        let ports = (machine.sending == Sending::Emulated).then(|| Ports::new(network, &machine.choice, &numbers));
        let beside = machine.combining == Combining::Beside || ports.is_some();
        let ranks = (0..network.world()).map(|rank| {
            let link = network.port_in(rank);
            let port = flows.add_route(if beside { &[] } else { std::slice::from_ref(&link) });
            let port_capacity = if beside { 0.0 } else { network.links()[link as usize].capacity };
            RankState { port, port_capacity, gamma: machine.gamma, working: None, waiting: BinaryHeap::new() }
        });
        UnderWay {
            ranks: ranks.collect(),
            states,
            flows,
            cargoes: Vec::new(),
            channels,
            turns,
            ports,
            agenda: Agenda::default(),
            now: 0.0,
            ended_s: vec![0.0; network.world()],
            messages: 0,
            frame_bytes: f64::INFINITY,
            rests: BTreeMap::new(),
            news: Vec::new(),
            completed: Vec::new(),
            carried: Vec::new(),
            happenings: Vec::new(),
        }
    }

    /// The same, but messages travel in frames of so many bytes, between which more urgent ones overtake.
    pub fn in_frames(self, frame_bytes: f64) -> UnderWay<'a> {
        UnderWay { frame_bytes, ..self }
    }

    /// A rank has a processor that folds, combines, copies and maps in so many seconds per byte, beside whatever it takes in.
    pub fn has_processor(&mut self, rank: usize, gamma: f64) {
        let of = &mut self.ranks[rank];
        (of.gamma, of.port_capacity) = (gamma, 0.0);
    }

    /// A rank begins an operation, now. Each does so once in each turn, and in the order of turns.
    ///
    /// # Panics
    /// If it is two turns of this operation ahead of another rank.
    pub fn begin(&mut self, turn: Turn, rank: usize) {
        let slot = turn % self.states.len() as u32;
        let state = &mut self.states[slot as usize];
        if state.operation.program.steps_of(rank).is_empty() {
            self.news.push(News::Ended { turn, rank });
            return;
        }
        if state.ranks_left == 0 {
            state.open(turn);
        }
        assert_eq!(state.turn, turn, "rank {rank} is too far ahead");
        self.begin_tiles(rank, Piece { turn, slot, tile: 0, step: 0 });
    }

    /// Has any rank begun this turn, and one not ended it?
    pub fn is_open(&self, turn: Turn) -> bool {
        let state = &self.states[turn as usize % self.states.len()];
        state.ranks_left > 0 && state.turn == turn
    }

    /// A rank is busy for so many seconds with something that takes the place of receiving, if combining does.
    pub fn occupy(&mut self, rank: usize, seconds: f64) {
        self.take_port(rank, seconds, Happening::Free(rank as u32), Cargo::Occupied(rank as u32));
    }

    /// When something happens next. None: nothing is under way, or nothing of it will ever end.
    pub fn next_moment(&mut self) -> Option<f64> {
        let event = self.agenda.peek().map(|(time, _)| time);
        match (self.flows.next_completion(), event) {
            (Some(flow), Some(event)) => Some(flow.min(event).max(self.now)),
            (one, other) => one.or(other).map(|time| time.max(self.now)),
        }
    }

    /// It is so late now, and what happens at this moment has happened. No later than the next moment, and never earlier than
    /// before.
    pub fn advance(&mut self, now: f64) {
        self.now = now;
        let mut completed = mem::take(&mut self.completed);
        self.flows.take_completed(now, &mut completed);
        // All of them before the first one lets another flow begin, which takes one of their numbers. Of what is
        // simultaneous, the earliest turn, tile and step come first.
        let mut carried = mem::take(&mut self.carried);
        carried.extend(completed.drain(..).map(|flow| self.cargoes[flow.index()]));
        carried.sort_unstable();
        carried.drain(..).for_each(|cargo| self.carried(cargo));
        let until = now + now * SIMULTANEOUS;
        let mut happenings = mem::take(&mut self.happenings);
        happenings.extend(std::iter::from_fn(|| self.agenda.pop_until(until)).map(|(_, what)| what));
        happenings.sort_unstable();
        happenings.drain(..).for_each(|what| self.happened(what));
        (self.completed, self.carried, self.happenings) = (completed, carried, happenings);
    }

    /// Moves what has happened since it was last asked to the end of `news`, in order.
    pub fn take_news(&mut self, news: &mut Vec<News>) {
        news.append(&mut self.news);
    }

    /// Messages that have left.
    pub fn messages(&self) -> usize {
        self.messages
    }

    /// Has everything ended that was begun?
    ///
    /// # Errors
    /// It has not, and nothing is under way: waits form a cycle, or a rank has not begun what others wait for.
    pub fn check_ended(&self) -> Result<(), Refusal> {
        let Some(state) = self.states.iter().find(|state| state.ranks_left > 0) else { return Ok(()) };
        let program = state.operation.program;
        for rank in 0..program.world() {
            let places = &state.places[rank * state.window..(rank + 1) * state.window];
            if let Some(place) = places.iter().find(|place| place.left > 0) {
                let waits = |&step: &u32| (1..ON_ITS_WAY).contains(&state.waits[state.place(place.tile, step)]);
                let step = program.steps_of(rank).find(waits).map(|step| step - program.first[rank]);
                return Err(refusal(rank, step, Reason::Cycle));
            }
        }
        Err(refusal(0, None, Reason::Cycle))
    }

    /// Begins the tiles whose places are free: their steps that wait for nothing are ready. Of a rank and a turn: which piece of it
    /// does not matter.
    fn begin_tiles(&mut self, rank: usize, of: Piece) {
        let program = self.program(of);
        let steps = program.steps_of(rank);
        let all = steps.start as usize..steps.end as usize;
        while let Some(tile) = self.states[of.slot as usize].begin_tile(rank, all.clone()) {
            for step in steps.clone().filter(|&step| program.steps[step as usize].waits == 0) {
                self.ready(rank, Piece { tile, step, ..of });
            }
        }
    }

    fn program(&self, piece: Piece) -> &'a PreparedProgram {
        self.states[piece.slot as usize].operation.program
    }

    fn step(&self, piece: Piece) -> Step {
        self.program(piece).steps[piece.step as usize]
    }

    /// Where the waits of a step in a tile are counted.
    fn waits(&mut self, piece: Piece) -> &mut u32 {
        let state = &mut self.states[piece.slot as usize];
        let place = state.place(piece.tile, piece.step);
        &mut state.waits[place]
    }

    /// A step of a rank waits for nothing more.
    fn ready(&mut self, rank: usize, piece: Piece) {
        let Step { kind, channel, .. } = self.step(piece);
        match kind {
            Kind::Local => self.work(rank, piece),
            Kind::Store | Kind::Fold => self.meet(piece),
            Kind::Send => {
                *self.waits(piece) = ON_ITS_WAY;
                if self.ports.is_some() {
                    return self.send(piece);
                }
                let channel = self.states[piece.slot as usize].channels[channel as usize];
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
                *self.waits(piece) = 0;
                self.meet(piece);
            }
            Happening::Worked(rank) => self.worked(rank as usize),
            Happening::Free(rank) => self.news.push(News::Free { rank: rank as usize }),
            Happening::Leaves(piece) => self.enter(piece),
            Happening::Passed(piece) => self.left(piece),
        }
    }

    /// One side of a message is where the other one can meet it. If that is there, too, the message can leave; over a link that is
    /// emulated it has come to do so.
    fn meet(&mut self, piece: Piece) {
        let Step { kind, peer, .. } = self.step(piece);
        let peer = Piece { step: peer, ..piece };
        if *self.waits(peer) == 0 {
            (*self.waits(piece), *self.waits(peer)) = (BEGUN, BEGUN);
            let send = if kind == Kind::Send { piece } else { peer };
            if self.ports.is_some() { self.taken(send) } else { self.send(send) }
        }
    }

    /// A message, by its send, leaves as soon as it has its turn.
    fn send(&mut self, piece: Piece) {
        if self.turns.may_leave(piece, self.way(piece)) {
            self.leave(piece);
        }
    }

    fn way(&self, send: Piece) -> Way {
        let state = &self.states[send.slot as usize];
        let program = state.operation.program;
        let channel = program.steps[send.step as usize].channel as usize;
        let (sender, receiver) = program.pairs[channel];
        Way { channel: state.channels[channel], sender, receiver }
    }

    /// A message, or the rest of it, leaves.
    fn leave(&mut self, piece: Piece) {
        let (bytes, number) = (self.bytes(piece), self.way(piece).channel as usize);
        let rest = if self.rests.is_empty() { None } else { self.rests.remove(&piece) };
        let channel = &mut self.channels[number];
        let left = rest.unwrap_or_else(|| {
            self.messages += 1;
            channel.bytes += bytes;
            bytes + channel.overhead_bytes
        });
        if let Some(ports) = &mut self.ports {
            return self.agenda.push(ports.leave(number, left, self.now), Happening::Leaves(piece));
        }
        let frame = left.min(self.frame_bytes);
        if frame < left {
            self.rests.insert(piece, left - frame);
        }
        let flow = self.flows.add(channel.route, frame, self.now);
        self.load_on(flow, Cargo::Message(piece));
    }

    /// A message that is emulated takes its turn at the port of its receiver.
    fn enter(&mut self, piece: Piece) {
        let number = self.way(piece).channel as usize;
        let bytes = self.bytes(piece) + self.channels[number].overhead_bytes;
        if let Some(ports) = &mut self.ports {
            self.agenda.push(ports.enter(number, bytes, self.now), Happening::Passed(piece));
        }
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
            Cargo::Occupied(rank) => self.news.push(News::Free { rank: rank as usize }),
        }
    }

    /// A message, or a part of it, is through.
    fn left(&mut self, piece: Piece) {
        let way = self.way(piece);
        let rest = !self.rests.is_empty() && self.rests.contains_key(&piece);
        if rest {
            self.turns.wait_again(piece, way);
        }
        self.turns.through(way).into_iter().flatten().for_each(|next| self.leave(next));
        if self.ports.is_some() {
            self.push(self.channels[way.channel as usize].latency_s, Happening::Arrives(piece));
        } else if !rest {
            self.taken(piece);
        }
    }

    /// A message has been taken in, and its sender may overwrite it.
    fn taken(&mut self, piece: Piece) {
        let way = self.way(piece);
        let receive = Piece { step: self.step(piece).peer, ..piece };
        self.end(way.sender as usize, piece);
        let receiver = way.receiver as usize;
        if self.step(receive).kind == Kind::Fold && self.ranks[receiver].gamma > 0.0 {
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
        let seconds = self.ranks[rank].gamma * self.bytes(piece);
        self.ranks[rank].working = Some(piece);
        self.take_port(rank, seconds, Happening::Worked(rank as u32), Cargo::Work(rank as u32));
    }

    /// For so many seconds a rank does what takes the place of receiving, or nothing's.
    fn take_port(&mut self, rank: usize, seconds: f64, beside: Happening, instead: Cargo) {
        let RankState { port, port_capacity, .. } = self.ranks[rank];
        if port_capacity == 0.0 {
            self.push(seconds, beside);
        } else {
            let flow = self.flows.add(port, seconds * port_capacity, self.now);
            self.load_on(flow, instead);
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
        for &next in self.program(piece).successors(piece.step) {
            let next = Piece { step: next, ..piece };
            let waits = self.waits(next);
            *waits -= 1;
            if *waits == 0 {
                self.ready(rank, next);
            }
        }
        self.ended_s[rank] = self.now;
        match self.states[piece.slot as usize].end_step(rank, piece.tile) {
            Ended::Step => {}
            Ended::Tile => self.begin_tiles(rank, piece),
            Ended::Operation => self.news.push(News::Ended { turn: piece.turn, rank }),
        }
    }

    /// The bytes that a step moves or computes.
    fn bytes(&self, piece: Piece) -> f64 {
        let Operation { program, load } = self.states[piece.slot as usize].operation;
        let begin = piece.tile as usize * load.tile_bytes;
        let tile = load.tile_bytes.min(load.bytes - begin);
        let amount = program.steps[piece.step as usize].amount;
        tile as f64 * f64::from(amount) / f64::from(program.parts)
    }
}
