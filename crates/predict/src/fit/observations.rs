//! What the rows of a study say, and what clusters they are predicted on.

use paceline_plan::{Cluster, Constant, LinkClass, MeasuredRange, NetworkModel, PCIE_3_X16, Plan, Profile};
use paceline_schedule::ELEMENT_BYTES;
use paceline_strategy::Registry;

use super::{FitError, Skipped};
use crate::study::{BYTESCHEDULER_A2A, Case, Study, StudyRow, same};

/// No throughput is known better than this, whatever its standard deviation over a few runs: what else differs between days,
/// and what the model leaves out.
const DEVIATION_MIN: f64 = 0.01;

/// A measured throughput, and how it is predicted.
#[derive(Clone)]
pub(super) struct Observation {
    /// Which row of the study it is.
    pub row: usize,
    /// Where that stands, counted from 1.
    line: usize,
    /// Which of [`Observations::networks`].
    pub network: usize,
    /// Which of [`Observations::models`].
    pub model: usize,
    /// What ran.
    pub case: Case,
    /// Hosts with workers.
    pub hosts: usize,
    /// In which pieces gradients travelled; None where that depends on what the cluster costs.
    plan: Option<Plan>,
    /// Samples per second.
    pub measured: f64,
    /// The standard deviation of its logarithm.
    pub deviation: f64,
}

/// A model of a study.
#[derive(Clone)]
pub(super) struct Model {
    /// As its profile has it.
    pub name: String,
    /// Seconds of an iteration of a worker alone, the median over its rows.
    pub alone_s: f64,
}

/// All that is fitted to.
pub(super) struct Observations {
    pub all: Vec<Observation>,
    /// In the order of the rows.
    pub networks: Vec<String>,
    /// In the order of the rows.
    pub models: Vec<Model>,
    pub workers_per_host: usize,
}

impl Observation {
    /// Do workers push to servers?
    pub fn has_servers(&self) -> bool {
        self.case.strategy.arch.name == "ps"
    }

    /// Of a parameter server; 0: without.
    fn shards(&self) -> usize {
        self.case.strategy.servers(self.case.workers, self.hosts).map_or(0, |servers| servers.shards)
    }

    /// Samples per second on a cluster.
    pub fn predicted(&self, cluster: &Cluster) -> Result<f64, FitError> {
        let estimated = self.case.estimate_in(self.plan.as_ref(), cluster);
        estimated
            .map(|found| found.samples_per_s)
            .map_err(|reason| FitError::Row { line: self.line, reason: reason.into() })
    }

    /// Seconds per byte between hosts, were everything but the bytes of an iteration free: near the truth where there are
    /// many, and above it.
    fn seconds_per_byte(&self) -> f64 {
        let profile = &self.case.profile;
        let iteration_s = (self.case.workers * profile.local_batch) as f64 / self.measured;
        let hidden_s = if self.case.overlaps { profile.backward_s() } else { 0.0 };
        let share =
            if self.has_servers() { 1.6 } else { 2.0 * (self.case.workers as f64 - 1.0) / self.case.workers as f64 };
        ((iteration_s - self.case.alone_s() + hidden_s) / (share * self.case.bytes())).max(1e-12)
    }
}

impl Observations {
    /// Those of a study; and the rows that say nothing, with the reason.
    pub fn of(
        study: &Study,
        profiles: &[Profile],
        workers_per_host: usize,
    ) -> Result<(Observations, Vec<Skipped>), FitError> {
        let networks = study.networks().into_iter().map(str::to_owned).collect();
        let mut found = Observations { all: Vec::new(), networks, models: Vec::new(), workers_per_host };
        let (mut skipped, registry) = (Vec::new(), Registry::built_in());
        for (index, row) in study.rows.iter().enumerate() {
            let case = Case::of(row, profiles, &registry)?;
            match usable(study, row, workers_per_host) {
                Ok(measured) => found.add(index, row, case, measured)?,
                Err(reason) => skipped.push(Skipped { row: index, line: row.line, reason }),
            }
        }
        for model in 0..found.models.len() {
            let times = found.all.iter().filter(|one| one.model == model).map(|one| one.case.alone_s());
            found.models[model].alone_s = median(times.collect()).unwrap_or_default();
        }
        if found.all.is_empty() { Err(FitError::Nothing { skipped }) } else { Ok((found, skipped)) }
    }

