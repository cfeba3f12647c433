//! The chart for the README: the ratio by size, one panel per world, as one SVG that needs nothing from outside and is
//! readable on light and dark ground.

use std::collections::BTreeSet;

use paceline_chart::Svg;

use super::command::Setting;
use super::report::title;
use super::results::Verdict;
use super::summary::{Comparison, RIVALS, Summary};

const PANEL_WIDTH: f64 = 372.0;
const PANEL_HEIGHT: f64 = 190.0;
const LEFT: f64 = 52.0;
const TOP: f64 = 74.0;
const GAP_X: f64 = 44.0;
const GAP_Y: f64 = 66.0;
const COLUMNS: usize = 2;
/// Where the axis ends if nothing lies beyond.
const RATIO_MIN: f64 = 0.5;
const RATIO_MAX: f64 = 4.0;

/// Draws the all-reduce's comparisons.
pub fn draw(summary: &Summary) -> String {
    let shown: Vec<&Comparison> =
        summary.comparisons.iter().filter(|one| one.setting.collective == "all-reduce").collect();
    let mut settings: Vec<&Setting> = shown.iter().map(|one| &one.setting).collect();
    settings.dedup();
    let rows = settings.len().div_ceil(COLUMNS);
    let mut svg = Svg::new(LEFT + COLUMNS as f64 * PANEL_WIDTH + GAP_X + 20.0);
    svg.text(LEFT, 26.0, "head", "All-reduce: the rival's time over ours, by bytes of data");
    legend(&shown, &mut svg);
    for (index, setting) in settings.into_iter().enumerate() {
        let x = LEFT + (index % COLUMNS) as f64 * (PANEL_WIDTH + GAP_X);
        let y = TOP + 24.0 + (index / COLUMNS) as f64 * (PANEL_HEIGHT + GAP_Y);
        let here: Vec<&Comparison> = shown.iter().copied().filter(|one| one.setting == *setting).collect();
        // One axis per transport: Gloo's small messages would flatten the panels of shared memory.
        let alike: Vec<&Comparison> =
            shown.iter().copied().filter(|one| one.setting.transport == setting.transport).collect();
        svg.place([x, y], &panel(setting, &here, &Axes::around(&alike)));
    }
    svg.reach(TOP + rows as f64 * (PANEL_HEIGHT + GAP_Y));
    svg.alone("All-reduce: the time of Open MPI and of Gloo over Paceline's, by size", STYLE)
}

