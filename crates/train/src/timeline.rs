//! What went on in one iteration, on all workers and shards.

use serde::{Deserialize, Serialize};

/// One iteration as it was in the middle of others: what the one before has left over, and what it leaves to the next.
/// Times count from its start on worker 0, in seconds of the undilated machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// How long it took on worker 0, from forward to forward.
    pub iteration_s: f64,
    /// The tensors' names.
    pub tensors: Vec<String>,
    /// By operation of the plan: what travels in it, in words.
    pub operations: Vec<String>,
    /// The workers in the order of their ranks, then the shards.
    pub processes: Vec<Process>,
}

/// What a worker or a shard did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// `worker 0`, `shard 1`.
    pub name: String,
    /// By how many seconds all its times may be wrong against those of worker 0.
    pub clock_error_s: f64,
    /// Frames that found no room: lanes of links (of a shard: all) may have gaps.
    pub dropped: u64,
    /// Of a worker: calls that found none: `communication` may have gaps.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped_calls: u64,
    /// Of a worker: `forward`, `backward`, `waiting` (at the forward gate), `update` and `ready` (when a gradient was
    /// announced) are what its own thread did; `start-up` is there if operations have an artificial one; `communication`
    /// has the operations; then `to NAME` and `from NAME` the bytes on each link. Of a shard: `receiving`, `adding`,
    /// `applying` and `sending` have its partitions.
    pub lanes: Vec<Lane>,
}

/// What one part of a process did. Spans of the worker's own thread follow each other; others may overlap.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lane {
    /// As in [`Process::lanes`].
    pub name: String,
    /// In the order of their starts.
    pub spans: Vec<Span>,
}

/// A piece of work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Negative for what began before the iteration.
    pub start_s: f64,
    /// Not before `start_s`.
    pub end_s: f64,
    /// To which iteration it belongs: 0 is the recorded one, -1 the one before, 1 the one after.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub iteration: i32,
    /// The tensor, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor: Option<usize>,
    /// The operation of the plan, where it belongs to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<usize>,
    /// Its bytes; 0 where it has none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes: u64,
}

fn is_zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Timeline {
    /// What a worker did.
    pub fn worker(&self, rank: usize) -> Option<&Process> {
        self.processes.iter().find(|process| process.name == worker_name(rank))
    }

    /// A span in words: its tensor, or what travels in its operation.
    pub fn label(&self, span: &Span) -> &str {
        let tensor = span.tensor.and_then(|tensor| self.tensors.get(tensor));
        let operation = span.operation.and_then(|operation| self.operations.get(operation));
        tensor.or(operation).map_or("other", String::as_str)
    }
}

impl Span {
    /// Spans in tracks in which none begins before the one before it has ended, as few as it takes; in each in the order
    /// of their starts.
    pub fn in_tracks<'a>(spans: impl IntoIterator<Item = &'a Span>) -> Vec<Vec<&'a Span>> {
        let mut spans: Vec<&Span> = spans.into_iter().collect();
        spans.sort_by(|one, other| one.start_s.total_cmp(&other.start_s));
        let mut tracks: Vec<Vec<&Span>> = Vec::new();
        for span in spans {
            let free = |track: &&mut Vec<&Span>| track.last().is_none_or(|last| last.end_s <= span.start_s);
            match tracks.iter_mut().find(free) {
                Some(track) => track.push(span),
                None => tracks.push(vec![span]),
            }
        }
        tracks
    }
}

impl Process {
    /// The lane of this name, if there is one.
    pub fn lane(&self, name: &str) -> Option<&Lane> {
        self.lanes.iter().find(|lane| lane.name == name)
    }

    /// Events that are missing in its lanes.
    pub fn missing(&self) -> u64 {
        self.dropped + self.dropped_calls
    }

    /// Is it a parameter server's?
    pub fn is_shard(&self) -> bool {
        self.name.starts_with(SHARD)
    }
}

const SHARD: &str = "shard ";

pub(crate) fn worker_name(rank: usize) -> String {
    format!("worker {rank}")
}

pub(crate) fn shard_name(shard: usize) -> String {
    format!("{SHARD}{shard}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_lies_in_tracks() {
        let span = |start_s, end_s| Span { start_s, end_s, ..Span::default() };
        let spans = [span(1.0, 3.0), span(0.0, 2.0), span(2.0, 4.0), span(2.5, 2.6)];
        let starts = |track: &Vec<&Span>| track.iter().map(|span| span.start_s).collect::<Vec<_>>();
        let tracks: Vec<Vec<f64>> = Span::in_tracks(&spans).iter().map(starts).collect();
        assert_eq!(tracks, [vec![0.0, 2.0], vec![1.0], vec![2.5]]);
    }

    #[test]
    fn what_is_not_there_takes_no_room() {
        let span = Span { start_s: 0.5, end_s: 1.0, tensor: Some(3), ..Span::default() };
        let text = serde_json::to_string(&span).unwrap();
        assert_eq!(text, r#"{"start_s":0.5,"end_s":1.0,"tensor":3}"#);
        assert_eq!(serde_json::from_str::<Span>(&text).unwrap(), span);
    }
}
