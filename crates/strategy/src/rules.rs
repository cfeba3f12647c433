use crate::{Aspect, Senseless, Strategy};

/// Workers that don't wait for each other can't all take part in one all-reduce; servers answer whenever asked.
pub(crate) fn running_ahead_needs_servers(strategy: &Strategy) -> Option<Senseless> {
    let sync = strategy.sync.name.as_str();
    (matches!(sync, "ssp" | "asp") && strategy.arch.name == "a2a").then(|| Senseless {
        aspect: Aspect::Sync,
        reason: format!(
            "sync={sync} lets workers run ahead, but an all-reduce (arch=a2a) waits for all of them; \
             choose arch=ps or sync=bsp"
        ),
    })
}

/// Gossip is between neighbours.
pub(crate) fn gossip_has_no_servers(strategy: &Strategy) -> Option<Senseless> {
    (strategy.sync.name == "gossip" && strategy.arch.name == "ps").then(|| Senseless {
        aspect: Aspect::Arch,
        reason: "sync=gossip exchanges parameters between neighbours and has no use for servers; choose arch=a2a"
            .to_owned(),
    })
}

/// `none` stands for no compression, alone.
pub(crate) fn none_is_no_stage(strategy: &Strategy) -> Option<Senseless> {
    let has_none = strategy.compress.iter().any(|stage| stage.name == "none");
    (strategy.compress.len() > 1 && has_none).then(|| Senseless {
        aspect: Aspect::Compress,
        reason: "`none` compresses nothing and is no stage of a hybrid; leave it out".to_owned(),
    })
}

/// A stage that stands twice is a slip of the pen: the second can do no more than the first.
pub(crate) fn stages_differ(strategy: &Strategy) -> Option<Senseless> {
    let mut earlier = strategy.compress.iter().enumerate().map(|(index, stage)| (&strategy.compress[..index], stage));
    let (_, twice) = earlier.find(|(before, stage)| before.iter().any(|other| other.name == stage.name))?;
    Some(Senseless {
        aspect: Aspect::Compress,
        reason: format!("`{}` stands twice in the hybrid; leave one out", twice.name),
    })
}

/// The merge is optimal where buckets travel one after the other, whole, and in a time that depends on their size alone.
/// (Shi, Chu and Li, "MG-WFBP", INFOCOM 2019, state it for all-reduce only.)
pub(crate) fn merging_needs_one_channel(strategy: &Strategy) -> Option<Senseless> {
    (strategy.schedule.name == "mg-wfbp" && strategy.arch.name == "ps").then(|| Senseless {
        aspect: Aspect::Schedule,
        reason:
            "schedule=mg-wfbp merges tensors by what one all-reduce of them costs, but servers (arch=ps) cut buckets \
                 into partitions again and serve several at once; choose arch=a2a, or schedule=fusion:BYTES"
                .to_owned(),
    })
}

/// Without servers nobody would look at the priorities.
pub(crate) fn server_priority_needs_servers(strategy: &Strategy) -> Option<Senseless> {
    (strategy.schedule.name == "server-priority" && strategy.arch.name != "ps").then(|| Senseless {
        aspect: Aspect::Schedule,
        reason: "schedule=server-priority leaves the order to servers, and there are none; choose arch=ps, or \
                 schedule=bytescheduler, which orders on the workers"
            .to_owned(),
    })
}

/// Below this, a partition is not worth its start and its frame.
const SMALLEST_PARTITION_BYTES: u64 = 1024;

pub(crate) fn partitions_are_not_tiny(strategy: &Strategy) -> Option<Senseless> {
    let of_schedule = strategy.schedule.number(0).filter(|_| strategy.schedule.name == "bytescheduler");
    let of_servers = strategy.arch.number(1).filter(|_| strategy.arch.name == "ps");
    let partitions = [(Aspect::Schedule, of_schedule), (Aspect::Arch, of_servers)];
    let tiny = |&(_, bytes): &(Aspect, Option<u64>)| bytes.is_some_and(|bytes| bytes < SMALLEST_PARTITION_BYTES);
    let (aspect, bytes) = partitions.into_iter().find(tiny)?;
    Some(Senseless {
        aspect,
        reason: format!(
            "partitions of {} bytes would cost more to start than to send; choose at least 1KiB",
            bytes.unwrap_or_default()
        ),
    })
}

/// Less credit than a partition means what a credit of one partition means.
pub(crate) fn credit_covers_a_partition(strategy: &Strategy) -> Option<Senseless> {
    let schedule = &strategy.schedule;
    let (partition, credit) = (schedule.number(0)?, schedule.number(1)?);
    (schedule.name == "bytescheduler" && credit < partition).then(|| Senseless {
        aspect: Aspect::Schedule,
        reason: format!(
            "a credit of {credit} bytes is less than a partition of {partition}, so partitions would travel one by one; \
             choose a credit of at least one partition"
        ),
    })
}
