//! Crossovers: which method wins where, on emulated clusters; and the study's own cells under its own handicaps.

use paceline_cli::Processors;
use serde_json::json;

use super::calibration::{self, Comparison, GAP_MAX, StudyCell};
use super::cells::Cell;
use super::cluster::{Bench, Group, WARM_UP, WORKERS_PER_HOST, processors_here};
use super::pairs::{self, Found, METHODS, judge, places};
use super::report::{Findings, Table, Target, ms, percent};
use super::{Part, Place, announce};
use crate::compare::Error;

/// Networks and places of the pairs: model, hosts, workers on each.
const NETWORKS: [&str; 2] = ["10GbE", "100GbIB"];
const PLACES: [(&str, usize, usize); 2] = [("resnet50", 8, 4), ("bert-base", 2, 4)];

/// Of the machine's memory, so much is for the workers.
const MEMORY_SHARE: f64 = 0.92;
/// A group of the study's cells that takes longer is left out, unless `--case` names it.
const LONGEST_S: f64 = 600.0;

pub fn run(place: &Place) -> Result<Findings, Error> {
    let processors = processors_here(place.options.core_rate);
    let study = calibration::read(place.root)?;
    let runs_of =
        |group: &Group| place.options.rounds.unwrap_or(if place.options.quick { 1 } else { group.runs }).max(1);
    let estimate_s = |group: &Group| group.estimate_s(processors, runs_of(group));
    let wanted = groups(place.options.quick, &study).into_iter().filter(|one| place.wants(&one.name));
    let wanted = wanted.map(|group| Group { iterations: iterations(&group, runs_of(&group)), ..group });
    let (mut groups, mut left_out): (Vec<Group>, Vec<(Group, String)>) = (Vec::new(), Vec::new());
    for group in wanted {
        match unfit(&group, available_bytes(), estimate_s(&group), place.options.case.is_some()) {
            None => groups.push(group),
            Some(why) => left_out.push((group, why)),
        }
    }
    for group in &groups {
        eprintln!("  {}: about {:.0} minutes", group.name, (estimate_s(group) / 60.0).ceil());
    }
    for (group, why) in &left_out {
        eprintln!("  {}: left out: {why}", group.name);
    }
    let runs = groups.iter().map(|group| group.methods.len() * group.workers.len() * runs_of(group)).sum();
    announce(Part::Crossovers, runs, groups.iter().map(estimate_s).sum());
    let database = place.database(Part::Crossovers)?;
    let bench = Bench { program: &place.program, database: &database, scratch: &place.scratch };
    let (cells, failed) = measure(&groups, |group| match runs_of(group) {
        1 => without_limits(processors, |processors| group.measure(bench, processors, 1)),
        runs => group.measure(bench, processors, runs),
    });
    left_out.extend(failed);
    let reason = |cell: &StudyCell| left_out.iter().find(|(group, _)| group.has(cell)).map(|(_, why)| why.clone());
    let compared = calibration::compare(&study, &cells, &reason);
    let found: Vec<Found> = places(&cells).iter().flat_map(|place| judge(place, &cells)).collect();
    let mut targets: Vec<Target> = found.iter().map(Found::target).collect();
    targets.push(agreement(&compared));
    let mut tables = vec![pairs::table(&found), cells_table(&cells), gaps_table(&compared)];
    if !left_out.is_empty() {
        let mut table = Table::new("Not measured", "", &["group", "reason"]);
        table.rows = left_out.iter().map(|(group, why)| vec![group.name.clone(), why.clone()]).collect();
        tables.push(table);
    }
    let refused: Vec<&String> = left_out.iter().map(|(_, why)| why).collect();
    Ok(Findings {
        title: "Crossovers and the study's cells on emulated clusters".into(),
        text: "Computation is replayed from the study's GPU, links are shaped in software, both slowed by the dilation \
               and divided out (docs/benchmarking.md). A pair holds if the first is at least as fast, and is a tie where \
               they differ by less than two measurements of the same thing did, or than their runs leave open (95 %), if that \
               is at most 10 %: what hides more is undecided. With fewer than three runs nothing is decided, nor where the \
               processors were slower than the links that they emulate."
            .into(),
        targets,
        tables,
        measured: json!({"cells": cells, "pairs": found, "calibration": compared, "refused": refused}),
    })
}

/// Measured iterations that a cell has at least, over its runs.
const ITERATIONS_MIN: usize = 5;

