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
