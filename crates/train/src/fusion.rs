//! The threshold of a schedule that fuses is tuned while a training runs, before its calls are: these are what the plan makes of it.
//!
//! A *step* is some iterations under one plan. When it has ended, the ranks take the longest time of each of its iterations, rank 0 says
//! which threshold comes next (`paceline_tune::fusion`), and all go on under its plan. When there is nothing left to try, what stands is
//! the plan, and all-reduces are tuned under it.

use std::collections::BTreeMap;
use std::iter;
use std::mem;
use std::time::{Duration, Instant};

use paceline_comm::{CallOptions, Communicator, Reduction};
use paceline_plan::Plan;
use paceline_schedule::{DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES};
use paceline_strategy::{Call, Strategy, Value};
use paceline_tune::fusion::{FusionSearch, thresholds};

use crate::agreement::Agreement;
use crate::error::{TrainError, WhileTraining};
use crate::planning::{Known, Planning};
use crate::tuning::{FusionReport, IterationGain, TuneOptions, TuningNews};

/// Iterations of a step, of which the first does not count: after a change of plan its memory is new, and it waits for no update before it.
const STEP: usize = 4;

/// One rank's part.
pub(crate) struct FusionTuning {
    workers: Communicator,
    /// By threshold, what is carried out.
    plans: BTreeMap<u64, Plan>,
    /// The threshold of the strategy.
    strategy_bytes: u64,
    /// On rank 0, which decides.
    search: Option<FusionSearch>,
    /// Seconds of the step's iterations so far; infinite if interrupted. The first one's are those of the change of plan, too.
    seconds: Vec<f64>,
    /// When the ranks began to choose the plan of the step, until its first iteration has ended.
    changing: Option<Instant>,
    /// The iteration that runs, or comes next, is not like others.
    interrupted: bool,
    /// The step that runs is one of the search. The one before the first is not: the job begins in it.
    begun: bool,
    /// The iteration before which the next step begins; None: the search has ended.
    boundary: Option<usize>,
    /// Of the job.
    iterations: usize,
}

impl FusionTuning {
    /// From the plan of the strategy, for a job of so many iterations. None: nobody has asked for it, the strategy has no threshold, or one
    /// rank alone trains, whose calls move nothing.
    ///
    /// # Errors
    /// Those of planning; ranks have other thresholds to choose from.
    pub(crate) fn begin(
        options: Option<&TuneOptions>,
        planning: &Planning<'_>,
        plan: &Plan,
        iterations: usize,
    ) -> Result<Option<FusionTuning>, TrainError> {
        let workers = planning.peers.workers();
        let Some(options) = options.filter(|options| options.fusion && workers.world_size() > 1) else {
            return Ok(None);
        };
        let Some(threshold) = Threshold::of(planning.strategy) else { return Ok(None) };
        let others = threshold.others(planning, plan)?;
        let open: [Vec<u64>; 2] = others.each_ref().map(|others| others.iter().map(|(bytes, _)| *bytes).collect());
        let mut agreement = Agreement::default();
        agreement.add("the fusion thresholds that may be tried", format!("{open:?}"));
        agreement.compare(workers)?;
        let search = || FusionSearch::new(threshold.bytes, open, options.seed);
        Ok(Some(FusionTuning {
            workers: workers.clone(),
            plans: others.into_iter().flatten().chain([(threshold.bytes, plan.clone())]).collect(),
            strategy_bytes: threshold.bytes,
            search: (workers.rank() == 0).then(search),
            seconds: Vec::new(),
            changing: None,
            interrupted: false,
            begun: false,
            boundary: Some(STEP),
            iterations,
        }))
    }

    /// An update has taken so long.
    pub(crate) fn note(&mut self, update: Duration) {
        let (interrupted, changing) = (mem::take(&mut self.interrupted), self.changing.take());
        if self.boundary.is_some() {
            let update = changing.map_or(update, |began| update.max(began.elapsed()));
            self.seconds.push(if interrupted { f64::INFINITY } else { update.as_secs_f64() });
        }
    }

    /// What was on its way has arrived: the next update waits for nothing, and its time says nothing.
    pub(crate) fn interrupt(&mut self) {
        self.interrupted = true;
    }

