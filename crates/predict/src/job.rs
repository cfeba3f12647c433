use std::borrow::Cow;

use paceline_collective::verify::Refusal;
use paceline_plan::{
    Cluster, ClusterError, ComputationConstants, Distribution, Plan, PlanError, Profile, ProfileError, Shape,
    UnlikeWorkers,
};
use paceline_schedule::{ELEMENT_BYTES, ScheduleError, Schedulers, Workload};
use paceline_strategy::Strategy;

use crate::communication::{AllToAll, Communication, ServerCosts, Traffic, World};
use crate::iteration::{
    Interference, Length, Operations, Outcome, Span, Spread, Training, WorkerClass, simulate, simulate_by_message,
};
use crate::programs::Sending;
use crate::topology::TopologyError;

/// What is to be predicted: a model, trained with a strategy by so many workers on a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The machines and their links.
    pub cluster: &'a Cluster,
    /// What a worker alone computes.
    pub profile: &'a Profile,
    /// How workers communicate.
    pub strategy: &'a Strategy,
    /// How many there are: hosts are filled one after the other, as many as it takes.
    pub workers: usize,
    /// Samples of a worker in an iteration; None: those of the profile.
    pub local_batch: Option<usize>,
}

/// An iteration that was played message by message: see [`crate::predict_by_message`] and [`crate::predict_emulated`].
#[derive(Clone, Debug)]
pub struct ByMessage {
    /// Seconds of an iteration among many.
    pub iteration_s: f64,
    /// The standard deviation of those that were drawn; 0 where none were.
    pub deviation_s: f64,
    /// Messages of all workers and servers in an iteration.
    pub messages: usize,
    /// An iteration among many, of one of the slowest workers. On the network are its operations from their beginning to their end.
    pub timeline: Vec<Span>,
    /// What the cluster has that does not count among messages, in words.
    pub left_out: Vec<String>,
}

/// Why there is no prediction.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PredictError {
    /// Nobody computes.
    #[error("a prediction needs at least one worker, and a local batch of at least one sample")]
    Nobody,
    /// The profile contradicts itself.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The cluster contradicts itself.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The cluster's topology makes no sense, or has no room for so many hosts.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The topology has other places than the workers take.
    #[error(
        "topology {shape} has {places} hosts, exactly, and {workers} workers take {hosts}: give as many workers as all its \
         hosts have, or another topology"
    )]
    Places {
        /// The topology.
        shape: String,
        /// Its hosts.
        places: usize,
        /// How many workers there are.
        workers: usize,
        /// Their hosts.
        hosts: usize,
    },
    /// The schedule cannot be planned.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A plan that cannot be carried out.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A plan for something else.
    #[error("the plan is for {plan} {what}, and {wanted} are predicted")]
    OtherPlan {
        /// `tensors` or `servers`.
        what: &'static str,
        /// How many the plan has.
        plan: usize,
        /// How many there are.
        wanted: usize,
    },
    /// An algorithm that does not exist, or not for so many workers.
    #[error("no all-reduce of the name `{algorithm}` serves {workers} workers")]
    Algorithm {
        /// The name.
        algorithm: String,
        /// How many there are.
        workers: usize,
    },
    /// A program that would not end.
    #[error(transparent)]
    Program(#[from] Refusal),
    /// What cannot be played message by message, and why.
    #[error("cannot be played message by message: {0}")]
    ByMessage(String),
    /// The strategy does not say who adds up.
    #[error("arch=auto stands for no arch: it is what a search chooses, as `paceline plan` does")]
    Open,
    /// A method of which nothing is known.
    #[error("{aspect}={method} is not predicted yet; sync=bsp and compress=none are")]
    Method {
        /// `sync` or `compress`.
        aspect: &'static str,
        /// The method.
        method: String,
    },
}

