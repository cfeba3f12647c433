//! A message from rank to rank, under a tag.
use paceline_comm::{CallOptions, CommError, Communicator};

fn rank(comm: &Communicator) -> Result<(), CommError> {
    let options = CallOptions::default();
    let mut token = [0u8; 5];
    if comm.rank() == 0 {
        comm.send(b"hello", 1, 7, &options)?;
    } else {
        comm.receive(&mut token, 0, 7, &options)?;
        assert_eq!(&token, b"hello");
    }
    Ok(())
}

/// The ranks are threads here.
pub fn main() -> Result<(), CommError> {
    let ranks = Communicator::threads(2)?.into_iter();
    let ranks: Vec<_> = ranks.map(|comm| std::thread::spawn(move || rank(&comm))).collect();
    ranks.into_iter().try_for_each(|rank| rank.join().expect("no panic"))
}
