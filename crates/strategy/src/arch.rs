//! What the arch of a strategy asks for in a world of so many workers.

use std::time::Duration;

use crate::{Strategy, Value};

/// The servers of `arch=ps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Servers {
    /// How many there are; each adds up its share of the partitions.
    pub shards: usize,
    /// Buckets are cut into partitions of at most so many bytes.
    pub partition_bytes: u64,
    /// On hosts of their own? If not, beside the workers.
    pub dedicated: bool,
    /// Do they have the optimiser, and give workers new parameters instead of sums?
    pub apply: bool,
}

impl Servers {
    /// Where servers cut unless a strategy says otherwise: as BytePS and the study (`BYTEPS_PARTITION_BYTES`). The grammar's
    /// default.
    pub const PARTITION_BYTES: u64 = 4_096_000;
}

/// What Horovod took to start an all-reduce in the study, nearly independent of the network: workers, and nanoseconds.
/// Derived from its published throughputs, under the assumption that backward is two thirds of computation.
const STUDY_START_UP: [(f64, f64); 4] = [(4.0, 190_000.0), (8.0, 250_000.0), (16.0, 350_000.0), (32.0, 460_000.0)];

impl Strategy {
    /// The servers, for `workers` workers on `hosts` hosts; `None` if the workers communicate all-to-all.
    pub fn servers(&self, workers: usize, hosts: usize) -> Option<Servers> {
        if self.arch.name != "ps" {
            return None;
        }
        let shards = match (self.arch.number(0), self.arch.word(0)) {
            (Some(shards), _) => usize::try_from(shards).unwrap_or(usize::MAX),
            (None, Some("workers")) => workers,
            _ => hosts,
        };
        Some(Servers {
            shards: shards.max(1),
            partition_bytes: self.arch.number(1).unwrap_or(u64::MAX),
            dedicated: self.arch.word(2) == Some("dedicated"),
            apply: self.servers_apply(),
        })
    }

    /// Do servers apply the optimiser (`arch=ps` with the mode `apply`)? If not, workers do.
    pub fn servers_apply(&self) -> bool {
        self.arch.name == "ps" && self.arch.word(3) == Some("apply")
    }

    /// Why its servers cannot go on under another plan than they began with; None: they can. With the mode `apply` they
    /// have the optimiser, whose state lies where the first plan has put the partitions.
    pub fn refuses_new_plans(&self) -> Option<String> {
        self.servers_apply().then(|| {
            format!(
                "schedule={} plans again from what it has measured, and servers that have the optimiser (arch={}) \
                 would lose its state then; choose the mode aggregate, or another schedule",
                self.schedule, self.arch
            )
        })
    }

    /// The all-reduce algorithm that `arch=a2a` names; `None` under another arch.
    pub fn algorithm(&self) -> Option<&str> {
        self.arch.word(0).filter(|_| self.arch.name == "a2a")
    }

    /// Is it left open whether servers add up or the workers themselves (`arch=auto`)?
    pub fn arch_is_open(&self) -> bool {
        self.arch.name == "auto"
    }

    /// Is anything left open that a search must choose: the arch, or the schedule?
    pub fn is_open(&self) -> bool {
        self.arch_is_open() || self.schedule.name == "auto"
    }

    /// The time that is added artificially to the start of each operation, one after the other, in a world of `workers`
    /// workers. Zero if there is none, and in a world of one worker, which starts no operation.
    ///
    /// `study` is interpolated between the worker counts of the study, linearly in their logarithm; outside of them it is
    /// that of the nearest.
    pub fn start_up(&self, workers: usize) -> Duration {
        let Some(index) = self.start_up_place() else { return Duration::ZERO };
        match (self.arch.duration(index), self.arch.word(index)) {
            _ if workers < 2 => Duration::ZERO,
            (Some(time), _) => time,
            (None, Some("study")) => study_start_up(workers),
            _ => Duration::ZERO,
        }
    }

    /// The same strategy with another start-up time, if it adds one.
    #[must_use]
    pub fn with_start_up(&self, time: Duration) -> Strategy {
        let mut strategy = self.clone();
        let argument = self.start_up_place().and_then(|place| strategy.arch.arguments.get_mut(place));
        if let Some(argument) = argument {
            *argument = Value::Duration(time);
        }
        strategy
    }

    /// Which argument of the arch says what is added to the start of operations.
    fn start_up_place(&self) -> Option<usize> {
        match self.arch.name.as_str() {
            "a2a" => Some(1),
            "ps" => Some(4),
            _ => None,
        }
    }
}

