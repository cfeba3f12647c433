//! What arrives: where a frame's bytes go, and what follows when they are there.

use paceline_collective::{Action, Combine, Message, Slot, StepId};
use paceline_plan::Rank;

use crate::engine::{Engine, OpId, Placement};
use crate::failure::Failure;
use crate::frame::{Header, Kind, Signature};
use crate::operation::{Operation, Phase};
use crate::peer::{POOL_ENTRY_BYTES, Pooled};
use crate::work::{Incoming, Item, Job, PoolBuffer, Region, Source, Token, Work};

/// A peer may not send more grants than this for operations that are not posted here.
const EARLY_GRANTS_MAX: usize = 1 << 18;

impl Engine {
    /// A frame starts to arrive from a peer; its header has passed [`Header::check`]. Says where the payload goes. An
    /// `Err` is the peer's fault and ends the link.
    pub fn begin(&mut self, peer: Rank, header: &Header) -> Result<Placement, Failure> {
        self.take_credit_back(peer, header)?;
        let Some(kind) = header.kind() else { return Ok(Placement::Nowhere) };
        if !matches!(kind, Kind::Data | Kind::Reference | Kind::Grant | Kind::Taken) {
            return Ok(Placement::Nowhere);
        }
        let op = self.find(header.key());
        if let Some(index) = op {
            self.check_signature(index, peer, &header.signature)?;
            self.hear(index, peer)?;
        }
        if !matches!(kind, Kind::Data | Kind::Reference) {
            return Ok(Placement::Nowhere);
        }
        let place = match op {
            Some(index) => self.place(index, peer, header)?,
            None => Place::NotYet,
        };
        if let Place::Here(placement) = place {
            self.charge(peer, header)?;
            return Ok(placement);
        }
        // Without credit, only a kernel's operand is pooled: its receive has started, so its slot bounds it.
        if header.eager == 0 && place != Place::Whole {
            return Err(violation(peer, "sent data that nobody had granted"));
        }
        self.pool_frame(op, peer, header)
    }

    /// The frame that [`Engine::begin`] announced is complete: its bytes are where they belong.
    pub fn end(&mut self, peer: Rank, header: &Header) -> Result<(), Failure> {
        let bytes = header.payload_bytes as usize;
        match header.kind() {
            Some(Kind::Data) => self.arrived(peer, header, bytes)?,
            Some(Kind::Reference) => self.arrived_reference(peer, header, bytes)?,
            Some(Kind::Grant) => self.granted(peer, header)?,
            Some(Kind::Taken) => {
                let (index, step) = self.own_send(peer, header)?;
                let op = &mut self.ops[index as usize];
                let state = *op.state(header.tile, step);
                let piece = header.message_bytes as usize;
                if state.phase != Phase::Started || state.moved + piece > state.sent {
                    return Err(violation(peer, "acknowledged what it was not sent"));
                }
                self.reference_taken(index, header.tile, step, piece);
            }
            _ => {}
        }
        self.run();
        Ok(())
    }

    /// The peer returns eager credit with every frame.
    fn take_credit_back(&mut self, peer: Rank, header: &Header) -> Result<(), Failure> {
        let state = &mut self.peers[peer];
        if header.eager_returned > state.eager_sent {
            return Err(violation(peer, "returned more credit than it was given"));
        }
        if header.eager_returned > state.eager_released_by_peer {
            state.eager_released_by_peer = header.eager_returned;
            self.retry_parked(peer);
        }
        Ok(())
    }

    /// Sends what waited only for credit, as far as it goes now.
    fn retry_parked(&mut self, peer: Rank) {
        let mut kept = 0;
        for position in 0..self.peers[peer].parked.len() {
            let (id, tile, step) = self.peers[peer].parked[position];
            let op = &mut self.ops[id.index as usize];
            let waits = op.live
                && op.generation == id.generation
                && op.in_flight(tile)
                && op.state(tile, step).phase == Phase::Parked;
            if waits && !self.try_send(id.index, tile, step) {
                self.peers[peer].parked[kept] = (id, tile, step);
                kept += 1;
            }
        }
        self.peers[peer].parked.truncate(kept);
    }

    /// Two ranks that mean different things by one key must learn it before a byte is taken in.
    pub(crate) fn check_signature(&self, index: u32, peer: Rank, theirs: &Signature) -> Result<(), Failure> {
        let op = &self.ops[index as usize];
        if op.signature == *theirs {
            return Ok(());
        }
        Err(Failure::Mismatch { rank: peer, key: op.key, ours: op.signature, theirs: *theirs })
    }