/// How the hosts of so many workers are connected. Within one host nothing takes the topology's links.
///
/// # Errors
/// A topology that makes no sense, or one that would have empty places.
pub(crate) fn shape_of(cluster: &Cluster, workers: usize) -> Result<Shape, PredictError> {
    let shape: Shape = cluster.topology.parse().map_err(TopologyError::from)?;
    let hosts = cluster.hosts_of(workers);
    match shape.hosts() {
        Some(places) if hosts > 1 && places != hosts => {
            Err(PredictError::Places { shape: shape.to_string(), places, workers, hosts })
        }
        _ => Ok(shape),
    }
}

/// However little a worker computes here compared to one alone, it is not less than this share.
const SLOWNESS_MIN: f64 = 0.05;

/// No mean of drawn iterations is shorter than this share of what is computed on average.
const FASTEST: f64 = 0.5;

/// A start-up that a strategy adds to be like the study's frameworks stands for what they took. A cluster whose operations
/// take at least this share of it by themselves was measured with a framework, and has it already.
const OF_A_FRAMEWORK: f64 = 0.1;

/// A job that makes sense, and what does not depend on the cluster's constants.
pub(crate) struct Subject<'a> {
    pub job: Job<'a>,
    pub profile: Cow<'a, Profile>,
    pub world: World,
    /// Do formulas answer alone, also where programs would be simulated?
    by_formulas: bool,
}

impl<'a> Subject<'a> {
    /// # Errors
    /// The job makes no sense.
    pub fn new(job: &Job<'a>) -> Result<Subject<'a>, PredictError> {
        if job.workers == 0 || job.local_batch == Some(0) {
            return Err(PredictError::Nobody);
        }
        job.cluster.check()?;
        job.profile.check()?;
        let strategy = job.strategy;
        let unknown = |aspect, method: &str| Err(PredictError::Method { aspect, method: method.to_owned() });
        if strategy.arch_is_open() {
            return Err(PredictError::Open);
        }
        if strategy.sync.name != "bsp" {
            return unknown("sync", &strategy.sync.name);
        }
        if let Some(stage) = strategy.compressor() {
            return unknown("compress", &stage.name);
        }
        let batch = job.local_batch.filter(|&batch| batch != job.profile.local_batch);
        let profile = match batch {
            Some(batch) => Cow::Owned(job.profile.for_batch(batch)),
            None => Cow::Borrowed(job.profile),
        };
        let world = World::of(job.workers, job.cluster.workers_per_host.max(1));
        let world = world.on(shape_of(job.cluster, job.workers)?);
        Ok(Subject { job: *job, profile, world, by_formulas: false })
    }

    /// The same under one switch, by formulas alone.
    pub fn on_flat(&self) -> Subject<'_> {
        let profile = Cow::Borrowed(&*self.profile);
        Subject { job: self.job, profile, world: self.world.on(Shape::Flat), by_formulas: true }
    }

    /// Seconds of an iteration of a worker alone.
    pub fn alone_s(&self) -> f64 {
        self.profile.iteration_s()
    }

    /// What operations cost with the constants of `cluster`, which is the job's or one that differs in constants; over the protocol
    /// that the strategy names with what the cluster has of it.
    ///
    /// # Errors
    /// There is no such algorithm for so many workers, or the topology has no room for so many hosts.
    pub fn costs(&self, cluster: &Cluster) -> Result<Costs, PredictError> {
        let Job { strategy, workers, .. } = self.job;
        let cluster = cluster.over(&strategy.protocol.name);
        let cluster = &*cluster;
        let bytes = self.profile.parameters() as u64 * ELEMENT_BYTES;
        let added_s = self.added_start_s(cluster);
        let communication = match strategy.servers(workers, self.world.hosts) {
            _ if workers == 1 && !self.pushes_alone() => Communication::None,
            Some(servers) => {
                let update_s_per_byte = self.profile.update_s / bytes.max(1) as f64;
                let costs = ServerCosts::of(cluster, self.world, servers, added_s, update_s_per_byte);
                Communication::Servers(if self.by_formulas { costs } else { costs.by_message(cluster) })
            }
            None => {
                let start_s = cluster.start_s(workers) + added_s;
                let algorithm = strategy.algorithm().unwrap_or("auto");
                let costs = AllToAll::of(cluster, self.world, algorithm, bytes, start_s)?;
                // On another topology programs have decided already.
                let one_switch = self.world.hosts == 1 || self.world.shape == Shape::Flat;
                let costs = if self.by_formulas || !one_switch { costs } else { costs.with_shared_ports() };
                // What the strategy adds begins when nothing travels, as in the runtime.
                let one_by_one = !strategy.start_up(workers).is_zero();
                Communication::AllToAll(if one_by_one { costs.one_by_one() } else { costs })
            }
        };
        Ok(Costs {
            communication,
            classes: self.classes(cluster),
            drawn: drawn(cluster),
            interference: Interference {
                computation: cluster.interference.computation.value,
                communication: cluster.interference.communication.value,
            },
        })
    }

