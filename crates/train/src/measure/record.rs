//! Records one more iteration: what each worker and each shard does in it, gathered at worker 0.

use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, ClockOffset, CommError, Communicator, Trace, Traced};
use paceline_plan::{OperationKey, Plan};
use paceline_server::{ShardTrace, ShardWork};

use super::conduct::Conduct;
use super::lanes::{self, Names, PassTimes};
use crate::error::{TrainError, WhileTraining};
use crate::exchange::NotedStartUp;
use crate::peers::Peers;
use crate::recording::PassRecord;
use crate::timeline::{Lane, Process, Span, Timeline, shard_name, worker_name};

/// Iterations that a recording takes: the recorded one, the one whose operations it begins with, and the one in which its
/// own end.
pub const RECORDED_ITERATIONS: usize = 3;
/// Which of them is the recorded one.
const MIDDLE: usize = 1;

/// Frames and pieces of work of a worker that are noted, and as many calls: some iterations of a large model.
const EVENTS_MAX: usize = 1 << 17;

/// Spans of a worker's links that are kept; of more, neighbours are joined.
const LINK_SPANS_MAX: usize = 2048;
/// Frames of an operation with a shorter pause between them count as one: this share of the iteration.
const PAUSE: f64 = 5e-4;

/// Between worker 0 and one worker of each other host, to compare clocks: the shortest counts.
const ROUND_TRIPS: usize = 8;

impl Conduct<'_> {
    /// Records one more iteration; at worker 0, nothing elsewhere. All workers call it, when all operations have ended.
    pub(super) fn record(&mut self) -> Result<Option<Timeline>, TrainError> {
        let peers = self.carrier.peers().clone();
        let workers = peers.workers();
        if let Peers::Servers(server) = &peers {
            server.start_trace()?;
        }
        self.worker.assign(RECORDED_ITERATIONS)?;
        workers.barrier(&CallOptions::default()).while_training("starting together")?;
        self.restart_clock();
        workers.start_trace(EVENTS_MAX);
        self.worker.start_record();
        (0..RECORDED_ITERATIONS).try_for_each(|_| self.iterate())?;
        self.worker.wait_for_all()?;
        let trace = workers.end_trace();
        let (passes, start_ups) = self.worker.end_record();
        let (offset, shards) = match &peers {
            Peers::AllToAll(_) => (compare_clocks(workers)?, Vec::new()),
            Peers::Servers(server) => server.end_trace()?,
        };
        let clock = Clock::agree(workers, offset, &passes)?;
        let names = Names { plan: &self.plan, recorded: passes[MIDDLE].iteration };
        let own = Own { clock: &clock, names, passes: &passes, trace: &trace, start_ups: &start_ups };
        let mut lanes = own.lanes(&peers, self.model.replay.as_ref().map(|replay| &replay.profile));
        let horizon_s = self.slowest(&[own.horizon_s(&lanes)])?[0];
        lanes::cut(&mut lanes, horizon_s, self.options.dilate);
        let process = Process {
            name: worker_name(workers.rank()),
            clock_error_s: offset.error_ns() as f64 / 1e9 / self.options.dilate,
            dropped: trace.dropped,
            dropped_calls: trace.dropped_calls,
            lanes,
        };
        let mut processes = gather(workers, &process)?;
        if workers.rank() > 0 {
            return Ok(None);
        }
        // Those that only wait have nothing to show.
        let serving = shards.iter().take(self.plan.shards);
        processes.extend(serving.map(|trace| shard(trace, &clock, &names, horizon_s, self.options.dilate)));
        Ok(Some(Timeline {
            iteration_s: own.length_s() / self.options.dilate,
            tensors: self.worker.backend.parameters().iter().map(|tensor| tensor.name.clone()).collect(),
            operations: operation_names(&self.plan, |tensor| &self.worker.backend.parameters()[tensor].name),
            processes,
        }))
    }
}

fn compare_clocks(workers: &Communicator) -> Result<ClockOffset, TrainError> {
    workers.compare_clocks(ROUND_TRIPS).while_training("comparing the workers' clocks")
}

/// The time since worker 0 began the recorded iteration.
struct Clock<'a> {
    workers: &'a Communicator,
    offset: ClockOffset,
    zero_ns: i64,
}

