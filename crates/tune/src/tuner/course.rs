//! How far a context is: what it does now, and what it was like before the network changed.

use std::collections::VecDeque;

use super::arrival::Arrival;
use super::beside::Beside;
use super::doubt::Doubted;
use super::networks::Networks;
use super::standing::{Reason, Standing};
use crate::action::{Choice, Situation};
use crate::drift::{Drift, Sentinel};
use crate::state::State;
use crate::statistics::{Middle, Tally, median, rank_sum};
use crate::trial::{Gain, Trial};

/// Calls of the default at first.
pub(super) const BASELINE: usize = 5;

/// After so many calls at rest, a context is explored once more; if something stands that was found by a thorough search, beside that.
pub(super) const AGAIN: u64 = 4096;

/// The same where only little was explored: after a change of the network, or as there was no room for more.
const AGAIN_SOON: u64 = 512;

/// Little: so many calls of other choices.
const LITTLE: u64 = 64;

/// Where only little was explored for there was no room for more, and nothing better was found, exploration goes on for up to so many
/// times as many calls: most of them are the default's, and cost nothing.
const PATIENCE: u64 = 4;

/// So often exploration goes on as the best of few has won no trial: each trial in vain makes all others stricter.
const IN_VAIN: u64 = 2;

/// So many of the default's last calls say what it takes while all is as it was, and from so many on they say it: five calls that all
/// take longer than twelve are so by chance in one of 6,000 cases.
pub(super) const CALM_CALLS: usize = 31;
const CALM_ENOUGH: usize = 12;

/// The network has changed if the default's calls differ from those before by so much, in the median of the logarithm, and would so seldom by
/// chance: once in a thousand cases, shared by three looks. (Of five and twelve calls that needs five beyond all others.)
const CHANGED: f64 = 0.095_310_18;
const BY_CHANCE: f64 = 0.001 / 3.0;

/// What the default says of a network that may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Changed,
    Unchanged,
    /// It took another time, and that may be chance.
    Unclear,
}

/// How far a context is.
#[derive(Clone, Debug)]
pub struct Course {
    /// One of its calls.
    pub state: State,
    pub(super) phase: Phase,
    /// Calls decided.
    pub calls: u64,
    /// Calls that were neither the default's nor those of what stands: what finding out took.
    pub explored: u64,
    /// Times that the network changed.
    pub drifts: u32,
    /// Times that it looked so, and the default took what it took.
    pub dismissed: u32,
    /// Seconds of the default, as logarithms.
    pub default: Tally,
    /// Seconds of what stands now, as logarithms.
    pub chosen: Tally,
    pub(super) drift: Drift,
    /// So many of its calls had ended when nothing was suspected yet.
    pub(super) calm_until: u64,
    pub(super) sentinel: Sentinel,
    /// After a rehearsal: what the default takes in the job is not known yet.
    pub(super) arrival: Option<Arrival>,
    /// While something stands: what is tried beside it.
    pub(super) beside: Beside,
    gain: Option<Gain>,
    pub(super) resting: u64,
    /// The default's times of this beginning, in seconds.
    baseline: Vec<f64>,
    /// The default's last seconds in this network, up to where nothing was suspected, and those since then.
    calm_s: VecDeque<f64>,
    suspected_s: Vec<f64>,
    /// Arms and seconds of calls that nobody has learned from yet, as the network may have changed before them.
    pub(super) waiting: Vec<(usize, f64)>,
    /// What the default took before the network changed, as a logarithm, until it is known what it takes since.
    before: Option<f64>,
    /// What the default takes as long as nothing changes, as a logarithm.
    level: Option<f64>,
    /// The networks that there were.
    networks: Networks,
    /// Calls of exploration that come after the default's.
    pub(super) to_explore: u64,
    /// What has won a rehearsal: a trial of it comes after the default's, and no exploration.
    rehearsed: Option<(Choice, Origin)>,
    /// What stood in place of the default when the network changed, with what it gained: choices keep their order as a rule.
    pub(super) stood: Option<(Choice, Option<Gain>)>,
    /// How long it rests when there was nothing to be found.
    rests: u64,
    /// Calls of other choices before it began the last time, and trials in vain of the best of few since then.
    explored_before: u64,
    in_vain: u64,
}

#[derive(Clone, Debug)]
pub(super) enum Phase {
    Baseline,
    Explore { calls: u64, enough: u64 },
    Trial(Tried),
    Chosen(usize, Choice),
    Settled(Reason),
    Doubt(Doubted),
}