fn study_start_up(workers: usize) -> Duration {
    let workers = workers as f64;
    let [first, .., last] = STUDY_START_UP;
    let between = STUDY_START_UP.windows(2).find(|pair| (pair[0].0..=pair[1].0).contains(&workers));
    let nanoseconds = match between {
        Some(pair) => {
            let share = (workers / pair[0].0).log2() / (pair[1].0 / pair[0].0).log2();
            pair[0].1 + share * (pair[1].1 - pair[0].1)
        }
        None if workers < first.0 => first.1,
        None => last.1,
    };
    Duration::from_nanos(nanoseconds.round() as u64)
}

#[cfg(test)]
mod tests {
    use crate::{Call, Registry};

    use super::*;

    fn parse(text: &str) -> Strategy {
        Registry::built_in().parse(text).unwrap()
    }

    #[test]
    fn calls_are_what_the_grammar_reads() {
        assert_eq!(parse("arch=ps:4").arch, Call::servers(4, false));
        assert_eq!(parse("arch=ps:2:dedicated").arch, Call::servers(2, true));
        assert_eq!(parse("arch=a2a").arch, Call::all_to_all("auto"));
        assert_eq!(parse("arch=a2a:ring").arch, Call::all_to_all("ring"));
        assert_eq!(parse("wfbp-a2a").schedule, Call::named("wfbp"));
    }

    #[test]
    fn shards_may_follow_the_world() {
        let servers = |text, workers, hosts| parse(text).servers(workers, hosts);
        let of =
            |shards, partition_bytes, dedicated| Some(Servers { shards, partition_bytes, dedicated, apply: false });
        assert_eq!(servers("arch=ps", 32, 8), of(8, 4_096_000, false));
        assert_eq!(servers("arch=ps:workers:1MiB", 32, 8), of(32, 1 << 20, false));
        assert_eq!(servers("arch=ps:3:1MiB:dedicated", 32, 8), of(3, 1 << 20, true));
        assert_eq!(servers("study-wfbp-ps", 32, 8), of(8, 4_096_000, true));
        assert_eq!(servers("arch=a2a:ring", 32, 8), None);
        let apply = servers("arch=ps:3:apply", 32, 8);
        assert_eq!(apply, of(3, 4_096_000, false).map(|servers| Servers { apply: true, ..servers }));
        assert_eq!(parse("arch=a2a:ring").algorithm(), Some("ring"));
        assert_eq!((servers("auto", 32, 8), parse("auto").algorithm()), (None, None));
        assert_eq!(parse("arch=ps").algorithm(), None);
    }

    #[test]
    fn what_a_search_must_choose_is_open() {
        let open = |text| (parse(text).arch_is_open(), parse(text).is_open());
        assert_eq!(
            [open("auto"), open("wfbp-a2a"), open("ddp,arch=auto")],
            [(true, true), (false, false), (true, true)]
        );
        assert_eq!(
            [open("auto,arch=ps:2"), open("schedule=auto"), open("auto,schedule=ddp")],
            [(false, true), (false, true), (true, true)]
        );
    }

    #[test]
    fn servers_with_the_optimiser_keep_their_plan() {
        let why = parse("schedule=auto,arch=ps:2:apply").refuses_new_plans().unwrap();
        assert!(why.starts_with("schedule=auto plans again") && why.contains("(arch=ps:2:4000KiB:"), "{why}");
        assert_eq!(["auto,arch=ps:2", "auto"].map(|text| parse(text).refuses_new_plans()), [None, None]);
    }

    #[test]
    fn start_up_is_named_or_that_of_the_study() {
        let start_up = |text, workers| parse(text).start_up(workers).as_nanos();
        assert_eq!(start_up("arch=a2a", 8), 0);
        assert_eq!(start_up("arch=a2a:ring:0.25ms", 8), 250_000);
        assert_eq!(start_up("arch=ps:2:4MiB:colocated:aggregate:1us", 2), 1_000);
        assert_eq!(start_up("arch=ps:2:4MiB:colocated:aggregate:1us", 1), 0);
        for (workers, expected) in
            [(1, 0), (2, 190_000), (4, 190_000), (8, 250_000), (16, 350_000), (32, 460_000), (64, 460_000)]
        {
            assert_eq!(start_up("arch=a2a:ring:study", workers), expected, "{workers} workers");
        }
        for text in ["arch=a2a:ring:study", "arch=ps:2:4MiB:colocated:aggregate:1us"] {
            let longer = parse(text).with_start_up(Duration::from_micros(300));
            assert_eq!(longer.start_up(8).as_micros(), 300, "{longer}");
            assert_eq!(parse(&longer.to_string()), longer);
        }
        for text in ["arch=a2a:ring", "arch=auto"] {
            assert_eq!(parse(text).with_start_up(Duration::from_micros(300)), parse(text));
        }
        // Half way between 8 and 16 in the logarithm.
        assert_eq!(start_up("arch=a2a:ring:study", 11), 295_943);
    }
}
