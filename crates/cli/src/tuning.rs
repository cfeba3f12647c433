//! Tuning of a running job's calls: whether it is on, and what earlier jobs on this cluster have learned.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;

use paceline_comm::{CallOptions, Communicator, Topology};
use paceline_plan::{Fnv1a, Shape};
use paceline_train::{TunedContext, named};
use paceline_tune::learner::Lesson;

use crate::bench::ResultStore as Store;
use crate::emulation::Emulated;
use crate::failure::Failure;
use crate::machine::Machine;

/// The variable of the environment that switches all tuning off.
const SWITCH: &str = "PACELINE_TUNE";

/// Are calls tuned? Not without `--tune`, and not if the environment says no, in the words that the plug-in for NCCL understands.
///
/// # Errors
/// The environment says something else: whoever misspells `off` must not be tuned.
pub fn is_on(asked: bool) -> Result<bool, Failure> {
    decide(asked, &env::var_os(SWITCH).unwrap_or_default().to_string_lossy())
}

fn decide(asked: bool, said: &str) -> Result<bool, Failure> {
    let is_one_of = |words: &[&str]| words.iter().any(|word| said.eq_ignore_ascii_case(word));
    if !asked || is_one_of(&["off", "0", "no", "false"]) {
        return Ok(false);
    }
    if is_one_of(&["", "on", "1", "yes", "true"]) {
        return Ok(true);
    }
    Err(Failure::usage(format!("{SWITCH}={said} is neither `on` nor `off`")).help("unset it, or set it to `off`"))
}

/// The same for what an option asks for, on every rank of a world, which all call it; the first one says if nothing comes of it.
///
/// # Errors
/// As [`is_on`]; some ranks are switched off, and some are not; those of the communication.
pub fn is_on_for(option: &str, world: &Communicator) -> Result<bool, Failure> {
    let is_on = is_on(true)?;
    agree(option, is_on, world)?;
    if !is_on && world.rank() == 0 {
        say_off(option);
    }
    Ok(is_on)
}

/// What a rank that is off tells the others, and one that is on. A rank that was started otherwise is in another call, and sends neither;
/// it refuses both where it waits for the length of a text.
const WORDS: [i64; 2] = [i64::from_be_bytes(*b"tune off"), i64::from_be_bytes(*b"tune  on")];

/// All ranks are switched alike, or all of them hear who is not: a rank that is switched off alone would be in another call than the
/// others.
fn agree(option: &str, is_on: bool, world: &Communicator) -> Result<(), Failure> {
    let mut all = vec![0; world.world_size()];
    world.all_gather(&[WORDS[usize::from(is_on)]], &mut all, &CallOptions::default())?;
    let those = |says: &dyn Fn(i64) -> bool| (0..all.len()).filter(|&rank| says(all[rank])).collect::<Vec<_>>();
    let me = format!("rank {} (host {}): {option}", world.rank(), world.host(world.rank()));
    let strangers = those(&|word| !WORDS.contains(&word));
    if !strangers.is_empty() {
        return Err(Failure::failed(format!("{me} is asked for here, and not of {}", named(world, &strangers)))
            .help("start every rank with the same program, options and environment"));
    }
    let [off, on] = WORDS.map(|wanted| those(&|word| word == wanted));
    if off.is_empty() || on.is_empty() {
        return Ok(());
    }
    let (off, on) = (named(world, &off), named(world, &on));
    Err(Failure::failed(format!("{me}: {SWITCH}=off is in the environment of {off}, and not of {on}"))
        .help(format!("set {SWITCH}=off on all ranks, or on none of them")))
}

/// Says that what an option asks for is not done.
pub fn say_off(option: &str) {
    eprintln!("paceline: {SWITCH}=off in the environment: {option} does nothing");
}

/// Says what is wrong with a database; the job goes on without what it cannot read or keep.
pub fn say_lost(what: &str, failure: &Failure) {
    eprintln!("paceline: {what}: {}", failure.in_one_line());
}

/// What jobs have learned on a cluster, in a database.
pub struct Experience {
    store: Store,
    cluster: String,
    /// What was known when it was opened.
    before: Vec<Lesson>,
}

impl Experience {
    /// Opens the database, or makes it, and reads what is known.
    ///
    /// # Errors
    /// It is none, or cannot be read or written.
    pub fn open(path: &Path, cluster: String) -> Result<Experience, Failure> {
        let store = Store::open(path)?;
        let before = store.lessons(&cluster)?;
        Ok(Experience { store, cluster, before })
    }

    /// What was known when it was opened.
    pub fn lessons(&self) -> &[Lesson] {
        &self.before
    }

    /// Keeps what was learned since it was opened.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep(&self, lessons: &[Lesson]) -> Result<(), Failure> {
        Ok(self.store.keep_lessons(&self.cluster, &joined(&self.before, lessons))?)
    }
}

/// Keeps what stands at the end of a job on a cluster; of what cannot be kept it is said why, as the job is over.
pub fn keep_standings(path: &Path, cluster: &str, standings: &[TunedContext]) {
    if let Err(error) = Store::open(path).and_then(|store| store.keep_standings(cluster, standings)) {
        say_lost("what stands is not kept", &Failure::from(error));
    }
}

