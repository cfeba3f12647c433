//! Predicted against measured throughput, a mark for each cell: on the line they are equal.

use paceline_chart::{NARROW, Svg, WIDE};

use super::bars::number;

/// What the marks are.
pub const LEGEND: &str = "Samples/s of all workers together, both axes logarithmic. Circle: all-to-all; square: parameter \
    server; hollow: extrapolated; colours are those of the methods below; the bar through it is the interval of the prediction, where it has one. On the dashed line predicted and \
    measured are equal; between the thin ones they differ by less than 5 %.";

/// A cell.
pub struct Mark {
    /// Samples per second.
    pub measured: f64,
    /// Samples per second: the least, the expected, and the most.
    pub predicted: [f64; 3],
    /// Its colour.
    pub class: &'static str,
    /// A square, and not a circle.
    pub served: bool,
    /// Hollow: the prediction is beyond what was measured.
    pub beyond: bool,
    /// Shown when it is pointed at.
    pub title: String,
}

/// The figure is not larger, however wide the page is.
const SIDE_MAX: f64 = 460.0;
const LEFT: f64 = 64.0;
const BOTTOM: f64 = 40.0;
const TOP: f64 = 22.0;
const RADIUS: f64 = 4.0;
/// How far the thin lines are from the dashed one.
const BAND: f64 = 0.05;
/// Beyond the outermost marks the axes go on by this factor.
const MARGIN: f64 = 1.15;

/// Draws the marks; those that are no positive numbers have no place.
pub fn draw(marks: &[Mark], width: f64) -> Svg {
    let mut svg = Svg::new(width);
    let side = (width - LEFT - 12.0).min(SIDE_MAX);
    let is_there = |mark: &&Mark| mark.measured > 0.0 && mark.predicted.iter().all(|rate| *rate > 0.0);
    let marks: Vec<&Mark> = marks.iter().filter(is_there).collect();
    let rates = || marks.iter().flat_map(|mark| mark.predicted.into_iter().chain([mark.measured]));
    let (low, high) =
        rates().fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), rate| (low.min(rate), high.max(rate)));
    let axis = if low < high { Axis::new(low, high, side) } else { Axis::new(1.0, 10.0, side) };
    axis.draw(width < f64::midpoint(NARROW, WIDE), &mut svg);
    for mark in marks {
        let (x, y) = (axis.x(mark.measured), axis.y(mark.predicted[1]));
        let [least, _, most] = mark.predicted.map(|rate| axis.y(rate));
        if least - most > 1.0 {
            let ends = format!("M{:.1} {least:.1}h6M{:.1} {most:.1}h6", x - 3.0, x - 3.0);
            svg.path(&format!("M{x:.1} {least:.1}V{most:.1}{ends}"), "whisker");
        }
        let class = if mark.beyond { format!("curve {} hollow", mark.class) } else { mark.class.to_owned() };
        match mark.served {
            true => svg.rect([x - RADIUS, y - RADIUS, 2.0 * RADIUS, 2.0 * RADIUS], &class, &mark.title),
            false => svg.circle([x, y, RADIUS], &class, &mark.title),
        }
    }
    svg.reach(TOP + side + BOTTOM);
    svg
}

/// Of both directions.
struct Axis {
    low: f64,
    high: f64,
    side: f64,
}

impl Axis {
    fn new(low: f64, high: f64, side: f64) -> Axis {
        Axis { low: low / MARGIN, high: high * MARGIN, side }
    }

    /// From 0 to 1.
    fn share(&self, rate: f64) -> f64 {
        ((rate / self.low).ln() / (self.high / self.low).ln()).clamp(0.0, 1.0)
    }

    fn x(&self, rate: f64) -> f64 {
        LEFT + self.side * self.share(rate)
    }

    fn y(&self, rate: f64) -> f64 {
        TOP + self.side * (1.0 - self.share(rate))
    }

