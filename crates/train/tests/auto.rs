//! `strategy=auto`: chosen from what was measured here, lossless, repeatable, and told.

mod support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use paceline_plan::{Plan, Profile, ProfileTensor, Step};
use paceline_schedule::Workload;
use paceline_strategy::Registry;
use paceline_train::{
    BatchSize, CellRun, Decision, ExecutedPlans, Length, MeasureOptions, ModelName, Observer, Progress, Silent, Stage,
    Subject, TrainOptions, TrainReport, measure, train_model,
};
use support::fake_backend::{FakeBackend, Place};
use support::lossless::{assert_close, single_worker_sgd, trained_with};
use support::{Directory, backend, on_ranks, on_workers, options, sample};

/// Whatever is chosen, the parameters are those of one worker, every rank has the same, and the plans that were carried out
/// give the same bits again.
#[test]
fn what_is_chosen_is_lossless_and_can_be_repeated() {
    let data = sample(60, 10);
    for (workers, shards) in [(1, 0), (2, 0), (3, 1), (2, 3)] {
        let options = TrainOptions { strategy: "auto".into(), ..options() };
        let expected = single_worker_sgd(&data, ModelName::Mlp, &options);
        let (dumps, executed) = trained_with(workers, shards, &data, ModelName::Mlp, &options);
        for dump in &dumps {
            assert_eq!(*dump, dumps[0], "ranks differ");
        }
        assert_close(&dumps[0], &expected, &format!("auto on {workers} workers, {shards} shards"));
        // Eight iterations are measured of so few; what is chosen then leaves nothing open but the schedule's name.
        assert_eq!(executed.stages[0].first_iteration, 0);
        let chosen = &executed.stages[1];
        assert_eq!((chosen.first_iteration, chosen.plan.version), (8, 2));
        let strategy = Registry::built_in().parse(&chosen.plan.strategy).unwrap();
        assert!(!strategy.arch_is_open() && strategy.lossless(&Registry::built_in()), "{strategy}");
        assert!(chosen.plan.shards <= shards, "{strategy}");
        let again = TrainOptions { plan: Some(executed.clone()), ..options };
        let (repeated, carried_out) = trained_with(workers, shards, &data, ModelName::Mlp, &again);
        assert_eq!((repeated, carried_out), (dumps, executed), "other bits");
    }
}

/// A plan of each strategy, for four updates each.
fn planned(strategies: &[&str]) -> ExecutedPlans {
    let sizes: Vec<usize> = backend(ModelName::Mlp, 0).parameters().iter().map(|tensor| tensor.elements()).collect();
    let stage = |(number, text): (usize, &&str)| {
        let strategy = Registry::built_in().parse(text).unwrap();
        let workload = Workload::of_sizes(&sizes).with_world(2, 1);
        let plan = paceline_schedule::plan(&strategy, &workload).unwrap();
        Stage {
            first_iteration: 4 * number,
            plan: Plan { version: 1 + number as u32, ..plan },
            all_reduces: Vec::new(),
            changes: Vec::new(),
        }
    };
    let stages: Vec<Stage> = strategies.iter().enumerate().map(stage).collect();
    ExecutedPlans { stages: stages.clone(), ..ExecutedPlans::planned(stages[0].plan.clone()) }
}

/// From all-to-all to one server of three, to all of them, back and to two, as `auto` may do: the optimiser has its
/// momentum all the way, and the servers, which idle in between, take up further plans.
#[test]
fn the_carrier_may_change_more_than_once() {
    let data = sample(60, 10);
    let options = TrainOptions { strategy: "auto".into(), ..options() };
    let expected = single_worker_sgd(&data, ModelName::Mlp, &options);
    let planned = planned(&[
        "wfbp-a2a",
        "schedule=wfbp,arch=ps:1:64KiB",
        "bytescheduler-ps,arch=ps:3",
        "schedule=none,arch=a2a",
        "schedule=wfbp,arch=ps:2:64KiB",
    ]);
    assert_eq!(planned.stages.iter().map(|stage| stage.plan.shards).collect::<Vec<_>>(), [0, 1, 3, 0, 2]);
    let options = TrainOptions { plan: Some(planned), ..options };
    let (dumps, executed) = trained_with(2, 3, &data, ModelName::Mlp, &options);
    assert_eq!(dumps[0], dumps[1], "ranks differ");
    assert_close(&dumps[0], &expected, "through five plans");
    assert_eq!(executed.stages.len(), 5);
    // What was only planned is complete once it was carried out.
    assert_eq!(executed.stages[0].all_reduces.len(), executed.stages[0].plan.operations());
}

