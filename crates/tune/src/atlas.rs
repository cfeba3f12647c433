//! What was learned, for people: where it pays to look, what is best where, and how sure that is.

use std::fmt;

use crate::environment::CostModel;
use crate::prior::{Budget, Regime};
use crate::state::{Context, SizeClass};
use crate::tuner::{Course, Standing, Tuner};

/// From this many times the time that bandwidth alone would take, a call is limited by something else. What lies below is
/// at the limit of everything that loses nothing.
const SATURATED: f64 = 1.25;

/// A communication of which the best choice still takes more than so many times what the C2C ratio predicts is one that only
/// fewer bytes help.
const MARGIN: f64 = 1.0;

/// What some compressors leave of the bytes: a format of half the width, 1 % of the values with their places, and a
/// sign for each value.
const COMPRESSED: [(&str, f64); 3] = [("fp16", 0.5), ("topk:0.01", 0.02), ("onebit", 1.0 / 32.0)];

/// A row: one context.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The context.
    pub context: Context,
    /// The class of its size.
    pub size: SizeClass,
    /// How much was to be spent.
    pub regime: Regime,
    /// Why.
    pub why: &'static str,
    /// V = f(N)/(M·I).
    pub ratio: f64,
    /// Calls, and those spent on finding out.
    pub calls: u64,
    /// Calls of choices that were tried.
    pub explored: u64,
    /// Times that the network changed.
    pub drifts: u32,
    /// What stands: algorithm, protocol and numbers in words.
    pub best: String,
    /// How sure that is, in words.
    pub certainty: String,
    /// The share of the default's time that is saved, if something was found.
    pub gain: Option<f64>,
    /// Seconds of the default and of what stands, as typical calls take (geometric means); None if unknown.
    pub default_s: Option<f64>,
    /// The same of what stands.
    pub chosen_s: Option<f64>,
    /// What only fewer bytes would help, and how many times as fast which compressor would make it.
    pub saturated: Option<Vec<(&'static str, f64)>>,
}

/// All contexts, by collective and size.
pub fn rows(tuner: &Tuner, model: &dyn CostModel) -> Vec<Row> {
    tuner.courses().map(|(context, course)| row(context, course, model)).collect()
}

fn row(context: &Context, course: &Course, model: &dyn CostModel) -> Row {
    let budget = Budget::of(&course.state);
    let seconds = |tally: &crate::statistics::Tally| (tally.weight > 0.5).then(|| tally.mean.exp());
    let standing = course.standing();
    let (best, certainty, gain) = match standing {
        Standing::Learning => ("not known yet".to_owned(), "learning".to_owned(), None),
        Standing::Settled(reason) => ("default".to_owned(), reason.text().to_owned(), None),
        Standing::Chosen(choice, gain) => {
            let certainty =
                format!("{:.1} % ± {:.1}, p = {:.0e}", 100.0 * gain.share, 100.0 * gain.margin, gain.probability);
            (in_words(course, choice, model), certainty, Some(gain.share))
        }
    };
    let default_s = seconds(&course.default);
    let chosen_s = if gain.is_some() { seconds(&course.chosen) } else { default_s };
    Row {
        context: *context,
        size: SizeClass::of(1 << context.size_log2.min(62)),
        regime: budget.regime,
        why: budget.why,
        ratio: course.state.ratio(),
        calls: course.calls,
        explored: course.explored,
        drifts: course.drifts,
        best,
        certainty,
        gain,
        default_s,
        chosen_s,
        saturated: chosen_s.filter(|_| course.is_decided()).and_then(|seconds| saturated(course, model, seconds)),
    }
}

