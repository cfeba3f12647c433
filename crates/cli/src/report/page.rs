//! The page: what the template is filled with.

use minijinja::Environment;
use minijinja::value::Serde;
use serde::Serialize;

use super::Report;
use super::bars::{self, number};
use super::breakdown;
use super::findings::{Finding, findings};
use super::prediction::PredictionView;
use super::survey::{self, SurveyRow};
use super::timeline::{self, draw, end_s};
use crate::bench::worlds::Setting;
use crate::bench::{Group, Panel, Row, RowResult, Verdict};
use crate::date::date;
use crate::load::StudyLoad;
use crate::shell::command_line;
use paceline_chart::{NARROW, RowChart, STYLE, Svg, WIDE};
use paceline_train::{Lane, Process, Timeline};

/// Lays the page out.
///
/// # Errors
/// The template is wrong: a bug.
pub fn render(reports: &[Report]) -> Result<String, minijinja::Error> {
    let mut environment = Environment::new();
    // The names end in `.html`, so that what users named is escaped.
    environment.add_template("report.html", include_str!("templates/report.html"))?;
    environment.add_template("panel.html", include_str!("templates/panel.html"))?;
    environment.add_template("prediction.html", include_str!("templates/prediction.html"))?;
    let panels: Vec<Panel> = reports.iter().flat_map(|report| report.panels.iter().cloned()).collect();
    let page = Page {
        style: include_str!("templates/style.css"),
        chart_style: STYLE,
        columns: COLUMNS,
        studies: reports.iter().map(StudyView::of).collect(),
        summary: panels.iter().flat_map(summary).collect(),
        panels: panels.iter().enumerate().map(|(index, panel)| PanelView::of(panel, index)).collect(),
        bars_legend: bars::LEGEND,
        breakdown_legend: breakdown::LEGEND,
        timeline_legend: timeline::LEGEND,
        prediction: PredictionView::of(&panels),
        findings: findings(reports),
        survey: survey::rows(&panels),
    };
    environment.get_template("report.html")?.render(Serde(page))
}

/// What the template is filled with.
#[derive(Serialize)]
struct Page {
    style: &'static str,
    chart_style: &'static str,
    columns: [&'static str; 14],
    studies: Vec<StudyView>,
    summary: Vec<Headline>,
    panels: Vec<PanelView>,
    bars_legend: &'static str,
    breakdown_legend: &'static str,
    timeline_legend: &'static str,
    /// None where nothing was predicted.
    prediction: Option<PredictionView>,
    findings: Vec<Finding>,
    survey: Vec<SurveyRow>,
}

/// The bar charts of all panels as a file of their own, each with the panel's name above it.
pub fn chart_alone(panels: &[Panel]) -> String {
    const MARGIN: f64 = 16.0;
    let mut all = Svg::new(WIDE + 2.0 * MARGIN);
    for panel in panels {
        let mut top = all.height() + 2.0 * MARGIN;
        all.text(MARGIN, top, "head", &format!("{}: samples/s", panel.title()));
        if !panel.labels.is_empty() {
            top += 18.0;
            all.text(MARGIN, top, "", &panel.labels.join(", "));
        }
        all.place([MARGIN, top + 12.0], &bars::chart(panel).draw(WIDE));
    }
    all.text(MARGIN, all.height() + 26.0, "", bars::SHORT_LEGEND);
    all.reach(all.height() + 40.0);
    all.alone("Throughput in samples/s by method and workers", "")
}

/// What a study was.
#[derive(Serialize)]
struct StudyView {
    started: String,
    command: String,
    version: String,
    protocol: String,
    processor: String,
    cores: usize,
    memory_gib: String,
    system: String,
    kernel: String,
    /// Of a launcher; empty: that machine alone.
    hosts: String,
    /// What else the machine had to do; None: nobody looked.
    load: Option<String>,
}

impl StudyView {
    fn of(report: &Report) -> StudyView {
        let (study, machine) = (&report.study, &report.study.machine);
        let rows = report.panels.iter().flat_map(|panel| &panel.groups).flat_map(|group| &group.rows);
        let runs = rows.flat_map(|row| &row.occasions).map(|occasion| (occasion.ended, occasion.load));
        StudyView {
            started: date(study.started),
            command: command_line(&study.command),
            version: study.version.clone(),
            protocol: study.protocol.clone(),
            processor: machine.processor.clone(),
            cores: machine.cores,
            memory_gib: format!("{:.0}", machine.memory_bytes as f64 / f64::from(1 << 30)),
            system: machine.system.clone(),
            kernel: format!("{} {}", machine.kernel, machine.architecture),
            hosts: study.placement.as_ref().map(ToString::to_string).unwrap_or_default(),
            load: StudyLoad::of(runs).map(|load| load.in_words()),
        }
    }
}

/// A verdict at the top of the page.
#[derive(Serialize)]
struct Headline {
    place: String,
    labels: Vec<String>,
    words: String,
}

fn summary(panel: &Panel) -> Vec<Headline> {
    let headline = |group: &Group| Headline {
        place: format!("{}, {} workers", panel.title(), group.workers),
        labels: panel.labels.iter().chain(&group.labels).cloned().collect(),
        words: group.verdict.headline(),
    };
    panel.groups.iter().filter(|group| group.workers > 1).map(headline).collect()
}

/// A panel.
#[derive(Serialize)]
struct PanelView {
    id: String,
    title: String,
    labels: Vec<String>,
    baseline: Option<String>,
    model: String,
    bars: Figure,
    breakdown: Figure,
    groups: Vec<GroupView>,
    timelines: Vec<TimelineView>,
    timeline_workers: usize,
}

/// A chart in both widths.
#[derive(Serialize)]
pub struct Figure {
    /// For a page.
    pub wide: String,
    /// For a telephone.
    pub narrow: String,
}

impl Figure {
    /// Of a chart, which `label` names.
    pub fn of(chart: &RowChart, label: &str) -> Figure {
        Figure::drawn(&|width| chart.draw(width), label)
    }

