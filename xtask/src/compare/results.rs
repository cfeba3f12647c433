//! What was measured, and what follows from it.

use serde::Serialize;
use serde_json::Value;

use super::command::Measured;

/// The name of our own rows.
pub const OURS: &str = "paceline";

/// Under which conditions the contestants meet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// `shm` or `tcp`.
    pub transport: String,
    /// The world size.
    pub ranks: usize,
    /// The time given to one size in one run.
    pub seconds: f64,
}

/// Everything about one comparison.
#[derive(Serialize)]
pub struct Results {
    /// The version of this file's form.
    pub schema: u32,
    /// The day, UTC.
    pub date: String,
    /// The machine, as `paceline perf` describes it.
    pub machine: Value,
    /// The rivals.
    pub versions: Vec<String>,
    /// How often everything was measured.
    pub rounds: usize,
    /// One entry per setting, contestant and size.
    pub rows: Vec<Row>,
}

/// One contestant at one size.
#[derive(Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub setting: Setting,
    /// `paceline`, `openmpi` (its own choice), `openmpi-tuned` (the best of `coll_tuned`), `gloo`.
    pub contestant: String,
    /// The bytes of the data.
    pub bytes: usize,
    /// What was run.
    pub algorithm: String,
    /// The median over the calls, one number per run.
    pub p50_us: Vec<f64>,
}

/// Ours against one rival at one size.
pub struct Duel<'a> {
    pub ours: &'a Row,
    pub rival: &'a Row,
}

impl Results {
    /// Nothing measured yet.
    pub fn new(rounds: usize, date: String) -> Results {
        Results { schema: 1, date, machine: Value::Null, versions: Vec::new(), rounds, rows: Vec::new() }
    }

    /// Adds one run of one contestant.
    pub fn add(&mut self, setting: &Setting, contestant: &str, measured: Vec<Measured>) {
        for one in measured {
            let same =
                |row: &&mut Row| row.setting == *setting && row.contestant == contestant && row.bytes == one.bytes;
            match self.rows.iter_mut().find(same) {
                Some(row) => row.p50_us.push(one.p50_us),
                None => self.rows.push(Row {
                    setting: setting.clone(),
                    contestant: contestant.to_owned(),
                    bytes: one.bytes,
                    algorithm: one.algorithm,
                    p50_us: vec![one.p50_us],
                }),
            }
        }
    }

    /// The settings, in the order of measurement.
    pub fn settings(&self) -> Vec<&Setting> {
        let mut settings: Vec<&Setting> = self.rows.iter().map(|row| &row.setting).collect();
        settings.dedup();
        settings
    }

    /// Those who were measured in a setting, besides us.
    pub fn rivals(&self, setting: &Setting) -> Vec<&str> {
        let here = self.rows.iter().filter(|row| row.setting == *setting && row.contestant != OURS);
        let mut rivals: Vec<&str> = Vec::new();
        for row in here {
            if !rivals.contains(&row.contestant.as_str()) {
                rivals.push(&row.contestant);
            }
        }
        rivals
    }

    /// The rows of a contestant, in the order of their sizes.
    pub fn rows_of<'a>(&'a self, setting: &Setting, contestant: &str) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| row.setting == *setting && row.contestant == contestant)
    }

    /// The row of a contestant for a size.
    pub fn row(&self, setting: &Setting, contestant: &str, bytes: usize) -> Option<&Row> {
        self.rows_of(setting, contestant).find(|row| row.bytes == bytes)
    }

    /// Ours against a rival, size by size.
    pub fn duels(&self, setting: &Setting, rival: &str) -> Vec<Duel<'_>> {
        let against = |ours| Some(Duel { ours, rival: self.row(setting, rival, ours.bytes)? });
        self.rows_of(setting, OURS).filter_map(against).collect()
    }
}

impl Row {
    /// The median over the runs.
    pub fn median_us(&self) -> f64 {
        let mut sorted = self.p50_us.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
    }

    /// How far the runs are apart, as a factor: the slowest over the fastest.
    fn spread(&self) -> f64 {
        let fastest = self.p50_us.iter().copied().fold(f64::INFINITY, f64::min);
        self.p50_us.iter().copied().fold(0.0, f64::max) / fastest
    }
}

impl Duel<'_> {
    /// The rival's time over ours: above 1 we are faster.
    pub fn ratio(&self) -> f64 {
        self.rival.median_us() / self.ours.median_us()
    }

    /// Is the difference smaller than what ours differs from itself?
    pub fn is_tie(&self) -> bool {
        self.ratio().ln().abs() < self.ours.spread().ln()
    }
}

/// The geometric mean of the ratios; None if there are none.
pub fn geometric_mean(ratios: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = ratios.fold((0.0, 0), |(sum, count), ratio| (sum + ratio.ln(), count + 1));
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(p50_us: &[f64]) -> Row {
        Row {
            setting: Setting { transport: "shm".into(), ranks: 2, seconds: 1.0 },
            contestant: String::new(),
            bytes: 4,
            algorithm: String::new(),
            p50_us: p50_us.to_vec(),
        }
    }

    #[test]
    fn a_difference_within_our_own_spread_is_a_tie() {
        let (ours, near, far) = (row(&[9.0, 10.0, 11.0]), row(&[11.0]), row(&[30.0, 20.0]));
        assert!(Duel { ours: &ours, rival: &near }.is_tie());
        let duel = Duel { ours: &ours, rival: &far };
        assert!(!duel.is_tie() && (duel.ratio() - 2.5).abs() < 1e-12);
        assert_eq!(geometric_mean([4.0, 1.0].into_iter()), Some(2.0));
        assert_eq!(geometric_mean([].into_iter()), None);
    }
}
