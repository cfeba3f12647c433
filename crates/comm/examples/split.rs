//! Rows and columns of a grid of ranks, each a communicator of its own, and a part of a row.
use paceline_comm::{CallOptions, CommError, Communicator, Reduction};

fn rank(comm: &Communicator) -> Result<(), CommError> {
    let options = CallOptions::default();
    let (row, column) = (comm.rank() as u32 / 3, comm.rank() as u32 % 3);
    let in_row = comm.split(Some(row), 0)?.expect("every rank has a row");
    let in_column = comm.split(Some(column), 0)?.expect("every rank has a column");
    let mut sums = [comm.rank() as i64; 2];
    let (by_row, by_column) = sums.split_at_mut(1);
    in_row.all_reduce(by_row, Reduction::Sum, &options)?;
    in_column.all_reduce(by_column, Reduction::Sum, &options)?;
    assert_eq!(sums, [9 * i64::from(row) + 3, 2 * i64::from(column) + 3]);

    // What was split can be split again. `None` leaves the middle of the row out, and the key turns the order round.
    let Some(ends) = in_row.split((column != 1).then_some(0), -(column as i32))? else {
        assert_eq!(column, 1);
        return Ok(());
    };
    assert_eq!((ends.world_size(), ends.rank()), (2, usize::from(column == 0)));
    let mut right_end = [comm.rank() as i64];
    ends.broadcast(&mut right_end, 0, &options)?;
    assert_eq!(right_end, [3 * i64::from(row) + 2]);
    Ok(())
}

/// The ranks are threads here.
pub fn main() -> Result<(), CommError> {
    let ranks = Communicator::threads(6)?.into_iter();
    let ranks: Vec<_> = ranks.map(|comm| std::thread::spawn(move || rank(&comm))).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
}