    /// Some of them: nothing is known of the others' throughputs. Which models and networks there are, and what a worker alone
    /// computes, remains, as the others' predictions begin there.
    pub fn only(&self, keep: impl Fn(&Observation) -> bool) -> Observations {
        Observations {
            all: self.all.iter().filter(|one| keep(one)).cloned().collect(),
            networks: self.networks.clone(),
            models: self.models.clone(),
            workers_per_host: self.workers_per_host,
        }
    }

    fn add(&mut self, index: usize, row: &StudyRow, case: Case, measured: f64) -> Result<(), FitError> {
        let hosts = row.workers.div_ceil(self.workers_per_host);
        let known = self.models.iter().position(|model| model.name == case.profile.model);
        let model = known.unwrap_or_else(|| {
            self.models.push(Model { name: case.profile.model.clone(), alone_s: 0.0 });
            self.models.len() - 1
        });
        let network = self.networks.iter().position(|known| known.eq_ignore_ascii_case(&row.network));
        let line = row.line;
        let plan = case.plan(hosts).map_err(|reason| FitError::Row { line, reason: Box::new(reason.into()) })?;
        let deviation = row.std_samples_per_s.map_or(0.0, |deviation| deviation / measured).max(DEVIATION_MIN);
        let network = network.unwrap_or_default();
        self.all.push(Observation { row: index, line, network, model, case, hosts, plan, measured, deviation });
        Ok(())
    }

    /// A cluster for each network: links as fast as the throughputs suggest at first sight, and nothing else.
    pub fn clusters(&self, source: &str) -> Vec<Cluster> {
        let hosts = self.all.iter().map(|one| one.hosts).max().unwrap_or(1);
        let cluster = |(index, name): (usize, &String)| {
            let network = NetworkModel { within: class(WITHIN_S_PER_BYTE), across: class(self.first_beta(index)) };
            let mut cluster = Cluster::of_network(network, hosts, self.workers_per_host);
            name.clone_into(&mut cluster.name);
            source.clone_into(&mut cluster.source);
            // As in the study, where servers ran on as many hosts as workers.
            cluster.server_hosts = hosts;
            (cluster.server.dedicated_share, cluster.server.connection_s_per_byte) =
                (Some(Constant::ZERO), Some(Constant::ZERO));
            cluster.measured = self.measured_on(index);
            cluster.device = self.device();
            let overheads = self.models.iter().map(|model| (model.name.clone(), Constant::ZERO));
            cluster.computation.overhead_s = overheads.collect();
            cluster
        };
        self.networks.iter().enumerate().map(cluster).collect()
    }

    /// Between what the rows of a network lie, and those of a single host, which know of no network. None: there are none.
    fn measured_on(&self, network: usize) -> Option<MeasuredRange> {
        let rows = || self.all.iter().filter(move |one| one.network == network || one.hosts == 1);
        let sizes = rows().flat_map(|one| one.case.profile.sizes()).map(|size| size as u64 * ELEMENT_BYTES);
        Some(MeasuredRange {
            workers: range(rows().map(|one| one.case.workers))?,
            bytes: [sizes.min()?, rows().map(|one| one.case.bytes() as u64).max()?],
            hosts: range(rows().map(|one| one.hosts)),
            workers_per_host: range(rows().map(|one| one.case.workers.min(self.workers_per_host))),
            shards: self.shards_on(network).or(Some(MeasuredRange::NO_SHARDS)),
        })
    }

