use paceline_collective::select::{self, LARGE_BLOCK_BYTES_MIN, tile_sizes};
use paceline_collective::{Action, Algorithm, Topology, short_tiles, tiles};
use paceline_engine::shard::Mode;
use paceline_plan::{Cluster, LinkCosts, OperationConstants, Plan};
use paceline_schedule::ELEMENT_BYTES;

use super::closed_forms::{self, ClosedForm};
use super::on_topology::{self, RANKS_MAX, Simulated, TILE_MESSAGES_MAX, There};
use super::shared_ports::{Compared, SharedPorts, is_estimate};
use super::{Traffic, World, all_reduce_factor, all_to_all_costs};
use crate::PredictError;
use crate::iteration::{Line, Operations};
use crate::prediction::Bottleneck;
use crate::topology::Shape;

/// What all-reduces cost, by their bytes.
pub(crate) struct AllToAll {
    pub(super) world: World,
    /// Seconds in front of each, on the channel.
    pub(super) start_s: f64,
    /// What one costs that overtakes others.
    operation: OperationConstants,
    /// Does none start, and so overtake, before the one in front of it has arrived?
    pub(super) one_by_one: bool,
    jitter_s: f64,
    /// Seconds per byte on the bus of a host.
    within_beta: f64,
    forms: Vec<ClosedForm>,
    /// The same as the runtime counts them when it chooses; None: alike.
    counted: Option<Vec<ClosedForm>>,
    /// By what it chooses.
    choosing: LinkCosts,
    /// What it counts for large blocks, by which it chooses an algorithm; None: alike.
    of_large_blocks: Option<Vec<ClosedForm>>,
    /// The sizes of tiles that it tries.
    tiles: Vec<usize>,
    /// The costs by which it says how much fewer rounds are worth on one host.
    costs: LinkCosts,
    /// Sizes rise as [`place`] says.
    entries: Vec<Entry>,
}

/// An operation of one size.
#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: f64,
    /// The share that a byte is of those to the next size. They are a power of two, so it is exact, and multiplying by it
    /// takes a third of dividing.
    per_step: f64,
    /// Seconds from its start to its end, and those for which the next one waits; without the start-up.
    alone_s: f64,
    busy_s: f64,
    /// Which algorithm, in tiles of so many bytes.
    form: usize,
    tile_bytes: usize,
    /// Why that may be wrong.
    doubt: Option<Doubt>,
}

impl Entry {
    /// It takes so long alone, and keeps ports from others for so long: no longer than that, and neither for less than what its
    /// bytes take on the busiest port.
    fn set_seconds(&mut self, alone_s: f64, busy_s: f64, carried_s: f64) {
        self.alone_s = alone_s.max(carried_s);
        self.busy_s = busy_s.clamp(carried_s, self.alone_s);
    }
}

/// Why what an operation takes may be wrong: its program is too long to be simulated, or is not; or it is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// So what its switches do to it is not known.
    Topology,
    /// So how its messages share ports is not.
    SharedPorts,
    /// Nor how those of workers do that share a host without asking who does.
    SharedHosts,
    /// The runtime runs the program of another torus or BCube than the cluster's, unless it is told of that.
    OtherProgram,
}

/// Formulas that say the same may differ by rounding. As in [`paceline_collective::select`], which decides in the runtime.
const TIE: f64 = 1e-9;

/// Sizes below this are one step.
const SMALLEST: u64 = 1 << 10;
/// Steps from a size to its double.
const STEPS: u64 = 4;
/// On a topology one of so many sizes is simulated of programs that are too long for all sizes.
const SIMULATED: usize = 16;

