//! A tuner that learns of NCCL's calls from what a job has recorded, round by round.
//!
//! How often NCCL asks about a call is no number that ranks agree on, so a policy of its plug-in holds one choice for a kind of
//! call, and no turns. What is to be tried is tried for a round: all calls of a kind take the same in it, and their mean time counts
//! once, for the learner, the guard and the trial. Rounds are to these what calls are elsewhere. Where rounds say what an iteration
//! took, that decides in the end: rounds with everything that was found and rounds without take turns.

mod kind;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::mem;

use paceline_tune::congestion::Observed;
use paceline_tune::environment::{Call, CostModel, NcclModel};
use paceline_tune::learner::{Lesson, Remembered};
use paceline_tune::nccl::{Algorithm, Protocol};
use paceline_tune::whole::{Event, Found, Turn, Whole};
use paceline_tune::{
    Action, Choice, Congestion, Context, Cost, Course, Policy, Schedule, Situation, State, Tuner, nccl_policy,
};

use super::samples::{Asked, Label, Measured, Round};
use kind::{Kind, mean};

/// A decision that was not played in so many rounds is given up: what is set aside for it is free again.
const WAITS_MAX: u32 = 8;

/// In which order rounds with what was found and without take turns, follows from it. Nothing that a job does depends on that order.
const TURNS_SEED: u64 = 1;

/// After so many rounds, what iterations have decided is looked at again: as soon as a call of which little was explored is.
const TRIED_AGAIN: u32 = 512;

/// What NCCL does not know of the calls of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// I = C/D.
    pub intensity: f64,
    /// M.
    pub local_batch: u32,
}

/// What rounds have come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rounds.
    pub rounds: u64,
    /// Calls that were learned from.
    pub calls: u64,
    /// Calls that did not go the way of the policy: NCCL did not offer it, or made one of several.
    pub not_honoured: u64,
    /// Calls about which there is nothing to choose.
    pub without_choice: u64,
    /// Kinds of calls that NCCL's own tables say what is believed of first.
    pub by_nccl_costs: u64,
}

/// A tuner, with what it has decided and not yet seen.
pub struct JobTuner {
    /// What is learned.
    pub tuner: Tuner,
    /// What became of the rounds.
    pub counts: Counts,
    /// What is believed of NCCL: with the tables that it has handed over.
    nccl: NcclModel,
    model: Model,
    /// What the plug-in cannot tell apart is one context, whatever it is for.
    known: BTreeMap<Asked, Context>,
    /// None: there is nothing to choose.
    kinds: BTreeMap<Context, Option<Kind>>,
    /// What the time of the iteration says of all choices together. None: no round has said what an iteration takes, and the times of
    /// calls decide alone.
    whole: Option<Whole>,
    /// How much others are in the way.
    observed: Observed,
    /// What earlier jobs have learned.
    remembered: Remembered,
    /// What each policy that may have been written has the calls of a context take.
    written: BTreeMap<u64, BTreeMap<Context, Choice>>,
    /// Of the last one with tries, an even number; the next one is that without tries. 0: there was no round.
    version: u64,
    /// What NCCL was told, and never did.
    unheard: BTreeMap<Context, Vec<Action>>,
}

/// Calls of a context that took this arm in a round, with their seconds; none: it was said, and no call did.
type Taken = (Context, usize, Vec<f64>);

impl JobTuner {
    /// With a tuner that knows nothing, and what earlier jobs have kept.
    pub fn new(nccl: &NcclModel, model: Model, tuner: Tuner, lessons: &[Lesson]) -> JobTuner {
        let mut remembered = Remembered::default();
        remembered.add(lessons.iter().copied());
        JobTuner {
            tuner,
            counts: Counts::default(),
            nccl: nccl.clone(),
            model,
            known: BTreeMap::new(),
            kinds: BTreeMap::new(),
            whole: None,
            observed: Observed::default(),
            remembered,
            written: BTreeMap::new(),
            version: 0,
            unheard: BTreeMap::new(),
        }
    }