    /// Seconds that the strategy adds artificially in front of each operation.
    fn added_start_s(&self, cluster: &Cluster) -> f64 {
        let Job { strategy, workers, .. } = self.job;
        let added_s = strategy.start_up(workers).as_secs_f64();
        let of_study = strategy.arch.arguments.len().checked_sub(1).and_then(|last| strategy.arch.word(last));
        let has_it = cluster.start_s(workers) >= OF_A_FRAMEWORK * added_s;
        if of_study == Some("study") && has_it { 0.0 } else { added_s }
    }

    /// Who computes how, the slowest first: those whom the cluster names, and all others.
    fn classes(&self, cluster: &Cluster) -> Vec<Class> {
        let (all, alone_s) = (self.job.workers, self.alone_s());
        let (more, spread) = match all {
            1 => (1.0, Spread::Alike),
            _ if alone_s <= 0.0 => (1.0, Spread::Alike),
            _ => (1.0 + cluster.overhead_s(&self.profile.model) / alone_s, spread(cluster)),
        };
        let here = |unlike: &UnlikeWorkers| unlike.ranks.iter().filter(|&&rank| rank < all).count();
        let named =
            cluster.unlike.iter().enumerate().map(|(number, unlike)| (Some(number), here(unlike), unlike.slower));
        let mut kinds: Vec<(Option<usize>, usize, f64)> = named.collect();
        let others = all - kinds.iter().map(|(_, workers, _)| *workers).sum::<usize>().min(all);
        kinds.insert(0, (None, others, 1.0));
        kinds.retain(|(_, workers, _)| *workers > 0);
        let class = |&(named, workers, slower): &(Option<usize>, usize, f64)| {
            // The more there are who take as long or longer, the longer is the slowest of them waited for.
            let as_slow = kinds.iter().filter(|(_, _, other)| *other >= slower).map(|(_, workers, _)| *workers).sum();
            Class {
                named,
                workers,
                slowness: more.max(SLOWNESS_MIN) * slower,
                spread,
                slowest: spread.expected_slowest(as_slow).max(self.waited_for(as_slow)),
            }
        };
        let mut classes: Vec<Class> = kinds.iter().map(class).collect();
        classes.sort_by(|one, other| other.expected_slowness().total_cmp(&one.expected_slowness()));
        classes
    }

    /// Times what a worker computes on average: what those who wait for the slowest of so many take, by the profile's spread. What two
    /// iterations differ by in the mean is twice what the longer one takes more than the mean; where it is an exponential delay, so it is of
    /// any number (docs/prediction.md, "Computation").
    fn waited_for(&self, workers: usize) -> f64 {
        let mean = self.profile.spread.unwrap_or(0.0);
        Spread::Exponential { mean }.expected_slowest(workers) - mean
    }

    /// By which share of that it may be less, or more: of two workers it holds for any distribution, and more of them wait at least as long.
    pub fn waiting_is_known_to(&self) -> f64 {
        1.0 - self.waited_for(self.job.workers.min(2)) / self.waited_for(self.job.workers)
    }

    /// In which pieces and which order gradients travel at these costs.
    ///
    /// # Errors
    /// The schedule cannot be planned.
    pub fn plan(&self, costs: &Costs, schedulers: &Schedulers) -> Result<Plan, PredictError> {
        let seconds = |bytes: u64| costs.communication.alone_s(bytes);
        let workload = Workload::of_profile(&self.profile).with_world(self.job.workers, self.world.hosts);
        let workload = workload.slowed(costs.slowness());
        Ok(schedulers.plan(self.job.strategy, &workload.with_communication(&seconds))?)
    }

