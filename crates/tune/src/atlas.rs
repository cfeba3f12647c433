//! What was learned, for people: where it pays to look, what is best where, and how sure that is.

use std::fmt;

use crate::environment::{CostModel, counted};
use crate::prior::{Budget, Regime};
use crate::state::{Congestion, Context, SizeClass};
use crate::tuner::{Course, Standing, Tuner};

/// From so many times what bandwidth alone would take, which is the time that the C2C ratio counts with, a call exceeds it: noise, and what
/// measured links are off by, are some percent. What takes no longer is what the ratio says of it already, fewer bytes included.
const EXCEEDS: f64 = 1.1;

/// Where even the fewest bytes would make a call less than so many times as fast, it takes what it takes for latency: compression
/// would cost more than it brings.
const BRINGS: f64 = 1.1;

/// What some compressors leave of the bytes: a format of half the width, 1 % of the values with their places, and a
/// sign for each value.
const COMPRESSED: [(&str, f64); 3] = [("fp16", 0.5), ("topk:0.01", 0.02), ("onebit", 1.0 / 32.0)];

/// How sure it is what stands where nothing is decided.
pub const LEARNING: &str = "learning";

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
    /// How many times as long it takes as bandwidth alone would, what the C2C ratio counts with; None if unknown.
    pub over_bandwidth: Option<f64>,
    /// Of a call that is decided, takes longer than the C2C ratio counts with whatever it is made with, and would be much faster with fewer
    /// bytes: how many times as fast which compressor would make it at best.
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
        Standing::Learning => ("not known yet".to_owned(), LEARNING.to_owned(), None),
        Standing::Settled(reason) => ("default".to_owned(), reason.text().to_owned(), None),
        Standing::Chosen(choice, gain) => {
            let certainty =
                format!("{:.1} % ± {:.1}, p = {:.0e}", 100.0 * gain.share, 100.0 * gain.margin, gain.probability);
            (in_words(course, choice, model), certainty, Some(gain.share))
        }
    };
    let default_s = seconds(&course.default);
    let chosen_s = if gain.is_some() { seconds(&course.chosen) } else { default_s };
    let bandwidth_s = model.bandwidth_s(&course.state);
    let over_bandwidth = chosen_s.filter(|_| bandwidth_s > 0.0).map(|seconds| seconds / bandwidth_s);
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
        over_bandwidth,
        saturated: over_bandwidth.filter(|_| course.is_decided()).and_then(saturated),
    }
}

/// "ring rendezvous, 4 lanes, 2 threads, chunks of 256 KiB".
fn in_words(course: &Course, choice: crate::Choice, model: &dyn CostModel) -> String {
    let crate::Choice::Play(action) = choice else { return "default".to_owned() };
    let mut words = model.family_name(&course.state, &action);
    if action.channels > 0 {
        words += &format!(", {}", model.channels_in_words(action.channels));
    }
    if action.threads > 0 && model.sets_threads() {
        words += &format!(", {}", counted(action.threads.into(), "thread"));
    }
    if action.chunk_log2 > 0 {
        words += &format!(", {}", model.chunk_in_words(action.chunk_log2));
    }
    words
}

/// What compression would bring to a call that takes so many times what bandwidth alone would: the time that is not bandwidth's stays
/// as it is. None if that is little, or if the call does not exceed what bandwidth alone would take.
fn saturated(over_bandwidth: f64) -> Option<Vec<(&'static str, f64)>> {
    let rest = over_bandwidth - 1.0;
    let all: Vec<_> = COMPRESSED.iter().map(|&(name, share)| (name, over_bandwidth / (rest + share))).collect();
    let most = all.iter().map(|(_, faster)| *faster).fold(0.0, f64::max);
    (over_bandwidth >= EXCEEDS && most >= BRINGS).then_some(all)
}

/// "takes 2.0 times what bandwidth alone would; at best, compression would bring fp16 1.3x".
pub fn saturation_in_words<Name: fmt::Display>(over_bandwidth: f64, compressors: &[(Name, f64)]) -> String {
    let all: Vec<String> = compressors.iter().map(|(name, faster)| format!("{name} {faster:.1}x")).collect();
    let all = all.join(", ");
    format!("takes {over_bandwidth:.1} times what bandwidth alone would; at best, compression would bring {all}")
}

