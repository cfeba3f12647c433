//! A study on the ranks that a launcher has started: rank 0 conducts, all are hosts of the worlds' ranks, which are
//! processes of their own. So a world that fails takes nobody with it but itself, and each has just the ranks that it needs:
//! smaller worlds are split off, without those that are not in it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use paceline_comm::{Communicator, Config, TransportChoice};
use paceline_fabric::environment::{Environment, MeetingPoint, World};
use paceline_fabric::rendezvous::{self, Members};
use paceline_plan::{Hosts, Rank, Shape};

use super::conduct::Worlds;
use super::follow::{Host, here};
use super::heartbeat;
use super::identity::in_text;
use super::judge::{Judge, WorldEnd};
use super::orders::{Hearing, Here, Order, Start, Word, say};
use super::placement::Placement;
use super::rank::WorldSpec;
use super::stage::Stage;
use super::study::Launched;
use crate::failure::Failure;
use crate::supervisor::{self, Signals, job_name};
use crate::workers;

/// While a world runs: how often words of others are looked for.
const LOOK: Duration = Duration::from_millis(20);
/// How long ranks may take to start or to end what they are told to.
const OBEY: Duration = Duration::from_secs(30);
/// An idle link of the ranks that conduct carries a sign of life this often: seldom, as it is beside what is measured. A
/// process that ends is noticed at once.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// All ranks of the launcher, once they know each other.
pub struct Met {
    /// They talk over it.
    pub world: Communicator,
    members: Members,
    hosts: Hosts,
    launcher: String,
}

/// Meets the others.
///
/// # Errors
/// Not all came in time, or they may not talk to each other.
pub fn meet(mut environment: Environment, place: &World) -> Result<Met, Failure> {
    let members = rendezvous::survey(place, &environment.network, environment.timeout)
        .map_err(|error| Failure::failed(format!("rank {}: {error}", place.rank)))?;
    let first = |one: usize| {
        let same = |other: &rendezvous::Member| other.identity.is_same_host(&members.members[one].identity);
        members.members.iter().position(same).unwrap_or(one)
    };
    let hosts = Hosts::in_order((0..members.members.len()).map(first));
    // Which hosts its worlds have, a study says.
    environment.topology = Shape::Flat;
    environment.heartbeat = environment.heartbeat.map(|every| every.max(HEARTBEAT)).or(Some(HEARTBEAT));
    let config = workers::config(environment, TransportChoice::Tcp)?;
    let watch =
        paceline_comm::Watch { heartbeat: config.watch.heartbeat.max(HEARTBEAT), on_stall: None, ..config.watch };
    let world = Communicator::connect(Config { probe: false, watch, ..config })?;
    Ok(Met { world, members, hosts, launcher: place.launcher.to_string() })
}

impl Met {
    /// Is every rank on one host?
    pub fn all_here(&self) -> bool {
        self.hosts.count() == 1
    }

    fn stage(&self) -> Stage {
        let name = |ranks: &Vec<Rank>| self.members.members[ranks[0]].host.clone();
        Stage { hosts: self.hosts.clone(), names: self.hosts.members().iter().map(name).collect() }
    }

    /// At which address the other hosts reach the host of a rank.
    fn address(&self, rank: Rank, meeting_point: Option<&MeetingPoint>) -> String {
        let member = &self.members.members[rank];
        match (member.seen_at, meeting_point) {
            _ if self.all_here() => "127.0.0.1".to_owned(),
            (_, Some(point)) if self.hosts.host(rank) == self.hosts.host(0) => point.host.clone(),
            (Some(address), _) => address.to_string(),
            (None, _) => member.host.clone(),
        }
    }
}

/// Rank 0's side.
pub struct Conductor {
    met: Met,
    meeting_point: Option<MeetingPoint>,
    host: Host,
    environment: Vec<(String, String)>,
    /// Of each host, for the ranks on it together.
    cores: Vec<usize>,
    signals: Signals,
    /// What is still to be heard from the others, by rank.
    hearing: BTreeMap<Rank, Hearing>,
}

