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
        let refused = |what: &str| ScheduleError::Order { what: what.into(), tensors: 3, given: order.len(), culprit };
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

/// A tied embedding, tensor 0: needed first, final last. Urgency follows forward, not the readiness.
#[test]
fn bytescheduler_sends_first_what_forward_needs_first() {
    let strategy = Registry::built_in().parse("schedule=bytescheduler:4KiB:16KiB").expect("a strategy");
    let workload = Workload { used: vec![0, 2, 1], ready: vec![1, 2, 0], ..Workload::of_sizes(&[2048, 100, 1025]) };
    let plan = plan(&strategy, &workload).expect("a plan");
    let buckets: Vec<_> = plan.buckets.iter().map(|bucket| (bucket.tensors[0], bucket.priority)).collect();
    assert_eq!(buckets, [(1, 2), (2, 1), (0, 0)]);
    let pieces: Vec<_> = plan.partitions().map(|(bucket, part)| (bucket, part.elements.clone())).collect();
    assert_eq!(pieces, [(0, 0..100), (1, 100..613), (1, 613..1125), (2, 1125..2149), (2, 2149..3173)]);
    assert_eq!((plan.credit_bytes, plan.forward_overlap, plan.shards), (Some(16 << 10), true, 0));
    assert!(plan.partitions().all(|(_, part)| part.shard.is_none()));
}

/// Four partitions on their way to one server leave the others idle.
#[test]
fn every_server_has_a_credit() {
    let credit = |strategy: &str| plan_of(strategy, &[4096; 8]).credit_bytes;
    assert_eq!(credit("schedule=bytescheduler:4KiB:16KiB"), Some(16 << 10));
    assert_eq!(credit("schedule=bytescheduler:4KiB:16KiB,arch=ps:1"), Some(16 << 10));
    assert_eq!(credit("schedule=bytescheduler:4KiB:16KiB,arch=ps:3"), Some(48 << 10));
    assert_eq!(credit("wfbp-ps"), None);
}

/// The study's: the plan of wait-free backpropagation, and priorities that only servers see.
#[test]
fn the_weaker_bytescheduler_orders_on_servers_only() {
    let sizes = [3000, 10, 2000];
    let (weak, wfbp) = (plan_of("study-bytescheduler-ps", &sizes), plan_of("study-wfbp-ps", &sizes));
    assert!(weak.server_priority_only && !weak.forward_overlap && weak.credit_bytes.is_none());
    let priorities = |plan: &Plan| plan.buckets.iter().map(|bucket| bucket.priority).collect::<Vec<_>>();
    assert_eq!((priorities(&weak), priorities(&wfbp)), (vec![2, 1, 0], vec![0, 0, 0]));
    assert!((0..3).all(|bucket| weak.worker_priority(bucket) == 0));
    assert!(weak.partitions().eq(wfbp.partitions()));
}

#[test]
fn a_smaller_partition_counts_whether_the_schedule_or_the_servers_want_it() {
    let pieces = |text| plan_of(text, &[4096]).operations();
    assert_eq!(pieces("schedule=bytescheduler:4KiB:4KiB,arch=ps:2:2KiB"), 8);
    assert_eq!(pieces("schedule=bytescheduler:2KiB:4KiB,arch=ps:2:4KiB"), 8);
    assert_eq!(pieces("schedule=none,arch=ps:2:4KiB"), 4);
    assert_eq!(pieces("schedule=none"), 1);
}

/// The number of shards may follow the world; ResNet-50's 102 MB are cut at 4,096,000 bytes.
#[test]
fn shards_of_a_world() {
    let strategy = Registry::built_in().parse("study-bsp-ps").expect("a strategy");
    let workload = Workload::of_sizes(&sizes_of(RESNET50)).with_world(32, 8);
    let plan = plan(&strategy, &workload).expect("a plan");
    assert_eq!((plan.shards, plan.operations()), (8, 25));
    let mut held = [0; 8];
    plan.partitions().for_each(|(_, part)| held[part.shard.expect("a server")] += 1);
    assert_eq!(held.iter().max(), Some(&4), "25 partitions on 8 servers: {held:?}");
}

#[test]
fn mg_wfbp_wants_measurements_and_merges_by_them() {
    let strategy = Registry::built_in().parse("mg-wfbp").expect("a strategy");
    let bare = Workload::of_sizes(&[50, 50, 50]);
    let lacking = |workload: &Workload| plan(&strategy, workload).expect_err("nothing measured").to_string();
    assert!(lacking(&bare).contains("the times of backward have not been measured"));
    let timed = Workload { ready_s: Some(vec![3.0, 2.0, 1.0]), ..bare };
    assert!(lacking(&timed).contains("the network's times have not been measured"));
    let cheap = |bytes: u64| 0.01 + 0.001 * bytes as f64;
    let dear = |_: u64| 2.0;
    let buckets = |workload: &Workload| elements(&plan(&strategy, workload).expect("a plan"));
    assert_eq!(buckets(&timed.clone().with_communication(&cheap)), [50, 50, 50]);
    assert_eq!(buckets(&timed.with_communication(&dear)), [150]);
}