impl AllToAll {
    /// Of operations up to `bytes` with this algorithm (`auto`: whatever the runtime would choose), `start_s` in front of
    /// each. The cost grows with the algorithms and the logarithm of the bytes. Under one switch by formulas; on another topology by
    /// programs, [with shared ports](AllToAll::with_shared_ports) already.
    ///
    /// # Errors
    /// There is no such algorithm for so many workers, or a program that cannot be simulated.
    pub fn of(
        cluster: &Cluster,
        world: World,
        algorithm: &str,
        bytes: u64,
        start_s: f64,
    ) -> Result<AllToAll, PredictError> {
        let (costs, mut counted) = (all_to_all_costs(cluster, world.hosts), cluster.counted_costs_among(world.hosts));
        let within_beta = cluster.link_costs_among(world.hosts).within.beta;
        if cluster.agreed.is_none() {
            counted.within.beta = costs.within.beta;
        }
        // What is made for several hosts with several ranks is nobody's choice elsewhere, and what is made for a network only
        // that of those who name it.
        let flat = world.hosts == 1 || world.per_host == 1;
        let admits = |known: &dyn Algorithm| match algorithm {
            "auto" => !(known.for_network() || flat && known.for_hosts()),
            name => known.name() == name,
        };
        let mut forms = ClosedForm::all(&world, &costs, admits);
        if forms.is_empty() {
            let (algorithm, workers) = (algorithm.to_owned(), world.workers);
            return Err(PredictError::Algorithm { algorithm, workers });
        }
        let past_ports = closed_forms::go_past_ports(&mut forms, &world, &costs);
        let mut found = AllToAll {
            world,
            start_s,
            operation: cluster.operation,
            one_by_one: false,
            jitter_s: cluster.jitter_s(world.hosts),
            within_beta,
            forms,
            counted: (past_ports || counted != costs).then(|| ClosedForm::all(&world, &counted, admits)),
            of_large_blocks: select::large_block_costs(&counted).map(|costs| ClosedForm::all(&world, &costs, admits)),
            tiles: tile_sizes(world.hosts, &counted).collect(),
            choosing: counted,
            costs,
            entries: Vec::new(),
        };
        found.entries = (0..=place(bytes) + 1).map(|place| found.entry(size(place))).collect();
        if world.shape != Shape::Flat && world.hosts > 1 {
            // What a formula leaves out under one switch it leaves out on a topology, too.
            found = found.with_shared_ports();
            found.leave_flat(cluster)?;
        }
        Ok(found)
    }

    /// The same, but no operation starts before the one in front of it has arrived. Otherwise several are in flight, and the
    /// next one waits only for as long as the ports are busy.
    pub fn one_by_one(mut self) -> AllToAll {
        self.one_by_one = true;
        self
    }

    /// The same, but where ranks send several messages at once, the program decides how long they take under one switch, if it is
    /// short; and nothing is busy for less than what its bytes take on the busiest port.
    pub fn with_shared_ports(mut self) -> AllToAll {
        let shares = self.world.hosts > 1 && self.world.per_host > 1;
        for entry in self.entries.iter_mut().filter(|_| shares) {
            entry.doubt = is_estimate(&self.forms[entry.form]).then_some(Doubt::SharedHosts);
        }
        let Some(mut ports) = SharedPorts::of(self.world, &self.costs) else { return self };
        for entry in &mut self.entries {
            let (form, bytes) = (&self.forms[entry.form], entry.bytes as usize);
            let (mut alone_s, mut busy_s) = (entry.alone_s, entry.busy_s);
            if ports.concern(form, bytes, entry.tile_bytes, alone_s) {
                let found = ports.seconds(form, bytes, entry.tile_bytes).zip(ports.stretch(form));
                let Some((seconds, stretch)) = found else {
                    entry.doubt = entry.doubt.or_else(|| ports.doubts(form).then_some(Doubt::SharedPorts));
                    continue;
                };
                entry.doubt = None;
                let lost_s = form.lost_s(bytes);
                (alone_s, busy_s) = (seconds + lost_s, (busy_s - lost_s) * stretch + lost_s);
            } else {
                // The formula counts what its ports carry.
                continue;
            }
            let carried_s = ports.carried_s_per_byte(form).map_or(0.0, |seconds| seconds * entry.bytes);
            entry.set_seconds(alone_s, busy_s, carried_s);
        }
        self
    }

    /// What an operation costs that is done as the runtime would choose.
    fn entry(&self, bytes: u64) -> Entry {
        let Some(counted) = &self.counted else { return self.cheapest(&self.forms, bytes) };
        let chosen = self.cheapest(counted, bytes);
        let (alone_s, busy_s) = self.forms[chosen.form].seconds(bytes as usize, chosen.tile_bytes);
        Entry { alone_s, busy_s, ..chosen }
    }

