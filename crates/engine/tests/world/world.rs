//! N ranks with an engine each, links between them, and one clock that jumps from event to event.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use paceline_engine::frame::{HEADER_BYTES, Header, Kind};
use paceline_engine::{Config, Engine, Failure, Stall, Time};
use paceline_plan::Rank;

use crate::call::Call;
use crate::kernels::Kernels;
use crate::link::{Direction, Outgoing};
use crate::memory::{Memory, OpMemory};
use crate::random::Random;
use crate::setup::Setup;

/// How an operation ended on a rank.
#[derive(Clone, Debug)]
pub struct Ended {
    pub outcome: Result<(), Failure>,
    pub at: u64,
    pub output: Vec<u8>,
    pub output_lengths: Vec<usize>,
}

#[derive(Debug)]
pub enum Event {
    /// A stream sends its next piece.
    Send {
        from: Rank,
        to: Rank,
        stream: usize,
    },
    /// A piece arrives.
    Arrive {
        from: Rank,
        to: Rank,
        stream: usize,
    },
    Ticket {
        rank: Rank,
        ticket: u64,
        access: u64,
    },
    Worked {
        rank: Rank,
        job: usize,
    },
    Tick {
        rank: Rank,
    },
    Post {
        rank: Rank,
        call: usize,
    },
    Kill {
        rank: Rank,
    },
    Leave {
        rank: Rank,
    },
    Cancel {
        rank: Rank,
    },
    LinkDown {
        at: Rank,
        peer: Rank,
    },
    /// From now on the rank's system has no memory for what its link to the peer carries.
    Refuse {
        rank: Rank,
        peer: Rank,
    },
    /// From now on nothing arrives any more, and nobody is told.
    Cut {
        from: Rank,
        to: Rank,
    },
    /// The rank does nothing until then, but its links stay open.
    Freeze {
        rank: Rank,
        until: u64,
    },
}

/// A rank: its engine, its memory, and what is under way.
pub struct Node {
    pub engine: Engine,
    pub memory: Memory,
    pub jobs: Vec<Option<crate::execute::Running>>,
    pub running: usize,
    pub dead: bool,
    /// It has failed, told its peers, and hears nothing any more.
    pub closed: bool,
    pub left: bool,
    /// The peer whose link gets no memory here.
    pub refused: Option<Rank>,
    pub stalled_until: u64,
    pub tick_at: u64,
    /// The calls that are pending, by index of the operation.
    pub calls: HashMap<u32, usize>,
    pub ended: HashMap<u64, Ended>,
    /// The largest number of eager bytes that the pool held for one link.
    pub pool_peak: usize,
    /// Ranges that references of this rank name: peers take what lies there.
    pub references: Vec<(usize, Range<usize>, u64)>,
    /// The access that a peer's acknowledgement ends: by peer, operation, tile, message and offset.
    pub referred: HashMap<(Rank, u64, u32, u32, u32), u64>,
    /// What was reported of operations that do not move, and when.
    pub stalls: Vec<(u64, Stall)>,
}

pub struct World {
    pub setup: Setup,
    pub now: u64,
    pub random: Random,
    pub nodes: Vec<Node>,
    pub links: Vec<Direction>,
    /// Until when each rank's two ports are busy, out and in.
    pub ports: Vec<[u64; 2]>,
    pub calls: Vec<Call>,
    pub kernels: Kernels,
    /// By time, then in the order in which they were scheduled.
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    pub handled: u64,
}

impl World {
    pub fn new(setup: Setup) -> World {
        let n = setup.world;
        let mut random = Random::new(setup.seed);
        let mut nodes: Vec<Node> = (0..n).map(|rank| Node::new(setup.config(rank))).collect();
        for low in 0..n {
            for high in low + 1..n {
                let traits = random.pick(&setup.traits);
                nodes[low].engine.set_link(high, traits);
                nodes[high].engine.set_link(low, traits);
            }
        }
        let links = (0..n * n).map(|_| Direction::new(setup.link.streams)).collect();
        World {
            setup,
            now: 0,
            random,
            nodes,
            links,
            ports: vec![[0; 2]; n],
            calls: Vec::new(),
            kernels: Kernels,
            events: BTreeMap::new(),
            sequence: 0,
            handled: 0,
        }
    }

    pub fn link(&mut self, from: Rank, to: Rank) -> &mut Direction {
        let n = self.nodes.len();
        &mut self.links[from * n + to]
    }

