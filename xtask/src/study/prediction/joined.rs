//! `cargo xtask join-predictions`: what kept pages of `study --part prediction`, each of which judges its own groups, say together.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use paceline_cli::Estimate;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::Part;
use super::super::report::{Circumstances, Findings, Table, Target, percent};
use super::averages::{Averages, Chosen, Fixed, all_met, over_groups};
use super::judge::{ERROR_MAX, Group, Outcome, Place, groups};
use super::regret::{REGRET_MAX, Regret};
use super::tables::{Errors, error_table, in_interval, share};
use super::{AUTO, METHODS, Skipped};
use crate::compare::circumstances::Commit;
use crate::compare::{Error, root};
use crate::readme::failed;

/// What `join-predictions` is told.
#[derive(Args)]
pub struct Options {
    /// Kept pages, the study-prediction.json of each; a group that several have counts once, as the last of them has it
    #[arg(required = true, value_name = "PAGE")]
    pages: Vec<PathBuf>,

    /// Where the page goes [default: benches/runs/<date>-<machine>]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

/// A name that is not [`Part::Prediction`]'s: what is joined cannot be joined again.
const PART: &str = "prediction-joined";

const TEXT: &str = "From kept pages; nothing is measured here. Regret is by how much something is slower than the fastest of the methods \
                    that stay the same in its group, as a share of that one's samples/s: below 0 if it is faster. Where both were \
                    measured in three rounds or more it is taken by rounds (docs/benchmarking.md). Means are over the groups of several \
                    workers that have `auto` and all seven methods, whose cells say which is how fast: on emulated networks those that \
                    the processors have limited do not. Every group counts the same. Intervals are of 95 %. Over groups: of the mean, by \
                    Student's t, as if groups were drawn independently of each other, which those of one model are not. By runs: what \
                    the runs of these groups leave open of the same mean, and nothing where it is unknown, as where there is one run, \
                    which is so in the lab. The wider one decides whether `auto` is faster.";

/// Writes `study-prediction-joined.json` and `study-prediction-joined.md`.
pub fn run(options: &Options) -> Result<(), Error> {
    let pages: Vec<Page> = options.pages.iter().map(|path| Page::read(path)).collect::<Result<_, _>>()?;
    let circumstances = Circumstances::of_pages(PART, machine(&pages)?);
    let folder = match &options.out {
        Some(folder) => folder.clone(),
        None => circumstances.folder(root()?),
    };
    circumstances.write(&folder, &findings(&pages))
}

/// A kept page.
#[derive(Serialize)]
struct Page {
    /// That of the folder in which it lies.
    name: String,
    made: Made,
    #[serde(skip)]
    outcomes: Vec<Outcome>,
}

/// When, by which program, and where.
#[derive(Serialize, Deserialize)]
struct Made {
    date: String,
    commit: Commit,
    machine: Value,
}

#[derive(Deserialize)]
struct Contents {
    circumstances: Made,
    measured: Measured,
}

#[derive(Deserialize)]
struct Measured {
    outcomes: Vec<Outcome>,
}

impl Page {
    fn read(path: &Path) -> Result<Page, Error> {
        let text = fs::read_to_string(path).map_err(|error| failed(path, &error))?;
        let Contents { circumstances, measured } = parse(&text).map_err(|error| failed(path, &error))?;
        let folder = path.parent().and_then(Path::file_name).unwrap_or(path.as_os_str());
        Ok(Page { name: folder.to_string_lossy().into_owned(), made: circumstances, outcomes: measured.outcomes })
    }

    fn processors(&self) -> [&Value; 2] {
        ["processor", "cores"].map(|name| &self.made.machine[name])
    }

