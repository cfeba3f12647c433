//! What the rows of a study were: not what their labels say, but what ran.

use paceline_plan::{BUILT_IN_PROFILES, Cluster, Plan, Profile, Step, built_in_profile};
use paceline_schedule::{ScheduleError, Schedulers, Workload};
use paceline_strategy::{Registry, Strategy};

use super::{StudyError, StudyRow, byteps};
use crate::{Job, PredictError, Prediction, estimate, estimate_plan, predict, predict_plan};

/// The methods of the comparative study (Shi et al., arXiv 2005.13247) and the strategies that ran under these names, by what
/// its code shows: servers on as many further hosts as there are hosts with workers, whatever the row; partitions of
/// 4,096,000 bytes in all three rows of servers; ByteScheduler on servers without its worker side, that is without priorities
/// and without overlap with the next forward pass; ByteScheduler all-to-all with its tuning off, on hooks in Python. What Horovod took to start an
/// all-reduce is a constant of the cluster; what handing over a partition in Python took besides is known of no cell. The paper says that
/// partitions suit servers and not all-to-all (its fifth finding): 0.3 ms is the least, in tenths of a millisecond, with which no cell
/// is faster for them than WFBP-A2A, to half a percent. One after the other begins then, so nothing overtakes.
///
/// MG-WFBP was planned with tables of alpha and beta from another cluster, which are not part of the row. Merging by our own
/// costs instead changes what comes out by a few percent at most: channels that are behind merge everything either way.
pub const METHODS: [(&str, &str); 7] = [
    ("BSP-A2A", "schedule=none,arch=a2a:ring"),
    ("WFBP-A2A", "schedule=wfbp,arch=a2a:ring"),
    ("MG-WFBP", "schedule=mg-wfbp,arch=a2a:ring"),
    (BYTESCHEDULER_A2A, "schedule=bytescheduler:4000000:16000000,arch=a2a:ring:300us"),
    // BytePS cuts tensor by tensor, also where it begins after backward: see [`after_backward`].
    (BSP_PS, "schedule=wfbp,arch=ps:hosts:4096000:dedicated"),
    ("WFBP-PS", "schedule=wfbp,arch=ps:hosts:4096000:dedicated"),
    ("ByteScheduler-PS", "schedule=server-priority,arch=ps:hosts:4096000:dedicated"),
];

/// Seconds of an iteration for each tensor, in Python, under ByteScheduler all-to-all: its hooks wait layer by layer, and update tensor
/// by tensor. Of one cell only it is known what ran, ResNet-50 with 4 workers in one host: 654 images/s, where bulk-synchronous
/// training reached 920 and nothing but hooks was in the way of 984.
const HOOKS_S: f64 = 0.8e-3;

const BSP_PS: &str = "BSP-PS";
pub(crate) const BYTESCHEDULER_A2A: &str = "ByteScheduler-A2A";

/// What a row of a study ran.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// What a worker computes: in the time that the row's `single_gpu_samples_per_s` says, if it says one.
    pub profile: Profile,
    /// How the workers communicate.
    pub strategy: Strategy,
    /// How many there are.
    pub workers: usize,
    /// Does communication begin before backward has ended?
    pub overlaps: bool,
    /// Did BytePS cut the gradients, and choose the servers?
    pub on_byteps: bool,
    /// Why a prediction of it may be wrong, besides what the cluster says.
    pub doubt: Option<&'static str>,
}

impl Case {
    /// What ran, with the profile of the row's model: one of `profiles`, or a built-in one. Names of models and methods may be
    /// in any case, with or without hyphens.
    ///
    /// # Errors
    /// There is no such profile, or no such method.
    pub fn of(row: &StudyRow, profiles: &[Profile], registry: &Registry) -> Result<Case, StudyError> {
        let mut profile = find(row, profiles)?.for_batch(row.local_batch);
        if let Some(samples_per_s) = row.single_gpu_samples_per_s {
            let iteration_s = profile.forward_s() + profile.backward_s() + profile.update_s;
            if iteration_s > 0.0 {
                stretch(&mut profile, row.local_batch as f64 / samples_per_s / iteration_s);
                // It was measured on the device itself, with this batch.
                (profile.uncertainty, profile.recorded_batch, profile.spread) = (None, None, None);
            }
        }
        let known = METHODS.iter().find(|(name, _)| same(name, &row.method));
        let strategy = registry
            .parse(known.map_or(&*row.method, |(_, strategy)| strategy))
            .map_err(|reason| StudyError::Method { line: row.line, method: row.method.clone(), reason })?;
        let late = known.is_some_and(|&(name, _)| name == BSP_PS);
        if late {
            after_backward(&mut profile);
        }
        let overlaps = !late && strategy.schedule.name != "none";
        let on_byteps = known.is_some() && strategy.arch.name == "ps";
        let hooks = row.workers > 1 && known.is_some_and(|&(name, _)| name == BYTESCHEDULER_A2A);
        if hooks {
            let hooks_s = HOOKS_S * profile.tensors.len() as f64;
            profile.update_s += hooks_s;
            // Of other models they may as well be half of that, or half as much again.
            let all_s = profile.forward_s() + profile.backward_s() + profile.update_s;
            profile.uncertainty = Some(profile.uncertainty.unwrap_or(0.0).max(0.5 * hooks_s / all_s));
        }
        let doubt = hooks.then_some(
            "what hooks in Python cost is known of ResNet-50 with 4 workers only, and what handing over partitions takes follows \
             from a sentence of the paper",
        );
        Ok(Case { profile, strategy, workers: row.workers, overlaps, on_byteps, doubt })
    }

