//! A call of a collective, what goes in, and what must come out.

use std::sync::Arc;

use paceline_collective::kernels::Elementwise;
use paceline_collective::registry::{index_of, registry};
use paceline_collective::{Algorithm, Topology, blocks};
use paceline_engine::frame::Signature;
use paceline_engine::{Blocks, Geometry, RankSchedule, Request, Time, Tuning};
use paceline_plan::{CollectiveKind, DataType, OperationKey, Protocol, Rank, Reduction};

use crate::random::Random;

/// The input of one rank, and its actual length where a kernel decides it.
pub type OwnInput = (Vec<u8>, Option<usize>);

/// One call, as all ranks make it.
#[derive(Clone)]
pub struct Call {
    pub operation: u64,
    pub kind: CollectiveKind,
    pub algorithm: u8,
    /// The prepared programs, by rank of the group.
    pub schedules: Arc<Vec<Arc<RankSchedule>>>,
    pub group: Arc<[Rank]>,
    pub root: Rank,
    pub data_type: DataType,
    pub reduction: Reduction,
    /// Elements of each block. All the same unless the algorithm takes variable counts. For an all-to-all with variable
    /// counts, rank by rank what goes to each rank.
    pub counts: Vec<usize>,
    pub tile_elements: usize,
    pub window: u32,
    pub in_place: bool,
    pub shared_memory: bool,
    pub priority: u32,
    /// Virtual nanoseconds after it was posted.
    pub timeout: u64,
    /// Of the data.
    pub seed: u64,
    /// For programs with kernels: the input of each rank, and the bytes of its blocks that count.
    pub own_input: Option<Arc<Vec<OwnInput>>>,
    /// How messages travel, of even and of odd ranks.
    pub protocols: [Protocol; 2],
}

/// What random calls are drawn from.
pub struct Variety {
    pub elements: &'static [usize],
    pub tiles_max: usize,
    pub windows: &'static [u32],
}

impl Call {
    /// A call of a random kind, in the world of `n` ranks or in a group of it (as after a split).
    pub fn random(random: &mut Random, n: usize, operation: u64, variety: &Variety) -> Call {
        let mut group: Vec<usize> = (0..n).collect();
        if random.once_in(3) {
            random.shuffle(&mut group);
            group.truncate(1 + random.below(n));
        }
        let size = group.len();
        let algorithms: Vec<_> = algorithms(size).collect();
        let algorithm = random.pick(&algorithms);
        let elements = random.pick(variety.elements);
        let call =
            Call::rooted(algorithm, size, elements, if algorithm.kind().has_root() { random.below(size) } else { 0 });
        Call {
            operation,
            tile_elements: random.pick(&[1, 17, 100, 1000]).max(elements / variety.tiles_max),
            window: random.pick(variety.windows),
            in_place: random.once_in(2),
            shared_memory: random.once_in(2),
            priority: random.below(3) as u32,
            seed: random.next(),
            ..call.of_group(&group)
        }
    }

    /// An all-reduce of i32 by an algorithm of the registry, in a world of this size.
    pub fn new(algorithm: &'static dyn Algorithm, world: usize, elements: usize) -> Call {
        Call::rooted(algorithm, world, elements, 0)
    }

    pub fn rooted(algorithm: &'static dyn Algorithm, world: usize, elements: usize, root: Rank) -> Call {
        Call::placed(algorithm, &Topology::flat(world), elements, root)
    }

    /// On ranks that share hosts so. (The world's links do not know of hosts.)
    pub fn placed(algorithm: &'static dyn Algorithm, topology: &Topology, elements: usize, root: Rank) -> Call {
        let (world, parts) = (topology.world(), algorithm.parts(topology));
        let schedule = |rank| Arc::new(RankSchedule::new(&algorithm.rank_program(rank, topology, root), parts));
        Call {
            operation: 1,
            kind: algorithm.kind(),
            algorithm: index_of(algorithm).expect("an algorithm of the registry"),
            schedules: Arc::new((0..world).map(schedule).collect()),
            group: (0..world).collect(),
            root,
            data_type: DataType::I32,
            reduction: Reduction::Sum,
            counts: vec![elements; world],
            tile_elements: elements.max(1),
            window: 2,
            in_place: false,
            shared_memory: false,
            priority: 1,
            timeout: 60_000_000_000,
            seed: 7,
            own_input: None,
            protocols: [Protocol::Auto; 2],
        }
    }

