//! Crossovers: which method wins where, on emulated clusters; and the study's own cells under its own handicaps.

use serde::Serialize;
use serde_json::json;

use super::calibration::{self, Comparison, GAP_MAX};
use super::cells::{Cell, find};
use super::cluster::Group;
use super::report::{Findings, Table, Target, ms, percent};
use super::{Part, Place, announce};
use crate::compare::Error;

/// Partitions as large as anything: none.
const UNCUT_PS: &str = "schedule=wfbp,arch=ps:hosts:2GiB";
const UNCUT_A2A: &str = "schedule=bytescheduler:2GiB:2GiB,arch=a2a";
const CUT_A2A: &str = "bytescheduler-a2a";

/// The methods of the pairs: ours, and the study's as it ran them.
const METHODS: [&str; 12] = [
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
struct Pair {
    network: Option<&'static str>,
    faster: &'static str,
    slower: &'static str,
    /// Whose finding it is.
    why: &'static str,
}

const PAIRS: [Pair; 7] = [
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

/// Networks and places of the pairs: model, hosts, workers on each.
const NETWORKS: [&str; 2] = ["10GbE", "100GbIB"];
const PLACES: [(&str, usize, usize); 2] = [("resnet50", 8, 4), ("bert-base", 2, 4)];

/// The calibration's cells that fit into this machine's memory: every worker holds its gradients.
const CALIBRATED: [(&str, &[usize], &[&str]); 3] = [
    ("resnet50", &[8, 16, 32], &["study-bsp-a2a", "study-bsp-ps"]),
    ("bert-base", &[8, 16], &["study-bsp-a2a", "study-bsp-ps"]),
    ("bert-large", &[4], &["study-bsp-a2a", "study-wfbp-a2a"]),
];

pub fn run(place: &Place) -> Result<Findings, Error> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let groups: Vec<Group> = groups(place.options.quick).into_iter().filter(|one| place.wants(&one.name)).collect();
    for group in &groups {
        eprintln!("  {}: about {:.0} minutes", group.name, (group.estimate_s(cores, place.rounds) / 60.0).ceil());
    }
    let seconds = groups.iter().map(|group| group.estimate_s(cores, place.rounds)).sum();
    let runs = groups.iter().map(|group| group.methods.len() * group.workers.len() * place.rounds).sum();
    announce(Part::Crossovers, runs, seconds);
    let database = match &place.options.database {
        Some(database) => database.clone(),
        // Numbers of another program are never gone on with: each has a file of its own.
        None => place.scratch.join(format!("crossovers-{}.db", place.program_fingerprint()?)),
    };
    eprintln!("runs are kept in {}", database.display());
    let (mut cells, mut refused) = (Vec::new(), Vec::new());
    for group in &groups {
        match group.measure(&place.program, &database, &place.scratch, place.rounds) {
            Ok(measured) => cells.extend(measured),
            // Too large for this machine, say; the others are not.
            Err(error) => {
                eprintln!("{error}");
                refused.push(error.to_string());
            }
        }
    }
    let compared = calibration::compare(&calibration::read(place.root)?, &cells);
    let found: Vec<Found> = places(&cells).iter().flat_map(|place| judge(place, &cells)).collect();
    let mut targets: Vec<Target> = found.iter().map(Found::target).collect();
    targets.push(agreement(&compared));
    let mut tables = vec![pairs_table(&found), cells_table(&cells), gaps_table(&compared)];
    if !refused.is_empty() {
        let mut table = Table::new("Not measured", "", &["group and reason"]);
        table.rows = refused.iter().map(|why| vec![why.clone()]).collect();
        tables.push(table);
    }
    Ok(Findings {
        title: "Crossovers and the study's cells on emulated clusters".into(),
        text: "Computation is replayed from the study's GPU, links are shaped in software, both slowed by the dilation \
               and divided out (docs/benchmarking.md). A pair holds if the first is at least as fast, and is a tie where \
               they differ by less than two measurements of the same thing did."
            .into(),
        targets,
        tables,
        measured: json!({"cells": cells, "pairs": found, "calibration": compared, "refused": refused}),
    })
}

/// Everything that is measured; with `quick`, one place with two methods.
fn groups(quick: bool) -> Vec<Group> {
    if quick {
        return vec![Group {
            name: "quick".into(),
            model: "resnet50",
            network: "10GbE",
            hosts: 2,
            workers_per_host: 2,
            workers: vec![4],
            methods: vec!["wfbp-a2a", "wfbp-ps", "mg-wfbp"],
            warm_up: 1,
            iterations: 3,
        }];
    }
    let (warm_up, iterations) = (1, 5);
    let mut groups = Vec::new();
    for (model, hosts, workers_per_host) in PLACES {
        for network in NETWORKS {
            let workers = hosts * workers_per_host;
            let (name, methods) = (format!("pairs-{model}-{workers}-{network}"), METHODS.to_vec());
            groups.push(Group {
                name,
                model,
                network,
                hosts,
                workers_per_host,
                workers: vec![workers],
                methods,
                warm_up,
                iterations,
            });
        }
    }
    for (model, workers, methods) in CALIBRATED {
        for network in ["10GbE", "100GbE", "100GbIB"] {
            // Each by itself: fewer workers need less dilation.
            groups.extend(workers.iter().map(|&workers| Group {
                name: format!("calibration-{model}-{workers}-{network}"),
                model,
                network,
                hosts: workers.div_ceil(4),
                workers_per_host: 4,
                workers: vec![workers],
                methods: methods.to_vec(),
                warm_up,
                iterations,
            }));
        }
    }
    groups
}

/// A pair in a place.
#[derive(Serialize)]
struct Found {
    place: String,
    faster: String,
    slower: String,
    why: String,
    /// The throughput of the first over that of the second; None: one of them was not measured.
    ratio: Option<f64>,
    /// By how much two measurements of the same thing differed there, as a share.
    noise: Option<f64>,
}

impl Found {
    fn target(&self) -> Target {
        let case = format!("{}: {} against {}", self.place, self.faster, self.slower);
        let least = 1.0 - self.noise.unwrap_or(0.0);
        Target::at_least(case, "throughput over throughput", (least * 1e3).round() / 1e3, self.ratio)
    }

    fn verdict(&self) -> &'static str {
        let noise = self.noise.unwrap_or(0.0);
        match self.ratio {
            None => "not measured",
            Some(ratio) if (ratio - 1.0).abs() <= noise => "tie",
            Some(ratio) if ratio > 1.0 => "holds",
            Some(_) => "**does not hold**",
        }
    }
}

