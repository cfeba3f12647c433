//! What a study would fail by is found before it starts: data that a model does not take or that is too little, and too
//! little memory.

use super::cell::{Cell, Compute};
use super::models::source;
use super::placement::Placement;
use super::study::{PanelPlan, Study};
use crate::Registry;
use crate::failure::Failure;
use paceline_plan::Hosts;
use paceline_train::{
    Data, Form, MemoryEstimate, ModelName, OptimizerSettings, ShardsHere, TensorInfo, TrainError, TrainOptions,
    load_profile, memory_estimate, memory_of_parameters,
};

/// Refuses a study of which a cell cannot run: here with all its processes, or on a host of a launcher with those that
/// live there. `available_bytes`: what may still be taken of each host's memory, by its number; None where nobody knows.
///
/// # Errors
/// What is wrong, with the estimate of memory.
pub fn check(study: &Study, registry: &Registry, available_bytes: &[Option<u64>]) -> Result<(), Failure> {
    let placement = study.placement.as_ref();
    for panel in &study.panels {
        let needs = Needs::of(panel, registry)?;
        needs.check_data(panel)?;
        let known = available_bytes.iter().enumerate().filter_map(|(host, bytes)| Some((host, (*bytes)?)));
        for (host, available) in known {
            let of_cell = |cell: &Cell| needs.of_cell(cell, registry, Seats::on(host, cell, placement));
            let estimates = panel.cells.iter().map(|planned| of_cell(&planned.cell));
            let Some(largest) = estimates.max_by_key(MemoryEstimate::total_bytes) else { continue };
            let checked = largest.check(&panel.setting.model, available);
            checked.map_err(|error| {
                let what = format!("{}{error}", on_host(host, placement));
                Failure::usage(what).help("fewer --workers")
            })?;
        }
    }
    Ok(())
}

/// Which host is meant, before what is said of it; nothing where there is but one.
fn on_host(number: usize, placement: Option<&Placement>) -> String {
    let several = placement.map(|placement| &placement.hosts).filter(|hosts| hosts.len() > 1);
    several.and_then(|hosts| hosts.get(number)).map_or_else(String::new, |host| format!("{}: ", host.name))
}

/// How many of a cell's processes live on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seats {
    workers: usize,
    shards: usize,
}

impl Seats {
    /// On the host of this number; on this one, if no launcher has placed the ranks.
    fn on(host: usize, cell: &Cell, placement: Option<&Placement>) -> Seats {
        let all = Seats { workers: cell.workers, shards: cell.shards };
        let Some(stage) = placement.map(Placement::stage) else { return all };
        // A cell that nobody can seat is refused elsewhere.
        let Ok(cast) = stage.cast(cell) else { return all };
        let is_here = |rank: usize| stage.hosts.host(rank) == host;
        let (workers, servers) = cast.split_at(cell.workers);
        let shards = if cell.dedicated_servers {
            servers.iter().filter(|&&rank| is_here(rank)).count()
        } else {
            // Beside the workers that `paceline_server::join_beside` chooses.
            let hosts = Hosts::in_order(workers.iter().map(|&rank| stage.hosts.host(rank)));
            (0..cell.shards).filter(|&shard| is_here(workers[hosts.rank_of_shard(shard)])).count()
        };
        Seats { workers: workers.iter().filter(|&&rank| is_here(rank)).count(), shards }
    }
}

