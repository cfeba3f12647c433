//! What is told of calls that are tuned while a job runs.

use std::fmt;
use std::time::Duration;

use paceline_strategy::{Strategy, Value};
use paceline_tune::environment::CostModel;
use paceline_tune::fusion;
use paceline_tune::learner::Lesson;
use paceline_tune::prior::Regime;
use paceline_tune::trial::Gain;
use paceline_tune::whole::{Stage, Whole};
use paceline_tune::{Congestion, Context, Policy, Tuner, atlas};
use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::tuned::TunedProgram;

/// That all-reduces are tuned while the job runs, and what is known beforehand.
#[derive(Clone, Debug, PartialEq)]
pub struct TuneOptions {
    /// What earlier jobs have learned on this cluster. Only rank 0's count.
    pub lessons: Vec<Lesson>,
    /// All-reduces of the caller's that may be chosen besides the library's, for as many workers as there are; others are never
    /// chosen. The same on all ranks, in the same order.
    pub programs: Vec<TunedProgram>,
    /// Of everything left to chance.
    pub seed: u64,
    /// How long calls are rehearsed at most before they are tuned, all kinds together: each kind of which no lesson tells anything
    /// is made with all that can be chosen, and what wins goes into a trial as soon as the job runs. Zero: not at all.
    pub rehearsal: Duration,
    /// Iterations that a measurement spends at most on learning, before those that count.
    pub iterations: usize,
    /// In a training, find the threshold of a schedule that fuses (`ddp`, `fusion:BYTES`) first, by the time of its iterations; calls
    /// are tuned under what stands then.
    pub fusion: bool,
}

impl TuneOptions {
    /// So many, where nobody says it: contexts with one call in each iteration take about 300, and the trial of the iterations up to 96
    /// more.
    pub const ITERATIONS_MAX: usize = 400;

    /// For how long calls are rehearsed where nobody says it.
    pub const REHEARSAL: Duration = Duration::from_secs(1);

    /// What must be the same on all ranks.
    pub(crate) fn of_all_ranks(&self) -> TuneOptions {
        TuneOptions { lessons: Vec::new(), ..self.clone() }
    }
}

/// Where gradients go to servers and back, or are gathered because they are compressed, there is nothing to choose from yet.
pub(crate) fn refuse_without_all_reduces(option: &str, strategy: &Strategy) -> Result<(), TrainError> {
    if let Some(compressor) = strategy.compressor() {
        return Err(TrainError::Options(format!(
            "{option} chooses how all-reduces are done, and what compress={compressor} makes is gathered; choose \
             compress=none, or leave {option} out"
        )));
    }
    if strategy.arch.name != "ps" {
        return Ok(());
    }
    Err(TrainError::Options(format!(
        "{option} chooses how all-reduces are done, and with arch={} gradients go to servers and back, which can be done \
         in one way only; choose arch=a2a, or leave {option} out",
        strategy.arch
    )))
}

impl Default for TuneOptions {
    fn default() -> TuneOptions {
        TuneOptions {
            lessons: Vec::new(),
            programs: Vec::new(),
            seed: 1,
            rehearsal: Duration::ZERO,
            iterations: TuneOptions::ITERATIONS_MAX,
            fusion: false,
        }
    }
}