    /// Is a plan one for this job?
    ///
    /// # Errors
    /// It is not.
    pub fn check(&self, plan: &Plan) -> Result<(), PredictError> {
        plan.check()?;
        let servers = self.job.strategy.servers(self.job.workers, self.world.hosts);
        let shards = servers.map_or(0, |servers| servers.shards);
        for (what, plan, wanted) in
            [("tensors", plan.tensors(), self.profile.tensors.len()), ("servers", plan.shards, shards)]
        {
            if plan != wanted {
                return Err(PredictError::OtherPlan { what, plan, wanted });
            }
        }
        Ok(plan.check_sizes(&self.profile.sizes())?)
    }

    /// Do servers have the optimiser?
    pub fn servers_update(&self) -> bool {
        (self.job.workers > 1 || self.pushes_alone()) && self.job.strategy.servers_apply()
    }

    /// Would a worker alone push what it computes to servers? If they have ports of their own.
    fn pushes_alone(&self) -> bool {
        let Job { strategy, cluster, .. } = self.job;
        let servers = strategy.servers(1, 1);
        servers.is_some_and(|servers| !servers.dedicated) && cluster.over(&strategy.protocol.name).server.own_ports
    }

    /// Plays the plan message by message, of `messages_max` at most: what is known of an iteration then.
    ///
    /// # Errors
    /// Its programs cannot be played, or would not end.
    pub fn play_by_message(
        &self,
        costs: &Costs,
        plan: &Plan,
        sending: Sending,
        messages_max: usize,
    ) -> Result<ByMessage, PredictError> {
        let Job { cluster, strategy, workers, .. } = self.job;
        let cluster = cluster.over(&strategy.protocol.name);
        let length = costs.drawn.unwrap_or(Length::Steady);
        let programs = costs.communication.programs(plan, &cluster, length, messages_max)?;
        let classes = self.worker_classes(costs);
        let class_of: Vec<usize> = (0..workers)
            .map(|rank| {
                let named = cluster.unlike.iter().position(|unlike| unlike.ranks.contains(&rank));
                costs.classes.iter().position(|class| class.named == named).unwrap_or(0)
            })
            .collect();
        let nothing = Operations::on_channel(plan, |_| 0.0);
        let training = Training {
            servers_update: self.servers_update(),
            timeline: true,
            ..Training::new(plan, &classes, &nothing)
        };
        let (machine, operations) = (programs.machine(sending), programs.operations());
        let messages = programs.messages_of(&machine, &operations, &class_of);
        let (outcome, messages) = simulate_by_message(&training, &messages, length)?;
        let iteration_s = outcome.iteration_s + costs.communication.traffic(plan).jitter_s;
        let Outcome { deviation_s, spans: timeline, .. } = outcome;
        Ok(ByMessage { iteration_s, deviation_s, messages, timeline, left_out: programs.left_out.clone() })
    }

    fn worker_classes(&self, costs: &Costs) -> Vec<WorkerClass<'_>> {
        costs.classes.iter().map(|class| costs.worker_class(class, &self.profile)).collect()
    }

    /// Plays the plan. What it costs, and how an iteration goes.
    pub fn play(&self, costs: &Costs, plan: &Plan, timeline: bool) -> (Traffic, Outcome) {
        let traffic = costs.communication.traffic(plan);
        // Seconds for which what is in computation's way is busy, link by link; None: a bus, and of these it is known in which share
        // bytes move within the host.
        let busy_s = match (&costs.communication, traffic.operations.disturbing_links()) {
            (Communication::None, _) => Some(0.0),
            (Communication::AllToAll(_), _) => Some(traffic.operations.line_busy_s()),
            (Communication::Servers(_), 0) => None,
            (Communication::Servers(_), links) => Some(traffic.operations.busy_s().1[..links].iter().sum()),
        };
        let share = busy_s.map_or(traffic.of_bus, |busy_s| if busy_s > 0.0 { traffic.within_s / busy_s } else { 0.0 });
        let computation = costs.interference.computation * share;
        let classes = self.worker_classes(costs);
        let training = Training {
            interference: Interference { computation, ..costs.interference },
            servers_update: self.servers_update(),
            timeline,
            ..Training::new(plan, &classes, &traffic.operations)
        };
        let outcome = simulate(&training, costs.drawn.unwrap_or(Length::Steady));
        (traffic, outcome)
    }
}

