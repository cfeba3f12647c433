//! Cells are measured: replayed and real, all-to-all and with servers.

mod support;

use std::time::Duration;

use paceline_comm::Communicator;
use paceline_plan::{Profile, ProfileTensor, Step};
use paceline_train::{
    CandleBackend, CellRun, Length, MeasureOptions, Mlp, Normalise, OptimizerSettings, Subject, TrainError,
    TuneOptions, measure,
};
use support::{on_ranks, on_workers, sample};

/// Four layers; the first and the last share a tensor, so that it is final last.
fn profile() -> Profile {
    let tensor = |name: &str, elements| ProfileTensor { name: name.into(), elements, forward_macs_per_sample: 10 };
    let steps = |order: [usize; 5], seconds| order.map(|tensor| Step { tensor, seconds }).to_vec();
    Profile {
        schema: Profile::SCHEMA,
        model: "four-layers".into(),
        device: "none".into(),
        source: "made up".into(),
        local_batch: 4,
        tensors: vec![tensor("tied", 40_000), tensor("bias", 3), tensor("body", 100_000), tensor("scale", 1)],
        forward: steps([0, 1, 2, 3, 0], 0.000_2),
        backward: steps([0, 3, 2, 1, 0], 0.000_4),
        update_s: 0.000_1,
        uncertainty: None,
        memory: None,
        epoch_samples: None,
        recorded_batch: None,
        spread: None,
    }
}

fn options(strategy: &str) -> MeasureOptions {
    MeasureOptions {
        strategy: strategy.into(),
        local_batch: 4,
        warm_up: 2,
        length: Length::Iterations(6),
        ..MeasureOptions::default()
    }
}

/// What every replayed run must be like. Nothing here is earlier than the profile says, however busy the machine.
fn check_replayed(run: &CellRun, workers: usize, shards: usize) {
    assert_eq!((run.model.as_str(), run.parameters, run.tensors), ("four-layers", 140_004, 4));
    assert_eq!((run.workers, run.shards, run.forward_macs_per_sample), (workers, shards, Some(40)));
    assert_eq!((run.warm_up, run.iteration_s.len(), run.confident), (2, 6, true));
    let compute_s = 5.0 * 0.000_6 + 0.000_1;
    assert!(run.iteration_s.iter().sum::<f64>() > 6.0 * compute_s - 1e-6, "{:?}", run.iteration_s);
    // A worker computes or waits, on average for as long as the slowest takes, but for how far apart they begin and end.
    assert!(run.mean_iteration_s() > 0.5 * (run.compute_s + run.exposed_communication_s));
    let ready = &run.inputs.ready_s;
    // Backward may have begun late; the clock does not wait for it.
    assert!(ready[3] < ready[2] && ready[2] < ready[1] && ready[1] < ready[0], "{ready:?}");
    assert!(run.scheduling_s_per_tensor > 0.0);
    assert!(run.lateness.is_some() && run.replayed.as_deref() == Some("none: made up"));
    assert_eq!(run.plan_hash, format!("{:016x}", run.plan.hash()));
}

#[test]
fn a_replay_takes_as_long_as_its_profile_and_communicates() {
    let strategies = [
        ("bsp-a2a", 1),
        ("wfbp-a2a,arch=a2a:ring", 4),
        ("schedule=bytescheduler:100000:200000", 8),
        ("wfbp-a2a,arch=a2a:ring:100us", 4),
    ];
    for (strategy, operations) in strategies {
        for workers in 1..=3 {
            let runs = on_ranks(workers, |world| measure(world, Subject::Replay(&profile()), &options(strategy)));
            let runs: Vec<CellRun> = runs.into_iter().map(Result::unwrap).collect();
            check_replayed(&runs[0], workers, 0);
            assert!(runs.iter().all(|run| *run == runs[0]), "the workers tell different numbers");
            assert_eq!(runs[0].plan.operations(), operations);
            assert_eq!(runs[0].inputs.communication.is_some(), workers > 1);
            if workers > 1 && strategy.contains("ring") {
                // A ring sends 2 (n - 1) / n of the bytes.
                let bytes = 4.0 * 140_004.0 * 2.0 * (workers as f64 - 1.0) / workers as f64;
                assert!((runs[0].bytes_per_iteration / bytes - 1.0).abs() < 1e-3, "{}", runs[0].bytes_per_iteration);
                assert!(runs[0].messages_per_iteration >= 8.0);
            }
            let json = serde_json::to_string(&runs[0]).unwrap();
            assert_eq!(serde_json::from_str::<CellRun>(&json).unwrap().plan, runs[0].plan);
        }
    }
}