    /// A sign of life of a peer in an operation.
    pub(crate) fn hear(&mut self, index: u32, peer: Rank) -> Result<(), Failure> {
        let op = &mut self.ops[index as usize];
        let Some(group_rank) = op.group_rank(peer) else {
            return Err(violation(peer, "sent a frame for a group that it does not belong to"));
        };
        op.edges[group_rank].heard = true;
        Ok(())
    }

    /// The place of a frame in the operation's memory, if its receive has started and nothing of it was pooled.
    fn place(&mut self, index: u32, peer: Rank, header: &Header) -> Result<Place, Failure> {
        let step = self.own_receive(index, peer, header)?;
        let op = &mut self.ops[index as usize];
        if !op.in_flight(header.tile) || op.state(header.tile, step).phase != Phase::Started {
            return Ok(Place::NotYet);
        }
        let kernel = matches!(
            op.schedule.action(step),
            Action::Receive { fold: Some(fold), .. } if fold.combine != Combine::Reduction
        );
        if kernel && header.kind() == Some(Kind::Data) {
            return Ok(Place::Whole);
        }
        if !op.pooled.is_empty() && op.find_pooled(peer, header.tile, header.message).is_some() {
            return Ok(Place::NotYet);
        }
        let schedule = op.schedule.clone();
        let Action::Receive { into, fold, .. } = schedule.action(step) else { return Ok(Place::NotYet) };
        self.expect(index, peer, header, step, into)?;
        if header.kind() == Some(Kind::Reference) {
            return Ok(Place::Here(Placement::Nowhere));
        }
        let op = &self.ops[index as usize];
        let id = OpId { index, generation: op.generation };
        let (offset, bytes) = (header.offset as usize, header.payload_bytes as usize);
        let region = |slot: &Slot| {
            let mut region = op.region(id, slot, header.tile, offset);
            let fits = bytes <= region.bytes || slot.blocks == 1;
            region.bytes = bytes;
            fits.then_some(region).ok_or_else(|| violation(peer, "sent a frame that does not end at a block's end"))
        };
        Ok(Place::Here(match fold {
            None => Placement::Write(region(into)?),
            Some(fold) => {
                let (with, into) = (region(&fold.with)?, region(into)?);
                Placement::Fold { with, into, order: fold.order, last: fold.last }
            }
        }))
    }

    /// Checks the length of a message against its slot, and keeps it.
    fn expect(&mut self, index: u32, peer: Rank, header: &Header, step: StepId, into: &Slot) -> Result<(), Failure> {
        let op = &mut self.ops[index as usize];
        let capacity = op.geometry.capacity(into, header.tile, op.schedule.parts());
        let total = header.message_bytes as usize;
        let fits = if op.schedule.dynamic() || op.geometry.variable() { total <= capacity } else { total == capacity };
        if !fits {
            return Err(violation(peer, "sent a message of a length that does not fit the operation"));
        }
        let state = op.state(header.tile, step);
        state.total = total;
        if state.moved + header.payload_bytes as usize > total {
            return Err(violation(peer, "sent a piece of a message twice"));
        }
        Ok(())
    }

    /// The receive that a data frame belongs to.
    fn own_receive(&self, index: u32, peer: Rank, header: &Header) -> Result<StepId, Failure> {
        let op = &self.ops[index as usize];
        let group_rank = op.group_rank(peer).unwrap_or(usize::MAX);
        let step = op.schedule.receive(group_rank, header.message);
        let step = step.filter(|_| header.tile < op.geometry.tiles);
        let done = |step: StepId| {
            let slot = &op.tiles[(header.tile % op.window) as usize];
            let gone = header.tile < op.next_tile && slot.tile != header.tile;
            gone || (op.in_flight(header.tile) && slot.steps[step as usize].phase == Phase::Done)
        };
        match step {
            Some(step) if !done(step) => Ok(step),
            Some(_) => Err(violation(peer, "sent a message twice")),
            None => Err(violation(peer, "sent a message that the operation does not have")),
        }
    }

