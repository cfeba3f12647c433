//! Runs operations where nothing is computed, and takes their times.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use paceline_comm::{Buffer, CallOptions, CommError, Reduction};
use paceline_plan::{OperationNumber, Plan};

use super::cost::Before;
use crate::error::{TrainError, WhileTraining};
use crate::exchange::{Call, Carrier, Travelling};

/// Operations of a plan that are started at once.
pub(super) struct Group {
    pub operations: Range<OperationNumber>,
    /// Operations that are started later, one after the other, and awaited before.
    pub overtaken_by: Range<OperationNumber>,
}

impl Group {
    /// Operations that nothing overtakes.
    pub fn of(operations: Range<OperationNumber>) -> Group {
        Group { overtaken_by: operations.end..operations.end, operations }
    }
}

/// What operations took, in seconds.
pub(super) struct Probed {
    /// By group and repetition those of the slowest worker.
    pub slowest: Vec<Vec<f64>>,
    /// And of the fastest.
    pub fastest: Vec<Vec<f64>>,
    /// Of each that overtook a group, by repetition, those of the fastest worker.
    pub overtaking: Vec<f64>,
}

impl Carrier {
    /// The version of plans that only measure, counting down: no training has so many.
    pub(crate) const PROBE_VERSION: u32 = u32::MAX;

    /// Runs the operations of each group at once, one group after the other; so many times that count. The operations of the
    /// groups, and of each what overtakes it, are those of the plan, in its order. What is done `before` is done ahead of each
    /// group that nothing overtakes.
    pub(super) fn probe(
        &self,
        plan: &Plan,
        groups: &[Group],
        repetitions: usize,
        before: Option<Before<'_>>,
    ) -> Result<Probed, TrainError> {
        let carrier = self.aggregating();
        carrier.assign(plan, 0..repetitions as u64 + 1)?;
        let probe = Probe::new(&carrier, plan, groups).while_training(DOING)?;
        probe.run(repetitions, before.unwrap_or(&mut || Ok(())))
    }
}

const DOING: &str = "measuring what operations cost";

struct Probe<'a> {
    carrier: &'a Carrier,
    groups: &'a [Group],
    calls: Vec<Call>,
    /// By operation.
    buffers: Vec<Buffer<f32>>,
    /// Of each group the least that it took here.
    shortest: Vec<Duration>,
}

impl<'a> Probe<'a> {
    fn new(carrier: &'a Carrier, plan: &Plan, groups: &'a [Group]) -> Result<Probe<'a>, CommError> {
        let workers = carrier.peers().workers();
        let buffers = plan.partitions().map(|(_, partition)| workers.alloc::<f32>(partition.elements.len()));
        Ok(Probe {
            carrier,
            groups,
            calls: carrier.calls(plan, &[])?,
            buffers: buffers.collect::<Result<_, _>>()?,
            shortest: vec![Duration::MAX; groups.len()],
        })
    }

    fn run(mut self, repetitions: usize, before: Before<'_>) -> Result<Probed, TrainError> {
        let workers = self.carrier.peers().workers();
        let mut slowest = vec![Vec::new(); self.groups.len()];
        let mut all_overtaking = Vec::new();
        for repetition in 0..=repetitions {
            let mut idle = std::mem::take(&mut self.buffers).into_iter();
            for (number, slowest) in slowest.iter_mut().enumerate() {
                workers.barrier(&CallOptions::default()).while_training(DOING)?;
                if self.groups[number].overtaken_by.is_empty() {
                    before()?;
                }
                let (took, overtaking) = self.run_group(number, repetition, &mut idle).while_training(DOING)?;
                self.shortest[number] = took.min(self.shortest[number]);
                // The first time does not count.
                if repetition > 0 {
                    slowest.push(took.as_secs_f64());
                    all_overtaking.extend(overtaking.iter().map(Duration::as_secs_f64));
                }
            }
        }
        let agree = |seconds: &mut Vec<f64>, reduction| match seconds.is_empty() {
            true => Ok(()),
            false => workers.all_reduce(seconds, reduction, &CallOptions::default()).map(drop),
        };
        let mut fastest = slowest.clone();
        slowest.iter_mut().try_for_each(|all| agree(all, Reduction::Max)).while_training(DOING)?;
        fastest.iter_mut().try_for_each(|all| agree(all, Reduction::Min)).while_training(DOING)?;
        agree(&mut all_overtaking, Reduction::Min).while_training(DOING)?;
        Ok(Probed { slowest, fastest, overtaking: all_overtaking })
    }

    /// How long a group took, and each that overtook it. Takes buffers in the order of the plan, and gives them back in it.
    fn run_group(
        &mut self,
        number: usize,
        repetition: usize,
        idle: &mut impl Iterator<Item = Buffer<f32>>,
    ) -> Result<(Duration, Vec<Duration>), CommError> {
        let Group { operations, overtaken_by } = &self.groups[number];
        let began = Instant::now();
        let mut start = |operation: OperationNumber| {
            let id = (repetition * self.calls.len() + operation) as u64;
            idle.next().map(|buffer| self.carrier.start(&self.calls[operation], id, buffer, None))
        };
        let travelling: Vec<Travelling> = operations.clone().filter_map(&mut start).collect::<Result<_, _>>()?;
        let (mut overtook, mut overtaking) = (Vec::new(), Vec::new());
        for (index, operation) in overtaken_by.clone().enumerate() {
            // Spread over the first half of the time: links are full then, and will be for a while.
            if repetition > 0 {
                let due = self.shortest[number] * (index as u32 + 1) / (2 * overtaken_by.len() as u32);
                thread::sleep(due.saturating_sub(began.elapsed()));
            }
            let began = Instant::now();
            overtook.extend(start(operation).transpose()?.map(Travelling::wait).transpose()?);
            overtaking.push(began.elapsed());
        }
        for one in travelling {
            self.buffers.push(one.wait()?.into_gradient());
        }
        let took = began.elapsed();
        self.buffers.extend(overtook.into_iter().map(|one| one.into_gradient()));
        Ok((took, overtaking))
    }
}
