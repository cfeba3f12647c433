use paceline_plan::{Cluster, Plan};

use crate::Job;
use crate::job::Subject;

/// By which share of an iteration the simulator itself may be off with 95 %: so many cells of several workers, and of one, are within that on
/// emulated networks, whose constants are known (docs/benchmarking.md, "Predictions").
pub(crate) const MODEL: f64 = 0.06;
const MODEL_ALONE: f64 = 0.01;

/// Where an iteration of `iteration_s` ends with 95 %, at the least and at the most: each constant, and the profile's time, moved to
/// the ends of its interval, and the simulator itself, root of squares.
pub(crate) fn of(subject: &Subject<'_>, plan: &Plan, iteration_s: f64) -> (f64, f64) {
    let Job { cluster, workers, strategy, .. } = subject.job;
    // Of what the cluster costs over other protocols nothing is counted.
    let cluster = cluster.over(&strategy.protocol.name);
    let cluster = &*cluster;
    // What a constant changes does not depend on switches and shared ports, and simulating programs each time would take long.
    let flat = subject.on_flat();
    let seconds = |cluster: &Cluster, slower: f64| {
        let costs = flat.costs(cluster).ok()?.slowed(slower);
        let (traffic, outcome) = flat.play(&costs, plan, false);
        Some(outcome.iteration_s + traffic.jitter_s)
    };
    let model_s = iteration_s * if workers > 1 { MODEL } else { MODEL_ALONE };
    let Some(base_s) = seconds(cluster, 1.0) else { return (iteration_s - model_s, iteration_s + model_s) };
    let (mut below, mut above) = (0.0, 0.0);
    // Ends that contradict other constants say nothing.
    let mut add = |ends: [Option<f64>; 2]| {
        let [one, other] = ends.map(|seconds| seconds.map_or(0.0, |seconds| seconds - base_s));
        below += one.min(other).min(0.0).powi(2);
        above += one.max(other).max(0.0).powi(2);
    };
    add([-model_s, model_s].map(|seconds| Some(base_s + seconds)));
    if let Some(uncertainty) = subject.profile.uncertainty {
        add([seconds(cluster, (1.0 - uncertainty).max(0.0)), seconds(cluster, 1.0 + uncertainty)]);
    }
    let waiting = subject.waiting_is_known_to();
    if waiting > 0.0 {
        add([seconds(cluster, 1.0 - waiting), seconds(cluster, 1.0 + waiting)]);
    }
    let doubtful = cluster.constants().into_iter().filter(|(_, constant)| !constant.is_exact());
    for (name, constant) in doubtful.filter(|(name, _)| workers > 1 && matters(subject, name)) {
        add([constant.low, constant.high].map(|value| {
            let mut moved = cluster.clone();
            moved.constant_mut(&name)?.value = value;
            seconds(&moved, 1.0)
        }));
    }
    ((iteration_s - f64::sqrt(below)).max(0.0), iteration_s + f64::sqrt(above))
}

/// Can a constant make a difference? Only saves time.
fn matters(subject: &Subject<'_>, name: &str) -> bool {
    let (group, _) = name.split_once('.').unwrap_or((name, ""));
    let has_servers = subject.job.strategy.arch.name == "ps";
    match group {
        "server" => has_servers,
        "protocols" => false,
        // Also what overtakes on its way to servers arrives later.
        "operation" => !has_servers || name.starts_with("operation.overtaking"),
        // Intervals are those under one switch, where nothing is beyond it.
        "across" => subject.world.hosts > 1 && name != "across.hop_s",
        "computation" => match name.strip_prefix("computation.overhead_s.") {
            Some(model) => model == subject.profile.model || model == "*",
            None => true,
        },
        _ => true,
    }
}
