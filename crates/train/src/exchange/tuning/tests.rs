use std::thread;

use paceline_collective::{Topology, registry};
use paceline_comm::{Kernels, Origin, VerifiedProgram};
use paceline_plan::Fnv1a;
use paceline_schedule::Workload;
use paceline_server::Roles;
use paceline_strategy::Registry;
use paceline_tune::{Action, Policy, Random, Schedule, WireProtocol};

use super::super::tunable::state_of;
use super::super::{Begin, Carrier, Exchange, Handicap, Pass};
use super::*;
use crate::backend::GradientSink;
use crate::executed::{AllReduce, Change};
use crate::on_ranks::{on_hosts, on_ranks, on_workers};
use crate::peers::Peers;
use crate::tuned::Version;
use crate::tuned::tests::number_of;

/// Tensors of 16 KiB that travel by themselves: calls of one context.
const SIZES: [usize; 12] = [1 << 12; 12];

const JOB: Job = Job { model_intensity: 100.0, local_batch: 8 };

fn plan(strategy: &str) -> Plan {
    let strategy = Registry::built_in().parse(strategy).unwrap();
    paceline_schedule::plan(&strategy, &Workload::of_sizes(&SIZES)).unwrap()
}

fn exchange(communicator: &Communicator) -> Exchange {
    let carrier = Carrier::new(Peers::from(communicator), None);
    Exchange::new(carrier, plan("wfbp-a2a"), &[], &SIZES, &Handicap::default()).unwrap()
}

/// An iteration with one value in all of a tensor; the sums, tensor by tensor.
fn iterate(exchange: &mut Exchange, value: impl Fn(usize) -> f32) -> Vec<Vec<f32>> {
    exchange.begin(Pass { weight: 1.0, first: true, last: true });
    for tensor in (0..SIZES.len()).rev() {
        exchange.ready(tensor, Some(&vec![value(tensor); SIZES[tensor]])).unwrap();
    }
    let sums = |tensor| {
        let mut sums = Vec::new();
        exchange.wait(tensor).unwrap();
        exchange.read(tensor, |_, part| sums.extend_from_slice(part));
        sums
    };
    (0..SIZES.len()).map(sums).collect()
}

/// The version in force, and its fingerprint.
fn in_force(exchange: &mut Exchange) -> (u64, u64) {
    let policies = &exchange.tuning().unwrap().policies;
    (policies.active(), policies.policy().fingerprint())
}

/// By then something was tried, however little there is room for: where calls vary much, and no choice is believed to be better, it takes
/// some hundreds of calls.
const MANY_ITERATIONS: usize = 2000;

/// Was anything tried? The same on all ranks, behind the same iteration.
fn is_tried(exchange: &mut Exchange) -> bool {
    in_force(exchange).0 > 1
}

/// Whoever comes late, and however late.
#[test]
fn ranks_change_together_and_add_up_right() {
    const WORLD: usize = 4;
    let all = on_ranks(WORLD, |communicator| {
        let (rank, mut exchange) = (communicator.rank(), exchange(&communicator));
        exchange.tune(&TuneOptions::default(), JOB, Begin::Now).unwrap();
        let mut random = Random::new(rank as u64, 1);
        let mut seen = Vec::new();
        for iteration in 0..MANY_ITERATIONS {
            if iteration >= 80 && is_tried(&mut exchange) {
                break;
            }
            thread::sleep(Duration::from_micros(random.below(300) as u64));
            let sums = iterate(&mut exchange, |tensor| (rank + tensor + iteration) as f32);
            for (tensor, sums) in sums.iter().enumerate() {
                let sum: f32 = (0..WORLD).map(|rank| (rank + tensor + iteration) as f32).sum();
                assert!(sums.len() == SIZES[tensor] && sums.iter().all(|it| *it == sum), "iteration {iteration}");
            }
            seen.push(in_force(&mut exchange));
        }
        seen
    });
    assert!(all.iter().all(|rank| *rank == all[0]), "ranks were under different policies");
    assert!(all[0].len() < MANY_ITERATIONS, "nothing was ever tried: {:?}", all[0].last());
}

