//! Frames with anything in their headers: the engine refuses or ignores what makes no sense, and never panics.

use std::collections::HashMap;

use paceline_engine::frame::{Header, Kind};
use paceline_engine::{Engine, Placement, PoolBuffer, Time};

use crate::call::{Call, algorithms};
use crate::random::{Random, schedules, with_seeds};
use crate::setup::Setup;

const WORLD: usize = 3;
const VICTIM: usize = 0;

/// The engine of rank 0, and the honest ones of its peers, whose frames are sometimes changed on their way to it.
struct Fuzz {
    random: Random,
    setup: Setup,
    engines: Vec<Engine>,
    calls: Vec<Call>,
    /// Bytes that the victim's pool must hold, by buffer: from whom, and how far it was written.
    pool: HashMap<PoolBuffer, (usize, usize)>,
    /// Frames that the victim has taken.
    taken: u64,
}

impl Fuzz {
    fn new(seed: u64) -> Fuzz {
        let mut random = Random::new(seed);
        let setup = Setup { world: WORLD, ..Setup::wild(WORLD, random.next()).with_pieces_of_at_least(40) };
        let traits = random.pick(&setup.traits);
        let engine = |rank| {
            let mut engine = Engine::new(setup.config(rank));
            (0..WORLD).filter(|&peer| peer != rank).for_each(|peer| engine.set_link(peer, traits));
            engine
        };
        let engines = (0..WORLD).map(engine).collect();
        let calls = (0..6)
            .map(|operation| {
                let algorithms: Vec<_> = algorithms(WORLD).collect();
                let algorithm = random.pick(&algorithms);
                let elements = random.pick(&[0, 1, 30, 300]);
                let tile_elements = random.pick(&[7, 100]);
                Call { operation, tile_elements, shared_memory: true, ..Call::new(algorithm, WORLD, elements) }
            })
            .collect();
        Fuzz { random, setup, engines, calls, pool: HashMap::new(), taken: 0 }
    }

    /// Anything that a link would let through.
    fn forge(&mut self, mut header: Header) -> Header {
        let random = &mut self.random;
        let number = |random: &mut Random| {
            let small = random.below(5) as u32;
            random.pick(&[small, 40, 400, 1 << 20, u32::MAX - 1, u32::MAX])
        };
        for _ in 0..1 + random.below(3) {
            match random.below(14) {
                0 => header.kind = 1 + random.below(8) as u8,
                1 => header.eager = random.below(3) as u8,
                2 => header.operation = random.below(9) as u64,
                3 => header.communicator = number(random),
                4 => header.tile = number(random),
                5 => header.message = number(random),
                6 => header.message_bytes = number(random),
                7 => header.offset = number(random),
                8 => header.payload_bytes = number(random),
                9 => header.eager_returned = random.pick(&[0, 1, 64, 1000, u64::MAX]),
                10 => header.signature.elements ^= 1,
                11 => header.signature.tile_elements = number(random),
                12 => {
                    (header.offset, header.message_bytes) = (0, header.payload_bytes);
                }
                _ => {
                    let call = &self.calls[random.below(self.calls.len())];
                    (header.signature, header.operation) = (call.signature(), call.operation);
                }
            }
        }
        header
    }

    /// A frame reaches the victim. A driver would end the link at the first refusal; here it goes on, to see more. False
    /// if the engine itself has given up.
    fn deliver(&mut self, peer: usize, header: &Header) -> bool {
        if header.check().is_err() {
            return true;
        }
        let victim = &mut self.engines[VICTIM];
        let Ok(placement) = victim.begin(peer, header) else { return true };
        let bytes = header.payload_bytes as usize;
        match placement {
            Placement::Write(into) => assert_eq!(into.bytes, bytes),
            Placement::Fold { with, into, .. } => assert_eq!((with.bytes, into.bytes), (bytes, bytes)),
            Placement::Pool(buffer, offset) => {
                let written = self.pool.entry(buffer).or_insert((peer, 0));
                // A buffer may be used again before its release is told.
                *written =
                    if written.0 == peer { (peer, written.1.max(offset + bytes)) } else { (peer, offset + bytes) };
                let held: usize = self.pool.values().filter(|(from, _)| *from == peer).map(|(_, bytes)| bytes).sum();
                assert!(held <= self.setup.eager_link_bytes, "the pool holds {held} bytes of rank {peer}");
            }
            Placement::Nowhere => {}
        }
        self.taken += u64::from(victim.end(peer, header).is_ok());
        victim.failure().is_none()
    }

