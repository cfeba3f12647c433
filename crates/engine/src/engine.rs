use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use paceline_collective::{Action, Combine, Fold, Order, StepId};
use paceline_plan::{OperationKey, Rank};

use crate::failure::{Failure, Waiting};
use crate::frame::{FRAME_BYTES_MAX, Header, Kind, Signature};
use crate::operation::{Operation, Phase};
use crate::outgoing::{InFlight, Outgoing, Slab};
use crate::peer::{Peer, Unposted};
use crate::work::{Item, PoolBuffer, Region};
use crate::{Geometry, RankSchedule};

/// Time since an origin that the driver chooses.
pub type Time = Duration;

/// Names an operation while it is pending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OpId {
    /// Where its memory is listed; small, and used again.
    pub index: u32,
    pub(crate) generation: u32,
}

/// The engine's limits. All ranks must have the same.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// This rank in the world.
    pub rank: Rank,
    /// The size of the world.
    pub world: usize,
    /// Operations of at most so many bytes go eagerly; of larger ones, the first so many bytes to each peer.
    pub eager_operation_bytes: usize,
    /// At most so many eager bytes may lie unreleased at a peer.
    pub eager_link_bytes: usize,
    /// The longest data frame: how long an urgent message may have to wait behind another.
    pub frame_bytes: usize,
    /// The largest piece of local work.
    pub work_bytes: usize,
    /// How long a receive waits before it grants what should have come eagerly.
    pub nudge: Duration,
}

impl Config {
    /// The defaults for a rank of a world.
    pub fn new(rank: Rank, world: usize) -> Config {
        Config {
            rank,
            world,
            eager_operation_bytes: 64 << 10,
            eager_link_bytes: 1 << 20,
            frame_bytes: 256 << 10,
            work_bytes: 256 << 10,
            nudge: Duration::from_millis(2),
        }
    }
}

/// What a link can do besides carrying bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkTraits {
    /// Longer messages go by reference: the receiver takes them from the sender's memory.
    pub reference_above: Option<usize>,
    /// References may name any memory; otherwise only that of operations with [`Request::shared_memory`].
    pub any_memory: bool,
}

/// An operation to be executed.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its name, the same on all ranks.
    pub key: OperationKey,
    /// What the caller asked for; compared with the peers'.
    pub signature: Signature,
    /// This rank's part.
    pub schedule: Arc<RankSchedule>,
    /// The lengths.
    pub geometry: Geometry,
    /// Rank of the world by rank of the group.
    pub group: Arc<[Rank]>,
    /// Lower goes first.
    pub priority: u32,
    /// When to give up.
    pub deadline: Time,
    /// Tiles in flight.
    pub window: u32,
    /// All of its memory can be read by the peers of the host.
    pub shared_memory: bool,
    /// For kernels: the actual bytes of each input block.
    pub input_lengths: Option<Vec<usize>>,
}

impl Request {
    /// The scratch that the driver must provide, in bytes.
    pub fn scratch_bytes(&self) -> usize {
        let window = self.window.clamp(1, self.geometry.tiles) as usize;
        window * self.schedule.scratch_blocks() as usize * self.geometry.scratch_block_bytes()
    }
}

/// Where the payload of a data frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// To its place.
    Write(Region),
    /// Combined on arrival, element by element; the regions are as long as the payload.
    Fold {
        /// The local operand.
        with: Region,
        /// The result.
        into: Region,
        /// Which operand is on the left.
        order: Order,
        /// The result is final.
        last: bool,
    },
    /// To the pool, at this offset of the buffer.
    Pool(PoolBuffer, usize),
    /// There is no payload, or nobody wants it.
    Nowhere,
}

/// A data frame for a link.
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    /// Its header; for a reference the driver fills in [`Header::reference`].
    pub header: Header,
    /// The payload, or what the reference is to name.
    pub payload: Region,
    /// To be given back when the link no longer needs the payload; None for references.
    pub ticket: Option<u64>,
}

/// An operation that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which.
    pub op: OpId,
    /// Its name.
    pub key: OperationKey,
    /// How.
    pub outcome: Result<(), Failure>,
    /// The peers that have not finished, if it failed.
    pub waiting: Vec<Waiting>,
}