/// The regimes: which there are, why, and what was spent on them.
#[derive(Clone, Debug)]
pub struct Atlas(pub Vec<Row>);

/// The best knobs of each context.
#[derive(Clone, Debug)]
pub struct Table(pub Vec<Row>);

impl fmt::Display for Atlas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (head, places) = places(self.0.iter().map(|row| &row.context));
        writeln!(f, "{head} {:>8} {:<12} {:>9} {:>9}  why", "V", "regime", "calls", "spent")?;
        for (row, place) in self.0.iter().zip(&places) {
            writeln!(
                f,
                "{place} {:>8.1e} {:<12} {:>9} {:>9}  {}",
                row.ratio, row.regime, row.calls, row.explored, row.why
            )?;
        }
        Ok(())
    }
}

/// What an atlas begins its head and its rows with, aligned: what is called in these contexts, and who calls.
pub fn places<'a>(contexts: impl Iterator<Item = &'a Context>) -> (String, Vec<String>) {
    const WHO: &str = "calls of";
    let rows: Vec<(String, String)> = contexts.map(|context| (what(context), who(context))).collect();
    let width = rows.iter().map(|(_, who)| who.len()).fold(WHO.len(), usize::max);
    let place = |what: &str, who: &str| format!("{what} {who:<width$}");
    (place(WHAT, WHO), rows.iter().map(|(what, who)| place(what, who)).collect())
}

/// The head of [`what`].
const WHAT: &str = "collective      bytes                from ranks hosts";

/// What is called in a context, of which class of bytes, from how many on and among how many, as wide as its head.
fn what(context: &Context) -> String {
    let Context { collective, size_log2, ranks, hosts, .. } = *context;
    let least = 1u64 << size_log2.min(62);
    format!("{collective:<15} {:<16} {:>8} {ranks:>5} {hosts:>5}", SizeClass::of(least), human(least))
}

