use paceline_plan::{CollectiveKind, LinkCost, LinkCosts, Rank};

use crate::{Program, RankProgram, Topology};

/// One algorithm for one collective. Implementations live one to a file and are listed in `registry`.
///
/// Most do not ask which ranks share a host; they implement [`crate::FlatAlgorithm`] and are algorithms by that.
///
/// Everything is a pure function of its arguments, so that every rank makes its own part of the program alone and all
/// parts fit together. Counts and formulas are for one root, [`Algorithm::usual_root`]; where ranks share hosts they may
/// differ for others.
pub trait Algorithm: Send + Sync {
    /// The name in a strategy (`a2a:NAME`), on the command line and in reports.
    fn name(&self) -> &'static str;

    /// The collective that it carries out.
    fn kind(&self) -> CollectiveKind;

    /// Can it serve a world of this size? Most serve any from 1.
    fn supports(&self, world: usize) -> bool {
        world >= 1
    }

    /// Are blocks of different lengths allowed (variable counts)?
    fn variable_counts(&self) -> bool {
        true
    }

    /// Is it made for several hosts with several ranks? Elsewhere it does what another algorithm does, too, and is chosen
    /// only by name.
    fn for_hosts(&self) -> bool {
        false
    }

    /// Is it made for a network of a certain shape, such as a torus? Then it is chosen only by name, or by a tuner that has measured it
    /// where it [follows](Algorithm::follows) the network: elsewhere its neighbours are none, and what its messages do to each other
    /// there nobody has measured; and there costs, which are those of hosts with one port, do not tell what it gains by several.
    fn for_network(&self) -> bool {
        false
    }

    /// If it is made for a network of a certain shape: do these ranks stand in one, as the topology says? Its messages go along the
    /// links of that network then, and it does what no other algorithm does.
    fn follows(&self, _topology: &Topology) -> bool {
        false
    }

    /// The root that counts and formulas are for: a shard of a parameter server is the last rank of its group, which may
    /// have a host of its own; elsewhere rank 0.
    fn usual_root(&self, topology: &Topology) -> Rank {
        match self.kind() {
            CollectiveKind::PushPull | CollectiveKind::Push => topology.world().saturating_sub(1),
            _ => 0,
        }
    }

    /// Into how many parts a tile is cut. Whoever is the root, it is the same.
    fn parts(&self, topology: &Topology) -> u32;

    /// What `rank` does. `root` is 0 for collectives without one.
    fn rank_program(&self, rank: Rank, topology: &Topology, root: Rank) -> RankProgram;

    /// Messages of one tile, of all ranks together.
    fn messages(&self, topology: &Topology) -> usize;

    /// The longest chain of messages in one tile, each of which is sent only after the one before has arrived.
    fn rounds(&self, topology: &Topology) -> usize;

    /// The bytes that the busiest sender puts on the wire, for `bytes` per block.
    fn bytes_sent(&self, topology: &Topology, bytes: f64) -> f64;

    /// From how many others a rank takes in, in one tile, at most. Between hosts their streams meet.
    fn fan_in(&self, topology: &Topology) -> usize {
        topology.world().saturating_sub(1)
    }

    /// The closed formula for one tile of `bytes` per block, and for each tile that follows it in the pipeline.
    /// `docs/algorithms.md` has it with its source.
    fn tile_seconds(&self, topology: &Topology, bytes: f64, costs: &LinkCosts) -> TileSeconds;

    /// The closed formula: seconds for `bytes` per block, in tiles of `tile_bytes`, on links of this cost, of which each rank has
    /// [`WINDOW`] in work.
    fn seconds(&self, topology: &Topology, bytes: usize, tile_bytes: usize, costs: &LinkCosts) -> f64 {
        let tiles = tiles(bytes, tile_bytes);
        let tile = |bytes: usize| self.tile_seconds(topology, bytes as f64, costs);
        let last = tile(bytes - (tiles - 1) * tile_bytes.min(bytes));
        let full = if tiles == 1 { last } else { tile(tile_bytes) };
        full.of_tiles(tiles, &last) + self.contention_seconds(topology, bytes as f64, costs)
    }

    /// Of these, the seconds for which its busiest port is busy: what others in flight beside it have to wait for.
    fn busy_seconds(&self, topology: &Topology, bytes: usize, tile_bytes: usize, costs: &LinkCosts) -> f64 {
        let next = |bytes: usize| self.tile_seconds(topology, bytes as f64, costs).next;
        let full = tiles(bytes, tile_bytes) - 1;
        let rest = bytes - full * tile_bytes.min(bytes);
        let further = if full > 0 { next(tile_bytes) * full as f64 } else { 0.0 };
        let busy = further + next(rest) + self.contention_seconds(topology, bytes as f64, costs);
        busy.min(self.seconds(topology, bytes, tile_bytes, costs))
    }

    /// Seconds that are lost where the streams of several senders meet: max(w − 1, 0)·B·ε for a fan-in of w and B bytes;
    /// see [`LinkCosts::contention`] and, on one host, [`LinkCosts::contention_within`]. The tiles of a pipeline are in
    /// different rounds, so all senders of a tile send at once.
    fn contention_seconds(&self, topology: &Topology, bytes: f64, costs: &LinkCosts) -> f64 {
        let contention = match topology.hosts() {
            1 if bytes < LinkCosts::CONTENTION_WITHIN_FROM as f64 => 0.0,
            1 => costs.contention_within,
            _ => costs.contention,
        };
        self.fan_in(topology).saturating_sub(1) as f64 * self.bytes_sent(topology, bytes) * contention
    }

    /// The whole program.
    fn program(&self, topology: &Topology, root: Rank) -> Program {
        Program {
            algorithm: self.name().to_owned(),
            kind: self.kind(),
            root,
            parts: self.parts(topology),
            ranks: (0..topology.world()).map(|rank| self.rank_program(rank, topology, root)).collect(),
        }
    }
}

