//! Profiles of models of which a throughput is known, and what each tensor multiplies.
//!
//! An iteration is forward, backward twice as long, and the optimiser. Tensors share forward by their multiply-accumulates;
//! those without (biases, normalisations) take no time of their own. AdamW updates BERT at 1.63e-10 s per parameter: with
//! that, and only with that, both BERTs compute at the same rate (9.47 TFLOP/s, 70 % of the device's peak; two equations,
//! two unknowns). It is 84 bytes of memory traffic per parameter, what PyTorch's separate elementwise operations of AdamW
//! move, at 84 % of the RTX 2080 Ti's 616 GB/s. Momentum SGD moves 44 bytes, so it takes 44/84 of that time.

use crate::profile::wrong;
use crate::scale::by_memory;
use crate::{Profile, ProfileError, ProfileTensor, Step, TensorId};

/// Where the optimiser's time is known.
pub(crate) const DEVICE: &str = "rtx2080ti";
/// At which both BERTs compute there, in operations per second.
const DEVICE_FLOPS: f64 = 9.47e12;

const ADAMW_S_PER_PARAMETER: f64 = 1.63e-10;
const SGD_S_PER_PARAMETER: f64 = ADAMW_S_PER_PARAMETER * 44.0 / 84.0;

/// What updates the parameters, as far as it takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Updating {
    /// SGD with momentum.
    MomentumSgd,
    /// AdamW.
    AdamW,
}

impl Updating {
    /// Seconds that an RTX 2080 Ti takes for so many parameters.
    pub(crate) fn seconds(self, parameters: usize) -> f64 {
        let each_s = match self {
            Updating::MomentumSgd => SGD_S_PER_PARAMETER,
            Updating::AdamW => ADAMW_S_PER_PARAMETER,
        };
        parameters as f64 * each_s
    }

    fn name(self) -> &'static str {
        match self {
            Updating::MomentumSgd => "momentum SGD",
            Updating::AdamW => "AdamW",
        }
    }
}

/// What one device trains of a model of which otherwise only the tensors are known.
///
/// ```
/// use paceline_plan::{ProfileTensor, Throughput, Updating};
///
/// let tensor = |name: &str, elements, forward_macs_per_sample| ProfileTensor {
///     name: name.into(),
///     elements,
///     forward_macs_per_sample,
/// };
/// let throughput = Throughput {
///     model: "mine".into(),
///     device: "v100".into(),
///     local_batch: 32,
///     samples_per_s: 400.0,
///     uncertainty: 0.1,
///     updating: Updating::AdamW,
/// };
/// let tensors = vec![tensor("layer.weight", 1_000_000, 5_000_000), tensor("layer.bias", 1000, 0)];
/// let profile = throughput.profile(tensors)?;
/// assert!((profile.iteration_s() - 0.08).abs() < 1e-12);
/// # Ok::<(), paceline_plan::ProfileError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Throughput {
    /// What the profile calls the model.
    pub model: String,
    /// What trains it: a device that is built in, by which the optimiser's time is known; or another one.
    pub device: String,
    /// Samples of an iteration.
    pub local_batch: usize,
    /// Samples that are trained in a second.
    pub samples_per_s: f64,
    /// By which share that is uncertain.
    pub uncertainty: f64,
    /// What updates the parameters.
    pub updating: Updating,
}

