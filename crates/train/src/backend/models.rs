//! The models that come with Paceline, as functions on candle's tensors.

use std::fmt;
use std::str::FromStr;

use candle_core::Tensor;

mod bert;
mod blocks;
mod cnn;
mod mlp;
mod resnet20;
mod resnet50;
mod transformer_lm;

pub use bert::{Bert, BertSettings};
pub use cnn::Cnn;
pub use mlp::Mlp;
pub use resnet20::ResNet20;
pub use resnet50::{ResNet50, ResNet50Settings};
pub use transformer_lm::{TransformerLm, TransformerSettings};

use super::{Backend, BackendError, Buffers, CandleBackend, Model, TensorInfo, TensorSpec};
use crate::data::{CLASSES, Dataset, Form, Images, Synthetic};

/// A model by its name on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelName {
    /// [`Cnn`].
    #[default]
    Cnn,
    /// [`Mlp`].
    Mlp,
    /// [`ResNet20`].
    ResNet20,
    /// [`TransformerLm`] of the default size.
    TransformerLm,
    /// [`ResNet50`].
    ResNet50,
    /// [`Bert`], [`BertSettings::BASE`].
    BertBase,
    /// [`Bert`], [`BertSettings::LARGE`].
    BertLarge,
}

impl ModelName {
    /// Every model.
    pub const ALL: [ModelName; 7] = [
        ModelName::Cnn,
        ModelName::Mlp,
        ModelName::ResNet20,
        ModelName::TransformerLm,
        ModelName::ResNet50,
        ModelName::BertBase,
        ModelName::BertLarge,
    ];

    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            ModelName::Cnn => "cnn",
            ModelName::Mlp => "mlp",
            ModelName::ResNet20 => "resnet20",
            ModelName::TransformerLm => "transformer-lm",
            ModelName::ResNet50 => "resnet50",
            ModelName::BertBase => "bert-base",
            ModelName::BertLarge => "bert-large",
        }
    }

    /// What the model takes in.
    pub fn form(self) -> Form {
        let sentences = |BertSettings { length, vocabulary, .. }| Form::Sentences { length, vocabulary };
        match self {
            ModelName::Cnn | ModelName::Mlp | ModelName::ResNet20 => {
                Form::Images { channels: 1, size: (28, 28), classes: CLASSES }
            }
            ModelName::TransformerLm => Form::Text { length: TransformerSettings::default().length },
            ModelName::ResNet50 => {
                let ResNet50Settings { image_size, classes, .. } = ResNet50Settings::default();
                Form::Images { channels: 3, size: image_size, classes }
            }
            ModelName::BertBase => sentences(BertSettings::BASE),
            ModelName::BertLarge => sentences(BertSettings::LARGE),
        }
    }

    /// The model for samples like those of `training`, with initial values drawn from `seed`.
    ///
    /// # Errors
    /// The model does not take such samples, or the framework cannot make the tensors.
    pub fn build(self, training: &Dataset, seed: u64) -> Result<Box<dyn Backend>, BackendError> {
        let model = self.model(self.fitting(training)?)?;
        Ok(Box::new(CandleBackend::new(model, seed)?))
    }

    /// The parameters of the model for samples of its [`form`](Self::form); makes no tensor.
    pub fn parameters(self) -> Vec<TensorInfo> {
        self.of_its_form().parameters().into_iter().map(|spec| spec.info).collect()
    }

    /// Multiply-accumulates of a forward pass per sample of its [`form`](Self::form): products with parameters, as the study
    /// counts them, so without attention scores. Each weight once for every place that it is applied to.
    pub const fn forward_macs_per_sample(self) -> u64 {
        match self {
            // 8·25 weights on 24×24 places, 16·8·25 on 8×8, 256·10 once.
            ModelName::Cnn => 322_560,
            // 784·128 + 128·10.
            ModelName::Mlp => 101_632,
            ModelName::ResNet20 => 30_821_248,
            // 4 layers of 12·128² and 256·128 for the bytes, on 64 places.
            ModelName::TransformerLm => 52_428_800,
            // The sums of data/*_tensors.csv.
            ModelName::ResNet50 => 4_089_184_256,
            ModelName::BertBase => 6_974_670_336,
            ModelName::BertLarge => 21_396_195_328,
        }
    }

    /// The model for samples of its form, of which nothing but sizes can be asked.
    pub(crate) fn of_its_form(self) -> Box<dyn Model> {
        let synthetic = Dataset::Synthetic(Synthetic::new(self.form(), 1, 0));
        let model = self.fitting(&synthetic).and_then(|fitting| self.model(fitting));
        model.unwrap_or_else(|error| unreachable!("{self} takes its own form: {error}"))
    }

    fn model(self, fitting: Fitting) -> Result<Box<dyn Model>, BackendError> {
        Ok(match (fitting, self) {
            (Fitting::Images(image_size, classes, normalise), ModelName::Cnn) => {
                Box::new(Cnn::new(image_size, classes, normalise)?)
            }
            (Fitting::Images((height, width), classes, normalise), ModelName::Mlp) => {
                Box::new(Mlp::new(height * width, classes, normalise))
            }
            (Fitting::Images(image_size, classes, normalise), ModelName::ResNet20) => {
                Box::new(ResNet20::new(image_size, classes, normalise)?)
            }
            (Fitting::Images(image_size, classes, normalise), _) => {
                let settings = ResNet50Settings { image_size, classes, ..ResNet50Settings::default() };
                Box::new(ResNet50::new(settings, normalise)?)
            }
            (Fitting::Tokens, ModelName::BertBase) => Box::new(Bert::new(BertSettings::BASE)),
            (Fitting::Tokens, ModelName::BertLarge) => Box::new(Bert::new(BertSettings::LARGE)),
            (Fitting::Tokens, _) => Box::new(TransformerLm::new(TransformerSettings::default())),
        })
    }

    /// What of the data shapes the model.
    fn fitting(self, training: &Dataset) -> Result<Fitting, BackendError> {
        let form = self.form();
        let other = |found: String| {
            let message = format!("{self} takes {form}, and the data is {found}");
            Err(BackendError { doing: "making the model", message })
        };
        match (training, form) {
            (Dataset::Images(images), Form::Images { channels, .. }) if images.channels == channels => {
                Ok(Fitting::Images(images.image_size, images.classes, Normalise::of(images)))
            }
            (Dataset::Synthetic(synthetic), _) if synthetic.form() == form => Ok(match form {
                Form::Images { size, classes, .. } => {
                    Fitting::Images(size, classes, Normalise { mean: 0.0, deviation: 1.0 })
                }
                Form::Text { .. } | Form::Sentences { .. } => Fitting::Tokens,
            }),
            (Dataset::Text(text), Form::Text { length }) if text.length() == length => Ok(Fitting::Tokens),
            (Dataset::Images(images), _) => {
                other(format!("images of {} channels with {:?} pixels", images.channels, images.image_size))
            }
            (Dataset::Text(text), _) => other(format!("text in samples of {}", text.length())),
            (Dataset::Synthetic(synthetic), _) => other(format!("synthetic {}", synthetic.form())),
        }
    }
}

