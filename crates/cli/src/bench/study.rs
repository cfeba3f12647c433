//! From what was asked for to the cells that are measured, in which order. Pure.

mod pace;
mod sense;
mod usual;

use std::fmt::Display;

use paceline_plan::NetworkModel;
use paceline_strategy::Strategy;

use super::arguments::{BenchArguments, ComputeChoice, split_methods};
use super::budget::{Pace, Protocol, STUDY};
use super::catalogue::{Catalogue, ProfileEntry};
use super::cell::{Arm, Cell, Compute, ServerHost, Setting, TuneSettings};
use super::dilation::Load;
use super::placement::Placement;
use super::stage::Stage;
use super::statistics::VALUES_MIN;
use super::tuned::{following, tuned};
use pace::pace;
use usual::{BUDGET_S, fixed, spare, wanted};

/// Everything that is to be measured.
#[derive(Clone, Debug)]
pub struct Study {
    /// How much of each cell.
    pub protocol: Protocol,
    /// In the order of the report.
    pub panels: Vec<PanelPlan>,
    /// Where a launcher has placed the ranks; None: we start them ourselves, on this host.
    pub placement: Option<Placement>,
    /// Methods that a cluster in a box goes without, so that the study that no arguments mean ends in time.
    pub spared: Vec<&'static str>,
    /// What options that were given leave as it is in a cluster in a box, in words.
    pub fixed: Vec<String>,
}

/// A setting with its cells.
#[derive(Clone, Debug)]
pub struct PanelPlan {
    /// What the cells share.
    pub setting: Setting,
    /// In the order of measurement.
    pub cells: Vec<PlannedCell>,
    /// Why it is dilated, where nobody said by how much.
    pub slowed: Option<String>,
}

/// A cell, and what is believed of its speed.
#[derive(Clone, Debug)]
pub struct PlannedCell {
    /// What to measure.
    pub cell: Cell,
    /// A guess.
    pub pace: Pace,
}

/// What a study is planned for.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Cores of this machine.
    pub cores: usize,
    /// What a launcher has started; None: we start the ranks ourselves.
    pub launched: Option<&'a Launched>,
}

/// What a launcher has started.
#[derive(Clone, Debug)]
pub struct Launched {
    /// Its ranks on their hosts.
    pub stage: Stage,
    /// The same with cores and names, as it is kept.
    pub placement: Placement,
    /// What may still be taken of the memory of each host, in bytes; None: nobody knows.
    pub available_bytes: Vec<Option<u64>>,
}

/// The study's seven methods, and what most people have.
pub const METHODS: [&str; 8] =
    ["bsp-ps", "bsp-a2a", "wfbp-ps", "wfbp-a2a", "mg-wfbp", "bytescheduler-ps", "bytescheduler-a2a", "ddp"];

/// Why a study makes no sense: what, and what to do.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The sentence.
    pub what: String,
    /// The next step.
    pub help: Option<String>,
}

fn refuse<T>(what: impl Display, help: impl Display) -> Result<T, Refusal> {
    Err(Refusal { what: what.to_string(), help: Some(help.to_string()) })
}

/// A method that the registry knows.
#[derive(Clone)]
struct Chosen {
    name: String,
    strategy: Strategy,
}

/// Runs of each cell if nobody says it: fewer decide nothing.
const RUNS: usize = VALUES_MIN;

/// Plans.
///
/// # Errors
/// What makes no sense, or is unknown.
pub fn plan(arguments: &BenchArguments, catalogue: &Catalogue<'_>, place: Place) -> Result<Study, Refusal> {
    sense::check(arguments, place)?;
    let methods = methods(arguments, catalogue)?;
    sense::check_plans(&methods)?;
    let wanted = wanted(arguments, place);
    let mut panels = Vec::new();
    for one in &wanted {
        for draft in settings(one, &methods, catalogue, place)? {
            panels.push(panel(draft, &methods, one, catalogue, place)?);
        }
    }
    let asked = [("--tune tunes", arguments.tune), ("--policy is for", arguments.followed.is_some())];
    let changes = |panel: &PanelPlan| panel.cells.iter().any(|one| one.cell.tuned || one.cell.policy.is_some());
    if let Some((option, _)) = asked.iter().find(|(_, asked)| *asked && !panels.iter().any(changes)) {
        return refuse(
            format!(
                "{option} all-reduces, and nothing here makes any: servers add up in one way only, and one worker alone \
                 does not communicate"
            ),
            "name a method with arch=a2a and more than one worker, or leave it out",
        );
    }
    let runs = arguments.runs.unwrap_or(RUNS);
    let spared = spare(arguments, &mut panels, runs);
    let protocol = match (arguments.full, arguments.iterations) {
        (true, _) => STUDY,
        (false, Some(iterations)) => {
            let warm_up = arguments.warmup.unwrap_or(super::budget::WARM_UP);
            Protocol::Fixed { warm_up, iterations, runs }
        }
        (false, None) => {
            let seconds = arguments.budget.unwrap_or(BUDGET_S.max(least_s(&panels, runs)));
            Protocol::Timed { seconds, runs }
        }
    };
    let placement = place.launched.map(|launched| launched.placement.clone());
    Ok(Study { protocol, panels, placement, spared, fixed: fixed(arguments, &wanted) })
}