/// What tuning has come to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuningReport {
    /// What stands.
    pub standing: TuningStanding,
    /// Of the iteration; None where none was found.
    pub gain: Option<IterationGain>,
    /// Iterations so far.
    pub tuned_iterations: u64,
    /// Trials of single calls that were begun.
    pub trials: u32,
    /// Trials of iterations that were begun.
    pub iteration_trials: u32,
    /// Policies so far: each is a change of choices.
    pub policies: u64,
    /// Choices of which earlier jobs have told what they take.
    pub remembered: usize,
    /// Seconds of all calls that were timed, each as on the rank that came last.
    pub measured_s: f64,
    /// How many of them would have been saved, had what stands now stood from the start, or since the network has last changed.
    pub regret_s: f64,
    /// Seconds for which the ranks have told each other what they measured, and rank 0 has decided.
    pub boundaries_s: f64,
    /// Seconds of calls before calls were tuned, which were made for their times only.
    #[serde(default)]
    pub rehearsal_s: f64,
    /// How much others were in the way at last, as all ranks agreed; None: nobody has looked.
    #[serde(default)]
    pub congestion: Option<Congestion>,
    /// Which fusion threshold stands, if it was tuned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fusion: Option<FusionReport>,
    /// One for each context.
    pub contexts: Vec<TunedContext>,
    /// What a later job may begin with; empty where somebody else keeps it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lessons: Vec<Lesson>,
    /// What stands, for jobs that follow it without learning; a file of its own form keeps it
    /// ([`paceline_tune::policy_file`]). No rules where the default stands, or where nothing is decided.
    #[serde(skip)]
    pub policy: Policy,
}

/// What stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TuningStanding {
    /// Not everything is decided.
    Learning,
    /// Iterations with and without what was found take turns.
    OnTrial,
    /// What was found: iterations take less time with it.
    Tuned,
    /// The default: nothing looked better call by call.
    Unchanged,
    /// The default: calls may have become faster, but iterations have not.
    NoSignificantGain,
}

impl TuningStanding {
    /// Where the choices of all calls together stand, and what iterations gain by them.
    pub fn of(whole: &Whole) -> (TuningStanding, Option<IterationGain>) {
        match (whole.stage(), whole.gain()) {
            (Stage::OnTrial { .. }, _) => (TuningStanding::OnTrial, None),
            // Also while a call is explored again, or where more was tried in vain.
            (Stage::Learning | Stage::Stands { .. } | Stage::Unused { .. }, Some(gain)) => {
                (TuningStanding::Tuned, Some(gain.into()))
            }
            (Stage::Learning, None) => (TuningStanding::Learning, None),
            (Stage::Stands { .. }, None) => (TuningStanding::Unchanged, None),
            (Stage::Unused { .. }, None) => (TuningStanding::NoSignificantGain, None),
        }
    }
}

/// By how much iterations are shorter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct IterationGain {
    /// The share of the default's time that is saved.
    pub share: f64,
    /// How far that may be off, to each side.
    pub share_margin: f64,
    /// That chance alone looks like it.
    pub probability: f64,
}

impl From<Gain> for IterationGain {
    fn from(Gain { share, margin, probability, .. }: Gain) -> IterationGain {
        IterationGain { share, share_margin: margin, probability }
    }
}

impl fmt::Display for IterationGain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IterationGain { share, share_margin, probability } = self;
        let (share, margin) = (100.0 * share, 100.0 * share_margin);
        write!(f, "iterations take {share:.1} % ± {margin:.1} less time (p = {probability:.0e})")
    }
}

/// What stands, in a line.
impl fmt::Display for TuningReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.standing, self.gain) {
            (TuningStanding::Tuned, Some(gain)) => write!(f, "{gain} with what was found"),
            _ if self.fusion.is_some_and(|fusion| !fusion.decided) => {
                f.write_str("calls were not tuned yet, as the fusion threshold was not decided")
            }
            (TuningStanding::Learning, _) => {
                let so_far = self.tuned_iterations;
                write!(f, "not decided after {so_far} iterations; it takes about 300, and more where times vary much")
            }
            (TuningStanding::OnTrial, _) => {
                write!(f, "after {} iterations, what was found was still on trial", self.tuned_iterations)
            }
            (TuningStanding::NoSignificantGain, _) => {
                f.write_str("no significant gain: calls may be faster, iterations are not, and the default stays")
            }
            (TuningStanding::Unchanged | TuningStanding::Tuned, _) => {
                f.write_str("nothing is better than the default, which stays")
            }
        }
    }
}

