//! Cells whose calls are tuned: what a run has learned is kept for the next one on the same cluster. And cells whose calls follow a
//! policy that was learned elsewhere.

use std::mem;

use paceline_train::TuneOptions;
use paceline_tune::learner::Lesson;
use paceline_tune::{Policy, policy_file};

use super::budget::Pace;
use super::cell::{Cell, TuneSettings};
use super::placement::Placement;
use super::store::{RunRecord, Store};
use super::study::PlannedCell;
use crate::failure::Failure;
use crate::machine::Machine;
use crate::tuning::{cluster_name, joined, links, say_lost};

/// So many lessons go along with a world: those of calls among as many ranks and hosts as it has, and of these and of the others those of
/// the most samples. The ranks find them in a variable of the environment, for which
/// Linux has 128 KiB, and a lesson takes about 450 bytes.
const LESSONS_MAX: usize = 200;

/// The same cell with its calls tuned, which is learned before the iterations that count.
pub fn tuned(PlannedCell { cell, pace }: &PlannedCell, tune_settings: TuneSettings) -> PlannedCell {
    let TuneOptions { rehearsal, iterations, .. } = tune_settings.options(Vec::new());
    let learning_s = rehearsal.as_secs_f64() + iterations as f64 * pace.iteration_s;
    PlannedCell {
        cell: Cell { method: format!("{}+tune", cell.method), tuned: true, tune_settings, ..cell.clone() },
        pace: Pace { overhead_s: pace.overhead_s + learning_s, ..*pace },
    }
}

/// The same cell with calls that follow a policy.
pub fn following(PlannedCell { cell, pace }: &PlannedCell, policy: &Policy) -> PlannedCell {
    let (method, policy) = (format!("{}+policy", cell.method), Some(policy_file::write(policy)));
    PlannedCell { cell: Cell { method, policy, ..cell.clone() }, pace: *pace }
}

/// What a run of a cell begins with; nothing, if it is not tuned, if it is to begin afresh, or if what there is cannot be read.
pub fn lessons(store: &Store, cell: &Cell, placement: Option<&Placement>) -> Vec<Lesson> {
    if !cell.tuned || cell.tune_settings.afresh {
        return Vec::new();
    }
    let known = store.lessons(&cluster(cell, placement)).map_err(Failure::from);
    let mut lessons = known.unwrap_or_else(|failure| {
        say_lost("tuning begins with nothing", &failure);
        Vec::new()
    });
    let hosts = hosts(cell, placement);
    let fits = |it: &Lesson| usize::from(it.context.ranks) == cell.workers && usize::from(it.context.hosts) == hosts;
    lessons.sort_by(|one, other| fits(other).cmp(&fits(one)).then(other.samples.total_cmp(&one.samples)));
    lessons.truncate(LESSONS_MAX);
    lessons
}

/// Keeps what a run has learned, apart from the run. A study goes on without what cannot be kept.
pub fn keep(store: &Store, cell: &Cell, placement: Option<&Placement>, run: &mut RunRecord) {
    let tuning = run.outcome.as_mut().ok().and_then(|measured| measured.tuning.as_mut());
    let Some(tuning) = tuning.filter(|tuning| !tuning.lessons.is_empty()) else { return };
    let learned = mem::take(&mut tuning.lessons);
    let cluster = cluster(cell, placement);
    let before = store.lessons(&cluster).unwrap_or_default();
    let kept = store.keep_lessons(&cluster, &joined(&before, &learned));
    if let Err(error) = kept.and_then(|()| store.keep_standings(&cluster, &tuning.contexts)) {
        say_lost("what the tuner learns is not kept", &Failure::from(error));
    }
}

/// How many hosts the cell's workers are on, emulated ones or real ones.
fn hosts(cell: &Cell, placement: Option<&Placement>) -> usize {
    match cell.setting.network {
        Some(_) => cell.workers.div_ceil(cell.setting.workers_per_host.unwrap_or(1).max(1)),
        None => placement.map_or(1, |placement| placement.hosts_of(cell)),
    }
}

