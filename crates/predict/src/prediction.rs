use std::fmt;

use paceline_plan::{Cluster, Constant, InterferenceConstants, Plan, Profile, Protocols, ServerConstants};
use paceline_schedule::{ELEMENT_BYTES, Schedulers};
use paceline_strategy::Strategy;
use serde::Serialize;

use crate::communication::{Communication, FEW_PARTITIONS, MESSAGES_MAX, Traffic, all_reduce_factor};
use crate::iteration::Span;
use crate::job::{Costs, Subject};
use crate::programs::Sending;
use crate::{ByMessage, Job, PredictError, interval};

/// What training would do.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// Seconds of an iteration among many.
    pub iteration_s: f64,
    /// Where it begins and ends with 95 %, as far as the intervals of the cluster's constants, and what the model leaves out, say; see
    /// [`predict`].
    pub low_s: f64,
    /// The end of the interval.
    pub high_s: f64,
    /// Samples per second of all workers.
    pub samples_per_s: f64,
    /// Times what a worker alone computes.
    pub speedup: f64,
    /// Seconds of forward, of the slowest worker; without what communication costs it.
    pub forward_s: f64,
    /// Seconds of backward.
    pub backward_s: f64,
    /// Seconds of the workers' optimiser; 0 if servers have it.
    pub update_s: f64,
    /// Seconds for which the busiest of what communicates is busy.
    pub communication_s: f64,
    /// Seconds of the iteration that are no computation: what of communication cannot be hidden, and what computation is
    /// slowed down by it.
    pub exposed_s: f64,
    /// f(N)/(M·I): how many numbers each worker sends for each operation that it computes. NaN if the profile has no
    /// multiply-accumulates.
    pub c2c: f64,
    /// I = 3 · multiply-accumulates of forward / D, per sample and parameter. None if the profile has none.
    pub intensity: Option<f64>,
    /// f(N) = 2(N − 1)/N: how often an all-reduce moves each number, at least.
    pub all_reduce_factor: f64,
    /// Bytes that the busiest worker sends in an iteration.
    pub bytes_sent: f64,
    /// Messages of all workers and servers in an iteration.
    pub messages: usize,
    /// What a worker takes of its device's memory. None: unknown.
    pub memory_bytes: Option<u64>,
    /// What bounds the iteration.
    pub bottleneck: Bottleneck,
    /// The share of the iteration for which that is busy.
    pub bottleneck_share: f64,
    /// Where the prediction leaves what was measured, in words. Empty: nowhere.
    pub extrapolated: Vec<String>,
    /// How many of these only say that a formula is an estimate: of an algorithm where workers share hosts, and of servers that have few
    /// partitions each. To whoever has timed operations, as `strategy=auto` has when it chooses, they are no reason for another plan.
    pub estimates: usize,
    /// How many of these are true of this model on this cluster, whatever the plan: they, too, are no reason for another one.
    pub(crate) of_any_plan: usize,
    /// In which pieces and which order gradients travel.
    pub plan: Plan,
    /// An iteration among many, of the slowest workers.
    pub timeline: Vec<Span>,
    /// What communication keeps busy for longest, and for how many seconds of an iteration.
    pub(crate) busiest: (Bottleneck, f64),
}

impl Prediction {
    /// The same where an iteration is known to take `iteration_s`, as one that was played does: with its interval, and whatever is
    /// counted in iterations, in proportion. What is busy, and when, stays as it was predicted.
    pub fn with_iteration_s(self, iteration_s: f64) -> Prediction {
        if ![self.iteration_s, iteration_s].iter().all(|seconds| *seconds > 0.0 && seconds.is_finite()) {
            return self;
        }
        let times = iteration_s / self.iteration_s;
        let computed_s = self.forward_s + self.backward_s + self.update_s;
        let exposed_s = (iteration_s - computed_s).max(0.0);
        let (bottleneck, busy_s) = bounds(iteration_s, exposed_s, computed_s, self.busiest);
        Prediction {
            iteration_s,
            low_s: self.low_s * times,
            high_s: self.high_s * times,
            samples_per_s: self.samples_per_s / times,
            speedup: self.speedup / times,
            exposed_s,
            bottleneck,
            bottleneck_share: (busy_s / iteration_s).min(1.0),
            ..self
        }
    }
}

