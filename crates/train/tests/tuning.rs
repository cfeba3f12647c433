//! All-reduces are tuned while a job runs: it ends with what is better, on all ranks alike, or with what it had.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use paceline_train::{
    Length, MeasureOptions, ModelName, Observer, TrainOptions, TuneOptions, TuningNews, TuningStanding, train_model,
};
use paceline_tune::learner::Lesson;
use support::emulated::{demand, emulated, eventually, profile};
use support::lossless::{assert_close, single_worker_sgd, trained_with};
use support::{backend, on_ranks, options, sample};

/// Nobody has measured these links: they are taken for a hundred times as quick to answer as they are, so that what is
/// chosen by default has more rounds than need be. Fewer take less time, call by call and in the iteration. A job of 400 iterations finds
/// that four times in five, by what it happens to try: each attempt tries something else.
#[test]
fn a_job_whose_links_are_not_as_believed_ends_with_another_choice() {
    let (profile, network) = (profile(&[1 << 17], 1e-4), "alpha=2ms,beta=0.1ns");
    let seeds = AtomicU64::new(1);
    let with = |tune: Option<TuneOptions>| MeasureOptions {
        strategy: "wfbp-a2a".into(),
        length: Length::Iterations(20),
        late_share_max: f64::INFINITY,
        tune,
        ..MeasureOptions::default()
    };
    eventually(|| {
        let plain = emulated(4, &profile, network, &with(None));
        let seed = seeds.fetch_add(1, Ordering::Relaxed);
        let tuned = emulated(4, &profile, network, &with(Some(TuneOptions { seed, ..TuneOptions::default() })));
        demand(plain.tuning.is_none(), || "nobody asked for it".into())?;
        let report = tuned.tuning.as_ref().ok_or("rank 0 has no report")?;
        demand(report.standing == TuningStanding::Tuned, || format!("{report:#?}"))?;
        let gain = report.gain.map_or(0.0, |gain| gain.share);
        let measured = 1.0 - tuned.mean_iteration_s() / plain.mean_iteration_s();
        demand(gain > 0.1 && measured > 0.1, || format!("a gain of {gain} was found, and {measured} is there"))?;
        let [context] = &report.contexts[..] else { return Err(format!("{report:#?}")) };
        demand(context.gain.is_some() && context.best != "default", || format!("{context:?}"))?;
        demand(!report.lessons.is_empty() && report.iteration_trials >= 1, || format!("{report:#?}"))
    });
}

/// Tuned or not: equal to single-worker SGD, the same bits on all ranks, and again under the plan that was carried out.
#[test]
fn a_tuned_training_is_right_and_can_be_repeated() {
    let data = sample(121, 10);
    let mut changes = 0;
    for strategy in ["wfbp-a2a", "ddp", "mg-wfbp", "bytescheduler-a2a,schedule=bytescheduler:4KiB:16KiB"] {
        let options = TrainOptions {
            strategy: strategy.into(),
            iterations: Some(60),
            tune: Some(TuneOptions::default()),
            ..options()
        };
        let expected = single_worker_sgd(&data, ModelName::Cnn, &options);
        let (dumps, executed) = trained_with(3, 0, &data, ModelName::Cnn, &options);
        assert!(dumps.iter().all(|dump| *dump == dumps[0]), "{strategy}: ranks have other bits");
        assert_close(&dumps[0], &expected, strategy);
        changes += executed.stages.iter().map(|stage| stage.changes.len()).sum::<usize>();
        let again = TrainOptions { tune: None, plan: Some(executed.clone()), ..options };
        let (dumps_again, executed_again) = trained_with(3, 0, &data, ModelName::Cnn, &again);
        assert_eq!(executed_again, executed, "{strategy}");
        assert!(dumps_again == dumps, "{strategy}: the same plans and changes give other bits");
    }
    assert!(changes > 0, "nothing was ever tried");
}

/// A sum of two has the same bits, whoever adds it up and in which pieces. Whether a short job tries anything depends on
/// how long a meeting takes on a machine that has others: what has tried nothing says nothing, and the next seed is taken.
#[test]
fn two_workers_have_the_bits_of_a_training_that_is_not_tuned() {
    let data = sample(121, 10);
    let plain = TrainOptions { strategy: "wfbp-a2a".into(), iterations: Some(60), ..options() };
    let (without, _) = trained_with(2, 0, &data, ModelName::Cnn, &plain);
    let has_tried = |seed| {
        let tuned = TrainOptions { tune: Some(TuneOptions { seed, ..TuneOptions::default() }), ..plain.clone() };
        let (dumps, executed) = trained_with(2, 0, &data, ModelName::Cnn, &tuned);
        assert!(dumps == without, "seed {seed}: other bits than without");
        executed.stages.iter().any(|stage| !stage.changes.is_empty())
    };
    assert!((1..=10).any(has_tried), "nothing was ever tried");
}

/// What an observer was told.
#[derive(Default)]
struct Told {
    news: Arc<Mutex<Vec<(usize, TuningNews)>>>,
    lessons: Arc<Mutex<Vec<Lesson>>>,
}

impl Observer for Told {
    fn tuned(&mut self, iteration: usize, news: &TuningNews) {
        self.news.lock().unwrap().push((iteration, *news));
    }

    fn learned(&mut self, lessons: &[Lesson]) {
        *self.lessons.lock().unwrap() = lessons.to_vec();
    }
}

/// Rank 0 alone knows what was learned, and a later job begins with it.
#[test]
fn what_was_learned_is_told_and_taken_up() {
    let data = sample(121, 10);
    let run = |tune: Option<TuneOptions>| {
        let options = TrainOptions { iterations: Some(40), tune, ..options() };
        on_ranks(2, |communicator| {
            let mut told = Told::default();
            let lessons = told.lessons.clone();
            let model = backend(ModelName::Mlp, communicator.rank());
            let report = train_model(communicator, model, &data, &options, &mut told).unwrap();
            let lessons = lessons.lock().unwrap().clone();
            (report.tuning, lessons)
        })
    };
    let first = run(Some(TuneOptions::default()));
    let (report, lessons) = &first[0];
    let report = report.as_ref().expect("rank 0 has tuned");
    // The last ones have ended in no window, which is the longer the more a meeting takes.
    assert!((1..40).contains(&report.tuned_iterations), "{report:#?}");
    assert!(!lessons.is_empty() && report.contexts.iter().all(|context| context.calls > 0), "{report:#?}");
    assert!(report.measured_s > 0.0 && report.boundaries_s > 0.0 && report.remembered == 0, "{report:#?}");
    assert!(first[1].0.is_none() && first[1].1.is_empty(), "rank 1 has learned nothing by itself");
    let second = run(Some(TuneOptions { lessons: lessons.clone(), ..TuneOptions::default() }));
    let remembered = second[0].0.as_ref().map(|report| report.remembered);
    assert_eq!(remembered, Some(lessons.len()), "the second job begins with what the first has learned");
    let known =
        |lesson: &Lesson| second[0].1.iter().any(|it| (it.context, it.action) == (lesson.context, lesson.action));
    assert!(lessons.iter().all(known), "what was not tried again is known all the same");
    let without = run(None);
    assert!(without.iter().all(|(report, lessons)| report.is_none() && lessons.is_empty()));
}