    /// Learns from a round, and decides what the next one takes.
    pub fn learn(&mut self, round: &Round) {
        let mut made: BTreeMap<Context, Vec<&Measured>> = BTreeMap::new();
        for call in &round.calls {
            made.entry(self.meet(call, round)).or_default().push(call);
        }
        self.counts.rounds += 1;
        let taken: Vec<Taken> =
            made.iter().flat_map(|(context, calls)| self.taken(context, calls, round.policy)).collect();
        self.observe_congestion(&taken);
        for (context, arm, seconds) in &taken {
            self.counts.calls += seconds.len() as u64;
            if let Some(Some(kind)) = self.kinds.get_mut(context) {
                kind.observe(&mut self.tuner, *arm, seconds);
            }
        }
        self.judge(round);
        for (context, kind) in &mut self.kinds {
            let Some(kind) = kind else { continue };
            kind.rounds += 1;
            kind.called += u32::from(made.contains_key(context));
            kind.waited += u32::from(kind.pending.is_some());
            if kind.waited > WAITS_MAX {
                kind.give_up(&mut self.tuner);
            }
            if kind.pending.is_none() {
                kind.waited = 0;
                // What is not called is not decided about: it would be given up for nothing.
                kind.pending = made.contains_key(context).then(|| self.tuner.decide(&kind.situation));
            }
        }
        self.give_up_cuts();
        // Whichever of the two is given to the job: what it had calls take is known.
        self.version = 2 * (self.version.max(round.policy) / 2 + 1);
        for policy in [self.policy(), self.settled()] {
            let played = nccl_policy::played(&policy, self.contexts(), &self.nccl);
            self.written.insert(policy.version(), played);
        }
    }

    /// Cuts that rules cannot say, as a neighbour wants others of the same bytes, are not waited for: until then the same way would be
    /// played in whole chunks, which nobody has decided.
    fn give_up_cuts(&mut self) {
        if !matches!(self.turn(), Turn::ByCalls) {
            return;
        }
        // Whoever gives up takes what stands, which may be in the way of another one's try: each pass takes one back, at least.
        loop {
            let played = nccl_policy::played(&self.policy(), self.contexts(), &self.nccl);
            let JobTuner { tuner, kinds, .. } = &mut *self;
            let mut is_changed = false;
            for (context, kind) in kinds {
                let Some(kind) = kind else { continue };
                if let (Some(Choice::Play(decided)), Some(Choice::Play(played))) = (kind.to_play(), played.get(context))
                    && decided.chunk_log2 != played.chunk_log2
                {
                    kind.give_up(tuner);
                    is_changed = true;
                }
            }
            if !is_changed {
                return;
            }
        }
    }

    /// The context of a call of a round, which may be the first of it.
    fn meet(&mut self, call: &Measured, round: &Round) -> Context {
        let asked = call.asked();
        if let Some(context) = self.known.get(&asked) {
            return *context;
        }
        let mut alike = round.calls.iter().filter(|other| other.asked() == asked);
        // Where some are for one thing and some for another, nothing is said of all of them.
        let label = if alike.all(|other| other.label == call.label) { call.label } else { Label::default() };
        let JobTuner { tuner, counts, nccl, model, known, kinds, remembered, .. } = self;
        // NCCL's model knows of no servers; the job may have some besides.
        let state = State { is_ps_deployment: label.is_ps_deployment, ..nccl.state(&model.call(call, label)) };
        let context = state.context();
        known.insert(asked, context);
        if let Entry::Vacant(vacant) = kinds.entry(context) {
            // All calls of a context have the choices of one in its middle.
            let costs = round.costs.get(&asked);
            costs.into_iter().for_each(|costs| nccl.hand_over(context, costs.clone()));
            let situation = nccl.situation(&State { bytes: context.typical_bytes(), ..state });
            counts.by_nccl_costs += u64::from(costs.is_some() && situation.is_some());
            if let Some(situation) = &situation {
                tuner.remember(remembered.recall(situation));
            }
            vacant.insert(situation.map(Kind::new));
        }
        context
    }

    /// What the calls of a context took in a round under this policy, arm by arm.
    fn taken(&mut self, context: &Context, calls: &[&Measured], policy: u64) -> Vec<Taken> {
        let played = self.played(policy, context);
        let JobTuner { tuner, counts, nccl, kinds, unheard, .. } = self;
        let Some(Some(kind)) = kinds.get_mut(context) else {
            counts.without_choice += calls.len() as u64;
            return Vec::new();
        };
        let said = played.map(|choice| (kind.situation.arm_of(choice), Shown::by(nccl, context, choice)));
        let mut seconds: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        if let Some((arm, _)) = said {
            // Also where no call went this way: that this round's decision was not seen is known then.
            seconds.insert(arm, Vec::new());
        }
        for call in calls {
            let arm = match &said {
                Some((arm, shown)) => shown.is_shown_by(call).then_some(*arm),
                None => arm_of(&kind.situation, call),
            };
            match arm {
                Some(arm) => seconds.entry(arm).or_default().push(call.seconds),
                None => counts.not_honoured += 1,
            }
        }
        if let Some((arm, _)) = said {
            let is_heard = seconds.get(&arm).is_some_and(|seconds| !seconds.is_empty());
            if kind.is_given_up(tuner, arm, is_heard) {
                let (action, known) = (kind.situation.arms[arm].action, unheard.entry(*context).or_default());
                if !known.contains(&action) {
                    known.push(action);
                }
                seconds.remove(&arm);
            }
        }
        seconds.into_iter().map(|(arm, seconds)| (*context, arm, seconds)).collect()
    }

