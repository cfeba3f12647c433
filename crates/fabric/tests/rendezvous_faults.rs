//! Faults where ranks meet, each of which comes at a random moment: either a whole world forms, or nobody is in one, and
//! each knows why, or has come when it was over. What goes wrong later has the engine's virtual worlds
//! (`crates/engine/tests/world/faults.rs`).

mod common;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use common::Random;
use common::meeting::{JOB, Place};
use paceline_fabric::CONTROL_VERSION;
use paceline_fabric::environment::{Network, World};
use paceline_fabric::rendezvous::{Members, Refusal, RendezvousError, meet};

/// Nothing here takes as long, however slow the machine is.
const LONG: Duration = Duration::from_secs(60);
/// How long those wait for rank 0 who may find that it is all over.
const SHORT: Duration = Duration::from_secs(3);
/// At most so much later than the first does a rank come.
const SPREAD_MS: usize = 60;
/// So many meetings at a time: most of what they do is to wait, and no more fit into 1024 descriptors.
const AT_ONCE: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Nothing is wrong.
    None,
    /// A second process claims a rank.
    Duplicate,
    /// Somebody claims a rank that there is not.
    Beyond,
    /// A rank counts differently.
    WorldSize,
    /// A rank means something else to come of it.
    Terms,
    /// A rank never comes.
    Absent,
    /// A rank of another job calls here.
    Job,
    /// A rank of another version calls here.
    Version,
}

const FAULTS: [Fault; 8] = [
    Fault::None,
    Fault::Duplicate,
    Fault::Beyond,
    Fault::WorldSize,
    Fault::Terms,
    Fault::Absent,
    Fault::Job,
    Fault::Version,
];

type Outcome = Result<Members, RendezvousError>;

/// A meeting: who comes when, and what is wrong.
#[derive(Clone, Debug)]
struct Schedule {
    world_size: u32,
    fault: Fault,
    /// Who is twice, differs, or stays away: not rank 0.
    odd: u32,
    /// When each rank comes, and behind them the one that is too many, in ms.
    delays: Vec<u64>,
    place: Place,
}

impl Schedule {
    fn draw(fault: Fault, random: &mut Random) -> Schedule {
        let world_size = 2 + random.below(5) as u32;
        let odd = 1 + random.below(world_size as usize - 1) as u32;
        let delays = (0..=world_size).map(|_| random.below(SPREAD_MS) as u64).collect();
        Schedule { world_size, fault, odd, delays, place: Place::new() }
    }

    /// Can the world still form, whoever else calls?
    fn may_form(&self) -> bool {
        !matches!(self.fault, Fault::WorldSize | Fault::Terms | Fault::Absent)
    }

    /// Must it?
    fn must_form(&self) -> bool {
        matches!(self.fault, Fault::None | Fault::Job | Fault::Version)
    }

    /// Rank `rank` as it ought to be.
    fn world(&self, rank: u32) -> World {
        self.place.world(rank, self.world_size)
    }

