//! The timeline of one call on all ranks, as Chrome and Perfetto read it; docs/telemetry.md says what stands in it.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_comm::{CallOptions, ClockOffset, CommError, Communicator, Trace, TraceEvent, Traced};
use paceline_plan::OperationKey;
use serde::Serialize;
use serde_json::{Value, json};

use super::measure::Measurable;
use crate::failure::Failure;
use crate::json_file::JsonFile;

/// Calls before the one that is traced.
const WARM_UP: usize = 3;

/// Between rank 0 and one rank of each other host, to compare clocks.
const ROUND_TRIPS: usize = 64;

/// Events of a rank that are kept of each sort; later ones are counted.
const EVENTS_MAX: usize = 1 << 15;

/// Tells the traced call from the barriers around it.
pub const TAG: u64 = 1;

/// Threads of the timeline: groups of tracks. Events of one track never overlap, so a group has as many as it needs.
const CALLS: usize = 0;
const WORK: usize = 1;
const WAITING: usize = 2;
const ASLEEP: usize = 3;
const LINKS: usize = 4;
const TRACKS_PER_GROUP: usize = 1000;

/// What stands in the file, besides machine and command line.
#[derive(Serialize)]
struct Timeline {
    #[serde(rename = "traceEvents")]
    events: Vec<Value>,
    #[serde(rename = "displayTimeUnit")]
    unit: &'static str,
    /// What a rank's clock may be off by, and the events that found no room; by rank.
    #[serde(rename = "otherData")]
    other: Value,
}

/// Calls a few times, then once more with a trace; rank 0, who has the file, writes what all ranks did. The call carries
/// [`TAG`].
///
/// # Errors
/// Those of the collective; the file cannot be written.
pub fn record(subject: &mut impl Measurable, file: Option<JsonFile>) -> Result<(), Failure> {
    for _ in 0..WARM_UP {
        call(subject)?;
    }
    let clock = subject.communicator().compare_clocks(ROUND_TRIPS)?;
    subject.communicator().start_trace(EVENTS_MAX);
    call(subject)?;
    // What the call leaves behind (returned credit, and what peers say who are slower) belongs to it.
    subject.barrier()?;
    let communicator = subject.communicator();
    let trace = communicator.end_trace();
    let ranks = gather(
        communicator,
        &json!([
            events(communicator, &trace, &clock),
            clock.error_ns() as f64 / 1e3,
            trace.dropped + trace.dropped_calls + trace.dropped_pauses
        ]),
    )?;
    let Some(file) = file else { return Ok(()) };
    let column = |column: usize| ranks.iter().map(|rank| rank[column].clone()).collect::<Vec<_>>();
    let other = json!({"clock_error_us": column(1), "dropped_events": column(2)});
    let events = column(0).into_iter().flat_map(|events| events.as_array().cloned().unwrap_or_default()).collect();
    file.write(&Timeline { events, unit: "ns", other })
}

fn call(subject: &mut impl Measurable) -> Result<(), CommError> {
    subject.refill();
    subject.barrier()?;
    subject.call()
}

/// What each rank has to say, at rank 0; nothing elsewhere.
fn gather(communicator: &Communicator, own: &Value) -> Result<Vec<Value>, Failure> {
    let options = CallOptions::default();
    let own = own.to_string().into_bytes();
    let mut lengths = vec![0_i64; communicator.world_size()];
    communicator.all_gather(&[own.len() as i64], &mut lengths, &options)?;
    let lengths: Vec<usize> = lengths.into_iter().map(|length| length as usize).collect();
    let is_root = communicator.rank() == 0;
    let mut all = vec![0_u8; if is_root { lengths.iter().sum() } else { 0 }];
    communicator.gather_variable(&own, &mut all, &lengths, 0, &options)?;
    let mut rest = &all[..];
    let parse = |length: usize| {
        let (one, others) = rest.split_at(length);
        rest = others;
        let broken = |error| Failure::failed("a rank has sent a timeline that is none").cause(error);
        serde_json::from_slice(one).map_err(broken)
    };
    if is_root { lengths.into_iter().map(parse).collect() } else { Ok(Vec::new()) }
}