/// The job begins with what was found out before, and goes on from there.
#[test]
fn calls_are_rehearsed_before_the_first_iteration() {
    const WORLD: usize = 2;
    let all = on_ranks(WORLD, |communicator| {
        let (rank, mut exchange) = (communicator.rank(), exchange(&communicator));
        let options = TuneOptions { rehearsal: Duration::from_millis(200), ..TuneOptions::default() };
        exchange.tune(&options, JOB, Begin::Now).unwrap();
        let report = exchange.learned().unwrap().report();
        let again = Plan { version: 2, ..plan("wfbp-a2a") };
        exchange.replan(None, again, &[], &SIZES, &Handicap::default()).unwrap();
        let news = exchange.take_news();
        for iteration in 0..20 {
            let sums = iterate(&mut exchange, |tensor| (rank + tensor + iteration) as f32);
            let right = |(tensor, sums): (usize, &Vec<f32>)| {
                sums.iter().all(|sum| *sum == (1 + 2 * (tensor + iteration)) as f32)
            };
            assert!(sums.iter().enumerate().all(right), "iteration {iteration}");
        }
        (news, report.map(|report| (report.rehearsal_s, report.trials, report.tuned_iterations)))
    });
    let (news, report) = &all[0];
    // Under the next plan there is nothing that was not called before.
    assert!(matches!(news[..], [TuningNews::Rehearsed { kinds: 1, .. }]), "{news:?}");
    let (rehearsal_s, trials, iterations) = report.expect("rank 0 has a report");
    // Three trials of three that look better.
    assert!(rehearsal_s > 0.0 && rehearsal_s < 20.0 && trials <= 9 && iterations == 0, "{report:?}");
    assert!(all[1].0.is_empty() && all[1].1.is_none());
}

/// An earlier job's lessons are enough: nothing is rehearsed.
#[test]
fn what_earlier_jobs_have_told_is_not_rehearsed() {
    on_ranks(2, |communicator| {
        let mut exchange = exchange(&communicator);
        exchange.tune(&TuneOptions::default(), JOB, Begin::Now).unwrap();
        let operation = &exchange.tuning().unwrap().operations[0];
        let context = operation.context;
        let family = Family { algorithm: 0, protocol: WireProtocol::Simple };
        let action = Action { family, channels: 1, threads: 1, chunk_log2: 16 };
        let lessons = vec![Lesson { context, action, samples: 4.0, mean: -9.0 }];
        let options = TuneOptions { lessons, rehearsal: Duration::from_millis(200), ..TuneOptions::default() };
        exchange.tune(&options, JOB, Begin::Now).unwrap();
        assert!(exchange.take_news().is_empty());
        assert!(exchange.learned().unwrap().report().is_none_or(|report| report.rehearsal_s == 0.0));
    });
}

/// What a rank has seen of the calls of an iteration, from so many milliseconds to so many; by the number of the call.
fn spans(seen: impl Fn(u64) -> (u64, u64)) -> Vec<Span> {
    let span = |call| {
        let (start, end) = seen(call);
        Span { start: Duration::from_millis(start), end: Duration::from_millis(end) }
    };
    (0..SIZES.len() as u64).map(span).collect()
}

/// Of four iterations, what their calls have taken in all, if this is what a rank has seen of a call in each of them.
fn measured_s(world: usize, seen: impl Fn(usize, u64) -> (u64, u64) + Sync) -> f64 {
    let all = on_ranks(world, |communicator| {
        let mut exchange = exchange(&communicator);
        exchange.tune(&TuneOptions::default(), JOB, Begin::Now).unwrap();
        let tuning = exchange.tuning().unwrap();
        let told = told(&spans(|call| seen(communicator.rank(), call))).repeat(4);
        let made = (0..4).map(|number| untimed(tuning.operations[0].context, number)).collect();
        tuning.window = Window { iterations: 4, recorded: 4, seconds: vec![0.1; 4], made, told };
        tuning.boundary().unwrap();
        tuning.report().map(|report| report.measured_s)
    });
    all[0].expect("rank 0 has a report")
}

