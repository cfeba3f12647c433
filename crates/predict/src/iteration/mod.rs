//! Training iterations in virtual time.
//!
//! Synchronous data parallelism is symmetric: workers that compute alike share one timeline, a [`WorkerClass`], so the cost
//! grows with the classes and the tensors, and not with the workers. Each class computes forward and backward, step by step;
//! it announces gradients to the [`paceline_schedule::Dispatcher`] of the plan, the same one that the runtime asks, and
//! starts what that gives. What an operation goes through then is data ([`Operations`]):
//!
//! - the *line*, which carries the most urgent operation that is on it: the channel of all-to-all operations, on which one
//!   is when every class has started it; or the bus of a class's hosts, on the way to servers;
//! - *links*, several at once: each carries the most urgent operation, and the last of them to be through ends the stage;
//! - a *server*, whose processor takes what [`paceline_engine::shard::Shard`] says, the most urgent first. (Where whole iterations
//!   are played message by message, `by_message.rs`, no shard is asked: servers begin whatever a worker has begun.)
//!
//! What is more urgent than what a line or a link carries overtakes that, whose rest comes later. The one that overtakes arrives
//! later, too: bytes that links have taken in already hold it up ([`Operations::later_if_it_overtakes`]).
//!
//! While the line is busy computation is slower, and the other way round ([`Interference`]).
//!
//! ```
//! use paceline_plan::built_in_profile;
//! use paceline_predict::iteration::{Length, Operations, Training, WorkerClass, simulate};
//! use paceline_schedule::{Workload, plan};
//! use paceline_strategy::Registry;
//!
//! // ResNet-50, tensor by tensor, where an all-reduce takes 0.2 ms and 2 ns per byte.
//! let profile = built_in_profile("resnet50").expect("it is built in");
//! let plan = plan(&Registry::built_in().parse("wfbp-a2a")?, &Workload::of_profile(&profile))?;
//! let operations = Operations::on_channel(&plan, |bytes| 0.2e-3 + 2e-9 * bytes as f64);
//! let classes = [WorkerClass::of(&profile, 8)];
//! let outcome = simulate(&Training::new(&plan, &classes, &operations), Length::Steady);
//! // Forward takes 84 ms, the channel 237 ms from the first gradient on, the optimiser 2 ms.
//! println!("{:.0} ms", 1e3 * outcome.iteration_s);
//! assert!((outcome.iteration_s - 0.323).abs() < 0.003);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod by_message;
mod event;
mod length;
mod line;
mod links;
mod operations;
mod pace;
mod places;
mod run;
mod script;
mod server;
#[cfg(test)]
pub(crate) mod tests;

use paceline_plan::{OperationNumber, Plan, Profile, TensorId};

#[cfg(test)]
pub(crate) use by_message::PATIENCE_S;
pub(crate) use by_message::{Messages, Starts, simulate_by_message};
pub use operations::{Line, Operations, Part};
pub use pace::Spread;

/// Workers that compute alike.
#[derive(Clone, Copy, Debug)]
pub struct WorkerClass<'a> {
    /// What they compute. All classes have the tensors of the plan.
    pub profile: &'a Profile,
    /// How many they are. At least 1.
    pub workers: usize,
    /// Seconds that each second of the profile takes: 1.1 for workers that are a tenth slower.
    pub slowness: f64,
    /// How iterations differ.
    pub spread: Spread,
}

impl<'a> WorkerClass<'a> {
    /// Workers that compute as the profile says, always.
    pub fn of(profile: &'a Profile, workers: usize) -> WorkerClass<'a> {
        WorkerClass { profile, workers, slowness: 1.0, spread: Spread::Alike }
    }
}

/// What communication and computation cost each other while both are under way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interference {
    /// Seconds that a second of computation takes longer while its line is busy, or for each link that is.
    pub computation: f64,
    /// Seconds that a second of the line takes longer while a class computes that it serves.
    pub communication: f64,
}

/// What a bucket's compression costs on the resource that computes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Coding {
    /// Seconds between its last gradient and its start; what backward computes next waits for it.
    pub encode_s: f64,
    /// Seconds between its arrival and the update.
    pub decode_s: f64,
}

