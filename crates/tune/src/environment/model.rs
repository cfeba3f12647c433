//! What a cost model must say to be a place where tuners learn.

use paceline_plan::CollectiveKind;

use crate::action::{Action, Situation};
use crate::state::{Congestion, Parallelism, State, TopologyClass, Transport};

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
    /// Is it one call of several in an iteration, a layer's or a bucket's, under way while others are computed or sent?
    pub is_pipelined_layer: bool,
    /// Does it carry several tensors, fused?
    pub is_fused_call: bool,
    /// Does the job exchange gradients through parameter servers? Whoever calls knows; it does not follow from what is called.
    pub is_ps_deployment: bool,
    /// I = C/D of the model.
    pub model_intensity: f64,
    /// M of the job.
    pub local_batch: u32,
    /// How often an iteration makes it, one after the other.
    pub times: u32,
}

impl Call {
    /// The call on so many hosts; `within` is what carries it on one, and `between` what links several, and how.
    pub(super) fn on(
        &self,
        hosts: u32,
        has_nvlink: bool,
        within: Transport,
        between: (Transport, TopologyClass),
    ) -> State {
        let (transport, topology) = if hosts == 1 { (within, TopologyClass::OneHost) } else { between };
        State {
            collective: self.collective,
            bytes: self.bytes,
            ranks: self.ranks,
            hosts,
            model_intensity: self.model_intensity,
            local_batch: self.local_batch,
            has_nvlink,
            transport,
            topology,
            is_ps_deployment: self.is_ps_deployment,
            is_pipelined_layer: self.is_pipelined_layer,
            is_fused_call: self.is_fused_call,
            parallelism: self.parallelism,
            congestion: Congestion::None,
        }
    }
}

/// A model of what collectives cost: of our communicator ([`super::OwnModel`]), or of NCCL ([`super::NcclModel`]).
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

    /// Which knobs are right in the mean over contexts, as log2 of the channels and the threads, and as an [`Action`] counts chunks. What
    /// is right in a single context, a simulation draws around them.
    fn usual_knobs(&self) -> [f64; 3] {
        [1.5, 0.5, 18.0]
    }

    /// The longest chain of messages of an action each of which is sent only after the one before has arrived, where its chunks are log2
    /// of bytes. None if the model does not know: then it changes nothing what a call overlaps with ([`super::Misfit::overlap`]).
    fn rounds(&self, _state: &State, _action: &Action) -> Option<usize> {
        None
    }

    /// Can a tuner set the number of threads there? On NCCL it cannot.
    fn sets_threads(&self) -> bool {
        true
    }

    /// What an action's channels are there, in words.
    fn channels_in_words(&self, channels: u8) -> String {
        counted(channels.into(), "lane")
    }

    /// What an action's chunk means, in words.
    fn chunk_in_words(&self, chunk_log2: u8) -> String {
        format!("chunks of {} KiB", (1u64 << chunk_log2.min(40)) >> 10)
    }
}

/// "1 lane", "2 lanes".
pub fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// How often each byte of a call crosses a rank's link where nothing is sent in vain.
pub(super) fn passes(state: &State) -> f64 {
    let ranks = f64::from(state.ranks.max(1));
    match state.collective {
        CollectiveKind::AllReduce => 2.0 * (ranks - 1.0) / ranks,
        CollectiveKind::AllGather | CollectiveKind::ReduceScatter => (ranks - 1.0) / ranks,
        _ => 1.0,
    }
}
