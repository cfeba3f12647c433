//! Optimisers, learning rates and clipping on several workers: the same as on one, wherever the optimiser runs.

mod support;

use std::thread;

use paceline_comm::{CallOptions, CollectiveKind, Communicator, Emulation, ThreadsConfig};
use paceline_plan::{Hosts, NetworkModel};
use paceline_schedule::{Schedule, ScheduleError, Schedulers, Workload};
use paceline_server::{ParameterServer, Roles, serve};
use paceline_strategy::{Aspect, Call, Method};
use paceline_train::{
    AdamWSettings, ModelName, OptimizerSettings, Peers, SgdSettings, Silent, TrainError, TrainOptions, serve_options,
    train_model,
};
use support::lossless::{assert_close, single_worker_sgd, trained_on, trained_with};
use support::{backend, on_hosts, on_workers, options, sample, sgd};

const TRAINING_IMAGES: usize = 121;

/// Momentum SGD, Nesterov's, and AdamW. Where a gradient is as small as the rounding of its sum, AdamW makes as large a step
/// of it as of any other, unless epsilon is larger than that.
fn optimizers() -> [TrainOptions; 3] {
    let adamw = AdamWSettings { epsilon: 1e-4, ..AdamWSettings::default() };
    let nesterov = SgdSettings { momentum: 0.8, nesterov: true, weight_decay: 0.01 };
    let with = |optimizer, learning_rate, schedule: &str| TrainOptions {
        optimizer,
        learning_rate,
        lr_schedule: schedule.parse().unwrap(),
        ..options()
    };
    [
        with(sgd(0.5, 0.01), 0.02, "cosine:3"),
        with(OptimizerSettings::Sgd(nesterov), 0.02, "step:7:0.5"),
        with(OptimizerSettings::AdamW(adamw), 2e-3, "linear:0.5epochs"),
    ]
}

/// With the optimiser on the servers every worker has the bits that it would have computed itself, and those of one worker
/// alone but for the order of the sums.
fn servers_that_apply_train_the_same(workers: &[usize], shards: &[usize], schedules: &[&str]) {
    let data = sample(TRAINING_IMAGES, 10);
    for options in optimizers() {
        let expected = single_worker_sgd(&data, ModelName::Mlp, &options);
        for (&workers, &shards) in workers.iter().flat_map(|workers| shards.iter().map(move |shards| (workers, shards)))
        {
            for schedule in schedules {
                let what = format!("{}, {schedule}, {workers} workers, {shards} shards", options.optimizer);
                let run = |mode: &str, plan| {
                    let strategy = format!("schedule={schedule},arch=ps:{shards}:64KiB:{mode}");
                    let options = TrainOptions { strategy, plan, ..options.clone() };
                    trained_with(workers, shards, &data, ModelName::Mlp, &options)
                };
                let (dumps, executed) = run("apply", None);
                assert!(dumps.iter().all(|dump| *dump == dumps[0]), "{what}: the ranks have other bits");
                assert_close(&dumps[0], &expected, &what);
                let (aggregated, _) = run("aggregate", None);
                assert!(aggregated == dumps, "{what}: the workers compute other bits than the servers");
                assert!(executed.stages[0].plan.strategy.contains(":apply"), "{what}");
                let (again, executed_again) = run("apply", Some(executed.clone()));
                assert!(again == dumps && executed_again == executed, "{what}: the same plan gives other bits");
            }
        }
    }
}

#[test]
fn servers_that_apply_train_like_one_worker() {
    servers_that_apply_train_the_same(&[2], &[2], &["bytescheduler:64KiB:128KiB"]);
}

