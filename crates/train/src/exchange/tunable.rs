//! All-reduces of a plan whose knobs can be chosen, by a tuner or by a policy.

use paceline_comm::{CallOptions, Communicator, Origin};
use paceline_plan::{CollectiveKind, Partition, Plan};
use paceline_tune::environment::{Call, CostModel, OwnModel};
use paceline_tune::{Arm, Choice, Context, ContextKey, Parallelism, Situation, State};

use super::carrier::Way;
use crate::tuned::{TunedProgram, program_of, tuned_options, typical_situation};

/// What is known of the job, for the seed regimes of its calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Job {
    /// I = C/D: operations per sample and parameter; 0 if unknown.
    pub(crate) model_intensity: f64,
    /// M: samples per worker and iteration.
    pub(crate) local_batch: usize,
}

/// An operation of the plan.
pub(super) struct Operation {
    pub(super) key: ContextKey,
    pub(super) context: Context,
    pub(super) bytes: usize,
    /// As the carrier calls it.
    pub(super) base: CallOptions,
    /// What was chosen instead, in this iteration.
    pub(super) choice: Choice,
}

/// An all-reduce of so many bytes as a tuner sees it.
pub(super) fn state_of(workers: &Communicator, model: &OwnModel, job: Job, bytes: usize, origin: Origin) -> State {
    let topology = workers.topology();
    model.state(&Call {
        collective: CollectiveKind::AllReduce,
        bytes: bytes as u64,
        ranks: topology.world() as u32,
        hosts: topology.hosts() as u32,
        parallelism: Parallelism::Data,
        is_pipelined_layer: origin.is_pipelined(),
        is_fused_call: origin.is_fused(),
        // Where gradients go to servers, nothing is tuned.
        is_ps_deployment: false,
        model_intensity: job.model_intensity,
        local_batch: u32::try_from(job.local_batch).unwrap_or(u32::MAX),
        times: 1,
    })
}

/// The operations of a plan, which the carrier calls like this, each as a tuner sees it.
pub(super) fn operations(
    workers: &Communicator,
    model: &OwnModel,
    job: Job,
    plan: &Plan,
    options: Vec<CallOptions>,
) -> Vec<(Operation, State)> {
    let operation = |((_, partition), base): ((usize, &Partition), CallOptions)| {
        let bytes = partition.elements.len() * size_of::<f32>();
        let state = state_of(workers, model, job, bytes, base.origin);
        let context = state.context();
        (Operation { key: context.key(), context, bytes, base, choice: Choice::Default }, state)
    };
    plan.partitions().zip(options).map(operation).collect()
}

/// The contexts of operations, in short, which ranks compare: whoever saw another one would choose otherwise.
pub(super) fn seen<'a>(operations: impl IntoIterator<Item = &'a Operation>) -> String {
    operations.into_iter().map(|operation| format!("{:x}", operation.key.0)).collect::<Vec<_>>().join(" ")
}

impl Operation {
    /// From here on it is done by this choice, with one of these programs or otherwise, the same on all ranks; by the default, if what
    /// is chosen cannot be done.
    pub(super) fn choose(
        &mut self,
        choice: Choice,
        workers: &Communicator,
        fixed: Option<&str>,
        programs: &[TunedProgram],
    ) -> Way {
        let way = self.possible(choice, workers, fixed, programs);
        // Its times are the default's then.
        self.choice = if way.is_some() { choice } else { Choice::Default };
        way.unwrap_or_else(|| self.base.clone().into())
    }

    /// How it would be done by this choice. None if it cannot be done, on this rank and so on all.
    pub(super) fn possible(
        &self,
        choice: Choice,
        workers: &Communicator,
        fixed: Option<&str>,
        programs: &[TunedProgram],
    ) -> Option<Way> {
        if choice == Choice::Default {
            return Some(self.base.clone().into());
        }
        let open = CallOptions { algorithm: fixed.map(str::to_owned), chunk_bytes: None, ..self.base.clone() };
        // Where an algorithm is fixed, no program is a choice.
        if let Some((options, program)) = program_of(programs, choice, CollectiveKind::AllReduce, &open)
            && fixed.is_none()
        {
            return Some(Way { options, program: Some(program.clone()) });
        }
        let options = tuned_options(choice, CollectiveKind::AllReduce, &open);
        let (algorithm, chunk_bytes) = workers.choice(CollectiveKind::AllReduce, self.bytes, &options).ok()?;
        let algorithm = Some(algorithm.to_owned());
        Some(CallOptions { algorithm, chunk_bytes: Some(chunk_bytes.max(1)), ..options }.into())
    }
}

