//! Cells whose runs are made up: what is predicted of them, and from what.

use paceline_plan::{LinkCost, LinkCosts, ProfileTensor, Step};
use paceline_predict::{EMULATED_MESSAGES_MAX, predict_emulated};
use paceline_schedule::{Schedule, ScheduleError, Workload};
use paceline_strategy::{Aspect, Call};
use paceline_train::CommunicationCost;

use super::super::super::cell::Compute;
use super::super::super::cell::samples::{cell, setting};
use super::super::super::store::tests::study_record;
use super::super::super::summary::panels;
use super::*;

mod trained;

/// ResNet-50 replayed on an emulated network, three methods with 1 and 8 workers.
fn replayed() -> Vec<CellRecord> {
    let profile = paceline_train::load_profile("resnet50@rtx2080ti").expect("it is built in");
    let compute = Compute::Replay {
        profile: "resnet50@rtx2080ti".to_owned(),
        fingerprint: super::super::super::models::fingerprint(&profile),
        recorded_batch: profile.local_batch,
        samples_per_s: profile.local_batch as f64 / profile.iteration_s(),
    };
    let setting = Setting {
        compute,
        network: Some("10GbE".to_owned()),
        workers_per_host: Some(1),
        local_batch: profile.local_batch,
        dilate: 8.0,
        ..setting("resnet50")
    };
    let grammar = paceline_strategy::Registry::built_in();
    let of = |method: &str, workers: usize, iteration_s: f64| {
        let strategy = grammar.parse(method).expect("a preset");
        let shards = strategy.servers(workers, workers).map_or(0, |servers| servers.shards);
        let cell = Cell { strategy: strategy.to_string(), shards, ..cell(&setting, method, workers) };
        super::super::super::summary::samples::record(cell, &[iteration_s; 3])
    };
    vec![of("bsp-a2a", 1, 0.25), of("bsp-a2a", 8, 0.4), of("wfbp-a2a", 8, 0.3), of("wfbp-ps", 8, 0.3)]
}

fn attached(study: &StudyRecord, cells: &[CellRecord]) -> Vec<Panel> {
    let mut panels = panels(cells, 2);
    let schedulers = Schedulers::built_in();
    attach(&Sources { schedulers: &schedulers, study, cells }, &mut panels);
    panels
}

#[test]
fn replays_on_emulated_networks_are_predicted_from_the_network_and_the_profile() {
    let study = StudyRecord { combine_s_per_byte: Some(0.1e-9), ..study_record("f") };
    let panels = attached(&study, &replayed());
    let alone = panels[0].groups[0].rows[0].predicted.as_ref().expect("it computes, and that is all");
    assert!((alone.samples_per_s - 253.1).abs() < 1.0, "{alone:?}");
    let group = &panels[0].groups[1];
    let of = |row: usize| group.rows[row].predicted.clone().expect("a prediction");
    let (bsp, wfbp) = (of(0), of(1));
    // The ring's 2 · 7/8 · 102 MB · 0.88 ns = 158 ms, none of it hidden.
    assert!((bsp.exposed_communication_s - 0.158).abs() < 0.03, "{bsp:?}");
    assert!(wfbp.iteration_s < bsp.iteration_s && wfbp.exposed_communication_s < bsp.exposed_communication_s);
    assert!(bsp.samples_per_s_low <= bsp.samples_per_s && bsp.samples_per_s <= bsp.samples_per_s_high);
    let error = group.rows[0].prediction_error.expect("it was measured");
    assert!((error - (bsp.samples_per_s / (8.0 * 64.0 / 0.4) - 1.0)).abs() < 1e-12);
    assert!(group.choice.is_some() && group.rows.iter().all(|row| row.not_predicted.is_none()));
}

/// Of servers that have the optimiser not all can be played: they keep what formulas say.
#[test]
fn iterations_on_an_emulated_network_take_what_their_messages_do() {
    let mut study = StudyRecord { combine_s_per_byte: Some(0.1e-9), ..study_record("f") };
    study.machine.cores = 2;
    let schedulers = Schedulers::built_in();
    let sources = Sources { schedulers: &schedulers, study: &study, cells: &[] };
    let profile = paceline_train::load_profile("resnet50@rtx2080ti").expect("it is built in");
    let cases = [("schedule=wfbp,arch=ps:2", true), ("schedule=wfbp,arch=ps:2:apply", false), ("wfbp-a2a", true)];
    for (text, is_played) in cases {
        let strategy = schedulers.grammar().parse(text).expect("a strategy").to_string();
        let of_eight = replayed().pop().expect("a record").cell;
        let servers = text.contains("ps");
        let cell = Cell { strategy, workers: 6, shards: if servers { 2 } else { 0 }, ..of_eight };
        let predicted = sources.predict(&cell, &profile).expect("a prediction");
        let strategy = sources.strategy(&cell).expect("a strategy");
        let cluster = sources.ground(&cell, &strategy, &profile).expect("links").cluster;
        let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers: 6, local_batch: None };
        let formulas = predict_scheduled(&job, &schedulers).expect("a prediction");
        let played = predict_emulated(&job, &formulas.plan, EMULATED_MESSAGES_MAX).expect("an iteration");
        let iteration_s = if is_played { played.iteration_s } else { formulas.iteration_s };
        assert_eq!((predicted.iteration_s, played.left_out.is_empty()), (iteration_s, is_played), "{text}");
        assert!((predicted.samples_per_s * iteration_s / (6.0 * 64.0) - 1.0).abs() < 1e-9, "{predicted:?}");
        assert!(predicted.samples_per_s_low < predicted.samples_per_s, "{predicted:?}");
        assert!(predicted.samples_per_s < predicted.samples_per_s_high, "{predicted:?}");
        let told = predicted.extrapolated.iter().any(|doubt| doubt.starts_with("ports are taken to be busy"));
        assert_ne!(told, is_played, "{:?}", predicted.extrapolated);
        assert_ne!(played.iteration_s, formulas.iteration_s, "{text}: formulas are not what messages take");
        assert!(!is_played || !servers || iteration_s > 1.03 * formulas.iteration_s, "{iteration_s} {formulas:?}");
    }
}

