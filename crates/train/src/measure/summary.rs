//! What the workers have seen, put together.

use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, LinkCost, LinkCosts, Reduction, Traffic, Transport};
use paceline_plan::Profile;

use super::conduct::Conduct;
use super::{CellRun, FormulaInputs, Lateness, median};
use crate::computed::Computed;
use crate::error::{TrainError, WhileTraining};
use crate::exchange::Costs;
use crate::replay::Seen;
use crate::worker::Phases;

/// What a worker has seen in the counted iterations.
#[derive(Default)]
pub(super) struct Tally {
    /// When the first iteration that counts began.
    pub(super) began: Option<Instant>,
    pub(super) seconds: Vec<f64>,
    /// By block of iterations: seconds from its start, which all workers have in common, until its first iteration that counts
    /// began, and until each of them ended.
    pub(super) ends_s: Vec<Vec<f64>>,
    /// By block: its start.
    pub(super) starts: Vec<Instant>,
    /// Of so many iterations, whether they count or not: each sends the same.
    traffic: Traffic,
    sending: usize,
    in_communicator: Duration,
    /// By iteration: what deciding has cost.
    scheduling: Vec<Duration>,
    phases: Phases,
    /// Of a replay, by block and iteration.
    pub(super) seen: Vec<Vec<Seen>>,
}

impl Tally {
    /// Without what was counted; the time goes on.
    pub(super) fn anew(&self) -> Tally {
        Tally { began: self.began, ..Tally::default() }
    }

    /// Adds what an iteration has cost.
    pub(super) fn add_costs(&mut self, costs: Costs) {
        self.in_communicator += costs.in_communicator;
        self.scheduling.push(costs.scheduling);
    }

    /// Adds what some iterations have computed.
    pub(super) fn add_phases(&mut self, phases: Phases) {
        self.phases.add(&phases);
    }

    /// Adds what some iterations have sent.
    pub(super) fn add_traffic(&mut self, sent: Traffic, iterations: usize) {
        self.traffic.messages += sent.messages;
        self.traffic.bytes += sent.bytes;
        self.sending += iterations;
    }

    /// Seconds by which sleeps have ended late, in an iteration.
    fn late_s(&self) -> f64 {
        let late: Duration = self.seen.iter().flatten().map(|seen| seen.late).sum();
        late.as_secs_f64() / self.seconds.len() as f64
    }

    /// Seconds of deciding: the median, as in some iteration another process may have had the processor in the middle of it.
    fn scheduling_s_per_tensor(&self) -> f64 {
        median(self.scheduling.iter().map(Duration::as_secs_f64)) / self.phases.ready.len().max(1) as f64
    }

    /// By tensor: seconds from the start of backward until its gradient was announced; the mean over the iterations.
    pub(super) fn ready_s(&self) -> Vec<f64> {
        self.phases.ready.iter().map(|ready| ready.as_secs_f64() / self.seconds.len() as f64).collect()
    }
}

/// What an iteration takes in the mean, of one worker or of all.
struct Means {
    /// Seconds of forward, backward and update.
    computed_s: [f64; 3],
    /// Seconds in which the worker does not wait for communication, and in which it does.
    compute_s: f64,
    exposed_s: f64,
    bytes: f64,
    messages: f64,
    /// By tensor.
    ready_s: Vec<f64>,
}

impl Means {
    fn into_values(self) -> Vec<f64> {
        let Means { computed_s, compute_s, exposed_s, bytes, messages, ready_s } = self;
        [&computed_s[..], &[compute_s, exposed_s, bytes, messages], &ready_s].concat()
    }

    fn of_values(values: Vec<f64>) -> Means {
        let [forward_s, backward_s, update_s, compute_s, exposed_s, bytes, messages, ref ready_s @ ..] = values[..]
        else {
            unreachable!("as many values as there were")
        };
        let computed_s = [forward_s, backward_s, update_s];
        Means { computed_s, compute_s, exposed_s, bytes, messages, ready_s: ready_s.to_vec() }
    }
}

