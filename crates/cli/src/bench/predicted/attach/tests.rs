//! Cells whose runs are made up: what is predicted of them, and from what.

use paceline_plan::{LinkCost, LinkCosts, ProfileTensor, Step};
use paceline_schedule::{Schedule, ScheduleError, Workload};
use paceline_strategy::{Aspect, Call};
use paceline_train::{CellRun, CommunicationCost, FormulaInputs};

use super::super::super::cell::Compute;
use super::super::super::cell::samples::{cell, setting};
use super::super::super::store::tests::study_record;
use super::super::super::store::{Occasion, RunRecord};
use super::super::super::summary::{Row, panels, samples::cell_run};
use super::*;

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
fn servers_on_an_emulated_network_take_what_their_messages_do() {
    let mut study = StudyRecord { combine_s_per_byte: Some(0.1e-9), ..study_record("f") };
    study.machine.cores = 2;
    let schedulers = Schedulers::built_in();
    let sources = Sources { schedulers: &schedulers, study: &study, cells: &[] };
    let profile = paceline_train::load_profile("resnet50@rtx2080ti").expect("it is built in");
    for (text, is_played) in [("schedule=wfbp,arch=ps:2", true), ("schedule=wfbp,arch=ps:2:apply", false)] {
        let strategy = schedulers.grammar().parse(text).expect("a strategy").to_string();
        let of_eight = replayed().pop().expect("a record").cell;
        let cell = Cell { strategy, workers: 6, shards: 2, ..of_eight };
        let predicted = sources.predict(&cell, &profile).expect("a prediction");
        let strategy = sources.strategy(&cell).expect("a strategy");
        let cluster = sources.ground(&cell, &strategy, &profile).expect("links").cluster;
        let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers: 6, local_batch: None };
        let formulas = predict_scheduled(&job, &schedulers).expect("a prediction");
        let played = predict_emulated(&job, &formulas.plan, PLAYED_MAX).expect("an iteration");
        let iteration_s = if is_played { played.iteration_s } else { formulas.iteration_s };
        assert_eq!((predicted.iteration_s, played.left_out.is_empty()), (iteration_s, is_played), "{text}");
        assert!((predicted.samples_per_s * iteration_s / (6.0 * 64.0) - 1.0).abs() < 1e-9, "{predicted:?}");
        assert!(predicted.samples_per_s_low < predicted.samples_per_s, "{predicted:?}");
        assert!(predicted.samples_per_s < predicted.samples_per_s_high, "{predicted:?}");
        let told = predicted.extrapolated.iter().any(|doubt| doubt.starts_with("ports are taken to be busy"));
        assert_ne!(told, is_played, "{:?}", predicted.extrapolated);
        assert!(!is_played || iteration_s > 1.03 * formulas.iteration_s, "{iteration_s} {}", formulas.iteration_s);
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

/// Of a world of several trained workers nothing counts that its iterations took, over whatever link they talk; what one worker
/// computes does.
#[test]
fn no_prediction_of_a_trained_model_sees_its_result() {
    let mut study = study_record("f");
    study.machine.cores = 2;
    for over in ["", ",protocol=tcp"] {
        let records = || -> Vec<CellRecord> {
            let of =
                |workers| ["bsp-a2a", "wfbp-a2a", "auto"].map(|method| trained(workers, &format!("{method}{over}")));
            [1, 2, 4].into_iter().flat_map(of).collect()
        };
        let slower = |changed: fn(usize) -> bool| -> Vec<CellRecord> {
            let mut records = records();
            for record in records.iter_mut().filter(|record| changed(record.cell.workers)) {
                let measured = record.runs[0].outcome.as_mut().expect("it ended");
                measured.iteration_s = vec![9.9; 4];
                (measured.compute_s, measured.exposed_communication_s) = (1.0, 8.9);
            }
            records
        };
        let predicted = |cells: &[CellRecord]| -> Vec<Predicted> {
            let panels = attached(&study, cells);
            let rows = panels.iter().flat_map(|panel| &panel.groups).filter(|group| group.workers > 1);
            rows.flat_map(|group| &group.rows).map(|row| row.predicted.clone().expect("a prediction")).collect()
        };
        let as_it_was = predicted(&records());
        assert_eq!(as_it_was.len(), 6, "three methods with 2 and 4 workers");
        assert_eq!(predicted(&slower(|workers| workers > 1)), as_it_was, "{over}");
        assert!(predicted(&slower(|workers| workers == 1)).iter().all(|row| row.iteration_s > 1.0), "{over}");
    }
}

/// Of this machine's links and a real model: links that ranks measured, the profile of one worker.
fn real(workers: usize) -> CellRecord {
    trained(workers, "bsp-a2a")
}

fn trained(workers: usize, method: &str) -> CellRecord {
    let links = LinkCosts::uniform(LinkCost { alpha: 20e-6, overhead: 5e-6, beta: 0.5e-9, gamma: 0.1e-9 });
    let points = vec![(4096, 50e-6), (1 << 21, 4e-3)];
    let communication = CommunicationCost::of_points(points);
    let inputs = FormulaInputs {
        ready_s: vec![0.05, 0.02],
        elements: vec![1 << 18, 1 << 18],
        update_s: 0.01,
        communication: (workers > 1).then_some(communication),
        ..FormulaInputs::default()
    };
    let links = (workers > 1).then_some(links);
    let run = CellRun { workers, links, inputs, compute_s: 0.1, ..cell_run(0.1) };
    let strategy = paceline_strategy::Registry::built_in().parse(method).expect("a preset").to_string();
    let cell = Cell { strategy, ..cell(&setting("cnn"), method, workers) };
    CellRecord { cell, runs: vec![RunRecord { number: 1, outcome: Ok(run), occasion: Occasion::default() }] }
}

#[test]
fn real_cells_are_predicted_from_one_worker_and_the_links_that_were_measured() {
    let mut study = study_record("f");
    study.machine.cores = 2;
    let panels = attached(&study, &[real(1), real(2), real(4)]);
    let row = |group: usize| &panels[0].groups[group].rows[0];
    assert!(row(0).predicted.is_none(), "nobody else says what one worker computes");
    let why = "one worker alone was measured by this method only, and what it computes is not predicted";
    assert_eq!(row(0).not_predicted.as_deref(), Some(why));
    let two = row(1).predicted.as_ref().expect("a prediction");
    assert!(two.iteration_s > 0.1 && two.iteration_s < 0.12 && two.extrapolated.is_empty(), "{two:?}");
    // Four workers on two cores compute half as fast.
    let four = row(2).predicted.as_ref().expect("a prediction");
    assert!(four.iteration_s > 0.2 && four.extrapolated[0].starts_with("4 workers on 2 cores"), "{four:?}");
}

/// From what the other methods measured, and nothing that its own runs gave: with servers, too, of which it says that they are not
/// counted.
#[test]
fn a_trained_worker_alone_is_predicted_from_the_other_methods() {
    let study = study_record("f");
    let rows = |own_s: f64, others_s: f64| -> Vec<Row> {
        let own = with_iterations_of(trained(1, "bsp-a2a"), own_s);
        let others = ["wfbp-a2a", "auto"].map(|method| with_iterations_of(trained(1, method), others_s));
        let cells: Vec<CellRecord> = [own].into_iter().chain(others).chain([trained(1, "wfbp-ps")]).collect();
        let group = attached(&study, &cells).swap_remove(0).groups.swap_remove(0);
        assert!(group.choice.is_none() && group.rows.len() == 4, "one worker has nothing to choose from: {group:?}");
        group.rows
    };
    let predicted = |row: &Row| row.predicted.clone().expect("a prediction");
    let all = rows(0.1, 0.2);
    assert!(all.iter().all(|row| row.predicted.is_some()), "{all:?}");
    let own = predicted(&all[0]);
    assert!((own.iteration_s - 0.2).abs() < 1e-6 && own.extrapolated.is_empty(), "{own:?}");
    let error = all[0].prediction_error.expect("it was measured");
    assert!((error - (0.1 / 0.2 - 1.0)).abs() < 1e-6, "{error}");
    let changed = rows(0.7, 0.2);
    assert_eq!(predicted(&changed[0]), own, "it sees an iteration of its own");
    assert!(changed[0].prediction_error.is_some_and(|error| error > 0.0));
    assert!((predicted(&changed[1]).iteration_s - 0.45).abs() < 1e-6, "the other two have 0.7 and 0.2 s");
    let served = predicted(&all[3]);
    assert!((served.iteration_s - 0.5 / 3.0).abs() < 1e-6, "{served:?}");
    assert_eq!(served.extrapolated, ["what one worker sends to servers is not counted"]);
}

/// Of one worker, whose iterations took so long, computing.
fn with_iterations_of(mut record: CellRecord, seconds: f64) -> CellRecord {
    let measured = record.runs[0].outcome.as_mut().expect("it ended");
    (measured.iteration_s, measured.compute_s) = (vec![seconds; 4], seconds);
    record
}

/// Passes that all workers make at once, and no assumption about cores, say how slow they are.
#[test]
fn what_company_costs_is_predicted_as_it_was_measured() {
    let of = |workers: usize, pass_s: f64| {
        let mut record = real(workers);
        if let Ok(run) = &mut record.runs[0].outcome {
            run.inputs.pass_s = Some(pass_s);
        }
        record
    };
    let mut study = study_record("f");
    study.machine.cores = 2;
    let predicted = |cells: &[CellRecord]| -> Vec<Predicted> {
        let panels = attached(&study, cells);
        panels[0].groups[1..].iter().map(|group| group.rows[0].predicted.clone().expect("a prediction")).collect()
    };
    let assumed = predicted(&[real(1), real(2), real(4)]);
    let measured = predicted(&[of(1, 0.08), of(2, 0.12), of(4, 0.2)]);
    // One and a half times as slow, and two and a half times; and nothing is assumed.
    for (row, times) in measured.iter().zip([1.5, 2.5]) {
        assert!(row.iteration_s > times * 0.1 && row.iteration_s < times * 0.1 + 0.02, "{times}: {row:?}");
        assert!(row.extrapolated.is_empty(), "{row:?}");
    }
    assert!(assumed[0].iteration_s < 0.12 && !assumed[1].extrapolated.is_empty(), "{assumed:?}");
}

/// What is said of another batch and of more workers is what the curves have at that point: on cores that workers share, they do so
/// there, too.
#[test]
fn sentences_promise_no_more_than_the_curves_show() {
    let methods = ["bsp-a2a", "wfbp-a2a", "mg-wfbp", "bytescheduler-a2a", "ddp"];
    let records: Vec<CellRecord> =
        [1, 4].into_iter().flat_map(|workers| methods.map(|method| trained(workers, method))).collect();
    // Four workers fill two cores twice; six cores are for four workers enough, and not for eight.
    for (cores, change, what, point) in [
        (2, "a local batch of 64, ", "local batch", "64"),
        (6, "8 workers on the same host, whose cores they share, ", "workers on the same host", "8"),
    ] {
        let mut study = study_record("f");
        study.machine.cores = cores;
        let panels = attached(&study, &records);
        let outlook = panels[0].outlook.as_ref().expect("an outlook");
        let told = outlook.reasons.iter().find_map(|reason| reason.strip_prefix(&format!("With {change}")));
        let rest = told.and_then(|told| told.strip_prefix(if cores == 2 { "if it fits in memory, " } else { "" }));
        let rate = rest.and_then(|rest| rest.strip_prefix("it would reach at least ")?.split(' ').next());
        let rate: f64 = rate.and_then(|rate| rate.parse().ok()).unwrap_or_else(|| panic!("{:#?}", outlook.reasons));
        let curve = outlook.curves.iter().find(|curve| curve.what == what).expect("a curve");
        let place = curve.points.iter().position(|name| name == point).expect("a point");
        let best = curve.lines.iter().filter_map(|line| line.samples_per_s[place]).fold(0.0, f64::max);
        assert!(rate <= 1.01 * best && rate >= 0.99 * best, "{change}{rate}, and at best {best}");
    }
}

/// Further machines bring cores of their own; further emulated hosts are on the same machine, and so are further workers of one host.
#[test]
fn workers_share_the_cores_of_their_machine() {
    let profile = paceline_train::load_profile("resnet50@rtx2080ti").expect("it is built in");
    let ground = |hosts: usize, several_machines: bool| Ground {
        cluster: Cluster::of_network(NetworkModel::TEN_GBE, hosts, 2),
        busy: 1.0,
        several_machines,
        together: None,
        doubts: Vec::new(),
    };
    for (hosts, several_machines, times, place) in [
        (2, true, [1.0, 2.0, 2.0, 2.0], "on such hosts"),
        (2, false, [1.0, 2.0, 4.0, 8.0], "on such hosts, which share one machine's cores,"),
        (1, false, [1.0, 2.0, 4.0, 8.0], "on the same host, whose cores they share,"),
    ] {
        let ground = ground(hosts, several_machines);
        for (workers, times) in [1, 2, 4, 8].into_iter().zip(times) {
            let room = ground.room(workers).expect("there are hosts like these");
            assert!(room.cluster.workers() >= workers && room.place == place, "{room:?}");
            let lost_s = ground.crowded(room.cluster, workers, &profile).overhead_s("resnet50");
            let expected_s = (times - 1.0) * profile.iteration_s();
            assert!((lost_s - expected_s).abs() < 1e-9, "{workers} workers {place}: {lost_s} s, not {expected_s} s");
        }
    }
}

/// On cores that compute, what communication takes of backward's time is missing there.
#[test]
fn communication_hides_behind_nothing_that_needs_its_cores() {
    let profile = paceline_train::load_profile("resnet50@rtx2080ti").expect("it is built in");
    let strategy = paceline_strategy::Registry::built_in().parse("schedule=fusion:4MiB,arch=a2a:ring").expect("one");
    let exposed = |threads: Option<usize>| {
        let mut cluster = Cluster::of_network(NetworkModel::TEN_GBE, 1, 4);
        if let Some(threads) = threads {
            cluster.share_cores(threads);
        }
        let job = Job { cluster: &cluster, profile: &profile, strategy: &strategy, workers: 4, local_batch: None };
        let prediction = predict_scheduled(&job, &Schedulers::built_in()).expect("a prediction");
        (prediction.exposed_s, prediction.communication_s)
    };
    let ((free, _), (shared, busy), (of_many, _)) = (exposed(None), exposed(Some(1)), exposed(Some(8)));
    assert!(free < 0.2 * busy, "without sharing most of it hides: {free} s of {busy} s");
    assert!(shared > 0.6 * busy && shared < 1.3 * busy, "{shared} s of {busy} s");
    assert!(of_many > free && of_many < 0.5 * shared, "{of_many} s");
}

/// What the operations of a world do not say stands beside its predictions.
#[test]
fn doubts_are_shown() {
    let mut records = vec![real(1), real(2)];
    if let Ok(run) = &mut records[1].runs[0].outcome {
        run.inputs.communication = Some(CommunicationCost::of_points(vec![(4096, 2e-3), (1 << 21, 1e-3)]));
    }
    let panels = attached(&study_record("f"), &records);
    let row = panels[0].groups[1].rows[0].predicted.as_ref().expect("a prediction");
    assert!(row.extrapolated.iter().any(|doubt| doubt.contains("do not say what a byte takes")), "{row:?}");
}

#[test]
fn what_cannot_be_predicted_says_why() {
    let mut records = vec![real(1), real(2)];
    if let Ok(run) = &mut records[1].runs[0].outcome {
        run.links = None;
    }
    let panels = attached(&study_record("f"), &records);
    assert_eq!(panels[0].groups[1].rows[0].not_predicted.as_deref(), Some("no run says what its links cost"));
}