impl Prediction {
    /// Do formulas leave out of it what messages know?
    pub(crate) fn knows_few_partitions(&self) -> bool {
        self.extrapolated.iter().any(|doubt| doubt.starts_with(FEW_PARTITIONS))
    }

    /// The same where its messages take `iteration_s`: they know what formulas leave out.
    pub(crate) fn by_message(self, iteration_s: f64) -> Prediction {
        let mut found = self.with_iteration_s(iteration_s);
        let told = found.extrapolated.len();
        found.extrapolated.retain(|doubt| !doubt.starts_with(FEW_PARTITIONS));
        found.estimates -= told - found.extrapolated.len();
        found
    }
}

/// What bounds an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bottleneck {
    /// Workers compute nearly all the time.
    Computation,
    /// The network interfaces of hosts with workers.
    LinkBetweenHosts,
    /// The links, or the bus, between the workers of a host.
    LinkWithinHost,
    /// What operations take to start.
    OperationStart,
    /// The network interfaces of hosts that only serve.
    ServerLink,
    /// The processors of servers.
    ServerProcessor,
}

/// In words that complete "It is limited by …".
impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Bottleneck::Computation => "computation",
            Bottleneck::LinkBetweenHosts => "the links between hosts",
            Bottleneck::LinkWithinHost => "the links within hosts",
            Bottleneck::OperationStart => "what operations take to start",
            Bottleneck::ServerLink => "the links of the servers",
            Bottleneck::ServerProcessor => "the processors of the servers",
        })
    }
}

/// As long as less than this share of an iteration is no computation, computation is what bounds it.
const HIDDEN: f64 = 0.05;

/// What bounds an iteration of which so much is exposed, and for how long it is busy.
fn bounds(iteration_s: f64, exposed_s: f64, computed_s: f64, busiest: (Bottleneck, f64)) -> (Bottleneck, f64) {
    if exposed_s <= HIDDEN * iteration_s { (Bottleneck::Computation, computed_s) } else { busiest }
}

/// What the survey publishes as the intensity of its models, by the names of their profiles. Its definition differs from
/// [`Prediction::intensity`]: for BERT it says 249 and 248, where three multiply-accumulates of forward for each parameter
/// are 190 and 191.
///
/// Source: Shi et al., arXiv 2005.13247, Table II.
pub fn published_intensity(model: &str) -> Option<f64> {
    let known = [("resnet50", 470.0), ("bert-base", 249.0), ("bert-large", 248.0)];
    known.iter().find(|(name, _)| *name == model).map(|(_, intensity)| *intensity)
}

/// Predicts a job, with an interval and a timeline.
///
/// The interval is of first order: each constant of the cluster that has one, and the profile's time, is moved to its ends while
/// all others and the plan stay, and the changes add up as independent errors do, by the root of their squares. What the model itself leaves out
/// is one of these: 6 % of an iteration of several workers, 1 % of one's (docs/prediction.md, "Intervals"). The cost is that of one
/// prediction for each end besides; [`estimate`] does without.
///
/// # Errors
/// The job makes no sense, or cannot be planned.
pub fn predict(job: &Job<'_>) -> Result<Prediction, PredictError> {
    predict_scheduled(job, &Schedulers::built_in())
}

/// The same with schedulers of the caller's own.
///
/// # Errors
/// As [`predict`].
pub fn predict_scheduled(job: &Job<'_>, schedulers: &Schedulers) -> Result<Prediction, PredictError> {
    let subject = Subject::new(job)?;
    let costs = subject.costs(job.cluster)?;
    let plan = subject.plan(&costs, schedulers)?;
    with_interval(&subject, point(&subject, &costs, plan, true))
}

