//! The bar chart of throughput by method and workers, with error bars: the form of the study's Fig. 4.

use crate::bench::{Group, Panel, Row, RowResult, Verdict};
use paceline_chart::{BarRow, Block, RowChart, Segment};

/// What the marks in the chart mean.
pub const LEGEND: &str = "Length: samples/s of all workers together, error bars: one standard deviation of the runs. \
    Diamond: predicted before the first iteration. Hatched: parameter server; solid: all-to-all. ★ fastest beyond the \
    noise, ≈ tied with the fastest. Dashed: linear scaling.";

/// The same in one line.
pub const SHORT_LEGEND: &str = "Error bars: one standard deviation. ◇ predicted. Hatched: parameter server; \
    solid: all-to-all. ★ fastest beyond the noise, ≈ tied. Dashed: linear scaling.";

/// The chart of a panel.
pub fn chart(panel: &Panel) -> RowChart {
    let rows = || panel.groups.iter().flat_map(|group| &group.rows).filter(|row| row.result.is_some());
    let measured = rows().filter_map(|row| row.result.as_ref()).map(|result| &result.samples_per_s);
    let measured = measured.map(|estimate| estimate.mean + estimate.std.unwrap_or(0.0));
    let reach = measured.chain(rows().filter_map(expected));
    RowChart { max: reach.fold(0.0, f64::max), blocks: panel.groups.iter().map(|group| block(group, panel)).collect() }
}

fn block(group: &Group, panel: &Panel) -> Block {
    let linear = panel.baseline.as_ref().map(|baseline| baseline.samples_per_s * group.workers as f64);
    Block {
        title: title(group),
        subtitle: best_speedup(panel, group),
        rows: group.rows.iter().map(|row| bar(row, &group.verdict)).collect(),
        reference: linear,
    }
}

/// The number of workers, and that they share cores if they do.
pub fn title(group: &Group) -> String {
    let s = if group.workers == 1 { "" } else { "s" };
    group.labels.first().cloned().unwrap_or_else(|| format!("{} worker{s}", group.workers))
}

/// The best speedup, which stands on top, of the methods that the processors have not limited.
fn best_speedup(panel: &Panel, group: &Group) -> String {
    let counts = |result: &&RowResult| result.limited().is_none() && !panel.is_crowded(group);
    let speedups = group.rows.iter().filter_map(|row| Some((row, row.result.as_ref().filter(counts)?.speedup?)));
    match speedups.max_by(|a, b| a.1.total_cmp(&b.1)) {
        Some((row, speedup)) => format!("best speedup {speedup:.2}× ({})", row.method),
        None => String::new(),
    }
}

fn bar(row: &Row, verdict: &Verdict) -> BarRow {
    let best = verdict.is_among_the_best(&row.method);
    let mark = match (best, verdict) {
        (true, Verdict::Winner { .. }) => "★ ",
        (true, _) => "≈ ",
        _ => "",
    };
    let label = format!("{mark}{}", row.method);
    let Some(result) = &row.result else {
        return BarRow { label, best, segments: Vec::new(), error: None, expected: None, value: "failed".to_owned() };
    };
    let estimate = &result.samples_per_s;
    let value = match estimate.std {
        Some(std) => format!("{} ± {}", number(estimate.mean), number(std)),
        None => number(estimate.mean),
    };
    let title = format!("{}: {value} samples/s", row.method);
    let segment = Segment { length: estimate.mean, class: colour(&row.method), hatched: row.shards > 0, title };
    BarRow { label, best, segments: vec![segment], error: estimate.std, expected: expected(row), value }
}

/// What was predicted, in samples/s.
fn expected(row: &Row) -> Option<f64> {
    row.predicted.as_ref().map(|predicted| predicted.samples_per_s)
}

/// With three digits at least.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The colour of a method: that of its schedule.
pub fn colour(method: &str) -> &'static str {
    let method = method.strip_prefix("study-").unwrap_or(method);
    let families = [
        ("bsp", "bsp"),
        ("wfbp", "wfbp"),
        ("mg-wfbp", "mg"),
        ("bytescheduler", "byte"),
        ("ddp", "ddp"),
        ("fusion", "ddp"),
    ];
    families.iter().find(|(prefix, _)| method.starts_with(prefix)).map_or("other", |(_, class)| class)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::sample_panels;
    use crate::bench::worlds::Compute;

    #[test]
    fn what_processors_have_limited_does_not_lead() {
        let mut panel = sample_panels().remove(1);
        let best = |panel: &Panel| best_speedup(panel, &panel.groups[0]);
        let limit = |panel: &mut Panel, method: &str| {
            let row = panel.groups[0].rows.iter_mut().find(|row| row.method == method).expect("it is there");
            let result = row.result.as_mut().expect("it ran");
            (result.processors_waiting, result.exposed_share) = (Some(0.97), 0.5);
        };
        assert!(best(&panel).ends_with("× (bytescheduler-ps)"), "{}", best(&panel));
        limit(&mut panel, "bytescheduler-ps");
        assert!(best(&panel).ends_with("× (mg-wfbp)"), "{}", best(&panel));
        panel.setting.compute = Compute::Real;
        panel.groups[0].labels.push("8 workers on 2 cores".to_owned());
        assert_eq!(best(&panel), "", "these cores had the links to carry, too");
    }
}
