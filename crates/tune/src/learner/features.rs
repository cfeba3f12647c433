//! What contexts have in common: numbers of a call and an action on which times may depend.

use crate::action::{Action, WireProtocol};
use crate::state::{Parallelism, State, TopologyClass, Transport};

/// How many numbers there are.
pub const FEATURES: usize = 23;

/// From here on: what is believed to change little, as a model counts with it already, or as it only says who calls.
pub(super) const MINOR: usize = 15;

/// Those of the numbers that an action has a part in.
pub(super) const OF_ACTION: [usize; 5] = [5, 6, 7, 8, 13];

/// The numbers of a call and an action, each of the order of 1. The first is 1.
pub fn features(state: &State, action: &Action) -> [f64; FEATURES] {
    with_action(&of_state(state), action)
}

/// Those of the call alone; [`with_action`] fills in the rest. For whoever asks about all arms of a call.
pub(super) fn of_state(state: &State) -> [f64; FEATURES] {
    let log = |value: f64| value.max(1.0).log2();
    let switch = |on: bool| f64::from(u8::from(on));
    let size = (log(state.bytes as f64) - 18.0) / 8.0;
    [
        1.0,
        size,
        size * size,
        log(f64::from(state.ranks)) / 5.0,
        switch(state.hosts > 1),
        0.0,
        0.0,
        0.0,
        0.0,
        switch(state.has_nvlink),
        switch(matches!(state.transport, Transport::Rdma)),
        switch(state.is_pipelined_layer),
        // One that is unknown is taken for one in the middle.
        if state.model_intensity > 0.0 { (log(state.model_intensity) - 8.0) / 2.0 } else { 0.0 },
        0.0,
        rate(state.transport),
        // One rank to a host: the size less the ranks, which stand above; a third number would say nothing more.
        switch(state.ranks_per_host() > 1) * (log(state.bytes_per_rank() as f64) - 15.0) / 8.0,
        log(f64::from(state.ranks_per_host())) / 3.0,
        switch(state.parallelism == Parallelism::Tensor),
        switch(state.parallelism == Parallelism::Pipeline),
        switch(state.parallelism == Parallelism::Sharded),
        switch(state.is_ps_deployment),
        switch(!matches!(state.topology, TopologyClass::OneHost | TopologyClass::Flat)),
        state.congestion as u8 as f64 / 2.0,
    ]
}

/// The class of the links that carry the bytes, as the logarithm of their rate, give or take: 10 Gbit/s is the middle. Memory and
/// adapters are as fast as the fastest TCP; in what else they differ, other numbers say.
fn rate(transport: Transport) -> f64 {
    let gbit_per_s: f64 = match transport {
        Transport::Tcp1g => 1.0,
        Transport::Tcp10g => 10.0,
        Transport::Tcp100g | Transport::Rdma | Transport::SharedMemory => 100.0,
        Transport::Nvlink => 1000.0,
    };
    (gbit_per_s.log10() - 1.0) / 2.0
}

/// The numbers of a call, with those of an action.
pub(super) fn with_action(of_state: &[f64; FEATURES], action: &Action) -> [f64; FEATURES] {
    let mut at = *of_state;
    let size = at[1];
    let channels = f64::from(action.channels.max(1)).log2() / 3.0;
    let chunk = (f64::from(action.chunk_log2) - 18.0) / 4.0;
    at[5..9].copy_from_slice(&[channels, channels * size, chunk, chunk * size]);
    at[13] = f64::from(u8::from(action.family.protocol == WireProtocol::LowLatency));
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::Congestion;
    use crate::state::tests::CALL;
    use paceline_plan::CollectiveKind;

    /// What is known of a call changes some number, and none of them is far from 1. (The collective has families of its own; what a job
    /// does not change, such as its batch, is left to contexts.)
    #[test]
    fn what_is_known_of_a_call_is_a_number() {
        let changed = [
            State { bytes: 1 << 30, ..CALL },
            State { ranks: 512, ..CALL },
            State { hosts: 1, ..CALL },
            State { hosts: 2, ..CALL },
            State { model_intensity: 20.0, ..CALL },
            State { has_nvlink: true, ..CALL },
            State { transport: Transport::Rdma, ..CALL },
            State { transport: Transport::Tcp1g, ..CALL },
            State { transport: Transport::Tcp100g, ..CALL },
            State { topology: TopologyClass::Tree, ..CALL },
            State { is_ps_deployment: true, ..CALL },
            State { is_pipelined_layer: true, ..CALL },
            State { parallelism: Parallelism::Tensor, ..CALL },
            State { parallelism: Parallelism::Pipeline, ..CALL },
            State { parallelism: Parallelism::Sharded, ..CALL },
            State { congestion: Congestion::Light, ..CALL },
            State { congestion: Congestion::Heavy, ..CALL },
        ];
        let all: Vec<_> = std::iter::once(CALL).chain(changed).map(|state| of_state(&state)).collect();
        for (number, one) in all.iter().enumerate() {
            assert!(!all[..number].contains(one), "{number} is like another one");
            assert!(one.iter().all(|value| value.abs() <= 2.5), "{one:?}");
        }
        let rates = [Transport::Tcp1g, Transport::Tcp10g, Transport::Tcp100g, Transport::Nvlink].map(rate);
        assert!(rates.is_sorted() && rates[0] < rates[1] && rates[1] < rates[2], "{rates:?}");
        // The same size among more ranks: less for each.
        let [few, many] = [4, 64].map(|ranks| of_state(&State { ranks, hosts: 2, ..CALL }));
        assert!(few[MINOR] > many[MINOR] && few[1] == many[1]);
        let nothing = State { bytes: 0, ranks: 1, hosts: 1, model_intensity: 0.0, local_batch: 0, ..CALL };
        let strange = [nothing, State { collective: CollectiveKind::Barrier, model_intensity: f64::NAN, ..nothing }];
        assert!(strange.iter().all(|state| of_state(state).iter().all(|value| value.is_finite())));
    }
}
