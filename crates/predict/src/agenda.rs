//! What comes next.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

/// Gives the entry with the lowest key; of several, the one that was entered first.
///
/// Where many ranks do the same, most is entered in the order in which it is wanted: that costs a constant, all else the
/// logarithm of the number of entries.
#[derive(Clone, Debug)]
pub(crate) struct Agenda<T> {
    in_order: VecDeque<Entry<T>>,
    others: BinaryHeap<Reverse<Entry<T>>>,
    entered: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry<T> {
    key: f64,
    number: u64,
    what: T,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Agenda { in_order: VecDeque::new(), others: BinaryHeap::new(), entered: 0 }
    }
}

impl<T: Copy> Agenda<T> {
    /// The key must be a number.
    pub fn push(&mut self, key: f64, what: T) {
        let entry = Entry { key, number: self.entered, what };
        self.entered += 1;
        if self.in_order.back().is_none_or(|last| last.key <= key) {
            self.in_order.push_back(entry);
        } else {
            self.others.push(Reverse(entry));
        }
    }

    /// The lowest key, and what it stands for.
    pub fn peek(&self) -> Option<(f64, T)> {
        let entry = if self.is_next_in_order() { self.in_order.front() } else { self.others.peek().map(|one| &one.0) };
        entry.map(|entry| (entry.key, entry.what))
    }

    /// Removes what [`Agenda::peek`] shows.
    pub fn pop(&mut self) -> Option<(f64, T)> {
        let entry =
            if self.is_next_in_order() { self.in_order.pop_front() } else { self.others.pop().map(|one| one.0) };
        entry.map(|entry| (entry.key, entry.what))
    }

    /// Removes it if its key is at most this.
    pub fn pop_until(&mut self, key: f64) -> Option<(f64, T)> {
        if self.peek()?.0 <= key { self.pop() } else { None }
    }

    pub fn len(&self) -> usize {
        self.in_order.len() + self.others.len()
    }

    pub fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        self.in_order.retain(|entry| keep(&entry.what));
        self.others.retain(|entry| keep(&entry.0.what));
    }

    fn is_next_in_order(&self) -> bool {
        match (self.in_order.front(), self.others.peek()) {
            (Some(one), Some(Reverse(other))) => one < other,
            (one, _) => one.is_some(),
        }
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.total_cmp(&other.key).then(self.number.cmp(&other.number))
    }
}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn entries_come_by_their_keys_and_then_as_they_were_entered() {
        for seed in 0..100 {
            println!("seed {seed}");
            let mut random = Random::new(seed);
            let (mut agenda, mut expected) = (Agenda::default(), Vec::new());
            for number in 0..300 {
                if random.below(3) > 0 {
                    let key = random.below(20) as f64;
                    agenda.push(key, number);
                    expected.push((key, number));
                    expected.sort_by(|a: &(f64, usize), b| a.partial_cmp(b).unwrap());
                } else {
                    let next = (!expected.is_empty()).then(|| expected.remove(0));
                    assert_eq!((agenda.peek(), agenda.pop()), (next, next));
                }
                assert_eq!(agenda.len(), expected.len());
            }
            agenda.retain(|number| number % 3 == 0);
            expected.retain(|(_, number)| number % 3 == 0);
            let rest: Vec<_> = std::iter::from_fn(|| agenda.pop_until(9.0)).collect();
            expected.retain(|(key, _)| *key <= 9.0);
            assert_eq!(rest, expected);
        }
    }
}
