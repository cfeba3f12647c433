//! Nonlinear least squares for a handful of unknowns: the method of Levenberg (1944) and Marquardt (1963) with bounds,
//! priors, and weights that keep a few wrong observations from deciding.
//!
//! What is minimised is Σ ρ(z) + Σ u²: z are the residuals in units of their standard deviations, u the distances of the
//! unknowns from what was expected of them, likewise, and ρ(z) = 2c²(|z|/c − ln(1 + |z|/c)) is Fair's loss: z² near 0, and
//! 2c|z| far out. Its weights are 1/(1 + |z|/c) (Fair, "On the robust estimation of econometric models", 1974).

/// Beyond so many standard deviations an observation counts by its distance, no longer by its square.
const OUTLYING: f64 = 3.0;
const ITERATIONS_MAX: usize = 200;
/// The step of a difference quotient, in standard deviations of what was expected.
const STEP: f64 = 1e-3;
/// An iteration that gains less than this share was the last.
const GAIN_MIN: f64 = 1e-7;
const DAMPING_MAX: f64 = 1e9;

/// A number that is sought.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Unknown {
    /// What is expected before anything is observed.
    pub mean: f64,
    /// Its standard deviation. Positive.
    pub deviation: f64,
    /// It is not less than this.
    pub least: f64,
    /// It is not more than this.
    pub most: f64,
    /// Does it stay where it starts?
    pub fixed: bool,
}

/// What is to become small.
pub(super) trait Residuals {
    /// Why a residual cannot be computed.
    type Error;

    /// How many observations there are.
    fn count(&self) -> usize;

    /// Those that change with an unknown.
    fn concerned(&self, unknown: usize) -> &[usize];

    /// The residuals of some observations, in units of their standard deviations.
    fn at(&self, values: &[f64], which: &[usize]) -> Result<Vec<f64>, Self::Error>;
}

/// Where the sum is smallest, as far as was found.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Solution {
    /// Of the unknowns.
    pub values: Vec<f64>,
    /// Their standard deviations, of what was expected and what was observed together.
    pub deviations: Vec<f64>,
    /// How much of what is known of each the observations say: 0, nothing; 1, all.
    pub informed: Vec<f64>,
    /// Of the observations.
    pub residuals: Vec<f64>,
    /// What was minimised.
    pub cost: f64,
    /// Steps taken.
    pub iterations: usize,
    /// Did it end because there was nothing more to gain?
    pub converged: bool,
}

/// Minimises from a start on. Every iteration computes the residuals about twice, and once more for each unknown those that
/// it concerns.
pub(super) fn minimise<R: Residuals>(problem: &R, unknowns: &[Unknown], start: &[f64]) -> Result<Solution, R::Error> {
    let all: Vec<usize> = (0..problem.count()).collect();
    let mut values: Vec<f64> = start.iter().zip(unknowns).map(|(value, of)| value.clamp(of.least, of.most)).collect();
    let mut residuals = problem.at(&values, &all)?;
    let mut cost = total(&residuals, &values, unknowns);
    let (mut damping, mut iterations, mut converged) = (1e-3, 0, false);
    let mut equations = Equations::at(problem, unknowns, &values, &residuals)?;
    while !converged && iterations < ITERATIONS_MAX {
        iterations += 1;
        let before = cost;
        while damping < DAMPING_MAX {
            let trial = equations.step(unknowns, &values, damping);
            let found = problem.at(&trial, &all)?;
            let reached = total(&found, &trial, unknowns);
            if reached < cost {
                (values, residuals, cost) = (trial, found, reached);
                damping = (damping / 5.0).max(1e-12);
                break;
            }
            damping *= 5.0;
        }
        // Where nothing can be computed these are no numbers: then there is nothing to gain either.
        let gained = before - cost > GAIN_MIN * before;
        converged = !gained;
        equations = Equations::at(problem, unknowns, &values, &residuals)?;
    }
    let (deviations, informed) = equations.certainty(unknowns, &residuals);
    Ok(Solution { values, deviations, informed, residuals, cost, iterations, converged })
}

fn weight(residual: f64) -> f64 {
    1.0 / (1.0 + residual.abs() / OUTLYING)
}

