//! One iteration of a method as lanes: what a worker computes, and under it what travels. Overlap, fusion and priority can
//! be seen.

use paceline_chart::{NARROW, Svg, WIDE};
use paceline_train::{Lane, Process, Span, Timeline};

/// What the lanes and colours are.
pub const LEGEND: &str = "In milliseconds. Before a layer computes forward, the worker waits at its gate for the layer's \
     gradients (waiting) and applies them (update). Communication: every operation from its start to its end at this \
     worker, one above the other where they overlap; paler: what the iteration before has left over. The lanes of a link \
     say when bytes moved; those of a shard, from top to bottom, when it received, added and sent. Dashed: the next \
     iteration begins.";

/// A lane whose spans follow each other.
const LANE: f64 = 15.0;
/// A lane in which many lie above each other.
const LANE_MAX: f64 = 64.0;
/// Of one of them, where there is room.
const TRACK: f64 = 4.0;
const GAP: f64 = 4.0;
const AXIS: f64 = 22.0;
const RIGHT: f64 = 14.0;
/// Shorter pieces are drawn so wide, or they could not be seen.
const PIECE_MIN: f64 = 0.6;
/// Of more links, all that is sent is one lane, and all that is received.
const LINKS_MAX: usize = 4;
/// More shards are not shown: they are alike.
const SHARDS_MAX: usize = 4;

/// Draws what worker 0 and the shards did; `end_s` is where the axis ends, the same for all methods of a panel.
pub fn draw(timeline: &Timeline, end_s: f64, width: f64) -> Svg {
    let narrow = width < (WIDE + NARROW) / 2.0;
    let mut svg = Svg::new(width);
    let left = if narrow { 106.0 } else { 122.0 };
    let axis = Axis { left, length: width - left - RIGHT, end_s: end_s.max(1e-12) };
    let mut top = 0.0;
    for row in rows(timeline) {
        let height = (TRACK * row.tracks() as f64).clamp(LANE, LANE_MAX);
        svg.text(left - 6.0, top + height / 2.0 + 4.0, "end", &row.name);
        svg.rect([left, top, axis.length, height], "lane", "");
        row.draw(timeline, &axis, [top, height], !narrow, &mut svg);
        top += height + GAP;
    }
    let bottom = top - GAP;
    for tick in ticks(end_s * 1e3, if narrow { 2.0 } else { 4.0 }) {
        let at = axis.x(tick / 1e3);
        svg.path(&format!("M{at:.1} 0V{bottom:.1}"), "grid");
        svg.text(at, bottom + 14.0, "middle", &format!("{tick}"));
    }
    if timeline.iteration_s < end_s {
        svg.path(&format!("M{:.1} 0V{bottom:.1}", axis.x(timeline.iteration_s)), "linear");
    }
    svg.text(left - 6.0, bottom + 14.0, "end", "ms");
    svg.reach(bottom + AXIS);
    svg
}

struct Axis {
    left: f64,
    length: f64,
    end_s: f64,
}

impl Axis {
    fn x(&self, seconds: f64) -> f64 {
        self.left + seconds.clamp(0.0, self.end_s) / self.end_s * self.length
    }

    fn pixel_s(&self) -> f64 {
        self.end_s / self.length
    }
}

/// A lane of the drawing.
struct Row<'a> {
    name: String,
    class: &'static str,
    /// Spans of one track do not overlap.
    spans: Vec<Vec<&'a Span>>,
}

impl<'a> Row<'a> {
    /// In as many tracks as it takes.
    fn of(name: impl Into<String>, class: &'static str, spans: impl Iterator<Item = &'a Span>) -> Row<'a> {
        Row { name: name.into(), class, spans: Span::in_tracks(spans) }
    }

    fn tracks(&self) -> usize {
        self.spans.len()
    }

    fn draw(&self, timeline: &Timeline, axis: &Axis, [top, height]: [f64; 2], titles: bool, svg: &mut Svg) {
        let each = height / self.tracks().max(1) as f64;
        for (track, spans) in self.spans.iter().enumerate() {
            let y = top + each * track as f64;
            for (number, piece) in pieces(spans, axis.pixel_s()).into_iter().enumerate() {
                let (start, end) = (axis.x(piece.start_s), axis.x(piece.end_s));
                let class = if piece.span.iteration < 0 && self.class == "link" { "before" } else { self.class };
                // Neighbours differ in height, so that it is seen where one ends and the next begins.
                let inset = if number % 2 == 1 && self.tracks() == 1 { 2.0 } else { 0.0 };
                let rest = if self.tracks() > 1 { (each / 4.0).min(1.0) } else { 0.0 };
                let area = [start, y + inset, (end - start).max(PIECE_MIN), each - 2.0 * inset - rest];
                svg.rect(area, class, &if titles { piece.title(timeline) } else { String::new() });
            }
        }
    }
}

