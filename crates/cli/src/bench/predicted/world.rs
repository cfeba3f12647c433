//! A cell of a world that others have run, predicted from what its ranks measured when they met.

use paceline_plan::{LinkCosts, Profile};
use paceline_predict::{Job, predict};
use paceline_strategy::Registry;
use paceline_train::{CommunicationCost, InFlight, Overtaking};

use super::super::cell::Cell;
use super::Predicted;
use super::cluster::{self, Layout, measured, server_hosts};

/// What the ranks of a world measured before its first iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// What their links cost.
    pub links: LinkCosts,
    /// What single operations took: bytes and seconds.
    pub operations: Vec<(u64, f64)>,
    /// What several small ones took at once, if that was measured.
    pub in_flight: Option<InFlight>,
    /// The same of large ones.
    pub large_in_flight: Option<InFlight>,
    /// What it took to overtake those.
    pub overtaking: Vec<Overtaking>,
}

/// What a replayed cell is expected to do over links that are not emulated, on so many hosts, as `bench` has it. A strategy that
/// leaves its arch open is refused.
///
/// # Errors
/// It cannot be predicted, in a sentence.
pub fn predict_replay(cell: &Cell, profile: &Profile, hosts: usize, seen: &[Seen]) -> Result<Predicted, String> {
    let strategy = Registry::built_in().parse(&cell.strategy).map_err(|error| error.to_string())?;
    let costs: Vec<CommunicationCost> = seen
        .iter()
        .map(|one| CommunicationCost {
            in_flight: one.in_flight,
            large_in_flight: one.large_in_flight,
            overtaking: one.overtaking.clone(),
            ..CommunicationCost::of_points(one.operations.clone())
        })
        .collect();
    let worlds: Vec<cluster::Seen<'_>> = seen
        .iter()
        .zip(&costs)
        .map(|(one, cost)| cluster::Seen { strategy: strategy.clone(), links: one.links, operations: Some(cost) })
        .collect();
    let layout = Layout { hosts, workers_per_host: cell.workers.div_ceil(hosts.max(1)).max(1) };
    let cluster = measured(&worlds, layout, profile, cell.workers)?;
    let (mut cluster, doubts) = cluster.ok_or("no run says what its links cost")?;
    cluster.server_hosts = server_hosts(cell);
    let job = Job { cluster: &cluster, profile, strategy: &strategy, workers: cell.workers, local_batch: None };
    let prediction = predict(&job).map_err(|error| error.to_string())?;
    Ok(Predicted::of(&prediction, cell.workers * profile.local_batch).doubting(doubts))
}
