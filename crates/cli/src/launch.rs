//! `paceline launch`: any program as N ranks, here or on the hosts of a file.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::arguments::at_least_one;
use crate::failure::Failure;
use crate::hosts;
use crate::remote::{self, Reach, RemoteJob};
use crate::security::SecurityArguments;
use crate::supervisor::{self, Job, Output};

/// What `launch` is told.
#[derive(Args)]
pub struct LaunchArguments {
    /// How many ranks to start [required here; with --hostfile: all slots]
    #[arg(long, value_name = "N", value_parser = at_least_one, required_unless_present = "hostfile")]
    workers: Option<usize>,

    /// Start the ranks on the hosts of this file (`host slots=N` on each line), by ssh
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,

    #[command(flatten)]
    reach: ReachArguments,

    #[command(flatten)]
    remote: RemoteArguments,

    /// Put `[rank]` in front of every line of output
    #[arg(long)]
    tag: bool,

    #[command(flatten)]
    security: SecurityArguments,

    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// How other hosts are reached.
#[derive(Args)]
pub struct ReachArguments {
    /// The ssh command and its options, in one word [default: ssh]
    #[arg(long, value_name = "COMMAND", requires = "hostfile")]
    ssh: Option<String>,

    /// Where this program is on the other hosts [default: where it is here, or else in PATH there]
    #[arg(long, value_name = "PATH", requires = "hostfile")]
    paceline: Option<PathBuf>,
}

/// How ranks on other hosts are started.
#[derive(Args)]
struct RemoteArguments {
    /// The working directory on every host [default: this one]
    #[arg(long, value_name = "DIR", requires = "hostfile")]
    directory: Option<PathBuf>,

    /// Give the ranks this variable of our environment, or this value; PACELINE_ variables go anyway
    #[arg(long = "env", value_name = "NAME[=VALUE]", requires = "hostfile")]
    variables: Vec<String>,

    /// The address at which the other hosts reach the first one [default: the one that ssh reached it at]
    #[arg(long, value_name = "HOST", requires = "hostfile")]
    address: Option<String>,
}

/// Runs the program to its end.
///
/// # Errors
/// It could not be started.
pub fn run(arguments: LaunchArguments) -> Result<ExitCode, Failure> {
    let LaunchArguments { workers, hostfile, reach, remote, tag, security, command } = arguments;
    let Some(hostfile) = hostfile else {
        return supervisor::run(&Job {
            command,
            ranks: workers.unwrap_or(1),
            environment: security.for_ranks()?,
            output: Output::Lines { tag },
        });
    };
    let text = |word: OsString| {
        let wrong = |word: OsString| Failure::usage(format!("{word:?} is not UTF-8: other hosts cannot be told it"));
        word.into_string().map_err(wrong)
    };
    remote::run(&RemoteJob {
        hosts: hosts::fill(hosts::read(&hostfile)?, workers)?,
        reach: reach.reach()?,
        address: remote.address.clone(),
        directory: match &remote.directory {
            Some(directory) => directory.clone(),
            None => env::current_dir().map_err(|error| Failure::failed("no working directory").cause(error))?,
        },
        environment: remote.environment(security.for_other_hosts()?)?,
        command: command.into_iter().map(text).collect::<Result<_, _>>()?,
        tag,
    })
}

/// What says where a rank stands, and what proves it: the launcher says that anew.
const NOT_OURS: [&str; 9] = [
    "PACELINE_SECRET",
    "PACELINE_SECRET_FILE",
    "PACELINE_RANK",
    "PACELINE_WORLD_SIZE",
    "PACELINE_LOCAL_RANK",
    "PACELINE_LOCAL_SIZE",
    "PACELINE_RENDEZVOUS",
    "PACELINE_RENDEZVOUS_FD",
    "PACELINE_JOB",
];

impl ReachArguments {
    /// How to reach the hosts.
    ///
    /// # Errors
    /// Our own path cannot be found out.
    pub fn reach(&self) -> Result<Reach, Failure> {
        let ssh = self.ssh.as_deref().unwrap_or("ssh").split_whitespace().map(str::to_owned).collect();
        let program = match &self.paceline {
            Some(program) => program.clone(),
            None => env::current_exe()
                .map_err(|error| Failure::failed("cannot find our own program").cause(error).help("use --paceline"))?,
        };
        Ok(Reach { ssh, program })
    }
}

impl RemoteArguments {
    /// What the ranks find in their environment, besides what their host has: our `PACELINE_` variables, those that the
    /// user names, and `more`.
    fn environment(&self, more: Vec<(String, String)>) -> Result<Vec<(String, String)>, Failure> {
        let ours =
            env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let mut variables: Vec<(String, String)> =
            ours.filter(|(name, _)| name.starts_with("PACELINE_") && !NOT_OURS.contains(&name.as_str())).collect();
        for variable in &self.variables {
            variables.push(match variable.split_once('=') {
                Some((name, value)) => (name.to_owned(), value.to_owned()),
                None => {
                    let missing = |error| Failure::usage(format!("--env {variable}")).cause(error);
                    (variable.clone(), env::var(variable).map_err(missing)?)
                }
            });
        }
        variables.extend(more);
        Ok(variables)
    }
}
