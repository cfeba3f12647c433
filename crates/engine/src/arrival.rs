//! What arrives: where a frame's bytes go, and what follows when they are there.
//!
//! Nothing here believes a header. Frames of one message may arrive in any order, and several at once, because a link
//! may have several streams; so a message is counted, and complete when the count is. In the pool, where memory is used
//! again, no byte may come twice either: or else another would be missing, and what lay there before be taken for it.

use paceline_collective::{Action, Combine, Fold, Message, Slot, Space, StepId};
use paceline_plan::{Protocol, Rank};

use crate::engine::Engine;
use crate::failure::Failure;
use crate::frame::{Header, Kind};
use crate::interface::{OpId, Placement};
use crate::operation::{Operation, Phase};
use crate::peer::{POOL_ENTRY_BYTES, Pooled};
use crate::work::Incoming;

impl Engine {
    /// A frame starts to arrive from a peer; its header has passed [`Header::check`]. Says where the payload goes. An
    /// `Err` is the peer's fault and ends the link.
    pub fn begin(&mut self, peer: Rank, header: &Header) -> Result<Placement, Failure> {
        if self.failure().is_some() {
            return Ok(Placement::Nowhere);
        }
        self.sign_of_life(peer);
        self.take_credit_back(peer, header)?;
        let op = self.find(header.key());
        if let Some(index) = op
            && header.is_of_operation()
        {
            self.check_signature(index, peer, &header.signature)?;
            self.hear(index, peer)?;
            if header.kind() == Some(Kind::Heartbeat) {
                self.hear_blame(index, peer, header);
            }
        }
        if !matches!(header.kind(), Some(Kind::Data | Kind::Reference)) {
            return Ok(Placement::Nowhere);
        }
        if header.payload_bytes == 0 && header.message_bytes > 0 {
            return Err(violation(peer, "sent an empty piece of a message"));
        }
        match op {
            Some(index) => self.begin_posted(index, peer, header),
            None => self.pool_frame(None, peer, header, header.eager != 0),
        }
    }

