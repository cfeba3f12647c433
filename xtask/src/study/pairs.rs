//! Pairs of methods of which one is expected to win somewhere, and whether it does.

use paceline_cli::{Estimate, Ratio};
use serde::Serialize;

use super::calibration::GAP_MAX;
use super::cells::{Cell, find};
use super::report::{NOT_MEASURED, Table, Target, percent};

/// Partitions as large as anything: none.
const UNCUT_PS: &str = "schedule=wfbp,arch=ps:hosts:2GiB";
const UNCUT_A2A: &str = "schedule=bytescheduler:2GiB:2GiB,arch=a2a";
const CUT_A2A: &str = "bytescheduler-a2a";

/// The methods of the pairs: ours, and the study's with its handicaps.
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
    /// By which share the ratio may be off (`Ratio::open`). None: unknown.
    open: Option<f64>,
    /// Its methods that the processors have limited, and not the links: of those the ratio says nothing.
    limited: Vec<String>,
}

/// A tie says that the first is not slower only as far as differences would have shown: those above [`GAP_MAX`], which must be
/// explained where throughputs are compared with the study's, must not hide in it.
const OPEN_MAX: f64 = GAP_MAX;

impl Found {
    pub fn target(&self) -> Target {
        let least =
            self.open.map_or_else(|| "1, less what is open".to_owned(), |open| format!("{:.3}", 1.0 / (1.0 + open)));
        let found = match (self.ratio, self.open) {
            (None, _) => NOT_MEASURED.to_owned(),
            (Some(ratio), _) if !self.limited.is_empty() => format!("{ratio:.3}, {}", self.limits()),
            (Some(ratio), None) => format!("{ratio:.3}, noise unknown"),
            (Some(ratio), Some(_)) if self.outcome() == Outcome::Open => format!("{ratio:.3}, too much is open"),
            (Some(ratio), Some(_)) => format!("{ratio:.3}"),
        };
        Target {
            case: format!("{}: {} against {}", self.place, self.faster, self.slower),
            demanded: format!("throughput over throughput ≥ {least}"),
            found,
            met: match self.outcome() {
                Outcome::Holds | Outcome::Tie => Some(true),
                Outcome::Refuted => Some(false),
                Outcome::NotMeasured | Outcome::Open | Outcome::Limited => None,
            },
        }
    }

    /// Whom the processors have limited.
    fn limits(&self) -> String {
        format!("the processors, not the links, limited {}", self.limited.join(", "))
    }

    fn outcome(&self) -> Outcome {
        let (Some(value), open) = (self.ratio, self.open) else { return Outcome::NotMeasured };
        if !self.limited.is_empty() {
            return Outcome::Limited;
        }
        let Some(open) = open else { return Outcome::Open };
        let ratio = Ratio { value, open };
        match open {
            _ if ratio.is_above(1.0) => Outcome::Holds,
            _ if ratio.is_below(1.0) => Outcome::Refuted,
            open if open <= OPEN_MAX => Outcome::Tie,
            _ => Outcome::Open,
        }
    }
}

/// What is found of an expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Holds,
    Tie,
    Refuted,
    /// What is open is unknown, or too much to call it a tie.
    Open,
    /// The processors have limited one of them.
    Limited,
    NotMeasured,
}

