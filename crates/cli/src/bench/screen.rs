//! What `bench` shows: the plan, progress on a terminal, a table for each group.

use std::io::{self, Write};
use std::path::Path;

use comfy_table::{Cell as TableCell, CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use paceline_train::CellRun;

use super::arguments::BenchArguments;
use super::budget::{Effort, estimate};
use super::cell::Cell;
use super::conduct::Watcher;
use super::placement::Placement;
use super::predicted::{Choice, Errors};
use super::store::RunRecord;
use super::study::Study;
use super::summary::{Group, Panel, Row};
use crate::failure::{Failure, unless_closed};
use crate::load::{busy_warning, load_averages};

/// Follows a study. The bar is on standard error, and only if that is a terminal.
pub struct Screen {
    bar: ProgressBar,
    runs: u64,
}

impl Screen {
    /// Says what is going to happen.
    ///
    /// # Errors
    /// Standard output could not be written to.
    pub fn start(study: &Study, database: &Path, resumed: bool) -> Result<Screen, Failure> {
        let bar = ProgressBar::new(
            study.panels.iter().map(|panel| panel.cells.len()).sum::<usize>() as u64 * study.protocol.runs() as u64,
        );
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {msg} [{elapsed}]") {
            bar.set_style(style);
        }
        unless_closed(write_plan(study, database, resumed, &mut io::stdout().lock()))?;
        if let Some(warning) = busy_warning(&load_averages()) {
            eprintln!("paceline: {warning}");
        }
        Ok(Screen { bar, runs: 0 })
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Watcher for Screen {
    fn begins(&mut self, cell: &Cell, effort: &Effort, left_s: f64) {
        let left = if left_s.is_finite() { format!(", {:.0} s left", left_s.max(0.0)) } else { String::new() };
        let Effort { warm_up, at_least, at_most, .. } = effort;
        let measured = if at_least == at_most { at_most.to_string() } else { format!("{at_least} to {at_most}") };
        self.bar.set_message(format!("{cell}: {warm_up} + {measured} iterations{left}"));
    }

    fn repeats(&mut self, cell: &Cell, number: usize, why: &str) {
        self.bar.suspend(|| eprintln!("paceline: run {number} of {cell} is repeated: {why}"));
    }

    fn ended(&mut self, cell: &Cell, run: Option<&RunRecord>) {
        self.runs += 1;
        self.bar.set_position(self.runs);
        let Some(RunRecord { number, outcome, .. }) = run else { return };
        match outcome {
            Err(why) => self.bar.suspend(|| eprintln!("paceline: run {number} of {cell} failed: {why}")),
            Ok(CellRun { decision, abandoned, .. }) => {
                for decision in abandoned.iter().chain(decision) {
                    let outcome = decision.outcome().map_or_else(String::new, |outcome| format!("; {outcome}"));
                    self.bar.suspend(|| eprintln!("paceline: run {number} of {cell}: {decision}{outcome}"));
                }
            }
        }
    }
}

fn write_plan(study: &Study, database: &Path, resumed: bool, out: &mut dyn Write) -> io::Result<()> {
    for panel in &study.panels {
        let (mut methods, mut workers) = (Vec::new(), Vec::new());
        for planned in &panel.cells {
            if !methods.contains(&&planned.cell.method) {
                methods.push(&planned.cell.method);
            }
            if !workers.contains(&planned.cell.workers) {
                workers.push(planned.cell.workers);
            }
        }
        let mut labels = panel.setting.labels();
        labels.extend(study.placement.as_ref().map(Placement::label));
        let labels = if labels.is_empty() { "computed here".to_owned() } else { labels.join(", ") };
        let methods: Vec<&str> = methods.into_iter().map(String::as_str).collect();
        writeln!(out, "{} ({labels})", panel.setting.title(study.placement.as_ref()))?;
        writeln!(out, "  {} cells: {} × {workers:?} workers", panel.cells.len(), methods.join(", "))?;
        if let Some(why) = &panel.slowed {
            writeln!(out, "  {why}")?;
        }
    }
    for words in &study.fixed {
        writeln!(out, "{words}")?;
    }
    if !study.spared.is_empty() {
        let spared = study.spared.join(", ");
        writeln!(out, "without {spared} in the cluster in a box, to end in time; --budget SECONDS brings all back")?;
    }
    let paces: Vec<_> = study.panels.iter().flat_map(|panel| &panel.cells).map(|planned| planned.pace).collect();
    let about = estimate(&study.protocol, &paces);
    let goes_on = if resumed { "; goes on with what is there" } else { "" };
    writeln!(out, "{}; about {}; runs are kept in {}{goes_on}\n", study.protocol, in_words(about), database.display())
}

/// A duration for people.
fn in_words(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 100.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}

/// The results, a table for each number of workers.
///
/// # Errors
/// The writer's.
pub fn tables(panels: &[Panel], out: &mut dyn Write) -> io::Result<()> {
    for panel in panels {
        writeln!(out, "{}", panel.labelled_title())?;
        if let Some(baseline) = &panel.baseline {
            writeln!(out, "speedup 1 = {:.1} samples/s, {}", baseline.samples_per_s, baseline.source)?;
        }
        for group in &panel.groups {
            let shared = group.labels.iter().map(|label| format!(" ({label})")).collect::<String>();
            writeln!(out, "\n{} worker{}{shared}", group.workers, if group.workers == 1 { "" } else { "s" })?;
            writeln!(out, "{}", table(group))?;
            writeln!(out, "{}", group.verdict.headline())?;
            if !group.reason.is_empty() {
                writeln!(out, "  {}", group.reason)?;
            }
            if let Some(choice) = group.choice.as_ref().map(Choice::in_words) {
                writeln!(out, "  {choice}")?;
            }
            for (doubt, methods) in doubts(group) {
                writeln!(out, "  * extrapolated, {}: {doubt}", methods.join(", "))?;
            }
            for row in &group.rows {
                let unpredicted = row.not_predicted.iter().map(|why| format!("no prediction: {why}"));
                let mut troubles = row.troubles(&panel.setting).chain(unpredicted);
                troubles.try_for_each(|what| writeln!(out, "  {}: {what}", row.method))?;
                if let Some(tuning) = row.result.as_ref().and_then(|result| result.tuning.as_ref()) {
                    writeln!(out, "  {}: {tuning}", row.method)?;
                }
                if let Some(followed) = row.result.as_ref().and_then(|result| result.followed.as_ref()) {
                    writeln!(out, "  {}: {followed}", row.method)?;
                }
            }
        }
        writeln!(out)?;
    }
    match Errors::of_panels(panels) {
        Some(errors) => writeln!(out, "{}\n", errors.in_words()),
        None => Ok(()),
    }
}

/// Why predictions of the table leave what was measured: each reason once, with its methods.
fn doubts(group: &Group) -> Vec<(&str, Vec<&str>)> {
    let mut doubts: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in group.rows.iter().filter(|row| row.result.is_some()) {
        for doubt in row.predicted.iter().flat_map(|predicted| &predicted.extrapolated) {
            match doubts.iter_mut().find(|(known, _)| known == doubt) {
                Some((_, methods)) => methods.push(&row.method),
                None => doubts.push((doubt, vec![row.method.as_str()])),
            }
        }
    }
    doubts
}

fn table(group: &Group) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "method",
        "samples/s",
        "± std",
        "predicted",
        "off",
        "speedup",
        "efficiency",
        "exposed",
        "MB sent",
        "messages",
        "",
    ]);
    for row in &group.rows {
        table.add_row(cells(row, group));
    }
    for column in table.column_iter_mut().skip(1).take(9) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn cells(row: &Row, group: &Group) -> Vec<TableCell> {
    let Some(result) = &row.result else { return vec![TableCell::new(&row.method), TableCell::new("failed")] };
    let optional = |value: Option<f64>, text: fn(f64) -> String| value.map_or_else(|| "–".to_owned(), text);
    let mark = match (group.verdict.is_among_the_best(&row.method), &group.verdict) {
        (true, super::Verdict::Winner { .. }) => "wins",
        (true, _) => "tie",
        _ => "",
    };
    let predicted = row.predicted.as_ref().map(|predicted| {
        let mark = if predicted.extrapolated.is_empty() { "" } else { " *" };
        format!("{:.1}{mark}", predicted.samples_per_s)
    });
    let texts = [
        row.method.clone(),
        format!("{:.1}", result.samples_per_s.mean),
        optional(result.samples_per_s.std, |std| format!("{std:.1}")),
        predicted.unwrap_or_else(|| "–".to_owned()),
        optional(row.prediction_error, |error| format!("{:+.1} %", 100.0 * error)),
        optional(result.speedup, |speedup| format!("{speedup:.2}×")),
        optional(result.efficiency, |efficiency| format!("{:.0} %", 100.0 * efficiency)),
        format!("{:.1} %", 100.0 * result.exposed_share),
        format!("{:.2}", result.bytes_per_iteration / 1e6),
        format!("{:.0}", result.messages_per_iteration),
        mark.to_owned(),
    ];
    texts.into_iter().map(TableCell::new).collect()
}

