//! Prediction: how far is what was predicted from what was measured, and what would the predictions have chosen? On emulated
//! networks, which share a model with the simulator, in the lab, whose links the kernel shapes, and of models that are trained on this
//! host, apart from each other.

mod averages;
mod drawn;
mod emulated;
mod files;
pub mod joined;
mod judge;
mod lab;
mod real;
mod regret;
mod tables;

use std::cell::RefCell;

use serde_json::json;

use super::cells::Cell;
use super::cluster::{Bench, Group, processors_here};
use super::crossovers::{available_bytes, unfit};
use super::report::{Findings, Table};
use super::{Part, Place, announce};
use crate::compare::Error;
use drawn::Draw;
use files::Files;
use judge::{Outcome, Place as Where};
use real::Real;

/// The seven methods of the comparative study.
pub const METHODS: [&str; 7] =
    ["bsp-ps", "bsp-a2a", "wfbp-ps", "wfbp-a2a", "mg-wfbp", "bytescheduler-ps", "bytescheduler-a2a"];
/// What chooses by itself, while it runs.
pub const AUTO: &str = "auto";

/// Something that is not measured, and why.
pub type Skipped = (String, String);

/// Why something is missing that `--case` does not name.
const NOT_ASKED: &str = "not asked for by --case";

pub fn run(place: &Place) -> Result<Findings, Error> {
    let (quick, seed) = (place.options.quick, place.options.seed);
    eprintln!("seed {seed}");
    let processors = processors_here(place.options.core_rate);
    let runs = place.options.rounds.unwrap_or(1).max(1);
    let mut skipped: Vec<Skipped> = Vec::new();
    let mut fits = |group: Group| {
        let why = unfit(&group, available_bytes(), group.estimate_s(processors, runs), place.options.case.is_some());
        skipped.extend(why.clone().map(|why| (group.name.clone(), why)));
        why.is_none().then_some(group)
    };
    let asked: RefCell<Vec<Skipped>> = RefCell::default();
    let wants = |name: &str| {
        let wanted = place.wants(name);
        if !wanted {
            asked.borrow_mut().push((name.to_owned(), NOT_ASKED.to_owned()));
        }
        wanted
    };
    let wanted = |group: &Group| wants(&group.name);
    let groups: Vec<Group> = emulated::groups(quick).into_iter().filter(wanted).filter_map(&mut fits).collect();
    let servers: Vec<Group> = emulated::servers(quick).into_iter().filter(wanted).filter_map(&mut fits).collect();
    let draws: Vec<Draw> = Draw::all(seed, quick).into_iter().filter(|draw| wants(&draw.name)).collect();
    let trained: Vec<Real> = real::models(quick).into_iter().filter(|real| wants(&real.name)).collect();
    let files: Vec<Files> = files::all(quick).into_iter().filter(|files| wants(&files.name)).collect();
    let runs_trained = place.options.rounds.unwrap_or(if quick { 1 } else { real::RUNS }).max(1);
    let methods = |groups: &[Group]| groups.iter().map(|group| group.methods.len() + 1).sum::<usize>();
    let worlds_trained: usize = trained.iter().map(Real::worlds).sum();
    let worlds = methods(&groups) + methods(&servers) + draws.len() * (METHODS.len() + 2);
    let of_files = files.iter().map(Files::worlds).sum::<usize>();
    let count = runs * worlds + runs_trained * worlds_trained + of_files;
    let of_groups: f64 = groups.iter().chain(&servers).map(|group| group.estimate_s(processors, runs)).sum();
    let of_draws: f64 = draws.iter().map(|draw| draw.estimate_s(processors, runs)).sum();
    let of_trained: f64 = trained.iter().map(|real| real.estimate_s(runs_trained)).sum();
    let of_files: f64 = files.iter().map(|files| files.estimate_s(processors)).sum();
    announce(Part::Prediction, count, of_groups + of_draws + of_trained + of_files);
    let database = place.database(Part::Prediction)?;
    let bench = Bench { program: &place.program, database: &database, scratch: &place.scratch };
    let mut outcomes = Vec::new();
    for (kind, groups) in [(Where::Emulated, &groups), (Where::Servers, &servers)] {
        for group in groups {
            let measured = group.measure(bench, processors, runs);
            take(kind, &group.name, measured, |_| group.name.clone(), &mut outcomes, &mut skipped);
        }
    }
    for draw in &draws {
        let measured = draw.measure(bench, processors, runs);
        take(Where::Drawn, &draw.name, measured, |_| draw.name.clone(), &mut outcomes, &mut skipped);
    }
    for real in &trained {
        let measured = real.measure(bench, runs_trained);
        take(real.place(), &real.name, measured, |cell| real.group(cell), &mut outcomes, &mut skipped);
    }
    for files in &files {
        match files.measure(bench, processors) {
            Ok(found) => outcomes.extend(found),
            Err(error) => failed(&files.name, &error, &mut skipped),
        }
    }
    lab::measure(place, runs, &mut outcomes, &mut skipped)?;
    skipped.extend(asked.into_inner());
    if !quick {
        skipped.extend(real::left_out());
    }
    Ok(findings(&outcomes, &skipped, seed, &draws))
}