    /// Sees by a round how much others are in the way: its times are those on which all ranks would agree, as each is the least of all of
    /// them, and nobody but this tuner has to know. Contexts stay what they are, as on our communicator.
    fn observe_congestion(&mut self, taken: &[Taken]) {
        let mut observed = mem::take(&mut self.observed);
        let made = taken.iter().filter_map(|(context, arm, seconds)| {
            let kind = self.kinds.get(context)?.as_ref()?;
            Some((*context, kind.situation.choice(*arm), mean(seconds)))
        });
        let level = observed.observe(made, |context| self.best(context));
        self.observed = observed;
        self.kinds.values_mut().flatten().for_each(|kind| kind.situation.state.congestion = level);
    }

    /// How much others are in the way.
    pub fn congestion(&self) -> Congestion {
        self.observed.level()
    }

    /// What the calls that were learned from have taken since the network has last changed, and what it would have saved to know from the
    /// start what is best by the times of calls.
    pub fn cost(&self) -> Cost {
        self.kinds.iter().filter_map(|(context, kind)| Some(kind.as_ref()?.cost(self.best(context)))).sum()
    }

    /// What a policy has the calls of a context take. None: another has written it, and nobody here knows.
    fn played(&self, policy: u64, context: &Context) -> Option<Choice> {
        match self.written.get(&policy) {
            Some(choices) => Some(choices.get(context).copied().unwrap_or_default()),
            None => (policy == 0).then_some(Choice::Default),
        }
    }

    /// Lets the time of the iteration decide about what was found, call by call.
    fn judge(&mut self, round: &Round) {
        // What they took with other choices says nothing about these.
        let iteration_s = round.iteration_s.filter(|_| self.is_played(round.policy));
        let found = self.found();
        if round.iteration_s.is_some() {
            self.whole.get_or_insert_with(|| Whole::new(TURNS_SEED, TRIED_AGAIN));
        }
        let event = self.whole.as_mut().and_then(|whole| whole.judge(found, iteration_s.as_slice(), 1));
        if event == Some(Event::Changed) {
            for kind in self.kinds.values_mut().flatten() {
                kind.give_up(&mut self.tuner);
                self.tuner.changed(&kind.situation);
            }
        }
    }

    /// Does this policy have calls take what the time of this round's iterations is to be known of: what stands, or their turn?
    fn is_played(&self, policy: u64) -> bool {
        let wanted = match self.turn() {
            Turn::ByCalls => self.settled(),
            Turn::Found(_) | Turn::Default => self.policy(),
        };
        let wanted = nccl_policy::played(&wanted, self.contexts(), &self.nccl);
        wanted.iter().all(|(context, choice)| self.played(policy, context) == Some(*choice))
    }

    /// What is better than NCCL's own choice by the times of calls; None while a kind of calls is open.
    fn found(&self) -> Option<Found> {
        let contexts = self.contexts().map(|context| (*context, self.best(context)));
        (self.undecided() == 0).then(|| contexts.filter(|(_, choice)| *choice != Choice::Default).collect())
    }

    /// What the next round takes, tries among it.
    pub fn policy(&self) -> Policy {
        let turn = self.turn();
        let entries = self.kinds.iter().filter_map(|(context, kind)| {
            let kind = kind.as_ref()?;
            let choice = match turn {
                Turn::ByCalls => kind.to_play().unwrap_or_else(|| self.best(context)),
                Turn::Found(found) => found.get(context).copied().unwrap_or_default(),
                Turn::Default => Choice::Default,
            };
            Some((*context, Schedule::always(choice)))
        });
        Policy::new(self.version, entries)
    }