impl<'a> Clock<'a> {
    fn agree(workers: &'a Communicator, offset: ClockOffset, passes: &[PassRecord]) -> Result<Clock<'a>, TrainError> {
        let mut zero_ns = [offset.on_rank_0_ns(workers.clock_at(passes[MIDDLE].began))];
        let told = workers.broadcast(&mut zero_ns, 0, &CallOptions::default());
        told.while_training("agreeing when the recorded iteration began")?;
        Ok(Clock { workers, offset, zero_ns: zero_ns[0] })
    }

    fn seconds(&self, time: Duration) -> f64 {
        self.of_worker_0(self.offset.on_rank_0_ns(time))
    }

    fn at(&self, instant: Instant) -> f64 {
        self.seconds(self.workers.clock_at(instant))
    }

    fn of_worker_0(&self, time_ns: i64) -> f64 {
        (time_ns - self.zero_ns) as f64 / 1e9
    }
}

/// What this worker has noted.
struct Own<'a> {
    clock: &'a Clock<'a>,
    names: Names<'a>,
    passes: &'a [PassRecord],
    trace: &'a Trace,
    start_ups: &'a [NotedStartUp],
}

impl Own<'_> {
    fn lanes(&self, peers: &Peers, replay: Option<&paceline_plan::Profile>) -> Vec<Lane> {
        let passes: Vec<PassTimes> = (0..).zip(self.passes).map(|(index, pass)| self.times(index, pass)).collect();
        let mut lanes = lanes::own_thread(&passes, replay);
        let lane = |name: &str, spans| Lane { name: name.to_owned(), spans };
        lanes.push(lane("start-up", self.start_ups(&passes)));
        lanes.push(lane(COMMUNICATION, self.operations()));
        let mut links = self.links(peers);
        lanes::join_neighbours(&mut links, PAUSE * self.length_s(), LINK_SPANS_MAX);
        lanes.extend(links);
        lanes
    }

    fn times(&self, index: i32, pass: &PassRecord) -> PassTimes {
        let at = |instant: Instant| self.clock.at(instant);
        let gate = |gate: &crate::recording::Gate| (gate.parameter, [at(gate.asked), at(gate.waited), at(gate.ended)]);
        PassTimes {
            iteration: index - MIDDLE as i32,
            began_s: at(pass.began),
            gates: pass.gates.iter().map(gate).collect(),
            backward_began_s: at(pass.backward_began),
            announced: pass.announced.iter().map(|one| (one.tensor, [at(one.at), at(one.until)])).collect(),
            ended_s: at(pass.ended),
        }
    }

    /// From forward to forward.
    fn length_s(&self) -> f64 {
        self.clock.at(self.passes[MIDDLE + 1].began) - self.clock.at(self.passes[MIDDLE].began)
    }

    /// Until when there is something to see: the iteration's end, or that of its last operation.
    fn horizon_s(&self, lanes: &[Lane]) -> f64 {
        let operations = lanes.iter().filter(|lane| lane.name == COMMUNICATION).flat_map(|lane| &lane.spans);
        let ends = operations.filter(|span| span.iteration == 0).map(|span| span.end_s);
        ends.fold(self.clock.at(self.passes[MIDDLE + 1].began), f64::max)
    }

    /// A start-up belongs to the iteration whose backward pass began last.
    fn start_ups(&self, passes: &[PassTimes]) -> Vec<Span> {
        let span = |one: &NotedStartUp| {
            let start_s = self.clock.at(one.began);
            let iteration = passes.iter().rev().find(|pass| pass.backward_began_s <= start_s);
            let iteration = iteration.map_or(-(MIDDLE as i32), |pass| pass.iteration);
            let end_s = self.clock.at(one.over);
            Span { start_s, end_s, iteration, operation: Some(one.operation), ..Span::default() }
        };
        lanes::in_order(self.start_ups.iter().map(span).collect())
    }

    /// From when each was started to when it had ended here. One may be several calls, a push and a pull.
    fn operations(&self) -> Vec<Span> {
        let calls = self.trace.events.iter().filter_map(|event| match event.what {
            Traced::Call { key, .. } => self.span(&key, event.start, event.end),
            _ => None,
        });
        let sized = |span: Span| Span { bytes: span.operation.map_or(0, |one| self.names.bytes(one)), ..span };
        lanes::whole_operations(calls.map(sized).collect())
    }

    fn links(&self, peers: &Peers) -> Vec<Lane> {
        let transfers = self.trace.transfers();
        let mut links = Vec::new();
        for (rank, name) in ends(peers, self.names.plan.shards) {
            for (sent, direction) in [(true, "to"), (false, "from")] {
                let of_link = transfers.iter().filter(|one| one.peer == rank && one.sent == sent);
                let spans = of_link.filter_map(|one| {
                    let span = self.span(&one.key, one.start, one.end)?;
                    Some(Span { bytes: one.bytes, ..span })
                });
                let spans = lanes::in_order(spans.collect());
                links.push(Lane { name: format!("{direction} {name}"), spans });
            }
        }
        links
    }

    /// Of an operation of the plan.
    fn span(&self, key: &OperationKey, start: Duration, end: Duration) -> Option<Span> {
        if key.communicator & OperationKey::NAMED == 0 {
            return None;
        }
        let (iteration, operation) = self.names.of(key.plan_version, key.operation)?;
        let (start_s, end_s) = (self.clock.seconds(start), self.clock.seconds(end));
        Some(Span { start_s, end_s, iteration, operation: Some(operation), ..Span::default() })
    }
}

