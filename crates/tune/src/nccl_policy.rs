//! What was learned of NCCL's calls, as a policy that the plug-in for NCCL reads (docs/nccl.md).

use std::collections::BTreeMap;

use crate::action::{Action, Choice};
use crate::environment::NcclModel;
use crate::nccl::{Algorithm, Function, Protocol};
use crate::policy::Policy;
use crate::state::Context;

/// The form that the plug-in reads.
const SCHEMA: u32 = 1;

/// What the plug-in knows of a call: function, ⌊log2 bytes⌋, ranks, hosts.
type Asked = (Function, u8, u16, u16);

/// What it knows of a chunk: function, algorithm, protocol, ⌊log2 of the bytes of a channel⌋.
type Cut = (Function, Algorithm, Protocol, u32);

/// Writes what a policy says of these contexts, which are all that there were. NCCL does not say who calls, nor of which layer:
/// where contexts that differ in no more than that take different choices, nothing is written, and NCCL's own stays. So it is with
/// chunks, of which the plug-in does not know the communicator.
///
/// The plug-in can hold one choice for a call, and none in turn: how often NCCL asks is no number that ranks agree on. So of a
/// schedule with several turns the first one is written.
pub fn write<'a>(policy: &Policy, contexts: impl IntoIterator<Item = &'a Context>, model: &NcclModel) -> String {
    let Said { calls, chunks } = Said::of(policy, contexts, model);
    let mut text = format!(
        "# What paceline tune has found of NCCL's calls, for its plug-in. docs/nccl.md says what the fields mean.\nschema = \
         {SCHEMA}\nversion = {}\nnccl_channels = {}\n",
        policy.version().max(1),
        model.communicator().channels
    );
    for (asked, (context, said)) in &calls {
        if let Some(Choice::Play(action)) = said {
            text += &call(asked, action, model.own_channels(context, action)).unwrap_or_default();
        }
    }
    for (cut, pieces_log2) in &chunks {
        if let Some(pieces_log2) = pieces_log2.filter(|log2| *log2 > 0) {
            text += &chunk(cut, pieces_log2);
        }
    }
    text
}

/// What the plug-in plays of these contexts by the file that [`write`] makes of the same: the default where no rule could be
/// written, and whole chunks where contexts want others.
pub fn played<'a>(
    policy: &Policy,
    contexts: impl IntoIterator<Item = &'a Context>,
    model: &NcclModel,
) -> BTreeMap<Context, Choice> {
    let contexts: Vec<&Context> = contexts.into_iter().collect();
    let said = Said::of(policy, contexts.iter().copied(), model);
    contexts.into_iter().map(|context| (*context, said.choice(context, model).unwrap_or_default())).collect()
}

/// What can be said of calls and of chunks; None where contexts that are not told apart want different things.
struct Said {
    calls: BTreeMap<Asked, (Context, Option<Choice>)>,
    chunks: BTreeMap<Cut, Option<u8>>,
}

impl Said {
    fn of<'a>(policy: &Policy, contexts: impl IntoIterator<Item = &'a Context>, model: &NcclModel) -> Said {
        let mut calls: BTreeMap<Asked, (Context, Option<Choice>)> = BTreeMap::new();
        let mut chunks: BTreeMap<Cut, Option<u8>> = BTreeMap::new();
        for context in contexts {
            let Some(function) = NcclModel::function(context.collective) else { continue };
            let choice = policy.choice(context.key(), 0);
            if let Some((cut, pieces_log2)) = cut_of(function, context, choice, model) {
                let said = chunks.entry(cut).or_insert(Some(pieces_log2));
                *said = said.filter(|said| *said == pieces_log2);
            }
            let knobs = match choice {
                Choice::Play(action) => Choice::Play(Action { chunk_log2: 0, ..action }),
                Choice::Default => Choice::Default,
            };
            let (_, said) = calls.entry(asked(function, context)).or_insert((*context, Some(knobs)));
            *said = said.filter(|said| *said == knobs);
        }
        Said { calls, chunks }
    }

    /// What the rules have a context take. None: nothing.
    fn choice(&self, context: &Context, model: &NcclModel) -> Option<Choice> {
        let function = NcclModel::function(context.collective)?;
        let (_, said) = self.calls.get(&asked(function, context))?;
        let Some(Choice::Play(knobs)) = *said else { return None };
        let (cut, _) = cut_of(function, context, Choice::Play(knobs), model)?;
        let pieces_log2 = self.chunks.get(&cut).copied().flatten().unwrap_or(0);
        Some(Choice::Play(Action { chunk_log2: pieces_log2, ..knobs }))
    }
}