/// Eight ranks on two cores wake up in 70 us, of which dilation leaves an eighth.
#[test]
fn a_timer_ends_the_start_up_that_a_method_adds() {
    let mut study = study_record("f");
    study.machine.cores = 2;
    let schedulers = Schedulers::built_in();
    let sources = Sources { schedulers: &schedulers, study: &study, cells: &[] };
    let start_up = |method: &str, network: Option<&str>| {
        let mut cell = replayed().pop().expect("a record").cell;
        cell.strategy = schedulers.grammar().parse(method).expect("a preset").to_string();
        cell.setting.network = network.map(str::to_owned);
        sources.strategy(&cell).expect("a strategy").start_up(8).as_nanos()
    };
    assert_eq!(start_up("study-wfbp-a2a", Some("10GbE")), 250_000 + 8_750);
    // Nothing is added without a start-up, nor where no timer stands for the network.
    assert_eq!([start_up("wfbp-a2a", Some("10GbE")), start_up("study-wfbp-a2a", None)], [0, 250_000]);
}

/// The curve over numbers of workers of a method whose start-up is the study's, and that of one that adds as much with 8 workers,
/// whatever their number: alike at 8, and nowhere else.
#[test]
fn a_curve_has_the_start_up_of_each_number_of_workers() {
    let study = StudyRecord { combine_s_per_byte: Some(0.1e-9), ..study_record("f") };
    let rates = |arch: &str| -> Vec<f64> {
        let mut record = replayed().swap_remove(2);
        let strategy = format!("schedule=wfbp,arch={arch}");
        record.cell.strategy = Schedulers::built_in().grammar().parse(&strategy).expect("a strategy").to_string();
        let panels = attached(&study, &[record]);
        let curve = &panels[0].outlook.as_ref().expect("an outlook").curves[1];
        assert_eq!((curve.what.as_str(), curve.today), ("workers on such hosts", 3));
        curve.lines[0].samples_per_s.iter().map(|rate| rate.expect("predicted")).collect()
    };
    let (of_study, fixed) = (rates("a2a:ring:study"), rates("a2a:ring:250us"));
    assert!((of_study[3] / fixed[3] - 1.0).abs() < 1e-9, "{of_study:?} {fixed:?}");
    // 4 workers start sooner, and 32 later.
    assert!(of_study[2] > 1.001 * fixed[2] && of_study[5] < 0.999 * fixed[5], "{of_study:?} {fixed:?}");
}

/// What these cells gave in their iterations changes, and nothing else.
fn with_other_results(mut records: Vec<CellRecord>) -> Vec<CellRecord> {
    for run in records.iter_mut().flat_map(|record| &mut record.runs) {
        let measured = run.outcome.as_mut().expect("it ended");
        measured.iteration_s = vec![9.9; 4];
        (measured.compute_s, measured.exposed_communication_s) = (1.0, 8.9);
        let inputs = &mut measured.inputs;
        (inputs.forward_s, inputs.backward_s, inputs.update_s) = (0.4, 0.5, 0.1);
        inputs.ready_s.iter_mut().for_each(|ready_s| *ready_s = 0.5);
        measured.bytes_per_iteration *= 3.0;
        measured.messages_per_iteration *= 3.0;
        measured.scheduling_s_per_tensor = 1.0;
        measured.confident = !measured.confident;
    }
    records
}