    /// The frame that [`Engine::begin`] announced is complete: its bytes are where they belong.
    pub fn end(&mut self, peer: Rank, header: &Header) -> Result<(), Failure> {
        if self.failure().is_some() {
            return Ok(());
        }
        match header.kind() {
            Some(Kind::Data | Kind::Reference) => self.arrived(peer, header)?,
            Some(Kind::Grant) => self.granted(peer, header)?,
            Some(Kind::Taken) => self.reference_taken(peer, header)?,
            Some(Kind::Heartbeat) => self.promised(peer, header),
            _ => {}
        }
        self.run_startable();
        Ok(())
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

    /// In place if the receive has started and nothing of the message was pooled; otherwise to the pool.
    fn begin_posted(&mut self, index: u32, peer: Rank, header: &Header) -> Result<Placement, Failure> {
        let (tile, message) = (header.tile, header.message);
        let step = self.check_message(index, peer, tile, message, header.message_bytes as usize)?;
        let op = &mut self.ops[index as usize];
        let started = op.in_flight(tile) && op.state(tile, step).phase == Phase::Started;
        if !started || op.find_pooled(peer, tile, message).is_some() {
            return self.pool_frame(Some(index), peer, header, header.eager != 0);
        }
        let state = op.state(tile, step);
        if state.begun && state.sent == state.total {
            return Err(violation(peer, "sent a message twice"));
        }
        if header.kind() == Some(Kind::Data) && kernel_operand(op.schedule.action(step)) {
            // The kernel needs all of it at once. Its receive has started, so its slot bounds it: no credit is needed.
            return self.pool_frame(Some(index), peer, header, true);
        }
        self.begin_in_place(index, peer, header, step)
    }

    fn begin_in_place(&mut self, index: u32, peer: Rank, header: &Header, step: StepId) -> Result<Placement, Failure> {
        let (offset, bytes) = (header.offset as usize, header.payload_bytes as usize);
        let first = !self.ops[index as usize].state(header.tile, step).begun;
        if first {
            self.begin_receive(index, peer, header.tile, step, header.message_bytes as usize)?;
        }
        let credit = self.charge(peer, header, first)?;
        let op = &mut self.ops[index as usize];
        let Action::Receive { into, fold, .. } = op.arriving(header.tile, step) else { return Ok(Placement::Nowhere) };
        let element_bytes = op.geometry.element_bytes.max(1);
        let state = op.state(header.tile, step);
        if state.total != header.message_bytes as usize {
            return Err(violation(peer, "changed its mind about a message in its middle"));
        }
        if state.sent + bytes > state.total {
            return Err(violation(peer, "sent a piece of a message twice"));
        }
        state.sent += bytes;
        state.credit += credit;
        let whole = offset == 0 && bytes == state.total;
        match fold {
            Some(Fold { combine: Combine::Kernel(_), .. }) if !whole => {
                return Err(violation(peer, "sent a kernel's operand in pieces"));
            }
            Some(_) if !offset.is_multiple_of(element_bytes) || !bytes.is_multiple_of(element_bytes) => {
                return Err(violation(peer, "sent a torn element"));
            }
            _ => {}
        }
        if header.kind() == Some(Kind::Reference) {
            return Ok(Placement::Nowhere);
        }
        let op = &self.ops[index as usize];
        let id = OpId { index, generation: op.generation };
        let region = |slot: &Slot| {
            let mut region = op.region(id, slot, header.tile, offset);
            let fits = bytes <= region.bytes;
            region.bytes = bytes;
            fits.then_some(region).ok_or_else(|| violation(peer, "sent a frame that does not end at a block's end"))
        };
        Ok(match fold {
            None => Placement::Write(region(&into)?),
            Some(fold) => {
                let (with, into) = (region(&fold.with)?, region(&into)?);
                Placement::Fold { with, into, order: fold.order, last: fold.last }
            }
        })
    }

    /// A receive takes its message in, from the link or from the pool.
    fn begin_receive(&mut self, index: u32, peer: Rank, tile: u32, step: StepId, total: usize) -> Result<(), Failure> {
        let op = &mut self.ops[index as usize];
        if let Action::Receive { fold: Some(fold), .. } = op.schedule.action(step)
            && fold.combine == Combine::Reduction
            && op.slot_bytes(&fold.with, tile) != total
        {
            return Err(violation(peer, "sent a message of a length that does not fit what it is combined with"));
        }
        // If nothing but this message is missing for its combination, it goes straight there.
        let missing = op.schedule.shortcut(step).map(|shortcut| shortcut.combine);
        let folded = !op.keeps_lengths() && missing.is_some_and(|combine| op.state(tile, combine).waits == 1);
        let state = op.state(tile, step);
        state.folded = folded;
        state.begun = true;
        state.total = total;
        Ok(())
    }

    /// The receive that a message belongs to, if it is not over, and the length is possible.
    pub(crate) fn check_message(
        &self,
        index: u32,
        peer: Rank,
        tile: u32,
        message: Message,
        total: usize,
    ) -> Result<StepId, Failure> {
        let op = &self.ops[index as usize];
        let step = op.group_rank(peer).and_then(|group_rank| op.schedule.receive(group_rank, message));
        let Some(step) = step.filter(|_| tile < op.geometry.tiles) else {
            return Err(violation(peer, "sent a message that the operation does not have"));
        };
        let done = if op.in_flight(tile) {
            op.tiles[(tile % op.window) as usize].steps[step as usize].phase == Phase::Done
        } else {
            tile < op.next_tile
        };
        if done {
            return Err(violation(peer, "sent a message twice"));
        }
        let Action::Receive { into, fold, .. } = op.schedule.action(step) else { return Ok(step) };
        let capacity = op.geometry.capacity(into, tile, op.schedule.parts());
        // Lengths vary by kernels; and where blocks differ, scratch has room for the longest.
        let varies = op.schedule.dynamic() || (op.geometry.variable() && into.space == Space::Scratch);
        let fits = if varies { total <= capacity } else { total == capacity };
        let elementwise = fold.as_ref().is_some_and(|fold| fold.combine == Combine::Reduction);
        if !fits || (elementwise && !total.is_multiple_of(op.geometry.element_bytes.max(1))) {
            return Err(violation(peer, "sent a message of a length that does not fit the operation"));
        }
        Ok(step)
    }

    /// Puts a frame into the pool; the first one of its message only if that is `allowed`.
    fn pool_frame(
        &mut self,
        op: Option<u32>,
        peer: Rank,
        header: &Header,
        allowed: bool,
    ) -> Result<Placement, Failure> {
        let list = match op {
            Some(index) => &self.ops[index as usize].pooled,
            None => self.unposted.get(&header.key()).map_or(&[][..], |early| &early.pooled),
        };
        let known = list.iter().position(|pooled| pooled.is(peer, header.tile, header.message));
        if known.is_none() && !allowed {
            return Err(violation(peer, "sent data that nobody had granted"));
        }
        let credit = self.charge(peer, header, known.is_none())?;
        let pool = &mut self.pool;
        let list = match op {
            Some(index) => &mut self.ops[index as usize].pooled,
            None => &mut self.unposted.entry(header.key()).or_insert_with(|| pool.unposted()).pooled,
        };
        let position = known.unwrap_or_else(|| {
            list.push(Pooled::new(peer, header, pool.references()));
            list.len() - 1
        });
        let pooled = &mut list[position];
        pooled.announce(header, known.is_none()).map_err(|what| violation(peer, what))?;
        pooled.credit += credit;
        if header.kind() == Some(Kind::Reference) {
            pooled.references.push((header.reference, header.offset as usize, header.payload_bytes as usize));
            return Ok(Placement::Nowhere);
        }
        let buffer = *pooled.buffer.get_or_insert_with(|| pool.buffer());
        Ok(Placement::Pool(buffer, header.offset as usize))
    }

    /// A frame is where [`Engine::begin`] sent it.
    fn arrived(&mut self, peer: Rank, header: &Header) -> Result<(), Failure> {
        let (tile, message, bytes) = (header.tile, header.message, header.payload_bytes as usize);
        let Some(index) = self.find(header.key()) else {
            let early = self.unposted.get_mut(&header.key());
            let pooled = early.and_then(|early| early.pooled.iter_mut().find(|pooled| pooled.is(peer, tile, message)));
            if let Some(pooled) = pooled {
                pooled.receive(bytes);
            }
            return Ok(());
        };
        if let Some(position) = self.ops[index as usize].find_pooled(peer, tile, message) {
            self.ops[index as usize].last_arrival = Some(self.now);
            self.ops[index as usize].pooled[position].receive(bytes);
            return self.consume_if_ready(index, position);
        }
        let op = &mut self.ops[index as usize];
        op.last_arrival = Some(self.now);
        let step = op.group_rank(peer).and_then(|group_rank| op.schedule.receive(group_rank, message));
        let Some(step) = step.filter(|&step| op.in_flight(tile) && op.state(tile, step).begun) else { return Ok(()) };
        if header.kind() == Some(Kind::Reference) {
            let incoming = Incoming::Reference { peer, reference: header.reference };
            self.push_work(index, tile, step, incoming, header.offset as usize, bytes);
        } else {
            self.moved(index, tile, step, bytes);
        }
        Ok(())
    }

    /// Some bytes of a message are in place.
    pub(crate) fn moved(&mut self, index: u32, tile: u32, step: StepId, bytes: usize) {
        let now = self.now;
        let op = &mut self.ops[index as usize];
        let state = op.state(tile, step);
        state.moved += bytes;
        if state.moved < state.total {
            op.last_progress = now;
            return;
        }
        let (total, credit, folded) = (state.total, std::mem::take(&mut state.credit), state.folded);
        if let Some(combine) = op.schedule.shortcut(step).filter(|_| folded).map(|shortcut| shortcut.combine) {
            op.state(tile, combine).folded = true;
        }
        let action = *op.schedule.action(step);
        if let Action::Receive { from, into, .. } = action {
            if !kernel_operand(&action) {
                op.set_slot_bytes(&into, tile, total);
            }
            let peer = op.group[from];
            self.release(peer, credit);
        }
        self.complete_step(index, tile, step);
    }

    /// A receive may start: grant what would not come by itself, and take what has come already.
    pub(crate) fn arm(&mut self, index: u32, tile: u32, step: StepId, from: Rank, message: Message, into: &Slot) {
        let op = &self.ops[index as usize];
        let peer = op.group[from];
        if let Some(position) = op.find_pooled(peer, tile, message) {
            if let Err(failure) = self.consume_if_ready(index, position) {
                self.fail(failure);
            }
            return;
        }
        let traits = self.peers[peer].traits;
        let capacity = op.geometry.capacity(into, tile, op.schedule.parts());
        let comes_by_reference = traits.any_memory && traits.reference_above.is_some_and(|above| capacity > above);
        // What no credit suffices for never comes by itself.
        let beyond_credit = capacity.saturating_add(POOL_ENTRY_BYTES) > self.config.eager_link_bytes;
        let grant = match op.tuning.protocol {
            Protocol::Rendezvous => true,
            Protocol::Inline => beyond_credit,
            Protocol::Eager => beyond_credit && !comes_by_reference,
            Protocol::Auto => op.large && !comes_by_reference,
        };
        if grant {
            self.grant(index, tile, step, false);
        }
    }

    /// Tells the sender of a message that its receive has started.
    pub(crate) fn grant(&mut self, index: u32, tile: u32, step: StepId, again: bool) {
        let op = &mut self.ops[index as usize];
        let Action::Receive { from, message, .. } = *op.schedule.action(step) else { return };
        op.state(tile, step).granted = true;
        let signature = op.signature;
        let header = Header { signature, tile, message, offset: again.into(), ..Header::new(Kind::Grant, op.key) };
        self.peers[op.group[from]].control.push_back(header);
    }

    /// Takes a message from the pool, if all of it is there and its receive has started.
    fn consume_if_ready(&mut self, index: u32, position: usize) -> Result<(), Failure> {
        let op = &mut self.ops[index as usize];
        let pooled = &op.pooled[position];
        let (peer, tile, total) = (pooled.from, pooled.tile, pooled.message_bytes);
        let step = op.group_rank(peer).and_then(|group_rank| op.schedule.receive(group_rank, pooled.message));
        let Some(step) = step.filter(|_| pooled.complete && op.in_flight(tile)) else { return Ok(()) };
        if op.state(tile, step).phase != Phase::Started {
            return Ok(());
        }
        let pooled = op.pooled.swap_remove(position);
        self.begin_receive(index, peer, tile, step, total)?;
        let op = &mut self.ops[index as usize];
        let state = op.state(tile, step);
        state.sent = total;
        state.credit = pooled.credit;
        let action = op.arriving(tile, step);
        check_pieces(op, &action, &pooled)?;
        if let Some(buffer) = pooled.buffer {
            self.push_work(index, tile, step, Incoming::Pool(buffer), 0, total);
        }
        for &(reference, offset, bytes) in &pooled.references {
            self.push_work(index, tile, step, Incoming::Reference { peer, reference }, offset, bytes);
        }
        self.pool.recycle_message(pooled);
        Ok(())
    }
}

/// Can what came by references be combined piece by piece?
fn check_pieces(op: &Operation, action: &Action, pooled: &Pooled) -> Result<(), Failure> {
    let element_bytes = op.geometry.element_bytes.max(1);
    let torn = |&(_, offset, bytes): &(_, usize, usize)| {
        !offset.is_multiple_of(element_bytes) || !bytes.is_multiple_of(element_bytes)
    };
    match action {
        Action::Receive { fold: Some(Fold { combine: Combine::Kernel(_), .. }), .. } if pooled.references.len() > 1 => {
            Err(violation(pooled.from, "sent a kernel's operand in pieces"))
        }
        Action::Receive { fold: Some(Fold { combine: Combine::Reduction, .. }), .. }
            if pooled.references.iter().any(torn) =>
        {
            Err(violation(pooled.from, "sent a torn element"))
        }
        _ => Ok(()),
    }
}

/// Does the step combine a message by a kernel?
fn kernel_operand(action: &Action) -> bool {
    matches!(action, Action::Receive { fold: Some(Fold { combine: Combine::Kernel(_), .. }), .. })
}

pub(crate) fn violation(rank: Rank, what: &str) -> Failure {
    Failure::Violation { rank, what: what.to_owned() }
}