/// What only this chart has.
const STYLE: &str = "
.panel{fill:#f6f7f9}.losing{fill:#d1242f;fill-opacity:.09}
.one{stroke:#3b4048;stroke-width:1.5}
.line{fill:none;stroke-width:2;stroke-linejoin:round}.dot{stroke-width:2}
.r0{stroke:#7aa7e0}.r1{stroke:#1257b8}.r2{stroke:#d9730d}
.f0{fill:#7aa7e0}.f1{fill:#1257b8}.f2{fill:#d9730d}.lost{fill:#fff}.hollow{stroke:#3b4048;fill:#fff}
@media(prefers-color-scheme:dark){
.panel{fill:#161b22}.losing{fill:#f85149;fill-opacity:.14}
.one{stroke:#b6bec9}
.r0{stroke:#3f6ea8}.r1{stroke:#6cb0ff}.r2{stroke:#ffa657}
.f0{fill:#3f6ea8}.f1{fill:#6cb0ff}.f2{fill:#ffa657}.lost{fill:#0d1117}.hollow{stroke:#b6bec9;fill:#0d1117}}
";

/// Both axes are logarithmic, and the same in all panels of a transport.
struct Axes {
    sizes: Vec<usize>,
    low: f64,
    high: f64,
}

impl Axes {
    fn around(shown: &[&Comparison]) -> Axes {
        let sizes: BTreeSet<usize> = shown.iter().map(|one| one.bytes).collect();
        let ratios = shown.iter().map(|one| one.ratio);
        // Whole powers of two, with some air.
        let low = ratios.clone().fold(RATIO_MIN, f64::min).log2().floor().exp2();
        let high = ratios.fold(RATIO_MAX, f64::max).log2().ceil().exp2();
        Axes { sizes: sizes.into_iter().collect(), low, high }
    }

    fn x(&self, bytes: usize) -> f64 {
        let log = |bytes: usize| (bytes.max(1) as f64).ln();
        let (first, last) = (self.sizes.first().copied().unwrap_or(1), self.sizes.last().copied().unwrap_or(2));
        14.0 + (log(bytes) - log(first)) / (log(last) - log(first)).max(1e-9) * (PANEL_WIDTH - 28.0)
    }

    fn y(&self, ratio: f64) -> f64 {
        PANEL_HEIGHT * (1.0 - (ratio / self.low).ln() / (self.high / self.low).ln())
    }

    /// Powers of two; only every second one if there are many.
    fn ticks(&self) -> impl Iterator<Item = f64> {
        let (low, high) = (self.low.log2() as i32, self.high.log2() as i32);
        let step = if high - low > 6 { 2 } else { 1 };
        (low..=high).filter(move |power| power % step == 0).map(|power| f64::from(power).exp2())
    }
}

fn legend(shown: &[&Comparison], svg: &mut Svg) {
    let mut x = LEFT;
    for (index, rival) in RIVALS.iter().enumerate().filter(|(_, rival)| shown.iter().any(|one| one.rival == **rival)) {
        svg.path(&format!("M{x} 50h22"), &format!("line r{index}"));
        svg.circle([x + 11.0, 50.0, 3.0], &format!("dot r{index} f{index}"), "");
        svg.text(x + 28.0, 54.0, "", title(rival));
        x += 46.0 + 7.0 * title(rival).len() as f64;
    }
    svg.circle([x + 5.0, 50.0, 4.5], "dot hollow", "");
    svg.text(x + 16.0, 54.0, "", "lost, beyond the noise");
}

fn panel(setting: &Setting, here: &[&Comparison], axes: &Axes) -> Svg {
    let mut svg = Svg::new(PANEL_WIDTH);
    let transport = if setting.transport == "shm" { "Shared memory" } else { "TCP on loopback" };
    svg.text(0.0, -8.0, "best", &format!("{transport}, {} ranks", setting.ranks));
    svg.rect([0.0, 0.0, PANEL_WIDTH, PANEL_HEIGHT], "panel", "");
    let one = axes.y(1.0);
    svg.rect([0.0, one, PANEL_WIDTH, PANEL_HEIGHT - one], "losing", "");
    for tick in axes.ticks() {
        let (y, class) = (axes.y(tick), if tick == 1.0 { "one" } else { "grid" });
        svg.path(&format!("M0 {y:.1}h{PANEL_WIDTH}"), class);
        svg.text(-7.0, y + 4.0, "end", &tick.to_string());
    }
    for (index, &bytes) in axes.sizes.iter().enumerate() {
        let x = axes.x(bytes);
        svg.path(&format!("M{x:.1} {PANEL_HEIGHT}v4"), "grid");
        // The last two lie close together.
        let crowded = index + 1 < axes.sizes.len() && axes.x(axes.sizes[index + 1]) - x < 34.0;
        if !crowded {
            svg.text(x, PANEL_HEIGHT + 19.0, "middle", &size(bytes));
        }
    }
    for (index, rival) in RIVALS.iter().enumerate() {
        let points: Vec<&&Comparison> = here.iter().filter(|one| one.rival == *rival).collect();
        let path: Vec<String> =
            points.iter().map(|one| format!("{:.1} {:.1}", axes.x(one.bytes), axes.y(one.ratio))).collect();
        if !path.is_empty() {
            svg.path(&format!("M{}", path.join("L")), &format!("line r{index}"));
        }
        for point in points {
            let (x, y) = (axes.x(point.bytes), axes.y(point.ratio));
            let (class, radius) =
                if point.verdict == Verdict::Lost { ("lost".to_owned(), 4.5) } else { (format!("f{index}"), 3.0) };
            let hint = format!("{}, {}: {:.2}", title(rival), size(point.bytes), point.ratio);
            svg.circle([x, y, radius], &format!("dot r{index} {class}"), &hint);
        }
    }
    svg
}

/// Short enough for an axis.
fn size(bytes: usize) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{}M", bytes >> 20),
        bytes if bytes >= 1 << 10 => format!("{}K", bytes >> 10),
        bytes => format!("{bytes}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(bytes: usize, ratio: f64, verdict: Verdict) -> Comparison {
        let setting = Setting { collective: "all-reduce".into(), transport: "tcp".into(), ranks: 2 };
        let rival = RIVALS[0].to_owned();
        let target = None;
        Comparison { setting, bytes, rival, ours_us: 1.0, rival_us: ratio, ratio, noise: 1.0, verdict, target }
    }

    #[test]
    fn every_comparison_is_a_point_and_lost_ones_are_hollow() {
        let comparisons = vec![
            comparison(1 << 10, 0.3, Verdict::Lost),
            comparison(1 << 20, 1.0, Verdict::Tied),
            comparison(100 << 20, 70.0, Verdict::Won),
        ];
        let (geometric_means, bounds, crowds, targets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let summary = Summary { comparisons, geometric_means, bounds, crowds, targets };
        let svg = draw(&summary);
        assert_eq!(svg.matches("<title>Open MPI, default, ").count(), 3);
        assert_eq!(svg.matches(" lost\"").count(), 1);
        assert!(svg.contains(">1K<") && svg.contains(">100M<") && svg.contains(">64<"), "{svg}");
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
    }

    #[test]
    fn the_axes_hold_everything() {
        let shown = [comparison(1 << 10, 0.3, Verdict::Lost), comparison(1 << 20, 5.0, Verdict::Won)];
        let axes = Axes::around(&shown.iter().collect::<Vec<_>>());
        assert_eq!((axes.low, axes.high), (0.25, 8.0));
        assert_eq!((axes.y(0.25), axes.y(8.0)), (PANEL_HEIGHT, 0.0));
        assert_eq!((axes.x(1 << 10), axes.x(1 << 20)), (14.0, PANEL_WIDTH - 14.0));
    }
}
