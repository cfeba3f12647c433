//! How well a fit predicts what it was not fitted to.

use paceline_plan::Cluster;

use super::errors::Errors;
use super::observations::{Observation, Observations};
use super::parameters::{Parameter, parameters};
use super::trial::{Trial, applied, crowded};
use super::{FitError, LeftOut, carried, sought};

/// Leaves out each model, and each network, if there are others.
///
/// Of a model that is left out nothing is known but its profile. Of a network that is left out a fit to the others says
/// nothing: what its links cost then comes from its own all-to-all rows without overlap, as a probe would find it, and its
/// other rows are predicted. Which constants are sought, and what is expected of them, is said by the rows that are kept, too; of
/// links without rows by messages from point to point ([`Observations::first_beta`]).
pub(super) fn left_out(observations: &Observations, clusters: &[Cluster]) -> Result<Vec<LeftOut>, FitError> {
    let leaving = Leaving { observations, clusters };
    let mut found = Vec::new();
    if observations.models.len() > 1 {
        for (model, named) in observations.models.iter().enumerate() {
            let known = leaving.model(model)?;
            let errors = leaving.errors(&known, |one| one.model == model)?;
            found.push(LeftOut { what: "model", name: named.name.clone(), errors });
        }
    }
    if observations.networks.len() > 1 {
        for (network, name) in observations.networks.iter().enumerate() {
            let Some(known) = leaving.network(network)? else { continue };
            let here = |one: &Observation| one.network == network;
            let others = observations.all.iter().any(|one| here(one) && !probes(one));
            let errors = leaving.errors(&known, |one| here(one) && (!others || !probes(one)))?;
            found.push(LeftOut { what: "network", name: name.clone(), errors });
        }
    }
    Ok(found)
}

/// Is it one from which to know what links cost?
fn probes(one: &Observation) -> bool {
    !one.case.overlaps && !one.has_servers()
}

/// What is known without something.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub parameters: Vec<Parameter>,
    /// As many.
    pub values: Vec<f64>,
}

/// All rows, some of which are left out.
pub(super) struct Leaving<'a> {
    pub observations: &'a Observations,
    /// All that throughputs suggest of them at first sight are constants that are sought, and so is replaced.
    pub clusters: &'a [Cluster],
}

impl Leaving<'_> {
    /// What is known without a model.
    pub fn model(&self, model: usize) -> Result<Known, FitError> {
        let kept = self.observations.only(|one| one.model != model);
        let (parameters, solution) = sought(&kept, self.clusters)?;
        Ok(Known { parameters, values: solution.values })
    }

    /// What is known without a network but for its links. None of a network without a row from which to know these.
    pub fn network(&self, network: usize) -> Result<Option<Known>, FitError> {
        let probed = self.observations.only(|one| one.network == network && probes(one));
        if probed.all.is_empty() {
            return Ok(None);
        }
        let kept = self.observations.only(|one| one.network != network);
        let (others, solution) = sought(&kept, self.clusters)?;
        let of_links = |parameters: Vec<Parameter>| {
            let start = carried(&others, &solution.values, &parameters);
            let free = |parameter: &Parameter| parameter.is_of_links(network);
            let solution =
                Trial::new(&probed, self.clusters, &parameters, |_| true).with_free(free).minimise(Some(&start))?;
            Ok::<_, FitError>((parameters, solution))
        };
        let (plain, first) = of_links(parameters(&probed, &[]))?;
        let crowded = crowded(&probed, self.clusters, &plain, &first)?;
        let (parameters, solution) =
            if crowded.is_empty() { (plain, first) } else { of_links(parameters(&probed, &crowded))? };
        Ok(Some(Known { parameters, values: solution.values }))
    }

    fn errors(&self, known: &Known, of: impl Fn(&Observation) -> bool) -> Result<Errors, FitError> {
        let clusters = applied(self.clusters, &known.parameters, &known.values);
        let predicted = self.observations.all.iter().filter(|one| of(one)).map(|one| {
            let predicted = one.predicted(&clusters[one.network])?;
            Ok(predicted / one.measured - 1.0)
        });
        let errors: Vec<f64> = predicted.collect::<Result<_, FitError>>()?;
        Ok(Errors::of(errors.into_iter()))
    }
}
