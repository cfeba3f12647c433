//! Where a process stands in its world, and how it may use the network, as the launcher and the user say it in
//! environment variables.
//!
//! | launcher | rank, size, local rank and size | meeting point, if `PACELINE_RENDEZVOUS` does not name one |
//! |---|---|---|
//! | `paceline launch` | `PACELINE_RANK`, `_WORLD_SIZE`, `_LOCAL_RANK`, `_LOCAL_SIZE` | none: it is required |
//! | `torchrun` | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE` | `MASTER_ADDR`, and [a port near `MASTER_PORT`](torchrun_port), on which torchrun's own store listens |
//! | Open MPI's `mpirun` | `OMPI_COMM_WORLD_RANK`, `_SIZE`, `_LOCAL_RANK`, `_LOCAL_SIZE` | this host, if all ranks are here; else where `mpirun` runs, if `OMPI_MCA_orte_hnp_uri` says it (rank 0 must run there, too) |
//! | `srun` | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` or `SLURM_NTASKS`, `SLURM_LOCALID` | this host, if the step has one node; else the first of `SLURM_STEP_NODELIST`, `SLURM_JOB_NODELIST`, `SLURM_LAUNCH_NODE_IPADDR` |
//! | MPICH's `mpiexec` | `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` | this host, if all ranks are here |
//!
//! The first launcher that speaks wins, in this order. `srun` with a PMI speaks twice and is believed as `srun`. Where no
//! port is given, [it follows from the job's id](job_port), so that jobs on the same host keep out of each other's way.

mod launchers;

use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use paceline_plan::{Shape, ShapeError};

use crate::CongestionControl;
use crate::security::{Secret, SecretError};
pub use launchers::{job_port, torchrun_port};

/// How long ranks wait for each other at start if `PACELINE_TIMEOUT` does not say.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Nobody waits longer than a year, whatever was asked for: the sum with the time of day must fit a clock.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// No job has more ranks: it bounds what a wrong variable can make us allocate.
pub const WORLD_SIZE_MAX: u32 = 1 << 16;

/// What the environment says.
#[derive(Clone, Debug, PartialEq)]
pub struct Environment {
    /// Where this process stands; None if nothing launched it as a rank.
    pub world: Option<World>,
    /// How it may use the network.
    pub network: Network,
    /// How long ranks wait for each other at start (`PACELINE_TIMEOUT`, in seconds).
    pub timeout: Duration,
    /// How often an idle link carries a sign of life (`PACELINE_HEARTBEAT`, in seconds; 0 = never), if it says so.
    pub heartbeat: Option<Duration>,
    /// After how long an operation that does not move is reported (`PACELINE_STALL`, in seconds; 0 = never), if it says
    /// so.
    pub stall: Option<Duration>,
    /// How the hosts of the world are wired, which programs for a torus or a BCube follow (`PACELINE_TOPOLOGY`); flat, if nobody
    /// says. The same on all ranks.
    pub topology: Shape,
}

/// Where a process stands in its world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// Who said so.
    pub launcher: Launcher,
    /// Counts from 0.
    pub rank: u32,
    /// How many ranks there are.
    pub world_size: u32,
    /// Counts the ranks of this host from 0, if the launcher says it.
    pub local_rank: Option<u32>,
    /// How many ranks this host has, if the launcher says it.
    pub local_size: Option<u32>,
    /// Where rank 0 listens. None only in a world of one rank.
    pub meeting_point: Option<MeetingPoint>,
    /// A listening socket that rank 0 inherited (`PACELINE_RENDEZVOUS_FD`).
    pub listener: Option<RawFd>,
    /// Names the job: a process of another one is turned away.
    pub job: String,
    /// What all ranks must say alike besides, in words: compared where they meet. A launcher says nothing; it is for
    /// whoever makes more of a world than ranks, such as shards at places of their own.
    pub terms: String,
}

/// Who started the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Launcher {
    /// `paceline launch`, or a person who sets `PACELINE_RANK`.
    Paceline,
    /// `torchrun`, or whatever else sets `RANK` and `WORLD_SIZE`.
    Torchrun,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// Slurm's `srun`.
    Slurm,
    /// `mpiexec` of MPICH and its relatives (Hydra).
    Mpich,
}

