//! One engine, fed by hand: what no world of honest ranks shows, or shows only by chance.

use std::sync::Arc;
use std::time::Duration;

use paceline_collective::registry::find;
use paceline_collective::{Combine, Fold, KernelId, Order, Place, RankBuilder, RankProgram, Space, Topology};
use paceline_plan::{CollectiveKind, OperationKey};

use crate::frame::{Header, Kind, Signature};
use crate::interface::{Config, Placement, Request, Time, Transmit};
use crate::{Blocks, Engine, Failure, Geometry, RankSchedule, Tuning};

const ENTRY: u32 = crate::peer::POOL_ENTRY_BYTES as u32;

/// Rank 0 or 1 of a world of two with this much credit.
fn engine(rank: usize, eager_link_bytes: usize) -> Engine {
    Engine::new(Config { eager_link_bytes, heartbeat: Duration::ZERO, ..Config::new(rank, 2) })
}

fn key(operation: u64) -> OperationKey {
    OperationKey { operation, ..OperationKey::default() }
}

/// A message of so many bytes from rank 0 to rank 1.
fn message(rank: usize, operation: u64, bytes: usize) -> Request {
    let algorithm = find(CollectiveKind::SendReceive, "point-to-point").expect("it is in the registry");
    request(&algorithm.rank_program(rank, &Topology::flat(2), 0), operation, bytes)
}

fn request(program: &RankProgram, operation: u64, bytes: usize) -> Request {
    Request {
        key: key(operation),
        signature: signature(bytes),
        schedule: Arc::new(RankSchedule::new(program, 1)),
        geometry: Geometry::uniform(1, bytes, bytes),
        group: [0, 1].into(),
        priority: 1,
        deadline: Time::from_secs(60),
        window: 1,
        shared_memory: false,
        input_lengths: None,
        tuning: Tuning::default(),
    }
}

fn signature(bytes: usize) -> Signature {
    Signature { elements: bytes as u64, tile_elements: bytes.max(1) as u32, ..Signature::default() }
}

/// All of a message in one frame.
fn frame(kind: Kind, operation: u64, bytes: u32, eager: bool) -> Header {
    Header {
        eager: eager.into(),
        signature: signature(bytes as usize),
        message_bytes: bytes,
        payload_bytes: bytes,
        ..Header::new(kind, key(operation))
    }
}

fn grant(operation: u64, bytes: usize) -> Header {
    Header { signature: signature(bytes), ..Header::new(Kind::Grant, key(operation)) }
}

fn credit(eager_returned: u64) -> Header {
    Header { eager_returned, ..Header::new(Kind::Credit, OperationKey::default()) }
}

fn deliver(engine: &mut Engine, peer: usize, header: &Header) -> Result<Placement, Failure> {
    assert!(header.check().is_ok());
    let placement = engine.begin(peer, header)?;
    engine.end(peer, header)?;
    Ok(placement)
}

fn work(engine: &mut Engine) {
    while let Some(work) = engine.work() {
        engine.worked(work.token, None);
    }
}

fn violates(result: Result<Placement, Failure>) -> bool {
    matches!(result, Err(Failure::Violation { rank: 0, .. }))
}

#[test]
fn an_empty_message_that_has_begun_but_not_ended_when_its_operation_starts_counts_once() {
    let mut engine = engine(1, 1000);
    let header = frame(Kind::Data, 1, 0, true);
    assert!(matches!(engine.begin(0, &header), Ok(Placement::Pool(..))));
    engine.post(message(1, 1, 0), Time::ZERO).expect("nothing has failed");
    assert!(engine.work().is_none(), "the message is not here yet");
    engine.end(0, &header).expect("the frame is right");
    work(&mut engine);
    assert_eq!(engine.completed().map(|completion| completion.outcome), Some(Ok(())));
    assert_eq!(engine.peers[0].eager_released, u64::from(ENTRY));
}