    /// Does what the engines want to have done, and passes their frames on; those to the victim may be forged.
    fn turn(&mut self) -> bool {
        for rank in 0..WORLD {
            while let Some(work) = self.engines[rank].work() {
                self.engines[rank].worked(work.token, None);
            }
            while let Some(buffer) = self.engines[rank].released_buffer() {
                if rank == VICTIM {
                    self.pool.remove(&buffer);
                }
            }
            while self.engines[rank].completed().is_some() {}
            for peer in (0..WORLD).filter(|&peer| peer != rank) {
                let mut frames: Vec<Header> = std::iter::from_fn(|| self.engines[rank].control(peer)).collect();
                while let Some(frame) = self.engines[rank].transmit(peer) {
                    frames.push(frame.header);
                    if let Some(ticket) = frame.ticket {
                        self.engines[rank].transmitted(ticket);
                    }
                }
                for header in frames {
                    if peer != VICTIM {
                        // What the victim was led to say may be nonsense to an honest peer.
                        if self.engines[peer].begin(rank, &header).is_ok() {
                            let _ = self.engines[peer].end(rank, &header);
                        }
                        continue;
                    }
                    if self.random.once_in(8) {
                        let forged = self.forge(header);
                        if !self.deliver(rank, &forged) {
                            return false;
                        }
                    }
                    if !self.deliver(rank, &header) {
                        return false;
                    }
                }
            }
        }
        true
    }
}

#[test]
fn forged_headers_never_make_the_engine_panic_or_the_pool_grow() {
    let taken = std::cell::Cell::new(0);
    let runs = with_seeds("forged_headers_never_make_the_engine_panic", schedules(3000, 100_000), |seed| {
        let mut fuzz = Fuzz::new(seed);
        let mut posts: Vec<(usize, usize)> =
            (0..fuzz.calls.len()).flat_map(|call| (0..WORLD).map(move |rank| (rank, call))).collect();
        fuzz.random.shuffle(&mut posts);
        for turn in 0..40u64 {
            let now = Time::from_millis(3 * turn);
            if let Some((rank, call)) = posts.pop() {
                let request = fuzz.calls[call].request(rank, now);
                let _ = fuzz.engines[rank].post(request, now);
            }
            fuzz.engines.iter_mut().for_each(|engine| engine.tick(now));
            if fuzz.random.once_in(3) {
                let kind = fuzz.random.pick(&[Kind::Data, Kind::Grant, Kind::Taken, Kind::Reference, Kind::Heartbeat]);
                let key = fuzz.calls[0].key();
                let forged = fuzz.forge(Header { signature: fuzz.calls[0].signature(), ..Header::new(kind, key) });
                if !fuzz.deliver(1, &forged) {
                    break;
                }
            }
            if !fuzz.turn() {
                break;
            }
        }
        taken.set(taken.get() + fuzz.taken);
        // Whatever has happened, giving up works, and says of every operation that it has ended.
        let pending = fuzz.engines[VICTIM].pending();
        fuzz.engines[VICTIM].fail(paceline_engine::Failure::Cancelled { reason: "enough".into() });
        let ended = std::iter::from_fn(|| fuzz.engines[VICTIM].completed()).count();
        assert!(ended >= pending && fuzz.engines[VICTIM].pending() == 0);
    });
    assert!(runs == 1 || taken.get() > 10 * runs, "of {runs} runs the engine took {} frames", taken.get());
}