/// Executes the operations of one rank.
#[derive(Debug)]
pub struct Engine {
    pub(crate) config: Config,
    pub(crate) now: Time,
    pub(crate) ops: Vec<Operation>,
    free_ops: Vec<u32>,
    by_key: HashMap<OperationKey, u32>,
    pub(crate) recent: Recent,
    pub(crate) peers: Vec<Peer>,
    pub(crate) unposted: HashMap<OperationKey, Unposted>,
    pub(crate) pool: crate::pool::Pool,
    in_flight: Slab<InFlight>,
    pub(crate) queue: BinaryHeap<Item>,
    pub(crate) taken: Slab<Item>,
    pub(crate) completions: VecDeque<Completion>,
    failure: Option<Failure>,
    pub(crate) sequence: u64,
    /// Steps whose waits have come to an end, to be started: kept to save stack and allocations.
    startable: Vec<(u32, u32, StepId)>,
    next_nudge: Time,
    live: usize,
}

impl Engine {
    /// An engine without links.
    pub fn new(config: Config) -> Engine {
        let mut peers = Vec::new();
        peers.resize_with(config.world, Peer::default);
        Engine {
            config,
            now: Time::ZERO,
            ops: Vec::new(),
            free_ops: Vec::new(),
            by_key: HashMap::new(),
            recent: Recent::default(),
            peers,
            unposted: HashMap::new(),
            pool: crate::pool::Pool::default(),
            in_flight: Slab::default(),
            queue: BinaryHeap::new(),
            taken: Slab::default(),
            completions: VecDeque::new(),
            failure: None,
            sequence: 0,
            startable: Vec::new(),
            next_nudge: Time::ZERO,
            live: 0,
        }
    }

    /// Says what the link to a peer can do.
    pub fn set_link(&mut self, peer: Rank, traits: LinkTraits) {
        self.peers[peer].traits = traits;
    }

    /// Operations that have not ended.
    pub fn pending(&self) -> usize {
        self.live
    }

    /// Why nothing goes on, if nothing does.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Starts an operation. An `Err` means that it was not started: the engine has failed before, or the key is in
    /// use.
    pub fn post(&mut self, request: Request, now: Time) -> Result<OpId, Failure> {
        self.now = self.now.max(now);
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if self.by_key.contains_key(&request.key) {
            return Err(Failure::Cancelled { reason: format!("{} was started twice on this rank", request.key) });
        }
        let index = self.free_ops.pop().unwrap_or_else(|| {
            self.ops.push(Operation::idle());
            self.ops.len() as u32 - 1
        });
        let bytes = request.signature.elements * request.geometry.element_bytes as u64;
        let op = &mut self.ops[index as usize];
        op.live = true;
        op.large = bytes > self.config.eager_operation_bytes as u64;
        op.window = request.window.clamp(1, request.geometry.tiles);
        op.key = request.key;
        op.signature = request.signature;
        op.schedule = request.schedule;
        op.geometry = request.geometry;
        op.group = request.group;
        op.priority = request.priority;
        op.sequence = self.sequence;
        op.deadline = request.deadline;
        op.shared_memory = request.shared_memory;
        op.last_progress = self.now;
        op.prepare(request.input_lengths.as_deref());
        let id = OpId { index, generation: op.generation };
        self.sequence += 1;
        self.live += 1;
        self.by_key.insert(request.key, index);
        self.adopt_unposted(index)?;
        while self.ops[index as usize].next_tile < self.ops[index as usize].window {
            self.start_tile(index);
        }
        self.run_startable();
        Ok(id)
    }

    /// Takes over what has arrived before the operation was posted.
    fn adopt_unposted(&mut self, index: u32) -> Result<(), Failure> {
        let Some(mut early) = self.unposted.remove(&self.ops[index as usize].key) else { return Ok(()) };
        for (from, tile, message, signature) in early.grants.drain(..) {
            self.peers[from].early_grants -= 1;
            self.check_signature(index, from, &signature)?;
            self.record_grant(index, from, tile, message)?;
        }
        for pooled in early.pooled.drain(..) {
            self.check_signature(index, pooled.from, &pooled.signature)?;
            self.hear(index, pooled.from)?;
            self.ops[index as usize].pooled.push(pooled);
        }
        self.pool.recycle(early);
        Ok(())
    }

    /// The operation of a key.
    pub(crate) fn find(&self, key: OperationKey) -> Option<u32> {
        self.by_key.get(&key).copied()
    }

