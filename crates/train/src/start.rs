//! What the ranks do before the first step: compare themselves, and take rank 0's values.

use paceline_comm::{CallOptions, Communicator};
use paceline_plan::Fnv1a;

use crate::agreement::Agreement;
use crate::backend::{Backend, Slot};
use crate::data::Data;
use crate::error::{TrainError, WhileTraining};
use crate::options::TrainOptions;
use crate::tuning::TuneOptions;

/// Compares everything that shapes the run: model, data and options.
pub(crate) fn compare_ranks(
    communicator: &Communicator,
    options: &TrainOptions,
    data: &Data,
    backend: &dyn Backend,
) -> Result<(), TrainError> {
    let mut agreement = Agreement::default();
    agreement.add("the model", options.model_name());
    for (kind, tensors) in [("parameter", backend.parameters()), ("buffer", backend.buffers())] {
        for (number, tensor) in tensors.iter().enumerate() {
            agreement.add(format!("{kind} {number} of the model"), format!("{} {:?}", tensor.name, tensor.shape));
        }
    }
    agreement.add("the training data", data.training.fingerprint());
    agreement.add("the test data", data.test.fingerprint());
    agreement.add("the global batch size", options.global_batch(communicator.world_size()));
    agreement.add("the passes per update", options.accumulate);
    agreement.add("the epochs and iterations", format!("{:?} and {:?}", options.epochs, options.iterations));
    agreement.add("the optimiser", options.optimizer);
    agreement.add("the learning rate", format!("{}, {}", options.learning_rate, options.lr_schedule));
    agreement.add("the norm to clip to", format!("{:?}", options.clip_norm));
    agreement.add("the seed", options.seed);
    agreement.add("the strategy", &options.strategy);
    let tune = options.tune.as_ref().map(TuneOptions::of_all_ranks);
    agreement.add("whether calls are tuned", format!("{tune:?}"));
    let policy = options.policy.as_ref().map(|policy| format!("{:x}", policy.fingerprint()));
    agreement.add("the policy that calls follow", format!("{policy:?}"));
    // It may be long, where a job was searched for its best plan.
    let plan = options.plan.as_ref().map(|plan| format!("{:x}", Fnv1a::of(format!("{plan:?}").as_bytes())));
    agreement.add("the plan to carry out again", format!("{plan:?}"));
    agreement.compare(communicator)
}

/// Overwrites this rank's parameters and buffers with rank 0's.
pub(crate) fn broadcast_model(communicator: &Communicator, backend: &mut dyn Backend) -> Result<(), TrainError> {
    let parameters = (0..backend.parameters().len()).map(Slot::Parameter).collect();
    broadcast(communicator, backend, parameters)?;
    broadcast_buffers(communicator, backend)
}

/// Overwrites this rank's buffers with rank 0's. Batch normalisation keeps running statistics of what its own rank has
/// seen. Rank 0 has had samples in every pass, and its statistics are the model's: as in PyTorch's DDP, but only when
/// they are used.
pub(crate) fn broadcast_buffers(communicator: &Communicator, backend: &mut dyn Backend) -> Result<(), TrainError> {
    let buffers = (0..backend.buffers().len()).map(Slot::Buffer).collect();
    broadcast(communicator, backend, buffers)
}

fn broadcast(communicator: &Communicator, backend: &mut dyn Backend, slots: Vec<Slot>) -> Result<(), TrainError> {
    let rank = communicator.rank();
    for slot in slots {
        let mut sent = Ok(());
        let broadcast = &mut |values: &mut [f32]| sent = communicator.broadcast(values, 0, &CallOptions::default());
        backend.access(slot, broadcast).map_err(|source| TrainError::Backend { rank, source })?;
        sent.while_training("broadcasting rank 0's parameters and buffers")?;
    }
    Ok(())
}
