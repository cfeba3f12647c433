//! The rounds: each measures everything once, so that all constants see the same minutes of the machine.

use std::collections::BTreeMap;
use std::time::Instant;

use paceline_collective::registry::find;
use paceline_comm::{CallOptions, CommError, Communicator, Reduction};
use paceline_plan::{CollectiveKind, LinkCosts};

use super::beside::Beside;
use super::messages::{Messages, Times};
use super::ring::Ring;
use crate::bench::median;
use crate::failure::Failure;

/// Small operations that are started at once, to see what one more of them costs.
const OPERATIONS: usize = 16;
/// How often in a round.
const REPETITIONS: usize = 5;
/// From this many workers on it is worth while to see how the start of an operation grows with them.
pub const GROWING: usize = 8;
/// Up to so many it does not grow, in the model.
pub const CONSTANT: usize = 4;

/// What the rounds have found, in seconds of this machine: a dilation is still in them.
#[derive(Debug, Default)]
pub struct Found {
    /// By the name that `paceline_plan::Cluster::constants` has, a value for each round.
    pub constants: BTreeMap<&'static str, Vec<f64>>,
    /// By class of links and bytes, seconds of a message in each round.
    pub messages: BTreeMap<(&'static str, usize), Vec<f64>>,
    /// Bytes of the smallest operation and of the largest.
    pub bytes: [usize; 2],
    /// Do ranks fetch what others of their host send?
    pub fetched: bool,
}

/// A class of links that this world has, the same on all ranks.
struct Class {
    name: &'static str,
    messages: Messages,
    /// As soon as it is known how long messages take.
    ring: Option<Ring>,
}

/// All that a round needs, on one rank.
pub struct Rounds<'a> {
    communicator: &'a Communicator,
    classes: Vec<Class>,
    /// The first ranks, of a larger world; None on the others.
    few: Option<Communicator>,
    beside: Beside,
    found: Found,
}

