//! From what was noted to the lanes of a timeline. Pure: times are seconds since the start of the recorded iteration.

use std::collections::BTreeMap;

use paceline_plan::{Plan, Profile};

use crate::timeline::{Lane, Span};

/// A pass of forward and backward on the worker's own thread.
#[derive(Clone, Debug)]
pub(super) struct PassTimes {
    /// 0 is the recorded one.
    pub(super) iteration: i32,
    pub(super) began_s: f64,
    /// By parameter, as forward has asked: when it asked, until when it waited for the gradient, when the parameter was
    /// up to date.
    pub(super) gates: Vec<(usize, [f64; 3])>,
    pub(super) backward_began_s: f64,
    /// By tensor, as backward had them: when it was announced, and when that was over.
    pub(super) announced: Vec<(usize, [f64; 2])>,
    pub(super) ended_s: f64,
}

/// `forward`, `backward`, `waiting`, `update` and `ready` of some passes, in their order. A real model computes from one
/// parameter that it asks for to the next, and from one gradient to the next. A replay computes what its profile says,
/// while its gates and announcements take no time from it.
pub(super) fn own_thread(passes: &[PassTimes], replay: Option<&Profile>) -> Vec<Lane> {
    let mut spans = OwnSpans::default();
    for pass in passes {
        spans.add_forward(pass, replay);
        spans.add_backward(pass, replay);
    }
    let OwnSpans { forward, backward, waiting, update, ready } = spans;
    let lane = |(name, spans): (&str, Vec<Span>)| Lane { name: name.to_owned(), spans };
    let all =
        [("forward", forward), ("backward", backward), ("waiting", waiting), ("update", update), ("ready", ready)];
    all.map(lane).into()
}

/// What the worker's own thread did, lane by lane.
#[derive(Default)]
struct OwnSpans {
    forward: Vec<Span>,
    backward: Vec<Span>,
    waiting: Vec<Span>,
    update: Vec<Span>,
    ready: Vec<Span>,
}

impl OwnSpans {
    fn add_forward(&mut self, pass: &PassTimes, replay: Option<&Profile>) {
        let first_s = pass.gates.first().map_or(pass.backward_began_s, |gate| gate.1[0]);
        self.forward.extend(pass.others(pass.began_s, first_s));
        let ends = pass.gates.iter().skip(1).map(|(_, [asked_s, ..])| *asked_s).chain([pass.backward_began_s]);
        for (index, (&(parameter, [asked_s, waited_s, updated_s]), end_s)) in pass.gates.iter().zip(ends).enumerate() {
            if waited_s > asked_s {
                self.waiting.push(pass.span(Some(parameter), asked_s, waited_s));
            }
            match replay {
                None => {
                    self.update.push(pass.span(Some(parameter), waited_s, updated_s));
                    self.forward.push(pass.span(Some(parameter), updated_s, end_s));
                }
                Some(profile) => {
                    let (update_s, steps) = forward_steps(profile, index);
                    let weights: Vec<f64> = [update_s].into_iter().chain(steps.iter().map(|step| step.1)).collect();
                    let mut parts = shares(waited_s, end_s, &weights);
                    let (start_s, end_s) = parts.remove(0);
                    self.update.extend((update_s > 0.0).then(|| pass.span(Some(parameter), start_s, end_s)));
                    self.forward.extend(pass.replayed(&steps, parts));
                }
            }
        }
    }

    fn add_backward(&mut self, pass: &PassTimes, replay: Option<&Profile>) {
        let mut start_s = pass.backward_began_s;
        for (index, &(tensor, [at_s, until_s])) in pass.announced.iter().enumerate() {
            self.ready.push(pass.span(Some(tensor), at_s, at_s));
            match replay {
                None => {
                    self.backward.push(pass.span(Some(tensor), start_s, at_s));
                    start_s = until_s;
                }
                Some(profile) => {
                    let steps = backward_steps(profile, index);
                    let parts = shares(start_s, at_s, &steps.iter().map(|step| step.1).collect::<Vec<_>>());
                    self.backward.extend(pass.replayed(&steps, parts));
                    start_s = at_s;
                }
            }
        }
        self.backward.extend(pass.others(start_s, pass.ended_s));
    }
}

impl PassTimes {
    fn span(&self, tensor: Option<usize>, start_s: f64, end_s: f64) -> Span {
        Span { start_s, end_s: end_s.max(start_s), iteration: self.iteration, tensor, ..Span::default() }
    }