/// Seconds that so many runs of all cells take in any case, where time decides.
fn least_s(panels: &[PanelPlan], runs: usize) -> f64 {
    let cells = panels.iter().flat_map(|panel| &panel.cells);
    Protocol::Timed { seconds: 0.0, runs }.least_of_all_s(cells.map(|planned| &planned.pace))
}

/// The hosts with their ranks, if there are several places to live.
fn stage(arguments: &BenchArguments, place: Place) -> Option<Stage> {
    let emulated = |hosts: super::arguments::Hosts| Stage::emulated(hosts.hosts, hosts.workers);
    place.launched.map(|launched| launched.stage.clone()).or(arguments.hosts.map(emulated))
}

/// The hosts that do nothing but serve.
fn servers_on(arguments: &BenchArguments, place: Place) -> Result<Vec<ServerHost>, Refusal> {
    let Some(stage) = stage(arguments, place).filter(|_| !arguments.servers_on.is_empty()) else {
        return Ok(Vec::new());
    };
    let refusal =
        |what| Refusal { what: format!("--servers-on {}: {what}", arguments.servers_on.join(",")), help: None };
    stage.serving(&arguments.servers_on).map_err(refusal)
}

fn methods(arguments: &BenchArguments, catalogue: &Catalogue<'_>) -> Result<Vec<Chosen>, Refusal> {
    let strategies = catalogue.strategies;
    let parse = |name: &str| strategies.parse(name).map(|strategy| Chosen { name: name.to_owned(), strategy });
    let Some(text) = &arguments.methods else {
        return Ok(METHODS.iter().filter_map(|name| parse(name).ok()).collect());
    };
    let names = split_methods(text);
    let mut chosen: Vec<Chosen> = Vec::new();
    for name in &names {
        let one = parse(name).map_err(|error| Refusal {
            what: format!("--methods {name}: {error}"),
            help: Some("`paceline explain` lists what there is to choose from".to_owned()),
        })?;
        if chosen.iter().any(|known| known.strategy == one.strategy) {
            return refuse(format!("--methods {text}: {name} is there twice"), "name each method once");
        }
        chosen.push(one);
    }
    match chosen.is_empty() {
        true => refuse("--methods names no method", "leave it out for all"),
        false => Ok(chosen),
    }
}

/// A setting, and what is known besides of what its workers do.
struct Draft {
    setting: Setting,
    /// Why it is dilated, where nobody said by how much.
    slowed: Option<String>,
    /// Bytes of the gradients that are replayed; 0 where computation is real.
    bytes: f64,
}

/// Every combination of model, batch and network.
fn settings(
    arguments: &BenchArguments,
    methods: &[Chosen],
    catalogue: &Catalogue<'_>,
    place: Place,
) -> Result<Vec<Draft>, Refusal> {
    let servers_on = servers_on(arguments, place)?;
    let most = workers(arguments, stage(arguments, place).as_ref(), &servers_on).last().copied().unwrap_or(1);
    let sends = most > 1 || methods.iter().any(|method| method.strategy.servers(most, 1).is_some());
    let mut settings = Vec::new();
    for (model, profile, batch) in computations(arguments, catalogue)? {
        let batches = if arguments.local_batch.is_empty() { vec![batch] } else { arguments.local_batch.clone() };
        for network in &networks(arguments)? {
            for &local_batch in &batches {
                let load = profile.as_ref().zip(network.as_ref());
                let load = load.and_then(|(profile, network)| load_of(profile, local_batch, network, most));
                let unsaid = load.filter(|_| sends && arguments.dilate.is_none());
                let setting = Setting {
                    model: model.clone(),
                    compute: compute(profile.as_ref(), local_batch),
                    network: network.clone(),
                    workers_per_host: network.as_ref().map(|_| arguments.hosts.map_or(1, |hosts| hosts.workers)),
                    local_batch,
                    dilate: unsaid.map_or(arguments.dilate.unwrap_or(1.0), |load| load.dilation(place.cores)),
                    data: arguments.data.clone(),
                    servers_on: servers_on.clone(),
                    // An emulated network is made of shared memory.
                    tcp_streams: arguments.tcp_streams.filter(|_| network.is_none()).unwrap_or(1),
                };
                let slowed = unsaid.and_then(|load| load.reason(place.cores));
                settings.push(Draft { setting, slowed, bytes: profile.as_ref().map_or(0.0, |profile| profile.bytes) });
            }
        }
    }
    Ok(settings)
}

