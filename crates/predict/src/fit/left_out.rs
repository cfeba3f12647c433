//! How well a fit predicts what it was not fitted to.

use paceline_plan::Cluster;

use super::errors::Errors;
use super::least_squares::Solution;
use super::observations::{Observation, Observations};
use super::parameters::Parameter;
use super::trial::{Trial, applied};
use super::{FitError, LeftOut};

/// Leaves out each model, and each network, if there are others.
///
/// Of a model that is left out nothing is known but its profile. Of a network that is left out a fit to the others says
/// nothing: what its links cost then comes from its own all-to-all rows without overlap, as a probe would find it, and its
/// other rows are predicted.
pub(super) fn left_out(
    observations: &Observations,
    clusters: &[Cluster],
    parameters: &[Parameter],
    solution: &Solution,
) -> Result<Vec<LeftOut>, FitError> {
    let leaving = Leaving { observations, clusters, parameters, solution };
    let mut found = Vec::new();
    if observations.models.len() > 1 {
        for (model, named) in observations.models.iter().enumerate() {
            let errors = leaving.model(model)?;
            found.push(LeftOut { what: "model", name: named.name.clone(), errors });
        }
    }
    if observations.networks.len() > 1 {
        for (network, name) in observations.networks.iter().enumerate() {
            if let Some(errors) = leaving.network(network)? {
                found.push(LeftOut { what: "network", name: name.clone(), errors });
            }
        }
    }
    Ok(found)
}

struct Leaving<'a> {
    observations: &'a Observations,
    clusters: &'a [Cluster],
    parameters: &'a [Parameter],
    /// To begin with.
    solution: &'a Solution,
}

impl Leaving<'_> {
    fn model(&self, model: usize) -> Result<Errors, FitError> {
        let others = self.trial(|one| one.model != model).minimise(Some(&self.solution.values))?;
        self.errors(&others.values, |one| one.model == model)
    }

    /// None of a network without a row from which to know its links.
    fn network(&self, network: usize) -> Result<Option<Errors>, FitError> {
        let here = |one: &Observation| one.network == network;
        let probe = |one: &Observation| here(one) && !one.case.overlaps && !one.has_servers();
        if !self.observations.all.iter().any(probe) {
            return Ok(None);
        }
        let others = self.trial(|one| !here(one)).minimise(Some(&self.solution.values))?;
        let links = |parameter: &Parameter| parameter.is_of_links(network);
        let known = self.trial(probe).with_free(links).minimise(Some(&others.values))?;
        let others = self.observations.all.iter().any(|one| here(one) && !probe(one));
        self.errors(&known.values, |one| here(one) && (!others || !probe(one))).map(Some)
    }

    fn trial(&self, keep: impl Fn(&Observation) -> bool) -> Trial<'_> {
        Trial::new(self.observations, self.clusters, self.parameters, keep)
    }

    fn errors(&self, values: &[f64], of: impl Fn(&Observation) -> bool) -> Result<Errors, FitError> {
        let clusters = applied(self.clusters, self.parameters, values);
        let predicted = self.observations.all.iter().filter(|one| of(one)).map(|one| {
            let predicted = one.predicted(&clusters[one.network])?;
            Ok(predicted / one.measured - 1.0)
        });
        let errors: Vec<f64> = predicted.collect::<Result<_, FitError>>()?;
        Ok(Errors::of(errors.into_iter()))
    }
}