impl Outcome {
    fn in_words(self) -> &'static str {
        match self {
            Outcome::Holds => "holds",
            Outcome::Tie => "tie",
            Outcome::Refuted => "**does not hold**",
            Outcome::Open | Outcome::Limited => "undecided",
            Outcome::NotMeasured => "not measured",
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
        let ratio = cells.as_ref().and_then(|cells| ratio(cells));
        let limited = cells.iter().flatten().filter(|(cell, _)| cell.limited.is_some());
        Found {
            place: place.clone(),
            faster: faster.to_owned(),
            slower: slower.to_owned(),
            why: why.to_owned(),
            ratio: ratio.map(|ratio| ratio.value),
            open: ratio.filter(Ratio::is_known).map(|ratio| ratio.open),
            limited: limited.map(|(cell, _)| cell.method.clone()).collect(),
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

/// The product of the throughputs' powers, by the rules of `paceline bench`; None: one of them was not measured.
fn ratio(cells: &[(&Cell, f64)]) -> Option<Ratio> {
    let factor = |(cell, power): &(&'_ Cell, f64)| Some((cell.throughput?, *power));
    let factors: Vec<(Estimate, f64)> = cells.iter().map(factor).collect::<Option<_>>()?;
    let noises: Vec<Option<f64>> = cells.iter().map(|(cell, _)| cell.noise).collect();
    Some(Ratio::of(&factors.iter().map(|(estimate, power)| (estimate, *power)).collect::<Vec<_>>(), &noises))
}

pub fn table(found: &[Found]) -> Table {
    let columns = ["place", "expected to be faster", "than", "throughput over throughput", "open", "", "whose finding"];
    let mut table = Table::new("Pairs", "", &columns);
    table.rows.extend(found.iter().map(|one| {
        let ratio = one.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}"));
        let outcome = match one.outcome() {
            Outcome::Limited => format!("{}: {}", Outcome::Limited.in_words(), one.limits()),
            outcome => outcome.in_words().to_owned(),
        };
        let fields = [&one.place, &one.faster, &one.slower, &ratio, &percent(one.open), &outcome, &one.why];
        fields.map(String::clone).to_vec()
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
        let outcomes: Vec<Outcome> = found.iter().map(Found::outcome).collect();
        assert_eq!(outcomes, [Outcome::Holds, Outcome::Tie, Outcome::Refuted, Outcome::Holds]);
        let met: Vec<Option<bool>> = found.iter().map(|one| one.target().met).collect();
        assert_eq!(met, [Some(true), Some(true), Some(false), Some(true)]);
        let two_runs = Estimate::of(&[1100.0; 2]);
        for unknown in [Cell { noise: None, ..cells[0].clone() }, Cell { throughput: two_runs, ..cells[0].clone() }] {
            let cells = [&[unknown], &cells[1..]].concat();
            let found = &judge(&places[0], &cells)[0];
            assert_eq!((found.outcome(), found.target().met), (Outcome::Open, None));
            assert_eq!((found.ratio, found.open), (Some(1.1), None));
        }
    }

    #[test]
    fn a_pair_whose_processors_were_the_limit_is_undecided() {
        let limited =
            Cell { limited: Some("its links were slower".into()), ..cell("resnet50", "10GbE", 32, "wfbp-a2a", 1000.0) };
        let cells = [cell("resnet50", "10GbE", 32, "wfbp-ps", 1100.0), limited];
        let found = judge(&places(&cells)[0], &cells);
        let [pair] = &found[..] else { panic!("one pair: {}", found.len()) };
        let target = pair.target();
        assert_eq!((pair.outcome(), target.met), (Outcome::Limited, None), "although the ratio is 1.1");
        assert_eq!(target.found, "1.100, the processors, not the links, limited wfbp-a2a");
        let page = table(&found);
        assert_eq!(page.rows[0][5], "undecided: the processors, not the links, limited wfbp-a2a");
    }

    /// The page and the target say the same, and what hides anything is no success.
    #[test]
    fn a_tie_is_one_only_where_differences_would_have_shown() {
        let of = |ratio, open| Found {
            place: String::new(),
            faster: String::new(),
            slower: String::new(),
            why: String::new(),
            ratio: Some(ratio),
            open,
            limited: Vec::new(),
        };
        let cases = [
            (1.2, 0.1, Outcome::Holds, Some(true)),
            (1.05, 0.1, Outcome::Tie, Some(true)),
            (0.95, 0.1, Outcome::Tie, Some(true)),
            // Between 1 - 0.1 and 1/1.1.
            (0.905, 0.1, Outcome::Refuted, Some(false)),
            (0.95, 0.11, Outcome::Open, None),
            (0.6, 1.5, Outcome::Open, None),
            (0.3, 1.5, Outcome::Refuted, Some(false)),
        ];
        for (ratio, open, outcome, met) in cases {
            let found = of(ratio, Some(open));
            assert_eq!((found.outcome(), found.target().met), (outcome, met), "{ratio} ± {open}");
        }
        let target = of(0.905, Some(0.1)).target();
        assert_eq!((&*target.demanded, &*target.found), ("throughput over throughput ≥ 0.909", "0.905"));
        assert!(of(0.6, Some(1.5)).target().found.contains("too much is open"));
        assert_eq!(of(1.2, None).target().met, None);
    }
}