#[test]
fn servers_serve_a_replay() {
    let schedules = ["wfbp", "bytescheduler:64KiB:128KiB", "none"];
    let worlds = [(1, 1), (2, 1), (3, 2)].into_iter().zip(schedules);
    // Servers that apply have nothing to apply in a replay: they give the sums, which workers check all the same.
    for (((workers, shards), schedule), mode) in worlds.flat_map(|world| [(world, "aggregate"), (world, "apply")]) {
        let strategy = format!("schedule={schedule},arch=ps:{shards}:64KiB:{mode}");
        let runs =
            on_workers(workers, shards, |peers| measure(peers, Subject::Replay(&profile()), &options(&strategy)));
        let runs: Vec<CellRun> = runs.into_iter().map(Result::unwrap).collect();
        check_replayed(&runs[0], workers, shards);
        assert!(runs.iter().all(|run| *run == runs[0]), "the workers tell different numbers");
        // A worker pushes every byte, once. New parameters may come by way of other workers, as a broadcast does.
        let pushed = runs[0].bytes_per_iteration / (4.0 * 140_004.0);
        assert!(pushed == 1.0 || mode == "apply" && (1.0..2.0).contains(&pushed), "{strategy}: {pushed}");
    }
}

/// Ten million bytes of gradients: enough that large operations are measured together, and smaller ones that overtake them.
#[test]
fn large_operations_are_measured_together_and_overtaken() {
    let mut large = profile();
    large.tensors[2].elements = 2_500_000;
    for (strategy, shards) in [("wfbp-a2a", 0), ("wfbp-ps,arch=ps:2", 2)] {
        let runs = on_workers(2, shards, |peers| measure(peers, Subject::Replay(&large), &options(strategy)));
        let run = runs.into_iter().next().unwrap().unwrap();
        let cost = run.inputs.communication.unwrap();
        let (at_once, overtaking) = (cost.large_in_flight.unwrap(), cost.overtaking);
        assert_eq!((at_once.operations, at_once.bytes), (8, 1_270_004), "{strategy}");
        let sizes: Vec<u64> = overtaking.iter().map(|one| one.bytes).collect();
        assert_eq!(sizes, [4096, 65_536], "{strategy}");
    }
}

#[test]
fn times_of_a_slowed_run_are_those_of_the_real_one() {
    let options = MeasureOptions { dilate: 4.0, ..options("wfbp-a2a") };
    let began = std::time::Instant::now();
    let runs = on_ranks(2, |world| measure(world, Subject::Replay(&profile()), &options));
    // Two iterations before, six that count.
    assert!(began.elapsed().as_secs_f64() > 8.0 * 4.0 * 0.003_1);
    let runs: Vec<CellRun> = runs.into_iter().map(Result::unwrap).collect();
    check_replayed(&runs[0], 2, 0);
}

/// Backward of two milliseconds leaves 56 MB to wait for.
#[test]
fn a_replay_says_what_processors_did_while_it_waited() {
    let mut heavy = profile();
    heavy.tensors.iter_mut().for_each(|tensor| tensor.elements *= 100);
    let runs = on_ranks(2, |world| measure(world, Subject::Replay(&heavy), &options("bsp-a2a")));
    let run = runs.into_iter().next().unwrap().unwrap();
    let busy = run.lateness.and_then(|lateness| lateness.processors_busy).expect("it had to wait");
    let cores = std::thread::available_parallelism().unwrap().get() as f64;
    // Here both are threads of one process, and each counts all of it.
    assert!(busy > 0.1 && busy <= 2.2 * cores, "{busy} of {cores} processors");
}

/// Sleeps always end a little late; by how much is too late, the options say.
#[test]
fn a_replay_whose_processor_is_later_than_it_may_be_has_overrun() {
    for (late_share_max, overrun) in [(0.0, true), (f64::INFINITY, false)] {
        let options = MeasureOptions { late_share_max, ..options("bsp-a2a") };
        let runs = on_ranks(2, |world| measure(world, Subject::Replay(&profile()), &options));
        for run in runs.into_iter().map(Result::unwrap) {
            let lateness = run.lateness.expect("it is a replay");
            assert!(lateness.share > 0.0 && lateness.overrun == overrun && run.overrun() == overrun, "{lateness:?}");
        }
    }
}

#[test]
fn a_larger_batch_takes_longer() {
    let options = MeasureOptions { local_batch: 8, ..options("wfbp-a2a") };
    let run = on_ranks(1, |world| measure(world, Subject::Replay(&profile()), &options)).remove(0).unwrap();
    // The update does not depend on it.
    let all_s: f64 = run.iteration_s.iter().sum();
    assert!(all_s > 6.0 * (2.0 * 0.003 + 0.000_1) - 1e-6, "{:?}", run.iteration_s);
}