/// Predicts a plan that the job's strategy need not make by itself.
///
/// # Errors
/// As [`predict`], and if the plan is for another model or other servers, or cannot be carried out.
pub fn predict_plan(job: &Job<'_>, plan: &Plan) -> Result<Prediction, PredictError> {
    let subject = Subject::new(job)?;
    subject.check(plan)?;
    let costs = subject.costs(job.cluster)?;
    with_interval(&subject, point(&subject, &costs, plan.clone(), true))
}

/// Predicts a job as [`predict`], without interval and timeline: what a search calls many times.
///
/// # Errors
/// As [`predict`].
pub fn estimate(job: &Job<'_>) -> Result<Prediction, PredictError> {
    let subject = Subject::new(job)?;
    let costs = subject.costs(job.cluster)?;
    let plan = subject.plan(&costs, &Schedulers::built_in())?;
    Ok(point(&subject, &costs, plan, false))
}

/// Predicts a plan as [`predict_plan`], without interval and timeline.
///
/// # Errors
/// As [`predict_plan`].
pub fn estimate_plan(job: &Job<'_>, plan: &Plan) -> Result<Prediction, PredictError> {
    let subject = Subject::new(job)?;
    subject.check(plan)?;
    let costs = subject.costs(job.cluster)?;
    Ok(point(&subject, &costs, plan.clone(), false))
}

/// Plays a plan of the job's strategy message by message: every worker computes by itself, and the programs of all operations under way
/// share the links of the cluster's topology. It is what [`predict_plan`] is held to, to a few percent, and knows no interval.
///
/// The cost is some microseconds for each message of three to ten iterations, or of those that the cluster wants drawn.
///
/// # Errors
/// As [`predict_plan`]; and [`PredictError::ByMessage`] for a worker alone, servers on the only host, and iterations of more than a
/// million messages.
pub fn predict_by_message(job: &Job<'_>, plan: &Plan) -> Result<ByMessage, PredictError> {
    played(job, plan, Sending::AtOnce, MESSAGES_MAX)
}

/// The same where links are emulated, whose messages take their turns at ports as [`Sending::Emulated`] says, if an iteration
/// has no more of them than `messages_max`. A port may be idle then for which others have something: a connection passes its next message only
/// when the last has passed both ports, as servers beside workers notice. Messages cost less to play, as they share no links.
///
/// # Errors
/// As [`predict_by_message`], with another number of messages.
pub fn predict_emulated(job: &Job<'_>, plan: &Plan, messages_max: usize) -> Result<ByMessage, PredictError> {
    played(job, plan, Sending::Emulated, messages_max)
}

/// Iterations of more messages are not played beside predictions.
pub const EMULATED_MESSAGES_MAX: usize = 200_000;

/// A prediction as it is where links are emulated: by as much longer or shorter as the messages of its plan take than formulas say of the same,
/// both without what no message knows: interference, what overtaking costs (messages overtake by themselves), and what servers were
/// measured to take besides.
///
/// # Errors
/// As [`predict_emulated`], and [`PredictError::ByMessage`] on a single host and for servers that have the optimiser.
pub fn played_emulated(job: &Job<'_>, prediction: &Prediction) -> Result<Prediction, PredictError> {
    if job.cluster.hosts_of(job.workers) < 2 {
        return Err(PredictError::ByMessage("all workers are on a single host".into()));
    }
    match in_proportion(job, prediction, Sending::Emulated, EMULATED_MESSAGES_MAX)? {
        (found, left_out) if left_out.is_empty() => Ok(found),
        (_, left_out) => Err(PredictError::ByMessage(format!("messages say nothing of {}", left_out.join(", ")))),
    }
}

/// Candidates of more messages are not played: seconds.
const SETTLED_MESSAGES_MAX: usize = 120_000;

/// The same where links are shared fairly, as switches and their ports are. That servers answer the most urgent first, of which messages say
/// nothing, gains nothing here.
///
/// # Errors
/// As [`predict_by_message`], with fewer messages.
pub(crate) fn played_at_once(job: &Job<'_>, prediction: &Prediction) -> Result<Prediction, PredictError> {
    in_proportion(job, prediction, Sending::AtOnce, SETTLED_MESSAGES_MAX).map(|(found, _)| found)
}