/// As the plug-in is asked about the calls of a context.
fn asked(function: Function, context: &Context) -> Asked {
    (function, context.size_log2, context.ranks, context.hosts)
}

/// Which chunks a context has, and into how many pieces its choice cuts them, as a logarithm: NCCL's own choice into none.
fn cut_of(function: Function, context: &Context, choice: Choice, model: &NcclModel) -> Option<(Cut, u8)> {
    let (algorithm, protocol, channels, pieces_log2) = match choice {
        Choice::Play(action) => {
            let (algorithm, protocol) = NcclModel::way(&action)?;
            (algorithm, protocol, u32::from(action.channels), action.chunk_log2)
        }
        Choice::Default => {
            let own = model.own_choice(context)?;
            (own.algorithm, own.protocol, own.channels, 0)
        }
    };
    let of_channel = (1u64 << context.size_log2.min(62)) / u64::from(channels.max(1));
    Some(((function, algorithm, protocol, of_channel.max(1).ilog2()), pieces_log2))
}

/// A rule for calls. `own`: the channels that NCCL gives them by itself; only fewer are said.
fn call(asked: &Asked, action: &Action, own: Option<u32>) -> Option<String> {
    let (function, size_log2, ranks, hosts) = asked;
    let (algorithm, protocol) = NcclModel::way(action)?;
    let mut rule = format!(
        "\n[[call]]\nfunction = \"{function}\"\nmin_bytes = {}\nbelow_bytes = {}\nranks = {ranks}\nhosts = {hosts}\nalgorithm = \
         \"{algorithm}\"\nprotocol = \"{protocol}\"\n",
        1u64 << size_log2,
        2u64 << size_log2
    );
    if let Some(own) = own.filter(|own| u32::from(action.channels) < *own && action.channels > 0) {
        rule += &format!("channels = {}\n", action.channels);
        if algorithm.has_own_channels() {
            rule += &format!("nccl_channels = {own}\n");
        }
    }
    Some(rule)
}

