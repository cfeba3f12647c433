//! What is promised of a tuner, on clusters that are simulated: after 300 calls of a context what it has settled for takes at most
//! 3 % longer than the best, and at no time from 100 calls on all calls took more than 2 % longer than the default's. Few seeds do not know
//! a mean as well as that: by how much short runs may miss it, [`TOLERATED`] says.

use paceline_plan::Cluster;
use paceline_tune::comparison::{Comparison, learners};
use paceline_tune::environment::{Disturbances, Misfit, Mix, OwnModel, SimulatedCluster, Workload};
use paceline_tune::simulation::{Outcome, Totals};
use paceline_tune::{Standing, Tuner, simulation};

fn long() -> bool {
    std::env::var_os("PACELINE_LONG_TESTS").is_some()
}

/// From 1 to below `few`; with `PACELINE_LONG_TESTS` 40, or those of `PACELINE_TUNE_SEEDS`, as in `100..160`.
fn seeds(few: u64) -> std::ops::Range<u64> {
    let asked = std::env::var("PACELINE_TUNE_SEEDS").unwrap_or_default();
    let ends = asked.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    ends.map_or(1..if long() { 41 } else { few }, |(from, to)| from..to)
}

/// A mean over the few seeds of a short run may miss what is demanded by so much: 3 % admits 3.5 % then, and what is to be better than a
/// fixed configuration may be half a percent worse.
const TOLERATED: f64 = 0.005;

/// By how much a mean over seeds may miss what is demanded of it: twice its standard error, but no more than that, or the noisier a mean is,
/// the more would pass. Long runs forgive nothing: of their seeds docs/tuning.md says what was found.
fn forgiven(error: f64) -> f64 {
    if long() { 0.0 } else { (2.0 * error).min(TOLERATED) }
}

fn cluster(machine: &Cluster, seed: u64) -> SimulatedCluster {
    SimulatedCluster::new(Box::new(OwnModel::of(machine)), Misfit::USUAL, Disturbances::usual(), seed)
}