#[test]
fn a_message_that_comes_twice_is_refused_before_it_is_taken_in() {
    for (kind, bytes) in [(Kind::Reference, 10), (Kind::Data, 10), (Kind::Data, 0)] {
        let mut engine = engine(1, 1000);
        engine.post(message(1, 1, bytes as usize), Time::ZERO).expect("nothing has failed");
        let header = frame(kind, 1, bytes, true);
        assert!(engine.begin(0, &header).is_ok());
        assert!(violates(deliver(&mut engine, 0, &header)), "{kind:?} of {bytes}");
        // A part of it, too.
        let mut engine = self::engine(1, 1000);
        engine.post(message(1, 1, bytes as usize), Time::ZERO).expect("nothing has failed");
        let most = Header { payload_bytes: bytes.div_ceil(2) + 1, ..header };
        assert!(bytes == 0 || deliver(&mut engine, 0, &most).is_ok());
        assert!(bytes == 0 || violates(deliver(&mut engine, 0, &most)), "{kind:?} of {bytes}");
        // And in the pool.
        let header = frame(kind, 2, bytes, true);
        assert!(deliver(&mut engine, 0, &header).is_ok());
        assert!(violates(deliver(&mut engine, 0, &header)), "{kind:?} of {bytes}");
    }
}

#[test]
fn pieces_that_overlap_in_the_pool_are_refused_though_they_add_up() {
    for kind in [Kind::Data, Kind::Reference] {
        let piece = |offset, payload_bytes| Header { offset, payload_bytes, ..frame(kind, 1, 100, true) };
        for (first, second) in [((0, 50), (0, 50)), ((50, 50), (50, 50)), ((20, 60), (40, 40)), ((40, 60), (0, 60))] {
            let mut engine = engine(1, 1000);
            assert!(deliver(&mut engine, 0, &piece(first.0, first.1)).is_ok());
            assert!(violates(deliver(&mut engine, 0, &piece(second.0, second.1))), "{kind:?}: {first:?}, {second:?}");
        }
    }
}

#[test]
fn a_pool_buffer_that_is_in_use_again_is_not_said_to_be_free() {
    let mut engine = engine(1, 1000);
    let first = deliver(&mut engine, 0, &frame(Kind::Data, 1, 10, true)).expect("there is credit");
    engine.post(message(1, 1, 10), Time::ZERO).expect("nothing has failed");
    work(&mut engine);
    let second = deliver(&mut engine, 0, &frame(Kind::Data, 2, 10, true)).expect("there is credit");
    assert_eq!(first, second, "a free buffer is used again");
    assert_eq!(engine.released_buffer(), None);
    engine.post(message(1, 2, 10), Time::ZERO).expect("nothing has failed");
    work(&mut engine);
    assert!(matches!(second, Placement::Pool(buffer, 0) if engine.released_buffer() == Some(buffer)));
}

#[test]
fn a_header_that_claims_more_than_the_credit_is_refused_whatever_its_frame_brings() {
    let mut engine = engine(1, 1000);
    let claim = Header { message_bytes: 1 << 30, payload_bytes: 1, offset: 1 << 29, ..frame(Kind::Data, 1, 1, true) };
    assert!(violates(deliver(&mut engine, 0, &claim)));
    let mut engine = self::engine(1, 1000);
    let fits = 1000 - ENTRY;
    assert!(deliver(&mut engine, 0, &frame(Kind::Data, 2, fits, true)).is_ok());
    assert!(violates(deliver(&mut engine, 0, &frame(Kind::Data, 3, 0, true))));
}

#[test]
fn references_in_the_pool_are_paid_one_by_one() {
    let mut engine = engine(1, 3 * ENTRY as usize);
    let piece = |offset| Header { offset, payload_bytes: 1, ..frame(Kind::Reference, 1, 100, true) };
    for offset in 0..3 {
        assert_eq!(deliver(&mut engine, 0, &piece(offset)), Ok(Placement::Nowhere));
    }
    assert!(violates(deliver(&mut engine, 0, &piece(3))));
}

#[test]
fn frames_of_a_message_may_arrive_in_any_order_and_at_once() {
    let mut engine = engine(1, 1000);
    engine.post(message(1, 1, 10), Time::ZERO).expect("nothing has failed");
    let late = Header { offset: 6, payload_bytes: 4, ..frame(Kind::Data, 1, 10, true) };
    let early = Header { offset: 0, payload_bytes: 6, ..late };
    for header in [&late, &early] {
        let placed = engine.begin(0, header);
        assert!(matches!(placed, Ok(Placement::Write(into)) if into.offset == header.offset as usize));
    }
    engine.end(0, &early).expect("the frame is right");
    assert!(engine.completed().is_none());
    engine.end(0, &late).expect("the frame is right");
    assert_eq!(engine.completed().map(|completion| completion.outcome), Some(Ok(())));
    assert_eq!(engine.peers[0].eager_released, u64::from(10 + ENTRY));
}