/// Whoever names a number of shards gets as many or none, and nobody gets more than there are, be it in the end.
#[test]
fn other_numbers_of_shards_than_there_are_are_refused() {
    let data = sample(60, 10);
    let ends_with_four = planned(&["wfbp-a2a", "wfbp-ps,arch=ps:3", "wfbp-ps,arch=ps:4"]);
    for (strategy, plan, wanted) in [("wfbp-ps,arch=ps:2", None, 2), ("auto", Some(ends_with_four), 4)] {
        let options = TrainOptions { strategy: strategy.into(), plan, ..options() };
        let results =
            on_workers(2, 3, |peers| train_model(peers, backend(ModelName::Mlp, 0), &data, &options, &mut Silent));
        for result in results {
            let message = result.unwrap_err().to_string();
            assert!(message.contains(&format!("wants {wanted} shards, and 3 are here")), "{message}");
        }
    }
}

#[derive(Default)]
struct Listener(Vec<Decision>);

impl Observer for Listener {
    fn decided(&mut self, decision: &Decision) {
        self.0.push(decision.clone());
    }
}

/// Long enough for a window: the first decision is told when it is made, and the report has what became of it.
#[test]
fn decisions_are_told_and_compared_with_what_was_measured() {
    let data = sample(60, 10);
    let options = TrainOptions { strategy: "auto,arch=a2a".into(), iterations: Some(60), ..options() };
    let heard: Mutex<Vec<Vec<Decision>>> = Mutex::default();
    let reports = on_ranks(2, |world| {
        let mut listener = Listener::default();
        let backend = backend(ModelName::Mlp, world.rank());
        let report = train_model(world, backend, &data, &options, &mut listener).unwrap();
        heard.lock().unwrap().push(listener.0);
        report
    });
    let heard = heard.into_inner().unwrap();
    for (report, heard) in reports.iter().zip(&heard) {
        assert_eq!(heard.len(), report.decisions.len());
        let first = &heard[0];
        // Or after a further five, if they still get faster.
        assert!([8, 13].contains(&first.iteration), "{first:?}");
        assert_eq!((first.changed, first.measured_iteration_s), (true, None));
        assert!(first.predicted_iteration_s > 0.0 && !first.reasons.is_empty());
        // Repetitions are never all alike.
        assert!(
            first.predicted_low_s < first.predicted_iteration_s && first.predicted_iteration_s < first.predicted_high_s
        );
        assert_eq!(first.expected_iteration_s, first.predicted_iteration_s);
        // One window at least.
        let measured = report.decisions[0].measured_iteration_s.unwrap();
        assert!(measured > 0.0 && report.decisions[0].came_true().is_some());
    }
    let plans = |report: &paceline_train::TrainReport| -> Vec<(usize, String)> {
        report.decisions.iter().map(|decision| (decision.iteration, decision.plan_hash.clone())).collect()
    };
    assert_eq!(plans(&reports[0]), plans(&reports[1]), "the ranks decide alike");
}

