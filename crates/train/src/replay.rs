//! A backend that computes nothing: it sleeps through a profile, as a processor does while an accelerator computes.

use std::num::NonZeroU64;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use paceline_comm::ProcessorTime;
use paceline_plan::{Profile, ProfileError, TensorId};

mod synthetic;

pub(crate) use synthetic::{Checker, Findings};

use crate::backend::{Access, Backend, BackendError, Evaluation, ForwardGate, SharedSink, Slot, TensorInfo};
use crate::data::{Batch, Inputs};
use crate::sync::lock;
use synthetic::Synthetic;

/// Replays a [`Profile`]: sleeps through forward and backward step by step, asks for parameters before their first
/// forward step, and announces gradients after their last backward step.
///
/// The steps lie on an absolute clock: however late a sleep ends, the next one ends when it should, so that computation
/// takes exactly as long as the profile says, and announcing a gradient takes nothing, as where an accelerator computes.
/// Only a gate that holds forward up moves the clock. Late are a sleep that ends late, and a forward or backward pass whose
/// end finds this thread still busy with what it has announced before.
pub(crate) struct ReplayBackend {
    tensors: Vec<TensorInfo>,
    profile: Profile,
    /// By forward step: it is the first of its tensor.
    first: Vec<bool>,
    /// By backward step: it is the last of its tensor.
    last: Vec<bool>,
    gradients: Synthetic,
    dilate: f64,
    monitor: Arc<Mutex<Monitor>>,
    /// Of the processes whose use of the processors is looked at.
    processors: ProcessorTime,
    /// What this pass has shown so far.
    seen: Seen,
}

/// What whoever measures a replay sees of it.
#[derive(Debug, Default)]
pub(crate) struct Monitor {
    /// When the computation so far is over. `None`: the next pass begins when it is called.
    pub(crate) clock: Option<Instant>,
    /// By pass.
    pub(crate) seen: Vec<Seen>,
}

/// What a pass shows of the processors that the replay has for its communication.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// The longest time by which a sleep, or forward or backward as a whole, ended late.
    pub(crate) late: Duration,
    /// Before and after each wait for communication, and around backward, in the order of time.
    pub(crate) moments: Vec<Moment>,
}

/// A moment of a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) at: Instant,
    /// What this worker's process had had of the processors, and the servers' that it looks at.
    pub(crate) processor: Duration,
    /// Since the moment before, forward has waited for communication.
    pub(crate) has_waited: bool,
}

impl Moment {
    fn now(has_waited: bool, processors: &ProcessorTime) -> Moment {
        Moment { at: Instant::now(), processor: processors.now(), has_waited }
    }
}

/// A sleep shorter than this is not worth its system call.
const SHORTEST_SLEEP: Duration = Duration::from_micros(5);

impl ReplayBackend {
    /// Replays `profile`, `dilate` times slower, as worker `rank` of `workers`.
    ///
    /// # Errors
    /// The profile contradicts itself.
    pub(crate) fn new(profile: &Profile, dilate: f64, rank: usize, workers: usize) -> Result<Self, ProfileError> {
        profile.check()?;
        let mut first = vec![false; profile.forward.len()];
        let mut last = vec![false; profile.backward.len()];
        let mut seen = vec![false; profile.tensors.len()];
        for (step, first) in profile.forward.iter().zip(&mut first) {
            *first = !std::mem::replace(&mut seen[step.tensor], true);
        }
        for (step, last) in profile.backward.iter().zip(&mut last).rev() {
            *last = std::mem::replace(&mut seen[step.tensor], false);
        }
        let tensors = profile.tensors.iter();
        let tensors = tensors.map(|tensor| TensorInfo { name: tensor.name.clone(), shape: vec![tensor.elements] });
        Ok(ReplayBackend {
            tensors: tensors.collect(),
            gradients: Synthetic::new(&profile.sizes(), rank, workers),
            profile: profile.clone(),
            first,
            last,
            dilate,
            monitor: Arc::default(),
            processors: ProcessorTime::default(),
            seen: Seen::default(),
        })
    }