/// "ring rendezvous, 4 lanes, 2 threads, chunks of 256 KiB".
fn in_words(course: &Course, choice: crate::Choice, model: &dyn CostModel) -> String {
    let crate::Choice::Play(action) = choice else { return "default".to_owned() };
    let mut words = model.family_name(&course.state, &action);
    if action.channels > 0 {
        words += &format!(", {} channels", action.channels);
    }
    if action.threads > 0 && model.sets_threads() {
        words += &format!(", {} threads", action.threads);
    }
    if action.chunk_log2 > 0 {
        words += &format!(", {}", model.chunk_in_words(action.chunk_log2));
    }
    words
}

/// What compression would bring where bandwidth decides: the time that is not bandwidth's stays as it is.
fn saturated(course: &Course, model: &dyn CostModel, seconds: f64) -> Option<Vec<(&'static str, f64)>> {
    let bandwidth_s = model.bandwidth_s(&course.state);
    let at_the_limit = bandwidth_s > 0.0 && seconds > MARGIN * bandwidth_s && seconds <= SATURATED * bandwidth_s;
    let faster = |share: f64| seconds / (seconds - bandwidth_s * (1.0 - share)).max(1e-12);
    at_the_limit.then(|| COMPRESSED.iter().map(|&(name, share)| (name, faster(share))).collect())
}

/// The regimes: which there are, why, and what was spent on them.
#[derive(Clone, Debug)]
pub struct Atlas(pub Vec<Row>);

/// The best knobs of each context.
#[derive(Clone, Debug)]
pub struct Table(pub Vec<Row>);

impl fmt::Display for Atlas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<15} {:<10} {:>5} {:<9} {:<9} {:>8} {:<12} {:>9} {:>9}  why",
            "collective", "bytes", "ranks", "transport", "calls of", "V", "regime", "calls", "spent"
        )?;
        for row in &self.0 {
            writeln!(
                f,
                "{:<15} {:<10} {:>5} {:<9} {:<9} {:>8.1e} {:<12} {:>9} {:>9}  {}",
                row.context.collective,
                row.size,
                row.context.ranks,
                row.context.transport,
                row.context.parallelism,
                row.ratio,
                row.regime,
                row.calls,
                row.explored,
                row.why
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.0 {
            let Context { collective, size_log2, ranks, hosts, parallelism, .. } = row.context;
            let size = human(1u64 << size_log2.min(62));
            writeln!(f, "{collective} from {size} among {ranks} ranks on {hosts} hosts ({parallelism})")?;
            let time = |seconds: Option<f64>| seconds.map_or("?".to_owned(), |it| format!("{:.3} ms", 1e3 * it));
            writeln!(
                f,
                "  {} ({}); default {}, now {}",
                row.best,
                row.certainty,
                time(row.default_s),
                time(row.chosen_s)
            )?;
            if let Some(compressors) = &row.saturated {
                let all = compressors.iter().map(|(name, factor)| format!("{name} {factor:.1}x"));
                let all = all.collect::<Vec<_>>().join(", ");
                writeln!(f, "  lossless_saturated: bandwidth decides; at best, compression would bring {all}")?;
            }
        }
        Ok(())
    }
}

