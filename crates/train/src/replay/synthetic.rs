//! Gradients that cost nothing and whose sums can be checked.

use std::sync::{Arc, Mutex};

use paceline_plan::TensorId;

use crate::optimizer::{Optimizer, Part};
use crate::sync::lock;

/// Between two elements that are not zero lie so many that are: 64 KiB.
const STRIDE: usize = 16_384;

/// A worker's gradients. They are zero but for every 16,384th element of a tensor and its last one. So a worker writes
/// next to nothing: the sums of the other elements are zeros again, and lie there already when the next gradient comes.
/// The sums are whole numbers below 2^24, so they are exact in whatever order they are added.
#[derive(Clone, Debug)]
pub(crate) struct Synthetic {
    /// Elements, by tensor.
    sizes: Vec<usize>,
    rank: usize,
    workers: usize,
    iteration: usize,
    /// Elements that are zero are written, too.
    writes_zeros: bool,
}

impl Synthetic {
    pub(crate) fn new(sizes: &[usize], rank: usize, workers: usize) -> Synthetic {
        Synthetic { sizes: sizes.to_vec(), rank, workers, iteration: 0, writes_zeros: false }
    }

    /// The sums of zeros need not be zeros.
    pub(crate) fn write_zeros(&mut self) {
        self.writes_zeros = true;
    }

    /// The next iteration's gradients come next.
    pub(crate) fn advance(&mut self) {
        self.iteration += 1;
    }

    /// Writes a part of a tensor's gradient, from element `start` on.
    pub(crate) fn write(&self, tensor: TensorId, start: usize, place: &mut [f32]) {
        if self.writes_zeros {
            place.fill(0.0);
        }
        for position in self.positions(tensor, start, place.len()) {
            place[position - start] = (self.rank as f32 + 1.0) * pattern(tensor, position, self.iteration);
        }
    }

    /// The elements of `start..start + count` that are not zero.
    fn positions(&self, tensor: TensorId, start: usize, count: usize) -> impl Iterator<Item = usize> + use<> {
        let (end, last) = (start + count, self.sizes[tensor] - 1);
        let regular = (start.div_ceil(STRIDE)..end.div_ceil(STRIDE)).map(|index| index * STRIDE);
        let irregular = (last % STRIDE > 0 && (start..end).contains(&last)).then_some(last);
        regular.chain(irregular)
    }

    /// What the sum of all workers' elements must be.
    fn sum(&self, tensor: TensorId, position: usize, iteration: usize) -> f32 {
        (self.workers * (self.workers + 1) / 2) as f32 * pattern(tensor, position, iteration)
    }
}

/// From 1 to 97: with it, 500 workers have sums below 2^24.
fn pattern(tensor: TensorId, position: usize, iteration: usize) -> f32 {
    (1 + (31 * tensor + 7 * (position / STRIDE) + position % STRIDE + 13 * iteration) % 97) as f32
}

/// A sum that is not what it must be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WrongSum {
    pub(crate) tensor: TensorId,
    pub(crate) position: usize,
    pub(crate) iteration: usize,
    pub(crate) expected: f32,
    pub(crate) found: f32,
}

/// Stands in for an optimiser, and checks the sums: in each iteration those of the elements that are not zero, and all in
/// the last. Of sums that need not be exact, only that they are finite.
pub(crate) struct Checker {
    gradients: Synthetic,
    exact: bool,
    found: Arc<Mutex<Findings>>,
}

/// What a [`Checker`] is told and has found.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Look at every element from now on.
    pub(crate) thorough: bool,
    /// The first sum that is wrong.
    pub(crate) wrong: Option<WrongSum>,
}

impl Checker {
    pub(crate) fn new(sizes: &[usize], workers: usize, exact: bool, found: Arc<Mutex<Findings>>) -> Checker {
        Checker { gradients: Synthetic::new(sizes, 0, workers), exact, found }
    }