impl Conductor {
    /// Hears who the others are. `environment` is what the ranks of worlds are told besides.
    ///
    /// # Errors
    /// One is lost, or runs another program.
    pub fn new(
        met: Met,
        meeting_point: Option<MeetingPoint>,
        environment: Vec<(String, String)>,
    ) -> Result<(Conductor, Launched), Failure> {
        supervisor::adopt_orphans();
        let signals = Signals::catch().map_err(|error| Failure::failed("cannot catch signals").cause(error))?;
        let host = Host::new(met.all_here());
        let others = 1..met.world.world_size();
        let hearing = others.map(|rank| Ok((rank, Hearing::start(&met.world, rank)?)));
        let hearing = hearing.collect::<Result<_, Failure>>()?;
        let mut conductor = Conductor { met, meeting_point, host, environment, cores: Vec::new(), signals, hearing };
        let mut all = vec![here()?];
        for rank in 1..conductor.met.world.world_size() {
            let Word::Here(here) = conductor.hear(rank)? else { return Err(conductor.astray(rank)) };
            all.push(here);
        }
        if let Some(other) = all.iter().position(|here| here.program != all[0].program) {
            let what = format!(
                "rank {other} on {} runs another program ({}) than rank 0 on {} ({})",
                conductor.met.world.host(other),
                in_text(all[other].program),
                conductor.met.world.host(0),
                in_text(all[0].program)
            );
            return Err(Failure::failed(what).help("install the same paceline on all hosts"));
        }
        let stage = conductor.met.stage();
        conductor.cores = cores(&stage.hosts, &all);
        let placement = Placement::new(&conductor.met.launcher, &stage, &conductor.cores);
        let available_bytes = available_bytes(&stage.hosts, &all);
        Ok((conductor, Launched { stage, placement, available_bytes }))
    }

    /// Waits for the next word of a rank, and begins to listen for the one after.
    fn hear(&mut self, rank: Rank) -> Result<Word, Failure> {
        let world = &self.met.world;
        let hearing = match self.hearing.remove(&rank) {
            Some(hearing) => hearing,
            None => Hearing::start(world, rank)?,
        };
        if !hearing.wait(OBEY)? {
            let what = format!("rank {rank} on {} does not answer", world.host(rank));
            return Err(Failure::failed(what).help("see what that rank is doing, then start the job again"));
        }
        let word = hearing.hear(world)?;
        self.hearing.insert(rank, Hearing::start(world, rank)?);
        Ok(word)
    }

    fn astray(&self, rank: Rank) -> Failure {
        Failure::failed(format!("rank {rank} on {} says what nobody asked", self.met.world.host(rank)))
    }

    /// Gives an order, and returns what there is to say of it at once.
    fn tell(&mut self, rank: Rank, order: Order) -> Result<Vec<Word>, Failure> {
        if rank == 0 {
            return Ok(self.host.obey(order));
        }
        say(&self.met.world, rank, &order)?;
        Ok(Vec::new())
    }

    /// Where a world's rank 0 will listen, on the host of this rank. The inner error is one of this world only.
    fn listen(&mut self, rank: Rank) -> Result<Result<String, String>, Failure> {
        let word = match self.tell(rank, Order::Listen)?.pop() {
            Some(word) => word,
            None => self.hear(rank)?,
        };
        let Word::Listening(port) = word else { return Err(self.astray(rank)) };
        let host = self.met.address(rank, self.meeting_point.as_ref());
        let on = self.met.world.host(rank);
        Ok(port
            .map(|port| MeetingPoint { host, port }.to_string())
            .map_err(|why| format!("cannot listen on {on} for the ranks to meet: {why}")))
    }

    /// Tells the hosts of a world to start its ranks. Words of failure are among what is heard later.
    fn start(&mut self, spec: &WorldSpec, cast: &[Rank], address: &str) -> Result<Vec<Word>, Failure> {
        let cannot = |error| Failure::failed("cannot tell the ranks what to do").cause(error);
        let mut environment = self.environment.clone();
        environment.extend(spec.environment().map_err(cannot)?);
        let (address, job) = (address.to_owned(), job_name(address));
        let common = Start { seats: Vec::new(), world_size: cast.len(), local_size: 0, address, job, environment };
        let starts = starts(cast, &self.met.hosts, &self.cores, &common);
        let mut words = Vec::new();
        for (rank, start) in starts {
            words.extend(self.tell(rank, Order::Start(start))?);
        }
        Ok(words)
    }

