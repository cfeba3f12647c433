//! Measures what operations cost, searches, and lets all workers have what rank 0 has found.

use std::time::Duration;

use paceline_comm::{CallOptions, Communicator};
use paceline_plan::{Cluster, Plan, Profile};
use paceline_predict::search::{Answer, Candidate, Question, Space, archs_of_world, search};
use paceline_predict::{Job, PredictError, Prediction, predict_plan};
use paceline_schedule::Schedulers;
use paceline_strategy::{Call, Strategy};
use serde::{Deserialize, Serialize};

use super::cluster::{calibrate, interfere, of_uneven_hosts, of_world};
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
    /// What was measured and is not believed.
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
        let (mut cluster, mut doubts) = (of_world(workers), of_uneven_hosts(workers));
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
        let answer = search(&question).map_err(|error| error.to_string())?;
        let plan = answer.taken().prediction.plan.clone();
        let predicted = |plan: &Plan| {
            let prediction = self.predicted(cluster, profile, plan);
            prediction.ok().and_then(|prediction| Predicted::of(&prediction))
        };
        let nonsense = || format!("what is predicted of {} is no time", plan.strategy);
        Ok(Chosen {
            predicted: predicted(&plan).ok_or_else(nonsense)?,
            tried: tried.iter().map(predicted).collect(),
            reasons: reasons(&answer),
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
        predict_plan(&job, plan)
    }
}

impl Chosen {
    /// The same with so many seconds more in each iteration, whatever the plan: of passes that do not communicate.
    pub(crate) fn plus_passes(self, seconds: f64) -> Chosen {
        let tried = self.tried.into_iter().map(|predicted| Some(predicted?.plus(seconds))).collect();
        Chosen { predicted: self.predicted.plus(seconds), tried, ..self }
    }

    /// Why it is taken, and what is to be doubted.
    pub(crate) fn why(&self) -> Vec<String> {
        [&self.reasons[..], &self.doubts[..]].concat()
    }
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
mod tests {
    use paceline_plan::{Constant, MeasuredRange, NetworkModel, ProfileTensor, Step};
    use paceline_schedule::{Schedule, ScheduleError, Workload};
    use paceline_server::Roles;
    use paceline_strategy::{Aspect, Method, Registry};

    use super::*;
    use crate::on_ranks::{on_ranks, on_workers};

    /// Four layers of 1 MB.
    fn profile() -> Profile {
        let tensor =
            |number| ProfileTensor { name: format!("layer {number}"), elements: 250_000, forward_macs_per_sample: 10 };
        let step = |tensor| Step { tensor, seconds: 0.001 };
        Profile {
            schema: Profile::SCHEMA,
            model: "layers".into(),
            local_batch: 4,
            tensors: (0..4).map(tensor).collect(),
            forward: (0..4).map(step).collect(),
            backward: (0..4).rev().map(step).collect(),
            update_s: 0.000_1,
            ..Profile::default()
        }
    }

