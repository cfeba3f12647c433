//! What `strategy=auto` runs in a cell: chosen before anything counts, and chosen again where iterations take other than was expected.

use std::mem;

use paceline_plan::{Plan, Profile};

use super::conduct::Conduct;
use super::summary::Tally;
use super::together::{Company, SHORT_PASS_S};
use super::{median, relative_half_width, with_passes};
use crate::auto::{Choosing, Chosen, Decision, Experience, Settling, Step, holds};
use crate::computed::{measured_profile, slowed_profile};
use crate::error::TrainError;
use crate::exchange::Carrier;
use crate::planning::{MEASURING, MEASURING_WARM_UP};

/// Plans that are left, at most: each further search measures the network anew, and what was counted before is lost.
const ABANDONED_MAX: usize = 2;

/// What was chosen.
pub(super) struct Choice {
    /// Of the plan that runs, in the time of this machine.
    decision: Decision,
    /// Those before it, which did not come true, in the time of a machine that is not slowed.
    pub(super) abandoned: Vec<Decision>,
    experience: Experience,
    /// The last search has found nothing better: a further one would not, either.
    stays: bool,
}

impl Choice {
    /// What has become of the decision that stands, on a machine that is not slowed.
    pub(super) fn undilated(&self, dilate: f64, measured_s: f64) -> Decision {
        self.decision.clone().undilated(dilate, measured_s)
    }
}

impl Conduct<'_> {
    /// What `strategy=auto` finds here, from the profile that is replayed or from a few iterations that do not count.
    pub(super) fn choose(&mut self) -> Result<(), TrainError> {
        let tally = if self.model.replay.is_none() { self.settled()? } else { Tally::default() };
        let chosen = self.search(&tally, &[], 1)?.map_err(TrainError::Options)?;
        let mut experience = Experience::default();
        let step = Step::after(&chosen, &mut experience, &self.plan, None);
        if let Some(plan) = step.plan.clone() {
            self.go_on_under(plan)?;
        }
        let decision = step.decision(self.iterations, &self.plan);
        self.choice = Some(Choice { decision, abandoned: Vec::new(), experience, stays: false });
        Ok(())
    }

    /// The last few of so many iterations that they get no faster any more. None of them counts.
    fn settled(&mut self) -> Result<Tally, TrainError> {
        let (mut settling, mut count) = (Settling::default(), MEASURING_WARM_UP);
        loop {
            let mut tally = Tally::default();
            // The first iteration after a pause is not like the others.
            self.block(1, count, &mut tally)?;
            if !settling.goes_on(median(self.iterations(&tally)?)) {
                return Ok(tally);
            }
            count = MEASURING;
        }
    }

    /// The iterations that count have taken so long. Where their median is off what was expected, the network is measured and plans are
    /// searched once more. True if another plan runs from here on, of which nothing was measured yet.
    pub(super) fn choose_again(&mut self, seconds: &[f64], tally: &Tally) -> Result<bool, TrainError> {
        let Some(mut choice) = self.choice.take_if(|choice| choice.is_off(seconds)) else { return Ok(false) };
        let measured_s = median(seconds.iter().copied());
        choice.experience.measured(&self.plan, measured_s);
        let searches = 1 + choice.abandoned.len() as u32;
        let found = self.search(tally, &choice.experience.plans(), searches + 1)?;
        let step = match found {
            Ok(chosen) => Step::after(&chosen, &mut choice.experience, &self.plan, Some(measured_s)),
            // What runs, runs.
            Err(reason) => Step::staying(measured_s, vec![reason]),
        };
        let changed = step.plan.is_some();
        if let Some(plan) = step.plan.clone() {
            self.go_on_under(plan)?;
            let before = mem::replace(&mut choice.decision, step.decision(self.iterations, &self.plan));
            let dilate = self.options.dilate;
            choice.abandoned.push(before.undilated(dilate, measured_s / dilate));
        } else {
            choice.stay(step);
        }
        self.choice = Some(choice);
        Ok(changed)
    }

    /// Measures what operations cost, and searches, from the computation of these iterations, if it is not replayed.
    fn search(&mut self, tally: &Tally, tried: &[Plan], round: u32) -> Result<Result<Chosen, String>, TrainError> {
        let profile = self.profile(tally)?;
        let (rank, computes) = (self.workers().rank(), self.model.replay.is_none());
        // Longer ones go ahead of no operation, and what all of them take together is known.
        let pass_s =
            computes.then(|| profile.forward_s() + profile.backward_s()).filter(|pass_s| *pass_s <= SHORT_PASS_S);
        let Company { pass_s: all_pass_s, interference } = self.company;
        let (planning, model, backend) = self.planning_beside();
        let choosing = Choosing {
            strategy: planning.strategy,
            schedulers: planning.schedulers,
            peers: planning.peers,
            may_overlap: true,
            start_up: planning.start_up().mul_f64(planning.slowed),
            all_pass_s,
            interference,
        };
        let batch = || model.first_batch(rank);
        with_passes(rank, backend, pass_s, batch, |passing| choosing.choose(&profile, tried, round, passing))
    }

    /// In the time of this machine: everything is as slow as everything else.
    fn profile(&self, tally: &Tally) -> Result<Profile, TrainError> {
        if let Some(replay) = &self.model.replay {
            return Ok(slowed_profile(&replay.profile, self.options.dilate));
        }
        let computed = self.computed(tally, &self.sizes)?;
        let uncertain = relative_half_width(&self.slowest(&tally.seconds)?);
        Ok(measured_profile(&self.model.name, self.options.local_batch, &computed, uncertain))
    }

    /// Carries out another plan, on which all workers agree.
    fn go_on_under(&mut self, plan: Plan) -> Result<(), TrainError> {
        let plan = Plan { version: self.plan.version + 1, ..plan };
        let planning = self.planning();
        planning.agree(&plan)?;
        let handicap = planning.handicap();
        if planning.strategy.arch_is_open() {
            let planned = planning.schedulers.grammar().parse(&plan.strategy);
            self.carrier = Carrier::of_strategy(planning.peers, planned.as_ref().unwrap_or(planning.strategy));
        }
        let replanned = self.worker.replan(Some(self.carrier.clone()), plan.clone(), &[], &self.sizes, &handicap);
        // The update that is on its way arrives first, and its sums are checked.
        replanned.map_err(|error| self.explain(error))?;
        self.plan = plan;
        Ok(())
    }
}

