//! Policies as files: what was learned on one day or by somebody else, in TOML that a person can read and write.

use std::collections::BTreeMap;

use paceline_plan::CollectiveKind;
use serde::{Deserialize, Serialize};

use crate::action::{Action, Choice, Family, WireProtocol};
use crate::environment::OwnModel;
use crate::policy::{Policy, Schedule};
use crate::state::{Context, STATE_VERSION, TopologyClass};

/// The version of the form.
pub const SCHEMA: u32 = 1;

/// Why a file is no policy. Then calls are left alone; no collective fails of it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PolicyError {
    /// It is no TOML, or has other fields.
    #[error("the policy cannot be read: {what}")]
    Form {
        /// In the words of the reader, with the line.
        what: String,
    },
    /// It is of another version.
    #[error(
        "the policy has schema {schema} and state version {state}, and this paceline knows {SCHEMA} and {STATE_VERSION}"
    )]
    Version {
        /// Its form.
        schema: u32,
        /// What its contexts mean.
        state: u32,
    },
    /// A number makes no sense.
    #[error("rule {rule} of the policy: {field} is {value}, and may be {allowed}")]
    Value {
        /// Counts from 1.
        rule: usize,
        /// Its field.
        field: &'static str,
        /// What stands there.
        value: u64,
        /// What may stand there.
        allowed: &'static str,
    },
    /// The collective has no such algorithm, whatever the world.
    #[error("rule {rule} of the policy: {collective} has no algorithm {algorithm}; it has: {known}")]
    Algorithm {
        /// Counts from 1.
        rule: usize,
        /// What is called.
        collective: CollectiveKind,
        /// The number that stands there.
        algorithm: u8,
        /// Those that it has, with their names.
        known: String,
    },
    /// One host is a topology of its own, and no other has one host.
    #[error("rule {rule} of the policy: topology is {topology} and hosts is {hosts}; one host alone is one-host")]
    Topology {
        /// Counts from 1.
        rule: usize,
        /// What stands there.
        topology: TopologyClass,
        /// How many hosts.
        hosts: u16,
    },
    /// The same context stands there twice.
    #[error("rule {rule} of the policy has the context of rule {before}; which one is meant?")]
    Twice {
        /// Counts from 1.
        rule: usize,
        /// The other one.
        before: usize,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: u32,
    state_version: u32,
    version: u64,
    #[serde(default)]
    rule: Vec<Rule>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    algorithm: u8,
    protocol: WireProtocol,
    #[serde(default)]
    channels: u8,
    #[serde(default)]
    threads: u8,
    #[serde(default)]
    chunk_log2: u8,
    context: Context,
}

/// Reads a policy.
///
/// # Errors
/// It is none, of another version, or says what cannot be.
pub fn read(text: &str) -> Result<Policy, PolicyError> {
    let file: File = toml::from_str(text).map_err(|error| PolicyError::Form { what: error.to_string() })?;
    if file.schema != SCHEMA || file.state_version != STATE_VERSION {
        return Err(PolicyError::Version { schema: file.schema, state: file.state_version });
    }
    let (mut entries, mut known) = (Vec::new(), BTreeMap::new());
    for (rule, number) in file.rule.iter().zip(1..) {
        check(number, rule)?;
        if let Some(before) = known.insert(rule.context.key(), number) {
            return Err(PolicyError::Twice { rule: number, before });
        }
        let family = Family { algorithm: rule.algorithm, protocol: rule.protocol };
        let Rule { channels, threads, chunk_log2, .. } = *rule;
        entries.push((rule.context, Schedule::always(Choice::Play(Action { family, channels, threads, chunk_log2 }))));
    }
    Ok(Policy::new(file.version, entries))
}

fn check(rule: usize, it: &Rule) -> Result<(), PolicyError> {
    let Context { collective, topology, ranks, hosts, size_log2, intensity_log2, inverse_ratio_log2, .. } = it.context;
    let fields: [(&'static str, u64, bool, &'static str); 7] = [
        ("channels", it.channels.into(), it.channels <= 64, "0 (keep) to 64"),
        ("threads", it.threads.into(), it.threads <= 64, "0 (keep) to 64"),
        (
            "chunk_log2",
            it.chunk_log2.into(),
            it.chunk_log2 == 0 || (9..=30).contains(&it.chunk_log2),
            "0 (keep) or 9 to 30",
        ),
        ("context.size_log2", size_log2.into(), size_log2 < 63, "0 to 62"),
        ("context.ranks", ranks.into(), ranks >= 1, "1 and more"),
        ("context.hosts", hosts.into(), (1..=ranks.clamp(1, 0x3fff)).contains(&hosts), "1 to the number of ranks"),
        (
            "context.intensity_log2",
            intensity_log2.max(inverse_ratio_log2).into(),
            intensity_log2.max(inverse_ratio_log2) <= 15,
            "0 to 15, as inverse_ratio_log2",
        ),
    ];
    if let Some((field, value, _, allowed)) = fields.into_iter().find(|(_, _, fits, _)| !fits) {
        return Err(PolicyError::Value { rule, field, value, allowed });
    }
    if (hosts == 1) != (topology == TopologyClass::OneHost) {
        return Err(PolicyError::Topology { rule, topology, hosts });
    }
    if exists(collective, it.algorithm) {
        return Ok(());
    }
    let named = |number: u8| Some(format!("{number} {}", OwnModel::algorithm(collective, number)?));
    let known: Vec<String> = (0..Family::PROGRAMS).filter_map(named).collect();
    Err(PolicyError::Algorithm { rule, collective, algorithm: it.algorithm, known: known.join(", ") })
}