    /// Of workers of whom nothing is known, whose operations start at once.
    fn choosing<'a>(strategy: &'a Strategy, schedulers: &'a Schedulers, peers: &'a Peers) -> Choosing<'a> {
        Choosing {
            strategy,
            schedulers,
            peers,
            may_overlap: true,
            start_up: Duration::ZERO,
            all_pass_s: None,
            interference: None,
        }
    }

    /// One bucket for each tensor, of what it says that it changes what is learned.
    fn careless(_: &Call, workload: &Workload) -> Result<Schedule, ScheduleError> {
        Ok(Schedule::of(workload.ready.iter().map(|&tensor| vec![tensor]).collect()))
    }

    /// A schedule that changes what is learned is no candidate, unless it is named.
    #[test]
    fn lossy_schedules_are_looked_at_only_where_they_are_named() {
        let mut schedulers = Schedulers::built_in();
        let method = Method {
            aspect: Aspect::Schedule,
            name: "careless",
            parameters: &[],
            sentence: "careless sums",
            lossless: false,
            available: true,
        };
        schedulers.add(method, careless);
        let (profile, cluster) = (profile(), Cluster::named("study-10gbe:4x1").unwrap());
        for (text, looked_at) in [("auto", false), ("schedule=careless,arch=auto", true)] {
            let strategy = schedulers.grammar().parse(text).unwrap();
            let found = on_ranks(1, |communicator| {
                let peers = Peers::from(&communicator);
                let choosing = choosing(&strategy, &schedulers, &peers);
                let space = Space { effort: 0, ..choosing.space() };
                let question = Question { cluster: &cluster, profile: &profile, workers: 4, space: &space };
                let candidates = search(&question).unwrap().candidates;
                candidates.iter().any(|candidate| candidate.strategy.schedule.name == "careless")
            });
            assert_eq!(found, [looked_at], "{text}");
        }
    }

    /// Of three shards that were met one may serve, or two. Where that is as fast, the fewest do, or those of which
    /// operations were timed.
    #[test]
    fn some_of_the_shards_may_serve() {
        let schedulers = Schedulers::built_in();
        let parse = |text: &str| schedulers.grammar().parse(text).unwrap();
        let (open, profile) = (parse("wfbp-a2a,arch=auto"), profile());
        // Two hosts push and pull each byte once, wherever the servers are; and all-to-all operations start late.
        let mut untimed = Cluster::of_network(NetworkModel::TEN_GBE, 2, 1);
        untimed.operation.start_s = 0.02.into();
        let mut timed = untimed.clone();
        let range = MeasuredRange { workers: [2, 2], bytes: [4, 1 << 30], ..MeasuredRange::default() };
        timed.measured = Some(MeasuredRange { shards: Some([3, 3]), ..range });
        let found = on_workers(Roles::new(2, 3).unwrap(), |peers| {
            let choosing = choosing(&open, &schedulers, peers);
            let arch = |text: &str| parse(&format!("arch={text}")).arch;
            assert_eq!(choosing.archs(), ["a2a", "ps:1", "ps:2", "ps:3"].map(arch));
            assert_eq!(choosing.timed_archs(), ["a2a", "ps:3"].map(arch));
            [&untimed, &timed].map(|cluster| choosing.find(cluster, &profile, &[], Vec::new()).unwrap())
        });
        let [untimed, timed] = &found[0];
        assert!(untimed.plan.shards == 1 && untimed.plan.strategy.contains("arch=ps:1:"), "{untimed:?}");
        assert!(timed.plan.shards == 3 && timed.doubts.is_empty(), "{timed:?}");
        assert!(!timed.reasons.iter().any(|it| it.contains("ps:1")), "it would be no faster: {timed:?}");
        assert_eq!(found[0], found[1], "the workers find the same");
    }

    /// Two workers have one core, and each has it for itself while it computes: an iteration takes both.
    #[test]
    fn workers_that_take_turns_are_expected_to_take_as_long_as_all_of_them() {
        let schedulers = Schedulers::built_in();
        let strategy = schedulers.grammar().parse("auto").unwrap();
        let profile = profile();
        let own_s = profile.forward_s() + profile.backward_s();
        let core = std::sync::Mutex::new(());
        let seconds = on_ranks(2, |communicator| {
            let peers = Peers::from(&communicator);
            let choosing = choosing(&strategy, &schedulers, &peers);
            let mut pass = || {
                let _alone = core.lock().unwrap();
                std::thread::sleep(Duration::from_secs_f64(own_s));
                Ok(())
            };
            let passing = Passing { pass: &mut pass, seconds: own_s };
            let chosen = choosing.choose(&profile, &[], 0, Some(passing)).unwrap().unwrap();
            chosen.predicted.seconds
        });
        assert!(seconds[0] >= 2.0 * own_s && seconds[0] == seconds[1], "{seconds:?}, {own_s} s alone");
    }

    /// Of plans that are hardly apart, one of which all was measured is taken; what saves more is taken all the same.
    #[test]
    fn a_plan_that_leaves_what_was_measured_must_be_worth_it() {
        let (profile, schedulers) = (profile(), Schedulers::built_in());
        let strategy = Registry::built_in().parse("schedule=auto,arch=a2a").unwrap();
        let mut cluster = Cluster::named("study-10gbe:4x1").unwrap();
        // Of this model, so that nothing is in doubt whatever the plan is.
        cluster.computation.overhead_s.insert(profile.model.clone(), Constant::exact(0.0));
        cluster.device = None;
        let archs = vec![Call::all_to_all("auto")];
        let space = Space { archs, effort: EFFORT, intervals: 0, ..Space::of(schedulers, strategy) };
        let mut answer = search(&Question { cluster: &cluster, profile: &profile, workers: 4, space: &space }).unwrap();
        assert!(answer.candidates.len() > 2, "{answer:?}");
        let told = |answer: &Answer| reasons(answer).iter().any(|it| it.ends_with("beyond what was measured"));
        for (longer, doubts, place) in [(1.01, [1, 0], 1), (1.01, [0, 0], 0), (1.01, [1, 1], 0), (1.03, [1, 0], 0)] {
            for (candidate, doubts) in answer.candidates.iter_mut().zip(doubts) {
                candidate.prediction.extrapolated = vec!["larger than what was measured".to_owned(); doubts];
            }
            let best_s = answer.candidates[0].prediction.iteration_s;
            for (place, candidate) in answer.candidates.iter_mut().enumerate().skip(1) {
                candidate.prediction.iteration_s = best_s * longer * 1.1f64.powi(place as i32 - 1);
            }
            let expected = &answer.candidates[place].prediction.plan;
            assert_eq!(&answer.taken().prediction.plan, expected, "{longer} {doubts:?}");
            assert_eq!(told(&answer), place == 1, "{longer} {doubts:?}: {:?}", reasons(&answer));
        }
    }
}