    /// Follows a world to its end.
    fn watch(&mut self, judge: &mut Judge, mut words: Vec<Word>, cast: &[Rank]) -> Result<WorldEnd, Failure> {
        loop {
            words.extend(self.host.ended()?);
            for rank in cast.iter().copied().filter(|rank| *rank != 0).collect::<BTreeSet<_>>() {
                while self.hearing.get(&rank).is_some_and(Hearing::is_due) {
                    words.push(self.hear(rank)?);
                }
            }
            for word in words.drain(..) {
                match word {
                    Word::Ended(end) => judge.hear(end, Instant::now()),
                    Word::Refused(why) => return Ok(WorldEnd::Failed(why)),
                    _ => {}
                }
            }
            if let Some(signal) = self.signals.next() {
                return Ok(WorldEnd::Interrupted(signal));
            }
            if let Some(end) = judge.verdict(Instant::now()) {
                return Ok(end);
            }
            let deadline = judge.deadline().min(Instant::now() + LOOK);
            let processes = self.host.team().map_or(&[][..], |team| team.processes());
            supervisor::wait(processes, Some(self.signals.as_fd()), Some(deadline))
                .map_err(|error| Failure::failed("cannot watch the ranks; they have been ended").cause(error))?;
        }
    }

    /// Ends what is left of a world.
    fn stop(&mut self, cast: &[Rank]) -> Result<(), Failure> {
        let places: BTreeSet<Rank> = cast.iter().copied().collect();
        for &rank in &places {
            self.tell(rank, Order::Stop)?;
        }
        for rank in places.into_iter().filter(|rank| *rank != 0) {
            // Before it, ranks may have ended by themselves.
            while self.hear(rank)? != Word::Stopped {}
        }
        Ok(())
    }

    fn run_on(&mut self, spec: &WorldSpec, cast: &[Rank], limit: Duration) -> Result<WorldEnd, Failure> {
        let Some(&first) = cast.first() else { return Ok(WorldEnd::Failed("it has no ranks".to_owned())) };
        let address = match self.listen(first)? {
            Ok(address) => address,
            Err(why) => return Ok(WorldEnd::Failed(why)),
        };
        let mut judge = Judge::new(cast.len(), spec.cell.workers, limit, Instant::now());
        let words = self.start(spec, cast, &address)?;
        let end = self.watch(&mut judge, words, cast)?;
        if !matches!(end, WorldEnd::Interrupted(_)) {
            self.stop(cast)?;
        }
        Ok(end)
    }
}

impl Worlds for Conductor {
    fn run(&mut self, spec: &WorldSpec, limit: Duration) -> Result<WorldEnd, Failure> {
        let cast = match self.met.stage().cast(&spec.cell) {
            Ok(cast) => cast,
            Err(why) => return Ok(WorldEnd::Failed(why)),
        };
        self.run_on(spec, &cast, limit).or_else(|failure| {
            // A launcher that ends all ranks reaches some before others.
            let until = Instant::now() + INTERRUPT_GRACE;
            while Instant::now() < until {
                if let Some(signal) = self.signals.next() {
                    return Ok(WorldEnd::Interrupted(signal));
                }
                std::thread::sleep(LOOK);
            }
            Err(failure.help("a rank of the launcher is lost, and with it the job: what has ended is kept; start the job again with --resume"))
        })
    }
}

/// How long our own signal may come after others were reached.
const INTERRUPT_GRACE: Duration = Duration::from_millis(300);

/// Lets the others go.
impl Drop for Conductor {
    fn drop(&mut self) {
        let world = &self.met.world;
        // Whoever is lost hears nothing, and the rest are told by its loss.
        for &rank in self.hearing.keys() {
            let _ = say(world, rank, &Order::Leave);
        }
        for (rank, mut hearing) in std::mem::take(&mut self.hearing) {
            // Before its last word, there may be others that nobody wants any more.
            while let Ok(true) = hearing.wait(OBEY) {
                match hearing.hear(world) {
                    Ok(Word::Stopped) | Err(_) => break,
                    Ok(_) => match Hearing::start(world, rank) {
                        Ok(next) => hearing = next,
                        Err(_) => break,
                    },
                }
            }
        }
    }
}

/// What each of the launcher's ranks is to start of a world: the seats that are cast on it, and what all are told, with
/// as much time between signs of life as the processes on its host need.
fn starts(cast: &[Rank], hosts: &Hosts, cores: &[usize], common: &Start) -> BTreeMap<Rank, Start> {
    let mut starts: BTreeMap<Rank, Start> = BTreeMap::new();
    for (rank, &at) in cast.iter().enumerate() {
        let with_it = |cast: &[Rank]| cast.iter().filter(|&&other| hosts.host(other) == hosts.host(at)).count();
        let start = starts.entry(at).or_insert_with(|| {
            let local_size = with_it(cast);
            let cores = cores.get(hosts.host(at)).copied().unwrap_or(1);
            let environment = common.environment.iter().cloned().chain(heartbeat(local_size, cores)).collect();
            Start { local_size, environment, ..common.clone() }
        });
        start.seats.push((rank, with_it(&cast[..rank])));
    }
    starts
}