/// The canonical names of the emulated networks; None for the machine's own links.
fn networks(arguments: &BenchArguments) -> Result<Vec<Option<String>>, Refusal> {
    let canonical = |text: &String| {
        let network: Result<NetworkModel, _> = text.parse();
        let network = network.map_err(|error| Refusal { what: format!("--emulate {text}: {error}"), help: None })?;
        Ok(Some(network.to_string()))
    };
    match arguments.emulate.is_empty() {
        true => Ok(vec![None]),
        false => arguments.emulate.iter().map(canonical).collect(),
    }
}

/// What a cluster in a box does in an iteration.
fn load_of(profile: &ProfileEntry, local_batch: usize, network: &str, workers: usize) -> Option<Load> {
    let compute_s = local_batch as f64 / profile.samples_per_s(local_batch);
    let network: NetworkModel = network.parse().ok()?;
    Some(Load::of(workers, profile.bytes, compute_s, &network))
}

/// What the workers of a setting do.
fn compute(profile: Option<&ProfileEntry>, local_batch: usize) -> Compute {
    profile.map_or(Compute::Real, |profile| Compute::Replay {
        profile: profile.name.clone(),
        fingerprint: profile.fingerprint.clone(),
        recorded_batch: profile.recorded_batch,
        samples_per_s: profile.samples_per_s(local_batch),
    })
}

/// Each model with the profile that is replayed, if one is, and its usual batch.
fn computations(
    arguments: &BenchArguments,
    catalogue: &Catalogue<'_>,
) -> Result<Vec<(String, Option<ProfileEntry>, usize)>, Refusal> {
    if let Some(ComputeChoice::Replay(Some(path))) =
        arguments.compute.as_ref().filter(|compute| !names_built_in(compute, catalogue))
    {
        let (model, profile) = (catalogue.read_profile)(path).map_err(|error| Refusal {
            what: format!("--compute replay:{path}: {error}"),
            help: Some(
                "`paceline profile` and tools/profile_torch.py write such a file; `rtx2080ti` is built in".to_owned(),
            ),
        })?;
        let replayed = |model, profile: &ProfileEntry| vec![(model, Some(profile.clone()), profile.local_batch)];
        return match &arguments.models[..] {
            [] => Ok(replayed(model, &profile)),
            [named] if *named == model => Ok(replayed(model, &profile)),
            _ => refuse(
                format!("the profile {path} is of {model}, not of {}", arguments.models.join(", ")),
                "leave --models out",
            ),
        };
    }
    // As the two panels of a study without arguments have them: what is computed here is small.
    let usual = if arguments.compute == Some(ComputeChoice::Real) { "mlp" } else { "resnet50" };
    let names = if arguments.models.is_empty() { vec![usual.to_owned()] } else { arguments.models.clone() };
    let one = |name: &String| {
        let model = catalogue.model(name).map_err(|what| Refusal { what, help: None })?;
        match (&arguments.compute, &model.profile) {
            (Some(ComputeChoice::Replay(_)), Some(profile)) => {
                Ok((name.clone(), Some(profile.clone()), profile.local_batch))
            }
            (Some(ComputeChoice::Replay(_)), None) => refuse(
                format!("there is no built-in profile of {name}: only the study's models have one"),
                "--compute real, or --compute replay:FILE with a file by `paceline profile` or tools/profile_torch.py",
            ),
            _ if model.sample_s.is_none() => refuse(format!("{name} cannot be computed here"), "--compute replay"),
            _ => Ok((name.clone(), None, model.local_batch)),
        }
    };
    names.iter().map(one).collect()
}

/// Does `--compute replay:NAME` name a profile that is built in?
fn names_built_in(compute: &ComputeChoice, catalogue: &Catalogue<'_>) -> bool {
    let ComputeChoice::Replay(Some(name)) = compute else { return true };
    catalogue
        .models
        .iter()
        .filter_map(|model| model.profile.as_ref())
        .any(|profile| profile.name.split_once('@').is_some_and(|(_, device)| device == name))
}

