//! Measures what operations cost, searches, and lets all workers have what rank 0 has found.

use std::time::Duration;

use paceline_comm::{CallOptions, Communicator};
use paceline_plan::{Cluster, Plan, Profile};
use paceline_predict::search::{Answer, Candidate, Question, Space, archs_of_world, search};
use paceline_predict::{Job, PredictError, Prediction, played_emulated, predict_plan};
use paceline_schedule::Schedulers;
use paceline_strategy::{Call, Strategy};
use serde::{Deserialize, Serialize};

use super::cluster::{calibrate, interfere, of_world, unsaid};
use crate::computed::slowed_profile;
use crate::error::{TrainError, WhileTraining};
use crate::exchange::Carrier;
use crate::measure::{Before, Interference, Passing, communication_cost_again, measure_interference, together_s};
use crate::peers::Peers;

/// Plans that are predicted to improve the best ones. The workers wait meanwhile.
const EFFORT: usize = 150;

/// What is chosen from.
pub(crate) struct Choosing<'a> {
    pub(crate) strategy: &'a Strategy,
    pub(crate) schedulers: &'a Schedulers,
    /// With the shards that have been met, whether they will serve or not.
    pub(crate) peers: &'a Peers,
    /// May communication go on while the next forward pass runs?
    pub(crate) may_overlap: bool,
    /// In real time: what the strategy adds to the start of an operation.
    pub(crate) start_up: Duration,
    /// Seconds of a pass of all workers at once, where it is known already; the same on all.
    pub(crate) all_pass_s: Option<f64>,
    /// What passes and communication cost each other, where it is known already; the same on all.
    pub(crate) interference: Option<Interference>,
}

/// What was found; the same on every worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Chosen {
    /// The best plan, of version 1.
    pub(crate) plan: Plan,
    pub(crate) predicted: Predicted,
    /// Of plans that were carried out, by the same measurements; None: it cannot be predicted.
    pub(crate) tried: Vec<Option<Predicted>>,
    /// Why it is the best one.
    pub(crate) reasons: Vec<String>,
    /// What was measured and is not believed, and what of the prediction is beyond what was measured.
    pub(crate) doubts: Vec<String>,
}

/// Seconds of an iteration, and with 95 % from where to where, as far as the constants' intervals and what the model leaves out say.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Predicted {
    pub(crate) seconds: f64,
    pub(crate) low_s: f64,
    pub(crate) high_s: f64,
}

impl Predicted {
    /// None if it is no time.
    fn of(prediction: &Prediction) -> Option<Predicted> {
        let Prediction { iteration_s, low_s, high_s, .. } = *prediction;
        let sensible = iteration_s > 0.0 && [iteration_s, low_s, high_s].iter().all(|seconds| seconds.is_finite());
        sensible.then_some(Predicted { seconds: iteration_s, low_s, high_s })
    }

    fn plus(self, seconds: f64) -> Predicted {
        Predicted { seconds: self.seconds + seconds, low_s: self.low_s + seconds, high_s: self.high_s + seconds }
    }
}