impl Choice {
    /// Does the median of these iterations part from what was expected, and is it worth another search? One that happened to take as
    /// long as that does not vouch for the others, nor does one that something held up speak for them.
    fn is_off(&self, seconds: &[f64]) -> bool {
        let may_search = !self.stays && self.abandoned.len() < ABANDONED_MAX;
        may_search && !holds(self.decision.expected_iteration_s, median(seconds.iter().copied()))
    }

    /// The plan stays, for these reasons.
    fn stay(&mut self, step: Step) {
        self.decision.reasons.extend(step.reasons);
        // Most have been told already.
        for doubt in step.doubts {
            if !self.decision.doubts.contains(&doubt) {
                self.decision.doubts.push(doubt);
            }
        }
        self.stays = true;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use paceline_plan::{ProfileTensor, Step};
    use paceline_server::Roles;

    use super::*;
    use crate::auto::Predicted;
    use crate::data::{Data, Dataset, Form, Synthetic};
    use crate::fake_backend::FakeBackend;
    use crate::measure::{CellRun, Length, MeasureOptions, Subject};
    use crate::on_ranks::{on_ranks, on_workers};
    use crate::optimizer::OptimizerSettings;
    use crate::peers::Peers;

    const ELEMENTS: [usize; 3] = [20_000, 7, 50_000];

    fn profile() -> Profile {
        let tensor = |elements: &usize| ProfileTensor {
            name: format!("of {elements}"),
            elements: *elements,
            forward_macs_per_sample: 10,
        };
        let steps = |tensors: [usize; 3]| tensors.map(|tensor| Step { tensor, seconds: 0.001 }).to_vec();
        Profile {
            schema: Profile::SCHEMA,
            model: "three".into(),
            local_batch: 4,
            tensors: ELEMENTS.iter().map(tensor).collect(),
            forward: steps([0, 1, 2]),
            backward: steps([2, 1, 0]),
            update_s: 0.000_1,
            ..Profile::default()
        }
    }

    const PREDICTED: Predicted = Predicted { seconds: 1.0, low_s: 1.0, high_s: 1.0 };

    fn plan_of(strategy: &str) -> Plan {
        let strategy = paceline_strategy::Registry::built_in().parse(strategy).unwrap();
        paceline_schedule::plan(&strategy, &paceline_schedule::Workload::of_sizes(&ELEMENTS)).unwrap()
    }

    fn plan() -> Plan {
        plan_of("wfbp-a2a")
    }

    fn options() -> MeasureOptions {
        let length = Length::Iterations(3);
        MeasureOptions { strategy: "auto".into(), local_batch: 4, warm_up: 1, length, ..MeasureOptions::default() }
    }

    /// Runs where what was expected has been changed in between: as if the network had.
    fn runs(change: impl Fn(&mut Choice) + Sync) -> Vec<CellRun> {
        let (options, profile) = (options(), profile());
        let runs = on_ranks(2, |communicator| {
            let mut conduct =
                Conduct::prepare(Peers::from(&communicator), Subject::Replay(&profile), &options).unwrap();
            change(conduct.choice.as_mut().expect("a choice"));
            conduct.run().unwrap()
        });
        assert_eq!(runs[0], runs[1], "the workers tell different numbers");
        runs
    }

    /// Nothing takes what was expected, and another plan is known to be better: it runs, only its iterations count, and both
    /// decisions are told.
    #[test]
    fn what_does_not_come_true_is_chosen_again() {
        let runs = runs(|choice| {
            let other = ["wfbp-a2a", "bsp-a2a"].map(plan_of);
            let other = other.iter().find(|plan| plan.strategy != choice.decision.strategy).expect("one of two");
            choice.decision.expected_iteration_s = 1e-6;
            choice.experience.measured(other, 1e-6);
        });
        let CellRun { iteration_s, plan, abandoned, decision, strategy, .. } = &runs[0];
        let (first, last) = (&abandoned[0], decision.as_ref().expect("a decision"));
        assert!(first.measured_iteration_s.is_some_and(|seconds| seconds > 1e-3), "{first:?}");
        assert!(first.iteration == 0 && first.came_true().is_some(), "{first:?}");
        assert!(last.iteration >= 4 && last.strategy == *strategy && last.changed, "{last:?}");
        assert_eq!((iteration_s.len(), plan.version as usize), (3, 2 + abandoned.len()));
        assert!(abandoned.len() <= ABANDONED_MAX, "{abandoned:?}");
    }

    /// No search may follow any more: what was measured counts, whatever was expected.
    #[test]
    fn it_is_not_chosen_again_for_ever() {
        let runs = runs(|choice| {
            choice.decision.expected_iteration_s = 1e-6;
            choice.stays = true;
        });
        let CellRun { iteration_s, plan, abandoned, decision, .. } = &runs[0];
        assert_eq!((iteration_s.len(), plan.version, abandoned.len()), (3, 2, 0));
        assert!(decision.as_ref().is_some_and(|decision| decision.iteration == 0), "{decision:?}");
    }

    /// Of three shards that were met two serve, and then one: the run and its timeline name those that do, and sums are
    /// right.
    #[test]
    fn a_run_has_the_shards_that_serve() {
        let (options, profile) = (MeasureOptions { timeline: true, ..options() }, profile());
        let runs = on_workers(Roles::new(2, 3).unwrap(), |peers| {
            let mut conduct = Conduct::prepare(peers.clone(), Subject::Replay(&profile), &options).unwrap();
            conduct.choice.as_mut().expect("a choice").stays = true;
            for arch in ["ps:2", "ps:1"] {
                conduct.go_on_under(plan_of(&format!("schedule=wfbp,arch={arch}"))).unwrap();
                conduct.block(1, 2, &mut Tally::default()).unwrap();
            }
            conduct.run().unwrap()
        });
        assert_eq!((runs[0].shards, runs[0].plan.shards, runs[1].shards), (1, 1, 1));
        let timeline = runs[0].timeline.as_ref().expect("worker 0 has it");
        let names: Vec<&str> = timeline.processes.iter().map(|process| process.name.as_str()).collect();
        assert_eq!(names, ["worker 0", "worker 1", "shard 0"]);
        let to_shards = timeline.processes[0].lanes.iter().filter(|lane| lane.name.starts_with("to shard")).count();
        assert_eq!(to_shards, 1, "{:?}", timeline.processes[0]);
    }

    /// Passes of the model's own go ahead of each operation that a search times, where they are short.
    #[test]
    fn a_search_times_operations_behind_short_passes() {
        let form = Form::Images { channels: 1, size: (2, 2), classes: 2 };
        let samples = |stream| Dataset::Synthetic(Synthetic::new(form, 4, stream));
        let data = Data { training: samples(0), test: samples(1) };
        let options = MeasureOptions { strategy: "auto".into(), local_batch: 1, ..MeasureOptions::default() };
        // One operation by itself and eight at once, five times and once that does not count.
        for (each_ms, expected) in [(0, 2 * 6), (20, 0)] {
            let made = on_ranks(2, |communicator| {
                let passes = Arc::<AtomicUsize>::default();
                let subject = Subject::Model {
                    name: "counting".to_owned(),
                    backend: Box::new(FakeBackend::counting(Duration::from_millis(each_ms), passes.clone())),
                    data: &data,
                    optimizer: OptimizerSettings::default(),
                    learning_rate: 0.1,
                };
                let mut conduct = Conduct::prepare(Peers::from(&communicator), subject, &options).unwrap();
                let mut tally = Tally::default();
                conduct.block(1, 8, &mut tally).unwrap();
                let before = passes.load(Ordering::Relaxed);
                conduct.search(&tally, &[], 2).unwrap().unwrap();
                passes.load(Ordering::Relaxed) - before
            });
            assert_eq!(made, [expected; 2], "passes of {each_ms} ms");
        }
    }

    /// The plan that runs is the best that is known: it goes on, what was measured counts, and the reason is told.
    #[test]
    fn a_plan_that_stays_says_why() {
        let mut choice = Choice {
            decision: Decision::of(0, &plan(), true, (PREDICTED, 1.0), vec!["it was the best".to_owned()]),
            abandoned: Vec::new(),
            experience: Experience::default(),
            stays: false,
        };
        for (seconds, is_off) in
            [(&[1.1, 0.9][..], false), (&[2.0, 1.2], true), (&[2.0, 1.1, 2.0], true), (&[1.1, 2.0, 1.0], false)]
        {
            assert_eq!(choice.is_off(seconds), is_off, "{seconds:?}");
        }
        choice.experience.measured(&plan(), 2.0);
        let chosen = Chosen {
            plan: plan(),
            predicted: PREDICTED,
            tried: vec![Some(PREDICTED)],
            reasons: Vec::new(),
            doubts: vec!["nobody knows".to_owned()],
        };
        let step = crate::auto::Step::after(&chosen, &mut choice.experience, &plan(), Some(2.0));
        assert!(step.plan.is_none() && step.expected_s == 2.0, "{step:?}");
        choice.stay(step);
        assert_eq!(choice.decision.reasons, ["it was the best", "no other plan is predicted to be faster"]);
        assert_eq!(choice.decision.doubts, ["nobody knows"]);
        assert!(!choice.is_off(&[2.0]), "a further search would find nothing else");
        let slowed = choice.undilated(4.0, 0.5);
        assert_eq!((slowed.predicted_iteration_s, slowed.came_true()), (0.25, Some(false)));
    }
}
