//! Policies as text: TOML for people and programs; for spreadsheets there is `csv`. docs/nccl.md says what they look like.

use std::ops::Range;
use std::str::FromStr;

use paceline_tune::nccl::{Algorithm, Function, Protocol};
use serde::Deserialize;

use crate::csv;
use crate::policy::{MAX_CHANNELS, bin};

/// The form of policies that this plug-in reads.
pub const SCHEMA: u32 = 1;
/// One more than the bin of the largest size.
pub(crate) const BINS: u32 = usize::BITS + 1;
/// What is wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// It is no TOML, or a field is unknown, missing or of the wrong kind.
    #[error("the policy cannot be understood: line {line}: {reason}")]
    Toml {
        /// From 1 on; 0 where it is not known.
        line: usize,
        /// In the reader's words.
        reason: String,
    },
    /// Another form.
    #[error("the policy has schema {0}, and this plug-in reads 1: take the version of Paceline that wrote it")]
    Schema(u32),
    /// A rule of a TOML file.
    #[error("the policy's {kind} rule {index}: {reason}")]
    Rule {
        /// "call" or "chunk".
        kind: &'static str,
        /// From 1 on.
        index: usize,
        /// As it says.
        reason: String,
    },
    /// A line of a CSV file.
    #[error("line {line} of the policy: {reason}")]
    Line {
        /// From 1 on.
        line: usize,
        /// As it says.
        reason: String,
    },
    /// Its number says nothing.
    #[error("the policy has version 0, which means that there is none: count from 1 on")]
    NoVersion,
    /// Both could not be followed.
    #[error("two rules of the policy speak about the same call: {kind} rules number {first} and number {second}")]
    Twice {
        /// "call" or "chunk"; each are counted by themselves, in a CSV, too.
        kind: &'static str,
        /// From 1 on.
        first: usize,
        /// From 1 on.
        second: usize,
    },
    /// It would take too much memory.
    #[error("the policy has more than {0} kinds of calls: take wider ranges of bytes")]
    TooLong(usize),
}

impl PolicyError {
    pub(crate) fn limit(entries: usize, most: usize) -> Result<(), PolicyError> {
        if entries <= most { Ok(()) } else { Err(PolicyError::TooLong(most)) }
    }
}

/// A policy as it is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    /// Counted by who made it, from 1 on.
    pub version: u64,
    /// Of the text and of this plug-in's version; never 0.
    pub fingerprint: u64,
    /// LL128 is safe on these machines.
    pub ll128_proved: bool,
    /// Which way calls take.
    pub calls: Vec<CallRule>,
    /// In which pieces.
    pub chunks: Vec<ChunkRule>,
}

/// Calls, and the way that they take.
#[derive(Clone, Debug, PartialEq)]
pub struct CallRule {
    /// Of which kind.
    pub function: Function,
    /// Of which sizes: [bins](crate::policy::bin).
    pub bins: Range<u32>,
    /// Ranks and hosts; none: any.
    pub world: Option<(u64, u64)>,
    /// In a group with more operations than the communicator has channels, or not; none: both.
    pub pipelined: Option<bool>,
    /// Algorithm and protocol; none: NCCL's own.
    pub way: Option<(Algorithm, Protocol)>,
    /// At most so many channels; 0: NCCL's own.
    pub channels: u8,
}

/// Calls, and the pieces that they are cut into; NCCL 2.30 and later.
#[derive(Clone, Debug, PartialEq)]
pub struct ChunkRule {
    /// Of which kind.
    pub function: Function,
    /// Which way they take.
    pub algorithm: Algorithm,
    /// By which protocol.
    pub protocol: Protocol,
    /// Bytes of a channel, or with CollNet, and with NVLS between hosts, all of the call: [bins](crate::policy::bin).
    pub bins: Range<u32>,
    /// NCCL's chunk is divided by this: 1, 2, 4 or 8.
    pub divide_by: u8,
}

