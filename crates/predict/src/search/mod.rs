//! The best strategy for a job: what a [`Strategy`] leaves open is searched for.
//!
//! A strategy leaves open its arch (`arch=auto`), its schedule (`schedule=auto`), both (`auto`), or neither; where a cluster tells
//! protocols apart, also its protocol; and a worker may compute any of several local batches. For each way to communicate (an
//! all-reduce algorithm; so many shards, here or there; over which protocol) and each batch:
//!
//! 1. *Costs*: what one operation more of so many bytes occupies the communication for, from predictions of operations alone.
//! 2. *Bound*: no plan is shorter than what the fastest bytes and the computation allow. Ways are looked at in the order of
//!    their bounds, and left out when the bound is worse than the best plan found: branch and bound. Only the first of each
//!    place (all-to-all, servers beside the workers, servers on hosts of their own), protocol and batch is looked at in any
//!    case, to be compared.
//! 3. *Schedules*: all that the grammar names, with a grid of arguments, and `schedule=auto`, whose best merge is exact on one
//!    channel (dynamic programming) and whose overlapping plans are a heuristic. Every plan is predicted by the simulator.
//! 4. *Improvement*: of the best ways, and the best one of each place, the best plans are changed bucket by bucket (merged, split,
//!    cut) as long as the prediction gets better: a heuristic, too. [`Candidate::gap`] says how far from its bound a candidate is at most.
//!
//! The search is deterministic. Its error against all plans of small instances is tested to be below 0.5 %.
//!
//! Sources: the structure of the choice is that of Shi et al., "Communication-efficient distributed deep learning" (arXiv
//! 2005.13247), whose open problem it answers; branch and bound: Land and Doig, Econometrica 28(3), 1960.

mod bound;
mod choose;
mod costs;
mod ddp;
mod explanation;
mod improve;
mod played;
mod schedules;
#[cfg(test)]
mod tests;
mod ways;
mod what_if;

use std::cell::Cell;

use paceline_plan::{Cluster, Plan, Profile};
use paceline_schedule::{CommunicationTime, ScheduleError, Schedulers, Workload};
use paceline_strategy::{Call, Strategy};

use crate::prediction::{point, too_large};
use crate::{Job, PredictError, Prediction, job, predict_plan};
use choose::WORTH_LEAVING;
use costs::Costs;
use ways::Way;

pub use choose::{Caution, OpenWorld};
pub use costs::{AllReduceSeconds, all_reduce_seconds, operation_alone_s, operation_rounds, operations_alone_s};
pub use ddp::{DdpSettings, ddp_settings};
pub use explanation::{Effect, Explanation, Room, Surroundings, Verdict, explain, explain_in, mark};
pub use ways::archs_of_world;
pub use what_if::{Change, ChangeError, apply_changes, unmeasured, without_effect};

/// A job of which something is left open.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Where it runs.
    pub cluster: &'a Cluster,
    /// What a worker computes.
    pub profile: &'a Profile,
    /// On how many workers.
    pub workers: usize,
    /// What may be chosen.
    pub space: &'a Space,
}

/// What may be chosen.
#[derive(Clone, Debug)]
pub struct Space {
    /// The schedules that there are, and their words.
    pub schedulers: Schedulers,
    /// What it leaves open is searched for; the rest stays. Into which partitions servers want buckets to be cut is open with
    /// the schedule.
    pub strategy: Strategy,
    /// What `arch=auto` may stand for. Empty: everything for which the cluster has room. In a world that is there:
    /// [`archs_of_world`].
    pub archs: Vec<Call>,
    /// Samples per worker and iteration; empty: those of the profile.
    pub local_batches: Vec<usize>,
    /// May communication go on while the next forward pass runs?
    pub forward_overlap: bool,
    /// May the result of training be another than that of single-worker SGD on the joined batch?
    pub lossy: bool,
    /// At most so many plans are predicted to improve the best ones; one of many operations counts as several.
    pub effort: usize,
    /// So many candidates get the interval of their prediction, [the best of each kind](Answer::best_of_each_kind); others
    /// have it collapsed to a point.
    pub intervals: usize,
    /// Shall the first candidate be played message by message where formulas know too little of it, and the next one, until one is the
    /// first of which that is not so? (`few partitions` of [`Prediction::extrapolated`]: servers take longer with them than formulas say.)
    pub messages: bool,
}

