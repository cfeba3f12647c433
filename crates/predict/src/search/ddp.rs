//! What comes closest for those who train with PyTorch.

use std::fmt;

use paceline_plan::Profile;
use paceline_schedule::Schedulers;
use paceline_strategy::{Call, Strategy, Value};

use super::{Answer, Question};
use crate::job::{Costs, Subject};
use crate::prediction::point;
use crate::{Job, PredictError, Prediction};

/// Settings of PyTorch's `DistributedDataParallel`.
#[derive(Clone, Debug)]
pub struct DdpSettings {
    /// `bucket_cap_mb`, in MiB. None: PyTorch's own 25 MiB, with 1 MiB for the first bucket. One that is given holds for the
    /// first bucket, too.
    pub bucket_cap_mb: Option<u64>,
    /// The hook to register, of `torch.distributed.algorithms.ddp_comm_hooks`: the one of fp16. None: an all-reduce of the
    /// gradients as they are, which is what DDP does without one.
    pub comm_hook: Option<&'static str>,
    /// What it would do.
    pub prediction: Prediction,
}

/// Bucket sizes in MiB that are tried, besides PyTorch's own.
const CAPS_MIB: [u64; 9] = [1, 2, 5, 10, 25, 50, 100, 200, 400];

/// The hook that sends numbers of half the length. (PyTorch, "DDP communication hooks".) That of bf16 sends as many bytes, so
/// the same would be predicted of it.
const HALF: &str = "default_hooks.fp16_compress_hook";

/// The settings with the highest predicted throughput for the answer's best batch; with gradients that travel in 16 bits if
/// lossy methods are admitted and that is faster, as if converting them took no time. DDP fuses neighbours in the order in which
/// gradients become ready (it rebuilds its buckets after the first iteration), waits for all of them before the optimiser, and
/// leaves the algorithm to its collective library.
///
/// # Errors
/// It cannot be predicted.
pub fn ddp_settings(question: &Question, answer: &Answer) -> Result<DdpSettings, PredictError> {
    let best = answer.best();
    let profile = question.profile.for_batch(best.local_batch);
    let protocol = &best.strategy.protocol;
    let mut costs = None;
    let mut with = |bucket_cap_mb: Option<u64>| -> Result<DdpSettings, PredictError> {
        let prediction = under(question, protocol, &profile, bucket_cap_mb, 1, &mut costs)?;
        Ok(DdpSettings { bucket_cap_mb, comm_hook: None, prediction })
    };
    let mut settings = with(None)?;
    for cap in CAPS_MIB {
        let other = with(Some(cap))?;
        // PyTorch's own stays unless another one is worth a line of code.
        if other.prediction.samples_per_s > settings.prediction.samples_per_s * (1.0 + WORTH) {
            settings = other;
        }
    }
    if !question.space.lossy || question.workers == 1 {
        return Ok(settings);
    }
    let (halved, mut costs) = (halved(&profile), None);
    // The caller admits that numbers lose digits on the way; what converting them takes is in no constant.
    for cap in [None].into_iter().chain(CAPS_MIB.map(Some)) {
        let prediction = under(question, protocol, &halved, cap, 2, &mut costs)?;
        if prediction.samples_per_s > settings.prediction.samples_per_s * (1.0 + WORTH) {
            settings = DdpSettings { bucket_cap_mb: cap, comm_hook: Some(HALF), prediction };
        }
    }
    Ok(settings)
}

/// The profile of a model whose gradients have half the bytes.
fn halved(profile: &Profile) -> Profile {
    let mut halved = profile.clone();
    halved.tensors.iter_mut().for_each(|tensor| tensor.elements = tensor.elements.div_ceil(2));
    halved
}

/// A gain below this share is not worth it.
const WORTH: f64 = 1e-3;

/// On the answer's links. A bucket is full of gradients before they are made `shorter`, so many times. What operations of the profile
/// `cost` is the same for all buckets, and on another topology than `flat` takes long to find: it is found once.
fn under(
    question: &Question,
    protocol: &Call,
    profile: &Profile,
    bucket_cap_mb: Option<u64>,
    shorter: u64,
    costs: &mut Option<Costs>,
) -> Result<Prediction, PredictError> {
    let schedule = match bucket_cap_mb {
        None => [25 << 20, 1 << 20].map(|bytes| Value::Bytes(bytes / shorter)).to_vec(),
        Some(mib) => vec![Value::Bytes((mib << 20) / shorter)],
    };
    let strategy = Strategy {
        schedule: Call { arguments: schedule, ..Call::named("fusion") },
        arch: Call::all_to_all("auto"),
        protocol: protocol.clone(),
        ..question.space.strategy.clone()
    };
    let Question { cluster, workers, .. } = *question;
    let job = Job { cluster, profile, strategy: &strategy, workers, local_batch: None };
    let subject = Subject::new(&job)?;
    let costs = match costs {
        Some(known) => known,
        None => costs.insert(subject.costs(cluster)?),
    };
    let plan = subject.plan(costs, &Schedulers::built_in())?;
    Ok(point(&subject, costs, plan, false))
}

/// As one would write it, in a line.
impl fmt::Display for DdpSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.comm_hook.is_some() {
            write!(f, "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks; ")?;
        }
        write!(f, "model = torch.nn.parallel.DistributedDataParallel(model")?;
        if let Some(mib) = self.bucket_cap_mb {
            write!(f, ", bucket_cap_mb={mib}")?;
        }
        write!(f, ", gradient_as_bucket_view=True)")?;
        match self.comm_hook {
            Some(hook) => write!(f, "; model.register_comm_hook(None, {hook})"),
            None => Ok(()),
        }
    }
}