#[test]
fn grants_for_operations_that_never_start_are_forgotten_in_the_end() {
    let mut engine = engine(1, 1000);
    for operation in 0..200_000 {
        assert!(deliver(&mut engine, 0, &grant(operation, 10)).is_ok());
    }
    assert!(engine.unposted() <= 1 << 16);
    // One that was forgotten is repeated by its receiver.
    let mut sender = self::engine(0, 0);
    sender.post(message(0, 7, 10), Time::ZERO).expect("nothing has failed");
    assert!(sender.transmit(1).is_none(), "there is no credit");
    assert!(deliver(&mut sender, 1, &Header { offset: 1, ..grant(7, 10) }).is_ok());
    assert!(sender.transmit(1).is_some());
}

#[test]
fn a_repeated_grant_for_an_unknown_operation_leaves_nothing() {
    let mut engine = engine(0, 1000);
    assert!(deliver(&mut engine, 1, &Header { offset: 1, ..grant(7, 10) }).is_ok());
    assert_eq!(engine.unposted(), 0);
}

#[test]
fn a_grant_that_crosses_its_message_leaves_nothing() {
    let mut engine = engine(0, 1000);
    engine.post(message(0, 7, 10), Time::ZERO).expect("nothing has failed");
    let Some(Transmit { ticket: Some(ticket), .. }) = engine.transmit(1) else { panic!("the message goes eagerly") };
    engine.transmitted(ticket);
    assert_eq!(engine.completed().map(|completion| completion.outcome), Some(Ok(())));
    assert!(deliver(&mut engine, 1, &grant(7, 10)).is_ok());
    assert_eq!(engine.unposted(), 0);
    // The list of operations that may have crossed does not outlive the credit.
    assert!(deliver(&mut engine, 1, &credit(u64::from(10 + ENTRY))).is_ok());
    assert!(!engine.peers[1].crossed(key(7)));
}

#[test]
fn no_credit_returns_before_a_grant_that_is_still_queued() {
    // The receiver has granted and received; its next frame is the grant, and only the last frame returns the credit.
    let mut engine = engine(1, 1000);
    engine.post(message(1, 1, 10), Time::ZERO).expect("nothing has failed");
    engine.post(message(1, 2, 10), Time::ZERO).expect("nothing has failed");
    engine.tick(Duration::from_millis(5));
    assert!(deliver(&mut engine, 0, &frame(Kind::Data, 1, 10, true)).is_ok());
    let frames: Vec<Header> = std::iter::from_fn(|| engine.control(0)).collect();
    let returned: Vec<u64> = frames.iter().map(|header| header.eager_returned).collect();
    assert_eq!(returned, [0, u64::from(10 + ENTRY)]);
}

#[test]
fn credit_returns_in_a_frame_of_its_own_when_much_has_gathered() {
    let mut engine = engine(1, 400);
    for operation in 1..=2 {
        engine.post(message(1, operation, 0), Time::ZERO).expect("nothing has failed");
    }
    assert!(deliver(&mut engine, 0, &frame(Kind::Data, 1, 0, true)).is_ok());
    assert_eq!(engine.control(0), None);
    assert!(deliver(&mut engine, 0, &frame(Kind::Data, 2, 0, true)).is_ok());
    assert_eq!(engine.control(0), Some(credit(2 * u64::from(ENTRY))));
    assert_eq!(engine.control(0), None);
}

#[test]
fn parked_messages_go_when_credit_returns_the_most_urgent_first() {
    let mut engine = engine(0, 200);
    for (operation, priority) in [(1, 1), (2, 5), (3, 2)] {
        let request = Request { priority, ..message(0, operation, 100) };
        engine.post(request, Time::ZERO).expect("nothing has failed");
    }
    let next = |engine: &mut Engine| engine.transmit(1).map(|frame| frame.header.operation);
    assert_eq!((next(&mut engine), next(&mut engine)), (Some(1), None));
    assert!(deliver(&mut engine, 1, &credit(164)).is_ok());
    assert_eq!((next(&mut engine), next(&mut engine)), (Some(3), None));
    assert!(deliver(&mut engine, 1, &credit(2 * 164)).is_ok());
    assert_eq!((next(&mut engine), next(&mut engine)), (Some(2), None));
}

