use std::fmt;
use std::str::FromStr;

/// How the hosts of a cluster are connected. As text: `flat`, `tree:HOSTS:OVERSUBSCRIPTION`,
/// `fat-tree:HOSTS:OVERSUBSCRIPTION` or the same with `:hash` behind it, `torus:XxY`, `bcube:PORTS:LEVELS`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// Every host's network interface at one switch that is never in the way.
    Flat,
    /// Switches with so many hosts each, and one link from each switch to a root.
    Tree(Switches),
    /// Switches with so many hosts each, and from each switch several links, as fast as a host's, to as many spines: a
    /// folded Clos network of two tiers.
    ///
    /// Source: Al-Fares, Loukissas and Vahdat, "A scalable, commodity data center network architecture" (SIGCOMM 2008).
    FatTree {
        /// Its lower tier.
        switches: Switches,
        /// Does a hash of sender and receiver say over which spine a flow goes, as equal-cost multi-path routing does? If not, the
        /// receiver's number.
        hashed: bool,
    },
    /// A grid whose rows and columns are rings. Each host has a port to each of its (up to four) neighbours. Host h stands
    /// in column h mod x of row ⌊h/x⌋.
    Torus {
        /// Hosts in a row.
        x: usize,
        /// Rows.
        y: usize,
    },
    /// Hosts with a port on each level; the switches of level l connect the hosts whose numbers, written in base `ports`,
    /// differ in digit l only.
    ///
    /// Source: Guo et al., "BCube: a high performance, server-centric network architecture for modular data centers"
    /// (SIGCOMM 2009), §3.1: BCube(n, k−1) there.
    BCube {
        /// Ports of a switch.
        ports: usize,
        /// Levels, and ports of a host.
        levels: usize,
    },
}

/// The lower tier of a tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Switches {
    /// Hosts at each switch; the last one may have fewer.
    pub hosts: usize,
    /// What the hosts of a switch could send, by what its links upwards carry. At least 1.
    pub oversubscription: f64,
}

/// Why there is no such topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// No topology can be read from this.
    #[error(
        "`{text}` is no topology: give flat, tree:HOSTS:OVERSUBSCRIPTION, fat-tree:HOSTS:OVERSUBSCRIPTION[:hash], torus:XxY or bcube:PORTS:LEVELS"
    )]
    Unknown {
        /// What was given.
        text: String,
    },
    /// A number of a topology makes no sense.
    #[error("`{text}`: {reason}")]
    Number {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The cluster has another number of hosts.
    #[error("the topology {shape} has room for {places} hosts, exactly, and the cluster has {hosts}")]
    Hosts {
        /// The topology.
        shape: String,
        /// Its hosts.
        places: usize,
        /// The cluster's hosts.
        hosts: usize,
    },
}

/// More hosts than this are a slip of the pen.
const HOSTS_MAX: usize = 1 << 20;

const SWITCHES: &str = "a switch has at least one host and at most 1048576";
const OVERSUBSCRIPTION: &str = "an oversubscription is a number from 1 to 1000000; 1 is none";
const UPLINKS: &str =
    "the hosts of a switch, divided by the oversubscription, are its links upwards: a whole number of them";
const SIDES: &str = "the sides of a torus are at least 1, and its hosts at most 1048576";
const LEVELS: &str = "a switch has at least 2 ports, a host at least 1 and at most 20 levels, and PORTS to the power of \
                      LEVELS is at most 1048576";

impl Shape {
    /// How many hosts it has. None if it has as many as one likes.
    pub fn hosts(&self) -> Option<usize> {
        match *self {
            Shape::Flat | Shape::Tree(_) | Shape::FatTree { .. } => None,
            Shape::Torus { x, y } => Some(x.saturating_mul(y)),
            Shape::BCube { ports, levels } => Some(ports.saturating_pow(u32::try_from(levels).unwrap_or(u32::MAX))),
        }
    }

    /// Does it make sense, and has it room for so many hosts?
    ///
    /// # Errors
    /// It does not.
    pub fn check(&self, hosts: usize) -> Result<(), ShapeError> {
        self.numbers().map_err(|reason| ShapeError::Number { text: self.to_string(), reason })?;
        match self.hosts() {
            Some(places) if places != hosts => Err(ShapeError::Hosts { shape: self.to_string(), places, hosts }),
            _ => Ok(()),
        }
    }

    fn numbers(&self) -> Result<(), &'static str> {
        let require = |holds: bool, reason| if holds { Ok(()) } else { Err(reason) };
        match *self {
            Shape::Flat => Ok(()),
            Shape::Tree(Switches { hosts, oversubscription })
            | Shape::FatTree { switches: Switches { hosts, oversubscription }, .. } => {
                require((1..=HOSTS_MAX).contains(&hosts), SWITCHES)?;
                require((1.0..=1e6).contains(&oversubscription), OVERSUBSCRIPTION)?;
                let uplinks = hosts as f64 / oversubscription;
                let whole = uplinks >= 0.999_999 && (uplinks - uplinks.round()).abs() < 1e-6;
                require(whole || matches!(self, Shape::Tree(_)), UPLINKS)
            }
            Shape::Torus { x, y } => {
                require(x.checked_mul(y).is_some_and(|hosts| (1..=HOSTS_MAX).contains(&hosts)), SIDES)
            }
            Shape::BCube { ports, levels } => {
                let hosts = u32::try_from(levels).ok().and_then(|levels| ports.checked_pow(levels));
                let fits = hosts.is_some_and(|hosts| hosts <= HOSTS_MAX);
                require(ports >= 2 && (1..=20).contains(&levels) && fits, LEVELS)
            }
        }
    }
}