    /// What belongs to no tensor, if it is long enough.
    fn others(&self, start_s: f64, end_s: f64) -> Option<Span> {
        (end_s - start_s > OTHERS_MIN * (self.ended_s - self.began_s)).then(|| self.span(None, start_s, end_s))
    }

    /// Steps of tensor and seconds, and from when to when each of them went on.
    fn replayed(&self, steps: &[(usize, f64)], parts: Vec<(f64, f64)>) -> Vec<Span> {
        let took_time = steps.iter().zip(parts).filter(|(step, _)| step.1 > 0.0);
        took_time.map(|(&(tensor, _), (start_s, end_s))| self.span(Some(tensor), start_s, end_s)).collect()
    }
}

/// What belongs to no tensor is left out if it takes less than this share of the pass.
const OTHERS_MIN: f64 = 1e-3;

/// What a replay does after its gate number `index`: seconds of the update, then steps of tensor and seconds.
fn forward_steps(profile: &Profile, index: usize) -> (f64, Vec<(usize, f64)>) {
    let mut seen = vec![false; profile.tensors.len()];
    let mut groups = 0;
    let mut steps = Vec::new();
    for step in &profile.forward {
        groups += usize::from(!std::mem::replace(&mut seen[step.tensor], true));
        if groups == index + 1 {
            steps.push((step.tensor, step.seconds));
        }
    }
    let elements = |tensor: usize| profile.tensors[tensor].elements as f64;
    let all: f64 = (0..profile.tensors.len()).map(elements).sum();
    let share = steps.first().map_or(0.0, |&(tensor, _)| elements(tensor) / all.max(1.0));
    (profile.update_s * share, steps)
}

/// The steps of a replay, tensor and seconds, that end with announcement number `index`.
fn backward_steps(profile: &Profile, index: usize) -> Vec<(usize, f64)> {
    let mut left = vec![0; profile.tensors.len()];
    profile.backward.iter().for_each(|step| left[step.tensor] += 1);
    let (mut announced, mut steps) = (0, Vec::new());
    for step in &profile.backward {
        if announced == index {
            steps.push((step.tensor, step.seconds));
        }
        left[step.tensor] -= 1;
        announced += usize::from(left[step.tensor] == 0);
    }
    steps
}

/// Cuts an interval in the ratio of the weights.
fn shares(start_s: f64, end_s: f64, weights: &[f64]) -> Vec<(f64, f64)> {
    let all: f64 = weights.iter().sum();
    let (length_s, mut sum) = ((end_s - start_s).max(0.0), 0.0);
    let mut cut = |weight: f64| {
        let before = sum;
        sum += weight;
        let at = |sum: f64| start_s + length_s * if all > 0.0 { sum / all } else { 0.0 };
        (at(before), at(sum))
    };
    weights.iter().map(|&weight| cut(weight)).collect()
}

/// Which operation an id names, and in which iteration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names<'a> {
    pub(super) plan: &'a Plan,
    /// Which iteration is 0.
    pub(super) recorded: u64,
}

impl Names<'_> {
    /// Iteration and operation; none of another plan.
    pub(super) fn of(&self, plan_version: u32, id: u64) -> Option<(i32, usize)> {
        let operations = self.plan.operations() as u64;
        if plan_version != self.plan.version || operations == 0 {
            return None;
        }
        let iteration = (id / operations) as i64 - self.recorded as i64;
        Some((i32::try_from(iteration).ok()?, (id % operations) as usize))
    }

    /// Bytes of an operation.
    pub(super) fn bytes(&self, operation: usize) -> u64 {
        let partition = self.plan.partition(operation).map(|(_, partition)| partition.elements.len());
        (partition.unwrap_or(0) * size_of::<f32>()) as u64
    }
}

/// Joins spans of the same operation and iteration: from the first start to the last end. Their bytes are those of one of
/// them.
pub(super) fn whole_operations(spans: Vec<Span>) -> Vec<Span> {
    let mut joined: BTreeMap<(i32, Option<usize>), Span> = BTreeMap::new();
    for span in spans {
        let whole = joined.entry((span.iteration, span.operation)).or_insert_with(|| span.clone());
        whole.start_s = whole.start_s.min(span.start_s);
        whole.end_s = whole.end_s.max(span.end_s);
    }
    in_order(joined.into_values().collect())
}

