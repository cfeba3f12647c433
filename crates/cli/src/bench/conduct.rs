//! Runs a study: world after world, interleaved, each result kept as soon as it is there.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::again;
use super::belief::Belief;
use super::budget::{Effort, Left, Pace, Protocol, effort, is_recorded};
use super::cell::{Arm, Cell};
use super::judge::WorldEnd;
use super::rank::WorldSpec;
use super::store::{Occasion, RunRecord, Store, StudyId};
use super::study::{PlannedCell, Study};
use super::summary::too_late;
use super::tuned;
use crate::date::now;
use crate::failure::Failure;
use crate::load::{load_averages, load_of_last_minute};
use paceline_train::{CellRun, RECORDED_ITERATIONS};
use paceline_tune::learner::Lesson;

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
    /// A run has ended and does not count, for this reason; it is made again.
    fn repeats(&mut self, cell: &Cell, number: usize, why: &str);
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

/// A run whose processor was late is made again at once, this often at most: what held it up is often over by then.
const REPEATS_MAX: usize = 2;

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
    let all = || study.panels.iter().flat_map(|panel| &panel.cells);
    let protocol = &study.protocol;
    let total = all().count() * protocol.runs();
    let least_s = protocol.least_of_all_s(all().map(|planned| &planned.pace));
    let (begun, mut failed) = (Instant::now(), 0);
    let mut conductor = Conductor { protocol, worlds, watcher, begun, total, done: 0, skipped: 0, least_s };
    for panel in &study.panels {
        let mut cells = panel.cells.clone();
        let mut beliefs: Vec<Belief> = cells.iter().map(|planned| Belief::new(planned.pace)).collect();
        for number in 1..=protocol.runs() {
            for index in 0..cells.len() {
                if number == 1 && cells[index].cell.arm == Arm::Again {
                    let chosen = again::chosen(store, id, &cells[index], &cells)?;
                    conductor.exchange(&mut cells[index], chosen);
                    beliefs[index] = Belief::new(cells[index].pace);
                }
                let (PlannedCell { cell, pace }, belief) = (&mut cells[index], &mut beliefs[index]);
                if store.has(id, cell, number)? {
                    conductor.skip(cell, &belief.pace, number);
                    continue;
                }
                let placement = study.placement.as_ref();
                let lessons = tuned::lessons(store, cell, placement);
                let mut run = match conductor.measure(cell, belief, number, &lessons)? {
                    Made::Run(run) => run,
                    Made::Interrupted(signal) => return Ok(StudyEnd::Interrupted(signal)),
                };
                *pace = belief.pace;
                failed += usize::from(run.outcome.is_err());
                tuned::keep(store, cell, placement, &mut run);
                store.keep(id, cell, &run)?;
                conductor.watcher.ended(cell, Some(&run));
            }
        }
    }
    Ok(StudyEnd::Complete { failed })
}

/// What keeps count of runs and time.
struct Conductor<'a> {
    protocol: &'a Protocol,
    worlds: &'a mut dyn Worlds,
    watcher: &'a mut dyn Watcher,
    begun: Instant,
    /// Runs of the study, those of them that this call has made, and those that it has found.
    total: usize,
    done: usize,
    skipped: usize,
    /// Seconds that the runs still to come take in any case.
    least_s: f64,
}

/// What became of one.
enum Made<T> {
    Run(T),
    Interrupted(Signal),
}

