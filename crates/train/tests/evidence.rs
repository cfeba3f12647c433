//! The smallest cases of the study's evidence: on an emulated network, the schedules do what their formulas say, and win
//! where they should. Large cases are those of `cargo xtask study`.
//!
//! Sleeps and emulated links are never early, and late where the machine is busy. So differences are made large, and what
//! a busy machine has spoilt is repeated, which a wrong schedule survives no better.

mod support;

use paceline_plan::{NetworkModel, Profile};
use paceline_schedule::{formula, steady_state_s};
use paceline_train::{CellRun, Length, MeasureOptions};
use support::emulated::{demand, emulated, eventually, profile};

const WORKERS: usize = 2;

/// Between two workers.
fn run(strategy: &str, profile: &Profile, network: &str) -> CellRun {
    run_dilated(1.0, strategy, profile, network)
}

fn run_dilated(dilate: f64, strategy: &str, profile: &Profile, network: &str) -> CellRun {
    run_among(WORKERS, dilate, strategy, profile, network)
}

/// Four iterations; late ones are recognised by their times.
fn run_among(workers: usize, dilate: f64, strategy: &str, profile: &Profile, network: &str) -> CellRun {
    let options = MeasureOptions {
        strategy: strategy.into(),
        local_batch: 1,
        warm_up: 1,
        length: Length::Iterations(4),
        dilate,
        late_share_max: f64::INFINITY,
        ..MeasureOptions::default()
    };
    emulated(workers, profile, network, &options)
}

/// The fastest iteration: the one that the machine has disturbed least.
fn best_s(run: &CellRun) -> f64 {
    run.iteration_s.iter().copied().fold(f64::INFINITY, f64::min)
}

/// 100 ms of backward, and as much of communication: half a megabyte in 12.5 ms, eight times.
const EVEN: &str = "alpha=100us,beta=25ns";

/// The time by the formula, with the times that the network is emulated to take.
fn between_two(bytes: u64) -> f64 {
    // A ring of two: each sends half of the bytes, twice.
    2.0 * 100e-6 + 25e-9 * bytes as f64
}

#[test]
fn wait_free_backpropagation_hides_what_its_formula_says() {
    let profile = profile(&[125_000; 8], 0.1);
    let (bsp, wfbp) = (formula::bsp(&profile, &between_two), formula::wfbp(&profile, &between_two));
    assert!(bsp.exposed_s > 6.0 * wfbp.exposed_s, "there is something to hide");
    eventually(|| {
        let [sent_after, sent_at_once] =
            ["bsp-a2a,arch=a2a:ring", "wfbp-a2a,arch=a2a:ring"].map(|strategy| best_s(&run(strategy, &profile, EVEN)));
        let share = (sent_after - sent_at_once) / (bsp.exposed_s - wfbp.exposed_s);
        demand(share >= 0.8 && sent_at_once >= 0.98 * wfbp.total_s(), || {
            format!("{share} of what can be hidden is hidden: {sent_after} s and {sent_at_once} s")
        })
    });
}

/// Communication takes as long as forward and backward together, and most of it is of the last layers, as in many models:
/// what is left of it after backward, the next forward pass hides.
#[test]
fn priorities_let_the_next_forward_pass_hide_the_rest() {
    let sizes = [5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 365_000];
    let profile = profile(&sizes, 0.067);
    eventually(|| {
        let prioritised = run("bytescheduler-a2a,schedule=bytescheduler:200000:400000,arch=a2a:ring", &profile, EVEN);
        let formula_s = steady_state_s(&profile, &prioritised.plan, &between_two);
        let (with, without) = (best_s(&prioritised), best_s(&run("wfbp-a2a,arch=a2a:ring", &profile, EVEN)));
        demand(with <= 0.9 * without && with <= 1.15 * formula_s, || {
            format!("{with} s with priorities, {formula_s} s by the formula, {without} s without")
        })
    });
}

/// 16 operations of 10 ms one after the other, or few: backward is over after 40 ms.
#[test]
fn merging_mends_what_starting_costs() {
    let profile = profile(&[1_000; 16], 0.04);
    let network = "alpha=10us,beta=1ns";
    eventually(|| {
        let [each, merged, at_once] = ["wfbp", "mg-wfbp", "none"]
            .map(|schedule| run(&format!("schedule={schedule},arch=a2a:ring:10ms"), &profile, network));
        assert_eq!((each.plan.operations(), at_once.plan.operations()), (16, 1));
        let times = [&each, &merged, &at_once].map(best_s);
        let few = merged.plan.operations();
        demand(few < 8 && times[1] < 0.6 * times[0] && times[1] < 1.05 * times[2], || {
            format!("{few} operations; each by itself, merged, at once: {times:?}")
        })
    });
}

