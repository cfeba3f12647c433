//! One profile of several starts. A worker takes some percent more or less in each, as its memory lies elsewhere; two workers of a job are two
//! starts, and at each iteration the faster one waits.

use paceline_plan::{Profile, Step};
use serde::{Deserialize, Serialize};

use super::{MeasuredProfile, ProfileOptions};
use crate::computed::slowed_profile;
use crate::iteration_times::{mean_difference, mean_difference_between, step_by_step};
use crate::measure::relative_half_width;

/// No mean difference of what is not negative is larger, of as many on both sides.
const SPREAD_MAX: f64 = 2.0;

/// A worker that was measured, and those that computed beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfiledStart {
    /// The worker.
    pub measured: MeasuredProfile,
    /// What iterations of the others took meanwhile, by worker: of a job on one host these are all of them, none of a worker alone.
    pub beside: Vec<Vec<f64>>,
}

/// What so many starts come to: an iteration takes the mean over the starts and their workers, known as well as starts agree, and
/// [`Profile::spread`] is by how much iterations differ that it and another worker made at the same time, or, of a worker alone, that it made in two
/// starts. A machine that is slow now and fast then is so for all workers of a start, none of whom waits for that.
///
/// None if there is no start, or if not all come to their parameters in the same order.
pub fn profile_of_starts(starts: &[ProfiledStart], options: &ProfileOptions) -> Option<MeasuredProfile> {
    let first = &starts.first()?.measured.profile;
    let means_s: Vec<f64> = starts.iter().map(ProfiledStart::mean_s).collect();
    let mean_s = mean(&means_s);
    let scaled: Vec<Profile> = starts.iter().map(ProfiledStart::scaled).collect();
    let phases =
        |of: fn(&Profile) -> &Vec<Step>| scaled.iter().map(|profile| of(profile).as_slice()).collect::<Vec<_>>();
    let seconds: Vec<f64> = starts.iter().flat_map(|start| start.measured.seconds.iter().copied()).collect();
    let profile = Profile {
        source: options.source(seconds.len(), starts.len()),
        forward: step_by_step(&phases(|profile| &profile.forward), mean)?,
        backward: step_by_step(&phases(|profile| &profile.backward), mean)?,
        update_s: mean(&scaled.iter().map(|profile| profile.update_s).collect::<Vec<f64>>()),
        uncertainty: match means_s.len() {
            1 => first.uncertainty,
            // Starts may agree by chance.
            _ => {
                Some(relative_half_width(&means_s).max(relative_half_width(&seconds))).filter(|share| share.is_finite())
            }
        },
        spread: difference_s(starts)
            .map(|seconds| (seconds / mean_s).min(SPREAD_MAX))
            .filter(|share| share.is_finite()),
        ..first.clone()
    };
    Some(MeasuredProfile { profile, seconds })
}

impl ProfiledStart {
    /// Of an iteration, the mean over its workers.
    fn mean_s(&self) -> f64 {
        let others = self.beside.iter().filter(|seconds| !seconds.is_empty()).map(|seconds| mean(seconds));
        mean(&std::iter::once(mean(&self.measured.seconds)).chain(others).collect::<Vec<f64>>())
    }

    /// Its profile, by the mean of all workers.
    fn scaled(&self) -> Profile {
        let times = self.mean_s() / mean(&self.measured.seconds);
        slowed_profile(&self.measured.profile, if times.is_finite() { times } else { 1.0 })
    }
}

/// By how much iterations of two workers differ in the mean, as [`profile_of_starts`] has it; None of a single iteration.
fn difference_s(starts: &[ProfiledStart]) -> Option<f64> {
    let beside = starts.iter().flat_map(|start| start.beside.iter().map(|other| (&start.measured.seconds, other)));
    let at_once: Vec<f64> = beside.filter_map(|(own, other)| difference_at_once(own, other)).collect();
    let own: Vec<&Vec<f64>> = starts.iter().map(|start| &start.measured.seconds).collect();
    match own.as_slice() {
        _ if !at_once.is_empty() => Some(mean(&at_once)),
        [seconds] => (seconds.len() > 1).then(|| mean_difference(seconds.to_vec())),
        all => {
            let pairs =
                all.iter().enumerate().flat_map(|(place, one)| all[..place].iter().map(move |other| (one, other)));
            Some(mean(&pairs.map(|(one, other)| mean_difference_between(one, other)).collect::<Vec<f64>>()))
        }
    }
}