    /// The algorithm of this kind and name.
    pub fn named(kind: CollectiveKind, name: &str, world: usize, elements: usize) -> Call {
        Call::new(paceline_collective::registry::find(kind, name).expect("a known name"), world, elements)
    }

    /// The same call by some ranks of a larger world.
    pub fn of_group(self, group: &[Rank]) -> Call {
        assert_eq!(group.len(), self.world());
        Call { group: group.into(), ..self }
    }

    pub fn key(&self) -> OperationKey {
        OperationKey { operation: self.operation, ..OperationKey::default() }
    }

    pub fn world(&self) -> usize {
        self.group.len()
    }

    /// How many ranks a reduction takes in.
    pub fn contributors(&self) -> usize {
        self.kind.contributors(self.world())
    }

    pub fn uniform(&self) -> bool {
        self.counts.iter().all(|&count| count == self.counts[0])
    }

    pub fn blocks(&self, rank: Rank) -> (usize, usize) {
        let (input, output) = blocks(self.kind, rank, self.root, self.world());
        (input as usize, output as usize)
    }

    /// The elements of the blocks of a rank's input, if there are so many.
    fn input_counts(&self, rank: Rank, many: usize) -> Vec<usize> {
        let world = self.world();
        match many {
            0 => Vec::new(),
            1 => vec![self.counts[rank]],
            _ if self.counts.len() > world => self.counts[rank * world..(rank + 1) * world].to_vec(),
            _ => self.counts.clone(),
        }
    }

    fn output_counts(&self, rank: Rank, many: usize) -> Vec<usize> {
        let world = self.world();
        if many > 1 && self.counts.len() > world {
            return (0..world).map(|from| self.counts[from * world + rank]).collect();
        }
        self.input_counts(rank, many)
    }

    /// Bytes of the input and of the output.
    pub fn bytes(&self, rank: Rank) -> (usize, usize) {
        let (input, output) = self.blocks(rank);
        let size = self.data_type.size();
        let elements = |counts: Vec<usize>| counts.iter().sum::<usize>();
        (elements(self.input_counts(rank, input)) * size, elements(self.output_counts(rank, output)) * size)
    }

    pub fn output_bytes(&self, rank: Rank) -> usize {
        self.bytes(rank).1
    }

    /// In place: the bytes of the one buffer, and where input and output begin in it.
    pub fn in_place_layout(&self, rank: Rank) -> (usize, usize, usize) {
        let ((input, output), (input_bytes, output_bytes)) = (self.blocks(rank), self.bytes(rank));
        let own = self.counts[..rank].iter().sum::<usize>() * self.data_type.size();
        let bytes = input_bytes.max(output_bytes);
        match () {
            () if 0 < input && input < output => (bytes, own, 0),
            () if 0 < output && output < input => (bytes, 0, own),
            () => (bytes, 0, 0),
        }
    }

    fn side(&self, counts: &[usize]) -> Blocks {
        if self.uniform() {
            return Blocks::Uniform(self.counts[0]);
        }
        Blocks::Offsets((0..=counts.len()).map(|block| counts[..block].iter().sum()).collect())
    }

    pub fn request(&self, rank: Rank, now: Time) -> Request {
        let (input, output) = self.blocks(rank);
        let longest = self.counts.iter().copied().max().unwrap_or(0);
        let geometry = Geometry {
            element_bytes: self.data_type.size(),
            tile_elements: self.tile_elements,
            tiles: longest.div_ceil(self.tile_elements).max(1) as u32,
            input: self.side(&self.input_counts(rank, input)),
            output: self.side(&self.output_counts(rank, output)),
        };
        Request {
            key: self.key(),
            signature: self.signature(),
            schedule: self.schedules[rank].clone(),
            geometry,
            group: self.group.clone(),
            priority: self.priority,
            deadline: now + Time::from_nanos(self.timeout),
            window: self.window,
            shared_memory: self.shared_memory,
            tuning: Tuning { protocol: self.protocols[rank % 2], ..Tuning::default() },
            input_lengths: self.own_input.as_ref().and_then(|own| own[rank].1).map(|length| vec![length]),
        }
    }

