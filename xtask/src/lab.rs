//! A lab of several hosts on one machine: network namespaces with a shaped NIC each, on one switch.
//!
//! ```no_run
//! use xtask::lab::{Lab, LabOptions};
//!
//! let lab = Lab::build(&LabOptions { hosts: 2, ..LabOptions::default() })?;
//! let ranks = lab.ranks(1, &["paceline".into(), "perf".into(), "all-reduce".into()]);
//! let mut children: Vec<_> = ranks.into_iter().map(|mut rank| rank.spawn()).collect::<Result<_, _>>()?;
//! lab.drop_traffic(1)?; // from now on host 1 hears nothing and is not heard
//! for child in &mut children {
//!     child.wait()?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A host has namespaces of its own for network, host name, processes, IPC and mounts, so its ranks recognise each other
//! and nobody else: shared memory and loopback end at the namespace. The switch is a bridge in one more network
//! namespace; nothing of the machine's own network is touched. `tc tbf` shapes every NIC in both directions. What runs on a host
//! has that host's share of the processors.
//!
//! Everything hangs on processes that read a pipe of ours. When we end, however we end, the pipes close, the kernel ends
//! all processes of the hosts, and the namespaces vanish with what is in them.

mod fault;
mod job;
mod namespaces;
mod processors;
mod shaper;

use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

pub use fault::{Fault, Harm};
pub use job::{Job, JobEnd};
use namespaces::Namespaces;
pub use shaper::{Rate, Shaper};

/// No lab has more hosts.
pub const HOSTS_MAX: usize = 64;

/// The NIC of every host.
pub const INTERFACE: &str = "eth0";

/// The other one, where hosts have two: [`Lab::add_second_nics`].
pub const SECOND_INTERFACE: &str = "eth1";

/// Where rank 0 of the first job listens; each further job takes the next port. The namespaces are new: all are free.
const FIRST_PORT: u16 = 20_000;

/// What a lab is to be like.
#[derive(Clone, Copy, Debug)]
pub struct LabOptions {
    /// How many hosts, at least one.
    pub hosts: usize,
    /// What every NIC sends, and what it receives, at most.
    pub shaper: Shaper,
}

impl Default for LabOptions {
    /// Two hosts at 1 Gbit/s.
    fn default() -> LabOptions {
        LabOptions { hosts: 2, shaper: Shaper::new(Rate::GIGABIT) }
    }
}

/// Why there is no lab, or not any more.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// This user or this machine cannot have one.
    #[error("no lab here: {0}")]
    NotPermitted(String),
    /// A program that sets the network up is not there.
    #[error("no lab here: `{program}` is missing: install {package}")]
    Missing {
        /// Its name.
        program: &'static str,
        /// Where it comes from.
        package: &'static str,
    },
    /// A program that sets the network up failed.
    #[error("setting up the lab: `{command}` failed: {reason}")]
    Setup {
        /// The command line.
        command: String,
        /// What it said.
        reason: String,
    },
    /// The job makes no sense in this lab.
    #[error("{0}")]
    Usage(String),
    /// The operating system refused.
    #[error("{doing}: {source}")]
    Io {
        /// What was tried.
        doing: String,
        /// Its answer.
        #[source]
        source: io::Error,
    },
}

/// Hosts on a switch. Dropping it ends everything that runs in it.
pub struct Lab {
    options: LabOptions,
    switch: Namespaces,
    hosts: Vec<Namespaces>,
    /// Of all hosts.
    processors: Vec<usize>,
    next_port: AtomicU16,
}

impl Lab {
    /// Can this user have a lab on this machine?
    ///
    /// # Errors
    /// [`LabError::NotPermitted`] or [`LabError::Missing`], with the reason and what to do.
    pub fn permitted() -> Result<(), LabError> {
        if !rustix::process::geteuid().is_root() {
            return Err(LabError::NotPermitted("network namespaces need root: run it with sudo".into()));
        }
        for (program, package) in
            [("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux"), ("taskset", "util-linux")]
        {
            let found = Command::new(program).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
            if found.is_err() {
                return Err(LabError::Missing { program, package });
            }
        }
        Ok(())
    }

