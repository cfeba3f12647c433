//! A tuner in a simulated cluster, call by call, beside those who never tune and those who know everything. In a [`job`] there is
//! computation, too, and the time of the iteration decides; an [`ablation`] hides from a tuner what decides.

pub mod ablation;
pub mod job;

mod alternated;
mod fixed;
mod timeline;

use std::collections::BTreeMap;

pub use alternated::{Compared, PairedRatio};
pub use fixed::Fixed;
pub use timeline::{Bucket, Timeline};

use crate::action::Situation;
use crate::environment::{Played, SimulatedCluster, Workload};
use crate::random::Random;
use crate::state::{Context, State};
use crate::trial::{ERROR, Side, Trial, Verdict};
use crate::tuner::Tuner;

/// Seconds of all calls so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Calls.
    pub calls: u64,
    /// As the tuner chose.
    pub tuned_s: f64,
    /// As if nobody had touched anything, with the same noise.
    pub default_s: f64,
    /// As if everybody had always known the best.
    pub oracle_s: f64,
    /// As if one configuration had been set for each collective before the job, whatever the size: the best one that there is.
    pub fixed_s: f64,
}

/// From so many calls of a context on, it should be known what is best in it.
pub const LEARNED: u64 = 300;

/// Calls from which on totals are compared with the default's: before, one call decides.
const PREFIX: u64 = 100;

/// What became of a context.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// One of its calls.
    pub state: State,
    /// All of its calls.
    pub totals: Totals,
    /// Those after the first [`LEARNED`].
    pub learned: Totals,
    /// How many times as long as the default's the total was at worst, from 100 calls on.
    pub worst_prefix: f64,
}

/// What became of a simulation.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// After each iteration.
    pub totals: Vec<Totals>,
    /// Of each context.
    pub contexts: BTreeMap<Context, Progress>,
    /// How many times as long as the default's the tuner's total was at worst, from 100 calls on.
    pub worst_prefix: f64,
    /// Iterations with what was learned against iterations without, interleaved: the last word.
    pub verdict: Verdict,
    /// The last iteration alone.
    pub last: Totals,
}

/// Runs a workload for so many iterations, and then compares what was learned with the default, iteration by iteration.
pub fn run(
    cluster: &mut SimulatedCluster,
    workload: &Workload,
    tuner: &mut Tuner,
    iterations: u64,
    seed: u64,
) -> Outcome {
    let mut order = Random::new(seed, 0x0d3);
    let fixed = Fixed::best(cluster, workload, 0);
    let mut all = Totals::default();
    let mut outcome = Outcome {
        totals: Vec::new(),
        contexts: BTreeMap::new(),
        worst_prefix: 0.0,
        verdict: Verdict::NoSignificantGain,
        last: Totals::default(),
    };
    for step in 0..iterations {
        let before = all;
        for call in workload.iteration(&mut order) {
            let state = cluster.state(&call, step);
            let Some(situation) = cluster.situation(&state).cloned() else { continue };
            let decision = tuner.decide(&situation);
            let Played { call_s: tuned_s, shared, stalled_s, .. } = cluster.play(&situation, decision.arm, step);
            tuner.observe(&situation, decision, tuned_s);
            // The others meet the same disturbance, and who chooses the same has the same time.
            let best = cluster.oracle(&situation, step);
            let of_others = |arm| cluster.truth_s(&situation, arm, step) * shared + stalled_s;
            let truth = |arm| if arm == decision.arm { tuned_s } else { of_others(arm) };
            let (default_s, oracle_s) = (truth(situation.default), truth(best));
            let call = Totals { calls: 1, tuned_s, default_s, oracle_s, fixed_s: truth(fixed.arm(&situation)) };
            let progress = outcome.contexts.entry(situation.context).or_insert_with(|| Progress::new(situation.state));
            progress.add(&call);
            all.add(&call);
            outcome.worst_prefix = outcome.worst_prefix.max(all.prefix());
        }
        outcome.totals.push(all);
        outcome.last = all.since(&before);
    }
    outcome.verdict = compare(cluster, workload, tuner, iterations, seed);
    outcome
}

/// Iterations under the policy that was learned, under none, and under none again, in an order of chance. An iteration takes what its
/// calls take, and waits for ranks that are late besides, whatever the calls take.
pub fn compare(
    cluster: &mut SimulatedCluster,
    workload: &Workload,
    tuner: &mut Tuner,
    step: u64,
    seed: u64,
) -> Verdict {
    let policy = tuner.policy();
    if policy.entries().next().is_none() {
        // Whoever touches nothing gains nothing.
        return Verdict::NoSignificantGain;
    }
    let (mut trial, mut random) = (Trial::new(ERROR), Random::new(seed, 0xab));
    while let Some((side, block)) = trial.next(&mut random) {
        let seconds = iteration_s(cluster, workload, step, |situation| match side {
            Side::Candidate => situation.arm_of(policy.choice(situation.context.key(), step)),
            Side::Default | Side::Control => situation.default,
        });
        trial.observe(side, block, seconds);
        if let Some(verdict) = trial.verdict() {
            return verdict;
        }
    }
    Verdict::NoSignificantGain
}

/// Seconds of an iteration whose calls take these arms, one after the other.
fn iteration_s(
    cluster: &mut SimulatedCluster,
    workload: &Workload,
    step: u64,
    arm: impl Fn(&Situation) -> usize,
) -> f64 {
    let mut seconds = 0.0;
    for call in &workload.calls {
        let state = cluster.state(call, step);
        let Some(situation) = cluster.situation(&state).cloned() else { continue };
        let arm = arm(&situation);
        for _ in 0..call.times {
            let Played { call_s, late_s, .. } = cluster.play(&situation, arm, step);
            seconds += call_s + late_s;
        }
    }
    seconds
}