/// Two servers beside two workers, push and pull pipelined: every NIC carries half of the bytes for its worker, and half of
/// them for its server, 100 ms in all, beginning with the first gradient.
#[test]
fn servers_are_bound_by_their_nics_and_come_near_it() {
    let profile = profile(&[125_000; 8], 0.05);
    eventually(|| {
        let served = run("wfbp-ps,arch=ps:2:500000", &profile, EVEN);
        let bound_s = profile.forward_s() + profile.ready_s()[7] + 0.1;
        let time_s = best_s(&served);
        demand(time_s >= 0.98 * bound_s && time_s <= 1.3 * bound_s, || format!("{time_s} s, bound by {bound_s} s"))
    });
}

/// A tensor of 2 MB among four workers with as many servers beside them. As a whole it is one server's, whose NIC carries what the
/// three other workers push: 150 ms. In partitions all servers have a quarter of it, and every NIC carries 75 ms. A ring shares the
/// bytes evenly anyway, 75 ms, so there partitions bring nothing.
#[test]
fn partitioning_suits_servers_and_not_all_to_all() {
    let profile = profile(&[500_000], 0.03);
    let best = |strategy: &str| best_s(&run_among(4, 1.0, strategy, &profile, EVEN));
    eventually(|| {
        let servers = ["wfbp-ps,arch=ps:4:125000", "wfbp-ps,arch=ps:4:2GiB"].map(best);
        let ring = ["bytescheduler:125000:500000", "bytescheduler:2GiB:2GiB"]
            .map(|schedule| best(&format!("bytescheduler-a2a,schedule={schedule},arch=a2a:ring")));
        let [on_servers, in_ring] = [servers, ring].map(|[cut, whole]| cut / whole);
        demand(on_servers <= 0.85 && in_ring >= 0.9, || {
            format!("cut over whole: {on_servers} on servers ({servers:?} s), {in_ring} in a ring ({ring:?} s)")
        })
    });
}

/// As [`priorities_let_the_next_forward_pass_hide_the_rest`], on servers: communication takes 100 ms there, too, and begins 8 ms
/// after backward.
#[test]
fn priorities_pay_on_servers_where_something_is_left_after_backward() {
    let sizes = [5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 365_000];
    let profile = profile(&sizes, 0.067);
    eventually(|| {
        let [with, without] = ["bytescheduler-ps,schedule=bytescheduler:100000:400000", "wfbp-ps"]
            .map(|method| best_s(&run(&format!("{method},arch=ps:2:100000"), &profile, EVEN)));
        demand(with <= 0.93 * without, || format!("{with} s with priorities, {without} s without"))
    });
}

/// 20 ms to start an operation, so that it pays to merge, but not all.
#[test]
fn merged_and_at_once_take_what_their_formulas_say() {
    let profile = profile(&[125_000; 8], 0.1);
    let cost = |bytes| 20e-3 + between_two(bytes);
    let merged = formula::mg_wfbp(&profile, &cost).expect("times").total_s();
    let formulas = [("none", formula::bsp(&profile, &cost).total_s()), ("mg-wfbp", merged)];
    assert!(merged < 0.9 * formulas[0].1, "there is something to hide: {formulas:?}");
    eventually(|| {
        let off = formulas.map(|(schedule, formula_s)| {
            best_s(&run(&format!("schedule={schedule},arch=a2a:ring:20ms"), &profile, EVEN)) / formula_s
        });
        demand(off.iter().all(|off| (0.95..=1.15).contains(off)), || format!("{off:?} times {formulas:?}"))
    });
}

/// The study may take 5 us, with an optimised program on a quiet machine; here there is neither.
#[test]
fn deciding_what_travels_when_costs_microseconds() {
    let profile = profile(&[1_000; 200], 0.1);
    for strategy in ["wfbp-a2a,arch=a2a:ring", "wfbp-ps,arch=ps:2:100000"] {
        eventually(|| {
            let cost_us = 1e6 * run(strategy, &profile, "alpha=100us,beta=1ns").scheduling_s_per_tensor;
            println!("{strategy}: {cost_us} us per tensor");
            demand(cost_us <= 50.0, || format!("{strategy}: {cost_us} us per tensor"))
        });
    }
}

/// The smallest of the study's cells as it ran them: what Horovod took to start stands before each tensor's ring.
#[test]
fn the_study_s_wait_free_backpropagation_takes_what_its_formula_says() {
    let profile = profile(&[12_500; 12], 0.003);
    let tcp = NetworkModel::TEN_GBE.across;
    let cost = |bytes: u64| 190e-6 + 2.0 * tcp.alpha_s + tcp.beta_s_per_byte * bytes as f64;
    let formula_s = formula::wfbp(&profile, &cost).total_s();
    eventually(|| {
        let time_s = best_s(&run_dilated(60.0, "study-wfbp-a2a", &profile, "10GbE"));
        demand((0.95..=1.2).contains(&(time_s / formula_s)), || format!("{time_s} s, {formula_s} s by the formula"))
    });
}