/// Where the files are.
///
/// # Errors
/// The writer's.
pub fn paths(arguments: &BenchArguments, out: &mut dyn Write) -> io::Result<()> {
    let others = [&arguments.json, &arguments.csv, &arguments.trace].into_iter().flatten();
    for path in [&arguments.report].into_iter().chain(others) {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        writeln!(out, "{}", path.display())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::arguments::BenchArguments;
    use super::super::catalogue::samples::catalogue;
    use super::super::predicted::samples::predict;
    use super::super::store::Occasion;
    use super::super::study::{Place, plan};
    use super::super::summary::{panels, samples};

    #[test]
    fn the_plan_says_what_stays_why_it_is_slowed_and_what_it_goes_without() {
        let (methods, place) = (paceline_strategy::Registry::built_in(), Place { cores: 1, launched: None });
        let arguments = BenchArguments { workers: vec![1, 2, 4], ..BenchArguments::default() };
        let study = plan(&arguments, &catalogue(&methods), place).expect("it makes sense");
        let mut out = Vec::new();
        super::write_plan(&study, Path::new("runs.db"), false, &mut out).expect("memory takes everything");
        let text = String::from_utf8(out).expect("text");
        for words in [
            "--workers is for this machine alone: the cluster in a box keeps its 8",
            "emulated: 10GbE, dilated 6×)",
            "  dilated 6×, as 8 workers on 1 core send, receive and add 102 MB each",
            "without bytescheduler-a2a, bsp-a2a, wfbp-a2a in the cluster in a box, to end in time; --budget SECONDS",
        ] {
            assert!(text.contains(words), "no `{words}` in\n{text}");
        }
    }

    #[test]
    fn tables_say_what_was_predicted_and_how_far_it_is_off() {
        let mut out = Vec::new();
        let mut panels = panels(&samples::study(), 2);
        predict(&mut panels, 1.05);
        panels[0].groups[0].rows[0].predicted = None;
        panels[0].groups[0].rows[0].prediction_error = None;
        panels[0].groups[0].rows[0].not_predicted = Some("nobody knows its links".to_owned());
        let rows = &mut panels[1].groups[0].rows;
        for (row, reasons) in rows.iter_mut().zip([&["few hosts"][..], &["few hosts", "a large batch"], &[], &[]]) {
            let predicted = row.predicted.as_mut().expect("all were predicted");
            predicted.extrapolated = reasons.iter().map(|reason| reason.to_string()).collect();
        }
        let marked: Vec<String> = rows
            .iter()
            .map(|row| row.predicted.as_ref().map_or_else(String::new, |one| format!("{:.1} *", one.samples_per_s)))
            .collect();
        super::tables(&panels, &mut out).expect("memory takes everything");
        let text = String::from_utf8(out).expect("text");
        for words in [
            "predicted",
            "+5.0 %",
            "  the predictions choose bytescheduler-ps, which was the fastest",
            "bsp-a2a: no prediction: nobody knows its links",
            "predictions are off by 5.0 % (the median of 7 cells)",
            "  * extrapolated, bsp-a2a, bsp-ps: few hosts\n",
            "  * extrapolated, bsp-ps: a large batch\n",
        ] {
            assert!(text.contains(words), "no `{words}` in\n{text}");
        }
        assert_eq!([0, 1, 2, 3].map(|row: usize| text.contains(&marked[row])), [true, true, false, false], "{text}");
    }

    #[test]
    fn tables_say_numbers_winner_reason_and_failures() {
        let mut out = Vec::new();
        let mut panels = panels(&samples::study(), 2);
        panels[0].groups[0].rows[0].occasions = vec![Occasion { repeats: 2, ..Occasion::default() }];
        super::tables(&panels, &mut out).expect("memory takes everything");
        let text = String::from_utf8(out).expect("text");
        for words in [
            "resnet50, local batch 64, 10GbE, 4 workers per host (replayed: rtx2080ti, emulated: 10GbE)",
            "speedup 1 = 253.1 samples/s, one device, by the profile",
            "bytescheduler-ps wins, 11.6 % ahead of mg-wfbp",
            "tie: ",
            "wfbp-ps: run 3: rank 1 was killed by SIGKILL",
            ": 2 runs were repeated, because their processor was late",
        ] {
            assert!(text.contains(words), "no `{words}` in\n{text}");
        }
        // However wide its columns are.
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        for row in [
            "method samples/s ± std predicted off speedup efficiency exposed MB sent messages",
            "bytescheduler-ps 1903.4 7.1 – – 7.52× 94 % 25.0 % 1.00 10 wins",
        ] {
            assert!(lines.iter().any(|line| line == row), "no row `{row}` in\n{text}");
        }
    }
}