fn human(bytes: u64) -> String {
    match bytes {
        ..0x400 => format!("{bytes} B"),
        0x400..0x10_0000 => format!("{} KiB", bytes >> 10),
        0x10_0000..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::tests::situation;
    use crate::action::{Action, Situation};
    use crate::environment::Call;
    use crate::state::State;

    /// A library whose calls take this long if nothing but bandwidth counts.
    struct Library {
        bandwidth_s: f64,
        sets_threads: bool,
    }

    impl CostModel for Library {
        fn name(&self) -> String {
            "a library".to_owned()
        }

        fn state(&self, _: &Call) -> State {
            situation().state
        }

        fn situation(&self, _: &State) -> Option<Situation> {
            Some(situation())
        }

        fn family_name(&self, _: &State, _: &Action) -> String {
            "ring rendezvous".to_owned()
        }

        fn bandwidth_s(&self, _: &State) -> f64 {
            self.bandwidth_s
        }

        fn sets_threads(&self) -> bool {
            self.sets_threads
        }
    }

    const LIBRARY: Library = Library { bandwidth_s: 0.9e-3, sets_threads: true };

    /// So many calls, of which those of arm 3 take 0.7 ms and the others 1 ms.
    fn tuner(situation: &Situation, calls: usize) -> Tuner {
        let mut tuner = Tuner::shipped(3);
        for _ in 0..calls {
            let decision = tuner.decide(situation);
            tuner.observe(situation, decision, if decision.arm == 3 { 0.7e-3 } else { 1e-3 });
        }
        tuner
    }

    /// A call of which nothing can be chosen.
    fn alone() -> Situation {
        let Situation { state, arms, .. } = situation();
        Situation::new(state, arms[..1].to_vec(), 0).expect("an arm")
    }

    #[test]
    fn where_bandwidth_decides_only_fewer_bytes_help() {
        let tuner = tuner(&alone(), 20);
        let saturated = |bandwidth_s: f64| {
            let rows = rows(&tuner, &Library { bandwidth_s, ..LIBRARY });
            assert_eq!(rows.len(), 1);
            rows.into_iter().next().and_then(|row| row.saturated)
        };
        // Of 1 ms 0.9 are bandwidth's: half of the bytes take 0.55 ms, two in a hundred 0.118.
        let all = saturated(0.9e-3).expect("at the limit");
        let factor = |name: &str| all.iter().find(|(known, _)| *known == name).expect("a compressor").1;
        assert!(
            (factor("fp16") - 1.0 / 0.55).abs() < 1e-6 && (factor("topk:0.01") - 1.0 / 0.118).abs() < 1e-6,
            "{all:?}"
        );
        // Limited by something else; faster than a link can be; a call whose link is not known.
        for bandwidth_s in [0.79e-3, 0.1e-3, 1.1e-3, 0.0] {
            assert_eq!(saturated(bandwidth_s), None, "{bandwidth_s}");
        }
        let table = Table(rows(&tuner, &LIBRARY)).to_string();
        assert!(
            table.contains("lossless_saturated: bandwidth decides; at best, compression would bring fp16 1.8x"),
            "{table}"
        );
    }

    #[test]
    fn what_is_not_decided_is_not_told() {
        let row = rows(&tuner(&situation(), 20), &LIBRARY).remove(0);
        assert_eq!((&*row.best, &*row.certainty, row.gain, row.saturated), ("not known yet", "learning", None, None));
        assert_eq!(row.calls, 20);
        assert!(row.default_s.is_some_and(|seconds| (seconds - 1e-3).abs() < 1e-9));
    }

    #[test]
    fn what_stands_is_told_with_what_can_be_set() {
        let it = situation();
        let it = Situation::new(State { model_intensity: 100.0, local_batch: 8, ..it.state }, it.arms, it.default);
        let tuner = tuner(&it.expect("arms"), 700);
        let row = |sets_threads: bool| rows(&tuner, &Library { sets_threads, ..LIBRARY }).remove(0);
        assert_eq!(row(true).best, "ring rendezvous, 2 channels, 1 threads, chunks of 64 KiB");
        assert_eq!(row(false).best, "ring rendezvous, 2 channels, chunks of 64 KiB");
        let row = row(true);
        assert!(row.gain.is_some_and(|gain| (gain - 0.3).abs() < 0.01), "{row:?}");
        assert!(row.chosen_s.is_some_and(|seconds| (seconds - 0.7e-3).abs() < 1e-6), "{row:?}");
        assert!(row.certainty.starts_with("30.0 % ± ") && row.certainty.contains("p = "), "{}", row.certainty);
        let atlas = Atlas(vec![row.clone()]).to_string();
        let line = atlas.lines().nth(1).expect("a row");
        for words in [row.why, "aggressive", "<= 1 MiB", "all-reduce", &*row.explored.to_string()] {
            assert!(line.contains(words), "no `{words}`: {line}");
        }
    }
}
