//! One run of one cell as a world of ours gives it: the part of it that is judged here.

use paceline_cli::busy_processors;
use paceline_cli::worlds::{InFlight, Overtaking};
use paceline_plan::{LinkCosts, Plan};
use paceline_train::Decision;
use serde::{Deserialize, Serialize};

use super::cluster::cores;
use crate::compare::Error;
use crate::compare::statistics::median;

/// What rank 0 of a world of ours has said (docs/json.md has all of it). Times are those of the undilated machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// In full.
    pub strategy: String,
    /// Under which the counted iterations ran.
    pub plan: Plan,
    /// Seconds of each counted iteration, from one end of the slowest worker's to the next.
    pub iteration_s: Vec<f64>,
    /// Seconds of computation in an iteration.
    pub compute_s: f64,
    /// Seconds per iteration in which a worker waited for communication.
    pub exposed_communication_s: f64,
    /// That left a worker.
    pub bytes_per_iteration: f64,
    /// That left a worker.
    pub messages_per_iteration: f64,
    /// What deciding costs.
    pub scheduling_s_per_tensor: f64,
    /// What links cost, as the ranks measured when they met.
    #[serde(default)]
    pub links: Option<LinkCosts>,
    /// What the formula needs.
    pub inputs: Inputs,
    /// Of a replay.
    pub lateness: Option<Lateness>,
    /// One iteration.
    pub timeline: Option<Timeline>,
    /// What `strategy=auto` has chosen, before the counted iterations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
    /// What was chosen before that, and left as iterations took something else.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub abandoned: Vec<Decision>,
}

/// What the formula needs, as it was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Inputs {
    /// Seconds of forward without waiting.
    pub forward_s: f64,
    /// Seconds of backward.
    pub backward_s: f64,
    /// Seconds of the optimiser.
    pub update_s: f64,
    /// By tensor: seconds from the start of backward until its gradient was final.
    pub ready_s: Vec<f64>,
    /// What an operation costs that has the network for itself.
    pub communication: Option<Communication>,
}

/// alpha + beta · bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Communication {
    /// Seconds per operation.
    pub alpha_s: f64,
    /// Seconds per byte.
    pub beta_s_per_byte: f64,
    /// Bytes and seconds: what was measured.
    #[serde(default)]
    pub points: Vec<(u64, f64)>,
    /// What several small ones took at once, if that was measured.
    #[serde(default)]
    pub in_flight: Option<InFlight>,
    /// The same of large ones.
    #[serde(default)]
    pub large_in_flight: Option<InFlight>,
    /// What it took to overtake those.
    #[serde(default)]
    pub overtaking: Vec<Overtaking>,
}

/// How late the replay's sleeps ended.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Lateness {
    /// Of an iteration's computation.
    pub share: f64,
    /// More than was allowed: [`Measured::punctual`] refuses the run.
    pub overrun: bool,
    /// Processors that were busy while workers waited.
    #[serde(default)]
    pub processors_busy: Option<f64>,
}

/// One iteration on all workers and shards.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timeline {
    /// The workers in the order of their ranks, then the shards.
    pub processes: Vec<Process>,
}

/// What a worker or a shard did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Process {
    /// Calls that found no room: operations are missing in `communication`. (What else found none is of links.)
    #[serde(default)]
    pub dropped_calls: u64,
    /// By name.
    pub lanes: Vec<Lane>,
}

/// What one part of it did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Lane {
    /// `forward`, `backward`, `communication`, …
    pub name: String,
    /// In the order of their starts.
    pub spans: Vec<Span>,
}

/// A piece of work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Span {
    /// Since the start of the iteration.
    pub start_s: f64,
    /// Since the start of the iteration.
    pub end_s: f64,
    /// 0: the recorded one.
    #[serde(default)]
    pub iteration: i32,
}

/// Seconds of one iteration's communication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Seen {
    /// In which operations were under way.
    pub communication_s: f64,
    /// Of them, in backward.
    pub in_backward_s: f64,
}

impl Inputs {
    /// The same on a network on which only bytes take time.
    pub fn without_start_up(&self) -> Inputs {
        let bytes_only = |communication: &Communication| {
            let (_, beta_s_per_byte) = communication.line();
            Communication {
                alpha_s: 0.0,
                beta_s_per_byte,
                points: Vec::new(),
                in_flight: None,
                large_in_flight: None,
                overtaking: Vec::new(),
            }
        };
        Inputs { communication: self.communication.as_ref().map(bytes_only), ..self.clone() }
    }
}

