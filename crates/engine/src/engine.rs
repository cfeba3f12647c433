use std::collections::{BinaryHeap, VecDeque};

use paceline_collective::{Action, StepId};
use paceline_plan::{OperationKey, Rank};

use crate::failure::Failure;
use crate::frame::{Header, Kind, Signature};
use crate::hash::Map;
use crate::heartbeat::Beats;
use crate::interface::{Completion, Config, LinkTraits, OpId, Request, Time};
use crate::operation::{Operation, Phase};
use crate::outgoing::{InFlight, Slab};
use crate::peer::{Peer, Pooled, Unposted};
use crate::pool::Pool;
use crate::schedule::RankSchedule;
use crate::stall::Stall;
use crate::work::{Incoming, Item};

/// Executes the operations of one rank.
#[derive(Debug)]
pub struct Engine {
    pub(crate) config: Config,
    pub(crate) now: Time,
    pub(crate) ops: Vec<Operation>,
    free_ops: Vec<u32>,
    by_key: Map<OperationKey, u32>,
    /// The operation that was started last: most frames are of that one.
    latest: u32,
    pub(crate) peers: Vec<Peer>,
    pub(crate) unposted: Map<OperationKey, Unposted>,
    pub(crate) pool: Pool,
    pub(crate) in_flight: Slab<InFlight>,
    pub(crate) queue: BinaryHeap<Item>,
    pub(crate) taken: Slab<Item>,
    completions: VecDeque<Completion>,
    failure: Option<Failure>,
    pub(crate) sequence: u64,
    /// Steps whose waits have come to an end, to be started: kept to save stack and allocations.
    startable: Vec<(u32, u32, StepId)>,
    pub(crate) next_look: Time,
    pub(crate) beats: Beats,
    pub(crate) stalls: VecDeque<Stall>,
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
            by_key: Map::default(),
            latest: 0,
            peers,
            unposted: Map::default(),
            pool: Pool::default(),
            in_flight: Slab::default(),
            queue: BinaryHeap::new(),
            taken: Slab::default(),
            completions: VecDeque::new(),
            failure: None,
            sequence: 0,
            startable: Vec::new(),
            next_look: Time::ZERO,
            beats: Beats::default(),
            stalls: VecDeque::new(),
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

    /// Operations that peers have started and this rank has not, as far as anything of them has arrived.
    pub fn unposted(&self) -> usize {
        self.unposted.len()
    }

    /// Why nothing goes on, if nothing does. The driver looks after every call: the engine fails by itself when a
    /// deadline passes, a peer leaves too early, or what came before an operation was posted does not fit it.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Starts an operation. An `Err` means that it was not started: the engine has failed before, the key is in use,
    /// or the lengths are impossible.
    ///
    /// # Panics
    /// If the program, the group and the geometry do not belong together.
    pub fn post(&mut self, request: Request, now: Time) -> Result<OpId, Failure> {
        self.now = self.now.max(now);
        self.admissible(&request)?;
        let index = self.admit(request);
        let op = &self.ops[index as usize];
        let id = OpId { index, generation: op.generation };
        if let Err(failure) = self.adopt_unposted(index) {
            self.fail(failure);
        } else if let Some(rank) = self.missed(index) {
            self.fail(Failure::PeerLeft { rank });
        } else if self.ops[index as usize].schedule.steps() == 0 {
            self.end_operation(index, Ok(()));
        } else {
            while self.ops[index as usize].next_tile < self.ops[index as usize].window {
                self.start_tile(index);
            }
            self.run_startable();
        }
        Ok(id)
    }

