//! The constants of clusters from measured throughputs.
//!
//! A study says how many samples per second a model makes by a method on so many workers. Which link, which start-up and which
//! interference explain all of its rows at once? The answer is found by nonlinear least squares on the logarithms of predicted
//! over measured throughput; a prediction is that of [`estimate`](crate::estimate), so what was fitted is what predicts.
//! `docs/prediction.md` has the constants, what is expected of them before, and what was found.

mod errors;
mod least_squares;
mod left_out;
mod observations;
mod parameters;
#[cfg(test)]
mod tests;
mod trial;

use paceline_plan::{Cluster, Constant, Profile};

use crate::PredictError;
use crate::study::{Study, StudyError};
use least_squares::Solution;
use observations::Observations;
use parameters::{PARAMETERS_MAX, Parameter, parameters};
use trial::{Trial, applied, crowded};

pub use errors::Errors;
use errors::quantile;

/// What a fit is told besides the study.
#[derive(Clone, Copy, Debug, Default)]
pub struct FitOptions<'a> {
    /// Of models that are not built in, or other than built in.
    pub profiles: &'a [Profile],
    /// How many workers share a host. None: what the study's notes say ([`Study::workers_per_host`]), or 4.
    pub workers_per_host: Option<usize>,
    /// What the clusters say of where their constants come from.
    pub source: &'a str,
    /// Is it to be found out how well what was left out is predicted? Takes some times as long.
    pub leave_out: bool,
}

/// Constants that explain a study.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// What was sought. At most 20.
    pub parameters: Vec<FittedParameter>,
    /// By network, in the order in which they stand in the study.
    pub clusters: Vec<(String, Cluster)>,
    /// The rows that it was fitted to.
    pub rows: Vec<FittedRow>,
    /// The others.
    pub skipped: Vec<Skipped>,
    /// Of the rows that it was fitted to.
    pub errors: Errors,
    /// How well a model is predicted by a fit to the others, and a network likewise; empty unless that was wanted.
    pub left_out: Vec<LeftOut>,
    /// Steps of the last fit.
    pub iterations: usize,
    /// Did it end because there was nothing more to gain?
    pub converged: bool,
}

/// A constant that was sought.
#[derive(Clone, Debug, PartialEq)]
pub struct FittedParameter {
    /// Its name in a cluster, such as `across.beta_s_per_byte`.
    pub name: String,
    /// Whose it is; None: all networks have the same.
    pub network: Option<String>,
    /// Of its value; empty: it is a number.
    pub unit: &'static str,
    /// What was found, and where it lies with 95 %.
    pub value: Constant,
    /// How much of what is known of it the study says: 0, nothing; 1, all. The rest was expected before.
    pub informed: f64,
    /// Why that was expected.
    pub prior: &'static str,
}

/// Where a constant comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The study determines it.
    Throughputs,
    /// The study says something of it, and what was expected as much.
    Both,
    /// The study says nothing of it: it is what was expected.
    Prior,
}

impl Origin {
    /// In a word.
    pub const fn name(self) -> &'static str {
        match self {
            Origin::Throughputs => "throughputs",
            Origin::Both => "throughputs and prior",
            Origin::Prior => "prior",
        }
    }
}

impl FittedParameter {
    /// Where it comes from.
    pub fn origin(&self) -> Origin {
        match self.informed {
            share if share < 0.02 => Origin::Prior,
            share if share < 0.75 => Origin::Both,
            _ => Origin::Throughputs,
        }
    }
}

/// A row of the study that was fitted to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FittedRow {
    /// Its index in [`Study::rows`].
    pub row: usize,
    /// As the clusters predict it.
    pub predicted_samples_per_s: f64,
    /// Predicted over measured, less 1.
    pub error: f64,
}

/// A row of the study that was not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its index in [`Study::rows`].
    pub row: usize,
    /// Where it stands, counted from 1.
    pub line: usize,
    /// What is the matter with it, to be read after "line N".
    pub reason: String,
}

/// How well something is predicted by constants that know nothing of it.
#[derive(Clone, Debug, PartialEq)]
pub struct LeftOut {
    /// `model` or `network`.
    pub what: &'static str,
    /// Which.
    pub name: String,
    /// Of its rows.
    pub errors: Errors,
}

/// Why nothing was fitted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FitError {
    /// The study cannot be used.
    #[error(transparent)]
    Study(#[from] StudyError),
    /// A row cannot be predicted.
    #[error("line {line} of the study: {reason}")]
    Row {
        /// Counted from 1.
        line: usize,
        /// Why not.
        reason: Box<PredictError>,
    },
    /// There is nothing to fit to.
    #[error("no row of the study can be fitted to: each needs a throughput in the column samples_per_s{}", first_reason(.skipped))]
    Nothing {
        /// Why not.
        skipped: Vec<Skipped>,
    },
    /// The study has too many networks.
    #[error(
        "{constants} constants would be sought for {networks} networks, and at most {most} are: fit them one by one",
        most = PARAMETERS_MAX
    )]
    Networks {
        /// How many constants.
        constants: usize,
        /// How many networks.
        networks: usize,
    },
}

