use paceline_plan::{Cluster, Plan};

use crate::Job;
use crate::job::Subject;

/// Where an iteration of `iteration_s` begins and ends with 95 %: each constant moved to its ends, root of squares.
pub(crate) fn of(subject: &Subject<'_>, plan: &Plan, iteration_s: f64) -> (f64, f64) {
    let Job { cluster, workers, .. } = subject.job;
    if workers == 1 {
        return (iteration_s, iteration_s);
    }
    // What a constant changes does not depend on switches, and simulating programs on them each time would take long.
    let flat = subject.on_flat();
    let seconds = |cluster: &Cluster| {
        let costs = flat.costs(cluster).ok()?;
        let (traffic, outcome) = flat.play(&costs, plan, false);
        Some(outcome.iteration_s + traffic.jitter_s)
    };
    let Some(base_s) = seconds(cluster) else { return (iteration_s, iteration_s) };
    let (mut below, mut above) = (0.0, 0.0);
    for (name, constant) in cluster.constants() {
        if constant.is_exact() || !matters(subject, &name) {
            continue;
        }
        let mut changes = [constant.low, constant.high].map(|value| {
            let mut moved = cluster.clone();
            if let Some(constant) = moved.constant_mut(&name) {
                constant.value = value;
            }
            seconds(&moved).map_or(0.0, |seconds| seconds - base_s)
        });
        changes.sort_by(f64::total_cmp);
        below += changes[0].min(0.0).powi(2);
        above += changes[1].max(0.0).powi(2);
    }
    ((iteration_s - f64::sqrt(below)).max(0.0), iteration_s + f64::sqrt(above))
}

/// Can a constant make a difference? Only saves time.
fn matters(subject: &Subject<'_>, name: &str) -> bool {
    let (group, _) = name.split_once('.').unwrap_or((name, ""));
    let has_servers = subject.job.strategy.arch.name == "ps";
    match group {
        "server" => has_servers,
        "operation" => !has_servers,
        "across" => subject.world.hosts > 1,
        "computation" => match name.strip_prefix("computation.overhead_s.") {
            Some(model) => model == subject.profile.model || model == "*",
            None => true,
        },
        _ => true,
    }
}