fn chunk(cut: &Cut, pieces_log2: u8) -> String {
    let (function, algorithm, protocol, bytes_log2) = cut;
    format!(
        "\n[[chunk]]\nfunction = \"{function}\"\nalgorithm = \"{algorithm}\"\nprotocol = \"{protocol}\"\nmin_bytes = {}\nbelow_bytes = \
         {}\ndivide_by = {}\n",
        1u64 << bytes_log2,
        2u64 << bytes_log2,
        1u32 << pieces_log2
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::{Family, WireProtocol};
    use crate::nccl::{Communicator, Graph, Path};
    use crate::policy::Schedule;
    use crate::state::tests::CALL;
    use crate::state::{Parallelism, State};

    fn model() -> NcclModel {
        let graph = Graph { channels: 16, intra_gb_s: 20.0, inter_gb_s: 20.0, intra: Path::NvLink, ..Graph::default() };
        let whole = Communicator { ranks: 16, hosts: 2, compute_capability: 90, ..Communicator::of_graph(graph) };
        NcclModel::new("2.30.7".parse().expect("a version"), whole).expect("a communicator")
    }

    fn ring(channels: u8, chunk_log2: u8) -> Choice {
        let family = Family { algorithm: Algorithm::Ring.number() as u8, protocol: WireProtocol::Simple };
        Choice::Play(Action { family, channels, threads: 0, chunk_log2 })
    }

    fn context(bytes: u64, parallelism: Parallelism) -> Context {
        State { bytes, ranks: 16, hosts: 2, parallelism, ..CALL }.context()
    }

    fn written(entries: &[(Context, Choice)]) -> String {
        let policy = Policy::new(4, entries.iter().map(|(context, choice)| (*context, Schedule::always(*choice))));
        write(&policy, entries.iter().map(|(context, _)| context), &model())
    }

    #[test]
    fn a_choice_becomes_a_rule_for_its_size_and_world() {
        let text = written(&[(context(1 << 26, Parallelism::Data), ring(8, 1))]);
        for line in [
            "version = 4",
            "nccl_channels = 16",
            "function = \"AllReduce\"",
            "min_bytes = 67108864\nbelow_bytes = 134217728\nranks = 16\nhosts = 2",
            "algorithm = \"Ring\"\nprotocol = \"Simple\"\nchannels = 8\n",
            "[[chunk]]\nfunction = \"AllReduce\"\nalgorithm = \"Ring\"\nprotocol = \"Simple\"\nmin_bytes = 8388608\nbelow_bytes = \
             16777216\ndivide_by = 2\n",
        ] {
            assert!(text.contains(line), "no `{line}`: {text}");
        }
        // All of NCCL's own channels are no bound, and a whole chunk is no rule.
        let text = written(&[(context(1 << 26, Parallelism::Data), ring(16, 0))]);
        assert!(!text.contains("\nchannels = ") && !text.contains("[[chunk]]"), "{text}");
        assert!(text.contains("[[call]]"), "{text}");
    }

    #[test]
    fn what_nccl_cannot_tell_apart_is_left_to_it() {
        let (data, sharded) = (context(1 << 26, Parallelism::Data), context(1 << 26, Parallelism::Sharded));
        let alike = written(&[(data, ring(8, 0)), (sharded, ring(8, 0))]);
        assert_eq!(alike.matches("[[call]]").count(), 1, "{alike}");
        for other in [ring(4, 0), Choice::Default] {
            let text = written(&[(data, ring(8, 0)), (sharded, other)]);
            assert!(!text.contains("[[call]]"), "{text}");
        }
        // 2^26 bytes by 8 channels, and 2^25 by 4: the same bytes of a channel, of which only one wants halves.
        let text = written(&[(data, ring(8, 1)), (context(1 << 25, Parallelism::Data), ring(4, 0))]);
        assert_eq!((text.matches("[[call]]").count(), text.matches("[[chunk]]").count()), (2, 0), "{text}");
        let text = written(&[(data, ring(8, 1)), (context(1 << 25, Parallelism::Data), ring(4, 1))]);
        assert_eq!(text.matches("[[chunk]]").count(), 1, "{text}");
    }

    /// Whoever learns from what was played must know what was: not what it wished.
    #[test]
    fn what_the_plug_in_plays_is_what_was_written() {
        let (large, middle) = (context(1 << 26, Parallelism::Data), context(1 << 25, Parallelism::Data));
        let sharded = context(1 << 26, Parallelism::Sharded);
        let played_of = |entries: &[(Context, Choice)]| {
            let policy = Policy::new(4, entries.iter().map(|(context, choice)| (*context, Schedule::always(*choice))));
            played(&policy, entries.iter().map(|(context, _)| context), &model())
        };
        let alone = played_of(&[(large, ring(8, 1)), (middle, Choice::Default)]);
        assert_eq!(alone, BTreeMap::from([(large, ring(8, 1)), (middle, Choice::Default)]));
        // Of the same bytes of a channel one wants halves: they stay whole.
        let chunks = played_of(&[(large, ring(8, 1)), (middle, ring(4, 0))]);
        assert_eq!(chunks, BTreeMap::from([(large, ring(8, 0)), (middle, ring(4, 0))]));
        let alike = played_of(&[(large, ring(8, 1)), (sharded, ring(4, 1))]);
        assert_eq!(alike, BTreeMap::from([(large, Choice::Default), (sharded, Choice::Default)]));
    }
}