    fn turn(&self) -> Turn<'_> {
        self.whole.as_ref().map_or(Turn::ByCalls, Whole::turn)
    }

    /// What stands, without tries: another policy, and so another version.
    pub fn settled(&self) -> Policy {
        Policy::new(self.version + 1, self.contexts().map(|context| (*context, Schedule::always(self.stands(context)))))
    }

    /// What NCCL was told of the calls of a context, and never did.
    pub fn unheard(&self) -> impl Iterator<Item = (&Context, &Action)> {
        self.unheard.iter().flat_map(|(context, actions)| actions.iter().map(move |action| (context, action)))
    }

    /// How many kinds of calls are not decided yet. Those that are seldom called hold nothing up.
    pub fn undecided(&self) -> usize {
        let is_open = |context: &Context, course: &Course| !course.is_decided() && !self.is_seldom(context);
        self.tuner.courses().filter(|(context, course)| is_open(context, course)).count()
    }

    /// Is nothing open, on trial or suspected? Then the next policy has no tries, and a round now and then shows if all stays so.
    pub fn is_settled(&self) -> bool {
        // What stands unused is not asked about any more, so that nobody would ever know.
        let is_used = |context: &Context| !self.is_seldom(context) && self.stands(context) == self.best(context);
        let is_open = |course: &Course| course.is_suspicious() || course.is_within_block();
        let suspected = self.tuner.courses().any(|(context, course)| is_open(course) && is_used(context));
        let policy = self.policy();
        let mut contexts = self.contexts();
        !suspected
            && self.undecided() == 0
            && self.whole.as_ref().is_none_or(Whole::is_settled)
            && contexts.all(|context| policy.choice(context.key(), 0) == self.stands(context))
    }

    /// What the time of the iteration has come to. None: no round has said it.
    pub fn whole(&self) -> Option<&Whole> {
        self.whole.as_ref()
    }

    /// How many kinds of calls take something that has won its trial, and how many something that is tried.
    pub fn standing_and_tried(&self) -> (usize, usize) {
        let policy = self.policy();
        let (mut standing, mut tried) = (0, 0);
        for context in self.contexts() {
            let (stands, next) = (self.stands(context), policy.choice(context.key(), 0));
            standing += usize::from(stands != Choice::Default);
            // The default may be asked beside what stands.
            tried += usize::from(next != stands && next != Choice::Default);
        }
        (standing, tried)
    }

    /// What is believed of NCCL.
    pub fn nccl(&self) -> &NcclModel {
        &self.nccl
    }

    /// A policy as the plug-in reads it.
    pub fn written(&self, policy: &Policy) -> String {
        nccl_policy::write(policy, self.contexts(), &self.nccl)
    }

    /// Those that there is a choice for.
    fn contexts(&self) -> impl Iterator<Item = &Context> {
        self.kinds.iter().filter(|(_, kind)| kind.is_some()).map(|(context, _)| context)
    }

    fn is_seldom(&self, context: &Context) -> bool {
        self.kinds.get(context).and_then(Option::as_ref).is_some_and(Kind::is_seldom)
    }

    /// What stands: where it is known what iterations take, only what has shortened them.
    fn stands(&self, context: &Context) -> Choice {
        self.whole.as_ref().map_or_else(|| self.best(context), |whole| whole.chosen(context))
    }

    /// What is best by the times of calls.
    fn best(&self, context: &Context) -> Choice {
        self.tuner.stands_with(context)
    }

    /// What a later job may begin with: what was measured here, and what earlier jobs have told and this one has not measured again.
    pub fn lessons(&self) -> Vec<Lesson> {
        let situation_of = |context: &Context| self.kinds.get(context)?.as_ref().map(|kind| &kind.situation);
        self.remembered.lessons(self.tuner.lessons(), situation_of)
    }
}

impl Model {
    /// A call as far as it is known.
    fn call(self, call: &Measured, label: Label) -> Call {
        let Label { parallelism, is_pipelined_layer, is_fused_call, is_ps_deployment } = label;
        Call {
            collective: NcclModel::collective(call.function),
            bytes: call.bytes,
            ranks: call.ranks,
            hosts: call.hosts,
            parallelism,
            is_pipelined_layer,
            is_fused_call,
            is_ps_deployment,
            model_intensity: self.intensity,
            local_batch: self.local_batch,
            times: 1,
        }
    }
}

/// What a call that goes the way of a choice shows of it. How large its chunks were, a sample does not say; that is believed.
struct Shown {
    /// None: whatever NCCL does by itself.
    way: Option<(Algorithm, Protocol)>,
    /// NCCL may take fewer.
    channels_max: u32,
}

impl Shown {
    fn by(nccl: &NcclModel, context: &Context, choice: Choice) -> Shown {
        let Choice::Play(action) = choice else { return Shown { way: None, channels_max: u32::MAX } };
        // Only fewer channels than NCCL's own are said.
        let channels = u32::from(action.channels);
        let is_bound = nccl.own_channels(context, &action).is_some_and(|own| channels < own);
        Shown { way: NcclModel::way(&action), channels_max: if is_bound { channels } else { u32::MAX } }
    }

    fn is_shown_by(&self, call: &Measured) -> bool {
        self.way.is_none() || self.way == call.way && call.channels <= self.channels_max
    }
}

/// The arm that a call took under a policy that nobody here has written, as far as a sample says it.
fn arm_of(situation: &Situation, call: &Measured) -> Option<usize> {
    call.way?;
    situation.arms.iter().position(|arm| {
        let channels = u32::from(arm.action.channels);
        arm.action.chunk_log2 == 0 && channels == call.channels && NcclModel::way(&arm.action) == call.way
    })
}

#[cfg(test)]
mod tests;
