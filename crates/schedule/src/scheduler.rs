use std::fmt;
use std::sync::Arc;

use paceline_plan::TensorId;
use paceline_strategy::{Aspect, Call, Method, Registry};

use crate::{ScheduleError, Workload, automatic, fusion, mg_wfbp, priority};

/// Decides which tensors travel together, and what goes first: the meaning of a `schedule=` method.
///
/// Any function of that form is one. It is pure: every rank calls it with the same arguments and must get the same answer.
/// A crate that brings its own adds it to [`Schedulers`]:
///
/// ```
/// use paceline_schedule::{Schedule, ScheduleError, Schedulers, Workload};
/// use paceline_strategy::{Aspect, Call, Kind, Method, Parameter, Presence};
///
/// /// Cuts the ready order in so many buckets of about as many tensors.
/// fn pieces(call: &Call, workload: &Workload) -> Result<Schedule, ScheduleError> {
///     let count = call.number(0).unwrap_or(1) as usize;
///     let tensors = workload.ready.len().div_ceil(count).max(1);
///     Ok(Schedule::of(workload.ready.chunks(tensors).map(<[_]>::to_vec).collect()))
/// }
///
/// let method = Method {
///     aspect: Aspect::Schedule,
///     name: "pieces",
///     parameters: &[Parameter {
///         name: "count",
///         kind: Kind::Count { min: 1, max: 1000 },
///         presence: Presence::Default("2"),
///     }],
///     sentence: "tensors sent in {count} pieces",
///     lossless: true,
///     available: true,
/// };
/// let mut schedulers = Schedulers::built_in();
/// schedulers.add(method, pieces);
/// let strategy = schedulers.grammar().parse("schedule=pieces:3,arch=a2a:ring")?;
/// let plan = schedulers.plan(&strategy, &Workload::of_sizes(&[10, 20, 30, 40, 50]))?;
/// assert_eq!(plan.buckets.len(), 3);
/// assert_eq!(plan.buckets[0].tensors, [4, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Scheduler: Send + Sync {
    /// The schedule of a model. `call` has every argument with a default filled in; the workload has been checked.
    ///
    /// # Errors
    /// What the workload lacks.
    fn schedule(&self, call: &Call, workload: &Workload) -> Result<Schedule, ScheduleError>;
}

impl<F: Fn(&Call, &Workload) -> Result<Schedule, ScheduleError> + Send + Sync> Scheduler for F {
    fn schedule(&self, call: &Call, workload: &Workload) -> Result<Schedule, ScheduleError> {
        self(call, workload)
    }
}

/// What a [`Scheduler`] decides. Where the pieces lie and which server adds them up follows from the arch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The tensors of each bucket, in the order in which the buckets are expected to be complete. Every tensor of the model
    /// is in one.
    pub buckets: Vec<Vec<TensorId>>,
    /// Of each bucket; lower is more urgent. Empty: all alike.
    pub priorities: Vec<u32>,
    /// Into about how many partitions of one length each bucket is cut; into more where the other limits want it. Empty:
    /// into as few as they allow.
    pub cuts: Vec<usize>,
    /// Buckets are cut into partitions of at most so many bytes.
    pub partition_bytes: Option<u64>,
    /// At most so many bytes are in flight; what a [`Scheduler`](crate::Scheduler) says is for each server where there are
    /// servers, as every one is a channel of its own.
    pub credit_bytes: Option<u64>,
    /// Does a layer's next forward pass start as soon as its own parameters have arrived?
    pub forward_overlap: bool,
    /// Do only servers look at the priorities?
    pub server_priority_only: bool,
}

impl Schedule {
    /// Buckets that are all as urgent, travel whole, and all arrive before the next forward pass.
    pub fn of(buckets: Vec<Vec<TensorId>>) -> Schedule {
        Schedule { buckets, ..Schedule::default() }
    }
}

/// The schedulers that a program has, and the grammar in which strategies name them.
#[derive(Clone)]
pub struct Schedulers {
    grammar: Registry,
    known: Vec<(&'static str, Arc<dyn Scheduler>)>,
}

impl Schedulers {
    /// Paceline's own.
    pub fn built_in() -> Schedulers {
        let scheduler = |scheduler: fn(&Call, &Workload) -> Result<Schedule, ScheduleError>| Arc::new(scheduler);
        Schedulers {
            grammar: Registry::built_in(),
            known: vec![
                ("none", scheduler(fusion::after_backward)),
                ("wfbp", scheduler(fusion::wait_free)),
                ("fusion", scheduler(fusion::fused)),
                ("ddp", scheduler(fusion::ddp)),
                ("mg-wfbp", scheduler(mg_wfbp::merged)),
                ("bytescheduler", scheduler(priority::bytescheduler)),
                ("server-priority", scheduler(priority::server_priority)),
                ("auto", scheduler(automatic::automatic)),
            ],
        }
    }

    /// Adds a scheduler and its word of the grammar, or replaces the one of that name.
    ///
    /// # Panics
    /// If the method's aspect is not the schedule.
    pub fn add(&mut self, method: Method, scheduler: impl Scheduler + 'static) {
        assert_eq!(method.aspect, Aspect::Schedule, "`{}` is no method of the schedule", method.name);
        self.grammar.add_method(method);
        self.known.retain(|(name, _)| *name != method.name);
        self.known.push((method.name, Arc::new(scheduler)));
    }

    /// The grammar: what strategies can name.
    pub fn grammar(&self) -> &Registry {
        &self.grammar
    }

    /// To add presets, rules, and methods of other aspects.
    pub fn grammar_mut(&mut self) -> &mut Registry {
        &mut self.grammar
    }

    /// The scheduler of that name.
    pub fn get(&self, name: &str) -> Option<&dyn Scheduler> {
        self.known.iter().find(|(known, _)| *known == name).map(|(_, scheduler)| &**scheduler)
    }

    /// The names, in the order in which they were added.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.known.iter().map(|(name, _)| *name)
    }
}

impl fmt::Debug for Schedulers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}
