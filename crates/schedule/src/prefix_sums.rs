/// Sums of the first so many of some numbers that change: a binary indexed tree (Fenwick, "A new data structure for
/// cumulative frequency tables", 1994). A change and a sum take log n additions.
#[derive(Clone, Debug)]
pub(crate) struct PrefixSums {
    /// At `end` - 1 the sum of the numbers before `end`, as many as the lowest bit of `end` says.
    tree: Vec<u64>,
}

impl PrefixSums {
    /// So many zeros.
    pub(crate) fn zeros(count: usize) -> PrefixSums {
        PrefixSums { tree: vec![0; count] }
    }

    pub(crate) fn add(&mut self, place: usize, number: u64) {
        self.change(place, |sum| sum + number);
    }

    /// The number at that place is at least as large.
    pub(crate) fn subtract(&mut self, place: usize, number: u64) {
        self.change(place, |sum| sum - number);
    }

    fn change(&mut self, place: usize, new: impl Fn(u64) -> u64) {
        let mut end = place + 1;
        while let Some(sum) = self.tree.get_mut(end - 1) {
            *sum = new(*sum);
            end += end & end.wrapping_neg();
        }
    }

    /// Of all before that place.
    pub(crate) fn before(&self, place: usize) -> u64 {
        let (mut end, mut sum) = (place, 0);
        while end > 0 {
            sum += self.tree[end - 1];
            end &= end - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_numbers() {
        for count in [1, 2, 7, 8, 100] {
            let (mut sums, mut numbers) = (PrefixSums::zeros(count), vec![0; count]);
            for step in 0..5 * count {
                let place = step * 37 % count;
                if step % 3 == 2 {
                    sums.subtract(place, numbers[place]);
                    numbers[place] = 0;
                } else {
                    sums.add(place, step as u64);
                    numbers[place] += step as u64;
                }
                let found: Vec<u64> = (0..=count).map(|place| sums.before(place)).collect();
                let expected: Vec<u64> = (0..=count).map(|place| numbers[..place].iter().sum()).collect();
                assert_eq!(found, expected);
            }
        }
    }
}
