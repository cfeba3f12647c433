//! Plans of real and random models.

use paceline_plan::Plan;
use paceline_schedule::{Dispatcher, TensorSpec, plan};
use paceline_strategy::Registry;
use proptest::prelude::*;

fn plan_of(strategy: &str, sizes: &[usize]) -> Plan {
    let strategy = Registry::built_in().parse(strategy).expect("a strategy");
    let tensors: Vec<TensorSpec> = sizes.iter().map(|&elements| TensorSpec { name: String::new(), elements }).collect();
    plan(&strategy, &tensors).expect("a plan")
}

fn elements(plan: &Plan) -> Vec<usize> {
    plan.buckets.iter().map(|bucket| bucket.elements.len()).collect()
}

/// The buckets that PyTorch's DDP makes of ResNet-50.
#[test]
fn ddp_on_resnet50() {
    let list = include_str!("../../../data/resnet50_tensors.csv");
    let sizes: Vec<usize> = list
        .lines()
        .skip(1)
        .map(|line| line.split(',').nth(2).and_then(|field| field.parse().ok()).expect("a number of elements"))
        .collect();
    assert_eq!(sizes.len(), 161);
    assert_eq!(elements(&plan_of("ddp", &sizes)), [2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040]);
    assert_eq!(plan_of("wfbp-a2a", &sizes).buckets.len(), 161);
    assert_eq!(elements(&plan_of("bsp-a2a", &sizes)), [25_557_032]);
}

proptest! {
    #[test]
    fn every_tensor_lies_in_one_bucket_and_the_buckets_cover_the_arena(
        sizes in prop::collection::vec(0usize..5_000, 0..60),
        strategy in prop::sample::select(vec!["bsp-a2a", "wfbp-a2a", "ddp", "schedule=fusion:4KiB", "schedule=fusion:9KiB:1KiB"]),
    ) {
        let plan = plan_of(strategy, &sizes);
        let mut end = 0;
        let mut tensors: Vec<usize> = Vec::new();
        for bucket in &plan.buckets {
            prop_assert_eq!(bucket.elements.start, end);
            end = bucket.elements.end;
            prop_assert_eq!(bucket.tensors.iter().map(|&tensor| sizes[tensor]).sum::<usize>(), bucket.elements.len());
            tensors.extend(&bucket.tensors);
        }
        prop_assert_eq!(end, sizes.iter().sum::<usize>());
        prop_assert_eq!(tensors, (0..sizes.len()).rev().collect::<Vec<_>>());
        prop_assert_eq!(plan.hash(), plan_of(strategy, &sizes).hash());
    }

    #[test]
    fn each_bucket_sets_off_once_with_its_last_tensor(
        sizes in prop::collection::vec(1usize..5_000, 1..40),
        order in Just(()).prop_perturb(|(), mut random| random.random::<u64>()),
    ) {
        let plan = plan_of("schedule=fusion:8KiB", &sizes);
        let mut dispatcher = Dispatcher::new(&plan);
        for round in 0..2u64 {
            dispatcher.begin();
            let mut tensors: Vec<usize> = (0..sizes.len()).collect();
            tensors.sort_by_key(|&tensor| (tensor as u64 + 1).wrapping_mul(order | 1).wrapping_add(round) % 1009);
            let mut ready = vec![false; sizes.len()];
            let mut started = vec![0; plan.buckets.len()];
            for tensor in tensors {
                ready[tensor] = true;
                if let Some(bucket) = dispatcher.ready(tensor) {
                    prop_assert!(plan.buckets[bucket].tensors.contains(&tensor));
                    prop_assert!(plan.buckets[bucket].tensors.iter().all(|&tensor| ready[tensor]));
                    started[bucket] += 1;
                }
                let unready: Vec<usize> = dispatcher.unready().collect();
                prop_assert!(unready.iter().all(|&tensor| !ready[tensor]));
            }
            prop_assert!(started.iter().all(|&count| count == 1));
        }
    }
}