    fn check(&self, part: &Part, sums: &[f32], thorough: bool) -> Result<(), WrongSum> {
        let Part { parameter: tensor, start, update, .. } = *part;
        let wrong = |position: usize, expected: f32| {
            let found = sums[position - start];
            if found == expected {
                return Ok(());
            }
            Err(WrongSum { tensor, position, iteration: update, expected, found })
        };
        let mut next = start;
        for position in self.gradients.positions(tensor, start, sums.len()) {
            if thorough {
                (next..position).try_for_each(|position| wrong(position, 0.0))?;
            }
            wrong(position, self.gradients.sum(tensor, position, update))?;
            next = position + 1;
        }
        if thorough { (next..start + sums.len()).try_for_each(|position| wrong(position, 0.0)) } else { Ok(()) }
    }
}

impl Optimizer for Checker {
    fn step(&mut self, part: &Part, _values: &mut [f32], gradient: &[f32]) -> bool {
        if !self.exact {
            return gradient.iter().all(|sum| sum.is_finite());
        }
        let thorough = lock(&self.found).thorough;
        match self.check(part, gradient, thorough) {
            Ok(()) => true,
            Err(wrong) => {
                lock(&self.found).wrong.get_or_insert(wrong);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [usize; 4] = [1, STRIDE, STRIDE + 1, 3 * STRIDE + 77];

    /// Adds up what `workers` write, cut into pieces, over what lies there.
    fn add_up(workers: usize, iteration: usize, places: &mut [Vec<f32>]) {
        for (tensor, place) in places.iter_mut().enumerate() {
            let before = place.clone();
            place.fill(0.0);
            for rank in 0..workers {
                let mut gradients = Synthetic::new(&SIZES, rank, workers);
                (0..iteration).for_each(|_| gradients.advance());
                let mut own = before.clone();
                for (index, piece) in own.chunks_mut(10_000).enumerate() {
                    gradients.write(tensor, 10_000 * index, piece);
                }
                place.iter_mut().zip(own).for_each(|(sum, value)| *sum += value);
            }
        }
    }

    fn verdict(places: &[Vec<f32>], workers: usize, update: usize, thorough: bool) -> Option<WrongSum> {
        let found = Arc::new(Mutex::new(Findings { thorough, wrong: None }));
        let mut checker = Checker::new(&SIZES, workers, true, found.clone());
        for (parameter, place) in places.iter().enumerate() {
            for (index, piece) in place.chunks(7_000).enumerate() {
                let part = Part { start: 7_000 * index, ..Part::whole(parameter, update, 0.0) };
                checker.step(&part, &mut [], piece);
            }
        }
        lock(&found).wrong.clone()
    }

    #[test]
    fn right_sums_pass_and_wrong_ones_do_not() {
        let mut places: Vec<Vec<f32>> = SIZES.iter().map(|&size| vec![0.0; size]).collect();
        for iteration in 1..=3 {
            add_up(3, iteration, &mut places);
            assert_eq!(verdict(&places, 3, iteration, true), None);
            // A contribution is missing; the sums are those of another iteration.
            assert!(verdict(&places, 4, iteration, false).is_some());
            assert!(verdict(&places, 3, iteration + 1, false).is_some());
        }
        places[3][STRIDE + 1] = 1.0;
        assert_eq!(verdict(&places, 3, 3, false), None);
        let wrong = WrongSum { tensor: 3, position: STRIDE + 1, iteration: 3, expected: 0.0, found: 1.0 };
        assert_eq!(verdict(&places, 3, 3, true), Some(wrong));
    }

    #[test]
    fn sums_that_need_not_be_exact_are_finite() {
        let mut checker = Checker::new(&SIZES, 3, false, Arc::default());
        let mut finite = |sums: &[f32]| checker.step(&Part::whole(3, 1, 0.0), &mut [], sums);
        assert!(finite(&[1.0, 5e30]) && !finite(&[1.0, f32::NAN]) && !finite(&[f32::INFINITY]));
    }

    #[test]
    fn zeros_are_written_where_sums_are_none() {
        let mut gradients = Synthetic::new(&SIZES, 0, 2);
        let mut place = vec![7.0; STRIDE + 1];
        gradients.write(2, 0, &mut place);
        assert_eq!((place[0], place[1]), (pattern(2, 0, 0), 7.0));
        gradients.write_zeros();
        gradients.write(2, 0, &mut place);
        assert_eq!((place[0], place[1]), (pattern(2, 0, 0), 0.0));
    }
}
