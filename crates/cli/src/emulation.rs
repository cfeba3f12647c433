//! Emulated networks, as the command line says it; docs/emulation.md says what they show.

use std::io::{self, Write};

use clap::Args;
use paceline_comm::Emulation;
use paceline_plan::{Hosts, NetworkModel};
use serde::Serialize;

use crate::failure::Failure;

/// What commands are told alike that can run on an emulated network.
#[derive(Args, Clone, Debug)]
pub struct EmulationArguments {
    /// Slow the links down to those of a network: 10GbE, 100GbE, 100GbIB, or alpha=TIME,beta=TIME (docs/emulation.md)
    #[arg(long, value_name = "NETWORK")]
    emulate: Option<NetworkModel>,

    /// Which ranks share an emulated host: HOSTSxRANKS as in 8x4, or the host of each rank as in 0,0,1,1 [default: each
    /// has its own]
    #[arg(long, value_name = "HOSTS", requires = "emulate")]
    hosts: Option<Hosts>,

    /// Slow the emulated network down by so much more, and divide the times by it: for networks that are faster than
    /// this machine
    #[arg(long, value_name = "K", requires = "emulate", default_value_t = 1.0)]
    dilate: f64,
}

/// An emulation in a file of results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Emulated {
    /// As `--emulate` has it.
    pub network: String,
    /// As `--hosts` has it.
    pub hosts: String,
    /// By which the times were divided.
    pub dilation: f64,
}

impl EmulationArguments {
    /// The emulation of a world of `ranks`, if one was asked for.
    ///
    /// # Errors
    /// Hosts that do not fit the world; a senseless factor.
    pub fn of_world(&self, ranks: usize) -> Result<Option<Emulation>, Failure> {
        let Some(network) = self.emulate else { return Ok(None) };
        let hosts = self.hosts.clone().unwrap_or_else(|| Hosts::regular(ranks, 1));
        let emulation = Emulation { network, hosts, dilation: self.dilate };
        emulation
            .check(ranks)
            .map_err(|error| Failure::usage(error).help("see --hosts and --dilate in docs/command-line.md"))?;
        Ok(Some(emulation))
    }
}

impl Emulated {
    /// A line before results.
    ///
    /// # Errors
    /// Those of the output.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let Emulated { network, hosts, dilation } = self;
        let divided = if *dilation == 1.0 { String::new() } else { format!(", all times divided by {dilation}") };
        writeln!(out, "# emulated network {network}, hosts {hosts}{divided}")
    }

    /// For a file of results.
    pub fn new(emulation: &Emulation) -> Emulated {
        let Emulation { network, hosts, dilation } = emulation;
        Emulated { network: network.to_string(), hosts: hosts.to_string(), dilation: *dilation }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        emulation: EmulationArguments,
    }

    fn emulation(words: &[&str], ranks: usize) -> Result<Option<Emulation>, String> {
        let line = Line::try_parse_from([&["test"], words].concat()).map_err(|error| error.to_string())?;
        line.emulation.of_world(ranks).map_err(|failure| failure.in_one_line())
    }

    #[test]
    fn an_emulation_is_what_was_asked_for() {
        assert_eq!(emulation(&[], 3), Ok(None));
        let of = |words: &[&str], ranks| emulation(words, ranks).unwrap().unwrap();
        assert_eq!(of(&["--emulate", "10GbE"], 3).to_string(), "10GbE, hosts 3x1");
        let all = of(&["--emulate", "100GbIB", "--hosts", "2x2", "--dilate", "10"], 4);
        assert_eq!(all.to_string(), "100GbIB, hosts 2x2, dilation 10");
        let Emulated { network, hosts, dilation } = Emulated::new(&all);
        assert_eq!((&*network, &*hosts, dilation), ("100GbIB", "2x2", 10.0));
    }

    #[test]
    fn a_mistake_is_named() {
        for (words, says) in [
            (&["--emulate", "10Gb"][..], "`10Gb` is no network"),
            (&["--hosts", "2x1"], "--emulate"),
            (&["--dilate", "2"], "--emulate"),
            (&["--emulate", "10GbE", "--hosts", "2x2"], "have 4 ranks, and the world has 2"),
            (&["--emulate", "10GbE", "--hosts", "two"], "says of no rank"),
            (&["--emulate", "10GbE", "--dilate", "0.5"], "a dilation of 0.5"),
        ] {
            let error = emulation(words, 2).unwrap_err();
            assert!(error.contains(says), "{words:?}: {error}");
        }
    }
}