/// Two emulated hosts of two workers, whose contributions are added up before they leave it, and shards beside the workers:
/// the bits do not depend on where shards are or how many, nor on whoever has the optimiser.
#[test]
fn hosts_of_several_workers_train_like_one_worker() {
    let data = sample(TRAINING_IMAGES, 10);
    let options = TrainOptions { iterations: Some(4), ..options() };
    let expected = single_worker_sgd(&data, ModelName::Mlp, &options);
    let mut all = Vec::new();
    for (shards, mode) in [1, 2, 3].into_iter().flat_map(|shards| [(shards, "aggregate"), (shards, "apply")]) {
        let (network, hosts): (NetworkModel, Hosts) =
            ("alpha=50us,beta=0.5ns".parse().unwrap(), "2x2".parse().unwrap());
        let emulation = Some(Emulation { network, hosts: hosts.with_shards(shards), dilation: 1.0 });
        let config = ThreadsConfig { emulation, ..ThreadsConfig::default() };
        let strategy = format!("wfbp-ps,arch=ps:{shards}:64KiB:{mode}");
        let options = TrainOptions { strategy: strategy.clone(), ..options.clone() };
        let world = |train: &(dyn Fn(&Peers) -> _ + Sync)| {
            on_hosts(&config, 4, shards, |peers| {
                let Peers::Servers(server) = peers else { panic!("{strategy} has servers") };
                let call = CallOptions::default();
                let (algorithm, _) = server.shard(0).choice(CollectiveKind::PushPull, 64 << 10, &call).unwrap();
                assert_eq!(algorithm, "hierarchical", "{strategy}");
                train(peers)
            })
        };
        let (dumps, _) = trained_on(&world, 4, &data, ModelName::Mlp, &options);
        assert_close(&dumps[0], &expected, &strategy);
        all.extend(dumps.into_iter().map(|dump| (strategy.clone(), dump)));
    }
    for (strategy, dump) in &all {
        assert!(*dump == all[0].1, "{strategy} gives other bits than {}", all[0].0);
    }
}

/// As `tests/training.rs` has all numbers of workers and shards: the corners of that product.
#[test]
fn more_workers_and_applying_shards_train_like_one_worker() {
    if std::env::var_os("PACELINE_LONG_TESTS").is_some() {
        let schedules = ["none", "wfbp", "server-priority", "bytescheduler:64KiB:128KiB"];
        servers_that_apply_train_the_same(&[1, 3], &[1, 3], &schedules);
    }
}

#[test]
fn optimisers_of_workers_train_like_one_worker() {
    let data = sample(TRAINING_IMAGES, 10);
    for options in optimizers() {
        let expected = single_worker_sgd(&data, ModelName::Mlp, &options);
        for strategy in ["ddp,arch=a2a:ring", "bytescheduler-a2a,schedule=bytescheduler:64KiB:64KiB"] {
            let options = TrainOptions { strategy: strategy.into(), ..options.clone() };
            let (dumps, _) = trained_with(3, 0, &data, ModelName::Mlp, &options);
            let what = format!("{}, {strategy}", options.optimizer);
            assert!(dumps.iter().all(|dump| *dump == dumps[0]), "{what}");
            assert_close(&dumps[0], &expected, &what);
        }
    }
}

#[test]
fn gradients_are_clipped_by_their_global_norm() {
    let data = sample(TRAINING_IMAGES, 10);
    let clipped = TrainOptions { clip_norm: Some(0.3), ..options() };
    let expected = single_worker_sgd(&data, ModelName::Mlp, &clipped);
    let unclipped = single_worker_sgd(&data, ModelName::Mlp, &options());
    let farthest = expected.iter().flat_map(|(name, values)| {
        values.iter().zip(&unclipped[name]).map(|(clipped, unclipped)| (clipped - unclipped).abs())
    });
    assert!(farthest.fold(0f32, f32::max) > 1e-3, "no gradient was large enough for the test");
    for (workers, shards, strategy) in
        [(1, 0, "bsp-a2a"), (3, 0, "wfbp-a2a"), (2, 1, "wfbp-ps,arch=ps:1:64KiB"), (2, 0, "schedule=fusion:4KiB")]
    {
        let options = TrainOptions { strategy: strategy.into(), ..clipped.clone() };
        let (dumps, executed) = trained_with(workers, shards, &data, ModelName::Mlp, &options);
        assert!(dumps.iter().all(|dump| *dump == dumps[0]), "{strategy}");
        assert_close(&dumps[0], &expected, strategy);
        assert_eq!(executed.update_rule.unwrap().clip_norm, Some(0.3));
        // A plan is carried out again with the same rule, or not at all.
        let other = TrainOptions { plan: Some(executed), clip_norm: None, ..options };
        let refused = on_workers(workers, shards, |peers| {
            train_model(peers, backend(ModelName::Mlp, 0), &data, &other, &mut Silent).unwrap_err().to_string()
        });
        assert!(refused[0].contains("clipped to the norm 0.3, and this training has sgd"), "{}", refused[0]);
    }
}