/// Is it an algorithm of the collective, or the number of a program? Which programs there are, the world says.
fn exists(collective: CollectiveKind, algorithm: u8) -> bool {
    use CollectiveKind::{AllGather, AllReduce, ReduceScatter};
    let may_be_program = matches!(collective, AllReduce | AllGather | ReduceScatter);
    OwnModel::algorithm(collective, algorithm).is_some() || may_be_program && algorithm >= Family::PROGRAMS
}

/// Writes what a policy always does; what is still tried is left out. `read` gives the same policy.
pub fn write(policy: &Policy) -> String {
    let mut text = format!(
        "# What paceline tune has found. docs/tuning.md says what the fields mean.\nschema = {SCHEMA}\nstate_version = \
         {STATE_VERSION}\nversion = {}\n",
        policy.version()
    );
    for (context, schedule) in policy.entries() {
        let [Choice::Play(action)] = schedule.turns() else { continue };
        let Family { algorithm, protocol } = action.family;
        text += &format!(
            "\n[[rule]]\nalgorithm = {algorithm}\nprotocol = \"{protocol}\"\nchannels = {}\nthreads = {}\nchunk_log2 = \
             {}\n[rule.context]\n",
            action.channels, action.threads, action.chunk_log2
        );
        let Context { collective, size_log2, ranks, hosts, transport, topology, parallelism, congestion, .. } = context;
        text += &format!("collective = \"{collective}\"\nsize_log2 = {size_log2}\nranks = {ranks}\nhosts = {hosts}\n");
        text += &format!("transport = \"{transport}\"\ntopology = \"{topology}\"\n");
        for (name, switch) in [
            ("has_nvlink", context.has_nvlink),
            ("is_ps_deployment", context.is_ps_deployment),
            ("is_pipelined_layer", context.is_pipelined_layer),
            ("is_fused_call", context.is_fused_call),
        ] {
            text += &format!("{name} = {switch}\n");
        }
        text += &format!("parallelism = \"{parallelism}\"\nintensity_log2 = {}\n", context.intensity_log2);
        text += &format!("inverse_ratio_log2 = {}\ncongestion = \"{congestion}\"\n", context.inverse_ratio_log2);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::tests::action;
    use crate::state::State;
    use crate::state::tests::CALL;

    fn policy() -> Policy {
        let other = State { ranks: 16, has_nvlink: true, ..CALL }.context();
        let entries = [(CALL.context(), action(3, 4, 18)), (other, action(130, 0, 0))];
        Policy::new(7, entries.map(|(context, action)| (context, Schedule::always(Choice::Play(action)))))
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(read(&write(&policy())), Ok(policy()));
        assert_eq!(read(&write(&Policy::default())), Ok(Policy::default()));
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let text = write(&policy());
        for (old, new, words) in [
            ("schema = 1", "schema = 2", "schema 2"),
            ("state_version = 2", "state_version = 9", "state version 9"),
            ("channels = 4", "channels = 200", "rule 1 of the policy: channels is 200"),
            ("chunk_log2 = 18", "chunk_log2 = 3", "chunk_log2 is 3"),
            ("ranks = 8", "ranks = 0", "context.ranks is 0"),
            ("hosts = 8", "hosts = 9", "context.hosts is 9"),
            ("ranks = 16\nhosts = 8", "ranks = 8\nhosts = 8", ""),
            ("\"simple\"", "\"fast\"", "fast"),
            ("transport = \"tcp10g\"", "carrier = \"pigeons\"", "carrier"),
            ("algorithm = 3", "algorithm = -3", "cannot be read"),
            ("algorithm = 3", "algorithm = 99", "rule 1 of the policy: all-reduce has no algorithm 99; it has: 0 ring"),
            ("algorithm = 3", "algorithm = 9", "all-reduce has no algorithm 9;"),
            ("\"all-reduce\"", "\"broadcast\"", "broadcast has no algorithm 3;"),
            ("\"flat\"", "\"one-host\"", "topology is one-host and hosts is 8"),
        ] {
            let changed = text.replacen(old, new, 1);
            assert_ne!(changed, text, "{old}");
            match read(&changed) {
                Err(error) => assert!(error.to_string().contains(words), "{new}: {error}"),
                Ok(_) => assert!(words.is_empty(), "{new} was taken"),
            }
        }
        let twice = format!("{text}{}", &text[text.find("\n[[rule]]").expect("a rule")..]);
        assert!(matches!(read(&twice), Err(PolicyError::Twice { rule: 3, before: 1 })));
        assert!(matches!(read("\0"), Err(PolicyError::Form { .. })));
    }

    /// A file of which the end is missing, or a byte is another one, is refused, or it is a policy, which is written and read as any other.
    #[test]
    fn a_damaged_file_is_refused_or_is_a_policy() {
        let text = write(&policy());
        let (mut refused, mut taken) = (0, 0);
        let mut look = |text: &str| match read(text) {
            Ok(policy) => {
                assert_eq!(read(&write(&policy)), Ok(policy), "{text}");
                taken += 1;
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
        };
        for place in 0..text.len() {
            look(&text[..place]);
            let before = text.as_bytes()[place];
            for byte in [0, b'\n', b'"', b'#', b'9', before ^ 1] {
                let mut bytes = text.clone().into_bytes();
                bytes[place] = byte;
                // What is no text does not get here.
                look(&String::from_utf8_lossy(&bytes));
            }
        }
        // What stands in the comment may be anything, and numbers may be others.
        assert!(refused > 1000 && taken > 200, "{refused} and {taken}");
    }
}
