//! What models are trained on: images, text, or synthetic samples of the study's shapes.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

mod batch;
mod folder;
mod idx;
mod images;
mod mnist;
mod shard;
mod synthetic;
mod text;

pub use batch::{Batch, Inputs};
pub use images::Images;
pub use mnist::{CLASSES, DEBIAN_FASHION_MNIST};
pub use shard::Sharding;
pub(crate) use shard::split;
pub use synthetic::Synthetic;
pub use text::Text;

/// Where the samples come from. In text as [`FromStr`] takes it: `sample`, `synthetic`, `fashion-mnist`, `idx:DIR`,
/// `images:DIR`, `text:FILE`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DataSource {
    /// What the program carries in itself: for models of images 6,000 training and 1,000 test images of Fashion-MNIST,
    /// for those of text a play by Shakespeare, for the study's models [`DataSource::Synthetic`].
    #[default]
    Sample,
    /// Samples of the right shape, drawn from a fixed seed: for measuring time, not for learning.
    Synthetic,
    /// A directory with the files `train-images-idx3-ubyte.gz`, `train-labels-idx1-ubyte.gz` and the two `t10k-…`, for
    /// example [`DEBIAN_FASHION_MNIST`].
    Idx(PathBuf),
    /// A directory with a folder of PNG and JPEG files for each class; or with two such directories, `train` and `test`
    /// (or `val`). Without, every tenth file of a class, by name, is for testing.
    Images(PathBuf),
    /// A file of which the bytes are the symbols. The last tenth is for testing.
    Text(PathBuf),
}

impl fmt::Display for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DataSource::Sample => f.write_str("sample"),
            DataSource::Synthetic => f.write_str("synthetic"),
            DataSource::Idx(directory) => write!(f, "idx:{}", directory.display()),
            DataSource::Images(directory) => write!(f, "images:{}", directory.display()),
            DataSource::Text(file) => write!(f, "text:{}", file.display()),
        }
    }
}

impl FromStr for DataSource {
    type Err = UnknownSource;

    fn from_str(text: &str) -> Result<Self, UnknownSource> {
        match text.split_once(':') {
            None if text == "sample" => Ok(DataSource::Sample),
            None if text == "synthetic" => Ok(DataSource::Synthetic),
            None if text == "fashion-mnist" => Ok(DataSource::Idx(DEBIAN_FASHION_MNIST.into())),
            Some(("idx", path)) if !path.is_empty() => Ok(DataSource::Idx(path.into())),
            Some(("images", path)) if !path.is_empty() => Ok(DataSource::Images(path.into())),
            Some(("text", path)) if !path.is_empty() => Ok(DataSource::Text(path.into())),
            _ => Err(UnknownSource(text.to_owned())),
        }
    }
}

/// A text that names no source of data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown data `{0}`; it is sample, synthetic, fashion-mnist, images:DIR, text:FILE or idx:DIR")]
pub struct UnknownSource(pub String);

/// What a model takes in; the sources make it of what they have, or say that they cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Images and their classes.
    Images {
        /// 1: grey; 3: red, green, blue.
        channels: usize,
        /// Height and width to which image files are brought; IDX files keep their own.
        size: (usize, usize),
        /// Classes of synthetic samples.
        classes: usize,
    },
    /// Runs of bytes, each byte to be predicted from those before it.
    Text {
        /// Bytes that are predicted in a sample.
        length: usize,
    },
    /// Two sentences of tokens: the tokens themselves, and whether the second follows the first, are to be predicted.
    Sentences {
        /// Tokens of a sample.
        length: usize,
        /// Tokens there are.
        vocabulary: usize,
    },
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Form::Images { channels: 1, .. } => f.write_str("grey images"),
            Form::Images { .. } => f.write_str("coloured images"),
            Form::Text { .. } => f.write_str("text"),
            Form::Sentences { .. } => f.write_str("pairs of sentences"),
        }
    }
}

/// What is wrong with the data.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file or directory cannot be read.
    #[error("{path}: {source}; {help}")]
    Unreadable {
        /// The file.
        path: String,
        /// The operating system's answer.
        #[source]
        source: io::Error,
        /// What should be there.
        help: &'static str,
    },
    /// It can be read and makes no sense.
    #[error("{path} {what}")]
    Malformed {
        /// The file.
        path: String,
        /// What is wrong, as the predicate of a sentence.
        what: String,
    },
    /// The source has nothing that the model takes.
    #[error("the model takes {form}, and --data {source_name} has none; {help}")]
    Unsuitable {
        /// What the model takes.
        form: Form,
        /// The source.
        source_name: String,
        /// Sources that have it.
        help: &'static str,
    },
    /// There are fewer samples than workers take in an iteration.
    #[error(
        "{} {joined} samples in an iteration, and the data holds {samples}; choose a smaller local batch or more data",
        who_take(.workers)
    )]
    TooFew {
        /// How many there are.
        workers: usize,
        /// What they take together.
        joined: usize,
        /// What there is.
        samples: usize,
    },
}

