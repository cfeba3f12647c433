//! What people do without a tuner: one configuration for each collective, set before the job.

use std::collections::{BTreeMap, BTreeSet};

use paceline_plan::CollectiveKind;

use crate::action::{Action, Situation};
use crate::environment::{SimulatedCluster, Workload};

/// An action for each collective, as environment variables of a library set them: the same for all sizes and ranks.
#[derive(Clone, Debug, Default)]
pub struct Fixed(BTreeMap<CollectiveKind, Action>);

impl Fixed {
    /// The configuration under which the calls of an iteration take least, by the truth of a step: what the most patient of searches
    /// would find. The library's own choice, which does depend on the size, stays where no action does better.
    pub fn best(cluster: &mut SimulatedCluster, workload: &Workload, step: u64) -> Fixed {
        let mut calls: BTreeMap<CollectiveKind, Vec<(Situation, f64)>> = BTreeMap::new();
        for call in &workload.calls {
            let state = cluster.state(call, step);
            if let Some(situation) = cluster.situation(&state).cloned() {
                calls.entry(call.collective).or_default().push((situation, f64::from(call.times)));
            }
        }
        let mut best = BTreeMap::new();
        for (collective, calls) in calls {
            let of = |arm: &dyn Fn(&Situation) -> usize| -> f64 {
                calls.iter().map(|(call, times)| times * cluster.truth_s(call, arm(call), step)).sum()
            };
            let mut least_s = of(&|call| call.default);
            let actions = calls.iter().flat_map(|(call, _)| call.arms.iter().map(|arm| arm.action));
            for action in actions.collect::<BTreeSet<Action>>() {
                let serves_all = calls.iter().all(|(call, _)| nearest(call, &action).is_some());
                let seconds = of(&|call| nearest(call, &action).unwrap_or(call.default));
                if serves_all && seconds < least_s {
                    least_s = seconds;
                    best.insert(collective, action);
                }
            }
        }
        Fixed(best)
    }

    /// The arm of a call.
    pub fn arm(&self, situation: &Situation) -> usize {
        let action = self.0.get(&situation.context.collective);
        action.and_then(|action| nearest(situation, action)).unwrap_or(situation.default)
    }
}

/// The arm of an action. A chunk beyond the call is one chunk, however long.
fn nearest(situation: &Situation, action: &Action) -> Option<usize> {
    let fits = |other: &Action| Action { chunk_log2: action.chunk_log2, ..*other } == *action;
    let arms = (0..situation.arms.len()).filter(|&arm| {
        let other = &situation.arms[arm].action;
        fits(other) && other.chunk_log2 <= action.chunk_log2
    });
    arms.max_by_key(|&arm| situation.arms[arm].action.chunk_log2)
}