/// In each of so many runs.
fn iterations(group: &Group, runs: usize) -> usize {
    group.iterations.max(ITERATIONS_MIN.div_ceil(runs))
}

/// How often a group is measured whose processors are too slow, each time as if they moved so much less.
const TRIES: usize = 3;
const SLOWER: f64 = 1.5;

/// Cells that the processors do not limit: of links and computation that are slowed until they keep up. What was measured last,
/// where they never do.
fn without_limits(
    mut processors: Processors,
    measure: impl Fn(Processors) -> Result<Vec<Cell>, Error>,
) -> Result<Vec<Cell>, Error> {
    for _ in 1..TRIES {
        let cells = measure(processors)?;
        if cells.iter().all(|cell| cell.samples_per_s.is_some() && cell.limited.is_none()) {
            return Ok(cells);
        }
        eprintln!("the processors did not keep up: again, slowed by {SLOWER} times as much");
        processors.core_bytes_per_s /= SLOWER;
    }
    measure(processors)
}

/// The cells of all groups, and the groups that gave none, with the reason.
fn measure(groups: &[Group], of: impl Fn(&Group) -> Result<Vec<Cell>, Error>) -> (Vec<Cell>, Vec<(Group, String)>) {
    let (mut cells, mut failed) = (Vec::new(), Vec::new());
    for group in groups {
        match of(group) {
            Ok(measured) => cells.extend(measured),
            // The others go on.
            Err(error) => {
                eprintln!("{error}");
                failed.push((group.clone(), error.to_string()));
            }
        }
    }
    (cells, failed)
}

/// Why a group is not to be measured here; None: it is.
pub fn unfit(group: &Group, available_bytes: f64, seconds: f64, is_named: bool) -> Option<String> {
    let bytes = group.memory_bytes();
    if bytes > MEMORY_SHARE * available_bytes {
        return Some(format!(
            "it takes {:.1} GB of memory, and {:.1} GB are there",
            bytes / 1e9,
            available_bytes / 1e9
        ));
    }
    let minutes = (seconds / 60.0).ceil();
    (group.runs == 1 && seconds > LONGEST_S && !is_named)
        .then(|| format!("it takes about {minutes:.0} minutes; `--case {}` measures it", group.name))
}

/// Memory that can still be had; without limit if the system does not say.
pub fn available_bytes() -> f64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kibibytes.map_or(f64::INFINITY, |kibibytes| kibibytes * 1024.0)
}

/// Everything that is measured; with `quick`, one place with two methods.
fn groups(quick: bool, study: &[StudyCell]) -> Vec<Group> {
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
            runs: 1,
            bulk: false,
        }];
    }
    let mut groups: Vec<Group> =
        PLACES.into_iter().flat_map(|place| NETWORKS.map(|network| of_pairs(place, network))).collect();
    // Each cell by itself: fewer workers need less dilation, and less memory without servers.
    for workers in [4, 8, 16, 32] {
        for model in ["resnet50", "bert-base", "bert-large"] {
            for network in ["10GbE", "100GbE", "100GbIB"] {
                let methods = CALIBRATED.map(|method| of_calibration(model, network, workers, method));
                groups.extend(methods.into_iter().filter(|group| study.iter().any(|cell| group.has(cell))));
            }
        }
    }
    groups
}