/// A prediction that is by as much longer or shorter as messages take than formulas say of the same, and what messages leave out.
fn in_proportion(
    job: &Job<'_>,
    prediction: &Prediction,
    sending: Sending,
    messages_max: usize,
) -> Result<(Prediction, Vec<String>), PredictError> {
    let cluster = of_messages_only(&job.cluster.over(&job.strategy.protocol.name));
    let job = Job { cluster: &cluster, ..*job };
    let played = played(&job, &prediction.plan, sending, messages_max)?;
    let formulas_s = estimate_plan(&job, &prediction.plan)?.iteration_s;
    let longer = prediction.iteration_s / formulas_s;
    let found = prediction.clone().by_message(played.iteration_s * longer);
    let timeline = played.timeline.into_iter().map(|span| span.times(longer)).collect();
    Ok((Prediction { timeline, ..found }, played.left_out))
}

/// The cluster without constants that say nothing of messages.
fn of_messages_only(cluster: &Cluster) -> Cluster {
    let mut bare = Cluster { protocols: Protocols::default(), ..cluster.clone() };
    bare.interference = InterferenceConstants::default();
    (bare.operation.overtaking_s, bare.operation.overtaking_small_s) = (Constant::ZERO, None);
    let ServerConstants { combine_s_per_byte, own_ports, dedicated_share, .. } = cluster.server;
    bare.server = ServerConstants { combine_s_per_byte, own_ports, dedicated_share, ..ServerConstants::default() };
    bare
}

fn played(job: &Job<'_>, plan: &Plan, sending: Sending, messages_max: usize) -> Result<ByMessage, PredictError> {
    let subject = Subject::new(job)?;
    subject.check(plan)?;
    let costs = subject.costs(job.cluster)?;
    subject.play_by_message(&costs, plan, sending, messages_max)
}

fn with_interval(subject: &Subject<'_>, mut prediction: Prediction) -> Result<Prediction, PredictError> {
    let (low_s, high_s) = interval::of(subject, &prediction.plan, prediction.iteration_s);
    (prediction.low_s, prediction.high_s) = (low_s, high_s);
    Ok(prediction)
}

/// A prediction at some costs.
pub(crate) fn point(subject: &Subject<'_>, costs: &Costs, plan: Plan, timeline: bool) -> Prediction {
    let (traffic, outcome) = subject.play(costs, &plan, timeline);
    let (workers, profile) = (subject.job.workers, &*subject.profile);
    let iteration_s = outcome.iteration_s + traffic.jitter_s;
    let slowness = costs.slowness();
    let (forward_s, backward_s) = (profile.forward_s() * slowness, profile.backward_s() * slowness);
    let update_s = if subject.servers_update() { 0.0 } else { profile.update_s * slowness };
    let exposed_s = (iteration_s - forward_s - backward_s - update_s).max(0.0);
    let busiest = busiest(&traffic);
    let communication_s = match &costs.communication {
        Communication::AllToAll(_) => traffic.operations.line_busy_s(),
        _ => busiest.1,
    };
    let (bottleneck, busy_s) = bounds(iteration_s, exposed_s, forward_s + backward_s + update_s, busiest);
    let samples = (workers * profile.local_batch) as f64;
    let samples_per_s = if iteration_s > 0.0 { samples / iteration_s } else { 0.0 };
    let intensity = profile.intensity();
    let factor = all_reduce_factor(workers);
    Prediction {
        iteration_s,
        low_s: iteration_s,
        high_s: iteration_s,
        samples_per_s,
        speedup: if iteration_s > 0.0 { workers as f64 * subject.alone_s() / iteration_s } else { 0.0 },
        forward_s,
        backward_s,
        update_s,
        communication_s,
        exposed_s,
        c2c: intensity.map_or(f64::NAN, |intensity| factor / (profile.local_batch as f64 * intensity)),
        intensity,
        all_reduce_factor: factor,
        bytes_sent: traffic.bytes_sent,
        messages: traffic.messages,
        memory_bytes: profile.memory.map(|memory| memory.worker_bytes(profile.local_batch)),
        bottleneck,
        bottleneck_share: if iteration_s > 0.0 { (busy_s / iteration_s).min(1.0) } else { 0.0 },
        busiest,
        extrapolated: extrapolated(subject, costs, &plan),
        of_any_plan: of_any_plan(subject).len(),
        estimates: costs.estimates(&plan),
        plan,
        timeline: outcome.spans.into_iter().filter(|span| span.class == 0).collect(),
    }
}