    /// Shards of the parameter servers that were measured on a network; one host's tell nothing of one that had none.
    fn shards_on(&self, network: usize) -> Option<[usize; 2]> {
        let rows = || self.all.iter().filter(|one| one.has_servers());
        rows().find(|one| one.network == network && one.hosts > 1)?;
        range(rows().filter(|one| one.network == network || one.hosts == 1).map(Observation::shards))
    }

    /// What computed, where that was the same in all rows.
    fn device(&self) -> Option<String> {
        let mut devices = self.all.iter().map(|one| &one.case.profile.device);
        let first = devices.next().filter(|device| !device.trim().is_empty())?;
        devices.all(|device| device == first).then(|| first.clone())
    }

    /// Seconds per byte between the hosts of a network: what its rows suggest; of a network that has no rows of several hosts, what
    /// messages took from point to point on the network of this name.
    pub fn first_beta(&self, network: usize) -> f64 {
        let of_name = || NetworkModel::named_in_any_case(&self.networks[network]);
        let named = || of_name().map(|network| network.across.beta_s_per_byte);
        self.suggested_beta(network).or_else(named).unwrap_or(ACROSS_S_PER_BYTE)
    }

    /// The median of what a network's rows of several hosts suggest, those without overlap first.
    pub fn suggested_beta(&self, network: usize) -> Option<f64> {
        let rows = |overlaps: bool, servers: bool| {
            let matches = move |one: &&Observation| {
                one.network == network && one.hosts > 1 && one.case.overlaps == overlaps && one.has_servers() == servers
            };
            median(self.all.iter().filter(matches).map(Observation::seconds_per_byte).collect())
        };
        let kinds = [(false, false), (false, true), (true, false), (true, true)];
        kinds.into_iter().find_map(|(overlaps, servers)| rows(overlaps, servers))
    }
}

/// PCIe 3.0 x16 through the memory of the host.
pub(super) const WITHIN_S_PER_BYTE: f64 = PCIE_3_X16.beta_s_per_byte;

/// 10 Gbit/s, where nothing is known.
const ACROSS_S_PER_BYTE: f64 = 8.8e-10;

/// Alpha is 0: what a message costs besides its bytes cannot be told from throughputs. It is part of what operations cost.
fn class(beta_s_per_byte: f64) -> LinkClass {
    LinkClass { alpha_s: 0.0, overhead_s: 0.0, beta_s_per_byte }
}

/// What a row measured; or why it is not believed, or says nothing.
fn usable(study: &Study, row: &StudyRow, workers_per_host: usize) -> Result<f64, String> {
    let measured = row.samples_per_s.ok_or("has no throughput")?;
    if row.is_doubted() {
        return Err(format!("is noted as `{}`", row.note));
    }
    if row.is_of_one_host() && row.workers > workers_per_host {
        return Err(format!("has {} workers on a single host, and here {workers_per_host} share one", row.workers));
    }
    if same(&row.method, BYTESCHEDULER_A2A) {
        return Err("ran on hooks in Python, layer by layer, at a cost that no constant here stands for".to_owned());
    }
    // Two methods do not give the same throughput with the same deviation to the last digit: one is the other's, and which
    // nobody knows.
    let twin = study.rows.iter().find(|other| {
        !same(&other.method, &row.method)
            && same(&other.model, &row.model)
            && other.network.eq_ignore_ascii_case(&row.network)
            && other.workers == row.workers
            && (other.samples_per_s, other.std_samples_per_s) == (Some(measured), row.std_samples_per_s)
            && row.std_samples_per_s.is_some_and(|deviation| deviation > 0.0)
    });
    match twin {
        Some(twin) => Err(format!("has the throughput of line {}, another method: one is mislabelled", twin.line)),
        None => Ok(measured),
    }
}

/// The least and the most. None of nothing.
fn range(values: impl Iterator<Item = usize>) -> Option<[usize; 2]> {
    values.fold(None, |range, value| {
        let [least, most] = range.unwrap_or([value; 2]);
        Some([least.min(value), most.max(value)])
    })
}

/// None of nothing.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    super::quantile(&values, 0.5)
}
