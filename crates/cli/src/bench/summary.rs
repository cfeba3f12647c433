//! From runs to what is said about them: throughput, speedup, efficiency, winner or tie. Pure.

mod baseline;
mod counted;

use serde::{Deserialize, Serialize};

use super::cell::{Arm, Cell, Setting};
use super::placement::{Placement, workers_on_cores};
use super::predicted::{Choice, Outlook, Predicted};
use super::processors::{limited_by_processors, remedy};
use super::statistics::{Estimate, c2c, mean, spread};
use super::store::{CellRecord, Occasion, StudyRecord};
use super::verdict::{Verdict, decide};
use paceline_train::{CellRun, Decision, FollowedOperations, Timeline, TuningReport};

pub use baseline::Baseline;
use baseline::{baseline, intensity};
use counted::{by_number, counted, failure, shards, throughputs};
pub use counted::{counts, too_late};

/// One setting: a chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Panel {
    /// What is the same in it.
    pub setting: Setting,
    /// What of its numbers was not real: replayed, emulated, dilated.
    pub labels: Vec<String>,
    /// What speedups refer to.
    pub baseline: Option<Baseline>,
    /// The model's intensity, 3 · multiply-accumulates of forward per sample and parameter.
    pub intensity: Option<f64>,
    /// Parameters of the model.
    pub parameters: usize,
    /// By workers, ascending.
    pub groups: Vec<Group>,
    /// Where a launcher had placed the ranks; None: all were on one machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// What is predicted beyond what was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outlook: Option<Outlook>,
}

impl Panel {
    /// As a heading: model, batch, network.
    pub fn title(&self) -> String {
        self.setting.title(self.placement.as_ref())
    }

    /// What its ranks ran on.
    pub fn place(&self) -> String {
        let real = || self.placement.as_ref().map_or_else(|| "this machine".to_owned(), Placement::place);
        self.setting.network.clone().unwrap_or_else(real)
    }
}

/// The methods that compete at one number of workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// How many.
    pub workers: usize,
    /// What its workers did not have to themselves.
    #[serde(default)]
    pub labels: Vec<String>,
    /// In the order in which they were asked for.
    pub rows: Vec<Row>,
    /// How far two measurements of the same thing lay apart, as a share; None if that was not measured.
    pub noise: Option<f64>,
    /// Which method was measured twice to know that.
    #[serde(default)]
    pub noise_of: Option<String>,
    /// f(N)/(M·I).
    pub c2c: Option<f64>,
    /// Who won.
    pub verdict: Verdict,
    /// And why, in words.
    pub reason: String,
    /// Which method the predictions choose, and what that costs; None where there are no two methods or workers.
    #[serde(default)]
    pub choice: Option<Choice>,
}

/// A method at one number of workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// As it was asked for.
    pub method: String,
    /// With every aspect.
    pub strategy: String,
    /// Shards of a parameter server that serve; of `auto` in the first run, as its decision.
    pub shards: usize,
    /// They were processes on hosts of their own, rather than threads beside workers.
    #[serde(default)]
    pub dedicated_servers: bool,
    /// What the runs gave; None if none was counted.
    pub result: Option<RowResult>,
    /// Why runs gave nothing, or were not counted.
    pub failures: Vec<String>,
    /// When its runs were made, and beside what.
    #[serde(default)]
    pub occasions: Vec<Occasion>,
    /// Samples per second by the number of the run, so that rounds can be compared; None: it was not made, or did not count.
    #[serde(default)]
    pub samples_per_s_of_runs: Vec<Option<f64>>,
    /// What was to be expected, from what was known before its first iteration.
    #[serde(default)]
    pub predicted: Option<Predicted>,
    /// The throughput that was predicted over the one that was measured, less 1.
    #[serde(default)]
    pub prediction_error: Option<f64>,
    /// Why nothing was predicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_predicted: Option<String>,
}

impl Row {
    /// What else is to be said of its runs in this setting: those that gave nothing, how many times others were repeated,
    /// and what to do where the processors have limited them.
    pub fn troubles(&self, setting: &Setting) -> impl Iterator<Item = String> {
        let repeats = self.occasions.iter().map(|occasion| occasion.repeats).sum::<usize>();
        let repeated = (repeats > 0).then(|| match repeats {
            1 => "1 run was repeated, because its processor was late".to_owned(),
            more => format!("{more} runs were repeated, because their processor was late"),
        });
        let remedy = remedy(setting);
        let limited = self.result.as_ref().and_then(RowResult::limited).map(|why| format!("{why}; {remedy}"));
        self.failures.iter().cloned().chain(repeated).chain(limited)
    }
}

