//! Rows and columns of a grid of ranks, each a communicator of its own.
use paceline_comm::{CallOptions, CommError, Communicator, Reduction};

fn rank(comm: &Communicator) -> Result<(), CommError> {
    let (row, column) = (comm.rank() as u32 / 2, comm.rank() as u32 % 2);
    // `None` would leave this rank out.
    let in_row = comm.split(Some(row), 0)?.expect("every rank has a row");
    let in_column = comm.split(Some(column), 0)?.expect("every rank has a column");
    let mut sums = [comm.rank() as i64; 2];
    let (by_row, by_column) = sums.split_at_mut(1);
    in_row.all_reduce(by_row, Reduction::Sum, &CallOptions::default())?;
    in_column.all_reduce(by_column, Reduction::Sum, &CallOptions::default())?;
    assert_eq!(sums, [4 * i64::from(row) + 1, 2 * i64::from(column) + 2]);
    Ok(())
}

/// The ranks are threads here.
pub fn main() -> Result<(), CommError> {
    let ranks = Communicator::threads(4)?.into_iter();
    let ranks: Vec<_> = ranks.map(|comm| std::thread::spawn(move || rank(&comm))).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
}
