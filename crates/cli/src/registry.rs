//! What a program of the caller's own adds to Paceline's.

use std::sync::Arc;

use paceline_compress::{Compressor, Compressors, Piece};
use paceline_schedule::{Scheduler, Schedulers};
use paceline_server::ServeOptions;
use paceline_strategy::{Call, Method, Preset, Registry as Grammar, Strategy};
use paceline_train::{Backend, BackendError, Dataset, Form, serve_options};

/// Makes a model for samples like those of the data set, with initial values drawn from the seed.
pub type BuildModel = Arc<dyn Fn(&Dataset, u64) -> Result<Box<dyn Backend>, BackendError> + Send + Sync>;

/// The models and methods that the command line can name.
pub struct Registry {
    schedulers: Schedulers,
    compressors: Compressors,
    models: Vec<(String, OwnModel)>,
}

/// A model of the caller's own.
#[derive(Clone)]
pub struct OwnModel {
    /// What it takes in.
    pub form: Form,
    /// Makes it.
    pub build: BuildModel,
}

impl Registry {
    /// What Paceline brings along.
    pub fn built_in() -> Registry {
        Registry { schedulers: Schedulers::built_in(), compressors: Compressors::default(), models: Vec::new() }
    }

    /// Adds a model that takes samples of this form, or replaces the one of the same name.
    pub fn add_model(
        &mut self,
        name: &str,
        form: Form,
        build: impl Fn(&Dataset, u64) -> Result<Box<dyn Backend>, BackendError> + Send + Sync + 'static,
    ) {
        self.models.retain(|(known, _)| known != name);
        self.models.push((name.to_owned(), OwnModel { form, build: Arc::new(build) }));
    }

    /// Adds a schedule and its word of the grammar, or replaces the one of that name.
    ///
    /// # Panics
    /// If the method's aspect is not the schedule.
    pub fn add_scheduler(&mut self, method: Method, scheduler: impl Scheduler + 'static) {
        self.schedulers.add(method, scheduler);
    }

    /// Adds a compressor and its word of the grammar, or replaces the one of that name. `make` is called for each operation of a
    /// plan, on each rank, with the arguments of the strategy.
    ///
    /// # Panics
    /// If the method's aspect is not compression.
    pub fn add_compressor(
        &mut self,
        method: Method,
        make: impl Fn(&Call, &Piece) -> Box<dyn Compressor> + Send + Sync + 'static,
    ) {
        self.compressors.add(self.schedulers.grammar_mut(), method, make);
    }

    /// Adds a word for a whole strategy, or replaces the one of the same name.
    pub fn add_preset(&mut self, preset: Preset) {
        self.schedulers.grammar_mut().add_preset(preset);
    }

    /// What strategies can name.
    pub fn grammar(&self) -> &Grammar {
        self.schedulers.grammar()
    }

    /// The schedules.
    pub fn schedulers(&self) -> &Schedulers {
        &self.schedulers
    }

    /// The compressors.
    pub fn compressors(&self) -> &Compressors {
        &self.compressors
    }

    /// How shards serve a strategy.
    pub(crate) fn serve_options(&self, strategy: &Strategy) -> ServeOptions {
        // A compressor that there is not, workers miss, too.
        ServeOptions { compression: self.compressors.of(strategy).ok().flatten(), ..serve_options() }
    }

    /// The names of the caller's own models.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.models.iter().map(|(name, _)| name.as_str())
    }

    /// How a model of the caller's own is made.
    pub fn model(&self, name: &str) -> Option<&OwnModel> {
        self.models.iter().find(|(known, _)| known == name).map(|(_, model)| model)
    }
}
