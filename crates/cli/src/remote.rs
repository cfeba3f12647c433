//! Ranks on several hosts. An agent on each, started by ssh, runs the host's ranks and tells the launcher about them.
//!
//! The launcher speaks on the agent's standard input: one [`Assignment`], then a line for each signal. The end of that
//! input ends the ranks, so nothing survives the launcher, ssh, or the connection. The agent speaks on its standard
//! output: its [`Hello`], then lines of the ranks ([`supervisor::Piece`]) and [`Ended`]s. Whatever else stands there (a
//! login shell may greet) is passed on.

mod agent;
mod connection;
mod launcher;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use agent::run as run_agent;
pub use connection::{Connection, Event, Reach};
pub use launcher::{RemoteJob, run};

use crate::doctor::{Examination, Finding, Path};
use crate::supervisor::Ending;

/// In front of every message of the agent, so that nothing else is taken for one.
const MARK: &str = "paceline-agent: ";

/// What the agent says first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Of its program: launcher and agents must be of one version.
    pub version: String,
    /// Of the messages by which ranks meet.
    #[serde(default)]
    pub protocol: Option<u16>,
    /// What its host calls itself.
    pub host: String,
    /// Where rank 0 would listen there.
    pub port: u16,
    /// At which address ssh reached it.
    pub address: Option<IpAddr>,
    /// What the host has, for `paceline doctor`.
    pub kernel: String,
    /// Cores that its ranks may use.
    pub cores: usize,
}

/// What an agent is to run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Assignment {
    command: Vec<String>,
    directory: PathBuf,
    environment: Vec<(String, String)>,
    /// Its first rank; it has `local_size` of them.
    first_rank: usize,
    local_size: usize,
    world_size: usize,
    /// Where rank 0 listens.
    meeting_point: String,
    job: String,
}

/// What `paceline doctor` asks an agent, instead of an [`Assignment`]; one after another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Errand {
    /// Look at the host, on which so many ranks are to run.
    Examine {
        /// Ranks.
        ranks: usize,
        /// The launcher's `PACELINE_INTERFACE`.
        interface: Option<String>,
    },
    /// Let so many ranks meet on the host.
    Meet {
        /// Ranks.
        ranks: usize,
    },
    /// From now on, take what comes from agents that know the token, at the port of the [`Hello`]. No answer.
    Receive {
        /// Random.
        token: [u8; 16],
    },
    /// Send to these addresses, one after another, and time it.
    Measure {
        /// Of the host that receives.
        addresses: Vec<SocketAddr>,
        /// What it was given.
        token: [u8; 16],
    },
}

/// What an agent says to an [`Errand`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// How the host stands.
    Examined(Examination),
    /// What its ranks have found.
    Met(Vec<Finding>),
    /// What its paths carry.
    Measured(Vec<Path>),
}

/// A rank has ended.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Ended {
    rank: usize,
    pid: u32,
    ending: Ending,
}

/// What the agent says, besides what the ranks write.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Message {
    Hello(Hello),
    Ended(Ended),
    Answer(Answer),
    /// The ranks could not be started.
    Refused {
        what: String,
    },
}

impl Message {
    /// As one line.
    fn to_line(&self) -> String {
        // Names and numbers: there is nothing that JSON could not express.
        format!("{MARK}{}\n", serde_json::to_string(self).unwrap_or_default())
    }

    /// From one line. None if it is something else.
    fn from_line(line: &[u8]) -> Option<Message> {
        parse(line.strip_prefix(MARK.as_bytes())?)
    }
}

fn parse<T: DeserializeOwned>(line: &[u8]) -> Option<T> {
    serde_json::from_slice(line).ok()
}
