//! The chart for the README: the ratio by size, one panel per world, as one SVG that needs nothing from outside and is
//! readable on light and dark ground.

use std::collections::BTreeSet;
use std::fmt::{self, Write};

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
pub fn draw(summary: &Summary) -> Result<String, fmt::Error> {
    let shown: Vec<&Comparison> =
        summary.comparisons.iter().filter(|one| one.setting.collective == "all-reduce").collect();
    let mut settings: Vec<&Setting> = shown.iter().map(|one| &one.setting).collect();
    settings.dedup();
    let rows = settings.len().div_ceil(COLUMNS);
    let width = LEFT + COLUMNS as f64 * PANEL_WIDTH + GAP_X + 20.0;
    let height = TOP + rows as f64 * (PANEL_HEIGHT + GAP_Y);
    let mut out = String::new();
    writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="t">"#
    )?;
    let label = "All-reduce: the time of Open MPI and of Gloo over Paceline's, by size";
    writeln!(out, "<title id=\"t\">{label}</title>\n<style>{STYLE}</style>")?;
    writeln!(out, r#"<rect class="ground" width="{width}" height="{height}"/>"#)?;
    writeln!(
        out,
        r#"<text class="head" x="{LEFT}" y="26">All-reduce: the rival's time over ours, by bytes of data</text>"#
    )?;
    write_legend(&shown, &mut out)?;
    for (index, setting) in settings.into_iter().enumerate() {
        let x = LEFT + (index % COLUMNS) as f64 * (PANEL_WIDTH + GAP_X);
        let y = TOP + 24.0 + (index / COLUMNS) as f64 * (PANEL_HEIGHT + GAP_Y);
        writeln!(out, r#"<g transform="translate({x} {y})">"#)?;
        let here: Vec<&Comparison> = shown.iter().copied().filter(|one| one.setting == *setting).collect();
        // One axis per transport: Gloo's small messages would flatten the panels of shared memory.
        let alike: Vec<&Comparison> =
            shown.iter().copied().filter(|one| one.setting.transport == setting.transport).collect();
        write_panel(setting, &here, &Axes::around(&alike), &mut out)?;
        writeln!(out, "</g>")?;
    }
    writeln!(out, "</svg>")?;
    Ok(out)
}

const STYLE: &str = "
text{font:12px system-ui,sans-serif;fill:#3b4048}
.head{font-size:16px;font-weight:600;fill:#15181c}.name{font-weight:600;fill:#15181c}
.ground{fill:#fff}.panel{fill:#f6f7f9}.losing{fill:#d1242f;fill-opacity:.09}.warn{fill:#b31d28}
.grid{stroke:#d7dbe0}.one{stroke:#3b4048;stroke-width:1.5}
.line{fill:none;stroke-width:2;stroke-linejoin:round}.dot{stroke-width:2}
.r0{stroke:#7aa7e0}.r1{stroke:#1257b8}.r2{stroke:#d9730d}
.f0{fill:#7aa7e0}.f1{fill:#1257b8}.f2{fill:#d9730d}.lost{fill:#fff}.hollow{stroke:#3b4048;fill:#fff}
@media(prefers-color-scheme:dark){
text{fill:#b6bec9}.head,.name{fill:#f0f3f6}
.ground{fill:#0d1117}.panel{fill:#161b22}.losing{fill:#f85149;fill-opacity:.14}.warn{fill:#ff8f87}
.grid{stroke:#2d333b}.one{stroke:#b6bec9}
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

fn write_legend(shown: &[&Comparison], out: &mut String) -> fmt::Result {
    let mut x = LEFT;
    for (index, rival) in RIVALS.iter().enumerate().filter(|(_, rival)| shown.iter().any(|one| one.rival == **rival)) {
        writeln!(out, r#"<path class="line r{index}" d="M{x} 50h22"/>"#)?;
        writeln!(out, r#"<circle class="dot r{index} f{index}" cx="{}" cy="50" r="3"/>"#, x + 11.0)?;
        writeln!(out, r#"<text x="{}" y="54">{}</text>"#, x + 28.0, title(rival))?;
        x += 46.0 + 7.0 * title(rival).len() as f64;
    }
    writeln!(out, r#"<circle class="dot hollow" cx="{}" cy="50" r="4.5"/>"#, x + 5.0)?;
    writeln!(out, r#"<text x="{}" y="54">lost, beyond the noise</text>"#, x + 16.0)
}

fn write_panel(setting: &Setting, here: &[&Comparison], axes: &Axes, out: &mut String) -> fmt::Result {
    let transport = if setting.transport == "shm" { "Shared memory" } else { "TCP on loopback" };
    writeln!(out, r#"<text class="name" x="0" y="-8">{transport}, {} ranks</text>"#, setting.ranks)?;
    writeln!(out, r#"<rect class="panel" width="{PANEL_WIDTH}" height="{PANEL_HEIGHT}"/>"#)?;
    let one = axes.y(1.0);
    writeln!(out, r#"<rect class="losing" y="{one:.1}" width="{PANEL_WIDTH}" height="{:.1}"/>"#, PANEL_HEIGHT - one)?;
    for tick in axes.ticks() {
        let (y, class) = (axes.y(tick), if tick == 1.0 { "one" } else { "grid" });
        writeln!(out, r#"<path class="{class}" d="M0 {y:.1}h{PANEL_WIDTH}"/>"#)?;
        writeln!(out, r#"<text x="-7" y="{:.1}" text-anchor="end">{tick}</text>"#, y + 4.0)?;
    }
    for (index, &bytes) in axes.sizes.iter().enumerate() {
        let x = axes.x(bytes);
        writeln!(out, r#"<path class="grid" d="M{x:.1} {PANEL_HEIGHT}v4"/>"#)?;
        // The last two lie close together.
        let crowded = index + 1 < axes.sizes.len() && axes.x(axes.sizes[index + 1]) - x < 34.0;
        if !crowded {
            let label = size(bytes);
            writeln!(out, r#"<text x="{x:.1}" y="{}" text-anchor="middle">{label}</text>"#, PANEL_HEIGHT + 19.0)?;
        }
    }
    for (index, rival) in RIVALS.iter().enumerate() {
        let points: Vec<&&Comparison> = here.iter().filter(|one| one.rival == *rival).collect();
        let path: Vec<String> =
            points.iter().map(|one| format!("{:.1} {:.1}", axes.x(one.bytes), axes.y(one.ratio))).collect();
        if !path.is_empty() {
            writeln!(out, r#"<path class="line r{index}" d="M{}"/>"#, path.join("L"))?;
        }
        for point in points {
            let (x, y) = (axes.x(point.bytes), axes.y(point.ratio));
            let (class, radius) =
                if point.verdict == Verdict::Lost { ("lost".to_owned(), 4.5) } else { (format!("f{index}"), 3.0) };
            let hint = format!("{}, {}: {:.2}", title(rival), size(point.bytes), point.ratio);
            writeln!(
                out,
                r#"<circle class="dot r{index} {class}" cx="{x:.1}" cy="{y:.1}" r="{radius}"><title>{hint}</title></circle>"#
            )?;
        }
    }
    Ok(())
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
        let svg = draw(&summary).expect("it can be drawn");
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