impl Throughput {
    /// The profile of a model with these tensors, which forward comes to in their order, once to each, and backward the other way
    /// round. What a worker takes in memory nothing says.
    ///
    /// # Errors
    /// The first number that makes no sense, also beside the others.
    pub fn profile(&self, tensors: Vec<ProfileTensor>) -> Result<Profile, ProfileError> {
        if !(self.samples_per_s.is_finite() && self.samples_per_s > 0.0) {
            return wrong("samples_per_s", format!("is {}; one device trains more than none", self.samples_per_s));
        }
        let forward: Vec<TensorId> = (0..tensors.len()).collect();
        let without_time: Vec<Step> = forward.iter().map(|&tensor| Step { tensor, seconds: 0.0 }).collect();
        let mut profile = Profile {
            schema: Profile::SCHEMA,
            model: self.model.clone(),
            device: self.device.clone(),
            source: self.source(),
            local_batch: self.local_batch,
            tensors,
            forward: without_time.clone(),
            backward: without_time,
            uncertainty: Some(self.uncertainty),
            ..Profile::default()
        };
        // No sum is then beyond what can be counted.
        profile.check()?;
        let Some(macs) = profile.forward_macs_per_sample() else {
            let problem = "have no multiply-accumulates, so nothing says how they share the time: give them, in a list \
                           as the column fwd_macs_per_sample";
            return wrong("tensors", problem);
        };
        profile.update_s = self.update_s(profile.parameters(), macs)?;
        let forward_s = (self.iteration_s() - profile.update_s) / 3.0;
        [profile.forward, profile.backward] = steps(&profile.tensors, &forward, forward_s);
        profile.check().and_then(|()| profile.check_pace())?;
        Ok(profile)
    }

    fn iteration_s(&self) -> f64 {
        self.local_batch as f64 / self.samples_per_s
    }

    /// The optimiser is bound by memory: on a device whose memory is known it takes as much longer or shorter. On another one
    /// memory and computation are taken to be as many times faster.
    fn update_s(&self, parameters: usize, macs: u64) -> Result<f64, ProfileError> {
        let (there_s, iteration_s) = (self.updating.seconds(parameters), self.iteration_s());
        let Some(factor) = by_memory(DEVICE, &self.device) else {
            let computed_s = 6.0 * macs as f64 * self.local_batch as f64 / DEVICE_FLOPS;
            return Ok(iteration_s * there_s / (there_s + computed_s));
        };
        let update_s = there_s * factor;
        if update_s < iteration_s {
            return Ok(update_s);
        }
        let Throughput { device, local_batch, samples_per_s, updating, .. } = self;
        let problem = format!(
            "is {samples_per_s}: {local_batch} samples take {iteration_s:.2e} s then, and {} alone takes \
             {update_s:.2e} s on {device}",
            updating.name()
        );
        wrong("samples_per_s", problem)
    }

    fn source(&self) -> String {
        let Throughput { device, samples_per_s, updating, .. } = self;
        let how = match by_memory(DEVICE, device) {
            Some(_) => "by the memory's bandwidth",
            None => "with the share of an iteration that it has on an RTX 2080 Ti",
        };
        format!(
            "derived: {samples_per_s} samples/s on one {device}, as given, forward : backward = 1 : 2, tensors by \
             multiply-accumulates, in the order of their list; {} {how}",
            updating.name()
        )
    }
}