    fn admissible(&self, request: &Request) -> Result<(), Failure> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let refuse = |why: &str| Err(Failure::Cancelled { reason: format!("{} {why}", request.key) });
        if self.by_key.contains_key(&request.key) {
            return refuse("was started twice on this rank");
        }
        if !request.geometry.is_covered() {
            return refuse("has more tiles than can be counted; make them longer");
        }
        if request.geometry.message_bytes_max(request.schedule.message_blocks()) > u128::from(u32::MAX) {
            return refuse("has messages of more than 4 GiB; make its tiles smaller");
        }
        if request.input_lengths.is_some() && request.geometry.tiles > 1 {
            return refuse("has data of varying length in more than one tile; make its tile as long as its blocks");
        }
        Ok(())
    }

    /// Fills in the operation; nothing of it runs yet.
    fn admit(&mut self, request: Request) -> u32 {
        let index = self.free_ops.pop().unwrap_or_else(|| {
            self.ops.push(Operation::idle());
            self.ops.len() as u32 - 1
        });
        let bytes = request.signature.elements.saturating_mul(request.geometry.element_bytes as u64);
        let op = &mut self.ops[index as usize];
        op.live = true;
        op.large = bytes > self.config.eager_operation_bytes as u64;
        op.window = request.window.clamp(1, request.geometry.tiles.max(1));
        op.key = request.key;
        op.signature = request.signature;
        op.schedule = request.schedule;
        op.geometry = request.geometry;
        op.group = request.group;
        op.priority = request.priority;
        op.sequence = self.sequence;
        op.deadline = request.deadline;
        op.shared_memory = request.shared_memory;
        op.tuning = request.tuning;
        op.last_progress = self.now;
        op.prepare(request.input_lengths.as_deref());
        self.sequence += 1;
        self.live += 1;
        self.by_key.insert(request.key, index);
        self.latest = index;
        index
    }

    /// Takes over what has arrived before the operation was posted.
    fn adopt_unposted(&mut self, index: u32) -> Result<(), Failure> {
        if self.unposted.is_empty() {
            return Ok(());
        }
        let Some(mut early) = self.unposted.remove(&self.ops[index as usize].key) else { return Ok(()) };
        // First of all, so that whatever goes wrong the operation's end lets go of it.
        self.ops[index as usize].pooled.append(&mut early.pooled);
        for (from, tile, message, signature) in early.grants.drain(..) {
            self.peers[from].early_grants -= 1;
            self.check_signature(index, from, &signature)?;
            self.hear(index, from)?;
            self.record_grant(index, from, tile, message)?;
        }
        for position in 0..self.ops[index as usize].pooled.len() {
            let pooled = &self.ops[index as usize].pooled[position];
            let (from, tile, message, bytes) = (pooled.from, pooled.tile, pooled.message, pooled.message_bytes);
            let signature = pooled.signature;
            self.check_signature(index, from, &signature)?;
            self.hear(index, from)?;
            self.check_message(index, from, tile, message, bytes)?;
        }
        self.pool.recycle(early);
        Ok(())
    }

    /// The operation of a key.
    pub(crate) fn find(&self, key: OperationKey) -> Option<u32> {
        match self.ops.get(self.latest as usize) {
            Some(op) if op.live && op.key == key => Some(self.latest),
            _ => self.by_key.get(&key).copied(),
        }
    }

    fn start_tile(&mut self, index: u32) {
        let op = &mut self.ops[index as usize];
        let tile = op.start_tile();
        let idle = op.schedule.waits().iter().zip(0u32..).filter(|(waits, _)| **waits == 0);
        self.startable.extend(idle.map(|(_, step)| (index, tile, step)));
    }

    /// Starts what can start, until nothing more can.
    pub(crate) fn run_startable(&mut self) {
        while let Some((index, tile, step)) = self.startable.pop() {
            if self.failure.is_none() {
                self.start(index, tile, step);
            }
        }
    }

    fn start(&mut self, index: u32, tile: u32, step: StepId) {
        let op = &mut self.ops[index as usize];
        let action = *op.schedule.action(step);
        let state = op.state(tile, step);
        state.phase = Phase::Started;
        if state.folded {
            return self.complete_step(index, tile, step);
        }
        let operand = match &action {
            Action::Receive { from, message, into, .. } => return self.arm(index, tile, step, *from, *message, into),
            Action::Combine { left: from, .. }
            | Action::Send { from, .. }
            | Action::Copy { from, .. }
            | Action::Map { from, .. } => from,
        };
        let total = op.slot_bytes(operand, tile);
        op.state(tile, step).total = total;
        if matches!(action, Action::Send { .. }) {
            self.try_send(index, tile, step);
        } else {
            self.push_work(index, tile, step, Incoming::None, 0, total);
        }
    }

    /// A step is done: whatever waited only for it can start; the tile may be done, and the operation.
    pub(crate) fn complete_step(&mut self, index: u32, tile: u32, step: StepId) {
        let op = &mut self.ops[index as usize];
        op.last_progress = self.now;
        op.nudges = 0;
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
        if op.tiles[slot].left > 0 {
            return;
        }
        op.tiles_done += 1;
        if op.tiles_done == op.geometry.tiles {
            self.end_operation(index, Ok(()));
        } else {
            self.start_next_tiles(index);
        }
    }

    /// Tiles finish in any order; a tile's place is free when the tile `window` before it is done.
    fn start_next_tiles(&mut self, index: u32) {
        loop {
            let op = &self.ops[index as usize];
            let next = op.next_tile;
            if next >= op.geometry.tiles || op.tiles[(next % op.window) as usize].left != 0 {
                return;
            }
            self.start_tile(index);
        }
    }

    fn end_operation(&mut self, index: u32, outcome: Result<(), Failure>) {
        let waiting = if outcome.is_err() { self.waiting(index) } else { Vec::new() };
        let output_lengths = if outcome.is_ok() { self.ops[index as usize].output_lengths() } else { Vec::new() };
        let op = &mut self.ops[index as usize];
        let id = OpId { index, generation: op.generation };
        op.live = false;
        op.generation = op.generation.wrapping_add(1);
        for buffer in op.pooled.drain(..).filter_map(|message| message.buffer) {
            self.pool.release_buffer(buffer);
        }
        for (edge, &rank) in op.edges.iter().zip(op.group.iter()) {
            if edge.eager {
                self.peers[rank].cross(op.key);
            }
        }
        self.live -= 1;
        self.by_key.remove(&op.key);
        let last_arrival = op.last_arrival;
        self.completions.push_back(Completion { op: id, key: op.key, outcome, waiting, output_lengths, last_arrival });
        self.free_ops.push(index);
    }

    /// The next operation that has ended.
    pub fn completed(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Has an operation ended that [`Engine::completed`] has not given yet?
    pub fn has_completed(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Ends everything: this and every later operation fails for this reason. The first reason stays. The driver lets
    /// go of the links before it hands memory back to callers: frames may be half on their way from and to it. What
    /// [`Engine::control`] still gives should go out before the abort: it lets a peer that made a different call see
    /// the difference for itself.
    pub fn fail(&mut self, failure: Failure) {
        if self.failure.is_some() {
            return;
        }
        self.startable.clear();
        for peer in &mut self.peers {
            peer.forget();
        }
        if let Failure::Mismatch { rank, key, ours, .. } = &failure {
            let told = Header { signature: *ours, ..Header::new(Kind::Heartbeat, *key) };
            self.peers[*rank].control.push_back(told);
        }
        self.failure = Some(failure.clone());
        for index in 0..self.ops.len() {
            if self.ops[index].live {
                self.end_operation(index as u32, Err(failure.clone()));
            }
        }
        self.let_go();
    }

    /// A peer left in good order. Fails only if an operation still needs it.
    pub fn left(&mut self, peer: Rank) {
        self.peers[peer].left = true;
        if self.ops.iter().any(|op| op.live && self.needs(op, peer)) {
            self.fail(Failure::PeerLeft { rank: peer });
        }
    }

    /// Has this peer said goodbye?
    pub fn has_left(&self, peer: Rank) -> bool {
        self.peers[peer].left
    }

    /// Does a pending operation still need a peer that sends nothing more? Not if everything that it had to send is
    /// here and everything for it is on the link, for then it left because it had finished.
    fn needs(&self, op: &Operation, peer: Rank) -> bool {
        let Some(group_rank) = op.group_rank(peer) else { return false };
        let of_peer = |step: &StepId| op.schedule.partner(*step) == Some(group_rank);
        let steps = || (0..op.schedule.steps() as StepId).filter(of_peer);
        let in_flight = op.tiles.iter().filter(|tile| tile.left > 0).any(|tile| {
            steps().any(|step| {
                let state = &tile.steps[step as usize];
                let handed_over = state.begun && state.sent == state.total && !state.by_reference;
                let here = match op.schedule.action(step) {
                    Action::Receive { message, .. } => arrived(&op.pooled, peer, tile.tile, *message),
                    _ => false,
                };
                state.phase != Phase::Done && !handed_over && !here
            })
        });
        in_flight || lacks(&op.schedule, group_rank, peer, op.next_tile..op.geometry.tiles, &op.pooled)
    }

    /// A peer that the operation needs and that has left.
    fn missed(&self, index: u32) -> Option<Rank> {
        let op = &self.ops[index as usize];
        op.group.iter().copied().find(|&rank| self.peers[rank].left && self.needs(op, rank))
    }

    /// Two ranks that mean different things by one key must learn it before a byte is taken in.
    pub(crate) fn check_signature(&self, index: u32, peer: Rank, theirs: &Signature) -> Result<(), Failure> {
        let op = &self.ops[index as usize];
        if op.signature == *theirs {
            return Ok(());
        }
        Err(Failure::Mismatch { rank: peer, key: op.key, ours: op.signature, theirs: *theirs })
    }
}

/// Is the whole message in the pool?
pub(crate) fn arrived(pooled: &[Pooled], peer: Rank, tile: u32, message: u32) -> bool {
    pooled.iter().any(|pooled| pooled.is(peer, tile, message) && pooled.complete)
}

/// Must tiles that have not started send to a peer, or receive from it what has not arrived?
fn lacks(
    schedule: &RankSchedule,
    group_rank: Rank,
    peer: Rank,
    tiles: std::ops::Range<u32>,
    pooled: &[Pooled],
) -> bool {
    (0..schedule.steps() as StepId).filter(|&step| schedule.partner(step) == Some(group_rank)).any(
        |step| match schedule.action(step) {
            Action::Receive { message, .. } => tiles.clone().any(|tile| !arrived(pooled, peer, tile, *message)),
            _ => !tiles.is_empty(),
        },
    )
}