/// What a job costs at some constants.
pub(crate) struct Costs {
    pub communication: Communication,
    /// At least one.
    classes: Vec<Class>,
    /// The iterations that are drawn. None: each takes what the slowest is expected to take.
    drawn: Option<Length>,
    interference: Interference,
}

/// Workers that compute alike.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Class {
    /// Which of those that the cluster names; None: all others.
    named: Option<usize>,
    workers: usize,
    /// Times what the profile says, on average.
    slowness: f64,
    spread: Spread,
    /// Times that, what the slowest of them is expected to take.
    slowest: f64,
}

impl Class {
    fn expected_slowness(&self) -> f64 {
        self.slowness * self.slowest
    }
}

/// How iterations differ on a cluster.
fn spread(cluster: &Cluster) -> Spread {
    let deviation = cluster.computation.spread.value;
    match cluster.computation.distribution {
        Distribution::Normal => Spread::Normal { deviation },
        Distribution::LogNormal => Spread::LogNormal { deviation },
        Distribution::Exponential => Spread::Exponential { mean: deviation },
    }
}

/// The iterations that a cluster wants drawn.
fn drawn(cluster: &Cluster) -> Option<Length> {
    let ComputationConstants { draws, seed, .. } = cluster.computation;
    (draws > 0).then_some(Length::Drawn { seed: seed.into(), iterations: draws })
}

impl Costs {
    /// Times what a worker alone computes: what the slowest of all does, as is expected; the mean of the iterations that are drawn.
    pub fn slowness(&self) -> f64 {
        let Some(Length::Drawn { seed, iterations }) = self.drawn else {
            return self.classes.iter().map(Class::expected_slowness).fold(0.0, f64::max);
        };
        let of_class = |(number, class): (usize, &Class), iteration: usize| {
            class.slowness * class.spread.drawn_slowest_of(number, class.workers, seed, iteration)
        };
        let slowest = |iteration: usize| {
            let classes = self.classes.iter().enumerate();
            classes.map(|class| of_class(class, iteration)).fold(0.0, f64::max)
        };
        let iterations = iterations.max(1);
        (1..=iterations).map(slowest).sum::<f64>() / iterations as f64
    }

    /// No iteration is computed in less: what is drawn can be faster than what is expected.
    pub fn slowness_min(&self) -> f64 {
        let least = |class: &Class| match self.drawn {
            Some(_) => class.slowness * FASTEST,
            None => class.expected_slowness(),
        };
        self.classes.iter().map(least).fold(0.0, f64::max)
    }

    /// The same, but everything is computed in so many times the time.
    pub fn slowed(mut self, times: f64) -> Costs {
        self.classes.iter_mut().for_each(|class| class.slowness *= times);
        self
    }

    /// As the simulator has it: with the spread where it draws, and with what is expected of it where it does not.
    fn worker_class<'a>(&self, class: &Class, profile: &'a Profile) -> WorkerClass<'a> {
        let of = WorkerClass::of(profile, class.workers);
        match self.drawn {
            Some(_) => WorkerClass { slowness: class.slowness, spread: class.spread, ..of },
            None => WorkerClass { slowness: class.expected_slowness(), ..of },
        }
    }

    /// Why what a plan takes leaves what is known.
    pub fn doubts(&self, plan: &Plan) -> Vec<String> {
        self.communication.doubts(plan)
    }

    /// How many of these are about formulas that are estimates: where workers share hosts, and of few partitions for many servers.
    pub fn estimates(&self, plan: &Plan) -> usize {
        self.communication.estimates(plan)
    }
}