/// A trial of a candidate.
#[derive(Clone, Debug)]
pub(super) struct Tried {
    pub(super) candidate: usize,
    pub(super) trial: Trial,
    /// Of all trials of the job.
    pub(super) number: u32,
    pub(super) origin: Origin,
    /// Calls for which there was no room.
    pub(super) refused: u32,
}

/// Where a candidate comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// It was the best of what was explored.
    Explored,
    /// It was the best when the network was like this before, or of a rehearsal of all that is likely to be fast.
    Remembered,
    /// Of a rehearsal that had no time for all of that.
    OfFew,
    /// It stood in another network, before that has changed.
    Stood,
}

impl Course {
    /// At its first call, with so much to be explored after the default's calls.
    pub(super) fn new(situation: &Situation, to_explore: u64) -> Course {
        let has_choice = situation.arms.len() > 1;
        Course {
            state: situation.state,
            phase: if has_choice { Phase::Baseline } else { Phase::Settled(Reason::NoChoice) },
            calls: 0,
            explored: 0,
            drifts: 0,
            dismissed: 0,
            default: Tally::default(),
            chosen: Tally::default(),
            drift: Drift::default(),
            calm_until: 0,
            sentinel: Sentinel::default(),
            arrival: None,
            beside: Beside::default(),
            gain: None,
            resting: 0,
            baseline: Vec::new(),
            calm_s: VecDeque::new(),
            suspected_s: Vec::new(),
            waiting: Vec::new(),
            before: None,
            level: None,
            networks: Networks::default(),
            to_explore,
            rehearsed: None,
            stood: None,
            rests: AGAIN,
            explored_before: 0,
            in_vain: 0,
        }
    }

    /// What it does now, or did before it was in doubt.
    fn phase(&self) -> &Phase {
        match &self.phase {
            Phase::Doubt(doubted) => &doubted.resume,
            phase => phase,
        }
    }

    /// Does it look as if the network had changed, and the default is asked?
    pub(super) fn is_in_doubt(&self) -> bool {
        matches!(self.phase, Phase::Doubt(_))
    }

    /// What stands in place of the default, if something does.
    pub(super) fn stands(&self) -> Option<usize> {
        match self.phase() {
            Phase::Chosen(arm, _) => Some(*arm),
            _ => None,
        }
    }

    /// By how much what stands is better than the default.
    pub(super) fn gain(&self) -> Option<Gain> {
        self.gain
    }

    /// What is on trial.
    pub(super) fn tried_mut(&mut self) -> Option<&mut Tried> {
        match &mut self.phase {
            Phase::Trial(tried) => Some(tried),
            _ => self.beside.tried.as_mut(),
        }
    }

    /// A call of the default.
    pub(super) fn add_default(&mut self, seconds: f64) {
        self.default.add(seconds.ln(), 0.97);
        self.suspected_s.push(seconds);
    }

    /// Nothing is suspected, if that is so: what the default has taken is what it takes. Seconds of its calls of which that is known now.
    pub(super) fn calm_down(&mut self) -> Vec<f64> {
        if !self.drift.is_calm() || self.is_in_doubt() {
            return Vec::new();
        }
        let calm = std::mem::take(&mut self.suspected_s);
        self.calm_s.extend(&calm);
        let surplus = self.calm_s.len().saturating_sub(CALM_CALLS);
        self.calm_s.drain(..surplus);
        calm
    }

    /// An alarm has come of nothing, as far as the default tells. It may have been right all the same, and then most of what the default
    /// took before is of another network: only its last calls count from here on.
    pub(super) fn dismiss(&mut self) -> Vec<f64> {
        self.dismissed += 1;
        let calm = self.calm_down();
        let surplus = self.calm_s.len().saturating_sub(CALM_ENOUGH);
        self.calm_s.drain(..surplus);
        calm
    }

    /// Is it known what the default takes in this network?
    pub(super) fn knows_default(&self) -> bool {
        self.calm_s.len() >= CALM_ENOUGH
    }

    /// Do these calls of the default show another network?
    pub(super) fn answer(&self, default_s: &[f64]) -> Answer {
        let logs = |seconds: &mut dyn Iterator<Item = f64>| -> Vec<f64> { seconds.map(f64::ln).collect() };
        let (now, before) = (logs(&mut default_s.iter().copied()), logs(&mut self.calm_s.iter().copied()));
        let apart = median(&now).zip(median(&before)).is_some_and(|(now, before)| (now - before).abs() >= CHANGED);
        match apart {
            true if rank_sum(&now, &before) <= BY_CHANCE => Answer::Changed,
            true => Answer::Unclear,
            false => Answer::Unchanged,
        }
    }