/// What is busy longest besides computation.
fn busiest(traffic: &Traffic) -> (Bottleneck, f64) {
    let longer = |one: (Bottleneck, f64), other: &(Bottleneck, f64)| if other.1 > one.1 { *other } else { one };
    traffic.busy.iter().fold((Bottleneck::Computation, 0.0), longer)
}

/// Why a profile's batch cannot be computed, if that is known.
pub(crate) fn too_large(profile: &Profile) -> Option<String> {
    let most = profile.memory?.largest_local_batch()?;
    let batch = profile.local_batch;
    (batch as u64 > most).then(|| {
        format!("a local batch of {batch} does not fit in the memory of the device; {most} is the largest that does")
    })
}

/// From which batch a profile's computation is scaled, in words. None: it was recorded at its own.
pub(crate) fn scaled(profile: &Profile) -> Option<String> {
    profile.scaled_from().map(|samples| format!("computation is scaled from a batch of {samples}"))
}

/// What a prediction for so many workers does not take from a strategy that names what carries the links, in words. None: the
/// strategy leaves it open, or the cluster says what it costs over that. (Whoever has measured the links of this very strategy need
/// not say it, so it is not among [`Prediction::extrapolated`].)
pub fn protocol_doubt(cluster: &Cluster, workers: usize, strategy: &Strategy) -> Option<String> {
    let protocol = &strategy.protocol;
    let doubt = |why: &str| Some(format!("protocol={protocol}: {why}"));
    match cluster.protocols.get(&protocol.name) {
        _ if protocol.name == "auto" => None,
        Some(_) if protocol.name == Protocols::MEMORY && cluster.hosts_of(workers) > 1 => {
            doubt("hosts share no memory; between them the cluster's own links are counted")
        }
        Some(_) => None,
        None if cluster.protocols.is_empty() => doubt("this cluster's links do not tell protocols apart"),
        None => {
            let known: Vec<&str> = cluster.protocols.iter().map(|(name, _)| name).collect();
            doubt(&format!("this cluster tells auto and {} apart, and not this one", known.join(", ")))
        }
    }
}

/// Where a prediction leaves what the cluster's constants were measured for, what the profile was recorded for, or what its device
/// can hold.
fn extrapolated(subject: &Subject<'_>, costs: &Costs, plan: &Plan) -> Vec<String> {
    let Job { cluster, workers, .. } = subject.job;
    let mut found = costs.doubts(plan);
    let needed = subject.world.hosts;
    if needed > cluster.hosts {
        let has = cluster.hosts;
        found.push(format!("{needed} hosts, and the cluster has {has}: the others are taken to be like them"));
    }
    found.extend(scaled(&subject.profile));
    found.extend(too_large(&subject.profile));
    if workers > 1 {
        let bytes = plan.partitions().map(|(_, part)| part.elements.len() as u64 * ELEMENT_BYTES);
        found.extend(cluster.left_by(workers, bytes.max().unwrap_or(0)));
        found.extend(cluster.left_by_shards(workers, plan.shards));
    }
    found.extend(of_any_plan(subject));
    found
}

/// Where any prediction for this model leaves what the cluster's constants were measured with.
fn of_any_plan(subject: &Subject<'_>) -> Vec<String> {
    let Job { cluster, workers, .. } = subject.job;
    let Profile { model, device, .. } = &*subject.profile;
    if workers > 1 { cluster.left_by_computation(model, device) } else { Vec::new() }
}

#[cfg(test)]
mod tests;
