//! What a cost model must say to be a place where tuners learn.

use paceline_plan::CollectiveKind;

use crate::action::{Action, Situation};
use crate::state::{Parallelism, State};

/// A call of a workload, before anybody knows on what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Call {
    /// What is called.
    pub collective: CollectiveKind,
    /// Bytes of the larger side of a rank.
    pub bytes: u64,
    /// Ranks that take part, and the hosts that they are on.
    pub ranks: u32,
    /// The hosts.
    pub hosts: u32,
    /// Who calls.
    pub parallelism: Parallelism,
    /// Is it the call of one layer, under way while others are computed?
    pub is_pipelined_layer: bool,
    /// Does it carry several tensors, fused?
    pub is_fused_call: bool,
    /// I = C/D of the model.
    pub model_intensity: f64,
    /// M of the job.
    pub local_batch: u32,
    /// How often an iteration makes it, one after the other.
    pub times: u32,
}

/// A model of what collectives cost: of our communicator ([`super::OwnModel`]), or of another library.
pub trait CostModel {
    /// What the model is of, in words.
    fn name(&self) -> String;

    /// The call with what the model knows of the machines.
    fn state(&self, call: &Call) -> State;

    /// Everything that can be done about a call, with the seconds expected of it, and what the library does by itself. In an
    /// order that is the same on every rank. None if there is no choice.
    fn situation(&self, state: &State) -> Option<Situation>;

    /// What people call an action's algorithm and protocol, such as `ring inline`.
    fn family_name(&self, state: &State, action: &Action) -> String;

    /// Seconds that so many bytes would take if nothing but the bandwidth of the slowest link counted: what the C2C ratio
    /// counts with.
    fn bandwidth_s(&self, state: &State) -> f64;

    /// Can a tuner set the number of threads there? On NCCL it cannot.
    fn sets_threads(&self) -> bool {
        true
    }
}