fn of_pairs((model, hosts, workers_per_host): (&'static str, usize, usize), network: &'static str) -> Group {
    let workers = hosts * workers_per_host;
    Group {
        name: format!("pairs-{model}-{workers}-{network}"),
        model,
        network,
        hosts,
        workers_per_host,
        workers: vec![workers],
        methods: METHODS.to_vec(),
        warm_up: WARM_UP,
        iterations: 2,
        runs: 3,
        bulk: false,
    }
}

/// A cell as the study has it.
fn of_calibration(model: &'static str, network: &'static str, workers: usize, method: &'static str) -> Group {
    Group {
        name: format!("calibration-{model}-{workers}-{network}-{method}"),
        model,
        network,
        hosts: workers.div_ceil(WORKERS_PER_HOST),
        workers_per_host: WORKERS_PER_HOST,
        workers: vec![workers],
        methods: vec![method],
        warm_up: WARM_UP,
        iterations: 5,
        runs: 1,
        bulk: true,
    }
}

/// The methods of `data/study_calibration.csv`.
const CALIBRATED: [&str; 3] = ["study-bsp-a2a", "study-bsp-ps", "study-wfbp-a2a"];

impl Group {
    /// Can this cell of the study be compared with one of its own?
    fn has(&self, cell: &StudyCell) -> bool {
        !cell.has_no_servers()
            && (self.model, self.network) == (&*cell.model, &*cell.network)
            && self.workers.contains(&cell.workers)
            && self.methods.contains(&&*cell.method)
    }
}

fn agreement(compared: &[Comparison]) -> Target {
    let of = |wanted: &dyn Fn(&Comparison) -> bool| compared.iter().filter(|one| wanted(one)).count();
    let measured = of(&|one| one.gap.is_some());
    let comparable = of(&|one| !one.study.has_no_servers());
    let limited = of(&|one| one.is_limited());
    let (agree, explained) = (of(&|one| one.agrees() == Some(true)), of(&|one| one.explained.is_some()));
    Target {
        case: "the study's cells under its own presets".into(),
        demanded: "each within 10 %, or explained".into(),
        found: format!(
            "{} of {measured} within 10 %, {explained} explained, {limited} limited by the processors, {} not measured, {} \
             not comparable",
            agree - explained,
            comparable - measured - limited,
            compared.len() - comparable
        ),
        // Those that are left out may be missed, too.
        met: if agree < measured { Some(false) } else { (measured > 0 && measured == comparable).then_some(true) },
    }
}

fn cells_table(cells: &[Cell]) -> Table {
    let columns = [
        "model",
        "network",
        "workers",
        "method",
        "samples/s",
        "runs × iterations",
        "iteration, ms",
        "exposed, ms",
        "dilation",
        "processors",
        "measured",
        "",
    ];
    let text = "When the runs of a cell ended (UTC), and the load averages over the minute before they began: finished runs of the \
                same program are not repeated, and may be older than this page. Processors: how busy all of them were with workers' \
                processes while a worker waited for communication. From 90 % on, if workers wait for 5 % of an iteration, they \
                and not the emulated links are what is measured: the row says so, and decides nothing. Iterations are those of each \
                run that counted, after those that warmed up; a cell has five or more over its runs, unless some did not count.";
    let mut table = Table::new("Cells", text, &columns);
    let optional = |value: Option<f64>, text: fn(f64) -> String| value.map_or_else(|| "–".to_owned(), text);
    table.rows.extend(cells.iter().map(|cell| {
        vec![
            cell.model.clone(),
            cell.network.clone(),
            cell.workers.to_string(),
            cell.method.clone(),
            optional(cell.samples_per_s, |value| format!("{value:.1}")),
            cell.runs_and_iterations(),
            optional(cell.iteration_s, ms),
            optional(cell.exposed_communication_s, ms),
            cell.dilate.to_string(),
            percent(cell.processors_waiting),
            cell.measured.clone(),
            cell.remark(),
        ]
    }));
    table
}

fn gaps_table(compared: &[Comparison]) -> Table {
    let mut table = Table::new(
        "The study's cells",
        "Ours over the study's, less 1; and by how much our iteration is longer. An explanation of a gap above 10 % says \
         how long an iteration takes by it, there and here, and counts if both are within 10 % of that, and so is what \
         remains of the gap.",
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
            match (&one.explained, large) {
                (Some(why), _) => format!("explained: {why}"),
                (None, true) => "**not explained**".to_owned(),
                (None, false) => one.skipped.clone().unwrap_or_default(),
            },
        ]
    }));
    table
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::pairs::PAIRS;
    use super::*;

    #[test]
    fn every_pair_is_measured_somewhere_and_no_group_has_a_method_twice() {
        let study = calibration::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).expect("the file");
        let groups = groups(false, &study);
        let pairs: Vec<&Group> = groups.iter().filter(|group| group.name.starts_with("pairs")).collect();
        assert_eq!(pairs.len(), 4);
        for group in &pairs {
            let has = |method: &str| group.methods.iter().filter(|one| **one == method).count() == 1;
            assert!(PAIRS.iter().all(|pair| has(pair.faster) && has(pair.slower)), "{}", group.name);
        }
        let names: Vec<&String> = groups.iter().map(|group| &group.name).collect();
        assert!(names.iter().enumerate().all(|(place, name)| !names[..place].contains(name)));
        // Every cell of the study with something to compare belongs to a group.
        let missing: Vec<&StudyCell> =
            study.iter().filter(|cell| !cell.has_no_servers() && !groups.iter().any(|group| group.has(cell))).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn a_cell_has_five_iterations_whatever_its_runs_and_its_row_says_so() {
        let study = calibration::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).expect("the file");
        for group in groups(false, &study).into_iter().chain(groups(true, &study)) {
            for runs in [group.runs, 1, 2, 3, 10] {
                assert!(runs * iterations(&group, runs) >= 5, "{}, {runs} runs", group.name);
            }
        }
        let pairs = of_pairs(PLACES[0], NETWORKS[0]);
        assert_eq!([1, 2, 3, 4].map(|runs| iterations(&pairs, runs)), [5, 3, 2, 2]);
        let table = cells_table(&[super::super::cells::samples::cell("resnet50", "10GbE", 8, "ddp", 1000.0)]);
        let column = table.columns.iter().position(|column| column == "runs × iterations").expect("there is one");
        assert_eq!((&*table.rows[0][column], table.rows[0].len()), ("3 × 2 after 2", table.columns.len()));
    }

    #[test]
    fn the_studys_cells_are_met_by_all_that_can_be_compared() {
        let line = |workers, note| {
            calibration::parse(&format!("ResNet-50,64,10GbE,BSP-A2A,{workers},1000,1,253.1,{note}")).expect("a cell")
        };
        let study = [line(8, ""), line(16, ""), line(4, "no_PS_traffic")];
        let ours = |workers, samples_per_s| {
            super::super::cells::samples::cell("resnet50", "10GbE", workers, "study-bsp-a2a", samples_per_s)
        };
        let met = |cells: &[Cell]| agreement(&calibration::compare(&study, cells, &|_| None)).met;
        assert_eq!(met(&[ours(8, 1000.0), ours(16, 1050.0)]), Some(true));
        assert_eq!(met(&[ours(8, 1000.0)]), None, "one is left out");
        assert_eq!(met(&[ours(8, 2000.0)]), Some(false));
        let limited = Cell { limited: Some("its links were slower".into()), ..ours(16, 100.0) };
        let with_limited = [ours(8, 1000.0), limited];
        assert_eq!(met(&with_limited), None, "nobody knows what the network would have given");
        let found = agreement(&calibration::compare(&study, &with_limited, &|_| None)).found;
        assert!(found.starts_with("1 of 1 within 10 %, 0 explained, 1 limited by the processors, 0 not"), "{found}");
        assert_eq!(met(&[]), None);
    }

    #[test]
    fn what_the_processors_limit_is_measured_again_more_slowly() {
        let of = |limited: bool| Cell {
            limited: limited.then(|| "its links were slower".into()),
            ..super::super::cells::samples::cell("resnet50", "10GbE", 8, "study-bsp-a2a", 1000.0)
        };
        let measured = |limited_above: f64| {
            let rates = std::cell::RefCell::new(Vec::new());
            let cells = without_limits(Processors { cores: 2, core_bytes_per_s: 9.0 }, |processors| {
                rates.borrow_mut().push(processors.core_bytes_per_s);
                Ok(vec![of(false), of(processors.core_bytes_per_s > limited_above)])
            });
            (rates.into_inner(), cells.expect("cells")[1].limited.is_some())
        };
        assert_eq!(measured(10.0), (vec![9.0], false));
        assert_eq!(measured(8.0), (vec![9.0, 6.0], false));
        assert_eq!(measured(1.0), (vec![9.0, 6.0, 4.0], true), "at last it is what it is");
        assert!(without_limits(Processors { cores: 2, core_bytes_per_s: 9.0 }, |_| Err("no".into())).is_err());
    }

    #[test]
    fn what_is_too_large_or_takes_too_long_says_so() {
        let groups = groups(false, &calibration::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).expect("it"));
        let of = |name: &str| groups.iter().find(|group| group.name == name).expect("a group");
        let large = of("calibration-bert-large-32-10GbE-study-bsp-ps");
        assert!(unfit(large, 24e9, 1.0, true).is_some_and(|why| why.contains("46.0 GB of memory, and 24.0 GB")));
        let small = of("calibration-resnet50-4-10GbE-study-bsp-a2a");
        assert_eq!(unfit(small, 24e9, 1.0, false), None);
        assert!(unfit(small, 24e9, 601.0, false).is_some_and(|why| why.contains("11 minutes; `--case")));
        assert_eq!(unfit(small, 24e9, 601.0, true), None);
    }
}
