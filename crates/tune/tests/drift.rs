//! What becomes of a tuner while the network changes: evidence 4 of the issue, and networks that never rest.

use paceline_plan::Cluster;
use paceline_tune::environment::{Bursts, Change, Disturbances, Misfit, OwnModel, SimulatedCluster, Workload};
use paceline_tune::simulation::{Outcome, between};
use paceline_tune::statistics::mean_and_error;
use paceline_tune::{Tuner, simulation};

fn long() -> bool {
    std::env::var_os("PACELINE_LONG_TESTS").is_some()
}

/// What was made of a network that changes, in all contexts together.
struct Noticed {
    outcome: Outcome,
    /// Changes that were believed, and alarms that were not.
    drifts: u32,
    dismissed: u32,
}

/// Calls of the data-parallel mix, one of each size in an iteration.
fn run(disturbances: Disturbances, iterations: u64, seed: u64) -> Noticed {
    let machine = Cluster::named("1gbe+pcie3:4x1").expect("it is built in");
    let model = Box::new(OwnModel::of(&machine));
    let mut cluster = SimulatedCluster::new(model, Misfit::USUAL, disturbances, seed);
    let workload = Workload::named("data-parallel", 4, 1).expect("it is known");
    let mut tuner = Tuner::shipped(seed);
    let outcome = simulation::run(&mut cluster, &workload, &mut tuner, iterations, seed);
    let courses = || tuner.courses().map(|(_, course)| course);
    Noticed {
        outcome,
        drifts: courses().map(|course| course.drifts).sum(),
        dismissed: courses().map(|course| course.dismissed).sum(),
    }
}

/// 1 Gbit/s becomes 200 Mbit/s and comes back: from the 100th call after each change on, all calls together take at most 5 %
/// longer than the best would (`most`: a share, in the mean over seeds), and no more changes are believed than there are.
fn there_and_back(disturbances: &Disturbances, first: u64, most: f64) {
    let over_five = recovers(disturbances, first, most);
    assert!(2.0 * over_five <= 1.0, "change at {first}: {over_five:.2} of all are above 5 %");
}