/// Model, network and workers of the cells, each once.
fn places(cells: &[Cell]) -> Vec<(String, String, usize)> {
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
fn judge((model, network, workers): &(String, String, usize), cells: &[Cell]) -> Vec<Found> {
    let place = format!("{model}, {workers} workers, {network}");
    let cell = |method: &str| find(cells, model, network, *workers, method);
    let ratio = |faster: &str, slower: &str| Some(cell(faster)?.samples_per_s? / cell(slower)?.samples_per_s?);
    let pair = |pair: &Pair| Found {
        place: place.clone(),
        faster: pair.faster.to_owned(),
        slower: pair.slower.to_owned(),
        why: pair.why.to_owned(),
        ratio: ratio(pair.faster, pair.slower),
        noise: cell(pair.faster).and_then(|cell| cell.noise),
    };
    let applies = |pair: &&Pair| {
        pair.network.is_none_or(|wanted| wanted == network)
            && cell(pair.faster).is_some()
            && cell(pair.slower).is_some()
    };
    let mut found: Vec<Found> = PAIRS.iter().filter(applies).map(pair).collect();
    if cell(UNCUT_PS).is_some() && cell(UNCUT_A2A).is_some() {
        let gains = ratio("wfbp-ps", UNCUT_PS).zip(ratio(CUT_A2A, UNCUT_A2A));
        found.push(Found {
            place: place.clone(),
            faster: "what partitions bring on PS".to_owned(),
            slower: "what they bring on A2A".to_owned(),
            why: "finding 5: partitioning suits PS, not A2A".to_owned(),
            ratio: gains.map(|(servers, all_to_all)| servers / all_to_all),
            noise: cell(UNCUT_PS).and_then(|cell| cell.noise),
        });
    }
    found
}

fn agreement(compared: &[Comparison]) -> Target {
    let gaps: Vec<f64> = compared.iter().filter_map(|one| one.gap).collect();
    let within = gaps.iter().filter(|gap| gap.abs() <= GAP_MAX).count();
    Target {
        case: "the study's cells under its own presets".into(),
        demanded: "each within 10 %, or explained".into(),
        found: format!("{within} of {} within 10 %, {} not measured", gaps.len(), compared.len() - gaps.len()),
        met: (!gaps.is_empty()).then_some(within == gaps.len()),
    }
}

fn pairs_table(found: &[Found]) -> Table {
    let columns =
        ["place", "expected to be faster", "than", "throughput over throughput", "noise", "", "whose finding"];
    let mut table = Table::new("Pairs", "", &columns);
    table.rows.extend(found.iter().map(|one| {
        let ratio = one.ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.3}"));
        let fields = [&one.place, &one.faster, &one.slower, &ratio, &percent(one.noise), one.verdict(), &one.why];
        fields.map(str::to_owned).to_vec()
    }));
    table
}