/// Operations are timed behind passes of the training's own, where these are short; and nothing is left of such passes, nor of those
/// that are made beside all-reduces, each worker as many as it can.
#[test]
fn short_passes_go_ahead_of_operations_that_are_timed() {
    const ITERATIONS: usize = 12;
    let data = sample(60, 10);
    let options = TrainOptions { strategy: "auto".into(), iterations: Some(ITERATIONS), ..options() };
    // One operation by itself and eight at once, five times and once that does not count.
    // And a few of all workers together; beside all-reduces two at least, after as many without.
    for (each_ms, at_least) in [(0, 2 * 6 + 3 + 2), (20, 2 + 2)] {
        let counts = on_ranks(2, |world| {
            let passes = Arc::<AtomicUsize>::default();
            let backend = FakeBackend::counting(Duration::from_millis(each_ms), passes.clone());
            let report = train_model(world, Box::new(backend), &data, &options, &mut Silent).unwrap();
            assert_eq!(report.decisions.len(), 1, "it is chosen once");
            // What the buffer held when the model was last evaluated.
            let evaluated = report.epochs.last().map(|epoch| epoch.test_loss);
            (passes.load(Ordering::Relaxed), evaluated)
        });
        let told = format!("passes of {each_ms} ms: {counts:?}");
        assert!(counts.iter().all(|(passes, _)| passes - ITERATIONS >= at_least), "{told}");
        assert!(counts.iter().all(|(_, evaluated)| *evaluated == Some(ITERATIONS as f64)), "{told}");
    }
}

/// Changes the world after so many iterations.
struct Changes(Arc<AtomicBool>, usize);

impl Observer for Changes {
    fn iteration(&mut self, progress: &Progress) {
        self.0.store(progress.iteration >= self.1, Ordering::Relaxed);
    }
}

/// When what was decided, and whether it was a change.
fn decided(report: &TrainReport) -> Vec<(usize, String, bool)> {
    let told = |decision: &Decision| (decision.iteration, decision.plan_hash.clone(), decision.changed);
    report.decisions.iter().map(told).collect()
}

/// Iterations take many times as long as before: everything is measured and searched again, over the servers, too, and the
/// decision says what is predicted of the plan that runs from then on.
#[test]
fn what_no_longer_holds_is_decided_again() {
    let data = sample(60, 10);
    let options = TrainOptions { strategy: "auto".into(), iterations: Some(90), ..options() };
    let reports = on_workers(2, 1, |peers| {
        let slow = Arc::<AtomicBool>::default();
        let slowed = slow.clone();
        let backend = FakeBackend::new(&[0], move |_, place| {
            if place == Place::Forward(0) {
                thread::sleep(Duration::from_millis(if slowed.load(Ordering::Relaxed) { 60 } else { 2 }));
            }
        });
        train_model(peers, Box::new(backend), &data, &options, &mut Changes(slow, 30)).unwrap()
    });
    let decisions = &reports[0].decisions;
    assert!(decisions.len() > 1, "{decisions:#?}");
    let last = decisions.last().unwrap();
    assert!(last.predicted_iteration_s > 0.05 && last.expected_iteration_s > 0.05, "{last:#?}");
    assert_eq!(decided(&reports[0]), decided(&reports[1]), "the ranks decide alike");
}

