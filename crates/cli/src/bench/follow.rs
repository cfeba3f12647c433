//! A launcher's rank other than 0, in a study: starts the ranks of worlds as rank 0 says, and tells how they end.

use std::env;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use paceline_comm::Communicator;
use paceline_train::available_memory;

use super::orders::{Hearing, Here, Order, Start, Word, say};
use super::team::Team;
use super::{HEARTBEAT, identity, our_ranks, world};
use crate::failure::Failure;
use crate::supervisor::{self, Meeting, Seat, adopt_orphans};

/// While ranks run: how often an order is looked for. (Their ends are noticed at once.)
const LOOK: Duration = Duration::from_millis(50);

/// Does what rank 0 says until the study is over.
///
/// # Errors
/// Rank 0 is lost.
pub fn run(world: &Communicator, all_here: bool) -> Result<ExitCode, Failure> {
    adopt_orphans();
    say(world, 0, &Word::Here(here()?))?;
    let mut host = Host::new(all_here);
    let mut hearing = Hearing::start(world, 0)?;
    loop {
        if host.is_idle() || hearing.is_due() {
            let order: Order = hearing.hear(world)?;
            let leaves = order == Order::Leave;
            host.obey(order).iter().try_for_each(|word| say(world, 0, word))?;
            if leaves {
                return Ok(ExitCode::SUCCESS);
            }
            hearing = Hearing::start(world, 0)?;
        }
        host.wait(LOOK)?;
        host.ended()?.iter().try_for_each(|word| say(world, 0, word))?;
    }
}

/// Who this is.
///
/// # Errors
/// The program cannot be read.
pub fn here() -> Result<Here, Failure> {
    let program =
        identity::of_program().map_err(|error| Failure::failed("cannot read our own program").cause(error))?;
    let allowed = rustix::thread::sched_getaffinity(None);
    let processors = allowed.map(|set| (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let available_bytes = available_memory();
    Ok(Here { program, processors: processors.unwrap_or_default(), cores, available_bytes })
}

/// The ranks of worlds that live with this rank of the launcher.
pub struct Host {
    team: Option<Team>,
    meeting: Option<Meeting>,
    all_here: bool,
}

impl Host {
    /// Without any. `all_here`: no rank of the launcher is on another host.
    pub fn new(all_here: bool) -> Host {
        Host { team: None, meeting: None, all_here }
    }

    /// Does something, and says what there is to say of it.
    pub fn obey(&mut self, order: Order) -> Vec<Word> {
        match order {
            Order::Listen => {
                let meeting = if self.all_here { Meeting::arrange() } else { Meeting::arrange_for_others() };
                let port = meeting.and_then(|meeting| {
                    let listener = meeting.listener.as_ref().map(std::net::TcpListener::local_addr).transpose()?;
                    self.meeting = Some(meeting);
                    Ok(listener.map_or(0, |address| address.port()))
                });
                vec![Word::Listening(port.map_err(|error| error.to_string()))]
            }
            Order::Start(start) => self.start(start).err().map(Word::Refused).into_iter().collect(),
            Order::Stop | Order::Leave => {
                self.team = None;
                vec![Word::Stopped]
            }
        }
    }

    fn start(&mut self, start: Start) -> Result<(), String> {
        let Start { seats, world_size, local_size, address, job, environment } = start;
        let listener = self.meeting.take().and_then(|meeting| meeting.listener);
        let meeting = Meeting { listener, address, job };
        // What somebody has set on this host goes before what we think.
        let is_ours = |(name, _): &(String, String)| name != HEARTBEAT || env::var_os(HEARTBEAT).is_none();
        let environment = environment.into_iter().filter(is_ours).collect();
        let job = world::job(our_ranks().map_err(|failure| failure.in_one_line())?, world_size, environment);
        let seat = |(rank, local_rank)| Seat { rank, world_size, local_rank, local_size };
        let seats: Vec<Seat> = seats.into_iter().map(seat).collect();
        self.team = Some(Team::start(&seats, &job, &meeting)?);
        Ok(())
    }

    /// Is nobody running?
    pub fn is_idle(&self) -> bool {
        self.team.as_ref().is_none_or(Team::is_done)
    }

    /// Waits for the end of a rank, at most so long.
    ///
    /// # Errors
    /// They cannot be watched.
    pub fn wait(&self, patience: Duration) -> Result<(), Failure> {
        let Some(team) = self.team.as_ref().filter(|team| !team.is_done()) else { return Ok(()) };
        supervisor::wait(team.processes(), None, Some(Instant::now() + patience)).map_err(cannot_watch)
    }

    /// The processes that live here, to wait for.
    pub fn team(&self) -> Option<&Team> {
        self.team.as_ref()
    }

    /// What there is to say of ranks that have ended since.
    ///
    /// # Errors
    /// They cannot be watched.
    pub fn ended(&mut self) -> Result<Vec<Word>, Failure> {
        let ended = self.team.as_mut().map_or(Ok(Vec::new()), Team::ended).map_err(cannot_watch)?;
        Ok(ended.into_iter().map(Word::Ended).collect())
    }
}

fn cannot_watch(error: std::io::Error) -> Failure {
    Failure::failed("cannot watch the ranks; they have been ended").cause(error)
}