#[test]
fn a_run_may_go_on_until_its_mean_is_known() {
    let confident = |relative| {
        let budget = Duration::from_secs(60);
        let length = Length::Confident { relative, at_least: 5, at_most: 12, budget };
        let options = MeasureOptions { length, ..options("wfbp-a2a") };
        on_ranks(2, |world| measure(world, Subject::Replay(&profile()), &options)).remove(0).unwrap()
    };
    let (easy, never) = (confident(1e6), confident(0.0));
    assert_eq!((easy.iteration_s.len(), easy.confident), (5, true));
    assert_eq!((never.iteration_s.len(), never.confident), (12, false));
}

#[test]
fn a_real_model_is_measured_with_the_same_words() {
    check_real("wfbp-a2a", 0);
    check_real("wfbp-ps,arch=ps:1:apply", 1);
}

fn check_real(strategy: &str, shards: usize) {
    let data = sample(60, 10);
    let runs = on_workers(2, shards, |peers| {
        let normalise = Normalise { mean: 0.3, deviation: 0.4 };
        let backend = CandleBackend::new(Mlp::new(28 * 28, 10, normalise), peers.workers().rank() as u64).unwrap();
        let subject = Subject::Model {
            name: "mlp".into(),
            optimizer: OptimizerSettings::default(),
            learning_rate: 0.01,
            backend: Box::new(backend),
            data: &data,
        };
        measure(peers, subject, &options(strategy))
    });
    let run = runs.into_iter().next().unwrap().unwrap();
    assert_eq!((run.model.as_str(), run.parameters, run.iteration_s.len()), ("mlp", 101_770, 6));
    assert!(run.replayed.is_none() && run.lateness.is_none());
    assert!(run.compute_s > 0.0 && run.exposed_communication_s > 0.0 && run.inputs.update_s > 0.0);
    // Before any iteration it was measured what computing together takes, and what operations take that are in flight together.
    assert!(run.inputs.pass_s.is_some_and(|seconds| seconds > 0.0));
    let beside = run.inputs.interference.expect("there are several workers");
    assert_eq!(beside.bytes, 4 * 101_770, "all gradients");
    assert!(beside.computation >= 0.0 && beside.communication >= 0.0, "{beside:?}");
    let cost = run.inputs.communication.as_ref().unwrap();
    assert!(cost.in_flight.is_some_and(|all| all.operations == 8 && all.seconds > 0.0), "{cost:?}");
    // Where a busy moment has made one take longer than eight, nobody knows.
    assert!(cost.occupied_s().is_none_or(|(bytes, seconds)| bytes == 4096 && seconds <= cost.points[0].1), "{cost:?}");
    // The last layer's gradients come first.
    assert!(run.inputs.ready_s[3] <= run.inputs.ready_s[0] && run.inputs.ready_s[0] <= run.inputs.backward_s);
}

#[test]
fn senseless_options_are_refused() {
    let refused = |options: MeasureOptions| -> String {
        let run = measure(&Communicator::solo().unwrap(), Subject::Replay(&profile()), &options);
        run.unwrap_err().to_string()
    };
    assert!(refused(MeasureOptions { dilate: 0.5, ..options("wfbp-a2a") }).contains("dilate 0.5"));
    assert!(refused(MeasureOptions { local_batch: 0, ..options("wfbp-a2a") }).contains("local batch"));
    assert!(refused(options("wfbp-a2b")).contains("wfbp-a2a"));
    let fusion = TuneOptions { fusion: true, ..TuneOptions::default() };
    assert!(refused(MeasureOptions { tune: Some(fusion), ..options("ddp") }).contains("schedule=fusion:BYTES"));
    // A schedule that is planned again would lose the servers' optimiser, however much of it a replay knows beforehand.
    let open = refused(options("schedule=auto,arch=ps:1:apply"));
    assert!(open.contains("plans again") && open.contains("aggregate"), "{open}");
    let mut wrong = profile();
    wrong.backward.pop();
    wrong.backward.remove(3);
    let error = measure(&Communicator::solo().unwrap(), Subject::Replay(&wrong), &options("wfbp-a2a")).unwrap_err();
    assert!(matches!(error, TrainError::Options(_)) && error.to_string().contains("backward"), "{error}");
}

#[test]
fn workers_that_differ_are_told_so() {
    let runs = on_ranks(2, |world| {
        let mut profile = profile();
        profile.update_s += 0.001 * world.rank() as f64;
        measure(world, Subject::Replay(&profile), &options("wfbp-a2a"))
    });
    for run in runs {
        let message = run.unwrap_err().to_string();
        assert!(message.starts_with("rank 1 differs from rank 0 in the profile"), "{message}");
    }
}