/// The cores that the ranks of a host may keep busy together, by host.
fn cores(hosts: &Hosts, all: &[Here]) -> Vec<usize> {
    let of_host = |ranks: &Vec<Rank>| {
        let processors: BTreeSet<usize> = ranks.iter().flat_map(|&rank| all[rank].processors.clone()).collect();
        let alike = ranks.iter().all(|&rank| all[rank].processors == all[ranks[0]].processors);
        let busy = match alike {
            // They share what one of them may use.
            true => all[ranks[0]].cores,
            false => ranks.iter().map(|&rank| all[rank].cores).sum::<usize>().min(processors.len()),
        };
        busy.max(1)
    };
    hosts.members().iter().map(of_host).collect()
}

/// What may still be taken of the memory of each host, in bytes: the least that a rank there is told.
fn available_bytes(hosts: &Hosts, all: &[Here]) -> Vec<Option<u64>> {
    let of_host = |ranks: &Vec<Rank>| ranks.iter().filter_map(|&rank| all[rank].available_bytes).min();
    hosts.members().iter().map(of_host).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Five ranks on a host of two cores, of which one of the launcher's ranks starts three and another one two; one is
    /// alone on another host.
    #[test]
    fn hosts_with_more_ranks_than_cores_have_more_time_for_signs_of_life() {
        let common = Start {
            seats: Vec::new(),
            world_size: 6,
            local_size: 0,
            address: "a:1".to_owned(),
            job: "j".to_owned(),
            environment: vec![("A".to_owned(), "1".to_owned())],
        };
        let starts = starts(&[0, 0, 1, 2, 1, 0], &"0,0,1".parse().expect("hosts"), &[2, 2], &common);
        let facts = |at: Rank| (starts[&at].seats.clone(), starts[&at].local_size);
        assert_eq!(facts(0), (vec![(0, 0), (1, 1), (5, 4)], 5));
        assert_eq!(facts(1), (vec![(2, 2), (4, 3)], 5));
        assert_eq!(facts(2), (vec![(3, 0)], 1));
        let slow = [("A", "1"), ("PACELINE_HEARTBEAT", "3")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let told = [0, 1, 2].map(|at| starts[&at].environment.clone());
        assert_eq!(told, [slow.to_vec(), slow.to_vec(), common.environment]);
    }

    fn nobody() -> Here {
        Here { program: 1, processors: Vec::new(), cores: 1, available_bytes: None }
    }

    #[test]
    fn each_host_has_memory_of_its_own() {
        let all = [Some(9), Some(5), None, Some(7)].map(|available_bytes| Here { available_bytes, ..nobody() });
        let on = |hosts: &str| available_bytes(&hosts.parse().expect("hosts"), &all);
        assert_eq!(on("0,1,1,0"), [Some(7), Some(5)]);
        assert_eq!(on("0,1,2,1"), [Some(9), Some(5), None]);
    }

    #[test]
    fn cores_are_shared_by_those_who_may_use_the_same() {
        let here = |processors: &[usize], cores| Here { processors: processors.to_vec(), cores, ..nobody() };
        let on = |hosts: &str, all: &[Here]| cores(&hosts.parse().expect("hosts"), all);
        let free = here(&[0, 1, 2, 3, 4, 5, 6, 7], 8);
        assert_eq!(on("1x2", &[free.clone(), free.clone()]), [8]);
        // Bound to two processors each, by the launcher.
        assert_eq!(on("1x2", &[here(&[0, 1], 2), here(&[2, 3], 2)]), [4]);
        // A container's quota.
        let limited = here(&[0, 1, 2, 3], 2);
        assert_eq!(on("1x2", &[limited.clone(), limited]), [2]);
        // Each host has its own.
        assert_eq!(on("0,1,1", &[free.clone(), here(&[0], 1), here(&[0], 1)]), [8, 1]);
        assert_eq!(on("0,1,0", &[here(&[0, 1], 2), free, here(&[2], 1)]), [3, 8]);
    }
}
