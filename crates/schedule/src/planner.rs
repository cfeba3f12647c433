use std::ops::Range;

use paceline_plan::{Bucket, Partition, Plan};
use paceline_strategy::{Servers, Strategy};

use crate::partition::{Placement, cut};
use crate::workload::check_order;
use crate::{ELEMENT_BYTES, Schedule, ScheduleError, Schedulers, Workload};

/// In which pieces and which order the gradients of a model travel under a strategy with a built-in schedule; see
/// [`Schedulers::plan`].
///
/// # Errors
/// As there.
pub fn plan(strategy: &Strategy, workload: &Workload) -> Result<Plan, ScheduleError> {
    Schedulers::built_in().plan(strategy, workload)
}

impl Schedulers {
    /// In which pieces and which order the gradients of a model travel under a strategy. The plan has version 1.
    ///
    /// The schedule says which tensors form a bucket and how urgent each is. The buckets lie in the arena one after the other.
    /// Each is cut into partitions of at most as many bytes as the schedule or the arch wants, whichever is less; under
    /// `arch=ps` each partition goes to the server that has the fewest bytes so far. (`docs/scheduling.md`.) Linear in the tensors and
    /// partitions, but for what the scheduler itself does.
    ///
    /// # Errors
    /// If the schedule is one without a planner, wants what was not measured, or if the workload contradicts itself.
    pub fn plan(&self, strategy: &Strategy, workload: &Workload) -> Result<Plan, ScheduleError> {
        workload.check()?;
        let call = &strategy.schedule;
        let Some(scheduler) = self.get(&call.name) else {
            let planned = self.names().collect();
            return Err(ScheduleError::NoPlanner { schedule: call.to_string(), planned });
        };
        let schedule = scheduler.schedule(call, workload)?;
        // Each server has an interface of its own to keep busy.
        let shards = strategy.servers(workload.workers, workload.hosts).map_or(1, |servers| servers.shards.max(1));
        let credit_bytes = schedule.credit_bytes.map(|bytes| bytes.saturating_mul(shards as u64));
        lay_out(strategy, &Schedule { credit_bytes, ..schedule }, workload)
    }
}

/// The plan of a schedule that somebody else has made (its credit is that of all servers together), under the arch of a strategy. It has version 1. As
/// [`Schedulers::plan`], without the scheduler.
///
/// # Errors
/// The schedule does not fit the workload, or the workload contradicts itself.
pub fn lay_out(strategy: &Strategy, schedule: &Schedule, workload: &Workload) -> Result<Plan, ScheduleError> {
    workload.check()?;
    let call = &strategy.schedule;
    let tensors: Vec<usize> = schedule.buckets.concat();
    check_order(&format!("schedule={call}"), workload.sizes.len(), &tensors)?;
    let buckets = schedule.buckets.len();
    let (priorities, cuts) = (schedule.priorities.len(), schedule.cuts.len());
    if priorities != 0 && priorities != buckets {
        return Err(ScheduleError::Priorities { schedule: call.to_string(), priorities, buckets });
    }
    if cuts != 0 && cuts != buckets {
        return Err(ScheduleError::Cuts { schedule: call.to_string(), cuts, buckets });
    }
    let servers = strategy.servers(workload.workers, workload.hosts);
    Ok(Plan {
        version: 1,
        strategy: strategy.to_string(),
        buckets: buckets_of(schedule, servers, &workload.sizes),
        shards: servers.map_or(0, |servers| servers.shards),
        credit_bytes: schedule.credit_bytes,
        forward_overlap: schedule.forward_overlap,
        server_priority_only: schedule.server_priority_only,
    })
}

/// The buckets one after the other in the arena, cut and placed.
pub(crate) fn buckets_of(schedule: &Schedule, servers: Option<Servers>, sizes: &[usize]) -> Vec<Bucket> {
    let of_servers = servers.map(|servers| servers.partition_bytes);
    let limit = [schedule.partition_bytes, of_servers].into_iter().flatten().min().unwrap_or(u64::MAX);
    let limit = usize::try_from(limit / ELEMENT_BYTES).unwrap_or(usize::MAX);
    let mut placement = servers.map(|servers| Placement::new(servers.shards));
    let mut end = 0;
    let mut bucket = |(number, tensors): (usize, &Vec<usize>)| {
        let start = end;
        end += tensors.iter().map(|&tensor| sizes[tensor]).sum::<usize>();
        let partition = |elements: Range<usize>| {
            let shard = placement.as_mut().map(|placement| placement.place(elements.len()));
            Partition { elements, shard }
        };
        let pieces = schedule.cuts.get(number).copied().unwrap_or(1).max(1);
        let limit = limit.min((end - start).div_ceil(pieces));
        Bucket {
            tensors: tensors.clone(),
            elements: start..end,
            priority: schedule.priorities.get(number).copied().unwrap_or(0),
            partitions: cut(start..end, limit).map(partition).collect(),
        }
    };
    schedule.buckets.iter().enumerate().map(&mut bucket).collect()
}
