//! Writing SVG: text that is safe in it, and the styles that all charts share.

use std::fmt::Write;

/// The colours of all charts, on light and dark ground. `.svg` holds them together in a page.
pub const STYLE: &str = "
.chart text{font:12px system-ui,sans-serif;fill:#3b4048}
.chart .head{font-size:14px;font-weight:600;fill:#15181c}
.chart .best{font-weight:600;fill:#15181c}
.chart .end{text-anchor:end}.chart .middle{text-anchor:middle}
.chart .axis{stroke:#8b929c;stroke-width:1}
.chart .grid{stroke:#d7dbe0;stroke-width:1}
.chart .linear{stroke:#15181c;stroke-width:1.2;stroke-dasharray:4 3}
.chart .whisker{stroke:#15181c;stroke-width:1.4;fill:none}
.chart .expected{stroke:#15181c;stroke-width:1.1;fill:#fff}
.chart .hatch{stroke:#fff;stroke-width:1.6;stroke-opacity:.75}
.chart .bsp{fill:#8a94a3}.chart .wfbp{fill:#2f6fc4}.chart .mg{fill:#0f7b6c}.chart .byte{fill:#c25a12}
.chart .ddp{fill:#7a55b5}.chart .other{fill:#5b6470}
.chart .compute{fill:#8a94a3}.chart .exposed{fill:#d9730d}
.chart .forward{fill:#2f6fc4}.chart .backward{fill:#0f7b6c}.chart .waiting{fill:#d9730d}.chart .link{fill:#7a55b5}
.chart .before{fill:#b9a3dc}
.chart .lane{fill:#f1f3f5}
@media(prefers-color-scheme:dark){
.chart text{fill:#b6bec9}.chart .head,.chart .best{fill:#f0f3f6}
.chart .axis{stroke:#6b7480}.chart .grid{stroke:#2d333b}
.chart .linear,.chart .whisker{stroke:#f0f3f6}
.chart .expected{stroke:#f0f3f6;fill:#0d1117}
.chart .hatch{stroke:#0d1117}
.chart .bsp{fill:#7d8794}.chart .wfbp{fill:#5a9bef}.chart .mg{fill:#3fb59f}.chart .byte{fill:#f0883e}
.chart .ddp{fill:#b18af0}.chart .other{fill:#8b949e}
.chart .compute{fill:#7d8794}.chart .exposed{fill:#f0883e}
.chart .forward{fill:#5a9bef}.chart .backward{fill:#3fb59f}.chart .waiting{fill:#f0883e}.chart .link{fill:#b18af0}
.chart .before{fill:#6a4fa0}
.chart .lane{fill:#161b22}
}
";

/// A drawing.
pub struct Svg {
    body: String,
    width: f64,
    height: f64,
}

impl Svg {
    /// An empty one.
    pub fn new(width: f64) -> Svg {
        Svg { body: String::new(), width, height: 0.0 }
    }

    /// Makes it at least so high.
    pub fn reach(&mut self, y: f64) {
        self.height = self.height.max(y);
    }

    /// A text whose baseline begins (or ends, by class) here.
    pub fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let text = escaped(text);
        self.put(format_args!(r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{text}</text>"#));
    }

    /// A rectangle; `title` is shown when it is pointed at, if it is not empty.
    pub fn rect(&mut self, [x, y, width, height]: [f64; 4], class: &str, title: &str) {
        let open = format!(
            r#"<rect class="{class}" x="{x:.2}" y="{y:.1}" width="{:.2}" height="{height:.1}""#,
            width.max(0.0)
        );
        match title.is_empty() {
            true => self.put(format_args!("{open}/>")),
            false => self.put(format_args!("{open}><title>{}</title></rect>", escaped(title))),
        }
    }

    /// A circle; `title` is shown when it is pointed at, if it is not empty.
    pub fn circle(&mut self, [x, y, radius]: [f64; 3], class: &str, title: &str) {
        let open = format!(r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="{radius}""#);
        match title.is_empty() {
            true => self.put(format_args!("{open}/>")),
            false => self.put(format_args!("{open}><title>{}</title></circle>", escaped(title))),
        }
    }

    /// Slanted lines over a rectangle, so that it differs by more than colour. `spacing` pixels apart.
    pub fn hatch(&mut self, [x, y, width, height]: [f64; 4], spacing: f64) {
        let mut path = String::new();
        let mut start = x;
        while start < x + width {
            // From the bottom edge up to the right, cut off at the right edge.
            let run = height.min(x + width - start);
            let _ = write!(path, "M{start:.1} {:.1}l{run:.1} -{run:.1}", y + height);
            start += spacing;
        }
        if !path.is_empty() {
            self.path(&path, "hatch");
        }
    }

    /// Another drawing, so far down and to the right.
    pub fn place(&mut self, [x, y]: [f64; 2], other: &Svg) {
        self.put(format_args!(r#"<g transform="translate({x:.0} {y:.0})">"#));
        self.body.push_str(&other.body);
        self.put(format_args!("</g>"));
        self.reach(y + other.height);
    }

    /// How far down it goes.
    pub fn height(&self) -> f64 {
        self.height
    }

    /// A path.
    pub fn path(&mut self, path: &str, class: &str) {
        self.put(format_args!(r#"<path class="{class}" d="{path}"/>"#));
    }

    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to memory does not fail.
        let _ = writeln!(self.body, "{element}");
    }

    /// As an element of a page, whose styles it uses. `class` tells where it is shown, `label` what it is.
    pub fn in_page(&self, class: &str, label: &str) -> String {
        let Svg { body, width, height } = self;
        let label = escaped(label);
        format!(
            "<svg class=\"chart {class}\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\" aria-label=\"{label}\">\n{body}</svg>"
        )
    }

    /// As a file of its own, with these styles besides [`STYLE`].
    pub fn alone(&self, label: &str, style: &str) -> String {
        let Svg { body, width, height } = self;
        let label = escaped(label);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-labelledby=\"t\">\n<title id=\"t\">{label}</title>\n<style>{STYLE}{style}.ground{{fill:#fff}}@media(prefers-color-scheme:dark){{.ground{{fill:#0d1117}}}}</style>\n<rect class=\"ground\" width=\"{width:.0}\" height=\"{height:.0}\"/>\n{body}</svg>\n"
        )
    }
}

/// Safe between tags and in attributes.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            character => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_users_name_cannot_break_out() {
        let mut svg = Svg::new(100.0);
        svg.text(0.0, 10.0, "end", "</text><script>&\"");
        svg.rect([0.0, 0.0, -1.0, 5.0], "bsp", "<b>");
        let page = svg.in_page("wide", "a\"b");
        assert!(
            !page.contains("<script>") && !page.contains("<b>") && page.contains("aria-label=\"a&quot;b\""),
            "{page}"
        );
        assert!(page.contains("width=\"0.00\""), "no negative width: {page}");
    }

    #[test]
    fn hatches_stay_within_their_rectangle() {
        let mut svg = Svg::new(100.0);
        svg.hatch([10.0, 0.0, 20.0, 8.0], 5.0);
        let page = svg.in_page("", "x");
        assert_eq!(page.matches('M').count(), 4, "{page}");
        assert!(page.contains("M25.0 8.0l5.0 -5.0"), "{page}");
    }
}
