//! Pairs of methods of which one is expected to win somewhere, and whether it does.

use serde::Serialize;

use super::cells::{Cell, find};
use super::report::{Table, Target, percent};

/// Partitions as large as anything: none.
const UNCUT_PS: &str = "schedule=wfbp,arch=ps:hosts:2GiB";
const UNCUT_A2A: &str = "schedule=bytescheduler:2GiB:2GiB,arch=a2a";
const CUT_A2A: &str = "bytescheduler-a2a";

/// The methods of the pairs: ours, and the study's as it ran them.
pub const METHODS: [&str; 12] = [
    "bsp-a2a",
    "wfbp-a2a",
    "mg-wfbp",
    CUT_A2A,
    UNCUT_A2A,
    "wfbp-ps",
    UNCUT_PS,
    "bytescheduler-ps",
    "study-bsp-a2a",
    "study-wfbp-a2a",
    "study-mg-wfbp",
    "study-wfbp-ps",
];

/// What is expected: on this network (None: on both) the first is at least as fast as the second.
pub struct Pair {
    network: Option<&'static str>,
    pub faster: &'static str,
    pub slower: &'static str,
    /// Whose finding it is.
    why: &'static str,
}

pub const PAIRS: [Pair; 7] = [
    Pair {
        network: Some("10GbE"),
        faster: "study-wfbp-ps",
        slower: "study-wfbp-a2a",
        why: "finding 3: with WFBP, PS beats A2A where latency is high",
    },
    Pair {
        network: Some("10GbE"),
        faster: "wfbp-ps",
        slower: "wfbp-a2a",
        why: "finding 3, without the study's start-up and its extra servers",
    },
    Pair { network: None, faster: "mg-wfbp", slower: "wfbp-a2a", why: "finding 4: fusion mends A2A" },
    Pair { network: None, faster: "mg-wfbp", slower: "bsp-a2a", why: "finding 4" },
    Pair {
        network: None,
        faster: "study-mg-wfbp",
        slower: "study-wfbp-a2a",
        why: "finding 4, with the study's start-up",
    },
    Pair {
        network: None,
        faster: "study-mg-wfbp",
        slower: "study-bsp-a2a",
        why: "finding 4, with the study's start-up",
    },
    Pair {
        network: None,
        faster: "bytescheduler-ps",
        slower: "wfbp-ps",
        why: "priorities and overlap with the next forward pass, which the study had switched off",
    },
];

/// A pair in a place. Where it is unknown how much is open, nothing is decided.
#[derive(Serialize)]
pub struct Found {
    place: String,
    faster: String,
    slower: String,
    why: String,
    /// The throughput of the first over that of the second; None: one of them was not measured.
    ratio: Option<f64>,
    /// By which share the ratio may be off: by how much two measurements of the same thing differed there, or what the
    /// runs leave open, whichever is more. None: unknown.
    open: Option<f64>,
}

impl Found {
    pub fn target(&self) -> Target {
        let case = format!("{}: {} against {}", self.place, self.faster, self.slower);
        match self.ratio.zip(self.open) {
            Some((ratio, open)) => {
                let least = ((1.0 - open) * 1e3).round() / 1e3;
                Target::at_least(case, "throughput over throughput", least, Some(ratio))
            }
            None => Target {
                case,
                demanded: "throughput over throughput ≥ 1, less what is open".into(),
                found: self.ratio.map_or_else(|| "not measured".into(), |ratio| format!("{ratio:.3}, noise unknown")),
                met: None,
            },
        }
    }

    fn verdict(&self) -> &'static str {
        match (self.ratio, self.open) {
            (None, _) => "not measured",
            (Some(_), None) => "undecided",
            (Some(ratio), Some(open)) if ratio > 1.0 + open => "holds",
            (Some(ratio), Some(open)) if ratio * (1.0 + open) < 1.0 => "**does not hold**",
            _ => "tie",
        }
    }
}

