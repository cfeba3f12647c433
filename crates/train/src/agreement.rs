//! Before the first step the ranks compare what must be the same everywhere.

use paceline_comm::{CallOptions, Communicator};

use crate::error::{TrainError, WhileTraining};

/// What must be the same on every rank, as pairs of subject and value.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    subjects: Vec<(String, String)>,
}

impl Agreement {
    pub(crate) fn add(&mut self, subject: impl Into<String>, value: impl ToString) {
        // One line per subject and per value, whatever a name may contain.
        let line = |text: String| text.replace(['\n', '\r'], " ");
        self.subjects.push((line(subject.into()), line(value.to_string())));
    }

    /// Compares with every other rank. All ranks come to the same verdict: the lowest rank that differs from rank 0, and
    /// the first subject in which it does.
    pub(crate) fn compare(&self, communicator: &Communicator) -> Result<(), TrainError> {
        let texts = self.exchange(communicator)?;
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let first = lines(&texts[0]);
        if let Some((rank, text)) = texts.iter().enumerate().find(|(_, text)| **text != texts[0]) {
            let other = lines(text);
            let differs = (0..first.len().max(other.len())).find(|&index| first.get(index) != other.get(index));
            // Lines come in pairs; a difference in either is one of the pair's subject.
            let pair = differs.map_or(0, |index| index / 2 * 2);
            let line = |lines: &[String], index: usize| lines.get(index).cloned();
            let subject = line(&first, pair).or_else(|| line(&other, pair)).unwrap_or_default();
            let value = |lines: &[String]| line(lines, pair + 1).map_or("nothing".into(), |value| format!("`{value}`"));
            return Err(TrainError::Disagreement { rank, subject, here: value(&first), there: value(&other) });
        }
        Ok(())
    }

    /// Every rank's text, by rank.
    fn exchange(&self, communicator: &Communicator) -> Result<Vec<String>, TrainError> {
        let doing = "comparing the ranks before training";
        let own: String = self.subjects.iter().map(|(subject, value)| format!("{subject}\n{value}\n")).collect();
        let world_size = communicator.world_size();
        let mut lengths = vec![0i64; world_size];
        communicator.all_gather(&[own.len() as i64], &mut lengths, &CallOptions::default()).while_training(doing)?;
        check(&lengths)?;
        let longest = lengths.iter().copied().max().unwrap_or(0) as usize;
        let mut padded = own.into_bytes();
        padded.resize(longest, b'\n');
        let mut all = vec![0u8; longest * world_size];
        communicator.all_gather(&padded, &mut all, &CallOptions::default()).while_training(doing)?;
        let text = |(bytes, &length): (&[u8], &i64)| String::from_utf8_lossy(&bytes[..length as usize]).into_owned();
        Ok(all.chunks_exact(longest).zip(&lengths).map(text).collect())
    }
}

/// No text is longer: what there is to say of a large model's tensors and profile takes less than a megabyte.
const TEXT_BYTES_MAX: i64 = 64 << 20;

/// Refuses lengths that are none: of a rank that was started otherwise, and is in another call, any number may come here.
fn check(lengths: &[i64]) -> Result<(), TrainError> {
    let is_length = |length: &i64| (0..=TEXT_BYTES_MAX).contains(length);
    if lengths.iter().all(is_length) {
        return Ok(());
    }
    let rank = lengths.iter().position(|length| is_length(length) != is_length(&lengths[0])).unwrap_or(0);
    let subject = format!("the length of what is compared, which is at most {TEXT_BYTES_MAX} bytes");
    let value = |length: i64| format!("`{length}`");
    Err(TrainError::Disagreement { rank, subject, here: value(lengths[0]), there: value(lengths[rank]) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::on_ranks::on_ranks;

    /// The verdict of each rank, when rank r has `subjects[r]`.
    fn verdicts(subjects: &[Vec<(&str, &str)>]) -> Vec<Result<(), TrainError>> {
        on_ranks(subjects.len(), |communicator| {
            let mut agreement = Agreement::default();
            subjects[communicator.rank()].iter().for_each(|(subject, value)| agreement.add(*subject, value));
            agreement.compare(&communicator)
        })
    }

    #[test]
    fn equal_ranks_agree() {
        let subjects = vec![("seed", "1"), ("parameter 0", "w [3]")];
        assert!(verdicts(&vec![subjects; 3]).iter().all(Result::is_ok));
    }

    /// Another call has the same shape, and any number in it: that is an error, and no reason to ask for so much memory.
    #[test]
    fn a_rank_that_does_something_else_is_named() {
        for length in [5_465_015_992_139_406_179, TEXT_BYTES_MAX + 1, -1, i64::MIN] {
            for stranger in [0, 1] {
                let told = on_ranks(2, |communicator| {
                    if communicator.rank() == stranger {
                        let mut all = vec![0i64; 2];
                        communicator.all_gather(&[length], &mut all, &CallOptions::default()).unwrap();
                        return None;
                    }
                    let mut agreement = Agreement::default();
                    agreement.add("seed", 1);
                    Some(agreement.compare(&communicator).unwrap_err().to_string())
                });
                let error = told[1 - stranger].as_ref().unwrap();
                let beginning = "rank 1 differs from rank 0 in the length of what is compared, which is at most ";
                assert!(error.starts_with(beginning), "{error}");
                assert!(error.contains(&format!("`{length}` at rank {stranger}")), "{error}");
            }
        }
    }

    #[test]
    fn the_first_difference_of_the_lowest_rank_is_named_on_every_rank() {
        let alike = vec![("seed", "1"), ("parameter 0", "w [3]"), ("parameter 1", "b [3]")];
        let mut value = alike.clone();
        value[1].1 = "w [4]";
        let shorter = alike[..2].to_vec();
        let longer = [alike.clone(), vec![("parameter 2", "x [1]")]].concat();
        let cases = [
            (
                vec![alike.clone(), alike.clone(), value.clone(), shorter.clone()],
                "rank 2 differs from rank 0 in parameter 0: `w [4]` at rank 2, `w [3]` at rank 0",
            ),
            (
                vec![alike.clone(), shorter],
                "rank 1 differs from rank 0 in parameter 1: nothing at rank 1, `b [3]` at rank 0",
            ),
            (vec![alike, longer], "rank 1 differs from rank 0 in parameter 2: `x [1]` at rank 1, nothing at rank 0"),
        ];
        for (subjects, message) in cases {
            for verdict in verdicts(&subjects) {
                let error = verdict.unwrap_err().to_string();
                assert!(error.starts_with(message), "`{error}` does not begin with `{message}`");
            }
        }
    }
}
