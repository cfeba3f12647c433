//! When is a mean known well enough, and which line fits best?

/// Half the width of the 95 % confidence interval of the mean, as a share of it; infinite for fewer than two values.
pub(crate) fn relative_half_width(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    if values.len() < 2 {
        return f64::INFINITY;
    }
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    student_t_975(values.len() - 1) * (variance / count).sqrt() / mean
}

/// The middle value, or the mean of the two in the middle; 0 if there is none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// The 97.5 % quantile of Student's t with so many degrees of freedom: the 95 % confidence interval of a mean reaches so many
/// standard errors to either side. Infinite for none.
pub fn student_t_975(degrees: usize) -> f64 {
    // Abramowitz and Stegun, table 26.10.
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
    ];
    match degrees {
        0 => f64::INFINITY,
        1..=30 => TABLE[degrees - 1],
        // The normal quantile and the first term of its correction (26.7.5).
        _ => 1.960 + (1.960 + 1.960_f64.powi(3)) / (4.0 * degrees as f64),
    }
}

/// Alpha and beta of the line alpha + beta · x through points of x and y, neither below 0, that lies nearest in relative
/// terms: the sum of the squares of (alpha + beta · x - y) / y is least.
pub(crate) fn fit(points: &[(u64, f64)]) -> (f64, f64) {
    let weighted =
        |value: fn(f64, f64) -> f64| -> f64 { points.iter().map(|&(x, y)| value(x as f64, y) / (y * y)).sum() };
    let (ones, xs, ys) = (weighted(|_, _| 1.0), weighted(|x, _| x), weighted(|_, y| y));
    let (squares, products) = (weighted(|x, _| x * x), weighted(|x, y| x * y));
    let determinant = ones * squares - xs * xs;
    if determinant <= f64::EPSILON * ones * squares {
        return (ys / ones, 0.0);
    }
    let (alpha, beta) = ((squares * ys - xs * products) / determinant, (ones * products - xs * ys) / determinant);
    if alpha < 0.0 {
        (0.0, products / squares)
    } else if beta < 0.0 {
        (ys / ones, 0.0)
    } else {
        (alpha, beta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_students() {
        // Mean 10, deviation 1, five values: 2.776 / sqrt(5) / 10.
        let values = [9.0, 9.0, 10.0, 11.0, 11.0];
        assert!((relative_half_width(&values) - 0.2776 / 5f64.sqrt()).abs() < 1e-4);
        assert_eq!(relative_half_width(&[3.0]), f64::INFINITY);
        assert_eq!(relative_half_width(&[3.0, 3.0, 3.0]), 0.0);
    }

    #[test]
    fn the_median_lies_in_the_middle() {
        assert_eq!((median([]), median([3.0]), median([9.0, 1.0])), (0.0, 3.0, 5.0));
        assert_eq!((median([1e9, 2.0, 1.0]), median([4.0, 1.0, 2.0, 1e9])), (2.0, 3.0));
    }

    #[test]
    fn students_t_falls_to_the_normal_quantile() {
        assert_eq!((student_t_975(0), student_t_975(1)), (f64::INFINITY, 12.706));
        for degrees in 1..200 {
            assert!(student_t_975(degrees) > student_t_975(degrees + 1), "{degrees}");
            assert!(student_t_975(degrees + 1) > 1.96, "{degrees}");
        }
        assert!((student_t_975(60) - 2.000).abs() < 0.002 && (student_t_975(120) - 1.980).abs() < 0.002);
    }

    #[test]
    fn a_line_is_found_again() {
        let line = |alpha: f64, beta: f64| [1u64, 1 << 10, 1 << 16, 1 << 22].map(|x| (x, alpha + beta * x as f64));
        let (alpha, beta) = fit(&line(50e-6, 0.8e-9));
        assert!((alpha / 50e-6 - 1.0).abs() < 1e-6 && (beta / 0.8e-9 - 1.0).abs() < 1e-6, "{alpha}, {beta}");
        // Neither is below 0, whatever the points.
        let (alpha, beta) = fit(&[(10, 1e-6), (1_000, 1.0)]);
        assert!(alpha >= 0.0 && beta > 0.0);
        assert_eq!(fit(&[(10, 2.0), (1_000, 1.0)]).1, 0.0);
        assert_eq!(fit(&[(10, 2.0)]), (2.0, 0.0));
    }
}
