//! What a tuner loses that does not see all of a call: jobs whose calls come in pairs that differ in one feature only, on clusters where
//! that decides which action is best ([`crate::environment::Misfit::overlap`]). Learner, guard, trials and actions are those that ship.

use paceline_plan::CollectiveKind;
use serde::Serialize;

use crate::action::{Action, Situation};
use crate::environment::{Call, Played, SERVER_ROUNDS, SimulatedCluster};
use crate::random::Random;
use crate::state::{Parallelism, State};
use crate::tuner::{Course, Standing, Tuner};

/// What calls of a pair differ in, and what may be hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Feature {
    /// [`State::is_pipelined_layer`].
    IsPipelinedLayer,
    /// [`State::model_intensity`], and the C2C ratio with it.
    ModelIntensity,
}

/// A job, and whether it hides something.
#[derive(Clone, Copy, Debug)]
pub struct Ablation<'a> {
    /// What its calls differ in.
    pub feature: Feature,
    /// Does the tuner not see it?
    pub is_hidden: bool,
    /// All-reduces of these sizes, as log2 of their bytes: a pair of each.
    pub sizes_log2: &'a [u32],
    /// Ranks, each on a host of its own.
    pub ranks: u32,
    /// Every call is made once in each.
    pub iterations: u64,
    /// The order of calls follows from it.
    pub seed: u64,
}

/// What became of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Ablated {
    /// By pairs: each call without pipelining before the one with it, at low intensity before the one at high intensity.
    pub settled: Vec<Settled>,
    /// All calls over those of somebody who had always known the best, those of finding out included.
    pub over_best: f64,
    /// Pairs in which the feature decides what is best.
    pub flips_wanted: usize,
    /// Those of them in which what was settled for differs likewise.
    pub flips_found: usize,
}

/// What a tuner has settled for, of one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settled {
    /// The call, nothing hidden.
    pub state: State,
    /// What its calls take from here on.
    pub chosen: Action,
    /// What takes least.
    pub best: Action,
    /// The seconds of the one over those of the other, without noise.
    pub over_best: f64,
}

/// A call as it is, and as the tuner sees it: with the same arms.
struct Known {
    truth: Situation,
    seen: Situation,
}

/// An intensity that says nothing: the one in the middle.
const HIDDEN_INTENSITY: f64 = 256.0;

/// A quarter of that, where communication decides, and four times as much, where computation takes as long. With a local batch of 1, one
/// regime holds for all of them: what is lost is not lost to another budget.
const INTENSITIES: [f64; 2] = [64.0, 1024.0];
const LOCAL_BATCH: u32 = 1;

impl Feature {
    /// All of them.
    pub const ALL: [Feature; 2] = [Feature::IsPipelinedLayer, Feature::ModelIntensity];

    /// Its name in the state.
    pub fn name(self) -> &'static str {
        match self {
            Feature::IsPipelinedLayer => "is_pipelined_layer",
            Feature::ModelIntensity => "model_intensity",
        }
    }

    /// A call as somebody sees it who does not see this.
    pub fn hide(self, state: State) -> State {
        match self {
            Feature::IsPipelinedLayer => State { is_pipelined_layer: false, ..state },
            Feature::ModelIntensity => State { model_intensity: HIDDEN_INTENSITY, ..state },
        }
    }

    /// Calls that differ in nothing else.
    fn pair(self, bytes: u64, ranks: u32) -> [Call; 2] {
        let call = Call {
            collective: CollectiveKind::AllReduce,
            bytes,
            ranks,
            hosts: ranks,
            parallelism: Parallelism::Data,
            is_pipelined_layer: true,
            is_fused_call: true,
            is_ps_deployment: false,
            model_intensity: HIDDEN_INTENSITY,
            local_batch: LOCAL_BATCH,
            times: 1,
        };
        match self {
            Feature::IsPipelinedLayer => [false, true].map(|is_pipelined_layer| Call { is_pipelined_layer, ..call }),
            Feature::ModelIntensity => INTENSITIES.map(|model_intensity| Call { model_intensity, ..call }),
        }
    }

    /// Do the actions of a pair's calls differ as this has it?
    fn flips(self, cluster: &SimulatedCluster, [one, other]: [(&State, &Action); 2]) -> bool {
        let is_like_servers = |(state, action): (&State, &Action)| {
            cluster.model().rounds(state, action).is_some_and(|rounds| rounds <= SERVER_ROUNDS)
        };
        match self {
            Feature::IsPipelinedLayer => !is_like_servers(one) && is_like_servers(other),
            Feature::ModelIntensity => one.1.chunk_log2 > other.1.chunk_log2,
        }
    }
}

/// Runs a job with a tuner. None if there is nothing to choose from.
pub fn run(cluster: &mut SimulatedCluster, tuner: &mut Tuner, ablation: &Ablation<'_>) -> Option<Ablated> {
    let known = ablation.known(cluster)?;
    let over_best = ablation.learn(cluster, tuner, &known);
    let settled: Vec<Settled> = known.iter().map(|known| settled(cluster, tuner, known, ablation.iterations)).collect();
    let (mut flips_wanted, mut flips_found) = (0, 0);
    for pair in settled.chunks_exact(2) {
        let [one, other] = [&pair[0], &pair[1]];
        let wanted = ablation.feature.flips(cluster, [(&one.state, &one.best), (&other.state, &other.best)]);
        let found = ablation.feature.flips(cluster, [(&one.state, &one.chosen), (&other.state, &other.chosen)]);
        flips_wanted += usize::from(wanted);
        flips_found += usize::from(wanted && found);
    }
    Some(Ablated { settled, over_best, flips_wanted, flips_found })
}