/// The calls of an iteration, until the ranks meet.
fn untimed(context: Context, number: u64) -> Made {
    Made { context, number, choice: Choice::Default, calls: SIZES.len(), seconds: f64::INFINITY, longest: 1.0 }
}

/// Whoever came early has waited: of calls the least time counts.
#[test]
fn a_boundary_takes_the_last_ranks_times() {
    let seconds = measured_s(3, |rank, call| (100 * call, 100 * call + [9, 2, 30][rank]));
    assert!((seconds - 4.0 * 12.0 * 2e-3).abs() < 1e-5, "{seconds}");
}

/// A rank comes 5 ms late to every second call, and the other one to those between them: each rank's mean is too long by 2.5 ms.
#[test]
fn waits_for_ranks_that_come_late_in_turn_are_charged_to_nobody() {
    let seconds = measured_s(2, |rank, call| {
        let (begins, late) = (1000 * rank as u64 + 100 * call, rank as u64 == call % 2);
        (begins + if late { 5 } else { 0 }, begins + 7)
    });
    assert!((seconds - 4.0 * 12.0 * 2e-3).abs() < 1e-5, "{seconds}");
}

/// What twelve calls have taken by themselves is told by their mean, and by how much the longest of them exceeds it.
#[test]
fn a_single_long_call_is_seen() {
    on_ranks(2, |communicator| {
        let mut exchange = exchange(&communicator);
        exchange.tune(&TuneOptions::default(), JOB, Begin::Now).unwrap();
        let operations = &exchange.tuning().unwrap().operations;
        let mut made = [untimed(operations[0].context, 0), untimed(operations[0].context, 1)];
        // One of 4 ms, the others of 1; of the next iteration nobody knows one.
        let mut least = told(&spans(|call| (10 * call, 10 * call + if call == 7 { 4 } else { 1 })));
        least.extend(least.clone());
        least[SIZES.len() + 3] = f64::INFINITY;
        take_times(operations, &mut made, &least);
        assert!((made[0].seconds - 1.25e-3).abs() < 1e-6 && (made[0].longest - 4.0 / 1.25).abs() < 1e-3, "{made:?}");
        assert!(made[1].seconds.is_infinite() && !made[1].longest.is_finite(), "{made:?}");
    });
}

/// As `strategy=auto` may do: from all-to-all to servers and back. Under servers the tuner rests, and then it goes on with the policy that it
/// had.
#[test]
fn a_tuner_rests_while_servers_add_up_and_goes_on_with_its_policy() {
    let seen = on_workers(Roles::new(2, 1).unwrap(), |peers| {
        let workers = peers.workers();
        let rank = workers.rank();
        let mut exchange = exchange(workers);
        exchange.tune(&TuneOptions::default(), JOB, Begin::Now).unwrap();
        let tuning = exchange.tuning().unwrap();
        let family = Family { algorithm: number_of("direct"), protocol: WireProtocol::Simple };
        let action = Action { family, channels: 1, threads: 1, chunk_log2: 12 };
        let policy = Policy::new(7, [(tuning.operations[0].context, Schedule::always(Choice::Play(action)))]);
        tuning.policies.follow(&policy);
        let is_chosen = |it: &AllReduce| it.algorithm == "direct" && it.chunk_bytes == 1 << 12;
        let iterate = |exchange: &mut Exchange| {
            let sums = iterate(exchange, |tensor| (rank + tensor) as f32);
            let right = |(tensor, sums): (usize, &Vec<f32>)| sums.iter().all(|sum| *sum == (1 + 2 * tensor) as f32);
            assert!(sums.iter().enumerate().all(right));
        };
        for _ in 0..4 {
            iterate(&mut exchange);
        }
        assert!(exchange.plan().1.iter().all(is_chosen), "{:?}", exchange.plan().1);
        assert!(workers.is_recording());
        let before = in_force(&mut exchange);

        let plan_of = |strategy: &str, version| Plan { version, ..plan(strategy) };
        let replan = |exchange: &mut Exchange, peers: Peers, plan: Plan| {
            exchange.replan(Some(Carrier::new(peers, None)), plan, &[], &SIZES, &Handicap::default()).unwrap();
            exchange.assign(2).unwrap();
        };
        replan(&mut exchange, peers.clone(), plan_of("schedule=wfbp,arch=ps:1", 2));
        for _ in 0..2 {
            iterate(&mut exchange);
        }
        assert!(exchange.tuning().is_none() && exchange.take_news().is_empty(), "it does not rest");
        assert!(!workers.is_recording(), "calls are remembered for nobody");

        replan(&mut exchange, Peers::from(workers), plan_of("wfbp-a2a", 3));
        assert_eq!(in_force(&mut exchange), before, "its policy is another one");
        iterate(&mut exchange);
        assert!(exchange.plan().1.iter().all(is_chosen), "{:?}", exchange.plan().1);
        // It learns on.
        for _ in 0..20 {
            iterate(&mut exchange);
        }
        assert!(exchange.tuning().unwrap().is_learning());
        exchange.tuning().unwrap().report().map(|report| report.tuned_iterations)
    });
    // What has ended in windows that are over.
    assert!(seen[0].is_some_and(|iterations| (6..25).contains(&iterations)) && seen[1..] == [None], "{seen:?}");
}