    fn start_tile(&mut self, index: u32) {
        let op = &mut self.ops[index as usize];
        let tile = op.start_tile();
        if op.schedule.steps() == 0 {
            self.finish_tile(index, tile);
            return;
        }
        let idle = op.schedule.waits().iter().zip(0u32..).filter(|(waits, _)| **waits == 0);
        self.startable.extend(idle.map(|(_, step)| (index, tile, step)));
    }

    /// Starts what can start, until nothing more can.
    fn run_startable(&mut self) {
        while let Some((index, tile, step)) = self.startable.pop() {
            if self.failure.is_none() {
                self.start(index, tile, step);
            }
        }
    }

    fn start(&mut self, index: u32, tile: u32, step: StepId) {
        let op = &mut self.ops[index as usize];
        let schedule = op.schedule.clone();
        op.state(tile, step).phase = Phase::Started;
        match schedule.action(step) {
            Action::Send { from, .. } => {
                let total = op.slot_bytes(from, tile);
                op.state(tile, step).total = total;
                self.try_send(index, tile, step);
            }
            Action::Receive { from, message, .. } => self.arm(index, tile, *from, *message),
            Action::Combine { into, .. } | Action::Copy { into, .. } | Action::Map { into, .. } => {
                let total = match schedule.action(step) {
                    Action::Combine { combine: Combine::Reduction, .. } => {
                        op.geometry.capacity(into, tile, schedule.parts())
                    }
                    Action::Combine { left, .. } => op.slot_bytes(left, tile),
                    Action::Copy { from, .. } | Action::Map { from, .. } => op.slot_bytes(from, tile),
                    _ => 0,
                };
                op.state(tile, step).total = total;
                self.push_work(index, tile, step, crate::work::Incoming::None, 0, total, 0);
            }
        }
    }

    /// Sends the message if it is granted or may go eagerly; parks it otherwise.
    pub(crate) fn try_send(&mut self, index: u32, tile: u32, step: StepId) -> bool {
        let op = &mut self.ops[index as usize];
        let Action::Send { to, .. } = *op.schedule.action(step) else { return false };
        let peer_rank = op.group[to];
        if self.peers[peer_rank].left {
            self.fail(Failure::PeerLeft { rank: peer_rank });
            return false;
        }
        let total = op.state(tile, step).total;
        let peer = &mut self.peers[peer_rank];
        let by_reference = peer.traits.reference_above.is_some_and(|above| total > above)
            && (peer.traits.any_memory || op.shared_memory);
        let granted = op.take_grant(tile, step);
        let (mut eager, mut operation_room) = (false, false);
        if !granted {
            let bytes = if by_reference { 0 } else { total };
            let cost = bytes + crate::peer::POOL_ENTRY_BYTES;
            let edge = &mut op.edges[to];
            operation_room = by_reference || edge.eager_sent + bytes <= self.config.eager_operation_bytes;
            eager = operation_room && peer.eager_outstanding() + cost <= self.config.eager_link_bytes;
            if eager {
                edge.eager_sent += bytes;
                peer.eager_sent += cost as u64;
            }
        }
        let id = OpId { index, generation: op.generation };
        let state = op.state(tile, step);
        if !granted && !eager {
            if state.phase != Phase::Parked {
                state.phase = Phase::Parked;
                if operation_room {
                    peer.parked.push((id, tile, step)); // Credit would help; otherwise only a grant does.
                }
            }
            return false;
        }
        state.phase = Phase::Started;
        let (priority, sequence) = (op.priority, op.sequence);
        peer.outgoing.push(Outgoing { priority, sequence, op: id, tile, step, eager, by_reference });
        true
    }

