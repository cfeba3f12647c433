//! What a call overlaps with, as far as it changes which action is best. These are the two crossovers of the survey (Shi et al., arXiv
//! 2005.13247), carried over from methods to the knobs of single calls, for ablations:
//!
//! - *Pipelining flips servers and all-to-all.* Without it, all-to-all beats servers nearly everywhere; where gradients set off while
//!   backward runs, servers beat it where latency is high or ranks are many. An algorithm of two rounds is like servers: everybody pushes
//!   parts to those who add them up, and pulls the sums. One of many waits in each of them for a processor that computes.
//! - *Intensity flips fusing and partitioning.* Where communication decides, few long pieces cost least to begin; where computation takes
//!   as long, short ones leave early, and are hidden. Here, the pieces of a call are its chunks, and calls that are not pipelined overlap
//!   with nothing.
//!
//! Both are 0 in the mean of the two sides: what a model expects is right for whoever does not look. How much they are, whoever asks
//! says.

use crate::state::Context;

/// Algorithms of no more rounds are like servers: a push and a pull.
pub const SERVER_ROUNDS: usize = 2;

/// log2 of the intensity at which long chunks and short ones are alike: BERT's is 249, and 256 is what features take for the middle.
const MIDDLE: f64 = 8.0;

/// From so many powers of two below or above it on, intensity changes nothing more: a quarter and four times as much.
const REACH: f64 = 2.0;

/// log2 of the bytes of a chunk that is neither long nor short, the middle of those that are right
/// ([`super::CostModel::usual_knobs`]), and how many powers of two make a chunk long.
const CHUNK: f64 = 18.0;
const LONG: f64 = 2.0;

/// How much longer than is modelled an action of so many rounds and chunks of so many bytes takes, as a logarithm, in units of
/// [`super::Misfit::overlap`].
pub(super) fn longer(context: &Context, rounds: usize, chunk_log2: u8) -> f64 {
    let is_like_servers = rounds <= SERVER_ROUNDS;
    let of_rounds = if is_like_servers == context.is_pipelined_layer { -1.0 } else { 1.0 };
    if !context.is_pipelined_layer {
        return of_rounds;
    }
    of_rounds + intensity(context) * (f64::from(chunk_log2) - CHUNK) / LONG
}

/// From −1, where communication decides, to 1, where computation takes as long. One that is unknown is taken for one in the middle.
fn intensity(context: &Context) -> f64 {
    match context.intensity_log2 {
        0 => 0.0,
        log2 => ((f64::from(log2) - MIDDLE) / REACH).clamp(-1.0, 1.0),
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::Cluster;

    use super::*;
    use crate::action::Action;
    use crate::environment::{Call, Disturbances, Misfit, OwnModel, SimulatedCluster, Workload};
    use crate::state::State;

    /// Its model knows no difference between rounds, nor between chunks: messages have no latency there.
    fn cluster(misfit: Misfit) -> SimulatedCluster {
        let model = OwnModel::of(&Cluster::named("study-10gbe:8x1").expect("it is built in"));
        SimulatedCluster::new(Box::new(model), misfit, Disturbances::default(), 7)
    }

    fn call(is_pipelined_layer: bool, model_intensity: f64) -> Call {
        let call = Workload::data_parallel(8, 8).calls[5];
        Call { is_pipelined_layer, model_intensity, is_fused_call: true, ..call }
    }

    /// The best action, and what all take.
    fn best(cluster: &mut SimulatedCluster, call: &Call) -> (State, Action, Vec<f64>) {
        let state = cluster.state(call, 0);
        let situation = cluster.situation(&state).expect("choices").clone();
        let best = situation.arms[cluster.oracle(&situation, 0)].action;
        let all = (0..situation.arms.len()).map(|arm| cluster.truth_s(&situation, arm, 0)).collect();
        (situation.state, best, all)
    }

    /// Whoever asks for nothing has the truths that there were before: they do not depend on what a call overlaps with.
    #[test]
    fn nothing_overlaps_unless_somebody_asks_for_it() {
        let of = |misfit: Misfit| {
            let mut cluster = cluster(misfit);
            [call(false, 64.0), call(true, 64.0), call(true, 1024.0)].map(|call| best(&mut cluster, &call).2)
        };
        let [not_pipelined, low, high] = of(Misfit::USUAL);
        assert!(not_pipelined == low && low == high);
        let [not_pipelined, low, high] = of(Misfit { overlap: 0.3, ..Misfit::USUAL });
        assert!(not_pipelined != low && low != high);
    }

    #[test]
    fn pipelining_flips_rounds_and_intensity_flips_chunks() {
        let mut cluster = cluster(Misfit { overlap: 0.3, ..Misfit::NONE });
        let mut of = |call: Call| {
            let (state, action, _) = best(&mut cluster, &call);
            (cluster.model().rounds(&state, &action).expect("a round"), action.chunk_log2)
        };
        let (without, with) = (of(call(false, 256.0)).0, of(call(true, 256.0)).0);
        assert!(without > SERVER_ROUNDS && with <= SERVER_ROUNDS, "{without} and {with} rounds");
        let (low, high) = (of(call(true, 64.0)).1, of(call(true, 1024.0)).1);
        assert!(low >= high + 4, "chunks of 2^{low} and 2^{high}");
    }

    #[test]
    fn a_model_is_right_in_the_mean_of_both_sides() {
        let context = |is_pipelined_layer: bool, model_intensity: f64| {
            State { is_pipelined_layer, model_intensity, ..crate::state::tests::CALL }.context()
        };
        for (rounds, chunk_log2) in [(1, 16), (2, 21), (6, 17), (14, 20)] {
            let of = |is_pipelined: bool, intensity: f64| longer(&context(is_pipelined, intensity), rounds, chunk_log2);
            assert_eq!(of(false, 256.0) + of(true, 256.0), 0.0);
            assert_eq!(of(true, 64.0) + of(true, 1024.0), 2.0 * of(true, 256.0));
            assert_eq!(of(true, 0.0), of(true, 256.0), "an unknown one");
            assert_eq!(of(true, 16.0), of(true, 64.0), "no further than that");
            assert_eq!(of(false, 16.0), of(false, 4096.0), "nothing to overlap with");
        }
    }
}