/// What the counted runs of a row gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowResult {
    /// Samples per second of all workers together; over the runs.
    pub samples_per_s: Estimate,
    /// Throughput over the baseline's.
    pub speedup: Option<f64>,
    /// Speedup over workers.
    pub efficiency: Option<f64>,
    /// Seconds of an iteration; means of all that follow are over the runs.
    pub iteration_s: f64,
    /// Of them, computation.
    pub compute_s: f64,
    /// Of them, waiting for communication.
    pub exposed_communication_s: f64,
    /// The share of the time that workers waited for communication.
    pub exposed_share: f64,
    /// Bytes that a worker's process sent per iteration.
    pub bytes_per_iteration: f64,
    /// Messages that a worker's process sent per iteration.
    pub messages_per_iteration: f64,
    /// The fingerprint of the executed plan.
    pub plan_hash: String,
    /// Of a replay: how late its sleeps ended, as a share of the computation; it is part of what seems to be exposed.
    #[serde(default)]
    pub late_share: Option<f64>,
    /// Of a replay on one machine: the share of its processors that the workers' processes kept busy while workers waited
    /// for communication; at most 1.
    #[serde(default)]
    pub processors_waiting: Option<f64>,
    /// Of `auto`: what it chose in the first run, and whether that came true.
    #[serde(default)]
    pub decision: Option<Decision>,
    /// What that run had chosen before, and left as iterations took something else.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub abandoned: Vec<Decision>,
    /// Buckets of the plan.
    pub buckets: usize,
    /// Operations per iteration.
    pub operations: usize,
    /// Seconds per tensor that the schedule's decisions took.
    pub scheduling_s_per_tensor: f64,
    /// What carried the data.
    pub transport: String,
    /// Warm-up iterations and measured ones of each run.
    pub iterations: Vec<(usize, usize)>,
    /// What tuning has come to in the last of them, if calls were tuned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning: Option<TuningReport>,
    /// How much of an iteration a policy decided in the last of them, if one was followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub followed: Option<FollowedOperations>,
    /// One iteration of all workers and shards.
    #[serde(skip)]
    pub timeline: Option<Timeline>,
}

impl RowResult {
    /// If the processors, and not the links, have limited it: in words. Such a throughput says nothing of the method, and decides
    /// nothing.
    pub fn limited(&self) -> Option<String> {
        limited_by_processors(self.processors_waiting, self.exposed_share)
    }

    /// Its throughput if none of its communication were exposed: faster links could not make it faster than that.
    pub fn samples_per_s_without_exposed(&self) -> Estimate {
        self.samples_per_s.times(1.0 / (1.0 - self.exposed_share))
    }
}

/// Orders the cells of a study into panels.
pub fn panels_of(study: &StudyRecord, cells: &[CellRecord]) -> Vec<Panel> {
    let room = Room { cores: study.machine.cores, placement: study.placement.as_ref() };
    panels_in(&room, cells)
}

/// Those of cells that were measured on one machine with so many cores.
#[cfg(test)]
pub fn panels(cells: &[CellRecord], cores: usize) -> Vec<Panel> {
    panels_in(&Room { cores, placement: None }, cells)
}

/// Where cells were measured.
struct Room<'a> {
    /// Cores of the machine that started the ranks.
    cores: usize,
    /// Where a launcher had placed them instead.
    placement: Option<&'a Placement>,
}

fn panels_in(room: &Room<'_>, cells: &[CellRecord]) -> Vec<Panel> {
    let mut settings: Vec<&Setting> = Vec::new();
    for record in cells {
        if !settings.contains(&&record.cell.setting) {
            settings.push(&record.cell.setting);
        }
    }
    settings.into_iter().map(|setting| panel(setting, cells, room)).collect()
}