/// Each of two layers computes for longer, forward and backward, than an operation takes to start, which is all that one takes.
/// The first layer's gradient is final first, so both operations hide: one behind the rest of backward, the other behind the next
/// forward pass. Then nothing is computed any more: there is nothing to hide behind, and one operation starts sooner than two.
#[test]
fn in_another_world_another_plan_is_chosen() {
    const START_UP: &str = "8ms";
    const COMPUTES: Duration = Duration::from_millis(20);
    // Two windows follow in which nothing takes what was expected, wherever the first ones end.
    const CHANGES_AT: usize = 28;
    let data = sample(60, 10);
    let directory = Directory::new();
    let path = directory.file("plan.json");
    let options = TrainOptions {
        strategy: format!("schedule=auto,arch=a2a:auto:{START_UP}"),
        batch: BatchSize::Global(2),
        iterations: Some(CHANGES_AT + 3 * 20 + 4),
        dump_plan: Some(path.clone()),
        ..options()
    };
    let reports = on_ranks(2, |world| {
        let changed = Arc::<AtomicBool>::default();
        let idle = changed.clone();
        let backend = FakeBackend::new(&[0, 1], move |_, _| {
            if !idle.load(Ordering::Relaxed) {
                thread::sleep(COMPUTES);
            }
        });
        train_model(world, Box::new(backend), &data, &options, &mut Changes(changed, CHANGES_AT)).unwrap()
    });
    assert_eq!(decided(&reports[0]), decided(&reports[1]), "the ranks decide alike");
    let decisions = &reports[0].decisions;
    let [first, .., last] = &decisions[..] else { panic!("it is not decided again: {decisions:#?}") };
    assert!(first.changed && last.changed && first.plan_hash != last.plan_hash, "{decisions:#?}");
    assert!(last.iteration > CHANGES_AT && last.predicted_iteration_s < first.predicted_iteration_s, "{decisions:#?}");
    // What was said is what ran.
    let executed = ExecutedPlans::read(&path).unwrap();
    let [_, before, .., after] = &executed.stages[..] else { panic!("{executed:#?}") };
    let of = |stage: &Stage| (stage.first_iteration, format!("{:016x}", stage.plan.hash()));
    let said = [first, last].map(|decision| (decision.iteration, decision.plan_hash.clone()));
    assert_eq!([of(before), of(after)], said);
    assert_eq!((before.plan.buckets.len(), before.plan.forward_overlap), (2, true), "{decisions:#?}");
    assert_eq!(after.plan.buckets.len(), 1, "{decisions:#?}");
}

#[test]
fn gradients_that_are_clipped_all_come_before_the_next_forward_pass() {
    let data = sample(60, 10);
    let options = TrainOptions { strategy: "auto".into(), clip_norm: Some(0.5), ..options() };
    let (_, executed) = trained_with(2, 1, &data, ModelName::Mlp, &options);
    assert!(executed.stages.iter().all(|stage| !stage.plan.forward_overlap));
}

/// A layer of 4 MB whose gradient comes last and that forward needs first, and three others.
fn profile() -> Profile {
    let tensor = |name: &str, elements| ProfileTensor { name: name.into(), elements, forward_macs_per_sample: 10 };
    let step = |tensor, seconds| Step { tensor, seconds };
    let forward: Vec<Step> = (0..4).map(|tensor| step(tensor, 0.000_5)).collect();
    let backward = (0..4).rev().map(|tensor| step(tensor, 0.001)).collect();
    let tensors = vec![tensor("a", 1_000_000), tensor("b", 10), tensor("c", 500_000), tensor("d", 7)];
    Profile {
        schema: Profile::SCHEMA,
        model: "four".into(),
        local_batch: 4,
        tensors,
        forward,
        backward,
        update_s: 0.000_1,
        ..Profile::default()
    }
}

/// Sums are checked in a replay: whatever is chosen gives the right ones.
#[test]
fn a_replay_is_planned_from_its_profile() {
    let options = MeasureOptions {
        strategy: "auto".into(),
        local_batch: 4,
        warm_up: 1,
        length: Length::Confident { relative: 0.5, at_least: 3, at_most: 6, budget: Duration::from_secs(5) },
        ..MeasureOptions::default()
    };
    for (workers, shards) in [(1, 0), (2, 0), (2, 1)] {
        let runs = on_workers(workers, shards, |peers| measure(peers, Subject::Replay(&profile()), &options));
        let runs: Vec<CellRun> = runs.into_iter().map(Result::unwrap).collect();
        assert!(runs.iter().all(|run| *run == runs[0]), "the workers tell different numbers");
        let run = &runs[0];
        // Where the machine is busy, it may have been chosen again.
        assert_eq!(run.plan.version as usize, 2 + run.abandoned.len());
        assert!(!run.strategy.contains("arch=auto"), "{}", run.strategy);
        let decision = run.decision.as_ref().expect("a decision");
        assert_eq!((&decision.strategy, &decision.plan_hash), (&run.strategy, &run.plan_hash));
        assert!(decision.predicted_iteration_s > 0.0 && decision.outcome().is_some(), "{decision:?}");
        assert_eq!(run.plan.check(), Ok(()));
    }
}