/// By how much iterations differ that two workers made at about the same time, while one of them made as many as these and the other as
/// many as those: numbers that are as far in one as in the other. None where one of them made none.
fn difference_at_once(one: &[f64], other: &[f64]) -> Option<f64> {
    let (fewer, more) = if one.len() < other.len() { (one, other) } else { (other, one) };
    let beside = |place: usize| more[place * more.len() / fewer.len()];
    let differences: Vec<f64> =
        fewer.iter().enumerate().map(|(place, seconds)| (seconds - beside(place)).abs()).collect();
    (!differences.is_empty()).then(|| mean(&differences))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use paceline_plan::ProfileTensor;

    use super::*;

    /// A worker whose forward takes a quarter and whose optimiser a tenth of the mean of these.
    fn measured(seconds: &[f64]) -> MeasuredProfile {
        let tensor = ProfileTensor { name: "a".into(), elements: 10, forward_macs_per_sample: 1 };
        let iteration_s = mean(seconds);
        let profile = Profile {
            schema: Profile::SCHEMA,
            model: "made".into(),
            device: "up".into(),
            source: "here".into(),
            local_batch: 2,
            tensors: vec![tensor],
            forward: vec![Step { tensor: 0, seconds: 0.25 * iteration_s }],
            backward: vec![Step { tensor: 0, seconds: 0.65 * iteration_s }],
            update_s: 0.1 * iteration_s,
            uncertainty: Some(0.01),
            spread: None,
            memory: None,
            epoch_samples: None,
            recorded_batch: None,
        };
        MeasuredProfile { profile, seconds: seconds.to_vec() }
    }

    fn start(own: &[f64], beside: &[&[f64]]) -> ProfiledStart {
        ProfiledStart { measured: measured(own), beside: beside.iter().map(|seconds| seconds.to_vec()).collect() }
    }

    fn of(starts: &[ProfiledStart]) -> Profile {
        profile_of_starts(starts, &ProfileOptions::default()).expect("one order").profile
    }

    #[test]
    fn an_iteration_takes_the_mean_over_starts_and_their_workers() {
        // 2 and 4 in one start, 5 in the other.
        let found = of(&[start(&[1.0, 3.0], &[&[4.0, 4.0, 4.0]]), start(&[5.0], &[&[]])]);
        assert!((found.iteration_s() - 4.0).abs() < 1e-12, "{found:?}");
        assert!((found.forward_s() - 1.0).abs() < 1e-12 && (found.update_s - 0.4).abs() < 1e-12, "{found:?}");
        assert!(found.source.contains("mean of 3 iterations after 5 in each of 2 starts"), "{}", found.source);
        // 3 and 5: half of what a t of one degree of freedom says.
        assert!(found.uncertainty.is_some_and(|share| (share - 12.706 / 4.0).abs() < 1e-3), "{:?}", found.uncertainty);
    }

    /// Both workers take twice as long in the second half: none waits for the other.
    #[test]
    fn a_machine_that_is_slow_for_all_makes_nobody_wait() {
        let (quick, slow) = ([1.0; 4], [2.0; 4]);
        let both = [quick, slow].concat();
        let found = of(&[start(&both, &[&both]), start(&both, &[&both[..7]])]);
        assert!(found.spread.is_some_and(|spread| spread < 0.1), "{:?}", found.spread);
        let alone = of(&[start(&both, &[])]);
        assert!(alone.spread.is_some_and(|spread| spread > 0.3), "{:?}", alone.spread);
    }

    /// Each start is always alike, and one takes a tenth less than the mean, one a tenth more.
    #[test]
    fn a_worker_that_is_slower_than_another_one_is_waited_for() {
        let [one, other] = [[0.9; 5], [1.1; 5]];
        let beside = of(&[start(&one, &[&other])]);
        let between = of(&[start(&one, &[]), start(&other, &[])]);
        for found in [beside, between] {
            assert!(found.spread.is_some_and(|spread| (spread - 0.2).abs() < 1e-12), "{:?}", found.spread);
        }
    }

    #[test]
    fn of_one_start_alone_everything_stays() {
        let found = of(&[start(&[1.0, 2.0, 1.0], &[])]);
        assert_eq!(found.uncertainty, Some(0.01));
        assert!(found.spread.is_some_and(|spread| (spread - 0.5).abs() < 1e-12), "{:?}", found.spread);
        assert_eq!(of(&[start(&[1.0], &[])]).spread, None);
    }

    #[test]
    fn starts_of_another_order_have_no_profile() {
        let mut starts = [start(&[1.0], &[]), start(&[1.0], &[])];
        starts[1].measured.profile.backward.pop();
        assert_eq!(profile_of_starts(&starts, &ProfileOptions::default()), None);
        assert_eq!(profile_of_starts(&[], &ProfileOptions::default()), None);
    }
}
