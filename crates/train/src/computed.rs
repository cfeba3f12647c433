//! What a worker computes, as measured while it trained.

use paceline_plan::{Profile, ProfileTensor, Step};

/// What was measured of an iteration: means over passes, of the slowest worker.
#[derive(Clone, Debug, Default)]
pub struct Computed {
    /// Elements of each tensor.
    pub sizes: Vec<usize>,
    /// By tensor: seconds from the start of backward until its gradient was final.
    pub ready_s: Vec<f64>,
    /// Seconds of forward, without waiting; and of getting the batch before it.
    pub forward_s: f64,
    /// Seconds of the optimiser.
    pub update_s: f64,
}

/// However much a few iterations differ.
const UNCERTAIN_MAX: f64 = 0.5;

/// The profile of a model of that name. Backward ends with its last gradient. Forward is not measured tensor by tensor: it
/// takes the tensors in their order, and its time is shared out as that of backward is, which does for each layer twice what
/// forward does. `uncertain`: the share by which iterations differ.
pub fn measured_profile(model: &str, local_batch: usize, computed: &Computed, uncertain: f64) -> Profile {
    let Computed { sizes, ready_s, forward_s, update_s } = computed;
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by(|&one, &other| ready_s[one].total_cmp(&ready_s[other]));
    let mut now: f64 = 0.0;
    let step = |&tensor: &usize| {
        let ready_s = ready_s[tensor].max(now);
        Step { tensor, seconds: ready_s - std::mem::replace(&mut now, ready_s) }
    };
    let backward: Vec<Step> = order.iter().map(step).collect();
    let backward_s: f64 = backward.iter().map(|step| step.seconds).sum();
    let mut share = vec![0.0; sizes.len()];
    backward.iter().for_each(|step| share[step.tensor] = step.seconds);
    let scale = if backward_s > 0.0 { forward_s / backward_s } else { 0.0 };
    let forward = (0..sizes.len()).map(|tensor| Step { tensor, seconds: share[tensor] * scale }).collect();
    let tensor = |(number, &elements): (usize, &usize)| ProfileTensor {
        name: number.to_string(),
        elements,
        forward_macs_per_sample: 0,
    };
    Profile {
        schema: Profile::SCHEMA,
        model: model.to_owned(),
        device: "here".to_owned(),
        source: "measured while training".to_owned(),
        local_batch: local_batch.max(1),
        tensors: sizes.iter().enumerate().map(tensor).collect(),
        forward,
        backward,
        update_s: *update_s,
        uncertainty: Some(if uncertain < UNCERTAIN_MAX { uncertain } else { UNCERTAIN_MAX }),
        ..Profile::default()
    }
}

/// A profile of which everything takes so many times as long.
pub(crate) fn slowed_profile(profile: &Profile, factor: f64) -> Profile {
    let slowed = |steps: &[Step]| -> Vec<Step> {
        steps.iter().map(|step| Step { seconds: step.seconds * factor, ..*step }).collect()
    };
    Profile {
        forward: slowed(&profile.forward),
        backward: slowed(&profile.backward),
        update_s: profile.update_s * factor,
        ..profile.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_profile_has_the_times_that_were_measured() {
        let computed =
            Computed { sizes: vec![10, 20, 30], ready_s: vec![6.0, 3.0, 2.0], forward_s: 3.0, update_s: 0.5 };
        let profile = measured_profile("mine", 8, &computed, f64::INFINITY);
        assert_eq!(profile.check(), Ok(()));
        assert_eq!((profile.sizes(), profile.ready_order()), (vec![10, 20, 30], vec![2, 1, 0]));
        assert_eq!((profile.ready_s(), profile.backward_s()), (vec![6.0, 3.0, 2.0], 6.0));
        assert_eq!((profile.forward_s(), profile.update_s, profile.local_batch), (3.0, 0.5, 8));
        assert_eq!(profile.use_order(), [0, 1, 2]);
        // Half a second for each second of backward.
        assert_eq!(profile.forward[0].seconds, 1.5);
        let slowed = slowed_profile(&profile, 4.0);
        assert_eq!((slowed.forward_s(), slowed.backward_s(), slowed.update_s), (12.0, 24.0, 2.0));
    }

    /// A worker that had no sample has measured nothing.
    #[test]
    fn without_times_it_is_a_profile_all_the_same() {
        let computed = Computed { sizes: vec![1, 2], ready_s: vec![0.0; 2], ..Computed::default() };
        assert_eq!(measured_profile("mine", 0, &computed, 0.1).check(), Ok(()));
    }
}
