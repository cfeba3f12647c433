//! How a world moves frames between its ranks.

use paceline_collective::Order;
use paceline_collective::kernels::Elementwise;
use paceline_engine::frame::{HEADER_BYTES, Header, Kind};
use paceline_engine::{Failure, Placement, Region};
use paceline_plan::Rank;

use crate::link::{Arriving, Outgoing, Piece};
use crate::world::{Event, World, plain};

impl World {
    /// Hands the links what the engine wants to send. True if there was anything.
    pub fn send_frames(&mut self, rank: Rank) -> bool {
        let mut moved = false;
        let n = self.nodes.len();
        // Not all begin with the same one.
        for peer in (1..n).map(|distance| (rank + distance) % n) {
            let mut queued = false;
            while let Some(header) = self.nodes[rank].engine(|engine| engine.control(peer)) {
                queued = true;
                self.enqueue(rank, peer, header, None, None);
            }
            while self.link(rank, peer).unsent < self.setup.link.unsent_bytes_max {
                let Some(frame) = self.nodes[rank].engine(|engine| engine.transmit(peer)) else { break };
                queued = true;
                self.enqueue(rank, peer, frame.header, Some(frame.payload), frame.ticket);
            }
            if queued && self.is_refused(rank, peer) {
                return true;
            }
            moved |= queued;
        }
        moved
    }

    /// Where the system has no memory for what a link carries, the rank fails: its peer is well.
    fn is_refused(&mut self, rank: Rank, peer: Rank) -> bool {
        let refused = self.nodes[rank].refused == Some(peer);
        if refused {
            self.fail(rank, Failure::Cancelled { reason: format!("no memory for the link to rank {peer}") });
        }
        refused
    }

    /// Gives a frame to a link. Its payload is in use until its ticket comes back or its reference is acknowledged.
    pub fn enqueue(&mut self, from: Rank, to: Rank, mut header: Header, payload: Option<Region>, ticket: Option<u64>) {
        let mut access = 0;
        if let Some(region) = payload {
            let node = &mut self.nodes[from];
            access = node.memory.acquire("sending", &[region], &[]);
            if header.kind() == Some(Kind::Reference) {
                let (buffer, bytes) = node.memory.locate(&region);
                node.references.push((buffer, bytes, access));
                header.reference = [node.references.len() as u64 - 1, 0];
                node.referred.insert((to, header.operation, header.tile, header.message, header.offset), access);
            }
        }
        let payload = payload.filter(|_| header.kind() == Some(Kind::Data));
        let stream = self.links[from * self.nodes.len() + to].stream_for(&header, &mut self.random);
        self.link(from, to).push(stream, Outgoing { payload, ticket, access, ..plain(header) });
        self.wake(from, to, stream);
    }

    /// Lets a stream send, if it does not already.
    pub fn wake(&mut self, from: Rank, to: Rank, stream: usize) {
        let state = &mut self.link(from, to).streams[stream];
        if !std::mem::replace(&mut state.moving, true) {
            self.at(self.now + 1, Event::Send { from, to, stream });
        }
    }