/// A program of the caller's is a choice like others: where one is chosen it runs, and sums are right; what is learned of it is no
/// lesson for a job whose programs may be others.
#[test]
fn a_program_that_is_chosen_runs() {
    const WORLD: usize = 3;
    let kind = CollectiveKind::AllReduce;
    let ring = registry::find(kind, "ring").unwrap().program(&Topology::flat(WORLD), 0);
    let program = VerifiedProgram::new(ring, Kernels::new()).unwrap();
    let programs = vec![TunedProgram { program, sizes: 0..=u64::MAX }];
    let ran = on_ranks(WORLD, |communicator| {
        let mut exchange = exchange(&communicator);
        let (programs, lessons) = (programs.clone(), Vec::new());
        exchange.tune(&TuneOptions { programs, lessons, ..TuneOptions::default() }, JOB, Begin::Now).unwrap();
        let tuning = exchange.tuning().unwrap();
        let context = tuning.operations[0].context;
        if communicator.rank() == 0 {
            let arms = &tuning.situations[&context].as_ref().unwrap().arms;
            assert!(arms.iter().any(|arm| arm.action.family.algorithm == Family::PROGRAMS), "it is no choice");
        }
        let family = Family { algorithm: Family::PROGRAMS, protocol: WireProtocol::Simple };
        let action = Action { family, channels: 1, threads: 1, chunk_log2: 12 };
        tuning.policies.follow(&Policy::new(1, [(context, Schedule::always(Choice::Play(action)))]));
        communicator.record_calls(64);
        let sums = iterate(&mut exchange, |tensor| (communicator.rank() + tensor) as f32);
        let right = |(tensor, sums): (usize, &Vec<f32>)| sums.iter().all(|sum| *sum == (3 + 3 * tensor) as f32);
        assert!(sums.iter().enumerate().all(right));
        (context, communicator.latest_records(64).iter().filter(|record| record.algorithm == "program").count())
    });
    assert!(ran.iter().all(|(_, calls)| *calls == SIZES.len()), "{ran:?}");
    let is_kept = |algorithm| {
        let family = Family { algorithm, protocol: WireProtocol::Simple };
        let action = Action { family, channels: 1, threads: 1, chunk_log2: 12 };
        is_of_algorithm(&Lesson { context: ran[0].0, action, samples: 1.0, mean: 0.0 })
    };
    assert_eq!([Family::PROGRAMS - 1, Family::PROGRAMS].map(is_kept), [true, false]);
}

fn lost(_: &[u8]) -> Option<Version> {
    None
}

#[test]
fn a_rank_that_lacks_a_policy_holds_all_back() {
    const LOST: usize = 30;
    let all = on_ranks(3, |communicator| {
        let mut exchange = exchange(&communicator);
        exchange.tune(&TuneOptions::default(), JOB, Begin::Now).unwrap();
        let tuning = exchange.tuning().unwrap();
        let read = tuning.policies.read;
        if communicator.rank() == 1 {
            tuning.policies.read = lost;
        }
        let mut seen = Vec::new();
        for iteration in 0..2 * LOST {
            if iteration == LOST {
                exchange.tuning().unwrap().policies.read = read;
            }
            iterate(&mut exchange, |_| 1.0);
            seen.push(in_force(&mut exchange));
        }
        seen
    });
    assert!(all.iter().all(|rank| *rank == all[0]));
    assert!(all[0][..LOST].iter().all(|(version, _)| *version == 0), "somebody went ahead: {:?}", all[0]);
    assert!(all[0][2 * LOST - 1].0 > 0, "nobody went on: {:?}", all[0]);
}

