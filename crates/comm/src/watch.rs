//! How ranks watch each other: signs of life, and reports of operations that do not move.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use paceline_engine::{Config as EngineConfig, Stall};

use crate::pending::name;

/// How a rank watches the others.
#[derive(Clone)]
pub struct Watch {
    /// A link on which nothing was sent for so long carries a sign of life. Zero: none, and then only a closed
    /// connection tells of a loss. Ranks may differ: each tells the others its own.
    pub heartbeat: Duration,
    /// A peer of which so many signs of life in a row did not come is lost: with 1 s and 2 after about 2.5 s of silence.
    pub heartbeat_misses: u32,
    /// An operation in which nothing happens for so long is reported; again after as long, and then after twice the time
    /// of the report before. Zero: never.
    pub stall: Duration,
    /// Is given the reports, on the progress thread. It may take its time, but the others wait for it: a report is a
    /// matter for a log.
    pub on_stall: Option<OnStall>,
}

/// What is done with a report.
pub type OnStall = Arc<dyn Fn(&StallReport) + Send + Sync>;

/// An operation that has not moved for a while. It is still pending and may still go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StallReport {
    /// The rank that reports.
    pub rank: usize,
    /// Its host.
    pub host: String,
    /// The operation, by name.
    pub operation: String,
    /// For how long it has not moved.
    pub still: Duration,
    /// The ranks that have not started it, as far as is known here, with their hosts.
    pub not_started: Vec<(usize, String)>,
    /// Those that have, but have not delivered what this rank waits for.
    pub not_delivered: Vec<(usize, String)>,
}

impl Default for Watch {
    /// A sign of life each second, of which two may be missed; reports after 10 s, to nobody.
    fn default() -> Watch {
        let EngineConfig { heartbeat, heartbeat_misses, stall, .. } = EngineConfig::new(0, 1);
        Watch { heartbeat, heartbeat_misses, stall, on_stall: None }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("heartbeat", &self.heartbeat)
            .field("heartbeat_misses", &self.heartbeat_misses)
            .field("stall", &self.stall)
            .finish_non_exhaustive()
    }
}

impl StallReport {
    /// The engine's report in words of this world. `hosts` by rank.
    pub(crate) fn new(rank: usize, hosts: &[String], stall: &Stall) -> StallReport {
        let host = |rank: usize| hosts.get(rank).cloned().unwrap_or_default();
        let those = |started: bool| {
            let waiting = stall.waiting.iter().filter(|waiting| waiting.started == started);
            waiting.map(|waiting| (waiting.rank, host(waiting.rank))).collect()
        };
        let operation = stall.kind.map_or_else(|| stall.key.to_string(), |kind| name(kind, &stall.key));
        StallReport {
            rank,
            host: host(rank),
            operation,
            still: stall.still,
            not_started: those(false),
            not_delivered: those(true),
        }
    }
}

impl fmt::Display for StallReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StallReport { rank, host, operation, still, .. } = self;
        write!(f, "rank {rank} on {host}: {operation} has not moved for {:.0} s", still.as_secs_f64())?;
        let groups = [(&self.not_started, "not started it yet"), (&self.not_delivered, "started it but not delivered")];
        for (ranks, what) in groups.into_iter().filter(|(ranks, _)| !ranks.is_empty()) {
            let has = if ranks.len() == 1 { "has" } else { "have" };
            let ranks: Vec<String> = ranks.iter().map(|(rank, host)| format!("rank {rank} (host {host})")).collect();
            write!(f, "; {} {has} {what}", ranks.join(", "))?;
        }
        Ok(())
    }
}
