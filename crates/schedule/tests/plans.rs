//! Plans of real and random models.

use paceline_plan::Plan;
use paceline_schedule::{DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES, ScheduleError, Workload, plan};
use paceline_strategy::Registry;
use proptest::prelude::*;

fn plan_of(strategy: &str, sizes: &[usize]) -> Plan {
    let strategy = Registry::built_in().parse(strategy).expect("a strategy");
    plan(&strategy, &Workload::of_sizes(sizes)).expect("a plan")
}

fn elements(plan: &Plan) -> Vec<usize> {
    plan.buckets.iter().map(|bucket| bucket.elements.len()).collect()
}

const RESNET50: &str = include_str!("../../../data/resnet50_tensors.csv");
const BERT_BASE: &str = include_str!("../../../data/bert_base_tensors.csv");
const BERT_LARGE: &str = include_str!("../../../data/bert_large_tensors.csv");

/// The elements of each tensor in a list.
fn sizes_of(list: &str) -> Vec<usize> {
    let number = |line: &str| line.split(',').nth(2).and_then(|field| field.parse().ok());
    list.lines().skip(1).map(|line| number(line).expect("a number of elements")).collect()
}

/// The buckets that PyTorch's DDP makes of ResNet-50.
#[test]
fn ddp_on_resnet50() {
    let sizes = sizes_of(RESNET50);
    assert_eq!(sizes.len(), 161);
    assert_eq!(elements(&plan_of("ddp", &sizes)), [2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040]);
    assert_eq!(plan_of("wfbp-a2a", &sizes).buckets.len(), 161);
    assert_eq!(elements(&plan_of("bsp-a2a", &sizes)), [25_557_032]);
}

/// DDP closes a bucket with the tensor that makes it reach its limit, neither sooner nor later.
#[test]
fn ddp_closes_buckets_at_their_limits() {
    for (list, tensors, total) in
        [(RESNET50, 161, 25_557_032), (BERT_BASE, 206, 110_111_042), (BERT_LARGE, 398, 336_232_258)]
    {
        let sizes = sizes_of(list);
        assert_eq!(sizes.len(), tensors);
        let plan = plan_of("ddp", &sizes);
        assert_eq!(plan.elements(), total);
        for (number, bucket) in plan.buckets.iter().enumerate() {
            let limit = if number == 0 { DDP_FIRST_BUCKET_BYTES } else { DDP_BUCKET_BYTES } as usize;
            let bytes = 4 * bucket.elements.len();
            let last = 4 * bucket.tensors.last().map_or(0, |&tensor| sizes[tensor]);
            assert!(bytes - last < limit, "bucket {number} should have been closed before its last tensor");
            assert!(bytes >= limit || number + 1 == plan.buckets.len(), "bucket {number} was closed too soon");
        }
    }
}

/// A tied embedding: parameter 0, whose gradient is final first here.
#[test]
fn a_ready_order_rules_all_but_ddp() {
    let tensors = [400_000, 100, 200];
    let parse = |text| Registry::built_in().parse(text).expect("a strategy");
    let buckets = |text, ready: &[usize]| {
        let workload = Workload { ready: ready.to_vec(), ..Workload::of_sizes(&tensors) };
        let plan = plan(&parse(text), &workload).expect("a plan");
        plan.buckets.into_iter().map(|bucket| (bucket.tensors, bucket.elements)).collect::<Vec<_>>()
    };
    assert_eq!(
        buckets("schedule=wfbp", &[0, 2, 1]),
        [(vec![0], 0..400_000), (vec![2], 400_000..400_200), (vec![1], 400_200..400_300)]
    );
    assert_eq!(buckets("schedule=fusion:1KiB", &[2, 0, 1]), [(vec![2, 0], 0..400_200), (vec![1], 400_200..400_300)]);
    assert_eq!(buckets("ddp", &[0, 2, 1]), [(vec![2, 1, 0], 0..400_300)]);
}

#[test]
fn a_workload_that_contradicts_itself_is_refused() {
    let ddp = Registry::built_in().parse("ddp").expect("a strategy");
    let good = Workload::of_sizes(&[400_000, 100, 200]);
    for (order, culprit) in
        [(&[0, 1][..], None), (&[0, 1, 1][..], Some(1)), (&[0, 3, 1][..], Some(3)), (&[0, 1, 2, 0][..], Some(0))]
    {
        let refused = |what| ScheduleError::Order { what, tensors: 3, given: order.len(), culprit };
        let error = plan(&ddp, &Workload { ready: order.to_vec(), ..good.clone() }).expect_err("no order");
        assert_eq!(error, refused("ready"));
        let error = plan(&ddp, &Workload { used: order.to_vec(), ..good.clone() }).expect_err("no order");
        assert_eq!(error, refused("use"));
    }
    for times in [vec![2.0, 1.0], vec![1.0, 2.0, 3.0], vec![2.0, f64::NAN, 1.0], vec![1.0, 0.5, -1.0]] {
        let given = times.len();
        let error = plan(&ddp, &Workload { ready_s: Some(times), ..good.clone() }).expect_err("no times");
        assert_eq!(error, ScheduleError::ReadyTimes { tensors: 3, given });
    }
    assert!(plan(&ddp, &Workload { ready_s: Some(vec![2.0, 1.0, 1.0]), ..good }).is_ok());
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
}