    /// The send that a grant or acknowledgement belongs to.
    fn own_send(&self, peer: Rank, header: &Header) -> Result<(u32, StepId), Failure> {
        let index = self.find(header.key()).ok_or_else(|| violation(peer, "acknowledged an unknown operation"))?;
        let op = &self.ops[index as usize];
        let group_rank = op.group_rank(peer).unwrap_or(usize::MAX);
        let step = op.schedule.send(group_rank, header.message).filter(|_| op.in_flight(header.tile));
        step.map(|step| (index, step)).ok_or_else(|| violation(peer, "acknowledged a message that does not exist"))
    }

    /// Counts an eager frame against the credit that the peer has.
    fn charge(&mut self, peer: Rank, header: &Header) -> Result<usize, Failure> {
        let credit = credit_of(header);
        let state = &mut self.peers[peer];
        state.eager_received += credit as u64;
        if state.eager_received - state.eager_released > self.config.eager_link_bytes as u64 {
            return Err(violation(peer, "sent more than its credit allows"));
        }
        Ok(credit)
    }

    fn pool_frame(&mut self, op: Option<u32>, peer: Rank, header: &Header) -> Result<Placement, Failure> {
        let credit = self.charge(peer, header)?;
        let list = match op {
            Some(index) => &mut self.ops[index as usize].pooled,
            None => {
                let pool = &mut self.pool;
                &mut self.unposted.entry(header.key()).or_insert_with(|| pool.unposted()).pooled
            }
        };
        let known = list.iter().position(|p| p.from == peer && p.tile == header.tile && p.message == header.message);
        let position = known.unwrap_or_else(|| {
            list.push(Pooled {
                from: peer,
                tile: header.tile,
                message: header.message,
                message_bytes: header.message_bytes as usize,
                received: 0,
                buffer: None,
                references: self.pool.references(),
                credit: 0,
                signature: header.signature,
            });
            list.len() - 1
        });
        let pooled = &mut list[position];
        if pooled.message_bytes != header.message_bytes as usize || pooled.signature != header.signature {
            return Err(violation(peer, "changed its mind about a message in its middle"));
        }
        pooled.credit += credit;
        if header.kind() == Some(Kind::Reference) {
            let piece = (header.reference, header.offset as usize, header.payload_bytes as usize);
            pooled.references.push(piece);
            return Ok(Placement::Nowhere);
        }
        let buffer = *pooled.buffer.get_or_insert_with(|| self.pool.buffer());
        Ok(Placement::Pool(buffer, header.offset as usize))
    }

    /// Data is where [`Engine::begin`] sent it.
    fn arrived(&mut self, peer: Rank, header: &Header, bytes: usize) -> Result<(), Failure> {
        let Some(index) = self.find(header.key()) else {
            let unposted = self.unposted.get_mut(&header.key());
            let pooled = unposted.and_then(|u| {
                u.pooled.iter_mut().find(|p| p.from == peer && p.tile == header.tile && p.message == header.message)
            });
            return match pooled {
                Some(pooled) => pooled.receive(peer, bytes),
                None => Ok(()),
            };
        };
        if let Some(position) = self.ops[index as usize].find_pooled(peer, header.tile, header.message) {
            self.ops[index as usize].pooled[position].receive(peer, bytes)?;
            return self.consume_if_ready(index, position);
        }
        let step = self.own_receive(index, peer, header)?;
        self.release(peer, credit_of(header));
        self.moved(index, header.tile, step, bytes);
        Ok(())
    }

    fn arrived_reference(&mut self, peer: Rank, header: &Header, bytes: usize) -> Result<(), Failure> {
        let Some(index) = self.find(header.key()) else {
            return self.arrived(peer, header, bytes);
        };
        if self.ops[index as usize].find_pooled(peer, header.tile, header.message).is_some() {
            return self.arrived(peer, header, bytes);
        }
        let step = self.own_receive(index, peer, header)?;
        let incoming = Incoming::Reference { peer, reference: header.reference };
        self.push_work(index, header.tile, step, incoming, header.offset as usize, bytes, credit_of(header));
        Ok(())
    }

    /// Some bytes of a message are in place.
    fn moved(&mut self, index: u32, tile: u32, step: StepId, bytes: usize) {
        let op = &mut self.ops[index as usize];
        let state = op.state(tile, step);
        state.moved += bytes;
        if state.moved < state.total {
            op.last_progress = self.now;
            return;
        }
        let total = state.total;
        let schedule = op.schedule.clone();
        if let Action::Receive { into, fold: None, .. } = schedule.action(step) {
            op.set_slot_bytes(into, tile, total);
        }
        self.complete_step(index, tile, step);
    }

