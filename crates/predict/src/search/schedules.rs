//! Every schedule on a way to communicate.

use paceline_schedule::{Candidate, ScheduleError, candidates, lay_out};
use paceline_strategy::{Aspect, Call, Servers, Strategy};

use super::{BoundedWay, Found, Reason, SearchError};
use crate::Prediction;

/// The built-in schedules without arguments, the simplest first: of schedules that are as good the first one stays.
pub(super) const SIMPLE: [&str; 5] = ["none", "wfbp", "ddp", "mg-wfbp", "server-priority"];

/// Buckets of `schedule=fusion`, in MiB. `ddp` is among the simple ones.
const FUSION_MIB: [u64; 7] = [1, 4, 10, 25, 50, 100, 200];

/// Partitions of `schedule=bytescheduler`, in bytes; and as many times as much credit.
const PARTITIONS: [u64; 6] = [512 << 10, 1 << 20, 2 << 20, Servers::PARTITION_BYTES, 8 << 20, 16 << 20];
const CREDITS: [u64; 2] = [1, 4];

/// Partitions that servers are given where nothing else cuts.
const OF_SERVERS: [u64; 3] = [1 << 20, Servers::PARTITION_BYTES, 16 << 20];

/// Predicts all schedules that the space leaves open on a way; or the one that it does not. How many could be: of the others
/// it is told why not.
pub(super) fn try_all(way: &BoundedWay, found: &mut Found) -> usize {
    let space = way.subject.question.space;
    let costs = &way.costs;
    let cost = |bytes| costs.seconds(bytes);
    let workload = way.workload(&cost);
    let open = space.strategy.schedule.name == "auto";
    let mut count = 0;
    let mut take = |strategy: Strategy, prediction: Result<Prediction, SearchError>| match prediction {
        Ok(prediction) => {
            count += 1;
            found.add(way, strategy, prediction);
        }
        Err(error) => found.leave_out(way, Some(strategy.schedule.to_string()), Reason::Refused(error.to_string())),
    };
    for strategy in named(way) {
        let plan = match space.schedulers.plan(&strategy, &workload) {
            // A scheduler of the caller's own may want more than there is.
            Err(ScheduleError::NotMeasured { .. }) if open => continue,
            Ok(plan) if plan.forward_overlap && !space.forward_overlap => continue,
            plan => plan,
        };
        let prediction = plan.map_err(SearchError::from).and_then(|plan| Ok(way.estimate(&plan)?));
        take(strategy, prediction);
    }
    if !open || way.subject.question.workers == 1 {
        return count;
    }
    let uncut = way.way.uncut();
    match candidates(&workload) {
        Ok(all) => one_of_each_kind(all).into_iter().for_each(|candidate| {
            let plan = lay_out(&uncut, &candidate.schedule, &workload).map_err(SearchError::from);
            take(uncut.clone(), plan.and_then(|plan| Ok(way.estimate(&plan)?)));
        }),
        Err(error) => take(uncut, Err(error.into())),
    }
    count
}

/// The way with every schedule that its grammar admits; or with its own, if that is not open.
fn named(way: &BoundedWay) -> Vec<Strategy> {
    let (space, base) = (way.subject.question.space, &way.way.strategy);
    if space.strategy.schedule.name != "auto" {
        return vec![base.clone()];
    }
    if way.subject.question.workers == 1 {
        // Sends nothing: whatever the schedule, nothing changes.
        return vec![Strategy { schedule: Call::named(SIMPLE[0]), ..base.clone() }];
    }
    let grammar = space.schedulers.grammar();
    let with = |base: &Strategy, schedule: &str| {
        // A call prints as it is written. What does not go together is refused by the grammar's rules.
        let strategy = Strategy { schedule: Call::named(schedule), ..base.clone() };
        let strategy = grammar.parse(&strategy.to_string()).ok()?;
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
