use paceline_plan::{Profile, TensorId};

use crate::ScheduleError;

/// Seconds that one operation of so many bytes takes on the network, from the moment at which nothing else is under way:
/// whatever it costs to start one, and one that was added artificially, too.
pub type CommunicationTime<'a> = dyn Fn(u64) -> f64 + Sync + 'a;

/// What is to be planned for: a model, as it is computed, and a network.
#[derive(Clone)]
pub struct Workload<'a> {
    /// Elements of each tensor, in the order of the model's parameters.
    pub sizes: Vec<usize>,
    /// The tensors in the order in which their gradients become final.
    pub ready: Vec<TensorId>,
    /// The tensors in the order in which forward first needs them.
    pub used: Vec<TensorId>,
    /// By tensor: seconds from the start of backward until its gradient is final; rises in the order of `ready`. `None`:
    /// not measured.
    pub ready_s: Option<Vec<f64>>,
    /// When forward needs what. `None`: not measured.
    pub forward: Option<Forward>,
    /// What operations cost. `None`: not measured.
    pub communication_s: Option<&'a CommunicationTime<'a>>,
    /// Workers of the world.
    pub workers: usize,
    /// Hosts on which there are workers.
    pub hosts: usize,
}

/// When forward needs parameters, and what becomes of them before: what an overlap with the next forward pass is planned
/// from.
#[derive(Clone, Debug, PartialEq)]
pub struct Forward {
    /// By tensor: seconds of forward, without any waiting, before it first needs the tensor's parameters.
    pub needed_s: Vec<f64>,
    /// Seconds of forward.
    pub total_s: f64,
    /// Seconds in which the optimiser updates all parameters.
    pub update_s: f64,
}

impl Forward {
    /// That of a profile.
    pub fn of_profile(profile: &Profile) -> Forward {
        let mut needed_s = vec![None; profile.tensors.len()];
        let mut now = 0.0;
        for step in &profile.forward {
            needed_s[step.tensor].get_or_insert(now);
            now += step.seconds;
        }
        let needed_s = needed_s.into_iter().map(|needed_s| needed_s.unwrap_or(now)).collect();
        Forward { needed_s, total_s: now, update_s: profile.update_s }
    }
}

impl<'a> Workload<'a> {
    /// A model of which nothing was measured: forward uses the tensors in the order of the parameters, and gradients
    /// become final in the reverse order. One worker.
    pub fn of_sizes(sizes: &[usize]) -> Workload<'a> {
        Workload {
            sizes: sizes.to_vec(),
            ready: (0..sizes.len()).rev().collect(),
            used: (0..sizes.len()).collect(),
            ready_s: None,
            forward: None,
            communication_s: None,
            workers: 1,
            hosts: 1,
        }
    }

    /// A model with the times of its profile.
    pub fn of_profile(profile: &Profile) -> Workload<'a> {
        Workload {
            ready: profile.ready_order(),
            used: profile.use_order(),
            ready_s: Some(profile.ready_s()),
            forward: Some(Forward::of_profile(profile)),
            ..Workload::of_sizes(&profile.sizes())
        }
    }

    /// The same on a network on which an operation of so many bytes takes `seconds`.
    pub fn with_communication<'b>(self, seconds: &'b CommunicationTime<'b>) -> Workload<'b>
    where
        'a: 'b,
    {
        Workload { communication_s: Some(seconds), ..self }
    }

    /// The same where everything that is computed takes so many times as long.
    pub fn slowed(mut self, factor: f64) -> Workload<'a> {
        if let Some(ready_s) = &mut self.ready_s {
            ready_s.iter_mut().for_each(|seconds| *seconds *= factor);
        }
        if let Some(Forward { needed_s, total_s, update_s }) = &mut self.forward {
            needed_s.iter_mut().chain([total_s, update_s]).for_each(|seconds| *seconds *= factor);
        }
        self
    }

    /// The same for `workers` workers on `hosts` hosts.
    pub fn with_world(self, workers: usize, hosts: usize) -> Workload<'a> {
        Workload { workers, hosts, ..self }
    }

    /// Do the orders name each tensor once, and the times rise with the order?
    pub(crate) fn check(&self) -> Result<(), ScheduleError> {
        check_order("ready", self.sizes.len(), &self.ready)?;
        check_order("use", self.sizes.len(), &self.used)?;
        if let Some(ready_s) = &self.ready_s {
            let in_order: Vec<f64> = self.ready.iter().filter_map(|&tensor| ready_s.get(tensor).copied()).collect();
            let rises = in_order.windows(2).all(|pair| pair[0] <= pair[1]);
            if ready_s.len() != self.sizes.len() || !rises || !in_order.iter().all(|s| s.is_finite() && *s >= 0.0) {
                return Err(ScheduleError::ReadyTimes { tensors: self.sizes.len(), given: ready_s.len() });
            }
        }
        if let Some(Forward { needed_s, total_s, update_s }) = &self.forward {
            let times = needed_s.iter().chain([total_s, update_s]);
            if needed_s.len() != self.sizes.len() || !times.into_iter().all(|s| s.is_finite() && *s >= 0.0) {
                return Err(ScheduleError::NeedTimes { tensors: self.sizes.len(), given: needed_s.len() });
            }
        }
        Ok(())
    }
}

/// Does an order name each tensor once?
pub(crate) fn check_order(what: &str, tensors: usize, order: &[TensorId]) -> Result<(), ScheduleError> {
    let mut named = vec![false; tensors];
    let fresh = |&&tensor: &&TensorId| named.get_mut(tensor).is_some_and(|named| !std::mem::replace(named, true));
    let good = order.iter().take_while(fresh).count();
    if good == tensors && order.len() == tensors {
        return Ok(());
    }
    Err(ScheduleError::Order { what: what.to_owned(), tensors, given: order.len(), culprit: order.get(good).copied() })
}
