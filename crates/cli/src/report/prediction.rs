//! What the page says about predictions: how far they are off, what they would have chosen and why, what `auto` chose,
//! and what if.

pub mod auto;
mod coverage;

use paceline_chart::{BarRow, Block, RowChart, Segment};
use serde::Serialize;

use super::against::{self, Mark};
use super::bars::{colour, number, title};
use super::curves;
use super::page::Figure;
use crate::bench::{Curve, CurveLine, Errors, Group, Outlook, Panel, Row, errors_by_method, rows_that_count};
use auto::AutoView;
use coverage::{Coverage, is_within};

/// The part of the page.
#[derive(Serialize)]
pub struct PredictionView {
    summary: String,
    coverage: Option<String>,
    coverage_legend: &'static str,
    against: Figure,
    against_legend: &'static str,
    by_method: Figure,
    methods: Vec<MethodView>,
    groups: Vec<GroupView>,
    choices: Vec<ChoiceView>,
    autos: Vec<AutoView>,
    autos_legend: &'static str,
    outlooks: Vec<OutlookView>,
    curves_legend: &'static str,
}

/// How far the predictions of a method are off.
#[derive(Serialize)]
struct MethodView {
    method: String,
    cells: usize,
    median: String,
    bias: String,
    worst: String,
    within: String,
}

/// Cells of as many workers in the same place.
#[derive(Serialize)]
struct GroupView {
    place: String,
    cells: Vec<CellView>,
}

/// A cell that was predicted.
#[derive(Serialize)]
struct CellView {
    method: String,
    numbers: Vec<String>,
    remarks: String,
}

/// What the predictions would have chosen.
#[derive(Serialize)]
struct ChoiceView {
    place: String,
    method: String,
    fastest: String,
    regret: String,
}

/// What lies beyond the cells of a panel.
#[derive(Serialize)]
struct OutlookView {
    place: String,
    workers: usize,
    strategy: String,
    samples_per_s: String,
    reasons: Vec<String>,
    curves: Vec<CurveView>,
}

#[derive(Serialize)]
struct CurveView {
    what: String,
    figure: Figure,
    points: Vec<PointView>,
    lines: Vec<LineView>,
}

#[derive(Serialize)]
struct PointView {
    name: String,
    today: bool,
}

#[derive(Serialize)]
struct LineView {
    method: String,
    numbers: Vec<String>,
}

impl PredictionView {
    /// Of studies of which some cell was predicted, or had `auto` to choose.
    pub fn of(panels: &[Panel]) -> Option<PredictionView> {
        let groups: Vec<GroupView> = panels.iter().flat_map(groups_of).collect();
        let autos: Vec<AutoView> = panels.iter().flat_map(AutoView::all).collect();
        if groups.is_empty() && autos.is_empty() {
            return None;
        }
        let summary = match Errors::of_panels(panels) {
            Some(errors) => format!(
                "{}, at most by {:.1} %; {}",
                capital(&errors.in_words()),
                100.0 * errors.worst,
                regrets(panels)
            ),
            None => "No cell that counts was both predicted and measured".to_owned(),
        };
        let marks: Vec<Mark> = panels.iter().flat_map(marks_of).collect();
        let methods = errors_by_method(panels);
        let counted = || panels.iter().flat_map(rows_that_count);
        let coverage_of = |method: &str| Coverage::of(counted().filter(|row| row.method == method));
        Some(PredictionView {
            summary,
            coverage: Coverage::of(counted()).sentence(),
            coverage_legend: coverage::LEGEND,
            against: Figure::drawn(&|width| against::draw(&marks, width), "Predicted against measured throughput"),
            against_legend: against::LEGEND,
            by_method: Figure::of(&error_chart(&methods), "Median error of the predictions by method"),
            methods: methods.iter().map(|one| MethodView::of(one, coverage_of(one.0.as_str()))).collect(),
            groups,
            choices: panels.iter().flat_map(choices_of).collect(),
            autos,
            autos_legend: auto::LEGEND,
            outlooks: panels.iter().filter_map(OutlookView::of).collect(),
            curves_legend: curves::LEGEND,
        })
    }
}

