//! Tuning: how far the tuner of single calls is from the best that there is, what it costs to get there, and what it does when
//! the network changes. Measured with live tuners (`paceline perf --tune`, `paceline bench --tune`), and simulated where this machine
//! is no cluster.

mod alike;
mod drift;
mod mix;
mod replay;
mod simulated;
mod sizes;
mod world;

use paceline_cli::Estimate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use xtask::lab::Lab;

use super::cluster::cores;
use super::kept::Kept;
use super::report::{Findings, Table, Target};
use super::{Part, Place, announce};
use crate::compare::Error;
use crate::compare::circumstances::Load;
use replay::Replay;
use world::{Case, Links};

/// What one question brings to the report.
#[derive(Default)]
struct Section {
    targets: Vec<Target>,
    tables: Vec<Table>,
    measured: Value,
}

/// A case and its runs.
struct Measured {
    case: Case,
    runs: Vec<Value>,
    failures: Vec<String>,
}

/// A question that worlds answer.
struct Question {
    name: &'static str,
    cases: Vec<Case>,
    /// How often each is measured, if nobody says it.
    runs: usize,
    /// Have these runs said enough?
    is_enough: fn(&[Value]) -> bool,
    judge: fn(&[Measured]) -> Section,
}

/// A finished run, as it is kept.
#[derive(Serialize, Deserialize)]
struct Run {
    /// Its case and what it was told.
    key: String,
    /// Load averages before it.
    load: String,
    tuned: Value,
}

pub fn run(place: &Place) -> Result<Findings, Error> {
    let quick = place.options.quick;
    let mut left_out = Table::new("Not measured", "", &["case", "reason"]);
    let no_lab = Lab::permitted().err().map(|error| error.to_string());
    let mut needs_lab = |name: &str, links: Links| {
        let missing = no_lab.as_ref().filter(|_| links == Links::Lab);
        left_out.rows.extend(missing.map(|why| vec![name.to_owned(), why.clone()]));
        missing.is_none()
    };
    let mut questions = questions(place);
    for question in &mut questions {
        question.cases.retain(|case| place.wants(&case.name) && needs_lab(&case.name, case.links));
    }
    let mut replays = Replay::all(quick, place.options.rounds);
    replays.retain(|replay| place.wants(&replay.name) && needs_lab(&replay.name, Links::Lab));
    let of_replays = replays.iter().map(|replay| replay.estimate_s(place)).sum::<Result<f64, Error>>()?;
    let count: usize = questions.iter().map(|question| question.runs * question.cases.len()).sum();
    let seconds: f64 = questions.iter().map(Question::estimate_s).sum();
    announce(Part::Tuning, count + replays.len(), seconds + of_replays);

    // The replays' runs are kept by `bench`.
    let database = place.database(Part::Tuning)?;
    let mut kept = Kept::open(database.with_extension("jsonl"))?;
    let mut sections = Vec::new();
    for question in questions.iter().filter(|question| !question.cases.is_empty()) {
        let measured = question.measure(place, &mut kept)?;
        for failed in measured.iter().filter(|measured| !measured.failures.is_empty()) {
            left_out.rows.push(vec![failed.case.name.clone(), failed.failures.join("; ")]);
        }
        sections.push((question.name, (question.judge)(&measured)));
    }
    if !replays.is_empty() {
        sections.push(("replay", replay::run(place, &replays, &database, &mut left_out)));
    }
    if place.wants("simulated") {
        sections.push(("simulated", simulated::run(quick)?));
    }
    Ok(findings(sections, left_out))
}

/// Each with as many runs as it is to have.
fn questions(place: &Place) -> Vec<Question> {
    let cores = cores();
    let quick = place.options.quick;
    let all = [
        sizes::question(quick, cores),
        mix::question(quick),
        drift::question(quick, cores),
        alike::question(quick, cores),
    ];
    let runs = |usual: usize| place.options.rounds.unwrap_or(if quick { 1 } else { usual }).max(1);
    all.into_iter().map(|question| Question { runs: runs(question.runs), ..question }).collect()
}

impl Question {
    /// Seconds that it takes at most, about.
    fn estimate_s(&self) -> f64 {
        self.runs as f64 * self.cases.iter().map(|case| case.seconds).sum::<f64>()
    }

    /// All cases by turns, as often as asked for or until they have said enough.
    fn measure(&self, place: &Place, kept: &mut Kept<Run>) -> Result<Vec<Measured>, Error> {
        let new = |case: &Case| Measured { case: case.clone(), runs: Vec::new(), failures: Vec::new() };
        let mut all: Vec<Measured> = self.cases.iter().map(new).collect();
        for run in 1..=self.runs {
            for measured in &mut all {
                if (self.is_enough)(&measured.runs) {
                    continue;
                }
                let case = &measured.case;
                let key = format!("{} x{} run {run}: {}", case.name, case.per_host, case.arguments.join(" "));
                if let Some(finished) = kept.runs().iter().find(|run| run.key == key) {
                    measured.runs.push(finished.tuned.clone());
                    continue;
                }
                eprintln!("{}: run {run} of {}, about {:.0} s", case.name, self.runs, case.seconds);
                let load = Load::now("before").averages;
                match case.run(&place.program, &place.scratch, run) {
                    Ok(tuned) => {
                        kept.keep(Run { key, load, tuned: tuned.clone() })?;
                        measured.runs.push(tuned);
                    }
                    // The others go on.
                    Err(error) => {
                        eprintln!("{error}");
                        measured.failures.push(format!("run {run}: {error}"));
                    }
                }
            }
        }
        Ok(all)
    }
}