    pub fn signature(&self) -> Signature {
        let (input, output) = self.blocks(self.root);
        let single = input.max(output) == 1;
        Signature {
            collective: self.kind.code(),
            data_type: self.data_type.code(),
            reduction: self.reduction.code(),
            algorithm: self.algorithm,
            root: self.root as u32,
            elements: if single { self.counts[0] } else { self.counts.iter().sum::<usize>() } as u64,
            tile_elements: self.tile_elements as u32,
            fingerprint: 0,
        }
    }

    /// What a rank puts in: small numbers, so that sums of integers are exact and sums of floats depend on the order.
    pub fn input(&self, rank: Rank) -> Vec<u8> {
        if let Some(own) = &self.own_input {
            return own[rank].0.clone();
        }
        let mut random = Random::new(self.seed ^ (rank as u64) << 32 ^ self.operation << 40);
        let mut bytes = Vec::new();
        while bytes.len() < self.bytes(rank).0 {
            let number = random.next() % 1000;
            match self.data_type {
                DataType::F32 => bytes.extend((number as f32 * 0.1 + 1e-3).to_ne_bytes()),
                DataType::F64 => bytes.extend((number as f64 * 0.1 + 1e-3).to_ne_bytes()),
                DataType::I64 => bytes.extend((number as i64 - 500).to_ne_bytes()),
                DataType::I32 => bytes.extend((number as i32 - 500).to_ne_bytes()),
                DataType::U8 => bytes.push(number as u8),
                DataType::F16 | DataType::Bf16 => bytes.extend([number as u8, 0x3c]),
            }
        }
        bytes
    }

    /// One block of a rank's input.
    fn input_block(&self, rank: Rank, block: usize) -> Vec<u8> {
        let (many, size) = (self.blocks(rank).0, self.data_type.size());
        let counts = self.input_counts(rank, many);
        let start = counts[..block].iter().sum::<usize>() * size;
        self.input(rank)[start..start + counts[block] * size].to_vec()
    }

    /// The reduction of the block of everyone who contributes, in the order of the ranks.
    fn reduced(&self, block: usize) -> Vec<u8> {
        let contributors: Vec<Rank> = (0..self.world()).filter(|&rank| self.blocks(rank).0 > 0).collect();
        let mut sum = self.input_block(contributors[0], block);
        for (index, &rank) in contributors.iter().enumerate().skip(1) {
            let divisor = if index + 1 == contributors.len() { contributors.len() as u32 } else { 1 };
            let elementwise = Elementwise { data_type: self.data_type, reduction: self.reduction, divisor };
            elementwise.combine_in_place(&mut sum, &self.input_block(rank, block));
        }
        sum
    }

    /// What a rank must get out. For floats other orders of summation are right, too.
    pub fn expected(&self, rank: Rank) -> Vec<u8> {
        let every = |take: &dyn Fn(Rank) -> Vec<u8>| (0..self.world()).flat_map(take).collect();
        if self.blocks(rank).1 == 0 {
            return Vec::new();
        }
        match self.kind {
            CollectiveKind::AllReduce | CollectiveKind::Reduce => self.reduced(0),
            CollectiveKind::PushPull | CollectiveKind::Push => self.reduced(0),
            CollectiveKind::ReduceScatter => self.reduced(rank),
            CollectiveKind::AllGather | CollectiveKind::Gather => every(&|from| self.input_block(from, 0)),
            CollectiveKind::Broadcast => self.input_block(self.root, 0),
            CollectiveKind::Scatter => self.input_block(self.root, rank),
            CollectiveKind::AllToAll => every(&|from| self.input_block(from, rank)),
            CollectiveKind::SendReceive => self.input_block(0, 0),
            CollectiveKind::Barrier => Vec::new(),
        }
    }

    /// Has this rank a result that can be compared? The sender of a point-to-point message and barriers have none.
    pub fn has_result(&self, rank: Rank) -> bool {
        let silent = self.kind == CollectiveKind::Barrier || (self.kind == CollectiveKind::SendReceive && rank == 0);
        !silent && self.blocks(rank).1 > 0
    }
}

/// The algorithms of the registry that can serve a world of this size.
pub fn algorithms(world: usize) -> impl Iterator<Item = &'static dyn Algorithm> {
    registry().iter().copied().filter(move |algorithm| algorithm.supports(world))
}