/// How a process may use the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// The only interface to use, by name or by one of its addresses (`PACELINE_INTERFACE`).
    pub interface: Option<String>,
    /// The only ports to listen on, apart from the meeting point (`PACELINE_PORT_RANGE`, `20000-20100`).
    pub ports: Option<RangeInclusive<u16>>,
    /// Without a secret, too, links to other hosts are admitted, although nothing proves who opens them
    /// (`PACELINE_INSECURE=1`).
    pub insecure: bool,
    /// Proves who opens a link (`PACELINE_SECRET`, or the file that `PACELINE_SECRET_FILE` names).
    pub secret: Option<Secret>,
    /// Everything that links over TCP carry is encrypted; takes a secret (`PACELINE_ENCRYPT=1`).
    pub encrypt: bool,
    /// Of links over TCP (`PACELINE_TCP_CONGESTION`: `system`, or a name that the kernel knows).
    pub congestion_control: CongestionControl,
}

impl Network {
    /// May links lead to other hosts?
    pub fn admits_others(&self) -> bool {
        self.insecure || self.secret.is_some()
    }
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MeetingPoint {
    /// A name or an address.
    pub host: String,
    /// Where rank 0 listens.
    pub port: u16,
}

/// What is wrong with the environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// A variable is missing that another one calls for.
    #[error("{variable} is not set: {why}")]
    Missing {
        /// Its name.
        variable: &'static str,
        /// Why it is needed.
        why: String,
    },
    /// A variable makes no sense.
    #[error("{variable}={value:?} {what}")]
    Invalid {
        /// Its name.
        variable: &'static str,
        /// What it says.
        value: String,
        /// What it should be, as the predicate of a sentence.
        what: String,
    },
    /// The secret cannot be used. It is not part of the message.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

impl EnvironmentError {
    /// What to do about it.
    pub fn next_step(&self) -> String {
        match self {
            EnvironmentError::Missing { variable, .. } => format!("set {variable}"),
            EnvironmentError::Invalid { variable, .. } => format!("mend or unset {variable}"),
            EnvironmentError::Secret(error) => error.next_step(),
        }
    }
}

impl Environment {
    /// Reads the environment of this process.
    ///
    /// # Errors
    /// As [`Environment::from_variables`].
    pub fn read() -> Result<Environment, EnvironmentError> {
        Environment::from_variables(from_process)
    }