/// A schedule of the caller's own may overlap forward, too, and only the plan says so.
#[test]
fn a_plan_that_overlaps_forward_is_not_clipped() {
    let data = sample(TRAINING_IMAGES, 10);
    let refused = |options: TrainOptions| {
        let communicator = Communicator::solo().unwrap();
        train_model(&communicator, backend(ModelName::Mlp, 0), &data, &options, &mut Silent).unwrap_err().to_string()
    };
    fn overlapping(_: &Call, workload: &Workload) -> Result<Schedule, ScheduleError> {
        let buckets = workload.ready.iter().map(|&tensor| vec![tensor]).collect();
        Ok(Schedule { forward_overlap: workload.sizes.len() > 1, ..Schedule::of(buckets) })
    }
    let mut options = TrainOptions { clip_norm: Some(1.0), strategy: "schedule=own".into(), ..options() };
    options.schedulers = with_scheduler(overlapping);
    let message = refused(options.clone());
    assert!(message.contains("--clip-norm needs all gradients") && message.contains("schedule=own"), "{message}");
    options.strategy = "bytescheduler-a2a".into();
    assert!(refused(options).contains("bytescheduler:4000KiB:16000KiB updates the first layers and goes on"));
}

/// Servers that apply keep the state of a plan's partitions.
#[test]
fn servers_that_apply_are_not_planned_anew() {
    fn measuring(_: &Call, workload: &Workload) -> Result<Schedule, ScheduleError> {
        match &workload.ready_s {
            Some(_) => Ok(Schedule::of(vec![workload.ready.clone()])),
            None => Err(ScheduleError::NotMeasured { schedule: "own", lacking: "times" }),
        }
    }
    let data = sample(TRAINING_IMAGES, 10);
    let schedulers = with_scheduler(measuring);
    let strategy = "schedule=own,arch=ps:1:apply".into();
    let options = TrainOptions { schedulers, strategy, ..options() };
    let refused = on_workers(1, 1, |peers| {
        train_model(peers, backend(ModelName::Mlp, 0), &data, &options, &mut Silent).unwrap_err().to_string()
    });
    assert!(refused[0].contains("servers that have the optimiser (arch=ps:1:"), "{}", refused[0]);
}

fn with_scheduler(scheduler: fn(&Call, &Workload) -> Result<Schedule, ScheduleError>) -> Schedulers {
    let mut schedulers = Schedulers::built_in();
    let method = Method {
        aspect: Aspect::Schedule,
        name: "own",
        parameters: &[],
        sentence: "a schedule of our own",
        lossless: true,
        available: true,
    };
    schedulers.add(method, scheduler);
    schedulers
}

/// Under `apply` it shows in the parameters; all workers see the same ones. The shards end when their workers have gone.
#[test]
fn divergence_on_servers_ends_every_worker() {
    let data = sample(100, 10);
    let strategy = "wfbp-ps,arch=ps:2:apply".into();
    let options = TrainOptions { strategy, learning_rate: 1e38, ..options() };
    let roles = Roles::new(2, 2).unwrap();
    let ranks = Communicator::threads(roles.world_size()).unwrap();
    let errors: Vec<TrainError> = thread::scope(|scope| {
        let rank = |world: Communicator| {
            let (data, options) = (&data, &options);
            scope.spawn(move || {
                if roles.shard_of(world.rank()).is_some() {
                    assert!(serve(&world, roles, &serve_options()).is_err());
                    return None;
                }
                let server = ParameterServer::connect(&world, roles).unwrap();
                train_model(server, backend(ModelName::Mlp, 0), data, options, &mut Silent).err()
            })
        };
        let ranks: Vec<_> = ranks.into_iter().map(rank).collect();
        ranks.into_iter().filter_map(|rank| rank.join().unwrap()).collect()
    });
    assert_eq!(errors.len(), 2);
    for error in &errors {
        let TrainError::NotFinite { what: "a parameter", iteration, .. } = error else { panic!("{error:?}") };
        assert!(*iteration < 20 && error.to_string() == errors[0].to_string(), "{errors:?}");
    }
}

#[test]
fn a_report_says_what_was_trained_with() {
    let data = sample(TRAINING_IMAGES, 10);
    let options = TrainOptions { dump_plan: None, ..optimizers()[2].clone() };
    let communicator = Communicator::solo().unwrap();
    let report = train_model(&communicator, backend(ModelName::Mlp, 0), &data, &options, &mut Silent).unwrap();
    // 20 updates, 11 in an epoch, 6 of warm-up (half an epoch, rounded up): the last of the first epoch is the 11th.
    let rates: Vec<f32> = report.epochs.iter().map(|row| row.learning_rate).collect();
    let expected = [2e-3 * (20.0 - 10.0) / 14.0, 2e-3 / 14.0];
    assert!(rates.iter().zip(expected).all(|(rate, expected)| (rate - expected).abs() < 1e-9), "{rates:?}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((&json["optimizer"], &json["lr_schedule"]), (&"adamw".into(), &"linear:0.5epochs".into()));
    assert!(json["momentum"].is_null() && json["betas"][1] == 0.999 && json["clip_norm"].is_null());
}
