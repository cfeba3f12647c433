//! Every collective once, among three ranks: what each of them gives, and what it gets.
use paceline_comm::{CallOptions, CommError, Communicator, Reduction};

/// Those in which all ranks do the same.
fn alike(comm: &Communicator, me: i32) -> Result<(), CommError> {
    let options = CallOptions::default();
    let mut all = [0; 6];
    comm.all_gather(&[me; 2], &mut all, &options)?;
    assert_eq!(all, [0, 0, 1, 1, 2, 2]);

    // A block for each rank, of the sum of all.
    let mut block = [0; 2];
    comm.reduce_scatter(&all, &mut block, Reduction::Sum, &options)?;
    assert_eq!(block, [3 * me; 2]);

    // A block from each rank.
    let mut column = [0; 3];
    comm.all_to_all(&[10 * me, 10 * me + 1, 10 * me + 2], &mut column, &options)?;
    assert_eq!(column, [me, 10 + me, 20 + me]);

    comm.all_reduce(&mut column, Reduction::Max, &options)?;
    assert_eq!(column, [2, 12, 22]);
    comm.barrier(&options)
}

/// Those that have a root: rank 0 here. Who gets nothing has no output, and who gives nothing no input.
fn rooted(comm: &Communicator, me: i32) -> Result<(), CommError> {
    let (options, is_root) = (CallOptions::default(), comm.rank() == 0);
    let at_root = |elements| vec![0; if is_root { elements } else { 0 }];
    let mut data = [me; 2];
    comm.broadcast(&mut data, 0, &options)?;
    assert_eq!(data, [0; 2]);

    let mut sum = at_root(2);
    comm.reduce(&[me, 1], &mut sum, 0, Reduction::Sum, &options)?;
    assert!(!is_root || sum == [3, 3]);

    let mut all = at_root(6);
    comm.gather(&[me; 2], &mut all, 0, &options)?;
    assert!(!is_root || all == [0, 0, 1, 1, 2, 2]);
    comm.scatter(&all, &mut data, 0, &options)?;
    assert_eq!(data, [me; 2]);

    // What the root has does not count: it is a parameter server's shard, the others are workers.
    comm.push_pull(&mut data, 0, Reduction::Product, &options)?;
    assert_eq!(data, [2; 2]);
    Ok(())
}

/// The ranks are threads here.
pub fn main() -> Result<(), CommError> {
    let rank = |comm: Communicator| alike(&comm, comm.rank() as i32).and_then(|()| rooted(&comm, comm.rank() as i32));
    let ranks = Communicator::threads(3)?.into_iter();
    let ranks: Vec<_> = ranks.map(|comm| std::thread::spawn(move || rank(comm))).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
}