impl<'a> Rounds<'a> {
    /// Prepares, on all ranks at the same time.
    ///
    /// # Errors
    /// Those of the communication.
    pub fn new(communicator: &'a Communicator) -> Result<Rounds<'a>, Failure> {
        let (topology, rank) = (communicator.topology().clone(), communicator.rank());
        let mut classes = Vec::new();
        let nobody = || Failure::failed("a rank has no group although it asked for one: this is a bug in Paceline");
        // Every rank is in a group, if need be in one of its own.
        let mut class = |name, color: usize, exists: bool| -> Result<(), Failure> {
            let group = communicator.split(Some(color as u32), 0)?.ok_or_else(nobody)?;
            if exists {
                classes.push(Class { name, messages: Messages::new(group)?, ring: None });
            }
            Ok(())
        };
        class("within", topology.host(rank), topology.ranks_per_host_max() > 1)?;
        let first = topology.index_on_host(rank) == 0;
        class("across", if first { 0 } else { rank + 1 }, topology.hosts() > 1)?;
        let few = communicator.split((rank < CONSTANT).then_some(0), 0)?;
        let few = few.filter(|_| communicator.world_size() >= GROWING);
        let beside = Beside::new(communicator)?;
        let found = Found { bytes: [size_of::<f32>(), beside.bytes()], ..Found::default() };
        let mut rounds = Rounds { communicator, classes, few, beside, found };
        rounds.calibrate()?;
        Ok(rounds)
    }

    /// Measures a round, on all ranks at the same time.
    ///
    /// # Errors
    /// Those of the communication.
    pub fn measure(&mut self, round: usize) -> Result<(), Failure> {
        self.messages(round)?;
        let costs = self.links()?;
        self.starts(&costs)?;
        self.interference(&costs)
    }

    /// What was found, on every rank the same.
    pub fn finish(self) -> Found {
        self.found
    }

    /// The times of messages decide how many there are in a round.
    fn calibrate(&mut self) -> Result<(), Failure> {
        for index in 0..self.classes.len() {
            let times = self.times(index, 0)?;
            let Class { messages, ring, .. } = &mut self.classes[index];
            messages.choose(&times.message_s);
            let longest = messages.sizes().zip(times.message_s).last();
            let (bytes, seconds) = longest.unwrap_or_default();
            *ring = Some(Ring::new(messages.group(), bytes, seconds)?);
        }
        Ok(())
    }

    /// Single messages, and what both directions at once lose between hosts.
    fn messages(&mut self, round: usize) -> Result<(), Failure> {
        for index in 0..self.classes.len() {
            let times = self.times(index, round)?;
            let Class { name, messages, .. } = &self.classes[index];
            let name = *name;
            for (bytes, &seconds) in messages.sizes().zip(&times.message_s) {
                self.found.messages.entry((name, bytes)).or_default().push(seconds);
            }
            if name == "across" {
                let one_way = times.message_s.last().copied().unwrap_or_default();
                let loss = if one_way > 0.0 { times.both_ways_s / one_way - 1.0 } else { 0.0 };
                self.note("server.duplex_loss", loss.clamp(0.0, 1.0));
            }
        }
        Ok(())
    }

    /// What the communicator finds by itself, with betas of longer messages. Links of a kind that the world has not count as
    /// the others.
    fn links(&mut self) -> Result<LinkCosts, Failure> {
        let mut costs = self.communicator.probe()?;
        self.found.fetched = costs.fetched;
        let mut betas = [0.0; 2];
        for Class { name, ring, .. } in &mut self.classes {
            let (link, beta) =
                if *name == "within" { (&costs.within, &mut betas[0]) } else { (&costs.across, &mut betas[1]) };
            self.communicator.barrier(&CallOptions::default())?;
            *beta = ring.as_mut().map_or(Ok(0.0), |ring| ring.beta(link))?;
        }
        let [within, across] = self.agree(betas)?;
        costs.within.beta = if within > 0.0 { within } else { across };
        costs.across.beta = if across > 0.0 { across } else { within };
        for index in 0..self.classes.len() {
            let (names, link) = match self.classes[index].name {
                "within" => (["within.alpha_s", "within.overhead_s", "within.beta_s_per_byte"], costs.within),
                _ => (["across.alpha_s", "across.overhead_s", "across.beta_s_per_byte"], costs.across),
            };
            let values = [link.alpha, link.overhead, link.beta];
            names.into_iter().zip(values).for_each(|(name, value)| self.note(name, value));
        }
        self.note("combine_s_per_byte", costs.within.gamma);
        self.note("server.combine_s_per_byte", costs.within.gamma);
        if self.communicator.topology().hosts() > 1 {
            self.note("across.incast_s_per_byte", costs.contention);
        }
        if self.communicator.topology().ranks_per_host_max() > 1 {
            self.note("within.incast_s_per_byte", costs.contention_within);
        }
        Ok(costs)
    }

    /// The times of a class, of the slowest pair.
    fn times(&mut self, index: usize, round: usize) -> Result<Times, Failure> {
        self.communicator.barrier(&CallOptions::default())?;
        let mut times = self.classes[index].messages.measure(round)?;
        let mut all = times.message_s.clone();
        all.push(times.both_ways_s);
        self.slowest(&mut all)?;
        let sizes = times.message_s.len();
        times.message_s.copy_from_slice(&all[..sizes]);
        times.both_ways_s = all[sizes];
        Ok(times)
    }

    /// What operations cost besides what formulas count.
    fn starts(&mut self, costs: &LinkCosts) -> Result<(), Failure> {
        let world = self.communicator;
        let start_s =
            |of: &Communicator, kind| at_once_s(of, kind).map(|took| not_counted_s(took, busy_s(of, kind, costs)));
        let all = start_s(world, CollectiveKind::AllReduce)?;
        let served = start_s(world, CollectiveKind::PushPull)?;
        world.barrier(&CallOptions::default())?;
        let of_few = self.few.as_ref().map(|few| start_s(few, CollectiveKind::AllReduce)).transpose()?;
        let [all, served, of_few] = self.agree([all, served, of_few.unwrap_or_default()])?;
        // Between hosts a partition occupies an interface; on one host the links within it.
        let on_one = world.topology().hosts() == 1;
        self.note(if on_one { "server.local_partition_s" } else { "server.partition_s" }, served);
        let [start_s, per_doubling_s] = growing(world.world_size(), all, of_few);
        self.note("operation.start_s", start_s);
        self.note("operation.start_per_doubling_s", per_doubling_s);
        Ok(())
    }

    fn interference(&mut self, costs: &LinkCosts) -> Result<(), Failure> {
        let mut together = self.beside.measure()?;
        let (world, workers) = (self.communicator, self.communicator.world_size());
        let mut slices = vec![0.0; workers];
        world.all_gather(&[together.slice_s], &mut slices, &CallOptions::default())?;
        let agreed = self.agree([together.slice_ratio, together.call_s, together.call_beside_s])?;
        [together.slice_ratio, together.call_s, together.call_beside_s] = agreed;
        let moved = 2.0 * (workers as f64 - 1.0) / workers as f64 * self.beside.bytes() as f64;
        let busy_s = all_reduce_s(world, self.beside.bytes(), costs);
        self.note("interference.computation", together.kappa(moved * costs.within.beta, busy_s));
        self.note("interference.communication", together.slowdown());
        self.note("computation.spread", relative_deviation(&slices));
        Ok(())
    }

    /// The largest of any rank, of each.
    fn agree<const N: usize>(&self, mut values: [f64; N]) -> Result<[f64; N], CommError> {
        self.slowest(&mut values)?;
        Ok(values)
    }

    fn slowest(&self, values: &mut [f64]) -> Result<(), CommError> {
        self.communicator.all_reduce(values, Reduction::Max, &CallOptions::default())
    }

    fn note(&mut self, name: &'static str, value: f64) {
        self.found.constants.entry(name).or_default().push(value);
    }
}

/// Seconds in front of an operation: what one more takes where many are started at once, of one and [`OPERATIONS`], less what
/// formulas say it keeps others from.
fn not_counted_s([one, many]: [f64; 2], busy_s: f64) -> f64 {
    ((many - one) / (OPERATIONS - 1) as f64 - busy_s).max(0.0)
}

/// The same with up to [`CONSTANT`] workers, and how much more with each doubling, given what it is among all and among few.
fn growing(workers: usize, all: f64, of_few: f64) -> [f64; 2] {
    if workers < GROWING {
        return [all, 0.0];
    }
    let doublings = (workers as f64 / CONSTANT as f64).log2();
    [of_few, ((all - of_few) / doublings).max(0.0)]
}

/// Seconds of a small operation by itself, and of [`OPERATIONS`] that are started at once.
fn at_once_s(communicator: &Communicator, kind: CollectiveKind) -> Result<[f64; 2], Failure> {
    let options = CallOptions::default();
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..REPETITIONS {
        for (seconds, operations) in seconds.iter_mut().zip([1, OPERATIONS]) {
            let buffers = (0..operations).map(|_| communicator.alloc::<f32>(1)).collect::<Result<Vec<_>, _>>()?;
            communicator.barrier(&options)?;
            let start = Instant::now();
            let started = buffers.into_iter().map(|buffer| match kind {
                CollectiveKind::PushPull => {
                    communicator.start_push_pull(buffer, communicator.world_size() - 1, Reduction::Sum, &options)
                }
                _ => communicator.start_all_reduce(buffer, Reduction::Sum, &options),
            });
            for pending in started.collect::<Result<Vec<_>, _>>()? {
                pending.wait()?;
            }
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    Ok(seconds.map(|seconds| median(&seconds).unwrap_or_default()))
}

/// Seconds for which formulas say that one such operation keeps others from starting.
fn busy_s(communicator: &Communicator, kind: CollectiveKind, costs: &LinkCosts) -> f64 {
    let bytes = size_of::<f32>();
    let chosen = communicator.choice(kind, bytes, &CallOptions::default()).ok();
    let algorithm = chosen.and_then(|(name, _)| find(kind, name).ok());
    algorithm.map_or(0.0, |algorithm| algorithm.tile_seconds(communicator.topology(), bytes as f64, costs).next)
}

/// Seconds that formulas say an all-reduce takes.
fn all_reduce_s(communicator: &Communicator, bytes: usize, costs: &LinkCosts) -> f64 {
    let kind = CollectiveKind::AllReduce;
    let chosen = communicator.choice(kind, bytes, &CallOptions::default()).ok();
    let algorithm = chosen.and_then(|(name, tile_bytes)| Some((find(kind, name).ok()?, tile_bytes)));
    algorithm.map_or(0.0, |(algorithm, tile)| algorithm.seconds(communicator.topology(), bytes, tile, costs))
}

/// The standard deviation over the mean; 0 of fewer than two.
fn relative_deviation(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    if values.len() < 2 || mean <= 0.0 {
        return 0.0;
    }
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    variance.sqrt() / mean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deviation_is_a_share_of_the_mean() {
        assert!((relative_deviation(&[9.0, 9.0, 10.0, 11.0, 11.0]) - 0.1).abs() < 1e-12);
        assert_eq!((relative_deviation(&[3.0]), relative_deviation(&[0.0; 3])), (0.0, 0.0));
    }

    /// Operations that each take 30 us to start, and 20 us by formulas that they share.
    #[test]
    fn a_known_start_is_found() {
        let many = 120e-6 + (OPERATIONS - 1) as f64 * 50e-6;
        assert!((not_counted_s([120e-6, many], 20e-6) - 30e-6).abs() < 1e-12);
        // Nothing, where formulas count all of it, or what was measured is noise.
        assert_eq!((not_counted_s([120e-6, many], 60e-6), not_counted_s([120e-6, 100e-6], 0.0)), (0.0, 0.0));
    }

    #[test]
    fn a_start_grows_with_doublings_of_many_workers() {
        assert_eq!(growing(GROWING - 1, 30e-6, 0.0), [30e-6, 0.0]);
        let near = |found: [f64; 2], expected: [f64; 2]| {
            assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-12), "{found:?}");
        };
        // From four workers to sixteen are two doublings.
        near(growing(8, 42e-6, 30e-6), [30e-6, 12e-6]);
        near(growing(16, 54e-6, 30e-6), [30e-6, 12e-6]);
        near(growing(16, 20e-6, 30e-6), [30e-6, 0.0]);
    }

    #[test]
    fn all_ranks_find_the_same_constants() {
        let world = Communicator::threads(3).expect("threads connect");
        let found: Vec<Found> = std::thread::scope(|scope| {
            let measure = |communicator: Communicator| {
                let mut rounds = Rounds::new(&communicator).expect("all ranks call");
                (0..2).for_each(|round| rounds.measure(round).expect("all ranks call"));
                rounds.finish()
            };
            let ranks: Vec<_> =
                world.into_iter().map(|communicator| scope.spawn(move || measure(communicator))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        });
        for other in &found {
            assert_eq!((&other.constants, &other.messages), (&found[0].constants, &found[0].messages));
        }
        let constants = &found[0].constants;
        for name in ["within.alpha_s", "within.beta_s_per_byte", "combine_s_per_byte"] {
            assert!(constants[name].len() == 2 && constants[name].iter().all(|&value| value > 0.0), "{constants:?}");
        }
        assert!(!constants.contains_key("across.alpha_s"), "all are on one host");
        let on_servers = ["server.local_partition_s", "server.partition_s"].map(|name| constants.contains_key(name));
        assert_eq!(on_servers, [true, false], "what servers cost beside their workers");
        let known = paceline_plan::Cluster::of_network(paceline_plan::NetworkModel::TEN_GBE, 1, 1);
        let known: Vec<String> = known.constants().into_iter().map(|(name, _)| name).collect();
        assert!(constants.keys().all(|name| known.iter().any(|known| known == name)), "{constants:?}");
    }
}
