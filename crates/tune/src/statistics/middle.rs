//! The middle of values, some of which may be anything, and windows whose middle is asked for again and again.

use std::collections::VecDeque;

use super::median;

/// The last values, so many at most, and the same by size.
#[derive(Clone, Debug, Default)]
pub struct Last<const MOST: usize> {
    values: VecDeque<f64>,
    sorted: Vec<f64>,
}

impl<const MOST: usize> Last<MOST> {
    /// A further one; the oldest goes if there are too many. What is not finite is none.
    pub fn add(&mut self, value: f64) {
        if !value.is_finite() {
            return;
        }
        let place = |sorted: &[f64], value: f64| sorted.partition_point(|other| other.total_cmp(&value).is_lt());
        if self.values.len() == MOST
            && let Some(oldest) = self.values.pop_front()
        {
            self.sorted.remove(place(&self.sorted, oldest));
        }
        self.values.push_back(value);
        self.sorted.insert(place(&self.sorted, value), value);
    }

    /// All of them are so much less; nothing, if that is not finite.
    pub fn lower(&mut self, by: f64) {
        let by = if by.is_finite() { by } else { 0.0 };
        self.values.iter_mut().chain(&mut self.sorted).for_each(|value| *value -= by);
    }

    /// All of them are so many times as much; nothing, if that is not finite.
    pub fn scale(&mut self, by: f64) {
        let by = if by.is_finite() && by > 0.0 { by } else { 1.0 };
        self.values.iter_mut().chain(&mut self.sorted).for_each(|value| *value *= by);
    }

    /// None is left.
    pub fn clear(&mut self) {
        self.values.clear();
        self.sorted.clear();
    }

    /// By age, the oldest first.
    pub fn by_age(&self) -> impl DoubleEndedIterator<Item = f64> {
        self.values.iter().copied()
    }

    /// By size, the least first.
    pub fn by_size(&self) -> &[f64] {
        &self.sorted
    }
}

/// The median of the means of all pairs, each value with itself included: the middle of values most of which are symmetric about it. Three
/// in ten may be anything, and of normal ones it knows almost as much as the mean does, the median two thirds (Hodges and Lehmann,
/// "Estimates of location based on rank tests", 1963). None of nothing.
///
/// `sorted`: finite values by size. About O(n·log n) for n of them: the means of each with all that follow it are a sorted row, so those
/// below a pivot are counted in one pass over the rows, and what cannot be the median any more is not looked at again (Monahan,
/// "Algorithm 616", 1984).
fn pseudo_median(sorted: &[f64]) -> Option<f64> {
    let (count, means) = (sorted.len(), sorted.len() * (sorted.len() + 1) / 2);
    let middle = means / 2;
    // Of each row what is left.
    let mut left: Vec<[usize; 2]> = (0..count).map(|row| [row, count]).collect();
    let mut ends = vec![0; count];
    loop {
        let pivot = middle_of_left(sorted, &left, middle)?;
        let below = ends_of_rows(sorted, &mut ends, |mean| mean < pivot);
        if middle < below {
            left.iter_mut().zip(&ends).for_each(|([from, to], &end)| *to = end.clamp(*from, *to));
            continue;
        }
        if below == middle && means % 2 == 0 {
            // In the middle are this one and the largest below.
            let last = ends.iter().enumerate().filter(|(row, end)| *end > row);
            let before = last.map(|(row, end)| 0.5 * (sorted[row] + sorted[end - 1])).max_by(f64::total_cmp)?;
            return Some((before + pivot) / 2.0);
        }
        if middle < ends_of_rows(sorted, &mut ends, |mean| mean <= pivot) {
            return Some(pivot);
        }
        left.iter_mut().zip(&ends).for_each(|([from, to], &end)| *from = end.clamp(*from, *to));
    }
}

/// Of what is left of the rows of means one that lies as far into a row of the middle as the mean of that number does into all of it.
fn middle_of_left(sorted: &[f64], left: &[[usize; 2]], number: usize) -> Option<f64> {
    let all = left.iter().map(|[from, to]| to - from).sum::<usize>();
    let gone = left.iter().enumerate().map(|(row, [from, _])| from - row).sum::<usize>();
    let mut before = 0;
    let (row, [from, to]) = left.iter().enumerate().find(|(_, [from, to])| {
        before += to - from;
        2 * before > all
    })?;
    Some(0.5 * (sorted[row] + sorted[from + (to - from) * (number - gone) / all]))
}

/// Where in each row means begin that are not below, and how many are: further to the left in each further row.
fn ends_of_rows(sorted: &[f64], ends: &mut [usize], is_below: impl Fn(f64) -> bool) -> usize {
    let (mut end, mut below) = (sorted.len(), 0);
    for (row, of_row) in ends.iter_mut().enumerate() {
        while end > row && !is_below(0.5 * (sorted[row] + sorted[end - 1])) {
            end -= 1;
        }
        *of_row = end.max(row);
        below += *of_row - row;
    }
    below
}