/// Enough for a bucket-by-bucket look at a model of a few hundred tensors.
const EFFORT: usize = 400;

/// As many as people look at.
const INTERVALS: usize = 10;

impl Default for Space {
    /// Everything that is lossless.
    fn default() -> Space {
        let strategy = Strategy {
            sync: Call::named("bsp"),
            compress: vec![Call::named("none")],
            schedule: Call::named("auto"),
            arch: Call::named("auto"),
            protocol: Call::named("auto"),
        };
        Space::of(Schedulers::built_in(), strategy)
    }
}

impl Space {
    /// Everything that is lossless and that a strategy leaves open.
    pub fn of(schedulers: Schedulers, strategy: Strategy) -> Space {
        Space {
            schedulers,
            strategy,
            archs: Vec::new(),
            local_batches: Vec::new(),
            forward_overlap: true,
            lossy: false,
            effort: EFFORT,
            intervals: INTERVALS,
            messages: false,
        }
    }
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Answer {
    /// For each way to communicate and each schedule the best one, the highest throughput first, but for the answer, which is
    /// the simplest of those that are as good; never empty. Some have intervals ([`Space::intervals`]), and the first a
    /// timeline.
    pub candidates: Vec<Candidate>,
    /// Ways that cannot be the best.
    pub left_out: Vec<LeftOut>,
    /// How many plans were predicted; what operations cost by themselves not counted.
    pub predictions: usize,
    /// How many candidates were played message by message ([`Space::messages`]).
    pub played: usize,
    /// Where everything was open for which the cluster has room: what of it a world has in which `strategy=auto` chooses. None: the
    /// question has said what is there.
    pub world: Option<OpenWorld>,
}

/// A strategy and what it would do.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// With nothing left open, but for `schedule=auto`: then the plan of the prediction is what it stands for.
    pub strategy: Strategy,
    /// Samples per worker and iteration.
    pub local_batch: usize,
    /// What it would do, and its plan.
    pub prediction: Prediction,
    /// By which share at most a plan on the same way could be predicted to be shorter than this one: its distance from the
    /// bound. 0 is proof that none is.
    pub gap: f64,
    /// Seconds of its iteration, if messages have said it.
    by_message_s: Option<f64>,
}

/// A way to communicate that was not looked at, or a schedule on it.
#[derive(Clone, Debug)]
pub struct LeftOut {
    /// The way: `a2a:direct`, `ps:1:…`.
    pub arch: String,
    /// Over which protocol; None: there was none to choose.
    pub protocol: Option<String>,
    /// The schedule on it; None: all.
    pub schedule: Option<String>,
    /// Samples per worker and iteration.
    pub local_batch: usize,
    /// Why.
    pub reason: Reason,
}