    /// Makes the hosts, the switch, and the cables between them.
    ///
    /// # Errors
    /// It is not permitted, or the kernel lacks something; the text names the command that failed.
    pub fn build(options: &LabOptions) -> Result<Lab, LabError> {
        if !(1..=HOSTS_MAX).contains(&options.hosts) {
            return Err(LabError::Usage(format!("a lab has 1 to {HOSTS_MAX} hosts, not {}", options.hosts)));
        }
        Lab::permitted()?;
        let switch = Namespaces::make("lab-switch")?;
        let hosts = (0..options.hosts).map(|host| Namespaces::make(&host_name(host))).collect::<Result<_, _>>()?;
        let (processors, next_port) = (processors::ours(), AtomicU16::new(FIRST_PORT));
        let lab = Lab { options: *options, switch, hosts, processors, next_port };
        lab.plug_all_in("switch", "port", INTERFACE, options.shaper, address)?;
        Ok(lab)
    }

    /// One more NIC for every host, on a switch of its own: [`SECOND_INTERFACE`], at [`second_address`]. It may be asked
    /// for once.
    ///
    /// # Errors
    /// `ip` or `tc` failed.
    pub fn add_second_nics(&self, shaper: Shaper) -> Result<(), LabError> {
        self.plug_all_in("switch2", "second", SECOND_INTERFACE, shaper, second_address)
    }

    fn plug_all_in(
        &self,
        switch: &str,
        port: &str,
        interface: &str,
        shaper: Shaper,
        address: fn(usize) -> Ipv4Addr,
    ) -> Result<(), LabError> {
        let bridge = format!("link add {switch} type bridge\nlink set {switch} up\n");
        feed(self.switch.network_command("ip").args(["-batch", "-"]), &bridge)?;
        (0..self.hosts.len())
            .try_for_each(|host| self.plug_in(host, switch, &format!("{port}{host}"), interface, shaper, address(host)))
    }

    /// A cable from a switch to a host, shaped at both ends: each end shapes what it sends.
    fn plug_in(
        &self,
        host: usize,
        switch: &str,
        port: &str,
        interface: &str,
        shaper: Shaper,
        address: Ipv4Addr,
    ) -> Result<(), LabError> {
        let namespaces = &self.hosts[host];
        let pid = namespaces.pid();
        let cable = format!(
            "link add {port} type veth peer name {interface} netns {pid}\nlink set {port} master {switch}\nlink set {port} up\n"
        );
        let nic = format!("address add {address}/16 dev {interface}\nlink set lo up\nlink set {interface} up\n");
        feed(self.switch.network_command("ip").args(["-batch", "-"]), &cable)?;
        feed(namespaces.network_command("ip").args(["-batch", "-"]), &nic)?;
        for (place, device) in [(&self.switch, port), (namespaces, interface)] {
            let shaper = format!("qdisc add dev {device} root {shaper}\n");
            feed(place.network_command("tc").args(["-batch", "-"]), &shaper)?;
        }
        Ok(())
    }

    /// From now on every NIC sends, and receives, at most this: whoever communicates meanwhile sees it at once. Second NICs
    /// ([`Lab::add_second_nics`]) stay as they are.
    ///
    /// # Errors
    /// `tc` failed.
    pub fn set_shaper(&self, shaper: Shaper) -> Result<(), LabError> {
        let change = |place: &Namespaces, device: &str| {
            let shaper = format!("qdisc change dev {device} root {shaper}\n");
            feed(place.network_command("tc").args(["-batch", "-"]), &shaper)
        };
        for (host, namespaces) in self.hosts.iter().enumerate() {
            change(namespaces, INTERFACE)?;
            change(&self.switch, &port(host))?;
        }
        Ok(())
    }

    /// How many hosts there are.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// The first process of a host, as we number it, which lives as long as the host: what stands under its `/proc/PID/net`
    /// and `/proc/PID/root` is the host's network and its files.
    pub fn first_process(&self, host: usize) -> u32 {
        self.hosts[host].pid()
    }

    /// A program that runs on a host, in our working directory, on the host's share of our processors.
    pub fn command(&self, host: usize, program: impl Into<OsString>) -> Command {
        let own = processors::share(host, self.hosts.len(), &self.processors);
        self.hosts[host].command(program.into(), own)
    }