    fn has(&self, place: Place, group: &str) -> bool {
        self.outcomes.iter().any(|outcome| outcome.place == place && outcome.group == group)
    }
}

/// What a file has, if it is such a page.
fn parse(text: &str) -> Result<Contents, String> {
    if text.trim().is_empty() {
        return Err("it is empty".to_owned());
    }
    let page: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let wanted = Part::Prediction.name();
    match page["circumstances"]["part"].as_str() {
        Some(part) if part == wanted => {}
        Some(part) => {
            return Err(format!("its part is {part}, and only pages of `study --part {wanted}` can be joined"));
        }
        None => return Err("it is no page of `cargo xtask study`".to_owned()),
    }
    let contents: Contents = serde_json::from_value(page).map_err(|error| error.to_string())?;
    if contents.measured.outcomes.is_empty() {
        return Err("it has no cells: nothing was measured".to_owned());
    }
    Ok(contents)
}

/// That of all pages: on another one a group of the same name is another group.
fn machine(pages: &[Page]) -> Result<Value, Error> {
    let [first, others @ ..] = pages else { return Err("no page is named".into()) };
    match others.iter().find(|page| page.processors() != first.processors()) {
        Some(other) => Err(format!("{} and {} were measured on different machines", first.name, other.name).into()),
        None => Ok(first.made.machine.clone()),
    }
}

/// The cells of all pages, and the groups that a later page has again, which count as that one has them.
fn join(pages: &[Page]) -> (Vec<Outcome>, Vec<Skipped>) {
    let (mut outcomes, mut again): (Vec<Outcome>, Vec<Skipped>) = Default::default();
    for page in pages {
        let why = format!("counts as {} has it", page.name);
        let replaced = |group: &&Group<'_>| page.has(group.place, group.name);
        let named = |group: &Group<'_>| (group.name.to_owned(), why.clone());
        again.extend(groups(&outcomes).iter().filter(replaced).map(named));
        outcomes.retain(|outcome| !page.has(outcome.place, &outcome.group));
        outcomes.extend(page.outcomes.iter().cloned());
    }
    (outcomes, again)
}

/// A group that is in the mean.
#[derive(Serialize)]
struct Compared {
    place: Place,
    group: String,
    auto: Chosen,
}

impl Compared {
    fn of(group: &Group<'_>) -> Option<Compared> {
        let auto = Chosen::of(group, group.auto().filter(|_| group.workers > 1)?)?;
        Some(Compared { place: group.place, group: group.name.to_owned(), auto })
    }
}

/// Why a group is not.
fn gap(group: &Group<'_>) -> String {
    if group.workers == 1 {
        return "one worker sends nothing".to_owned();
    }
    let why = |method: &'static str| match group.cells.iter().find(|outcome| outcome.method == method) {
        None => Some(format!("no {method}")),
        Some(outcome) if outcome.measured.is_none() => Some(format!("{method} was not measured")),
        Some(outcome) if !outcome.decides() => Some(format!("the processors limited {method}")),
        Some(_) => None,
    };
    METHODS.into_iter().chain([AUTO]).filter_map(why).collect::<Vec<_>>().join(", ")
}

fn findings(pages: &[Page]) -> Findings {
    let (outcomes, mut left_out) = join(pages);
    let groups = groups(&outcomes);
    let mut compared = Vec::new();
    for group in &groups {
        match Compared::of(group) {
            Some(row) => compared.push(row),
            None => left_out.push((group.name.to_owned(), gap(group))),
        }
    }
    let all = Averages::of(&compared.iter().map(|row| &row.auto).collect::<Vec<_>>());
    let by_place = by_place(&compared);
    let errors = errors(&outcomes);
    let error = |(name, errors): &(&'static str, Errors)| {
        Target::at_most(*name, "median error", ERROR_MAX, Some(errors.median))
    };
    let mut targets: Vec<Target> = errors.iter().map(error).collect();
    targets.extend([each_group(&groups), over_groups(all.as_ref(), AUTO)]);
    let mut tables = vec![page_table(pages), place_table(&outcomes, &groups, &compared), error_table(&outcomes)];
    tables.extend(all.as_ref().map(method_table));
    tables.extend([mean_table(&by_place), behind_table(&groups), left_out_table(&left_out)]);
    Findings {
        title: "Predicted and measured, over all groups".into(),
        text: TEXT.into(),
        targets,
        tables,
        measured: json!({
            "pages": pages, "errors": errors, "methods": METHODS, "averages": all, "by_place": by_place, "groups": compared,
            "left_out": left_out,
        }),
    }
}

/// By place, and of all.
fn errors(outcomes: &[Outcome]) -> Vec<(&'static str, Errors)> {
    let of = |place: Place| Some((place.name(), Errors::of(outcomes, |outcome| outcome.place == place)?));
    let all = Errors::of(outcomes, |outcome| outcome.place.counts_among_all()).map(|errors| ("all", errors));
    Place::ALL.into_iter().filter_map(of).chain(all).collect()
}

fn by_place(compared: &[Compared]) -> Vec<(Place, Averages)> {
    let of = |place: Place| {
        let here = compared.iter().filter(|row| row.place == place).map(|row| &row.auto);
        Some((place, Averages::of(&here.collect::<Vec<_>>())?))
    };
    Place::ALL.into_iter().filter_map(of).collect()
}