/// Why a way was not looked at.
#[derive(Clone, Debug)]
pub enum Reason {
    /// No plan on it has a higher throughput than this, in samples per second, and the best one found does.
    Bound(f64),
    /// It cannot be predicted.
    Refused(String),
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SearchError {
    /// The job cannot be predicted, whatever is chosen.
    #[error(transparent)]
    Predict(#[from] PredictError),
    /// There is no plan.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// Something that stays is lossy, and nothing lossy was admitted.
    #[error("{strategy} changes the result of training; admit lossy methods, or leave the aspect out")]
    Lossy {
        /// What stays.
        strategy: String,
    },
    /// Everything was refused.
    #[error("no strategy can run {model} on {workers} workers of {cluster}: {reason}")]
    Nothing {
        /// The model.
        model: String,
        /// How many workers.
        workers: usize,
        /// The cluster.
        cluster: String,
        /// Why the first one cannot.
        reason: String,
    },
}

/// Candidates within this share of each other are as good: of such the one that was found first stays, which is the simpler
/// one.
const TIE: f64 = 1e-6;

/// For less than this share of the throughput nobody wants servers, or more of them, or a less simple schedule.
const WORTH: f64 = 5e-4;

/// The best strategy, and the others behind it.
///
/// Costs about 80 estimates of a few operations for each way to communicate, about 40 of whole iterations for each that is
/// not left out, and [`Space::effort`] more; then intervals for [`Space::intervals`] candidates.
///
/// # Errors
/// The job makes no sense; something lossy stays; no strategy can be predicted.
pub fn search(question: &Question) -> Result<Answer, SearchError> {
    let Question { cluster, profile, space, .. } = *question;
    cluster.check().map_err(PredictError::from)?;
    profile.check().map_err(PredictError::from)?;
    job::shape_of(cluster, question.workers)?;
    if !space.lossy && !space.strategy.lossless(space.schedulers.grammar()) {
        return Err(SearchError::Lossy { strategy: space.strategy.to_string() });
    }
    let own = [profile.local_batch];
    let batches = if space.local_batches.is_empty() { &own[..] } else { &space.local_batches };
    let profiles: Vec<Profile> = batches.iter().map(|&batch| profile.for_batch(batch.max(1))).collect();
    let (all, predictions) = (ways::ways(question), Cell::new(0));
    let mut found = Found::default();
    let mut bounded = Vec::new();
    for (profile, way) in profiles.iter().flat_map(|profile| all.iter().map(move |way| (profile, way))) {
        let way_or_reason = match too_large(profile) {
            Some(reason) => Err(reason),
            None => BoundedWay::new(Subject { question, profile, predictions: &predictions }, way)
                .map_err(|error| error.to_string()),
        };
        match way_or_reason {
            Ok(way) => bounded.push(way),
            Err(reason) => found.left_out.push(LeftOut::of(question, way, profile, None, Reason::Refused(reason))),
        }
    }
    bounded.sort_by(|one, other| other.samples_per_s_max.total_cmp(&one.samples_per_s_max));
    let (mut kinds, world) = (Vec::new(), OpenWorld::of(question));
    for way in &bounded {
        let strategy = &way.way.strategy;
        // What `auto` would take is told, too, where it cannot take the answer.
        let is_in_world = world.as_ref().is_none_or(|world| world.has(strategy));
        let kind = (way.way.place(), &strategy.protocol.name, way.subject.profile.local_batch, is_in_world);
        let first = !kinds.contains(&kind);
        // A simpler one that is hardly slower would be the answer, and one of which more is known.
        if !first && way.samples_per_s_max <= found.worth_a_look(question.space.messages) {
            found.leave_out(way, None, Reason::Bound(way.samples_per_s_max));
        } else if schedules::try_all(way, &mut found) > 0 && first {
            kinds.push(kind);
        }
    }
    improve::improve(&bounded, &mut found);
    found.answer(question, world, predictions.get())
}

/// What does not change within a batch.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    question: &'a Question<'a>,
    /// For the batch.
    profile: &'a Profile,
    /// How many there were.
    predictions: &'a Cell<usize>,
}

/// A way to communicate, and what is known of it before any plan is made.
pub(crate) struct BoundedWay<'a> {
    subject: Subject<'a>,
    way: &'a Way,
    job: job::Subject<'a>,
    network: job::Costs,
    costs: Costs,
    /// No iteration is shorter.
    bound_s: f64,
    samples_per_s_max: f64,
}

impl<'a> BoundedWay<'a> {
    fn new(subject: Subject<'a>, way: &'a Way) -> Result<BoundedWay<'a>, PredictError> {
        let Question { cluster, workers, .. } = *subject.question;
        let job = Job { cluster, profile: subject.profile, strategy: &way.strategy, workers, local_batch: None };
        let job = job::Subject::new(&job)?;
        let network = job.costs(cluster)?;
        let costs = Costs::of(subject, way, &network)?;
        let rate = network.communication.seconds_per_byte_min();
        let bound_s = bound::iteration_s(subject.profile, !job.servers_update(), network.slowness_min(), rate);
        let samples = (workers * subject.profile.local_batch) as f64;
        Ok(BoundedWay { subject, way, job, network, costs, bound_s, samples_per_s_max: samples / bound_s })
    }

    /// What plans are made from, on a network of so much per operation.
    fn workload<'b>(&self, cost: &'b CommunicationTime<'b>) -> Workload<'b> {
        let Question { cluster, workers, space, .. } = *self.subject.question;
        let workload = Workload::of_profile(self.subject.profile).with_world(workers, cluster.hosts_of(workers));
        let mut workload = workload.slowed(self.network.slowness());
        workload.forward = workload.forward.filter(|_| space.forward_overlap);
        workload.with_communication(cost)
    }

    /// What a plan on this way would do; without interval and timeline.
    fn estimate(&self, plan: &Plan) -> Result<Prediction, PredictError> {
        self.job.check(plan)?;
        self.subject.predictions.set(self.subject.predictions.get() + 1);
        Ok(point(&self.job, &self.network, plan.clone(), false))
    }
}