fn panel(
    draft: Draft,
    methods: &[Chosen],
    arguments: &BenchArguments,
    catalogue: &Catalogue<'_>,
    place: Place,
) -> Result<PanelPlan, Refusal> {
    let Draft { setting, slowed, bytes } = draft;
    let stage = stage(arguments, place);
    let workers = workers(arguments, stage.as_ref(), &setting.servers_on);
    let most = workers.iter().max().copied().unwrap_or(1);
    if let Some(stage) = &stage {
        sense::fits(most, stage, &setting, arguments, place)?;
    }
    let threads = match place.launched {
        _ if setting.is_replayed() => 1,
        Some(launched) => launched.placement.cores_of_rank(),
        None => (place.cores / most).max(1),
    };
    sense::check_servers(methods, &setting, place)?;
    sense::check_links(methods, &setting, place)?;
    let model = catalogue.model(&setting.model).ok();
    let cell = |chosen: &Chosen, workers: usize, arm| {
        let cell = Cell { arm, ..cell_of(&setting, stage.as_ref(), chosen, workers, threads) };
        PlannedCell { pace: pace(&cell, model, bytes, place), cell }
    };
    let mut cells = Vec::new();
    let alone = |chosen: &Chosen| chosen.strategy.servers(1, 1).is_none() && chosen.strategy.compressor().is_none();
    let has_baseline = workers.contains(&1) && methods.iter().any(alone);
    if !setting.is_replayed() && !has_baseline {
        let strategy =
            catalogue.strategies.parse("bsp-a2a").map_err(|error| Refusal { what: error.to_string(), help: None })?;
        cells.push(cell(&Chosen { name: "bsp-a2a".to_owned(), strategy }, 1, Arm::Baseline));
    }
    for &workers in &workers {
        cells.extend(methods.iter().map(|chosen| cell(chosen, workers, Arm::Method)));
        let all_reduces = |chosen: &&Chosen| workers > 1 && alone(chosen);
        let once_more = methods.iter().filter(all_reduces).map(|chosen| cell(chosen, workers, Arm::Method));
        let once_more: Vec<PlannedCell> = once_more.collect();
        let settings = TuneSettings {
            rehearsal_s: arguments.tune_rehearsal,
            iterations: arguments.tune_learning,
            afresh: arguments.tune_afresh,
        };
        cells.extend(once_more.iter().filter(|_| arguments.tune).map(|planned| tuned(planned, settings)));
        let policies = arguments.followed.iter();
        cells.extend(policies.flat_map(|policy| once_more.iter().map(move |planned| following(planned, policy))));
        // When all others have had a run, it is known which of them is measured again ([`super::again`]).
        cells.extend((methods.len() > 1).then(|| cell(&methods[0], workers, Arm::Again)));
    }
    Ok(PanelPlan { setting, cells, slowed })
}

/// A method on so many workers.
fn cell_of(setting: &Setting, stage: Option<&Stage>, chosen: &Chosen, workers: usize, threads: usize) -> Cell {
    let hosts = match (stage, setting.workers_per_host) {
        (Some(stage), _) => stage.hosts_of(workers, &setting.servers_on),
        (None, on_each) => on_each.map_or(1, |on_each| workers.div_ceil(on_each)),
    };
    let servers = chosen.strategy.servers(workers, hosts);
    // Where the arch is open, each host has a shard, and as many serve as are predicted to be the fastest.
    let open = if chosen.strategy.arch_is_open() && workers > 1 { hosts } else { 0 };
    Cell {
        setting: setting.clone(),
        method: chosen.name.clone(),
        strategy: chosen.strategy.to_string(),
        workers,
        shards: servers.map_or(open, |servers| servers.shards),
        dedicated_servers: servers.is_some_and(|servers| servers.dedicated || !setting.servers_on.is_empty()),
        threads,
        arm: Arm::Method,
        tuned: false,
        tune_settings: TuneSettings::default(),
        policy: None,
    }
}

/// The numbers of workers, ascending, each once.
fn workers(arguments: &BenchArguments, stage: Option<&Stage>, serving: &[ServerHost]) -> Vec<usize> {
    let mut workers = match (&arguments.workers[..], stage) {
        ([], Some(stage)) => vec![stage.workers(serving).len()],
        ([], None) => vec![1, 2, 4],
        (given, _) => given.to_vec(),
    };
    workers.sort_unstable();
    workers.dedup();
    workers
}

#[cfg(test)]
mod tests;
