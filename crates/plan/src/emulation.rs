//! A cluster that is pretended: which network, which ranks share a host, and how much slower than the real one.

use std::fmt;
use std::str::FromStr;

use crate::Rank;
use crate::network::{LinkClass, NetworkModel};

/// Links that are slowed down in software to what a network would give.
#[derive(Clone, Debug, PartialEq)]
pub struct Emulation {
    /// What the links cost.
    pub network: NetworkModel,
    /// The host of each rank.
    pub hosts: Hosts,
    /// All times of the network are multiplied by this: a machine that is too slow for the network emulates a slower one,
    /// and what was measured is divided by it. At least 1.
    pub dilation: f64,
}

/// The host of each rank, by numbers from 0, each lower than the number of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts(Vec<usize>);

/// Why a network cannot be emulated as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmulationError {
    /// No network has this name.
    #[error("`{name}` is no network that has a name: give 10GbE, 100GbE, 100GbIB, or alpha=TIME,beta=TIME")]
    UnknownNetwork {
        /// What was given.
        name: String,
    },
    /// No link has this field.
    #[error(
        "a network has no field `{field}`: the fields are alpha, overhead, beta, within-alpha, within-overhead and within-beta"
    )]
    UnknownField {
        /// What was given.
        field: String,
    },
    /// A field's value is no time.
    #[error("{field}={value} is no time: give a number up to 1000 s with s, ms, us or ns, as in alpha=50us,beta=0.8ns")]
    NoTime {
        /// The field.
        field: String,
        /// What was given for it.
        value: String,
    },
    /// A field that has no default is not there.
    #[error("{field} is missing: a network without a name needs both, as in alpha=50us,beta=0.8ns")]
    Missing {
        /// The field.
        field: &'static str,
    },
    /// A field is there twice.
    #[error("{field} is there twice: which one counts?")]
    Twice {
        /// The field.
        field: String,
    },
    /// A port would be busy after its message has arrived.
    #[error("{field} is longer than the latency alpha of the same links, of which it is a part")]
    Overhead {
        /// The field.
        field: &'static str,
    },
    /// No hosts can be read from this.
    #[error(
        "`{text}` says of no rank on which host it is: give HOSTSxRANKS as in 8x4, or the host of each rank as in 0,0,1,1"
    )]
    Hosts {
        /// What was given.
        text: String,
    },
    /// The hosts have another number of ranks than the world.
    #[error("the emulated hosts {hosts} have {ranks} ranks, and the world has {world}")]
    World {
        /// The hosts.
        hosts: Hosts,
        /// Their ranks.
        ranks: usize,
        /// The world size.
        world: usize,
    },
    /// Time cannot be stretched by this.
    #[error("a dilation of {factor} makes no sense: give a factor from 1 to 1000000")]
    Dilation {
        /// What was given.
        factor: String,
    },
}

/// So much slower at most.
const DILATION_MAX: f64 = 1e6;

/// More ranks than this are a slip of the pen.
const RANKS_MAX: usize = 1 << 16;

impl Emulation {
    /// Checks that all fits a world of `world` ranks.
    ///
    /// # Errors
    /// [`EmulationError::World`] and [`EmulationError::Dilation`].
    pub fn check(&self, world: usize) -> Result<(), EmulationError> {
        let ranks = self.hosts.ranks();
        if ranks != world {
            return Err(EmulationError::World { hosts: self.hosts.clone(), ranks, world });
        }
        if !(1.0..=DILATION_MAX).contains(&self.dilation) {
            return Err(EmulationError::Dilation { factor: self.dilation.to_string() });
        }
        Ok(())
    }

    /// What the link between two ranks costs here, dilation included.
    pub fn link(&self, one: Rank, other: Rank) -> LinkClass {
        let NetworkModel { within, across } = &self.network;
        let class = if self.hosts.host(one) == self.hosts.host(other) { within } else { across };
        class.times(self.dilation)
    }
}

/// As a user would ask for it, for reports: `10GbE, hosts 8x4, dilation 4`.
impl fmt::Display for Emulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, hosts {}", self.network, self.hosts)?;
        if self.dilation == 1.0 { Ok(()) } else { write!(f, ", dilation {}", self.dilation) }
    }
}

