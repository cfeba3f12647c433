//! The columns of a tile, of which the ranks of a host hold some each: together they drive its network interface.

use paceline_plan::Rank;

use crate::{Slot, Space};

/// Who on a host holds which columns. Hosts of unequal size have as many columns as the largest has ranks, so on a smaller
/// one each rank holds several.
pub(crate) struct Columns<'a> {
    /// Those who share them.
    pub members: &'a [Rank],
    /// The columns of a tile. At least as many as members.
    pub count: usize,
    /// The parts of a column.
    pub parts: usize,
}

impl Columns<'_> {
    /// The columns of a member: first and end.
    pub fn range(&self, member: usize) -> (usize, usize) {
        (member * self.count / self.members.len(), (member + 1) * self.count / self.members.len())
    }

    /// All columns of a member.
    pub fn slot(&self, member: usize) -> impl Fn(Space) -> Slot + use<> {
        let (first, end) = self.range(member);
        let (part, parts) = ((first * self.parts) as u32, ((end - first) * self.parts) as u32);
        move |space| Slot::of_parts(space, 0, part, parts)
    }

    /// The share of a tile that a member holds.
    pub fn share(&self, member: usize) -> f64 {
        let (first, end) = self.range(member);
        (end - first) as f64 / self.count as f64
    }

    /// The member that holds a column.
    pub fn holder(&self, column: usize) -> Rank {
        // The last whose range begins at or before the column.
        self.members[((column + 1) * self.members.len() - 1) / self.count]
    }

    /// Which of the members a rank is.
    pub fn member(&self, rank: Rank) -> usize {
        self.members.iter().position(|&member| member == rank).unwrap_or(0)
    }

    /// The other members, from the next one on.
    pub fn peers(&self, rank: Rank) -> impl DoubleEndedIterator<Item = usize> + use<> {
        let (own, count) = (self.member(rank), self.members.len());
        (1..count).map(move |offset| (own + offset) % count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_its_holder() {
        for count in 1..20 {
            let members: Vec<Rank> = (0..count).collect();
            for columns in count..24 {
                let columns = Columns { members: &members, count: columns, parts: 1 };
                for member in 0..count {
                    let (first, end) = columns.range(member);
                    assert!(first < end);
                    (first..end).for_each(|column| assert_eq!(columns.holder(column), member));
                }
            }
        }
    }
}