    /// A receive may start: grant what would not come by itself, and take what has come already.
    pub(crate) fn arm(&mut self, index: u32, tile: u32, from: Rank, message: Message) {
        let op = &self.ops[index as usize];
        let peer = op.group[from];
        if let Some(position) = op.find_pooled(peer, tile, message) {
            if let Err(failure) = self.consume_if_ready(index, position) {
                self.fail(failure);
            }
            return;
        }
        // What a peer sent before it left lies in the pool; it will send nothing more.
        if self.peers[peer].left {
            self.fail(Failure::PeerLeft { rank: peer });
            return;
        }
        if op.large && !self.peers[peer].traits.any_memory {
            self.grant(index, tile, message, peer);
        }
    }

    fn grant(&mut self, index: u32, tile: u32, message: Message, peer: Rank) {
        let op = &self.ops[index as usize];
        let header = Header { signature: op.signature, tile, message, ..Header::new(Kind::Grant, op.key) };
        self.peers[peer].control.push_back(header);
    }

    /// Grants everything that an operation waits for, in case its senders lack credit.
    pub(crate) fn nudge(&mut self, index: u32) {
        self.ops[index as usize].nudged = true;
        for slot in 0..self.ops[index as usize].tiles.len() {
            for step in 0..self.ops[index as usize].schedule.steps() as StepId {
                let op = &self.ops[index as usize];
                let tile = &op.tiles[slot];
                let Action::Receive { from, message, .. } = *op.schedule.action(step) else { continue };
                let Some(state) = tile.steps.get(step as usize) else { continue };
                let (number, peer) = (tile.tile, op.group[from]);
                let waits = tile.left > 0 && state.phase == Phase::Started && state.total == 0 && state.moved == 0;
                if waits && op.find_pooled(peer, number, message).is_none() {
                    self.grant(index, number, message, peer);
                }
            }
        }
    }

    fn granted(&mut self, peer: Rank, header: &Header) -> Result<(), Failure> {
        let Some(index) = self.find(header.key()) else {
            if self.recent.contains(header.key()) {
                return Ok(()); // The message went eagerly, and the operation is over.
            }
            if self.peers[peer].early_grants >= EARLY_GRANTS_MAX {
                return Err(violation(peer, "sent more grants than any rank needs"));
            }
            self.peers[peer].early_grants += 1;
            let pool = &mut self.pool;
            let entry = self.unposted.entry(header.key()).or_insert_with(|| pool.unposted());
            entry.grants.push((peer, header.tile, header.message, header.signature));
            return Ok(());
        };
        self.record_grant(index, peer, header.tile, header.message)
    }

    pub(crate) fn record_grant(&mut self, index: u32, peer: Rank, tile: u32, message: Message) -> Result<(), Failure> {
        let op = &mut self.ops[index as usize];
        let group_rank = op.group_rank(peer).unwrap_or(usize::MAX);
        let Some(step) = op.schedule.send(group_rank, message) else {
            return Err(violation(peer, "granted a message that the operation does not have"));
        };
        if op.in_flight(tile) {
            match op.state(tile, step).phase {
                Phase::Parked => {
                    op.grant(tile, step);
                    self.try_send(index, tile, step);
                    return Ok(());
                }
                Phase::Started | Phase::Done => return Ok(()),
                Phase::Waiting => {}
            }
        } else if tile < op.next_tile {
            return Ok(());
        }
        if op.grant(tile, step) { Ok(()) } else { Err(violation(peer, "granted a message far ahead of its time")) }
    }

    fn consume_if_ready(&mut self, index: u32, position: usize) -> Result<(), Failure> {
        let op = &mut self.ops[index as usize];
        let pooled = &op.pooled[position];
        let (peer, tile, message) = (pooled.from, pooled.tile, pooled.message);
        let complete = pooled.received == pooled.message_bytes;
        let group_rank = op.group_rank(peer).unwrap_or(usize::MAX);
        let Some(step) = op.schedule.receive(group_rank, message) else {
            return Err(violation(peer, "sent a message that the operation does not have"));
        };
        if !complete || !op.in_flight(tile) || op.state(tile, step).phase != Phase::Started {
            return Ok(());
        }
        let pooled = op.pooled.swap_remove(position);
        let schedule = op.schedule.clone();
        let Action::Receive { into, .. } = schedule.action(step) else { return Ok(()) };
        let header = Header { tile, message_bytes: pooled.message_bytes as u32, ..Header::default() };
        self.expect(index, peer, &header, step, into)?;
        if let Some(buffer) = pooled.buffer {
            let incoming = Incoming::Pool(buffer);
            self.push_work(index, tile, step, incoming, 0, pooled.message_bytes, pooled.credit);
        } else {
            let mut credit = pooled.credit;
            for &(reference, offset, bytes) in &pooled.references {
                let incoming = Incoming::Reference { peer, reference };
                self.push_work(index, tile, step, incoming, offset, bytes, std::mem::take(&mut credit));
            }
        }
        self.pool.recycle_message(pooled);
        Ok(())
    }