/// A rule of either kind, in words.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Written {
    pub function: Option<String>,
    pub min_bytes: Option<u64>,
    pub below_bytes: Option<u64>,
    pub ranks: Option<u64>,
    pub hosts: Option<u64>,
    pub pipelined: Option<bool>,
    pub algorithm: Option<String>,
    pub protocol: Option<String>,
    pub channels: Option<u64>,
    pub nccl_channels: Option<u64>,
    pub divide_by: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "schema")]
    _schema: u32,
    version: u64,
    nccl_channels: Option<u64>,
    #[serde(default)]
    ll128: bool,
    #[serde(default)]
    call: Vec<Written>,
    #[serde(default)]
    chunk: Vec<Written>,
}

impl Rules {
    /// Reads a text: CSV where its first line is a row of cells, else TOML.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn from_text(text: &str) -> Result<Rules, PolicyError> {
        // Some programs mark UTF-8 so.
        let plain = text.strip_prefix('\u{feff}').unwrap_or(text);
        let rules = if csv::is_csv(plain) { csv::rules(plain)? } else { Rules::from_toml(plain)? };
        if rules.version == 0 {
            return Err(PolicyError::NoVersion);
        }
        Ok(Rules { fingerprint: fingerprint(text), ..rules })
    }

    fn from_toml(text: &str) -> Result<Rules, PolicyError> {
        /// All forms have this field; the others are none of this form's business.
        #[derive(Deserialize)]
        struct Schema {
            schema: u32,
        }
        if let Ok(Schema { schema }) = toml::from_str(text)
            && schema != SCHEMA
        {
            return Err(PolicyError::Schema(schema));
        }
        let file: File = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(0, |before| 1 + before.matches('\n').count());
            PolicyError::Toml { line, reason: error.message().to_owned() }
        })?;
        if let Some(most) = file.nccl_channels {
            let line = text.lines().position(|line| line.trim_start().starts_with("nccl_channels"));
            let outside = |reason| PolicyError::Toml { line: line.map_or(0, |index| index + 1), reason };
            of_nccl(most).map_err(outside)?;
        }
        let mut rules = Rules { version: file.version, ll128_proved: file.ll128, ..Rules::default() };
        for (index, written) in file.call.iter().enumerate() {
            let rule = written.call(file.nccl_channels);
            rules.calls.push(rule.map_err(|reason| PolicyError::Rule { kind: "call", index: index + 1, reason })?);
        }
        for (index, written) in file.chunk.iter().enumerate() {
            let rule = written.chunk();
            rules.chunks.push(rule.map_err(|reason| PolicyError::Rule { kind: "chunk", index: index + 1, reason })?);
        }
        Ok(rules)
    }
}

impl Written {
    pub(crate) fn call(&self, nccl_channels: Option<u64>) -> Result<CallRule, String> {
        if self.divide_by.is_some() {
            return Err("divide_by is about chunks: write it under [[chunk]]".to_owned());
        }
        let way = match (&self.algorithm, &self.protocol) {
            (Some(algorithm), Some(protocol)) => Some((named(algorithm)?, named(protocol)?)),
            (None, None) => None,
            _ => return Err("algorithm and protocol go together, or neither is given".to_owned()),
        };
        let function = self.function()?;
        if let Some((algorithm, protocol)) = way {
            fits(function, algorithm, protocol)?;
        }
        // Other algorithms than these have channels of their own; for NCCL's own choice the tuner looks.
        let of_all = nccl_channels.filter(|_| way.is_none_or(|(algorithm, _)| !algorithm.has_own_channels()));
        let channels = self.channels(self.nccl_channels.or(of_all))?;
        if way.is_none() && channels == 0 {
            return Err("it chooses nothing: give algorithm and protocol, or channels".to_owned());
        }
        let world = match (self.ranks, self.hosts) {
            (None, None) => None,
            (Some(ranks), Some(hosts)) if hosts >= 1 && ranks >= hosts && ranks < 1 << 24 => Some((ranks, hosts)),
            (Some(ranks), Some(hosts)) => return Err(format!("there are no {ranks} ranks on {hosts} hosts")),
            _ => return Err("ranks and hosts go together, or neither is given".to_owned()),
        };
        Ok(CallRule { function, bins: self.bins()?, world, pipelined: self.pipelined, way, channels })
    }