/// What is shown of a timeline.
fn rows(timeline: &Timeline) -> Vec<Row<'_>> {
    let Some(worker) = timeline.worker(0) else { return Vec::new() };
    let own = [
        ("forward", "forward"),
        ("backward", "backward"),
        ("waiting", "waiting"),
        ("update", "other"),
        ("start-up", "other"),
        ("communication", "link"),
    ];
    let own = own.into_iter().filter_map(|(name, class)| Some(Row::of(name, class, worker.lane(name)?.spans.iter())));
    let mut rows: Vec<Row<'_>> = own.collect();
    let directions = [("to ", "sent"), ("from ", "received")];
    let links = |direction: &'static str| worker.lanes.iter().filter(move |lane| lane.name.starts_with(direction));
    for (direction, all) in directions {
        if directions.into_iter().flat_map(|(direction, _)| links(direction)).count() <= LINKS_MAX {
            rows.extend(links(direction).map(|lane| Row::of(&lane.name, "link", lane.spans.iter())));
        } else {
            let spans: Vec<&Span> = links(direction).flat_map(|lane| &lane.spans).collect();
            rows.push(Row::of(all, "link", spans.into_iter()));
        }
    }
    let shards: Vec<&Process> = timeline.processes.iter().filter(|process| process.is_shard()).collect();
    if shards.len() <= SHARDS_MAX {
        rows.extend(shards.into_iter().map(of_shard));
    }
    rows
}

/// Receiving above adding above sending; each in one track, as most of its spans overlap.
fn of_shard(shard: &Process) -> Row<'_> {
    let kinds = ["receiving", "adding", "applying", "sending"];
    let lanes = kinds.into_iter().filter_map(|kind| shard.lane(kind));
    let spans = lanes.map(|lane: &Lane| lane.spans.iter().collect()).collect();
    Row { name: shard.name.clone(), class: "link", spans }
}

/// Spans that are drawn as one.
struct Piece<'a> {
    start_s: f64,
    end_s: f64,
    /// The first of them.
    span: &'a Span,
    count: usize,
}

impl Piece<'_> {
    fn title(&self, timeline: &Timeline) -> String {
        let Piece { start_s, end_s, span, count } = self;
        let more = if *count > 1 { format!(" and {} more", count - 1) } else { String::new() };
        let name = timeline.label(span);
        format!("{name}{more}: {:.3} ms from {:.3} ms", 1e3 * (end_s - start_s), 1e3 * start_s)
    }
}

/// The spans, with neighbours joined that are too short to be told apart where a pixel is `pixel_s` seconds, or that
/// overlap; but none of different iterations.
fn pieces<'a>(spans: &[&'a Span], pixel_s: f64) -> Vec<Piece<'a>> {
    let mut pieces: Vec<Piece<'_>> = Vec::new();
    for &span in spans {
        let short = |start_s: f64, end_s: f64| end_s - start_s < 2.0 * pixel_s;
        let joins = |last: &Piece<'_>| {
            let touches = span.start_s <= last.end_s + 0.5 * pixel_s;
            let small = short(span.start_s, span.end_s) || short(last.start_s, last.end_s);
            (span.start_s < last.end_s || (touches && small)) && last.span.iteration == span.iteration
        };
        match pieces.last_mut().filter(|last| joins(last)) {
            Some(last) => {
                last.end_s = last.end_s.max(span.end_s);
                last.count += 1;
            }
            None => pieces.push(Piece { start_s: span.start_s, end_s: span.end_s, span, count: 1 }),
        }
    }
    pieces
}

/// What could not be noted of the processes that are drawn; None: nothing.
pub fn missing(timeline: &Timeline) -> Option<String> {
    let drawn = timeline.processes.iter().filter(|process| process.name == "worker 0" || process.is_shard());
    let missing: Vec<(&str, u64)> =
        drawn.map(|process| (process.name.as_str(), process.missing())).filter(|(_, events)| *events > 0).collect();
    let names: Vec<&str> = missing.iter().map(|(name, _)| *name).collect();
    let events: u64 = missing.iter().map(|(_, events)| events).sum();
    let text = match events {
        1 => "1 event".to_owned(),
        more => format!("{more} events"),
    };
    (events > 0).then(|| format!("{text} missing ({}): there was no room, and lanes may have gaps", names.join(", ")))
}

