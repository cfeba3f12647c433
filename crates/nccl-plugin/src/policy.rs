//! Which choice for which call: a table that is made once and then only read.

use paceline_tune::nccl::{Algorithm, Function, Protocol};

use crate::file::{CallRule, ChunkRule, PolicyError, Rules};

/// NCCL keeps channels in eight bits with a sign, and has at most so many.
pub const MAX_CHANNELS: u8 = 64;
/// More entries than this are no policy.
const MAX_ENTRIES: usize = 1 << 20;
/// A search looks at no more places, which are two or three pieces of memory.
const LONGEST_SEARCH: usize = 16;
/// Places for each entry, at most.
const MAX_PLACES: usize = 64;
/// Ranks and hosts have so many bits in a key.
const COUNT_BITS: u32 = 24;

/// What a call takes. What it does not name is left to NCCL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    way: Option<(Algorithm, Protocol)>,
    /// 0: NCCL's own.
    channels: u8,
}

/// What is known of a call, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// What it does.
    pub function: Function,
    /// Of the larger buffer; those of all ranks with all-gather and reduce-scatter.
    pub bytes: usize,
    /// Ranks of the communicator; 0: not known.
    pub ranks: usize,
    /// Its hosts; 0: not known.
    pub hosts: usize,
    /// More operations were started in one group than the communicator has channels (NCCL's `numPipeOps` above 1).
    pub pipelined: bool,
}

/// An immutable table: a search of [`Policy::call`] and [`Policy::chunk`] looks at 16 places at most, however many rules there are.
#[derive(Debug)]
pub struct Policy {
    version: u64,
    fingerprint: u64,
    ll128_proved: bool,
    /// A power of two of them, at most half of them taken; a key goes to the first free place from its own on.
    slots: Box<[Slot]>,
    /// How far a key's hash is shifted to be a place.
    shift: u32,
    entries: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// 0: free.
    key: u64,
    choice: Choice,
    /// Of entries for chunks.
    divide_by: u8,
}

impl Choice {
    /// A way and a bound on the channels; 0 leaves them to NCCL.
    pub const fn new(way: Option<(Algorithm, Protocol)>, channels: u8) -> Choice {
        Choice { way, channels }
    }

    /// Algorithm and protocol, if the choice names them.
    pub fn way(&self) -> Option<(Algorithm, Protocol)> {
        self.way
    }

    /// At most so many channels, if the choice names them.
    pub fn channels(&self) -> Option<u8> {
        Some(self.channels).filter(|channels| (1..=MAX_CHANNELS).contains(channels))
    }
}

impl Policy {
    /// The table of some rules.
    ///
    /// # Errors
    /// Two rules speak about the same call, or there are too many, or they do not go into a table.
    pub fn new(rules: &Rules) -> Result<Policy, PolicyError> {
        let mut entries: Vec<(Slot, usize)> = Vec::new();
        for (index, rule) in rules.calls.iter().enumerate() {
            entries.extend(slots_of_call(rule).map(|slot| (slot, index)));
            PolicyError::limit(entries.len(), MAX_ENTRIES)?;
        }
        for (index, rule) in rules.chunks.iter().enumerate() {
            entries.extend(slots_of_chunk(rule).map(|slot| (slot, index)));
            PolicyError::limit(entries.len(), MAX_ENTRIES)?;
        }
        let least = (2 * entries.len()).next_power_of_two().max(2);
        let mut capacity = least;
        while capacity <= MAX_PLACES * least {
            if let Some(policy) = Policy::of(rules, &entries, capacity)? {
                return Ok(policy);
            }
            capacity *= 2;
        }
        Err(PolicyError::TooLong(entries.len()))
    }

    /// A table of so many places, unless a search in it could be long.
    fn of(rules: &Rules, entries: &[(Slot, usize)], capacity: usize) -> Result<Option<Policy>, PolicyError> {
        let mut policy = Policy {
            version: rules.version,
            fingerprint: rules.fingerprint,
            ll128_proved: rules.ll128_proved,
            slots: vec![Slot::default(); capacity].into_boxed_slice(),
            shift: u64::BITS - capacity.ilog2(),
            entries: entries.len(),
        };
        // By which rule each place was taken.
        let mut rule_of = vec![0; capacity];
        for (slot, rule) in entries {
            let place = policy.place(slot.key);
            if policy.slots[place].key == slot.key {
                let kind = if is_chunk(slot.key) { "chunk" } else { "call" };
                return Err(PolicyError::Twice { kind, first: rule_of[place] + 1, second: rule + 1 });
            }
            policy.slots[place] = *slot;
            rule_of[place] = *rule;
        }
        Ok((policy.longest_search() <= LONGEST_SEARCH).then_some(policy))
    }

