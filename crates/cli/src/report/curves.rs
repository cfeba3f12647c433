//! A throughput over something that changes: a line for each method.

use paceline_chart::{NARROW, Svg, WIDE};

use super::bars::{colour, number};
use super::timeline::ticks;
use crate::bench::Curve;

/// What the lines are.
pub const LEGEND: &str = "Predicted samples/s of all workers together, one thing changed at a time. More workers are where the \
    chart says: on the same host, or on more hosts like these; those that really compute on one machine share its cores. Solid: \
    all-to-all; dashed: parameter server. The upright dashed line is what was measured on. Hollow points, in the tables with a \
    *, are beyond what the constants were measured for, of another batch than was measured, from which computation is scaled, \
    or beyond what the device's memory holds.";

const HEIGHT: f64 = 250.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 40.0;
/// Fits the numbers of the axis.
const LEFT: f64 = 58.0;
/// Fits a piece of the line and `bytescheduler-a2a`.
const RIGHT: f64 = 140.0;
/// Of the piece of its line before a name: two dashes.
const PIECE: f64 = 14.0;
/// So far are the baselines of names apart at least.
const LINE: f64 = 13.0;
/// Nothing is drawn wider, however wide the page is.
const WIDTH_MAX: f64 = 720.0;
const RADIUS: f64 = 2.5;

/// Draws the lines. `served` says of a method whether it has a parameter server.
pub fn draw(curve: &Curve, served: &dyn Fn(&str) -> bool, width: f64) -> Svg {
    let mut svg = Svg::new(width);
    let rates = curve.lines.iter().flat_map(|line| line.samples_per_s.iter().flatten());
    let most = rates.copied().filter(|rate| rate.is_finite()).fold(0.0, f64::max);
    let plane = Plane { length: width.min(WIDTH_MAX) - LEFT - RIGHT, points: curve.points.len(), most };
    plane.draw(curve, width < f64::midpoint(NARROW, WIDE), &mut svg);
    let mut names = Vec::new();
    for line in &curve.lines {
        let (class, served) = (colour(&line.method), served(&line.method));
        let known = line.samples_per_s.iter().enumerate();
        let known: Vec<(usize, f64)> = known.filter_map(|(point, rate)| Some((point, (*rate)?))).collect();
        let mut path = String::new();
        for (place, &(point, rate)) in known.iter().enumerate() {
            // A point that cannot be predicted is a gap.
            let goes_on = place > 0 && known[place - 1].0 + 1 == point;
            let letter = if goes_on { 'L' } else { 'M' };
            path.push_str(&format!("{letter}{:.1} {:.1}", plane.x(point), plane.y(rate)));
        }
        let class_of_line = format!("curve {class}{}", if served { " served" } else { "" });
        svg.path(&path, &class_of_line);
        for &(point, rate) in &known {
            let beyond = line.is_extrapolated(point);
            let (class, doubt) =
                if beyond { (format!("curve {class} hollow"), ", extrapolated") } else { (class.to_owned(), "") };
            let (method, name) = (&line.method, &curve.points[point]);
            let title = format!("{method}, {} {name}: {} samples/s{doubt}", curve.what, number(rate));
            svg.circle([plane.x(point), plane.y(rate), RADIUS], &class, &title);
        }
        names.extend(known.last().map(|&(_, rate)| (plane.y(rate) + 4.0, (line.method.as_str(), class_of_line))));
    }
    // Where lines end together their names do not tell which is which; a piece of the line does.
    for (y, (name, class)) in apart(names, TOP + LINE, TOP + HEIGHT) {
        let x = LEFT + plane.length + 8.0;
        svg.path(&format!("M{x:.1} {:.1}h{PIECE}", y - 4.0), &class);
        svg.text(x + PIECE + 4.0, y, "", name);
    }
    svg.reach(TOP + HEIGHT + BOTTOM);
    svg
}

/// The area in which lines are drawn.
struct Plane {
    length: f64,
    points: usize,
    most: f64,
}