    /// The same, looking at what these processes have of the processors.
    pub(crate) fn watching(self, processors: ProcessorTime) -> Self {
        ReplayBackend { processors, ..self }
    }

    /// The same where sums are not those of the gradients: zeros lie nowhere by themselves, and are written, too.
    pub(crate) fn over_any_sums(mut self) -> Self {
        self.gradients.write_zeros();
        self
    }

    /// What it is given instead of samples.
    pub(crate) fn batch() -> Batch {
        Batch { samples: 1, inputs: Inputs::Values(Vec::new()), targets: Vec::new() }
    }

    /// For whoever measures.
    pub(crate) fn monitor(&self) -> Arc<Mutex<Monitor>> {
        self.monitor.clone()
    }

    /// Goes on computing for so long, and returns when that is over.
    fn compute(&mut self, clock: &mut Instant, seconds: f64) {
        *clock += Duration::from_secs_f64(seconds * self.dilate);
    }

    /// Sleeps until the computation so far is over.
    fn catch_up(&mut self, clock: Instant) {
        let ahead = clock.saturating_duration_since(Instant::now());
        if ahead >= SHORTEST_SLEEP {
            thread::sleep(ahead);
            self.seen.late = self.seen.late.max(clock.elapsed());
        }
    }

    /// Sleeps until a pass is over. What its announcements took should have been made good by now.
    fn finish(&mut self, clock: Instant) {
        self.catch_up(clock);
        self.seen.late = self.seen.late.max(clock.elapsed());
    }

    fn forward(&mut self, gate: &mut dyn ForwardGate, clock: &mut Instant) -> Result<(), BackendError> {
        let elements = self.profile.sizes().iter().sum::<usize>().max(1) as f64;
        for index in 0..self.profile.forward.len() {
            let step = self.profile.forward[index];
            if self.first[index] {
                let late = self.seen.late;
                self.catch_up(*clock);
                let before = Moment::now(false, &self.processors);
                let mut updated = false;
                let held_up = gate.need(step.tensor, &mut |access| {
                    updated = true;
                    access(&mut []);
                    Ok(())
                })?;
                if !held_up.is_zero() {
                    // It would have had to wait here in any case.
                    (self.seen.late, *clock) = (late, Instant::now());
                    self.seen.moments.extend([before, Moment::now(true, &self.processors)]);
                }
                if updated {
                    let share = self.profile.tensors[step.tensor].elements as f64 / elements;
                    self.compute(clock, self.profile.update_s * share);
                }
            }
            self.compute(clock, step.seconds);
        }
        self.finish(*clock);
        Ok(())
    }

    fn backward(&mut self, sink: &SharedSink, clock: &mut Instant) -> Result<(), BackendError> {
        let steps = self.profile.backward.len();
        for index in 0..steps {
            let step = self.profile.backward[index];
            self.compute(clock, step.seconds);
            if self.last[index] {
                // What the last announcement starts is communication: it makes no step of the computation late.
                if index + 1 == steps {
                    self.finish(*clock)
                } else {
                    self.catch_up(*clock)
                }
                self.announce(step.tensor, sink)?;
            }
        }
        if self.last.last() != Some(&true) {
            self.finish(*clock);
        }
        Ok(())
    }

    fn announce(&mut self, tensor: TensorId, sink: &SharedSink) -> Result<(), BackendError> {
        let gradients = &self.gradients;
        let written = lock(sink).write(tensor, &mut |start, place| gradients.write(tensor, start, place))?;
        if written {
            return Ok(());
        }
        Err(BackendError { doing: "handing over a gradient", message: "the sink has no place for it".into() })
    }
}

