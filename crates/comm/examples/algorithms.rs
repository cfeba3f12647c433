//! Which algorithm a call runs: the one that it names, or the one that is cheapest for these hosts and links.
use paceline_comm::{CallOptions, CollectiveKind, CommError, Communicator, Reduction, ThreadsConfig};

const ELEMENTS: usize = 10_000;

fn sum(comm: &Communicator, options: &CallOptions) -> Result<(), CommError> {
    let mut data = vec![comm.rank() as i64; ELEMENTS];
    comm.all_reduce(&mut data, Reduction::Sum, options)?;
    assert_eq!(data, vec![6; ELEMENTS], "{options:?}");
    Ok(())
}

fn rank(comm: &Communicator) -> Result<(), CommError> {
    // Two hosts with two ranks each: the hierarchical algorithm asks for it.
    let topology = comm.topology();
    assert_eq!((topology.world(), topology.hosts(), topology.ranks_per_host_max()), (4, 2, 2));
    assert_eq!(topology.members(topology.host(comm.rank())), if comm.rank() < 2 { [0, 1] } else { [2, 3] });
    for name in ["ring", "double-binary-tree", "hierarchical"] {
        sum(comm, &CallOptions::algorithm(name))?;
    }

    // Without a name, closed formulas choose, by what the links have been measured to cost: on all ranks the same.
    comm.probe()?;
    sum(comm, &CallOptions::default())?;
    let (kind, bytes) = (CollectiveKind::AllReduce, ELEMENTS * size_of::<i64>());
    let (name, tile_bytes) = comm.choice(kind, bytes, &CallOptions::default())?;
    // The same call, spelt out.
    sum(comm, &CallOptions { chunk_bytes: Some(tile_bytes), ..CallOptions::algorithm(name) })?;

    let error = comm.choice(kind, bytes, &CallOptions::algorithm("rign")).expect_err("there is none");
    assert!(error.to_string().contains("has no algorithm `rign`; it has: ring, "), "{error}");
    Ok(())
}

/// The ranks are threads here, and pretend to be on two hosts, which TCP links.
pub fn main() -> Result<(), CommError> {
    let ranks = Communicator::threads_with(4, &ThreadsConfig { hosts: 2, ..ThreadsConfig::default() })?.into_iter();
    let ranks: Vec<_> = ranks.map(|comm| std::thread::spawn(move || rank(&comm))).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
}