fn panel(setting: &Setting, cells: &[CellRecord], room: &Room<'_>) -> Panel {
    let cells: Vec<&CellRecord> = cells.iter().filter(|record| record.cell.setting == *setting).collect();
    let any = cells.iter().flat_map(|record| counted(record)).next();
    let baseline = baseline(setting, &cells);
    let intensity = any.and_then(|run| intensity(run, setting));
    let mut workers: Vec<usize> =
        cells.iter().filter(|record| record.cell.arm == Arm::Method).map(|record| record.cell.workers).collect();
    workers.sort_unstable();
    workers.dedup();
    let groups = workers.into_iter().map(|workers| {
        let of = |arm| cells.iter().copied().filter(move |one| one.cell.workers == workers && one.cell.arm == arm);
        let rows: Vec<Row> = of(Arm::Method).map(|record| row(record, baseline.as_ref(), room)).collect();
        let twice = of(Arm::Again).find_map(|again| {
            let first = of(Arm::Method).find(|one| one.cell.method == again.cell.method)?;
            Some((spread(&throughputs(first), &throughputs(again))?, again.cell.method.clone()))
        });
        let (noise, noise_of) = twice.unzip();
        let c2c = intensity.map(|intensity| c2c(workers, setting.local_batch, intensity));
        let shared = of(Arm::Method).find_map(|record| oversubscribed(&record.cell, room));
        let (verdict, reason) = match shared.as_deref().filter(|_| setting.computes_on_its_links()) {
            Some(shared) => (Verdict::on_shared_cores(shared, remedy(setting)), String::new()),
            None => decide(&rows, noise, c2c, workers, remedy(setting)),
        };
        let labels = shared.into_iter().collect();
        Group { workers, labels, rows, noise, noise_of, c2c, verdict, reason, choice: None }
    });
    Panel {
        setting: setting.clone(),
        labels: setting.labels().into_iter().chain(room.placement.map(Placement::label)).collect(),
        placement: room.placement.cloned(),
        intensity,
        parameters: any.map_or(0, |measured| measured.parameters),
        groups: groups.collect(),
        baseline,
        outlook: None,
    }
}

/// What must stand beside the numbers of workers that compute on fewer cores than they have threads: their efficiency is
/// bounded by the machine. (A replay sleeps, and says by itself if the processor could not keep up.)
fn oversubscribed(cell: &Cell, room: &Room<'_>) -> Option<String> {
    let Cell { workers, threads, .. } = *cell;
    match room.placement {
        _ if cell.setting.is_replayed() => None,
        Some(placement) => placement.oversubscribed(cell),
        None => (workers * threads > room.cores).then(|| workers_on_cores(workers, room.cores)),
    }
}

fn row(record: &CellRecord, baseline: Option<&Baseline>, room: &Room<'_>) -> Row {
    let cell = &record.cell;
    Row {
        method: cell.method.clone(),
        strategy: cell.strategy.clone(),
        shards: shards(record),
        dedicated_servers: cell.dedicated_servers,
        result: result(record, baseline, room),
        failures: record.runs.iter().filter_map(|run| failure(run, &cell.setting)).collect(),
        occasions: record.runs.iter().map(|run| run.occasion).collect(),
        samples_per_s_of_runs: by_number(record),
        predicted: None,
        prediction_error: None,
        not_predicted: None,
    }
}

fn result(record: &CellRecord, baseline: Option<&Baseline>, room: &Room<'_>) -> Option<RowResult> {
    let samples_per_s = Estimate::of(&throughputs(record))?;
    let runs: Vec<&CellRun> = counted(record).collect();
    let average =
        |value: fn(&CellRun) -> f64| mean(&runs.iter().map(|run| value(run)).collect::<Vec<_>>()).unwrap_or(0.0);
    let first = runs.first()?;
    let speedup = baseline.map(|baseline| samples_per_s.mean / baseline.samples_per_s);
    let (compute_s, exposed_communication_s) =
        (average(|run| run.compute_s), average(|run| run.exposed_communication_s));
    let iteration_s = average(CellRun::mean_iteration_s);
    let late: Vec<f64> = runs.iter().filter_map(|run| Some(run.lateness?.share)).collect();
    let busy: Vec<f64> = runs.iter().filter_map(|run| run.lateness?.processors_busy).collect();
    let on_one_machine = room.placement.is_none();
    // Clocks are read one after the other.
    let of_all = |busy: f64| (busy / room.cores.max(1) as f64).min(1.0);
    Some(RowResult {
        samples_per_s,
        speedup,
        efficiency: speedup.map(|speedup| speedup / record.cell.workers as f64),
        iteration_s,
        compute_s,
        exposed_communication_s,
        exposed_share: if iteration_s > 0.0 { exposed_communication_s / iteration_s } else { 0.0 },
        bytes_per_iteration: average(|run| run.bytes_per_iteration),
        messages_per_iteration: average(|run| run.messages_per_iteration),
        late_share: mean(&late),
        processors_waiting: mean(&busy).map(of_all).filter(|_| on_one_machine),
        plan_hash: first.plan_hash.clone(),
        decision: first.decision.clone(),
        abandoned: first.abandoned.clone(),
        buckets: first.plan.buckets.len(),
        operations: first.plan.operations(),
        scheduling_s_per_tensor: average(|run| run.scheduling_s_per_tensor),
        transport: first.transport.clone(),
        iterations: runs.iter().map(|run| (run.warm_up, run.iteration_s.len())).collect(),
        tuning: runs.iter().rev().find_map(|run| run.tuning.clone()),
        followed: runs.iter().rev().find_map(|run| run.followed),
        timeline: runs.iter().find_map(|run| run.timeline.clone()),
    })
}

