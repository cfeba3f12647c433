use std::fmt;
use std::slice;
use std::time::Duration;

use crate::{Registry, Servers, Value};

/// One dimension of the taxonomy. What the five values together say is a [`Strategy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Aspect {
    /// When workers agree (level 1).
    Sync,
    /// How gradients are made smaller (level 1).
    Compress,
    /// In which pieces and which order they travel (level 2).
    Schedule,
    /// Between whom they travel (level 2).
    Arch,
    /// On what they travel (level 3).
    Protocol,
}

impl Aspect {
    /// Every aspect, in the order in which a strategy prints.
    pub const ALL: [Aspect; 5] = [Aspect::Sync, Aspect::Compress, Aspect::Schedule, Aspect::Arch, Aspect::Protocol];

    /// The word to the left of the `=`.
    pub const fn name(self) -> &'static str {
        match self {
            Aspect::Sync => "sync",
            Aspect::Compress => "compress",
            Aspect::Schedule => "schedule",
            Aspect::Arch => "arch",
            Aspect::Protocol => "protocol",
        }
    }

    /// May methods of this aspect be combined to a hybrid?
    pub const fn takes_hybrids(self) -> bool {
        matches!(self, Aspect::Compress)
    }
}

impl fmt::Display for Aspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A training method. Made by [`Registry::parse`]; its printed form parses to the same value.
#[derive(Clone, Debug, PartialEq)]
pub struct Strategy {
    /// When workers agree.
    pub sync: Call,
    /// How gradients are made smaller, stage after stage. Never empty: `none` is a method too.
    pub compress: Vec<Call>,
    /// In which pieces and which order they travel.
    pub schedule: Call,
    /// Between whom.
    pub arch: Call,
    /// On what.
    pub protocol: Call,
}

impl Strategy {
    /// The methods chosen in an aspect: one, or the stages of a hybrid.
    pub fn methods(&self, aspect: Aspect) -> &[Call] {
        match aspect {
            Aspect::Sync => slice::from_ref(&self.sync),
            Aspect::Compress => &self.compress,
            Aspect::Schedule => slice::from_ref(&self.schedule),
            Aspect::Arch => slice::from_ref(&self.arch),
            Aspect::Protocol => slice::from_ref(&self.protocol),
        }
    }

    /// The first compressor that it names; `None` if it compresses nothing.
    pub fn compressor(&self) -> Option<&Call> {
        self.compress.iter().find(|stage| stage.name != "none")
    }

    /// Does it give the parameters of single-worker SGD on the joined batch, to rounding? Only if each of its methods
    /// is registered as lossless.
    pub fn lossless(&self, registry: &Registry) -> bool {
        Aspect::ALL.into_iter().all(|aspect| {
            self.methods(aspect)
                .iter()
                .all(|call| registry.method(aspect, &call.name).is_some_and(|method| method.lossless))
        })
    }

    /// The strategy in words: "It exploits (sync) with (compress) and (schedule), running on (arch), built on
    /// (protocol)". The form is that of Shi et al., "Communication-Efficient Distributed Deep Learning"
    /// (arXiv 2005.13247).
    pub fn sentence(&self, registry: &Registry) -> String {
        let phrase = |aspect| {
            let phrases: Vec<String> = self.methods(aspect).iter().map(|call| call.phrase(aspect, registry)).collect();
            phrases.join(", then ")
        };
        format!(
            "It exploits {} with {} and {}, running on {}, built on {} and the cluster's topology.",
            phrase(Aspect::Sync),
            phrase(Aspect::Compress),
            phrase(Aspect::Schedule),
            phrase(Aspect::Arch),
            phrase(Aspect::Protocol),
        )
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, aspect) in Aspect::ALL.into_iter().enumerate() {
            write!(f, "{}{aspect}=", if index == 0 { "" } else { "," })?;
            for (stage, call) in self.methods(aspect).iter().enumerate() {
                write!(f, "{}{call}", if stage == 0 { "" } else { "*" })?;
            }
        }
        Ok(())
    }
}

/// A method with its arguments: `fusion:25MiB`.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The method's name.
    pub name: String,
    /// Its arguments, in the order of its parameters. Optional ones at the end may be missing.
    pub arguments: Vec<Value>,
}

impl Call {
    /// A method without arguments: `wfbp`.
    pub fn named(name: &str) -> Call {
        Call { name: name.to_owned(), arguments: Vec::new() }
    }

    /// The arch `a2a:ALGORITHM`; `auto` is whichever is the cheapest for each operation.
    pub fn all_to_all(algorithm: &str) -> Call {
        Call { name: "a2a".to_owned(), arguments: vec![Value::Name(algorithm.to_owned())] }
    }

    /// The arch `ps:SHARDS`: servers that add up, on hosts of their own (`dedicated`) or beside the workers, and cut where the
    /// grammar's default does.
    pub fn servers(shards: u64, dedicated: bool) -> Call {
        let names = [if dedicated { "dedicated" } else { "colocated" }, "aggregate"];
        let numbers = [Value::Count(shards), Value::Bytes(Servers::PARTITION_BYTES)];
        let names = names.map(|name| Value::Name(name.to_owned()));
        Call { name: "ps".to_owned(), arguments: numbers.into_iter().chain(names).collect() }
    }

    /// The argument at `index` as a number: of bytes, or of whatever the parameter counts. `None` if it is missing or
    /// no whole number.
    pub fn number(&self, index: usize) -> Option<u64> {
        match self.arguments.get(index)? {
            &Value::Count(number) | &Value::Bytes(number) => Some(number),
            Value::Fraction(_) | Value::Duration(_) | Value::Name(_) => None,
        }
    }

    /// The argument at `index` as a fraction. `None` if it is missing or something else.
    pub fn fraction(&self, index: usize) -> Option<f64> {
        match self.arguments.get(index)? {
            &Value::Fraction(fraction) => Some(fraction),
            _ => None,
        }
    }

    /// The argument at `index` as a time. `None` if it is missing or something else.
    pub fn duration(&self, index: usize) -> Option<Duration> {
        match self.arguments.get(index)? {
            &Value::Duration(time) => Some(time),
            _ => None,
        }
    }

    /// The argument at `index` as a name. `None` if it is missing or something else.
    pub fn word(&self, index: usize) -> Option<&str> {
        match self.arguments.get(index)? {
            Value::Name(name) => Some(name),
            _ => None,
        }
    }

    /// The method's phrase with the arguments in it; the call itself if the registry doesn't have the method.
    fn phrase(&self, aspect: Aspect, registry: &Registry) -> String {
        match registry.method(aspect, &self.name) {
            Some(method) => method.phrase(&self.arguments),
            None => self.to_string(),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.arguments.iter().try_for_each(|argument| write!(f, ":{argument}"))
    }
}