impl Plane {
    fn x(&self, point: usize) -> f64 {
        LEFT + self.length * point as f64 / self.points.saturating_sub(1).max(1) as f64
    }

    fn y(&self, rate: f64) -> f64 {
        TOP + HEIGHT * (1.0 - if self.most > 0.0 { rate / self.most } else { 0.0 })
    }

    fn draw(&self, curve: &Curve, narrow: bool, svg: &mut Svg) {
        let bottom = TOP + HEIGHT;
        for tick in ticks(self.most, if narrow { 3.0 } else { 5.0 }) {
            let y = self.y(tick);
            svg.path(&format!("M{LEFT:.1} {y:.1}h{:.1}", self.length), "grid");
            svg.text(LEFT - 6.0, y + 4.0, "end", &format!("{tick}"));
        }
        for (point, name) in curve.points.iter().enumerate() {
            svg.text(self.x(point), bottom + 15.0, "middle", name);
        }
        svg.path(&format!("M{:.1} {TOP:.1}V{bottom:.1}", self.x(curve.today)), "linear");
        svg.text(LEFT, TOP - 8.0, "", "samples/s");
        svg.text(LEFT + self.length, bottom + 32.0, "end", &curve.what);
    }
}

/// Names at their heights, or as near as they can be without touching each other, between two heights.
fn apart<N>(mut names: Vec<(f64, N)>, top: f64, bottom: f64) -> Vec<(f64, N)> {
    names.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut least = top;
    for (y, _) in &mut names {
        *y = (*y).max(least);
        least = *y + LINE;
    }
    let mut most = bottom;
    for (y, _) in names.iter_mut().rev() {
        *y = (*y).min(most);
        most = *y - LINE;
    }
    names
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Two methods over three points, of which one cannot be predicted.
    pub fn curve() -> Curve {
        let line = |method: &str, rates: [Option<f64>; 3]| -> (String, Vec<Option<f64>>) {
            (method.to_owned(), rates.to_vec())
        };
        let lines = [line("bsp-a2a", [Some(1.0), Some(2.0), Some(4.0)]), line("wfbp-ps", [Some(1.5), None, Some(4.0)])];
        let points = ["1", "2", "4"].map(str::to_owned).to_vec();
        Curve::of("workers", points, 1, lines.into_iter().collect())
    }

    #[test]
    fn lines_have_gaps_names_and_the_place_of_what_was_measured() {
        for width in [WIDE, NARROW] {
            let page = draw(&curve(), &|method| method.ends_with("-ps"), width).in_page("", "x");
            assert_eq!(page.matches("<circle").count(), 5, "{page}");
            let served = page.split("class=\"curve wfbp served\"").nth(1).expect("the second line");
            let path = served.split("/>").next().unwrap_or_default();
            assert_eq!((path.matches('M').count(), path.matches('L').count()), (2, 0), "{path}");
            assert!(page.contains(">bsp-a2a<") && page.contains("workers 4: 4.00 samples/s") && !page.contains("NaN"));
        }
    }

    #[test]
    fn extrapolated_points_are_hollow() {
        let mut curve = curve();
        curve.lines[0].extrapolated = vec![false, false, true];
        let page = draw(&curve, &|_| false, WIDE).in_page("", "x");
        assert_eq!(
            (page.matches(" hollow\"").count(), page.matches("samples/s, extrapolated").count()),
            (1, 1),
            "{page}"
        );
    }

    #[test]
    fn names_do_not_touch() {
        let names = vec![(100.0, "a"), (101.0, "b"), (300.0, "c"), (299.0, "d")];
        let placed = apart(names, 20.0, 290.0);
        assert!(placed.windows(2).all(|pair| pair[1].0 - pair[0].0 >= LINE - 1e-9), "{placed:?}");
        assert!(placed.iter().all(|(y, _)| (20.0..=290.0).contains(y)), "{placed:?}");
    }
}