    /// What these variables say. An empty variable counts as none.
    ///
    /// # Errors
    /// If a variable contradicts another or makes no sense. The variables of a launcher that did not start us are not
    /// looked at.
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Environment, EnvironmentError> {
        let variables = Variables { get: &get };
        let timeout =
            seconds(&variables, "PACELINE_TIMEOUT", f64::MIN_POSITIVE, "is not a positive number of seconds")?;
        let from_zero = |name| seconds(&variables, name, 0.0, "is not a number of seconds, or 0 for never");
        let shape = |value: String| topology(&value).map_err(|what| invalid("PACELINE_TOPOLOGY", value, what));
        Ok(Environment {
            world: launchers::world(&variables)?,
            network: network(&variables)?,
            timeout: timeout.unwrap_or(TIMEOUT).min(TIMEOUT_MAX),
            heartbeat: from_zero("PACELINE_HEARTBEAT")?,
            stall: from_zero("PACELINE_STALL")?,
            topology: variables.get("PACELINE_TOPOLOGY").map(shape).transpose()?.unwrap_or(Shape::Flat),
        })
    }
}

/// How hosts are wired, in the words of a cluster's file; but only what programs follow, or flat.
///
/// # Errors
/// It is nothing of that; the text is the predicate of a sentence.
pub fn topology(text: &str) -> Result<Shape, String> {
    match text.parse::<Shape>() {
        Ok(shape @ (Shape::Flat | Shape::Torus { .. } | Shape::BCube { .. })) => Ok(shape),
        Ok(Shape::Tree(_) | Shape::FatTree { .. }) => {
            Err("changes no program: torus:XxY and bcube:PORTS:LEVELS do".to_owned())
        }
        Err(ShapeError::Number { reason, .. }) => Err(format!("makes no sense: {reason}")),
        Err(_) => Err("is no topology: give flat, torus:XxY or bcube:PORTS:LEVELS".to_owned()),
    }
}

/// A variable that is a number of seconds of at least `least`.
fn seconds(
    variables: &Variables<'_>,
    name: &'static str,
    least: f64,
    what: &str,
) -> Result<Option<Duration>, EnvironmentError> {
    let Some(value) = variables.get(name) else { return Ok(None) };
    let number = value.parse().ok().filter(|seconds| *seconds >= least);
    let duration = number.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.map(Some).ok_or_else(|| invalid(name, value, what))
}

/// Which congestion control links over TCP have.
pub(crate) const TCP_CONGESTION: &str = "PACELINE_TCP_CONGESTION";

fn network(variables: &Variables<'_>) -> Result<Network, EnvironmentError> {
    let ports = match variables.get("PACELINE_PORT_RANGE") {
        None => None,
        Some(value) => {
            let (first, last) = value.split_once('-').unwrap_or((&value, &value));
            let ends = first.trim().parse().ok().zip(last.trim().parse().ok());
            let range = ends.filter(|&(first, last)| 0 < first && first <= last).map(|(first, last)| first..=last);
            Some(
                range
                    .ok_or_else(|| invalid("PACELINE_PORT_RANGE", value, "is not a range of ports like 20000-20100"))?,
            )
        }
    };
    let secret = secret_of(variables)?;
    let (insecure, encrypt) = (variables.switch("PACELINE_INSECURE")?, variables.switch("PACELINE_ENCRYPT")?);
    let congestion_control = match variables.get(TCP_CONGESTION) {
        None => CongestionControl::default(),
        Some(value) => CongestionControl::named(&value).ok_or_else(|| {
            invalid(TCP_CONGESTION, value, "is no name of a congestion control, like cubic, nor `system`")
        })?,
    };
    let interface = variables.get("PACELINE_INTERFACE");
    Ok(Network { interface, ports, insecure, secret, encrypt, congestion_control })
}

/// The secret of this process's environment, as it is part of [`Network`]: for launchers, which pass it on.
///
/// # Errors
/// If it cannot be used; the text does not contain it.
pub fn secret() -> Result<Option<Secret>, SecretError> {
    secret_of(&Variables { get: &from_process })
}

fn secret_of(variables: &Variables<'_>) -> Result<Option<Secret>, SecretError> {
    match (variables.get("PACELINE_SECRET"), variables.get("PACELINE_SECRET_FILE")) {
        (None, None) => Ok(None),
        (Some(text), None) => Secret::from_text(&text, "PACELINE_SECRET").map(Some),
        (None, Some(path)) => Secret::from_file(Path::new(&path)).map(Some),
        (Some(_), Some(_)) => Err(SecretError::Both),
    }
}

/// A variable of this process's environment.
fn from_process(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// The variables, looked up one by one.
struct Variables<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
}

impl Variables<'_> {
    fn get(&self, name: &str) -> Option<String> {
        (self.get)(name).filter(|value| !value.is_empty())
    }

    fn switch(&self, name: &'static str) -> Result<bool, EnvironmentError> {
        match self.get(name).as_deref() {
            None | Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(other) => Err(invalid(name, other, "is neither 0 nor 1")),
        }
    }

    fn number<T: FromStr>(&self, name: &'static str) -> Result<Option<T>, EnvironmentError> {
        self.get(name)
            .map(|value| value.trim().parse().map_err(|_| invalid(name, value, "is not a number in range")))
            .transpose()
    }

    fn required<T: FromStr>(&self, name: &'static str, because: &str) -> Result<T, EnvironmentError> {
        self.number(name)?
            .ok_or_else(|| EnvironmentError::Missing { variable: name, why: format!("it goes with {because}") })
    }
}

fn invalid(variable: &'static str, value: impl Into<String>, what: impl Into<String>) -> EnvironmentError {
    EnvironmentError::Invalid { variable, value: value.into(), what: what.into() }
}

impl FromStr for MeetingPoint {
    type Err = String;

    /// `host:port`, `address:port` or `[address]:port`.
    fn from_str(text: &str) -> Result<MeetingPoint, String> {
        let what = || "is not host:port or [address]:port".to_owned();
        let (host, port) = text.trim().rsplit_once(':').ok_or_else(what)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        // More colons would be an IPv6 address of which the last group was taken for a port.
        if host.is_empty() || bare == Some("") || (bare.is_none() && host.contains([':', '[', ']'])) {
            return Err(what());
        }
        let port =
            port.parse().ok().filter(|port| *port > 0).ok_or_else(|| "has no port from 1 to 65535".to_owned())?;
        Ok(MeetingPoint { host: bare.unwrap_or(host).to_owned(), port })
    }
}

impl fmt::Display for MeetingPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Paceline => "paceline launch",
            Launcher::Torchrun => "torchrun",
            Launcher::OpenMpi => "mpirun (Open MPI)",
            Launcher::Slurm => "srun",
            Launcher::Mpich => "mpiexec (MPICH)",
        })
    }
}