impl Communication {
    /// Seconds for which an operation of so many bytes keeps the channel that all operations share.
    ///
    /// All-to-all, that is what it takes alone. With `shards` servers beside as many workers it is not: alone, a push
    /// and pull of S bytes is bound by its server's NIC, which takes in (n-1)·S bytes while it sends out as many. Together, the
    /// operations of all servers are bound by every NIC's 2(n-1)/n·S, because it serves and works at once; so each takes
    /// 2/n of what it takes alone, and their start-ups go on side by side. (Jiang et al., BytePS, OSDI 2020, §4.1, with no
    /// extra hosts.)
    pub fn on_the_channel(&self, bytes: u64, shards: usize, workers: usize) -> f64 {
        let (alpha_s, beta_s_per_byte) = self.line();
        let transfer_s = beta_s_per_byte * bytes as f64;
        match shards {
            0 => alpha_s + transfer_s,
            shards => alpha_s / shards as f64 + transfer_s * (2.0 / workers as f64).min(1.0),
        }
    }

    /// Seconds per operation and per byte: the slope between the two largest sizes, and what the smallest one takes besides.
    ///
    /// Not the best fit: every measured call comes after a pause, in which the shaper's bucket has filled up, so it moves
    /// the bucket's bytes for free (docs/benchmarking.md); operations that follow each other do not. The slope is without it.
    pub fn line(&self) -> (f64, f64) {
        let mut points = self.points.clone();
        points.sort_by_key(|point| point.0);
        let [(small, small_s), .., (left, left_s), (right, right_s)] = points[..] else {
            return (self.alpha_s, self.beta_s_per_byte);
        };
        let beta_s_per_byte = (right_s - left_s) / (right - left).max(1) as f64;
        ((small_s - beta_s_per_byte * small as f64).max(0.0), beta_s_per_byte.max(0.0))
    }
}

impl Measured {
    /// From the JSON that rank 0 has said.
    pub fn read(result: &str) -> Result<Measured, Error> {
        let measured: Measured =
            serde_json::from_str(result).map_err(|error| format!("a result that cannot be read: {error}"))?;
        if measured.iteration_s.is_empty() { Err("a result without iterations".into()) } else { Ok(measured) }
    }

    /// Refused if the replay could not keep up.
    pub fn punctual(self) -> Result<Measured, Error> {
        match self.lateness {
            Some(Lateness { share, overrun: true, .. }) => Err(format!(
                "the replay of {} could not keep up: it was late by {:.1} % of its computation",
                self.strategy,
                share * 100.0
            )
            .into()),
            _ => Ok(self),
        }
    }

    /// What is to be said of it if the processors of this one machine were slower than the links of its lab.
    pub fn limited(&self) -> Option<String> {
        let processors = cores() as f64;
        let busy = self.lateness.as_ref().and_then(|lateness| lateness.processors_busy);
        let exposed_share =
            self.exposed_communication_s / self.iteration_s.iter().sum::<f64>() * self.iteration_s.len() as f64;
        busy_processors(busy.map(|busy| busy / processors), exposed_share)
            .map(|busy| format!("{:.0} % of the processors were busy while workers waited", 100.0 * busy))
    }

    /// The median over the iterations.
    pub fn median_s(&self) -> f64 {
        median(&self.iteration_s)
    }
}

impl Timeline {
    /// When the operations of the iteration were under way, as worker 0 saw it. None: none was seen, or not all were.
    pub fn seen(&self) -> Option<Seen> {
        let worker = self.processes.first().filter(|worker| worker.dropped_calls == 0)?;
        let of = |name: &str| {
            let spans = worker.lanes.iter().filter(|lane| lane.name == name).flat_map(|lane| &lane.spans);
            union(spans.filter(|span| span.iteration == 0).map(|span| (span.start_s, span.end_s)).collect())
        };
        let (communication, backward) = (of("communication"), of("backward"));
        (!communication.is_empty()).then(|| Seen {
            communication_s: communication.iter().map(|(start, end)| end - start).sum(),
            in_backward_s: overlap_s(&backward, &communication),
        })
    }
}

impl Seen {
    /// The share of the communication that lies in backward.
    pub fn share(&self) -> Option<f64> {
        (self.communication_s > 0.0).then(|| self.in_backward_s / self.communication_s)
    }
}

/// The intervals without their overlaps, in order.
fn union(mut intervals: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    intervals.sort_by(|left, right| left.0.total_cmp(&right.0));
    let mut joined: Vec<(f64, f64)> = Vec::new();
    for (start, end) in intervals {
        match joined.last_mut().filter(|last| start <= last.1) {
            Some(last) => last.1 = last.1.max(end),
            None => joined.push((start, end)),
        }
    }
    joined
}