    /// Where it stands.
    pub fn standing(&self) -> Standing {
        match (self.phase(), self.gain) {
            (Phase::Chosen(_, choice), Some(gain)) => Standing::Chosen(*choice, gain),
            (Phase::Settled(reason), _) => Standing::Settled(*reason),
            _ => Standing::Learning,
        }
    }

    /// Is it decided?
    pub fn is_decided(&self) -> bool {
        self.standing() != Standing::Learning
    }

    /// Is it not known yet what the default takes in the job, after a rehearsal? Until then what stands is judged by nobody.
    pub fn is_arriving(&self) -> bool {
        self.arrival.is_some()
    }

    /// Does it look as if the network had changed, or may it soon look so?
    pub fn is_suspicious(&self) -> bool {
        self.is_in_doubt() || self.drift.is_suspicious()
    }

    /// Is the default called to find out whether the network has changed, or what it takes now? Everything else waits for that.
    pub fn is_asking(&self) -> bool {
        self.is_in_doubt() || self.is_measured_anew()
    }

    /// Has the network changed, and is it not decided yet what stands in this one? Until then the default does.
    pub fn is_deciding_again(&self) -> bool {
        self.drifts > 0 && !self.is_decided()
    }

    /// Is the default measured anew, as the network has changed? Until that is done, nobody knows what a call's time means.
    pub(super) fn is_measured_anew(&self) -> bool {
        self.before.is_some()
    }

    /// Seconds of the default at the beginning.
    pub(super) fn baseline_s(&self) -> &[f64] {
        &self.baseline
    }

    /// A call of the default at the beginning. True if there are enough.
    pub(super) fn add_baseline(&mut self, seconds: f64) -> bool {
        self.baseline.push(seconds);
        self.baseline.len() >= BASELINE
    }

    /// What the default takes, as a logarithm, as far as its last calls say so: a late one says nothing about a network.
    pub(super) fn usual_level(&self) -> f64 {
        let last = self.calm_s.iter().chain(&self.suspected_s).rev().take(CALM_CALLS);
        let last: Vec<f64> = last.map(|seconds| seconds.ln()).collect();
        Middle::of(&last).map_or(self.default.mean, |middle| middle.mean(self.default.mean))
    }

    /// By how much the default takes longer than before the network changed, as a logarithm; None if it has not changed.
    pub(super) fn shift(&self) -> Option<f64> {
        self.before.map(|before| self.usual_level() - before)
    }

    /// Everything takes longer than was measured so far, the default included, by so much as a logarithm: nothing has changed, it was measured
    /// elsewhere.
    pub(super) fn was_measured_elsewhere(&mut self, by: f64) {
        self.calm_s.iter_mut().chain(&mut self.suspected_s).for_each(|seconds| *seconds *= by.exp());
        self.default.mean += by;
        self.level.iter_mut().for_each(|level| *level += by);
        self.networks.were_measured_elsewhere(by);
    }

    /// The default's times of the beginning that the learner has not seen, and the end of the beginning.
    pub(super) fn take_baseline(&mut self) -> Vec<f64> {
        let baseline = std::mem::take(&mut self.baseline);
        self.level = Some(self.usual_level());
        if self.before.take().is_some() { baseline } else { Vec::new() }
    }

    /// What was best when the default took as long as now, if the network was ever like this and something was; and its gain, if it
    /// has won a trial.
    pub(super) fn best_of_then(&self) -> Option<(Choice, Option<Gain>)> {
        self.networks.best_at(self.level?)
    }

    /// What has won a trial in a network in which the default took nearly as long as in this one; and its gain there.
    pub(super) fn best_nearby(&self) -> Option<(Choice, Gain)> {
        self.networks.best_near(self.level?)
    }

    /// What was best in the last network that is remembered.
    pub(super) fn best_of_another(&self) -> Option<Choice> {
        self.networks.last_best()
    }

    /// What was best then is not any more.
    pub(super) fn forget_best(&mut self) {
        self.level.iter().for_each(|level| self.networks.forget(*level));
    }

    /// Goes on to explore.
    pub(super) fn explore(&mut self, enough: u64) {
        self.phase = Phase::Explore { calls: 0, enough };
    }

    /// What is known so far was measured elsewhere. The job begins with the default, and then with a trial of `best`, if there is one.
    pub(super) fn begin_after_rehearsal(&mut self, best: Option<(Choice, Origin)>, to_explore: u64) {
        self.before = Some(self.usual_level());
        self.default = Tally::default();
        self.calm_s.clear();
        (self.rehearsed, self.to_explore) = (best, to_explore);
    }

