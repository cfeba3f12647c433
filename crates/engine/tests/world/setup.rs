//! How a world behaves.

use std::ops::Range;
use std::time::Duration;

use paceline_engine::{Config, LinkTraits};
use paceline_plan::Rank;

use crate::link::LinkModel;
use crate::random::Random;

/// How a world behaves. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub struct Setup {
    pub world: usize,
    pub seed: u64,
    pub link: LinkModel,
    /// What links can do; a pair of ranks gets one of these.
    pub traits: Vec<LinkTraits>,
    /// How long a piece of local work takes, and how many may be under way.
    pub work: Range<u64>,
    pub work_slots: usize,
    /// Once in so many events, a rank stalls, for so long.
    pub stall_once_in: u64,
    pub stall: Range<u64>,
    pub eager_operation_bytes: usize,
    pub eager_link_bytes: usize,
    pub frame_bytes: usize,
    pub work_bytes: usize,
    /// As in [`Config`]; 0 = never.
    pub heartbeat: u64,
    pub stall_report: u64,
}

impl Setup {
    /// Calm links: 10 µs, 1 byte per nanosecond, nothing stalls.
    pub fn calm(world: usize, seed: u64) -> Setup {
        Setup {
            world,
            seed,
            link: LinkModel {
                latency: 10_000..10_001,
                bytes_per_microsecond: 1000,
                cut: 4096..4097,
                unsent_bytes_max: 8192,
                streams: 1,
                stall_once_in: 0,
                stall: 0..1,
                ports: false,
            },
            traits: vec![LinkTraits::default()],
            work: 100..200,
            work_slots: 2,
            stall_once_in: 0,
            stall: 0..1,
            eager_operation_bytes: 1024,
            eager_link_bytes: 4096,
            frame_bytes: 2048,
            work_bytes: 2048,
            heartbeat: 0,
            stall_report: 0,
        }
    }

    /// Anything may happen that links and ranks may do.
    pub fn wild(world: usize, seed: u64) -> Setup {
        let mut random = Random::new(seed ^ 0x5e7);
        let reference = |above, any_memory, reference_at_most| LinkTraits {
            reference_above: Some(above),
            any_memory,
            reference_at_most,
        };
        let at_most = random.pick(&[None, Some(8), Some(120), Some(4000)]);
        let (some, long) = (reference(16, true, at_most), reference(200, true, None));
        let traits = [LinkTraits::default(), some, long, reference(0, false, at_most)];
        Setup {
            link: LinkModel {
                latency: 500..500 + 10u64.pow(random.within(1..6) as u32),
                bytes_per_microsecond: random.pick(&[50, 1000, 20_000]),
                cut: 1..random.pick(&[8, 200, 5000]),
                unsent_bytes_max: random.pick(&[1, 400, 5000]),
                streams: random.pick(&[1, 1, 2, 3]),
                stall_once_in: random.pick(&[0, 50, 400]),
                stall: 1000..3_000_000,
                ports: false,
            },
            traits: match random.below(3) {
                0 => vec![traits[0]],
                1 => vec![traits[1 + random.below(3)]],
                _ => traits.to_vec(),
            },
            work: 10..random.pick(&[20, 5000, 200_000]),
            work_slots: random.pick(&[1, 2, 5]),
            stall_once_in: random.pick(&[0, 100, 1000]),
            stall: 1000..5_000_000,
            eager_operation_bytes: random.pick(&[0, 64, 500, 5000]),
            eager_link_bytes: random.pick(&[0, 100, 300, 3000, 50_000]),
            frame_bytes: random.pick(&[1, 60, 700, 5000]),
            work_bytes: random.pick(&[1, 100, 5000]),
            ..Setup::calm(world, seed)
        }
    }

    /// Cuts nothing into pieces smaller than this.
    pub fn with_pieces_of_at_least(mut self, bytes: usize) -> Setup {
        self.frame_bytes = self.frame_bytes.max(bytes);
        self.work_bytes = self.work_bytes.max(bytes);
        self.link.cut.end = self.link.cut.end.max(2 * bytes as u64);
        self
    }

    /// Longer messages than this go by reference, on all links.
    pub fn with_references(mut self, above: usize, any_memory: bool) -> Setup {
        self.traits = vec![LinkTraits { reference_above: Some(above), any_memory, reference_at_most: None }];
        self
    }

    /// The limits of a rank's engine.
    pub fn config(&self, rank: Rank) -> Config {
        Config {
            eager_operation_bytes: self.eager_operation_bytes,
            eager_link_bytes: self.eager_link_bytes,
            frame_bytes: self.frame_bytes,
            work_bytes: self.work_bytes,
            heartbeat: Duration::from_nanos(self.heartbeat),
            stall: Duration::from_nanos(self.stall_report),
            ..Config::new(rank, self.world)
        }
    }
}