    /// The cheapest way, by the closed formulas.
    fn cheapest(&self, forms: &[ClosedForm], bytes: u64) -> Entry {
        let mut cheapest = Vec::with_capacity(forms.len());
        let per_step = 1.0 / (size(place(bytes) + 1) - bytes) as f64;
        for (form, closed) in forms.iter().enumerate() {
            let mut best: Option<Entry> = None;
            for &tile_bytes in &self.tiles {
                let (alone_s, busy_s) = closed.seconds(bytes as usize, tile_bytes);
                if best.is_none_or(|best| alone_s < best.alone_s * (1.0 - TIE)) {
                    let bytes = bytes as f64;
                    best = Some(Entry { bytes, per_step, alone_s, busy_s, form, tile_bytes, doubt: None });
                }
                // One tile is one tile.
                if tile_bytes as u64 >= bytes {
                    break;
                }
            }
            cheapest.extend(best);
        }
        let is_large = self.world.hosts == 1 && bytes >= LARGE_BLOCK_BYTES_MIN as u64;
        let judged = |entry: &Entry| match self.of_large_blocks.as_ref().filter(|_| is_large) {
            Some(forms) => forms[entry.form].seconds(bytes as usize, entry.tile_bytes).0,
            None => entry.alone_s,
        };
        let less = |best: Entry, other: &Entry| if judged(other) < judged(&best) * (1.0 - TIE) { *other } else { best };
        let best = cheapest[1..].iter().fold(cheapest[0], less);
        if self.world.hosts > 1 {
            if self.world.per_host == 1 {
                return self.in_short_tiles(best, &forms[best.form], best.alone_s);
            }
            let close = cheapest.iter().filter(|entry| entry.alone_s <= best.alone_s * (1.0 + select::CLOSE_ACROSS));
            let less =
                |best: Entry, other: &Entry| if other.busy_s < best.busy_s * (1.0 - TIE) { *other } else { best };
            let chosen = close.fold(best, less);
            return self.in_short_tiles(chosen, &forms[chosen.form], best.alone_s);
        }
        let rounds = |entry: &Entry| forms[entry.form].rounds;
        let most = judged(&best) * (1.0 + select::tolerated_share(&self.choosing, bytes as usize));
        cheapest.iter().filter(|entry| judged(entry) <= most).fold(best, |best, other| {
            let better = (rounds(other), judged(other)) < (rounds(&best), judged(&best) * (1.0 - TIE));
            if better { *other } else { best }
        })
    }

    /// What was chosen between hosts, as short as the runtime cuts it.
    fn in_short_tiles(&self, chosen: Entry, form: &ClosedForm, least_s: f64) -> Entry {
        let (bytes, sizes) = (chosen.bytes as usize, self.tiles.iter().copied());
        let seconds = |bytes, tile_bytes| form.seconds(bytes, tile_bytes).0;
        let tile_bytes =
            short_tiles::shortest(form.algorithm, chosen.tile_bytes, form.parts, bytes, sizes, least_s, seconds);
        let (alone_s, busy_s) = form.seconds(bytes, tile_bytes);
        Entry { alone_s, busy_s, tile_bytes, ..chosen }
    }

    /// Where links between switches may be in the way: the program decides, and not the formula. All programs or none, as what is
    /// simulated takes longer than what is not. What is as fast there as under one switch stays as it is known under that.
    fn leave_flat(&mut self, cluster: &Cluster) -> Result<(), PredictError> {
        let all_fit = self.entries.iter().all(|entry| on_topology::admits(self.forms[entry.form].messages));
        let simulated = Simulated::new(&self.world, &self.costs, cluster).filter(|_| all_fit);
        let mut compared = Compared::of(self.world, &self.costs, cluster.across.hop_s.value);
        // The largest first: there the links count most.
        let mut known: Option<(usize, There)> = None;
        for (index, entry) in self.entries.iter_mut().enumerate().rev() {
            let (form, bytes) = (&self.forms[entry.form], entry.bytes as usize);
            let Some(simulated) = &simulated else {
                entry.doubt = Some(Doubt::Topology);
                continue;
            };
            let of_this_size = compared.as_mut().and_then(|both| both.there(form, bytes, entry.tile_bytes));
            // One of many: what links cost changes slowly with the size.
            let due = index % SIMULATED == 0 && !on_topology::once(form.messages);
            let there = match (of_this_size, known) {
                (Some(there), _) => there,
                (None, Some((same, there))) if same == entry.form && !due => there,
                (None, _) => simulated.there(form.algorithm, bytes, entry.tile_bytes)?,
            };
            known = Some((entry.form, there));
            let carried_s = entry.bytes * there.carried_s_per_byte;
            entry.set_seconds(entry.alone_s * there.alone, entry.busy_s * there.busy, carried_s);
        }
        Ok(())
    }

