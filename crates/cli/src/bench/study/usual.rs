//! The study that no arguments mean: two panels, in less than four minutes. Pure.

use super::super::arguments::{BenchArguments, ComputeChoice, Hosts};
use super::{PanelPlan, Place, least_s};

/// Seconds that a study takes if nobody says it.
pub const BUDGET_S: f64 = 190.0;
/// What this machine computes if nobody says it: of the small models, the one with the most bytes for its computation (I = 3,
/// the next has 161), so that it matters how they travel even through shared memory.
const HERE: &str = "mlp";
/// Workers of the cluster in a box, and its hosts.
const WORKERS_IN_BOX: usize = 8;
const HOSTS_IN_BOX: usize = 2;
/// What the cluster in a box can go without, first to last. Its servers stay, and what people have today; this machine's
/// panel has all methods.
const SPARED: [&str; 3] = ["bytescheduler-a2a", "bsp-a2a", "wfbp-a2a"];

/// The two panels that no arguments mean, or the one that they do.
pub fn wanted(arguments: &BenchArguments, place: Place) -> Vec<BenchArguments> {
    if !arguments.models.is_empty() || arguments.compute.is_some() {
        return vec![arguments.clone()];
    }
    let mut here = BenchArguments { models: vec![HERE.to_owned()], dilate: None, ..arguments.clone() };
    if place.launched.is_some() || !arguments.emulate.is_empty() {
        return vec![here];
    }
    here.hosts = None;
    let cluster = BenchArguments {
        models: vec!["resnet50".to_owned()],
        workers: vec![WORKERS_IN_BOX],
        hosts: Some(Hosts { hosts: HOSTS_IN_BOX, workers: WORKERS_IN_BOX / HOSTS_IN_BOX }),
        emulate: vec!["10GbE".to_owned()],
        compute: Some(ComputeChoice::Replay(None)),
        data: None,
        ..arguments.clone()
    };
    vec![here, cluster]
}

/// What somebody has said that the cluster in a box, if there is one beside this machine, does not follow: in words.
pub fn fixed(arguments: &BenchArguments, wanted: &[BenchArguments]) -> Vec<String> {
    let workers = format!(
        "--workers is for this machine alone: the cluster in a box keeps its {WORKERS_IN_BOX} on {HOSTS_IN_BOX} hosts; \
         --compute replay --emulate NETWORK --hosts HOSTSxWORKERS makes another one"
    );
    let data = "--data is for this machine alone: the cluster in a box replays, and reads none".to_owned();
    let said = [(!arguments.workers.is_empty(), workers), (arguments.data.is_some(), data)];
    said.into_iter().filter(|(given, _)| *given && wanted.len() > 1).map(|(_, words)| words).collect()
}

/// On one core a cluster in a box is dilated so much that all of it would not end in time: takes methods out of it until it does,
/// if nobody has asked for anything that says otherwise. Their names.
pub fn spare(arguments: &BenchArguments, panels: &mut [PanelPlan], runs: usize) -> Vec<&'static str> {
    if !is_left_to_us(arguments) {
        return Vec::new();
    }
    let mut spared = Vec::new();
    for method in SPARED {
        if least_s(panels, runs) <= BUDGET_S {
            break;
        }
        for panel in panels.iter_mut().filter(|panel| panel.setting.is_replayed()) {
            panel.cells.retain(|planned| planned.cell.method != method);
            spared.push(method);
        }
    }
    spared
}

/// Has nobody said what is measured, how often, or how long it may take?
fn is_left_to_us(arguments: &BenchArguments) -> bool {
    let what = arguments.models.is_empty() && arguments.compute.is_none() && arguments.methods.is_none();
    // Another batch takes another time.
    let what = what && arguments.local_batch.is_empty();
    let times = arguments.budget.is_none() && arguments.dilate.is_none();
    let counts = !arguments.full && arguments.iterations.is_none() && arguments.runs.is_none();
    let twice = arguments.tune || arguments.followed.is_some();
    what && times && counts && !twice
}
