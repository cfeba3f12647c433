//! Why a cell of the study may come out differently here. An explanation has a number of its own: it explains a gap only
//! if the measured iteration takes about as long as it says.

use super::calibration::{GAP_MAX, StudyCell};
use super::cells::Cell;

/// A difference between the study's cluster and ours that concerns some cells.
struct Difference {
    /// Does it concern this one?
    concerns: fn(&StudyCell) -> bool,
    /// Seconds of an iteration here, because of it.
    iteration_s: fn(&StudyCell) -> Option<f64>,
    /// In words.
    why: &'static str,
}

/// Those that are known: none. (Like BytePS, a host adds up what its workers push before it leaves.)
const DIFFERENCES: [Difference; 0] = [];

/// What explains the gap, with the time that follows from it; None: nothing that is known.
pub fn explanation(study: &StudyCell, ours: &Cell) -> Option<String> {
    explained_by(&DIFFERENCES, study, ours)
}

fn explained_by(differences: &[Difference], study: &StudyCell, ours: &Cell) -> Option<String> {
    let measured_s = ours.iteration_s?;
    let known = differences.iter().filter(|difference| (difference.concerns)(study));
    let explaining = known.filter_map(|difference| Some((difference.why, (difference.iteration_s)(study)?)));
    let mut explaining = explaining.filter(|(_, expected_s)| (measured_s / expected_s - 1.0).abs() <= GAP_MAX);
    explaining.next().map(|(why, expected_s)| format!("{why}; by that an iteration takes {:.0} ms", expected_s * 1e3))
}

#[cfg(test)]
mod tests {
    use paceline_plan::NetworkModel;

    use super::super::calibration::parse;
    use super::super::cells::samples::cell;
    use super::super::cluster::{WORKERS_PER_HOST, model};
    use super::*;

    /// If every worker pushed its own gradients through the NIC of its host.
    const EACH_ITS_OWN: Difference = Difference {
        concerns: |cell| cell.method == "study-bsp-ps" && cell.workers > WORKERS_PER_HOST,
        iteration_s: |cell| {
            let (compute_s, bytes) = model(&cell.model)?;
            let network = NetworkModel::named(&cell.network)?;
            Some(compute_s + WORKERS_PER_HOST as f64 * bytes * network.across.beta_s_per_byte)
        },
        why: "every worker pushes its own",
    };

    #[test]
    fn an_explanation_must_give_the_measured_time() {
        let study = parse("ResNet-50,64,10GbE,BSP-PS,8,1194.44,8.54,253.1,").expect("a cell");
        let explanation = |study: &StudyCell, ours: &Cell| explained_by(&[EACH_ITS_OWN], study, ours);
        // 253 ms of computation, and four times 102 MB at 1.134 GB/s: 613 ms.
        let as_expected = cell("resnet50", "10GbE", 8, "study-bsp-ps", 512.0 / 0.615);
        let explained = explanation(&study, &as_expected).expect("it is explained");
        assert!(explained.starts_with("every worker") && explained.ends_with("takes 613 ms"), "{explained}");
        let slower = cell("resnet50", "10GbE", 8, "study-bsp-ps", 512.0 / 0.8);
        assert_eq!(explanation(&study, &slower), None);
        let all_to_all = parse("ResNet-50,64,10GbE,BSP-A2A,8,1194.44,8.54,253.1,").expect("a cell");
        assert_eq!(explanation(&all_to_all, &as_expected), None);
    }

    #[test]
    fn what_no_difference_is_known_of_stays_unexplained() {
        let study = parse("ResNet-50,64,10GbE,BSP-PS,8,1194.44,8.54,253.1,").expect("a cell");
        assert_eq!(explanation(&study, &cell("resnet50", "10GbE", 8, "study-bsp-ps", 512.0 / 0.615)), None);
    }
}
