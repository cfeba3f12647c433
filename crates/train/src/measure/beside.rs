//! What computation and communication cost each other: passes beside all-reduces that follow one another without a break.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use paceline_comm::{Buffer, CallOptions, CommError, Communicator, Reduction};
use paceline_plan::Constant;
use serde::{Deserialize, Serialize};

use super::cost::Before;
use crate::error::{TrainError, WhileTraining};

/// By which share computation and communication are slower beside each other: the mean over the workers, as all of them know it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interference {
    /// Of each all-reduce.
    pub bytes: u64,
    /// Seconds of one while nobody computes.
    pub call_s: f64,
    /// A pass takes so much longer while all-reduces follow one another without a break. At least 0.
    pub computation: f64,
    /// An all-reduce takes so much longer while all workers compute. At least 0.
    pub communication: f64,
}

impl Interference {
    /// Seconds that each all-reduce costs computation, and seconds that it takes longer itself.
    pub fn lost_s(&self) -> [f64; 2] {
        [self.computation * self.call_s, self.communication * self.call_s]
    }

    /// The same, if times are uncertain by this share.
    pub(crate) fn known_to(&self, uncertain: f64) -> [Constant; 2] {
        self.lost_s().map(|lost_s| {
            let off_s = uncertain.clamp(0.0, 0.9) * (self.call_s + lost_s);
            Constant::between(lost_s, (lost_s - off_s).max(0.0), lost_s + off_s)
        })
    }
}

/// Of an all-reduce: all gradients, if they are not more or less than that.
const BYTES_MIN: usize = 4 << 10;
const BYTES_MAX: usize = 8 << 20;

/// Either of them alone, and both together, for so long at least, and no fewer passes.
const SECONDS: f64 = 0.1;
const PASSES: u64 = 2;

/// Passes beside all-reduces take no more than so many times as long as without: then these end, however many passes there were.
const SLOWER_MAX: f64 = 4.0;

/// Who has nothing to compute rests so long instead: a loop would keep a core busy.
const REST: Duration = Duration::from_millis(1);

/// Measures it, on all workers at the same time: passes without communication, all-reduces of about so many bytes without
/// computation, then both. Takes three tenths of a second and no less than five passes. A worker whose passes compute nothing says
/// nothing of computation.
///
/// # Errors
/// Those of the passes and of the communication.
pub(crate) fn measure_interference(
    workers: &Communicator,
    bytes: usize,
    pass: Before<'_>,
) -> Result<Interference, TrainError> {
    let bytes = bytes.next_multiple_of(size_of::<f32>()).clamp(BYTES_MIN, BYTES_MAX);
    let mut calls = Calls::of(workers, bytes)?;
    // The first ones make their memory.
    calls.alone(0.0)?;
    calls.alone(0.0)?;
    let call_alone_s = calls.alone(SECONDS)?;
    let alone = Passed::without_calls(workers, pass)?;
    let most_s = SLOWER_MAX * alone.total_s.max(SECONDS);
    let (call_beside_s, beside) = calls.beside(most_s, pass)?;
    let longer = |beside_s: f64, alone_s: f64| if alone_s > 0.0 { beside_s / alone_s - 1.0 } else { 0.0 };
    let computes = alone.computed && beside.computed;
    let of_pass = if computes { longer(beside.mean_s(), alone.mean_s()) } else { 0.0 };
    let mut sums = [of_pass, f64::from(computes), longer(call_beside_s, call_alone_s), call_alone_s];
    workers.all_reduce(&mut sums, Reduction::Sum, &CallOptions::default()).while_training(DOING)?;
    let [passes, computing, of_calls, calls_s] = sums;
    let all = workers.world_size() as f64;
    let mean = |sum: f64, count: f64| if count > 0.0 { (sum / count).max(0.0) } else { 0.0 };
    Ok(Interference {
        bytes: bytes as u64,
        call_s: mean(calls_s, all),
        computation: mean(passes, computing),
        communication: mean(of_calls, all),
    })
}

const DOING: &str = "measuring computation beside communication";

/// Passes that were made, and seconds that they took.
#[derive(Default)]
struct Passed {
    count: u64,
    total_s: f64,
    /// Some of them computed something.
    computed: bool,
}

impl Passed {
    /// Enough of them, while all others make them, too: who has enough goes on until all have.
    fn without_calls(workers: &Communicator, pass: Before<'_>) -> Result<Passed, TrainError> {
        let mut alone = Passed::default();
        while !alone.is_enough() {
            alone.make(pass)?;
        }
        let all = workers.start_barrier(&CallOptions::default()).while_training(DOING)?;
        while !all.is_done() {
            Passed::default().make(pass)?;
        }
        all.wait().while_training(DOING)?;
        Ok(alone)
    }