/// Whatever comes out of replays, the same is predicted: on emulated networks, and over links that are there, of which stays what the
/// ranks measured before any iteration.
#[test]
fn no_prediction_sees_its_result() {
    let study = StudyRecord { combine_s_per_byte: Some(0.1e-9), ..study_record("f") };
    let over_links = || {
        let mut records = replayed();
        for record in &mut records {
            (record.cell.setting.network, record.cell.setting.dilate) = (None, 1.0);
            record.cell.setting.workers_per_host = None;
            for run in record.runs.iter_mut().filter(|_| record.cell.workers > 1) {
                let measured = run.outcome.as_mut().expect("it ended");
                let link = LinkCost { alpha: 20e-6, overhead: 5e-6, beta: 0.5e-9, gamma: 0.1e-9 };
                measured.links = Some(LinkCosts::uniform(link));
                let points = vec![(4096, 50e-6), (8 << 20, 16e-3)];
                measured.inputs.communication = Some(CommunicationCost::of_points(points));
            }
        }
        records
    };
    let predicted = |cells: &[CellRecord]| -> Vec<Option<Predicted>> {
        let panels = attached(&study, cells);
        let rows = panels.iter().flat_map(|panel| &panel.groups).flat_map(|group| &group.rows);
        let predicted: Vec<Option<Predicted>> = rows.map(|row| row.predicted.clone()).collect();
        assert!(predicted.len() == 4 && predicted[..3].iter().all(Option::is_some), "{predicted:?}");
        predicted
    };
    for records in [replayed as fn() -> Vec<CellRecord>, over_links] {
        assert_eq!(predicted(&records()), predicted(&with_other_results(records())));
    }
    // What stays is what it is made from.
    let mut slower = over_links();
    for run in slower.iter_mut().flat_map(|record| &mut record.runs) {
        let measured = run.outcome.as_mut().expect("it ended");
        if measured.inputs.communication.is_some() {
            measured.inputs.communication = Some(CommunicationCost::of_points(vec![(4096, 1e-3), (8 << 20, 0.3)]));
        }
    }
    assert_ne!(predicted(&over_links()), predicted(&slower));
}

/// One bucket for each tensor, of what it says that it changes what is learned.
fn careless(_: &Call, workload: &Workload) -> Result<Schedule, ScheduleError> {
    Ok(Schedule::of(workload.ready.iter().map(|&tensor| vec![tensor]).collect()))
}

/// As while it trains: a schedule that changes what is learned is none of those that `auto` would choose from, unless it is named.
#[test]
fn auto_is_expected_to_choose_lossy_schedules_only_where_they_are_named() {
    let mut schedulers = Schedulers::built_in();
    let method = paceline_strategy::Method {
        aspect: Aspect::Schedule,
        name: "careless",
        parameters: &[],
        sentence: "careless sums",
        lossless: false,
        available: true,
    };
    schedulers.add(method, careless);
    let study = study_record("f");
    let sources = Sources { schedulers: &schedulers, study: &study, cells: &[] };
    let cell = Cell { shards: 0, ..cell(&setting("layers"), "auto", 4) };
    let profile = paceline_train::load_profile("resnet50@rtx2080ti").expect("it is built in");
    let cluster = Cluster::of_network(NetworkModel::TEN_GBE, 4, 1);
    for (text, looked_at) in [("auto", false), ("schedule=careless,arch=auto", true)] {
        let strategy = schedulers.grammar().parse(text).expect("a strategy");
        let space = Space { effort: 0, ..sources.space(&cell, &strategy) };
        let question = Question { cluster: &cluster, profile: &profile, workers: 4, space: &space };
        let candidates = search(&question).expect("an answer").candidates;
        let found = candidates.iter().any(|candidate| candidate.strategy.schedule.name == "careless");
        assert_eq!(found, looked_at, "{text}");
    }
}

/// Servers that would be about 1 % faster are not taken, and what is taken instead has an interval, too.
#[test]
fn what_is_taken_instead_of_the_best_has_an_interval() {
    let (study, schedulers) = (study_record("f"), Schedulers::built_in());
    let sources = Sources { schedulers: &schedulers, study: &study, cells: &[] };
    let cell = Cell { shards: 4, ..cell(&setting("layers"), "auto", 4) };
    let tensor = |number: usize| ProfileTensor {
        name: format!("layer {number}"),
        elements: 500_000,
        forward_macs_per_sample: 10,
    };
    let step = |tensor| Step { tensor, seconds: 0.002 };
    let profile = Profile {
        schema: Profile::SCHEMA,
        local_batch: 4,
        tensors: (0..4).map(tensor).collect(),
        forward: (0..4).map(step).collect(),
        backward: (0..4).rev().map(step).collect(),
        ..Profile::default()
    };
    let mut instead = 0;
    // What it takes to start an operation is paid all-to-all, and not by servers.
    for start_s in (0..20).map(|number| 50e-6 * f64::from(number)) {
        let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 4, 1);
        let beta = cluster.across.beta_s_per_byte.value;
        cluster.across.beta_s_per_byte = Constant::between(beta, 0.9 * beta, 1.1 * beta);
        cluster.operation.start_s = start_s.into();
        let predicted = |method: &str| {
            let strategy = schedulers.grammar().parse(method).expect("a strategy");
            sources.prediction(&cell, &strategy, &cluster, &profile).expect("a prediction")
        };
        let (auto, served) = (predicted("auto"), predicted("auto,arch=ps:4"));
        let saved = 1.0 - served.iteration_s / auto.iteration_s;
        instead += usize::from((0.005..0.02).contains(&saved));
        for Prediction { low_s, iteration_s, high_s, .. } in [auto, served] {
            assert!(low_s < iteration_s && iteration_s < high_s, "{low_s} {iteration_s} {high_s}");
        }
    }
    assert!(instead > 0, "servers were never the best by 1 %: the test shows nothing");
}
