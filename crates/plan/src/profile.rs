use serde::{Deserialize, Serialize};

use crate::TensorId;

/// What one worker computes in an iteration: a model's tensors, and when forward and backward come to them.
///
/// A tensor may stand in several steps (a tied embedding, say): its parameters are *needed* before its first forward
/// step, and its gradient is *final* after its last backward step. `docs/json.md` describes the file; whoever has read one
/// [checks](Profile::check) it before anything else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// In the order of the model's parameters.
    pub tensors: Vec<ProfileTensor>,
    /// In order of execution.
    pub forward: Vec<Step>,
    /// In order of execution.
    pub backward: Vec<Step>,
    /// Seconds in which the optimiser updates all parameters.
    pub update_s: f64,
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
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
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

    /// Does it fit together? What the other functions need: every tensor is computed with in forward and in backward,
    /// steps name tensors that there are, and no time is negative.
    ///
    /// # Errors
    /// The first field that does not fit.
    pub fn check(&self) -> Result<(), ProfileError> {
        if self.schema != Profile::SCHEMA {
            return Err(ProfileError::Schema(self.schema));
        }
        let wrong = |field: String, problem: &str| Err(ProfileError::Field { field, problem: problem.to_owned() });
        if self.local_batch == 0 {
            return wrong("local_batch".into(), "is 0; a worker computes at least one sample");
        }
        if self.tensors.is_empty() {
            return wrong("tensors".into(), "is empty");
        }
        if let Some(empty) = self.tensors.iter().position(|tensor| tensor.elements == 0) {
            return wrong(format!("tensors[{empty}].elements"), "is 0");
        }
        let mut names: Vec<&str> = self.tensors.iter().map(|tensor| &*tensor.name).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return wrong("tensors".into(), &format!("has two of the name `{}`", twice[0]));
        }
        self.check_steps("forward", &self.forward)?;
        self.check_steps("backward", &self.backward)?;
        if !is_time(self.update_s) {
            return wrong("update_s".into(), "is no time");
        }
        Ok(())
    }

    fn check_steps(&self, phase: &str, steps: &[Step]) -> Result<(), ProfileError> {
        let wrong = |field: String, problem: String| Err(ProfileError::Field { field, problem });
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
                return wrong(format!("{phase}[{index}].seconds"), "is no time".to_owned());
            }
        }
        match seen.iter().position(|seen| !seen) {
            Some(tensor) => wrong(phase.to_owned(), format!("has no step for tensor {tensor}")),
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

    /// Seconds of forward.
    pub fn forward_s(&self) -> f64 {
        self.forward.iter().map(|step| step.seconds).sum()
    }

    /// Seconds of backward.
    pub fn backward_s(&self) -> f64 {
        self.backward.iter().map(|step| step.seconds).sum()
    }

    /// The profile for another local batch, forward and backward in proportion to it; the optimiser takes as long as
    /// before. Small batches use a device badly, so measure again where you can.
    ///
    /// # Panics
    /// If `local_batch` is 0.
    pub fn for_batch(&self, local_batch: usize) -> Profile {
        assert!(local_batch > 0, "a worker computes at least one sample");
        if local_batch == self.local_batch {
            return self.clone();
        }
        let factor = local_batch as f64 / self.local_batch as f64;
        let scaled = |steps: &[Step]| -> Vec<Step> {
            steps.iter().map(|step| Step { seconds: step.seconds * factor, ..*step }).collect()
        };
        Profile {
            local_batch,
            source: format!("{}; scaled from a local batch of {}", self.source, self.local_batch),
            forward: scaled(&self.forward),
            backward: scaled(&self.backward),
            ..self.clone()
        }
    }
}

fn is_time(seconds: f64) -> bool {
    seconds.is_finite() && seconds >= 0.0
}