impl Conductor<'_> {
    /// Another cell is measured in the place of one of which no run was made.
    fn exchange(&mut self, place: &mut PlannedCell, other: PlannedCell) {
        let least_s = |planned: &PlannedCell| self.protocol.least_of_all_s([&planned.pace]);
        self.least_s += least_s(&other) - least_s(place);
        *place = other;
    }

    /// A run that another call has made.
    fn skip(&mut self, cell: &Cell, pace: &Pace, number: usize) {
        self.skipped += 1;
        self.least_s -= self.protocol.least_s(pace, number);
        self.watcher.ended(cell, None);
    }

    /// Makes a run; if its processor was late, again, as long as there is time for all that is still to come.
    fn measure(
        &mut self,
        cell: &Cell,
        belief: &mut Belief,
        number: usize,
        lessons: &[Lesson],
    ) -> Result<Made<RunRecord>, Failure> {
        let mut repeats = 0;
        loop {
            let load = load_of_last_minute(&load_averages());
            let outcome = match self.attempt(cell, belief, number, lessons)? {
                Made::Run(outcome) => outcome,
                Made::Interrupted(signal) => return Ok(Made::Interrupted(signal)),
            };
            let late = outcome.as_ref().ok().and_then(|run| too_late(run, &cell.setting));
            let left = self.left();
            if let Some(why) = late.as_ref().filter(|_| repeats < REPEATS_MAX && left.seconds >= left.least_s) {
                repeats += 1;
                self.watcher.repeats(cell, number, why);
                continue;
            }
            self.least_s -= self.protocol.least_s(&belief.pace, number);
            self.done += 1;
            // What does not count is as good as not measured, and is measured again by --resume.
            let outcome = late.map_or(outcome, Err);
            return Ok(Made::Run(RunRecord { number, outcome, occasion: Occasion { ended: now(), load, repeats } }));
        }
    }

    /// Runs a world of the cell once, and learns from it how long another takes.
    fn attempt(
        &mut self,
        cell: &Cell,
        belief: &mut Belief,
        number: usize,
        lessons: &[Lesson],
    ) -> Result<Made<Result<CellRun, String>>, Failure> {
        let (expected, left) = (belief.pace.of_run(number), self.left());
        let effort = effort(self.protocol, &expected, left);
        self.watcher.begins(cell, &effort, left.seconds);
        let timeline = is_recorded(number);
        let spec = WorldSpec { cell: cell.clone(), effort, timeline, lessons: lessons.to_vec() };
        let (limit, started) = (belief.limit(&effort, number), Instant::now());
        let outcome = match self.worlds.run(&spec, limit)? {
            WorldEnd::Interrupted(signal) => return Ok(Made::Interrupted(signal)),
            WorldEnd::Failed(why) => Err(why),
            WorldEnd::TimedOut(why) => {
                let slower = belief.after_time_out(&effort, number, limit);
                self.learn(belief, slower, number);
                Err(why)
            }
            WorldEnd::Done(words) => super::rank::result(&words),
        };
        if let Ok(measured) = &outcome {
            self.learn(belief, Belief::new(learned(measured, started.elapsed(), cell)), number);
        }
        Ok(Made::Run(outcome))
    }

    /// Run `number`, if it is repeated, and the cell's later ones take what is known now.
    fn learn(&mut self, belief: &mut Belief, new: Belief, number: usize) {
        let was = std::mem::replace(belief, new);
        let to_come = (self.protocol.runs() - number) as f64;
        let of = |pace: &Pace| self.protocol.least_s(pace, number) + to_come * self.protocol.least_s(pace, number + 1);
        self.least_s += of(&belief.pace) - of(&was.pace);
    }

    fn left(&self) -> Left {
        let seconds = time_left(self.protocol, self.begun.elapsed(), self.total, self.skipped);
        Left { seconds, least_s: self.least_s, runs: self.total - self.skipped - self.done }
    }
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
    let recorded = recorded_iterations(measured.timeline.is_some());
    let iterated = iteration_s * (measured.warm_up + measured.iteration_s.len() + recorded) as f64;
    Pace { iteration_s, overhead_s: (took.as_secs_f64() - iterated).max(0.0) }
}