/// About so many samples of a choice count in a tuner.
const SAMPLES_MAX: f64 = 50.0;

/// What was learned now, with what was known before of the same choices: those samples count half, as the network may be another. A
/// lesson to which nobody has added comes back as it was, and stays so.
pub fn joined(before: &[Lesson], learned: &[Lesson]) -> Vec<Lesson> {
    let known: BTreeMap<_, &Lesson> = before.iter().map(|lesson| ((lesson.context, lesson.action), lesson)).collect();
    let join = |lesson: &Lesson| {
        let Some(known) = known.get(&(lesson.context, lesson.action)) else { return *lesson };
        // On its way through JSON, a number may have lost its last digit.
        let is_same = |one: f64, other: f64| (one - other).abs() <= 1e-9 * one.abs();
        if is_same(known.samples, lesson.samples) && is_same(known.mean, lesson.mean) {
            return **known;
        }
        let (older, samples) = (0.5 * known.samples, 0.5 * known.samples + lesson.samples);
        let mean = (older * known.mean + lesson.samples * lesson.mean) / samples;
        // What is damaged is not taken over.
        if mean.is_finite() { Lesson { samples: samples.min(SAMPLES_MAX), mean, ..*lesson } } else { *lesson }
    };
    learned.iter().map(join).collect()
}

/// What jobs on the same cluster have in common: machines of this kind, links like these, and so many workers. Times on another
/// one say nothing here.
pub fn cluster_name(machine: &Machine, links: &str, workers: usize) -> String {
    let Machine { processor, cores, architecture, .. } = machine;
    let kind = Fnv1a::of(format!("{processor}\n{cores}\n{architecture}").as_bytes());
    format!("{kind:016x}:{links}:{workers}")
}

/// The links among workers on so many hosts, in words for [`cluster_name`], with the TCP connections per pair of ranks if these are
/// several; emulated ones, of which none is over TCP, by their network, the workers on each host and by how much all is slowed. (Whether
/// memory or TCP carries what is said on a host, and how fast TCP is, is part of each lesson.)
pub fn links(hosts: usize, tcp_streams: usize, emulated: Option<(&str, usize, f64)>) -> String {
    let streams = if tcp_streams > 1 { format!(", {tcp_streams} TCP connections") } else { String::new() };
    match emulated {
        Some((network, on_each, dilation)) => format!("{network}, {on_each} on each host, dilated {dilation}"),
        None if hosts == 1 => format!("one host{streams}"),
        None => format!("{hosts} hosts{streams}"),
    }
}

/// The cluster of a world that has met.
pub fn cluster_of(world: &Communicator, emulated: Option<&Emulated>) -> String {
    let topology = world.topology();
    let network = emulated.map(|it| (it.network.as_str(), topology.ranks_per_host_max(), it.dilation));
    let links = wired(links(topology.hosts(), world.tcp_streams(), network), topology);
    cluster_name(&Machine::this(), &links, world.world_size())
}

