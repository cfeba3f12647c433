//! Where tuners are trained and tested: a cluster that is not there. A cost model says what every choice takes, the truth
//! differs from it as networks differ from models, and single calls differ from the truth as calls do.

mod disturbance;
mod links;
mod model;
mod nccl;
mod overlap;
mod own;
mod programs;
mod workload;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use paceline_plan::Fnv1a;

use crate::action::{Action, Family, Situation, WireProtocol};
use crate::random::Random;
use crate::reward;
use crate::state::{Congestion, Context, State};
pub use disturbance::{Bursts, Change, Disturbances};
pub use links::Links;
pub use model::{Call, CostModel, counted};
pub use nccl::{Costs, CostsError, NcclModel};
pub use overlap::SERVER_ROUNDS;
pub use own::OwnModel;
pub use programs::Admitted;
pub use workload::{Mix, UnknownWorkload, Workload};

/// How far a truth is from its model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Misfit {
    /// Everything takes so many times as long as the model says, as a logarithm.
    pub common: f64,
    /// Of a family as a whole: the standard deviation of the logarithm.
    pub family: f64,
    /// How much worse two times too many or too few channels or threads, or a chunk twice too long or too short, are than
    /// the model says, at most.
    pub knobs: f64,
    /// Of so many families, some calls take much longer, and the others less for it: their mean is what it is, their median
    /// looks better.
    pub tailed: f64,
    /// How much longer an action takes, as a logarithm, for each of two reasons that no model knows: whether a call is pipelined decides
    /// between few rounds and many, as between servers and all-to-all, and the model's intensity between long chunks and short ones, as
    /// between fusing and partitioning. 0 but for questions about just that.
    pub overlap: f64,
}

/// The share of calls of a family with tails that take longer, and how many times as long as its others.
const TAIL_SHARE: f64 = 0.09;
const TAIL_FACTOR: f64 = 3.4;

impl Misfit {
    /// None: the model is the truth.
    pub const NONE: Misfit = Misfit { common: 0.0, family: 0.0, knobs: 0.0, tailed: 0.0, overlap: 0.0 };

    /// As models are: off by a quarter or so.
    pub const USUAL: Misfit = Misfit { common: 0.0, family: 0.25, knobs: 0.05, tailed: 0.0, overlap: 0.0 };
}

/// A call that was made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Played {
    /// Its seconds, on the rank that came last.
    pub call_s: f64,
    /// By which factor every other arm would have taken longer in its place: what is left is the arm's own.
    pub shared: f64,
    /// Seconds for which every other arm would have stalled.
    pub stalled_s: f64,
    /// Seconds by which that rank came late. The others wait for it, and so does the iteration, whatever the arm.
    pub late_s: f64,
}

/// A cluster.
pub struct SimulatedCluster {
    model: Box<dyn CostModel>,
    misfit: Misfit,
    disturbances: Disturbances,
    seed: u64,
    /// What families are off by wherever the library runs is drawn from this.
    library: u64,
    /// The fingerprint of the model's name: clusters of other names are off in other ways.
    name: u64,
    random: Random,
    /// What is left of the noise of the last call, by context.
    lasting: BTreeMap<Context, f64>,
    situations: BTreeMap<Context, Situation>,
    /// The best arms that were looked for, by the factor of the network.
    best: BTreeMap<(Context, u64), usize>,
}

impl SimulatedCluster {
    /// Of which `model` is believed, and which differs from it by chance, drawn from the seed.
    pub fn new(model: Box<dyn CostModel>, misfit: Misfit, disturbances: Disturbances, seed: u64) -> SimulatedCluster {
        let random = Random::new(seed, 0xca11);
        SimulatedCluster {
            name: Fnv1a::of(model.name().as_bytes()),
            model,
            misfit,
            disturbances,
            seed,
            library: seed,
            random,
            lasting: BTreeMap::new(),
            situations: BTreeMap::new(),
            best: BTreeMap::new(),
        }
    }

    /// Of a library of its own: half of what families are off by is the library's, wherever it runs, and the rest the cluster's.
    /// Otherwise every seed has its own library.
    pub fn of_library(self, library: u64) -> SimulatedCluster {
        SimulatedCluster { library, ..self }
    }

    /// The call as a tuner on this cluster sees it, at a step: with the congestion on which ranks would agree.
    pub fn state(&self, call: &Call, step: u64) -> State {
        let factor = self.disturbances.factor(step);
        let congestion = match factor {
            ..1.2 => Congestion::None,
            ..2.0 => Congestion::Light,
            _ => Congestion::Heavy,
        };
        let agreed = if self.disturbances.is_agreed { congestion } else { Congestion::None };
        State { congestion: agreed, ..self.model.state(call) }
    }

    /// What can be done about a call. None if its collective has no choices here.
    pub fn situation(&mut self, state: &State) -> Option<&Situation> {
        let context = state.context();
        if let Entry::Vacant(vacant) = self.situations.entry(context) {
            // All calls of a context have the arms of one call in its middle, so that they are the same for all.
            let typical = State { bytes: context.typical_bytes(), ..*state };
            vacant.insert(self.model.situation(&typical)?);
        }
        self.situations.get(&context)
    }

