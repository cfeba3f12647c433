//! Where the time of an iteration goes: computation, and communication that nothing hides.

use crate::bench::{Panel, Row};
use paceline_chart::{BarRow, Block, RowChart, Segment};

/// What the marks in the chart mean.
pub const LEGEND: &str = "Length: milliseconds of an iteration. Grey: computation and what it hides; orange, hatched: \
    waiting for communication.";

/// The chart of a panel.
pub fn chart(panel: &Panel) -> RowChart {
    let rows = panel.groups.iter().flat_map(|group| &group.rows);
    let longest = rows.filter_map(|row| row.result.as_ref()).map(|result| result.iteration_s).fold(0.0, f64::max);
    let block = |group: &crate::bench::Group| Block {
        title: super::bars::title(group),
        subtitle: "milliseconds per iteration".to_owned(),
        rows: group.rows.iter().map(bar).collect(),
        reference: None,
    };
    RowChart { blocks: panel.groups.iter().map(block).collect(), max: longest * 1e3 }
}

fn bar(row: &Row) -> BarRow {
    let label = row.method.clone();
    let Some(result) = &row.result else {
        return BarRow {
            label,
            best: false,
            segments: Vec::new(),
            error: None,
            expected: None,
            value: "failed".to_owned(),
        };
    };
    let exposed = 1e3 * result.exposed_communication_s.min(result.iteration_s);
    let other = 1e3 * result.iteration_s - exposed;
    let segment = |length, class, hatched, what: &str| {
        let title = format!("{}: {what} {length:.2} ms", row.method);
        Segment { length, class, hatched, title }
    };
    BarRow {
        label,
        best: false,
        segments: vec![segment(other, "compute", false, "computation"), segment(exposed, "exposed", true, "waiting")],
        error: None,
        expected: None,
        value: format!("{:.1} ({:.0} %)", 1e3 * result.iteration_s, 100.0 * result.exposed_share),
    }
}