/// What the workers of a panel hold.
enum Needs {
    /// The gradients of so many parameters.
    Replay(u64),
    /// A model of the house, and what it is trained on.
    Model(ModelName, Data),
    /// A model of the caller's own: parameters, and what it is trained on.
    Own(u64, Data),
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
        if let Some(own) = registry.model(&setting.model) {
            let data = load(own.form)?;
            let backend = (own.build)(&data.training, TrainOptions::default().seed);
            let backend = backend.map_err(|error| Failure::usage(format!("{}: {error}", setting.model)))?;
            return Ok(Needs::Own(count(backend.parameters()), data));
        }
        let model: ModelName = setting.model.parse().map_err(Failure::usage)?;
        Ok(Needs::Model(model, load(model.form())?))
    }

    /// Refuses a panel of which a cell takes more samples in an iteration than there are.
    fn check_data(&self, panel: &PanelPlan) -> Result<(), Failure> {
        let (Needs::Model(_, data) | Needs::Own(_, data)) = self else { return Ok(()) };
        let most = panel.cells.iter().map(|planned| planned.cell.workers).max().unwrap_or(1);
        let checked = data.training.check_iteration(most, panel.setting.local_batch);
        checked.map_err(|error| Failure::usage(format!("{}: {error}", panel.setting.model)))
    }

    fn of_cell(&self, cell: &Cell, registry: &Registry, here: Seats) -> MemoryEstimate {
        let workers = here.workers;
        let copies = OptimizerSettings::default().state_copies();
        let bytes = |data: &Data| data.training.bytes() + data.test.bytes();
        let estimate = match self {
            Needs::Replay(parameters) => memory_of_parameters(*parameters, None, workers),
            Needs::Model(model, data) => MemoryEstimate {
                data: bytes(data),
                ..memory_estimate(*model, cell.setting.local_batch, copies, workers)
            },
            Needs::Own(parameters, data) => {
                MemoryEstimate { data: bytes(data), ..memory_of_parameters(*parameters, Some(copies), workers) }
            }
        };
        let strategy = registry.grammar().parse(&cell.strategy).ok();
        let compression = strategy.as_ref().and_then(|strategy| registry.compressors().of(strategy).ok()?);
        let is_open = strategy.as_ref().is_some_and(|strategy| strategy.arch_is_open());
        let apply = strategy.is_some_and(|strategy| strategy.servers_apply());
        // Where the arch is open, those here may be the only ones that serve: at most so much.
        let all = if is_open { here.shards } else { cell.shards };
        let shards = ShardsHere { here: here.shards, all, dedicated: cell.dedicated_servers };
        let shards = (cell.shards > 0).then_some(shards);
        let estimate = shards.map_or(estimate, |shards| estimate.with_servers(shards, apply));
        compression.map_or(estimate, |compression| estimate.with_compression(&compression, cell.workers, shards))
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::STUDY;
    use super::super::cell::samples::{cell, replayed, setting};
    use super::super::cell::{ServerHost, Setting};
    use super::super::placement::samples::placement;
    use super::super::stage::Stage;
    use super::super::study::PlannedCell;
    use super::*;

    fn bert() -> Setting {
        let mut setting = replayed("bert-large", "10GbE", 49.0);
        if let Compute::Replay { profile, .. } = &mut setting.compute {
            "bert-large@rtx2080ti".clone_into(profile);
        }
        setting
    }

    fn needs(setting: &super::super::cell::Setting) -> Needs {
        let panel = PanelPlan { setting: setting.clone(), cells: Vec::new(), slowed: None };
        Needs::of(&panel, &Registry::built_in()).unwrap_or_else(|_| panic!("{setting} is known"))
    }

    #[test]
    fn replays_and_their_servers_are_counted() {
        let setting = bert();
        let needs = needs(&setting);
        let total = |cell: &Cell| needs.of_cell(cell, &Registry::built_in(), Seats::on(0, cell, None)).total_bytes();
        let (all_to_all, servers) = (cell(&setting, "bsp-a2a", 32), cell(&setting, "bsp-ps", 32));
        assert!((43_000_000_000..46_000_000_000).contains(&total(&all_to_all)));
        assert_eq!(total(&servers) - total(&all_to_all), 4 * 336_232_258);
        let dedicated = Cell { dedicated_servers: true, ..servers };
        assert!(total(&dedicated) > total(&all_to_all) + 4 * 336_232_258 + 32 * 40_000_000);
    }

    /// Of shards that may serve, one on the first of two hosts may have all that there is to add up.
    #[test]
    fn what_may_be_chosen_is_counted() {
        let setting = bert();
        let needs = needs(&setting);
        let total = |strategy: &str, host| {
            let cell = Cell { strategy: strategy.to_owned(), shards: 2, ..cell(&setting, "auto", 2) };
            let here = Seats::on(host, &cell, Some(&placement("2x1", &[1; 2])));
            needs.of_cell(&cell, &Registry::built_in(), here).servers
        };
        let gradients = 4 * 336_232_258;
        assert_eq!([0, 1].map(|host| total("auto", host)), [gradients; 2]);
        assert_eq!([0, 1].map(|host| total("auto,arch=ps:2", host)), [gradients / 2; 2]);
    }

    /// Each host has what a launcher has placed there, however it deals ranks out.
    #[test]
    fn under_a_launcher_the_ranks_of_each_host_count() {
        let on = |host, hosts: &str, cell: &Cell| Seats::on(host, cell, Some(&placement(hosts, &[1; 4])));
        let seats = |hosts: &str, cell: &Cell| on(0, hosts, cell);
        let setting = setting("mlp");
        let all_to_all = cell(&setting, "bsp-a2a", 6);
        assert_eq!(seats("2x4", &all_to_all), Seats { workers: 4, shards: 0 });
        assert_eq!(seats("0,1,0,1,0,1", &all_to_all), Seats { workers: 3, shards: 0 });
        let beside = Cell { shards: 4, ..cell(&setting, "bsp-ps", 6) };
        assert_eq!(seats("2x4", &beside), Seats { workers: 4, shards: 2 });
        assert_eq!(on(1, "2x4", &beside), Seats { workers: 2, shards: 2 });
        let served_by = |number: usize| {
            let servers_on = vec![ServerHost { number, name: String::new() }];
            let setting = Setting { servers_on, ..setting.clone() };
            Cell { shards: 3, dedicated_servers: true, ..cell(&setting, "bsp-ps", 4) }
        };
        assert_eq!(seats("2x4", &served_by(1)), Seats { workers: 4, shards: 0 });
        assert_eq!(seats("2x4", &served_by(0)), Seats { workers: 0, shards: 3 });
        assert_eq!(on(1, "2x4", &served_by(0)), Seats { workers: 4, shards: 0 });
    }

    #[test]
    fn a_study_that_does_not_fit_here_is_refused() {
        let setting = bert();
        let panel = |workers| {
            let pace = super::super::budget::Pace { iteration_s: 1.0, overhead_s: 1.0 };
            let cells = vec![PlannedCell { cell: cell(&setting, "bsp-a2a", workers), pace }];
            PanelPlan { setting: setting.clone(), cells, slowed: None }
        };
        // Eighty terabytes, or on this one of two hosts half of them.
        let study = |placement| Study {
            protocol: STUDY,
            panels: vec![panel(60_000)],
            placement,
            spared: Vec::new(),
            fixed: Vec::new(),
        };
        let checked = |study: &Study, available: &[Option<u64>]| {
            check(study, &Registry::built_in(), available).map_err(|failure| failure.in_one_line())
        };
        let (little, plenty) = (Some(1 << 40), Some(1 << 50));
        let here = checked(&study(None), &[little]).expect_err("too large");
        assert!(here.starts_with("bert-large would not fit in memory: 60000 workers"), "{here}");
        assert!(here.ends_with("(fewer --workers)"), "{here}");
        let names = ["one", "two"].map(str::to_owned).to_vec();
        let stage = Stage { names, ..Stage::emulated(2, 30_000) };
        let hosts = Some(Placement::new("srun", &stage, &[1, 1]));
        let there = checked(&study(hosts.clone()), &[plenty, little]).expect_err("too large for the second one");
        assert!(there.starts_with("two: bert-large would not fit in memory: 30000 workers"), "{there}");
        assert_eq!(checked(&study(hosts.clone()), &[plenty, plenty]), Ok(()));
        assert_eq!(checked(&study(hosts), &[plenty, None]), Ok(()), "nobody knows");
    }

    /// What comes with the program holds 6,000 images.
    #[test]
    fn a_study_without_enough_data_is_refused() {
        let study = |local_batch, workers: &[usize]| {
            let setting = Setting { local_batch, ..setting("mlp") };
            let pace = super::super::budget::Pace { iteration_s: 1.0, overhead_s: 1.0 };
            let planned = |&workers: &usize| PlannedCell { cell: cell(&setting, "bsp-a2a", workers), pace };
            let cells = workers.iter().map(planned).collect();
            let panel = PanelPlan { setting: setting.clone(), cells, slowed: None };
            Study { protocol: STUDY, panels: vec![panel], placement: None, spared: Vec::new(), fixed: Vec::new() }
        };
        let registry = Registry::built_in();
        assert!(check(&study(1500, &[1, 4]), &registry, &[None]).is_ok());
        let why = check(&study(1501, &[1, 4]), &registry, &[None]).expect_err("too little").in_one_line();
        assert!(why.contains("mlp: 4 workers take 6004 samples in an iteration, and the data holds 6000"), "{why}");
    }

    #[test]
    fn real_models_bring_their_data() {
        let here = setting("mlp");
        let estimate =
            needs(&here).of_cell(&cell(&here, "wfbp-a2a", 4), &Registry::built_in(), Seats { workers: 4, shards: 0 });
        assert!(estimate.data > 7000 * 28 * 28 && estimate.workers == 4, "{estimate:?}");
    }
}
