use serde::{Deserialize, Serialize};

use crate::{MemoryNeed, TensorId};

/// What one worker computes in an iteration: a model's tensors, and when forward and backward come to them.
///
/// A tensor may stand in several steps (a tied embedding, say): its parameters are *needed* before its first forward
/// step, and its gradient is *final* after its last backward step. `docs/json.md` describes the file; whoever has read one
/// [checks](Profile::check) it before anything else.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The version of the form: [`Profile::SCHEMA`].
    pub schema: u32,
    /// The model's name.
    pub model: String,
    /// What computes, such as `rtx2080ti`.
    pub device: String,
    /// Where the times come from: measured, by what; or derived, from what.
    pub source: String,
    /// Samples that a worker computes in an iteration.
    pub local_batch: usize,
    /// The local batch at which forward and backward were recorded, where they were scaled from it in proportion
    /// ([`Profile::for_batch`]). None: at [`Profile::local_batch`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded_batch: Option<usize>,
    /// In the order of the model's parameters.
    pub tensors: Vec<ProfileTensor>,
    /// In order of execution.
    pub forward: Vec<Step>,
    /// In order of execution.
    pub backward: Vec<Step>,
    /// Seconds in which the optimiser updates all parameters.
    pub update_s: f64,
    /// How far the time of an iteration may be from the truth, as a share of it: half the width of the interval in which it
    /// lies with 95 %, as far as whoever made the profile could tell. None: nobody has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uncertainty: Option<f64>,
    /// How much iterations differ from each other, which workers who wait for each other pay for: the mean difference of two (Gini's) that
    /// two workers make at the same time, or one worker makes at all, as a share of their mean, between 0 and 2. None: nobody has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
    /// What a worker takes in the device's memory. None: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryNeed>,
    /// Samples of an epoch: of what the model is usually trained on. None: nobody has said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch_samples: Option<usize>,
}

/// A tensor of a [`Profile`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileTensor {
    /// Unique within the model.
    pub name: String,
    /// How many numbers it holds.
    pub elements: usize,
    /// Multiply-accumulates of forward in which it takes part, per sample; 0 where unknown.
    #[serde(default)]
    pub forward_macs_per_sample: u64,
}

/// A piece of forward or backward.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// The tensor that it uses, or whose gradient it computes.
    pub tensor: TensorId,
    /// How long it takes.
    pub seconds: f64,
}

/// Why a profile cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// Another version of the form.
    #[error("the profile has schema {0}; this version of Paceline reads schema {expected}", expected = Profile::SCHEMA)]
    Schema(u32),
    /// A field contradicts the others, or makes no sense by itself.
    #[error("the profile is inconsistent: {field} {problem}")]
    Field {
        /// Where, such as `backward[3].seconds`.
        field: String,
        /// What is wrong there.
        problem: String,
    },
}

impl Profile {
    /// The version of the form that this version writes and reads.
    pub const SCHEMA: u32 = 1;

    /// The most that whoever makes a profile says of its [`Profile::uncertainty`], however little is known: an iteration takes some
    /// time.
    pub const UNCERTAINTY_MAX: f64 = 0.99;

    /// Does it fit together? What the other functions need: every tensor is computed with in forward and in backward,
    /// steps name tensors that there are, no time is negative, and no sum is beyond what can be counted. Linear in tensors
    /// and steps, but for sorting the names.
    ///
    /// # Errors
    /// The first field that does not fit.
    pub fn check(&self) -> Result<(), ProfileError> {
        if self.schema != Profile::SCHEMA {
            return Err(ProfileError::Schema(self.schema));
        }
        if self.local_batch == 0 {
            return wrong("local_batch", "is 0; a worker computes at least one sample");
        }
        if self.local_batch > LOCAL_BATCH_MAX {
            return wrong("local_batch", format!("is {}, more than a worker computes", self.local_batch));
        }
        if let Some(recorded) = self.recorded_batch.filter(|samples| !(1..=LOCAL_BATCH_MAX).contains(samples)) {
            return wrong("recorded_batch", format!("is {recorded}; it is a local batch, from 1 to {LOCAL_BATCH_MAX}"));
        }
        self.check_tensors()?;
        self.check_steps("forward", &self.forward)?;
        self.check_steps("backward", &self.backward)?;
        if !is_time(self.update_s) {
            return wrong("update_s", no_time(self.update_s));
        }
        if let Some(uncertainty) = self.uncertainty.filter(|share| !(share.is_finite() && *share >= 0.0)) {
            return wrong("uncertainty", format!("is {uncertainty}; it is a share of the time, such as 0.1"));
        }
        if let Some(spread) = self.spread.filter(|share| !(0.0..=SPREAD_MAX).contains(share)) {
            return wrong("spread", format!("is {spread:?}; it is a share of the time from 0 to 2, such as 0.1"));
        }
        if self.epoch_samples == Some(0) {
            return wrong("epoch_samples", "is 0; an epoch has at least one sample");
        }
        self.memory.as_ref().map_or(Ok(()), |need| need.check(self.parameters()))
    }