impl Backend for ReplayBackend {
    fn parameters(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn buffers(&self) -> &[TensorInfo] {
        &[]
    }

    /// There are no values.
    fn access(&mut self, _slot: Slot, access: Access<'_>) -> Result<(), BackendError> {
        access(&mut []);
        Ok(())
    }

    fn gradients(
        &mut self,
        _batch: &Batch,
        gate: &mut dyn ForwardGate,
        sink: &SharedSink,
    ) -> Result<f64, BackendError> {
        // By default a sleep may end 50 us late; many steps are shorter.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        self.gradients.advance();
        self.seen = Seen::default();
        let mut clock = lock(&self.monitor).clock.unwrap_or_else(Instant::now);
        self.forward(gate, &mut clock)?;
        lock(sink).backward_begins();
        self.seen.moments.push(Moment::now(false, &self.processors));
        self.backward(sink, &mut clock)?;
        self.seen.moments.push(Moment::now(false, &self.processors));
        let mut monitor = lock(&self.monitor);
        monitor.clock = Some(clock);
        monitor.seen.push(std::mem::take(&mut self.seen));
        Ok(0.0)
    }

    fn evaluate(&mut self, _batch: &Batch) -> Result<Evaluation, BackendError> {
        Ok(Evaluation::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{GradientSink, Lend, SinkClosed};

    /// Starting the exchange takes this long: long beside what a busy machine keeps a thread waiting.
    const START: Duration = Duration::from_millis(800);

    /// Takes its time behind this tensor's gradient.
    struct SlowSink(TensorId);

    impl GradientSink for SlowSink {
        fn ready(&mut self, _parameter: TensorId, _gradient: Option<&[f32]>) -> Result<(), SinkClosed> {
            Ok(())
        }

        fn write(&mut self, parameter: TensorId, _: &mut dyn FnMut(usize, &mut [f32])) -> Result<bool, SinkClosed> {
            if parameter == self.0 {
                thread::sleep(START);
            }
            Ok(true)
        }
    }

    /// Holds up each first step by this much, or says so.
    struct Gate(Duration);

    impl ForwardGate for Gate {
        fn need(&mut self, _parameter: TensorId, _values: Lend<'_>) -> Result<Duration, BackendError> {
            Ok(self.0)
        }
    }

    /// The lateness of the second or the third of three passes, in which backward of tensor 0 takes so long: of the one that a
    /// busy machine has held up less.
    fn later(last_s: f64, sink: SlowSink, gate: &mut Gate) -> Duration {
        let profile = format!(
            r#"{{"schema": 1, "model": "two", "device": "none", "source": "made up",
                "local_batch": 1, "update_s": 0,
                "tensors": [{{"name": "a", "elements": 1}}, {{"name": "b", "elements": 1}}],
                "forward": [{{"tensor": 0, "seconds": 0.001}}, {{"tensor": 1, "seconds": 0.001}}],
                "backward": [{{"tensor": 1, "seconds": 0.001}}, {{"tensor": 0, "seconds": {last_s}}}]}}"#,
        );
        let profile: Profile = serde_json::from_str(&profile).unwrap();
        let mut replay = ReplayBackend::new(&profile, 1.0, 0, 1).unwrap();
        let sink: SharedSink = Arc::new(Mutex::new(sink));
        for _ in 0..3 {
            replay.gradients(&ReplayBackend::batch(), gate, &sink).unwrap();
        }
        let seen = &lock(&replay.monitor).seen;
        seen[1].late.min(seen[2].late)
    }

    #[test]
    fn what_waits_for_communication_is_not_late() {
        let held_up = later(0.001, SlowSink(0), &mut Gate(Duration::from_millis(1)));
        assert!(held_up < START / 2, "{held_up:?}: starting the exchange is communication");
        // Forward would have begun as long ago.
        let open = later(0.001, SlowSink(0), &mut Gate(Duration::ZERO));
        assert!(open > START / 2, "{open:?}: nothing but this worker held it up");
    }

    #[test]
    fn an_announcement_that_is_made_good_before_the_end_is_not_late() {
        let made_good = later(2.0 * START.as_secs_f64(), SlowSink(1), &mut Gate(Duration::ZERO));
        assert!(made_good < START / 2, "{made_good:?}: the accelerator went on meanwhile");
        let not = later(0.001, SlowSink(1), &mut Gate(Duration::ZERO));
        assert!(not > START / 2, "{not:?}: the pass ended late");
    }
}
