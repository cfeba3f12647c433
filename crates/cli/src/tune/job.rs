//! A tuner that learns of NCCL's calls from what a job has recorded, round by round.
//!
//! How often NCCL asks about a call is no number that ranks agree on, so a policy of its plug-in holds one choice for a kind of
//! call, and no turns. What is to be tried is tried for a round: all calls of a kind take the same in it, and their mean time counts
//! once, for the learner, the guard and the trial. Rounds are to these what calls are elsewhere.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use paceline_tune::environment::{Call, CostModel, NcclModel};
use paceline_tune::learner::{Lesson, Remembered};
use paceline_tune::nccl::{Algorithm, Protocol};
use paceline_tune::{
    Action, Choice, Context, Decision, Parallelism, Policy, Schedule, Situation, Standing, State, Tuner, nccl_policy,
};

use super::samples::{Measured, Round};

/// A decision that was not played in so many rounds is given up: what is set aside for it is free again.
const WAITS_MAX: u32 = 8;

/// What calls were to take in so many rounds, and none of them took, is none of NCCL's choices.
const UNHEARD_MAX: u32 = 3;

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
}

/// A tuner, with what it has decided and not yet seen.
pub struct JobTuner<'a> {
    /// What is learned.
    pub tuner: Tuner,
    /// What became of the rounds.
    pub counts: Counts,
    nccl: &'a NcclModel,
    model: Model,
    /// None: there is nothing to choose.
    kinds: BTreeMap<Context, Option<Kind>>,
    /// What earlier jobs have learned.
    remembered: Remembered,
    /// What each policy that may have been written has the calls of a context take.
    written: BTreeMap<u64, BTreeMap<Context, Choice>>,
    /// Of the last one with tries, an even number; the next one is that without tries. 0: there was no round.
    version: u64,
    /// What NCCL was told, and never did.
    unheard: BTreeMap<Context, Vec<Action>>,
}

/// Calls of a context.
struct Kind {
    situation: Situation,
    /// What was decided for a round that was not seen yet.
    pending: Option<Decision>,
    /// The rounds that have passed since.
    waited: u32,
    /// By arm, the rounds in which it was said, and no call went that way.
    unheard: BTreeMap<usize, u32>,
}

