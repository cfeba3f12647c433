//! Why a cell of the study may come out differently here: what its parameter servers took besides the bytes of the links that
//! are emulated, and what its all-reduces did not take.
//!
//! On the study's 10GbE pushing and pulling at once took 1.66 times as long as one of them; everywhere gradients crossed from
//! the devices' memory to the hosts' and back, partition by partition. Emulated links carry both directions at once, and
//! nothing is copied. The constants are those of `data/clusters/study-*.toml`, which were fitted to these very throughputs
//! (docs/prediction.md), so what they add is not that the study's times follow, but that a few constants for each network that mean
//! something explain all of its cells, and that without them the model gives ours.
//!
//! What starting an all-reduce took in the study was found from its throughputs, so the latency of its messages is in it already.
//! Here it is added to operations whose messages have the latency of the network's ping-pong besides, one after the other round
//! a ring.

use paceline_plan::{Cluster, Constant, NetworkModel, Profile};
use paceline_predict::study::{Case, Study};
use paceline_predict::{Job, estimate};
use paceline_strategy::{Registry, Strategy};

use super::calibration::{GAP_MAX, StudyCell};
use super::cells::Cell;

/// Of the logarithm of a gap, what the model must say.
const MODELLED_MIN: f64 = 0.5;

/// Explains the gap of a cell, if the model can: with what is different there it must give the study's time, with what is here
/// ours, what remains of the gap must be small, and at least half of the gap must be modelled. None: it does not.
pub fn explanation(study: &StudyCell, ours: &Cell) -> Option<String> {
    match study.method.rsplit_once('-')?.1 {
        "ps" => servers(study, ours),
        "a2a" => all_reduces(study, ours),
        _ => None,
    }
}

/// What the study's servers took.
fn servers(study: &StudyCell, ours: &Cell) -> Option<String> {
    let (there, _) = clusters(study)?;
    let (there_s, here_s) = (case(study)?.estimate(&there).ok()?.iteration_s, predicted_s(study, ours)?);
    follows(study, ours.iteration_s?, there_s, here_s).then(|| {
        format!(
            "the study's servers (pushing and pulling at once take workers' hosts {:.2} times as long as one{}; copies; partitions, \
             spread by a hash): by the model an iteration takes {:.0} ms with them, and {:.0} ms on the emulated links",
            1.0 + there.server.duplex_loss.value,
            if there.server.connection_s_per_byte.is_some() { ", and connections share what a core can do" } else { "" },
            there_s * 1e3,
            here_s * 1e3
        )
    })
}

/// What the study's all-reduces did not take: the latency of messages, which its start-up has in it, and bytes on links that were
/// as fast as its throughputs say.
fn all_reduces(study: &StudyCell, ours: &Cell) -> Option<String> {
    let (there, mut without) = clusters(study)?;
    for link in [&mut without.within, &mut without.across] {
        link.alpha_s = Constant::exact(NO_LATENCY_S);
    }
    let Case { profile, strategy, .. } = case(study)?;
    let there_s = iteration_s(study, &there, &profile, &strategy)?;
    let here_s = predicted_s(study, ours)?;
    let without_s = iteration_s(study, &without, &profile, &Registry::built_in().parse(&study.method).ok()?)?;
    follows(study, ours.iteration_s?, there_s, here_s).then(|| {
        format!(
            "the latency of messages counts twice here, as the study's start-up has it, too; and links are not quite as fast: by the \
             model an iteration takes {:.0} ms there, {:.0} ms on the emulated links, and {:.0} ms on these without latency",
            there_s * 1e3,
            here_s * 1e3,
            without_s * 1e3
        )
    })
}

/// Almost none: none at all would mean that start-up has it.
const NO_LATENCY_S: f64 = 1e-9;

/// The study's cluster, and the one that is emulated.
fn clusters(study: &StudyCell) -> Option<(Cluster, Cluster)> {
    let there = Cluster::named(&format!("study-{}", study.network.to_lowercase())).ok()?;
    let here = Cluster::of_network(NetworkModel::named(&study.network)?, there.hosts, there.workers_per_host);
    Some((there, here))
}

