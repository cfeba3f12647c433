//! Frames on their way out of a ring.

use paceline_engine::frame::{HEADER_BYTES, Header};

use super::outbox::{FRAME_ROOM, STEP_BYTES};
use super::ring::Consumer;
use super::segment::RING_BYTES_MIN;
use crate::{LinkError, Sink, Target};

/// A sink that asks for slices asks for a multiple of no more than this.
const MULTIPLE_MAX: usize = RING_BYTES_MIN / 4;

/// When all that was sent has been read, the producer knows of all room but less than this part of the ring. That is
/// enough for it never to wait: see [`super::outbox::Outbox::has_room`].
const ROOM_TOLD: usize = 8;

/// The frame that is arriving.
struct Arrival {
    header: Header,
    target: Target,
    /// Payload bytes taken.
    done: usize,
}

/// Takes frames out of a ring and gives them to a [`Sink`].
pub(super) struct Inbox {
    consumer: Consumer,
    arrival: Option<Arrival>,
}

impl Inbox {
    pub(super) fn new(consumer: Consumer) -> Inbox {
        Inbox { consumer, arrival: None }
    }

    /// Takes in at most about a ring of what has arrived. Whenever room has been given back, `published` is called: the
    /// producer may have to be woken.
    pub(super) fn receive(&mut self, sink: &mut dyn Sink, published: &mut dyn FnMut()) -> Result<bool, LinkError> {
        let mut budget = self.consumer.ring_bytes();
        let mut moved = false;
        while let Some(bytes) = self.advance(sink, budget)? {
            moved = true;
            budget = budget.saturating_sub(bytes);
            if self.consumer.unpublished() >= STEP_BYTES {
                self.consumer.publish();
                published();
            }
            if budget == 0 || (self.arrival.is_none() && sink.has_enough()) {
                break;
            }
        }
        // A producer whose ring is nearly empty waits for no room: it is told of what was read when that has gathered.
        if self.consumer.unpublished() >= self.consumer.ring_bytes() / ROOM_TOLD {
            self.consumer.publish();
            published();
        }
        Ok(moved)
    }

    /// Begins a frame or takes some payload. The bytes taken, or None if nothing can be done now.
    fn advance(&mut self, sink: &mut dyn Sink, budget: usize) -> Result<Option<usize>, LinkError> {
        let Some(arrival) = &mut self.arrival else { return self.begin(sink) };
        let remaining = arrival.header.wire_payload_bytes() as usize - arrival.done;
        let wanted = remaining.min(STEP_BYTES).min(budget.max(1));
        let mut bytes = self.consumer.available(wanted)?.min(remaining).min(STEP_BYTES);
        if let Target::Slices(multiple) = arrival.target
            && bytes < remaining
        {
            assert!(multiple <= MULTIPLE_MAX, "slices are asked for in multiples of a few bytes");
            bytes -= bytes % multiple.max(1);
        }
        if bytes == 0 {
            return Ok(None);
        }
        let data = self.consumer.data();
        match arrival.target {
            // SAFETY: `available` says that so many bytes lie at `data`; the producer leaves them alone until they are
            // published as read. The sink vouches for the memory, which is no ring of ours.
            Target::Memory(into) => unsafe { std::ptr::copy_nonoverlapping(data, into.add(arrival.done), bytes) },
            Target::Slices(_) => {
                // SAFETY: as above; the slice is gone before anything is published as read.
                let slice = unsafe { std::slice::from_raw_parts(data, bytes) };
                sink.bytes(&arrival.header, arrival.done, slice)?;
            }
            Target::Discard => {}
        }
        arrival.done += bytes;
        self.consumer.advance(bytes);
        self.end_if_complete(sink)?;
        Ok(Some(bytes))
    }

    fn begin(&mut self, sink: &mut dyn Sink) -> Result<Option<usize>, LinkError> {
        match self.consumer.available(FRAME_ROOM)? {
            0 => return Ok(None),
            1..FRAME_ROOM => {
                return Err(LinkError::Protocol { what: "has published a piece of a frame header".into() });
            }
            _ => {}
        }
        // SAFETY: that many bytes lie at `data`, and any bytes make a `Header`. It is copied before it is checked, so
        // that nobody can change it in between.
        let header = unsafe { self.consumer.data().cast::<Header>().read_unaligned() };
        header.check().map_err(|what| LinkError::Protocol { what: format!("has sent a frame that {what}") })?;
        let target = sink.begin(&header)?;
        self.consumer.advance(HEADER_BYTES);
        self.arrival = Some(Arrival { header, target, done: 0 });
        self.end_if_complete(sink)?;
        Ok(Some(FRAME_ROOM))
    }

    fn end_if_complete(&mut self, sink: &mut dyn Sink) -> Result<(), LinkError> {
        if let Some(arrival) =
            self.arrival.take_if(|arrival| arrival.done == arrival.header.wire_payload_bytes() as usize)
        {
            self.consumer.pad();
            sink.end(&arrival.header)?;
        }
        Ok(())
    }
}
