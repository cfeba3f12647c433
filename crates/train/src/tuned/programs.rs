//! Programs of the caller's, as algorithms that a tuner may choose, the same on all ranks.

use std::fmt;
use std::ops::RangeInclusive;

use paceline_comm::{CallOptions, CommError, Communicator, Element, Reduction, VerifiedProgram};
use paceline_plan::{CollectiveKind, Fnv1a};
use paceline_tune::environment::Admitted;
use paceline_tune::{Choice, Family};

use super::{TunedCalls, tuned_options, with_knobs};

/// A program that a tuner may choose. Equal if what it says and its sizes are.
#[derive(Clone)]
pub struct TunedProgram {
    /// What is run.
    pub program: VerifiedProgram,
    /// Bytes of the calls that it is for, of the larger side of a rank; of a file, what `msccl::sizes` says.
    pub sizes: RangeInclusive<u64>,
}

impl TunedProgram {
    fn kind(&self) -> CollectiveKind {
        self.program.program().kind
    }

    /// For whoever prices it.
    pub(crate) fn admitted(&self) -> Admitted {
        Admitted { program: self.program.program().clone(), sizes: self.sizes.clone() }
    }
}

impl PartialEq for TunedProgram {
    fn eq(&self, other: &TunedProgram) -> bool {
        self.program.fingerprint() == other.program.fingerprint() && self.sizes == other.sizes
    }
}

/// In short: ranks compare it.
impl fmt::Debug for TunedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TunedProgram { program, sizes } = self;
        write!(f, "{} ({:08x}) for {sizes:?} bytes", program.algorithm(), program.fingerprint())
    }
}

/// The options and the program of a choice, if it is one of these.
pub(crate) fn program_of<'a>(
    programs: &'a [TunedProgram],
    choice: Choice,
    collective: CollectiveKind,
    options: &CallOptions,
) -> Option<(CallOptions, &'a VerifiedProgram)> {
    let Choice::Play(action) = choice else { return None };
    let place = action.family.algorithm.checked_sub(Family::PROGRAMS)?;
    let it = programs.get(usize::from(place)).filter(|it| it.kind() == collective)?;
    Some((with_knobs(&action, options), &it.program))
}

impl TunedCalls<'_> {
    /// From here on, these programs are algorithms, too, of calls that they are for: of their collective, among as many ranks, of
    /// their sizes. They are priced by walking them, and tried and chosen like any other. All ranks call it with the same ones in
    /// the same order, before their first call.
    ///
    /// # Errors
    /// As [`Communicator::all_gather`]; [`CommError::Usage`] if ranks have others than rank 0, all of which are named, if there are
    /// more than [`Admitted::MAX`], or if one is of a collective that is not tuned, or of another number of ranks.
    pub fn admit(&mut self, programs: &[TunedProgram]) -> Result<(), CommError> {
        let mut digest = Fnv1a::default();
        for TunedProgram { program, sizes } in programs {
            digest.number(program.fingerprint().into()).number(*sizes.start()).number(*sizes.end());
        }
        let others = ranks_that_differ(self.communicator, digest.value())?;
        self.check(programs, &others).map_err(|what| self.usage("programs to choose from", what))?;
        self.model = self.model.clone().with_programs(programs.iter().map(TunedProgram::admitted).collect());
        self.programs = programs.to_vec();
        Ok(())
    }

    fn check(&self, programs: &[TunedProgram], others: &[usize]) -> Result<(), String> {
        if !others.is_empty() {
            let names: Vec<&str> = programs.iter().map(|it| it.program.algorithm()).collect();
            return Err(format!(
                "not the same as on rank 0: {}. This rank has {names:?}; give all ranks the same files in the same order",
                named(self.communicator, others)
            ));
        }
        if programs.len() > Admitted::MAX {
            return Err(format!("there are {} of them; at most {} can be told apart", programs.len(), Admitted::MAX));
        }
        use CollectiveKind::{AllGather, AllReduce, ReduceScatter};
        let world = self.communicator.world_size();
        for it in programs {
            let (name, kind, ranks) = (it.program.algorithm(), it.kind(), it.program.program().ranks.len());
            if !matches!(kind, AllGather | AllReduce | ReduceScatter) {
                return Err(format!("{name} is of {kind}; all-reduce, reduce-scatter and all-gather are tuned"));
            }
            if ranks != world {
                return Err(format!("{name} is for {ranks} ranks, and {world} are here; leave it out"));
            }
        }
        Ok(())
    }

    /// An all-reduce, in place, as a choice says, of which nothing is learned: for whoever compares choices.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_reduce_as<T: Element>(
        &self,
        choice: Choice,
        data: &mut [T],
        reduction: Reduction,
        options: &CallOptions,
    ) -> Result<(), CommError> {
        let (options, program) = self.played(choice, CollectiveKind::AllReduce, options);
        match program {
            Some(program) => self.communicator.run_program_in_place(program, data, reduction, &options),
            None => self.communicator.all_reduce(data, reduction, &options),
        }
    }

    /// The options of a choice, and its program, if it is one. What does not exist here changes nothing.
    pub(super) fn played(
        &self,
        choice: Choice,
        collective: CollectiveKind,
        options: &CallOptions,
    ) -> (CallOptions, Option<&VerifiedProgram>) {
        match program_of(&self.programs, choice, collective, options) {
            Some((options, program)) => (options, Some(program)),
            None => (tuned_options(choice, collective, options), None),
        }
    }
}

