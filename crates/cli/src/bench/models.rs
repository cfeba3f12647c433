//! The models that a study can name: those of the training engine, and the caller's own.

use paceline_plan::{Fnv1a, Profile, built_in_profile};
use paceline_train::{
    Backend, Data, DataSource, ModelName, OptimizerSettings, Subject, TrainError, TrainOptions, load_profile,
};

use super::catalogue::{Catalogue, ModelEntry, ProfileEntry};
use super::cell::{Cell, Compute};
use crate::Registry;
use crate::failure::Failure;

/// Everything that can be named.
pub fn catalogue(registry: &Registry) -> Catalogue<'_> {
    let mut models: Vec<ModelEntry> = ModelName::ALL.into_iter().map(built_in).collect();
    for own in registry.models() {
        models.retain(|known| known.name != own);
        models.push(ModelEntry { name: own.to_owned(), local_batch: 32, sample_s: Some(SAMPLE_S), profile: None });
    }
    Catalogue { models, strategies: registry.grammar(), read_profile: &read_entry }
}

/// A guess for a small model.
const SAMPLE_S: f64 = 1e-4;

/// Batch and seconds per sample on one core.
fn usual(model: ModelName) -> (usize, f64) {
    match model {
        ModelName::Cnn | ModelName::Mlp => (32, SAMPLE_S),
        ModelName::ResNet20 => (32, 5e-3),
        ModelName::TransformerLm => (8, 2e-2),
        ModelName::ResNet50 | ModelName::BertBase => (2, 1.0),
        ModelName::BertLarge => (1, 5.0),
    }
}

/// Samples that a worker computes in an iteration, if nobody says it.
pub fn usual_batch(model: ModelName) -> usize {
    usual(model).0
}

fn built_in(model: ModelName) -> ModelEntry {
    let (local_batch, sample_s) = usual(model);
    let name = model.to_string();
    let profile = built_in_profile(&name).map(|profile| entry(&format!("{name}@{}", profile.device), &profile));
    ModelEntry { name, local_batch, sample_s: Some(sample_s), profile }
}

fn read_entry(name: &str) -> Result<(String, ProfileEntry), String> {
    let profile = load_profile(name).map_err(|error| error.to_string())?;
    Ok((profile.model.clone(), entry(name, &profile)))
}

fn entry(name: &str, profile: &Profile) -> ProfileEntry {
    ProfileEntry {
        name: name.to_owned(),
        fingerprint: fingerprint(profile),
        local_batch: profile.local_batch,
        recorded_batch: profile.recorded_batch.unwrap_or(profile.local_batch),
        sample_s: (profile.forward_s() + profile.backward_s()) / profile.local_batch as f64,
        update_s: profile.update_s,
        bytes: 4.0 * profile.tensors.iter().map(|tensor| tensor.elements as f64).sum::<f64>(),
    }
}

/// The fingerprint of a profile: of everything that is in it, but for the length of an epoch, the memory of the device, the
/// batch that was recorded and how iterations differ, on which no run depends.
pub fn fingerprint(profile: &Profile) -> String {
    let replayed = Profile { epoch_samples: None, memory: None, recorded_batch: None, spread: None, ..profile.clone() };
    let text = serde_json::to_string(&replayed).unwrap_or_default();
    format!("{:016x}", Fnv1a::of(text.as_bytes()))
}

/// What `--data` names.
///
/// # Errors
/// It is no source.
pub fn source(text: Option<&str>) -> Result<DataSource, Failure> {
    text.map_or_else(|| Ok(DataSource::default()), |text| text.parse().map_err(Failure::usage))
}

/// What a rank computes, ready to be measured.
pub enum Loaded {
    /// A recorded iteration.
    Replay(Profile),
    /// A model and what it is trained on.
    Model {
        /// Its name.
        name: String,
        /// The model; taken when it is measured.
        backend: Option<Box<dyn Backend>>,
        /// What it is trained on.
        data: Data,
    },
}

impl Loaded {
    /// What the cell asks for.
    ///
    /// # Errors
    /// The profile, the data or the model cannot be had.
    pub fn new(cell: &Cell, registry: &Registry) -> Result<Loaded, Failure> {
        let setting = &cell.setting;
        match &setting.compute {
            Compute::Replay { profile, fingerprint, .. } => {
                let found = load_profile(profile).map_err(|error| Failure::failed(error.to_string()))?;
                if self::fingerprint(&found) != *fingerprint {
                    return Err(Failure::failed(format!("{profile} has changed since the study was planned")));
                }
                Ok(Loaded::Replay(found))
            }
            Compute::Real => {
                let source = source(setting.data.as_deref())?;
                let seed = TrainOptions::default().seed;
                let (data, backend) = match registry.model(&setting.model) {
                    Some(own) => {
                        let data = Data::load(&source, own.form).map_err(TrainError::from)?;
                        let backend = (own.build)(&data.training, seed);
                        (data, backend)
                    }
                    None => {
                        let model: ModelName = setting.model.parse().map_err(Failure::usage)?;
                        let data = Data::load(&source, model.form()).map_err(TrainError::from)?;
                        let backend = model.build(&data.training, seed);
                        (data, backend)
                    }
                };
                let backend = Some(backend.map_err(|error| Failure::failed(format!("{}: {error}", setting.model)))?);
                Ok(Loaded::Model { name: setting.model.clone(), backend, data })
            }
        }
    }

    /// As the training engine wants it; once.
    ///
    /// # Errors
    /// It was asked for before.
    pub fn subject(&mut self) -> Result<Subject<'_>, Failure> {
        Ok(match self {
            Loaded::Replay(profile) => Subject::Replay(profile),
            Loaded::Model { name, backend, data } => {
                let backend = backend.take().ok_or_else(|| Failure::failed("the model is measured already"))?;
                let (optimizer, learning_rate) = (OptimizerSettings::default(), TrainOptions::default().learning_rate);
                Subject::Model { name: name.clone(), backend, data, optimizer, learning_rate }
            }
        })
    }
}