    /// Sends the next piece of the frame at the head of a stream, read from memory as late as this.
    pub fn send_piece(&mut self, from: Rank, to: Rank, stream: usize) {
        if self.random.once_in(self.setup.link.stall_once_in) {
            let stall = self.random.within(self.setup.link.stall.clone());
            return self.at(self.now + stall, Event::Send { from, to, stream });
        }
        if self.setup.link.ports && !self.has_turn(from, to, stream) {
            return;
        }
        let cut = self.random.within(self.setup.link.cut.clone()) as usize;
        let latency = self.random.within(self.setup.link.latency.clone());
        let n = self.nodes.len();
        let link = &mut self.links[from * n + to];
        let state = &mut link.streams[stream];
        let Some(frame) = state.queue.front_mut() else {
            state.moving = false;
            return;
        };
        let total = frame.header.wire_payload_bytes() as usize;
        let bytes = cut.min(total - frame.sent);
        let content = match &frame.payload {
            Some(region) => {
                let part = Region { offset: region.offset + frame.sent, bytes, ..*region };
                self.nodes[from].memory.read(&part).to_vec()
            }
            None => frame.reason[frame.sent..frame.sent + bytes].to_vec(),
        };
        frame.sent += bytes;
        let header = (!std::mem::replace(&mut frame.header_sent, true)).then_some(frame.header);
        let last = frame.sent == total;
        let (ticket, access) = (frame.ticket, frame.access);
        let wire = bytes + if header.is_some() { HEADER_BYTES } else { 0 };
        let took = 1 + wire as u64 * 1000 / self.setup.link.bytes_per_microsecond;
        let passed = match self.setup.link.ports {
            true => pass(&mut self.ports[to][1], self.now, took) + took,
            false => self.now + took,
        };
        let arrival = (passed + latency).max(state.last_arrival);
        state.last_arrival = arrival;
        state.pieces.push_back(Piece { header, bytes: content, last });
        if last {
            state.queue.pop_front();
            link.unsent -= HEADER_BYTES + total;
        }
        self.at(arrival, Event::Arrive { from, to, stream });
        self.at(passed, Event::Send { from, to, stream });
        if last && let Some(ticket) = ticket {
            let rest = self.random.within(0..2000);
            self.at(self.now + took + rest, Event::Ticket { rank: from, ticket, access });
        } else if last {
            // There is room again; whoever has waited for it looks.
            self.pump_later(from);
        }
    }

    /// Has the frame at the head of a stream its turn at its sender's port? If not, it is tried again then.
    fn has_turn(&mut self, from: Rank, to: Rank, stream: usize) -> bool {
        let now = self.now;
        let n = self.nodes.len();
        let state = &mut self.links[from * n + to].streams[stream];
        let Some(frame) = state.queue.front() else { return true };
        // A frame has one turn, in how many pieces it may travel.
        if std::mem::take(&mut state.has_turn) || frame.header_sent {
            return true;
        }
        let wire = HEADER_BYTES as u64 + u64::from(frame.header.wire_payload_bytes());
        let took = 1 + wire * 1000 / self.setup.link.bytes_per_microsecond;
        let begins = pass(&mut self.ports[from][0], now, took);
        if begins > now {
            state.has_turn = true;
            self.at(begins, Event::Send { from, to, stream });
        }
        begins <= now
    }

    fn pump_later(&mut self, rank: Rank) {
        self.at(self.now + 1, Event::Tick { rank });
    }

    /// A piece of a frame arrives.
    pub fn arrive(&mut self, from: Rank, to: Rank, stream: usize) {
        let link = self.link(from, to);
        let cut = link.cut;
        let state = &mut link.streams[stream];
        let piece = state.pieces.pop_front().expect("a piece for each arrival");
        if cut || self.nodes[to].closed || self.is_refused(to, from) {
            return;
        }
        self.nodes[to].engine(|engine| engine.sign_of_life(from));
        if let Err(failure) = self.take_in(from, to, stream, piece) {
            self.fail(to, failure);
        }
    }

    fn take_in(&mut self, from: Rank, to: Rank, stream: usize, piece: Piece) -> Result<(), Failure> {
        if let Some(header) = piece.header {
            header.check().expect("engines send headers that pass the check");
            let node = &mut self.nodes[to];
            let placement = node.engine(|engine| engine.begin(from, &header))?;
            let access = match placement {
                Placement::Write(region) => {
                    assert_eq!(region.bytes, header.payload_bytes as usize);
                    node.memory.acquire("receiving", &[], &[region])
                }
                Placement::Fold { with, into, .. } => {
                    assert_eq!(
                        (with.bytes, into.bytes),
                        (header.payload_bytes as usize, header.payload_bytes as usize)
                    );
                    node.memory.acquire("folding", &[with], &[into])
                }
                Placement::Pool(buffer, _) => {
                    let message = (from, header.operation, header.tile, header.message);
                    let eager_bytes = if header.eager != 0 { header.message_bytes as usize } else { 0 };
                    node.memory.pool_for(buffer, message, eager_bytes);
                    node.pool_peak = node.pool_peak.max(node.memory.pool_bytes(from));
                    let limit = self.setup.eager_link_bytes;
                    assert!(node.pool_peak <= limit, "the pool holds {} eager bytes of a link", node.pool_peak);
                    0
                }
                Placement::Nowhere => 0,
            };
            let arriving = Arriving { header, placement, access, done: 0, rest: Vec::new() };
            self.link(from, to).streams[stream].arriving = Some(arriving);
        }
        let mut arriving = self.link(from, to).streams[stream].arriving.take().expect("bytes follow their header");
        self.put(to, &mut arriving, &piece.bytes);
        if !piece.last {
            self.link(from, to).streams[stream].arriving = Some(arriving);
            return Ok(());
        }
        let torn = matches!(arriving.placement, Placement::Fold { .. }) && !arriving.rest.is_empty();
        assert!(!torn, "half an element is left over");
        self.frame_ends(from, to, stream, &arriving)
    }

