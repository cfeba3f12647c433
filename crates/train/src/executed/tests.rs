use paceline_comm::Communicator;
use paceline_plan::{Bucket, Partition};
use paceline_schedule::{Dispatcher, Schedulers};
use serde_json::Value;

use super::*;
use crate::exchange::Places;
use crate::learning_rate::LearningRate;
use crate::optimizer::OptimizerSettings;
use crate::peers::Peers;
use crate::planning::{Known, Planning};

const SIZES: [usize; 4] = [4, 3, 0, 6];

fn rule() -> UpdateRule {
    UpdateRule { optimizer: OptimizerSettings::default(), learning_rate: LearningRate::constant(0.1), clip_norm: None }
}

fn all_reduces(count: usize) -> Vec<AllReduce> {
    vec![AllReduce { algorithm: "ring".into(), chunk_bytes: 4096 }; count]
}

fn plan(version: u32, arch: &str, shards: usize, buckets: Vec<Bucket>) -> Plan {
    Plan {
        version,
        strategy: format!("schedule=mg-wfbp,arch={arch}"),
        buckets,
        shards,
        credit_bytes: None,
        forward_overlap: false,
        server_priority_only: false,
    }
}

fn stage(first_iteration: usize, plan: Plan, all_reduces: Vec<AllReduce>) -> Stage {
    Stage { first_iteration, plan, all_reduces, changes: Vec::new() }
}

/// What a tuner did to the second stage's only operation.
fn changes() -> Vec<Change> {
    let to = |algorithm: &str, chunk_bytes| ChangedAllReduce { operation: 0, algorithm: algorithm.into(), chunk_bytes };
    vec![
        Change { iteration: 8, all_reduces: vec![to("direct", 64)] },
        Change { iteration: 11, all_reduces: vec![to("ring", 4096)] },
    ]
}

/// Two stages without servers.
fn executed() -> ExecutedPlans {
    let apart = vec![Bucket::whole(vec![1, 2], 0..3), Bucket::whole(vec![0, 3], 3..13)];
    let together = vec![Bucket::whole(vec![3, 2, 1, 0], 0..13)];
    let stages = vec![
        stage(0, plan(1, "a2a", 0, apart), all_reduces(2)),
        Stage { changes: changes(), ..stage(8, plan(2, "a2a", 0, together), all_reduces(1)) },
    ];
    ExecutedPlans { schema: 1, update_rule: Some(rule()), stages }
}

/// One stage with two servers and a bucket that is cut.
fn served() -> ExecutedPlans {
    let partition = |elements, shard| Partition { elements, shard: Some(shard) };
    let mut buckets = vec![Bucket::whole(vec![1, 2], 0..3), Bucket::whole(vec![0, 3], 3..13)];
    buckets[0].partitions = vec![partition(0..3, 1)];
    buckets[1].partitions = vec![partition(3..8, 0), partition(8..13, 1)];
    let plan = Plan { strategy: "wfbp-ps,arch=ps:2".into(), credit_bytes: Some(20), ..plan(1, "", 2, buckets) };
    ExecutedPlans { stages: vec![stage(0, plan, Vec::new())], ..executed() }
}

fn check(executed: &ExecutedPlans, arch: &str) -> Result<(), String> {
    let grammar = Registry::built_in();
    let strategy = grammar.parse(&format!("schedule=wfbp,arch={arch}")).unwrap();
    executed.check(&SIZES, &strategy, &grammar, &rule())
}