/// Values whose sum depends on the order in which they are added.
fn value(rank: usize, iteration: usize, tensor: usize) -> f32 {
    let seed = (iteration * SIZES.len() + tensor) as u64;
    let mut random = Random::new(seed, rank as u64);
    (random.normal() * 10f64.powf(3.0 * random.normal())) as f32
}

#[test]
fn what_changed_gives_the_same_bits_again() {
    // Without changes so many iterations as it takes until something was tried, and some under that.
    let run = |changes: Option<Vec<Change>>, iterations: usize| {
        on_ranks(4, |communicator| {
            let (rank, mut exchange) = (communicator.rank(), exchange(&communicator));
            exchange.keep_changes();
            match &changes {
                Some(changes) => exchange.repeat(changes.clone()).unwrap(),
                None => exchange.tune(&TuneOptions::default(), JOB, Begin::Now).unwrap(),
            }
            let (mut bits, mut tried) = (Vec::new(), 0);
            while bits.len() < iterations && tried < 20 {
                let sums = iterate(&mut exchange, |tensor| value(rank, bits.len(), tensor));
                bits.push(sums.iter().map(|sums| Fnv1a::of(bytemuck::cast_slice(sums))).collect::<Vec<u64>>());
                tried += usize::from(changes.is_none() && is_tried(&mut exchange));
            }
            (bits, exchange.take_changes())
        })
    };
    let tuned = run(None, MANY_ITERATIONS);
    assert!(tuned.iter().all(|rank| *rank == tuned[0]), "ranks have other bits, or noted something else");
    let (bits, changes) = tuned[0].clone();
    assert!(!changes.is_empty(), "nothing was tried");
    for (again, noted) in run(Some(changes.clone()), bits.len()) {
        assert!(again == bits, "the same changes give other bits");
        assert_eq!(noted, changes);
    }
}

#[test]
fn a_change_that_cannot_be_is_refused() {
    on_ranks(1, |communicator| {
        let mut exchange = exchange(&communicator);
        let to = |algorithm: &str, chunk_bytes| {
            let it = crate::executed::ChangedAllReduce { operation: 0, algorithm: algorithm.into(), chunk_bytes };
            vec![Change { iteration: 0, all_reduces: vec![it] }]
        };
        assert!(exchange.repeat(to("rign", 64)).unwrap_err().to_string().contains("`rign`"));
        assert!(exchange.repeat(to("ring", 0)).is_err());
        assert!(exchange.repeat(to("ring", 64)).is_ok());
    });
}

/// Telemetry may want the calls remembered, too.
#[test]
fn who_else_remembers_calls_is_not_disturbed() {
    const ITERATIONS: usize = 20;
    for others in [false, true] {
        on_ranks(2, |communicator| {
            if others {
                communicator.record_calls(1 << 12);
            }
            let mut exchange = exchange(&communicator);
            exchange.tune(&TuneOptions::default(), JOB, Begin::Now).unwrap();
            (0..ITERATIONS).for_each(|_| drop(iterate(&mut exchange, |_| 1.0)));
            assert!(communicator.is_recording());
            drop(exchange);
            assert_eq!(communicator.is_recording(), others);
            let named = |record: &&Record| record.key.communicator & OperationKey::NAMED != 0;
            let count = communicator.take_records().calls.iter().filter(named).count();
            assert_eq!(count, if others { ITERATIONS * SIZES.len() } else { 0 });
        });
    }
}

