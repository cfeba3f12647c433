//! Communicators that are split, each with tuned calls of its own, on ranks that come at different times and of which some ask more often
//! than others: the same call of a communicator is made under the same version and takes the same on all of its ranks.

use std::thread;

use paceline_tune::Random;

use super::*;

/// A grid of ranks.
const ROWS: usize = 2;
const COLUMNS: usize = 3;
const SEED: u64 = 20_261_122;

/// So often the world is split, each time into other communicators.
const SPLITS: usize = 2;
/// Iterations from one split to the next.
const ITERATIONS: usize = 60;
/// The calls of an iteration in each communicator, in elements of eight bytes.
const ELEMENTS: [usize; 8] = [64, 1 << 14, 64, 1 << 14, 64, 64, 1 << 14, 1 << 14];

/// A communicator's name, and a call's number among those that are made in it.
type Numbered = (String, usize);
/// What a rank has seen of calls: the version in force, and what the call took.
type Seen = BTreeMap<Numbered, (u64, Choice)>;

/// A rank of one of the communicators.
struct Member<'a> {
    name: String,
    calls: TunedCalls<'a>,
    made: usize,
}

impl<'a> Member<'a> {
    fn new(name: String, communicator: &'a Communicator) -> Member<'a> {
        let mut calls = TunedCalls::new(communicator, SEED);
        calls.meetings = calls.meetings.clone().always();
        Member { name, calls, made: 0 }
    }

    /// An iteration. `random` is this rank's own.
    fn iterate(&mut self, random: &mut Random, seen: &mut Seen) {
        let options = CallOptions::default();
        let ranks = self.calls.communicator.world_size() as f64;
        for elements in ELEMENTS {
            if random.below(8) == 0 {
                thread::sleep(Duration::from_micros(random.below(300) as u64));
            }
            // What nobody makes, and how often it is asked for, changes nothing.
            for _ in 0..random.below(3) {
                self.calls.options_for(CollectiveKind::AllReduce, 8 * elements, &CALL, &options);
            }
            let version = self.calls.policies.current().number;
            let mut data = vec![1.0f64; elements];
            self.calls.all_reduce(&mut data, Reduction::Sum, &CALL, &options).unwrap();
            assert!(data.iter().all(|sum| *sum == ranks), "{}", self.name);
            let made = self.calls.made.last_mut().unwrap();
            // Whatever is tried halves the time: something is, however busy the machine may be.
            made.seconds = if made.choice == Choice::Default { 4e-3 } else { 2e-3 };
            seen.insert((self.name.clone(), self.made), (version, made.choice));
            self.made += 1;
        }
        self.calls.boundary().unwrap();
    }
}

/// The calls that a rank has seen otherwise than one before it.
fn differing(all: &[Seen]) -> Vec<&Numbered> {
    let mut first = BTreeMap::new();
    let mut differ = Vec::new();
    for (call, took) in all.iter().flatten() {
        if *first.entry(call).or_insert(took) != took {
            differ.push(call);
        }
    }
    differ
}

#[test]
fn split_communicators_take_the_same_on_all_of_their_ranks() {
    let all: Vec<Seen> = on_ranks(ROWS * COLUMNS, |world| {
        let rank = world.rank();
        let (mut random, mut seen) = (Random::new(SEED, rank as u64), Seen::new());
        let mut whole = Member::new("world".to_owned(), &world);
        for split in 0..SPLITS {
            // The second time the other way round: another rank leads.
            let key = if split == 0 { 0 } else { -(rank as i32) };
            let (row, column) = (rank / COLUMNS, rank % COLUMNS);
            let in_row = world.split(Some(row as u32), key).unwrap().unwrap();
            let in_column = world.split(Some(column as u32), key).unwrap().unwrap();
            let mut of_row = Member::new(format!("row {row} of split {split}"), &in_row);
            let mut of_column = Member::new(format!("column {column} of split {split}"), &in_column);
            for _ in 0..ITERATIONS {
                whole.iterate(&mut random, &mut seen);
                of_row.iterate(&mut random, &mut seen);
                of_column.iterate(&mut random, &mut seen);
            }
        }
        seen
    });
    assert_eq!(differing(&all), Vec::<&Numbered>::new(), "seed {SEED}");
    // Of each communicator all ranks have seen all calls.
    let calls = ELEMENTS.len() * ITERATIONS * SPLITS;
    assert!(all.iter().all(|seen| seen.len() == 3 * calls));
    // Some calls of the split ones take what is tried, or what stands by now.
    let is_split = |(call, _): &(&Numbered, &(u64, Choice))| call.0 != "world";
    let tried = all.iter().flatten().filter(is_split).filter(|(_, took)| took.1 != Choice::Default).count();
    let versions = all.iter().flatten().filter(is_split).map(|(_, took)| took.0).max();
    assert!(tried > 20 && versions > Some(2), "{tried} calls of all ranks, versions up to {versions:?}");
    // One rank that takes something else is found.
    let mut wrong = all.clone();
    let last = wrong.last_mut().and_then(|seen| seen.values_mut().next()).unwrap();
    last.0 += 1;
    assert_eq!(differing(&wrong).len(), 1);
}