#[cfg(test)]
pub mod samples;

#[cfg(test)]
mod tests {
    use super::super::cell::samples::{cell, replayed, setting};
    use super::super::placement::samples::placement;
    use super::super::store::tests::study_record;
    use super::*;
    use paceline_train::Lateness;

    #[test]
    fn panels_say_throughput_speedup_and_efficiency() {
        let panels = panels(&samples::study(), 2);
        assert_eq!(panels.len(), 2);
        let here = &panels[0];
        assert_eq!(here.groups.iter().map(|group| group.workers).collect::<Vec<_>>(), [1, 2]);
        let baseline = here.baseline.as_ref().expect("one worker was measured");
        let alone = [0.1, 0.102, 0.101].map(|seconds| 32.0 / seconds).iter().sum::<f64>() / 3.0;
        assert!((baseline.samples_per_s - alone).abs() < 1e-9, "{baseline:?}");
        let wfbp = here.groups[1].rows[1].result.as_ref().expect("it ran");
        let expected = (2.0 * 64.0 / 0.105 + 64.0 / 0.106) / 3.0;
        assert!((wfbp.samples_per_s.mean - expected).abs() < 1e-9);
        assert_eq!(wfbp.speedup, Some(wfbp.samples_per_s.mean / baseline.samples_per_s));
        assert_eq!(wfbp.efficiency, wfbp.speedup.map(|speedup| speedup / 2.0));
        assert!((wfbp.exposed_share - 0.25).abs() < 1e-12);
        let there = &panels[1];
        assert_eq!(there.baseline.as_ref().map(|baseline| baseline.samples_per_s), Some(253.1));
        assert_eq!(there.labels, ["replayed: rtx2080ti", "emulated: 10GbE"]);
        assert!((there.intensity.expect("the macs are known") - 480.0).abs() < 0.1);
    }

    #[test]
    fn failed_runs_and_overruns_are_named_and_not_counted() {
        let panels = panels(&samples::study(), 2);
        let killed = &panels[0].groups[1].rows[2];
        assert_eq!(killed.failures, ["run 3: rank 1 was killed by SIGKILL"]);
        assert_eq!(killed.result.as_ref().map(|result| result.samples_per_s.runs), Some(2));
        let counts = |row: &Row| row.samples_per_s_of_runs.iter().map(Option::is_some).collect::<Vec<_>>();
        assert_eq!((counts(killed), counts(&panels[1].groups[0].rows[1])[1]), (vec![true, true, false], false));
        let late = &panels[1].groups[0].rows[1];
        assert_eq!(
            late.failures,
            ["run 2: not counted: the processor was late by 12 % of the replayed computation; raise --dilate"]
        );
        assert_eq!(late.result.as_ref().map(|result| result.samples_per_s.runs), Some(3));
    }

    #[test]
    fn communication_that_processors_have_limited_says_so() {
        let row = |busy: f64, cores: usize| -> Row {
            let mut cells = samples::study();
            for run in &mut cells[7].runs {
                let Ok(run) = &mut run.outcome else { unreachable!() };
                run.lateness = Some(Lateness { processors_busy: Some(busy), ..Lateness::default() });
            }
            panels(&cells, cores)[1].groups[0].rows[0].clone()
        };
        let there = replayed("resnet50", "10GbE", 253.1);
        let troubles = |busy: f64, cores: usize| -> Vec<String> { row(busy, cores).troubles(&there).collect() };
        let limited = troubles(1.92, 2);
        assert!(
            matches!(&limited[..], [one] if one.contains("96 % of the processors") && one.contains("--dilate")),
            "{limited:?}"
        );
        assert!(troubles(1.92, 4).is_empty() && troubles(1.6, 2).is_empty());
        let share = |busy, cores| row(busy, cores).result.and_then(|result| result.processors_waiting);
        assert_eq!(
            (share(1.5, 2), share(2.02, 2)),
            (Some(0.75), Some(1.0)),
            "of the processors, and never more than all"
        );
    }