    /// Makes one more.
    fn make(&mut self, pass: Before<'_>) -> Result<(), TrainError> {
        let began = Instant::now();
        pass()?;
        let took = began.elapsed();
        if took < REST / 100 {
            thread::sleep(REST);
        } else {
            self.computed = true;
        }
        self.total_s += began.elapsed().as_secs_f64();
        self.count += 1;
        Ok(())
    }

    fn is_enough(&self) -> bool {
        self.count >= PASSES && self.total_s >= SECONDS
    }

    fn mean_s(&self) -> f64 {
        self.total_s / self.count.max(1) as f64
    }
}

/// All-reduces that follow one another, on a thread of their own that sleeps until each has ended, as when gradients travel.
struct Calls<'a> {
    workers: &'a Communicator,
    buffer: Option<Buffer<f32>>,
}

impl<'a> Calls<'a> {
    fn of(workers: &'a Communicator, bytes: usize) -> Result<Calls<'a>, TrainError> {
        let buffer = workers.alloc(bytes / size_of::<f32>()).while_training(DOING)?;
        Ok(Calls { workers, buffer: Some(buffer) })
    }

    /// Seconds of each of those that are made in so many seconds, where nobody computes; one at least.
    fn alone(&mut self, seconds: f64) -> Result<f64, TrainError> {
        let (call_s, ()) = self.during(&|elapsed_s| elapsed_s >= seconds, |_| Ok(()))?;
        Ok(call_s)
    }

    /// The same while this worker computes, and the passes that ended meanwhile: until all workers have made enough of them, or so many
    /// seconds are over. If a worker's first pass had not ended by then, it counts.
    fn beside(&mut self, most_s: f64, pass: Before<'_>) -> Result<(f64, Passed), TrainError> {
        let enough = AtomicBool::new(false);
        self.during(&|elapsed_s| enough.load(Ordering::Relaxed) || elapsed_s >= most_s, |are_over| {
            let mut passed = Passed::default();
            loop {
                let before_s = passed.total_s;
                passed.make(pass)?;
                if are_over() {
                    // Nothing else went on at the end of the last one.
                    if passed.count > 1 {
                        (passed.count, passed.total_s) = (passed.count - 1, before_s);
                    }
                    return Ok(passed);
                }
                enough.store(passed.is_enough(), Ordering::Relaxed);
            }
        })
    }

    /// Makes them until that is enough for all workers, given the seconds since the first, while this thread does something, which can
    /// ask whether they are over. All workers begin together, and make as many.
    fn during<R>(
        &mut self,
        is_enough: &(dyn Fn(f64) -> bool + Sync),
        work: impl FnOnce(&dyn Fn() -> bool) -> Result<R, TrainError>,
    ) -> Result<(f64, R), TrainError> {
        self.workers.barrier(&CallOptions::default()).while_training(DOING)?;
        let (called, worked) = thread::scope(|scope| {
            let calling = scope.spawn(|| self.make(is_enough));
            let worked = work(&|| calling.is_finished());
            (calling.join().unwrap_or_else(|panic| resume_unwind(panic)), worked)
        });
        // What a worker cannot compute the others learn from its own error.
        let worked = worked?;
        Ok((called.while_training(DOING)?, worked))
    }

    fn make(&mut self, is_enough: &dyn Fn(f64) -> bool) -> Result<f64, CommError> {
        let _woken = self.workers.wake_at_ends(thread::current());
        let everybody = self.workers.world_size() as f32;
        let (began, mut made) = (Instant::now(), 0_u64);
        loop {
            let elapsed_s = began.elapsed().as_secs_f64();
            // A call that fails has taken its buffer along, and ends this.
            let Some(mut buffer) = self.buffer.take() else { return Ok(0.0) };
            // All learn from the sum whether it is enough for all.
            buffer[0] = f32::from(u8::from(is_enough(elapsed_s)));
            let pending = self.workers.start_all_reduce(buffer, Reduction::Sum, &CallOptions::default())?;
            while !pending.is_done() {
                thread::park();
            }
            made += 1;
            let is_over = self.buffer.insert(pending.wait()?)[0] >= everybody;
            if is_over {
                return Ok(began.elapsed().as_secs_f64() / made as f64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::hint::spin_loop;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use rustix::time::{ClockId, clock_gettime};

    use super::*;
    use crate::on_ranks::on_ranks;

    /// Passes that sleep have nothing to lose, and a worker that has none says nothing.
    #[test]
    fn who_needs_no_processor_loses_nothing() {
        let found = on_ranks(2, |workers| {
            let mut pass = || {
                if workers.rank() == 0 {
                    thread::sleep(Duration::from_millis(60));
                }
                Ok(())
            };
            measure_interference(&workers, 1 << 20, &mut pass).unwrap()
        });
        assert_eq!(found[0], found[1], "every worker comes to the same");
        assert_eq!(found[0].bytes, 1 << 20);
        assert!(found[0].computation < 0.8, "{found:?}");
        let nobody = on_ranks(2, |workers| measure_interference(&workers, 1, &mut || Ok(())).unwrap());
        assert_eq!((nobody[0].bytes, nobody[0].computation), (BYTES_MIN as u64, 0.0));
    }

    /// Passes alone begin within so long of the first of all, and those beside all-reduces later.
    fn is_beside(first: &Cell<Option<Instant>>) -> bool {
        let began = first.get().unwrap_or_else(Instant::now);
        first.set(Some(began));
        began.elapsed().as_secs_f64() > SECONDS
    }

    /// A pass that takes twice as long while others are under way is said to.
    #[test]
    fn a_known_slowdown_is_found() {
        let found = on_ranks(2, |workers| {
            let first = Cell::new(None);
            let mut pass = || {
                thread::sleep(Duration::from_millis(if is_beside(&first) { 40 } else { 20 }));
                Ok(())
            };
            measure_interference(&workers, 64 << 10, &mut pass).unwrap()
        });
        assert!((0.4..2.5).contains(&found[0].computation), "{found:?}");
    }

    /// However slow passes become beside all-reduces, these end; and a single pass counts.
    #[test]
    fn passes_that_are_stopped_almost_are_not_waited_for_many_times() {
        let found = on_ranks(2, |workers| {
            let (first, passes) = (Cell::new(None), Cell::new(0));
            let mut pass = || {
                passes.set(passes.get() + 1);
                thread::sleep(Duration::from_millis(if is_beside(&first) { 2000 } else { 60 }));
                Ok(())
            };
            (measure_interference(&workers, 64 << 10, &mut pass).unwrap(), passes.get())
        });
        let (slower, passes) = found[0];
        // One until all others have made theirs alone, as the case may be.
        assert!(passes <= PASSES + 2, "{passes}");
        assert!(slower.computation > 5.0, "{slower:?}");
    }

    /// A worker that cannot compute says so, and the others are not kept.
    #[test]
    fn a_pass_that_fails_ends_it() {
        let failed = on_ranks(2, |workers| {
            let first = Cell::new(None);
            let mut pass = || {
                let fails = is_beside(&first) && workers.rank() == 1;
                thread::sleep(Duration::from_millis(20));
                if fails { Err(TrainError::Options("no more".into())) } else { Ok(()) }
            };
            let measured = measure_interference(&workers, 64 << 10, &mut pass);
            // As whoever measures does.
            measured.inspect_err(|error| workers.abort(&error.to_string())).map_err(|error| error.to_string())
        });
        let told: Vec<&String> = failed.iter().map(|failed| failed.as_ref().unwrap_err()).collect();
        assert!(told.iter().all(|error| error.contains("no more")), "{told:?}");
    }

    /// A pass of twice the time beside calls of a millisecond loses one for each of them, give or take a fifth if times are uncertain by
    /// a tenth.
    #[test]
    fn what_is_uncertain_of_times_is_uncertain_of_what_they_lose() {
        let measured = Interference { bytes: 4096, call_s: 1e-3, computation: 1.0, communication: 0.05 };
        let [computation, communication] = measured.known_to(0.1);
        assert!((computation.low - 0.8e-3).abs() < 1e-12 && (computation.high - 1.2e-3).abs() < 1e-12);
        assert!(communication.low == 0.0 && (communication.high - 0.155e-3).abs() < 1e-12, "{communication:?}");
    }

    /// Seconds of this thread on a processor.
    fn processor_s() -> f64 {
        let time = Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("time does not run backwards");
        time.as_secs_f64()
    }

    /// Two workers on one processor, with all their threads.
    #[test]
    fn what_shares_a_processor_is_slower() {
        let on_one = || {
            let allowed = sched_getaffinity(None).expect("Linux says it");
            let mut first = CpuSet::new();
            first.set((0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).expect("it runs on one"));
            sched_setaffinity(None, &first).expect("a smaller set");
            on_ranks(2, |workers| {
                let mut pass = || {
                    let began = processor_s();
                    while processor_s() - began < 2e-3 {
                        spin_loop();
                    }
                    Ok(())
                };
                measure_interference(&workers, 4 << 20, &mut pass).unwrap()
            })
        };
        // On a thread of its own: what is started there stays on that processor, and nothing else.
        let found = thread::spawn(on_one).join().expect("both ranks end");
        assert!(found[0].computation + found[0].communication > 0.1, "{found:?}");
    }
}