/// What of the data shapes a model.
enum Fitting {
    /// Height and width, classes, and the scale of the pixels.
    Images((usize, usize), usize, Normalise),
    /// Nothing: the model says what it takes.
    Tokens,
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ModelName {
    type Err = UnknownModel;

    fn from_str(name: &str) -> Result<Self, UnknownModel> {
        ModelName::ALL.into_iter().find(|model| model.name() == name).ok_or_else(|| UnknownModel(name.into()))
    }
}

/// A name that no model has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown model `{0}`; known: {known}", known = ModelName::ALL.map(ModelName::name).join(", "))]
pub struct UnknownModel(pub String);

/// The scale of the inputs: pixels are shifted and divided so that the training set has mean 0 and deviation 1. The two
/// numbers are the model's first buffers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalise {
    /// Of the training set's pixels.
    pub mean: f32,
    /// Of the training set's pixels.
    pub deviation: f32,
}

impl Normalise {
    /// Measured on `training`.
    pub fn of(training: &Images) -> Self {
        let (mean, deviation) = training.pixel_statistics();
        Normalise { mean, deviation }
    }

    fn buffers(self) -> Vec<TensorSpec> {
        vec![
            TensorSpec::constant("input.mean", &[1], self.mean),
            TensorSpec::constant("input.deviation", &[1], self.deviation),
        ]
    }

    /// By the buffers, which are rank 0's on every rank.
    fn apply(self, inputs: &Tensor, buffers: &Buffers<'_>) -> candle_core::Result<Tensor> {
        inputs.broadcast_sub(&buffers.get(0))?.broadcast_div(&buffers.get(1))
    }
}

/// Refuses images whose height or width is no multiple of `multiple` or less than `least`.
fn check_image_size(
    model: &'static str,
    (height, width): (usize, usize),
    multiple: usize,
    least: usize,
) -> Result<(), BackendError> {
    if [height, width].iter().all(|&size| size >= least && size.is_multiple_of(multiple)) {
        return Ok(());
    }
    let message =
        format!("the images have {height}×{width} pixels; the {model} takes multiples of {multiple} from {least} on");
    Err(BackendError { doing: "making the model", message })
}