pub(super) fn in_order(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by(|one, other| one.start_s.total_cmp(&other.start_s));
    spans
}

/// Joins neighbours in the lanes of links until there are at most `most` spans in all: first pieces of one operation with
/// hardly a pause between them (`pause_s`), then with longer pauses, at last whatever lies near. Spans of a lane are in
/// the order of their starts.
pub(super) fn join_neighbours(lanes: &mut [Lane], pause_s: f64, most: usize) {
    let mut pause_s = pause_s.max(f64::MIN_POSITIVE);
    let end_s = lanes.iter().flat_map(|lane| &lane.spans).map(|span| span.end_s.abs() + span.start_s.abs());
    let longest_s = end_s.fold(pause_s, f64::max);
    let any_after_s = 64.0 * pause_s;
    loop {
        for lane in &mut *lanes {
            lane.spans = joined(std::mem::take(&mut lane.spans), pause_s, pause_s > any_after_s);
        }
        let count: usize = lanes.iter().map(|lane| lane.spans.len()).sum();
        if count <= most.max(lanes.len()) || pause_s > 2.0 * longest_s {
            return;
        }
        pause_s *= 2.0;
    }
}

/// The spans of a lane, in the order of their starts; `any`: also of different operations.
fn joined(spans: Vec<Span>, pause_s: f64, any: bool) -> Vec<Span> {
    let mut out: Vec<Span> = Vec::new();
    for span in spans {
        let alike = |last: &Span| last.operation == span.operation && last.iteration == span.iteration;
        match out.last_mut().filter(|last| span.start_s <= last.end_s + pause_s && (any || alike(last))) {
            Some(last) => {
                if !alike(last) {
                    last.operation = None;
                }
                last.end_s = last.end_s.max(span.end_s);
                last.bytes += span.bytes;
            }
            None => out.push(span),
        }
    }
    out
}

/// What a reader of the recorded iteration sees: all of it, which other workers may begin earlier, and of its neighbours what
/// ended after its start and began before `horizon_s`. Times in seconds of the undilated machine, to the nanosecond.
pub(super) fn cut(lanes: &mut Vec<Lane>, horizon_s: f64, dilate: f64) {
    let nanoseconds = |seconds: f64| (seconds / dilate * 1e9).round() / 1e9;
    for lane in &mut *lanes {
        lane.spans.retain(|span| span.iteration == 0 || (span.end_s >= 0.0 && span.start_s <= horizon_s));
        for span in &mut lane.spans {
            (span.start_s, span.end_s) = (nanoseconds(span.start_s), nanoseconds(span.end_s));
        }
    }
    lanes.retain(|lane| !lane.spans.is_empty());
}

#[cfg(test)]
mod tests {
    use paceline_plan::{ProfileTensor, Step};

    use super::*;

    fn pass() -> PassTimes {
        PassTimes {
            iteration: 0,
            began_s: 0.0,
            gates: vec![(0, [0.0, 2.0, 3.0]), (1, [5.0, 5.0, 5.5])],
            backward_began_s: 9.0,
            announced: vec![(1, [12.0, 12.5]), (0, [20.0, 20.25])],
            ended_s: 21.0,
        }
    }

    fn times(lanes: &[Lane], name: &str) -> Vec<(Option<usize>, f64, f64)> {
        let lane = lanes.iter().find(|lane| lane.name == name).expect("a lane");
        lane.spans.iter().map(|span| (span.tensor, span.start_s, span.end_s)).collect()
    }

    #[test]
    fn a_real_model_computes_between_gates_and_between_gradients() {
        let lanes = own_thread(&[pass()], None);
        assert_eq!(times(&lanes, "waiting"), [(Some(0), 0.0, 2.0)]);
        assert_eq!(times(&lanes, "update"), [(Some(0), 2.0, 3.0), (Some(1), 5.0, 5.5)]);
        assert_eq!(times(&lanes, "forward"), [(Some(0), 3.0, 5.0), (Some(1), 5.5, 9.0)]);
        let backward = [(Some(1), 9.0, 12.0), (Some(0), 12.5, 20.0), (None, 20.25, 21.0)];
        assert_eq!(times(&lanes, "backward"), backward);
        assert_eq!(times(&lanes, "ready"), [(Some(1), 12.0, 12.0), (Some(0), 20.0, 20.0)]);
    }