impl Choosing<'_> {
    /// Measures, searches, shares: the choice, or why there is none. All workers call it at the same time, when nothing is
    /// on its way; `round` counts the calls of a training from 0. `tried` are plans that are to be predicted besides. What workers
    /// compute they compute ahead of each operation that is timed, if it is short; all of them compute, or none.
    pub(crate) fn choose(
        &self,
        profile: &Profile,
        tried: &[Plan],
        round: u32,
        mut passing: Option<Passing<'_>>,
    ) -> Result<Result<Chosen, String>, TrainError> {
        let workers = self.peers.workers();
        let profile = self.together(profile, passing.as_mut().and_then(Passing::before))?;
        let (cluster, doubts) = self.measured_cluster(&profile, round, passing)?;
        let found = (workers.rank() == 0).then(|| self.find(&cluster, &profile, tried, doubts));
        let text = found.map(|found| match serde_json::to_string(&found) {
            Ok(text) => text,
            Err(error) => format!("rank 0's choice cannot be written: {error}"),
        });
        let text = share(workers, text)?;
        let found: Result<Chosen, String> = serde_json::from_str(&text)
            .unwrap_or_else(|error| Err(format!("rank 0's choice cannot be read ({error}): {text}")));
        Ok(found.map_err(|reason| format!("strategy={}: {reason}", self.strategy)))
    }

    /// The computation of all workers at once, if there is a pass to be made. Where some take turns on a core, each of them may have it
    /// for itself while it computes in an iteration, as long as it waits for communication while the others do.
    fn together(&self, profile: &Profile, pass: Option<Before<'_>>) -> Result<Profile, TrainError> {
        let (workers, own_s) = (self.peers.workers(), profile.forward_s() + profile.backward_s());
        let all_s = match (self.all_pass_s, pass) {
            _ if workers.world_size() == 1 || own_s <= 0.0 => return Ok(profile.clone()),
            (Some(known_s), _) => known_s,
            (None, Some(pass)) => together_s(workers, pass)?,
            (None, None) => return Ok(profile.clone()),
        };
        Ok(slowed_profile(profile, (all_s / own_s).max(1.0)))
    }

    /// The archs that can be carried out here: all-to-all by any algorithm; some of the shards that were met, or all.
    fn archs(&self) -> Vec<Call> {
        match self.strategy.arch_is_open() {
            true => archs_of_world(self.peers.shards()),
            false => vec![self.strategy.arch.clone()],
        }
    }

    /// Those of which operations are timed: all-to-all, and all shards. What fewer of them would take follows from what
    /// each of these then carries and adds up. To time that as well would hold up all workers, for the longer the fewer
    /// shards there are: everything meets at their interfaces.
    fn timed_archs(&self) -> Vec<Call> {
        let mut archs = self.archs();
        let all_shards = archs.split_off(1).pop();
        archs.extend(all_shards);
        archs
    }

    /// This world, with what operations take on the archs that are timed.
    fn measured_cluster(
        &self,
        profile: &Profile,
        round: u32,
        mut passing: Option<Passing<'_>>,
    ) -> Result<(Cluster, Vec<String>), TrainError> {
        let workers = self.peers.workers();
        let (mut cluster, mut doubts) = (of_world(workers), Vec::from_iter(unsaid(workers.topology())));
        if workers.world_size() == 1 {
            return Ok((cluster, doubts));
        }
        let bytes = profile.sizes().iter().sum::<usize>() * size_of::<f32>();
        let mut uncertain: f64 = 0.0;
        for (number, arch) in self.timed_archs().into_iter().enumerate() {
            let strategy = Strategy { arch, ..self.strategy.clone() };
            let carrier = Carrier::of_strategy(self.peers, &strategy);
            // Two archs at most.
            let probe = 2 * round + number as u32;
            let before = passing.as_mut().and_then(Passing::before);
            let measured = communication_cost_again(&carrier, bytes, self.start_up, probe, before)?;
            uncertain = uncertain.max(measured.1);
            let calibrated = calibrate(&mut cluster, &strategy, profile, workers.world_size(), &measured);
            doubts.extend(calibrated.map_err(|error| TrainError::Options(error.to_string()))?);
        }
        // What was measured was measured while nobody computed.
        if let Some(measured) = self.interference(bytes, passing)? {
            let lost_s = measured.known_to(uncertain);
            let found = interfere(&mut cluster, self.strategy, profile, workers.world_size(), measured.bytes, lost_s);
            found.map_err(|error| TrainError::Options(error.to_string()))?;
        }
        Ok((cluster, doubts))
    }

    /// What computation and communication cost each other, if something is computed.
    fn interference(&self, bytes: usize, passing: Option<Passing<'_>>) -> Result<Option<Interference>, TrainError> {
        let measure = |passing: Passing<'_>| measure_interference(self.peers.workers(), bytes, passing.pass);
        match (self.interference, passing) {
            (Some(known), _) => Ok(Some(known)),
            (None, passing) => passing.map(measure).transpose(),
        }
    }

    /// What rank 0 searches.
    fn space(&self) -> Space {
        Space {
            archs: self.archs(),
            forward_overlap: self.may_overlap,
            // Who has named something lossy, which stays, admits it; nobody else does.
            lossy: !self.strategy.lossless(self.schedulers.grammar()),
            effort: EFFORT,
            // The workers wait, and only the one that is taken is told.
            intervals: 0,
            ..Space::of(self.schedulers.clone(), self.strategy.clone())
        }
    }

    /// On rank 0.
    fn find(
        &self,
        cluster: &Cluster,
        profile: &Profile,
        tried: &[Plan],
        doubts: Vec<String>,
    ) -> Result<Chosen, String> {
        let space = self.space();
        let workers = self.peers.workers().world_size();
        let question = Question { cluster, profile, workers, space: &space };
        let mut answer = search(&question).map_err(|error| error.to_string())?;
        let played = if self.peers.workers().is_emulated() { answer.play_emulated(&question) } else { 0 };
        let plan = answer.taken().prediction.plan.clone();
        let predicted = |plan: &Plan| {
            let prediction = self.predicted(cluster, profile, plan);
            prediction.ok().and_then(|prediction| Predicted::of(&prediction))
        };
        let nonsense = || format!("what is predicted of {} is no time", plan.strategy);
        Ok(Chosen {
            predicted: predicted(&plan).ok_or_else(nonsense)?,
            tried: tried.iter().map(predicted).collect(),
            reasons: reasons(&answer).into_iter().chain(played_of(played)).collect(),
            doubts: [doubts, answer.taken().prediction.extrapolated.clone()].concat(),
            plan,
        })
    }

    /// What a plan would do, with its interval.
    fn predicted(&self, cluster: &Cluster, profile: &Profile, plan: &Plan) -> Result<Prediction, PredictError> {
        let parsed = self.schedulers.grammar().parse(&plan.strategy).ok();
        let mut strategy = parsed.unwrap_or_else(|| self.strategy.clone());
        if strategy.arch_is_open() {
            strategy.arch = Call::all_to_all("auto");
        }
        let workers = self.peers.workers().world_size();
        let job = Job { cluster, profile, strategy: &strategy, workers, local_batch: None };
        let prediction = predict_plan(&job, plan)?;
        let played = self.peers.workers().is_emulated().then(|| played_emulated(&job, &prediction).ok()).flatten();
        Ok(played.unwrap_or(prediction))
    }
}

