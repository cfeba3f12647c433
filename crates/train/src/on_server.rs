//! Optimisers on the shards of a parameter server (`arch=ps` with the mode `apply`).

use std::sync::Arc;

use paceline_plan::{OperationNumber, Plan};
use paceline_server::{Apply, Optimizers, ServeOptions, Update};
use serde::{Deserialize, Serialize};

use crate::learning_rate::LearningRate;
use crate::optimizer::{Optimizer, OptimizerSettings, Part};

/// What workers tell shards that have the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Specification {
    /// Train with this.
    Optimizer(OptimizerSettings, LearningRate),
    /// A replay, which has no parameters: workers get the sums in their place, and check them.
    Sums,
}

impl Specification {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        postcard::to_stdvec(&self).unwrap_or_else(|error| unreachable!("plain numbers have a form: {error}"))
    }
}

/// The optimisers of this crate for [`ServeOptions::optimizers`]: with them, shards do what workers of a training or a
/// measurement with `arch=ps:…:apply` ask for. A shard keeps the optimiser's state of its own partitions only.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerOptimizers;

impl Optimizers for ServerOptimizers {
    fn make(&self, specification: &[u8], plan: &Plan, shard: usize) -> Result<Box<dyn Apply>, String> {
        let unreadable = |_| "cannot be read; run the same version of Paceline on all ranks".to_owned();
        let (settings, learning_rate) = match postcard::from_bytes(specification).map_err(unreadable)? {
            Specification::Sums => return Ok(Box::new(Sums)),
            Specification::Optimizer(settings, learning_rate) => (settings, learning_rate),
        };
        settings.check().map_err(|what| format!("makes no sense: {what}"))?;
        let own = |(_, partition): (usize, &paceline_plan::Partition)| {
            if partition.shard == Some(shard) { partition.elements.len() } else { 0 }
        };
        Ok(Box::new(OnServer { optimizer: settings.build(plan.partitions().map(own)), learning_rate }))
    }
}

/// How shards serve a training or a measurement, whatever mode its strategy has.
pub fn serve_options() -> ServeOptions {
    ServeOptions { optimizers: Some(Arc::new(ServerOptimizers)), ..ServeOptions::default() }
}

/// To its optimiser, every operation of the plan is a parameter; those of other shards are empty.
struct OnServer {
    optimizer: Box<dyn Optimizer>,
    learning_rate: LearningRate,
}

impl Apply for OnServer {
    fn apply(&mut self, update: &Update, gradient: &[f32], parameters: &mut [f32]) {
        let operation: OperationNumber = update.operation;
        let part = Part::whole(operation, update.iteration as usize + 1, self.learning_rate.at(update.iteration));
        // Workers see by the parameters if a gradient was not finite.
        let _ = self.optimizer.step(&part, parameters, gradient);
    }
}

/// Of a replay.
struct Sums;

impl Apply for Sums {
    fn apply(&mut self, _update: &Update, gradient: &[f32], parameters: &mut [f32]) {
        parameters.copy_from_slice(gradient);
    }
}

/// The workers' side: what has come from the servers are the new values.
pub(crate) struct FromServer;

impl Optimizer for FromServer {
    fn step(&mut self, part: &Part, values: &mut [f32], parameters: &[f32]) -> bool {
        values[part.start..part.start + parameters.len()].copy_from_slice(parameters);
        parameters.iter().fold(true, |finite, value| finite & value.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::{Bucket, Partition};

    use super::*;
    use crate::optimizer::{AdamWSettings, SgdSettings};

    /// Two partitions, the second of this shard.
    fn plan() -> Plan {
        let partition = |elements, shard| Partition { elements, shard: Some(shard) };
        let bucket =
            Bucket { partitions: vec![partition(0..3, 1), partition(3..5, 0)], ..Bucket::whole(vec![0], 0..5) };
        Plan {
            version: 1,
            strategy: String::new(),
            buckets: vec![bucket],
            shards: 2,
            credit_bytes: None,
            forward_overlap: false,
            server_priority_only: false,
        }
    }

    #[test]
    fn a_shard_does_what_a_worker_would() {
        let sgd = OptimizerSettings::Sgd(SgdSettings { weight_decay: 0.1, ..SgdSettings::default() });
        let adamw = OptimizerSettings::AdamW(AdamWSettings::default());
        let learning_rate = LearningRate::new(0.1, &"cosine:2".parse().unwrap(), 1, 5);
        for settings in [sgd, adamw] {
            let specification = Specification::Optimizer(settings, learning_rate).to_bytes();
            let mut shard = ServerOptimizers.make(&specification, &plan(), 0).unwrap();
            let mut worker = settings.build([2].into_iter());
            let (mut there, mut here) = ([1.0, -2.0], [1.0, -2.0]);
            for iteration in 0..5 {
                let gradient = [0.5 - iteration as f32, 0.25];
                let update = Update { operation: 1, elements: 3..5, iteration };
                shard.apply(&update, &gradient, &mut there);
                let part = Part::whole(0, iteration as usize + 1, learning_rate.at(iteration));
                worker.step(&part, &mut here, &gradient);
            }
            assert_eq!(there, here, "{settings}");
        }
    }

    #[test]
    fn what_a_shard_cannot_do_is_told() {
        let told = |bytes: &[u8]| ServerOptimizers.make(bytes, &plan(), 0).err().unwrap();
        assert!(told(b"").contains("same version"));
        let settings = OptimizerSettings::Sgd(SgdSettings { momentum: 2.0, ..SgdSettings::default() });
        let error = told(&Specification::Optimizer(settings, LearningRate::constant(0.1)).to_bytes());
        assert_eq!(error, "makes no sense: momentum 2 must be at least 0 and below 1");
    }

    #[test]
    fn a_worker_takes_over_what_comes() {
        let mut values = [0.0; 4];
        let part = Part { start: 1, ..Part::whole(0, 1, 0.1) };
        assert!(FromServer.step(&part, &mut values, &[7.0, 8.0]));
        assert_eq!(values, [0.0, 7.0, 8.0, 0.0]);
        assert!(!FromServer.step(&part, &mut values, &[f32::NAN, 8.0]));
    }
}