/// How often the predictions chose the fastest, and what it cost where they did not.
fn regrets(panels: &[Panel]) -> String {
    let groups = panels.iter().flat_map(|panel| &panel.groups);
    let regrets: Vec<f64> = groups.filter_map(|group| Some(group.choice.as_ref()?.regret)).collect();
    let right = regrets.iter().filter(|regret| **regret == 0.0).count();
    let mean = regrets.iter().sum::<f64>() / regrets.len().max(1) as f64;
    match regrets.len() {
        0 => "there was nothing to choose from".to_owned(),
        groups => format!(
            "by them the fastest method is chosen in {right} of {groups} groups, and one that is {:.1} % slower on average",
            100.0 * mean
        ),
    }
}

fn capital(sentence: &str) -> String {
    let mut characters = sentence.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

fn rows(panel: &Panel) -> impl Iterator<Item = (&Group, &Row)> {
    panel.groups.iter().flat_map(|group| group.rows.iter().map(move |row| (group, row)))
}

fn marks_of(panel: &Panel) -> Vec<Mark> {
    let mark = |(group, row): (&Group, &Row)| {
        let (predicted, result) = (row.predicted.as_ref()?, row.result.as_ref()?);
        let (rate, measured) = (predicted.samples_per_s, result.samples_per_s.mean);
        let beyond = !predicted.extrapolated.is_empty();
        let title = format!(
            "{}, {}: predicted {}, measured {}{}",
            place(panel, group),
            row.method,
            number(rate),
            number(measured),
            if beyond { ", extrapolated" } else { "" }
        );
        Some(Mark {
            measured,
            predicted: [predicted.samples_per_s_low, rate, predicted.samples_per_s_high],
            class: colour(&row.method),
            served: row.shards > 0,
            beyond,
            title,
        })
    };
    rows(panel).filter_map(mark).collect()
}

/// The median error of each method, in per cent.
fn error_chart(methods: &[(String, Errors)]) -> RowChart {
    let bar = |(method, errors): &(String, Errors)| {
        let median = 100.0 * errors.median;
        let value = format!("{median:.1} %");
        let title = format!("{method}: {value}");
        let segment = Segment { length: median, class: colour(method), hatched: method.contains("ps"), title };
        BarRow { label: method.clone(), best: false, segments: vec![segment], error: None, expected: None, value }
    };
    let block = Block {
        title: "median error".to_owned(),
        subtitle: "without signs".to_owned(),
        rows: methods.iter().map(bar).collect(),
        reference: None,
    };
    let most = methods.iter().map(|(_, errors)| 100.0 * errors.median).fold(0.0, f64::max);
    RowChart { blocks: vec![block], max: most }
}

impl MethodView {
    fn of((method, errors): &(String, Errors), coverage: Coverage) -> MethodView {
        let Errors { cells, median, bias, worst } = *errors;
        MethodView {
            method: method.clone(),
            cells,
            median: format!("{:.1} %", 100.0 * median),
            bias: format!("{:+.1} %", 100.0 * bias),
            worst: format!("{:.1} %", 100.0 * worst),
            within: coverage.in_words(),
        }
    }
}

/// Where a group was measured, in words, and what was not real there.
fn place(panel: &Panel, group: &Group) -> String {
    format!("{}, {}", panel.labelled_title(), title(group))
}

/// Those of which something was predicted.
fn groups_of(panel: &Panel) -> Vec<GroupView> {
    let view = |group| GroupView { place: place(panel, group), cells: cells_of(group) };
    panel.groups.iter().map(view).filter(|group| !group.cells.is_empty()).collect()
}

/// In samples per second, with a star where it lies beyond what was measured.
fn rate(samples_per_s: f64, extrapolated: bool) -> String {
    number(samples_per_s) + if extrapolated { " *" } else { "" }
}

fn cells_of(group: &Group) -> Vec<CellView> {
    let cell = |row: &Row| {
        let predicted = row.predicted.as_ref()?;
        let result = row.result.as_ref();
        let dash = || "–".to_owned();
        let interval = [predicted.samples_per_s_low, predicted.samples_per_s_high].map(number);
        let numbers = vec![
            rate(predicted.samples_per_s, !predicted.extrapolated.is_empty()),
            interval.join(" to "),
            result.map_or_else(dash, |result| number(result.samples_per_s.mean)),
            row.prediction_error.map_or_else(dash, |error| format!("{:+.1} %", 100.0 * error)),
            is_within(row).map_or("–", |within| if within { "yes" } else { "no" }).to_owned(),
            number(1e3 * predicted.iteration_s),
            result.map_or_else(dash, |result| number(1e3 * result.iteration_s)),
            number(1e3 * predicted.exposed_communication_s),
            result.map_or_else(dash, |result| number(1e3 * result.exposed_communication_s)),
        ];
        let extrapolated = predicted.extrapolated.iter().map(|doubt| format!("* extrapolated: {doubt}"));
        let remarks: Vec<String> = std::iter::once(predicted.bottleneck.clone()).chain(extrapolated).collect();
        Some(CellView { method: row.method.clone(), numbers, remarks: remarks.join("; ") })
    };
    group.rows.iter().filter_map(cell).collect()
}

fn choices_of(panel: &Panel) -> Vec<ChoiceView> {
    let choice = |group: &Group| {
        let choice = group.choice.as_ref()?;
        Some(ChoiceView {
            place: place(panel, group),
            method: choice.method.clone(),
            fastest: choice.fastest.clone(),
            regret: format!("{:.1} %", 100.0 * choice.regret),
        })
    };
    panel.groups.iter().filter_map(choice).collect()
}

impl OutlookView {
    fn of(panel: &Panel) -> Option<OutlookView> {
        let Outlook { workers, strategy, samples_per_s, reasons, curves } = panel.outlook.as_ref()?;
        let group = panel.groups.iter().find(|group| group.workers == *workers)?;
        let served = |method: &str| group.rows.iter().any(|row| row.method == method && row.shards > 0);
        let place = panel.labelled_title();
        Some(OutlookView {
            workers: *workers,
            strategy: strategy.clone(),
            samples_per_s: number(*samples_per_s),
            reasons: reasons.clone(),
            curves: curves.iter().map(|curve| CurveView::of(curve, &served, &place)).collect(),
            place,
        })
    }
}

impl CurveView {
    fn of(curve: &Curve, served: &dyn Fn(&str) -> bool, place: &str) -> CurveView {
        let points = curve.points.iter().enumerate();
        let of_point = |line: &CurveLine, point: usize, samples_per_s: Option<f64>| {
            samples_per_s.map_or_else(|| "–".to_owned(), |value| rate(value, line.is_extrapolated(point)))
        };
        CurveView {
            what: curve.what.clone(),
            figure: Figure::drawn(
                &|width| curves::draw(curve, served, width),
                &format!("Predicted throughput by {}: {place}", curve.what),
            ),
            points: points.map(|(point, name)| PointView { name: name.clone(), today: point == curve.today }).collect(),
            lines: curve
                .lines
                .iter()
                .map(|line| LineView {
                    method: line.method.clone(),
                    numbers: line
                        .samples_per_s
                        .iter()
                        .enumerate()
                        .map(|(at, found)| of_point(line, at, *found))
                        .collect(),
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{sample_panels, sample_predicted_panels};

    #[test]
    fn without_a_prediction_there_is_nothing_to_say() {
        assert!(PredictionView::of(&sample_panels()).is_none());
    }

    #[test]
    fn every_mark_and_bar_stands_in_a_table() {
        let panels = sample_predicted_panels();
        let view = PredictionView::of(&panels).expect("all were predicted");
        let cells: Vec<&CellView> = view.groups.iter().flat_map(|group| &group.cells).collect();
        assert_eq!((cells.len(), view.methods.len(), view.choices.len()), (9, 6, 3));
        assert_eq!(view.against.wide.matches("<circle").count() + view.against.wide.matches("<rect").count(), 9);
        assert!(view.summary.starts_with("Predictions are off by 5.0 %"), "{}", view.summary);
        assert!(view.summary.contains("in 3 of 3 groups"), "{}", view.summary);
        let bytescheduler = cells.iter().find(|cell| cell.method == "bytescheduler-ps").expect("it is there");
        assert_eq!(bytescheduler.numbers[3..5], ["+5.0 %", "yes"]);
        assert!(view.groups.iter().any(|group| group.place.ends_with("8 workers")), "{:?}", view.groups[0].place);
        assert_eq!((view.methods[0].bias.as_str(), view.methods[0].within.as_str()), ("+5.0 %", "2 of 2 (100 %)"));
    }

    /// Of a method, and of all.
    #[test]
    fn what_was_measured_beyond_its_interval_is_counted() {
        let mut panels = sample_predicted_panels();
        let row = &mut panels[1].groups[0].rows[0];
        row.predicted.as_mut().expect("it was predicted").samples_per_s_low = 1e6;
        let view = PredictionView::of(&panels).expect("all were predicted");
        let within = |method: &str| view.methods.iter().find(|one| one.method == method).map(|one| one.within.as_str());
        assert_eq!([within("bsp-a2a"), within("bsp-ps")], [Some("1 of 2 (50 %)"), Some("1 of 1 (100 %)")]);
        assert!(
            view.coverage.as_ref().is_some_and(|all| all.starts_with("6 of 7 cells (86 %)")),
            "{:?}",
            view.coverage
        );
    }

    #[test]
    fn what_is_extrapolated_says_so_where_it_stands() {
        let mut panels = sample_predicted_panels();
        let row = &mut panels[1].groups[0].rows[0];
        row.predicted.as_mut().expect("it was predicted").extrapolated = vec!["nobody has measured it".to_owned()];
        let view = PredictionView::of(&panels).expect("all were predicted");
        let cells: Vec<&CellView> = view.groups.iter().flat_map(|group| &group.cells).collect();
        let beyond: Vec<&&CellView> = cells.iter().filter(|cell| cell.numbers[0].ends_with(" *")).collect();
        assert_eq!(beyond.len(), 1);
        assert!(beyond[0].remarks.ends_with("; * extrapolated: nobody has measured it"), "{}", beyond[0].remarks);
        assert_eq!(view.against.wide.matches(" hollow\"").count(), 1, "{}", view.against.wide);
    }

    #[test]
    fn what_if_is_drawn_and_told_in_numbers() {
        let mut panels = sample_predicted_panels();
        let curve = curves::tests::curve();
        let mut extrapolated = curve.lines.clone();
        extrapolated[1].extrapolated = vec![false, false, true];
        panels[1].outlook = Some(Outlook {
            workers: 8,
            strategy: "sync=bsp,schedule=auto".to_owned(),
            samples_per_s: 2000.0,
            reasons: vec!["What limits it is computation".to_owned()],
            curves: vec![Curve { lines: extrapolated, ..curve }],
        });
        let view = PredictionView::of(&panels).expect("all were predicted");
        let curve = &view.outlooks[0].curves[0];
        assert_eq!(curve.lines[0].numbers, ["1.00", "2.00", "4.00"]);
        assert_eq!(curve.lines[1].numbers, ["1.50", "–", "4.00 *"]);
        assert!(curve.points[1].today && !curve.points[0].today && curve.figure.narrow.contains("<svg"));
        assert_eq!(view.outlooks[0].reasons.len(), 1);
    }
}