/// Which fusion threshold stands.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FusionReport {
    /// Bytes at which a bucket is sent.
    pub threshold_bytes: u64,
    /// The same as the strategy has it.
    pub strategy_bytes: u64,
    /// Is there nothing left to try? If not, the job has ended before.
    pub decided: bool,
    /// Of the iteration, against the threshold of the strategy; None where none was found.
    pub gain: Option<IterationGain>,
    /// Trials of thresholds that were begun.
    pub trials: u32,
    /// What was on trial when training ended.
    pub on_trial_bytes: Option<u64>,
    /// Seconds that iterations have taken more than as many under what stood, while thresholds were tried; less than 0 if what has won has
    /// saved more.
    #[serde(default)]
    pub search_cost_s: f64,
}

/// In words.
impl fmt::Display for FusionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [stands, before] = [self.threshold_bytes, self.strategy_bytes].map(Value::Bytes);
        match (self.gain, self.decided) {
            (Some(gain), _) => write!(f, "the fusion threshold is {stands} instead of {before}: {gain}"),
            (None, true) if self.trials == 0 => {
                write!(f, "the fusion threshold stays {before}: no other one makes other buckets")
            }
            (None, true) => write!(f, "the fusion threshold stays {before}: no other one was found to be better"),
            (None, false) => write!(f, "the fusion threshold is not decided: {before}, as the strategy has it"),
        }?;
        if let Some(bytes) = self.on_trial_bytes.map(Value::Bytes) {
            write!(f, "; {bytes} was still on trial when training ended")?;
        }
        match self.search_cost_s {
            _ if self.trials == 0 => Ok(()),
            saved if saved < 0.0 => write!(f, "; the search has saved {:.3} s", -saved),
            cost => write!(f, "; the search has cost {cost:.3} s"),
        }
    }
}

/// What was learned of a context.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunedContext {
    /// What choices distinguish.
    pub context: Context,
    /// How much was to be spent.
    pub regime: Regime,
    /// The rule that decided that.
    pub rule: String,
    /// V = f(N)/(M·I); None if infinite, or unknown.
    pub ratio: Option<f64>,
    /// Calls that were decided.
    pub calls: u64,
    /// Of them, those of choices that were tried.
    pub explored: u64,
    /// Times that the network changed.
    pub drifts: u32,
    /// What is best, call by call.
    pub best: String,
    /// How sure that is.
    pub certainty: String,
    /// The share of the default's time that a call saves; None where nothing was found.
    pub gain: Option<f64>,
    /// Seconds of a call of the default; None if unknown.
    pub default_s: Option<f64>,
    /// The same of what is best.
    pub chosen_s: Option<f64>,
    /// How many times as long a call takes with what is best as bandwidth alone would, which is what the C2C ratio counts with; None if
    /// unknown.
    #[serde(default)]
    pub over_bandwidth: Option<f64>,
    /// Is it decided, and would only fewer bytes make it much faster?
    pub lossless_saturated: bool,
    /// If so, some compressors, and how many times as fast each would make it at best.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compression: Vec<(String, f64)>,
}

impl TunedContext {
    /// As a row of the atlas has it.
    pub fn of(row: &atlas::Row) -> TunedContext {
        let compression = row.saturated.iter().flatten().map(|(name, faster)| ((*name).to_owned(), *faster));
        TunedContext {
            context: row.context,
            regime: row.regime,
            rule: row.why.to_owned(),
            ratio: Some(row.ratio).filter(|ratio| ratio.is_finite()),
            calls: row.calls,
            explored: row.explored,
            drifts: row.drifts,
            best: row.best.clone(),
            certainty: row.certainty.clone(),
            gain: row.gain,
            default_s: row.default_s,
            chosen_s: row.chosen_s,
            over_bandwidth: row.over_bandwidth,
            lossless_saturated: row.saturated.is_some(),
            compression: compression.collect(),
        }
    }