    /// The iteration before which the next step begins; None: the search has ended.
    pub(crate) fn boundary(&self) -> Option<usize> {
        self.boundary
    }

    /// A step has ended: the plan of the next one, which begins with this iteration. All ranks call it.
    ///
    /// # Errors
    /// Those of the calls.
    pub(crate) fn next_step(&mut self, iteration: usize) -> Result<Plan, TrainError> {
        let doing = "choosing the fusion threshold";
        self.changing = Some(Instant::now());
        // An iteration takes as long as on its slowest rank.
        let mut seconds = mem::take(&mut self.seconds);
        let slowest = self.workers.all_reduce(&mut seconds, Reduction::Max, &CallOptions::default());
        slowest.while_training(doing)?;
        let mut told = [0; 2];
        if let Some(search) = &mut self.search {
            if self.begun {
                search.observe(&seconds);
            }
            // Nobody sees the end of the last step: the job ends with what stands.
            let is_last = iteration + STEP >= self.iterations;
            let bytes = if is_last { search.standing() } else { search.threshold() };
            // All bits of it, whatever they mean as a signed number.
            told = [bytes as i64, i64::from(search.is_over())];
        }
        self.workers.broadcast(&mut told, 0, &CallOptions::default()).while_training(doing)?;
        let bytes = told[0] as u64;
        self.begun = true;
        self.boundary = (told[1] == 0).then_some(iteration + STEP);
        self.plans.get(&bytes).cloned().ok_or_else(|| {
            TrainError::Options(format!(
                "rank 0 goes on with a fusion threshold of {bytes} bytes, for which rank {} has no plan; start every \
                 rank with the same program",
                self.workers.rank()
            ))
        })
    }

    /// On rank 0: what it has come to.
    pub(crate) fn report(&self) -> Option<FusionReport> {
        self.search.as_ref().map(|search| FusionReport {
            threshold_bytes: search.standing(),
            strategy_bytes: self.strategy_bytes,
            decided: search.is_over(),
            gain: search.gain().map(IterationGain::from),
            trials: search.trials(),
            on_trial_bytes: search.on_trial(),
            search_cost_s: search.cost_s(),
        })
    }

    /// On rank 0: what has been found out since this was last asked.
    pub(crate) fn take_news(&mut self) -> Vec<TuningNews> {
        let events = self.search.as_mut().map(FusionSearch::take_events).unwrap_or_default();
        events.into_iter().map(TuningNews::Fusion).collect()
    }
}

/// A strategy without a threshold has none that could be tuned.
///
/// # Errors
/// [`TrainError::Options`] says what to choose instead.
pub(crate) fn refuse_without_threshold(strategy: &Strategy) -> Result<(), TrainError> {
    let choose = "choose ddp or schedule=fusion:BYTES on arch=a2a, or leave --tune-fusion out";
    if strategy.is_open() {
        return Err(TrainError::Options(format!(
            "--tune-fusion finds the threshold of a schedule that has one, and with schedule={} and arch={} what is \
             fused is chosen from predictions; {choose}",
            strategy.schedule, strategy.arch
        )));
    }
    match Threshold::of(strategy) {
        Some(_) => Ok(()),
        None => Err(TrainError::Options(format!(
            "--tune-fusion finds the threshold of a schedule that has one, and schedule={} has none; {choose}",
            strategy.schedule
        ))),
    }
}

/// At how many bytes a bucket is sent.
#[derive(Clone, Copy)]
struct Threshold {
    bytes: u64,
    /// Of the first bucket, if that is another number.
    first: Option<u64>,
}

impl Threshold {
    /// That of a strategy, if it has one and leaves nothing open.
    fn of(strategy: &Strategy) -> Option<Threshold> {
        let schedule = &strategy.schedule;
        match schedule.name.as_str() {
            _ if strategy.is_open() => None,
            "ddp" => Some(Threshold { bytes: DDP_BUCKET_BYTES, first: Some(DDP_FIRST_BUCKET_BYTES) }),
            "fusion" => Some(Threshold { bytes: schedule.number(0)?, first: schedule.number(1) }),
            _ => None,
        }
    }