    /// One job: a command line as so many ranks on every host, the first ones on host 0. Each finds its place in the
    /// environment, as under `paceline launch`. Without a `PACELINE_SECRET` the ranks admit each other unproved: nobody
    /// else is in their network.
    ///
    /// # Panics
    /// If the command line is empty.
    pub fn ranks(&self, per_host: usize, command: &[OsString]) -> Vec<Command> {
        let port = self.next_port.fetch_add(1, Ordering::Relaxed);
        let job = format!("lab-{}-{port}", std::process::id());
        let world_size = self.hosts.len() * per_host;
        let has_secret =
            ["PACELINE_SECRET", "PACELINE_SECRET_FILE"].iter().any(|name| std::env::var_os(name).is_some());
        (0..world_size)
            .map(|rank| {
                let mut process = self.command(rank / per_host, &command[0]);
                process
                    .args(&command[1..])
                    .env("PACELINE_RANK", rank.to_string())
                    .env("PACELINE_WORLD_SIZE", world_size.to_string())
                    .env("PACELINE_LOCAL_RANK", (rank % per_host).to_string())
                    .env("PACELINE_LOCAL_SIZE", per_host.to_string())
                    .env("PACELINE_RENDEZVOUS", format!("{}:{port}", address(0)))
                    .env("PACELINE_JOB", &job)
                    .env("PACELINE_INTERFACE", INTERFACE)
                    .env_remove("PACELINE_RENDEZVOUS_FD");
                if !has_secret {
                    process.env("PACELINE_INSECURE", "1");
                }
                process
            })
            .collect()
    }

    /// Takes the link of a host down, as if its cable were pulled: the host knows.
    ///
    /// # Errors
    /// There is no such host, or `ip` failed.
    pub fn take_down(&self, host: usize) -> Result<(), LabError> {
        let namespaces = self.host(host)?;
        feed(namespaces.network_command("ip").args(["-batch", "-"]), &format!("link set {INTERFACE} down\n"))
    }

    /// From now on the switch drops everything from and to a host, in silence: its link stays up.
    ///
    /// # Errors
    /// There is no such host, or `ip` failed.
    pub fn drop_traffic(&self, host: usize) -> Result<(), LabError> {
        self.host(host)?;
        feed(self.switch.network_command("ip").args(["-batch", "-"]), &format!("link set {} nomaster\n", port(host)))
    }

    /// Undoes [`Lab::take_down`] and [`Lab::drop_traffic`].
    ///
    /// # Errors
    /// There is no such host, or `ip` failed.
    pub fn restore(&self, host: usize) -> Result<(), LabError> {
        let namespaces = self.host(host)?;
        feed(namespaces.network_command("ip").args(["-batch", "-"]), &format!("link set {INTERFACE} up\n"))?;
        feed(
            self.switch.network_command("ip").args(["-batch", "-"]),
            &format!("link set {} master switch\n", port(host)),
        )
    }

    fn host(&self, host: usize) -> Result<&Namespaces, LabError> {
        let missing =
            || LabError::Usage(format!("there is no host {host}: the hosts are 0 to {}", self.hosts.len() - 1));
        self.hosts.get(host).ok_or_else(missing)
    }
}

/// What was set up, for people: hosts, addresses, rate and queue limits.
impl fmt::Display for Lab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shaper = self.options.shaper;
        let mut names = String::new();
        for host in 0..self.hosts.len() {
            write!(names, "{}{} {}", if host == 0 { "" } else { ", " }, host_name(host), address(host))?;
        }
        writeln!(f, "lab: {} hosts on one switch: {names}", self.hosts.len())?;
        let share = |host| processors::list(processors::share(host, self.hosts.len(), &self.processors));
        let shares: Vec<String> = (0..self.hosts.len()).map(share).collect();
        writeln!(f, "lab: processors, host by host: {}", shares.join("; "))?;
        write!(f, "lab: every {INTERFACE}, in both directions: tc qdisc {}", shaper)?;
        write!(f, " (at most {:.1} ms in the queue)", shaper.queue_seconds() * 1e3)
    }
}

/// The name of a host, as `uname -n` says it there.
pub fn host_name(host: usize) -> String {
    format!("lab-host{host}")
}

/// The address of a host.
pub fn address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, host as u8 + 1)
}

/// The address of a host's other NIC, if it has one.
pub fn second_address(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 78, 0, host as u8 + 1)
}

/// The switch's end of a host's cable.
fn port(host: usize) -> String {
    format!("port{host}")
}

/// Runs a program to its end with this standard input.
fn feed(command: &mut Command, input: &str) -> Result<(), LabError> {
    let reason = match run_with(command, input) {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    Err(LabError::Setup { command: format!("{}: {}", command_name(command), input.trim().replace('\n', "; ")), reason })
}

fn run_with(command: &mut Command, input: &str) -> io::Result<Output> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    child.wait_with_output()
}

/// The program that a command leads to, behind `nsenter` and its options.
fn command_name(command: &Command) -> String {
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    let at = words.iter().position(|word| word == "--").map_or(0, |at| at + 1);
    words.get(at..).unwrap_or_default().join(" ")
}
