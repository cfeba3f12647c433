//! Where there is no difference, how often is a gain reported? And where there is one, is it found?

use paceline_tune::{Action, Arm, Family, Random, Situation, Standing, State, Tuner, WireProtocol};
use serde::Serialize;
use serde_json::json;

use super::super::super::report::{Table, Target, percent};
use super::super::Section;
use super::STATE;
use crate::compare::Error;

/// Jobs that report a gain where there is none.
const FALSE_GAINS_MAX: f64 = 0.05;
/// Jobs that find a gain of a fifth: not demanded of anybody, but a tuner that never reports anything is honest, too.
const FOUND_MIN: f64 = 0.9;
/// The first seed; each job takes the next one.
const SEED: u64 = 20_261_122;
/// Contexts of a job, and calls of each.
const SIZES: std::ops::Range<u32> = 15..19;
const CALLS: u64 = 600;

/// How long calls take of which nothing is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Noise {
    /// 10 %, as a logarithm.
    Normal,
    /// One call in three takes three times as long.
    TwoModes,
    /// One call in a hundred takes twenty times as long.
    Outliers,
}

/// What jobs have reported.
#[derive(Serialize)]
struct Row {
    noise: Noise,
    /// One algorithm takes a fifth less.
    has_gain: bool,
    jobs: u64,
    reported: u64,
}

pub fn run(quick: bool) -> Result<Section, Error> {
    let jobs = if quick { 2 } else { 200 };
    let cases = [(Noise::Normal, false), (Noise::TwoModes, false), (Noise::Outliers, false), (Noise::Normal, true)];
    let mut rows = Vec::new();
    for (noise, has_gain) in cases {
        let situations: Option<Vec<Situation>> = SIZES.map(situation).collect();
        let situations = situations.ok_or("there is nothing to choose from")?;
        let reported = (0..jobs).filter(|job| reports_a_gain(&situations, SEED + job, noise, has_gain)).count() as u64;
        rows.push(Row { noise, has_gain, jobs, reported });
    }
    let targets = if quick { Vec::new() } else { rows.iter().map(target).collect() };
    Ok(Section { targets, tables: vec![table(&rows)], measured: json!(rows) })
}

/// Sixty choices that are modelled alike.
fn situation(size_log2: u32) -> Option<Situation> {
    let state = State { bytes: 1 << size_log2, ..STATE };
    let mut arms = Vec::new();
    for algorithm in 0..4 {
        for &protocol in WireProtocol::ALL {
            for chunk_log2 in 16..21 {
                let action = Action { family: Family { algorithm, protocol }, channels: 2, threads: 1, chunk_log2 };
                arms.push(Arm { action, modelled_s: 1e-3 });
            }
        }
    }
    Situation::new(state, arms, 7)
}

/// Does a job ever report one? What is reported once has been reported, even if it is taken back.
fn reports_a_gain(situations: &[Situation], seed: u64, noise: Noise, has_gain: bool) -> bool {
    let (mut tuner, mut random) = (Tuner::shipped(seed), Random::new(seed, 1));
    for _ in 0..CALLS {
        for situation in situations {
            let decision = tuner.decide(situation);
            let is_better = has_gain && situation.arms[decision.arm].action.family.algorithm == 2;
            let usual_s = if is_better { 0.8e-3 } else { 1e-3 };
            tuner.observe(situation, decision, usual_s * noise.factor(&mut random));
        }
        if tuner.courses().any(|(_, course)| matches!(course.standing(), Standing::Chosen(..))) {
            return true;
        }
    }
    false
}

impl Noise {
    fn factor(self, random: &mut Random) -> f64 {
        let (deviation, slow, times) = match self {
            Noise::Normal => (0.1, false, 1.0),
            Noise::TwoModes => (0.05, random.below(3) == 0, 3.0),
            Noise::Outliers => (0.05, random.below(100) == 0, 20.0),
        };
        (deviation * random.normal()).exp() * if slow { times } else { 1.0 }
    }

    fn in_words(self) -> &'static str {
        match self {
            Noise::Normal => "10 % noise",
            Noise::TwoModes => "5 % noise, one call in three three times as long",
            Noise::Outliers => "5 % noise, one call in a hundred twenty times as long",
        }
    }
}

impl Row {
    fn share(&self) -> f64 {
        self.reported as f64 / self.jobs.max(1) as f64
    }
}

fn target(row: &Row) -> Target {
    let case = format!("simulated: {}", row.noise.in_words());
    if row.has_gain {
        return Target::at_least(
            case,
            "one algorithm a fifth faster: share of jobs that find it",
            FOUND_MIN,
            Some(row.share()),
        );
    }
    Target::at_most(
        case,
        "nothing makes a difference: share of jobs that report a gain",
        FALSE_GAINS_MAX,
        Some(row.share()),
    )
}

fn table(rows: &[Row]) -> Table {
    let text = format!(
        "Jobs of {} contexts with 60 choices each, {CALLS} calls of every context: in how many is a gain reported, even if it is taken \
         back later?",
        SIZES.len()
    );
    let mut table = Table::new(
        "Simulated: gains that are none",
        text,
        &["how long calls take", "one algorithm is a fifth faster", "jobs", "gains reported", "share"],
    );
    table.rows.extend(rows.iter().map(|row| {
        vec![
            row.noise.in_words().to_owned(),
            ["no", "yes"][usize::from(row.has_gain)].to_owned(),
            row.jobs.to_string(),
            row.reported.to_string(),
            percent(Some(row.share())),
        ]
    }));
    table
}