    /// The schedule with another one. Gradients become final in the reverse order of the parameters as long as nobody has measured it, so
    /// that this is what `ddp` does, too. Its first bucket stays as it is where it is not larger than the others.
    fn schedule(self, bytes: u64) -> Call {
        let first = self.first.map(|first| first.min(bytes));
        Call { name: "fusion".to_owned(), arguments: iter::once(bytes).chain(first).map(Value::Bytes).collect() }
    }

    /// The thresholds that may be tried, smaller ones and larger ones, each nearest first, with their plans; the strategy's own plan is
    /// `own`. Of those that make the same buckets, the nearest one is enough.
    fn others(self, planning: &Planning<'_>, own: &Plan) -> Result<[Vec<(u64, Plan)>; 2], TrainError> {
        let all_bytes = (own.elements() * size_of::<f32>()) as u64;
        let mut others: [Vec<(u64, Plan)>; 2] = [Vec::new(), Vec::new()];
        for (others, candidates) in others.iter_mut().zip(thresholds(self.bytes, all_bytes)) {
            for bytes in candidates {
                let strategy = Strategy { schedule: self.schedule(bytes), ..planning.strategy.clone() };
                let plan = planning.plan(&strategy, &Known::default(), None)?;
                let nearer = others.last().map_or(own, |(_, plan)| plan);
                if plan.buckets != nearer.buckets {
                    others.push((bytes, plan));
                }
            }
        }
        Ok(others)
    }
}

#[cfg(test)]
mod tests {
    use paceline_schedule::Schedulers;
    use paceline_tune::Random;
    use paceline_tune::fusion::Event;

    use super::*;
    use crate::on_ranks::on_ranks;
    use crate::peers::Peers;

    /// 32 tensors of 64 KiB.
    const SIZES: [usize; 32] = [16 << 10; 32];

    /// What a rank has seen of a search.
    struct Seen {
        /// By step, the strategy of its plan.
        steps: Vec<String>,
        news: Vec<TuningNews>,
        report: Option<FusionReport>,
    }

    /// Searches from a strategy on, on two ranks, in so many iterations at most. `iteration_ms`: what an iteration takes by the number of its
    /// buckets, on one of the ranks; the other one is always faster. What does not count is much too long, and only where that matters: the
    /// first iteration after a change of plan, and one under another plan than the strategy's, before which an epoch has ended.
    fn search(strategy: &str, iterations: usize, iteration_ms: impl Fn(f64) -> f64 + Sync) -> Vec<Seen> {
        let schedulers = Schedulers::built_in();
        let strategy = schedulers.grammar().parse(strategy).unwrap();
        on_ranks(2, |communicator| {
            let peers = Peers::from(&communicator);
            let planning =
                Planning { strategy: &strategy, schedulers: &schedulers, peers: &peers, sizes: &SIZES, slowed: 1.0 };
            let (mut plan, _) = planning.first(&Known::default(), None).unwrap();
            let options = TuneOptions { fusion: true, ..TuneOptions::default() };
            let tuning = FusionTuning::begin(Some(&options), &planning, &plan, iterations).unwrap();
            let mut tuning = tuning.expect("it has a threshold");
            let mut random = Random::new(1, 0x57e9);
            let (own, mut before, mut steps) = (plan.buckets.len(), plan.buckets.len(), Vec::new());
            while let Some(boundary) = tuning.boundary().filter(|boundary| *boundary < iterations) {
                let buckets = plan.buckets.len();
                for iteration in 0..STEP {
                    let first = if iteration == 0 && buckets != before { 30.0 } else { 1.0 };
                    let has_ended = iteration == 2 && buckets != own && steps.len() % 3 == 0;
                    if has_ended {
                        tuning.interrupt();
                    }
                    let odd = if has_ended { 50.0 } else { 1.0 };
                    let noise = (0.01 * random.normal()).exp();
                    let ms = if communicator.rank() == 1 { iteration_ms(buckets as f64) } else { 0.1 };
                    tuning.note(Duration::from_secs_f64(1e-3 * first * odd * noise * ms));
                }
                before = buckets;
                plan = tuning.next_step(boundary).unwrap();
                steps.push(plan.strategy.clone());
            }
            Seen { steps, news: tuning.take_news(), report: tuning.report() }
        })
    }

    /// Iterations in which every search ends.
    const LONG: usize = 8000;