fn cells_table(cells: &[Cell]) -> Table {
    let columns = [
        "model",
        "network",
        "workers",
        "method",
        "samples/s",
        "iteration, ms",
        "exposed, ms",
        "dilation",
        "measured",
        "",
    ];
    let text = "When the runs of a cell ended (UTC), and the load averages over the minute before they began: finished runs of the \
                same program are not repeated, and may be older than this page.";
    let mut table = Table::new("Cells", text, &columns);
    let optional = |value: Option<f64>, text: fn(f64) -> String| value.map_or_else(|| "–".to_owned(), text);
    table.rows.extend(cells.iter().map(|cell| {
        vec![
            cell.model.clone(),
            cell.network.clone(),
            cell.workers.to_string(),
            cell.method.clone(),
            optional(cell.samples_per_s, |value| format!("{value:.1}")),
            optional(cell.iteration_s, ms),
            optional(cell.exposed_communication_s, ms),
            cell.dilate.to_string(),
            cell.measured.clone(),
            cell.failures.join("; "),
        ]
    }));
    table
}

fn gaps_table(compared: &[Comparison]) -> Table {
    let mut table = Table::new(
        "The study's cells",
        "Ours over the study's, less 1; and by how much our iteration is longer. Gaps above 10 % are to be explained.",
        &["model", "network", "workers", "method", "study, samples/s", "ours", "gap", "iteration, ms", ""],
    );
    table.rows.extend(compared.iter().map(|one| {
        let large = one.gap.is_some_and(|gap| gap.abs() > GAP_MAX);
        vec![
            one.study.model.clone(),
            one.study.network.clone(),
            one.study.workers.to_string(),
            one.study.method.clone(),
            format!("{:.1}", one.study.samples_per_s),
            one.ours.map_or_else(|| "–".to_owned(), |ours| format!("{ours:.1}")),
            percent(one.gap),
            one.difference_s.map_or_else(|| "–".to_owned(), |difference| format!("{:+.1}", difference * 1e3)),
            if large { "**to be explained**".to_owned() } else { one.skipped.clone().unwrap_or_default() },
        ]
    }));
    table
}

#[cfg(test)]
mod tests {
    use super::super::cells::samples::cell;
    use super::*;

    #[test]
    fn every_pair_is_measured_somewhere_and_no_group_has_a_method_twice() {
        let groups = groups(false);
        let pairs: Vec<&Group> = groups.iter().filter(|group| group.name.starts_with("pairs")).collect();
        assert_eq!(pairs.len(), 4);
        for group in &pairs {
            let has = |method: &str| group.methods.iter().filter(|one| **one == method).count() == 1;
            assert!(PAIRS.iter().all(|pair| has(pair.faster) && has(pair.slower)), "{}", group.name);
        }
        let names: Vec<&String> = groups.iter().map(|group| &group.name).collect();
        assert!(names.iter().enumerate().all(|(place, name)| !names[..place].contains(name)));
    }

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
    }
}