    /// Is it decided what stands?
    pub fn is_decided(&self) -> bool {
        self.certainty != atlas::LEARNING
    }
}

/// Everything that a tuner has learned, context by context.
pub(crate) fn contexts(tuner: &Tuner, model: &dyn CostModel) -> Vec<TunedContext> {
    let context = |row: atlas::Row| {
        let learned = TunedContext::of(&row);
        // What NCCL calls channels are lanes here.
        TunedContext { best: learned.best.replace(" channels", " lanes"), ..learned }
    };
    atlas::rows(tuner, model).into_iter().map(context).collect()
}

/// How much of an iteration a policy decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowedOperations {
    /// All-reduces for which it has a rule that can be carried out here.
    pub operations: usize,
    /// All of them.
    pub all: usize,
    /// Rules of the policy that say nothing in this world: for other ranks, hosts or links, or for what cannot be done here.
    #[serde(default)]
    pub rules_elsewhere: usize,
}

/// In words.
impl fmt::Display for FollowedOperations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FollowedOperations { operations, all, rules_elsewhere } = self;
        match operations {
            0 => {
                write!(f, "the policy has no rule for any of the {all} all-reduces of an iteration: all stays as it is")
            }
            _ => write!(f, "the policy says how {operations} of the {all} all-reduces of an iteration are done"),
        }?;
        match rules_elsewhere {
            0 => Ok(()),
            1 => f.write_str("; one rule is not for this world"),
            rules => write!(f, "; {rules} rules are not for this world"),
        }
    }
}

/// Something that a tuner has found out, as a line of a log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TuningNews {
    /// Calls were made before they are tuned, to see what is fastest.
    Rehearsed {
        /// Of so many kinds.
        kinds: usize,
        /// Of so many of them, something has won against the default.
        won: usize,
        /// What it took.
        seconds: f64,
    },
    /// So many contexts have something better than the default, call by call: now the time of the iteration decides.
    Trial {
        /// How many.
        contexts: usize,
    },
    /// It stands.
    Tuned(IterationGain),
    /// Iterations took no less: the default stays.
    NoSignificantGain,
    /// Nothing looked better than the default.
    Unchanged,
    /// The network is no longer what it was, or it was decided long ago: calls are looked at again.
    Again,
    /// A policy that was learned elsewhere is followed.
    Followed(FollowedOperations),
    /// Something about the fusion threshold.
    Fusion(fusion::Event),
}

impl fmt::Display for TuningNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TuningNews::Rehearsed { kinds, won, seconds } => {
                write!(f, "rehearsed calls of {kinds} contexts in {seconds:.2} s: {won} can be faster")
            }
            TuningNews::Trial { contexts } => {
                write!(f, "calls of {contexts} contexts can be faster; now the time of the iteration decides")
            }
            TuningNews::Tuned(gain) => write!(f, "{gain} with what was found: it stays"),
            TuningNews::NoSignificantGain => {
                f.write_str("no significant gain for the iteration: everything stays as it was")
            }
            TuningNews::Unchanged => f.write_str("nothing is better than the default: everything stays as it was"),
            TuningNews::Followed(followed) => write!(f, "{followed}"),
            TuningNews::Again => f.write_str("learning again: the network has changed, or it is long ago"),
            TuningNews::Fusion(event) => write_fusion(event, f),
        }
    }
}

