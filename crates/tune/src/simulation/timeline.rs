//! What an iteration of training computes, and which calls travel behind it.

use paceline_plan::{CollectiveKind, Profile};

use crate::environment::{Call, Played};
use crate::state::Parallelism;

/// Forward; backward with calls behind it, one after the other, as they have one link; update.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// Seconds of forward.
    pub forward_s: f64,
    /// Seconds of backward.
    pub backward_s: f64,
    /// Seconds of the optimiser.
    pub update_s: f64,
    /// In the order in which they set off.
    pub buckets: Vec<Bucket>,
}

/// Gradients that travel together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// Their call.
    pub call: Call,
    /// Seconds from the start of backward until the last of them is final.
    pub ready_s: f64,
}

impl Timeline {
    /// A profile among so many ranks on so many hosts, its gradients in the order in which they become final: a bucket is full with
    /// the tensor that fills it. Numbers are of four bytes.
    pub fn in_buckets(profile: &Profile, bucket_bytes: u64, ranks: u32, hosts: u32) -> Timeline {
        let empty = Call {
            collective: CollectiveKind::AllReduce,
            bytes: 0,
            ranks,
            hosts,
            parallelism: Parallelism::Data,
            is_pipelined_layer: true,
            is_fused_call: false,
            is_ps_deployment: false,
            model_intensity: profile.intensity().unwrap_or(0.0),
            local_batch: profile.local_batch as u32,
            times: 1,
        };
        let ready_s = profile.ready_s();
        let mut buckets: Vec<Bucket> = Vec::new();
        for tensor in profile.ready_order() {
            let (bytes, ready_s) = (4 * profile.tensors[tensor].elements as u64, ready_s[tensor]);
            match buckets.last_mut().filter(|last| last.call.bytes < bucket_bytes) {
                Some(last) => {
                    let call = Call { bytes: last.call.bytes + bytes, is_fused_call: true, ..last.call };
                    *last = Bucket { call, ready_s: last.ready_s.max(ready_s) };
                }
                None => buckets.push(Bucket { call: Call { bytes, ..empty }, ready_s }),
            }
        }
        let (forward_s, backward_s, update_s) = (profile.forward_s(), profile.backward_s(), profile.update_s);
        Timeline { forward_s, backward_s, update_s, buckets }
    }

    /// Seconds of an iteration. `slower`: how many times as long as in the profile computation takes. `calls`: bucket by bucket, what
    /// its call takes; it begins when the last rank has come, and the one before has ended.
    pub fn iteration_s(&self, slower: f64, calls: &[Played]) -> f64 {
        let after = |free_s: f64, (bucket, played): (&Bucket, &Played)| {
            free_s.max(slower * bucket.ready_s + played.late_s) + played.call_s
        };
        let sent_s = self.buckets.iter().zip(calls).fold(0.0, after);
        slower * (self.forward_s + self.update_s) + sent_s.max(slower * self.backward_s)
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::built_in_profile;

    use super::*;

    const BUCKET_BYTES: u64 = 25 << 20;

    fn profile() -> Profile {
        built_in_profile("resnet50").expect("it is built in")
    }

    fn played(call_s: f64, late_s: f64) -> Played {
        Played { call_s, shared: 1.0, stalled_s: 0.0, late_s }
    }

    #[test]
    fn buckets_hold_all_gradients_in_the_order_of_backward() {
        let profile = profile();
        let buckets = Timeline::in_buckets(&profile, BUCKET_BYTES, 8, 2).buckets;
        assert_eq!(buckets.iter().map(|bucket| bucket.call.bytes).sum::<u64>(), 4 * profile.parameters() as u64);
        assert!(buckets.windows(2).all(|pair| pair[0].ready_s <= pair[1].ready_s), "{buckets:?}");
        let (last, full) = buckets.split_last().expect("buckets");
        assert!(full.iter().all(|bucket| bucket.call.bytes >= BUCKET_BYTES) && !full.is_empty(), "{buckets:?}");
        assert!((last.ready_s - profile.backward_s()).abs() < 1e-9);
        assert!(last.call.is_fused_call && last.call.is_pipelined_layer);
        assert_eq!((last.call.ranks, last.call.hosts), (8, 2));
    }

    #[test]
    fn what_backward_hides_costs_nothing() {
        let profile = profile();
        let timeline = Timeline::in_buckets(&profile, BUCKET_BYTES, 8, 2);
        let of = |call: Played| timeline.iteration_s(1.0, &vec![call; timeline.buckets.len()]);
        // Only the last bucket is exposed.
        assert!((of(played(1e-6, 0.0)) - profile.iteration_s() - 1e-6).abs() < 1e-9);
        let long = 10.0 * profile.iteration_s();
        assert!(of(played(long, 0.0)) >= timeline.buckets.len() as f64 * long);
    }

    /// A rank that is late to the last call delays the iteration by that; one that is late while the link is busy delays nothing. Slow
    /// computation lengthens what is not hidden, and nothing else.
    #[test]
    fn the_last_rank_and_slow_computation_are_waited_for() {
        let timeline = Timeline::in_buckets(&profile(), BUCKET_BYTES, 8, 2);
        let of = |slower: f64, late: &dyn Fn(usize) -> f64, call_s: f64| {
            let calls: Vec<Played> = (0..timeline.buckets.len()).map(|number| played(call_s, late(number))).collect();
            timeline.iteration_s(slower, &calls)
        };
        let (last, short_s, long_s) = (timeline.buckets.len() - 1, 1e-6, 1e3);
        let late_to_last = |number: usize| if number == last { 0.5f64 } else { 0.0 };
        let none = |_: usize| 0.0f64;
        assert!((of(1.0, &late_to_last, short_s) - of(1.0, &none, short_s) - 0.5).abs() < 1e-9);
        assert_eq!(of(1.0, &late_to_last, long_s), of(1.0, &none, long_s));
        assert!((of(2.0, &none, 0.0) - 2.0 * of(1.0, &none, 0.0)).abs() < 1e-9);
        assert!(of(2.0, &none, long_s) - of(1.0, &none, long_s) < timeline.backward_s + timeline.forward_s + 1.0);
    }
}
