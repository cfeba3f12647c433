//! Under construction.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod agreement;
mod backend;
mod data;
mod dump;
mod error;
mod exchange;
mod meter;
mod models;
mod optimizer;
mod options;
mod random;
mod report;
mod start;
mod trainer;

pub use backend::{
    Backend, BackendError, CandleBackend, Evaluation, GradientSink, Initial, Model, SharedSink, SinkClosed, Slot,
    TensorInfo, TensorSpec,
};
pub use data::{Batch, CLASSES, DEBIAN_FASHION_MNIST, Data, DataError, DataSource, Dataset, Sharding};
pub use dump::dump_path;
pub use error::TrainError;
pub use models::{Cnn, Mlp, ModelName, Normalise, UnknownModel};
pub use optimizer::{MomentumSgd, SgdSettings};
pub use options::{BatchSize, DEFAULT_EPOCHS, TrainOptions};
pub use report::{EpochRow, Observer, Progress, Silent, Start, TrainReport};
pub use trainer::{train, train_model};