#[test]
fn the_list_of_parked_messages_does_not_grow_with_the_operations() {
    let mut engine = engine(0, 200);
    // The peer never takes this one, so credit never returns.
    engine.post(message(0, 0, 100), Time::ZERO).expect("nothing has failed");
    for operation in 1..10_000 {
        engine.post(message(0, operation, 100), Time::ZERO).expect("nothing has failed");
        assert!(deliver(&mut engine, 1, &grant(operation, 100)).is_ok());
        while let Some(frame) = engine.transmit(1) {
            engine.transmitted(frame.ticket.expect("it goes as bytes"));
        }
    }
    assert!(engine.peers[1].parked.len() <= 128);
    assert_eq!(engine.pending(), 0);
}

#[test]
fn an_acknowledgement_of_what_went_as_bytes_is_refused() {
    let mut engine = engine(0, 1000);
    engine.post(message(0, 1, 100), Time::ZERO).expect("nothing has failed");
    assert!(engine.transmit(1).is_some());
    let taken = Header { kind: Kind::Taken as u8, message_bytes: 100, ..grant(1, 100) };
    assert!(matches!(deliver(&mut engine, 1, &taken), Err(Failure::Violation { rank: 1, .. })));
}

#[test]
fn the_operand_of_a_kernel_is_bounded_by_its_slot() {
    let mut engine = engine(1, 0);
    engine.post(request(&kernel_program(), 1, 100), Time::ZERO).expect("nothing has failed");
    let signature = signature(100);
    let fits = Header { signature, payload_bytes: 50, message_bytes: 100, ..frame(Kind::Data, 1, 100, false) };
    assert!(matches!(deliver(&mut engine, 0, &fits), Ok(Placement::Pool(_, 0))));
    let rest = Header { offset: 50, ..fits };
    assert!(matches!(deliver(&mut engine, 0, &rest), Ok(Placement::Pool(_, 50))));
    assert!(violates(deliver(&mut engine, 0, &rest)), "it has been taken from the pool");
    let mut engine = self::engine(1, 0);
    engine.post(request(&kernel_program(), 1, 100), Time::ZERO).expect("nothing has failed");
    let long = Header { signature, payload_bytes: 50, message_bytes: 101, ..frame(Kind::Data, 1, 100, false) };
    assert!(violates(deliver(&mut engine, 0, &long)));
}

/// Rank 1 combines a message of rank 0 by a kernel.
fn kernel_program() -> RankProgram {
    let place = Place { kind: CollectiveKind::AllReduce, rank: 1, world: 2, root: 0 };
    let mut builder = RankBuilder::new(place, 1);
    let (input, output) = (builder.tile(Space::Input, 0), builder.tile(Space::Output, 0));
    let fold = Fold { with: input, order: Order::LocalFirst, combine: Combine::Kernel(KernelId(1)), last: true };
    builder.receive_with(0, output, fold);
    builder.finish()
}

/// Rank 1 adds a message of rank 0 to its own.
fn adding_program() -> RankProgram {
    let place = Place { kind: CollectiveKind::AllReduce, rank: 1, world: 2, root: 0 };
    let mut builder = RankBuilder::new(place, 1);
    let (input, output) = (builder.tile(Space::Input, 0), builder.tile(Space::Output, 0));
    builder.receive_fold(0, input, output, true);
    builder.finish()
}