    /// In which pieces gradients travelled between workers on so many hosts; None where that depends on what communication costs.
    ///
    /// # Errors
    /// The schedule cannot be planned.
    pub fn plan(&self, hosts: usize) -> Result<Option<Plan>, ScheduleError> {
        if ["mg-wfbp", "auto"].contains(&&*self.strategy.schedule.name) {
            return Ok(None);
        }
        let workload = Workload::of_profile(&self.profile).with_world(self.workers, hosts);
        let mut plan = Schedulers::built_in().plan(&self.strategy, &workload)?;
        let partition_bytes = self.strategy.servers(self.workers, hosts).map(|servers| servers.partition_bytes);
        if let Some(partition_bytes) = partition_bytes.filter(|_| self.on_byteps) {
            byteps::place(&mut plan, &self.profile, partition_bytes);
        }
        Ok(Some(plan))
    }

    /// What to predict of it on a cluster.
    pub fn job<'a>(&'a self, cluster: &'a Cluster) -> Job<'a> {
        let Case { profile, strategy, workers, .. } = self;
        Job { cluster, profile, strategy, workers: *workers, local_batch: None }
    }

    /// Predicts it on a cluster, as [`predict`]: in the pieces in which gradients travelled ([`Case::plan`]), and where these depend on what
    /// communication costs, in those of that cluster.
    ///
    /// # Errors
    /// As [`predict`].
    pub fn predict(&self, cluster: &Cluster) -> Result<Prediction, PredictError> {
        let job = self.job(cluster);
        match self.plan(cluster.hosts_of(self.workers))? {
            Some(plan) => predict_plan(&job, &plan),
            None => predict(&job),
        }
    }

    /// The same without interval and timeline, as [`estimate`].
    ///
    /// # Errors
    /// As [`estimate`].
    pub fn estimate(&self, cluster: &Cluster) -> Result<Prediction, PredictError> {
        self.estimate_in(self.plan(cluster.hosts_of(self.workers))?.as_ref(), cluster)
    }

    /// The same in pieces that [`Case::plan`] has said before: for whoever asks of many clusters.
    pub(crate) fn estimate_in(&self, plan: Option<&Plan>, cluster: &Cluster) -> Result<Prediction, PredictError> {
        let job = self.job(cluster);
        plan.map_or_else(|| estimate(&job), |plan| estimate_plan(&job, plan))
    }

    /// Seconds of an iteration of a worker alone.
    pub fn alone_s(&self) -> f64 {
        self.profile.forward_s() + self.profile.backward_s() + self.profile.update_s
    }

    /// Bytes of the gradient.
    pub fn bytes(&self) -> f64 {
        self.profile.sizes().iter().sum::<usize>() as f64 * paceline_schedule::ELEMENT_BYTES as f64
    }
}

fn find(row: &StudyRow, profiles: &[Profile]) -> Result<Profile, StudyError> {
    let own = profiles.iter().find(|profile| same(&profile.model, &row.model)).cloned();
    let model = |name: &'static str| name.split_once('@').map_or(name, |(model, _)| model);
    let built_in = || {
        let name =
            BUILT_IN_PROFILES.into_iter().find(|name| same(model(name), &row.model) || same(name, &row.model))?;
        built_in_profile(name)
    };
    own.or_else(built_in).ok_or_else(|| {
        let known = profiles.iter().map(|profile| &*profile.model).chain(BUILT_IN_PROFILES.into_iter().map(model));
        let known: Vec<&str> = known.collect();
        StudyError::Model { line: row.line, model: row.model.clone(), known: known.join(", ") }
    })
}