/// What can be done about the calls of a state's context, with the algorithm that is fixed, if one is.
pub(super) fn situation(model: &OwnModel, fixed: Option<&str>, state: &State) -> Option<Situation> {
    let all = typical_situation(model, state)?;
    match fixed {
        Some(fixed) => with_algorithm(&all, fixed),
        None => Some(all),
    }
}

/// What can be done with one algorithm alone. The default is what is nearest to that of all.
fn with_algorithm(all: &Situation, name: &str) -> Option<Situation> {
    let named = |arm: &&Arm| {
        let number = arm.action.family.algorithm;
        OwnModel::algorithm(CollectiveKind::AllReduce, number).is_some_and(|algorithm| algorithm == name)
    };
    let arms: Vec<Arm> = all.arms.iter().filter(named).copied().collect();
    let wanted = all.arms[all.default].action;
    let distance = |arm: &Arm| {
        let it = arm.action;
        let protocols = it.family.protocol as i16 - wanted.family.protocol as i16;
        let chunks = it.chunk_log2.abs_diff(wanted.chunk_log2);
        (protocols.abs(), it.channels.abs_diff(wanted.channels), it.threads.abs_diff(wanted.threads), chunks)
    };
    let default = (0..arms.len()).min_by_key(|&arm| distance(&arms[arm]))?;
    Situation::new(all.state, arms, default)
}

#[cfg(test)]
mod tests {
    use paceline_plan::Bucket;
    use paceline_schedule::Workload;
    use paceline_strategy::Registry;

    use super::super::Carrier;
    use super::*;
    use crate::on_ranks::on_ranks;
    use crate::peers::Peers;
    use crate::tuned::beliefs;

    /// Four tensors of 1 MiB, at which the first bucket of DDP is full.
    const SIZES: [usize; 4] = [1 << 18; 4];

    fn plan(strategy: &str) -> Plan {
        let strategy = Registry::built_in().parse(strategy).unwrap();
        paceline_schedule::plan(&strategy, &Workload::of_sizes(&SIZES)).unwrap()
    }

    /// Of each operation of a plan its origin, and whether a tuner sees it pipelined, and fused.
    fn seen(plan: &Plan) -> Vec<(Origin, bool, bool)> {
        let of_ranks = on_ranks(2, |workers| {
            let calls = Carrier::new(Peers::from(&workers), None).calls(plan, &[]).unwrap();
            let options = calls.iter().map(|call| call.options().clone()).collect();
            let job = Job { model_intensity: 100.0, local_batch: 8 };
            let all = operations(&workers, &beliefs(&workers), job, plan, options);
            let flags = |(operation, state): &(Operation, State)| {
                assert!(!state.is_ps_deployment);
                (operation.base.origin, state.is_pipelined_layer, state.is_fused_call)
            };
            all.iter().map(flags).collect::<Vec<_>>()
        });
        assert_eq!(of_ranks[0], of_ranks[1]);
        of_ranks[0].clone()
    }

    #[test]
    fn whether_calls_are_pipelined_follows_from_the_plan_and_not_from_a_bucket_alone() {
        assert_eq!(seen(&plan("bsp-a2a")), [(Origin::Fused, false, true)]);
        assert_eq!(seen(&plan("wfbp-a2a")), [(Origin::Layer, true, false); 4]);
        assert_eq!(seen(&plan("ddp")), [(Origin::Layer, true, false), (Origin::FusedPipelined, true, true)]);
        let of_one = |partitions: usize| {
            let whole = 0..SIZES[0];
            let part = |number: usize| Partition {
                elements: number * whole.end / partitions..(number + 1) * whole.end / partitions,
                shard: None,
            };
            let partitions = (0..partitions).map(part).collect();
            Plan { buckets: vec![Bucket { partitions, ..Bucket::whole(vec![0], whole.clone()) }], ..plan("bsp-a2a") }
        };
        assert_eq!(seen(&of_one(1)), [(Origin::Lone, false, false)]);
        assert_eq!(seen(&of_one(2)), [(Origin::Pipelined, true, false); 2]);
    }
}