fn who_take(workers: &usize) -> String {
    if *workers == 1 { "1 worker takes".to_owned() } else { format!("{workers} workers take") }
}

/// Training and test samples of one form.
#[derive(Debug)]
pub struct Data {
    /// What the gradients come from.
    pub training: Dataset,
    /// What the accuracy is measured on.
    pub test: Dataset,
}

impl Data {
    /// Reads and checks everything.
    ///
    /// # Errors
    /// [`DataError`] names the first file that cannot be read or makes no sense, or says that the source has nothing of
    /// that form.
    pub fn load(source: &DataSource, form: Form) -> Result<Data, DataError> {
        let both = |training, test| Data { training, test };
        let unsuitable = |help| DataError::Unsuitable { form, source_name: source.to_string(), help };
        match (source, form) {
            (DataSource::Synthetic, _) => {
                let (training, test) = Synthetic::both(form);
                Ok(both(Dataset::Synthetic(training), Dataset::Synthetic(test)))
            }
            (DataSource::Sample, Form::Sentences { .. } | Form::Images { channels: 3, .. }) => {
                Data::load(&DataSource::Synthetic, form)
            }
            (DataSource::Sample | DataSource::Text(_), Form::Text { length }) => {
                let (training, test) = Text::both(source, length)?;
                Ok(both(Dataset::Text(training), Dataset::Text(test)))
            }
            (DataSource::Sample | DataSource::Idx(_), Form::Images { channels: 1, .. }) => {
                let (training, test) = mnist::load(source)?;
                Ok(both(Dataset::Images(training), Dataset::Images(test)))
            }
            (DataSource::Images(directory), Form::Images { channels, size, .. }) => {
                let (training, test) = folder::load(directory, channels, size)?;
                Ok(both(Dataset::Images(training), Dataset::Images(test)))
            }
            (_, Form::Images { .. }) => Err(unsuitable("name a directory of image files by images:DIR")),
            (_, Form::Text { .. }) => Err(unsuitable("name a file by text:FILE, or leave --data out")),
            (_, Form::Sentences { .. }) => Err(unsuitable("there is only --data synthetic")),
        }
    }
}

/// Samples that a model is trained or tested on.
#[derive(Debug)]
pub enum Dataset {
    /// Images with one label each.
    Images(Images),
    /// Runs of bytes.
    Text(Text),
    /// Drawn when they are asked for.
    Synthetic(Synthetic),
}

impl Dataset {
    /// Samples.
    pub fn len(&self) -> usize {
        match self {
            Dataset::Images(images) => images.len(),
            Dataset::Text(text) => text.len(),
            Dataset::Synthetic(synthetic) => synthetic.len(),
        }
    }

    /// Are there as many samples as workers with this local batch take together in an iteration?
    ///
    /// # Errors
    /// [`DataError::TooFew`], with the numbers.
    pub fn check_iteration(&self, workers: usize, local_batch: usize) -> Result<(), DataError> {
        let (joined, samples) = (local_batch.saturating_mul(workers), self.len());
        if samples < joined { Err(DataError::TooFew { workers, joined, samples }) } else { Ok(()) }
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the samples `indices` into a batch.
    ///
    /// # Panics
    /// If there is no such sample.
    pub fn batch(&self, indices: &[usize]) -> Batch {
        match self {
            Dataset::Images(images) => images.batch(indices),
            Dataset::Text(text) => text.batch(indices),
            Dataset::Synthetic(synthetic) => synthetic.batch(indices),
        }
    }

    /// What it takes in memory.
    pub fn bytes(&self) -> u64 {
        match self {
            Dataset::Images(images) => (images.pixels.len() + size_of_val(&*images.labels)) as u64,
            Dataset::Text(text) => text.bytes() as u64,
            Dataset::Synthetic(_) => 0,
        }
    }

    /// Tells two data sets apart: what they are, and a checksum.
    pub(crate) fn fingerprint(&self) -> String {
        match self {
            Dataset::Images(images) => images.fingerprint(),
            Dataset::Text(text) => text.fingerprint(),
            Dataset::Synthetic(synthetic) => synthetic.fingerprint(),
        }
    }
}