    /// Tensor 0 is tied: used again at the end of forward, and at the beginning of backward.
    #[test]
    fn a_replay_computes_step_by_step() {
        let tensor =
            |elements: usize| ProfileTensor { name: elements.to_string(), elements, forward_macs_per_sample: 0 };
        let steps = |steps: &[(usize, f64)]| steps.iter().map(|&(tensor, seconds)| Step { tensor, seconds }).collect();
        let profile = Profile {
            schema: Profile::SCHEMA,
            model: String::new(),
            device: String::new(),
            source: String::new(),
            local_batch: 1,
            tensors: vec![tensor(3), tensor(1)],
            forward: steps(&[(0, 1.5), (1, 2.5), (0, 1.0)]),
            backward: steps(&[(0, 1.0), (1, 2.0), (0, 8.0)]),
            update_s: 2.0,
            uncertainty: None,
            memory: None,
            epoch_samples: None,
            recorded_batch: None,
            spread: None,
        };
        let lanes = own_thread(&[pass()], Some(&profile));
        // After 2 s of waiting, 1.5 s of the update and 1.5 s of the first step share the 3 s before the second gate.
        assert_eq!(times(&lanes, "update"), [(Some(0), 2.0, 3.5), (Some(1), 5.0, 5.5)]);
        assert_eq!(times(&lanes, "forward"), [(Some(0), 3.5, 5.0), (Some(1), 5.5, 8.0), (Some(0), 8.0, 9.0)]);
        let backward = [(Some(0), 9.0, 10.0), (Some(1), 10.0, 12.0), (Some(0), 12.0, 20.0), (None, 20.0, 21.0)];
        assert_eq!(times(&lanes, "backward"), backward);
    }

    fn span(operation: usize, start_s: f64, end_s: f64) -> Span {
        Span { start_s, end_s, operation: Some(operation), bytes: 1, ..Span::default() }
    }

    #[test]
    fn neighbours_are_joined_until_few_are_left() {
        let spans =
            vec![span(0, 0.0, 1.0), span(0, 1.05, 2.0), span(1, 2.0, 3.0), span(0, 5.0, 6.0), span(1, 80.0, 81.0)];
        let lanes = |most| {
            let mut lanes = vec![Lane { name: "to worker 1".into(), spans: spans.clone() }];
            join_neighbours(&mut lanes, 0.1, most);
            lanes[0].spans.iter().map(|span| (span.start_s, span.end_s, span.operation, span.bytes)).collect::<Vec<_>>()
        };
        let pieces = [(0.0, 2.0, Some(0), 2), (2.0, 3.0, Some(1), 1), (5.0, 6.0, Some(0), 1), (80.0, 81.0, Some(1), 1)];
        assert_eq!(lanes(100), pieces);
        assert_eq!(lanes(2), [(0.0, 6.0, None, 4), (80.0, 81.0, Some(1), 1)]);
        assert_eq!(lanes(0), [(0.0, 81.0, None, 5)]);
    }

    #[test]
    fn what_lies_outside_is_left_out() {
        let of = |iteration, span| Span { iteration, ..span };
        let before = [span(0, -3.0, -1.0), span(1, -2.0, 0.5)].map(|span| of(-1, span));
        let after = [span(2, 7.0, 9.0), span(3, 8.1, 9.0)].map(|span| of(1, span));
        // Of the recorded iteration, on a worker that was early.
        let own = [span(4, -1.0, -0.5)];
        let spans = before.into_iter().chain(own).chain(after).collect();
        let mut lanes =
            vec![Lane { name: "communication".into(), spans }, Lane { name: "waiting".into(), spans: vec![] }];
        cut(&mut lanes, 8.0, 2.0);
        assert_eq!(lanes.len(), 1);
        let kept: Vec<_> = lanes[0].spans.iter().map(|span| (span.operation, span.start_s, span.end_s)).collect();
        assert_eq!(kept, [(Some(1), -1.0, 0.25), (Some(4), -0.5, -0.25), (Some(2), 3.5, 4.5)]);
    }

    #[test]
    fn an_operation_of_several_calls_is_one() {
        let joined = whole_operations(vec![span(4, 3.0, 5.0), span(2, 1.0, 2.0), span(4, 4.0, 7.0)]);
        assert_eq!(joined, [span(2, 1.0, 2.0), span(4, 3.0, 7.0)]);
    }
}