impl<'a> JobTuner<'a> {
    /// With a tuner that knows nothing, and what earlier jobs have kept.
    pub fn new(nccl: &'a NcclModel, model: Model, tuner: Tuner, lessons: &[Lesson]) -> JobTuner<'a> {
        let mut remembered = Remembered::default();
        remembered.add(lessons.iter().copied());
        JobTuner {
            tuner,
            counts: Counts::default(),
            nccl,
            model,
            kinds: BTreeMap::new(),
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
            made.entry(self.meet(call)).or_default().push(call);
        }
        self.counts.rounds += 1;
        for (context, calls) in &made {
            self.observe(context, calls, round.policy);
        }
        for (context, kind) in &mut self.kinds {
            let Some(kind) = kind else { continue };
            kind.waited += u32::from(kind.pending.is_some());
            if kind.waited > WAITS_MAX
                && let Some(decision) = kind.pending.take()
            {
                self.tuner.observe(&kind.situation, decision, f64::NAN);
            }
            if kind.pending.is_none() {
                kind.waited = 0;
                // What is not called is not decided about: it would be given up for nothing.
                kind.pending = made.contains_key(context).then(|| self.tuner.decide(&kind.situation));
            }
        }
        // Whichever of the two is given to the job: what it had calls take is known.
        self.version = 2 * (self.version.max(round.policy) / 2 + 1);
        for policy in [self.policy(), self.settled()] {
            let played = nccl_policy::played(&policy, self.contexts(), self.nccl);
            self.written.insert(policy.version(), played);
        }
    }

    /// The context of a call, which may be the first of it.
    fn meet(&mut self, call: &Measured) -> Context {
        let JobTuner { tuner, nccl, model, kinds, remembered, .. } = self;
        let state = nccl.state(&model.call(call));
        let context = state.context();
        if let Entry::Vacant(vacant) = kinds.entry(context) {
            // All calls of a context have the choices of one in its middle.
            let situation = nccl.situation(&State { bytes: context.typical_bytes(), ..state });
            if let Some(situation) = &situation {
                tuner.remember(remembered.recall(situation));
            }
            vacant.insert(situation.map(|situation| Kind {
                situation,
                pending: None,
                waited: 0,
                unheard: BTreeMap::new(),
            }));
        }
        context
    }

    /// Learns from the calls of a context in a round under this policy.
    fn observe(&mut self, context: &Context, calls: &[&Measured], policy: u64) {
        let played = self.played(policy, context);
        let JobTuner { tuner, counts, nccl, kinds, unheard, .. } = self;
        let Some(Some(kind)) = kinds.get_mut(context) else {
            counts.without_choice += calls.len() as u64;
            return;
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
        for (arm, seconds) in seconds {
            counts.calls += seconds.len() as u64;
            // No number if there are none, which is no time.
            let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
            kind.observe(tuner, arm, mean);
        }
    }

    /// What a policy has the calls of a context take. None: another has written it, and nobody here knows.
    fn played(&self, policy: u64, context: &Context) -> Option<Choice> {
        match self.written.get(&policy) {
            Some(choices) => Some(choices.get(context).copied().unwrap_or_default()),
            None => (policy == 0).then_some(Choice::Default),
        }
    }

    /// What the next round takes, tries among it.
    pub fn policy(&self) -> Policy {
        let entries = self.kinds.iter().filter_map(|(context, kind)| {
            let kind = kind.as_ref()?;
            let choice = match kind.pending {
                Some(decision) => kind.situation.choice(decision.arm),
                None => self.stands(context),
            };
            Some((*context, Schedule::always(choice)))
        });
        Policy::new(self.version, entries)
    }

    /// What stands, without tries: another policy, and so another version.
    pub fn settled(&self) -> Policy {
        Policy::new(self.version + 1, self.contexts().map(|context| (*context, Schedule::always(self.stands(context)))))
    }

    /// What NCCL was told of the calls of a context, and never did.
    pub fn unheard(&self) -> impl Iterator<Item = (&Context, &Action)> {
        self.unheard.iter().flat_map(|(context, actions)| actions.iter().map(move |action| (context, action)))
    }

    /// How many kinds of calls are not decided yet.
    pub fn undecided(&self) -> usize {
        self.tuner.courses().filter(|(_, course)| !course.is_decided()).count()
    }

    /// How many kinds of calls take something that has won its trial, and how many something that is tried.
    pub fn standing_and_tried(&self) -> (usize, usize) {
        let policy = self.policy();
        let (mut standing, mut tried) = (0, 0);
        for context in self.contexts() {
            if self.stands(context) != Choice::Default {
                standing += 1;
            } else if policy.choice(context.key(), 0) != Choice::Default {
                tried += 1;
            }
        }
        (standing, tried)
    }

    /// A policy as the plug-in reads it.
    pub fn written(&self, policy: &Policy) -> String {
        nccl_policy::write(policy, self.contexts(), self.nccl)
    }

    /// Those that there is a choice for.
    fn contexts(&self) -> impl Iterator<Item = &Context> {
        self.kinds.iter().filter(|(_, kind)| kind.is_some()).map(|(context, _)| context)
    }

    fn stands(&self, context: &Context) -> Choice {
        match self.tuner.courses().find(|(other, _)| *other == context).map(|(_, course)| course.standing()) {
            Some(Standing::Chosen(choice, _)) => choice,
            _ => Choice::Default,
        }
    }

    /// What a later job may begin with: what was measured here, and what earlier jobs have told and this one has not measured again.
    pub fn lessons(&self) -> Vec<Lesson> {
        let situation_of = |context: &Context| self.kinds.get(context)?.as_ref().map(|kind| &kind.situation);
        self.remembered.lessons(self.tuner.lessons(), situation_of)
    }
}

impl Kind {
    /// A policy has had calls take this arm in a round, and at least one of them did, or none. Is that one too many? Then it is out, as
    /// NCCL does not offer it.
    fn is_given_up(&mut self, tuner: &mut Tuner, arm: usize, is_heard: bool) -> bool {
        let rounds = if is_heard { 0 } else { self.unheard.remove(&arm).unwrap_or(0) + 1 };
        if rounds < UNHEARD_MAX {
            self.unheard.insert(arm, rounds);
            return false;
        }
        tuner.veto(&self.situation, arm);
        if let Some(decision) = self.pending.take_if(|decision| decision.arm == arm) {
            tuner.observe(&self.situation, decision, f64::NAN);
        }
        true
    }

    /// In a round all calls took this arm, so long in the mean. If it is what was decided, that is seen; if something else was
    /// played (the policy was refused, or there was no rule for it), the decision waits.
    fn observe(&mut self, tuner: &mut Tuner, arm: usize, mean_s: f64) {
        // The first round of a context is one of the default's, which is what comes first anyway.
        let decision = self.pending.take().unwrap_or_else(|| tuner.decide(&self.situation));
        if decision.arm == arm {
            self.waited = 0;
            tuner.observe(&self.situation, decision, mean_s);
        } else {
            self.pending = Some(decision);
            tuner.observe_repeated(&self.situation, arm, mean_s);
        }
    }
}

impl Model {
    /// A call as far as it is known. NCCL does not say for what it is: most are one of several in an iteration, of several tensors.
    fn call(self, call: &Measured) -> Call {
        Call {
            collective: NcclModel::collective(call.function),
            bytes: call.bytes,
            ranks: call.ranks,
            hosts: call.hosts,
            parallelism: Parallelism::Data,
            is_pipelined_layer: true,
            is_fused_call: true,
            is_ps_deployment: false,
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