fn findings(sections: Vec<(&'static str, Section)>, left_out: Table) -> Findings {
    let (mut targets, mut tables, mut measured) = (Vec::new(), Vec::new(), Map::new());
    for (name, section) in sections {
        targets.extend(section.targets);
        tables.extend(section.tables);
        measured.insert(name.to_owned(), section.measured);
    }
    if !left_out.rows.is_empty() {
        tables.push(left_out);
    }
    Findings {
        title: "The tuner on our communicator, and simulated".into(),
        text: "Measured: f32 all-reduces in place between processes, a barrier before each call, which lasts from \
               when the last rank has begun it until the last one has ended it (iterations of several kinds of calls: as long as on the slowest rank). The tuner's calls and its rivals' take turns in the same world, in an order of chance; what boundaries \
               take, in which the ranks learn of each other's times, is counted as the tuner's. What noise hides is undecided: \
               where the default differs from itself, or runs differ from each other, by as much as is missing. Simulated: the truth is our cost model times an error drawn from a seed (docs/tuning.md); that shows \
               whether the tuner works, not what a network gains."
            .into(),
        targets,
        tables,
        measured: Value::Object(measured),
    }
}

/// A number of each run, and what they say together.
#[derive(Clone, Debug, Serialize)]
struct Over {
    mean: f64,
    /// Half of the 95 % interval of the mean; none of a single run.
    half_width: Option<f64>,
    /// The largest.
    worst: f64,
}

impl Over {
    /// None of nothing.
    fn of(values: &[f64]) -> Option<Over> {
        let Estimate { mean, half_width_95, .. } = Estimate::of(values)?;
        Some(Over { mean, half_width: half_width_95, worst: values.iter().copied().fold(f64::MIN, f64::max) })
    }

    /// Is the mean at most so much? None: its interval does not say. A single run is taken at its word.
    fn is_at_most(&self, most: f64) -> Option<bool> {
        let half = self.half_width.unwrap_or(0.0);
        match self.mean {
            mean if mean + half <= most => Some(true),
            mean if mean - half > most => Some(false),
            _ => None,
        }
    }
}

/// "1.012 ± 0.004".
fn in_words(over: Option<&Over>) -> String {
    over.map_or_else(
        || "–".to_owned(),
        |Over { mean, half_width, .. }| {
            let half = half_width.map_or_else(String::new, |half| format!(" ± {half:.3}"));
            format!("{mean:.3}{half}")
        },
    )
}

/// A demand that several cases must meet, each with its name, its number and its verdict (None: undecided).
fn together(case: String, demanded: String, found: &[(String, f64, Option<bool>)]) -> Target {
    let count = |wanted: Option<bool>| found.iter().filter(|(_, _, met)| *met == wanted).count();
    let (met, missed, undecided) = (count(Some(true)), count(Some(false)), count(None));
    let worst = found.iter().max_by(|one, other| one.1.total_cmp(&other.1));
    let worst =
        worst.map_or_else(|| "nothing measured".to_owned(), |(name, value, _)| format!("at worst {value:.3}, {name}"));
    let open = if undecided > 0 { format!(", {undecided} undecided") } else { String::new() };
    Target {
        case,
        demanded,
        found: format!("{met} of {}{open}; {worst}", found.len()),
        met: if missed > 0 { Some(false) } else { (undecided == 0 && met > 0).then_some(true) },
    }
}

/// A number of a run.
fn number(value: &Value, name: &str) -> Option<f64> {
    value[name].as_f64()
}

/// The numbers of all runs that have it.
fn numbers<'a>(runs: impl IntoIterator<Item = &'a Value>, name: &str) -> Vec<f64> {
    runs.into_iter().filter_map(|run| number(run, name)).collect()
}

/// Microseconds, for a table: the median over the runs.
fn median_us(runs: &[&Value], name: &str) -> String {
    let values = numbers(runs.iter().copied(), name);
    if values.is_empty() { "–".to_owned() } else { format!("{:.1}", crate::compare::statistics::median(&values)) }
}

/// A text of the last run.
fn last_text(runs: &[&Value], name: &str) -> String {
    runs.last().and_then(|run| run[name].as_str()).unwrap_or("–").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_intervals_hide_is_undecided() {
        let over = |values: &[f64]| Over::of(values).expect("values");
        assert_eq!(over(&[1.01, 1.011, 1.012]).is_at_most(1.03), Some(true));
        assert_eq!(over(&[1.01, 1.02, 1.03]).is_at_most(1.03), None);
        assert_eq!(over(&[1.00, 1.04, 1.10]).is_at_most(1.03), None);
        assert_eq!(over(&[1.10, 1.11, 1.10]).is_at_most(1.03), Some(false));
        assert_eq!(over(&[1.04]).is_at_most(1.03), Some(false));
        assert!(Over::of(&[]).is_none());
        assert_eq!(in_words(Some(&over(&[1.0]))), "1.000");
    }

    #[test]
    fn one_miss_is_a_miss_and_one_open_question_leaves_all_open() {
        let found = |met: &[Option<bool>]| {
            let all: Vec<_> = met.iter().enumerate().map(|(place, met)| (format!("c{place}"), 1.0, *met)).collect();
            together("case".into(), "all".into(), &all)
        };
        assert_eq!(found(&[Some(true), Some(true)]).met, Some(true));
        assert_eq!(found(&[Some(true), None]).met, None);
        assert_eq!(found(&[None, Some(false), Some(true)]).met, Some(false));
        assert_eq!(found(&[]).met, None);
        assert!(found(&[Some(true), None]).found.starts_with("1 of 2, 1 undecided; at worst 1.000, c1"));
    }
}