impl Chosen {
    /// The same with so many seconds more in each iteration, whatever the plan: of passes that do not communicate.
    pub(crate) fn plus_passes(self, seconds: f64) -> Chosen {
        let tried = self.tried.into_iter().map(|predicted| Some(predicted?.plus(seconds))).collect();
        Chosen { predicted: self.predicted.plus(seconds), tried, ..self }
    }
}

/// Of how many plans messages decided, and not formulas.
fn played_of(count: usize) -> Option<String> {
    (count > 0).then(|| format!("{count} of them were played message by message, as links are emulated"))
}

/// So many runners-up are named.
const NAMED: usize = 3;

/// Below this share nobody asks which of two is faster.
pub(super) const AS_FAST: f64 = 0.005;

/// How many plans there were, what bounds the best one, and what others would take that differ from it by more than nothing.
fn reasons(answer: &Answer) -> Vec<String> {
    let best = &answer.taken().prediction;
    let named = |candidate: &Candidate| {
        let Strategy { schedule, arch, .. } = &candidate.strategy;
        // Not in seconds: a decision is also told of a run that everything is slowed in.
        let longer = 100.0 * (candidate.prediction.iteration_s / best.iteration_s - 1.0);
        format!("{schedule} on {arch} would take {longer:.1} % longer")
    };
    let percent = 100.0 * best.bottleneck_share;
    let mut reasons = vec![format!(
        "the best of {} predicted plans, limited by {} ({percent:.0} % of the iteration)",
        answer.predictions, best.bottleneck
    )];
    let first = answer.best();
    let is_doubted = first.prediction.extrapolated.len() > best.extrapolated.len();
    if is_doubted && first.prediction.iteration_s < best.iteration_s * (1.0 - AS_FAST) {
        let Strategy { schedule, arch, .. } = &first.strategy;
        let faster = 100.0 * (1.0 - first.prediction.iteration_s / best.iteration_s);
        reasons.push(format!(
            "{schedule} on {arch} would be {faster:.1} % faster, if that holds beyond what was measured"
        ));
    }
    let (as_fast, slower): (Vec<&Candidate>, Vec<&Candidate>) = answer
        .candidates
        .iter()
        .filter(|other| other.prediction.plan != best.plan)
        .partition(|other| other.prediction.iteration_s <= best.iteration_s * (1.0 + AS_FAST));
    if !as_fast.is_empty() {
        reasons.push(format!("{} others would be no slower", as_fast.len()));
    }
    reasons.extend(slower.into_iter().take(NAMED).map(named));
    reasons
}

/// So long the others wait for rank 0's search, whatever the deadline of other calls: as long as servers wait.
const SEARCHING: Duration = Duration::from_secs(3600);

/// Rank 0's text, on every worker.
fn share(workers: &Communicator, text: Option<String>) -> Result<String, TrainError> {
    let doing = "sending the plan that was chosen";
    let mut bytes = text.unwrap_or_default().into_bytes();
    let mut length = [bytes.len() as i64];
    let patient = CallOptions { timeout: Some(SEARCHING), ..CallOptions::default() };
    workers.broadcast(&mut length, 0, &patient).while_training(doing)?;
    bytes.resize(usize::try_from(length[0]).unwrap_or(0), 0);
    workers.broadcast(&mut bytes, 0, &CallOptions::default()).while_training(doing)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests;