/// Are the letters and digits the same, in any case?
pub fn same(one: &str, other: &str) -> bool {
    let letters = |text: &str| -> Vec<char> {
        text.chars().filter(|letter| letter.is_alphanumeric()).flat_map(char::to_lowercase).collect()
    };
    letters(one) == letters(other)
}

fn stretch(profile: &mut Profile, factor: f64) {
    for step in profile.forward.iter_mut().chain(&mut profile.backward) {
        step.seconds *= factor;
    }
    profile.update_s *= factor;
}

/// Makes every gradient final when backward ends, so that nothing is sent before.
fn after_backward(profile: &mut Profile) {
    let seconds = profile.backward_s();
    profile.backward.iter_mut().for_each(|step| *step = Step { seconds: 0.0, ..*step });
    if let Some(first) = profile.backward.first_mut() {
        first.seconds = seconds;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use paceline_schedule::{Workload, plan};

    use super::*;
    use crate::study::Study;

    fn case(model: &str, method: &str, samples_per_s: &str) -> Result<Case, StudyError> {
        let heading = "model,local_batch,network,method,workers,single_gpu_samples_per_s";
        let study = Study::parse(&format!("{heading}\n{model},8,10GbE,{method},8,{samples_per_s}"))?;
        Case::of(&study.rows[0], &[], &Registry::built_in())
    }

    #[test]
    fn every_method_of_the_study_is_a_strategy() {
        for (name, _) in METHODS {
            let case = case("bert-LARGE", &name.to_lowercase(), "").unwrap();
            assert_eq!((&*case.profile.model, case.workers), ("bert-large", 8), "{name}");
            assert_eq!(case.overlaps, !name.starts_with("BSP"), "{name}");
            assert_eq!(
                (case.on_byteps, case.doubt.is_some()),
                (name.ends_with("PS"), name == BYTESCHEDULER_A2A),
                "{name}"
            );
            let handed_over = Duration::from_micros(if name == BYTESCHEDULER_A2A { 300 } else { 0 });
            assert_eq!(case.strategy.start_up(8), handed_over, "{name}: the cluster has what it takes to start");
        }
        assert!(case("BERT-Base", "ddp", "").unwrap().overlaps);
        let error = case("BERT-Base", "osp", "").unwrap_err().to_string();
        assert!(error.contains("line 2 of the study: `osp` is no method of a study, and no strategy"), "{error}");
        let error = case("VGG-16", "BSP-PS", "").unwrap_err().to_string();
        assert!(error.contains("no profile of VGG-16; there are profiles of resnet50, bert-base"), "{error}");
    }

    #[test]
    fn a_worker_alone_computes_what_the_row_says() {
        let case = case("ResNet50", "WFBP-A2A", "100").unwrap();
        assert_eq!(case.profile.local_batch, 8);
        assert!((case.alone_s() - 0.08).abs() < 1e-12, "{}", case.alone_s());
        assert!((case.profile.backward_s() / case.profile.forward_s() - 2.0).abs() < 1e-9);
        // Then no time is scaled from the profile's batch, which is 64.
        let scaled_from =
            |samples_per_s| self::case("ResNet50", "WFBP-A2A", samples_per_s).unwrap().profile.scaled_from();
        assert_eq!((scaled_from("100"), scaled_from("")), (None, Some(64)));
        // Then the profile's own time does not matter, nor how uncertain it is.
        let uncertainty =
            |samples_per_s| self::case("ResNet50", "WFBP-A2A", samples_per_s).unwrap().profile.uncertainty;
        assert!(uncertainty("100").is_none() && uncertainty("").is_some());
    }

    /// Partitions cost time each, so it matters that there are as many.
    #[test]
    fn servers_get_tensor_by_tensor_after_backward_as_well() {
        let late = case("ResNet-50", "BSP-PS", "").unwrap();
        let early = case("ResNet-50", "WFBP-PS", "").unwrap();
        assert!((late.alone_s() - early.alone_s()).abs() < 1e-12);
        let end = late.profile.backward_s();
        assert!(late.profile.ready_s().iter().all(|ready| (ready - end).abs() < 1e-12));
        let partitions = |case: &Case| {
            let workload = Workload::of_profile(&case.profile).with_world(8, 2);
            plan(&case.strategy, &workload).unwrap().operations()
        };
        assert_eq!(partitions(&late), partitions(&early));
        assert!(partitions(&late) > 161, "{}", partitions(&late));
    }
}