    /// Why operations of a plan may take something else, in words.
    pub fn doubts(&self, plan: &Plan) -> Vec<String> {
        self.doubted(plan).into_iter().map(|(form, doubt)| self.in_words(&self.forms[form], doubt)).collect()
    }

    /// How many of these are about algorithms that do not ask who shares a host.
    pub fn estimates(&self, plan: &Plan) -> usize {
        self.doubted(plan).iter().filter(|(_, doubt)| *doubt == Doubt::SharedHosts).count()
    }

    /// Which algorithms that operations of a plan go by are in doubt, and why; each once.
    fn doubted(&self, plan: &Plan) -> Vec<(usize, Doubt)> {
        let mut found = Vec::new();
        let others: Vec<bool> = self.forms.iter().map(|form| self.runs_otherwise(form.algorithm)).collect();
        for (_, partition) in plan.partitions() {
            // What it takes lies between two sizes.
            let place = place(partition.elements.len() as u64 * ELEMENT_BYTES).min(self.entries.len() - 2);
            for entry in &self.entries[place..place + 2] {
                let other = others[entry.form].then_some(Doubt::OtherProgram);
                for doubt in entry.doubt.into_iter().chain(other).map(|doubt| (entry.form, doubt)) {
                    if !found.contains(&doubt) {
                        found.push(doubt);
                    }
                }
            }
        }
        found
    }

    /// Does the runtime run another program of this name, unless it is told how the hosts are wired? By itself it takes a torus or a
    /// BCube that suits the number of workers. Where these share hosts, no program follows the cluster's either, so both are the same.
    fn runs_otherwise(&self, algorithm: &dyn Algorithm) -> bool {
        let wired = matches!(self.world.shape, Shape::Torus { .. } | Shape::BCube { .. });
        if !algorithm.for_network() || !wired || self.world.per_host > 1 {
            return false;
        }
        receivers(algorithm, &self.world.topology()) != receivers(algorithm, &self.world.on(Shape::Flat).topology())
    }

    fn in_words(&self, form: &ClosedForm, doubt: Doubt) -> String {
        let World { workers, shape, .. } = self.world;
        let (name, messages) = (form.algorithm.name(), form.messages);
        match doubt {
            Doubt::Topology => format!(
                "the topology {shape} is taken for flat by {name}: programs of up to {TILE_MESSAGES_MAX} messages a tile and \
                 {RANKS_MAX} workers are simulated, if all that there are to choose from are; this one has {messages}"
            ),
            Doubt::SharedPorts => format!(
                "{name} of {workers} workers takes what its formula says, in which ranks send one message after the \
                 other: its program is too long to be simulated"
            ),
            Doubt::SharedHosts => format!(
                "{name} does not ask who shares a host: where workers do, as here, its formula is an estimate that is held to no \
                 program"
            ),
            Doubt::OtherProgram => format!(
                "{name} follows {shape} here, and the runtime takes another shape for {workers} workers unless it is started \
                 with --topology {shape} (PACELINE_TOPOLOGY)"
            ),
        }
    }

    /// From the start to the end, and on the channel; between the two sizes that are known.
    fn between(&self, bytes: u64) -> (f64, f64) {
        let place = place(bytes).min(self.entries.len() - 2);
        let (low, high) = (&self.entries[place], &self.entries[place + 1]);
        let share = (bytes as f64 - low.bytes) * low.per_step;
        let between = |low: f64, high: f64| low + share * (high - low);
        (between(low.alone_s, high.alone_s), between(self.on_channel_s(low), self.on_channel_s(high)))
    }

    /// Seconds for which the next one waits, without the start-up.
    fn on_channel_s(&self, entry: &Entry) -> f64 {
        if self.one_by_one { entry.alone_s } else { entry.busy_s }
    }