#[test]
fn plans_fit_their_model_only() {
    assert_eq!(check(&executed(), "a2a"), Ok(()));
    assert_eq!(check(&served(), "ps:2"), Ok(()));
    let grammar = Registry::built_in();
    let strategy = grammar.parse("ddp").unwrap();
    let of_sizes = |sizes: &[usize]| executed().check(sizes, &strategy, &grammar, &rule()).unwrap_err();
    assert!(of_sizes(&[4, 4, 0, 6]).contains("other sizes"));
    assert!(of_sizes(&[4, 3, 0]).contains("is for 4 tensors, and the model has 3"));
    assert!(of_sizes(&[4, 3, 0, 6, 1]).contains("is for 4 tensors, and the model has 5"));
    type Wrong = fn(&mut ExecutedPlans);
    let changes: [(Wrong, &str); 12] = [
        (|it| it.stages.clear(), "iteration 0"),
        (|it| it.stages[1].first_iteration = 0, "follow each other"),
        (|it| it.stages[1].plan.version = 1, "follow each other"),
        (|it| it.stages[1].plan.buckets[0].tensors = vec![1, 1, 2, 3], "tensor 1 must stand in one bucket, once"),
        (|it| it.stages[1].plan.buckets[0].partitions[0].elements.end = 6, "do not cover"),
        (|it| it.stages[0].plan.buckets[0].partitions[0].shard = Some(7), "names a shard"),
        (|it| drop(it.stages[0].all_reduces.pop()), "another number of all-reduces"),
        (|it| it.stages[0].plan.strategy = "schedule=own".into(), "another version: unknown schedule method `own`"),
        (|it| it.stages[1].changes[0].iteration = 7, "has changes that do not follow each other"),
        (|it| it.stages[1].changes[1].iteration = 8, "has changes that do not follow each other"),
        (|it| it.stages[1].changes[1].all_reduces[0].operation = 1, "changes an all-reduce 1 that it has not"),
        (|it| it.update_rule = Some(UpdateRule { clip_norm: Some(1.0), ..rule() }), "clipped to the norm 1, and"),
    ];
    for (change, told) in changes {
        let mut executed = executed();
        change(&mut executed);
        let error = check(&executed, "a2a").unwrap_err();
        assert!(error.contains(told), "{error}");
    }
    // A plan that was only planned.
    assert_eq!(check(&ExecutedPlans::planned(executed().stages[0].plan.clone()), "a2a"), Ok(()));
    // A file of an older version, which does not say it.
    assert_eq!(check(&ExecutedPlans { update_rule: None, ..executed() }, "a2a"), Ok(()));
}

#[test]
fn the_optimiser_stays_where_it_was() {
    let error = check(&served(), "ps:2:apply").unwrap_err();
    assert!(
        error.contains("is for arch=ps:2:4000KiB:colocated:aggregate, and this training has arch=ps:2:"),
        "{error}"
    );
    let mut applied = served();
    applied.stages[0].plan.strategy = "wfbp-ps,arch=ps:2:apply".into();
    assert_eq!(check(&applied, "ps:2:apply"), Ok(()));
    assert!(check(&applied, "ps:2").is_err());
    let again = Stage { first_iteration: 5, ..applied.stages[0].clone() };
    applied.stages.push(again);
    assert!(check(&applied, "ps:2:apply").unwrap_err().contains("several stages"));
}

/// Files of trainings that were not tuned are as they always were.
#[test]
fn changes_stand_in_a_file_if_there_are_some() {
    let text = serde_json::to_value(executed()).unwrap();
    assert!(text["stages"][0].get("changes").is_none());
    assert_eq!(text["stages"][1]["changes"][1]["all_reduces"][0]["algorithm"], "ring");
    assert_eq!(serde_json::from_value::<ExecutedPlans>(text).unwrap(), executed());
}

/// What is measured first runs under a plan of wait-free backpropagation. Both plans name their strategy as it can be read again.
#[test]
fn plans_from_measurements_are_carried_out_again() {
    let (schedulers, grammar) = (Schedulers::built_in(), Registry::built_in());
    let strategy = grammar.parse("mg-wfbp").unwrap();
    let peers = Peers::AllToAll(Communicator::threads(1).unwrap().remove(0));
    let planning = Planning { strategy: &strategy, schedulers: &schedulers, peers: &peers, sizes: &SIZES, slowed: 1.0 };
    let (first, measured) = planning.first(&Known::default(), None).unwrap();
    let known = Known { ready_s: Some(vec![4e-3, 3e-3, 2e-3, 1e-3]), ..Known::default() };
    let again = planning.again(&first, &known, None).unwrap();
    assert!(!measured);
    let names = [&first, &again].map(|plan| (plan.version, grammar.parse(&plan.strategy).unwrap().schedule.name));
    assert_eq!(names, [(1, "wfbp".to_owned()), (2, "mg-wfbp".to_owned())]);
    let whole = |first_iteration, plan: Plan| {
        let all_reduces = all_reduces(plan.operations());
        stage(first_iteration, plan, all_reduces)
    };
    let executed = ExecutedPlans { stages: vec![whole(0, first), whole(8, again)], ..executed() };
    let read: ExecutedPlans = serde_json::from_str(&serde_json::to_string(&executed).unwrap()).unwrap();
    assert_eq!(read.check(&SIZES, &strategy, &grammar, &rule()), Ok(()));
    read.stages.iter().for_each(|stage| carry_out(&stage.plan, &stage.plan.strategy));
}