#[test]
fn what_is_added_element_by_element_comes_in_whole_elements_of_the_right_number() {
    let posted = |geometry: Geometry| {
        let mut engine = engine(1, 1000);
        engine.post(Request { geometry, ..request(&adding_program(), 1, 40) }, Time::ZERO).expect("nothing has failed");
        engine
    };
    let words = Geometry::uniform(4, 10, 10);
    let piece = |offset, payload_bytes| Header { offset, payload_bytes, ..frame(Kind::Data, 1, 40, true) };
    assert!(
        matches!(posted(words.clone()).begin(0, &piece(8, 12)), Ok(Placement::Fold { with, .. }) if with.bytes == 12)
    );
    assert!(violates(posted(words.clone()).begin(0, &piece(8, 11))));
    assert!(violates(posted(words.clone()).begin(0, &piece(7, 12))));
    let torn = Header { payload_bytes: 10, ..frame(Kind::Reference, 1, 40, true) };
    assert!(violates(posted(words).begin(0, &torn)));
    // By references that come early, too.
    let mut early = engine(1, 1000);
    for header in [torn, Header { offset: 10, payload_bytes: 30, ..torn }] {
        assert!(deliver(&mut early, 0, &header).is_ok());
    }
    let late = Request { geometry: Geometry::uniform(4, 10, 10), ..request(&adding_program(), 1, 40) };
    assert!(early.post(late, Time::ZERO).is_ok());
    assert!(matches!(early.failure(), Some(Failure::Violation { rank: 0, .. })));
    // A message that fits the result may still be longer than what it is added to.
    let blocks = |elements| Blocks::Offsets([0, elements].into());
    let uneven = Geometry { element_bytes: 1, tile_elements: 40, tiles: 1, input: blocks(30), output: blocks(40) };
    assert!(violates(posted(uneven.clone()).begin(0, &frame(Kind::Data, 1, 40, true))));
    let short = Header { message_bytes: 20, payload_bytes: 20, ..frame(Kind::Data, 1, 40, true) };
    assert!(violates(posted(uneven).begin(0, &short)), "ten elements would have no operand");
}

#[test]
fn empty_pieces_and_messages_of_finished_tiles_are_refused() {
    let tiles = Request { geometry: Geometry::uniform(1, 20, 10), ..message(1, 1, 20) };
    let first_tile = Header { payload_bytes: 10, message_bytes: 10, ..frame(Kind::Data, 1, 20, true) };
    let mut engine = engine(1, 1000);
    engine.post(tiles, Time::ZERO).expect("nothing has failed");
    assert!(violates(engine.begin(0, &Header { payload_bytes: 0, ..first_tile })));
    assert!(deliver(&mut engine, 0, &first_tile).is_ok());
    assert!(violates(deliver(&mut engine, 0, &first_tile)), "the next tile is in its place");
    let beyond = Header { tile: 2, ..first_tile };
    assert!(violates(deliver(&mut engine, 0, &beyond)), "there are two tiles");
    let second_tile = Header { tile: 1, ..first_tile };
    assert!(deliver(&mut engine, 0, &second_tile).is_ok());
    assert_eq!(engine.completed().map(|completion| completion.outcome), Some(Ok(())));
}

#[test]
fn a_program_without_steps_is_done_at_once_however_many_tiles_it_has() {
    let mut engine = engine(0, 1000);
    let nothing = RankProgram::default();
    let tiles = Request { geometry: Geometry::uniform(1, 2_000_000, 1), window: 3, ..request(&nothing, 1, 2_000_000) };
    engine.post(tiles, Time::ZERO).expect("nothing has failed");
    assert_eq!(engine.completed().map(|completion| completion.outcome), Some(Ok(())));
    assert_eq!(engine.pending(), 0);
}

#[test]
fn impossible_lengths_are_refused_when_posted() {
    let mut engine = engine(0, 1000);
    let refused = |engine: &mut Engine, request| match engine.post(request, Time::ZERO) {
        Err(Failure::Cancelled { reason }) => reason,
        other => panic!("not refused: {other:?}"),
    };
    let long = message(0, 1, 5 << 30);
    assert!(refused(&mut engine, long.clone()).contains("more than 4 GiB"));
    let many = Request { geometry: Geometry::uniform(1, 5 << 32, 1), ..long.clone() };
    assert!(refused(&mut engine, many).contains("more tiles than can be counted"));
    let varying = Request { geometry: Geometry::uniform(1, 10, 5), input_lengths: Some(vec![3]), ..message(0, 1, 10) };
    assert!(refused(&mut engine, varying).contains("more than one tile"));
    // In tiles, the same length is fine, and so is a tile size that is never reached.
    engine.post(Request { geometry: Geometry::uniform(1, 5 << 30, 1 << 20), ..long }, Time::ZERO).expect("it fits");
    let never = Request { geometry: Geometry::uniform(1, 10, usize::MAX), ..message(0, 2, 10) };
    assert_eq!(never.scratch_bytes(), 0);
    engine.post(never, Time::ZERO).expect("it fits");
}