/// Those after the measured ones, for the timeline.
pub fn recorded_iterations(timeline: bool) -> usize {
    if timeline { RECORDED_ITERATIONS } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::PathBuf;

    use super::super::belief::{PATIENCE_AGAIN, PATIENCE_MIN};
    use super::super::cell::TuneSettings;
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
        /// Whose processor does not keep up, in so many worlds.
        late: Option<(&'static str, usize)>,
        /// Whose iterations take so many seconds, rather than 0.1.
        paces: HashMap<&'static str, f64>,
        failing: HashMap<String, &'static str>,
        /// Whose worlds would take so long.
        slow: Option<(&'static str, Duration)>,
        /// How long theirs might take.
        limits: Vec<Duration>,
        interrupt_at: Option<usize>,
    }

    impl Worlds for Pretended {
        fn run(&mut self, spec: &WorldSpec, limit: Duration) -> Result<WorldEnd, Failure> {
            let method = &spec.cell.method;
            if self.interrupt_at == Some(self.ran.len()) {
                return Ok(WorldEnd::Interrupted(Signal::INT));
            }
            self.ran.push((method.clone(), spec.cell.workers));
            if let Some(why) = self.failing.get(method) {
                return Ok(WorldEnd::Failed((*why).to_owned()));
            }
            if let Some((_, takes)) = self.slow.filter(|(slow, _)| slow == method) {
                self.limits.push(limit);
                if takes > limit {
                    return Ok(WorldEnd::TimedOut("not done in time".to_owned()));
                }
            }
            let late = self.late.as_mut().filter(|(late, worlds)| late == method && *worlds > 0);
            let lateness = late.map(|(_, worlds)| {
                *worlds -= 1;
                Lateness { share: 0.2, overrun: true, processors_busy: None }
            });
            let measured = CellRun { lateness, ..cell_run(self.paces.get(&**method).copied().unwrap_or(0.1)) };
            Ok(WorldEnd::Done(announce(&measured).expect("it has a form")))
        }
    }

    struct Nobody;

    impl Watcher for Nobody {
        fn begins(&mut self, _: &Cell, _: &Effort, _: f64) {}
        fn repeats(&mut self, _: &Cell, _: usize, _: &str) {}
        fn ended(&mut self, _: &Cell, _: Option<&RunRecord>) {}
    }

    fn study() -> Study {
        let setting = setting("cnn");
        let pace = Pace { iteration_s: 0.1, overhead_s: 0.1 };
        let cells = ["bsp-a2a", "wfbp-a2a", "ddp"].map(|method| PlannedCell { cell: cell(&setting, method, 2), pace });
        let protocol = Protocol::Fixed { warm_up: 1, iterations: 3, runs: 2 };
        let panel = PanelPlan { setting, cells: cells.to_vec(), slowed: None };
        Study { protocol, panels: vec![panel], placement: None, spared: Vec::new(), fixed: Vec::new() }
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

    /// The planned order says `bsp-a2a`; the first round, and nothing later, says which it is.
    #[test]
    fn the_method_that_is_fastest_in_the_first_round_is_measured_again() {
        let (_scratch, store, id) = store("again");
        let mut study = study();
        let planned = study.panels[0].cells[0].clone();
        let again = PlannedCell { cell: Cell { arm: Arm::Again, ..planned.cell.clone() }, ..planned };
        let tuned = tuned::tuned(&study.panels[0].cells[2], TuneSettings::default());
        study.panels[0].cells.extend([tuned, again]);
        // The first call ends within the first round, before anybody is measured again; the second one in the round after it.
        let paces = HashMap::from([("wfbp-a2a", 0.05), ("ddp", 0.08), ("ddp+tune", 0.02)]);
        let mut worlds = Pretended { interrupt_at: Some(4), paces, ..Pretended::default() };
        assert!(matches!(conduct(&study, &store, id, &mut worlds, &mut Nobody), Ok(StudyEnd::Interrupted(_))));
        assert_eq!(methods(&worlds.ran), ["bsp-a2a", "wfbp-a2a", "ddp", "ddp+tune"]);
        let mut worlds = Pretended { interrupt_at: Some(2), ..Pretended::default() };
        assert!(matches!(conduct(&study, &store, id, &mut worlds, &mut Nobody), Ok(StudyEnd::Interrupted(_))));
        assert_eq!(methods(&worlds.ran), ["wfbp-a2a", "bsp-a2a"]);
        let mut worlds = Pretended { paces: HashMap::from([("ddp", 0.01)]), ..Pretended::default() };
        assert!(matches!(conduct(&study, &store, id, &mut worlds, &mut Nobody), Ok(StudyEnd::Complete { failed: 0 })));
        assert_eq!(methods(&worlds.ran), ["wfbp-a2a", "ddp", "ddp+tune", "wfbp-a2a"]);
        let cells = store.cells(id).expect("read");
        let twice: Vec<_> = cells.iter().filter(|record| record.cell.arm == Arm::Again).collect();
        assert_eq!((twice.len(), twice[0].runs.len()), (1, 2));
    }

    /// A study that goes on keeps to the one with which it began, although a first run that had failed is faster now.
    #[test]
    fn what_is_measured_again_stays_the_same() {
        let (_scratch, store, id) = store("stays");
        let mut study = study();
        let planned = study.panels[0].cells[0].clone();
        let again = PlannedCell { cell: Cell { arm: Arm::Again, ..planned.cell.clone() }, ..planned };
        study.panels[0].cells.push(again);
        let failing = HashMap::from([("ddp".to_owned(), "killed"), ("wfbp-a2a".to_owned(), "killed")]);
        let mut worlds = Pretended { failing, ..Pretended::default() };
        assert!(matches!(conduct(&study, &store, id, &mut worlds, &mut Nobody), Ok(StudyEnd::Complete { failed: 4 })));
        let mut worlds = Pretended { paces: HashMap::from([("ddp", 0.01)]), ..Pretended::default() };
        assert!(matches!(conduct(&study, &store, id, &mut worlds, &mut Nobody), Ok(StudyEnd::Complete { failed: 0 })));
        assert_eq!(methods(&worlds.ran), ["wfbp-a2a", "ddp", "wfbp-a2a", "ddp"]);
        let twice = store.cells(id).expect("read").into_iter().filter(|record| record.cell.arm == Arm::Again);
        assert_eq!(twice.map(|record| record.cell.method).collect::<Vec<_>>(), ["bsp-a2a"]);
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
    fn a_run_whose_processor_was_late_is_repeated_at_once() {
        let (_scratch, store, id) = store("repeated");
        let mut worlds = Pretended { late: Some(("wfbp-a2a", 2)), ..Pretended::default() };
        let end = conduct(&study(), &store, id, &mut worlds, &mut Nobody);
        assert!(matches!(end, Ok(StudyEnd::Complete { failed: 0 })));
        let first = ["bsp-a2a", "wfbp-a2a", "wfbp-a2a", "wfbp-a2a", "ddp"];
        assert_eq!(methods(&worlds.ran), [&first[..], &["bsp-a2a", "wfbp-a2a", "ddp"]].concat());
        let runs = store.cells(id).expect("read").swap_remove(1).runs;
        assert_eq!(
            runs.iter().map(|run| (run.outcome.is_ok(), run.occasion.repeats)).collect::<Vec<_>>(),
            [(true, 2), (true, 0)]
        );
    }

    #[test]
    fn a_run_that_is_late_every_time_has_failed_and_is_measured_again() {
        let (_scratch, store, id) = store("late");
        let mut worlds = Pretended { late: Some(("ddp", usize::MAX)), ..Pretended::default() };
        let end = conduct(&study(), &store, id, &mut worlds, &mut Nobody);
        assert!(matches!(end, Ok(StudyEnd::Complete { failed: 2 })));
        assert_eq!(methods(&worlds.ran).iter().filter(|method| **method == "ddp").count(), 2 * (1 + REPEATS_MAX));
        let runs = store.cells(id).expect("read").swap_remove(2).runs;
        assert!(
            matches!(&runs[0].outcome, Err(why) if why.contains("late by 20 %") && why.contains("--workers")),
            "{runs:?}"
        );
        assert!(runs[0].occasion.ended > 1_700_000_000 && runs[0].occasion.load.is_some());
        let mut worlds = Pretended::default();
        let end = conduct(&study(), &store, id, &mut worlds, &mut Nobody);
        assert!(matches!(end, Ok(StudyEnd::Complete { failed: 0 })));
        assert_eq!(methods(&worlds.ran), ["ddp", "ddp"]);
    }

    /// Six runs of tenths of a second, for which there is a hundredth.
    #[test]
    fn without_time_no_run_is_repeated() {
        let (_scratch, store, id) = store("no-time");
        let mut worlds = Pretended { late: Some(("bsp-a2a", usize::MAX)), ..Pretended::default() };
        let study = Study { protocol: Protocol::Timed { seconds: 0.01, runs: 2 }, ..study() };
        let end = conduct(&study, &store, id, &mut worlds, &mut Nobody);
        assert!(matches!(end, Ok(StudyEnd::Complete { failed: 2 })));
        assert_eq!(worlds.ran.len(), 6);
    }

    /// Its estimate was far too low; a second run would meet the same limit if nothing was learned of the first one.
    #[test]
    fn a_run_that_was_ended_leaves_the_next_one_more_time() {
        let (_scratch, store, id) = store("slow");
        let mut worlds = Pretended { slow: Some(("ddp", Duration::from_secs(400))), ..Pretended::default() };
        let study = Study { protocol: Protocol::Fixed { warm_up: 1, iterations: 9, runs: 4 }, ..study() };
        let end = conduct(&study, &store, id, &mut worlds, &mut Nobody);
        let ok: Vec<bool> =
            store.cells(id).expect("read").swap_remove(2).runs.iter().map(|run| run.outcome.is_ok()).collect();
        assert_eq!(ok.last(), Some(&true), "{:?}", worlds.limits);
        let failed = ok.iter().filter(|ok| !**ok).count();
        assert!(matches!(end, Ok(StudyEnd::Complete { failed: all }) if all == failed), "{end:?}");
        assert_eq!(worlds.limits[0], PATIENCE_MIN);
        // Longer each time until it is enough, but not ten times as long.
        for pair in worlds.limits[..=failed].windows(2) {
            let growth = pair[1].as_secs_f64() / pair[0].as_secs_f64();
            assert!((1.2..PATIENCE_AGAIN + 0.01).contains(&growth), "{:?}", worlds.limits);
        }
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