    /// Are others tried beside what stands, or looked for?
    pub fn is_looking_beside(&self) -> bool {
        self.stands().is_some() && (self.beside.tried.is_some() || self.beside.is_looking(self.resting))
    }

    /// Has a trial beside what stands begun a block that is not over?
    pub fn is_within_block(&self) -> bool {
        self.beside.tried.as_ref().is_some_and(|tried| !tried.trial.is_between_blocks())
    }

    /// What has won a rehearsal, once.
    pub(super) fn take_rehearsed(&mut self) -> Option<(Choice, Origin)> {
        self.rehearsed.take()
    }

    /// Goes on to explore, as the default is known already.
    pub(super) fn explore_on(&mut self, enough: u64) {
        self.take_baseline();
        self.explore(enough);
    }

    /// Were so few calls those of other choices?
    pub(super) fn has_explored_little(&self) -> bool {
        self.explored - self.explored_before < LITTLE
    }

    /// Has so little been tried that exploration goes on, though its calls are over?
    pub(super) fn goes_on(&self) -> bool {
        let little = self.has_explored_little();
        matches!(self.phase, Phase::Explore { calls, enough } if little && calls < PATIENCE * enough)
    }

    /// The best of what was tried has won no trial: if that was little, something else may.
    pub(super) fn explores_on(&mut self) -> bool {
        self.in_vain += 1;
        self.has_explored_little() && self.in_vain <= IN_VAIN
    }

    /// Why it stays with the default, if nothing looks better now.
    pub(super) fn why_settled(&self) -> Reason {
        if self.in_vain > 0 { Reason::NoSignificantGain } else { Reason::NothingBetter }
    }

    /// Begins once more, with everything.
    pub(super) fn explore_all(&mut self, to_explore: u64) {
        (self.phase, self.to_explore, self.rests) = (Phase::Baseline, to_explore, AGAIN);
        (self.explored_before, self.in_vain) = (self.explored, 0);
    }

    /// The network has changed. So much is to be explored, or what was left of a first exploration.
    pub(super) fn change(&mut self, to_explore: u64) {
        self.to_explore = match &self.phase {
            Phase::Explore { calls, enough } => enough.saturating_sub(*calls).max(to_explore),
            Phase::Baseline => self.to_explore,
            _ => to_explore,
        };
        self.drifts += 1;
        self.arrival = None;
        if let Phase::Chosen(_, choice) = self.phase() {
            self.stood = Some((*choice, self.gain));
        }
        self.before = self.level.take();
        self.default = Tally::default();
        self.drift.begin_anew();
        self.baseline.clear();
        self.calm_s.clear();
        self.suspected_s.clear();
        // They are of the old network, or of the new one: nobody knows.
        self.waiting.clear();
        self.begin(Phase::Baseline, None);
        (self.rests, self.explored_before, self.in_vain) = (AGAIN_SOON, self.explored, 0);
    }

    /// This looks best in the network as it is now.
    pub(super) fn remember_best(&mut self, best: Choice, gain: Option<Gain>) {
        self.level.iter().for_each(|level| self.networks.remember(*level, best, gain));
    }

    /// It is decided.
    pub(super) fn stand(&mut self, phase: Phase, gain: Option<Gain>) {
        self.level = Some(self.usual_level()).filter(|_| self.default.weight > 0.0);
        match &phase {
            Phase::Chosen(_, choice) => self.remember_best(*choice, gain),
            _ => self.forget_best(),
        }
        if self.has_explored_little() {
            self.rests = AGAIN_SOON;
        }
        self.begin(phase, gain);
    }

    /// It is left alone, and what looked best in this network is still known.
    pub(super) fn rest(&mut self, reason: Reason) {
        self.rests = self.rests.min(AGAIN_SOON);
        self.begin(Phase::Settled(reason), None);
    }

    fn begin(&mut self, phase: Phase, gain: Option<Gain>) {
        (self.phase, self.gain, self.resting) = (phase, gain, 0);
        (self.sentinel, self.chosen, self.beside) = (Sentinel::default(), Tally::default(), Beside::default());
    }

    /// Has it done nothing for so long that it is worth another look?
    pub(super) fn has_rested(&self) -> bool {
        matches!(self.phase, Phase::Settled(reason) if reason != Reason::NoChoice) && self.resting >= self.rests
    }
}