    /// How many places a search looks at, at most: one more than stand together. (The table goes on at its beginning.)
    fn longest_search(&self) -> usize {
        let (mut longest, mut together) = (0, 0);
        for slot in self.slots.iter().chain(self.slots.iter().take(LONGEST_SEARCH + 1)) {
            together = if slot.key == 0 { 0 } else { together + 1 };
            longest = longest.max(together);
        }
        longest + 1
    }

    /// The policy of a text, TOML or CSV.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn from_text(text: &str) -> Result<Policy, PolicyError> {
        Policy::new(&Rules::from_text(text)?)
    }

    /// Counted by who made it.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Equal texts have equal ones, on every machine.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Whether LL128 may be chosen where NCCL does not say if it is safe.
    pub fn ll128_proved(&self) -> bool {
        self.ll128_proved
    }

    /// How many kinds of calls it knows.
    #[allow(clippy::len_without_is_empty, reason = "it is a count for people")]
    pub fn len(&self) -> usize {
        self.entries
    }

    /// What a call takes: by a rule for these ranks and hosts, else by one for any. Where they are not known (0), only by one
    /// for any.
    pub fn call(&self, call: &Call) -> Option<Choice> {
        let world = count(call.ranks).zip(count(call.hosts));
        let find = |(ranks, hosts)| self.find(call_key(call.function, bin(call.bytes), ranks, hosts, call.pipelined));
        world.and_then(find).or_else(|| find((0, 0))).map(|slot| slot.choice)
    }

    /// Into how many pieces NCCL's chunk is cut, for as many bytes as NCCL asks with.
    pub fn chunk(&self, function: Function, algorithm: Algorithm, protocol: Protocol, bytes: usize) -> Option<u8> {
        self.find(chunk_key(function, bin(bytes), algorithm, protocol)).map(|slot| slot.divide_by)
    }

    fn find(&self, key: u64) -> Option<&Slot> {
        self.slots.get(self.place(key)).filter(|slot| slot.key == key)
    }

    /// Where a key stands, or the free place where its search ends: half of them are free.
    fn place(&self, key: u64) -> usize {
        // Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, 6.4).
        let mut place = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize;
        let last = self.slots.len() - 1;
        while ![0, key].contains(&self.slots[place & last].key) {
            place += 1;
        }
        place & last
    }
}

/// Sizes from one power of two to below the next are alike: 0 bytes, then 1, 2 to 3, 4 to 7, …
pub fn bin(bytes: usize) -> u32 {
    bytes.checked_ilog2().map_or(0, |log| log + 1)
}

fn count(count: usize) -> Option<u64> {
    u64::try_from(count).ok().filter(|count| *count > 0 && *count < 1 << COUNT_BITS)
}

/// The highest bit tells a key from a free place, the next what it is for: see [`is_chunk`].
fn call_key(function: Function, bin: u32, ranks: u64, hosts: u64, pipelined: bool) -> u64 {
    let counts = (ranks << COUNT_BITS | hosts) << 1 | u64::from(pipelined);
    1 << 63 | (function.number() as u64) << 57 | u64::from(bin) << 50 | counts
}

fn chunk_key(function: Function, bin: u32, algorithm: Algorithm, protocol: Protocol) -> u64 {
    let way = (algorithm.number() * 8 + protocol.number()) as u64;
    1 << 63 | 1 << 62 | (function.number() as u64) << 57 | u64::from(bin) << 50 | way
}

fn is_chunk(key: u64) -> bool {
    key >> 62 & 1 == 1
}

fn slots_of_call(rule: &CallRule) -> impl Iterator<Item = Slot> {
    let (ranks, hosts) = rule.world.unwrap_or((0, 0));
    let choice = Choice::new(rule.way, rule.channels);
    let (function, pipelined) = (rule.function, rule.pipelined);
    let both = [false, true].into_iter().filter(move |value| pipelined.is_none_or(|wanted| wanted == *value));
    let bins = rule.bins.clone();
    both.flat_map(move |pipelined| {
        bins.clone().map(move |bin| Slot {
            key: call_key(function, bin, ranks, hosts, pipelined),
            choice,
            divide_by: 1,
        })
    })
}