    pub(crate) fn chunk(&self) -> Result<ChunkRule, String> {
        let (Some(algorithm), Some(protocol)) = (&self.algorithm, &self.protocol) else {
            return Err("a chunk needs algorithm and protocol".to_owned());
        };
        let others = self.ranks.or(self.hosts).or(self.channels).or(self.nccl_channels);
        if others.is_some() || self.pipelined.is_some() {
            return Err("ranks, hosts, pipelined and channels mean nothing for a chunk".to_owned());
        }
        let divide_by = match self.divide_by {
            Some(divide_by @ (1 | 2 | 4 | 8)) => divide_by as u8,
            _ => return Err("divide_by is 1, 2, 4 or 8".to_owned()),
        };
        let (function, algorithm, protocol) = (self.function()?, named(algorithm)?, named(protocol)?);
        fits(function, algorithm, protocol)?;
        Ok(ChunkRule { function, algorithm, protocol, bins: self.bins()?, divide_by })
    }

    fn function(&self) -> Result<Function, String> {
        named(self.function.as_deref().ok_or("it has no function, such as AllReduce")?)
    }

    /// NCCL applies more channels than it has to some algorithms without looking, so a bound must be known.
    fn channels(&self, most: Option<u64>) -> Result<u8, String> {
        if let Some(most) = most {
            of_nccl(most)?;
        }
        let Some(channels) = self.channels else { return Ok(0) };
        let most = most.ok_or(
            "channels need nccl_channels, as many as NCCL has by itself (its log says `coll channels`); NVLS and CollNet \
             need them in the rule itself (`nvls channels`, `collnet channels`): more would be wrong",
        )?;
        if !(1..=most).contains(&channels) {
            return Err(format!("channels = {channels}: at least 1, and at most nccl_channels = {most}"));
        }
        u8::try_from(channels).map_err(|error| error.to_string())
    }

    fn bins(&self) -> Result<Range<u32>, String> {
        let first = match self.min_bytes {
            None | Some(0) => 0,
            Some(bytes) => power_of_two("min_bytes", bytes)?,
        };
        let end = match self.below_bytes {
            None => BINS,
            Some(bytes) => power_of_two("below_bytes", bytes)?,
        };
        if first < end { Ok(first..end) } else { Err("min_bytes is not below below_bytes".to_owned()) }
    }
}

fn of_nccl(channels: u64) -> Result<(), String> {
    let can_be = (1..=u64::from(MAX_CHANNELS)).contains(&channels);
    if can_be { Ok(()) } else { Err(format!("nccl_channels = {channels}: NCCL has 1 to {MAX_CHANNELS}")) }
}

/// The bin that begins there.
fn power_of_two(what: &str, bytes: u64) -> Result<u32, String> {
    let size = usize::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two());
    size.map(bin)
        .ok_or_else(|| format!("{what} = {bytes}: a power of two, such as 65536; calls are told apart by these"))
}

fn named<T: FromStr<Err = paceline_tune::nccl::NcclError>>(name: &str) -> Result<T, String> {
    name.parse().map_err(|error: paceline_tune::nccl::NcclError| error.to_string())
}

/// Which ways NCCL has at all.
fn fits(function: Function, algorithm: Algorithm, protocol: Protocol) -> Result<(), String> {
    let for_function = match function {
        Function::Broadcast | Function::Reduce => algorithm == Algorithm::Ring,
        Function::AllGather | Function::ReduceScatter => {
            matches!(algorithm, Algorithm::Ring | Algorithm::CollNetDirect | Algorithm::Nvls | Algorithm::Pat)
        }
        Function::AllReduce => algorithm != Algorithm::Pat,
    };
    let plain = matches!(algorithm, Algorithm::Ring | Algorithm::Tree);
    match for_function && (plain || protocol == Protocol::Simple) {
        true => Ok(()),
        false => Err(format!("NCCL has no {function} by {algorithm} with {protocol}")),
    }
}