/// When gradients are announced to the dispatcher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Announce {
    /// As they become final.
    #[default]
    AsReady,
    /// All when backward is over, in the order in which they became final.
    AfterBackward,
}

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Training<'a> {
    /// In which pieces and which order gradients travel.
    pub plan: &'a Plan,
    /// Who computes. At least one class.
    pub classes: &'a [WorkerClass<'a>],
    /// What each operation of the plan goes through.
    pub operations: &'a Operations,
    /// What communication and computation cost each other.
    pub interference: Interference,
    /// By bucket; empty: nothing is compressed.
    pub coding: &'a [Coding],
    /// When gradients are announced.
    pub announce: Announce,
    /// Do servers update the parameters, so that workers need not?
    pub servers_update: bool,
    /// Are spans wanted?
    pub timeline: bool,
}

impl<'a> Training<'a> {
    /// Without interference, compression and timeline.
    pub fn new(plan: &'a Plan, classes: &'a [WorkerClass<'a>], operations: &'a Operations) -> Training<'a> {
        Training {
            plan,
            classes,
            operations,
            interference: Interference::default(),
            coding: &[],
            announce: Announce::AsReady,
            servers_update: false,
            timeline: false,
        }
    }
}

/// How long it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Until two iterations differ by less than a nanosecond; at most ten. Every worker computes as its class says on average.
    Steady,
    /// So many iterations, in each of which every class is as slow as the slowest of its workers, drawn from the seed.
    Drawn {
        /// Another seed, other draws; the same, the same.
        seed: u64,
        /// At least 1.
        iterations: usize,
    },
}

/// How training goes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Seconds of an iteration: of the last one, or the mean of those drawn.
    pub iteration_s: f64,
    /// The standard deviation of those drawn; 0 of a steady one.
    pub deviation_s: f64,
    /// What went on in the last iteration, if that was wanted; 0 is its start.
    pub spans: Vec<Span>,
}

/// A piece of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Whose it is. Of links and servers, which serve all: 0.
    pub class: usize,
    /// What it is.
    pub lane: Lane,
    /// Seconds since the start of the iteration; negative for what began before.
    pub start_s: f64,
    /// Not before `start_s`.
    pub end_s: f64,
    /// The tensor that is computed with, where it is one.
    pub tensor: Option<TensorId>,
    /// The operation of the plan, where it is one's.
    pub operation: Option<OperationNumber>,
}

impl Span {
    /// The same where everything takes so many times as long.
    pub(crate) fn times(self, factor: f64) -> Span {
        Span { start_s: factor * self.start_s, end_s: factor * self.end_s, ..self }
    }
}

/// Where a span belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Forward, on the resource that computes.
    Forward,
    /// Backward.
    Backward,
    /// Compressing a bucket.
    Encode,
    /// Decompressing it.
    Decode,
    /// The optimiser.
    Update,
    /// On the channel of all-to-all operations, or the bus of a host.
    Line,
    /// On the links, from when the first of those that were through last carried it, interruptions included.
    Links,
    /// On a server's processor.
    Server,
}

impl Lane {
    /// All, in the order in which an iteration comes to them.
    pub const ALL: [Lane; 8] = [
        Lane::Forward,
        Lane::Backward,
        Lane::Encode,
        Lane::Decode,
        Lane::Update,
        Lane::Line,
        Lane::Links,
        Lane::Server,
    ];

    /// In words.
    pub const fn name(self) -> &'static str {
        match self {
            Lane::Forward => "forward",
            Lane::Backward => "backward",
            Lane::Encode => "encode",
            Lane::Decode => "decode",
            Lane::Update => "update",
            Lane::Line => "channel",
            Lane::Links => "network",
            Lane::Server => "server",
        }
    }
}

/// Simulates training. Pure and deterministic: the same arguments give the same outcome.
///
/// The cost is iterations × (tensors + operations · stages) × log(of what is under way), classes times what is theirs; one
/// iteration is enough where none overlaps with the next and all workers are alike.
///
/// # Panics
/// If there is no class, the operations are not those of the plan, or the plan not one of the profiles' tensors.
pub fn simulate(training: &Training<'_>, length: Length) -> Outcome {
    assert!(!training.classes.is_empty(), "nobody computes");
    assert_eq!(training.operations.count(), training.plan.operations(), "the operations of another plan");
    for class in training.classes {
        assert_eq!(class.profile.tensors.len(), training.plan.tensors(), "a plan for another model");
    }
    run::Run::new(training).run(length)
}