    /// Does an iteration take time, also where it is as short as the profile's uncertainty leaves it? Who reads a profile from
    /// outside asks that, too, as rates need it; a profile that fits together may take none, so that what communication takes
    /// stands alone.
    ///
    /// # Errors
    /// It takes none.
    pub fn check_pace(&self) -> Result<(), ProfileError> {
        if self.iteration_s() < SECONDS_MIN {
            return wrong("forward", "takes no time, and neither does anything else");
        }
        match self.uncertainty.filter(|share| *share >= 1.0) {
            Some(share) => wrong("uncertainty", format!("is {share}; it is a share of the time below 1, such as 0.1")),
            None => Ok(()),
        }
    }

    fn check_tensors(&self) -> Result<(), ProfileError> {
        if self.tensors.is_empty() {
            return wrong("tensors", "is empty");
        }
        let (mut elements, mut macs) = (0_usize, 0_u64);
        for (index, tensor) in self.tensors.iter().enumerate() {
            let field = |name: &str| format!("tensors[{index}].{name}");
            if tensor.elements == 0 {
                return wrong(field("elements"), "is 0");
            }
            match elements.checked_add(tensor.elements).filter(|sum| *sum <= ELEMENTS_MAX) {
                Some(sum) => elements = sum,
                None => return wrong(field("elements"), "makes the model larger than any memory"),
            }
            match macs.checked_add(tensor.forward_macs_per_sample).filter(|sum| *sum <= MACS_MAX) {
                Some(sum) => macs = sum,
                None => return wrong(field("forward_macs_per_sample"), "is more than can be computed"),
            }
        }
        let mut names: Vec<&str> = self.tensors.iter().map(|tensor| &*tensor.name).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(twice) => wrong("tensors", format!("has two of the name `{}`", twice[0])),
            None => Ok(()),
        }
    }

    fn check_steps(&self, phase: &str, steps: &[Step]) -> Result<(), ProfileError> {
        let mut seen = vec![false; self.tensors.len()];
        for (index, step) in steps.iter().enumerate() {
            match seen.get_mut(step.tensor) {
                Some(seen) => *seen = true,
                None => {
                    let problem = format!("is {}, and there are {} tensors", step.tensor, self.tensors.len());
                    return wrong(format!("{phase}[{index}].tensor"), problem);
                }
            }
            if !is_time(step.seconds) {
                return wrong(format!("{phase}[{index}].seconds"), no_time(step.seconds));
            }
        }
        match seen.iter().position(|seen| !seen) {
            Some(tensor) => wrong(phase, format!("has no step for tensor {tensor}")),
            None => Ok(()),
        }
    }

    /// Elements of each tensor.
    pub fn sizes(&self) -> Vec<usize> {
        self.tensors.iter().map(|tensor| tensor.elements).collect()
    }

    /// The tensors in the order in which their gradients become final.
    pub fn ready_order(&self) -> Vec<TensorId> {
        let mut last = vec![0; self.tensors.len()];
        self.backward.iter().enumerate().for_each(|(index, step)| last[step.tensor] = index);
        let mut order: Vec<TensorId> = (0..self.tensors.len()).collect();
        order.sort_by_key(|&tensor| last[tensor]);
        order
    }

    /// The tensors in the order in which forward first needs their parameters.
    pub fn use_order(&self) -> Vec<TensorId> {
        let mut first = vec![usize::MAX; self.tensors.len()];
        self.forward.iter().enumerate().rev().for_each(|(index, step)| first[step.tensor] = index);
        let mut order: Vec<TensorId> = (0..self.tensors.len()).collect();
        order.sort_by_key(|&tensor| first[tensor]);
        order
    }

    /// By tensor: seconds from the start of backward until its gradient is final.
    pub fn ready_s(&self) -> Vec<f64> {
        let mut ready = vec![0.0; self.tensors.len()];
        let mut now = 0.0;
        for step in &self.backward {
            now += step.seconds;
            ready[step.tensor] = now;
        }
        ready
    }

    /// Elements of all tensors: the parameters D.
    pub fn parameters(&self) -> usize {
        self.tensors.iter().map(|tensor| tensor.elements).sum()
    }

    /// Multiply-accumulates of a forward pass per sample; None if no tensor has any.
    pub fn forward_macs_per_sample(&self) -> Option<u64> {
        let macs = self.tensors.iter().map(|tensor| tensor.forward_macs_per_sample).sum();
        (macs > 0).then_some(macs)
    }

    /// Floating-point operations of an iteration per sample: two for each multiply-accumulate, and backward has twice those
    /// of forward. None if no tensor has multiply-accumulates.
    pub fn flops_per_sample(&self) -> Option<f64> {
        self.forward_macs_per_sample().map(|macs| 6.0 * macs as f64)
    }

    /// Model intensity I = C/D: three operations for each multiply-accumulate of forward (a multiply-accumulate counts as
    /// one, and backward as two forwards), over the parameters. None if no tensor has multiply-accumulates.
    pub fn intensity(&self) -> Option<f64> {
        self.forward_macs_per_sample().map(|macs| 3.0 * macs as f64 / self.parameters() as f64)
    }

    /// Seconds of an iteration of one worker that waits for nobody.
    pub fn iteration_s(&self) -> f64 {
        self.forward_s() + self.backward_s() + self.update_s
    }

    /// Seconds of forward.
    pub fn forward_s(&self) -> f64 {
        self.forward.iter().map(|step| step.seconds).sum()
    }

    /// Seconds of backward.
    pub fn backward_s(&self) -> f64 {
        self.backward.iter().map(|step| step.seconds).sum()
    }

    /// The profile for another local batch, forward and backward in proportion to it; the optimiser takes as long as
    /// before. Small batches use a device badly, so measure again where you can: [`Profile::scaled_from`] remembers the batch
    /// that was recorded.
    ///
    /// # Panics
    /// If `local_batch` is 0.
    pub fn for_batch(&self, local_batch: usize) -> Profile {
        assert!(local_batch > 0, "a worker computes at least one sample");
        if local_batch == self.local_batch {
            return self.clone();
        }
        let factor = local_batch as f64 / self.local_batch as f64;
        let recorded = self.recorded_batch.unwrap_or(self.local_batch);
        let scaled = |steps: &[Step]| -> Vec<Step> {
            steps.iter().map(|step| Step { seconds: step.seconds * factor, ..*step }).collect()
        };
        Profile {
            local_batch,
            recorded_batch: Some(recorded).filter(|&recorded| recorded != local_batch),
            source: format!("{}; scaled from a local batch of {}", self.source, self.local_batch),
            forward: scaled(&self.forward),
            backward: scaled(&self.backward),
            // What interrupts comes as often in each second: in the sum of many it is a smaller share.
            spread: self.spread.map(|spread| (spread / factor.sqrt()).min(SPREAD_MAX)),
            ..self.clone()
        }
    }

    /// The local batch from which forward and backward were scaled in proportion. None: they are those of
    /// [`Profile::local_batch`].
    pub fn scaled_from(&self) -> Option<usize> {
        self.recorded_batch.filter(|&recorded| recorded != self.local_batch)
    }
}

/// Two times differ by no more than both together.
const SPREAD_MAX: f64 = 2.0;
/// Samples of a worker: four billion.
const LOCAL_BATCH_MAX: usize = u32::MAX as usize;
/// Elements of all tensors: of so many, a machine word still counts the bytes, with room for what is kept of each element.
const ELEMENTS_MAX: usize = usize::MAX / 64;
/// Multiply-accumulates of a sample, likewise: six operations for each.
const MACS_MAX: u64 = u64::MAX / 8;
/// The longest time: thirty years. A sum of many is still a time that clocks can hold.
const SECONDS_MAX: f64 = 1e9;
/// The shortest iteration: less than a processor's cycle. What is done in a second then is still a number.
const SECONDS_MIN: f64 = 1e-12;

fn is_time(seconds: f64) -> bool {
    (0.0..=SECONDS_MAX).contains(&seconds)
}

fn no_time(seconds: f64) -> String {
    format!("is {seconds:?}; give seconds, from 0 to 10⁹")
}

pub(crate) fn wrong<T>(field: impl Into<String>, problem: impl Into<String>) -> Result<T, ProfileError> {
    Err(ProfileError::Field { field: field.into(), problem: problem.into() })
}
