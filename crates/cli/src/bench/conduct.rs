//! Runs a study: world after world, interleaved, each result kept as soon as it is there.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::budget::{Effort, Left, Pace, Protocol, duration, effort, is_recorded};
use super::cell::Cell;
use super::judge::WorldEnd;
use super::rank::WorldSpec;
use super::store::{Occasion, RunRecord, Store, StudyId};
use super::study::{PlannedCell, Study};
use super::summary::too_late;
use crate::date::now;
use crate::failure::Failure;
use paceline_train::{CellRun, RECORDED_ITERATIONS};

/// Runs worlds.
pub trait Worlds {
    /// Runs one to its end.
    ///
    /// # Errors
    /// No world can be run at all.
    fn run(&mut self, spec: &WorldSpec, deadline: Duration) -> Result<WorldEnd, Failure>;
}

/// Is told what goes on.
pub trait Watcher {
    /// A run begins; about so many seconds are left for the study.
    fn begins(&mut self, cell: &Cell, effort: &Effort, left_s: f64);
    /// A run has ended, or was there already.
    fn ended(&mut self, cell: &Cell, run: Option<&RunRecord>);
}

/// How a study ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StudyEnd {
    /// All of it was run; so many runs failed.
    Complete {
        /// Runs that gave nothing.
        failed: usize,
    },
    /// A signal has ended it.
    Interrupted(Signal),
}

/// A world that takes so many times its estimate, and at least this long, hangs.
const PATIENCE: f64 = 10.0;
const PATIENCE_MIN: Duration = Duration::from_secs(120);

/// Conducts the study.
///
/// # Errors
/// A run could not be kept, or no world can be run.
pub fn conduct(
    study: &Study,
    store: &Store,
    id: StudyId,
    worlds: &mut dyn Worlds,
    watcher: &mut dyn Watcher,
) -> Result<StudyEnd, Failure> {
    let mut cells: Vec<(usize, &PlannedCell, Pace)> = Vec::new();
    for (panel, plan) in study.panels.iter().enumerate() {
        cells.extend(plan.cells.iter().map(|planned| (panel, planned, planned.pace)));
    }
    let total = cells.len() * study.protocol.runs();
    let (begun, mut failed, mut done, mut skipped) = (Instant::now(), 0, 0, 0);
    let mut least_s = study.protocol.least_of_all_s(cells.iter().map(|(.., pace)| pace));
    for panel in 0..study.panels.len() {
        for number in 1..=study.protocol.runs() {
            for (_, planned, pace) in cells.iter_mut().filter(|(of, ..)| *of == panel) {
                let (cell, believed_s) = (&planned.cell, study.protocol.least_s(pace, number));
                if store.has(id, cell, number)? {
                    skipped += 1;
                    least_s -= believed_s;
                    watcher.ended(cell, None);
                    continue;
                }
                let left_s = time_left(&study.protocol, begun.elapsed(), total, skipped);
                let expected = pace.of_run(number);
                let left = Left { seconds: left_s, least_s, runs: total - skipped - done };
                let effort = effort(&study.protocol, &expected, left);
                watcher.begins(cell, &effort, left_s);
                let spec = WorldSpec { cell: cell.clone(), effort, timeline: is_recorded(number) };
                let estimate = Duration::from_secs_f64(PATIENCE * duration(&expected, &effort));
                let (started, load) = (Instant::now(), load_average());
                let outcome = match worlds.run(&spec, estimate.max(PATIENCE_MIN))? {
                    WorldEnd::Interrupted(signal) => return Ok(StudyEnd::Interrupted(signal)),
                    WorldEnd::Failed(why) => Err(why),
                    WorldEnd::Done(words) => super::rank::result(&words),
                };
                let was = *pace;
                if let Ok(measured) = &outcome {
                    *pace = learned(measured, started.elapsed(), cell);
                }
                // What does not count is as good as not measured, and is measured again by --resume.
                let outcome = outcome.and_then(|measured| match too_late(&measured) {
                    Some(why) => Err(why),
                    None => Ok(measured),
                });
                // Its runs that are still to come take what this one took.
                let to_come = (study.protocol.runs() - number) as f64;
                let later_s = |pace: &Pace| study.protocol.least_s(pace, number + 1);
                least_s += to_come * (later_s(pace) - later_s(&was)) - believed_s;
                failed += usize::from(outcome.is_err());
                done += 1;
                let run = RunRecord { number, outcome, occasion: Occasion { ended: now(), load } };
                store.keep(id, cell, &run)?;
                watcher.ended(cell, Some(&run));
            }
        }
    }
    Ok(StudyEnd::Complete { failed })
}

/// Of the last minute.
fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// Seconds that are left for the runs that are still to come: those that another call has finished have used up theirs.
fn time_left(protocol: &Protocol, elapsed: Duration, total: usize, skipped: usize) -> f64 {
    match protocol {
        Protocol::Timed { seconds, .. } => {
            seconds * (total - skipped) as f64 / total.max(1) as f64 - elapsed.as_secs_f64()
        }
        Protocol::Fixed { .. } => f64::INFINITY,
    }
}