#[test]
fn what_is_learned_is_near_the_best_and_learning_costs_little() {
    let seeds = seeds(11);
    let (mut contexts, mut worst, mut beyond) = (0, 0.0f64, Vec::new());
    for (name, mix) in [
        ("study-100gbe:4x1", "data-parallel"),
        ("study-10gbe:8x4", "data-parallel"),
        ("1gbe+pcie3:8x1", "data-parallel"),
        ("25gbe+pcie4:8x4", "llm-3d"),
    ] {
        let machine = Cluster::named(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (hosts, per_host) = (machine.hosts, machine.workers_per_host);
        let workload = match mix {
            "llm-3d" => Mix::small_workload(hosts, per_host),
            _ => Workload::named(mix, hosts, per_host).expect("it is known"),
        };
        let (mut of_contexts, mut of_totals) = (Vec::new(), Vec::new());
        for seed in seeds.clone() {
            let (mut cluster, mut tuner) = (cluster(&machine, seed), Tuner::shipped(seed));
            let outcome = simulation::run(&mut cluster, &workload, &mut tuner, 420, seed);
            let of_default = outcome.worst_prefix;
            assert!(of_default <= 1.02, "{name}, seed {seed}: {of_default} of the default");
            let all = outcome.totals.last().expect("iterations");
            assert!(all.saved() > 0.0, "{name}, seed {seed}: {all:?}");
            for (context, progress) in &outcome.contexts {
                contexts += 1;
                worst = worst.max(progress.worst_prefix);
                if progress.worst_prefix > 1.02 {
                    beyond.push(format!("{name}, seed {seed}, {context:?}: {}", progress.worst_prefix));
                }
                assert!(progress.learned.calls > 0, "{name}: {context:?} has {} calls", progress.totals.calls);
                of_contexts.push(progress.learned.over_oracle());
            }
            of_totals.push(learned(&outcome).over_oracle());
        }
        for (of, over) in [("context", &of_contexts), ("job", &of_totals)] {
            let (mean, error) = mean_and_error(over);
            let (percent, count) = (100.0 * mean, over.len());
            println!(
                "{name}, {mix}: {percent:.2} ± {:.2} % over the best after 300 calls, per {of}, of {count}",
                100.0 * error
            );
            // 3 % is demanded; per context, 1.3 to 1.8 % were found of 40 seeds (docs/tuning.md).
            assert!(mean - forgiven(error) <= 0.03, "{name}, seeds {seeds:?}, per {of}: {percent:.2} % over the best");
        }
    }
    println!("seeds {seeds:?}: at worst {worst:.4} of the default's, in {contexts} contexts, beyond 2 %: {beyond:?}");
    // Nothing proves it for all seeds. Tolerated are two contexts in a thousand beyond 2 %, up to 3.5 %; found was one, by less than 3 %.
    assert!(beyond.len() * 500 <= contexts && worst <= 1.035, "{beyond:?}");
}

/// What may become of jobs whose model is off for everything.
struct Limits {
    /// At worst over the default's, from 100 calls on: all calls, and those of a single context.
    job: f64,
    context: f64,
    /// Of a thousand contexts, beyond 2 %.
    beyond: usize,
    /// After 300 calls, in the mean over 40 seeds.
    over_best: f64,
}

/// Of seeds 1 to 40, of which docs/tuning.md says what was found, and of others, of which it says nothing. Five times as slow or as fast:
/// no context of 840 beyond 1.7 % (1.62), and within 1.8 % of the best.
const FIVE_TIMES: [Limits; 2] = [
    Limits { job: 1.02, context: 1.02, beyond: 0, over_best: 0.02 },
    Limits { job: 1.02, context: 1.06, beyond: 10, over_best: 0.05 },
];

/// Twice as slow: of 160 seeds 21 contexts of 1,120 beyond 2 %, one of them 3.2 %, and two jobs, one of them 2.1 %, and 2.9 % over the best.
const TWICE: [Limits; 2] = [
    Limits { job: 1.03, context: 1.05, beyond: 36, over_best: 0.03 },
    Limits { job: 1.06, context: 1.06, beyond: 50, over_best: 0.05 },
];

/// Links are five times as slow as anybody believes, or five times as fast: what was never tried seems better than the default then, or
/// worse, by as much. A factor of two may be the default's own, and is not told from that.
#[test]
fn a_model_that_is_off_for_everything_breaks_no_promise() {
    let seeds = seeds(5);
    for (name, times, limits) in [
        ("study-10gbe:8x4", 5.0f64, &FIVE_TIMES),
        ("study-10gbe:8x4", 0.2, &FIVE_TIMES),
        ("1gbe+pcie3:8x1", 5.0, &FIVE_TIMES),
        ("1gbe+pcie3:8x1", 2.0, &TWICE),
    ] {
        let limits = &limits[usize::from(seeds.end > 41)];
        let machine = Cluster::named(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let workload = Workload::named("data-parallel", machine.hosts, machine.workers_per_host).expect("it is known");
        let (mut contexts, mut worst, mut beyond, mut over) = (0usize, 0.0f64, 0, Vec::new());
        for seed in seeds.clone() {
            let misfit = Misfit { common: times.ln(), ..Misfit::USUAL };
            let model = Box::new(OwnModel::of(&machine));
            let mut cluster = SimulatedCluster::new(model, misfit, Disturbances::usual(), seed);
            let mut tuner = Tuner::shipped(seed);
            let outcome = simulation::run(&mut cluster, &workload, &mut tuner, 420, seed);
            assert!(outcome.worst_prefix <= limits.job, "{name}, {times} times, seed {seed}: {}", outcome.worst_prefix);
            for progress in outcome.contexts.values() {
                contexts += 1;
                worst = worst.max(progress.worst_prefix);
                beyond += usize::from(progress.worst_prefix > 1.02);
            }
            over.push(learned(&outcome).over_oracle());
        }
        let (mean, error) = mean_and_error(&over);
        let said = format!("{name}, {times} times: {beyond} of {contexts} contexts beyond 2 %, at worst {worst:.4}");
        println!("{said}; {:.2} % over the best", 100.0 * mean);
        assert!(beyond <= (limits.beyond * contexts).div_ceil(1000) && worst <= limits.context, "{said}");
        // What is said of 40 seeds, four cannot tell: they may take up to 6.5 % longer, with what is forgiven.
        let most = if long() { limits.over_best } else { 0.06 };
        assert!(mean - forgiven(error) <= most, "{said}: {mean} over the best");
    }
}

/// All calls after the first 300 of their context.
fn learned(outcome: &Outcome) -> Totals {
    let mut all = Totals::default();
    outcome.contexts.values().for_each(|progress| all.add(&progress.learned));
    all
}

/// And the standard deviation of the mean.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    (mean, (variance / count).sqrt())
}

/// The mix of a language model against the best configuration that could have been set before the job, of those that are the same for all
/// calls of a collective. Who sets it would have to know the truth beforehand. Demanded is that the tuner is better once it has learned,
/// after 300 calls, and with all that finding out has cost within 1000 calls of the rarest kind: it takes 6 % less, and 2 and 1 % with all of it,
/// in the mean of the 20 seeds of a long run (docs/tuning.md). A short run of 8 seeds admits one that is up to half a percent worse
/// ([`TOLERATED`]).
#[test]
fn the_llm_mix_beats_the_best_fixed_configuration_once_it_is_learned() {
    let seeds = if long() { 1..21 } else { 1..9 };
    for name in ["25gbe+pcie4:8x4", "study-10gbe:8x4"] {
        let machine = Cluster::named(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let workload = Mix::small_workload(machine.hosts, machine.workers_per_host);
        let (mut with_learning, mut after) = (Vec::new(), Vec::new());
        for seed in seeds.clone() {
            let (mut cluster, mut tuner) = (cluster(&machine, seed), Tuner::shipped(seed));
            let outcome = simulation::run(&mut cluster, &workload, &mut tuner, 1000, seed);
            let all = outcome.totals.last().expect("iterations");
            for (context, progress) in &outcome.contexts {
                // What is far from the best by then says where to look.
                if progress.learned.over_oracle() > 0.1 {
                    let course = tuner.course(context);
                    let said = course.map(|course| (course.standing(), course.calls, course.explored, course.drifts));
                    let (over, default) =
                        (progress.learned.over_oracle(), progress.learned.default_s / progress.learned.oracle_s);
                    println!(
                        "  {name}, seed {seed}: {} of 2^{} among {}: {:.0} % over the best after {} calls, default {default:.2}: {said:?}",
                        context.collective,
                        context.size_log2,
                        context.ranks,
                        100.0 * over,
                        progress.totals.calls
                    );
                }
            }
            with_learning.push(all.saved_of_fixed());
            after.push(learned(&outcome).saved_of_fixed());
            println!(
                "{name}, seed {seed}: {:+.2} % of the best fixed configuration saved with learning, {:+.2} % after 300 calls",
                100.0 * all.saved_of_fixed(),
                100.0 * after[after.len() - 1]
            );
        }
        for (of, saved) in [("with learning", with_learning), ("after 300 calls", after)] {
            let (mean, error) = mean_and_error(&saved);
            println!("{name}, seeds {seeds:?}: {:+.2} ± {:.2} % saved {of}", 100.0 * mean, 100.0 * error);
            assert!(mean + forgiven(error) > 0.0, "{name}, {of}: {mean}");
        }
    }
}

/// Where half of all families have tails of their own, medians mislead: what is better in the median and worse in the mean does not
/// stand, and costs no more than anything else.
#[test]
fn what_is_better_in_the_median_and_worse_in_the_mean_is_not_chosen() {
    let seeds = if long() { 1..41 } else { 1..7 };
    let machine = Cluster::named("study-10gbe:8x1").expect("it is built in");
    let workload = Workload::named("data-parallel", 8, 1).expect("it is known");
    let (mut chosen, mut worse, mut tempting, mut contexts, mut worst) = (0, 0, 0, 0, 0.0f64);
    for seed in seeds.clone() {
        let misfit = Misfit { tailed: 0.5, ..Misfit::USUAL };
        let model = Box::new(OwnModel::of(&machine));
        let mut cluster = SimulatedCluster::new(model, misfit, Disturbances::usual(), seed);
        let mut tuner = Tuner::shipped(seed);
        let outcome = simulation::run(&mut cluster, &workload, &mut tuner, 1500, seed);
        worst = outcome.contexts.values().map(|progress| progress.worst_prefix).fold(worst, f64::max);
        for (_, course) in tuner.courses() {
            contexts += 1;
            let situation = cluster.situation(&course.state).expect("choices").clone();
            let truth = |arm| cluster.truth_s(&situation, arm, 0);
            let default_s = truth(situation.default);
            // A sixth less in nine calls of ten, for the same mean.
            let arms = 0..situation.arms.len();
            tempting += usize::from(
                arms.clone().any(|arm| (1.0..1.15).contains(&(truth(arm) / default_s)) && arm != situation.default),
            );
            if let Standing::Chosen(choice, _) = course.standing() {
                chosen += 1;
                let share = truth(situation.arm_of(choice)) / default_s;
                if share > 1.0 {
                    worse += 1;
                    println!("seed {seed}, {:?}: {share:.3} of the default's mean stands", situation.context);
                }
            }
        }
    }
    println!(
        "seeds {seeds:?}: {chosen} chosen of {contexts}, {worse} of them worse; {tempting} had one; at worst {worst:.4}"
    );
    assert!(tempting > contexts / 2 && chosen > contexts / 4, "{tempting} and {chosen} of {contexts}");
    assert!(worse * 50 <= chosen, "{worse} of {chosen}");
    // Chance is larger here: of a hundred calls with such tails, the mean is off by 6 % (a standard deviation).
    assert!(worst <= 1.08, "{worst}");
}

/// With the same guard and the same trials, on the same clusters, nobody settles for less than the learner that ships.
#[test]
fn the_best_learner_ships() {
    let machine = Cluster::named("study-100gbe:4x1").expect("it is built in");
    let workload = Workload::named("data-parallel", 4, 1).expect("it is known");
    let (iterations, seeds) = if long() { (500, 1..21) } else { (500, 1..4) };
    let rows = learners(|seed| cluster(&machine, seed), &workload, iterations, seeds.clone());
    println!("seeds {seeds:?}\n{}", Comparison(rows.clone()));
    assert_eq!(rows.len(), 6);
    assert_eq!(rows[0].learner, Tuner::shipped(0).learner().name());
}
