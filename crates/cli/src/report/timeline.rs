//! One iteration of a method as lanes: forward, backward, each link or shard. Overlap, fusion and priority can be seen.

use super::svg::Svg;
use paceline_train::{Span, Timeline};

const WIDTH: f64 = 960.0;
const LANE: f64 = 17.0;
const PITCH: f64 = 21.0;
const LABEL: f64 = 122.0;
const AXIS: f64 = 24.0;
/// Shorter pieces are drawn so wide, or they could not be seen.
const PIECE_MIN: f64 = 0.6;

/// Draws it; `end_s` is where the axis ends, the same for all methods of a panel.
pub fn draw(timeline: &Timeline, end_s: f64) -> Svg {
    let mut svg = Svg::new(WIDTH);
    let length = WIDTH - LABEL - 8.0;
    let x = |seconds: f64| LABEL + seconds.clamp(0.0, end_s) / end_s.max(1e-12) * length;
    let bottom = PITCH * timeline.lanes.len() as f64;
    for (index, lane) in timeline.lanes.iter().enumerate() {
        let y = PITCH * index as f64;
        svg.text(LABEL - 6.0, y + LANE - 4.0, "end", &lane.name);
        svg.rect([LABEL, y, length, LANE], "lane", "");
        let class = class(&lane.name);
        for (number, piece) in pieces(&lane.spans, end_s / length).iter().enumerate() {
            let Piece { start_s, end_s, name, count } = piece;
            let (start, end) = (x(*start_s), x(*end_s));
            let more = if *count > 1 { format!(" and {} more", count - 1) } else { String::new() };
            let title = format!("{name}{more}: {:.3} ms from {:.3} ms", 1e3 * (end_s - start_s), 1e3 * start_s);
            // Neighbours differ in height, so that it is seen where one ends and the next begins.
            let inset = if number % 2 == 0 { 0.0 } else { 2.0 };
            svg.rect([start, y + inset, (end - start).max(PIECE_MIN), LANE - 2.0 * inset], class, &title);
        }
    }
    for tick in ticks(end_s * 1e3) {
        let at = x(tick / 1e3);
        svg.path(&format!("M{at:.1} 0V{bottom:.1}"), "grid");
        svg.text(at, bottom + 14.0, "middle", &format!("{tick}"));
    }
    svg.text(LABEL - 6.0, bottom + 14.0, "end", "milliseconds");
    svg.reach(bottom + AXIS);
    svg
}

/// Spans that are drawn as one.
struct Piece<'a> {
    start_s: f64,
    end_s: f64,
    name: &'a str,
    count: usize,
}

/// The spans, with neighbours joined that are too short to be told apart where a pixel is `pixel_s` seconds.
fn pieces(spans: &[Span], pixel_s: f64) -> Vec<Piece<'_>> {
    let mut pieces: Vec<Piece<'_>> = Vec::new();
    for span in spans {
        let short = |start_s: f64, end_s: f64| end_s - start_s < 2.0 * pixel_s;
        match pieces.last_mut() {
            Some(last)
                if span.start_s <= last.end_s + 0.5 * pixel_s
                    && (short(span.start_s, span.end_s) || short(last.start_s, last.end_s)) =>
            {
                last.end_s = last.end_s.max(span.end_s);
                last.count += 1;
            }
            _ => pieces.push(Piece { start_s: span.start_s, end_s: span.end_s, name: &span.name, count: 1 }),
        }
    }
    pieces
}

/// Where the last piece ends.
pub fn end_s(timeline: &Timeline) -> f64 {
    timeline.lanes.iter().flat_map(|lane| &lane.spans).map(|span| span.end_s).fold(0.0, f64::max)
}

fn class(lane: &str) -> &'static str {
    match lane {
        "forward" => "forward",
        "backward" => "backward",
        lane if lane.starts_with("wait") => "waiting",
        lane if lane.starts_with("update") => "other",
        _ => "link",
    }
}

/// Four to ten round numbers from 0.
fn ticks(end: f64) -> Vec<f64> {
    if !(end.is_finite() && end > 0.0) {
        return vec![0.0];
    }
    let magnitude = 10_f64.powf((end / 4.0).log10().floor());
    let step = [5.0, 2.0, 1.0].into_iter().map(|factor| factor * magnitude).find(|step| end / step >= 4.0);
    let step = step.unwrap_or(magnitude);
    (0..=(end / step) as usize).map(|index| (index as f64 * step * 1e6).round() / 1e6).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_train::Lane;

    #[test]
    fn axes_have_a_few_round_numbers() {
        assert_eq!(ticks(420.0), [0.0, 100.0, 200.0, 300.0, 400.0]);
        assert_eq!(ticks(0.9), [0.0, 0.2, 0.4, 0.6, 0.8]);
        for end in [0.001, 0.37, 3.0, 47.0, 12_345.0] {
            assert!((4..=11).contains(&ticks(end).len()), "{end}: {:?}", ticks(end));
        }
        assert_eq!(ticks(0.0), [0.0]);
    }

    #[test]
    fn every_piece_is_drawn_in_its_lane() {
        let span =
            |start_s, end_s| Span { start_s, end_s, name: "fc".to_owned(), tensor: None, operation: None, bytes: 0 };
        let lane = |name: &str, spans| Lane { name: name.to_owned(), spans };
        let timeline = Timeline {
            lanes: vec![lane("forward", vec![span(0.0, 0.5)]), lane("rank 1", vec![span(0.5, 0.9), span(0.9, 1.0)])],
        };
        assert_eq!(end_s(&timeline), 1.0);
        let page = draw(&timeline, 1.0).in_page("", "x");
        assert_eq!(page.matches("class=\"forward\"").count(), 1);
        assert_eq!(page.matches("class=\"link\"").count(), 2);
        assert!(page.contains("fc: 400.000 ms from 500.000 ms"), "{page}");
    }
}
