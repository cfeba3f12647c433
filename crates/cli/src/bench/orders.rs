//! What rank 0 of a launcher's ranks, which conducts the study, and the others say to each other: JSON in messages of the
//! communicator that all of them form, so that whoever is lost is noticed, by name.

use std::time::Duration;

use paceline_comm::{CallOptions, CommError, Communicator, Pending};
use paceline_fabric::environment::TIMEOUT_MAX;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::team::RankEnd;
use crate::failure::Failure;

/// From rank 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Order {
    /// Listen: rank 0 of the next world will be here.
    Listen,
    /// Start ranks of a world.
    Start(Start),
    /// End what is left of them.
    Stop,
    /// The study is over: end what is left of them, and go.
    Leave,
}

/// Ranks of a world that are to be started on one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Their places in the world.
    pub seats: Vec<(usize, usize)>,
    /// How many ranks the world has.
    pub world_size: usize,
    /// How many of its ranks are on this host.
    pub local_size: usize,
    /// Where they meet.
    pub address: String,
    /// Tells this world from every other.
    pub job: String,
    /// What they find in their environment.
    pub environment: Vec<(String, String)>,
}

/// To rank 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Word {
    /// First of all: who this is.
    Here(Here),
    /// To [`Order::Listen`]: the port, or why not.
    Listening(Result<u16, String>),
    /// To [`Order::Start`], if it cannot be done.
    Refused(String),
    /// One of the ranks that were started here has ended.
    Ended(RankEnd),
    /// To [`Order::Stop`] and [`Order::Leave`]: all have.
    Stopped,
}

/// A launcher's rank, for those that conduct a study with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Here {
    /// The fingerprint of its program.
    pub program: u64,
    /// The processors that it may run on, by number.
    pub processors: Vec<usize>,
    /// How many of them it may keep busy.
    pub cores: usize,
    /// Bytes that it and what it starts may still take of its host's memory; None: its system does not say.
    pub available_bytes: Option<u64>,
}

/// The length of a message, and the message.
const LENGTH: u32 = 1;
const BODY: u32 = 2;

/// A longer message is not ours.
const BYTES_MAX: u64 = 256 << 20;

/// Says something.
///
/// # Errors
/// The other one is lost.
pub fn say(world: &Communicator, to: usize, what: &impl Serialize) -> Result<(), Failure> {
    let body = serde_json::to_vec(what).map_err(|error| Failure::failed("cannot say what to do").cause(error))?;
    world.send(&(body.len() as u64).to_le_bytes(), to, LENGTH, &patient())?;
    Ok(world.send(&body, to, BODY, &patient())?)
}

/// Something that is still to be said.
pub struct Hearing {
    from: usize,
    length: Pending<u8>,
}

impl Hearing {
    /// Begins to listen.
    ///
    /// # Errors
    /// The other one is lost.
    pub fn start(world: &Communicator, from: usize) -> Result<Hearing, Failure> {
        Ok(Hearing { from, length: world.start_receive(world.alloc(8)?, from, LENGTH, &patient())? })
    }

    /// Has something come, or nothing will?
    pub fn is_due(&self) -> bool {
        self.length.is_done()
    }

    /// Waits for it.
    ///
    /// # Errors
    /// The other one is lost, or says what makes no sense.
    pub fn hear<T: DeserializeOwned>(self, world: &Communicator) -> Result<T, Failure> {
        let from = self.from;
        let makes_no_sense = || Failure::failed(format!("rank {from} ({}) says what makes no sense", world.host(from)));
        let length = self.length.wait()?;
        let length = u64::from_le_bytes(length[..].try_into().map_err(|_| makes_no_sense())?);
        if length > BYTES_MAX {
            return Err(makes_no_sense());
        }
        let mut body = vec![0_u8; length as usize];
        world.receive(&mut body, from, BODY, &CallOptions::default())?;
        serde_json::from_slice(&body).map_err(|error| makes_no_sense().cause(error))
    }

    /// Waits at most so long: has something come?
    ///
    /// # Errors
    /// As [`Hearing::hear`].
    pub fn wait(&self, patience: Duration) -> Result<bool, Failure> {
        match self.length.wait_timeout(patience) {
            Ok(()) => Ok(true),
            Err(CommError::NotDone { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// A study takes as long as it takes; whoever is lost meanwhile is noticed by the link.
fn patient() -> CallOptions {
    CallOptions { timeout: Some(TIMEOUT_MAX), ..CallOptions::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard_in_order() {
        let mut ranks = Communicator::threads(2).expect("a world").into_iter();
        let (zero, one) = (ranks.next().expect("rank 0"), ranks.next().expect("rank 1"));
        let start = Start {
            seats: vec![(0, 0), (2, 1)],
            world_size: 3,
            local_size: 2,
            address: "node1:20000".to_owned(),
            job: "j".to_owned(),
            environment: vec![("A".to_owned(), "ü\n".to_owned())],
        };
        let order = Order::Start(start);
        let said = order.clone();
        let other = std::thread::spawn(move || {
            let hear = || Hearing::start(&one, 0).and_then(|hearing| hearing.hear(&one));
            let heard: [Order; 2] = [hear().expect("heard"), hear().expect("heard")];
            say(&one, 0, &Word::Stopped).expect("said");
            heard
        });
        let hearing = Hearing::start(&zero, 1).expect("listening");
        assert!(!hearing.wait(Duration::from_millis(1)).expect("nothing is wrong"));
        say(&zero, 1, &said).expect("said");
        say(&zero, 1, &Order::Leave).expect("said");
        assert_eq!(hearing.hear::<Word>(&zero).expect("heard"), Word::Stopped);
        assert_eq!(other.join().expect("no panic"), [order, Order::Leave]);
    }

    #[test]
    fn whoever_leaves_is_named() {
        let mut ranks = Communicator::threads(2).expect("a world").into_iter();
        let (zero, one) = (ranks.next().expect("rank 0"), ranks.next().expect("rank 1"));
        let hearing = Hearing::start(&zero, 1).expect("listening");
        drop(one);
        let error = hearing.hear::<Word>(&zero).expect_err("nobody is there").in_one_line();
        assert!(error.contains("rank 1"), "{error}");
    }
}
