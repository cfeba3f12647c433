//! What leaves: permission to send, the next frame for a link, and what comes back when its memory is free.

use paceline_collective::{Action, Message, StepId};
use paceline_plan::{Protocol, Rank};

use crate::arrival::violation;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::frame::{FRAME_BYTES_MAX, Header, Kind};
use crate::interface::{OpId, Transmit};
use crate::operation::Phase;
use crate::outgoing::{InFlight, Outgoing};
use crate::peer::POOL_ENTRY_BYTES;

impl Engine {
    /// Sends the message if it is granted or may go eagerly; parks it otherwise. True if it was sent.
    pub(crate) fn try_send(&mut self, index: u32, tile: u32, step: StepId) -> bool {
        let op = &mut self.ops[index as usize];
        let Action::Send { to, from, .. } = *op.schedule.action(step) else { return false };
        let total = op.state(tile, step).total;
        let peer = &mut self.peers[op.group[to]];
        // A kernel at the other end needs its operand whole, and every block would be a reference of its own.
        let whole = from.blocks == 1 || !op.schedule.dynamic();
        let protocol = op.tuning.protocol;
        let by_reference = protocol != Protocol::Inline
            && peer.traits.reference_above.is_some_and(|above| total > above)
            && (peer.traits.any_memory || op.shared_memory)
            && whole;
        let granted = op.take_grant(tile, step);
        let cost = match by_reference {
            true => op.pieces(&from, tile, op.reference_bytes(&peer.traits)) * POOL_ENTRY_BYTES,
            false => total + POOL_ENTRY_BYTES,
        };
        let edge = &mut op.edges[to];
        let room = match protocol {
            Protocol::Rendezvous => false,
            Protocol::Inline | Protocol::Eager => true,
            Protocol::Auto => {
                let sum = edge.eager_bytes.saturating_add(total);
                by_reference || !op.large || sum <= self.config.eager_operation_bytes
            }
        };
        let eager = !granted && room && peer.eager_outstanding() + cost <= self.config.eager_link_bytes;
        let message = Outgoing {
            priority: op.priority,
            sequence: op.sequence,
            op: OpId { index, generation: op.generation },
            tile,
            step,
            eager,
        };
        if !granted && !eager {
            let state = op.state(tile, step);
            let anew = state.phase != Phase::Parked;
            state.phase = Phase::Parked;
            if anew && room && cost <= self.config.eager_link_bytes {
                self.park(message, to); // Credit will help; otherwise only a grant does.
            }
            return false;
        }
        if eager {
            peer.eager_sent += cost as u64;
        }
        if eager && !by_reference {
            edge.eager = true;
            edge.eager_bytes += total;
        }
        let state = op.state(tile, step);
        state.phase = Phase::Started;
        state.by_reference = by_reference;
        peer.outgoing.push(message);
        true
    }

    /// Keeps a message until credit comes back. Most are granted before that, so the list is swept when it has grown.
    fn park(&mut self, message: Outgoing, to: Rank) {
        let peer = &mut self.peers[self.ops[message.op.index as usize].group[to]];
        if peer.parked.len() >= peer.sweep_at {
            let ops = &mut self.ops;
            peer.parked.retain(|parked| ops[parked.op.index as usize].is_parked(parked));
            peer.sweep_at = (2 * peer.parked.len()).max(64);
        }
        peer.parked.push(message);
    }

    /// Sends what waited only for credit, most urgent first, as far as it goes now.
    pub(crate) fn retry_parked(&mut self, peer: Rank) {
        while let Some(message) = self.peers[peer].parked.pop() {
            let index = message.op.index;
            if self.ops[index as usize].is_parked(&message) && !self.try_send(index, message.tile, message.step) {
                self.peers[peer].parked.push(message);
                return;
            }
        }
    }

    /// The next data frame for a peer, most urgent first.
    pub fn transmit(&mut self, peer: Rank) -> Option<Transmit> {
        self.transmit_at_most(peer, usize::MAX)
    }

