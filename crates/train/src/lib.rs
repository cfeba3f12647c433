//! The training engine: model, data, optimiser, and the loop that hides communication behind backward.
//!
//! Every rank calls [`train`] with its communicator; here, three ranks that are threads of one process.
//!
//! ```
//! use paceline_comm::Communicator;
//! use paceline_train::{BatchSize, ModelName, Silent, TrainOptions, train};
//!
//! let options = TrainOptions {
//!     model: ModelName::Mlp,
//!     strategy: "wfbp-a2a".into(),
//!     batch: BatchSize::Global(30),
//!     iterations: Some(40),
//!     ..TrainOptions::default()
//! };
//! let ranks = Communicator::threads(3)?.into_iter().map(|communicator| {
//!     let options = options.clone();
//!     std::thread::spawn(move || train(&communicator, &options, &mut Silent))
//! });
//! let reports: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("no panic")).collect();
//! for report in &reports {
//!     let report = report.as_ref().expect("all ranks trained");
//!     assert_eq!((report.world_size, report.iterations), (3, 40));
//!     // 1,200 of the sample's 6,000 images are enough for more than half of the test images; chance is a tenth.
//!     assert!(report.test_accuracy > 0.5);
//! }
//! # Ok::<(), paceline_comm::CommError>(())
//! ```
//!
//! A gradient goes from [`Backend::gradients`] into the arena of an exchange as soon as backward has it; a bucket of the
//! plan sets off when its last gradient is in, while backward goes on; after backward the trainer waits bucket by bucket
//! and lets the [`Optimizer`] update the parameters. Every rank computes the same update from the same bits.
//!
//! Only the module of the backend knows the framework (candle); a model of one's own is a [`Model`] for it, or a
//! [`Backend`] on another framework, given to [`train_model`].
#![deny(missing_docs)]
#![forbid(unsafe_code)]

// The file that tests within this crate share with those beside it calls it by its name.
#[cfg(test)]
extern crate self as paceline_train;

mod agreement;
mod auto;
mod backend;
mod computed;
mod data;
mod dump;
mod error;
mod exchange;
mod executed;
#[cfg(test)]
#[path = "../tests/support/fake_backend.rs"]
mod fake_backend;
mod fusion;
mod iteration_times;
mod json;
mod kineto;
mod learning_rate;
mod measure;
mod memory;
mod meter;
#[cfg(test)]
mod on_ranks;
mod on_server;
mod optimizer;
mod options;
mod peers;
mod planning;
mod profile;
mod profiling;
mod random;
mod read_at_most;
mod recording;
mod replay;
mod report;
mod stages;
mod start;
mod sync;
mod tensor_list;
mod timeline;
mod trainer;
mod tuned;
mod tuning;
mod update_rule;
mod updates;
mod worker;

pub use auto::{Decision, calibrate, interfere};
pub use backend::{
    Access, Activations, Backend, BackendError, Bert, BertSettings, Buffers, CandleBackend, Cnn, Evaluation,
    ForwardGate, GradientSink, Initial, Lend, Mlp, Model, ModelName, Normalise, OpenGate, Parameters, ResNet20,
    ResNet50, ResNet50Settings, SharedSink, SinkClosed, Slot, TensorInfo, TensorSpec, TransformerLm,
    TransformerSettings, UnknownModel,
};
pub use computed::{Computed, measured_profile};
pub use data::{
    Batch, CLASSES, DEBIAN_FASHION_MNIST, Data, DataError, DataSource, Dataset, Form, Images, Inputs, Sharding,
    Synthetic, Text, UnknownSource,
};
pub use dump::dump_path;
pub use error::TrainError;
pub use executed::{AllReduce, Change, ChangedAllReduce, ExecutedPlans, PlanFileError, Stage};
pub use json::{JsonError, read_json};
pub use kineto::{TraceError, TraceOptions, TracedProfile, profile_of_trace, read_trace};
pub use learning_rate::{LearningRate, LearningRateSchedule, ScheduleTextError};
pub use measure::{
    CellRun, CommunicationCost, FormulaInputs, InFlight, Interference, Lateness, Length, MeasureOptions, Overtaking,
    RECORDED_ITERATIONS, Subject, measure, student_t_975,
};
pub use memory::{
    MemoryError, MemoryEstimate, ShardsHere, available_memory, memory_estimate, memory_need, memory_of_parameters,
    peak_memory, training_memory,
};
pub use on_server::{ServerOptimizers, serve_options};
pub use optimizer::{
    AdamW, AdamWSettings, MomentumSgd, Optimizer, OptimizerSettings, Part, SgdSettings, UnknownOptimizer,
};
pub use options::{BatchSize, DEFAULT_EPOCHS, TrainOptions};
pub use peers::Peers;
pub use profile::{ProfileSourceError, load_profile};
pub use profiling::{MeasuredProfile, ProfileOptions, ProfiledStart, profile_model, profile_of_starts};
pub use report::{EpochRow, Observer, Progress, Silent, Start, TrainReport};
pub use tensor_list::{TensorListError, parse_tensor_list, read_tensor_list};
pub use timeline::{Lane, Process, Span, Timeline};
pub use trainer::{train, train_model};
pub use tuned::{
    CommonClock, Finish, Iterations, Rehearsed, RehearsedIterations, Took, TunedCalls, TunedProgram, links_of, named,
    race, ranks_that_differ, rehearse_iterations, tuned_options,
};
pub use tuning::{
    FollowedOperations, FusionReport, IterationGain, TuneOptions, TunedContext, TuningNews, TuningReport,
    TuningStanding,
};
pub use update_rule::UpdateRule;