fn overlap_s(left: &[(f64, f64)], right: &[(f64, f64)]) -> f64 {
    let common = |one: &(f64, f64), other: &(f64, f64)| (one.1.min(other.1) - one.0.max(other.0)).max(0.0);
    left.iter().map(|one| right.iter().map(|other| common(one, other)).sum::<f64>()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_backward_is_counted_once_and_only_if_all_was_seen() {
        let lane = |name: &str, spans: &[(f64, f64, i32)]| Lane {
            name: name.into(),
            spans: spans.iter().map(|&(start_s, end_s, iteration)| Span { start_s, end_s, iteration }).collect(),
        };
        let worker = Process {
            dropped_calls: 0,
            lanes: vec![
                lane("forward", &[(0.0, 1.0, 0)]),
                lane("backward", &[(1.0, 2.0, 0), (2.0, 5.0, 0), (8.0, 9.0, 1)]),
                lane("communication", &[(-1.0, 1.5, -1), (2.0, 4.0, 0), (3.0, 6.0, 0), (6.0, 7.0, 0)]),
                lane("to worker 1", &[(1.0, 3.5, 0)]),
            ],
        };
        let seen_of = |worker: Process| Timeline { processes: vec![worker] }.seen();
        let seen = seen_of(worker.clone()).expect("operations were seen");
        assert_eq!(seen, Seen { communication_s: 5.0, in_backward_s: 3.0 });
        assert_eq!((seen.share(), Seen::default().share()), (Some(0.6), None));
        // A part of the operations is no time, and neither is none of them.
        assert_eq!(seen_of(Process { dropped_calls: 1, ..worker.clone() }), None);
        let others = worker.lanes.iter().filter(|lane| lane.name != "communication").cloned().collect();
        assert_eq!(seen_of(Process { dropped_calls: 0, lanes: others }), None);
        assert_eq!(Timeline { processes: Vec::new() }.seen(), None);
    }

    /// 1 ms per operation and 10 ns per byte, of which the first 100,000 are free; 0.1 ms more for what is small.
    #[test]
    fn a_full_bucket_of_the_shaper_does_not_make_bytes_cheaper() {
        let alone = |bytes: u64| (bytes, 1e-3 + 1e-8 * bytes.saturating_sub(100_000) as f64);
        let points = vec![alone(10_000), alone(1_000_000), alone(10_000_000)];
        let communication = Communication {
            alpha_s: 0.0,
            beta_s_per_byte: 1e-9,
            points,
            in_flight: None,
            large_in_flight: None,
            overtaking: Vec::new(),
        };
        let (alpha_s, beta_s_per_byte) = communication.line();
        assert!(
            (alpha_s - 0.9e-3).abs() < 1e-9 && (beta_s_per_byte - 1e-8).abs() < 1e-14,
            "{alpha_s} {beta_s_per_byte}"
        );
        assert!((communication.on_the_channel(1_000_000, 0, 4) - 10.9e-3).abs() < 1e-9);
        assert!((communication.on_the_channel(1_000_000, 4, 4) - (0.9e-3 / 4.0 + 5e-3)).abs() < 1e-9);
        let fitted = Communication { points: Vec::new(), ..communication };
        assert_eq!(fitted.line(), (0.0, 1e-9));
    }

    #[test]
    fn a_replay_that_was_late_is_refused() {
        let result = |overrun: bool, iterations: &str| {
            format!(
                r#"{{"strategy":"s","plan":{{"version":1,"strategy":"s","buckets":[],"shards":0,"credit_bytes":null,
                "forward_overlap":false,"server_priority_only":false}},"iteration_s":{iterations},"compute_s":1,
                "exposed_communication_s":0,"bytes_per_iteration":1,"messages_per_iteration":1,
                "scheduling_s_per_tensor":0,"inputs":{{"forward_s":1,"backward_s":1,"update_s":0,"ready_s":[],
                "communication":null}},"lateness":{{"share":0.2,"overrun":{overrun}}},"timeline":null}}"#
            )
        };
        let punctual = |text: &str| Measured::read(text).and_then(Measured::punctual);
        assert_eq!(punctual(&result(false, "[3,1,2]")).expect("it counts").median_s(), 2.0);
        let late = punctual(&result(true, "[1]")).expect_err("it was late").to_string();
        assert!(late.contains("20.0 %"), "{late}");
        assert!(Measured::read(&result(false, "[]")).is_err());
        assert!(Measured::read("nothing").is_err());
    }
}
