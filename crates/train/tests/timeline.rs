//! The recorded iteration: it holds together, and overlap can be seen in it.

mod support;

use paceline_plan::Plan;
use paceline_train::{
    CandleBackend, CellRun, Lane, Length, MeasureOptions, Mlp, Normalise, Process, Span, Subject, Timeline, measure,
};
use support::emulated::{demand, emulated, eventually, profile};
use support::{on_workers, sample, sgd};

/// Times are given to the nanosecond.
const ROUNDED: f64 = 2e-9;

fn options(strategy: &str) -> MeasureOptions {
    MeasureOptions {
        strategy: strategy.into(),
        local_batch: 1,
        warm_up: 1,
        length: Length::Iterations(1),
        late_share_max: f64::INFINITY,
        timeline: true,
        ..MeasureOptions::default()
    }
}

fn lane<'a>(process: &'a Process, name: &str) -> &'a Lane {
    process.lane(name).unwrap_or_else(|| panic!("{} has no lane `{name}`", process.name))
}

/// The spans of the recorded iteration.
fn recorded(lane: &Lane) -> impl Iterator<Item = &Span> {
    lane.spans.iter().filter(|span| span.iteration == 0)
}

fn tensors<'a>(spans: impl Iterator<Item = &'a Span>) -> Vec<usize> {
    spans.filter_map(|span| span.tensor).collect()
}

/// The tensors of each operation.
fn contents(plan: &Plan) -> Vec<Vec<usize>> {
    plan.partitions().map(|(bucket, _)| plan.buckets[bucket].tensors.clone()).collect()
}

/// What every timeline must be like; `forward` and `backward`: the tensors in the order of their steps.
fn check(run: &CellRun, forward: &[usize], backward: &[usize]) {
    let timeline = run.timeline.as_ref().expect("worker 0 has it");
    let names: Vec<&str> = timeline.processes.iter().map(|process| process.name.as_str()).collect();
    let workers = (0..run.workers).map(|rank| format!("worker {rank}"));
    assert_eq!(names, workers.chain((0..run.shards).map(|shard| format!("shard {shard}"))).collect::<Vec<_>>());
    assert_eq!((timeline.tensors.len(), timeline.operations.len()), (run.tensors, run.plan.operations()));
    assert!(timeline.iteration_s > 0.0);
    for process in &timeline.processes {
        assert_eq!(process.missing(), 0);
        for Lane { name, spans } in &process.lanes {
            assert!(spans.iter().all(|span| span.end_s >= span.start_s), "{}, {name}: {spans:?}", process.name);
            assert!(spans.is_sorted_by_key(|span| span.start_s), "{}, {name}: {spans:?}", process.name);
        }
    }
    timeline.processes[..run.workers].iter().for_each(|worker| check_worker(run, worker, forward, backward));
    timeline.processes[run.workers..].iter().enumerate().for_each(|(shard, process)| check_shard(run, shard, process));
}

fn check_worker(run: &CellRun, worker: &Process, forward: &[usize], backward: &[usize]) {
    let (operations, contents) = (recorded(lane(worker, "communication")), contents(&run.plan));
    assert_eq!(tensors(recorded(lane(worker, "forward"))), forward, "{}", worker.name);
    assert_eq!(tensors(recorded(lane(worker, "backward"))), backward, "{}", worker.name);
    let mut own: Vec<&Span> = ["forward", "backward", "waiting", "update"]
        .into_iter()
        .filter_map(|name| worker.lane(name))
        .flat_map(|lane| &lane.spans)
        .collect();
    own.sort_by(|one, other| one.start_s.total_cmp(&other.start_s).then(one.end_s.total_cmp(&other.end_s)));
    for pair in own.windows(2) {
        assert!(pair[0].end_s <= pair[1].start_s + ROUNDED, "{}: one thread does two things: {pair:?}", worker.name);
    }
    let mut ready = vec![f64::NAN; run.tensors];
    for span in recorded(lane(worker, "ready")) {
        let tensor = span.tensor.expect("a tensor");
        assert!(ready[tensor].is_nan(), "tensor {tensor} was ready twice");
        ready[tensor] = span.start_s;
    }
    let mut seen = vec![0; contents.len()];
    for span in operations {
        let operation = span.operation.expect("an operation");
        seen[operation] += 1;
        let latest = contents[operation].iter().map(|&tensor| ready[tensor]).fold(f64::NEG_INFINITY, f64::max);
        assert!(span.start_s + ROUNDED >= latest, "{}: {span:?} began before {latest}", worker.name);
        let (_, partition) = run.plan.partition(operation).expect("it is in the plan");
        assert_eq!(span.bytes, 4 * partition.elements.len() as u64);
    }
    assert_eq!(seen, vec![1; contents.len()], "{}: every operation, once", worker.name);
    if run.shards > 0 {
        let links = worker.lanes.iter().filter(|lane| lane.name.starts_with("to shard "));
        let pushed: u64 = links.flat_map(recorded).map(|span| span.bytes).sum();
        assert_eq!(pushed, 4 * run.parameters as u64, "{} pushes every byte, once", worker.name);
    }
}

/// Every partition of the shard comes, and goes; of several workers it is added.
fn check_shard(run: &CellRun, shard: usize, process: &Process) {
    for (operation, (_, partition)) in run.plan.partitions().enumerate() {
        if partition.shard != Some(shard) || partition.elements.is_empty() {
            continue;
        }
        let find = |name: &str| {
            let mut spans = recorded(lane(process, name)).filter(|span| span.operation == Some(operation));
            (spans.next().cloned().unwrap_or_else(|| panic!("{name}: no operation {operation}")), spans.next())
        };
        let ((received, more), (sent, again)) = (find("receiving"), find("sending"));
        assert!(more.is_none() && again.is_none() && received.start_s <= sent.end_s, "{received:?}, {sent:?}");
        let bytes = 4 * (partition.elements.len() * run.workers) as u64;
        assert_eq!((received.bytes, sent.bytes), (bytes, bytes));
        if run.workers > 1 {
            let (added, _) = find("adding");
            assert!(
                added.start_s >= received.start_s && added.start_s <= sent.end_s,
                "{added:?}, {received:?}, {sent:?}"
            );
        }
    }
}