    /// The sizes of which it is known: bytes, bytes of a tile, seconds from start to end.
    #[cfg(test)]
    pub fn known(&self) -> impl Iterator<Item = (usize, usize, f64)> {
        self.entries.iter().map(|entry| (entry.bytes as usize, entry.tile_bytes, entry.alone_s))
    }

    /// Seconds of an operation that has the network for itself.
    pub fn alone_s(&self, bytes: u64) -> f64 {
        self.start_s + self.between(bytes).0
    }

    /// How many messages of an operation wait for each other, in tiles that do not.
    pub fn rounds(&self, bytes: u64) -> usize {
        self.forms[self.entry_of(bytes).form].rounds
    }

    /// By which algorithm an operation of so many bytes goes, and in tiles of how many.
    pub fn way(&self, bytes: u64) -> (&'static dyn Algorithm, usize) {
        let entry = self.entry(bytes);
        (self.forms[entry.form].algorithm, entry.tile_bytes)
    }

    /// The last entry that is not larger.
    fn entry_of(&self, bytes: u64) -> &Entry {
        &self.entries[place(bytes).min(self.entries.len() - 1)]
    }

    /// Between two entries the time on the channel is a line, and a line over its bytes is least at one of its ends.
    pub fn seconds_per_byte_min(&self) -> f64 {
        let sizes = self.entries.iter().filter(|entry| entry.bytes > 0.0);
        sizes.map(|entry| (self.start_s + self.on_channel_s(entry)) / entry.bytes).fold(f64::INFINITY, f64::min)
    }

    pub fn traffic(&self, plan: &Plan) -> Traffic {
        let mut operations = Operations::new(Line::Channel, 0, 0, Mode::Aggregate);
        let (mut messages, mut bytes_sent, mut total) = (0, 0.0, 0);
        for (_, partition) in plan.partitions() {
            let bytes = partition.elements.len() as u64 * ELEMENT_BYTES;
            let (alone_s, channel_s) = self.between(bytes);
            operations.push(self.start_s + channel_s, (alone_s - channel_s).max(0.0));
            let entry = self.entry_of(bytes);
            let form = &self.forms[entry.form];
            operations.later_if_it_overtakes(self.operation.overtaking_round_s(bytes) * form.rounds as f64);
            messages += form.messages * tiles(bytes as usize, entry.tile_bytes);
            bytes_sent += form.sent * bytes as f64;
            total += bytes;
        }
        if self.one_by_one {
            operations = operations.in_order();
        }
        let starts = self.start_s * operations.count() as f64;
        let moving = operations.line_busy_s() - starts;
        let link = if self.world.hosts > 1 { Bottleneck::LinkBetweenHosts } else { Bottleneck::LinkWithinHost };
        Traffic {
            operations,
            jitter_s: self.jitter_s,
            bytes_sent,
            messages,
            busy: vec![(link, moving), (Bottleneck::OperationStart, starts)],
            within_s: all_reduce_factor(self.world.workers) * total as f64 * self.within_beta,
            of_bus: 1.0,
        }
    }
}

/// To whom the first rank of a program sends, message by message. (Of programs of one algorithm for as many ranks, whatever their
/// shapes: those that differ at all differ in that, as one's neighbours are further away.)
fn receivers(algorithm: &dyn Algorithm, topology: &Topology) -> Vec<usize> {
    let program = algorithm.rank_program(0, topology, 0);
    let receiver = |action: Action| if let Action::Send { to, .. } = action { Some(to) } else { None };
    program.steps.iter().filter_map(|step| receiver(step.action)).collect()
}

/// The last size that is not above so many bytes: 0, then [`STEPS`] to each power of two from [`SMALLEST`] on.
fn place(bytes: u64) -> usize {
    if bytes < SMALLEST {
        return 0;
    }
    let octave = bytes.ilog2();
    let step = (bytes >> (octave - STEPS.ilog2())) - STEPS;
    1 + (u64::from(octave - SMALLEST.ilog2()) * STEPS + step) as usize
}

fn size(place: usize) -> u64 {
    let Some(above) = (place as u64).checked_sub(1) else { return 0 };
    (STEPS + above % STEPS) << (above / STEPS + u64::from(SMALLEST.ilog2() - STEPS.ilog2()))
}

#[cfg(test)]
mod tests;