/// Does the gap follow from what makes the model's time there what it is here?
fn follows(study: &StudyCell, ours_s: f64, there_s: f64, here_s: f64) -> bool {
    let is_near = |one_s: f64, other_s: f64| (one_s / other_s - 1.0).abs() <= GAP_MAX;
    let (gap, modelled) = ((study.iteration_s() / ours_s).ln(), (there_s / here_s).ln());
    modelled / gap >= MODELLED_MIN
        && is_near(study.iteration_s(), there_s)
        && is_near(ours_s, here_s)
        // What is left when the modelled part is taken off.
        && is_near(study.iteration_s() * here_s, ours_s * there_s)
}

/// An iteration on the emulated links by the model: the prediction of what ran.
fn predicted_s(study: &StudyCell, ours: &Cell) -> Option<f64> {
    Some(study.iteration_s() * study.samples_per_s / ours.predicted?)
}

/// The cell as the study ran it.
fn case(study: &StudyCell) -> Option<Case> {
    let StudyCell { model, network, method, workers, local_batch, .. } = study;
    let method = method.strip_prefix("study-").unwrap_or(method);
    let table = format!("model,local_batch,network,method,workers\n{model},{local_batch},{network},{method},{workers}");
    let row = Study::parse(&table).ok()?.rows.pop()?;
    Case::of(&row, &[], &Registry::built_in()).ok()
}

/// What the model says of it.
fn iteration_s(study: &StudyCell, cluster: &Cluster, profile: &Profile, strategy: &Strategy) -> Option<f64> {
    let job = Job { cluster, profile, strategy, workers: study.workers, local_batch: None };
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
        let ours = |seconds: f64| Cell {
            predicted: Some(512.0 / 0.345),
            ..cell("resnet50", "10GbE", 8, "study-bsp-ps", 512.0 / seconds)
        };
        let explained = explanation(&study, &ours(0.345)).expect("it is explained");
        assert!(explained.contains("take workers' hosts 1.66 times"), "{explained}");
        assert_eq!(explanation(&study, &ours(0.450)), None, "ours is slower than that");
        let of = |samples_per_s: f64| StudyCell { samples_per_s, ..study.clone() };
        assert_eq!(
            explanation(&of(1110.0), &ours(0.325)),
            None,
            "each is near its model, and most of the gap is not in it"
        );
        assert_eq!(explanation(&of(900.0), &ours(0.345)), None, "the study's servers do not explain so much");
        assert_eq!(explanation(&of(1700.0), &ours(0.345)), None, "they make the study slower, and not faster");
        assert_eq!(
            explanation(&study, &Cell { predicted: None, ..ours(0.345) }),
            None,
            "nothing says what ours should take"
        );
    }

    #[test]
    fn latency_that_counts_twice_must_give_both_times() {
        let study = parse("BERT-Large,8,10GbE,WFBP-A2A,16,53.42,0.07,49,").expect("a cell");
        let ours = |samples_per_s: f64, predicted: f64| Cell {
            iteration_s: Some(128.0 / samples_per_s),
            predicted: Some(predicted),
            ..cell("bert-large", "10GbE", 16, "study-wfbp-a2a", samples_per_s)
        };
        let explained = explanation(&study, &ours(46.0, 45.2)).expect("it is explained");
        assert!(explained.contains("counts twice") && explained.contains("2832 ms on the emulated"), "{explained}");
        assert_eq!(explanation(&study, &ours(38.0, 45.2)), None, "ours is slower than that");
        assert_eq!(explanation(&study, &ours(46.0, 52.0)), None, "by the model there is no latency");
        assert_eq!(explanation(&study, &Cell { predicted: None, ..ours(46.0, 45.2) }), None);
        let faster = StudyCell { samples_per_s: 70.0, ..study };
        assert_eq!(explanation(&faster, &ours(46.0, 45.2)), None, "latency does not explain so much");
    }
}
