//! A peer that writes nonsense to the shared memory. (What a well-behaved one sees: `tests/shm_link.rs`.)

use std::sync::Arc;
use std::sync::atomic::Ordering;

use paceline_engine::frame::{FRAME_BYTES_MAX, HEADER_BYTES, Header, Kind};

use super::inbox::Inbox;
use super::outbox::Outbox;
use super::ring::{Consumer, Producer};
use super::segment::Segment;
use crate::{LinkError, Piece, Sink, Target};

const RING_BYTES: usize = 16 << 10;

/// Counts what it is given.
#[derive(Default)]
struct Counter {
    begun: usize,
    bytes: usize,
    ended: usize,
}

impl Sink for Counter {
    fn begin(&mut self, _: &Header) -> Result<Target, LinkError> {
        self.begun += 1;
        Ok(Target::Slices(1))
    }

    fn bytes(&mut self, _: &Header, _: usize, slice: &[u8]) -> Result<(), LinkError> {
        self.bytes += slice.len();
        Ok(())
    }

    fn end(&mut self, _: &Header) -> Result<(), LinkError> {
        self.ended += 1;
        Ok(())
    }
}

/// A segment, what side 0 sends and what side 1 receives.
fn ends() -> (Arc<Segment>, Outbox, Inbox) {
    let (segment, _) = Segment::create(RING_BYTES).expect("shared memory");
    let outbox = Outbox::new(Producer::new(Arc::clone(&segment), 0));
    let inbox = Inbox::new(Consumer::new(Arc::clone(&segment), 1));
    (segment, outbox, inbox)
}

fn send(outbox: &mut Outbox, header: &Header, payload: &[u8]) -> Result<bool, LinkError> {
    let piece = Piece { start: payload.as_ptr(), bytes: payload.len() };
    // SAFETY: the callers keep the payload for as long as the outbox.
    unsafe { outbox.push(header, &[piece], 0) };
    outbox.flush(&mut |_| (), &mut || ())
}

fn data(bytes: usize) -> Header {
    let bytes = bytes as u32;
    Header { payload_bytes: bytes, message_bytes: bytes, ..Header::new(Kind::Data, Default::default()) }
}

fn assert_refused(result: Result<bool, LinkError>, what: &str) {
    match result {
        Err(LinkError::Protocol { .. }) => {}
        other => panic!("{what}: {other:?}"),
    }
}

#[test]
fn a_producers_index_is_not_believed() {
    let ring = RING_BYTES as u64;
    // After a frame of one unit pair (128 bytes) has been taken: backwards, beyond the ring, off the units, absurd.
    for tail in [0, 64, 128 + ring + 64, 128 + 1, 128 + 63, u64::MAX, u64::MAX - 63, 1 << 63] {
        let (segment, mut outbox, mut inbox) = ends();
        assert!(send(&mut outbox, &data(0), &[]).expect("room"));
        let mut counter = Counter::default();
        assert!(inbox.receive(&mut counter, &mut || ()).expect("a frame"));
        segment.side(0).tail.0.store(tail, Ordering::Release);
        assert_refused(inbox.receive(&mut counter, &mut || ()), &format!("tail {tail}"));
        assert_eq!((counter.begun, counter.ended), (1, 1));
    }
}

#[test]
fn a_consumers_index_is_not_believed() {
    let payload = vec![7; 10_000];
    // Beyond what was published, off the units, absurd.
    for head in [RING_BYTES as u64, 1, 63, u64::MAX, u64::MAX - 63, 1 << 63] {
        let (segment, mut outbox, _) = ends();
        assert!(send(&mut outbox, &data(0), &[]).expect("room"));
        segment.side(1).head.0.store(head, Ordering::Release);
        assert!(send(&mut outbox, &data(payload.len()), &payload).is_ok(), "there is room without looking");
        assert!(outbox.has_room(), "so that somebody calls `flush` and learns of it");
        assert_refused(send(&mut outbox, &data(payload.len()), &payload), &format!("head {head}"));
    }
}

#[test]
fn headers_are_checked_before_anything_is_taken() {
    let good = data(100);
    let bad = [
        Header { magic: 0, ..good },
        Header { kind: 77, ..good },
        Header { offset: 1, ..good },
        Header { payload_bytes: u32::MAX, message_bytes: u32::MAX, ..good },
        Header { payload_bytes: FRAME_BYTES_MAX + 1, ..Header::new(Kind::Abort, Default::default()) },
    ];
    for header in bad {
        let (segment, _, mut inbox) = ends();
        // SAFETY: the ring is longer than a header and nobody else uses it.
        unsafe { segment.ring(0).cast::<Header>().write_unaligned(header) };
        segment.side(0).tail.0.store(256, Ordering::Release);
        let mut counter = Counter::default();
        assert_refused(inbox.receive(&mut counter, &mut || ()), &format!("{header:?}"));
        assert_eq!(counter.begun, 0);
    }
}

#[test]
fn a_piece_of_a_header_is_refused_and_a_piece_of_a_payload_awaited() {
    let (segment, _, mut inbox) = ends();
    segment.side(0).tail.0.store(64, Ordering::Release);
    assert_refused(inbox.receive(&mut Counter::default(), &mut || ()), "half a header");

    let (segment, _, mut inbox) = ends();
    // SAFETY: as above.
    unsafe { segment.ring(0).cast::<Header>().write_unaligned(data(1000)) };
    segment.side(0).tail.0.store(192, Ordering::Release);
    let mut counter = Counter::default();
    assert!(inbox.receive(&mut counter, &mut || ()).expect("a beginning"));
    assert!(!inbox.receive(&mut counter, &mut || ()).expect("nothing new"));
    assert_eq!((counter.begun, counter.bytes, counter.ended), (1, 192 - HEADER_BYTES, 0));
}

/// Whatever a broken peer does to the indices while both ends work: errors, no panic, nothing out of bounds.
#[test]
fn noise_in_the_control_page_never_panics() {
    let seed = std::time::UNIX_EPOCH.elapsed().map_or(1, |elapsed| elapsed.as_nanos() as u64) | 1;
    println!("seed {seed}");
    let mut state = seed;
    let mut random = move || {
        // xorshift64 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let payload = vec![1; 5000];
    for _ in 0..300 {
        let (segment, mut outbox, mut inbox) = ends();
        for _ in 0..20 {
            let bytes = random() as usize % payload.len();
            let _ = send(&mut outbox, &data(bytes), &payload[..bytes]);
            let position = random() % (4 * RING_BYTES as u64) / 64 * 64;
            match random() % 4 {
                0 => segment.side(0).tail.0.store(position, Ordering::Release),
                1 => segment.side(1).head.0.store(position, Ordering::Release),
                _ => {}
            }
            let _ = inbox.receive(&mut Counter::default(), &mut || ());
        }
    }
}