/// The standard deviation of normal values that are as far from their middle as the middle one of these is: half of them may be anything
/// (Hampel, "The influence curve and its role in robust estimation", 1974). None of nothing.
fn median_deviation(values: &[f64], middle: f64) -> Option<f64> {
    median(&values.iter().map(|value| (value - middle).abs()).collect::<Vec<f64>>()).map(|away| 1.4826 * away)
}

/// Where the middle of values is, and by how much they vary about it: late ones move neither.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Middle {
    /// The median of the means of all pairs (Hodges and Lehmann).
    pub value: f64,
    /// The standard deviation that they would have if all were like those in the middle (Hampel).
    pub deviation: f64,
    /// How many there are.
    pub count: usize,
}

/// What is said of so many deviations is said of nearly all normal values: a mean that is further off, of so many, has been moved.
const NEARLY_ALL: f64 = 2.0;

impl Middle {
    /// Of the finite ones of some values; None of nothing.
    pub fn of(values: &[f64]) -> Option<Middle> {
        let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        Middle::of_sorted(&sorted)
    }

    /// Of finite values by size; None of nothing.
    pub fn of_sorted(sorted: &[f64]) -> Option<Middle> {
        let value = pseudo_median(sorted)?;
        Some(Middle { value, deviation: median_deviation(sorted, value)?, count: sorted.len() })
    }

    /// What is left of a mean of these values, and of others before them, that late ones may have moved.
    pub fn mean(&self, mean: f64) -> f64 {
        let off = NEARLY_ALL * self.deviation / (self.count as f64).sqrt();
        mean.clamp(self.value - off, self.value + off)
    }

    /// The same of a variance.
    pub fn variance(&self, variance: f64) -> f64 {
        variance.min((NEARLY_ALL * self.deviation).powi(2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Half of them of few values that are often alike.
    #[test]
    fn the_middle_of_pairs_is_that_of_all_their_means() {
        let mut random = Random::new(7, 0);
        for case in 0..400 {
            let count = random.below(33);
            let value = |random: &mut Random| if case % 2 == 0 { random.normal() } else { random.below(4) as f64 };
            let mut values: Vec<f64> = (0..count).map(|_| value(&mut random)).collect();
            values.sort_unstable_by(f64::total_cmp);
            let pairs = (0..count).flat_map(|one| (one..count).map(move |other| (one, other)));
            let means: Vec<f64> = pairs.map(|(one, other)| 0.5 * (values[one] + values[other])).collect();
            assert_eq!(pseudo_median(&values), median(&means), "case {case}: {values:?}");
        }
    }

    #[test]
    fn the_last_are_by_age_and_by_size() {
        let mut last = Last::<3>::default();
        [5.0, 1.0, f64::NAN, 3.0, 1.0, 4.0].into_iter().for_each(|value| last.add(value));
        assert_eq!((last.by_age().collect::<Vec<f64>>(), last.by_size()), (vec![3.0, 1.0, 4.0], &[1.0, 3.0, 4.0][..]));
        last.lower(1.0);
        last.add(-1.0);
        assert_eq!(
            (last.by_age().collect::<Vec<f64>>(), last.by_size()),
            (vec![0.0, 3.0, -1.0], &[-1.0, 0.0, 3.0][..])
        );
        last.clear();
        assert!(last.by_size().is_empty() && last.by_age().next().is_none());
    }

    #[test]
    fn late_values_do_not_move_the_middle() {
        // Of -1, 0, 1, 2 and 1000 the fifteen means have their middle at 1 (by hand), which three of five are 1 away from or less.
        let late = [1000.0, 0.0, -1.0, 2.0, 1.0, f64::INFINITY];
        let middle = Middle::of(&late).expect("five values");
        assert_eq!(middle, Middle { value: 1.0, deviation: 1.4826, count: 5 });
        // Of five, a mean is within 2·1.4826/√5.
        assert!(middle.mean(1.3) == 1.3 && (middle.mean(200.4) - 2.326_078).abs() < 1e-5);
        assert!(middle.variance(2.0) == 2.0 && (middle.variance(1e6) - 8.792_4).abs() < 1e-3);
        assert_eq!((Middle::of(&[]), pseudo_median(&[7.0])), (None, Some(7.0)));
    }

    #[test]
    fn the_middle_of_normal_values_is_known_almost_as_well_as_their_mean() {
        let (mut random, mut of_mean, mut of_middle, mut spread) = (Random::new(8, 0), 0.0, 0.0, 0.0);
        for _ in 0..2000 {
            let values: Vec<f64> = (0..15).map(|_| random.normal()).collect();
            of_mean += (values.iter().sum::<f64>() / 15.0).powi(2);
            of_middle += Middle::of(&values).expect("15 values").value.powi(2);
            spread += median_deviation(&values, 0.0).expect("15 values") / 2000.0;
        }
        assert!(of_middle < 1.15 * of_mean && (0.9..1.1).contains(&spread), "{of_mean}, {of_middle}, {spread}");
    }
}