/// As it is written; see [`Shape`].
impl FromStr for Shape {
    type Err = ShapeError;

    fn from_str(text: &str) -> Result<Shape, ShapeError> {
        let unknown = || ShapeError::Unknown { text: text.to_owned() };
        let shape = read(text.trim()).ok_or_else(unknown)?;
        shape.numbers().map_err(|reason| ShapeError::Number { text: text.to_owned(), reason })?;
        Ok(shape)
    }
}

/// Behind a fat-tree whose flows go over the spines by a hash.
const HASH: &str = "hash";

fn read(text: &str) -> Option<Shape> {
    let (name, arguments) = text.split_once(':').unwrap_or((text, ""));
    let two = |separator| arguments.split_once(separator);
    let number = |text: &str| text.trim().parse::<usize>().ok();
    let switches = |text: &str| {
        let (hosts, oversubscription) = text.split_once(':')?;
        Some(Switches { hosts: number(hosts)?, oversubscription: oversubscription.trim().parse().ok()? })
    };
    match name {
        "flat" => (text == name).then_some(Shape::Flat),
        "tree" => switches(arguments).map(Shape::Tree),
        "fat-tree" => {
            let hashed = arguments.rsplit_once(':').filter(|(_, word)| word.trim() == HASH);
            let switches = switches(hashed.map_or(arguments, |(switches, _)| switches))?;
            Some(Shape::FatTree { switches, hashed: hashed.is_some() })
        }
        "torus" => two('x').and_then(|(x, y)| Some(Shape::Torus { x: number(x)?, y: number(y)? })),
        "bcube" => {
            two(':').and_then(|(ports, levels)| Some(Shape::BCube { ports: number(ports)?, levels: number(levels)? }))
        }
        _ => None,
    }
}

/// As it is read.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Flat => f.write_str("flat"),
            Shape::Tree(Switches { hosts, oversubscription }) => write!(f, "tree:{hosts}:{oversubscription}"),
            Shape::FatTree { switches: Switches { hosts, oversubscription }, hashed } => {
                write!(f, "fat-tree:{hosts}:{oversubscription}")?;
                if *hashed { write!(f, ":{HASH}") } else { Ok(()) }
            }
            Shape::Torus { x, y } => write!(f, "torus:{x}x{y}"),
            Shape::BCube { ports, levels } => write!(f, "bcube:{ports}:{levels}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_as_they_are_written() {
        for text in ["flat", "tree:8:2", "tree:8:3", "fat-tree:8:2", "fat-tree:3:1.5", "torus:4x8", "bcube:4:2"] {
            assert_eq!(text.parse::<Shape>().unwrap().to_string(), text);
        }
        for text in ["fat-tree:8:2:hash", "fat-tree:3:1.5:hash"] {
            let shape: Shape = text.parse().unwrap();
            assert!(shape.to_string() == text && matches!(shape, Shape::FatTree { hashed: true, .. }), "{shape:?}");
        }
        assert_eq!("fat-tree: 8 : 2 : hash".parse::<Shape>(), "fat-tree:8:2:hash".parse::<Shape>());
        assert_eq!(" torus: 4 x 8 ".parse(), Ok(Shape::Torus { x: 4, y: 8 }));
        assert_eq!("bcube:4:2".parse::<Shape>().unwrap().hosts(), Some(16));
    }

    #[test]
    fn what_is_no_topology_is_refused_with_the_reason() {
        for (text, words) in [
            ("", "is no topology"),
            ("flat:", "is no topology"),
            ("ring", "is no topology"),
            ("tree:8", "is no topology"),
            ("torus:4", "is no topology"),
            ("torus:4x-1", "is no topology"),
            ("bcube:4:2:1", "is no topology"),
            ("fat-tree:4:2:spines", "is no topology"),
            ("fat-tree:4:hash", "is no topology"),
            ("tree:4:2:hash", "is no topology"),
            ("tree:0:1", "at least one host"),
            ("tree:8:0.5", "from 1"),
            ("tree:8:NaN", "from 1"),
            ("fat-tree:8:3", "a whole number"),
            ("fat-tree:2:4", "a whole number"),
            ("torus:0x4", "at least 1"),
            ("torus:99999999999x99999999999", "at most 1048576"),
            ("bcube:1:4", "at least 2 ports"),
            ("bcube:4:0", "at least 1"),
            ("bcube:2:64", "at most 20 levels"),
            ("bcube:1000:9", "at most 1048576"),
        ] {
            let error = text.parse::<Shape>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}`")) && error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_shape_fits_its_hosts() {
        let fits = |text: &str, hosts| text.parse::<Shape>().unwrap().check(hosts);
        for (text, hosts) in [("flat", 7), ("tree:4:2", 7), ("fat-tree:4:2", 8), ("torus:4x2", 8), ("bcube:3:2", 9)] {
            assert_eq!(fits(text, hosts), Ok(()));
        }
        let error = fits("torus:4x2", 7).unwrap_err().to_string();
        assert_eq!(error, "the topology torus:4x2 has room for 8 hosts, exactly, and the cluster has 7");
        assert!(fits("bcube:3:2", 8).is_err());
        assert!(Shape::Torus { x: 0, y: 0 }.check(0).is_err(), "not everything comes from a text");
    }
}