    /// Seconds that an arm takes at a step in the mean, without what all arms meet: for oracles.
    pub fn truth_s(&self, situation: &Situation, arm: usize, step: u64) -> f64 {
        let it = &situation.arms[arm];
        let (family, knobs) = self.off(&situation.context, &it.action);
        // A slower network takes longer for each byte, not for each message: what sends more bytes suffers more.
        let bytes = match it.action.family.protocol {
            WireProtocol::LowLatency => 2.0,
            WireProtocol::Middle => 1.25,
            WireProtocol::Simple => 1.0,
        };
        let common = self.misfit.common.exp();
        let slower_s =
            (self.disturbances.factor(step) - 1.0) * bytes * common * self.model.bandwidth_s(&situation.state);
        let usual_s = it.modelled_s * common * (family + knobs + self.overlapped(situation, &it.action)).exp();
        (usual_s + slower_s).max(0.05 * usual_s)
    }

    /// The arm that takes least, without noise.
    pub fn oracle(&mut self, situation: &Situation, step: u64) -> usize {
        let key = (situation.context, self.disturbances.factor(step).to_bits());
        if let Some(&known) = self.best.get(&key) {
            return known;
        }
        let seconds = |arm: &usize| self.truth_s(situation, *arm, step);
        let arms = 0..situation.arms.len();
        let best = arms.min_by(|one, other| seconds(one).total_cmp(&seconds(other))).unwrap_or(situation.default);
        self.best.insert(key, best);
        best
    }

    /// Makes a call; its seconds.
    pub fn call(&mut self, situation: &Situation, arm: usize, step: u64) -> f64 {
        self.play(situation, arm, step).call_s
    }

    /// Makes a call, with what it meets.
    pub fn play(&mut self, situation: &Situation, arm: usize, step: u64) -> Played {
        let lasting = self.lasting.entry(situation.context).or_default();
        let shared = self.disturbances.noise_at(step, lasting, &mut self.random);
        let tail = self.tail(&situation.context, situation.arms[arm].action.family);
        let stalled_s = self.disturbances.stalled_s(&mut self.random);
        let seconds = self.truth_s(situation, arm, step) * shared * tail + stalled_s;
        // Each rank waits for the last one to come; that one's own time is the call's.
        let late_s = self.disturbances.lateness_s(&mut self.random);
        let ranks = [seconds + late_s, seconds];
        Played { call_s: reward::call_s(&ranks).unwrap_or(seconds), shared, stalled_s, late_s }
    }

    /// By what a call of a family takes longer than its mean, for reasons of its own.
    fn tail(&mut self, context: &Context, family: Family) -> f64 {
        let has_one = || self.draw("tail", self.seed, family, Some(context)).unit() <= self.misfit.tailed;
        if self.misfit.tailed == 0.0 || !has_one() {
            return 1.0;
        }
        let usual = 1.0 / (1.0 + TAIL_SHARE * (TAIL_FACTOR - 1.0));
        if self.random.unit() <= TAIL_SHARE { TAIL_FACTOR * usual } else { usual }
    }

    /// The cost model that is believed.
    pub fn model(&self) -> &dyn CostModel {
        &*self.model
    }

    /// How far the truth is from the model, as logarithms: of the family, and of the knobs. A function of the seed and of what
    /// is asked, not of the order of questions. A family is off in a way of the library's and one of the cluster's, and a bit
    /// differently for every size.
    fn off(&self, context: &Context, action: &Action) -> (f64, f64) {
        let of_library = self.draw(LIBRARY, self.library, action.family, None).normal();
        let of_cluster = self.draw("cluster", self.seed, action.family, None).normal();
        let of_size = self.draw("size", self.seed, action.family, Some(context)).normal();
        // The squares add up to 1.
        let family = self.misfit.family * (0.7 * of_library + 0.5 * of_cluster + 0.51 * of_size);
        let mut wanted = self.draw("knobs", self.seed, action.family, Some(context));
        let mut away = |value: f64, middle: f64| {
            let best = middle + wanted.normal();
            self.misfit.knobs * (value - best).powi(2).min(4.0)
        };
        let [channels, threads, chunk] = self.model.usual_knobs();
        let knobs = away(f64::from(action.channels.max(1)).log2(), channels)
            + away(f64::from(action.threads.max(1)).log2(), threads)
            + away(f64::from(action.chunk_log2), chunk);
        (family, knobs)
    }

    /// How much longer an action takes for what its call overlaps with, as a logarithm.
    fn overlapped(&self, situation: &Situation, action: &Action) -> f64 {
        if self.misfit.overlap == 0.0 {
            return 0.0;
        }
        let longer = |rounds| overlap::longer(&situation.context, rounds, action.chunk_log2);
        self.misfit.overlap * self.model.rounds(&situation.state, action).map_or(0.0, longer)
    }

    /// Chance for one purpose: of everything that stands here, one after the other. (Numbers that are combined by exclusive or
    /// meet again: seeds 1, 2, 3 with protocols 0, 1, 2 would be four draws.)
    fn draw(&self, purpose: &str, seed: u64, family: Family, context: Option<&Context>) -> Random {
        let mut all = Fnv1a::default();
        all.number(seed).number(family.algorithm.into()).number(family.protocol as u64);
        if purpose != LIBRARY {
            all.number(self.name);
        }
        if let Some(context) = context {
            all.number(context.collective.code().into()).number(context.size_log2.into());
        }
        Random::new(all.bytes(purpose.as_bytes()).value(), 0xfa)
    }
}

/// The purpose of chance that is the same on every cluster.
const LIBRARY: &str = "library";

#[cfg(test)]
mod tests;
