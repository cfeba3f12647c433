//! The timeline of a prediction in the trace format of Chrome and Perfetto.

use paceline_predict::iteration::{Lane, Span};
use paceline_predict::{Job, Prediction};
use serde_json::{Value, json};

/// One iteration: a process with a thread for each lane, or several where spans overlap, as those of one thread must not.
/// Times are in microseconds.
pub fn trace_events(job: &Job<'_>, prediction: &Prediction) -> Value {
    // Readers drop what lies before 0, where the iteration before has left something over.
    let first_s = prediction.timeline.iter().map(|span| span.start_s).fold(0.0, f64::min);
    let micros = |seconds: f64| 1e6 * (seconds - first_s);
    let name = format!("{} on {} workers of {}, predicted", job.profile.model, job.workers, job.cluster.name);
    let mut events = vec![
        json!({"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": name}}),
        mark("the iteration begins", micros(0.0)),
        mark("the next iteration begins", micros(prediction.iteration_s)),
    ];
    let buckets: Vec<usize> = prediction.plan.partitions().map(|(bucket, _)| bucket).collect();
    let label = |span: &Span| match (span.tensor, span.operation) {
        (Some(tensor), _) => job.profile.tensors[tensor].name.clone(),
        (None, Some(operation)) => {
            let tensors = &prediction.plan.buckets[buckets[operation]].tensors;
            let first = tensors.first().map_or("nothing", |&tensor| &job.profile.tensors[tensor].name);
            let more = if tensors.len() > 1 { format!(" and {} more", tensors.len() - 1) } else { String::new() };
            format!("{operation}: {first}{more}")
        }
        (None, None) => span.lane.name().to_owned(),
    };
    let mut thread = 0;
    for lane in Lane::ALL {
        let spans = prediction.timeline.iter().filter(|span| span.lane == lane);
        for (number, track) in in_tracks(spans, |span| [span.start_s, span.end_s]).into_iter().enumerate() {
            let name = if number == 0 { lane.name().to_owned() } else { format!("{} ({})", lane.name(), number + 1) };
            events.push(json!({"ph": "M", "name": "thread_name", "pid": 0, "tid": thread, "args": {"name": name}}));
            events.push(json!({
                "ph": "M", "name": "thread_sort_index", "pid": 0, "tid": thread, "args": {"sort_index": thread},
            }));
            events.extend(track.into_iter().map(|span| {
                json!({
                    "ph": "X", "name": label(span), "cat": lane.name(), "pid": 0, "tid": thread,
                    "ts": micros(span.start_s), "dur": 1e6 * (span.end_s - span.start_s),
                })
            }));
            thread += 1;
        }
    }
    json!({"traceEvents": events, "displayTimeUnit": "ms"})
}

fn mark(name: &str, ts: f64) -> Value {
    json!({"ph": "i", "s": "p", "name": name, "pid": 0, "tid": 0, "ts": ts})
}

/// Pieces that begin and end at these times, in as few tracks as it takes for none to begin before the one before it has ended; in
/// each in the order of their starts.
pub fn in_tracks<T>(pieces: impl IntoIterator<Item = T>, times_s: impl Fn(&T) -> [f64; 2]) -> Vec<Vec<T>> {
    let start_of = |piece: &T| times_s(piece)[0];
    let mut pieces: Vec<T> = pieces.into_iter().collect();
    pieces.sort_by(|one, other| start_of(one).total_cmp(&start_of(other)));
    let mut tracks: Vec<Vec<T>> = Vec::new();
    for piece in pieces {
        let start_s = start_of(&piece);
        let free = |track: &&mut Vec<T>| track.last().is_none_or(|last| times_s(last)[1] <= start_s);
        match tracks.iter_mut().find(free) {
            Some(track) => track.push(piece),
            None => tracks.push(vec![piece]),
        }
    }
    tracks
}
