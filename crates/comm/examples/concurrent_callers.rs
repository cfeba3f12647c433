//! Several threads of each rank call at once. Calls of different ranks are matched by the order in which they are made,
//! which threads do not have: so each thread has a communicator of its own, or each call an id or a tag.
use paceline_comm::{CallOptions, CommError, Communicator, Reduction};

/// Calls in a row, which need an order: that of this thread alone.
fn with_a_communicator(own: &Communicator, thread: i64) -> Result<(), CommError> {
    for round in 0..20 {
        let mut sum = [thread + round];
        own.all_reduce(&mut sum, Reduction::Sum, &CallOptions::default())?;
        assert_eq!(sum, [3 * (thread + round)]);
    }
    Ok(())
}

/// A call that all ranks name alike, here by the layer of a model. No other call has the same id, before or after.
fn with_an_id(comm: &Communicator, layer: u64) -> Result<(), CommError> {
    let options = CallOptions { operation: Some(layer), ..CallOptions::default() };
    let mut gradient = vec![layer as f32; 1000];
    comm.all_reduce(&mut gradient, Reduction::Average, &options)?;
    assert_eq!(gradient, vec![layer as f32; 1000]);
    Ok(())
}

/// Messages of one tag keep their order; those of different tags have none.
fn with_a_tag(comm: &Communicator, tag: u32) -> Result<(), CommError> {
    let (world, options) = (comm.world_size(), CallOptions::default());
    let (next, before) = ((comm.rank() + 1) % world, (comm.rank() + world - 1) % world);
    let (token, mut received) = ([comm.rank() as i64, tag.into()], [0; 2]);
    comm.group(|group| {
        group.send(&token, next, tag, &options)?;
        group.receive(&mut received, before, tag, &options)
    })?;
    assert_eq!(received, [before as i64, tag.into()]);
    Ok(())
}

fn rank(comm: &Communicator) -> Result<(), CommError> {
    // Before there are threads: `split` is a call like any other.
    let own = [comm.split(Some(0), 0)?, comm.split(Some(0), 0)?].map(|own| own.expect("every rank is in it"));
    std::thread::scope(|scope| {
        let rows = own.iter().zip(0..).map(|(own, thread)| scope.spawn(move || with_a_communicator(own, thread)));
        let layers = (0..4).map(|layer| scope.spawn(move || with_an_id(comm, layer)));
        let tags = (0..4).map(|tag| scope.spawn(move || with_a_tag(comm, tag)));
        let threads: Vec<_> = rows.chain(layers).chain(tags).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

/// The ranks are threads here, too.
pub fn main() -> Result<(), CommError> {
    let ranks = Communicator::threads(3)?.into_iter();
    let ranks: Vec<_> = ranks.map(|comm| std::thread::spawn(move || rank(&comm))).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
}
