//! Every schedule on a way to communicate.

use paceline_schedule::{Candidate, ScheduleError, candidates, lay_out};
use paceline_strategy::{Aspect, Call, Strategy};

use super::{BoundedWay, Found, SearchError};

/// The built-in schedules without arguments, the simplest first: of schedules that are as good the first one stays.
pub(super) const SIMPLE: [&str; 5] = ["none", "wfbp", "ddp", "mg-wfbp", "server-priority"];

/// Buckets of `schedule=fusion`, in MiB. `ddp` is among the simple ones.
const FUSION_MIB: [u64; 7] = [1, 4, 10, 25, 50, 100, 200];

/// Partitions of `schedule=bytescheduler`, in bytes; and as many times as much credit.
const PARTITIONS: [u64; 6] = [512 << 10, 1 << 20, 2 << 20, 4_096_000, 8 << 20, 16 << 20];
const CREDITS: [u64; 2] = [1, 4];

/// Partitions that servers are given where nothing else cuts.
const OF_SERVERS: [u64; 3] = [1 << 20, 4_096_000, 16 << 20];

/// Predicts all schedules that the space leaves open on a way; or the one that it does not.
pub(super) fn try_all(way: &BoundedWay, found: &mut Found) -> Result<(), SearchError> {
    let space = way.subject.question.space;
    let costs = &way.costs;
    let cost = |bytes| costs.seconds(bytes);
    let workload = way.workload(&cost);
    for strategy in named(way) {
        let plan = match space.schedulers.plan(&strategy, &workload) {
            // A scheduler of the caller's own may want more than there is.
            Err(ScheduleError::NotMeasured { .. }) if space.strategy.schedule.name == "auto" => continue,
            plan => plan?,
        };
        if plan.forward_overlap && !space.forward_overlap {
            continue;
        }
        let prediction = way.estimate(&plan)?;
        found.add(way, strategy, prediction);
    }
    if space.strategy.schedule.name != "auto" || way.subject.question.workers == 1 {
        return Ok(());
    }
    let uncut = way.way.uncut();
    for candidate in one_of_each_kind(candidates(&workload)?) {
        let plan = lay_out(&uncut, &candidate.schedule, &workload)?;
        let prediction = way.estimate(&plan)?;
        found.add(way, uncut.clone(), prediction);
    }
    Ok(())
}

/// The way with every schedule that its grammar admits; or with its own, if that is not open.
fn named(way: &BoundedWay) -> Vec<Strategy> {
    let (space, base) = (way.subject.question.space, &way.way.strategy);
    if space.strategy.schedule.name != "auto" {
        return vec![base.clone()];
    }
    if way.subject.question.workers == 1 {
        // Sends nothing: whatever the schedule, nothing changes.
        let call = Call { name: SIMPLE[0].to_owned(), arguments: Vec::new() };
        return vec![Strategy { schedule: call, ..base.clone() }];
    }
    let grammar = space.schedulers.grammar();
    let with = |base: &Strategy, schedule: &str| {
        // A call prints as it is written. What does not go together is refused by the grammar's rules.
        let call = Call { name: schedule.to_owned(), arguments: Vec::new() };
        let strategy = grammar.parse(&Strategy { schedule: call, ..base.clone() }.to_string()).ok()?;
        (space.lossy || strategy.lossless(grammar)).then_some(strategy)
    };
    let mut bases = vec![base.clone()];
    if way.way.shards > 0 && space.strategy.arch_is_open() {
        bases = OF_SERVERS.map(|bytes| way.way.with_partition(bytes)).to_vec();
    }
    let fused = FUSION_MIB.map(|mib| format!("fusion:{mib}MiB"));
    let own = own_schedules(way);
    let of_base = SIMPLE.iter().map(|name| (*name).to_owned()).chain(fused).chain(own);
    let of_base: Vec<String> = of_base.collect();
    let mut strategies: Vec<Strategy> =
        of_base.iter().flat_map(|schedule| bases.iter().filter_map(move |base| with(base, schedule))).collect();
    let uncut = way.way.uncut();
    for partition in PARTITIONS {
        let texts = CREDITS.map(|credit| format!("bytescheduler:{partition}:{}", partition * credit));
        strategies.extend(texts.iter().filter_map(|text| with(&uncut, text)));
    }
    strategies
}

/// Schedules that somebody has added and that need no arguments.
fn own_schedules(way: &BoundedWay) -> Vec<String> {
    let schedulers = &way.subject.question.space.schedulers;
    let built_in = ["fusion", "bytescheduler", "auto"];
    let names = schedulers.names().filter(|name| !SIMPLE.contains(name) && !built_in.contains(name));
    let known = |name: &&str| schedulers.grammar().method(Aspect::Schedule, name).is_some();
    names.filter(known).map(str::to_owned).collect()
}

/// Of the candidates on one channel the best one of each kind: with overlap or without, and of each partition's length. What
/// partitions bring shows only where several stages work at once.
fn one_of_each_kind(candidates: Vec<Candidate>) -> Vec<Candidate> {
    let kind = |candidate: &Candidate| (candidate.schedule.forward_overlap, candidate.schedule.partition_bytes);
    let mut chosen: Vec<Candidate> = Vec::new();
    for candidate in candidates {
        if !chosen.iter().any(|known| kind(known) == kind(&candidate)) {
            chosen.push(candidate);
        }
    }
    chosen
}