/// What a residual counts.
pub(super) fn loss(residual: f64) -> f64 {
    let far = residual.abs() / OUTLYING;
    2.0 * OUTLYING * OUTLYING * (far - far.ln_1p())
}

fn total(residuals: &[f64], values: &[f64], unknowns: &[Unknown]) -> f64 {
    let observed: f64 = residuals.iter().map(|&residual| loss(residual)).sum();
    let expected = values.iter().zip(unknowns).filter(|(_, of)| !of.fixed);
    observed + expected.map(|(value, of)| ((value - of.mean) / of.deviation).powi(2)).sum::<f64>()
}

/// The normal equations at a point, unknowns in units of what was expected of them. Those that are fixed are left out.
struct Equations {
    /// Which unknown each row is.
    unknown: Vec<usize>,
    /// JᵀWJ of the observations.
    matrix: Vec<Vec<f64>>,
    /// Half of the gradient of what is minimised.
    gradient: Vec<f64>,
}

impl Equations {
    fn at<R: Residuals>(
        problem: &R,
        unknowns: &[Unknown],
        values: &[f64],
        residuals: &[f64],
    ) -> Result<Equations, R::Error> {
        let unknown: Vec<usize> = (0..unknowns.len()).filter(|&index| !unknowns[index].fixed).collect();
        let columns = unknown.iter().map(|&index| slope(problem, unknowns, values, residuals, index));
        let columns: Vec<Vec<f64>> = columns.collect::<Result<_, _>>()?;
        let weights: Vec<f64> = residuals.iter().map(|&residual| weight(residual)).collect();
        let weighted = |one: &[f64], other: &[f64]| -> f64 {
            one.iter().zip(other).zip(&weights).map(|((one, other), weight)| one * other * weight).sum()
        };
        let matrix = columns.iter().map(|one| columns.iter().map(|other| weighted(one, other)).collect()).collect();
        let gradient = columns.iter().zip(&unknown).map(|(column, &index)| {
            let of = unknowns[index];
            weighted(column, residuals) + (values[index] - of.mean) / of.deviation
        });
        let gradient = gradient.collect();
        Ok(Equations { unknown, matrix, gradient })
    }

    /// Where to try next. What lies at a bound and would go beyond stays there.
    fn step(&self, unknowns: &[Unknown], values: &[f64], damping: f64) -> Vec<f64> {
        let held = |&row: &usize| {
            let (of, value) = (unknowns[self.unknown[row]], values[self.unknown[row]]);
            value <= of.least && self.gradient[row] > 0.0 || value >= of.most && self.gradient[row] < 0.0
        };
        let free: Vec<usize> = (0..self.unknown.len()).filter(|row| !held(row)).collect();
        let entry = |row: usize, column: usize| {
            let expected = if row == column { 1.0 } else { 0.0 };
            let value = self.matrix[row][column] + expected;
            if row == column { value * (1.0 + damping) } else { value }
        };
        let matrix: Vec<Vec<f64>> =
            free.iter().map(|&row| free.iter().map(|&column| entry(row, column)).collect()).collect();
        let wanted: Vec<f64> = free.iter().map(|&row| -self.gradient[row]).collect();
        let mut trial = values.to_vec();
        for (&row, change) in free.iter().zip(solve(&matrix, &wanted).unwrap_or_default()) {
            let index = self.unknown[row];
            let of = unknowns[index];
            trial[index] = (values[index] + of.deviation * change).clamp(of.least, of.most);
        }
        trial
    }