impl Progress {
    fn new(state: State) -> Progress {
        Progress { state, totals: Totals::default(), learned: Totals::default(), worst_prefix: 0.0 }
    }

    fn add(&mut self, call: &Totals) {
        if self.totals.calls >= LEARNED {
            self.learned.add(call);
        }
        self.totals.add(call);
        self.worst_prefix = self.worst_prefix.max(self.totals.prefix());
    }
}

impl Totals {
    /// How many times as long as the default's, from 100 calls on; 0 before.
    fn prefix(&self) -> f64 {
        if self.calls >= PREFIX { self.tuned_s / self.default_s } else { 0.0 }
    }

    /// With others besides.
    pub fn add(&mut self, other: &Totals) {
        self.calls += other.calls;
        self.tuned_s += other.tuned_s;
        self.default_s += other.default_s;
        self.oracle_s += other.oracle_s;
        self.fixed_s += other.fixed_s;
    }

    fn since(&self, before: &Totals) -> Totals {
        Totals {
            calls: self.calls - before.calls,
            tuned_s: self.tuned_s - before.tuned_s,
            default_s: self.default_s - before.default_s,
            oracle_s: self.oracle_s - before.oracle_s,
            fixed_s: self.fixed_s - before.fixed_s,
        }
    }

    /// Seconds lost to not knowing: regret.
    pub fn regret_s(&self) -> f64 {
        self.tuned_s - self.oracle_s
    }

    /// The share of the oracle's time by which calls took longer.
    pub fn over_oracle(&self) -> f64 {
        if self.oracle_s > 0.0 { self.regret_s() / self.oracle_s } else { 0.0 }
    }

    /// The share of the time of the best fixed configuration that was saved; negative if that one is better.
    pub fn saved_of_fixed(&self) -> f64 {
        if self.fixed_s > 0.0 { 1.0 - self.tuned_s / self.fixed_s } else { 0.0 }
    }

    /// The share of the default's time that was saved; negative if some was lost.
    pub fn saved(&self) -> f64 {
        if self.default_s > 0.0 { 1.0 - self.tuned_s / self.default_s } else { 0.0 }
    }
}

/// Totals between two points of an outcome: of the iterations `from..to`.
pub fn between(outcome: &Outcome, from: usize, to: usize) -> Totals {
    let at = |end: usize| end.checked_sub(1).and_then(|last| outcome.totals.get(last)).copied().unwrap_or_default();
    at(to.min(outcome.totals.len())).since(&at(from))
}

#[cfg(test)]
mod tests {
    use paceline_plan::Cluster;

    use super::*;
    use crate::environment::{Disturbances, Misfit, OwnModel};
    use crate::trial::Gain;

    const ITERATIONS: u64 = 420;

    /// In each call a rank is late by so many seconds in the mean, if they are not 0. All else is drawn alike.
    fn cluster(late_s: f64, seed: u64) -> SimulatedCluster {
        let model = OwnModel::of(&Cluster::named("study-100gbe:4x1").expect("it is built in"));
        let share = if late_s > 0.0 { 1.0 } else { 0.0 };
        let disturbances = Disturbances { straggler_share: share, straggler_s: late_s, ..Disturbances::usual() };
        SimulatedCluster::new(Box::new(model), Misfit::USUAL, disturbances, seed)
    }

    /// A hundred calls and more, so that in sum ranks are about as late in every iteration.
    fn workload() -> Workload {
        let mut workload = Workload::data_parallel(4, 4);
        workload.calls.iter_mut().for_each(|call| call.times = 16);
        workload
    }

    #[test]
    fn late_ranks_lengthen_iterations_whatever_their_calls_take() {
        let (late_s, workload) = (0.02, workload());
        let arms: [fn(&Situation) -> usize; 2] = [|situation| situation.default, |_| 0];
        let waited = arms.map(|arm| {
            let [quiet, late] = [0.0, late_s].map(|late_s| iteration_s(&mut cluster(late_s, 3), &workload, 0, arm));
            late - quiet
        });
        let expected = late_s * 16.0 * workload.calls.len() as f64;
        assert!((waited[0] / expected - 1.0).abs() < 0.4, "{waited:?}, expected {expected}");
        assert!((waited[0] - waited[1]).abs() < 1e-6, "both arms alike: {waited:?}");
    }

    /// What is learned in calls that late ranks do not lengthen shortens iterations that they do, by a smaller share.
    #[test]
    fn a_gain_survives_ranks_that_are_late() {
        let (workload, mut compared) = (workload(), 0);
        for seed in 1..=3 {
            let mut tuner = Tuner::shipped(seed);
            // Each of an iteration's calls counts once.
            let once = Workload::data_parallel(4, 4);
            run(&mut cluster(0.0, seed), &once, &mut tuner, ITERATIONS, seed);
            let quiet_s = iteration_s(&mut cluster(0.0, seed), &workload, ITERATIONS, |situation| situation.default);
            // A third longer.
            let late_s = quiet_s / 3.0 / (16.0 * workload.calls.len() as f64);
            let mut gain = |late_s: f64| {
                let verdict = compare(&mut cluster(late_s, seed), &workload, &mut tuner, ITERATIONS, seed);
                if let Verdict::Gain(Gain { share, .. }) = verdict { share } else { 0.0 }
            };
            let (quiet, late) = (gain(0.0), gain(late_s));
            // Of those that gain so much that the rest of it is no matter of luck.
            if quiet > 0.15 {
                assert!(late < 0.95 * quiet && late > 0.5 * quiet, "seed {seed}: {late} and {quiet}");
                compared += 1;
            }
        }
        assert!(compared > 0, "nothing was gained");
    }
}