#[test]
fn a_small_operation_needs_little_scratch_whatever_the_tile_size() {
    let algorithm = find(CollectiveKind::AllGather, "bruck").expect("it is in the registry");
    let small = Request {
        geometry: Geometry::uniform(4, 3, 1 << 20),
        ..request(&algorithm.rank_program(0, &Topology::flat(2), 0), 1, 12)
    };
    assert_eq!(small.scratch_bytes(), 2 * 12);
}

#[test]
fn after_a_failure_frames_are_let_pass_and_nothing_is_sent() {
    let mut engine = engine(1, 1000);
    engine.post(message(1, 1, 100), Time::ZERO).expect("nothing has failed");
    engine.tick(Duration::from_millis(5));
    assert!(engine.wants_to_send(0), "it nudges");
    engine.fail(Failure::Cancelled { reason: "enough".into() });
    assert!(!engine.wants_to_send(0) && !engine.has_work());
    assert_eq!(deliver(&mut engine, 0, &frame(Kind::Data, 1, 100, true)), Ok(Placement::Nowhere));
    assert_eq!(deliver(&mut engine, 0, &frame(Kind::Data, 2, 1 << 20, true)), Ok(Placement::Nowhere));
    assert!(engine.post(message(1, 3, 0), Time::ZERO).is_err());
    assert_eq!(engine.next_deadline(), None);
}

#[test]
fn whoever_was_heard_of_before_the_operation_was_posted_has_started_it() {
    let started = |mut engine: Engine, request: Request, early: &[Header]| {
        let peer = 1 - engine.config.rank;
        for header in early {
            assert!(deliver(&mut engine, peer, header).is_ok());
        }
        engine.post(request, Time::ZERO).expect("nothing has failed");
        work(&mut engine);
        engine.tick(Duration::from_secs(60));
        match engine.failure() {
            Some(Failure::Deadline { waiting, .. }) => waiting.first().map(|waiting| waiting.started),
            other => panic!("no deadline: {other:?}"),
        }
    };
    let tiles = |rank| Request { geometry: Geometry::uniform(1, 20, 10), ..message(rank, 1, 20) };
    let first_tile = Header { payload_bytes: 10, message_bytes: 10, ..frame(Kind::Data, 1, 20, true) };
    assert_eq!(started(engine(1, 1000), tiles(1), &[first_tile]), Some(true));
    assert_eq!(started(engine(1, 1000), tiles(1), &[]), Some(false));
    assert_eq!(started(engine(0, 0), tiles(0), &[grant(1, 20)]), Some(true));
    assert_eq!(started(engine(0, 0), tiles(0), &[]), Some(false));
}

#[test]
fn a_peer_that_does_not_read_is_told_only_so_much() {
    let mut engine = engine(1, 1000);
    for operation in 0..1000 {
        let request = Request { deadline: Time::from_secs(1 << 20), ..message(1, operation, 100) };
        engine.post(request, Time::ZERO).expect("nothing has failed");
    }
    for second in 1..100 {
        engine.tick(Time::from_secs(second));
        // Each receive is granted once, whatever happens.
        assert!(engine.peers[0].control.len() <= 1000 + 64, "{} frames wait", engine.peers[0].control.len());
    }
    while engine.control(0).is_some() {}
    engine.tick(Time::from_secs(1000));
    assert!(engine.control(0).is_some(), "who reads is told again");
}

#[test]
fn ticking_when_told_to_always_moves_the_next_time() {
    let mut engine = engine(1, 1000);
    assert_eq!(engine.next_deadline(), None);
    engine.post(message(1, 1, 100), Time::ZERO).expect("nothing has failed");
    let mut ticks = 0;
    while let Some(next) = engine.next_deadline() {
        assert!(next <= Time::from_secs(60));
        engine.tick(next);
        ticks += 1;
        assert!(engine.next_deadline().is_none_or(|later| later > next), "after {next:?}");
        assert!(ticks < 200);
    }
    assert!(matches!(engine.failure(), Some(Failure::Deadline { .. })));
    assert!(ticks > 5);
}