    /// By unknown: its standard deviation, and how much of that knowledge comes from the observations. Where observations
    /// scatter more than they were expected to, they say less; what was expected stays as certain as it was.
    fn certainty(&self, unknowns: &[Unknown], residuals: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let variances = |scatter: f64| -> Vec<f64> {
            let count = self.unknown.len();
            let entry =
                |row: usize, column: usize| self.matrix[row][column] / scatter + if row == column { 1.0 } else { 0.0 };
            let matrix: Vec<Vec<f64>> =
                (0..count).map(|row| (0..count).map(|column| entry(row, column)).collect()).collect();
            let variance = |row: usize| {
                let unit: Vec<f64> = (0..count).map(|column| if column == row { 1.0 } else { 0.0 }).collect();
                solve(&matrix, &unit).map_or(1.0, |column| column[row].clamp(0.0, 1.0))
            };
            (0..count).map(variance).collect()
        };
        let spent: f64 = variances(1.0).iter().map(|variance| 1.0 - variance).sum();
        let squares: f64 = residuals.iter().map(|residual| weight(*residual) * residual * residual).sum();
        let scatter = (squares / (residuals.len() as f64 - spent).max(1.0)).max(1.0);
        let (mut deviations, mut informed) = (vec![0.0; unknowns.len()], vec![0.0; unknowns.len()]);
        for (&index, variance) in self.unknown.iter().zip(variances(scatter)) {
            deviations[index] = unknowns[index].deviation * variance.sqrt();
            informed[index] = 1.0 - variance;
        }
        (deviations, informed)
    }
}

/// How the residuals change with an unknown, by a difference quotient that stays within the bounds.
fn slope<R: Residuals>(
    problem: &R,
    unknowns: &[Unknown],
    values: &[f64],
    residuals: &[f64],
    index: usize,
) -> Result<Vec<f64>, R::Error> {
    let of = unknowns[index];
    let mut moved = values.to_vec();
    let room = of.most - values[index] >= STEP * of.deviation;
    moved[index] += if room { STEP } else { -STEP } * of.deviation;
    let by = (moved[index] - values[index]) / of.deviation;
    let mut column = vec![0.0; residuals.len()];
    let which = problem.concerned(index);
    for (&observation, residual) in which.iter().zip(problem.at(&moved, which)?) {
        column[observation] = (residual - residuals[observation]) / by;
    }
    Ok(column)
}