/// Is `auto` fast enough in each group of several workers?
fn each_group(groups: &[Group<'_>]) -> Target {
    let has_auto = |group: &&Group<'_>| group.workers > 1 && group.cells.iter().any(|outcome| outcome.method == AUTO);
    let judge = |group: &Group<'_>| group.of_auto().and_then(Regret::is_small);
    let judged: Vec<Option<bool>> = groups.iter().filter(has_auto).map(judge).collect();
    let count = |wanted: Option<bool>| judged.iter().filter(|found| **found == wanted).count();
    let [met, missed, open] = [Some(true), Some(false), None].map(count);
    Target {
        case: format!("{AUTO}, each group"),
        demanded: format!("regret ≤ {REGRET_MAX}"),
        found: format!("so in {met} of {}, not in {missed}, undecided in {open}", judged.len()),
        met: all_met(&judged),
    }
}

fn page_table(pages: &[Page]) -> Table {
    let text = "In the interval: a dash where a page says of no cell which 95 % interval was predicted of it.";
    let mut table = Table::new("Pages", text, &["page", "date", "commit", "cells", "in the interval"]);
    table.rows.extend(pages.iter().map(|page| {
        let Made { date, commit, .. } = &page.made;
        let changed = if commit.changed { " with changes" } else { "" };
        let cells = page.outcomes.len().to_string();
        let within = share(in_interval(page.outcomes.iter().filter(|outcome| outcome.counts())));
        vec![page.name.clone(), date.clone(), format!("{}{changed}", commit.id), cells, within]
    }));
    table
}

fn place_table(outcomes: &[Outcome], groups: &[Group<'_>], compared: &[Compared]) -> Table {
    let mut table = Table::new("Cells and groups", "", &["where", "cells", "groups", "groups in the mean"]);
    let row = |name: &str, places: &[Place]| {
        let cells = outcomes.iter().filter(|outcome| places.contains(&outcome.place)).count();
        let all = groups.iter().filter(|group| places.contains(&group.place)).count();
        let in_mean = compared.iter().filter(|row| places.contains(&row.place)).count();
        (cells > 0).then(|| vec![name.to_owned(), cells.to_string(), all.to_string(), in_mean.to_string()])
    };
    table.rows.extend(Place::ALL.into_iter().filter_map(|place| row(place.name(), &[place])));
    table.rows.extend(row("all", &Place::ALL.into_iter().filter(|it| it.counts_among_all()).collect::<Vec<_>>()));
    table
}

/// `auto`, and each method that stays the same.
fn method_table(averages: &Averages) -> Table {
    let columns =
        ["method", "regret", "`auto` less that", "over groups", "by runs", "`auto` is faster in", "`auto` is"];
    let text = format!("Means over {} groups.", averages.chosen.runs);
    let mut table = Table::new("Regret, mean over groups", text, &columns);
    let dashes = vec!["–".to_owned(); columns.len() - 2];
    table.rows.push([vec![AUTO.to_owned(), in_words(&averages.chosen)], dashes].concat());
    table.rows.extend(averages.fixed.iter().map(|fixed| {
        let verdict = match fixed.is_beaten() {
            Some(true) => "faster",
            Some(false) => "**not faster**",
            None => "**undecided**",
        };
        let [apart, over_groups, by_runs] = difference(fixed);
        let faster_in = format!("{} of {}", fixed.faster_in, fixed.apart.runs);
        vec![
            fixed.method.to_owned(),
            in_words(&fixed.regret),
            apart,
            over_groups,
            by_runs,
            faster_in,
            verdict.to_owned(),
        ]
    }));
    table
}

/// `auto` beside the method that is the best one there.
fn mean_table(by_place: &[(Place, Averages)]) -> Table {
    let columns = ["where", "groups", "`auto`", "best fixed", "its", "`auto` less that", "over groups", "by runs"];
    let mut table = Table::new("Regret, mean over the groups of each place", "", &columns);
    table.rows.extend(by_place.iter().filter_map(|(place, averages)| {
        let best = averages.best()?;
        let [apart, over_groups, by_runs] = difference(best);
        let (auto, regret) = (in_words(&averages.chosen), in_words(&best.regret));
        let groups = averages.chosen.runs.to_string();
        Some(vec![place.name().to_owned(), groups, auto, best.method.to_owned(), regret, apart, over_groups, by_runs])
    }));
    table
}

/// A mean share, give or take what the groups leave open.
fn in_words(estimate: &Estimate) -> String {
    let open = estimate.half_width_95.map_or_else(String::new, |half| format!(" ± {:.2}", 100.0 * half));
    format!("{:.2}{open} %", 100.0 * estimate.mean)
}

/// The mean difference, and what the groups and their runs leave open of it.
fn difference(fixed: &Fixed) -> [String; 3] {
    let open = |half: f64| format!("± {:.2} %", 100.0 * half);
    let over_groups = fixed.apart.half_width_95.map_or_else(|| "–".to_owned(), open);
    [format!("{:.2} %", 100.0 * fixed.apart.mean), over_groups, open(fixed.by_runs)]
}

/// Where `auto` is too slow, known to be so or not.
fn behind_table(groups: &[Group<'_>]) -> Table {
    let limit = percent(Some(REGRET_MAX));
    let text = format!("Undecided where what is open of the regret hides whether it is more than {limit}.");
    let columns = ["group", "fastest, measured", "auto, regret", ""];
    let mut table =
        Table::new(format!("Where `auto` is more than {limit} slower than the fastest method"), text, &columns);
    table.rows.extend(groups.iter().filter(|group| group.workers > 1).filter_map(|group| {
        let (fastest, regret) = (group.fastest()?, group.of_auto().filter(|regret| regret.value > REGRET_MAX)?);
        let verdict = if regret.is_small().is_some() { "**missed**" } else { "**undecided**" };
        Some(vec![group.name.to_owned(), fastest.method.clone(), regret.in_words(), verdict.to_owned()])
    }));
    table
}

fn left_out_table(left_out: &[Skipped]) -> Table {
    let mut table =
        Table::new("Groups that are not in the mean, or count as another page has them", "", &["group", "why"]);
    table.rows = left_out.iter().map(|(group, why)| vec![group.clone(), why.clone()]).collect();
    table
}

#[cfg(test)]
mod tests {
    use super::super::judge::samples::outcome;
    use super::*;

    /// On a network whose fastest method has 100, another one 80 and the others 50 samples/s, `auto` has so many; all are predicted to
    /// have 4 % more.
    fn group(place: Place, name: &str, auto: f64) -> Vec<Outcome> {
        let rates = [100.0, 80.0].into_iter().chain([50.0; METHODS.len() - 2]).chain([auto]);
        let cells = METHODS.into_iter().chain([AUTO]).zip(rates);
        cells.map(|(method, rate)| Outcome { place, ..outcome(name, method, 1.04 * rate, rate) }).collect()
    }

    fn text(part: &str, outcomes: &[Outcome]) -> String {
        let machine = json!({"processor": "Some CPU", "cores": 2});
        let commit = json!({"id": "0a", "changed": false});
        let circumstances = json!({"part": part, "date": "2026-11-26", "commit": commit, "machine": machine});
        json!({"circumstances": circumstances, "measured": {"outcomes": outcomes}}).to_string()
    }

    fn page(name: &str, outcomes: &[Outcome]) -> Page {
        let Contents { circumstances, measured } = parse(&text("prediction", outcomes)).expect("a page");
        Page { name: name.to_owned(), made: circumstances, outcomes: measured.outcomes }
    }

    fn table<'a>(findings: &'a Findings, title: &str) -> &'a [Vec<String>] {
        let found = findings.tables.iter().find(|table| table.title.starts_with(title));
        &found.expect("there is such a table").rows
    }

    #[test]
    fn pages_of_another_kind_and_empty_ones_are_refused() {
        let refused = |text: &str| parse(text).err().unwrap_or_default();
        assert_eq!(refused(" \n"), "it is empty");
        assert!(refused("{\"circumstances\"").starts_with("EOF while parsing"));
        assert_eq!(refused("[1, 2]"), "it is no page of `cargo xtask study`");
        let another = "its part is tuning, and only pages of `study --part prediction` can be joined";
        assert_eq!(refused(&text("tuning", &[])), another);
        assert_eq!(refused(&text("prediction", &[])), "it has no cells: nothing was measured");
        let failed = Page::read(Path::new("/nowhere/study-prediction.json")).err().map(|error| error.to_string());
        assert!(failed.is_some_and(|error| error.starts_with("/nowhere/study-prediction.json: ")));
        let mut elsewhere = page("second", &group(Place::Lab, "a", 99.0));
        elsewhere.made.machine["processor"] = "Another CPU".into();
        let pages = [page("first", &group(Place::Lab, "a", 99.0)), elsewhere];
        let different = machine(&pages).err().map(|error| error.to_string());
        assert_eq!(different.as_deref(), Some("first and second were measured on different machines"));
    }

    /// Pages of programs before intervals, rounds and decisions were kept are read, too.
    #[test]
    fn pages_of_older_programs_are_read() {
        let mut older: Value = serde_json::from_str(&text("prediction", &group(Place::Lab, "a", 99.0))).expect("JSON");
        for cell in older["measured"]["outcomes"].as_array_mut().expect("cells") {
            for later in ["interval", "rounds"] {
                cell.as_object_mut().expect("a cell").remove(later).expect("it is there");
            }
        }
        let cells = parse(&older.to_string()).expect("a page").measured.outcomes;
        assert_eq!((cells.len(), in_interval(cells.iter())), (8, (0, 0)));
        let [first, ..] = &cells[..] else { panic!("no cell") };
        assert_eq!((first.measured, first.predicted, first.rounds.len()), (Some(100.0), Some(104.0), 0));
    }

    /// `auto` is 1 % slower than the fastest method in one group and 3 % in the other; what else there is is not in the mean. The method
    /// that is the fastest in both is less slow; the others are slower by 20 and 50 %.
    #[test]
    fn groups_of_all_pages_are_judged_together() {
        let mut of_one = group(Place::Emulated, "alone", 99.0);
        of_one.iter_mut().for_each(|cell| cell.workers = 1);
        let mut lacking = group(Place::Emulated, "lacking", 99.0);
        lacking.remove(0);
        lacking[0].limited = Some("its links were slower".to_owned());
        lacking[1].measured = None;
        let emulated = [group(Place::Emulated, "a", 60.0), of_one, lacking].concat();
        let pages = [
            page("emulated", &emulated),
            page("lab", &group(Place::Lab, "b", 97.0)),
            page("again", &group(Place::Emulated, "a", 99.0)),
        ];
        let found = findings(&pages);
        let left_out = [
            ["a", "counts as again has it"],
            ["alone", "one worker sends nothing"],
            ["lacking", "no bsp-ps, the processors limited bsp-a2a, wfbp-ps was not measured"],
        ];
        assert_eq!(table(&found, "Groups that are not"), left_out.map(|row| row.map(str::to_owned).to_vec()));
        let counted = [
            ["emulated networks", "23", "3", "1"],
            ["lab, 1 Gbit/s by the kernel", "8", "1", "1"],
            ["all", "31", "4", "2"],
        ];
        assert_eq!(table(&found, "Cells and groups"), counted.map(|row| row.map(str::to_owned).to_vec()));
        let regrets = table(&found, "Regret, mean over groups");
        // Of two groups the quantile is 12.706, and 0.02 / √2 is how they scatter.
        assert_eq!(regrets[0][..2], ["auto", "2.00 ± 12.71 %"]);
        let expected = ["bsp-ps", "0.00 ± 0.00 %", "2.00 %", "± 12.71 %", "± 0.00 %", "0 of 2", "**undecided**"];
        assert_eq!(regrets[1], expected);
        assert_eq!(regrets[2][..6], ["bsp-a2a", "20.00 ± 0.00 %", "-18.00 %", "± 12.71 %", "± 0.00 %", "2 of 2"]);
        assert_eq!((regrets[2][6].as_str(), regrets.len()), ("faster", 8));
        assert_eq!(table(&found, "Where `auto` is more than 2.0 %"), [["b", "bsp-ps", "3.0 %", "**missed**"]]);
        let target = |case: &str| found.targets.iter().find(|target| target.case == case).expect("a target");
        let (each, mean, error) = (target("auto, each group"), target("auto, mean over groups"), target("all"));
        assert_eq!((each.met, each.found.as_str()), (Some(false), "so in 2 of 3, not in 1, undecided in 0"));
        let apart = "2.00 %, and the best fixed one, bsp-ps, 0.00 %, apart 2.00 ± 12.71 % (2 groups)";
        assert_eq!((mean.met, mean.found.as_str()), (None, apart));
        assert_eq!((error.met, error.found.as_str()), (Some(true), "0.040"));
        assert_eq!(found.measured["groups"][1]["group"], "a");
        assert_eq!(table(&found, "Pages")[1][1..], ["2026-11-26", "0a", "8", "8 of 8, 100.0 %"]);
    }
}