/// Until when there is something to see of worker 0: the iteration's end, or that of its last operation.
pub fn end_s(timeline: &Timeline) -> f64 {
    let operations = timeline.worker(0).and_then(|worker| worker.lane("communication"));
    let ends = operations.into_iter().flat_map(|lane| &lane.spans).filter(|span| span.iteration == 0);
    ends.map(|span| span.end_s).fold(timeline.iteration_s, f64::max)
}

/// A few round numbers from 0: at least so many steps of them, and not much more than twice as many.
pub fn ticks(end: f64, at_least: f64) -> Vec<f64> {
    if !(end.is_finite() && end > 0.0) {
        return vec![0.0];
    }
    let magnitude = 10_f64.powf((end / at_least).log10().floor());
    let step = [5.0, 2.0, 1.0].into_iter().map(|factor| factor * magnitude).find(|step| end / step >= at_least);
    let step = step.unwrap_or(magnitude);
    (0..=(end / step) as usize).map(|index| (index as f64 * step * 1e6).round() / 1e6).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    #[test]
    fn axes_have_a_few_round_numbers() {
        assert_eq!(ticks(420.0, 4.0), [0.0, 100.0, 200.0, 300.0, 400.0]);
        assert_eq!(ticks(420.0, 2.0), [0.0, 200.0, 400.0]);
        assert_eq!(ticks(0.9, 4.0), [0.0, 0.2, 0.4, 0.6, 0.8]);
        for end in [0.001, 0.37, 3.0, 47.0, 12_345.0] {
            assert!((4..=11).contains(&ticks(end, 4.0).len()), "{end}: {:?}", ticks(end, 4.0));
            assert!((2..=6).contains(&ticks(end, 2.0).len()), "{end}: {:?}", ticks(end, 2.0));
        }
        assert_eq!(ticks(0.0, 4.0), [0.0]);
    }

    pub fn span(start_s: f64, end_s: f64, iteration: i32) -> Span {
        Span { start_s, end_s, iteration, operation: Some(0), ..Span::default() }
    }

    /// A worker with `links` links and `shards` shards.
    pub fn timeline(links: usize, shards: usize) -> Timeline {
        let lane = |name: &str, spans: Vec<Span>| Lane { name: name.to_owned(), spans };
        let mut lanes = vec![
            lane("forward", vec![span(0.0, 0.5, 0)]),
            lane("communication", vec![span(-0.1, 0.2, -1), span(0.5, 0.9, 0), span(0.6, 1.2, 0)]),
        ];
        lanes.extend((0..links).map(|link| lane(&format!("to worker {}", link + 1), vec![span(0.5, 0.9, 0)])));
        let shard = |shard: usize| Process {
            name: format!("shard {shard}"),
            lanes: ["receiving", "sending"].map(|name| lane(name, vec![span(0.5, 0.8, 0), span(0.7, 0.9, 0)])).into(),
            ..Process::default()
        };
        let worker = Process { name: "worker 0".to_owned(), lanes, ..Process::default() };
        Timeline {
            iteration_s: 1.0,
            tensors: Vec::new(),
            operations: vec!["fc.weight".to_owned()],
            processes: [worker].into_iter().chain((0..shards).map(shard)).collect(),
        }
    }

    #[test]
    fn every_piece_is_drawn_in_its_lane() {
        let timeline = timeline(2, 1);
        assert_eq!(end_s(&timeline), 1.2);
        for width in [WIDE, NARROW] {
            let page = draw(&timeline, 1.2, width).in_page("", "x");
            let count = |class: &str| page.matches(&format!("class=\"{class}\"")).count();
            // Two operations, two links, and what a shard receives and sends.
            assert_eq!((count("forward"), count("before"), count("link"), count("linear")), (1, 1, 6, 1), "{page}");
            assert_eq!(page.contains("fc.weight: 400.000 ms from 500.000 ms"), width == WIDE, "{page}");
            assert!(page.contains("to worker 2") && page.contains("shard 0"));
        }
    }

    #[test]
    fn what_found_no_room_is_said() {
        let mut timeline = timeline(2, 1);
        assert_eq!(missing(&timeline), None);
        (timeline.processes[0].dropped, timeline.processes[0].dropped_calls) = (40, 1);
        assert_eq!(
            missing(&timeline).as_deref(),
            Some("41 events missing (worker 0): there was no room, and lanes may have gaps")
        );
        timeline.processes[1].dropped = 1;
        assert!(missing(&timeline).is_some_and(|text| text.starts_with("42 events missing (worker 0, shard 0)")));
    }

    #[test]
    fn many_links_are_one_and_many_shards_are_not_shown() {
        let names =
            |links, shards| rows(&timeline(links, shards)).iter().map(|row| row.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(5, 5), ["forward", "communication", "sent", "received"]);
        assert_eq!(names(1, 0), ["forward", "communication", "to worker 1"]);
    }
}