/// The same, however many seeds are above 5 %: their share.
fn recovers(disturbances: &Disturbances, first: u64, most: f64) -> f64 {
    let seeds = if long() { 1..41 } else { 1..13 };
    let changes = vec![Change { step: first, factor: 5.0 }, Change { step: first + 300, factor: 1.0 }];
    let disturbances = Disturbances { changes, ..disturbances.clone() };
    let (mut slow, mut back, mut over_five, mut believed) = (Vec::new(), Vec::new(), 0, Vec::new());
    for seed in seeds.clone() {
        let Noticed { outcome, drifts, dismissed } = run(disturbances.clone(), first + 600, seed);
        let from = first as usize;
        let over = [
            between(&outcome, from + 100, from + 300).over_oracle(),
            between(&outcome, from + 400, from + 600).over_oracle(),
        ];
        let changes = 2 * outcome.contexts.len();
        println!(
            "change at {first}, seed {seed}: {:.2} % and {:.2} % over the best, {drifts} of {changes} changes, {dismissed} alarms \
             of none, worst {:.4}",
            100.0 * over[0],
            100.0 * over[1],
            outcome.worst_prefix
        );
        assert!(outcome.worst_prefix <= 1.02, "seed {seed}: {}", outcome.worst_prefix);
        slow.push(over[0]);
        back.push(over[1]);
        over_five += over.iter().filter(|over| **over > 0.05).count();
        believed.push(f64::from(drifts) / changes as f64);
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let surely = |values: &[f64]| {
        let (mean, error) = mean_and_error(values).expect("several seeds");
        // Few seeds do not tell the mean to a percentage point: half a one is forgiven, however noisy it is.
        mean - if long() { 0.0 } else { (2.0 * error).min(0.005) }
    };
    println!(
        "change at {first}, seeds {seeds:?}: {:.2} % and {:.2} % in the mean, {over_five} of {} above 5 %, {:.2} changes believed for \
         each one",
        100.0 * mean(&slow),
        100.0 * mean(&back),
        2 * slow.len(),
        mean(&believed)
    );
    assert!(surely(&slow) <= most && surely(&back) <= most, "change at {first}: {slow:?} {back:?}");
    assert!((0.9..=1.2).contains(&mean(&believed)), "change at {first}: {believed:?} for each one");
    over_five as f64 / (2 * slow.len()) as f64
}

#[test]
fn within_a_hundred_calls_after_a_change_all_is_near_the_best_again() {
    [200, 330].into_iter().for_each(|first| there_and_back(&Disturbances::usual(), first, 0.05));
}

/// The same where noise is five times as large in the slow network, and lasts for some calls: then alarms of nothing are many, and few
/// of them are believed.
#[test]
fn noise_that_grows_and_lasts_is_not_taken_for_changes() {
    let disturbances = Disturbances { noise_grows: true, persistence: 0.5, ..Disturbances::usual() };
    // Choices that differ by less than noise are harder to tell apart: 3.7 % of 40 seeds (docs/tuning.md).
    there_and_back(&disturbances, 330, 0.07);
}

/// One call in thirty waits for a packet that is sent again after 200 ms, a hundred times what a short one takes; that says nothing about any
/// choice, nor about the network.
#[test]
fn lost_packets_hide_no_change() {
    let disturbances = Disturbances { noise: 0.1, stall_share: 0.03, stall_s: 0.2, ..Disturbances::usual() };
    recovers(&disturbances, 330, 0.08);
    let seeds = if long() { 1..41 } else { 1..13 };
    let believed: u32 = seeds.map(|seed| run(disturbances.clone(), 900, seed).drifts).sum();
    assert_eq!(believed, 0, "changes of a network that stays what it is");
}

/// Others come and go all the time: alarms follow each other, and still nothing is lost to speak of.
#[test]
fn a_restless_network_costs_hardly_more_than_a_quiet_one() {
    let seeds = if long() { 1..41 } else { 1..5 };
    let (mut worsts, mut contexts, mut last) = (Vec::new(), 0usize, 0.0f64);
    let (mut believed, mut changed) = (0.0, 0.0);
    for seed in seeds {
        let bursts = Bursts { steps: 40, share: 0.3, factor: 2.0, seed };
        let disturbances = Disturbances { bursts: Some(bursts), ..Disturbances::usual() };
        let changes = (1..1200).filter(|&step| disturbances.factor(step) != disturbances.factor(step - 1)).count();
        let Noticed { outcome, drifts, dismissed } = run(disturbances, 1200, seed);
        let worst = outcome.contexts.values().map(|progress| progress.worst_prefix).fold(0.0, f64::max);
        let changes = changes * outcome.contexts.len();
        println!(
            "seed {seed}: {drifts} of {changes} changes, {dismissed} alarms of none, at worst {worst:.4} of the default's"
        );
        contexts += outcome.contexts.len();
        for (context, progress) in &outcome.contexts {
            let share = progress.totals.tuned_s / progress.totals.default_s;
            last = last.max(share);
            if progress.worst_prefix > 1.02 {
                println!("  2^{}: at worst {:.4}, at last {share:.4}", context.size_log2, progress.worst_prefix);
                worsts.push(progress.worst_prefix);
            }
        }
        believed += f64::from(drifts);
        changed += changes as f64;
    }
    println!("{} of {contexts} contexts beyond 2 %: {worsts:.4?}, {last:.4} at last", worsts.len());
    let each = believed / changed;
    assert!((0.5..=1.2).contains(&each), "{each:.2} changes were believed for each one");
    // Twice as slow for 40 calls, again and again: of 160 seeds 18 contexts of 1120 were beyond 2 % at some time, one of them 9.5 %, and one
    // was 0.9 % behind at last (docs/tuning.md). 10 of 280 may be.
    let may_be = contexts.div_ceil(30);
    assert!(worsts.len() <= may_be && worsts.iter().all(|worst| *worst <= 1.1), "{worsts:.4?} of {contexts}");
    assert!(last < 1.015, "{last} at last");
}