    pub fn time(&self) -> Time {
        Time::from_nanos(self.now)
    }

    pub fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((time.max(self.now), self.sequence), event);
    }

    /// Every rank of the call's group makes it now.
    pub fn post(&mut self, call: &Call) {
        for rank in 0..call.world() {
            self.post_at(self.now, rank, call);
        }
    }

    /// A rank of the call's group makes it then.
    pub fn post_at(&mut self, time: u64, group_rank: Rank, call: &Call) {
        self.calls.push(call.clone());
        let rank = call.group[group_rank];
        self.at(time, Event::Post { rank, call: self.calls.len() - 1 });
    }

    /// Runs until nothing happens any more.
    pub fn run(&mut self) {
        self.run_until(u64::MAX);
    }

    /// Runs until nothing happens any more, or it is so late.
    pub fn run_until(&mut self, end: u64) {
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= end) {
            self.now = entry.key().0;
            let event = entry.remove();
            self.handled += 1;
            assert!(self.handled < 20_000_000, "the world does not come to rest");
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event) {
        let rank = match event {
            Event::Send { from, .. } => from,
            Event::Arrive { to, .. } => to,
            Event::Ticket { rank, .. }
            | Event::Worked { rank, .. }
            | Event::Tick { rank }
            | Event::Post { rank, .. }
            | Event::Kill { rank }
            | Event::Cancel { rank }
            | Event::Freeze { rank, .. }
            | Event::Refuse { rank, .. }
            | Event::Leave { rank } => rank,
            Event::LinkDown { at, .. } => at,
            Event::Cut { to, .. } => to,
        };
        if self.nodes[rank].dead {
            return;
        }
        // A stalled rank does nothing, but its kernel goes on sending what it has accepted.
        let until = self.nodes[rank].stalled_until;
        let not_its_own = matches!(event, Event::Send { .. } | Event::Kill { .. } | Event::Cut { .. });
        if self.now < until && !not_its_own {
            return self.at(until, event);
        }
        match event {
            Event::Send { from, to, stream } => return self.send_piece(from, to, stream),
            Event::Arrive { from, to, stream } => self.arrive(from, to, stream),
            Event::Ticket { rank, ticket, access } => {
                self.nodes[rank].memory.release(access);
                self.nodes[rank].engine(|engine| engine.transmitted(ticket));
            }
            Event::Worked { rank, job } => self.worked(rank, job),
            Event::Tick { rank } => {
                if self.nodes[rank].tick_at <= self.now {
                    self.nodes[rank].tick_at = u64::MAX;
                }
                let now = self.time();
                self.nodes[rank].engine(|engine| engine.tick(now));
            }
            Event::Post { rank, call } => self.start(rank, call),
            Event::Kill { rank } => return self.kill(rank),
            Event::Cut { from, to } => {
                self.link(from, to).cut = true;
                return;
            }
            Event::Freeze { rank, until } => {
                self.nodes[rank].stalled_until = until;
                return;
            }
            Event::Leave { rank } => self.leave(rank),
            Event::Refuse { rank, peer } => self.nodes[rank].refused = Some(peer),
            Event::Cancel { rank } => self.fail(rank, Failure::Cancelled { reason: "the test says so".into() }),
            Event::LinkDown { at, peer } => {
                if !self.nodes[at].engine.has_left(peer) {
                    self.fail(
                        at,
                        Failure::PeerLost { rank: peer, how: "the connection was closed".into(), noticed_by: None },
                    );
                }
            }
        }
        if self.random.once_in(self.setup.stall_once_in) {
            self.nodes[rank].stalled_until = self.now + self.random.within(self.setup.stall.clone());
        }
        self.pump(rank);
    }

    fn start(&mut self, rank: Rank, index: usize) {
        let call = &self.calls[index];
        let group_rank = call.group.iter().position(|&member| member == rank).expect("a member of the group");
        let request = call.request(group_rank, self.time());
        let (scratch_bytes, operation, now) = (request.scratch_bytes(), call.operation, self.time());
        let input = call.input(group_rank);
        let node = &mut self.nodes[rank];
        let op = match node.engine(|engine| engine.post(request, now)) {
            Ok(op) => op,
            Err(failure) => {
                let ended =
                    Ended { outcome: Err(failure), at: self.now, output: Vec::new(), output_lengths: Vec::new() };
                node.ended.insert(operation, ended);
                return;
            }
        };
        node.calls.insert(op.index, index);
        let memory = &mut node.memory;
        let scratch = (memory.allocate(vec![0xcd; scratch_bytes]), 0);
        let (input, output) = if call.in_place {
            let (bytes, input_start, output_start) = call.in_place_layout(group_rank);
            let mut both = vec![0xcd; bytes];
            both[input_start..input_start + input.len()].copy_from_slice(&input);
            let buffer = memory.allocate(both);
            ((buffer, input_start), (buffer, output_start))
        } else {
            let output_bytes = call.output_bytes(group_rank);
            ((memory.allocate(input), 0), (memory.allocate(vec![0xcd; output_bytes]), 0))
        };
        memory.insert(OpMemory { op, input, output, scratch });
    }

    /// Does for a rank what it can do now.
    pub fn pump(&mut self, rank: Rank) {
        loop {
            // The links let go of all memory before callers get theirs back.
            if let Some(failure) = self.nodes[rank].engine.failure().cloned() {
                self.close(rank, failure);
                self.complete(rank);
                return;
            }
            self.complete(rank);
            let mut moved = self.send_frames(rank);
            moved |= self.take_work(rank);
            if !moved {
                break;
            }
        }
        let node = &mut self.nodes[rank];
        if let Some(next) = node.engine.next_deadline() {
            let next = (next.as_nanos() as u64).max(self.now + 1);
            if next < node.tick_at {
                node.tick_at = next;
                self.at(next, Event::Tick { rank });
            }
        }
    }

    fn complete(&mut self, rank: Rank) {
        let now = self.now;
        let node = &mut self.nodes[rank];
        while let Some(buffer) = node.engine(Engine::released_buffer) {
            node.memory.pool_release(buffer);
        }
        node.stalls.extend(std::iter::from_fn(|| node.engine.stalled()).map(|stall| (now, stall)));
        while let Some(completion) = node.engine(Engine::completed) {
            let call = &self.calls[node.calls.remove(&completion.op.index).expect("a pending call")];
            let group_rank = call.group.iter().position(|&member| member == rank).expect("a member of the group");
            let (memory, [input, output]) = node.memory.remove(completion.op);
            if completion.outcome.is_ok() && !call.in_place {
                assert!(input == call.input(group_rank), "the input of rank {rank} was overwritten");
            }
            let output_lengths = completion.output_lengths;
            let start = memory.output.1;
            let output = output[start..start + call.output_bytes(group_rank)].to_vec();
            let ended = Ended { outcome: completion.outcome, at: now, output, output_lengths };
            let twice = node.ended.insert(call.operation, ended);
            assert!(twice.is_none(), "an operation ended twice on rank {rank}");
        }
    }

    /// The rank gives up for this reason.
    pub fn fail(&mut self, rank: Rank, failure: Failure) {
        if !self.nodes[rank].dead {
            self.nodes[rank].engine(|engine| engine.fail(failure));
        }
    }

    /// Lets go of the links' frames, but for what is left of one that is partly out, and tells the peers why.
    fn close(&mut self, rank: Rank, failure: Failure) {
        if std::mem::replace(&mut self.nodes[rank].closed, true) {
            return;
        }
        let (header, words) = failure.last_words(rank);
        for peer in (0..self.nodes.len()).filter(|&peer| peer != rank) {
            self.abandon(rank, peer);
            if self.nodes[rank].refused == Some(peer) && self.random.once_in(2) {
                // The words have no room either.
                self.drop_link(rank, peer);
                continue;
            }
            while let Some(header) = self.nodes[rank].engine(|engine| engine.control(peer)) {
                self.enqueue(rank, peer, header, None, None);
            }
            let frame = Outgoing { reason: words.clone().into_bytes(), ..plain(header) };
            self.link(rank, peer).push(0, frame);
            self.wake(rank, peer, 0);
        }
        self.nodes[rank].memory.forget_accesses();
    }

    /// Forgets the frames that have not begun to go out, and copies what is left of those that have.
    fn abandon(&mut self, from: Rank, to: Rank) {
        let n = self.nodes.len();
        let link = &mut self.links[from * n + to];
        link.unsent = 0;
        for stream in &mut link.streams {
            stream.queue.truncate(usize::from(stream.queue.front().is_some_and(|frame| frame.header_sent)));
            let Some(torn) = stream.queue.front_mut() else { continue };
            if let Some(region) = torn.payload.take() {
                torn.reason = self.nodes[from].memory.read(&region).to_vec();
            }
            torn.ticket = None;
            link.unsent += HEADER_BYTES + torn.header.wire_payload_bytes() as usize;
        }
    }

    /// From now on nothing arrives from `from` but what is on its way, and perhaps not even that; then `to` notices.
    fn hang_up(&mut self, from: Rank, to: Rank, drop_in_flight: bool) {
        let delay = self.random.within(0..1_000_000);
        let last = self.link(from, to).streams.iter().map(|stream| stream.last_arrival).max().unwrap_or(0);
        self.link(from, to).cut = drop_in_flight;
        self.at(last.max(self.now) + 1 + delay, Event::LinkDown { at: to, peer: from });
    }

    fn kill(&mut self, rank: Rank) {
        self.nodes[rank].dead = true;
        (0..self.nodes.len()).filter(|&peer| peer != rank).for_each(|peer| self.drop_link(rank, peer));
    }

    /// Forgets what has not left yet, and hangs up.
    fn drop_link(&mut self, from: Rank, to: Rank) {
        let drop_in_flight = self.random.once_in(2);
        for stream in &mut self.link(from, to).streams {
            stream.queue.clear();
        }
        self.hang_up(from, to, drop_in_flight);
    }

    fn leave(&mut self, rank: Rank) {
        self.nodes[rank].left = true;
        if self.nodes[rank].closed {
            return;
        }
        for peer in (0..self.nodes.len()).filter(|&peer| peer != rank) {
            for stream in 0..self.setup.link.streams {
                self.link(rank, peer).push(stream, plain(Header::new(Kind::Goodbye, Default::default())));
                self.wake(rank, peer, stream);
            }
        }
    }

    /// How a call ended on a rank.
    pub fn ended(&self, rank: Rank, call: &Call) -> &Ended {
        match self.nodes[rank].ended.get(&call.operation) {
            Some(ended) => ended,
            None => panic!("{} has not ended on rank {rank} at {} ns", call.key(), self.now),
        }
    }

    /// All ranks of the call must have the right result.
    pub fn check(&self, call: &Call) {
        for (group_rank, &rank) in call.group.iter().enumerate() {
            let ended = self.ended(rank, call);
            assert_eq!(ended.outcome, Ok(()), "{} on rank {rank}", call.key());
            if call.has_result(group_rank) {
                let expected = call.expected(group_rank);
                assert!(ended.output == expected, "{} is wrong on rank {rank}", call.key());
            }
        }
    }

    /// Nothing has failed, and nothing is left over.
    pub fn check_clean(&self) {
        for (rank, node) in self.nodes.iter().enumerate() {
            assert!(node.engine.failure().is_none(), "rank {rank} failed: {:?}", node.engine.failure());
            assert_eq!((node.engine.pending(), node.engine.has_work()), (0, false), "rank {rank} has not finished");
            assert!(node.memory.pool.iter().all(|pooled| pooled.message.is_none()), "rank {rank} keeps a message");
            // On a link of several streams a late grant may look like an early one.
            let left = node.engine.unposted();
            assert!(left == 0 || self.setup.link.streams > 1, "rank {rank} keeps something of {left} operations");
        }
    }
}

impl Node {
    fn new(config: Config) -> Node {
        Node {
            engine: Engine::new(config),
            memory: Memory::default(),
            jobs: Vec::new(),
            running: 0,
            dead: false,
            closed: false,
            left: false,
            refused: None,
            stalled_until: 0,
            tick_at: u64::MAX,
            calls: HashMap::new(),
            ended: HashMap::new(),
            pool_peak: 0,
            references: Vec::new(),
            referred: HashMap::new(),
            stalls: Vec::new(),
        }
    }

    /// Calls the engine: all calls pass through here, so that a test can count what they allocate.
    pub fn engine<R>(&mut self, call: impl FnOnce(&mut Engine) -> R) -> R {
        let engine = &mut self.engine;
        crate::allocation::counted(|| call(engine))
    }
}

/// A frame without payload.
pub fn plain(header: Header) -> Outgoing {
    Outgoing { header, payload: None, ticket: None, access: 0, reason: Vec::new(), sent: 0, header_sent: false }
}