    #[test]
    fn what_shares_cores_says_so() {
        let labels = |cores| -> Vec<Vec<String>> {
            panels(&samples::study(), cores)[0].groups.iter().map(|group| group.labels.clone()).collect()
        };
        assert_eq!(labels(1), [vec![], vec!["2 workers on 1 core".to_owned()]]);
        assert!(labels(2).concat().is_empty());
        // Replays sleep.
        assert!(panels(&samples::study(), 1)[1].groups[0].labels.is_empty());
    }

    /// Nothing says whether a core was late for the links or for the computation.
    #[test]
    fn what_computes_on_the_cores_that_carry_its_links_says_so_and_wins_only_with_cores_enough() {
        let here = Setting { network: Some("10GbE".to_owned()), workers_per_host: Some(1), ..setting("cnn") };
        let again = Cell { arm: Arm::Again, ..cell(&here, "bsp-a2a", 4) };
        let cells = [
            samples::record(cell(&here, "bsp-a2a", 4), &[0.1, 0.1001, 0.0999]),
            samples::record(cell(&here, "wfbp-a2a", 4), &[0.05, 0.0501, 0.0499]),
            samples::record(again, &[0.1, 0.1001, 0.0999]),
        ];
        let on = |cores| panels(&cells, cores).swap_remove(0);
        assert_eq!(on(4).labels, ["emulated: 10GbE", "computed on the cores that carry the links"]);
        let [enough, few] = [4, 2].map(|cores| on(cores).groups[0].verdict.headline());
        assert!(enough.starts_with("wfbp-a2a wins"), "{enough}");
        assert!(few.starts_with("undecided: 4 workers on 2 cores compute, and carry the links"), "{few}");
        assert!(few.contains("--compute replay") && on(2).is_crowded(&on(2).groups[0]), "{few}");
        assert!(!on(4).is_crowded(&on(4).groups[0]));
    }

    /// What rank 0's machine has says nothing about a launcher's hosts.
    #[test]
    fn a_study_on_hosts_names_them_and_counts_their_cores() {
        let here = setting("cnn");
        let cells = [samples::record(cell(&here, "bsp-a2a", 8), &[0.1, 0.1, 0.1])];
        let on = |placement| {
            let mut study = study_record("f");
            (study.machine.cores, study.placement) = (1, Some(placement));
            panels_of(&study, &cells).swap_remove(0)
        };
        let two = on(placement("2x4", &[4, 4]));
        assert!(two.groups[0].labels.is_empty(), "{two:?}");
        assert_eq!(two.title(), "cnn, local batch 32, links of 2 hosts");
        assert_eq!(two.place(), "2 hosts");
        assert_eq!(two.labels, ["srun on 2 hosts: a (4 ranks), b (4 ranks)"]);
        assert_eq!(on(placement("2x4", &[4, 3])).groups[0].labels, ["4 workers on 3 cores of b"]);
        let one = &panels(&cells, 8)[0];
        assert_eq!((one.title(), one.place()), (here.to_string(), "this machine".to_owned()));
    }

    /// The multiply-accumulates of a real model are known, too, if its inputs have the usual size.
    #[test]
    fn models_of_the_house_have_an_intensity() {
        let mlp = CellRun {
            forward_macs_per_sample: None,
            model: "mlp".into(),
            parameters: 101_770,
            ..samples::cell_run(1.0)
        };
        let setting = setting("mlp");
        assert!((intensity(&mlp, &setting).expect("it is known") - 2.996).abs() < 1e-3);
        let data = Some("images:photographs".to_owned());
        assert_eq!(intensity(&mlp, &Setting { data, ..setting }), None);
    }

    /// Compressing takes time, also where nobody is there to talk to.
    #[test]
    fn speedups_do_not_refer_to_a_worker_that_compresses() {
        let mut cells = samples::study();
        cells[0].cell.strategy = "sync=bsp,compress=sign,schedule=wfbp".to_owned();
        let baseline = panels(&cells, 2)[0].baseline.clone().expect("one worker was measured");
        assert_eq!(baseline.source, "one worker here (wfbp-a2a)");
    }

    #[test]
    fn the_second_arm_of_a_method_gives_the_noise_and_competes_with_nobody() {
        let panels = panels(&samples::study(), 2);
        let group = &panels[0].groups[1];
        assert_eq!(group.rows.len(), 3);
        let noise = group.noise.expect("it was measured twice");
        assert!(noise > 0.0 && noise < 0.03, "{noise}");
        assert_eq!(group.noise_of.as_deref(), Some("bsp-a2a"));
    }
}