    /// The same with a payload of at most so many bytes, but at least an element, and no longer than
    /// [`crate::Config::frame_bytes`].
    pub fn transmit_at_most(&mut self, peer: Rank, bytes: usize) -> Option<Transmit> {
        let message = *self.peers[peer].outgoing.peek()?;
        let op = &mut self.ops[message.op.index as usize];
        let Action::Send { message: name, from, .. } = *op.schedule.action(message.step) else { return None };
        let state = *op.state(message.tile, message.step);
        let mut payload = op.region(message.op, &from, message.tile, state.sent);
        payload.bytes = payload.bytes.min(state.total - state.sent);
        if state.by_reference {
            payload.bytes = payload.bytes.min(op.reference_bytes(&self.peers[peer].traits));
        } else {
            let limit = self.config.frame_bytes.min(FRAME_BYTES_MAX as usize).min(bytes);
            payload.bytes = payload.bytes.min(op.geometry.whole_elements(limit));
        }
        let kind = if state.by_reference { Kind::Reference } else { Kind::Data };
        let header = Header {
            eager: u8::from(message.eager),
            lanes: op.tuning.lanes,
            signature: op.signature,
            tile: message.tile,
            message: name,
            message_bytes: state.total as u32,
            offset: state.sent as u32,
            payload_bytes: payload.bytes as u32,
            ..Header::new(kind, op.key)
        };
        let state = op.state(message.tile, message.step);
        state.begun = true;
        state.sent += payload.bytes;
        if state.sent == state.total {
            self.peers[peer].outgoing.pop();
        }
        let ticket = (kind == Kind::Data).then(|| {
            let frame = InFlight { op: message.op, tile: message.tile, step: message.step, bytes: payload.bytes };
            u64::from(self.in_flight.insert(frame))
        });
        Some(Transmit { header: self.stamp(peer, header), payload, ticket })
    }

    /// The lanes ([`Header::lanes`]) of the frame that [`Engine::transmit`] gives next.
    pub fn next_lanes(&self, peer: Rank) -> Option<u16> {
        self.peers[peer].outgoing.peek().map(|message| self.ops[message.op.index as usize].tuning.lanes)
    }

    /// Is there a data or control frame for a peer?
    pub fn wants_to_send(&self, peer: Rank) -> bool {
        let peer = &self.peers[peer];
        !peer.outgoing.is_empty() || !peer.control.is_empty()
    }

    /// The next control frame for a peer. Control frames go before data frames.
    pub fn control(&mut self, peer: Rank) -> Option<Header> {
        let header = self.peers[peer].control.pop_front()?;
        Some(self.stamp(peer, header))
    }

    /// Every frame returns what eager credit there is to return; but none overtakes a grant that is still queued here,
    /// see [`crate::peer::Peer::cross`].
    fn stamp(&mut self, peer: Rank, header: Header) -> Header {
        let peer = &mut self.peers[peer];
        peer.pulse.sent += 1;
        if peer.control.is_empty() {
            peer.eager_reported = peer.eager_released;
        }
        Header { eager_returned: peer.eager_reported, ..header }
    }

    /// The link is done with the payload of a frame.
    pub fn transmitted(&mut self, ticket: u64) {
        let Some(frame) = u32::try_from(ticket).ok().and_then(|ticket| self.in_flight.remove(ticket)) else { return };
        let op = &self.ops[frame.op.index as usize];
        if op.live && op.generation == frame.op.generation {
            self.sent(frame.op.index, frame.tile, frame.step, frame.bytes);
            self.run_startable();
        }
    }

    /// Nobody reads these bytes of a message any more.
    fn sent(&mut self, index: u32, tile: u32, step: StepId, bytes: usize) {
        let op = &mut self.ops[index as usize];
        op.last_progress = self.now;
        let state = op.state(tile, step);
        state.moved += bytes;
        if state.moved == state.total && state.sent == state.total {
            self.complete_step(index, tile, step);
        }
    }

    /// A peer has read what a reference named.
    pub(crate) fn reference_taken(&mut self, peer: Rank, header: &Header) -> Result<(), Failure> {
        let unknown = || violation(peer, "acknowledged a message that does not exist");
        let index = self.find(header.key()).ok_or_else(unknown)?;
        let op = &mut self.ops[index as usize];
        let group_rank = op.group_rank(peer).ok_or_else(unknown)?;
        let step = op.schedule.send(group_rank, header.message).filter(|_| op.in_flight(header.tile));
        let step = step.ok_or_else(unknown)?;
        let state = op.state(header.tile, step);
        let piece = header.message_bytes as usize;
        if state.phase != Phase::Started || !state.by_reference || state.moved + piece > state.sent {
            return Err(violation(peer, "acknowledged what it was not sent"));
        }
        self.sent(index, header.tile, step, piece);
        Ok(())
    }

    /// A peer is ready for a message of a posted operation.
    pub(crate) fn record_grant(&mut self, index: u32, peer: Rank, tile: u32, message: Message) -> Result<(), Failure> {
        let op = &mut self.ops[index as usize];
        let Some(step) = op.group_rank(peer).and_then(|group_rank| op.schedule.send(group_rank, message)) else {
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
}
