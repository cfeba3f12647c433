//! Studies that were never run, for tests.

use super::super::cell::samples::{cell, replayed, setting};
use super::super::store::RunRecord;
use super::*;
use paceline_plan::Plan;
use paceline_train::{FormulaInputs, Lateness};

/// What a run of one worker with these seconds in each iteration gives; a quarter is exposed communication.
pub fn cell_run(iteration_s: f64) -> CellRun {
    CellRun {
        model: "cnn".to_owned(),
        parameters: 25_557_032,
        tensors: 161,
        forward_macs_per_sample: Some(4_089_000_000),
        replayed: None,
        strategy: "sync=bsp".to_owned(),
        plan: Plan {
            version: 1,
            strategy: "sync=bsp".to_owned(),
            buckets: Vec::new(),
            shards: 0,
            credit_bytes: None,
            forward_overlap: false,
            server_priority_only: false,
        },
        plan_hash: "00000000deadbeef".to_owned(),
        workers: 1,
        shards: 0,
        local_batch: 32,
        dilate: 1.0,
        transport: "shm".to_owned(),
        links: None,
        warm_up: 1,
        iteration_s: vec![iteration_s; 4],
        confident: true,
        compute_s: 0.75 * iteration_s,
        exposed_communication_s: 0.25 * iteration_s,
        bytes_per_iteration: 1e6,
        messages_per_iteration: 10.0,
        scheduling_s_per_tensor: 1e-6,
        inputs: FormulaInputs::default(),
        lateness: None,
        decision: None,
        abandoned: Vec::new(),
        timeline: None,
        tuning: None,
        followed: None,
    }
}

/// A cell with a run for each of these iteration times.
pub fn record(cell: Cell, iterations_s: &[f64]) -> CellRecord {
    let run = |(seconds, number): (&f64, usize)| {
        let (workers, local_batch) = (cell.workers, cell.setting.local_batch);
        let outcome = Ok(CellRun { workers, local_batch, ..cell_run(*seconds) });
        RunRecord { number, outcome, occasion: Occasion::default() }
    };
    let runs = iterations_s.iter().zip(1..).map(run).collect();
    CellRecord { cell, runs }
}

/// A study with a real and a replayed panel: clear winners, a tie, a failed cell, an overrun.
pub fn study() -> Vec<CellRecord> {
    let (here, box_of_hosts) = (setting("cnn"), replayed("resnet50", "10GbE", 253.1));
    let again = |cell: Cell| Cell { arm: Arm::Again, ..cell };
    let mut records = vec![
        record(cell(&here, "bsp-a2a", 1), &[0.1, 0.102, 0.101]),
        record(cell(&here, "wfbp-a2a", 1), &[0.101, 0.1, 0.1]),
        record(again(cell(&here, "bsp-a2a", 1)), &[0.1, 0.101, 0.1]),
        record(cell(&here, "bsp-a2a", 2), &[0.12, 0.121, 0.12]),
        record(cell(&here, "wfbp-a2a", 2), &[0.105, 0.106, 0.105]),
        record(cell(&here, "wfbp-ps", 2), &[0.15, 0.151]),
        record(again(cell(&here, "bsp-a2a", 2)), &[0.12, 0.122, 0.121]),
        record(cell(&box_of_hosts, "bsp-a2a", 8), &[0.45, 0.46, 0.452]),
        record(cell(&box_of_hosts, "bsp-ps", 8), &[0.5, 0.51, 0.505, 0.502]),
        record(cell(&box_of_hosts, "mg-wfbp", 8), &[0.3, 0.301, 0.3]),
        record(cell(&box_of_hosts, "bytescheduler-ps", 8), &[0.27, 0.268, 0.269]),
        record(again(cell(&box_of_hosts, "bsp-a2a", 8)), &[0.451, 0.455, 0.45]),
    ];
    let outcome = Err("rank 1 was killed by SIGKILL".to_owned());
    records[5].runs.push(RunRecord { number: 3, outcome, occasion: Occasion::default() });
    if let Ok(measured) = &mut records[8].runs[1].outcome {
        measured.lateness = Some(Lateness { share: 0.12, overrun: true, processors_busy: None });
    }
    records
}