    /// Gives eager credit back to a peer; by a frame of its own if much has gathered.
    fn release(&mut self, peer: Rank, credit: usize) {
        let state = &mut self.peers[peer];
        state.eager_released += credit as u64;
        let unreported = state.eager_released - state.eager_reported;
        if unreported > self.config.eager_link_bytes as u64 / 4 && state.control.is_empty() {
            state.control.push_back(Header::new(Kind::Credit, Default::default()));
        }
    }
}

/// Local work.
impl Engine {
    #[allow(clippy::too_many_arguments)] // One call site per kind of operand; a struct would only rename them.
    pub(crate) fn push_work(
        &mut self,
        index: u32,
        tile: u32,
        step: StepId,
        incoming: Incoming,
        base: usize,
        total: usize,
        credit: usize,
    ) {
        let op = &self.ops[index as usize];
        let item = Item {
            priority: op.priority,
            sequence: self.sequence,
            op: OpId { index, generation: op.generation },
            tile,
            step,
            incoming,
            base,
            total,
            done: 0,
            taken: 0,
            credit,
        };
        self.sequence += 1;
        self.queue.push(item);
    }

    /// The next piece of local work, most urgent first. Several may be out at once.
    pub fn work(&mut self) -> Option<Work> {
        loop {
            let mut item = self.queue.pop()?;
            let op = &self.ops[item.op.index as usize];
            if !op.live || op.generation != item.op.generation {
                continue;
            }
            let (job, bytes) = job(op, &item, self.config.work_bytes);
            item.taken = bytes;
            let token = Token(self.taken.insert(item));
            return Some(Work { token, job });
        }
    }

    /// Is there local work?
    pub fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The work is done. `written` is the length that a kernel has written; other jobs write what they were told to.
    pub fn worked(&mut self, token: Token, written: Option<usize>) {
        let Some(mut item) = self.taken.remove(token.0) else { return };
        let index = item.op.index;
        let op = &mut self.ops[index as usize];
        if !op.live || op.generation != item.op.generation {
            return;
        }
        item.done += item.taken;
        if item.done < item.total {
            self.queue.push(item);
            return;
        }
        let schedule = op.schedule.clone();
        let action = schedule.action(item.step);
        if let Action::Receive { into, .. }
        | Action::Combine { into, .. }
        | Action::Copy { into, .. }
        | Action::Map { into, .. } = action
        {
            let whole = matches!(action, Action::Receive { fold: None, .. });
            if !whole {
                op.set_slot_bytes(into, item.tile, written.unwrap_or(item.total));
            }
        }
        match item.incoming {
            Incoming::None => {
                self.complete_step(index, item.tile, item.step);
                self.run();
                return;
            }
            Incoming::Pool(buffer) => self.pool.release_buffer(buffer),
            Incoming::Reference { peer, .. } => self.acknowledge(index, &item, peer),
        }
        if item.credit > 0
            && let Action::Receive { from, .. } = action
        {
            let peer = self.ops[index as usize].group[*from];
            self.release(peer, item.credit);
        }
        self.moved(index, item.tile, item.step, item.total);
        self.run();
    }

    fn acknowledge(&mut self, index: u32, item: &Item, peer: Rank) {
        let op = &self.ops[index as usize];
        let Action::Receive { message, .. } = *op.schedule.action(item.step) else { return };
        let header = Header {
            signature: op.signature,
            tile: item.tile,
            message,
            offset: item.base as u32,
            message_bytes: item.total as u32,
            ..Header::new(Kind::Taken, op.key)
        };
        self.peers[peer].control.push_back(header);
    }

    /// The next pool buffer whose memory the driver may drop.
    pub fn released_buffer(&mut self) -> Option<PoolBuffer> {
        self.pool.released()
    }
}