#[test]
fn a_replays_timeline_holds_together() {
    let mut profile = profile(&[3_000, 10, 40_000, 5_000], 0.008);
    // The first tensor is tied: used again in the end, final last.
    profile.forward.push(profile.forward[0]);
    profile.backward.insert(0, profile.backward[3]);
    profile.update_s = 0.001;
    let cases = [
        ("bsp-a2a", 0),
        ("wfbp-a2a,arch=a2a:ring:100us", 0),
        ("schedule=bytescheduler:64KiB:128KiB", 0),
        ("wfbp-ps,arch=ps:2:64KiB", 2),
        ("schedule=bytescheduler:64KiB:128KiB,arch=ps:1:64KiB", 1),
    ];
    for (strategy, shards) in cases {
        for workers in [1, 3] {
            let runs = on_workers(workers, shards, |peers| {
                measure(peers, Subject::Replay(&profile), &options(strategy)).expect("a run")
            });
            println!("{strategy}, {workers} workers");
            check(&runs[0], &[0, 1, 2, 3, 0], &[0, 3, 2, 1, 0]);
            assert!(runs[1..].iter().all(|run| run.timeline.is_none()), "one is enough");
            let worker = &runs[0].timeline.as_ref().expect("it was recorded").processes[0];
            assert_eq!(tensors(recorded(lane(worker, "update"))), [0, 1, 2, 3], "each once");
            let start_ups = worker.lane("start-up").map_or(0, |lane| recorded(lane).count());
            // One worker starts nothing.
            let handicapped = strategy.contains("100us") && workers > 1;
            assert_eq!(start_ups, if handicapped { runs[0].plan.operations() } else { 0 });
        }
    }
}

#[test]
fn a_real_models_timeline_holds_together() {
    let data = sample(60, 10);
    for (strategy, shards) in [("wfbp-a2a", 0), ("ddp", 0), ("bytescheduler-ps,arch=ps:1:64KiB", 1)] {
        let runs = on_workers(2, shards, |peers| {
            let normalise = Normalise { mean: 0.3, deviation: 0.4 };
            let subject = Subject::Model {
                name: "mlp".into(),
                optimizer: sgd(0.9, 0.0),
                learning_rate: 0.01,
                backend: Box::new(CandleBackend::new(Mlp::new(28 * 28, 10, normalise), 1).expect("a model")),
                data: &data,
            };
            measure(peers, subject, &MeasureOptions { local_batch: 4, ..options(strategy) }).expect("a run")
        });
        check(&runs[0], &[0, 1, 2, 3], &[3, 2, 1, 0]);
        let timeline = runs[0].timeline.as_ref().expect("it was recorded");
        assert_eq!(tensors(recorded(lane(&timeline.processes[1], "update"))), [0, 1, 2, 3]);
        assert!(timeline.operations[0].contains(&timeline.tensors[3]), "{:?}", timeline.operations);
    }
}

#[test]
fn what_is_not_asked_for_is_not_recorded() {
    let profile = profile(&[10; 2], 0.001);
    let runs = on_workers(2, 0, |peers| {
        measure(peers, Subject::Replay(&profile), &MeasureOptions { timeline: false, ..options("wfbp-a2a") })
    });
    assert!(runs.into_iter().all(|run| run.expect("a run").timeline.is_none()));
}

/// When the first layer's forward begins, and when the last operation of the iteration before has ended.
fn first_and_last(timeline: &Timeline) -> (f64, f64) {
    let worker = timeline.worker(0).expect("there is one");
    let first = recorded(lane(worker, "forward")).find(|span| span.tensor == Some(0));
    let before = lane(worker, "communication").spans.iter().filter(|span| span.iteration == -1);
    (first.expect("it computes").start_s, before.map(|span| span.end_s).fold(0.0, f64::max))
}

/// Communication takes 100 ms, and backward 67 ms; most of it is of the last layers.
fn overlaps(strategy: &str) -> (f64, f64) {
    let sizes = [5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 365_000];
    let run = emulated(2, &profile(&sizes, 0.067), "alpha=100us,beta=25ns", &options(strategy));
    first_and_last(run.timeline.as_ref().expect("it was recorded"))
}

#[test]
fn bytescheduler_begins_forward_before_the_last_operation_has_arrived() {
    for arch in ["a2a:ring", "ps:2:800000"] {
        eventually(|| {
            let (first_s, last_s) = overlaps(&format!("schedule=bytescheduler:800000:1600000,arch={arch}"));
            demand(first_s < last_s, || {
                format!("{arch}: forward began after {first_s} s, the last came after {last_s} s")
            })
        });
    }
}

#[test]
fn wait_free_backpropagation_begins_forward_when_all_have_arrived() {
    for arch in ["a2a:ring", "ps:2:800000"] {
        eventually(|| {
            let (first_s, last_s) = overlaps(&format!("schedule=wfbp,arch={arch}"));
            // However busy the machine is, nothing is used before it is there.
            assert!(
                first_s + ROUNDED >= last_s,
                "{arch}: forward began after {first_s} s, the last came after {last_s} s"
            );
            demand(last_s > 0.01, || format!("{arch}: the iteration before has left nothing over: {last_s}"))
        });
    }
}
