//! What the workers have seen, put together.

use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, LinkCost, LinkCosts, Reduction, Traffic, Transport};

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
    costs: Costs,
    phases: Phases,
    /// Of a replay, by block and iteration.
    pub(super) seen: Vec<Vec<Seen>>,
}

impl Tally {
    /// Adds what some iterations have cost.
    pub(super) fn add(&mut self, costs: Costs, phases: Phases) {
        self.costs.in_communicator += costs.in_communicator;
        self.costs.scheduling += costs.scheduling;
        self.phases.add(&phases);
    }

    /// Adds what some iterations have sent.
    pub(super) fn add_traffic(&mut self, sent: Traffic, iterations: usize) {
        self.traffic.messages += sent.messages;
        self.traffic.bytes += sent.bytes;
        self.sending += iterations;
    }

    /// By tensor: seconds from the start of backward until its gradient was announced; the mean over the iterations.
    pub(super) fn ready_s(&self) -> Vec<f64> {
        self.phases.ready.iter().map(|ready| ready.as_secs_f64() / self.seconds.len() as f64).collect()
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
        let (iterations, dilate) = (tally.seconds.len() as f64, self.options.dilate);
        let iteration_s: Vec<f64> = self.iterations(&tally)?.iter().map(|seconds| seconds / dilate).collect();
        let per_iteration = |duration: Duration| duration.as_secs_f64() / iterations;
        let own_s = tally.seconds.iter().sum::<f64>() / iterations;
        // A replay computes as long as its profile says; everything else is communication.
        let profile = self.model.replay.as_ref().map(|replay| &replay.profile);
        let (forward_s, backward_s, update_s) = match profile {
            Some(profile) => (profile.forward_s() * dilate, profile.backward_s() * dilate, profile.update_s * dilate),
            None => {
                let Phases { forward, backward, update, .. } = tally.phases;
                (per_iteration(forward), per_iteration(backward), per_iteration(update))
            }
        };
        let exposed_s = match profile {
            Some(_) => own_s - (forward_s + backward_s + update_s),
            None => per_iteration(tally.costs.in_communicator),
        };
        let mut means = vec![forward_s, backward_s, update_s, own_s - exposed_s, exposed_s];
        let sent = |count: u64| count as f64 / tally.sending as f64;
        means.extend([sent(tally.traffic.bytes), sent(tally.traffic.messages)]);
        means.extend(tally.ready_s());
        let means = self.mean(means)?;
        let tensors = tally.phases.ready.len();
        let scheduling_s = per_iteration(tally.costs.scheduling) / tensors.max(1) as f64;
        let late_s = per_iteration(tally.seen.iter().flatten().map(|seen| seen.late).sum());
        let late_share = late_s / (forward_s + backward_s + update_s);
        let worst = self.slowest(&[scheduling_s, late_share])?;
        let processors_busy = profile.map(|_| self.processors_busy(&tally)).transpose()?.flatten();
        let decision = self.decision.clone();
        let decision = decision.map(|decision| decision.undilated(dilate, median(iteration_s.iter().copied())));
        let macs: u64 =
            profile.map_or(0, |profile| profile.tensors.iter().map(|tensor| tensor.forward_macs_per_sample).sum());
        Ok(CellRun {
            model: self.model.name.clone(),
            parameters: self.plan.elements(),
            tensors,
            forward_macs_per_sample: (macs > 0).then_some(macs),
            replayed: profile.map(|profile| format!("{}: {}", profile.device, profile.source)),
            strategy: self.plan.strategy.clone(),
            plan: self.plan.clone(),
            plan_hash: format!("{:016x}", self.plan.hash()),
            workers: self.workers().world_size(),
            shards: self.carrier.peers().shards(),
            local_batch: self.options.local_batch,
            dilate,
            transport: self.transport().to_owned(),
            links: self.links(),
            warm_up: self.options.warm_up(),
            iteration_s,
            confident,
            compute_s: means[3] / dilate,
            exposed_communication_s: means[4] / dilate,
            bytes_per_iteration: means[5],
            messages_per_iteration: means[6],
            scheduling_s_per_tensor: worst[0],
            inputs: FormulaInputs {
                forward_s: means[0] / dilate,
                backward_s: means[1] / dilate,
                update_s: means[2] / dilate,
                ready_s: means[7..].iter().map(|ready| ready / dilate).collect(),
                elements: self.sizes.clone(),
                communication: self.cost.as_ref().map(|cost| cost.undilated(dilate)),
                pass_s: self.pass_s,
            },
            lateness: profile.map(|_| Lateness {
                share: worst[1],
                overrun: worst[1] > self.options.late_share_max,
                processors_busy,
            }),
            decision,
            timeline: None,
            tuning: None,
            followed: self.worker.followed(),
        })
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