/// Why the first row is not used.
fn first_reason(skipped: &[Skipped]) -> String {
    skipped.first().map(|Skipped { line, reason, .. }| format!("; line {line} {reason}")).unwrap_or_default()
}

/// Of hosts of which nothing is said.
const WORKERS_PER_HOST: usize = 4;

/// Finds the constants of the clusters on which a study ran, a cluster for each of its networks, all with the same hosts.
///
/// Methods, models and networks may be missing: constants of which the rows say nothing stay what was expected of them, and
/// [`FittedParameter::origin`] says so. Rows that contradict all others count little. The same study gives the same constants.
/// Takes about as many predictions as rows × constants × 10.
///
/// # Errors
/// A row makes no sense, or there is none.
pub fn fit(study: &Study, options: &FitOptions) -> Result<Fit, FitError> {
    let workers_per_host = options.workers_per_host.or_else(|| study.workers_per_host()).unwrap_or(WORKERS_PER_HOST);
    let (observations, skipped) = Observations::of(study, options.profiles, workers_per_host)?;
    let clusters = observations.clusters(options.source);
    let (list, solution) = sought(&observations, &clusters)?;
    let left_out = match options.leave_out {
        true => left_out::left_out(&observations, &clusters)?,
        false => Vec::new(),
    };
    found(&observations, clusters, &list, &solution, skipped, left_out)
}

/// Which constants explain these observations, and what they are: nothing but these says either.
fn sought(observations: &Observations, clusters: &[Cluster]) -> Result<(Vec<Parameter>, Solution), FitError> {
    let plain = parameters(observations, &[]);
    if plain.len() > PARAMETERS_MAX {
        return Err(FitError::Networks { constants: plain.len(), networks: observations.networks.len() });
    }
    let first = Trial::new(observations, clusters, &plain, |_| true).minimise(None)?;
    let crowded = crowded(observations, clusters, &plain, &first)?;
    if crowded.is_empty() {
        return Ok((plain, first));
    }
    let list = parameters(observations, &crowded);
    let start = carried(&plain, &first.values, &list);
    let solution = Trial::new(observations, clusters, &list, |_| true).minimise(Some(&start))?;
    Ok((list, solution))
}

/// The values of parameters as another list has them; new ones as they are expected.
fn carried(from: &[Parameter], values: &[f64], to: &[Parameter]) -> Vec<f64> {
    let old = |parameter: &Parameter| from.iter().position(|known| known.is(parameter)).map(|index| values[index]);
    to.iter().map(|parameter| old(parameter).unwrap_or(parameter.unknown.mean)).collect()
}

fn found(
    observations: &Observations,
    clusters: Vec<Cluster>,
    list: &[Parameter],
    solution: &Solution,
    skipped: Vec<Skipped>,
    left_out: Vec<LeftOut>,
) -> Result<Fit, FitError> {
    let mut clusters = applied(&clusters, list, &solution.values);
    let rows = observations.all.iter().map(|one| {
        let predicted_samples_per_s = one.predicted(&clusters[one.network])?;
        Ok(FittedRow { row: one.row, predicted_samples_per_s, error: predicted_samples_per_s / one.measured - 1.0 })
    });
    let rows: Vec<FittedRow> = rows.collect::<Result<_, FitError>>()?;
    let parameters = list.iter().enumerate().map(|(index, parameter)| {
        let (value, margin) = (solution.values[index], NORMAL_95 * solution.deviations[index]);
        let (least, most) = (parameter.unknown.least, parameter.unknown.most);
        let value = Constant::between(value, (value - margin).max(least), (value + margin).min(most));
        parameter.set(&mut clusters, value);
        FittedParameter {
            name: parameter.constant.clone(),
            network: parameter.network.map(|network| observations.networks[network].clone()),
            unit: parameter.unit,
            value,
            informed: solution.informed[index],
            prior: parameter.why,
        }
    });
    let parameters = parameters.collect();
    for cluster in &mut clusters {
        // Where no row asks for it, it is not said, either.
        cluster.server.connection_s_per_byte.take_if(|connection| *connection == Constant::ZERO);
    }
    let errors = Errors::of(rows.iter().map(|row| row.error));
    let clusters = observations.networks.iter().cloned().zip(clusters).collect();
    let (iterations, converged) = (solution.iterations, solution.converged);
    Ok(Fit { parameters, clusters, rows, skipped, errors, left_out, iterations, converged })
}

/// 95 % of a normal distribution lie within so many standard deviations.
const NORMAL_95: f64 = 1.96;
