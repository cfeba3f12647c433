//! What the plans of a training have taken, and what that says of a next one. Pure: measurements and predictions go in, a
//! course comes out, the same on every rank.

use paceline_plan::Plan;

use super::watch::Watch;

/// Plans that were carried out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Experience {
    tried: Vec<Tried>,
}

/// One of them.
#[derive(Clone, Debug)]
struct Tried {
    plan: Plan,
    /// Seconds of an iteration under it, when it was last measured.
    measured_s: f64,
    /// What the search that followed predicted of it.
    predicted_s: Option<f64>,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Course {
    /// Keep the plan that runs.
    Stay,
    /// Take what was found, which is expected to take so many seconds.
    Take(f64),
    /// Go back to this one of the plans that were carried out, which is expected to take so many seconds.
    GoBack(usize, f64),
}

impl Experience {
    /// An iteration under a plan has taken so long: now, and not as before.
    pub(crate) fn measured(&mut self, plan: &Plan, measured_s: f64) {
        let tried = self.tried.iter_mut().find(|tried| same(&tried.plan, plan));
        match tried {
            Some(tried) => (tried.measured_s, tried.predicted_s) = (measured_s, None),
            None => self.tried.push(Tried { plan: plan.clone(), measured_s, predicted_s: None }),
        }
    }

    /// All of them, in the order in which they were first carried out.
    pub(crate) fn plans(&self) -> Vec<Plan> {
        self.tried.iter().map(|tried| tried.plan.clone()).collect()
    }

    /// The place of a plan among them.
    pub(crate) fn place(&self, plan: &Plan) -> Option<usize> {
        self.tried.iter().position(|tried| same(&tried.plan, plan))
    }

    /// What the best of those that do not run took.
    pub(crate) fn best_other_s(&self, running: &Plan) -> Option<f64> {
        let others = self.tried.iter().filter(|tried| !same(&tried.plan, running));
        others.map(|tried| tried.measured_s).filter(|seconds| *seconds > 0.0).reduce(f64::min)
    }

    /// Which plan comes next, after a search that predicts `predicted` of [`Experience::plans`] and `found_s` of `found`.
    ///
    /// A plan that was carried out takes what it took, times what its prediction has changed by since. By how much predictions
    /// of the plan that runs are off, those of a new one are taken to be off, too. Where that is not known nothing
    /// new can be compared.
    pub(crate) fn course(&mut self, running: &Plan, predicted: &[Option<f64>], found: &Plan, found_s: f64) -> Course {
        let sensible = |seconds: &f64| seconds.is_finite() && *seconds > 0.0;
        let mut expected = Vec::new();
        for (tried, now) in self.tried.iter_mut().zip(predicted) {
            let now = now.filter(sensible);
            expected.push(match (tried.predicted_s, now) {
                (Some(then), Some(now)) => tried.measured_s * now / then,
                _ => tried.measured_s,
            });
            tried.predicted_s = tried.predicted_s.or(now);
        }
        let Some(place) = self.place(running) else { return Course::Take(found_s) };
        let running_s = self.tried[place].measured_s;
        let ratio = predicted.get(place).copied().flatten().filter(sensible).map(|predicted_s| running_s / predicted_s);
        let new = self.place(found).is_none();
        let new_s = ratio.map(|ratio| found_s * ratio).filter(|_| new).filter(sensible);
        let back = (0..expected.len()).filter(|&other| other != place && sensible(&expected[other]));
        let back = back.min_by(|&one, &other| expected[one].total_cmp(&expected[other]));
        let worth = |seconds: f64| Watch::worth_changing(running_s, seconds);
        match (new_s.filter(|&s| worth(s)), back.filter(|&other| worth(expected[other]))) {
            (Some(new_s), Some(other)) if expected[other] <= new_s => Course::GoBack(other, expected[other]),
            (Some(new_s), _) => Course::Take(new_s),
            (None, Some(other)) => Course::GoBack(other, expected[other]),
            (None, None) => Course::Stay,
        }
    }
}

/// The same but for the version?
fn same(one: &Plan, other: &Plan) -> bool {
    let Plan { version: _, strategy, buckets, shards, credit_bytes, forward_overlap, server_priority_only } = one;
    (strategy, buckets, shards, credit_bytes) == (&other.strategy, &other.buckets, &other.shards, &other.credit_bytes)
        && (forward_overlap, server_priority_only) == (&other.forward_overlap, &other.server_priority_only)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(version: u32, strategy: &str) -> Plan {
        let parsed = paceline_strategy::Registry::built_in().parse(strategy).unwrap();
        let plan = paceline_schedule::plan(&parsed, &paceline_schedule::Workload::of_sizes(&[3, 4])).unwrap();
        Plan { version, ..plan }
    }

    /// B was predicted to be faster than A and is slower than A was: back to A, and not content with B.
    #[test]
    fn a_plan_that_disappoints_is_left_for_the_one_before() {
        let (a, b) = (plan(1, "wfbp-a2a"), plan(2, "schedule=none,arch=a2a"));
        let mut experience = Experience::default();
        experience.measured(&a, 1.0);
        assert_eq!(experience.course(&a, &[Some(0.9)], &b, 0.8), Course::Take(0.8 * 1.0 / 0.9));
        experience.measured(&b, 1.4);
        assert_eq!(experience.best_other_s(&b), Some(1.0));
        assert_eq!(experience.course(&b, &[Some(0.9), Some(0.8)], &b, 0.8), Course::GoBack(0, 1.0));
        // Back on A, the search finds B again; what B took counts.
        let again = Plan { version: 3, ..a.clone() };
        experience.measured(&again, 1.1);
        assert_eq!(experience.course(&again, &[Some(0.9), Some(0.8)], &b, 0.8), Course::Stay);
        assert_eq!((experience.place(&again), experience.plans().len()), (Some(0), 2));
    }

    /// All has become twice as slow, A and B alike: what A took then is no reason to go back.
    #[test]
    fn what_was_measured_ages_with_the_predictions() {
        let (a, b) = (plan(1, "wfbp-a2a"), plan(2, "schedule=none,arch=a2a"));
        let mut experience = Experience::default();
        experience.measured(&a, 1.0);
        experience.course(&a, &[Some(1.0)], &b, 0.9);
        experience.measured(&b, 1.9);
        assert_eq!(experience.course(&b, &[Some(2.0), Some(1.8)], &b, 1.8), Course::Stay);
        // And where only B has, it is.
        experience.measured(&b, 1.9);
        assert_eq!(experience.course(&b, &[Some(1.0), Some(1.8)], &b, 1.8), Course::GoBack(0, 1.0));
    }

    /// Without a prediction of what runs nothing new is compared, and nonsense is never taken.
    #[test]
    fn what_cannot_be_compared_changes_nothing() {
        let (a, b) = (plan(1, "wfbp-a2a"), plan(2, "schedule=none,arch=a2a"));
        let mut experience = Experience::default();
        experience.measured(&a, 1.0);
        assert_eq!(experience.course(&a, &[None], &b, 0.1), Course::Stay);
        for seconds in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            assert_eq!(experience.course(&a, &[Some(seconds)], &b, 0.1), Course::Stay);
            assert_eq!(experience.course(&a, &[Some(1.0)], &b, seconds), Course::Stay);
        }
        // A gain of less than 3 % is none.
        assert_eq!(experience.course(&a, &[Some(1.0)], &b, 0.98), Course::Stay);
    }
}