    fn draw(&self, narrow: bool, svg: &mut Svg) {
        let (right, bottom) = (LEFT + self.side, TOP + self.side);
        for tick in ticks(self.low, self.high, if narrow { 4 } else { 8 }) {
            let (x, y) = (self.x(tick), self.y(tick));
            svg.path(&format!("M{x:.1} {TOP:.1}V{bottom:.1}M{LEFT:.1} {y:.1}H{right:.1}"), "grid");
            svg.text(x, bottom + 15.0, "middle", &plain(tick));
            svg.text(LEFT - 6.0, y + 4.0, "end", &plain(tick));
        }
        for factor in [1.0 - BAND, 1.0 + BAND] {
            svg.path(&self.line(factor), "axis");
        }
        svg.path(&self.line(1.0), "linear");
        svg.text(LEFT, TOP - 8.0, "", "predicted, samples/s");
        svg.text(right, bottom + 32.0, "end", "measured, samples/s");
    }

    /// Where the prediction is so many times what was measured.
    fn line(&self, factor: f64) -> String {
        let (from, to) = (self.low.max(self.low / factor), self.high.min(self.high / factor));
        let [start, end] = [from, to].map(|rate| (self.x(rate), self.y(rate * factor)));
        format!("M{:.1} {:.1}L{:.1} {:.1}", start.0, start.1, end.0, end.1)
    }
}

/// Round numbers between two positive ones: 1, 2 and 5 times powers of ten, or fewer of them if there are more than so many.
fn ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let of = |steps: &[f64]| -> Vec<f64> {
        let all = decades.clone().flat_map(|decade| steps.iter().map(move |step| step * 10_f64.powi(decade)));
        all.filter(|tick| (low..=high).contains(tick)).collect()
    };
    let finer = of(&[1.0, 2.0, 5.0]);
    if finer.len() <= most {
        return finer;
    }
    let mut ticks = of(&[1.0]);
    while ticks.len() > most {
        ticks = ticks.into_iter().step_by(2).collect();
    }
    ticks
}

/// Without digits that a round number has not.
fn plain(tick: f64) -> String {
    if tick >= 1.0 { format!("{tick:.0}") } else { number(tick) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(measured: f64, predicted: [f64; 3], served: bool) -> Mark {
        Mark { measured, predicted, class: "wfbp", served, beyond: served, title: "a cell".to_owned() }
    }

    #[test]
    fn every_cell_has_its_mark_and_its_interval() {
        let marks = [
            mark(100.0, [95.0, 100.0, 105.0], false),
            mark(1000.0, [900.0, 1000.0, 1100.0], true),
            mark(500.0, [500.0; 3], false),
            mark(0.0, [1.0; 3], false),
        ];
        for width in [WIDE, NARROW] {
            let page = draw(&marks, width).in_page("", "x");
            assert_eq!((page.matches("<circle").count(), page.matches("<rect").count()), (2, 1), "{page}");
            assert_eq!(page.matches("class=\"whisker\"").count(), 2, "{page}");
            assert_eq!(page.matches("class=\"curve wfbp hollow\"").count(), 1, "{page}");
            assert_eq!(page.matches("class=\"linear\"").count(), 1);
        }
        // Nothing to show is no reason to fail.
        assert!(draw(&[], WIDE).in_page("", "x").contains("predicted, samples/s"));
        assert!(!draw(&[mark(7.0, [7.0; 3], false)], WIDE).in_page("", "x").contains("NaN"));
    }

    #[test]
    fn equal_numbers_lie_on_the_line() {
        let axis = Axis::new(10.0, 1000.0, 300.0);
        for rate in [10.0, 55.0, 1000.0] {
            assert!((axis.x(rate) - LEFT - (TOP + 300.0 - axis.y(rate))).abs() < 1e-9);
        }
    }

    #[test]
    fn ticks_are_few_and_round() {
        assert_eq!(ticks(90.0, 1100.0, 8), [100.0, 200.0, 500.0, 1000.0]);
        assert_eq!(ticks(0.9, 110_000.0, 8), [1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0]);
        assert!(ticks(1e-3, 1e9, 4).len() <= 4);
        assert_eq!((plain(0.5).as_str(), plain(2000.0).as_str()), ("0.50", "2000"));
    }
}