/// Forward, in which `forward` names the tensors in the order of execution and the last step of a tensor has its arithmetic; and
/// backward, the other way round and twice as long.
pub(crate) fn steps(tensors: &[ProfileTensor], forward: &[TensorId], forward_s: f64) -> [Vec<Step>; 2] {
    let macs: u64 = tensors.iter().map(|tensor| tensor.forward_macs_per_sample).sum();
    let mut last = vec![0; tensors.len()];
    forward.iter().enumerate().for_each(|(index, &tensor)| last[tensor] = index);
    let step = |(index, &tensor): (usize, &TensorId)| {
        let share = tensors[tensor].forward_macs_per_sample as f64 / macs as f64;
        Step { tensor, seconds: if last[tensor] == index { forward_s * share } else { 0.0 } }
    };
    let steps: Vec<Step> = forward.iter().enumerate().map(step).collect();
    let backward = steps.iter().rev().map(|step| Step { seconds: 2.0 * step.seconds, ..*step }).collect();
    [steps, backward]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::built_in_profile;

    /// The study's throughput of ResNet-50.
    fn resnet50(device: &str) -> Throughput {
        Throughput {
            model: "resnet50".into(),
            device: device.into(),
            local_batch: 64,
            samples_per_s: 253.1,
            uncertainty: 0.1,
            updating: Updating::MomentumSgd,
        }
    }

    fn tensors() -> Vec<ProfileTensor> {
        built_in_profile("resnet50").expect("it is built in").tensors
    }

    #[test]
    fn the_tensors_and_the_throughput_that_are_built_in_give_the_profile_that_is() {
        let built_in = built_in_profile("resnet50").expect("it is built in");
        let Profile { source, memory, epoch_samples, .. } = built_in.clone();
        let profile = resnet50(DEVICE).profile(tensors()).expect("it makes sense");
        assert!(profile.source.contains("253.1 samples/s on one rtx2080ti, as given"), "{}", profile.source);
        assert_eq!((profile.memory, profile.epoch_samples), (None, None));
        assert_eq!(Profile { source, memory, epoch_samples, ..profile }, built_in);
    }

    #[test]
    fn the_optimiser_goes_with_a_memory_that_is_known() {
        let update_s = |device: &str, updating| {
            let profile = Throughput { updating, ..resnet50(device) }.profile(tensors()).expect(device);
            assert!((profile.iteration_s() / (64.0 / 253.1) - 1.0).abs() < 1e-9, "{device}");
            assert!((profile.backward_s() / profile.forward_s() - 2.0).abs() < 1e-9, "{device}");
            profile.update_s
        };
        let near = |left: f64, right: f64| (left / right - 1.0).abs() < 1e-9;
        let [sgd, adamw] = [Updating::MomentumSgd, Updating::AdamW];
        assert!(near(update_s(DEVICE, adamw), 25_557_032.0 * 1.63e-10));
        assert!(near(update_s("v100", sgd), 25_557_032.0 * 1.63e-10 * 44.0 / 84.0 * 616.0 / 900.0));
        // On a GPU that is not known, it has the share of an iteration that it would have on the one that is.
        let macs: u64 = tensors().iter().map(|tensor| tensor.forward_macs_per_sample).sum();
        let (there_s, computed_s) = (update_s(DEVICE, adamw), 6.0 * macs as f64 * 64.0 / 9.47e12);
        assert!(near(update_s("h100", adamw), 64.0 / 253.1 * there_s / (there_s + computed_s)));
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_named() {
        type Change = fn(&mut Throughput, &mut Vec<ProfileTensor>);
        let cases: [(Change, &str); 10] = [
            (|given, _| given.samples_per_s = 0.0, "samples_per_s is 0; one device trains more than none"),
            (|given, _| given.samples_per_s = f64::NAN, "samples_per_s is NaN"),
            (|given, _| given.samples_per_s = 1e-300, "forward[0].seconds is"),
            (
                |given, _| given.samples_per_s = 1e6,
                "samples_per_s is 1000000: 64 samples take 6.40e-5 s then, and momentum SGD alone takes 2.18e-3 s",
            ),
            (|given, _| given.local_batch = 0, "local_batch is 0"),
            (|given, _| given.uncertainty = 1.0, "uncertainty is 1; it is a share of the time below 1"),
            (|_, tensors| tensors.clear(), "tensors is empty"),
            (|_, tensors| tensors[1].name = tensors[0].name.clone(), "tensors has two of the name `conv1.weight`"),
            (|_, tensors| tensors[1].forward_macs_per_sample = u64::MAX, "forward_macs_per_sample is more than"),
            (
                |_, tensors| tensors.iter_mut().for_each(|tensor| tensor.forward_macs_per_sample = 0),
                "tensors have no multiply-accumulates",
            ),
        ];
        for (change, says) in cases {
            let (mut given, mut tensors) = (resnet50(DEVICE), tensors());
            change(&mut given, &mut tensors);
            let error = given.profile(tensors).expect_err(says).to_string();
            assert!(error.contains(says), "`{error}` does not say `{says}`");
        }
    }
}