impl Candidate {
    /// Where it leaves what was measured, and another plan may not.
    fn doubts(&self) -> usize {
        let Prediction { extrapolated, estimates, of_any_plan, .. } = &self.prediction;
        extrapolated.len().saturating_sub(estimates + of_any_plan)
    }
}

/// What the search has come to.
#[derive(Default)]
pub(crate) struct Found {
    candidates: Vec<Candidate>,
    left_out: Vec<LeftOut>,
}

impl Found {
    /// What is at most so fast cannot be the answer: samples per second. Where messages decide, those do not count that may take longer.
    fn worth_a_look(&self, messages: bool) -> f64 {
        let rate = |candidate: &&Candidate| candidate.prediction.samples_per_s;
        let counts = |candidate: &&Candidate| !(messages && candidate.prediction.knows_few_partitions());
        let best = self.candidates.iter().filter(counts).max_by(|one, other| rate(one).total_cmp(&rate(other)));
        best.map_or(0.0, |best| rate(&best) * (1.0 - if best.doubts() > 0 { WORTH_LEAVING } else { WORTH }))
    }

    /// Takes in a candidate, instead of a worse one of the same way and schedule.
    fn add(&mut self, way: &BoundedWay, strategy: Strategy, prediction: Prediction) {
        let gap = 1.0 - way.bound_s / prediction.iteration_s;
        debug_assert!(gap > -1e-9, "{strategy} is below its bound, by {gap}");
        // But for rounding.
        let gap = gap.max(0.0);
        let local_batch = way.subject.profile.local_batch;
        let new = Candidate { strategy, local_batch, prediction, gap, by_message_s: None };
        match self.candidates.iter_mut().find(|known| known.is_like(&new)) {
            Some(known) if known.prediction.iteration_s * (1.0 - TIE) <= new.prediction.iteration_s => {}
            Some(known) => *known = new,
            None => self.candidates.push(new),
        }
    }

    fn leave_out(&mut self, way: &BoundedWay, schedule: Option<String>, reason: Reason) {
        let Subject { question, profile, .. } = way.subject;
        self.left_out.push(LeftOut::of(question, way.way, profile, schedule, reason));
    }

    fn answer(self, question: &Question, world: Option<OpenWorld>, predictions: usize) -> Result<Answer, SearchError> {
        let Found { mut candidates, left_out } = self;
        rank(&mut candidates);
        if candidates.is_empty() {
            let reason = left_out.iter().find_map(|one| match &one.reason {
                Reason::Refused(reason) => Some(reason.clone()),
                Reason::Bound(_) => None,
            });
            return Err(SearchError::Nothing {
                model: question.profile.model.clone(),
                workers: question.workers,
                cluster: question.cluster.name.clone(),
                reason: reason.unwrap_or_else(|| "there is nothing to choose from".to_owned()),
            });
        }
        let played = if question.space.messages { played::settle(&mut candidates, question) } else { 0 };
        let mut answer = Answer { candidates, left_out, predictions, played, world };
        for place in answer.first_of_each_kind().into_iter().take(question.space.intervals) {
            let candidate = &mut answer.candidates[place];
            candidate.prediction = candidate.predict(question)?;
        }
        answer.candidates.iter_mut().skip(1).for_each(|candidate| candidate.prediction.timeline = Vec::new());
        Ok(answer)
    }
}