const COMMUNICATION: &str = "communication";

/// The other ends of this worker's links, by their ranks in the world; `shards` serve.
fn ends(peers: &Peers, shards: usize) -> Vec<(usize, String)> {
    let workers = peers.workers();
    let others = (0..workers.world_size()).filter(|&rank| rank != workers.rank());
    let mut ends: Vec<_> = others.map(|rank| (workers.rank_in_world(rank), worker_name(rank))).collect();
    if let Peers::Servers(server) = peers {
        // A shard is the last rank of its group.
        let of_shard = |shard: usize| server.shard(shard).rank_in_world(server.roles().workers());
        ends.extend((0..shards).map(|shard| (of_shard(shard), shard_name(shard))));
    }
    ends
}

fn shard(trace: &ShardTrace, clock: &Clock<'_>, names: &Names<'_>, horizon_s: f64, dilate: f64) -> Process {
    let kinds = [
        ("receiving", ShardWork::Receiving),
        ("adding", ShardWork::Adding),
        ("applying", ShardWork::Applying),
        ("sending", ShardWork::Sending),
    ];
    let lane = |(name, kind): (&str, ShardWork)| {
        let spans = trace.spans.iter().filter(|span| span.work == kind).filter_map(|span| {
            let (iteration, operation) = names.of(span.plan_version, span.id)?;
            let (start_s, end_s) = (clock.of_worker_0(span.start_ns), clock.of_worker_0(span.end_ns));
            Some(Span { start_s, end_s, iteration, operation: Some(operation), bytes: span.bytes, ..Span::default() })
        });
        Lane { name: name.to_owned(), spans: lanes::in_order(spans.collect()) }
    };
    let mut lanes: Vec<Lane> = kinds.into_iter().map(lane).collect();
    lanes::cut(&mut lanes, horizon_s, dilate);
    let clock_error_s = trace.clock_error_ns as f64 / 1e9 / dilate;
    // Its lanes are made of frames and work.
    Process { name: shard_name(trace.shard), clock_error_s, dropped: trace.dropped, dropped_calls: 0, lanes }
}

/// What travels in each operation: `fc.weight`, `conv1.weight … fc.bias (12 tensors)`, either with `, part 1 of 3`.
fn operation_names<'a>(plan: &Plan, name: impl Fn(usize) -> &'a String) -> Vec<String> {
    let mut names = Vec::new();
    for bucket in &plan.buckets {
        let content = match bucket.tensors[..] {
            [] => "nothing".to_owned(),
            [one] => name(one).clone(),
            [first, .., last] => format!("{} … {} ({} tensors)", name(first), name(last), bucket.tensors.len()),
        };
        names.extend((1..=bucket.partitions.len()).map(|part| match bucket.partitions.len() {
            1 => content.clone(),
            parts => format!("{content}, part {part} of {parts}"),
        }));
    }
    names
}

/// What all workers have to say, at worker 0; nothing elsewhere.
fn gather(workers: &Communicator, own: &Process) -> Result<Vec<Process>, TrainError> {
    // A timeline has a form in JSON: names and numbers.
    let own = serde_json::to_vec(own).unwrap_or_default();
    let all = gather_bytes(workers, &own).while_training("gathering the workers' timelines")?;
    let parse = |(rank, bytes): (usize, Vec<u8>)| {
        serde_json::from_slice(&bytes).map_err(|error| TrainError::Disagreement {
            rank,
            subject: "the form of its timeline".into(),
            here: "another one".into(),
            there: format!("`{error}`"),
        })
    };
    all.into_iter().enumerate().map(parse).collect()
}

fn gather_bytes(workers: &Communicator, own: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
    let options = CallOptions::default();
    let mut lengths = vec![0_i64; workers.world_size()];
    workers.all_gather(&[own.len() as i64], &mut lengths, &options)?;
    let lengths: Vec<usize> = lengths.into_iter().map(|length| usize::try_from(length).unwrap_or_default()).collect();
    let is_root = workers.rank() == 0;
    let mut all = vec![0_u8; if is_root { lengths.iter().sum() } else { 0 }];
    workers.gather_variable(own, &mut all, &lengths, 0, &options)?;
    let mut rest = &all[..];
    let mut one = |length: usize| {
        let (one, others) = rest.split_at(length);
        rest = others;
        one.to_vec()
    };
    Ok(lengths.into_iter().take_while(|_| is_root).map(&mut one).collect())
}