/// Whatever stands in a file: it is refused, or it can be carried out.
#[test]
fn no_file_of_plans_breaks_a_training() {
    let mut random = Random(0x0dd_ba11);
    let (mut refused, mut accepted) = (0, 0);
    for round in 0..4000 {
        let (executed, arch) = if round % 2 == 0 { (executed(), "a2a") } else { (served(), "ps:2") };
        let mut file = serde_json::to_value(executed).unwrap();
        for _ in 0..1 + random.below(3) {
            mutate(&mut file, &mut random);
        }
        let text = file.to_string();
        let read = serde_json::from_str::<ExecutedPlans>(&text).ok();
        match read.filter(|executed| check(executed, arch).is_ok()) {
            None => refused += 1,
            Some(executed) => {
                accepted += 1;
                executed.stages.iter().for_each(|stage| carry_out(&stage.plan, &format!("round {round}: {text}")));
            }
        }
    }
    assert!(refused > 1000 && accepted > 100, "{refused} were refused, {accepted} not");
}

/// Every tensor waits for an operation, each operation starts once, and all end: twice.
fn carry_out(plan: &Plan, what: &str) {
    let places = Places::new(plan, &SIZES);
    let mut dispatcher = Dispatcher::new(plan);
    for _ in 0..2 {
        let mut started = vec![false; plan.operations()];
        dispatcher.begin();
        for tensor in (0..SIZES.len()).rev() {
            dispatcher.ready(tensor);
            while let Some(operation) = dispatcher.next() {
                assert!(!std::mem::replace(&mut started[operation], true), "{what}");
                dispatcher.finished(operation);
            }
        }
        assert!(dispatcher.is_done() && started.iter().all(|&started| started), "{what}");
    }
    let mut waited = vec![false; plan.operations()];
    for (tensor, size) in SIZES.iter().enumerate() {
        let pieces = places.of(tensor);
        assert_eq!(pieces.iter().map(|piece| piece.within.len()).sum::<usize>(), *size, "{what}");
        pieces.iter().for_each(|piece| waited[piece.operation] = true);
    }
    assert!(waited.iter().all(|&waited| waited), "{what}");
    for (_, partition) in plan.partitions() {
        assert!(partition.shard.is_none_or(|shard| shard < plan.shards), "{what}");
    }
}

/// xorshift64* (Vigna 2016).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }
}

/// Changes something, at any depth.
fn mutate(value: &mut Value, random: &mut Random) {
    match value {
        Value::Object(fields) if !fields.is_empty() && random.below(12) > 0 => {
            let chosen = random.below(fields.len());
            let name = fields.keys().nth(chosen).unwrap().clone();
            if random.below(12) == 0 {
                fields.remove(&name);
            } else {
                mutate(&mut fields[&name], random);
            }
        }
        Value::Array(list) if !list.is_empty() && random.below(12) > 0 => {
            let chosen = random.below(list.len());
            match random.below(12) {
                0 => drop(list.remove(chosen)),
                1 => list.push(list[chosen].clone()),
                2 => list.swap(0, chosen),
                _ => mutate(&mut list[chosen], random),
            }
        }
        Value::Number(number) => {
            let old = number.as_i64().unwrap_or(0);
            let numbers = [old.wrapping_add(1), old.wrapping_sub(1), 0, 1, 7, -1, i64::MAX];
            *value = Value::from(numbers[random.below(numbers.len())]);
        }
        other => {
            let values =
                [Value::Null, Value::from(3), Value::from(u64::MAX), Value::from("ring"), Value::Array(vec![])];
            *other = values[random.below(values.len())].clone();
        }
    }
}