/// Rank 1 goes in the middle of it: rank 0 gets the usual error, at a boundary or in an operation.
#[test]
fn a_rank_that_is_lost_is_noticed() {
    let errors = on_ranks(2, |communicator| {
        let mut exchange = exchange(&communicator);
        exchange.tune(&TuneOptions::default(), JOB, Begin::Now).unwrap();
        for iteration in 0..100 {
            if communicator.rank() == 1 && iteration == 9 {
                return None;
            }
            exchange.begin(Pass { weight: 1.0, first: true, last: true });
            let failure = match exchange.nothing() {
                Ok(()) => exchange.wait_for_all().err(),
                Err(_) => exchange.take_failure(),
            };
            if let Some(failure) = failure {
                return Some(failure.to_string());
            }
        }
        None
    });
    let error = errors[0].as_deref().expect("nobody has noticed");
    assert!(error.contains("rank 1"), "{error}");
}

/// A strategy that names the algorithm keeps it; the rest is tuned.
#[test]
fn a_named_algorithm_stays() {
    let communicator = Communicator::threads(4).unwrap().remove(0);
    let model = beliefs(&communicator);
    let state = state_of(&communicator, &model, JOB, 1 << 20, Origin::Layer);
    let of = |fixed| situation(&model, fixed, &state);
    let (all, ring) = (of(None).unwrap(), of(Some("ring")).unwrap());
    assert!(ring.arms.len() > 8 && ring.arms.len() < all.arms.len());
    let name = |arm: &paceline_tune::Arm| OwnModel::algorithm(CollectiveKind::AllReduce, arm.action.family.algorithm);
    assert!(ring.arms.iter().all(|arm| name(arm) == Some("ring")));
    let default = ring.arms[ring.default].action;
    assert_eq!((default.family.protocol, default.threads), (WireProtocol::Simple, 1));
    assert!(of(Some("bcube")).is_none(), "what follows a network that is none is left alone");
    let in_torus = on_hosts(4, "torus:2x2", |communicator| {
        let model = beliefs(&communicator);
        let state = state_of(&communicator, &model, JOB, 1 << 20, Origin::Layer);
        let arms = situation(&model, Some("2d-torus"), &state).unwrap().arms;
        arms.len() > 8 && arms.iter().all(|arm| name(arm) == Some("2d-torus"))
    });
    assert_eq!(in_torus, [true; 4]);
}

#[test]
fn all_ranks_must_see_the_same_calls() {
    let errors = on_ranks(2, |communicator| {
        let mut exchange = exchange(&communicator);
        let job = Job { local_batch: if communicator.rank() == 0 { 1 } else { 1 << 12 }, ..JOB };
        exchange.tune(&TuneOptions::default(), job, Begin::Now).err().map(|error| error.to_string())
    });
    for error in errors {
        assert!(error.as_deref().is_some_and(|error| error.contains("what the tuner sees of its calls")), "{error:?}");
    }
}

/// What calls of all ranks take longer is congestion, on all of them alike; what one rank is late by is its own affair.
#[test]
fn ranks_that_train_agree_how_much_others_are_in_the_way() {
    const ITERATIONS: usize = 16;
    let all = on_ranks(2, |communicator| {
        let mut exchange = exchange(&communicator);
        exchange.tune(&TuneOptions::default(), JOB, Begin::Now).unwrap();
        let late = if communicator.rank() == 1 { 3.0 } else { 1.0 };
        [1.0, late, 3.0, 1.0].map(|times| {
            let tuning = exchange.tuning().unwrap();
            let (context, choice) = (tuning.operations[0].context, Choice::Default);
            for _ in 0..2 {
                let of_iteration =
                    |number| Made { context, number, choice, calls: SIZES.len(), seconds: f64::INFINITY, longest: 1.0 };
                tuning.window = Window {
                    iterations: ITERATIONS,
                    recorded: ITERATIONS,
                    seconds: vec![12e-3 * times; ITERATIONS],
                    made: (0..ITERATIONS as u64).map(of_iteration).collect(),
                    told: vec![1e-3 * times; ITERATIONS * SIZES.len()],
                };
                tuning.boundary().unwrap();
            }
            tuning.congestion
        })
    });
    for levels in all {
        assert_eq!(levels, [Congestion::None, Congestion::None, Congestion::Heavy, Congestion::None]);
    }
}