fn slots_of_chunk(rule: &ChunkRule) -> impl Iterator<Item = Slot> {
    let ChunkRule { function, algorithm, protocol, divide_by, .. } = *rule;
    let choice = Choice::default();
    rule.bins.clone().map(move |bin| Slot { key: chunk_key(function, bin, algorithm, protocol), choice, divide_by })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_RULES: &str = r#"
        schema = 1
        version = 7
        nccl_channels = 16
        [[call]]
        function = "AllReduce"
        below_bytes = 65536
        algorithm = "Tree"
        protocol = "LL"
        [[call]]
        function = "AllReduce"
        below_bytes = 65536
        ranks = 16
        hosts = 2
        algorithm = "Ring"
        protocol = "LL"
        channels = 4
        [[chunk]]
        function = "AllReduce"
        algorithm = "Ring"
        protocol = "Simple"
        min_bytes = 1048576
        divide_by = 2
    "#;

    #[test]
    fn the_rule_for_this_world_goes_before_the_one_for_any() {
        let policy = Policy::from_text(TWO_RULES).expect("a policy");
        let call = |ranks, hosts, bytes| {
            let call = Call { function: Function::AllReduce, bytes, ranks, hosts, pipelined: false };
            policy.call(&call).and_then(|choice| Some((choice.way()?.0, choice.channels())))
        };
        assert_eq!(call(8, 1, 1024), Some((Algorithm::Tree, None)));
        assert_eq!(call(16, 2, 1024), Some((Algorithm::Ring, Some(4))));
        assert_eq!(call(16, 2, 65_535), Some((Algorithm::Ring, Some(4))));
        for (ranks, hosts) in [(0, 0), (0, 2), (1 << 24, 2), (usize::MAX, usize::MAX)] {
            assert_eq!(call(ranks, hosts, 1024), Some((Algorithm::Tree, None)), "not known: any");
        }
        assert_eq!((call(16, 2, 65_536), call(8, 1, usize::MAX)), (None, None));
        let other = Call { function: Function::Reduce, bytes: 8, ranks: 8, hosts: 1, pipelined: true };
        assert_eq!(policy.call(&other), None);
        assert_eq!((policy.version(), policy.ll128_proved()), (7, false));
    }

    #[test]
    fn chunks_have_rules_of_their_own() {
        let policy = Policy::from_text(TWO_RULES).expect("a policy");
        let chunk = |protocol, bytes| policy.chunk(Function::AllReduce, Algorithm::Ring, protocol, bytes);
        assert_eq!(chunk(Protocol::Simple, 1 << 20), Some(2));
        assert_eq!(chunk(Protocol::Simple, usize::MAX), Some(2));
        assert_eq!(chunk(Protocol::Simple, (1 << 20) - 1), None);
        assert_eq!(chunk(Protocol::Ll, 1 << 20), None);
    }

    /// Many worlds: keys that differ in few bits, which might stand together.
    #[test]
    fn a_search_is_short_however_many_rules_there_are() {
        let worlds = (1..=200).flat_map(|hosts| [1, 2, 4, 8].map(|per_host| (hosts * per_host, hosts)));
        let calls = worlds.map(|world| CallRule {
            function: Function::AllReduce,
            bins: 0..crate::file::BINS,
            world: Some(world),
            pipelined: None,
            way: Some((Algorithm::Ring, Protocol::Ll)),
            channels: 0,
        });
        let policy = Policy::new(&Rules { calls: calls.collect(), ..Rules::default() }).expect("a policy");
        assert_eq!(policy.len(), 2 * 65 * 800);
        assert!(policy.longest_search() <= LONGEST_SEARCH, "{}", policy.longest_search());
        println!("{} places for {} entries", policy.slots.len(), policy.len());
        let call = Call { function: Function::AllReduce, bytes: 9, ranks: 1600, hosts: 200, pipelined: true };
        assert!(policy.call(&call).is_some() && policy.call(&Call { ranks: 1599, ..call }).is_none());
    }

    #[test]
    fn equal_texts_have_equal_fingerprints() {
        let fingerprint = |text: &str| Policy::from_text(text).expect("a policy").fingerprint();
        assert_eq!(fingerprint(TWO_RULES), fingerprint(TWO_RULES));
        assert_ne!(fingerprint(TWO_RULES), fingerprint(&TWO_RULES.replace("LL", "Simple")));
    }

    #[test]
    fn a_policy_without_rules_leaves_everything_to_nccl() {
        let policy = Policy::from_text("schema = 1\nversion = 1").expect("a policy");
        assert_eq!(policy.len(), 0);
        let call = Call { function: Function::AllReduce, bytes: 8, ranks: 8, hosts: 1, pipelined: false };
        assert_eq!(policy.call(&call), None);
    }
}