fn write_fusion(event: &fusion::Event, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match *event {
        fusion::Event::Trial { bytes, standing } => {
            let [bytes, standing] = [bytes, standing].map(Value::Bytes);
            write!(f, "a fusion threshold of {bytes} is tried against {standing}")
        }
        fusion::Event::Gain { bytes, gain } => {
            let (bytes, gain) = (Value::Bytes(bytes), IterationGain::from(gain));
            write!(f, "{gain} with a fusion threshold of {bytes}: it stands")
        }
        fusion::Event::NoSignificantGain { bytes } => {
            write!(f, "no significant gain with a fusion threshold of {}", Value::Bytes(bytes))
        }
        fusion::Event::NotMeasured { bytes } => {
            write!(f, "no iteration with a fusion threshold of {} could be compared", Value::Bytes(bytes))
        }
        fusion::Event::Ended { bytes } => {
            write!(f, "the fusion threshold is {} from here on; calls are tuned under it", Value::Bytes(bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_plan::Cluster;
    use paceline_tune::Situation;
    use paceline_tune::environment::{Call, OwnModel};

    use super::*;
    use crate::tuned::tests::CALL;

    #[test]
    fn what_only_fewer_bytes_would_help_is_told_with_what_they_bring() {
        let model = OwnModel::of(&Cluster::named("study-10gbe:4x1").unwrap());
        let state = model.state(&Call { bytes: 1 << 20, ranks: 4, hosts: 4, ..CALL });
        // A call of which nothing can be chosen, and which takes twice what bandwidth alone would.
        let arms = model.situation(&state).unwrap().arms[..1].to_vec();
        let (alone, mut tuner) = (Situation::new(state, arms, 0).unwrap(), Tuner::shipped(1));
        for _ in 0..20 {
            let decision = tuner.decide(&alone);
            tuner.observe(&alone, decision, 2.0 * model.bandwidth_s(&state));
        }
        let told = contexts(&tuner, &model).remove(0);
        let over = told.over_bandwidth.unwrap();
        assert!(told.lossless_saturated && (over - 2.0).abs() < 1e-6, "{told:?}");
        let (name, faster) = &told.compression[0];
        assert!(name == "fp16" && (faster - 1.0 / 0.75).abs() < 1e-6, "{told:?}");
    }

    #[test]
    fn what_has_come_of_the_fusion_threshold_is_told() {
        let gain = IterationGain { share: 0.08, share_margin: 0.01, probability: 2e-5 };
        let gained = FusionReport {
            threshold_bytes: 12_800 << 10,
            strategy_bytes: 25 << 20,
            decided: true,
            gain: Some(gain),
            trials: 2,
            on_trial_bytes: None,
            search_cost_s: 1.5,
        };
        let instead =
            "the fusion threshold is 12800KiB instead of 25MiB: iterations take 8.0 % ± 1.0 less time (p = 2e-5)";
        assert_eq!(gained.to_string(), format!("{instead}; the search has cost 1.500 s"));
        let saved = FusionReport { search_cost_s: -0.25, ..gained };
        assert_eq!(saved.to_string(), format!("{instead}; the search has saved 0.250 s"));
        let open = FusionReport { decided: false, gain: None, on_trial_bytes: Some(50 << 20), ..gained };
        let told = open.to_string();
        let expected = "the fusion threshold is not decided: 25MiB, as the strategy has it; 50MiB was still on trial when training ended; \
                        the search has cost 1.500 s";
        assert_eq!(told, expected);
        let stays = FusionReport { threshold_bytes: 25 << 20, gain: None, ..gained };
        assert!(stays.to_string().contains("stays 25MiB"), "{stays}");
        let news = TuningNews::Fusion(fusion::Event::Trial { bytes: 50 << 20, standing: 25 << 20 });
        assert_eq!(news.to_string(), "a fusion threshold of 50MiB is tried against 25MiB");
    }

    #[test]
    fn rules_for_other_worlds_are_told() {
        let told = |rules_elsewhere| FollowedOperations { operations: 2, all: 3, rules_elsewhere }.to_string();
        let words = "the policy says how 2 of the 3 all-reduces of an iteration are done";
        let expected = ["", "; one rule is not for this world", "; 5 rules are not for this world"];
        assert_eq!([0, 1, 5].map(told), expected.map(|more| format!("{words}{more}")));
    }
}
