//! From a strategy to a plan that is carried out.

use std::time::Duration;

use paceline_comm::Communicator;
use paceline_plan::{Plan, TensorId};
use paceline_schedule::{ScheduleError, Schedulers, Workload};
use paceline_strategy::{Call, Strategy};

use crate::agreement::Agreement;
use crate::error::TrainError;
use crate::exchange::Handicap;
use crate::measure::CommunicationCost;
use crate::peers::Peers;

/// Iterations that are measured before the plan is made from them, and those before that do not count.
pub(crate) const MEASURING: usize = 5;
pub(crate) const MEASURING_WARM_UP: usize = 3;

/// What is planned from.
pub(crate) struct Planning<'a> {
    pub(crate) strategy: &'a Strategy,
    /// What its schedule may be.
    pub(crate) schedulers: &'a Schedulers,
    pub(crate) peers: &'a Peers,
    /// Elements of each tensor.
    pub(crate) sizes: &'a [usize],
    /// How many times slower than real everything runs.
    pub(crate) slowed: f64,
}

/// What is known about the computation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// The tensors in the order in which forward first needs them. `None`: that of the parameters.
    pub(crate) used: Option<Vec<TensorId>>,
    /// By tensor: seconds from the start of backward until its gradient is final.
    pub(crate) ready_s: Option<Vec<f64>>,
}

impl Planning<'_> {
    /// Plans. A schedule that wants times which were not measured is planned as wait-free backpropagation, as the plan's
    /// strategy says, and false stands beside it: plan again when they are.
    pub(crate) fn first(&self, known: &Known, cost: Option<&CommunicationCost>) -> Result<(Plan, bool), TrainError> {
        let planned = self.plan(self.strategy, known, cost);
        let again = self.strategy.is_open() || matches!(planned, Err(ScheduleError::NotMeasured { .. }));
        if let Some(why) = self.strategy.refuses_new_plans().filter(|_| again) {
            return Err(TrainError::Options(why));
        }
        let planned = match planned {
            Err(ScheduleError::NotMeasured { .. }) => {
                let wait_free = Strategy { schedule: Call::named("wfbp"), ..self.strategy.clone() };
                (self.plan(&wait_free, known, cost)?, false)
            }
            plan => (plan?, true),
        };
        self.agree(&planned.0)?;
        Ok(planned)
    }

    /// Plans again, with everything measured.
    pub(crate) fn again(
        &self,
        before: &Plan,
        known: &Known,
        cost: Option<&CommunicationCost>,
    ) -> Result<Plan, TrainError> {
        let plan = Plan { version: before.version + 1, ..self.plan(self.strategy, known, cost)? };
        self.agree(&plan)?;
        Ok(plan)
    }

    /// The plan of a strategy, which may be another one on the same arch.
    pub(crate) fn plan(
        &self,
        strategy: &Strategy,
        known: &Known,
        cost: Option<&CommunicationCost>,
    ) -> Result<Plan, ScheduleError> {
        let workers = self.workers();
        let seconds = |bytes| cost.map_or(0.0, |cost| cost.seconds(bytes));
        let mut workload = Workload::of_sizes(self.sizes).with_world(workers.world_size(), workers.topology().hosts());
        if let Some(used) = &known.used {
            workload.used.clone_from(used);
        }
        if let Some(ready_s) = &known.ready_s {
            workload.ready.sort_by(|&one, &other| ready_s[one].total_cmp(&ready_s[other]));
            workload.ready_s = Some(ready_s.clone());
        }
        // A worker alone waits for nobody.
        if cost.is_some() || workers.world_size() == 1 {
            workload = workload.with_communication(&seconds);
        }
        self.schedulers.plan(strategy, &workload)
    }

    /// A plan from measurements that all workers share is the same on all; this proves it.
    pub(crate) fn agree(&self, plan: &Plan) -> Result<(), TrainError> {
        self.check_shards(plan)?;
        let mut agreement = Agreement::default();
        agreement.add("the strategy", &plan.strategy);
        agreement.add("the plan", format!("{:016x}", plan.hash()));
        agreement.compare(self.workers())
    }

    /// Are there as many shards as a plan has? Where the arch is open, more may have been met than serve.
    pub(crate) fn check_shards(&self, plan: &Plan) -> Result<(), TrainError> {
        let (wanted, shards) = (plan.shards, self.peers.shards());
        if wanted == shards || wanted < shards && self.strategy.arch_is_open() {
            return Ok(());
        }
        let strategy = &plan.strategy;
        Err(TrainError::Options(format!("the strategy {strategy} wants {wanted} shards, and {shards} are here")))
    }

    /// What the strategy adds to the start of operations.
    pub(crate) fn handicap(&self) -> Handicap {
        let start_up = self.start_up();
        Handicap { start_up: (!start_up.is_zero()).then_some(start_up), slowed: self.slowed }
    }

    /// In real time.
    pub(crate) fn start_up(&self) -> Duration {
        self.strategy.start_up(self.workers().world_size())
    }

    fn workers(&self) -> &Communicator {
        self.peers.workers()
    }
}