    fn frame_ends(&mut self, from: Rank, to: Rank, stream: usize, arriving: &Arriving) -> Result<(), Failure> {
        let header = arriving.header;
        let node = &mut self.nodes[to];
        node.memory.release(arriving.access);
        match header.kind() {
            Some(Kind::Abort) => {
                return Err(Failure::told(from, &header, &arriving.rest, self.nodes.len()));
            }
            Some(Kind::Goodbye) => {
                let streams = &mut self.link(from, to).streams;
                streams[stream].goodbyes += 1;
                if streams.iter().all(|stream| stream.goodbyes > 0) {
                    self.nodes[to].engine(|engine| engine.left(from));
                }
                return Ok(());
            }
            // Nobody reads any more what the reference named.
            Some(Kind::Taken) => {
                let name = (from, header.operation, header.tile, header.message, header.offset);
                let access = node.referred.remove(&name).expect("a reference that was sent and not acknowledged");
                node.memory.release(access);
            }
            _ => {}
        }
        node.engine(|engine| engine.end(from, &header))
    }

    /// Puts bytes where the engine wants them; folds whole elements.
    fn put(&mut self, rank: Rank, arriving: &mut Arriving, bytes: &[u8]) {
        let node = &mut self.nodes[rank];
        match arriving.placement {
            Placement::Write(region) => {
                let part = Region { offset: region.offset + arriving.done, bytes: bytes.len(), ..region };
                node.memory.write(&part).copy_from_slice(bytes);
                arriving.done += bytes.len();
            }
            Placement::Pool(buffer, start) => {
                node.memory.pool_write(buffer, start + arriving.done, bytes);
                arriving.done += bytes.len();
            }
            Placement::Fold { with, into, order, last } => {
                let call = &self.calls[node.calls[&into.op.index]];
                arriving.rest.extend_from_slice(bytes);
                let whole = arriving.rest.len() - arriving.rest.len() % call.data_type.size();
                let rest = arriving.rest.split_off(whole);
                let message = std::mem::replace(&mut arriving.rest, rest);
                let elementwise = Elementwise {
                    data_type: call.data_type,
                    reduction: call.reduction,
                    divisor: if last { call.contributors() as u32 } else { 1 },
                };
                let part = |region: Region| Region { offset: region.offset + arriving.done, bytes: whole, ..region };
                let operand = node.memory.read(&part(with)).to_vec();
                let (left, right) = match order {
                    Order::LocalFirst => (&operand, &message),
                    Order::MessageFirst => (&message, &operand),
                };
                elementwise.combine(left, right, node.memory.write(&part(into)));
                arriving.done += whole;
            }
            Placement::Nowhere if arriving.header.kind() == Some(Kind::Abort) => arriving.rest.extend_from_slice(bytes),
            Placement::Nowhere => {}
        }
    }
}

/// When something that comes now and takes so long begins to pass a port, which is busy until then.
fn pass(busy_until: &mut u64, now: u64, took: u64) -> u64 {
    let begins = now.max(*busy_until);
    *busy_until = begins + took;
    begins
}