impl Ablation<'_> {
    /// All calls, by pairs.
    fn known(&self, cluster: &mut SimulatedCluster) -> Option<Vec<Known>> {
        let calls = self.sizes_log2.iter().flat_map(|&log2| self.feature.pair(1u64 << log2, self.ranks));
        calls.map(|call| self.known_call(cluster, &call)).collect()
    }

    fn known_call(&self, cluster: &mut SimulatedCluster, call: &Call) -> Option<Known> {
        let state = cluster.state(call, 0);
        let truth = cluster.situation(&state)?.clone();
        let seen = if self.is_hidden { self.feature.hide(truth.state) } else { truth.state };
        let seen = Situation::new(seen, truth.arms.clone(), truth.default)?;
        Some(Known { truth, seen })
    }

    /// Makes all calls; their seconds over those of the best.
    fn learn(&self, cluster: &mut SimulatedCluster, tuner: &mut Tuner, known: &[Known]) -> f64 {
        let mut order = Random::new(self.seed, 0xab1a);
        let (mut tuned_s, mut best_s) = (0.0, 0.0);
        for step in 0..self.iterations {
            let mut left: Vec<&Known> = known.iter().collect();
            while !left.is_empty() {
                let Known { truth, seen } = left.swap_remove(order.below(left.len()));
                let decision = tuner.decide(seen);
                let Played { call_s, shared, .. } = cluster.play(truth, decision.arm, step);
                tuner.observe(seen, decision, call_s);
                let best = cluster.oracle(truth, step);
                tuned_s += call_s;
                // Who chooses the same has the same time.
                best_s += if best == decision.arm { call_s } else { cluster.truth_s(truth, best, step) * shared };
            }
        }
        tuned_s / best_s
    }
}

impl Ablated {
    /// What was settled for over the best, without noise: the geometric mean over the calls.
    pub fn settled_over_best(&self) -> f64 {
        let logs: f64 = self.settled.iter().map(|settled| settled.over_best.ln()).sum();
        (logs / self.settled.len().max(1) as f64).exp()
    }
}

/// What a call takes from a step on.
fn settled(cluster: &mut SimulatedCluster, tuner: &Tuner, Known { truth, seen }: &Known, step: u64) -> Settled {
    let chosen = match tuner.course(&seen.context).map(Course::standing) {
        Some(Standing::Chosen(choice, _)) => seen.arm_of(choice),
        _ => seen.default,
    };
    let best = cluster.oracle(truth, step);
    Settled {
        state: truth.state,
        chosen: truth.arms[chosen].action,
        best: truth.arms[best].action,
        over_best: cluster.truth_s(truth, chosen, step) / cluster.truth_s(truth, best, step),
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::Cluster;

    use super::*;
    use crate::environment::{Disturbances, Misfit, OwnModel};
    use crate::prior::{Budget, Regime};

    const SEEDS: std::ops::Range<u64> = 1..4;

    fn cluster(seed: u64) -> SimulatedCluster {
        let model = OwnModel::of(&Cluster::named("study-10gbe:8x1").expect("it is built in"));
        let misfit = Misfit { overlap: 0.3, ..Misfit::USUAL };
        SimulatedCluster::new(Box::new(model), misfit, Disturbances::usual(), seed)
    }

    fn ablation(feature: Feature, is_hidden: bool, seed: u64) -> Ablation<'static> {
        Ablation { feature, is_hidden, sizes_log2: &[20, 24], ranks: 8, iterations: 800, seed }
    }

    #[test]
    fn a_tuner_that_sees_what_decides_flips_and_one_that_does_not_loses() {
        for feature in Feature::ALL {
            let (mut rise, mut wanted, mut found) = (0.0, 0, 0);
            for seed in SEEDS {
                let [seeing, blind] = [false, true].map(|is_hidden| {
                    let ablation = ablation(feature, is_hidden, seed);
                    run(&mut cluster(seed), &mut Tuner::shipped(seed), &ablation).expect("choices")
                });
                assert_eq!((blind.flips_wanted, blind.flips_found), (seeing.flips_wanted, 0), "{feature:?}, {seed}");
                rise += (blind.settled_over_best() / seeing.settled_over_best()).ln();
                (wanted, found) = (wanted + seeing.flips_wanted, found + seeing.flips_found);
            }
            rise /= SEEDS.count() as f64;
            println!("{}: {rise:.3} more without it; {found} of {wanted} flips", feature.name());
            assert!(rise > 0.02, "{feature:?}: {rise}");
            assert!(wanted > 0 && 2 * found > wanted, "{feature:?}: {found} of {wanted}");
        }
    }

    /// What is hidden is all that is: the same arms, the same regime, and one context for both calls of a pair.
    #[test]
    fn nothing_else_is_hidden() {
        for feature in Feature::ALL {
            let of = |is_hidden: bool| ablation(feature, is_hidden, 1).known(&mut cluster(1)).expect("choices");
            let (seeing, blind) = (of(false), of(true));
            assert_eq!((seeing.len(), blind.len()), (4, 4));
            for known in seeing.iter().chain(&blind) {
                assert_eq!(known.truth.arms, known.seen.arms);
                assert_eq!(known.truth.default, known.seen.default);
                assert_eq!(Budget::of(&known.seen.state).regime, Regime::Aggressive, "{:?}", known.seen.state);
            }
            for (seeing, blind) in seeing.chunks(2).zip(blind.chunks(2)) {
                assert_ne!(seeing[0].seen.context, seeing[1].seen.context);
                assert_eq!(blind[0].seen.context, blind[1].seen.context);
                assert_ne!(blind[0].truth.context, blind[1].truth.context);
            }
        }
    }
}