/// Solves a system with a symmetric, positive definite matrix by Cholesky's decomposition. None if it is not.
fn solve(matrix: &[Vec<f64>], wanted: &[f64]) -> Option<Vec<f64>> {
    let count = wanted.len();
    let mut lower = vec![vec![0.0; count]; count];
    for row in 0..count {
        for column in 0..=row {
            let known: f64 = (0..column).map(|k| lower[row][k] * lower[column][k]).sum();
            let rest = matrix[row][column] - known;
            if row > column {
                lower[row][column] = rest / lower[column][column];
            } else if rest > 0.0 && rest.is_finite() {
                lower[row][row] = rest.sqrt();
            } else {
                return None;
            }
        }
    }
    let mut solution = wanted.to_vec();
    for row in 0..count {
        let known: f64 = (0..row).map(|k| lower[row][k] * solution[k]).sum();
        solution[row] = (solution[row] - known) / lower[row][row];
    }
    for row in (0..count).rev() {
        let known: f64 = (row + 1..count).map(|k| lower[k][row] * solution[k]).sum();
        solution[row] = (solution[row] - known) / lower[row][row];
    }
    Some(solution)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// y = a·e^(−b·x) + c, observed with some deviation.
    struct Decay {
        observed: Vec<(f64, f64)>,
        deviation: f64,
        all: Vec<usize>,
    }

    impl Decay {
        fn of(values: [f64; 3], deviation: f64) -> Decay {
            let y = |x: f64| values[0] * (-values[1] * x).exp() + values[2];
            let observed: Vec<_> = (0..20).map(|step| f64::from(step) * 0.25).map(|x| (x, y(x))).collect();
            let all = (0..observed.len()).collect();
            Decay { observed, deviation, all }
        }
    }

    impl Residuals for Decay {
        type Error = std::convert::Infallible;

        fn count(&self) -> usize {
            self.observed.len()
        }

        fn concerned(&self, unknown: usize) -> &[usize] {
            // Of a fourth unknown nothing depends.
            if unknown < 3 { &self.all } else { &[] }
        }

        fn at(&self, values: &[f64], which: &[usize]) -> Result<Vec<f64>, Self::Error> {
            let residual = |&index: &usize| {
                let (x, y) = self.observed[index];
                (values[0] * (-values[1] * x).exp() + values[2] - y) / self.deviation
            };
            Ok(which.iter().map(residual).collect())
        }
    }

    const FREE: Unknown = Unknown { mean: 1.0, deviation: 10.0, least: 0.0, most: 100.0, fixed: false };

    fn found(problem: &Decay, unknowns: &[Unknown]) -> Solution {
        let start: Vec<f64> = unknowns.iter().map(|of| of.mean).collect();
        let Ok(solution) = minimise(problem, unknowns, &start);
        solution
    }

    fn near(one: f64, other: f64, tolerance: f64) -> bool {
        (one - other).abs() <= tolerance
    }

    #[test]
    fn a_curve_is_found_and_one_wrong_point_does_not_decide() {
        let mut problem = Decay::of([5.0, 0.7, 2.0], 0.001);
        let exact = found(&problem, &[FREE; 3]);
        assert!(exact.converged, "{exact:?}");
        for (value, expected) in exact.values.iter().zip([5.0, 0.7, 2.0]) {
            assert!(near(*value, expected, 1e-3), "{exact:?}");
        }
        problem.observed[3].1 *= 2.0;
        let robust = found(&problem, &[FREE; 3]);
        for (value, expected) in robust.values.iter().zip([5.0, 0.7, 2.0]) {
            assert!(near(*value, expected, 0.02), "{robust:?}");
        }
        assert!(robust.deviations[0] > exact.deviations[0], "a point that does not fit makes the rest less certain");
    }

    #[test]
    fn what_is_not_observed_stays_as_it_was_expected() {
        let solution = found(&Decay::of([5.0, 0.7, 2.0], 0.001), &[FREE; 4]);
        assert_eq!((solution.values[3], solution.deviations[3], solution.informed[3]), (1.0, 10.0, 0.0));
        assert!(solution.informed[..3].iter().all(|&informed| informed > 0.99), "{solution:?}");
        let held = Unknown { mean: 2.0, fixed: true, ..FREE };
        let solution = found(&Decay::of([5.0, 0.7, 2.0], 0.001), &[FREE, FREE, held]);
        assert_eq!((solution.values[2], solution.deviations[2]), (2.0, 0.0));
        assert!(near(solution.values[0], 5.0, 1e-3), "{solution:?}");
    }

    #[test]
    fn bounds_hold_and_the_others_make_the_best_of_it() {
        let bounded = [FREE, FREE, Unknown { most: 1.5, ..FREE }];
        let solution = found(&Decay::of([5.0, 0.7, 2.0], 0.1), &bounded);
        assert!(near(solution.values[2], 1.5, 1e-9) && solution.converged, "{solution:?}");
        let slower = found(&Decay::of([5.0, 0.7, 2.0], 0.1), &[FREE; 3]);
        assert!(solution.values[1] < slower.values[1], "{solution:?}");
    }

    /// Of a mean of n observations that are each off by one deviation, the deviation is 1/√n of that.
    #[test]
    fn the_certainty_is_that_of_linear_regression() {
        let problem = Decay::of([0.0, 0.0, 2.0], 0.5);
        let fixed = Unknown { mean: 0.0, fixed: true, ..FREE };
        let solution = found(&problem, &[fixed, fixed, FREE]);
        let expected = 1.0 / (20.0 / 0.25 + 1.0 / 100.0_f64).sqrt();
        assert!(near(solution.deviations[2], expected, 1e-4), "{} and {expected}", solution.deviations[2]);
    }

    #[test]
    fn a_system_is_solved_or_refused() {
        let matrix = [vec![4.0, 2.0, 0.0], vec![2.0, 5.0, 3.0], vec![0.0, 3.0, 6.0]];
        let solution = solve(&matrix, &[8.0, 21.0, 24.0]).unwrap();
        for (row, wanted) in matrix.iter().zip([8.0, 21.0, 24.0]) {
            let reached: f64 = row.iter().zip(&solution).map(|(entry, value)| entry * value).sum();
            assert!(near(reached, wanted, 1e-12), "{solution:?}");
        }
        assert_eq!(solve(&[vec![1.0, 2.0], vec![2.0, 1.0]], &[1.0, 1.0]), None);
        assert_eq!(solve(&[vec![f64::NAN]], &[1.0]), None);
    }
}
