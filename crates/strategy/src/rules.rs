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