impl Hosts {
    /// So many hosts with so many ranks each, one host after the other.
    pub fn regular(hosts: usize, ranks_per_host: usize) -> Hosts {
        Hosts((0..hosts * ranks_per_host).map(|rank| rank / ranks_per_host).collect())
    }

    /// The host of each rank. None if there is no rank, or if hosts have higher numbers than there are ranks.
    pub fn of_ranks(hosts: Vec<usize>) -> Option<Hosts> {
        let fits = (1..=RANKS_MAX).contains(&hosts.len()) && hosts.iter().all(|&host| host < hosts.len());
        fits.then_some(Hosts(hosts))
    }

    /// As [`Hosts::of_ranks`], for numbers that fit: those of hosts that were counted as they came.
    pub(crate) fn numbered(hosts: Vec<usize>) -> Hosts {
        Hosts(hosts)
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.0.len()
    }

    /// One more than the highest number of a host.
    pub fn count(&self) -> usize {
        self.0.iter().max().map_or(0, |last| last + 1)
    }

    /// The host of a rank.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn host(&self, rank: Rank) -> usize {
        self.0[rank]
    }

    /// The hosts, by rank.
    pub fn by_rank(&self) -> &[usize] {
        &self.0
    }
}

/// `8x4`, or `0,0,1,1`.
impl FromStr for Hosts {
    type Err = EmulationError;

    fn from_str(text: &str) -> Result<Hosts, EmulationError> {
        let number = |text: &str| text.trim().parse::<usize>().ok();
        let hosts = match text.split_once('x') {
            Some((hosts, ranks)) => number(hosts).zip(number(ranks)).and_then(|(hosts, ranks)| {
                let all = hosts.checked_mul(ranks)?;
                (1..=RANKS_MAX).contains(&all).then(|| Hosts::regular(hosts, ranks))
            }),
            None => text.split(',').map(number).collect::<Option<Vec<_>>>().and_then(Hosts::of_ranks),
        };
        hosts.ok_or_else(|| EmulationError::Hosts { text: text.to_owned() })
    }
}

/// As it is read.
impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hosts, ranks) = (self.count(), self.ranks());
        if hosts > 0 && ranks.is_multiple_of(hosts) && *self == Hosts::regular(hosts, ranks / hosts) {
            return write!(f, "{hosts}x{}", ranks / hosts);
        }
        let all: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&all.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_as_they_are_written() {
        for (text, ranks, hosts, written) in [
            ("8x4", 32, 8, "8x4"),
            ("1x3", 3, 1, "1x3"),
            ("0,0,1,1", 4, 2, "2x2"),
            ("0,1,0,1", 4, 2, "0,1,0,1"),
            ("0", 1, 1, "1x1"),
            ("0, 0, 2", 3, 3, "0,0,2"),
        ] {
            let read: Hosts = text.parse().unwrap();
            assert_eq!((read.ranks(), read.count(), read.to_string().as_str()), (ranks, hosts, written));
        }
        for text in ["", "x", "0x4", "4x0", "8x", "8x4x2", "a", "0,5", "0,-1", "99999999999x99999999999"] {
            let error = text.parse::<Hosts>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn an_emulation_fits_its_world() {
        let of = |dilation| Emulation { network: NetworkModel::TEN_GBE, hosts: Hosts::regular(2, 2), dilation };
        assert_eq!(of(1.0).check(4), Ok(()));
        assert_eq!(of(1.0).to_string(), "10GbE, hosts 2x2");
        assert_eq!(of(2.5).to_string(), "10GbE, hosts 2x2, dilation 2.5");
        assert!(of(1.0).check(5).unwrap_err().to_string().contains("2x2 have 4 ranks, and the world has 5"));
        for dilation in [0.5, 0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(of(dilation).check(4).is_err(), "{dilation}");
        }
        let ten = of(10.0);
        assert_eq!(ten.link(0, 1), ten.network.within.times(10.0));
        assert_eq!(ten.link(0, 2), ten.network.across.times(10.0));
    }
}