/// The ranks whose number is another one than rank 0's; the same list on all ranks, which all call it.
///
/// # Errors
/// As [`Communicator::all_gather`].
pub fn ranks_that_differ(communicator: &Communicator, number: u64) -> Result<Vec<usize>, CommError> {
    let mut all = vec![0i64; communicator.world_size()];
    communicator.all_gather(&[number as i64], &mut all, &CallOptions::default())?;
    Ok((0..all.len()).filter(|&rank| all[rank] != all[0]).collect())
}

/// Ranks with their hosts, for people.
pub fn named(communicator: &Communicator, ranks: &[usize]) -> String {
    const NAMED: usize = 8;
    let mut names: Vec<String> =
        ranks.iter().take(NAMED).map(|&rank| format!("rank {rank} (host {})", communicator.host(rank))).collect();
    if ranks.len() > NAMED {
        names.push(format!("{} more", ranks.len() - NAMED));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use paceline_collective::{Topology, registry};
    use paceline_comm::Kernels;
    use paceline_tune::environment::CostModel;
    use paceline_tune::{Action, Policy, Schedule, WireProtocol};

    use super::*;
    use crate::tuned::tests::{CALL, choose, on_tuned_ranks};

    const ELEMENTS: usize = 4096;
    const KINDS: [CollectiveKind; 3] =
        [CollectiveKind::AllReduce, CollectiveKind::AllGather, CollectiveKind::ReduceScatter];

    fn program(kind: CollectiveKind, name: &str, ranks: usize) -> TunedProgram {
        let program = registry::find(kind, name).unwrap().program(&Topology::flat(ranks), 0);
        TunedProgram { program: VerifiedProgram::new(program, Kernels::new()).unwrap(), sizes: 0..=u64::MAX }
    }

    /// A policy that plays the programs plays them: records say so, and results are right.
    #[test]
    fn a_choice_of_a_program_runs_it() {
        const WORLD: usize = 3;
        let played = on_tuned_ranks(WORLD, |communicator, calls| {
            calls.admit(&KINDS.map(|kind| program(kind, "ring", WORLD))).unwrap();
            let rules = KINDS.iter().enumerate().map(|(place, &kind)| {
                let family = Family { algorithm: Family::PROGRAMS + place as u8, protocol: WireProtocol::Simple };
                let action = Action { family, channels: 1, threads: 1, chunk_log2: 12 };
                (calls.state_of(kind, 4 * WORLD * ELEMENTS, &CALL).context(), Schedule::always(Choice::Play(action)))
            });
            let policy = Policy::new(1, rules.collect::<Vec<_>>());
            assert!(calls.follow(Some(&policy)).unwrap());
            communicator.record_calls(16);
            let (rank, options) = (communicator.rank() as i32, CallOptions::default());
            let mut data = vec![rank + 1; WORLD * ELEMENTS];
            calls.all_reduce(&mut data, Reduction::Sum, &CALL, &options).unwrap();
            assert!(data.iter().all(|value| *value == 6));
            let mut all = vec![0; WORLD * ELEMENTS];
            calls.all_gather(&vec![rank; ELEMENTS], &mut all, &CALL, &options).unwrap();
            assert!(all.iter().enumerate().all(|(place, value)| *value as usize == place / ELEMENTS));
            let mut mine = vec![0; ELEMENTS];
            calls.reduce_scatter(&vec![rank; WORLD * ELEMENTS], &mut mine, Reduction::Sum, &CALL, &options).unwrap();
            assert!(mine.iter().all(|value| *value == 3));
            let others = CallOptions { algorithm: Some("direct".to_owned()), ..options };
            calls.all_reduce(&mut data, Reduction::Sum, &CALL, &others).unwrap();
            communicator.latest_records(16).iter().map(|record| record.algorithm).collect::<Vec<_>>()
        });
        // The caller's own choice stays.
        assert!(played.iter().all(|played| played[..] == ["program", "program", "program", "direct"]), "{played:?}");
    }

    /// A tuner that learns tries the programs like algorithms: if they take half of what all else takes, one of them stands on all
    /// ranks, and sums are right.
    #[test]
    fn programs_are_tried_like_algorithms() {
        let played = on_tuned_ranks(2, |communicator, calls| {
            let of_name = |name: &str| program(CollectiveKind::AllReduce, name, 2);
            calls.admit(&["direct", "ring", "halving-doubling"].map(of_name)).unwrap();
            let (state, plain) =
                (calls.state_of(CollectiveKind::AllReduce, 4 * ELEMENTS, &CALL), CallOptions::default());
            let is_program =
                |choice| matches!(choice, Choice::Play(action) if action.family.algorithm >= Family::PROGRAMS);
            for _ in 0..60 {
                for _ in 0..16 {
                    let made = choose(calls, &state, &plain);
                    let micros = if is_program(made.choice) { 500 } else { 1000 };
                    calls.made.push(made.took(Duration::from_micros(micros)));
                }
                calls.boundary().unwrap();
            }
            communicator.record_calls(1);
            let mut data = vec![1i32; ELEMENTS];
            calls.all_reduce(&mut data, Reduction::Sum, &CALL, &plain).unwrap();
            assert!(data.iter().all(|value| *value == 2));
            let ran = communicator.latest_records(1).iter().map(|record| record.algorithm).collect::<Vec<_>>();
            (is_program(calls.standing().choice(state.context().key(), 0)), ran)
        });
        assert!(played.iter().all(|(stands, ran)| *stands && ran[..] == ["program"]), "{played:?}");
    }

    /// Another file on one rank, or a program that nobody can run here: all ranks are told so, with names.
    #[test]
    fn programs_that_differ_or_do_not_fit_are_refused_by_all() {
        type Given = fn(usize) -> Vec<TunedProgram>;
        let all_reduce = CollectiveKind::AllReduce;
        let cases: [(Given, &str); 4] = [
            (|rank| vec![program(CollectiveKind::AllReduce, ["ring", "direct"][rank / 2], 3)], "rank 2 (host "),
            (
                |rank| if rank == 1 { Vec::new() } else { vec![program(CollectiveKind::AllReduce, "ring", 3)] },
                "rank 1 (",
            ),
            (|_| vec![program(CollectiveKind::AllReduce, "ring", 2)], "ring is for 2 ranks, and 3 are here"),
            (|_| vec![program(CollectiveKind::Broadcast, "binomial", 3)], "is of broadcast"),
        ];
        for (given, words) in cases {
            let errors = on_tuned_ranks(3, |communicator, calls| {
                let refused = calls.admit(&given(communicator.rank())).unwrap_err().to_string();
                // Nothing has changed.
                let mut data = vec![1i32; ELEMENTS];
                calls.all_reduce(&mut data, Reduction::Sum, &CALL, &CallOptions::default()).unwrap();
                let state = calls.state_of(all_reduce, 4 * ELEMENTS, &CALL);
                let families = calls.model().situation(&state).unwrap().families;
                assert!(families.iter().all(|family| family.algorithm < Family::PROGRAMS));
                refused
            });
            assert!(errors.iter().all(|error| error.contains(words)), "{words}: {errors:?}");
        }
    }
}
