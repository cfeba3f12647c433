//! A chart of horizontal bars in blocks: a block for each number of workers, a row for each method.

use crate::svg::Svg;

/// A chart; all blocks have the same scale.
pub struct RowChart {
    /// From left to right, then down.
    pub blocks: Vec<Block>,
    /// What the axis ends at.
    pub max: f64,
}

/// A number of workers.
pub struct Block {
    /// In bold.
    pub title: String,
    /// Below it.
    pub subtitle: String,
    /// From top to bottom.
    pub rows: Vec<BarRow>,
    /// A dashed line across the rows, if it lies within the scale.
    pub reference: Option<f64>,
}

/// A method.
pub struct BarRow {
    /// To the left.
    pub label: String,
    /// Is the row among the best?
    pub best: bool,
    /// One after the other; empty if there is no number.
    pub segments: Vec<Segment>,
    /// Half the length of the error bar around the end.
    pub error: Option<f64>,
    /// A diamond stands where the end was expected.
    pub expected: Option<f64>,
    /// To the right.
    pub value: String,
}

/// A piece of a bar.
pub struct Segment {
    /// In units of the scale.
    pub length: f64,
    /// Its colour.
    pub class: &'static str,
    /// Slanted lines over it.
    pub hatched: bool,
    /// Shown when it is pointed at.
    pub title: String,
}

/// How wide a chart is drawn: for a page or for a telephone.
pub const WIDE: f64 = 960.0;
/// See [`WIDE`].
pub const NARROW: f64 = 352.0;

const ROW: f64 = 22.0;
const BAR: f64 = 15.0;
const HEAD: f64 = 44.0;
const GAP: f64 = 26.0;
/// Half the height of the mark of what was expected.
const DIAMOND: f64 = 4.0;
/// Fits `≈ bytescheduler-a2a` in bold.
const LABEL: f64 = 150.0;
/// A character of a value in bold, and what lies between the end of a bar and its value: error bar, diamond, a gap.
const CHARACTER: f64 = 7.5;
const VALUE_GAP: f64 = 20.0;
/// A bar is not longer, however wide the page is.
const BAR_LENGTH_MAX: f64 = 560.0;

impl RowChart {
    /// Draws it.
    pub fn draw(&self, width: f64) -> Svg {
        // Labels and values take their place in each column, and bars must stay long enough to be compared.
        let columns = if width < 600.0 { 1 } else { self.blocks.len().clamp(1, 2) };
        let block_width = (width - GAP * (columns - 1) as f64) / columns as f64;
        let mut svg = Svg::new(width);
        let mut top = 0.0;
        for blocks in self.blocks.chunks(columns) {
            for (column, block) in blocks.iter().enumerate() {
                self.block(block, column as f64 * (block_width + GAP), top, block_width, &mut svg);
            }
            let rows = blocks.iter().map(|block| block.rows.len()).max().unwrap_or(0);
            top += HEAD + ROW * rows as f64 + GAP;
            svg.reach(top - GAP + 4.0);
        }
        svg
    }

    /// Fits the longest value, whatever its block: all have the same scale.
    fn value_width(&self) -> f64 {
        let values = self.blocks.iter().flat_map(|block| &block.rows).map(|row| row.value.chars().count());
        VALUE_GAP + CHARACTER * values.max().unwrap_or(0) as f64
    }

    fn block(&self, block: &Block, left: f64, top: f64, width: f64, svg: &mut Svg) {
        svg.text(left, top + 15.0, "head", &block.title);
        svg.text(left, top + 32.0, "", &block.subtitle);
        let start = left + LABEL;
        let length = (width - LABEL - self.value_width()).min(BAR_LENGTH_MAX);
        let x = |value: f64| start + if self.max > 0.0 { value / self.max * length } else { 0.0 };
        let (first, rows) = (top + HEAD, block.rows.len() as f64);
        for (index, row) in block.rows.iter().enumerate() {
            let y = first + ROW * index as f64;
            self.row(row, [start, y, length], svg);
        }
        svg.path(&format!("M{start:.1} {:.1}v{:.1}", first - 2.0, ROW * rows), "axis");
        if let Some(reference) = block.reference.filter(|value| *value <= self.max) {
            svg.path(&format!("M{:.1} {:.1}v{:.1}", x(reference), first - 2.0, ROW * rows), "linear");
        }
    }