#[test]
fn what_an_outside_scheduler_gets_wrong_is_refused() {
    use paceline_schedule::{Schedule, Schedulers};
    use paceline_strategy::{Aspect, Call, Method};
    let method = Method {
        aspect: Aspect::Schedule,
        name: "mine",
        parameters: &[],
        sentence: "a schedule of the test",
        lossless: true,
        available: true,
    };
    let refusal = |schedule: Schedule| {
        let mut schedulers = Schedulers::built_in();
        schedulers.add(method, move |_: &Call, _: &Workload| Ok(schedule.clone()));
        let strategy = schedulers.grammar().parse("schedule=mine").expect("a strategy");
        assert!(plan(&strategy, &Workload::of_sizes(&[1])).is_err(), "it is not built in");
        schedulers.plan(&strategy, &Workload::of_sizes(&[1, 2])).expect_err("no plan").to_string()
    };
    assert!(refusal(Schedule::of(vec![vec![1]])).contains("the schedule=mine order of 2 tensors must name each"));
    assert!(refusal(Schedule::of(vec![vec![1, 0], vec![0]])).contains("tensor 0 is unknown or named twice"));
    let lopsided = Schedule { priorities: vec![1], ..Schedule::of(vec![vec![1], vec![0]]) };
    assert!(refusal(lopsided).contains("are those of 1 buckets, and it has made 2"));
    let unknown = Registry::built_in().parse("wfbp-a2a").map(|mut strategy| {
        strategy.schedule.name = "other".into();
        plan(&strategy, &Workload::of_sizes(&[1])).expect_err("nobody plans it").to_string()
    });
    assert!(
        unknown.expect("a strategy").starts_with("there is no planner for schedule=other; planned are none, wfbp,")
    );
}

const STRATEGIES: &[&str] = &[
    "bsp-a2a",
    "wfbp-a2a",
    "ddp",
    "schedule=fusion:4KiB",
    "schedule=fusion:9KiB:1KiB",
    "schedule=bytescheduler:3000:9000",
    "schedule=none,arch=ps:3:5000",
    "schedule=wfbp,arch=ps:5:1024",
    "schedule=server-priority,arch=ps:2:2KiB",
    "schedule=bytescheduler:2KiB:1MiB,arch=ps:4",
];

proptest! {
    #[test]
    fn every_tensor_lies_in_one_bucket_and_the_buckets_cover_the_arena(
        sizes in prop::collection::vec(0usize..5_000, 0..60),
        strategy in prop::sample::select(STRATEGIES),
    ) {
        let plan = plan_of(strategy, &sizes);
        let mut end = 0;
        let mut tensors: Vec<usize> = Vec::new();
        for bucket in &plan.buckets {
            prop_assert_eq!(bucket.elements.start, end);
            end = bucket.elements.end;
            prop_assert_eq!(bucket.tensors.iter().map(|&tensor| sizes[tensor]).sum::<usize>(), bucket.elements.len());
            tensors.extend(&bucket.tensors);
            let mut cut = bucket.elements.start;
            for partition in &bucket.partitions {
                prop_assert_eq!(partition.elements.start, cut);
                cut = partition.elements.end;
            }
            prop_assert_eq!(cut, end);
            prop_assert!(!bucket.partitions.is_empty());
        }
        prop_assert_eq!(end, sizes.iter().sum::<usize>());
        prop_assert_eq!(tensors, (0..sizes.len()).rev().collect::<Vec<_>>());
        prop_assert_eq!(plan.hash(), plan_of(strategy, &sizes).hash());
    }

    /// The fullest server holds at most one partition more than the mean, at the end and at any point of the plan.
    #[test]
    fn servers_get_as_many_bytes_as_each_other(
        sizes in prop::collection::vec(0usize..50_000, 1..60),
        shards in 1usize..12,
        partition in 1024usize..100_000,
        schedule in prop::sample::select(vec!["none", "wfbp", "ddp", "fusion:40KiB", "bytescheduler:64KiB:1MiB"]),
    ) {
        let plan = plan_of(&format!("schedule={schedule},arch=ps:{shards}:{partition}"), &sizes);
        let mut held = vec![0usize; shards];
        let mut largest = 0;
        for (_, part) in plan.partitions() {
            prop_assert!(part.elements.len() <= partition / 4);
            largest = largest.max(part.elements.len());
            held[part.shard.expect("a server")] += part.elements.len();
            let mean = held.iter().sum::<usize>() as f64 / shards as f64;
            let fullest = held.iter().copied().max().unwrap_or(0) as f64;
            prop_assert!(fullest - mean <= largest as f64, "{:?}", held);
        }
        prop_assert_eq!(held.iter().sum::<usize>(), sizes.iter().sum::<usize>());
    }
}