/// Model, network and workers of the cells, each once.
pub fn places(cells: &[Cell]) -> Vec<(String, String, usize)> {
    let mut places = Vec::new();
    for cell in cells {
        let place = (cell.model.clone(), cell.network.clone(), cell.workers);
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

/// The pairs of which anything was measured in a place.
pub fn judge((model, network, workers): &(String, String, usize), cells: &[Cell]) -> Vec<Found> {
    let place = format!("{model}, {workers} workers, {network}");
    let cell = |method: &str| find(cells, model, network, *workers, method);
    let found = |faster: &str, slower: &str, why: &str, factors: &[(&str, f64)]| {
        let cells: Option<Vec<(&Cell, f64)>> =
            factors.iter().map(|(name, power)| Some((cell(name)?, *power))).collect();
        Found {
            place: place.clone(),
            faster: faster.to_owned(),
            slower: slower.to_owned(),
            why: why.to_owned(),
            ratio: cells.as_ref().and_then(|cells| ratio(cells)),
            open: cells.as_ref().and_then(|cells| open(cells)),
        }
    };
    let pair = |pair: &Pair| found(pair.faster, pair.slower, pair.why, &[(pair.faster, 1.0), (pair.slower, -1.0)]);
    let applies = |pair: &&Pair| {
        pair.network.is_none_or(|wanted| wanted == network)
            && cell(pair.faster).is_some()
            && cell(pair.slower).is_some()
    };
    let mut judged: Vec<Found> = PAIRS.iter().filter(applies).map(pair).collect();
    if cell(UNCUT_PS).is_some() && cell(UNCUT_A2A).is_some() {
        judged.push(found(
            "what partitions bring on PS",
            "what they bring on A2A",
            "finding 5: partitioning suits PS, not A2A",
            &[("wfbp-ps", 1.0), (UNCUT_PS, -1.0), (CUT_A2A, -1.0), (UNCUT_A2A, 1.0)],
        ));
    }
    judged
}

/// The product of the throughputs' powers.
fn ratio(cells: &[(&Cell, f64)]) -> Option<f64> {
    cells.iter().map(|(cell, power)| Some(cell.samples_per_s?.powf(*power))).product()
}

/// What is open of it, as a share: the noise of its group, or the cells' 95 % intervals with their squares added up, whichever is
/// more. (Each interval has the t of its own few runs, so this is wider than that of the ratio.)
fn open(cells: &[(&Cell, f64)]) -> Option<f64> {
    let noise = cells.iter().map(|(cell, _)| cell.noise).try_fold(0.0, |most: f64, noise| Some(most.max(noise?)))?;
    let squares: Option<f64> = cells.iter().map(|(cell, power)| Some((cell.half_width_95? * power).powi(2))).sum();
    Some(noise.max(squares?.sqrt()))
}

pub fn table(found: &[Found]) -> Table {
    let columns = ["place", "expected to be faster", "than", "throughput over throughput", "open", "", "whose finding"];
    let mut table = Table::new("Pairs", "", &columns);
    table.rows.extend(found.iter().map(|one| {
        let ratio = one.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}"));
        let fields = [&one.place, &one.faster, &one.slower, &ratio, &percent(one.open), one.verdict(), &one.why];
        fields.map(str::to_owned).to_vec()
    }));
    table
}

#[cfg(test)]
mod tests {
    use super::super::cells::samples::cell;
    use super::*;

    #[test]
    fn a_pair_is_judged_by_what_the_same_thing_differs() {
        let cells = [
            cell("resnet50", "10GbE", 32, "wfbp-ps", 1100.0),
            cell("resnet50", "10GbE", 32, "wfbp-a2a", 1000.0),
            cell("resnet50", "10GbE", 32, "mg-wfbp", 1005.0),
            cell("resnet50", "10GbE", 32, "bsp-a2a", 1200.0),
            cell("resnet50", "10GbE", 32, UNCUT_PS, 1000.0),
            cell("resnet50", "10GbE", 32, UNCUT_A2A, 1000.0),
            cell("resnet50", "10GbE", 32, CUT_A2A, 1000.0),
        ];
        let places = places(&cells);
        assert_eq!(places.len(), 1);
        let found = judge(&places[0], &cells);
        let verdicts: Vec<&str> = found.iter().map(Found::verdict).collect();
        assert_eq!(verdicts, ["holds", "tie", "**does not hold**", "holds"]);
        let met: Vec<Option<bool>> = found.iter().map(|one| one.target().met).collect();
        assert_eq!(met, [Some(true), Some(true), Some(false), Some(true)]);
        for unknown in [Cell { noise: None, ..cells[0].clone() }, Cell { half_width_95: None, ..cells[0].clone() }] {
            let cells = [&[unknown], &cells[1..]].concat();
            let found = &judge(&places[0], &cells)[0];
            assert_eq!((found.verdict(), found.target().met), ("undecided", None));
        }
    }

    #[test]
    fn what_is_open_is_the_larger_of_noise_and_scatter() {
        let of = |noise, half_width_95| Cell {
            noise: Some(noise),
            half_width_95: Some(half_width_95),
            ..cell("resnet50", "10GbE", 32, "wfbp-ps", 1.0)
        };
        let (steady, scattered) = (of(0.05, 0.001), of(0.01, 0.3));
        assert_eq!(open(&[(&steady, 1.0), (&steady, -1.0)]), Some(0.05));
        assert!((open(&[(&scattered, 1.0), (&scattered, -1.0)]).expect("known") - 0.3 * 2.0_f64.sqrt()).abs() < 1e-9);
    }
}
