//! What contexts have in common: numbers of a call and an action on which times may depend.

use crate::action::{Action, WireProtocol};
use crate::state::{State, Transport};

/// How many numbers there are.
pub const FEATURES: usize = 14;

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
        (log(state.model_intensity) - 8.0) / 2.0,
        0.0,
    ]
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
