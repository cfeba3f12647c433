//! Why a cell of the study may come out differently here: what its parameter servers took besides the bytes of the links that
//! are emulated.
//!
//! On the study's 10GbE pushing and pulling at once took 1.64 times as long as one of them; everywhere gradients crossed from
//! the devices' memory to the hosts' and back, partition by partition. Emulated links carry both directions at once, and
//! nothing is copied. The constants are those of `data/clusters/study-*.toml`, which were fitted to these very throughputs
//! (docs/prediction.md), so what they add is not that the study's times follow, but that five constants for each network that mean
//! something explain all of its cells, and that without them the model gives ours.

use paceline_plan::{Cluster, NetworkModel};
use paceline_predict::study::{Case, Study};
use paceline_predict::{Job, estimate};
use paceline_strategy::Registry;

use super::calibration::{GAP_MAX, StudyCell};
use super::cells::Cell;

/// Of the logarithm of a gap, what the model must say.
const MODELLED_MIN: f64 = 0.5;

/// Explains the gap of a cell with servers, if it follows from them: the model with what servers took must give the study's
/// time, the model of the emulated network ours, what remains of the gap must be small, and at least half of the gap must be
/// modelled. None: it does not.
pub fn explanation(study: &StudyCell, ours: &Cell) -> Option<String> {
    if !study.method.ends_with("-ps") {
        return None;
    }
    let there = Cluster::named(&format!("study-{}", study.network.to_lowercase())).ok()?;
    let network = NetworkModel::named(&study.network)?;
    let here = Cluster {
        server_hosts: there.server_hosts,
        ..Cluster::of_network(network, there.hosts, there.workers_per_host)
    };
    let (there_s, here_s) = (iteration_s(study, &there)?, iteration_s(study, &here)?);
    let is_near = |one_s: f64, other_s: f64| (one_s / other_s - 1.0).abs() <= GAP_MAX;
    let ours_s = ours.iteration_s?;
    let (gap, modelled) = ((study.iteration_s() / ours_s).ln(), (there_s / here_s).ln());
    let explains = modelled / gap >= MODELLED_MIN
        && is_near(study.iteration_s(), there_s)
        && is_near(ours_s, here_s)
        // What is left when the modelled part is taken off.
        && is_near(study.iteration_s() * here_s, ours_s * there_s);
    explains.then(|| {
        format!(
            "the study's servers (pushing and pulling at once take {:.2} times as long as one; copies; partitions): by the \
             model an iteration takes {:.0} ms with them, and {:.0} ms on the emulated links",
            1.0 + there.server.duplex_loss.value,
            there_s * 1e3,
            here_s * 1e3
        )
    })
}

/// What the model says of a cell.
fn iteration_s(study: &StudyCell, cluster: &Cluster) -> Option<f64> {
    let StudyCell { model, network, method, workers, local_batch, .. } = study;
    let method = method.strip_prefix("study-").unwrap_or(method);
    let table = format!("model,local_batch,network,method,workers\n{model},{local_batch},{network},{method},{workers}");
    let row = Study::parse(&table).ok()?.rows.pop()?;
    let Case { profile, strategy, workers, .. } = Case::of(&row, &[], &Registry::built_in()).ok()?;
    let job = Job { cluster, profile: &profile, strategy: &strategy, workers, local_batch: None };
    Some(estimate(&job).ok()?.iteration_s)
}

#[cfg(test)]
mod tests {
    use super::super::calibration::parse;
    use super::super::cells::samples::cell;
    use super::*;

    #[test]
    fn an_explanation_must_give_both_times() {
        let study = parse("ResNet-50,64,10GbE,BSP-PS,8,1194.44,8.54,253.1,").expect("a cell");
        // 253 ms of computation, and 102 MB at 1.13 GB/s in both directions at once.
        let ours = |seconds: f64| cell("resnet50", "10GbE", 8, "study-bsp-ps", 512.0 / seconds);
        let explained = explanation(&study, &ours(0.345)).expect("it is explained");
        assert!(explained.contains("take 1.64 times"), "{explained}");
        assert_eq!(explanation(&study, &ours(0.450)), None, "ours is slower than that");
        let of = |samples_per_s: f64| StudyCell { samples_per_s, ..study.clone() };
        assert_eq!(
            explanation(&of(1110.0), &ours(0.325)),
            None,
            "each is near its model, and most of the gap is not in it"
        );
        assert_eq!(explanation(&of(900.0), &ours(0.345)), None, "the study's servers do not explain so much");
        assert_eq!(explanation(&of(1700.0), &ours(0.345)), None, "they make the study slower, and not faster");
        let all_to_all = parse("ResNet-50,64,10GbE,BSP-A2A,8,1194.44,8.54,253.1,").expect("a cell");
        assert_eq!(explanation(&all_to_all, &ours(0.345)), None, "it has no servers");
    }
}