/// The cluster that the cell's ranks run on, as `train` calls it. A network that is slowed down is another one.
fn cluster(cell: &Cell, placement: Option<&Placement>) -> String {
    let setting = &cell.setting;
    let on_each = setting.workers_per_host.unwrap_or(1).min(cell.workers);
    let network = setting.network.as_deref().map(|network| (network, on_each, setting.dilate));
    let hosts = placement.map_or(1, |placement| placement.hosts_of(cell));
    cluster_name(&Machine::this(), &links(hosts, setting.tcp_streams as usize, network), cell.workers)
}

#[cfg(test)]
mod tests {
    use paceline_plan::Cluster;
    use paceline_train::{CellRun, TuningReport, TuningStanding};
    use paceline_tune::environment::{CostModel, OwnModel, Workload};
    use paceline_tune::{Action, Family, WireProtocol};

    use super::super::cell::Setting;
    use super::super::cell::samples::{cell, setting};
    use super::super::store::Occasion;
    use super::super::summary::samples::cell_run;
    use super::*;

    fn lesson(channels: u8, samples: f64) -> Lesson {
        let model = OwnModel::of(&Cluster::named("study-10gbe").expect("it is built in"));
        let context = model.state(&Workload::data_parallel(8, 32).calls[0]).context();
        let family = Family { algorithm: 3, protocol: WireProtocol::Simple };
        let action = Action { family, channels, threads: 1, chunk_log2: 18 };
        Lesson { context, action, samples, mean: 0.25 }
    }

    fn run(lessons: Vec<Lesson>) -> RunRecord {
        let tuning = TuningReport {
            standing: TuningStanding::Learning,
            gain: None,
            tuned_iterations: 1,
            trials: 0,
            iteration_trials: 0,
            policies: 1,
            congestion: None,
            remembered: 0,
            measured_s: 0.0,
            regret_s: 0.0,
            boundaries_s: 0.0,
            rehearsal_s: 0.0,
            fusion: None,
            contexts: Vec::new(),
            lessons,
            policy: paceline_tune::Policy::default(),
        };
        let outcome = Ok(CellRun { tuning: Some(tuning), ..cell_run(0.1) });
        RunRecord { number: 1, outcome, occasion: Occasion::default() }
    }

    #[test]
    fn what_a_run_has_learned_goes_into_the_next_of_its_cluster() {
        let path = std::env::temp_dir().join(format!("paceline-tuned-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory for the test");
        let store = Store::open(&path.join("runs.db")).expect("it is new");
        let plain = cell(&setting("cnn"), "ddp", 2);
        let tuned = Cell { tuned: true, ..plain.clone() };
        let mut first = run((0..=250).map(|samples| lesson(samples as u8, f64::from(samples))).collect());
        keep(&store, &tuned, None, &mut first);
        let kept_apart = first.outcome.expect("a run").tuning.expect("it was tuned").lessons;
        assert!(kept_apart.is_empty(), "lessons do not belong to the run");
        let known = lessons(&store, &tuned, None);
        assert_eq!((known.len(), known[0].samples), (LESSONS_MAX, 250.0), "those of the most samples");
        let bytes = serde_json::to_string(&known).expect("JSON").len();
        assert!(bytes < 120_000, "{bytes} bytes do not fit in a variable of the environment");
        // Of calls like its own, however few samples there are of them.
        let context = paceline_tune::Context { ranks: 2, hosts: 1, ..known[0].context };
        let fits = Lesson { context, ..lesson(7, 1.0) };
        keep(&store, &tuned, None, &mut run(vec![fits]));
        assert_eq!(lessons(&store, &tuned, None)[..2], [fits, known[0]]);
        assert!(lessons(&store, &plain, None).is_empty(), "it is not tuned");
        let others = Cell { workers: 4, ..tuned };
        assert!(lessons(&store, &others, None).is_empty(), "another cluster");
        // `train` calls two workers on one host the same, and with as many connections.
        assert_eq!(cluster(&plain, None), cluster_name(&Machine::this(), &links(1, 1, None), 2));
        let over_four = Cell { setting: Setting { tcp_streams: 4, ..plain.setting.clone() }, ..plain };
        assert_eq!(cluster(&over_four, None), cluster_name(&Machine::this(), &links(1, 4, None), 2));
        std::fs::remove_dir_all(path).expect("our own directory");
    }
}