    /// Of what is drawn for a width.
    pub fn drawn(chart: &dyn Fn(f64) -> Svg, label: &str) -> Figure {
        let draw = |width, class| chart(width).in_page(class, label);
        Figure { wide: draw(WIDE, "wide"), narrow: draw(NARROW, "narrow") }
    }
}

#[derive(Serialize)]
struct GroupView {
    workers: usize,
    labels: Vec<String>,
    verdict: String,
    kind: &'static str,
    reason: String,
    noise: String,
    c2c: String,
    rows: Vec<RowView>,
    failures: Vec<String>,
}

#[derive(Serialize)]
struct RowView {
    method: String,
    mark: &'static str,
    strategy: String,
    cells: Vec<String>,
}

/// The columns of a group's table, after the method.
const COLUMNS: [&str; 14] = [
    "samples/s",
    "± std",
    "95 %",
    "speedup",
    "efficiency",
    "ms",
    "compute ms",
    "exposed ms",
    "exposed",
    "late",
    "MB sent",
    "messages",
    "operations",
    "runs × iterations",
];

#[derive(Serialize)]
struct TimelineView {
    method: String,
    figure: Figure,
    lanes: Vec<LaneView>,
    missing: Option<String>,
}

#[derive(Serialize)]
struct LaneView {
    name: String,
    pieces: usize,
    first_ms: String,
    last_ms: String,
    busy_ms: String,
}

impl PanelView {
    fn of(panel: &Panel, index: usize) -> PanelView {
        let setting = panel.title();
        let intensity = panel.intensity.map(|value| intensity(value, &panel.setting.model)).unwrap_or_default();
        let largest = panel.groups.last();
        PanelView {
            id: format!("panel-{index}"),
            title: setting.clone(),
            labels: panel.labels.clone(),
            baseline: panel
                .baseline
                .as_ref()
                .map(|base| format!("{} samples/s, {}", number(base.samples_per_s), base.source)),
            model: format!("{} parameters{intensity}", thousands(panel.parameters)),
            bars: Figure::of(&bars::chart(panel), &format!("Throughput by method and workers: {setting}")),
            breakdown: Figure::of(&breakdown::chart(panel), &format!("Where the time of an iteration goes: {setting}")),
            groups: panel.groups.iter().map(|group| GroupView::of(group, &panel.setting)).collect(),
            timelines: largest.map(timelines).unwrap_or_default(),
            timeline_workers: largest.map_or(0, |group| group.workers),
        }
    }
}

/// Which intensity C2C is made of, and the study's, if it publishes another one.
fn intensity(value: f64, model: &str) -> String {
    // Shi et al., arXiv 2005.13247; docs/models.md has both.
    let published = [("resnet50", 470), ("bert-base", 249), ("bert-large", 248)];
    let published = published.iter().find(|(known, _)| *known == model);
    let published = published.map(|(_, value)| format!(" (the study publishes {value})")).unwrap_or_default();
    let digits = if value < 10.0 { 1 } else { 0 };
    format!(", intensity I = 3 · multiply-accumulates / D = {value:.digits$}{published}")
}

impl GroupView {
    fn of(group: &Group, setting: &Setting) -> GroupView {
        let kind = match group.verdict {
            Verdict::Winner { .. } => "winner",
            Verdict::Tie { .. } => "tie",
            Verdict::Undecided { .. } => "undecided",
        };
        GroupView {
            workers: group.workers,
            labels: group.labels.clone(),
            verdict: group.verdict.headline(),
            kind,
            reason: group.reason.clone(),
            noise: noise(group),
            c2c: group.c2c.map_or_else(|| "unknown".to_owned(), |c2c| format!("{c2c:.2e}")),
            rows: group.rows.iter().map(|row| RowView::of(row, &group.verdict)).collect(),
            failures: group
                .rows
                .iter()
                .flat_map(|row| row.troubles(setting).map(move |what| format!("{}, {what}", row.method)))
                .collect(),
        }
    }
}

/// How far two measurements of the same thing lay apart, and of what.
fn noise(group: &Group) -> String {
    let Some(noise) = group.noise else { return "not measured".to_owned() };
    let of = group.noise_of.as_ref().map(|method| format!(", of {method}")).unwrap_or_default();
    format!("{:.1} %{of}", 100.0 * noise)
}

impl RowView {
    fn of(row: &Row, verdict: &Verdict) -> RowView {
        let mark = match (verdict.is_among_the_best(&row.method), verdict) {
            (true, Verdict::Winner { .. }) => "★",
            (true, _) => "≈",
            _ => "",
        };
        RowView { method: row.method.clone(), mark, strategy: row.strategy.clone(), cells: cells(row) }
    }
}

fn cells(row: &Row) -> Vec<String> {
    let Some(result) = &row.result else { return vec!["failed".to_owned()] };
    let dash = || "–".to_owned();
    let optional = |value: Option<f64>, text: &dyn Fn(f64) -> String| value.map_or_else(dash, text);
    let throughput = &result.samples_per_s;
    let ms = |seconds: f64| number(1e3 * seconds);
    vec![
        number(throughput.mean),
        optional(throughput.std, &number),
        optional(throughput.half_width_95, &|half| format!("± {}", number(half))),
        optional(result.speedup, &|speedup| format!("{speedup:.2}×")),
        optional(result.efficiency, &|efficiency| format!("{:.0} %", 100.0 * efficiency)),
        ms(result.iteration_s),
        ms(result.compute_s),
        ms(result.exposed_communication_s),
        format!("{:.1} %", 100.0 * result.exposed_share),
        optional(result.late_share, &|share| format!("{:.1} %", 100.0 * share)),
        number(result.bytes_per_iteration / 1e6),
        format!("{:.0}", result.messages_per_iteration),
        result.operations.to_string(),
        runs_and_iterations(result),
    ]
}

/// `3 × 8` or `3 × 2–40`: runs, and measured iterations of each.
fn runs_and_iterations(result: &RowResult) -> String {
    let measured = || result.iterations.iter().map(|(_, measured)| *measured);
    match (measured().min(), measured().max()) {
        (Some(least), Some(most)) if least < most => format!("{} × {least}–{most}", result.samples_per_s.runs),
        (Some(each), _) => format!("{} × {each}", result.samples_per_s.runs),
        _ => result.samples_per_s.runs.to_string(),
    }
}

/// The timelines of a group, all with the same axis.
fn timelines(group: &Group) -> Vec<TimelineView> {
    let of = |row: &Row| Some((row.method.clone(), row.result.as_ref()?.timeline.clone()?));
    let all: Vec<(String, Timeline)> = group.rows.iter().filter_map(of).collect();
    let end = all.iter().map(|(_, timeline)| end_s(timeline)).fold(0.0, f64::max);
    let view = |(method, timeline): (String, Timeline)| TimelineView {
        figure: Figure::drawn(&|width| draw(&timeline, end, width), &format!("One iteration of {method}")),
        lanes: timeline
            .processes
            .iter()
            .filter(|process| process.name == "worker 0" || process.is_shard())
            .flat_map(lanes)
            .collect(),
        missing: timeline::missing(&timeline),
        method,
    };
    all.into_iter().map(view).collect()
}

/// The lanes of a worker or a shard, in numbers; none of what takes no time.
fn lanes(process: &Process) -> Vec<LaneView> {
    let view = |lane: &Lane| {
        let ms = |seconds: f64| format!("{:.2}", 1e3 * seconds);
        let (mut busy, mut reached) = (0.0, f64::NEG_INFINITY);
        for span in &lane.spans {
            // Pieces may overlap; each moment counts once.
            busy += (span.end_s - span.start_s.max(reached)).max(0.0);
            reached = reached.max(span.end_s);
        }
        LaneView {
            name: format!("{}, {}", process.name, lane.name),
            pieces: lane.spans.len(),
            first_ms: lane.spans.first().map_or_else(String::new, |span| ms(span.start_s)),
            last_ms: if lane.spans.is_empty() { String::new() } else { ms(reached) },
            busy_ms: ms(busy),
        }
    };
    process.lanes.iter().filter(|lane| lane.name != "ready").map(view).collect()
}

/// `25 557 032`.
fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests;
