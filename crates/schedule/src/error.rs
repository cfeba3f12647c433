use paceline_plan::TensorId;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// Nobody plans the strategy's schedule.
    #[error("there is no planner for schedule={schedule}; planned are {}", .planned.join(", "))]
    NoPlanner {
        /// The method and its arguments.
        schedule: String,
        /// The schedules with a planner.
        planned: Vec<&'static str>,
    },
    /// The schedule needs what was not measured.
    #[error(
        "schedule={schedule} plans from measurements, and {lacking} have not been measured; measure first, or choose another schedule"
    )]
    NotMeasured {
        /// The method.
        schedule: &'static str,
        /// What is lacking.
        lacking: &'static str,
    },
    /// The network's cost function gives something that is no time.
    #[error("the network cannot take {seconds} s for {bytes} bytes; measure it again")]
    Cost {
        /// The size asked for.
        bytes: u64,
        /// The answer.
        seconds: String,
    },
    /// An order of the tensors doesn't name each of them once.
    #[error("the {what} order of {tensors} tensors must name each of them once; it has {given} entries{}", at(.culprit))]
    Order {
        /// "ready" or "use", or the schedule whose buckets they are.
        what: String,
        /// The tensors of the model.
        tensors: usize,
        /// The entries of the order.
        given: usize,
        /// The first entry that stands for no tensor, or for one that was named before.
        culprit: Option<TensorId>,
    },
    /// The times at which gradients become final contradict their order.
    #[error("the ready times of {tensors} tensors must rise in the ready order; there are {given} times")]
    ReadyTimes {
        /// The tensors of the model.
        tensors: usize,
        /// How many times there are.
        given: usize,
    },
    /// The times at which forward needs parameters are no times, or not one for each tensor.
    #[error(
        "forward needs each of {tensors} tensors at one time that is finite and not negative; there are {given} times"
    )]
    NeedTimes {
        /// The tensors of the model.
        tensors: usize,
        /// How many times there are.
        given: usize,
    },
    /// A scheduler cut another number of buckets than it made.
    #[error("schedule={schedule} says of {cuts} buckets into how many pieces to cut them, and it has made {buckets}")]
    Cuts {
        /// The method and its arguments.
        schedule: String,
        /// Of how many it says so.
        cuts: usize,
        /// How many it has made.
        buckets: usize,
    },
    /// A scheduler gave priorities to another number of buckets than it made.
    #[error("the priorities of schedule={schedule} are those of {priorities} buckets, and it has made {buckets}")]
    Priorities {
        /// The method and its arguments.
        schedule: String,
        /// How many it gave.
        priorities: usize,
        /// How many it needs.
        buckets: usize,
    },
}

fn at(culprit: &Option<TensorId>) -> String {
    culprit.map_or_else(String::new, |tensor| format!(", and tensor {tensor} is unknown or named twice"))
}
