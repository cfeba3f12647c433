//! What a study would fail by is found before it starts: data that a model does not take, and too little memory.

use super::cell::{Cell, Compute};
use super::models::source;
use super::study::{PanelPlan, Study};
use crate::Registry;
use crate::failure::Failure;
use paceline_train::{
    Data, Form, MemoryEstimate, ModelName, OptimizerSettings, TensorInfo, TrainError, TrainOptions, available_memory,
    load_profile, memory_estimate, memory_of_parameters,
};

/// Refuses a study of which a cell cannot run here. With `launched`, a worker of it runs here; else all do.
///
/// # Errors
/// What is wrong, with the estimate of memory.
pub fn check(study: &Study, registry: &Registry, launched: bool) -> Result<(), Failure> {
    let available = available_memory();
    for panel in &study.panels {
        let needs = Needs::of(panel, registry)?;
        let estimates = panel.cells.iter().map(|planned| needs.of_cell(&planned.cell, registry, launched));
        let largest = estimates.max_by_key(MemoryEstimate::total_bytes);
        if let Some((estimate, available)) = largest.zip(available) {
            let model = &panel.setting.model;
            estimate.check(model, available).map_err(|error| Failure::usage(error).help("fewer --workers"))?;
        }
    }
    Ok(())
}

/// What the workers of a panel hold.
enum Needs {
    /// The gradients of so many parameters.
    Replay(u64),
    /// A model of the house, and so many bytes of samples.
    Model(ModelName, u64),
    /// A model of the caller's own: parameters, and bytes of samples.
    Own(u64, u64),
}

impl Needs {
    /// Reads the profile or the data; makes a model of the caller's own, as nothing else says how large it is.
    fn of(panel: &PanelPlan, registry: &Registry) -> Result<Needs, Failure> {
        let setting = &panel.setting;
        let count = |tensors: &[TensorInfo]| tensors.iter().map(|tensor| tensor.elements() as u64).sum();
        if let Compute::Replay { profile, .. } = &setting.compute {
            let profile = load_profile(profile).map_err(|error| Failure::usage(error.to_string()))?;
            return Ok(Needs::Replay(profile.sizes().into_iter().map(|elements| elements as u64).sum()));
        }
        let load = |form: Form| {
            Data::load(&source(setting.data.as_deref())?, form).map_err(|error| Failure::usage(TrainError::from(error)))
        };
        let bytes = |data: &Data| data.training.bytes() + data.test.bytes();
        if let Some(own) = registry.model(&setting.model) {
            let data = load(own.form)?;
            let backend = (own.build)(&data.training, TrainOptions::default().seed);
            let backend = backend.map_err(|error| Failure::usage(format!("{}: {error}", setting.model)))?;
            return Ok(Needs::Own(count(backend.parameters()), bytes(&data)));
        }
        let model: ModelName = setting.model.parse().map_err(Failure::usage)?;
        Ok(Needs::Model(model, bytes(&load(model.form())?)))
    }

    fn of_cell(&self, cell: &Cell, registry: &Registry, launched: bool) -> MemoryEstimate {
        let workers = if launched { 1 } else { cell.workers };
        let copies = OptimizerSettings::default().state_copies();
        let estimate = match *self {
            Needs::Replay(parameters) => memory_of_parameters(parameters, None, workers),
            Needs::Model(model, data) => {
                MemoryEstimate { data, ..memory_estimate(model, cell.setting.local_batch, copies, workers) }
            }
            Needs::Own(parameters, data) => {
                MemoryEstimate { data, ..memory_of_parameters(parameters, Some(copies), workers) }
            }
        };
        match (cell.shards, launched) {
            // Under a launcher, shards lie on many hosts; one of them holds a part of them at most.
            (0, _) | (_, true) => estimate,
            (shards, false) => {
                let apply = registry.grammar().parse(&cell.strategy).is_ok_and(|strategy| strategy.servers_apply());
                estimate.with_servers(if cell.dedicated_servers { shards } else { 0 }, apply)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell::samples::{cell, replayed, setting};
    use super::*;

    fn needs(setting: &super::super::cell::Setting) -> Needs {
        let panel = PanelPlan { setting: setting.clone(), cells: Vec::new() };
        Needs::of(&panel, &Registry::built_in()).unwrap_or_else(|_| panic!("{setting} is known"))
    }

    #[test]
    fn replays_and_their_servers_are_counted() {
        let mut setting = replayed("bert-large", "10GbE", 49.0);
        if let Compute::Replay { profile, .. } = &mut setting.compute {
            "bert-large@rtx2080ti".clone_into(profile);
        }
        let needs = needs(&setting);
        let total = |cell: &Cell| needs.of_cell(cell, &Registry::built_in(), false).total_bytes();
        let (all_to_all, servers) = (cell(&setting, "bsp-a2a", 32), cell(&setting, "bsp-ps", 32));
        assert!((43_000_000_000..46_000_000_000).contains(&total(&all_to_all)));
        assert_eq!(total(&servers) - total(&all_to_all), 4 * 336_232_258);
        let dedicated = Cell { dedicated_servers: true, ..servers };
        assert!(total(&dedicated) > total(&all_to_all) + 4 * 336_232_258 + 32 * 40_000_000);
        // One of them on this host.
        assert_eq!(needs.of_cell(&all_to_all, &Registry::built_in(), true).workers, 1);
    }

    #[test]
    fn real_models_bring_their_data() {
        let here = setting("mlp");
        let estimate = needs(&here).of_cell(&cell(&here, "wfbp-a2a", 4), &Registry::built_in(), false);
        assert!(estimate.data > 7000 * 28 * 28 && estimate.workers == 4, "{estimate:?}");
    }
}
