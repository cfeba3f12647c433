//! Takes in what a link has received, on behalf of the engine.

use paceline_collective::Order;
use paceline_engine::frame::{Header, Kind};
use paceline_engine::{Engine, Failure, Placement, WORDS_BYTES_MAX};
use paceline_fabric::{LinkError, Sink, Target};

use crate::memory::Memories;
use crate::trace::Tracer;

/// A frame that has begun to arrive.
pub(crate) struct Arriving {
    header: Header,
    placement: Placement,
}

/// The sink of one peer, for one call of `receive`.
pub(crate) struct PeerSink<'a> {
    pub peer: usize,
    /// Ranks of the world.
    pub world: usize,
    pub engine: &'a mut Engine,
    pub memories: &'a mut Memories,
    /// Frames of this peer that have begun: one per stream of its link.
    pub arriving: &'a mut Vec<Arriving>,
    /// Why the peer gave up, as far as it has arrived.
    pub abort_reason: &'a mut Vec<u8>,
    /// What the engine had against a frame.
    pub failure: &'a mut Option<Failure>,
    /// If there is a trace.
    pub tracer: Option<&'a mut Tracer>,
}

impl PeerSink<'_> {
    fn refuse(&mut self, failure: Failure) -> LinkError {
        let what = failure.to_string();
        self.failure.get_or_insert(failure);
        LinkError::Protocol { what }
    }

    fn find(&self, header: &Header) -> Option<usize> {
        self.arriving.iter().position(|arriving| arriving.header == *header)
    }
}

impl Sink for PeerSink<'_> {
    fn begin(&mut self, header: &Header) -> Result<Target, LinkError> {
        let placement = match self.engine.begin(self.peer, header) {
            Ok(placement) => placement,
            Err(failure) => return Err(self.refuse(failure)),
        };
        if let Some(tracer) = &mut self.tracer {
            tracer.arriving(self.peer, header);
        }
        let bytes = header.wire_payload_bytes() as usize;
        let target = match placement {
            Placement::Write(region) => Target::Memory(self.memories.address(&region)),
            Placement::Fold { into, .. } => {
                let memory = self.memories.operation(into.op.index);
                Target::Slices(memory.elementwise.data_type.size())
            }
            // Pool buffers may move while they grow, so no link gets their address.
            Placement::Pool(..) => Target::Slices(1),
            Placement::Nowhere if header.kind() == Some(Kind::Abort) => Target::Slices(1),
            Placement::Nowhere => Target::Discard,
        };
        if bytes > 0 {
            self.arriving.push(Arriving { header: *header, placement });
        }
        Ok(target)
    }

    fn bytes(&mut self, header: &Header, offset: usize, slice: &[u8]) -> Result<(), LinkError> {
        if header.kind() == Some(Kind::Abort) {
            let room = WORDS_BYTES_MAX.saturating_sub(self.abort_reason.len());
            self.abort_reason.extend_from_slice(&slice[..slice.len().min(room)]);
            return Ok(());
        }
        let Some(position) = self.find(header) else { return Ok(()) };
        let placement = self.arriving[position].placement;
        if let Placement::Pool(buffer, start) = placement {
            self.memories.pool_mut(buffer, start + offset, slice.len()).copy_from_slice(slice);
        }
        if let Placement::Fold { with, into, order, last } = placement {
            let elementwise = self.memories.operation(into.op.index).combining(last);
            // SAFETY: `offset` is within the frame's payload, which is as long as the regions.
            let (with, into) =
                unsafe { (self.memories.address(&with).add(offset), self.memories.address(&into).add(offset)) };
            let (left, right) = match order {
                Order::LocalFirst => (with.cast_const(), slice.as_ptr()),
                Order::MessageFirst => (slice.as_ptr(), with.cast_const()),
            };
            // SAFETY: the regions belong to the operation, which is pending; that nothing else touches them now,
            // `verify` has proved (see `Programs`).
            unsafe { elementwise.combine_raw(left, right, into, slice.len()) };
        }
        Ok(())
    }

    fn end(&mut self, header: &Header) -> Result<(), LinkError> {
        let arrived = self.find(header).map(|position| self.arriving.swap_remove(position));
        if let Some(tracer) = &mut self.tracer {
            let combined = arrived.is_some_and(|arrived| matches!(arrived.placement, Placement::Fold { .. }));
            tracer.arrived(self.peer, header, combined);
        }
        match header.kind() {
            Some(Kind::Abort) => {
                let told = Failure::told(self.peer, header, self.abort_reason, self.world);
                return Err(self.refuse(told));
            }
            Some(Kind::Goodbye) => {
                self.engine.left(self.peer);
                return Ok(());
            }
            _ => {}
        }
        self.engine.end(self.peer, header).map_err(|failure| self.refuse(failure))?;
        if header.kind() == Some(Kind::Taken) {
            self.memories.read(self.peer, header);
        }
        Ok(())
    }

    /// The caller of an operation that has ended goes first. What lies behind it is often for the caller's next one, and
    /// need not be kept in the pool if it is taken in when that has been posted.
    fn has_enough(&self) -> bool {
        self.engine.has_completed()
    }
}