/// How many tiles of an operation a rank has in work at once: enough to keep both directions of a link busy while a third tile is
/// combined. The next one begins when the first of them is done, as scratch is for no more.
pub const WINDOW: usize = 4;

/// What the tiles of a pipeline take.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TileSeconds {
    /// One tile alone, from the first start to the last end.
    pub first: f64,
    /// Each further one: what the busiest port of the busiest rank spends on a tile.
    pub next: f64,
    /// How long that port is idle between two messages of the first tile: further tiles use that time first.
    pub gaps: f64,
    /// How long a rank has a tile in work, from its first message to its last, that which has it longest.
    pub held: f64,
}

impl TileSeconds {
    /// Seconds of `tiles` such tiles, of which the last one takes what `last` says. Ports bound it, or the window: then a rank begins
    /// a tile whenever one is done, and as many rounds of [`WINDOW`] of them as there are take what one is held.
    pub fn of_tiles(&self, tiles: usize, last: &TileSeconds) -> f64 {
        let TileSeconds { first, next, gaps, held } = *self;
        let batch = |tiles: usize| match tiles {
            1 => last.first,
            _ => first + ((tiles - 2) as f64 * next + last.next - gaps).max(0.0),
        };
        let rounds = (tiles - 1) / WINDOW;
        batch(tiles).max(rounds as f64 * held + batch(tiles - rounds * WINDOW))
    }

    /// The same messages, of which the busiest port carries `next` seconds, over a `link` that may be another than theirs. It idles
    /// for no longer than the first tile leaves it, less the latency of its last message.
    #[doc(hidden)]
    pub fn beside(self, next: f64, link: &LinkCost) -> TileSeconds {
        let last = next + link.latency();
        let first = self.first.max(last);
        TileSeconds { first, next, gaps: self.gaps.min(first - last), held: self.held.max(last) }
    }

    /// A pipeline in which the busiest port has no gaps.
    pub(crate) const fn pipeline(first: f64, next: f64) -> Self {
        TileSeconds::with_gaps(first, next, 0.0)
    }

    /// The same where tiles are passed on, and nothing comes back: a rank has one in work while it takes it in and hands it on.
    pub(crate) fn passed_on(first: f64, next: f64, link: &LinkCost) -> Self {
        TileSeconds { first, next, gaps: 0.0, held: first.min(link.latency() + 2.0 * next) }
    }

    /// One in which some rank has a tile in work from its start to its end.
    pub const fn with_gaps(first: f64, next: f64, gaps: f64) -> Self {
        TileSeconds { first, next, gaps, held: first }
    }

    /// Nothing moves.
    pub(crate) const NONE: TileSeconds = TileSeconds::pipeline(0.0, 0.0);
}

/// The number of tiles of a block. An empty block is one empty tile.
pub const fn tiles(bytes: usize, tile_bytes: usize) -> usize {
    if bytes == 0 { 1 } else { bytes.div_ceil(tile_bytes) }
}

/// Seconds until a message of `bytes` has arrived.
pub(crate) fn sent(link: &LinkCost, bytes: f64) -> f64 {
    link.alpha + link.beta * bytes
}

/// Seconds until a message of `bytes` has arrived and been combined.
pub(crate) fn folded(link: &LinkCost, bytes: f64) -> f64 {
    sent(link, bytes) + link.gamma * bytes
}

/// Seconds that a message of `bytes` keeps a port busy.
pub(crate) fn busy(link: &LinkCost, bytes: f64) -> f64 {
    link.overhead + link.beta * bytes
}

/// Seconds that a message of `bytes` that is combined as it arrives keeps the receiver's port busy.
pub(crate) fn busy_folding(link: &LinkCost, bytes: f64) -> f64 {
    busy(link, bytes) + link.gamma * bytes
}

/// One rank sends `bytes` to each of the others, or takes in as many from each, one message after the other.
pub(crate) fn one_to_each(world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
    if world == 1 {
        return TileSeconds::NONE;
    }
    let next = (world - 1) as f64 * busy(link, bytes);
    TileSeconds::pipeline(link.latency() + next, next)
}

/// One rank lends `bytes` to each of the others, who fetch them at once ([`LinkCosts::fetched`]).
pub(crate) fn fetched_from_one(world: usize, bytes: f64, link: &LinkCost) -> TileSeconds {
    if world == 1 {
        return TileSeconds::NONE;
    }
    let starting = (world - 1) as f64 * link.overhead;
    TileSeconds::pipeline(link.latency() + starting + link.beta * bytes, starting.max(busy(link, bytes)))
}

/// `messages` one after the other, each of which waits for the one before: one tile, and a further one.
pub(crate) fn chained(messages: f64, link: &LinkCost, rest: f64) -> TileSeconds {
    if messages < 1.0 {
        return TileSeconds::NONE;
    }
    let (first, next) = (messages * link.alpha + rest, messages * link.overhead + rest);
    TileSeconds::with_gaps(first, next, (messages - 1.0) * link.latency())
}

/// Slices of a tile that go their ways at the same time, each in so many rounds: while the messages of one are under way,
/// the port serves the others. `port`: seconds for which a tile keeps the busiest port busy.
pub(crate) fn side_by_side(slices: f64, rounds: f64, link: &LinkCost, port: f64) -> TileSeconds {
    if rounds < 1.0 {
        return TileSeconds::NONE;
    }
    let others = (slices - 1.0) / slices * port / rounds;
    let gaps = (rounds - 1.0) * (link.latency() - others).max(0.0);
    TileSeconds::with_gaps(link.latency() + port + gaps, port, gaps)
}