/// Takes in what a call has measured, each cell in its group; if it failed, the others go on.
fn take(
    kind: Where,
    name: &str,
    measured: Result<Vec<Cell>, Error>,
    group: impl Fn(&Cell) -> String,
    outcomes: &mut Vec<Outcome>,
    skipped: &mut Vec<Skipped>,
) {
    match measured {
        Ok(cells) => {
            outcomes.extend(cells.iter().map(|cell| Outcome::of(kind, &group(cell), cell)));
        }
        Err(error) => failed(name, &error, skipped),
    }
}

/// Says it, and notes it for the page.
fn failed(name: &str, error: &Error, skipped: &mut Vec<Skipped>) {
    eprintln!("{error}");
    skipped.push((name.to_owned(), error.to_string()));
}

fn findings(outcomes: &[Outcome], skipped: &[Skipped], seed: u64, draws: &[Draw]) -> Findings {
    let mut tables = vec![tables::error_table(outcomes), tables::method_table(outcomes), tables::group_table(outcomes)];
    tables.extend([tables::why_table(outcomes), tables::cell_table(outcomes)]);
    if !draws.is_empty() {
        tables.push(drawn::table(draws));
    }
    let mut left_out = Table::new("Not measured", "", &["case", "reason"]);
    left_out.rows = skipped.iter().map(|(case, why)| vec![case.clone(), why.clone()]).collect();
    let unpredicted = outcomes.iter().filter_map(Outcome::gap);
    left_out.rows.extend(unpredicted.map(|(case, why)| vec![case, why]));
    if !left_out.rows.is_empty() {
        tables.push(left_out);
    }
    Findings {
        title: "Predicted and measured".into(),
        text: format!(
            "Computation is replayed, but for the models that are trained on this host, over its shared memory and over TCP: there a \
             prediction is made from what one worker computes and what the ranks measured when they met, and of one worker alone from \
             what it computes under the other methods. On emulated networks links are shaped in software, both are slowed by the dilation \
             and divided out, and a prediction is made from the network and the profile before anything is run \
             (docs/prediction.md); the emulation shares its model of links with the simulator. In the lab the kernel shapes \
             the links to 1 Gbit/s, and a prediction is made from what the ranks measured when they met; of `auto` it is what \
             it expected itself when it had chosen. \"Files\" are predicted by `paceline simulate` from a cluster that `paceline probe` had \
             written before, and a profile that is built in or that `paceline profile` had written. No prediction sees an iteration of its cell. Regret is by how much what was \
             chosen is slower than the fastest of the seven methods: `choice` is the one with the highest predicted throughput, \
             `auto` what chose while it ran. Tensor lists and networks are drawn from the seed {seed}."
        ),
        targets: judge::targets(outcomes),
        tables,
        measured: json!({"outcomes": outcomes, "seed": seed, "drawn": draws, "skipped": skipped}),
    }
}