    /// The next data frame for a peer, most urgent first.
    pub fn transmit(&mut self, peer: Rank) -> Option<Transmit> {
        loop {
            let message = *self.peers[peer].outgoing.peek()?;
            let index = message.op.index;
            let op = &mut self.ops[index as usize];
            if !op.live || op.generation != message.op.generation {
                self.peers[peer].outgoing.pop();
                continue;
            }
            let schedule = op.schedule.clone();
            let Action::Send { message: name, from, .. } = schedule.action(message.step) else {
                self.peers[peer].outgoing.pop();
                continue;
            };
            let state = *op.state(message.tile, message.step);
            let mut payload = op.region(message.op, from, message.tile, state.sent);
            payload.bytes = payload.bytes.min(state.total - state.sent);
            let limit = self.config.frame_bytes.min(FRAME_BYTES_MAX as usize);
            if !message.by_reference {
                payload.bytes = payload.bytes.min(limit);
            }
            let sent = state.sent + payload.bytes;
            op.state(message.tile, message.step).sent = sent;
            let kind = if message.by_reference { Kind::Reference } else { Kind::Data };
            let header = Header {
                eager: u8::from(message.eager),
                signature: op.signature,
                tile: message.tile,
                message: *name,
                message_bytes: state.total as u32,
                offset: state.sent as u32,
                payload_bytes: payload.bytes as u32,
                ..Header::new(kind, op.key)
            };
            if sent >= state.total {
                self.peers[peer].outgoing.pop();
            }
            let ticket = (!message.by_reference).then(|| {
                let frame = InFlight { op: message.op, tile: message.tile, step: message.step, bytes: payload.bytes };
                u64::from(self.in_flight.insert(frame))
            });
            return Some(Transmit { header: self.stamp(peer, header), payload, ticket });
        }
    }

    /// Is there a data or control frame for a peer?
    pub fn wants_to_send(&self, peer: Rank) -> bool {
        let peer = &self.peers[peer];
        !peer.outgoing.is_empty() || !peer.control.is_empty()
    }

    /// The next control frame for a peer.
    pub fn control(&mut self, peer: Rank) -> Option<Header> {
        let header = self.peers[peer].control.pop_front()?;
        Some(self.stamp(peer, header))
    }

    /// Every frame returns what eager credit there is to return.
    fn stamp(&mut self, peer: Rank, header: Header) -> Header {
        let peer = &mut self.peers[peer];
        peer.eager_reported = peer.eager_released;
        Header { eager_returned: peer.eager_released, ..header }
    }

    /// The link is done with the payload of a frame.
    pub fn transmitted(&mut self, ticket: u64) {
        let Some(frame) = u32::try_from(ticket).ok().and_then(|ticket| self.in_flight.remove(ticket)) else { return };
        self.sent(frame);
        self.run_startable();
    }

    fn sent(&mut self, frame: InFlight) {
        let op = &mut self.ops[frame.op.index as usize];
        if !op.live || op.generation != frame.op.generation {
            return;
        }
        let state = op.state(frame.tile, frame.step);
        state.moved += frame.bytes;
        if state.moved == state.total && state.sent == state.total {
            self.complete_step(frame.op.index, frame.tile, frame.step);
        }
    }

    /// A peer has read what a reference named.
    pub(crate) fn reference_taken(&mut self, index: u32, tile: u32, step: StepId, bytes: usize) {
        let op = &self.ops[index as usize];
        self.sent(InFlight { op: OpId { index, generation: op.generation }, tile, step, bytes });
        self.run_startable();
    }

    /// A step is done: whatever waited only for it can start; the tile may be done, and the operation.
    pub(crate) fn complete_step(&mut self, index: u32, tile: u32, step: StepId) {
        let op = &mut self.ops[index as usize];
        op.last_progress = self.now;
        op.nudged = false;
        let slot = (tile % op.window) as usize;
        op.tiles[slot].steps[step as usize].phase = Phase::Done;
        op.tiles[slot].left -= 1;
        for &next in op.schedule.successors(step) {
            let state = &mut op.tiles[slot].steps[next as usize];
            state.waits -= 1;
            if state.waits == 0 {
                self.startable.push((index, tile, next));
            }
        }
        if op.tiles[slot].left == 0 {
            self.finish_tile(index, tile);
        }
    }

    fn finish_tile(&mut self, index: u32, _tile: u32) {
        let op = &mut self.ops[index as usize];
        op.tiles_done += 1;
        if op.tiles_done == op.geometry.tiles {
            self.end_operation(index, Ok(()));
        } else if op.next_tile < op.geometry.tiles {
            self.start_next_tiles(index);
        }
    }

    /// Tiles finish in any order; a tile's place is free when the tile `window` before it is done.
    fn start_next_tiles(&mut self, index: u32) {
        loop {
            let op = &self.ops[index as usize];
            let next = op.next_tile;
            if !op.live || next >= op.geometry.tiles || op.tiles[(next % op.window) as usize].left != 0 {
                return;
            }
            self.start_tile(index);
        }
    }