    fn row(&self, row: &BarRow, [start, y, length]: [f64; 3], svg: &mut Svg) {
        let scale = if self.max > 0.0 { length / self.max } else { 0.0 };
        let (label, baseline) = (if row.best { "end best" } else { "end" }, y + BAR - 3.0);
        svg.text(start - 6.0, baseline, label, &row.label);
        let mut x = start;
        for segment in &row.segments {
            let area = [x, y, segment.length * scale, BAR];
            svg.rect(area, segment.class, &segment.title);
            if segment.hatched {
                svg.hatch(area, 6.0);
            }
            x += segment.length * scale;
        }
        let mut end = x;
        if let Some(error) = row.error.filter(|error| error * scale >= 0.5) {
            let (low, high, middle) = ((x - error * scale).max(start), x + error * scale, y + BAR / 2.0);
            svg.path(
                &format!(
                    "M{low:.1} {:.1}v7M{low:.1} {middle:.1}H{high:.1}M{high:.1} {:.1}v7",
                    middle - 3.5,
                    middle - 3.5
                ),
                "whisker",
            );
            end = end.max(high);
        }
        if let Some(expected) = row.expected {
            let (x, middle) = (start + expected * scale, y + BAR / 2.0);
            svg.path(
                &format!(
                    "M{:.1} {middle:.1}l{DIAMOND} -{DIAMOND}l{DIAMOND} {DIAMOND}l-{DIAMOND} {DIAMOND}z",
                    x - DIAMOND
                ),
                "expected",
            );
            end = end.max(x + DIAMOND);
        }
        svg.text(end + 6.0, baseline, if row.best { "best" } else { "" }, &row.value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diamond_stands_where_the_end_was_expected() {
        let row = |expected| BarRow {
            label: "wfbp-a2a".into(),
            best: false,
            segments: vec![Segment { length: 50.0, class: "wfbp", hatched: false, title: String::new() }],
            error: None,
            expected,
            value: "50".into(),
        };
        let rows = vec![row(Some(100.0)), row(None)];
        let block = Block { title: String::new(), subtitle: String::new(), rows, reference: None };
        let chart = RowChart { blocks: vec![block], max: 100.0 };
        let svg = chart.draw(LABEL + chart.value_width() + 200.0).alone("", "");
        assert_eq!(svg.matches("class=\"expected\"").count(), 1, "{svg}");
        // Its left corner lies half a diamond before the end of the scale, and the value behind it.
        assert!(svg.contains(&format!("M{:.1} ", LABEL + 200.0 - DIAMOND)), "{svg}");
        assert!(svg.contains(&format!("x=\"{:.1}\"", LABEL + 200.0 + DIAMOND + 6.0)), "{svg}");
    }
    #[test]
    fn long_values_leave_less_for_bars_and_are_not_cut_off() {
        let end_of = |value: &str| {
            let segments = vec![Segment { length: 100.0, class: "wfbp", hatched: false, title: String::new() }];
            let (label, value) = (String::new(), value.to_owned());
            let row = BarRow { label, best: true, segments, error: None, expected: None, value };
            let block = Block { title: String::new(), subtitle: String::new(), rows: vec![row], reference: None };
            let chart = RowChart { blocks: vec![block], max: 100.0 };
            let svg = chart.draw(NARROW).alone("", "");
            let from = svg.split("class=\"best\" x=\"").nth(1).and_then(|rest| rest.split('"').next());
            from.and_then(|place| place.parse::<f64>().ok()).expect("a place")
        };
        let (short, long) = ("11028 ± 928", "131253 ± 8767");
        assert!(end_of(long) < end_of(short));
        assert!([short, long].iter().all(|value| end_of(value) + CHARACTER * value.chars().count() as f64 <= NARROW));
    }
}
