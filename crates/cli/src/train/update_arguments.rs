//! How gradients become updates, as `train` is told.

use clap::Args;
use paceline_train::{AdamWSettings, LearningRateSchedule, OptimizerSettings, SgdSettings, TrainOptions};

use crate::failure::Failure;

/// The optimiser, the learning rate, and clipping.
#[derive(Args)]
pub struct UpdateArguments {
    /// sgd (with momentum) or adamw
    #[arg(long, value_name = "NAME", default_value = "sgd")]
    optimizer: OptimizerSettings,

    /// Learning rate [default: 0.02; adamw: 0.001]
    #[arg(long, value_name = "RATE")]
    lr: Option<f32>,

    /// How it changes: constant[:WARMUP], step:EVERY:FACTOR[:WARMUP], cosine[:WARMUP] or linear[:WARMUP]; WARMUP and EVERY are
    /// iterations, such as 500, or epochs, such as 5epochs; cosine and linear end at 0 with the training
    #[arg(long, value_name = "SCHEDULE", default_value_t)]
    lr_schedule: LearningRateSchedule,

    /// Momentum of sgd [default: 0.9]
    #[arg(long, value_name = "SHARE")]
    momentum: Option<f32>,

    /// Nesterov's momentum, of sgd
    #[arg(long)]
    nesterov: bool,

    /// The betas of adamw [default: 0.9,0.999]
    #[arg(long, value_name = "FIRST,SECOND", value_parser = betas)]
    betas: Option<[f64; 2]>,

    /// Epsilon of adamw [default: 1e-8]
    #[arg(long, value_name = "NUMBER")]
    epsilon: Option<f64>,

    /// Weight decay [default: 0; adamw: 0.01]
    #[arg(long, value_name = "RATE")]
    weight_decay: Option<f32>,

    /// Scale gradients whose norm over all parameters is larger down to this one; not with schedule=bytescheduler, nor with
    /// servers that apply
    #[arg(long, value_name = "NORM")]
    clip_norm: Option<f32>,
}

fn betas(text: &str) -> Result<[f64; 2], String> {
    let numbers = text.split_once(',').map(|(first, second)| (first.trim().parse(), second.trim().parse()));
    match numbers {
        Some((Ok(first), Ok(second))) => Ok([first, second]),
        _ => Err("give two numbers, such as 0.9,0.999".to_owned()),
    }
}

impl UpdateArguments {
    /// The options with what was given.
    ///
    /// # Errors
    /// A constant of the other optimiser.
    pub fn apply(&self, options: TrainOptions) -> Result<TrainOptions, Failure> {
        let of_the_other = match self.optimizer {
            OptimizerSettings::Sgd(_) => [("--betas", self.betas.is_some()), ("--epsilon", self.epsilon.is_some())],
            OptimizerSettings::AdamW(_) => [("--momentum", self.momentum.is_some()), ("--nesterov", self.nesterov)],
        };
        if let Some((option, _)) = of_the_other.iter().find(|(_, given)| *given) {
            return Err(Failure::usage(format!("{option} is none of --optimizer {}", self.optimizer.name())));
        }
        let optimizer = match self.optimizer {
            OptimizerSettings::Sgd(default) => OptimizerSettings::Sgd(SgdSettings {
                momentum: self.momentum.unwrap_or(default.momentum),
                nesterov: self.nesterov,
                weight_decay: self.weight_decay.unwrap_or(default.weight_decay),
            }),
            OptimizerSettings::AdamW(default) => OptimizerSettings::AdamW(AdamWSettings {
                betas: self.betas.unwrap_or(default.betas),
                epsilon: self.epsilon.unwrap_or(default.epsilon),
                weight_decay: self.weight_decay.unwrap_or(default.weight_decay),
            }),
        };
        Ok(TrainOptions {
            optimizer,
            learning_rate: self.lr.unwrap_or(optimizer.default_learning_rate()),
            lr_schedule: self.lr_schedule,
            clip_norm: self.clip_norm,
            ..options
        })
    }
}