    /// A valley at eight buckets: 256 KiB of 2 MiB.
    fn valley(buckets: f64) -> f64 {
        1.0 + 0.2 * (buckets.log2() - 3.0).powi(2)
    }

    #[test]
    fn ranks_go_together_to_the_threshold_that_shortens_iterations() {
        for strategy in ["fusion:1MiB", "ddp"] {
            let seen = search(strategy, LONG, valley);
            let [leader, other] = &seen[..] else { panic!("two ranks") };
            assert_eq!(leader.steps, other.steps, "{strategy}: the ranks were under different plans");
            let last = leader.steps.last().expect("some steps");
            assert!(last.contains("schedule=fusion:256KiB"), "{strategy}: {last}");
            let report = leader.report.expect("rank 0 decides");
            assert_eq!((report.threshold_bytes, report.decided), (256 << 10, true), "{strategy}: {report:?}");
            assert!(report.gain.is_some_and(|gain| gain.share > 0.3), "{strategy}: {report:?}");
            let ended = TuningNews::Fusion(Event::Ended { bytes: 256 << 10 });
            assert_eq!(leader.news.last(), Some(&ended), "{strategy}: {:?}", leader.news);
            assert!(other.report.is_none() && other.news.is_empty(), "{strategy}: rank 1 has decided something");
        }
    }

    #[test]
    fn what_is_no_better_leaves_the_plan_of_the_strategy() {
        let seen = search("ddp", LONG, |_| 1.0);
        let last = seen[0].steps.last().expect("some steps");
        assert!(last.contains("schedule=ddp"), "{last}");
        let report = seen[0].report.expect("rank 0 decides");
        assert_eq!((report.threshold_bytes, report.gain), (DDP_BUCKET_BYTES, None), "{report:?}");
        // Iterations take the same, but for those after a change.
        assert!(report.decided && report.trials > 0 && report.search_cost_s > 0.0, "{report:?}");
    }

    /// Whatever is on trial when a job ends, its last step is made with what stands.
    #[test]
    fn a_job_ends_with_what_stands() {
        let mut tried = 0;
        for iterations in (3 * STEP..20 * STEP).step_by(STEP) {
            let seen = search("ddp", iterations, |_| 1.0);
            let last = seen[0].steps.last().expect("some steps");
            assert!(last.contains("schedule=ddp"), "of {iterations} iterations: {last}");
            tried += seen[0].steps.iter().filter(|strategy| strategy.contains("schedule=fusion")).count();
            let report = seen[0].report.expect("rank 0 decides");
            assert!(!report.decided && report.on_trial_bytes.is_some(), "{report:?}");
        }
        assert!(tried > 20, "{tried} steps with another threshold");
    }

    /// Its first trial has found a gain, and the second one has not ended: what was found is not lost.
    #[test]
    fn a_job_that_ends_before_the_search_does_so_with_what_has_won() {
        let seen = search("ddp", 38 * STEP, valley);
        let last = seen[0].steps.last().expect("some steps");
        assert!(last.contains("schedule=fusion:512KiB"), "{last}");
        let report = seen[0].report.expect("rank 0 decides");
        assert_eq!((report.threshold_bytes, report.on_trial_bytes), (512 << 10, Some(256 << 10)), "{report:?}");
        assert!(!report.decided && report.gain.is_some_and(|gain| gain.share > 0.2), "{report:?}");
    }

    #[test]
    fn a_threshold_is_written_as_its_strategy_has_it() {
        let schedulers = Schedulers::built_in();
        let with = |text: &str, bytes| {
            let strategy = schedulers.grammar().parse(text).unwrap();
            Threshold::of(&strategy).map(|threshold| threshold.schedule(bytes).to_string())
        };
        assert_eq!(with("ddp", 12_800 << 10).as_deref(), Some("fusion:12800KiB:1MiB"));
        assert_eq!(with("ddp", 512 << 10).as_deref(), Some("fusion:512KiB:512KiB"));
        assert_eq!(with("fusion:8MiB,arch=ps", 4 << 20).as_deref(), Some("fusion:4MiB"));
        for none in ["wfbp-a2a", "auto", "ddp,arch=auto", "mg-wfbp"] {
            assert_eq!(with(none, 1 << 20), None, "{none}");
        }
    }
}