    fn start(&self, world: World, delay: u64, timeout: Duration) -> JoinHandle<Outcome> {
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(delay));
            meet(&world, &Network::default(), timeout, Vec::new(), vec![world.rank as u8])
        })
    }

    fn run(&self) {
        // Only rank 0 can tell that somebody does not come, and waits for it.
        let zero_waits = if self.fault == Fault::Absent { SHORT } else { LONG };
        let others_wait = if self.must_form() || self.fault == Fault::Absent { LONG } else { SHORT };
        let zero = self.start(self.world(0), self.delays[0], zero_waits);
        let ranks: Vec<(u32, JoinHandle<Outcome>)> = (1..self.world_size)
            .filter(|rank| self.fault != Fault::Absent || *rank != self.odd)
            .map(|rank| (rank, self.start(self.own_idea(rank), self.delays[rank as usize], others_wait)))
            .collect();
        let extra = self.extra();
        let join = |thread: JoinHandle<Outcome>| thread.join().expect("no panic");
        let zero = join(zero);
        let mut others: Vec<(u32, Outcome)> = ranks.into_iter().map(|(rank, thread)| (rank, join(thread))).collect();
        match extra {
            Some(Extra::Rank(rank, thread)) if matches!(self.fault, Fault::Duplicate | Fault::Beyond) => {
                others.push((rank, join(thread)));
            }
            Some(Extra::Rank(_, thread)) => self.check_stranger(&join(thread)),
            Some(Extra::Bytes(thread)) => thread.join().expect("no panic"),
            None => {}
        }
        match zero {
            Ok(members) => self.check_formed(&members, &others),
            Err(error) => self.check_ended(&error, &others),
        }
    }

    /// As a rank sees the world, which is wrong for the odd one.
    fn own_idea(&self, rank: u32) -> World {
        let world = self.world(rank);
        match self.fault {
            Fault::WorldSize if rank == self.odd => World { world_size: self.world_size + 1, ..world },
            Fault::Terms if rank == self.odd => World { terms: "with a server".into(), ..world },
            _ => world,
        }
    }

    /// The process that is too many.
    fn extra(&self) -> Option<Extra> {
        let delay = self.delays[self.world_size as usize];
        let rank = |rank: u32, world: World| Some(Extra::Rank(rank, self.start(world, delay, SHORT)));
        match self.fault {
            Fault::Duplicate => rank(self.odd, self.world(self.odd)),
            Fault::Beyond => rank(self.world_size, self.world(self.world_size)),
            Fault::Job => rank(self.odd, World { job: "another".into(), ..self.world(self.odd) }),
            Fault::Version => {
                let port = self.place.port;
                Some(Extra::Bytes(thread::spawn(move || call_with_another_version(port, delay))))
            }
            _ => None,
        }
    }

    /// Each rank is there once and has the same table; whoever was too many has come too late.
    fn check_formed(&self, table: &Members, others: &[(u32, Outcome)]) {
        assert!(self.may_form(), "a world has formed: {self:?}");
        let mut seats = BTreeSet::from([0]);
        for (rank, outcome) in others {
            match outcome {
                Ok(members) => {
                    assert_eq!((members.nonce, &members.members), (table.nonce, &table.members), "{self:?}");
                    assert!(members.rank == *rank && seats.insert(*rank), "rank {rank} is in it twice: {self:?}");
                }
                Err(error) => assert!(!self.must_form() && is_over(error), "rank {rank} of {self:?}: {error}"),
            }
        }
        assert!(seats.into_iter().eq(0..self.world_size), "a part of a world: {self:?}");
    }

    /// Nobody is in a world; rank 0 and all whom it has heard give one reason, which names the odd one.
    fn check_ended(&self, error: &RendezvousError, others: &[(u32, Outcome)]) {
        let RendezvousError::Ended(reason) = error else { panic!("{self:?}: {error}") };
        let odd = if self.fault == Fault::Beyond { self.world_size } else { self.odd };
        let fits = match &**reason {
            Refusal::Duplicate { rank, .. } => self.fault == Fault::Duplicate && *rank == odd,
            Refusal::NoSuchRank { rank, .. } => self.fault == Fault::Beyond && *rank == odd,
            Refusal::WorldSize { rank, theirs, ours, .. } => {
                self.fault == Fault::WorldSize && (*rank, *theirs, *ours) == (odd, self.world_size + 1, self.world_size)
            }
            Refusal::Terms { rank, .. } => self.fault == Fault::Terms && *rank == odd,
            Refusal::Missing { missing, .. } => self.fault == Fault::Absent && *missing == [odd],
            _ => false,
        };
        assert!(fits && error.culprit().map(|culprit| culprit.0) == Some(odd), "{self:?}: {error}");
        assert!(error.to_string().ends_with(&error.next_step()), "{error}");
        for (rank, outcome) in others {
            match outcome {
                Err(RendezvousError::Refused { reason: told, .. }) => assert_eq!(told, reason, "rank {rank}, {self:?}"),
                Err(error) => assert!(is_over(error), "rank {rank} of {self:?}: {error}"),
                Ok(_) => panic!("rank {rank} is in a world that rank 0 has ended: {self:?}: {error}"),
            }
        }
    }

    /// It is told whose job this is, unless it has come too late.
    fn check_stranger(&self, outcome: &Outcome) {
        match outcome {
            Err(RendezvousError::Refused { reason, .. }) => {
                let Refusal::Job { rank, theirs, ours, .. } = &**reason else { panic!("{self:?}: {reason}") };
                assert_eq!((*rank, &theirs[..], &ours[..]), (self.odd, "another", JOB), "{self:?}");
            }
            Err(error) => assert!(is_over(error), "{self:?}: {error}"),
            Ok(_) => panic!("a rank of another job is in the world: {self:?}"),
        }
    }
}

enum Extra {
    Rank(u32, JoinHandle<Outcome>),
    Bytes(JoinHandle<()>),
}

/// Nobody listened any more.
fn is_over(error: &RendezvousError) -> bool {
    matches!(error, RendezvousError::NoAnswer { .. })
}

/// It is refused with the version that is spoken here, or nobody listens any more.
fn call_with_another_version(port: u16, delay: u64) {
    thread::sleep(Duration::from_millis(delay));
    let Ok(mut socket) = TcpStream::connect(("127.0.0.1", port)) else { return };
    socket.set_read_timeout(Some(LONG)).expect("a socket");
    let hello = [&b"PcLc"[..], &(CONTROL_VERSION + 1).to_le_bytes(), &[0, 0, 1, 0, 0, 0, b'x']].concat();
    let mut answer = Vec::new();
    let told = socket.write_all(&hello).and_then(|()| socket.read_to_end(&mut answer));
    let refusal = [&b"PcLc"[..], &CONTROL_VERSION.to_le_bytes(), &[3]].concat();
    assert!(answer.starts_with(&refusal) || answer.is_empty(), "{told:?}: {answer:?}");
}

#[test]
fn a_whole_world_forms_or_none_and_each_knows_why() {
    let rounds = if std::env::var_os("PACELINE_LONG_TESTS").is_some() { 20 } else { 3 };
    let mut random = Random::new();
    for _ in 0..rounds {
        // All listeners before the first meeting: no port is one that another meeting has left.
        let faults = FAULTS.into_iter().cycle().take(AT_ONCE);
        let schedules: Vec<_> = faults.map(|fault| Schedule::draw(fault, &mut random)).collect();
        thread::scope(|scope| {
            for schedule in schedules {
                scope.spawn(move || schedule.run());
            }
        });
    }
}
