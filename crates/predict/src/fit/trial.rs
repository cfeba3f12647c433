//! Some of the observations, predicted with constants that are tried.

use paceline_plan::{Cluster, Constant};

use super::FitError;
use super::least_squares::{Residuals, Solution, Unknown, loss, minimise};
use super::observations::{Observation, Observations};
use super::parameters::{Parameter, parameters};

/// What is fitted to what.
pub(super) struct Trial<'a> {
    observations: Vec<&'a Observation>,
    clusters: &'a [Cluster],
    parameters: &'a [Parameter],
    unknowns: Vec<Unknown>,
    /// By parameter: which observations it changes.
    concerned: Vec<Vec<usize>>,
}

impl<'a> Trial<'a> {
    /// Of those observations that are to be kept; the parameters are set in `clusters`.
    pub fn new(
        observations: &'a Observations,
        clusters: &'a [Cluster],
        parameters: &'a [Parameter],
        keep: impl Fn(&Observation) -> bool,
    ) -> Trial<'a> {
        let observations: Vec<&Observation> = observations.all.iter().filter(|one| keep(one)).collect();
        let concerned = parameters.iter().map(|parameter| {
            (0..observations.len()).filter(|&index| parameter.concerns(observations[index])).collect::<Vec<usize>>()
        });
        let concerned = concerned.collect();
        let unknowns = parameters.iter().map(|parameter| parameter.unknown).collect();
        Trial { observations, clusters, parameters, unknowns, concerned }
    }

    /// The same with only some parameters free.
    pub fn with_free(mut self, free: impl Fn(&Parameter) -> bool) -> Trial<'a> {
        for (unknown, parameter) in self.unknowns.iter_mut().zip(self.parameters) {
            unknown.fixed = !free(parameter);
        }
        self
    }

    /// Finds the values that fit best, from a start on; without one, and where nothing is observed, from what is expected.
    pub fn minimise(&self, start: Option<&[f64]>) -> Result<Solution, FitError> {
        let start = (0..self.unknowns.len()).map(|index| {
            let unknown = self.unknowns[index];
            let unseen = self.concerned[index].is_empty() && !unknown.fixed;
            start.filter(|_| !unseen).map_or(unknown.mean, |start| start[index])
        });
        minimise(self, &self.unknowns, &start.collect::<Vec<f64>>())
    }
}

impl Residuals for Trial<'_> {
    type Error = FitError;

    fn count(&self) -> usize {
        self.observations.len()
    }

    fn concerned(&self, unknown: usize) -> &[usize] {
        &self.concerned[unknown]
    }

    fn at(&self, values: &[f64], which: &[usize]) -> Result<Vec<f64>, FitError> {
        let clusters = applied(self.clusters, self.parameters, values);
        let residual = |&index: &usize| {
            let one = self.observations[index];
            Ok((one.predicted(&clusters[one.network])? / one.measured).ln() / one.deviation)
        };
        which.iter().map(residual).collect()
    }
}

/// The clusters with these values.
pub(super) fn applied(clusters: &[Cluster], parameters: &[Parameter], values: &[f64]) -> Vec<Cluster> {
    let mut clusters = clusters.to_vec();
    for (parameter, &value) in parameters.iter().zip(values) {
        parameter.set(&mut clusters, Constant::exact(value));
    }
    clusters
}

/// Three constants more must make the fit better by this: 99 % of what they would by chance (χ² of 3 degrees of freedom).
const GAIN_MIN: f64 = 11.3;

/// A row that gains more than this share of it is rather wrong itself.
const OF_ONE_ROW: f64 = 0.75;

/// The networks whose throughputs say that hosts are in each other's way, those first that say it loudest: more hosts lose more
/// than a ring's share of the bytes explains.
pub(super) fn crowded(
    observations: &Observations,
    clusters: &[Cluster],
    plain: &[Parameter],
    first: &Solution,
) -> Result<Vec<usize>, FitError> {
    let mut found = Vec::new();
    for network in 0..observations.networks.len() {
        let here = |one: &Observation| one.network == network && one.hosts > 1;
        if !observations.all.iter().any(|one| here(one) && one.hosts > 2) {
            continue;
        }
        let list = parameters(observations, &[network]);
        let start = super::carried(plain, &first.values, &list);
        let fitted = |with: bool| {
            let free = |parameter: &Parameter| parameter.is_across(network) || with && parameter.is_crowding();
            Trial::new(observations, clusters, &list, here).with_free(free).minimise(Some(&start))
        };
        let (without, with) = (fitted(false)?, fitted(true)?);
        let of_row = |(without, with): (&f64, &f64)| loss(*without) - loss(*with);
        let most = without.residuals.iter().zip(&with.residuals).map(of_row).fold(0.0, f64::max);
        let gain = without.cost - with.cost;
        if gain > GAIN_MIN && most < OF_ONE_ROW * gain {
            found.push((gain, network));
        }
    }
    found.sort_by(|one, other| other.0.total_cmp(&one.0));
    Ok(found.into_iter().map(|(_, network)| network).collect())
}
