//! The model that `train` is told to train: one of Paceline's, or the caller's own.

use paceline_strategy::nearest;
use paceline_train::{
    Backend, Data, DataSource, Form, ModelName, Observer, Peers, TrainError, TrainOptions, TrainReport, train,
    train_model, training_memory,
};

use crate::Registry;
use crate::failure::Failure;
use crate::registry::OwnModel;

/// A model by its name.
pub enum ChosenModel {
    BuiltIn(ModelName),
    /// With its name. It goes before one of Paceline's of the same name.
    Own(String, OwnModel),
}

impl ChosenModel {
    /// The model of that name.
    ///
    /// # Errors
    /// There is none; the nearest name is offered.
    pub fn find(name: &str, registry: &Registry) -> Result<ChosenModel, Failure> {
        if let Some(own) = registry.model(name) {
            return Ok(ChosenModel::Own(name.to_owned(), own.clone()));
        }
        name.parse().map(ChosenModel::BuiltIn).map_err(|_| {
            let known: Vec<&str> = ModelName::ALL.iter().map(|model| model.name()).chain(registry.models()).collect();
            let hint = nearest(name, known.iter().copied());
            let hint = hint.map(|nearest| format!("; did you mean `{nearest}`?")).unwrap_or_default();
            Failure::usage(format!("unknown model `{name}`{hint}")).help(format!("there are {}", known.join(", ")))
        })
    }

    /// What it takes in.
    pub fn form(&self) -> Form {
        match self {
            ChosenModel::BuiltIn(model) => model.form(),
            ChosenModel::Own(_, own) => own.form,
        }
    }

    /// For [`TrainOptions::model`].
    pub fn name(&self) -> ModelName {
        match self {
            ChosenModel::BuiltIn(model) => *model,
            ChosenModel::Own(..) => ModelName::default(),
        }
    }

    /// For [`TrainOptions::own_model`].
    pub fn own_name(&self) -> Option<String> {
        match self {
            ChosenModel::BuiltIn(_) => None,
            ChosenModel::Own(name, _) => Some(name.clone()),
        }
    }

    /// Its data, and the model for them, with initial values drawn from the seed.
    ///
    /// # Errors
    /// The data cannot be read, or the model cannot be made.
    pub fn load(&self, source: &DataSource, seed: u64) -> Result<(Data, Box<dyn Backend>), TrainError> {
        let data = Data::load(source, self.form())?;
        let backend = match self {
            ChosenModel::BuiltIn(model) => model.build(&data.training, seed),
            ChosenModel::Own(_, own) => (own.build)(&data.training, seed),
        };
        Ok((data, backend.map_err(|source| TrainError::Backend { rank: 0, source })?))
    }

    /// Refuses a training of which `workers` of the `world_size` run here, if they would not fit in what was available
    /// before any of them began. If the system does not say what that was: nothing.
    ///
    /// # Errors
    /// The data cannot be read, the model cannot be made, or there is too little memory, with the estimate.
    pub fn check_memory(
        &self,
        options: &TrainOptions,
        [world_size, workers]: [usize; 2],
        available: Option<u64>,
    ) -> Result<(), TrainError> {
        let data = Data::load(&options.data, self.form())?;
        let (name, own_parameters) = match self {
            ChosenModel::BuiltIn(model) => (model.name(), None),
            // Nothing else says how large it is.
            ChosenModel::Own(name, own) => {
                let backend = (own.build)(&data.training, options.seed);
                let backend = backend.map_err(|source| TrainError::Backend { rank: 0, source })?;
                (name.as_str(), Some(backend.parameters().iter().map(|tensor| tensor.elements() as u64).sum()))
            }
        };
        let estimate = training_memory(options, &data, own_parameters, world_size, workers);
        Ok(available.map_or(Ok(()), |available| estimate.check(name, available))?)
    }

    /// Trains it, as one of the ranks.
    ///
    /// # Errors
    /// As [`train`].
    pub fn train(
        &self,
        peers: &Peers,
        options: &TrainOptions,
        observer: &mut dyn Observer,
    ) -> Result<TrainReport, TrainError> {
        let ChosenModel::Own(_, own) = self else { return train(peers, options, observer) };
        let workers = peers.workers();
        let prepared = Data::load(&options.data, own.form).map_err(TrainError::from).and_then(|data| {
            let backend = (own.build)(&data.training, options.seed);
            Ok((backend.map_err(|source| TrainError::Backend { rank: workers.rank(), source })?, data))
        });
        // The others learn the reason, instead of missing this one.
        let (backend, data) = prepared.inspect_err(|error| workers.abort(&error.to_string()))?;
        train_model(peers, backend, &data, options, observer)
    }
}
