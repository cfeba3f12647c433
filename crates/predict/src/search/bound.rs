//! What no plan on a way can be shorter than.

use paceline_plan::Profile;
use paceline_schedule::{ELEMENT_BYTES, Forward};

/// Of more tensors than this only some are looked at: every second, every third.
const TENSORS_MAX: usize = 1024;

/// Seconds that no iteration is shorter than, whatever the plan, if everything is computed in `slowness` times the time of the
/// profile, on workers that have an optimiser or not, and no byte is sent in less than `seconds_per_byte`.
///
/// Of three the largest: the computation; all bytes; and for every tensor l the way from where its gradient is final to
/// where forward needs it. What becomes ready no earlier than l and is needed no later must be sent in between; then the rest
/// of forward follows before the next backward can begin. With r the time from the start of backward, n that from the start
/// of forward, F forward, and B(l) those bytes: T ≥ r(l) + β·B(l) + F − n(l).
pub(crate) fn iteration_s(profile: &Profile, workers_update: bool, slowness: f64, seconds_per_byte: f64) -> f64 {
    let (ready_s, forward) = (profile.ready_s(), Forward::of_profile(profile));
    let bytes: Vec<f64> = profile.sizes().iter().map(|&elements| (elements as u64 * ELEMENT_BYTES) as f64).collect();
    let all_s = bytes.iter().sum::<f64>() * seconds_per_byte;
    let update_s = if workers_update { profile.update_s } else { 0.0 };
    let compute_s = (forward.total_s + profile.backward_s() + update_s) * slowness;
    let step = bytes.len().div_ceil(TENSORS_MAX).max(1);
    let through = |tensor: usize| {
        let (ready, needed) = (ready_s[tensor], forward.needed_s[tensor]);
        let between = (0..bytes.len()).filter(|&other| ready_s[other] >= ready && forward.needed_s[other] <= needed);
        let sent_s = between.map(|other| bytes[other]).sum::<f64>() * seconds_per_byte;
        (ready + forward.total_s - needed) * slowness + sent_s
    };
    (0..bytes.len()).step_by(step).map(through).fold(compute_s.max(all_s), f64::max)
}

#[cfg(test)]
mod tests {
    use paceline_plan::{ProfileTensor, Step, built_in_profile};

    use super::*;

    /// Forward of 2 s and 1 s, backward of 3 s and 4 s in the reverse order; 10 and 100 elements.
    fn profile() -> Profile {
        let tensor = |name: &str, elements| ProfileTensor { name: name.into(), elements, forward_macs_per_sample: 1 };
        let step = |tensor, seconds| Step { tensor, seconds };
        Profile {
            tensors: vec![tensor("first", 10), tensor("last", 100)],
            forward: vec![step(0, 2.0), step(1, 1.0)],
            backward: vec![step(1, 3.0), step(0, 4.0)],
            update_s: 0.5,
            ..built_in_profile("resnet50").unwrap()
        }
    }

    #[test]
    fn the_longest_way_counts() {
        // Nothing to send: the computation.
        assert_eq!(iteration_s(&profile(), true, 1.0, 0.0), 10.5);
        // A byte in 0.02 s: both tensors are sent after 3 s, when the first of them is ready, and before the last second of
        // forward, which needs them.
        assert!((iteration_s(&profile(), true, 1.0, 0.02) - (3.0 + 440.0 * 0.02 + 1.0)).abs() < 1e-12);
        // In 0.003 s: the first tensor is ready at 7 s, takes 40 bytes, and all of forward follows; the computation is longer.
        assert_eq!(iteration_s(&profile(), true, 1.0, 0.003), 10.5);
        let without_optimiser = Profile { update_s: 0.0, ..profile() };
        assert!((iteration_s(&without_optimiser, true, 1.0, 0.003) - (7.0 + 40.0 * 0.003 + 3.0)).abs() < 1e-12);
        // Servers have the optimiser.
        assert_eq!(iteration_s(&profile(), false, 1.0, 0.0), 10.0);
        // Half of the computation.
        assert_eq!(iteration_s(&profile(), true, 0.5, 0.0), 5.25);
    }
}
