//! Everything that can be chosen for a call, each once, as contestants of a race.

use std::collections::BTreeSet;

use paceline_train::TunedCalls;
use paceline_tune::environment::{CostModel, Links};
use paceline_tune::main_effects::{Entrant, TRAITS};
use paceline_tune::{Action, Choice, Situation, State};

/// What is modelled to take so many times as long as the best is not called: at the largest sizes a single call takes a minute.
/// A tuner leaves out what is modelled above 4.
const LEFT_OUT: f64 = 10.0;

/// What can be chosen, the default first and then by what is modelled.
pub struct Contestants {
    pub choices: Vec<Choice>,
    /// What they have in common.
    pub entrants: Vec<Entrant>,
    /// So many choices differ on these links, those that are left out included.
    pub existing: usize,
}

impl Contestants {
    /// Of a call. Only the default, if there is no choice.
    pub fn of(tuned: &TunedCalls<'_>, state: &State, links: Links) -> Contestants {
        let Some(situation) = situation(tuned, state) else {
            let alone = Entrant::unmodelled([0; TRAITS]);
            return Contestants { choices: vec![Choice::Default], entrants: vec![alone], existing: 1 };
        };
        let default = situation.entrant(situation.default);
        let mut all = Contestants { choices: vec![Choice::Default], entrants: vec![default], existing: 1 };
        let limit_s = LEFT_OUT * situation.cheapest_s();
        let mut seen = BTreeSet::new();
        for arm in situation.arms_within(f64::INFINITY) {
            let it = &situation.arms[arm];
            if !seen.insert(links.effect(&it.action)) {
                continue;
            }
            all.existing += 1;
            if it.modelled_s <= limit_s {
                all.choices.push(Choice::Play(it.action));
                all.entrants.push(situation.entrant(arm));
            }
        }
        all
    }
}

/// What a tuner chooses from, for calls of this context. None: there is no choice.
pub fn situation(tuned: &TunedCalls<'_>, state: &State) -> Option<Situation> {
    tuned.model().situation(&State { bytes: state.context().typical_bytes(), ..*state })
}

/// A choice, for people.
pub fn in_words(tuned: &TunedCalls<'_>, state: &State, choice: Choice) -> String {
    let Choice::Play(action) = choice else { return "default".to_owned() };
    let Action { channels, threads, chunk_log2, .. } = action;
    let family = tuned.model().family_name(state, &action);
    format!("{family}, {channels} lanes, {threads} threads, chunks of {} KiB", (1u64 << chunk_log2.min(40)) >> 10)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use paceline_comm::Communicator;
    use paceline_plan::CollectiveKind;
    use paceline_train::links_of;

    use super::super::bench::CALL;
    use super::*;

    #[test]
    fn the_default_comes_first_and_nothing_twice() {
        // Ranks leave their world together.
        let ranks = Communicator::threads(2).expect("threads connect").into_iter().map(|communicator| {
            thread::spawn(move || {
                let tuned = TunedCalls::new(&communicator, 1);
                let state = tuned.state_of(CollectiveKind::AllReduce, 1 << 20, &CALL);
                let all = Contestants::of(&tuned, &state, links_of(&communicator));
                let words = [Choice::Default, all.choices[1]].map(|choice| in_words(&tuned, &state, choice));
                (all, words)
            })
        });
        for rank in ranks.collect::<Vec<_>>() {
            let (all, words) = rank.join().expect("no panic");
            assert_eq!(all.choices[0], Choice::Default);
            assert!(all.choices.len() > 20 && all.choices.len() <= all.existing, "{}", all.existing);
            assert_eq!(all.entrants.len(), all.choices.len());
            assert!(words[0] == "default" && words[1].contains("lanes"), "{words:?}");
        }
    }
}