/// The next chunk of an item, and its length.
fn job(op: &Operation, item: &Item, work_bytes: usize) -> (Job, usize) {
    let rest = item.total - item.done;
    let position = item.base + item.done;
    let action = op.schedule.action(item.step);
    let fold = Engine::fold_of(action);
    let region = |slot: &Slot| op.region(item.op, slot, item.tile, position);
    let kernel = match action {
        Action::Map { .. } => true,
        Action::Combine { combine, .. } => *combine != Combine::Reduction,
        _ => fold.is_some_and(|fold| fold.combine != Combine::Reduction),
    };
    let slots: [Option<&Slot>; 3] = match action {
        Action::Receive { into, fold, .. } => [Some(into), fold.as_ref().map(|fold| &fold.with), None],
        Action::Combine { left, right, into, .. } => [Some(left), Some(right), Some(into)],
        Action::Copy { from, into } | Action::Map { from, into, .. } => [Some(from), Some(into), None],
        Action::Send { .. } => [None; 3],
    };
    let mut bytes = if kernel { rest } else { rest.min(work_bytes) };
    if !kernel {
        let room = slots.into_iter().flatten().map(|slot| region(slot).bytes).min().unwrap_or(bytes);
        bytes = bytes.min(room);
    }
    let cut = |slot: &Slot| Region { bytes, ..region(slot) };
    // A kernel sees whole slots: what lies in the operand, and the capacity of the result.
    let whole = |slot: &Slot| Region { bytes: op.slot_bytes(slot, item.tile), ..region(slot) };
    let operand = |slot: &Slot| Source::Region(if kernel { whole(slot) } else { cut(slot) });
    let capacity =
        |slot: &Slot| Region { bytes: op.geometry.capacity(slot, item.tile, op.schedule.parts()), ..region(slot) };
    let result = |slot: &Slot| if kernel { capacity(slot) } else { cut(slot) };
    let incoming = match item.incoming {
        Incoming::Pool(buffer) => Source::Pool { buffer, offset: position, bytes },
        Incoming::Reference { peer, reference } => Source::Reference { peer, reference, offset: item.done, bytes },
        Incoming::None => {
            Source::Region(Region { op: item.op, space: paceline_collective::Space::Input, offset: 0, bytes: 0 })
        }
    };
    let job = match action {
        Action::Receive { into, fold: None, .. } => Job::Copy { from: incoming, into: cut(into) },
        Action::Receive { into, fold: Some(fold), .. } => {
            let with = operand(&fold.with);
            let (left, right) = match fold.order {
                paceline_collective::Order::LocalFirst => (with, incoming),
                paceline_collective::Order::MessageFirst => (incoming, with),
            };
            Job::Combine { left, right, into: result(into), combine: fold.combine, last: fold.last }
        }
        Action::Combine { left, right, into, combine, last } => Job::Combine {
            left: operand(left),
            right: operand(right),
            into: result(into),
            combine: *combine,
            last: *last,
        },
        Action::Map { from, into, kernel } => Job::Map { from: operand(from), into: result(into), kernel: *kernel },
        Action::Copy { from, into } => Job::Copy { from: operand(from), into: cut(into) },
        Action::Send { from, .. } => Job::Copy { from: operand(from), into: cut(from) },
    };
    (job, bytes)
}

/// Whether a data frame has a place in the operation's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It has.
    Here(Placement),
    /// Its receive has started, but a kernel needs the whole message first.
    Whole,
    /// Its receive has not started, or its beginning lies in the pool.
    NotYet,
}

impl Pooled {
    fn receive(&mut self, peer: Rank, bytes: usize) -> Result<(), Failure> {
        self.received += bytes;
        if self.received > self.message_bytes {
            return Err(violation(peer, "sent a piece of a message twice"));
        }
        Ok(())
    }
}

/// What an eager frame costs: its bytes, if the pool must hold them, and an entry per message.
fn credit_of(header: &Header) -> usize {
    if header.eager == 0 {
        return 0;
    }
    let bytes = if header.kind() == Some(Kind::Data) { header.payload_bytes as usize } else { 0 };
    bytes + if header.offset == 0 { POOL_ENTRY_BYTES } else { 0 }
}

fn violation(rank: Rank, what: &str) -> Failure {
    Failure::Violation { rank, what: what.to_owned() }
}