impl Conduct<'_> {
    /// What computation takes: the mean over iterations and workers.
    pub(super) fn computed(&self, tally: &Tally, sizes: &[usize]) -> Result<Computed, TrainError> {
        let iterations = tally.seconds.len().max(1) as f64;
        let mut values = tally.ready_s();
        values.resize(sizes.len(), 0.0);
        values.extend([tally.phases.forward, tally.phases.update].map(|sum| sum.as_secs_f64() / iterations));
        // The others wait for the slowest.
        let mut values = self.slowest(&values)?;
        let (update_s, forward_s) = (values.pop().unwrap_or(0.0), values.pop().unwrap_or(0.0));
        Ok(Computed { sizes: sizes.to_vec(), ready_s: values, forward_s, update_s })
    }

    /// Puts the workers' tallies together; the same on each.
    pub(super) fn summarise(&self, tally: Tally, confident: bool) -> Result<CellRun, TrainError> {
        let dilate = self.options.dilate;
        let iteration_s: Vec<f64> = self.iterations(&tally)?.iter().map(|seconds| seconds / dilate).collect();
        let own = self.own_means(&tally);
        let worst =
            self.slowest(&[tally.scheduling_s_per_tensor(), tally.late_s() / own.computed_s.iter().sum::<f64>()])?;
        let means = Means::of_values(self.mean(own.into_values())?);
        let profile = self.replayed();
        let processors_busy = profile.map(|_| self.processors_busy(&tally)).transpose()?.flatten();
        let measured_s = median(iteration_s.iter().copied());
        let decision = self.choice.as_ref().map(|choice| choice.undilated(dilate, measured_s));
        let abandoned = self.choice.as_ref().map_or_else(Vec::new, |choice| choice.abandoned.clone());
        let macs: u64 =
            profile.map_or(0, |profile| profile.tensors.iter().map(|tensor| tensor.forward_macs_per_sample).sum());
        Ok(CellRun {
            model: self.model.name.clone(),
            parameters: self.plan.elements(),
            tensors: tally.phases.ready.len(),
            forward_macs_per_sample: (macs > 0).then_some(macs),
            replayed: profile.map(|profile| format!("{}: {}", profile.device, profile.source)),
            strategy: self.plan.strategy.clone(),
            plan: self.plan.clone(),
            plan_hash: format!("{:016x}", self.plan.hash()),
            workers: self.workers().world_size(),
            shards: self.plan.shards,
            local_batch: self.options.local_batch,
            dilate,
            transport: self.transport().to_owned(),
            links: self.links(),
            warm_up: self.options.warm_up(),
            iteration_s,
            confident,
            compute_s: means.compute_s / dilate,
            exposed_communication_s: means.exposed_s / dilate,
            bytes_per_iteration: means.bytes,
            messages_per_iteration: means.messages,
            scheduling_s_per_tensor: worst[0],
            inputs: FormulaInputs {
                forward_s: means.computed_s[0] / dilate,
                backward_s: means.computed_s[1] / dilate,
                update_s: means.computed_s[2] / dilate,
                ready_s: means.ready_s.iter().map(|ready| ready / dilate).collect(),
                elements: self.sizes.clone(),
                communication: self.cost.as_ref().map(|cost| cost.undilated(dilate)),
                pass_s: self.company.pass_s,
                interference: self.company.interference,
            },
            lateness: profile.map(|_| Lateness {
                share: worst[1],
                overrun: worst[1] > self.options.late_share_max,
                processors_busy,
            }),
            decision,
            abandoned,
            timeline: None,
            tuning: None,
            followed: self.worker.followed(),
        })
    }

    /// The profile that is replayed, if one is.
    fn replayed(&self) -> Option<&Profile> {
        self.model.replay.as_ref().map(|replay| &replay.profile)
    }

    /// Of this worker's iterations.
    fn own_means(&self, tally: &Tally) -> Means {
        let iterations = tally.seconds.len() as f64;
        let per_iteration = |duration: Duration| duration.as_secs_f64() / iterations;
        let own_s = tally.seconds.iter().sum::<f64>() / iterations;
        let (computed_s, exposed_s) = match self.replayed() {
            // It computes as long as its profile says; everything else is communication.
            Some(profile) => {
                let computed_s = [profile.forward_s(), profile.backward_s(), profile.update_s];
                let computed_s = computed_s.map(|seconds| seconds * self.options.dilate);
                (computed_s, own_s - computed_s.iter().sum::<f64>())
            }
            None => {
                let Phases { forward, backward, update, .. } = tally.phases;
                ([forward, backward, update].map(per_iteration), per_iteration(tally.in_communicator))
            }
        };
        let sent = |count: u64| count as f64 / tally.sending as f64;
        Means {
            computed_s,
            compute_s: own_s - exposed_s,
            exposed_s,
            bytes: sent(tally.traffic.bytes),
            messages: sent(tally.traffic.messages),
            ready_s: tally.ready_s(),
        }
    }

    /// The mean over the workers.
    pub(super) fn mean(&self, values: Vec<f64>) -> Result<Vec<f64>, TrainError> {
        let mut sums = values;
        let reduced = self.workers().all_reduce(&mut sums, Reduction::Sum, &CallOptions::default());
        reduced.while_training("adding up what the workers have measured")?;
        let workers = self.workers().world_size() as f64;
        Ok(sums.iter().map(|sum| sum / workers).collect())
    }

    /// What the ranks measured when they met, as if nothing were slowed.
    fn links(&self) -> Option<LinkCosts> {
        let (workers, dilate) = (self.workers(), self.options.dilate);
        let undilated = |link: LinkCost| LinkCost {
            alpha: link.alpha / dilate,
            overhead: link.overhead / dilate,
            beta: link.beta / dilate,
            gamma: link.gamma / dilate,
        };
        (workers.world_size() > 1).then(|| {
            let LinkCosts { within, across, contention, contention_within, fetched } = workers.link_costs();
            let [within, across] = [within, across].map(undilated);
            LinkCosts {
                within,
                across,
                contention: contention / dilate,
                contention_within: contention_within / dilate,
                fetched,
            }
        })
    }

    /// What carries the links to the other workers.
    fn transport(&self) -> &'static str {
        let workers = self.workers();
        let mut links = (0..workers.world_size()).filter_map(|rank| workers.transport(rank));
        match links.next() {
            None => "none",
            Some(first) if links.any(|other| other != first) => "mixed",
            Some(Transport::Memory) => "memory",
            Some(Transport::Shm) => "shm",
            Some(Transport::Tcp) => "tcp",
        }
    }
}