/// What a run says about the next one of the same cell. Its times are those of the undilated machine.
fn learned(measured: &CellRun, took: Duration, cell: &Cell) -> Pace {
    let iteration_s = measured.mean_iteration_s() * cell.setting.dilate;
    let recorded = if measured.timeline.is_some() { RECORDED_ITERATIONS } else { 0 };
    let iterated = iteration_s * (measured.warm_up + measured.iteration_s.len() + recorded) as f64;
    Pace { iteration_s, overhead_s: (took.as_secs_f64() - iterated).max(0.0) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::PathBuf;

    use super::super::cell::samples::{cell, setting};
    use super::super::rank::announce;
    use super::super::store::tests::study_record;
    use super::super::study::PanelPlan;
    use super::super::summary::samples::cell_run;
    use super::*;
    use paceline_train::Lateness;

    /// Worlds that only pretend; some fail, and one is interrupted.
    #[derive(Default)]
    struct Pretended {
        ran: Vec<(String, usize)>,
        /// Whose processor does not keep up.
        late: Option<&'static str>,
        failing: HashMap<String, &'static str>,
        interrupt_at: Option<usize>,
    }

    impl Worlds for Pretended {
        fn run(&mut self, spec: &WorldSpec, _deadline: Duration) -> Result<WorldEnd, Failure> {
            let method = &spec.cell.method;
            if self.interrupt_at == Some(self.ran.len()) {
                return Ok(WorldEnd::Interrupted(Signal::INT));
            }
            self.ran.push((method.clone(), spec.cell.workers));
            if let Some(why) = self.failing.get(method) {
                return Ok(WorldEnd::Failed((*why).to_owned()));
            }
            let lateness = (self.late == Some(method)).then_some(Lateness { share: 0.2, overrun: true });
            let measured = CellRun { lateness, ..cell_run(0.1) };
            Ok(WorldEnd::Done(announce(&measured).expect("it has a form")))
        }
    }

    struct Nobody;

    impl Watcher for Nobody {
        fn begins(&mut self, _: &Cell, _: &Effort, _: f64) {}
        fn ended(&mut self, _: &Cell, _: Option<&RunRecord>) {}
    }

    fn study() -> Study {
        let setting = setting("cnn");
        let pace = Pace { iteration_s: 0.1, overhead_s: 0.1 };
        let cells = ["bsp-a2a", "wfbp-a2a", "ddp"].map(|method| PlannedCell { cell: cell(&setting, method, 2), pace });
        let protocol = Protocol::Fixed { warm_up: 1, iterations: 3, runs: 2 };
        Study { protocol, panels: vec![PanelPlan { setting, cells: cells.to_vec() }], placement: None }
    }

    struct Scratch(PathBuf);

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn store(name: &str) -> (Scratch, Store, StudyId) {
        let path = std::env::temp_dir().join(format!("paceline-conduct-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory for the test");
        let store = Store::open(&path.join("runs.db")).expect("it is new");
        let id = store.begin(&study_record("f")).expect("begun");
        (Scratch(path), store, id)
    }

    fn methods(ran: &[(String, usize)]) -> Vec<&str> {
        ran.iter().map(|(method, _)| method.as_str()).collect()
    }

    #[test]
    fn runs_of_all_methods_take_turns() {
        let (_scratch, store, id) = store("turns");
        let mut worlds = Pretended::default();
        let end = conduct(&study(), &store, id, &mut worlds, &mut Nobody);
        assert!(matches!(end, Ok(StudyEnd::Complete { failed: 0 })));
        assert_eq!(methods(&worlds.ran), ["bsp-a2a", "wfbp-a2a", "ddp", "bsp-a2a", "wfbp-a2a", "ddp"]);
    }

    #[test]
    fn a_failed_world_fails_its_cell_and_nothing_else() {
        let (_scratch, store, id) = store("failed");
        let failing = HashMap::from([("wfbp-a2a".to_owned(), "rank 1 (pid 7) was killed by SIGKILL")]);
        let mut worlds = Pretended { failing, ..Pretended::default() };
        let end = conduct(&study(), &store, id, &mut worlds, &mut Nobody);
        assert!(matches!(end, Ok(StudyEnd::Complete { failed: 2 })));
        assert_eq!(worlds.ran.len(), 6);
        let cells = store.cells(id).expect("read");
        assert!(cells.iter().all(|one| one.runs.len() == 2));
        assert_eq!(cells[1].runs[0].outcome, Err("rank 1 (pid 7) was killed by SIGKILL".to_owned()));
    }

    #[test]
    fn a_run_whose_processor_was_late_has_failed_and_is_measured_again() {
        let (_scratch, store, id) = store("late");
        let mut worlds = Pretended { late: Some("ddp"), ..Pretended::default() };
        let end = conduct(&study(), &store, id, &mut worlds, &mut Nobody);
        assert!(matches!(end, Ok(StudyEnd::Complete { failed: 2 })));
        let runs = store.cells(id).expect("read").swap_remove(2).runs;
        assert!(
            matches!(&runs[0].outcome, Err(why) if why.contains("late by 20 %") && why.contains("--dilate")),
            "{runs:?}"
        );
        assert!(runs[0].occasion.ended > 1_700_000_000 && runs[0].occasion.load.is_some());
        let mut worlds = Pretended::default();
        let end = conduct(&study(), &store, id, &mut worlds, &mut Nobody);
        assert!(matches!(end, Ok(StudyEnd::Complete { failed: 0 })));
        assert_eq!(methods(&worlds.ran), ["ddp", "ddp"]);
    }

    #[test]
    fn what_was_finished_before_an_interruption_is_not_run_again() {
        let (_scratch, store, id) = store("resumed");
        let mut worlds = Pretended { interrupt_at: Some(4), ..Pretended::default() };
        let end = conduct(&study(), &store, id, &mut worlds, &mut Nobody);
        assert!(matches!(end, Ok(StudyEnd::Interrupted(Signal::INT))));
        let mut worlds = Pretended::default();
        let end = conduct(&study(), &store, id, &mut worlds, &mut Nobody);
        assert!(matches!(end, Ok(StudyEnd::Complete { failed: 0 })));
        assert_eq!(methods(&worlds.ran), ["wfbp-a2a", "ddp"]);
    }
}