/// Who calls, over what, beside whom: all in which contexts of the same calls may differ.
pub fn who(context: &Context) -> String {
    let Context { parallelism, transport, topology, congestion, .. } = *context;
    let mut words = vec![parallelism.to_string(), transport.to_string(), topology.to_string()];
    let flags = [
        (context.has_nvlink, "nvlink"),
        (context.is_pipelined_layer, "pipelined"),
        (context.is_fused_call, "fused"),
        (context.is_ps_deployment, "servers"),
    ];
    words.extend(flags.into_iter().filter(|(is_it, _)| *is_it).map(|(_, word)| word.to_owned()));
    if context.intensity_log2 > 0 {
        words.push(format!("I from {}", 1u32 << context.intensity_log2.min(15)));
    }
    if congestion != Congestion::None {
        words.push(format!("congestion {congestion}"));
    }
    words.join(", ")
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.0 {
            let Context { collective, size_log2, ranks, hosts, .. } = row.context;
            let size = human(1u64 << size_log2.min(62));
            let who = who(&row.context);
            writeln!(f, "{collective} from {size} among {ranks} ranks on {hosts} hosts ({who})")?;
            let time = |seconds: Option<f64>| seconds.map_or("?".to_owned(), |it| format!("{:.3} ms", 1e3 * it));
            writeln!(
                f,
                "  {} ({}); default {}, now {}",
                row.best,
                row.certainty,
                time(row.default_s),
                time(row.chosen_s)
            )?;
            if let (Some(compressors), Some(times)) = (&row.saturated, row.over_bandwidth) {
                writeln!(f, "  lossless_saturated: {}", saturation_in_words(times, compressors))?;
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
    fn what_exceeds_bandwidth_by_a_margin_only_fewer_bytes_help() {
        let tuner = tuner(&alone(), 20);
        let row = |bandwidth_s: f64| {
            let mut rows = rows(&tuner, &Library { bandwidth_s, ..LIBRARY });
            assert_eq!(rows.len(), 1);
            rows.remove(0)
        };
        let factor = |bandwidth_s: f64, name: &str| {
            let all = row(bandwidth_s).saturated.expect("only fewer bytes help");
            all.iter().find(|(known, _)| *known == name).expect("a compressor").1
        };
        // Of 1 ms 0.9 are bandwidth's: half of the bytes take 0.55 ms, two in a hundred 0.118.
        let fp16 = factor(0.9e-3, "fp16");
        let topk = factor(0.9e-3, "topk:0.01");
        assert!((fp16 - 1.0 / 0.55).abs() < 1e-6 && (topk - 1.0 / 0.118).abs() < 1e-6, "{fp16} {topk}");
        // Twice as long as predicted: what exceeds it stays.
        assert!((factor(0.5e-3, "fp16") - 1.0 / 0.75).abs() < 1e-6);
        assert!(row(0.5e-3).over_bandwidth.is_some_and(|times| (times - 2.0).abs() < 1e-6));
        // What bandwidth alone would take, and by noise a bit more or less: the C2C ratio says that already. Then a call that takes what it
        // takes for latency; faster than a link can be; a call whose link is not known.
        for bandwidth_s in [1e-3, 0.95e-3, 1.02e-3, 0.05e-3, 1.1e-3, 0.0] {
            assert_eq!(row(bandwidth_s).saturated, None, "{bandwidth_s}");
        }
        assert_eq!(row(0.0).over_bandwidth, None);
        let table = Table(vec![row(0.5e-3)]).to_string();
        let words = "takes 2.0 times what bandwidth alone would; at best, compression would bring fp16 1.3x";
        assert!(table.contains(&format!("lossless_saturated: {words}")), "{table}");
    }

    /// A row is of all sizes from one power of two to the next; its class must be that of each of them.
    #[test]
    fn a_row_has_the_class_of_all_of_its_sizes() {
        let Situation { state, arms, .. } = situation();
        for (bytes, class) in [
            ((16 << 10) - 1, "< 16 KiB"),
            (16 << 10, "16 to 64 KiB"),
            (20 << 10, "16 to 64 KiB"),
            (3 << 20, "1 to 4 MiB"),
            (4 << 20, "4 MiB+"),
            (5 << 20, "4 MiB+"),
        ] {
            let call = Situation::new(State { bytes, ..state }, arms[..1].to_vec(), 0).expect("an arm");
            let row = rows(&tuner(&call, 1), &LIBRARY).remove(0);
            assert_eq!((row.size.name(), row.size), (class, SizeClass::of(bytes)), "{bytes} bytes");
        }
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
        assert_eq!(row(true).best, "ring rendezvous, 2 lanes, 1 thread, chunks of 64 KiB");
        assert_eq!(row(false).best, "ring rendezvous, 2 lanes, chunks of 64 KiB");
        let row = row(true);
        assert!(row.gain.is_some_and(|gain| (gain - 0.3).abs() < 0.01), "{row:?}");
        assert!(row.chosen_s.is_some_and(|seconds| (seconds - 0.7e-3).abs() < 1e-6), "{row:?}");
        assert!(row.certainty.starts_with("30.0 % ± ") && row.certainty.contains("p = "), "{}", row.certainty);
        let atlas = Atlas(vec![row.clone()]).to_string();
        let line = atlas.lines().nth(1).expect("a row");
        for words in
            [row.why, "aggressive", "1 to 4 MiB", "all-reduce", &*who(&row.context), &*row.explored.to_string()]
        {
            assert!(line.contains(words), "no `{words}`: {line}");
        }
        assert_eq!(
            (what(&row.context).len(), atlas.lines().next().map(|head| head.starts_with(WHAT))),
            (WHAT.len(), Some(true))
        );
        // Rows of contexts that differ differ.
        let other = Context { is_fused_call: !row.context.is_fused_call, ..row.context };
        let both = Atlas(vec![row.clone(), Row { context: other, ..row }]).to_string();
        let lines: Vec<&str> = both.lines().collect();
        assert_ne!(lines[1], lines[2]);
    }
}