/// FNV-1a of the text, and of the version of this plug-in, as another might read the text otherwise. 0 is for none.
fn fingerprint(text: &str) -> u64 {
    let reader = [env!("CARGO_PKG_VERSION"), "\n"].concat();
    let bytes = reader.bytes().chain(text.bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    hash.max(1)
}

#[cfg(test)]
mod tests {
    const HEAD: &str = "schema = 1\nversion = 3\n";

    fn refused(text: &str) -> String {
        crate::policy::Policy::from_text(text).expect_err(text).to_string()
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let rule = |fields: &str| refused(&format!("{HEAD}[[call]]\n{}\n", fields.replace("; ", "\n")));
        let way = "algorithm = \"Ring\"; protocol = \"LL\"";
        let reduce = "function = \"AllReduce\"";
        for (message, words) in [
            (refused("schema = 2\nversion = 1\nnew = true"), "has schema 2"),
            (refused("version = 1"), "missing field `schema`"),
            (refused("schema = 1\nversion = -1"), "line 2: invalid value"),
            (refused("schema = 1\nversion = 1\nfast = true"), "line 3: unknown field `fast`"),
            (refused("{}"), "cannot be understood: line 1"),
            (rule(way), "call rule 1: it has no function"),
            (rule(&format!("function = \"AllToAll\"; {way}")), "`AllToAll` is no function of NCCL"),
            (rule(&format!("{reduce}; algorithm = \"Star\"; protocol = \"LL\"")), "`Star` is no algorithm"),
            (rule(&format!("{reduce}; algorithm = \"Ring\"")), "algorithm and protocol go together"),
            (rule(&format!("{reduce}; algorithm = \"NVLS\"; protocol = \"LL\"")), "no AllReduce by NVLS with LL"),
            (rule("function = \"Reduce\"; algorithm = \"Tree\"; protocol = \"LL\""), "no Reduce by Tree"),
            (rule(reduce), "it chooses nothing"),
            (rule(&format!("{reduce}; {way}; channels = 4")), "channels need nccl_channels"),
            (
                refused(&format!(
                    "{HEAD}nccl_channels = 16\n[[call]]\n{reduce}\nalgorithm = \"NVLS\"\nprotocol = \"Simple\"\nchannels = 4"
                )),
                "NVLS and CollNet need them in the rule itself",
            ),
            (rule(&format!("{reduce}; {way}; channels = 20; nccl_channels = 16")), "channels = 20: at least 1"),
            (rule(&format!("{reduce}; {way}; channels = 200; nccl_channels = 200")), "NCCL has 1 to 64"),
            (rule(&format!("{reduce}; {way}; min_bytes = 1000")), "min_bytes = 1000: a power of two"),
            (rule(&format!("{reduce}; {way}; min_bytes = 64; below_bytes = 64")), "is not below"),
            (rule(&format!("{reduce}; {way}; ranks = 8")), "ranks and hosts go together"),
            (rule(&format!("{reduce}; {way}; ranks = 8; hosts = 9")), "no 8 ranks on 9 hosts"),
            (rule(&format!("{reduce}; {way}; divide_by = 2")), "divide_by is about chunks"),
            (refused(&format!("{HEAD}[[chunk]]\n{reduce}\ndivide_by = 2")), "chunk rule 1: a chunk needs algorithm"),
            (refused("schema = 1\nversion = 0"), "version 0"),
            (refused(&format!("{HEAD}nccl_channels = 999")), "nccl_channels = 999: NCCL has 1 to 64"),
            (rule(&format!("{reduce}; {way}; nccl_channels = 65")), "nccl_channels = 65: NCCL has 1 to 64"),
        ] {
            assert!(message.contains(words), "{message}\nhas no {words}");
        }
        let chunk = "[[chunk]]\nfunction = \"AllReduce\"\nalgorithm = \"Ring\"\nprotocol = \"LL\"\ndivide_by = ";
        assert!(refused(&format!("{HEAD}{chunk}3")).contains("divide_by is 1, 2, 4 or 8"));
        assert!(refused(&format!("{HEAD}{chunk}2\n{chunk}4")).contains("chunk rules number 1 and number 2"));
    }
}
