//! Whatever stands in the headers of frames, the engine refuses or ignores what makes no sense, writes nowhere but where
//! its operation lies, and can give up.
#![no_main]

use std::sync::Arc;

use bytemuck::bytes_of_mut;
use libfuzzer_sys::fuzz_target;
use paceline_collective::registry::of_kind;
use paceline_collective::{Algorithm, Space, Topology};
use paceline_engine::frame::{HEADER_BYTES, Header, Kind, Signature};
use paceline_engine::{
    Config, Engine, Failure, Geometry, LinkTraits, Placement, RankSchedule, Region, Request, Time, Tuning,
};
use paceline_plan::{CollectiveKind, OperationKey};

const WORLD: usize = 3;
const ELEMENTS: usize = 300;
const TILE_ELEMENTS: usize = 100;
const EAGER_LINK_BYTES: usize = 1000;

/// In the first byte, besides the algorithm: every message waits for a grant; and messages go by reference.
const GRANTS: u8 = 64;
const REFERENCES: u8 = 128;

/// In the byte before each frame, besides from whom it comes: the operation is posted first.
const POST: u8 = 2;

fuzz_target!(|data: &[u8]| {
    let Some((&how, frames)) = data.split_first() else { return };
    let algorithms: Vec<_> = of_kind(CollectiveKind::AllReduce).filter(|it| it.supports(WORLD)).collect();
    let request = request(algorithms[usize::from(how & !(GRANTS | REFERENCES)) % algorithms.len()]);
    let scratch_bytes = request.scratch_bytes();
    let mut engine = engine(how);
    let genuine = Header { signature: request.signature, ..Header::new(Kind::Data, request.key) };
    let mut request = Some(request);
    for (turn, frame) in (0..).zip(frames.chunks(1 + HEADER_BYTES)) {
        let now = Time::from_millis(3 * turn);
        if let Some(request) = request.take_if(|_| frame[0] & POST != 0) {
            engine.post(request, now).expect("nothing is wrong with it");
        }
        engine.tick(now);
        // What differs from a frame that is due: mostly zeros.
        let mut header = genuine;
        bytes_of_mut(&mut header).iter_mut().zip(&frame[1..]).for_each(|(byte, change)| *byte ^= change);
        // A driver would end the link at the first refusal; here it goes on, to see more.
        if header.check().is_ok() {
            arrive(&mut engine, 1 + usize::from(frame[0] % 2), &header, scratch_bytes);
        }
        crank(&mut engine);
        if engine.failure().is_some() {
            break;
        }
    }
    engine.fail(Failure::Cancelled { reason: "enough".into() });
    assert_eq!(engine.pending(), 0, "an operation goes on");
});

/// Rank 0's.
fn engine(how: u8) -> Engine {
    let eager_operation_bytes = if how & GRANTS != 0 { 0 } else { 4 * ELEMENTS };
    let config = Config { eager_operation_bytes, eager_link_bytes: EAGER_LINK_BYTES, ..Config::new(0, WORLD) };
    let mut engine = Engine::new(config);
    let traits = LinkTraits { reference_above: (how & REFERENCES != 0).then_some(16), any_memory: true };
    (1..WORLD).for_each(|peer| engine.set_link(peer, traits));
    engine
}

/// An all-reduce of f32, in tiles.
fn request(algorithm: &dyn Algorithm) -> Request {
    let topology = Topology::flat(WORLD);
    let schedule = RankSchedule::new(&algorithm.rank_program(0, &topology, 0), algorithm.parts(&topology));
    Request {
        key: OperationKey { operation: 1, ..OperationKey::default() },
        signature: Signature { elements: ELEMENTS as u64, tile_elements: TILE_ELEMENTS as u32, ..Signature::default() },
        schedule: Arc::new(schedule),
        geometry: Geometry::uniform(4, ELEMENTS, TILE_ELEMENTS),
        group: (0..WORLD).collect(),
        priority: 0,
        deadline: Time::from_secs(3600),
        window: 2,
        shared_memory: true,
        input_lengths: None,
        tuning: Tuning::default(),
    }
}

/// A frame arrives from a peer. Its bytes stay within the memory of the operation, or what a link may pool.
fn arrive(engine: &mut Engine, peer: usize, header: &Header, scratch_bytes: usize) {
    let Ok(placement) = engine.begin(peer, header) else { return };
    let bytes = header.payload_bytes as usize;
    let within = |region: Region| {
        let room = if region.space == Space::Scratch { scratch_bytes } else { 4 * ELEMENTS };
        region.bytes == bytes && region.offset + bytes <= room
    };
    assert!(match placement {
        Placement::Write(into) => within(into),
        Placement::Fold { with, into, .. } => within(with) && within(into),
        Placement::Pool(_, offset) => offset + bytes <= EAGER_LINK_BYTES,
        Placement::Nowhere => true,
    });
    let _ = engine.end(peer, header);
}

/// Does what the engine wants to have done.
fn crank(engine: &mut Engine) {
    while let Some(work) = engine.work() {
        engine.worked(work.token, None);
    }
    while engine.released_buffer().is_some() {}
    for peer in 1..WORLD {
        while engine.control(peer).is_some() {}
        while let Some(frame) = engine.transmit(peer) {
            frame.ticket.into_iter().for_each(|ticket| engine.transmitted(ticket));
        }
    }
    while engine.completed().is_some() {}
}