    fn end_operation(&mut self, index: u32, outcome: Result<(), Failure>) {
        let waiting = if outcome.is_err() { self.waiting(index) } else { Vec::new() };
        let op = &mut self.ops[index as usize];
        let id = OpId { index, generation: op.generation };
        op.live = false;
        op.generation = op.generation.wrapping_add(1);
        self.live -= 1;
        self.by_key.remove(&op.key);
        self.recent.insert(op.key);
        self.completions.push_back(Completion { op: id, key: op.key, outcome, waiting });
        self.free_ops.push(index);
    }

    /// The next operation that has ended.
    pub fn completed(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Ends everything: this and every later operation fails for this reason. The first reason stays.
    pub fn fail(&mut self, failure: Failure) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(failure.clone());
        self.startable.clear();
        for index in 0..self.ops.len() {
            if self.ops[index].live {
                self.end_operation(index as u32, Err(failure.clone()));
            }
        }
    }

    /// A peer left in good order. Fails only if an operation still needs it.
    pub fn left(&mut self, peer: Rank) {
        self.peers[peer].left = true;
        let needed = (0..self.ops.len())
            .any(|index| self.ops[index].live && self.waiting(index as u32).iter().any(|waiting| waiting.rank == peer));
        if needed {
            self.fail(Failure::PeerLeft { rank: peer });
        }
    }

    /// Has this peer said goodbye?
    pub fn has_left(&self, peer: Rank) -> bool {
        self.peers[peer].left
    }

    /// The peers that an operation waits for: those whose data is missing, and those that have not taken ours.
    fn waiting(&self, index: u32) -> Vec<Waiting> {
        let op = &self.ops[index as usize];
        let mut waiting: Vec<Waiting> = Vec::new();
        for tile in op.tiles.iter().filter(|tile| tile.left > 0) {
            for (step, state) in (0u32..).zip(&tile.steps) {
                let peer = match op.schedule.action(step) {
                    Action::Send { to, .. } if matches!(state.phase, Phase::Started | Phase::Parked) => *to,
                    Action::Receive { from, message, .. }
                        if state.phase == Phase::Started
                            && op.find_pooled(op.group[*from], tile.tile, *message).is_none() =>
                    {
                        *from
                    }
                    _ => continue,
                };
                let (rank, started) = (op.group[peer], op.edges[peer].heard);
                if waiting.iter().all(|waiting| waiting.rank != rank) {
                    waiting.push(Waiting { rank, started });
                }
            }
        }
        waiting
    }

    /// Tells the time: deadlines, and grants for eager messages that do not come.
    pub fn tick(&mut self, now: Time) {
        self.now = self.now.max(now);
        if self.live == 0 || self.now < self.next_nudge {
            return;
        }
        self.next_nudge = self.now + self.config.nudge / 2;
        for index in 0..self.ops.len() as u32 {
            let op = &self.ops[index as usize];
            if !op.live {
                continue;
            }
            if self.now >= op.deadline {
                let (key, waiting) = (op.key, self.waiting(index));
                self.fail(Failure::Deadline { key, waiting });
                return;
            }
            if !op.nudged && self.now >= op.last_progress + self.config.nudge {
                self.nudge(index);
            }
        }
    }

    /// When [`Engine::tick`] has something to do.
    pub fn next_deadline(&self) -> Option<Time> {
        let times = self.ops.iter().filter(|op| op.live).map(|op| {
            let nudge = if op.nudged { op.deadline } else { op.last_progress + self.config.nudge };
            op.deadline.min(nudge)
        });
        times.min().map(|time| time.max(self.next_nudge))
    }

    /// The fold of a receive.
    pub(crate) fn fold_of(action: &Action) -> Option<&Fold> {
        match action {
            Action::Receive { fold, .. } => fold.as_ref(),
            _ => None,
        }
    }

    pub(crate) fn run(&mut self) {
        self.run_startable();
    }
}

/// The keys of the operations that ended last: a late grant for one of them means nothing.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    keys: HashSet<OperationKey>,
    order: VecDeque<OperationKey>,
}

impl Recent {
    /// A grant is late by no more than a network delay, in which a rank ends far fewer operations than this.
    const KEPT: usize = 4096;

    fn insert(&mut self, key: OperationKey) {
        if self.order.len() == Recent::KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.keys.remove(&oldest);
        }
        self.keys.insert(key);
        self.order.push_back(key);
    }

    pub fn contains(&self, key: OperationKey) -> bool {
        self.keys.contains(&key)
    }
}