/// The same links on hosts that are wired as their ranks were told, if they were: with other sides or levels, what follows them is
/// another program.
fn wired(links: String, topology: &Topology) -> String {
    match topology.shape() {
        Shape::Flat => links,
        shape => format!("{links}, {shape}"),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use paceline_plan::Cluster;
    use paceline_tune::environment::{CostModel, OwnModel, Workload};
    use paceline_tune::{Action, Family, WireProtocol};

    use super::*;

    #[test]
    fn the_environment_switches_off_and_nothing_else() {
        for asked in [false, true] {
            for word in ["", "on", "1", "YES"] {
                assert_eq!(decide(asked, word).ok(), Some(asked), "{word}");
            }
            for word in ["off", "Off", "0", "no", "false"] {
                assert_eq!(decide(asked, word).ok(), Some(false), "{word}");
            }
        }
        let failure = decide(true, "of").expect_err("it has no such value").in_one_line();
        assert!(failure.contains("PACELINE_TUNE=of is neither"), "{failure}");
        assert_eq!(decide(false, "of").ok(), Some(false), "nobody asked");
    }

    /// Who is switched off, and who is not, all ranks say alike.
    #[test]
    fn ranks_are_switched_alike_or_told_who_is_not() {
        let agreed = |switches: [bool; 3]| {
            let ranks = Communicator::threads(3).expect("threads connect").into_iter().map(|world| {
                let is_on = switches[world.rank()];
                thread::spawn(move || agree("--policy", is_on, &world).map_err(|failure| failure.in_one_line()))
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect::<Vec<_>>()
        };
        for is_on in [true, false] {
            assert!(agreed([is_on; 3]).iter().all(Result::is_ok));
        }
        let cases = [
            ([true, false, true], ["rank 1 (host ", "), and not of rank 0 (host ", "), rank 2 (host "]),
            ([false, true, false], ["rank 0 (host ", "), rank 2 (host ", "), and not of rank 1 (host "]),
            ([false, false, true], ["rank 0 (host ", "), rank 1 (host ", "), and not of rank 2 (host "]),
        ];
        for (switches, words) in cases {
            for (rank, told) in agreed(switches).into_iter().enumerate() {
                let told = told.expect_err("they differ");
                let between = ": --policy: PACELINE_TUNE=off is in the environment of ";
                let (who, rest) = told.split_once(between).expect("both name ranks");
                assert!(who.starts_with(&format!("rank {rank} (host ")) && rest.starts_with(words[0]), "{told}");
                let places = words.map(|word| rest.find(word).unwrap_or_else(|| panic!("no `{word}`: {told}")));
                assert!(places.is_sorted(), "{switches:?}: {told}");
                assert!(rest.ends_with("(set PACELINE_TUNE=off on all ranks, or on none of them)"), "{told}");
            }
        }
    }

    #[test]
    fn what_was_known_before_counts_half() {
        let model = OwnModel::of(&Cluster::named("study-10gbe").expect("it is built in"));
        let context = model.state(&Workload::data_parallel(8, 32).calls[0]).context();
        let family = Family { algorithm: 3, protocol: WireProtocol::Simple };
        let of = |channels, samples, mean| Lesson {
            context,
            action: Action { family, channels, threads: 1, chunk_log2: 18 },
            samples,
            mean,
        };
        let before = [of(1, 20.0, 1.0), of(2, 3.0, f64::NAN), of(4, 90.0, 2.0), of(16, 7.0, -3.0)];
        let untouched = of(16, 7.0, -3.0 - 1e-15);
        let learned = [of(1, 5.0, 4.0), of(2, 1.0, 5.0), of(4, 40.0, 2.0), of(8, 1.0, 7.0), untouched];
        let expected = [of(1, 15.0, 2.0), of(2, 1.0, 5.0), of(4, SAMPLES_MAX, 2.0), of(8, 1.0, 7.0), of(16, 7.0, -3.0)];
        assert_eq!(joined(&before, &learned), expected);
    }

    /// A lesson of a form that this version does not know, and one that is none, are not there; nothing else is lost.
    #[test]
    fn what_cannot_be_read_is_left_out() {
        let directory = env::temp_dir().join(format!("paceline-experience-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for the test");
        let path = directory.join("learned.db");
        let model = OwnModel::of(&Cluster::named("study-10gbe").expect("it is built in"));
        let context = model.state(&Workload::data_parallel(8, 32).calls[0]).context();
        let family = Family { algorithm: 3, protocol: WireProtocol::Simple };
        let action = Action { family, channels: 1, threads: 1, chunk_log2: 18 };
        let lesson = Lesson { context, action, samples: 3.0, mean: -2.0 };
        let open = || Experience::open(&path, "here".to_owned()).expect("a database");
        open().keep(&[lesson]).expect("kept");
        let database = rusqlite::Connection::open(&path).expect("it is there");
        let insert = "INSERT INTO experience SELECT cluster, state_version, ?1, ?2 FROM experience LIMIT 1";
        for (key, text) in [("1", "{\"another\": 7}"), ("2", "no JSON")] {
            database.execute(insert, [key, text]).expect("inserted");
        }
        assert_eq!(open().lessons(), [lesson]);
        std::fs::write(&path, "no database").expect("written");
        assert!(Experience::open(&path, "here".to_owned()).is_err());
        std::fs::remove_dir_all(directory).expect("our own directory");
    }

    #[test]
    fn a_cluster_is_its_machines_links_and_workers() {
        let machine = Machine::this();
        let one_host = links(1, 1, None);
        let here = cluster_name(&machine, &one_host, 4);
        assert_eq!(cluster_name(&Machine { kernel: "another".to_owned(), ..machine.clone() }, &one_host, 4), here);
        let others = [
            cluster_name(&machine, &links(2, 1, None), 4),
            cluster_name(&machine, &links(1, 4, None), 4),
            cluster_name(&machine, &links(2, 1, Some(("10GbE", 2, 1.0))), 4),
            cluster_name(&machine, &links(2, 1, Some(("10GbE", 2, 8.0))), 4),
            cluster_name(&machine, &one_host, 8),
            cluster_name(&Machine { processor: "another".to_owned(), ..machine }, &one_host, 4),
        ];
        assert!(others.iter().all(|other| *other != here), "{here}: {others:?}");
        // As they were called before there could be several connections.
        assert_eq!((one_host.as_str(), links(2, 1, None).as_str()), ("one host", "2 hosts"));
    }

    /// Whoever is told nothing is on the cluster of before.
    #[test]
    fn a_cluster_is_wired_as_its_ranks_are_told() {
        let hosts = Topology::regular(4, 1);
        let of = |topology: &Topology| wired(links(4, 1, None), topology);
        assert_eq!(of(&hosts), links(4, 1, None));
        assert_eq!(of(&hosts.on_torus(4, 1)), "4 hosts, torus:4x1");
        assert_eq!(of(&hosts.on_bcube(2, 2)), "4 hosts, bcube:2:2");
    }
}
