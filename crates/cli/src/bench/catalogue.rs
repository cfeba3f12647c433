//! Which models and methods there are to choose from.

use paceline_strategy::{Registry as Strategies, nearest};

/// What a study can name.
pub struct Catalogue<'a> {
    /// Models, built in and the caller's own.
    pub models: Vec<ModelEntry>,
    /// Methods.
    pub strategies: &'a Strategies,
    /// Reads a profile from a file: the model's name and what is known of it.
    pub read_profile: &'a ReadProfile,
}

/// What a profile's name or file says: its model, and what is known of it.
pub type ReadProfile = dyn Fn(&str) -> Result<(String, ProfileEntry), String>;

/// A model.
#[derive(Clone, Debug)]
pub struct ModelEntry {
    /// Its name.
    pub name: String,
    /// Samples per worker and iteration if nobody says it.
    pub local_batch: usize,
    /// A guess of the seconds that one sample takes on one core here; None: it cannot be computed here.
    pub sample_s: Option<f64>,
    /// The built-in profile.
    pub profile: Option<ProfileEntry>,
}

/// A recorded iteration.
#[derive(Clone, Debug)]
pub struct ProfileEntry {
    /// Its name, or its file.
    pub name: String,
    /// Of its contents.
    pub fingerprint: String,
    /// Samples per worker and iteration that it is of.
    pub local_batch: usize,
    /// Samples per worker and iteration that it was recorded with: others, if somebody has scaled it since.
    pub recorded_batch: usize,
    /// Seconds of forward and backward per sample.
    pub sample_s: f64,
    /// Seconds of the optimiser, whatever the batch.
    pub update_s: f64,
    /// Bytes of the gradients.
    pub bytes: f64,
}

impl ProfileEntry {
    /// The throughput of the device alone, by the profile, scaled to a local batch.
    pub fn samples_per_s(&self, local_batch: usize) -> f64 {
        let samples = local_batch as f64;
        samples / (samples * self.sample_s + self.update_s)
    }
}

impl Catalogue<'_> {
    /// The model of that name.
    ///
    /// # Errors
    /// There is none; offers the nearest one.
    pub fn model(&self, name: &str) -> Result<&ModelEntry, String> {
        self.models.iter().find(|model| model.name == name).ok_or_else(|| {
            let names = || self.models.iter().map(|model| model.name.as_str());
            let meant = nearest(name, names()).map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
            format!("unknown model `{name}`{meant}; known: {}", names().collect::<Vec<_>>().join(", "))
        })
    }
}

#[cfg(test)]
pub mod samples {
    use super::*;

    /// Two models that compute, one of them with a profile, and one that has nothing but that.
    pub fn catalogue(strategies: &Strategies) -> Catalogue<'_> {
        let profile = |model: &str, samples_per_s: f64, bytes| ProfileEntry {
            name: format!("{model}@rtx2080ti"),
            fingerprint: "f".to_owned(),
            local_batch: 64,
            recorded_batch: 64,
            sample_s: 1.0 / samples_per_s,
            update_s: 0.0,
            bytes,
        };
        let model =
            |name: &str, sample_s, profile| ModelEntry { name: name.to_owned(), local_batch: 32, sample_s, profile };
        Catalogue {
            models: vec![
                model("cnn", Some(1e-4), None),
                model("mlp", Some(1e-4), None),
                model("resnet50", Some(0.5), Some(profile("resnet50", 253.1, 102e6))),
                model("bert-large", None, Some(profile("bert-large", 49.0, 1.3e9))),
            ],
            strategies,
            read_profile: &|path| {
                let mine = ProfileEntry {
                    name: path.to_owned(),
                    fingerprint: "m".to_owned(),
                    local_batch: 16,
                    recorded_batch: 8,
                    sample_s: 0.009,
                    update_s: 0.016,
                    bytes: 1e6,
                };
                let large =
                    |model: &str| (model.to_owned(), ProfileEntry { sample_s: 0.0, bytes: 1e9, ..mine.clone() });
                match path {
                    "mine.json" => Ok(("mine".to_owned(), mine)),
                    "large.json" => Ok(large("mine")),
                    "large-resnet50.json" => Ok(large("resnet50")),
                    _ => Err("No such file or directory".to_owned()),
                }
            },
        }
    }
}