/// The highest throughput first, but of those that are as good as that the simplest.
fn rank(candidates: &mut [Candidate]) {
    let samples_per_s = |candidate: &Candidate| candidate.prediction.samples_per_s;
    candidates.sort_by(|one, other| samples_per_s(other).total_cmp(&samples_per_s(one)));
    let enough = candidates.first().map_or(0.0, samples_per_s) * (1.0 - WORTH);
    let as_good = candidates.iter().take_while(|candidate| samples_per_s(candidate) >= enough);
    let simplest = as_good.enumerate().min_by_key(|(_, candidate)| candidate.complexity());
    if let Some(simplest) = simplest.map(|(place, _)| place) {
        candidates[..=simplest].rotate_right(1);
    }
}

impl LeftOut {
    fn of(question: &Question, way: &Way, profile: &Profile, schedule: Option<String>, reason: Reason) -> LeftOut {
        let Strategy { arch, protocol, .. } = &way.strategy;
        let protocol = ways::protocol_is_chosen(question).then(|| protocol.to_string());
        LeftOut { arch: arch.to_string(), protocol, schedule, local_batch: profile.local_batch, reason }
    }
}

impl Candidate {
    /// Of two that are as good: rather the protocol that the runtime takes by itself, rather no servers, rather beside the workers, rather
    /// few; the algorithm that the runtime takes; then a schedule that is easily told.
    fn complexity(&self) -> (bool, bool, bool, u64, bool, usize) {
        let Strategy { schedule, arch, protocol, .. } = &self.strategy;
        let dedicated = arch.word(2) == Some("dedicated");
        let place = schedules::SIMPLE.iter().position(|name| *name == schedule.name);
        let place = place.unwrap_or(schedules::SIMPLE.len() + usize::from(schedule.name == "auto"));
        let names_algorithm = arch.name != "ps" && arch.word(0).is_some_and(|algorithm| algorithm != "auto");
        (protocol.name != "auto", arch.name == "ps", dedicated, arch.number(0).unwrap_or(0), names_algorithm, place)
    }

    /// Of the same way, schedule and batch, whatever the arguments? (Of servers with few partitions formulas know too little to prefer them to
    /// the same with more.)
    fn is_like(&self, other: &Candidate) -> bool {
        let place = |strategy: &Strategy| {
            let servers = strategy.arch.name == "ps";
            (strategy.arch.number(0), strategy.arch.word(if servers { 2 } else { 0 }).map(str::to_owned))
        };
        self.strategy.schedule.name == other.strategy.schedule.name
            && self.strategy.protocol == other.strategy.protocol
            && self.strategy.arch.name == other.strategy.arch.name
            && place(&self.strategy) == place(&other.strategy)
            && self.prediction.knows_few_partitions() == other.prediction.knows_few_partitions()
            && self.local_batch == other.local_batch
    }

    /// The same prediction, with its interval and its timeline.
    fn predict(&self, question: &Question) -> Result<Prediction, PredictError> {
        let predicted = predict_plan(&self.job(question), &self.prediction.plan)?;
        Ok(match self.by_message_s {
            Some(iteration_s) => {
                Prediction { timeline: self.prediction.timeline.clone(), ..predicted.by_message(iteration_s) }
            }
            None => predicted,
        })
    }
}

impl Answer {
    /// The highest throughput.
    pub fn best(&self) -> &Candidate {
        &self.candidates[0]
    }

    /// Of each kind of arch (all-to-all, servers beside the workers, servers on hosts of their own), each schedule, each protocol
    /// and each batch the best candidate, the best of all first: what others differ from in the algorithm or the number of shards.
    pub fn best_of_each_kind(&self) -> impl Iterator<Item = &Candidate> {
        self.first_of_each_kind().into_iter().map(|place| &self.candidates[place])
    }

    fn first_of_each_kind(&self) -> Vec<usize> {
        let kind = |candidate: &Candidate| {
            let Strategy { arch, schedule, protocol, .. } = &candidate.strategy;
            let place = arch.word(2).filter(|_| arch.name == "ps").map(str::to_owned);
            (arch.name.clone(), place, schedule.name.clone(), protocol.name.clone(), candidate.local_batch)
        };
        let kinds: Vec<_> = self.candidates.iter().map(kind).collect();
        (0..kinds.len()).filter(|&place| !kinds[..place].contains(&kinds[place])).collect()
    }
}