/// This rank's events of the traced call, on rank 0's clock, and the names of process and threads.
fn events(communicator: &Communicator, trace: &Trace, clock: &ClockOffset) -> Vec<Value> {
    let rank = communicator.rank();
    let name = format!("rank {rank} on {}", communicator.host(rank));
    let mut events = vec![
        json!({"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "ts": 0, "args": {"name": name}}),
        json!({"name": "process_sort_index", "ph": "M", "pid": rank, "tid": 0, "ts": 0, "args": {"sort_index": rank}}),
    ];
    let is_it = |event: &&TraceEvent| matches!(event.what, Traced::Call { tag: TAG, .. });
    // A rank that sends and receives nothing has no call.
    let Some(call) = trace.events.iter().find(is_it) else { return events };
    let Traced::Call { key, .. } = call.what else { return events };
    let mut of_call: Vec<TraceEvent> = trace.events.iter().filter_map(|event| within(event, call, key)).collect();
    of_call.sort_by_key(|event| event.start);
    let mut tracks = Tracks::default();
    for event in &of_call {
        let tid = tracks.place(group(&event.what), event);
        let (name, category, arguments) = describe(rank, &event.what);
        let ts = clock.on_rank_0_ns(event.start) as f64 / 1e3;
        let dur = (event.end - event.start).as_nanos() as f64 / 1e3;
        events.push(json!({
            "name": name, "cat": category, "ph": "X", "ts": ts, "dur": dur, "pid": rank, "tid": tid, "args": arguments,
        }));
        events.extend(arrow(rank, &event.what).map(|(ph, id)| {
            json!({"name": "message", "cat": "message", "ph": ph, "bp": "e", "id": id, "ts": ts, "pid": rank, "tid": tid})
        }));
    }
    events.extend(tracks.names(rank));
    events
}

/// The event, if it is the call's; of waiting, as much as lies in the call.
fn within(event: &TraceEvent, call: &TraceEvent, of_call: OperationKey) -> Option<TraceEvent> {
    let overlaps = event.start <= call.end && event.end >= call.start;
    let belongs = match &event.what {
        Traced::Call { key, .. } => *key == of_call,
        // Frames of the link itself, such as returned credit, name no operation.
        Traced::Sent(frame) | Traced::Received(frame) => {
            frame.key == of_call || (frame.key == OperationKey::default() && overlaps)
        }
        Traced::Work { key, .. } => *key == Some(of_call),
        Traced::Waiting | Traced::Asleep => {
            let (start, end) = (event.start.max(call.start), event.end.min(call.end));
            return (start < end).then(|| TraceEvent { start, end, what: event.what.clone() });
        }
    };
    belongs.then(|| event.clone())
}

fn group(what: &Traced) -> usize {
    match what {
        Traced::Call { .. } => CALLS,
        Traced::Work { .. } => WORK,
        Traced::Waiting => WAITING,
        Traced::Asleep => ASLEEP,
        Traced::Sent(frame) => LINKS + 2 * frame.peer,
        Traced::Received(frame) => LINKS + 2 * frame.peer + 1,
    }
}

fn group_name(group: usize) -> String {
    match group {
        CALLS => "call".into(),
        WORK => "local work".into(),
        WAITING => "waiting".into(),
        ASLEEP => "asleep".into(),
        link if link % 2 == LINKS % 2 => format!("to rank {}", (link - LINKS) / 2),
        link => format!("from rank {}", (link - LINKS) / 2),
    }
}

/// Name, category and arguments.
fn describe(rank: usize, what: &Traced) -> (String, &'static str, Value) {
    let ends = |from: usize, to: usize, frame: &paceline_comm::Frame| {
        json!({
            "from": from, "to": to, "bytes": frame.bytes, "tile": frame.tile, "message": frame.message,
            "offset": frame.offset, "communicator": frame.key.communicator, "operation": frame.key.operation,
            "part": frame.key.part, "combined": frame.combined,
        })
    };
    match what {
        Traced::Call { key, collective, data_type, bytes, algorithm, failed, .. } => {
            let arguments = json!({
                "bytes": bytes, "dtype": data_type.name(), "algorithm": algorithm, "failed": failed,
                "communicator": key.communicator, "operation": key.operation, "part": key.part,
            });
            (collective.name().into(), "call", arguments)
        }
        Traced::Sent(frame) => (frame.kind.into(), "sent", ends(rank, frame.peer, frame)),
        Traced::Received(frame) => (frame.kind.into(), "received", ends(frame.peer, rank, frame)),
        Traced::Work { work, bytes, peer, .. } => ((*work).into(), "work", json!({"bytes": bytes, "memory_of": peer})),
        Traced::Waiting => ("waiting".into(), "waiting", json!({})),
        Traced::Asleep => ("asleep".into(), "asleep", json!({})),
    }
}

/// Where an arrow from a sent message to its receipt starts or ends.
fn arrow(rank: usize, what: &Traced) -> Option<(&'static str, String)> {
    let (ph, from, to, frame) = match what {
        Traced::Sent(frame) => ("s", rank, frame.peer, frame),
        Traced::Received(frame) => ("f", frame.peer, rank, frame),
        _ => return None,
    };
    let carries = ["data", "reference"].contains(&frame.kind);
    carries.then(|| (ph, format!("{from}-{to}-{}-{}-{}", frame.tile, frame.message, frame.offset)))
}

/// Which tracks there are, and until when each is taken.
#[derive(Default)]
struct Tracks {
    by_group: BTreeMap<usize, Vec<Duration>>,
}

impl Tracks {
    /// The number of a track that is free when the event starts; events come in the order of their start.
    fn place(&mut self, group: usize, event: &TraceEvent) -> usize {
        let tracks = self.by_group.entry(group).or_default();
        let free = tracks.iter().position(|until| *until <= event.start).unwrap_or(tracks.len());
        match tracks.get_mut(free) {
            Some(until) => *until = event.end,
            None => tracks.push(event.end),
        }
        group * TRACKS_PER_GROUP + free
    }

    fn names(&self, rank: usize) -> Vec<Value> {
        let tracks =
            self.by_group.iter().flat_map(|(group, tracks)| (0..tracks.len()).map(move |track| (group, track)));
        let metadata = tracks.flat_map(|(group, track)| {
            let tid = group * TRACKS_PER_GROUP + track;
            let name = match track {
                0 => group_name(*group),
                _ => format!("{} ({})", group_name(*group), track + 1),
            };
            [("thread_name", json!({"name": name})), ("thread_sort_index", json!({"sort_index": tid}))].map(
                |(what, arguments)| json!({"name": what, "ph": "M", "pid": rank, "tid": tid, "ts": 0, "args": arguments}),
            )
        });
        metadata.collect()
    }
}
