//! Cells of models that are really trained.

use paceline_train::{CellRun, FormulaInputs, Interference};

use super::super::super::super::store::{Occasion, RunRecord};
use super::super::super::super::summary::{Row, samples::cell_run};
use super::*;

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

/// What passes and all-reduces cost each other, and no assumption about cores, says how much of communication hides.
#[test]
fn what_hides_is_predicted_as_it_was_measured() {
    let of = |interference: Option<Interference>| {
        let mut cells = vec![trained(1, "wfbp-a2a"), trained(2, "wfbp-a2a")];
        if let Ok(run) = &mut cells[1].runs[0].outcome {
            run.inputs.interference = interference;
        }
        let mut study = study_record("f");
        study.machine.cores = 2;
        let panels = attached(&study, &cells);
        panels[0].groups[1].rows[0].predicted.clone().expect("a prediction").iteration_s
    };
    let measured = |computation: f64, communication: f64| {
        of(Some(Interference { bytes: 1 << 21, call_s: 4e-3, computation, communication }))
    };
    let (free, slower, longer, assumed) = (measured(0.0, 0.0), measured(1.0, 0.0), measured(0.0, 1.0), of(None));
    // What is ready first hides, and takes 2 ms of the 30 after that; what is ready last does not.
    assert!(slower > free + 0.5e-3 && slower < free + 3e-3, "{free} s, {slower} s where computation is half as fast");
    assert!(
        longer >= free - 1e-9 && longer < slower,
        "{free} s, {longer} s where communication is, which hides all the same"
    );
    assert!(assumed > free && assumed < slower + 2e-3, "{assumed} s with a core in common");
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
