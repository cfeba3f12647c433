//! What was learned of NCCL's calls, as a policy that the plug-in for NCCL reads (docs/nccl.md).

use std::collections::{BTreeMap, BTreeSet};

use crate::action::{Action, Choice};
use crate::environment::NcclModel;
use crate::nccl::{Algorithm, Function, Protocol};
use crate::policy::Policy;
use crate::state::Context;

/// The form that the plug-in reads.
const SCHEMA: u32 = 1;

/// What the plug-in knows of a call: function, ⌊log2 bytes⌋, and ranks and hosts where NCCL says of which communicator it is.
type Asked = (Function, u8, Option<(u16, u16)>);

/// What it knows of a chunk: function, algorithm, protocol, ⌊log2 of the bytes that NCCL asks with⌋.
type Cut = (Function, Algorithm, Protocol, u32);

/// Writes what a policy says of these contexts, which are all that there were. NCCL does not say who calls, nor of which layer, and up
/// to 2.20 not on which communicator: where contexts that differ in no more than that take different choices, a comment says so, and
/// NCCL's own stays. So it is with chunks, of which the plug-in never knows the communicator, and which contexts of neighbouring sizes
/// share where their channels are no power of two; of those no comment says anything.
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
    let version = model.version();
    if !version.tells_tuners_the_communicator() {
        text += &format!("# NCCL {version} does not say on which communicator a call is made: rules are for all.\n");
    }
    for (asked, told) in &calls {
        match told.choice {
            Some(Choice::Play(action)) => text += &call(asked, &action, told.own_channels).unwrap_or_default(),
            Some(Choice::Default) => {}
            None => text += &undecided(asked),
        }
    }
    for (cut, pieces_log2) in &chunks {
        if *pieces_log2 > 0 {
            text += &chunk(cut, *pieces_log2);
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

/// What can be said of calls and of chunks.
struct Said {
    calls: BTreeMap<Asked, Told>,
    /// Into how many pieces they are cut, as a logarithm.
    chunks: BTreeMap<Cut, u8>,
}

/// What can be said of calls that are not told apart.
struct Told {
    /// None: contexts want different things.
    choice: Option<Choice>,
    /// How many channels NCCL gives them by itself, made this way: those that get the most.
    own_channels: Option<u32>,
}

impl Said {
    fn of<'a>(policy: &Policy, contexts: impl IntoIterator<Item = &'a Context>, model: &NcclModel) -> Said {
        let function_of = |context: &'a Context| Some((NcclModel::function(context.collective)?, context));
        let contexts: Vec<(Function, &Context)> = contexts.into_iter().filter_map(function_of).collect();
        let mut calls: BTreeMap<Asked, Told> = BTreeMap::new();
        for &(function, context) in &contexts {
            let (knobs, own_channels) = match policy.choice(context.key(), 0) {
                Choice::Play(action) => {
                    (Choice::Play(Action { chunk_log2: 0, ..action }), model.own_channels(context, &action))
                }
                Choice::Default => (Choice::Default, None),
            };
            let of_first = Told { choice: Some(knobs), own_channels };
            let told = calls.entry(asked(function, context, model)).or_insert(of_first);
            told.choice = told.choice.filter(|said| *said == knobs);
            told.own_channels = told.own_channels.max(own_channels);
        }
        let mut wishes = Vec::new();
        for &(function, context) in &contexts {
            // What is left to NCCL is made its own way, and its chunks are whole.
            let is_said = calls[&asked(function, context, model)].choice.is_some();
            let choice = if is_said { policy.choice(context.key(), 0) } else { Choice::Default };
            wishes.extend(Wish::of(function, context, choice, model));
        }
        Said { calls, chunks: agreed(wishes) }
    }

    /// What the rules have a context take. None: nothing.
    fn choice(&self, context: &Context, model: &NcclModel) -> Option<Choice> {
        let function = NcclModel::function(context.collective)?;
        let told = self.calls.get(&asked(function, context, model))?;
        let Some(Choice::Play(knobs)) = told.choice else { return None };
        let wish = Wish::of(function, context, Choice::Play(knobs), model)?;
        // All of them are cut alike.
        let pieces_log2 = wish.cuts.first().and_then(|cut| self.chunks.get(cut)).copied().unwrap_or(0);
        Some(Choice::Play(Action { chunk_log2: pieces_log2, ..knobs }))
    }
}

/// As the plug-in is asked about the calls of a context.
fn asked(function: Function, context: &Context, model: &NcclModel) -> Asked {
    let is_known = model.version().tells_tuners_the_communicator();
    (function, context.size_log2, is_known.then_some((context.ranks, context.hosts)))
}

/// Which chunks a context has, and into how many pieces its choice cuts them, as a logarithm: NCCL's own choice into none.
struct Wish {
    cuts: Vec<Cut>,
    pieces_log2: u8,
}

impl Wish {
    fn of(function: Function, context: &Context, choice: Choice, model: &NcclModel) -> Option<Wish> {
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
        let parts = if is_cut_as_a_whole(algorithm, context) { 1 } else { u64::from(channels.max(1)) };
        // Where the channels are no power of two, the bytes of a channel reach from one bin into the next. Small calls for which NCCL
        // takes fewer or more channels than for a typical one have their bytes between these, too: more channels go with more bytes.
        let least = 1u64 << context.size_log2.min(62);
        let bin = |bytes: u64| (bytes / parts).max(1).ilog2();
        let bins = bin(least)..=bin(2 * least - 1);
        Some(Wish { cuts: bins.map(|bin| (function, algorithm, protocol, bin)).collect(), pieces_log2 })
    }
}

/// Into how many pieces chunks are cut. Where contexts want different things of the same ones, these stay whole, and so do all others of
/// these contexts: if some calls of a context had smaller chunks and some had not, nobody could say what its times are the times of.
fn agreed(mut wishes: Vec<Wish>) -> BTreeMap<Cut, u8> {
    loop {
        let mut chunks: BTreeMap<Cut, u8> = BTreeMap::new();
        let mut disputed: BTreeSet<Cut> = BTreeSet::new();
        for wish in &wishes {
            for cut in &wish.cuts {
                if *chunks.entry(*cut).or_insert(wish.pieces_log2) != wish.pieces_log2 {
                    disputed.insert(*cut);
                }
            }
        }
        // One at least of those who disagree gives something up each time.
        if disputed.is_empty() {
            return chunks;
        }
        for wish in &mut wishes {
            if wish.cuts.iter().any(|cut| disputed.contains(cut)) {
                wish.pieces_log2 = 0;
            }
        }
    }
}

/// Whether NCCL asks about the chunks of all channels at once, with all bytes of the call: where sums are those of the network
/// (`isCollnet` in `src/enqueue.cc`), as NVLS has them between hosts, too. Else it asks channel by channel.
fn is_cut_as_a_whole(algorithm: Algorithm, context: &Context) -> bool {
    match algorithm {
        Algorithm::CollNetDirect | Algorithm::CollNetChain => true,
        Algorithm::Nvls => context.hosts > 1,
        _ => false,
    }
}

/// Why there is no rule for calls, although there might be one for some of them.
fn undecided((function, size_log2, world): &Asked) -> String {
    let among = world.map_or_else(String::new, |(ranks, hosts)| format!(" among {ranks} ranks on {hosts} hosts"));
    let bytes = 1u64 << size_log2;
    format!(
        "\n# No rule for {function} from {bytes} bytes on{among}: calls that NCCL does not tell apart want different \
         things.\n"
    )
}

/// A rule for calls. `own`: the channels that NCCL gives them by itself; only fewer are said.
fn call(asked: &Asked, action: &Action, own: Option<u32>) -> Option<String> {
    let (function, size_log2, world) = asked;
    let (algorithm, protocol) = NcclModel::way(action)?;
    let mut rule = format!(
        "\n[[call]]\nfunction = \"{function}\"\nmin_bytes = {}\nbelow_bytes = {}\n",
        1u64 << size_log2,
        2u64 << size_log2
    );
    if let Some((ranks, hosts)) = world {
        rule += &format!("ranks = {ranks}\nhosts = {hosts}\n");
    }
    rule += &format!("algorithm = \"{algorithm}\"\nprotocol = \"{protocol}\"\n");
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
    use crate::environment::CostModel;
    use crate::nccl::{Communicator, Graph, Path};
    use crate::policy::Schedule;
    use crate::state::tests::CALL;
    use crate::state::{Parallelism, State};

    fn model_with(version: &str, channels: u32) -> NcclModel {
        let graph = Graph { channels, intra_gb_s: 20.0, inter_gb_s: 20.0, intra: Path::NvLink, ..Graph::default() };
        let whole = Communicator { ranks: 16, hosts: 2, compute_capability: 90, ..Communicator::of_graph(graph) };
        NcclModel::new(version.parse().expect("a version"), whole).expect("a communicator")
    }

    fn model_of(version: &str) -> NcclModel {
        model_with(version, 16)
    }

    fn model() -> NcclModel {
        model_of("2.30.7")
    }

    fn by(algorithm: Algorithm, protocol: WireProtocol, channels: u8, chunk_log2: u8) -> Choice {
        let family = Family { algorithm: algorithm.number() as u8, protocol };
        Choice::Play(Action { family, channels, threads: 0, chunk_log2 })
    }

    fn ring(channels: u8, chunk_log2: u8) -> Choice {
        by(Algorithm::Ring, WireProtocol::Simple, channels, chunk_log2)
    }

    fn context(bytes: u64, parallelism: Parallelism) -> Context {
        State { bytes, ranks: 16, hosts: 2, parallelism, ..CALL }.context()
    }

    fn policy_of(entries: &[(Context, Choice)]) -> Policy {
        Policy::new(4, entries.iter().map(|(context, choice)| (*context, Schedule::always(*choice))))
    }

    fn written_for(model: &NcclModel, entries: &[(Context, Choice)]) -> String {
        write(&policy_of(entries), entries.iter().map(|(context, _)| context), model)
    }

    fn played_for(model: &NcclModel, entries: &[(Context, Choice)]) -> BTreeMap<Context, Choice> {
        played(&policy_of(entries), entries.iter().map(|(context, _)| context), model)
    }

    fn written(entries: &[(Context, Choice)]) -> String {
        written_for(&model(), entries)
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
            let why = "# No rule for AllReduce from 67108864 bytes on among 16 ranks on 2 hosts:";
            assert!(text.contains(why), "{text}");
        }
        // 2^26 bytes by 8 channels, and 2^25 by 4: the same bytes of a channel, of which only one wants halves.
        let text = written(&[(data, ring(8, 1)), (context(1 << 25, Parallelism::Data), ring(4, 0))]);
        assert_eq!((text.matches("[[call]]").count(), text.matches("[[chunk]]").count()), (2, 0), "{text}");
        let text = written(&[(data, ring(8, 1)), (context(1 << 25, Parallelism::Data), ring(4, 1))]);
        assert_eq!(text.matches("[[chunk]]").count(), 1, "{text}");
    }

    /// NCCL 2.19 and 2.20 do not say on which communicator a call is made: a rule is for all, if all want it.
    #[test]
    fn where_nccl_does_not_say_who_takes_part_rules_are_for_all() {
        let (old, newer) = (model_of("2.20.5"), model_of("2.21.5"));
        let whole = context(1 << 26, Parallelism::Data);
        let part = State { bytes: 1 << 26, ranks: 8, hosts: 1, ..CALL }.context();
        let alike = [(whole, ring(8, 0)), (part, ring(8, 0))];
        let text = written_for(&old, &alike);
        assert!(text.matches("[[call]]").count() == 1 && !text.contains("ranks = "), "{text}");
        assert!(text.contains("# NCCL 2.20.5 does not say on which communicator"), "{text}");
        assert_eq!(written_for(&newer, &alike).matches("ranks = ").count(), 2);
        assert_eq!(played_for(&old, &alike), BTreeMap::from(alike));
        for other in [ring(4, 0), Choice::Default] {
            let different = [(whole, ring(8, 0)), (part, other)];
            let text = written_for(&old, &different);
            let why = "# No rule for AllReduce from 67108864 bytes on:";
            assert!(text.contains(why) && !text.contains("[[call]]"), "{text}");
            assert_eq!(played_for(&old, &different), BTreeMap::from([whole, part].map(|it| (it, Choice::Default))));
            assert_eq!(played_for(&newer, &different), BTreeMap::from(different));
        }
    }

    /// Sixteen ranks share 128 KiB on two channels by themselves, and two ranks on sixteen: these are bounded.
    #[test]
    fn a_bound_for_all_is_one_for_those_with_the_most_channels() {
        let of = |ranks, hosts| State { bytes: 1 << 17, ranks, hosts, ..CALL }.context();
        let few = by(Algorithm::Ring, WireProtocol::LowLatency, 4, 0);
        let mut entries = [(of(16, 2), few), (of(2, 1), few)];
        for _ in 0..2 {
            let text = written_for(&model_of("2.19.4"), &entries);
            assert_eq!((text.matches("[[call]]").count(), text.matches("\nchannels = 4\n").count()), (1, 1), "{text}");
            entries.reverse();
        }
        let text = written_for(&model_of("2.21.5"), &entries);
        assert_eq!((text.matches("[[call]]").count(), text.matches("\nchannels = 4\n").count()), (2, 1), "{text}");
    }

    #[test]
    fn chunks_are_found_by_the_bytes_that_nccl_asks_with() {
        let least = |algorithm: Algorithm, hosts: u32| {
            let context = State { bytes: 1 << 26, ranks: 8 * hosts, hosts, ..CALL }.context();
            let text = written(&[(context, by(algorithm, WireProtocol::Simple, 8, 1))]);
            let rule = text.split("[[chunk]]").nth(1).unwrap_or_else(|| panic!("no rule: {text}"));
            rule.lines().find_map(|line| line.strip_prefix("min_bytes = ")?.parse::<u64>().ok())
        };
        let (whole, of_channel) = (Some(1 << 26), Some(1 << 23));
        assert_eq!([1, 2].map(|hosts| least(Algorithm::CollNetDirect, hosts)), [whole; 2]);
        assert_eq!([1, 2].map(|hosts| least(Algorithm::CollNetChain, hosts)), [whole; 2]);
        assert_eq!([1, 2].map(|hosts| least(Algorithm::Nvls, hosts)), [of_channel, whole]);
        for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::NvlsTree] {
            assert_eq!([1, 2].map(|hosts| least(algorithm, hosts)), [of_channel; 2], "{algorithm}");
        }
    }

    /// Whoever learns from what was played must know what was: not what it wished.
    #[test]
    fn what_the_plug_in_plays_is_what_was_written() {
        let (large, middle) = (context(1 << 26, Parallelism::Data), context(1 << 25, Parallelism::Data));
        let sharded = context(1 << 26, Parallelism::Sharded);
        let played_of = |entries: &[(Context, Choice)]| played_for(&model(), entries);
        let alone = played_of(&[(large, ring(8, 1)), (middle, Choice::Default)]);
        assert_eq!(alone, BTreeMap::from([(large, ring(8, 1)), (middle, Choice::Default)]));
        // Of the same bytes of a channel one wants halves: they stay whole.
        let chunks = played_of(&[(large, ring(8, 1)), (middle, ring(4, 0))]);
        assert_eq!(chunks, BTreeMap::from([(large, ring(8, 0)), (middle, ring(4, 0))]));
        let alike = played_of(&[(large, ring(8, 1)), (sharded, ring(4, 1))]);
        assert_eq!(alike, BTreeMap::from([(large, Choice::Default), (sharded, Choice::Default)]));
    }

    /// The bytes for which there are rules for chunks.
    fn chunk_bytes(text: &str) -> Vec<std::ops::Range<u64>> {
        let number = |rule: &str, name: &str| -> u64 {
            let number = rule.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
            number.unwrap_or_else(|| panic!("no `{name}`: {rule}"))
        };
        let rules = text.split("[[chunk]]").skip(1);
        rules.map(|rule| number(rule, "min_bytes = ")..number(rule, "below_bytes = ")).collect()
    }

    /// Where the channels are no power of two, the bytes of a channel lie in two bins.
    #[test]
    fn rules_for_chunks_hold_for_all_sizes_of_their_context() {
        for (channels, size) in [1u8, 2, 3, 6, 8, 12, 16, 24, 48, 64].into_iter().flat_map(|it| [(it, 20), (it, 26)]) {
            let least = 1u64 << size;
            let entry = (context(least, Parallelism::Data), ring(channels, 1));
            let rules = chunk_bytes(&written_for(&model_with("2.30.7", 64), &[entry]));
            assert_eq!(rules.len(), if channels.is_power_of_two() { 1 } else { 2 }, "{channels} channels: {rules:?}");
            // From one edge to the other.
            for bytes in (0..=64).map(|part| least + part * (least - 1) / 64) {
                let of_channel = bytes / u64::from(channels);
                let has_rule = rules.iter().any(|rule| rule.contains(&of_channel));
                assert!(has_rule, "{bytes} bytes on {channels} channels: {of_channel} are in none of {rules:?}");
            }
        }
    }

    /// On 24 channels, each carries 2.7 to 5.3 MiB of calls from 64 MiB on, and 5.3 to 10.7 MiB of those from 128 MiB on: what is from 4
    /// to below 8 MiB is of both.
    #[test]
    fn contexts_that_share_chunks_have_smaller_ones_together_or_not_at_all() {
        let model = model_with("2.30.7", 24);
        let contexts = [26, 27, 28].map(|size| context(1 << size, Parallelism::Data));
        let entries = |pieces_log2: [u8; 3]| -> Vec<(Context, Choice)> {
            contexts.into_iter().zip(pieces_log2.map(|pieces_log2| ring(24, pieces_log2))).collect()
        };
        for (wanted, expected) in [
            ([1, 1, 1], [1, 1, 1]),
            ([2, 2, 2], [2, 2, 2]),
            ([1, 0, 0], [0, 0, 0]),
            ([0, 0, 1], [0, 0, 0]),
            // What the first two share is whole, and so is what the second shares with the third.
            ([0, 1, 1], [0, 0, 0]),
            ([1, 1, 2], [0, 0, 0]),
        ] {
            let are_cut = expected != [0; 3];
            let (wanted, expected) = (entries(wanted), BTreeMap::from_iter(entries(expected)));
            assert_eq!(played_for(&model, &wanted), expected, "{wanted:?}");
            let text = written_for(&model, &wanted);
            assert_eq!(chunk_bytes(&text).len(), if are_cut { 4 } else { 0 }, "{text}");
        }
        // Another way has other chunks.
        let tree = by(Algorithm::Tree, WireProtocol::Simple, 24, 0);
        let apart = [(contexts[0], ring(24, 1)), (contexts[1], tree)];
        assert_eq!(played_for(&model, &apart), BTreeMap::from(apart));
    }

    /// Calls that are left to NCCL may go the same way by themselves: their chunks are not cut.
    #[test]
    fn chunks_of_calls_that_are_left_to_nccl_stay_whole() {
        let data = State { bytes: context(1 << 26, Parallelism::Data).typical_bytes(), ranks: 16, hosts: 2, ..CALL };
        let sharded = State { parallelism: Parallelism::Sharded, ..data };
        let situation = model().situation(&data).expect("choices");
        let own = situation.arms[situation.default].action;
        let halved = Choice::Play(Action { chunk_log2: 1, ..own });
        let fewer = Choice::Play(Action { channels: own.channels / 2, ..own });
        let text = written(&[(data.context(), halved), (sharded.context(), fewer)]);
        assert!(text.contains("# No rule for") && !text.contains("[["), "{text}");
        let text = written(&[(data.context(), halved), (sharded.context(), halved)]);
        assert_eq!(chunk_bytes(&text).len(), 1, "{text}");
    }
}
